"""The documentation is true: the site builds, its reference is whole, and every command in it runs or at least is spelled right.

A fenced `console` or `bash` block is tested. Commands that need no cluster run for real, in order, in one folder a page,
where `<!-- run -->` stands above the block; what a page shows below such a command must be in its real output (measured numbers are shown
in `text` blocks, which are not compared). All others are parsed: nccl-bench's options by its own parser, a launcher's by its --help.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nccl_bench.cli.commands import available
from nccl_bench.cli.foreign import normalise
from nccl_bench.cli.main import _load

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "docs/reference"
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if GENERATED not in path.parents)]
LAUNCHERS = ("srun", "sbatch", "torchrun", "mpirun")
BLOCK = re.compile(r"(?P<mark><!-- run -->\n)?^```(?P<kind>console|bash)?[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command of a page, and what the page shows of its output."""

    page: str
    command: str
    output: tuple[str, ...]
    runs: bool


def shown(path: Path) -> list[Shown]:
    """The commands of a page. In README a block without a kind counts where its first word is a program."""
    found = []
    for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
        lines = match["body"].replace("\\\n", " ").splitlines()
        prompt = match["kind"] == "console"
        if match["kind"] is None and not (path.name == "README.md" and re.match(r"(pip|nccl-bench|srun|torchrun|mpirun) ", match["body"])):
            continue
        at: list[tuple[str, list[str]]] = []
        for line in lines:
            if line.startswith("$ ") or not prompt:
                at.append((line.removeprefix("$ "), []))
            elif at:
                at[-1][1].append(line)
        found += [Shown(str(path.relative_to(ROOT)), one, tuple(out), match["mark"] is not None) for one, out in at if one.strip()]
    return found


EVERY = [one for path in PAGES for one in shown(path)]


def split(command: str) -> list[str]:
    """Words of a command, without its comment and what follows a redirection."""
    words = shlex.split(command, comments=True)
    cut = next((at for at, word in enumerate(words) if word in (">", "|", "2>")), len(words))
    return words[:cut]


def check_options(words: list[str]) -> None:
    """nccl-bench's own parser takes these words; nothing is run."""
    if not words or words[0].startswith("-"):
        return
    rows = {row.name: row for row in available()}
    assert words[0] in rows, f"no command {words[0]}"
    command: Any = _load(rows[words[0]])
    command.make_context(words[0], [word for word in normalise(words[1:]) if word != "..."])


@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one.page}: {one.command[:60]}")
def test_every_command_is_spelled_right(one: Shown) -> None:
    words = split(one.command)
    at = next((at for at, word in enumerate(words) if word == "nccl-bench"), None)
    if words and words[0] in LAUNCHERS and shutil.which(words[0]):
        check_launcher(words if at is None else words[:at])
    if at is not None and words[0] not in ("pip", "RUN"):
        check_options(words[at + 1 :])
    elif words and words[0] == "sbatch":
        script = words[1]
        kind = "accept" if "accept" in script else "sweep"
        check_options([kind, *words[2:]])


def check_launcher(words: list[str]) -> None:
    """Every long option of a launcher is one that its --help names."""
    program = shutil.which(words[0])
    if words[0] == "torchrun":
        program = str(Path(sys.executable).with_name("torchrun"))
    text = run_help(str(program))
    if len(text) < 1000:
        return  # Slurm's programs say nothing, not even their help, where there is no slurm.conf
    for word in words[1:]:
        if word.startswith("--"):
            name = word.partition("=")[0]
            assert name in text or name.replace("-", "_") in text, f"{words[0]} knows no {name}"


def run_help(program: str) -> str:
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", sorted({one.page for one in EVERY if one.runs}))
def test_what_needs_no_cluster_runs_as_the_page_says(page: str, tmp_path: Path) -> None:
    """In order, in one empty folder that has the checkout's samples and criteria; shown lines are lines of the real output."""
    for name in ("results/samples", "criteria"):
        shutil.copytree(ROOT / name, tmp_path / name)
    env = {**os.environ, "COLUMNS": "100", "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for one in (one for one in EVERY if one.page == page and one.runs):
        assert one.command.startswith("nccl-bench"), "only our own commands run here"
        done = subprocess.run(["bash", "-c", one.command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

        assert done.returncode == 0, f"$ {one.command}\n{done.stdout}\n{done.stderr}"
        real = {line.rstrip() for line in done.stdout.splitlines()}
        for line in one.output:
            assert line.rstrip() in {*real, "...", ""}, f"$ {one.command}\nshows {line!r}, which is not in\n{done.stdout}"


def test_pages_have_commands_that_run_and_commands_that_are_parsed() -> None:
    assert sum(one.runs for one in EVERY) >= 15
    assert sum(not one.runs for one in EVERY) >= 15


def test_programs_that_pages_call_by_their_path_can_be_called_so() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    called = {name for page in pages for name in re.findall(r"(?m)(?:^|`)((?:benchmarks|scripts)/\w+\.py) ", page.read_text(encoding="utf-8"))}

    assert "benchmarks/parity.py" in called
    for name in called:
        assert os.access(ROOT / name, os.X_OK), name
        assert (ROOT / name).read_text(encoding="utf-8").startswith("#!/usr/bin/env python3"), name


def test_the_reference_is_whole() -> None:
    """Each command, each of its options, each field of a point, each check and word stands in its page."""
    pages = runpy.run_path(str(ROOT / "scripts/reference.py"))["PAGES"]
    text = {name: make() for name, make in pages.items()}
    for row in available():
        assert f"### {row.name}\n" in text["commands"]
        for one in _load(row).params:
            assert all(opt in text["commands"] for opt in one.opts if opt.startswith("-"))
    assert "| `busbw_GBps` |" in text["records"]
    assert "`pass`" in text["records"]
    assert "| `gpu.nvlink` |" in text["doctor"]
    assert "## half-bandwidth" in text["words"]
    assert "`TORCH_NCCL_`" in text["environment"]
    for page in text.values():
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert all(line.endswith("|") for line in rows), "a row is broken over lines"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: make docs installs it")
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    built = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "tutorial.html", "howto/slurm.html", "reference/commands.html", "explanation/clocks.html"} <= built
    for path in PAGES[1:]:
        name = str(path.relative_to(ROOT / "docs").with_suffix(".html"))
        assert name in built or path.name == "README.md", "every page that is in docs/ is in the site"
        if name in built:
            assert path.name == "index.md" or f'{path.stem}.html"' in (tmp_path / "site/index.html").read_text(), "and in its navigation"


def test_nothing_of_the_site_is_fetched_from_elsewhere() -> None:
    assert "font: false" in (ROOT / "mkdocs.yml").read_text()
