"""`nccl-bench compare`: two sides of runs, case by case."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated

import typer

from nccl_bench.cli.outcome import Ended


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE[,BASE...]", help="what it was: run directories, points.jsonl, logs, or latest")],
    new: Annotated[str, typer.Argument(metavar="NEW[,NEW...]", help="what it is now; several runs of a side are repeats (LOG#2: its second run)")],
    threshold: Annotated[float, typer.Option("--threshold", help="change of speed that matters, 0.03 is 3 %")] = 0.03,
    json: Annotated[bool, typer.Option("--json", help="one JSON document with every case")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="one page with every case")] = None,
) -> Ended:
    """Two runs case by case: regressions beyond noise, and what else changed.

    Ends 1 where a case is slower beyond noise and threshold, 7 where data was wrong, 8 where nothing is comparable.
    """
    from nccl_bench.cli.files import check_writable, write_text
    from nccl_bench.errors import UsageError
    from nccl_bench.report import comparison as show
    from nccl_bench.report.terminal import write_warnings
    from nccl_bench.results.runs import open_runs
    from nccl_bench.verdict.compare import compare_runs

    if not 0 < threshold < 1:
        raise UsageError(f"--threshold {threshold:g}: a change of speed between 0 and 1", "3 % is 0.03")
    check_writable(html, "--html")
    found = compare_runs(open_runs([base]), open_runs([new]), threshold)
    write_warnings(found.warnings, sys.stderr)
    if html is not None:
        write_text(html, show.html(found), "--html")
    text = json_text.dumps(found.to_json(), indent=1, ensure_ascii=False) if json else "\n".join(show.lines(found))
    sys.stdout.write(text + "\n")
    return Ended(exit_code=found.exit_code, why=found.why)
