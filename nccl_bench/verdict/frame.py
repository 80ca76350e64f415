"""The points of any number of runs as one tidy table: a row a point, columns named as in the records, units last.

Points are read line by line and never kept as objects: 200,000 of them are a few seconds and some 200 MB.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from nccl_bench.errors import DataError
from nccl_bench.records import Json
from nccl_bench.results.runs import Run, records

TEXT = (
    *("collective", "dtype", "op", "placement", "shift", "clock", "clock_reason", "regime", "variant", "registered", "over_ranks", "kind", "stage"),
    "special",
    *("sample", "stop", "status", "reason", "algorithm", "protocol"),
)
"""Columns of words; None where unknown. Few different words, so categories."""
NUMBERS = (
    *("root", "nbytes", "requested_nbytes", "count", "n_ranks", "pass", "iters", "batches", "series", "ops_per_batch", "mean_over_ranks_us"),
    *("window_us", "algbw_GBps", "busbw_GBps", "n_wrong", "attempt", "channels", "sm_mhz_min"),
)
"""Columns of numbers; NaN where unknown. Float64: exact for whole numbers to 2**53."""
OBJECTS = ("series_us", "lateness_us", "throttle", "started_at", "source", "details")
"""Columns of lists, objects and words that differ from row to row, as they are in the records."""
NESTED_NUMBERS = {
    "time_us": {name: f"{name}_us" for name in ("median", "mean", "min", "max", "p95", "p99", "ci_low", "ci_high")},
    "group": {"size": "group_size", "n_groups": "n_groups", "spread_frac": "spread_frac"},
    "pair": {"round": "pair_round", "src": "pair_src", "dst": "pair_dst"},
}
"""Objects inside a point: their key -> the column's name."""
NESTED_OTHERS = {"group": {"axis": "axis", "slowest": "slowest_ranks"}, "pair": {"level": "pair_level", "both": "pair_both"}}

COLUMNS = (
    "run",
    *TEXT,
    *NUMBERS,
    *OBJECTS,
    *(name for names in NESTED_NUMBERS.values() for name in names.values()),
    *(name for names in NESTED_OTHERS.values() for name in names.values()),
)
_CHUNK = 4_000
"""Points that are objects at a time."""
_NOTHING: Mapping[str, Any] = {}


def frame_of(runs: Sequence[Run], warnings: list[str] | None = None) -> pd.DataFrame:
    """The points of runs, in their order; torn last lines are added to `warnings`.

    Raises DataError with path:line where a point is not one of ours.
    """
    collecting = gc.isenabled()
    # Millions of short-lived objects without a cycle among them: the collector would walk them again and again (40 % of the time).
    gc.disable()
    try:
        parts = [_frame_of_run(run, warnings) for run in runs]
    finally:
        if collecting:
            gc.enable()
    parts = [part for part in parts if len(part)] or parts[:1]
    if not parts:
        return _frame({})
    frame = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
    # Concatenating categories of different runs falls back to objects.
    for name in ("run", *TEXT):
        if not isinstance(frame[name].dtype, pd.CategoricalDtype):
            frame[name] = frame[name].astype("category")
    return frame


def _frame_of_run(run: Run, warnings: list[str] | None) -> pd.DataFrame:
    chunks: list[dict[str, Any]] = []
    batch: list[Json] = []
    lines: list[int] = []
    words: dict[str | None, str | None] = {}
    for line, record in records(run, warnings):
        batch.append(record)
        lines.append(line)
        if len(batch) == _CHUNK:
            chunks.append(_columns(batch, lines, run, words))
            batch, lines = [], []
    if batch:
        chunks.append(_columns(batch, lines, run, words))
    columns = {name: _joined([chunk[name] for chunk in chunks]) for name in (COLUMNS[1:] if chunks else ())}
    frame = _frame(columns)
    frame.insert(0, "run", pd.Series([run.label] * len(frame), dtype="category"))
    return frame


def _frame(columns: dict[str, Any]) -> pd.DataFrame:
    if not columns:
        empty: dict[str, Any] = {name: pd.Categorical([]) for name in TEXT}
        empty |= {name: np.empty(0) for name in (*NUMBERS, *(n for names in NESTED_NUMBERS.values() for n in names.values()))}
        empty |= {name: np.empty(0, object) for name in COLUMNS[1:] if name not in empty}
        return pd.DataFrame({name: empty[name] for name in COLUMNS[1:]})
    return pd.DataFrame({name: pd.Categorical(columns[name]) if name in TEXT else columns[name] for name in COLUMNS[1:]}, copy=False)


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [item for part in parts for item in part]


def _columns(batch: list[Json], lines: list[int], run: Run, words: dict[str | None, str | None]) -> dict[str, Any]:
    """One chunk, column by column. `words`: the words seen so far, so that equal ones are one object."""
    place = _place(lines, run)
    columns: dict[str, Any] = {}
    taken = _taken(batch, (*TEXT, *NUMBERS, *OBJECTS, *NESTED_NUMBERS))
    for name in TEXT:
        values = _checked(taken[name], (str,), name, place)
        columns[name] = _objects([words.setdefault(word, word) for word in values])
    columns |= {name: _floats(taken[name], name, place) for name in NUMBERS}
    columns |= {name: _objects(taken[name]) for name in OBJECTS}
    for key, fields in NESTED_NUMBERS.items():
        inner = [value or _NOTHING for value in _checked(taken[key], (dict,), key, place)]
        others = NESTED_OTHERS.get(key, {})
        parts = _taken(inner, (*fields, *others)) if any(inner) else {field: [None] * len(batch) for field in (*fields, *others)}
        columns |= {name: _floats(parts[field], f"{key}.{field}", place) for field, name in fields.items()}
        columns |= {name: _objects(parts[field]) for field, name in others.items()}
    for name, bad in (("collective", columns["collective"] == None), ("nbytes", np.isnan(columns["nbytes"]))):  # noqa: E711
        if bad.any():
            raise DataError(f"{place(int(bad.argmax()))}: not a point of nccl-bench: it has no {name}")
    return columns


def _taken(batch: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The values of each key, None where a point has none: those of one version have all."""
    try:
        return dict(zip(keys, zip(*map(itemgetter(*keys), batch), strict=True), strict=True))
    except KeyError:
        return {key: [record.get(key) for record in batch] for key in keys}


def _place(lines: list[int], run: Run) -> Callable[[int], str]:
    return lambda i: f"{run.points_path or run.path}:{lines[i]}"


def _checked(values: Sequence[Any], types: tuple[type, ...], name: str, place: Callable[[int], str]) -> Sequence[Any]:
    """The values, all of them of these types or None. Raises DataError with the place of the first that is not."""
    if not set(map(type, values)) <= {*types, type(None)}:
        at = next(i for i, value in enumerate(values) if value is not None and type(value) not in types)
        raise DataError(f"{place(at)}: not a point of nccl-bench: {name} is {str(values[at])[:40]!r}")
    return values


def _objects(values: Sequence[Any]) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _floats(values: Sequence[Any], name: str, place: Callable[[int], str]) -> Any:
    """Numbers as float64, None as NaN."""
    return np.array(_checked(values, (int, float), name, place), dtype=np.float64)
