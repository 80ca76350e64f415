#!/usr/bin/env python3
"""Writes docs/reference/ from the code: commands, exit codes, records, criteria, checks, collectives, environment.

scripts/reference.py            write the pages
scripts/reference.py --check    say which of them are old, and end 1
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from nccl_bench import records  # noqa: E402
from nccl_bench.cli import explain  # noqa: E402
from nccl_bench.cli.commands import available, by_question  # noqa: E402
from nccl_bench.cli.main import _load  # noqa: E402
from nccl_bench.collectives import COLLECTIVES  # noqa: E402
from nccl_bench.flows.doctor import CHECKS  # noqa: E402
from nccl_bench.results import env  # noqa: E402
from nccl_bench.verdict import criteria  # noqa: E402

FOLDER = ROOT / "docs/reference"
MADE = "\n<!-- Written by scripts/reference.py from the code: change it there. -->\n"


def cell(text: object) -> str:
    """Text that keeps a Markdown table whole."""
    line = " ".join(str(text).split())
    return line if line.startswith("`") else line.replace("|", "\\|").replace("<", "&lt;")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(cell(item) for item in row)} |" for row in rows)]) + "\n"


def commands() -> str:
    parts = ["# Commands\n\nAll options of all commands. Long options may be written with `_` too; `nccl-bench COMMAND --help` says the same.\n"]
    for question, rows in by_question(available()).items():
        parts.append(f"\n## {question}\n")
        for row in rows:
            command = _load(row)
            parts.append(f"\n### {row.name}\n\n{' '.join((command.help or row.help).split())}\n\n")
            options = [one for one in command.params if not getattr(one, "hidden", False)]
            parts.append(table(("option", "meaning", "default"), map(option, options)))
    return "".join(parts)


def option(one: Any) -> tuple[str, str, str]:
    """(spelling, meaning, default) of a parameter of click's."""
    if one.param_type_name == "argument":
        name = f"`{one.metavar or one.name.upper()}`"
    else:
        kind = "" if one.is_flag else f" {one.metavar or choices(one)}"
        name = f"`{', '.join([*one.opts, *one.secondary_opts])}{kind}`"
    default = one.default if not callable(one.default) else None
    shown = (
        "" if default in (None, False, "", [], ()) or one.required or "unset" in str(default).lower() else f"`{'on' if default is True else default}`"
    )
    return name, getattr(one, "help", None) or "", shown


def choices(one: Any) -> str:
    """The kind of value an option takes: its choices, or a word."""
    kind = one.type_descriptor.annotation
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, typing.get_args(kind)))
    return {str: "TEXT", int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def exit_codes() -> str:
    return f"# Exit codes\n\n```text\n{explain.load()['exit-codes'].text}\n```\n\nThe same on the command line: `nccl-bench explain exit-codes`.\n"


def record() -> str:
    parts = [
        f"# A run's records\n\nSchema version {records.SCHEMA}. `run.json` is one RunHeader; each line of `points.jsonl` is one Point. Unknown is `null`, never 0.\n"
        "The last part of a name is its unit: `_us` microseconds, `_GBps` 1e9 bytes a second, `_frac` 0 to 1, `nbytes` bytes.\n"
        "Readers take every older version; a torn last line is a warning.\n"
    ]
    for cls in (records.Point, records.Times, records.Group, records.Pair, records.RunHeader, *others()):
        said = field_docs(cls)
        first = re.sub(r" \(CONTRACT\.md[^)]*\)", "", (inspect.getdoc(cls) or "").splitlines()[0])
        parts.append(f"\n## {cls.__name__}\n\n{first}\n\n")
        parts.append(
            table(("key", "type", "meaning"), ((f"`{item.name.rstrip('_')}`", f"`{item.type}`", said.get(item.name, "")) for item in fields(cls)))
        )
    return "".join(parts)


def others() -> list[type[Any]]:
    """The remaining records that a file can hold."""
    shown = {"Point", "Times", "Group", "Pair", "RunHeader", "Case"}
    return [
        cls
        for name, cls in vars(records).items()
        if is_dataclass(cls) and isinstance(cls, type) and cls.__module__ == records.__name__ and name not in shown
    ]


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The sentence under each field."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for item, after in zip(body, [*body[1:], None], strict=True):
        if (
            isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[item.target.id] = str(after.value.value)
    return found


def criteria_page() -> str:
    text = (inspect.getdoc(criteria) or "").partition("\n\n")[2]
    rows = criteria.Criteria().thresholds()
    return (
        "# Acceptance criteria\n\n`nccl-bench accept --criteria FILE.toml`. What a file leaves out keeps its default; an unknown key is an error.\n\n## Defaults and where they come from\n\n"
        + table(("what", "value", "source"), rows)
        + f"\n## All keys\n\n```toml\n{text}\n```\n"
    )


def doctor() -> str:
    rows = (
        (
            f"`{one.id}`",
            one.what,
            one.how,
            one.why,
            one.fix,
            ", ".join(word for word, yes in (("required", one.required), ("root", one.needs_root)) if yes),
        )
        for one in CHECKS
    )
    return (
        "# What doctor checks\n\nRead-only, a row a check. `unknown` is never ok: where a *required* check cannot be read, the answer is inconclusive (8).\n*root*: can be read by root alone.\n\n"
        + table(("check", "asks for", "read from", "why", "what to do", ""), rows)
    )


def collectives() -> str:
    def factor(row: Any) -> str:
        known = {(1.5, 1.75): "2(n-1)/n", (0.75, 0.875): "(n-1)/n", (1.0, 1.0): "1"}
        return known[(row.factor(4), row.factor(8))]

    rows = (
        (
            f"`{row.name}`",
            factor(row),
            ", ".join(row.placements),
            "shared out" if row.split else "whole",
            ", ".join(word for word, yes in (("rooted", row.rooted), ("reducing", row.reducing), ("one-way", row.one_way)) if yes),
            row.nccl_tests,
            ", ".join(row.aliases),
        )
        for row in COLLECTIVES.values()
    )
    return (
        "# Collectives and bus factors\n\n`busbw = size / time x factor`, n ranks (nccl-tests doc/PERFORMANCE.md). Size is the larger buffer of one rank.\nOne-way: a rank may finish before the others, so that calls back to back overlap and their time is a rate.\n\n"
        + table(("collective", "bus factor", "placements", "size", "", "nccl-tests", "also"), rows)
    )


def environment() -> str:
    words = {}
    for path in sorted((ROOT / "nccl_bench").rglob("*.py")):
        for name in re.findall(r"""environ(?:\.get\(|\[)\s*"([A-Z][A-Z0-9_]+)\"""", path.read_text(encoding="utf-8")):
            words.setdefault(name, set()).add(path.parent.name)
    rows = ((f"`{name}`", ", ".join(sorted(rooms))) for name, rooms in sorted(words.items()))
    kept = sorted(env._ALLOWED)
    return (
        "# Environment variables\n\nnccl-bench needs no variable of its own. Who a process is comes from the variables of torchrun, Slurm, Open MPI, MPICH and MVAPICH (PMI, PMIx). Read by name, besides:\n\n"
        + table(("variable", "read by"), rows)
        + "\n## What a run keeps\n\nOf the environment only these are written to `run.json`, and a value that looks like a secret is replaced:\n\n"
        + f"everything that begins with {', '.join(f'`{prefix}`' for prefix in env._PREFIXES)}; and {', '.join(f'`{name}`' for name in kept)}.\n"
    )


def words() -> str:
    parts = ["# Words\n\nWhat `nccl-bench explain WORD` says.\n"]
    for row in explain.load().values():
        parts.append(f"\n## {row.name}\n\n{row.short}\n\n```text\n{row.text}\n```\n")
        parts += [f"\nSource: {'; '.join(row.sources)}\n"] if row.sources else []
    return "".join(parts)


PAGES = {"commands": commands, "collectives": collectives, "exit-codes": exit_codes, "records": record, "criteria": criteria_page, "doctor": doctor,
         "environment": environment, "words": words}  # fmt: skip


def write() -> None:
    """Write the pages that are not as they should be; others keep their time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        path, text = FOLDER / f"{name}.md", make() + MADE
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
