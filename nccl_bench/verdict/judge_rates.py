"""Rows of bandwidth: against what is expected, against what somebody requires, and one that is open where nothing was required. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from nccl_bench.records import Ceiling, Point
from nccl_bench.units import format_size
from nccl_bench.verdict import judge_sizes
from nccl_bench.verdict.criteria import Criteria, Require
from nccl_bench.verdict.lax import LAX, LEAST_SHARE
from nccl_bench.verdict.rows import LARGE_NBYTES, SUPPLY, UNKNOWN, Case, Row, Status
from nccl_bench.verdict.worlds import hosts_of, largest_of, why_lost, worlds

LIKE_FRAC = 0.05
"""Like nodes that agree within this pass a stated floor (DESIGN.md section 3)."""
CeilingOf = Callable[[Point], Ceiling]
FloorOf = Callable[[Point], float | None]
Judgement = tuple[Status, float | None, str]
"""(status, what is required, why)."""


def rows(case: Case, criteria: Criteria, ceiling_of: CeilingOf, floor_of: FloorOf) -> list[Row]:
    """All of them; where worlds were measured and no bandwidth was held against anything, that is open."""
    found = [*_expected(case, criteria, ceiling_of, floor_of), *_required(case, criteria, ceiling_of)]
    several = [stage for stage, ranks, _ in worlds(case) if len(ranks) > 1]
    if several and not any(row.unit == "GB/s" for row in found):
        stages = ", ".join(dict.fromkeys(several))
        reason = f"{UNKNOWN} in {stages}, so no bandwidth was held against anything: {SUPPLY}"
        found.append(Row(criterion="bandwidth", stage=several[0], status="inconclusive", reason=reason))
    return found


def _expected(case: Case, criteria: Criteria, ceiling_of: CeilingOf, floor_of: FloorOf) -> Iterable[Row]:
    known = worlds(case)
    for (stage, ranks, name), points in known.items():
        if stage == "nic" or any(point.variant for point in points):
            # Beside a load it is slower by design, and of the NICs alone the ceiling is not modelled: repeats, spread and vendors' numbers judge.
            continue
        largest = largest_of(points)
        if len(ranks) < 2 and largest.n_ranks == 1:
            continue
        if largest.busbw_GBps is None or len(ranks) < 2:
            reason = "no rate at the largest size" if len(ranks) > 1 else "which ranks measured it is not recorded"
            yield Row(criterion=f"{name} bandwidth", stage=stage, status="inconclusive", unit="GB/s", reason=reason, hosts=hosts_of(case, ranks))
            continue
        yield from judge_sizes.of_ranges(criteria, ceiling_of, case, (stage, ranks, name), points)
        like = [largest_of(other).busbw_GBps for (at, who, what), other in known.items()
                if at == stage and what == name and len(who) == len(ranks)]  # fmt: skip
        stand_in = _stand_in(criteria, stage, largest.collective, largest.requested_nbytes)
        status, required, reason = _against(largest, criteria, ceiling_of(largest), floor_of(largest), [rate for rate in like if rate], stand_in)
        source = criteria.share_of(largest.collective).source
        if stand_in is not None and reason == _instead(stand_in):
            required, source = stand_in.min_busbw_GBps, stand_in.source
            status = "pass" if (_rate(stand_in, points) or 0.0) >= (required or 0.0) else "fail"
        yield Row(
            criterion=f"{name} bandwidth", stage=stage, status=status, measured=round(largest.busbw_GBps, 4), required=required, unit="GB/s",
            reason=reason, source=source, hosts=hosts_of(case, ranks),
        )  # fmt: skip


def _stand_in(criteria: Criteria, stage: str, collective: str, nbytes: int) -> Require | None:
    """Who says what is enough where nobody has seen what to expect: the highest rate that is required of this stage and collective."""
    asked = [one for one in criteria.require if (one.stage, one.collective) == (stage, collective) and one.min_busbw_GBps is not None]
    found = [one for one in asked if one.sizes is None or one.sizes[0] <= nbytes <= one.sizes[1]]
    return max(found, key=lambda one: one.min_busbw_GBps or 0.0, default=None)


def _instead(one: Require) -> str:
    return f"not known what to expect: held against [[require]] ({one.statistic} size)".replace("average size", "average over sizes")


def _against(point: Point, criteria: Criteria, ceiling: Ceiling, floor: float | None, like: Sequence[float], stand_in: Require | None) -> Judgement:
    rate, share = point.busbw_GBps or 0.0, criteria.share_of(point.collective).value
    if ceiling.line_GBps is not None and rate > ceiling.line_GBps:
        return "inconclusive", None, f"above the physical limit of {ceiling.line_GBps:.4g} GB/s: the model or the measurement is wrong"
    low = ceiling.expected_low_GBps
    unknown = low is None and (ceiling.attainable_GBps is None or floor is None)
    if unknown and stand_in is None:
        return "inconclusive", None, f"{UNKNOWN} here: {SUPPLY}"
    if point.requested_nbytes < LARGE_NBYTES:  # of ranks that cannot share 1 GiB in whole parts a few bytes are left over
        return "inconclusive", None, "measured below 1 GiB only"
    if unknown and stand_in is not None:
        return "pass", None, _instead(stand_in)
    if low is not None:
        if rate < share * low:
            return "fail", round(share * low, 4), f"{rate / low:.0%} of the low end of what is expected; limit: {ceiling.limited_by}"
        return ("pass", round(share * low, 4), "") if rate >= low else ("warn", round(low, 4), "below the low end of what is expected")
    return _against_floor(rate, floor or 0.0, ceiling.attainable_GBps or 0.0, like, stand_in)


def _against_floor(rate: float, floor: float, attainable: float, like: Sequence[float], stand_in: Require | None) -> Judgement:
    required = round(floor * attainable, 4)
    if rate < floor * attainable:
        return "fail", required, f"below the stated floor of {floor:g} of attainable"
    if len(like) > 1 and max(like) - min(like) <= LIKE_FRAC * statistics.median(like):
        return "pass", required, ""
    if stand_in is not None:
        return "pass", None, _instead(stand_in)
    return "inconclusive", required, "above the stated floor, but no like nodes agree with it, and no [[require]] says what is enough"


def _required(case: Case, criteria: Criteria, ceiling_of: CeilingOf) -> Iterable[Row]:
    known = worlds(case)
    for one in criteria.require:
        at = {(ranks, name): mine for (stage, ranks, name), mine in known.items() if stage == one.stage and name.split(" ")[0] == one.collective}
        found = {key: mine for key, points in at.items() if (mine := _of_sizes(one, points))}
        for ranks, name in [key for key in at if key not in found] or ([] if at else [((), one.collective)]):
            yield Row(criterion=f"{name} as required{one.of_sizes()}", stage=one.stage, status="inconclusive", source=one.source,
                      reason=why_lost(case, (one.stage, ranks, name), one.sizes) or "not measured", hosts=hosts_of(case, ranks))  # fmt: skip
        if found and one.min_busbw_GBps is not None and one.statistic != "average":
            yield from _lax(one, one.min_busbw_GBps, ceiling_of(largest_of(next(iter(found.values())))))
        for (ranks, name), points in found.items():
            hosts = hosts_of(case, ranks)
            if one.min_busbw_GBps is not None:
                yield _rate_row(one, name, one.min_busbw_GBps, points, hosts)
            if one.max_latency_us is not None:
                yield _latency_row(one, name, one.max_latency_us, points, hosts)


def _of_sizes(one: Require, points: Sequence[Point]) -> list[Point]:
    """The points of the sizes that it speaks of."""
    return [point for point in points if one.sizes is None or one.sizes[0] <= point.requested_nbytes <= one.sizes[1]]


def _rate(one: Require, points: Sequence[Point]) -> float | None:
    """The rate by the statistic that it is required of."""
    rates = [(point.nbytes, point.busbw_GBps) for point in _of_sizes(one, points) if point.busbw_GBps is not None]
    if not rates:
        return None
    values = [rate for _, rate in rates]
    match one.statistic:
        case "largest":
            return largest_of([point for point in _of_sizes(one, points) if point.busbw_GBps is not None]).busbw_GBps
        case "max":
            return max(values)
        case _:
            return statistics.fmean(values)


def _rate_row(one: Require, name: str, required: float, points: Sequence[Point], hosts: tuple[str, ...]) -> Row:
    rate = _rate(one, points)
    status: Status = "inconclusive" if rate is None else "pass" if rate >= required else "fail"
    note = f"an average over {_sizes(points)} hides a slow one" if one.statistic == "average" else ""
    return Row(criterion=f"{name} as required{one.of_sizes()} ({one.statistic})", stage=one.stage, status=status, required=required, unit="GB/s",
               measured=None if rate is None else round(rate, 4), reason=note, source=one.source, hosts=hosts)  # fmt: skip


def _lax(one: Require, required: float, ceiling: Ceiling) -> Iterable[Row]:
    """A warning where what is required is far below what is known."""
    known = None if ceiling.limited_by == "latency" else ceiling.expected_low_GBps or ceiling.attainable_GBps
    if known is not None and required < LEAST_SHARE * known:
        what = "the low end of what is expected" if ceiling.expected_low_GBps else "what is attainable"
        yield Row(criterion=f"{LAX}: {one.collective} as required", stage=one.stage, status="warn", measured=required, unit="GB/s",
                  required=round(LEAST_SHARE * known, 4), reason=f"{required / known:.0%} of {what}", source=one.source)  # fmt: skip


def _sizes(points: Sequence[Point]) -> str:
    return ", ".join(format_size(nbytes) for nbytes in sorted({point.requested_nbytes for point in points}))


def _latency_row(one: Require, name: str, required: float, points: Sequence[Point], hosts: tuple[str, ...]) -> Row:
    """The smallest size's time; of several passes the middle one (the slower of two)."""
    timed = [(point.requested_nbytes, point.time_us.median) for point in points if point.time_us is not None]
    least = min((nbytes for nbytes, _ in timed), default=0)
    times = sorted(us for nbytes, us in timed if nbytes == least)
    late = times[len(times) // 2] if times else None
    whole = least >= LARGE_NBYTES and one.sizes is None
    status: Status = "inconclusive" if late is None or whole else "pass" if late <= required else "fail"
    reason = f"of {format_size(least)}" if not whole else f"measured at {format_size(least)} alone, whose time is no latency"
    return Row(criterion=f"{name} latency as required{one.of_sizes()}", stage=one.stage, status=status, measured=late, required=required, unit="µs",
               reason=reason if timed else "no time was measured", source=one.source, hosts=hosts)  # fmt: skip
