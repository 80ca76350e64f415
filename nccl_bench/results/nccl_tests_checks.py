"""Whether a log of nccl-tests is whole and agrees with itself: sizes asked for, printed average, numbers of a row, data, devices."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_bench.collectives import COLLECTIVES, NCCL_TESTS_ALIGN
from nccl_bench.results.nccl_tests import TestRun
from nccl_bench.results.nccl_tests_infer import itemsize_of
from nccl_bench.results.table import Half, Row

MAX_SIZES = 100_000
"""A guard of ours: a sweep with more sizes is not enumerated."""
DIP_FRAC = 0.25
"""Loss of bus bandwidth from one size to the next larger that is pointed out.

Repeats of one small size on two H200 differ by 19 % (standard deviation of the log ratio of two nccl-tests runs below 100 µs);
a switch of algorithm or protocol that costs more is worth a look (nccl#2441, aws-ofi-nccl#65 lost 41 %)."""
DIP_MIN_GBps = 0.1
"""Below it the two printed decimals say nothing about a quarter."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run, by what was asked for."""

    requested: tuple[int, ...]
    """Of each row: the size asked for, the printed one where that is not known."""
    passes: tuple[int, ...]
    """Of each row: how often its size, type, op and root were measured before (-N cycles, or two jobs in one file)."""
    asked: tuple[int, ...] | None
    """All sizes asked for; None where the log does not say."""
    missing: tuple[int, ...]
    """Those asked for without a row."""


def sizes_of(run: TestRun, collective: str, n_ranks: int | None) -> Sizes:
    """Match rows with the sizes asked for: several of them can round down to one (all_gather of 8 B on 8 ranks is 0 B)."""
    asked = _asked(run)
    seen: Counter[tuple[object, ...]] = Counter()
    found: set[int] = set()
    requested, passes = [], []
    for row in run.rows:
        options = _asked_for(row, asked or (), collective, n_ranks) or (row.size,)
        key = (row.size, row.dtype, row.redop, row.root)
        # Rows of 0 bytes whose requests are not known are different requests, not repeats.
        turn, place = (0, 0) if row.size == 0 and asked is None else divmod(seen[key], len(options))
        seen[key] += 1
        found.add(options[place])
        requested.append(options[place])
        passes.append(turn)
    missing = tuple(size for size in asked or () if size not in found)
    return Sizes(tuple(requested), tuple(passes), asked, missing)


def _asked(run: TestRun) -> tuple[int, ...] | None:
    config = run.config
    first, last, step = config.get("min"), config.get("max"), config.get("step")
    if not (isinstance(first, int) and isinstance(last, int) and isinstance(step, int)) or first < 1 or step < 1:
        return None
    by_factor = config.get("step_kind") == "factor"
    if by_factor and step < 2:
        return None
    sizes = tuple(itertools.islice(_steps(first, last, step, by_factor=by_factor), MAX_SIZES + 1))
    return sizes if len(sizes) <= MAX_SIZES else None


def _steps(first: int, last: int, step: int, *, by_factor: bool) -> Iterator[int]:
    size = first
    while size <= last:
        yield size
        size = size * step if by_factor else size + step


def _asked_for(row: Row, asked: Sequence[int], collective: str, n_ranks: int | None) -> tuple[int, ...]:
    """The sizes asked for that this row's size may come from: nccl-tests rounds down to whole elements, or 16 B a rank."""
    itemsize = itemsize_of(row.dtype) or 1
    split = collective in COLLECTIVES and COLLECTIVES[collective].split
    unit = max(NCCL_TESTS_ALIGN, itemsize) * n_ranks if split and n_ranks else itemsize
    return tuple(size for size in asked if row.size <= size < row.size + unit)


def completeness(run: TestRun, sizes: Sizes, mean: float | None) -> tuple[bool | None, list[str]]:
    """(whether every size asked for is there, warnings). None where the log does not tell."""
    warnings = []
    printed = average_of(run)
    summary = run.closed
    if not summary:
        warnings.append("no summary line: the run may be incomplete")
    if run.elided:
        warnings.append(f"rows were left out by hand (line {', '.join(map(str, run.elided[:8]))})")
    if sizes.missing and sizes.asked:
        last = sizes.asked[-1]
        done = max(sizes.requested, default=0)
        if not summary and done < last:
            warnings.append(f"stopped after {done} of {last} B: {len(sizes.missing)} of {len(sizes.asked)} sizes are missing")
        else:
            warnings.append(f"{len(sizes.missing)} of {len(sizes.asked)} sizes have no row: {_some(sizes.missing)}")
    average_agrees = printed is None or mean is None or abs(mean - printed) <= _tolerance(run, printed)
    if printed is not None and mean is not None and not average_agrees:
        half = " (which counts the in-place half too, if it ran)" if all(len(row.halves) == 1 for row in run.rows) else ""
        warnings.append(f"rows missing: mean of rows {mean:.2f} != printed {run.averages[0]}{half}")
    if not summary or run.elided or sizes.missing or not average_agrees:
        return False, warnings
    return (True if sizes.asked is not None or printed is not None else None), warnings


def _some(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:4])) + (f" ... {values[-1]}" if len(values) > 4 else "") + " B"


def average_of(run: TestRun) -> float | None:
    """The printed average as a number; None where none, or no number, was printed."""
    try:
        value = float(run.averages[0]) if run.averages else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def mean_of(run: TestRun) -> float | None:
    """The mean of busbw over all rows and both halves, as nccl-tests averages (common.cu bw / bw_count)."""
    values = [half.busbw for row in run.rows for half in row.halves if half.busbw is not None]
    return math.fsum(values) / len(values) if values else None


def _tolerance(run: TestRun, printed: float) -> float:
    """How far rounding can take the mean of the rows from the printed average (%g: six digits)."""
    steps = [half.bw_step for row in run.rows for half in row.halves if half.busbw is not None]
    digits = 10.0 ** (math.floor(math.log10(abs(printed))) - 5) if printed else 1e-6
    return 0.51 * (math.fsum(steps) / len(steps)) + 0.51 * digits


def milliseconds(run: TestRun) -> bool:
    """Whether times are milliseconds: by size / time = algbw where the rows tell, else by the header (nccl-tests before 2.0)."""
    votes: Counter[bool] = Counter()
    for row in run.rows:
        for half in row.halves:
            if half.time and half.algbw and half.algbw >= 20 * half.algbw_step and row.size:
                votes[row.size / half.time * 1e-3 / half.algbw > math.sqrt(1000)] += 1
    if votes[True] != votes[False]:
        return votes[True] > votes[False]
    return run.layout is not None and run.layout.milliseconds


def dips(run: TestRun) -> list[str]:
    """Sizes where the bus bandwidth falls by more than a quarter from the next smaller one, in words."""
    found = []
    for before, after in itertools.pairwise(run.rows):
        same = (before.dtype, before.redop, before.root) == (after.dtype, after.redop, after.root)
        if not same or not before.size < after.size:
            continue
        changes = [(half, change) for half in after.halves if (change := _change(before, half)) is not None and change < -DIP_FRAC]
        if changes:
            half, change = changes[0]
            old = next(other.busbw for other in before.halves if other.placement == half.placement)
            found.append(f"busbw dips at {after.size} B: {half.busbw:g} GB/s after {old:g} at {before.size} B ({100 * change:.0f} %)")
    return found


def _change(before: Row, half: Half) -> float | None:
    old = next((other.busbw for other in before.halves if other.placement == half.placement), None)
    if old is None or half.busbw is None or old < DIP_MIN_GBps:
        return None
    return half.busbw / old - 1


def shared_gpus(run: TestRun) -> list[str]:
    """Ranks of one run on one GPU, in words. A bus id of 0 says nothing: old virtual machines print it for all."""
    places: dict[tuple[str, int | None, str], list[int]] = {}
    for device in run.devices:
        if device.bus_id and device.bus_id.strip("0x:.") and device.group in (None, run.devices[0].group):
            places.setdefault((device.host, device.device, device.bus_id), []).append(device.rank)
    return [
        f"ranks {', '.join(map(str, sorted(ranks)))} of {host} share GPU {device} [{bus_id}]: behaviour, not a measurement"
        for (host, device, bus_id), ranks in places.items()
        if len(set(ranks)) > 1
    ]
