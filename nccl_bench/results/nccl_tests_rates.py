"""Whether the bandwidths of a row of nccl-tests are what its size and time give; where they are not, the time's are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nccl_bench.collectives import COLLECTIVES, bus_factor
from nccl_bench.results.nccl_tests import TestRun
from nccl_bench.results.nccl_tests_checks import milliseconds
from nccl_bench.results.table import Half, Row
from nccl_bench.units import three_digits

TOLERANCE = 0.02
"""A guard of ours beyond the last printed digit: old versions rounded times before they divided."""
MOST_TOLD = 8


def mended(run: TestRun, collective: str, n_ranks: int | None) -> tuple[tuple[Row, ...], list[str]]:
    """The rows, with the bandwidths that size and time give where those printed are others; and what was printed, in words.

    Such numbers were typed by hand or taken from another row. Not for CPU times, and not where the size is no measure of what moves
    (hypercube, alltoallv). Where busbw is not algbw by the ranks' factor in half of the rows or more, the ranks are in doubt, not the rows.
    """
    if collective not in COLLECTIVES or (run.layout is not None and run.layout.cpu_time):
        return tuple(run.rows), []
    unit = 1e-6 if milliseconds(run) else 1e-3
    factor = bus_factor(collective, n_ranks) if n_ranks else None
    halves = [(row, half) for row in run.rows for half in row.halves if row.size and half.time]
    off_bus = [half for row, half in halves if factor is not None and not _bus_agrees(half, factor)]
    by_bus = {id(half) for half in off_bus} if 2 * len(off_bus) < len(halves) else set()
    rows: list[Row] = []
    told: list[str] = []
    for row in run.rows:
        bad = {id(half) for half in row.halves if not _agrees(row, half, unit) or id(half) in by_bus}
        new = tuple(_by_time(row, half, unit, factor) if id(half) in bad else half for half in row.halves)
        told += [_said(row, old, now, unit) for old, now in zip(row.halves, new, strict=True) if id(old) in bad]
        rows.append(replace(row, halves=new) if bad else row)
    return tuple(rows), list(_some(told))


def _agrees(row: Row, half: Half, unit: float) -> bool:
    """Whether algbw is size / time within what rounding allows."""
    if not half.time or half.algbw is None or row.size == 0:
        return True
    decimals = 0.5 if half.time >= 10000 else 0.05 if half.time >= 100 else 0.005
    expected = row.size / half.time * unit
    return abs(half.algbw - expected) <= expected * (TOLERANCE + decimals / half.time) + half.algbw_step


def _bus_agrees(half: Half, factor: float) -> bool:
    """Whether busbw is algbw x the factor of the ranks within what rounding allows."""
    if half.algbw is None or half.busbw is None:
        return True
    expected = half.algbw * factor
    return abs(half.busbw - expected) <= expected * TOLERANCE + half.bw_step + factor * half.algbw_step


def _by_time(row: Row, half: Half, unit: float, factor: float | None) -> Half:
    """The half with the bandwidths of its time; no busbw where the ranks are not known."""
    if not half.time:
        return half
    algbw = row.size / half.time * unit
    return replace(half, algbw=algbw, busbw=None if factor is None else algbw * factor)


def _said(row: Row, old: Half, now: Half, unit: float) -> str:
    printed, given = (f"algbw {_number(half.algbw)}, busbw {_number(half.busbw)} GB/s" for half in (old, now))
    took = f"{row.size} B in {old.time:g} {'ms' if unit < 1e-3 else 'µs'}"
    return f"line {row.line}: {took}: printed {printed}, but size and time give {given}, which is used"


def _number(rate: float | None) -> str:
    return "-" if rate is None else three_digits(rate)


def _some(told: Sequence[str]) -> Iterator[str]:
    yield from told[:MOST_TOLD]
    if len(told) > MOST_TOLD:
        yield f"{len(told) - MOST_TOLD} halves more whose bandwidths are not what size and time give; those are used"
