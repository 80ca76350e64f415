"""`nccl-bench export`: runs as files for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from nccl_bench.cli.outcome import Ended
from nccl_bench.units import counted


def export(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="run directories, points.jsonl, logs (LOG#2: its second run), or latest")],
    format: Annotated[Literal["csv", "parquet", "nccl-tests", "jsonl"], typer.Option("--format", help="what to write")] = "csv",
    out: Annotated[Path | None, typer.Option("-O", "--out", metavar="PATH", help="file, or directory for it (default: stdout)")] = None,
) -> Ended:
    """Write runs as CSV, Parquet, JSON Lines (one row a point) or as a log of nccl-tests."""
    import io

    from nccl_bench.cli.files import check_writable, write_text
    from nccl_bench.errors import UsageError
    from nccl_bench.report.nccl_tests import write_log
    from nccl_bench.report.terminal import write_warnings
    from nccl_bench.results.runs import open_runs, points_of
    from nccl_bench.verdict.export import TEXT_WRITERS, write_parquet

    opened = open_runs(runs)
    warnings = [warning for run in opened for warning in run.warnings]
    n_left = 0
    path = _path(out, opened[0].label, format)
    check_writable(path, "-O")
    if format == "parquet":
        if path is None:
            raise UsageError("--format parquet is no text: it cannot go to stdout", "name a file: -O points.parquet")
        n = write_parquet(opened, path, warnings)
    else:
        stream = io.StringIO()
        if format == "nccl-tests":
            n = 0
            for run in opened:
                points = points_of(run)
                n_left += len(points)
                n += write_log(stream, run.header, points)
            n_left -= n
        else:
            n = TEXT_WRITERS[format](opened, stream, warnings)
        if path is None:
            sys.stdout.write(stream.getvalue())
        else:
            write_text(path, stream.getvalue(), "-O")
    write_warnings(warnings, sys.stderr)
    if path is not None:
        sys.stderr.write(f"{counted(n, 'point')} in {path}\n")
    if n_left:
        sys.stderr.write(f"note: {counted(n_left, 'point')} left out: a log of nccl-tests has rows for one clock and no place for skipped cases\n")
    return Ended(exit_code=0, why="done")


def _path(out: Path | None, label: str, format: str) -> Path | None:
    """The file: `out` itself, or one named after the run where `out` is a directory."""
    if out is None or not out.is_dir():
        return out
    return out / f"{label.replace('/', '_')}.{'log' if format == 'nccl-tests' else format}"
