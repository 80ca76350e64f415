"""DeepSpeed's comms_logger dumps: log_summary's table, its verbose lines, and the dictionaries of log_all and get_raw_data as JSON.

Read in DeepSpeed edaa7221 utils/comms_logging.py, comm/utils.py, comm/comm.py. Its bandwidths are not used, since calc_bw_log takes the
world's size for every group, counts an all_reduce's bytes twice in "tput", and multiplies a reduce_scatter's input, which is whole
already, by the world's size. Sizes and times are facts; bandwidths are worked out from them.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from nccl_bench.collectives import bus_factor
from nccl_bench.errors import DataError
from nccl_bench.records import Json, Point, Times
from nccl_bench.results.imported import Imported
from nccl_bench.results.text import Text

_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "inference_all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_base": "all_gather",
    "all_gather_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    **dict.fromkeys(("send", "recv", "isend", "irecv"), "sendrecv"),
}
_PART_LOGGED = ("all_gather", "gather", "scatter")
"""Collectives of which one rank's part is logged (the argument called `tensor`): nccl-tests' size is that times the ranks."""
_CALLER = re.compile(r" \| \[Caller Func: .*\]$")
_TABLE = re.compile(r"Comm\. Op +Message Size +Count +Total Latency\(ms\)")
_STRAGGLER = re.compile(r"Comm\. Op +Message Size +Count +Total comm lat\(ms\)")
_OP = re.compile(r"[a-z][a-z0-9_]*(?: \| \[Caller Func: [^\]]*\])?")
_SIZE = r"(\d{1,7}(?:\.\d{1,9})?)\s*(B|KB|MB|GB|TB|PB)"
_SUMMARY_ROW = re.compile(rf"\s+{_SIZE}\s+(\d{{1,15}})\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*")
_VERBOSE = re.compile(
    rf"comm op: ([a-z]\w*)(?: \| \[Caller Func: [^\]]*\])? \| time \(ms\): ([\d.]+) \| msg size: {_SIZE} "
    r"\| algbw \(Gbps\): ([\d.]+)\s*\| busbw \(Gbps\): ([\d.]+)"
)
_UNIT = {"B": 0, "KB": 1, "MB": 2, "GB": 3, "TB": 4, "PB": 5}
MIN_FOR_P95, MIN_FOR_P99 = 20, 100
"""As measure.stats: below these a nearest-rank percentile is the maximum."""


@dataclass(slots=True, kw_only=True)
class _Record:
    """One operation at one message size."""

    op: str
    line: int
    logged_nbytes: int
    exact: bool
    """Whether the size is in bytes, or rounded to two decimals of a unit."""
    count: int
    median_ms: float
    mean_ms: float
    samples_ms: list[float] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    """(tput, busbw) as printed, for the world's size alone."""


def is_deepspeed(text: Text) -> bool:
    """Whether a file is, or contains, a comms_logger dump."""
    body = text.text
    if _TABLE.search(body) or ("| msg size: " in body and "busbw (Gbps): " in body):
        return True
    return body.lstrip()[:1] == "{" and (('"summary"' in body and '"tput_avg_gbps"' in body) or _raw(text) is not None)


def import_deepspeed(text: Text, name: str, group_size: int | None = None) -> Imported:
    """The points of a dump. `group_size`: ranks of the group whose collectives these are; None: the world, with a warning.

    Raises DataError where no record can be read.
    """
    records, meta, dropped = _read(text, name)
    known = [record for record in records if record.op in _COLLECTIVES and record.logged_nbytes > 0]
    if not known:
        what = f"only {', '.join(sorted({record.op for record in records}))}" if records else "no record"
        hint = "log with prof_all, and call log_summary at the end"
        raise DataError(f"{name}: {what} in this comms_logger dump: nothing that has a bandwidth", hint)
    world = meta.get("world_size") if isinstance(meta.get("world_size"), int) else world_of(known)
    n_ranks = group_size or world
    points = [_point(record, name, n_ranks, pass_) for record, pass_ in zip(known, _passes(known), strict=True)]
    warnings = _warnings(name, records, known, world, group_size) + dropped
    return Imported(
        path=name,
        kind="deepspeed",
        points=tuple(points),
        warnings=tuple(warnings),
        tool="DeepSpeed comms_logger",
        n_ranks=world,
        started_at=None,
        ended_at=meta.get("timestamp") if isinstance(meta.get("timestamp"), str) else None,
        runs=({"source": f"{name}:{known[0].line}", "collective": None, "world_size": world, "group_size": n_ranks, "rows": len(known)},),
    )


def _warnings(name: str, records: Sequence[_Record], known: Sequence[_Record], world: int | None, group_size: int | None) -> list[str]:
    warnings = []
    if world is None and group_size is None:
        warnings.append(f"{name}: nothing tells how many ranks took part, so bus bandwidths are not known: give --group-size N")
    elif group_size is None:
        why = "the logger does not say which group an operation ran in"
        warnings.append(f"{name}: {why}; bandwidths hold if it was all {world} ranks of the world, else give --group-size N")
    warnings.append(f"{name}: bandwidths are worked out from sizes and times: the logger's own take the world's size for every group")
    if any(not record.exact for record in known):
        warnings.append(f"{name}: sizes are printed with two decimals of a unit: bytes are rounded")
    others = sorted({record.op for record in records if record.op not in _COLLECTIVES})
    if others:
        warnings.append(f"{name}: left out, since they move no data that is told: {', '.join(others)}")
    if empty := sum(record.logged_nbytes == 0 and record.op in _COLLECTIVES for record in records):
        warnings.append(f"{name}: {empty} record{'s' * (empty > 1)} of 0 bytes left out")
    return warnings


# ---- reading ----


def _read(text: Text, name: str) -> tuple[list[_Record], Json, list[str]]:
    if text.text.lstrip()[:1] == "{":
        return (*_from_json(text, name), [])
    summary, bad = _summary_records(text)
    dropped = [f"{name}:{line}: looks like a record and was left out: {what}" for line, what in bad[:16]]
    verbose = list(_verbose_records(text))
    if summary and verbose:
        dropped.append(f"{name}: {sum(record.count for record in verbose)} verbose lines are part of the summary, which is used")
    return summary or verbose, {}, dropped


def _summary_records(text: Text) -> tuple[list[_Record], list[tuple[int, str]]]:
    records, bad = list[_Record](), list[tuple[int, str]]()
    op, inside = None, False
    for line in text.lines():
        if _TABLE.search(line.text):
            inside, op = True, None
        elif _STRAGGLER.search(line.text) or line.text.startswith("____"):
            inside = False
        elif inside and _OP.fullmatch(line.text):
            op = _CALLER.sub("", line.text)
        elif inside and (match := _SUMMARY_ROW.fullmatch(line.text)):
            size, unit, count, total, average, tput, busbw = match.groups()
            numbers = [_float(word) for word in (total, average, tput, busbw)]
            if op is None or any(number is None for number in numbers) or int(count) < 1:
                bad.append((line.number, "no operation above it" if op is None else "no numbers"))
                continue
            records.append(_summary_record(op, line.number, *_nbytes(size, unit), int(count), [float(number or 0) for number in numbers]))
    return records, bad


def _summary_record(op: str, line: int, nbytes: int, exact: bool, count: int, numbers: Sequence[float]) -> _Record:
    """A record of total ms, average ms, tput and busbw: the average is without the highest and lowest tenth of the calls."""
    total, average, tput, busbw = numbers
    rates = [(tput, busbw)]
    return _Record(op=op, line=line, logged_nbytes=nbytes, exact=exact, count=count, median_ms=average, mean_ms=total / count, rates=rates)


def _verbose_records(text: Text) -> Iterator[_Record]:
    """Calls of one operation and size together: each is one sample."""
    calls: dict[tuple[str, int], _Record] = {}
    for line in text.lines():
        match = _VERBOSE.search(line.text) if "comm op: " in line.text else None
        if match is None:
            continue
        op, time, size, unit, algbw, busbw = match.groups()
        numbers = [_float(word) for word in (time, algbw, busbw)]
        if any(number is None for number in numbers):
            continue
        nbytes, exact = _nbytes(size, unit)
        fresh = _Record(op=op, line=line.number, logged_nbytes=nbytes, exact=exact, count=0, median_ms=0, mean_ms=0)
        record = calls.setdefault((op, nbytes), fresh)
        record.samples_ms.append(float(numbers[0] or 0))
        record.rates.append((float(numbers[1] or 0), float(numbers[2] or 0)))
    for record in calls.values():
        yield _from_samples(record)


def _from_samples(record: _Record) -> _Record:
    times = record.samples_ms
    return replace(record, count=len(times), median_ms=statistics.median(times), mean_ms=math.fsum(times) / len(times))


def _float(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _nbytes(size: str, unit: str) -> tuple[int, bool]:
    """(bytes of "678.86 MB", whether they are exact): convert_size divides by powers of 1024 and rounds to two decimals."""
    return round(float(size) * 1024 ** _UNIT[unit]), unit == "B"


def _raw(text: Text) -> Json | None:
    """get_raw_data: {operation: {size: [count, [ms], [algbw], [busbw]]}}; None where a file is none."""
    try:
        value = orjson.loads(text.text)
    except orjson.JSONDecodeError:
        return None
    sizes = [sizes for sizes in value.values() if isinstance(sizes, dict)] if isinstance(value, dict) else []
    rows = [row for entry in sizes for row in entry.values()]
    return value if rows and len(sizes) == len(value) and all(isinstance(row, list) and len(row) == 4 for row in rows) else None


def _from_json(text: Text, name: str) -> tuple[list[_Record], Json]:
    try:
        document: Any = orjson.loads(text.text)
    except orjson.JSONDecodeError as err:
        raise DataError(f"{name}:1: no JSON: {str(err).splitlines()[0]}") from err
    summary = document.get("summary") if isinstance(document, dict) else None
    meta = document.get("metadata") if isinstance(document, dict) else None
    entries = summary if isinstance(summary, dict) else _raw(text) or {}
    records = [
        record
        for op, sizes in entries.items()
        if isinstance(sizes, dict)
        for size, row in sizes.items()
        if (record := _json_record(_CALLER.sub("", str(op)), str(size), row)) is not None
    ]
    return records, meta if isinstance(meta, dict) else {}


def _json_record(op: str, size: str, row: object) -> _Record | None:
    if not size.isdigit():
        return None
    if isinstance(row, list) and len(row) == 4 and all(isinstance(part, list) for part in row[1:]):
        times, rates = _numbers(row[1]), list(zip(_numbers(row[2]), _numbers(row[3]), strict=False))
        record = _Record(op=op, line=1, logged_nbytes=int(size), exact=True, count=0, median_ms=0, mean_ms=0, samples_ms=times, rates=rates)
        return _from_samples(record) if times else None
    keys = ("count", "total_latency_ms", "avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps")
    values = _numbers([row.get(key) for key in keys]) if isinstance(row, dict) else []
    if len(values) < len(keys) or values[0] < 1:
        return None
    return _summary_record(op, 1, int(size), True, int(values[0]), values[1:])


def _numbers(values: Iterable[object]) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)]


def world_of(records: Iterable[_Record]) -> int | None:
    """The world's size that the logger reckoned with: busbw / tput is (n-1)/n in all but one-way operations, within rounding."""
    low, high = 0.0, math.inf
    for record in records:
        if _COLLECTIVES.get(record.op) not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            continue
        for tput, busbw in record.rates:
            if tput > 0.05:
                low, high = max(low, (busbw - 0.0051) / (tput + 0.0051)), min(high, (busbw + 0.0051) / (tput - 0.0051))
    if not 0 <= low <= high < 1:
        return None
    first, last = math.ceil(1 / (1 - low) - 1e-9), math.floor(1 / (1 - high) + 1e-9)
    return first if first == last else None


# ---- points ----


def _point(record: _Record, name: str, n_ranks: int | None, pass_: int) -> Point:
    collective = _COLLECTIVES[record.op]
    part = collective in _PART_LOGGED
    nbytes = record.logged_nbytes * n_ranks if part and n_ranks else record.logged_nbytes
    median_us = record.median_ms * 1000
    known = median_us > 0 and (n_ranks is not None or not part)
    algbw = nbytes / median_us * 1e-3 if known else None
    return Point(
        collective=collective,
        dtype=None,
        op=None,
        root=None,
        nbytes=nbytes,
        requested_nbytes=nbytes,
        count=None,
        n_ranks=n_ranks,
        placement=None,
        clock=None,
        clock_reason=f"logged as {record.op} of {record.logged_nbytes} B; the timer is synchronised after each call: waiting for late ranks is in it"
        + ("" if record.samples_ms else "; median is the logger's mean without the highest and lowest tenth"),
        regime=None,
        over_ranks="rank 0",
        iters=record.count,
        sample="op",
        time_us=_times(record),
        algbw_GBps=algbw,
        busbw_GBps=algbw * bus_factor(collective, n_ranks) if algbw is not None and n_ranks else None,
        pass_=pass_,
        source=f"{name}:{record.line}",
    )


def _times(record: _Record) -> Times:
    ordered = sorted(time * 1000 for time in record.samples_ms)
    median, mean = record.median_ms * 1000, record.mean_ms * 1000
    if not ordered:
        return Times(median=median, mean=mean, min=min(median, mean), max=max(median, mean))
    n = len(ordered)
    return Times(
        median=median,
        mean=mean,
        min=ordered[0],
        max=ordered[-1],
        p95=ordered[math.ceil(0.95 * n) - 1] if n >= MIN_FOR_P95 else None,
        p99=ordered[math.ceil(0.99 * n) - 1] if n >= MIN_FOR_P99 else None,
    )


def _passes(records: Iterable[_Record]) -> list[int]:
    """How often each record's operation and size came before: a summary printed again later is another pass."""
    seen: Counter[tuple[str, int]] = Counter()
    passes = []
    for record in records:
        key = (record.op, record.logged_nbytes)
        passes.append(seen[key])
        seen[key] += 1
    return passes
