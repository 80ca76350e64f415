"""`nccl-bench import`: somebody else's measurements to a run directory."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nccl_bench.cli.outcome import Ended
from nccl_bench.units import counted

if TYPE_CHECKING:
    from nccl_bench.errors import NcclBenchError
    from nccl_bench.records import Point, RunHeader
    from nccl_bench.results.imported import Imported

MOST_RUNS = 40
"""Runs of one file that are told on the screen, two pages of it; run.json has all."""


def import_(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="logs of nccl-tests or rccl-tests (text, -J; LOG#2: its second run), DeepSpeed comms_logger dumps, torch watchdog text, pair tables",
        ),
    ],
    out: Annotated[Path | None, typer.Option("-O", "--out", metavar="DIR", help="run directory to make (default: one under results/)")] = None,
    json: Annotated[bool, typer.Option("--json", help="print points, header, hangs and warnings as JSON; with -O, also write the run")] = False,
    group_size: Annotated[int | None, typer.Option("--group-size", min=1, help="ranks a group in a DeepSpeed dump (default: its world)")] = None,
) -> Ended:
    """Read logs of nccl-tests and others as a run.

    Every row that looks like data becomes a point or an error with its line; what contradicts itself is a warning. Ends 4 where the
    log is of a run that failed before any row, 5 where nothing in it can be read.
    """
    from nccl_bench.errors import WorldError
    from nccl_bench.report.terminal import write_error, write_warnings
    from nccl_bench.results.importers import header_of, points_of

    files, failed = _read(logs, group_size)
    if files:
        header, points = header_of(files), points_of(files)
        write_warnings(header.warnings, sys.stderr)
        path = _written(out, header, points, files, quiet=json)
        said = _document(header, points, files) if json else "".join(f"{line}\n" for line in _said(files, points, path))
        sys.stdout.write(said)
    if not failed:
        return Ended(exit_code=0, why="done")
    if len(logs) == 1:
        raise failed[0]
    for err in failed:
        write_error(err, sys.stderr)
    worst = next((err for err in failed if isinstance(err, WorldError)), failed[0])
    return Ended(exit_code=worst.exit_code, why=f"{len(failed)} of {len(logs)} files: {worst.why}")


def _read(logs: list[str], group_size: int | None) -> tuple[list[Imported], list[NcclBenchError]]:
    """What was read, and an error for every file of which nothing, or only a failure, was."""
    from nccl_bench.errors import DataError, WorldError
    from nccl_bench.results.importers import import_file
    from nccl_bench.results.runs import numbered

    files: list[Imported] = []
    failed: list[NcclBenchError] = []
    for log in logs:
        path, only = numbered(log)
        try:
            file = import_file(path, only=only, group_size=group_size)
        except DataError as err:
            failed.append(err)
            continue
        files.append(file)
        if file.failure is not None:
            failed.append(WorldError(file.failure, *file.hints))
    return files, failed


def _written(out: Path | None, header: RunHeader, points: tuple[Point, ...], files: list[Imported], *, quiet: bool) -> Path | None:
    """The run directory, written where it was asked for or where there are points and nobody asked for JSON alone."""
    from datetime import UTC, datetime

    from nccl_bench.results.store import RESULTS, create_run, default_path

    if (out is None and (quiet or not points)) or not (points or any(file.hangs for file in files)):
        return None
    stem = Path(files[0].path).name.split(".")[0] or "log"
    path = out if out is not None else default_path(Path(RESULTS), datetime.now(UTC), stem, header.n_ranks or 0, job="imported")
    writer = create_run(path, header, latest=out is None)
    try:
        writer.extend(points)
    finally:
        writer.close()
    return path


def _document(header: RunHeader, points: tuple[Point, ...], files: list[Imported]) -> str:
    from dataclasses import asdict

    document: dict[str, Any] = {
        "points": [point.to_json() for point in points],
        "header": header.to_json(),
        "hangs": [asdict(hang) for file in files for hang in file.hangs],
        "warnings": list(header.warnings),
    }
    return json_text.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _said(files: list[Imported], points: tuple[Point, ...], path: Path | None) -> list[str]:
    """What was read, a line a run; each hang report in full; where it went."""
    lines: list[str] = []
    for file in files:
        runs = [run for run in file.runs if run.get("rows", run.get("pairs"))]
        lines += [_about(run, file) for run in runs[:MOST_RUNS]]
        lines += [f"... and {counted(len(runs) - MOST_RUNS, 'more run')} of {file.path}"] if len(runs) > MOST_RUNS else []
        for hang in file.hangs:
            lines += [hang.lines[0], *(f"  {line}" for line in hang.lines[1:])]
    if path is not None:
        lines.append(f"{counted(len(points), 'point')} in {path}")
    return lines


def _about(run: dict[str, Any], file: Imported) -> str:
    words = [f"{run['source']}: {run.get('collective') or file.kind}"]
    counted = {"n_ranks": "ranks", "n_nodes": "nodes", "rows": "rows", "pairs": "pairs"}
    words += [f"{run[key]} {what}" for key, what in counted.items() if run.get(key)]
    if run.get("avg_busbw_GBps") is not None:
        words.append(f"average busbw {run['avg_busbw_GBps']:g} GB/s as printed")
    if "complete" in run:
        words.append({True: "complete", False: "incomplete", None: "not known whether complete"}[run["complete"]])
    return ", ".join(words)
