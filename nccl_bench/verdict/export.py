"""Runs as files for other programs: CSV, Parquet and JSON Lines, one row a point; the columns are those of the frame."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from nccl_bench.errors import UsageError
from nccl_bench.results.runs import Run, records
from nccl_bench.verdict.frame import OBJECTS, frame_of

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = (
    *("nbytes", "requested_nbytes", "count", "n_ranks", "root", "pass", "iters", "batches", "series", "ops_per_batch", "n_wrong", "attempt"),
    *("channels", "sm_mhz_min", "group_size", "n_groups", "pair_round", "pair_src", "pair_dst"),
)
"""Columns of whole numbers: written without a decimal point, empty where unknown."""


def table_of(runs: Sequence[Run], warnings: list[str] | None = None) -> pd.DataFrame:
    """The frame as it is written: whole numbers as such, lists and objects as JSON text, columns that are empty everywhere kept.

    Raises DataError with path:line where a point cannot be read.
    """
    frame = frame_of(runs, warnings)
    for name in _WHOLE:
        frame[name] = frame[name].astype("Int64")
    for name in (*OBJECTS, "slowest_ranks"):
        frame[name] = [_text(value) for value in frame[name]]
    for name in frame.columns:
        if str(frame[name].dtype) == "category":
            frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    return frame


def _text(value: Any) -> str | None:
    """A list or an object as JSON; words as they are; nothing as None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value != value:
        return None
    return json.dumps(value, separators=(",", ":"))


def write_csv(runs: Sequence[Run], stream: TextIO, warnings: list[str] | None = None) -> int:
    """Write CSV (RFC 4180, a header, unknown values empty) and return how many points it holds."""
    table = table_of(runs, warnings)
    table.to_csv(stream, index=False, lineterminator="\n")
    return len(table)


def write_jsonl(runs: Sequence[Run], stream: TextIO, warnings: list[str] | None = None) -> int:
    """Write one point a line as the records have them, with the run's label, and return how many."""
    n = 0
    for run in runs:
        for _, record in records(run, warnings):
            stream.write(orjson.dumps({"run": run.label, **record}).decode() + "\n")
            n += 1
    return n


def write_parquet(runs: Sequence[Run], path: Path, warnings: list[str] | None = None) -> int:
    """Write a Parquet file and return how many points it holds. Raises UsageError where pyarrow is missing."""
    table = table_of(runs, warnings)
    try:
        table.to_parquet(path, index=False)
    except ImportError as err:
        raise UsageError("--format parquet needs pyarrow, which is not installed", "pip install 'nccl-bench[parquet]', or --format csv") from err
    except OSError as err:
        raise UsageError(f"{path} cannot be written: {err.strerror or type(err).__name__}", "name a file that you may write with -O") from err
    return len(table)


TEXT_WRITERS: dict[str, Callable[[Sequence[Run], TextIO, list[str] | None], int]] = {"csv": write_csv, "jsonl": write_jsonl}
"""Formats that are text, and so may go to stdout."""
