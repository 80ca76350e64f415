"""`nccl-bench report`: runs as a story in the terminal, and as charts, a page, Markdown, PDF."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from nccl_bench.cli.outcome import Ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nccl_bench.report.curves import View
    from nccl_bench.report.page import Document
    from nccl_bench.results.runs import Run

FORMATS = ("html", "md", "png", "svg", "pdf")
FOLDER = "report"


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN...]", help="run directories, points.jsonl, logs (LOG#2: its second run), or latest (the default)"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-O", "--out", metavar="DIR", help="write here (default: report/ in the run, and the story on the terminal)")
    ] = None,
    formats: Annotated[str, typer.Option("--format", metavar="LIST", help=f"what to write, of {','.join(FORMATS)}")] = "html,md,svg,png",
    redact_hosts: Annotated[bool, typer.Option("--redact-hosts", help="number the hosts instead of naming them")] = False,
) -> Ended:
    """Show runs: the story in the terminal, and charts with one self-contained page to send; several runs side by side.

    Needs neither torch nor a GPU.
    """
    from nccl_bench.report import document
    from nccl_bench.report.terminal import write_warnings
    from nccl_bench.results.runs import open_runs

    wanted = _formats(formats)
    opened = open_runs(runs or ["latest"])
    views, warnings = document.read(opened, redact_hosts=redact_hosts)
    made = document.build(views, warnings)
    write_warnings(warnings, sys.stderr)
    if out is None:
        _story(made, views, sys.stdout)
        sys.stdout.flush()
        _beside(opened, made, wanted)
    else:
        _say(_written(made, out, wanted), out, made, sys.stdout)
    return Ended(exit_code=0, why="done")


def _formats(text: str) -> tuple[str, ...]:
    from nccl_bench.errors import UsageError

    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in FORMATS]
    if unknown or not words:
        raise UsageError(f"--format: {unknown[0] if unknown else text!r} is no format", f"one or more of: {','.join(FORMATS)}")
    return tuple(dict.fromkeys(words))


def _story(made: Document, views: Sequence[View], stream: TextIO) -> None:
    from nccl_bench.report import story
    from nccl_bench.report.terminal import wants_color

    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    blocks = encoding.replace("-", "").startswith("utf")
    stream.write("\n".join(story.lines(made, views, color=wants_color(stream), blocks=blocks)) + "\n")


def _beside(opened: Sequence[Run], made: Document, wanted: tuple[str, ...]) -> None:
    """Write report/ into the run, where there is one run that is a directory and can be written; else say where the page would go."""
    from nccl_bench.errors import UsageError

    run = opened[0]
    if len(opened) > 1 or run.points_path is None or not Path(run.path).is_dir():
        sys.stdout.write("\n-O DIR writes charts and a page\n")
        return
    folder = Path(run.path) / FOLDER
    try:
        names = _written(made, folder, wanted)
    except UsageError as err:
        sys.stderr.write(f"note: no page: {err.why} (-O DIR writes it elsewhere)\n")
        return
    sys.stdout.write(f"\n{_files(names, folder)}\n")


def _say(names: Sequence[str], out: Path, made: Document, stream: TextIO) -> None:
    """What was written, and the document in a sentence; a rehearsal says so first and last."""
    from nccl_bench.report.page import SYMBOLS

    banner = [made.banner] if made.banner else []
    stream.write("\n".join([*banner, f"{SYMBOLS[made.status]} {made.sentence}", _files(names, out), *banner]) + "\n")


def _files(names: Sequence[str], folder: Path) -> str:
    pages = [name for name in names if not name.endswith((".svg", ".png"))]
    charts = len(names) - len(pages)
    parts = [*pages, *([f"{charts} charts"] if charts else [])]
    return f"{', '.join(parts)} in {folder}"


def _written(made: Document, folder: Path, wanted: tuple[str, ...]) -> list[str]:
    """Write the files of these formats and return their names. Raises UsageError where one cannot be written."""
    from nccl_bench.report.files import contents

    names = []
    for name, data in contents(made, wanted):
        _write(folder / name, data)
        names.append(name)
    return names


def _write(path: Path, data: bytes) -> None:
    from nccl_bench.errors import UsageError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as err:
        raise UsageError(f"{path} cannot be written: {err.strerror or type(err).__name__}", "name a directory that you may write with -O") from err
