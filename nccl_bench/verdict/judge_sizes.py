"""Rows for ranges of sizes that the criteria give shares of their own: the worst size of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nccl_bench.records import Ceiling, Point
from nccl_bench.units import format_size
from nccl_bench.verdict.criteria import Criteria, Range
from nccl_bench.verdict.rows import Case, Row
from nccl_bench.verdict.worlds import World, hosts_of, why_lost


def of_ranges(
    criteria: Criteria, ceiling_of: Callable[[Point], Ceiling], case: Case, world: World, points: Sequence[Point]
) -> Iterable[Row]:
    """A row for each range that names the collective of these points, of one world."""
    for one in criteria.ranges:
        if world[2].split(" ")[0] == one.collective:
            yield _row(one, ceiling_of, world, points, hosts_of(case, world[1]), why_lost(case, world, (one.low, one.high)))


def _sizes(points: Sequence[Point]) -> str:
    return ", ".join(format_size(nbytes) for nbytes in sorted({point.requested_nbytes for point in points}))


def _row(
    one: Range, ceiling_of: Callable[[Point], Ceiling], world: World, points: Sequence[Point], hosts: tuple[str, ...], lost: str
) -> Row:
    stage, name = world[0], f"{world[2]} of {one.sizes()}"
    mine = [point for point in points if one.low <= point.requested_nbytes <= one.high and point.busbw_GBps]
    lows = [(point, ceiling_of(point).expected_low_GBps) for point in mine]
    open_ = [point for point, low in lows if not low]
    beside = f"; {_sizes(open_)} not judged: latency limits it, or nothing is known" if open_ else ""
    known = [((point.busbw_GBps or 0.0) / low, point, low) for point, low in lows if low]
    if not known:
        open_to = "no bandwidth is expected of these sizes: latency limits them, or nothing is known"
        why = open_to if mine else lost or f"not measured: {_sizes(points)} were"
        return Row(criterion=name, stage=stage, status="inconclusive", reason=why, source=one.share.source, hosts=hosts)
    share, point, low = min(known, key=lambda item: item[0])
    reason = f"worst at {format_size(point.requested_nbytes)}{beside}"
    return Row(
        criterion=name, stage=stage, status="pass" if share >= one.share.value else "fail", measured=round(point.busbw_GBps or 0.0, 4),
        required=round(one.share.value * low, 4), unit="GB/s", reason=reason, source=one.share.source, hosts=hosts,
    )  # fmt: skip
