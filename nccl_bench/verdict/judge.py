"""Rows of an acceptance: every criterion against what was measured, and what they come to. Inconclusive is never green. Pure.

A row passes only on data; where data is missing, too noisy, not of NCCL, or above the physical limit, it is inconclusive.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_bench.errors import FAIL, INCONCLUSIVE, PASS, WrongDataError
from nccl_bench.records import Ceiling, Json, Point
from nccl_bench.units import format_size
from nccl_bench.verdict import judge_hosts, judge_sizes
from nccl_bench.verdict.criteria import DEFAULT, Criteria
from nccl_bench.verdict.evidence import Findings
from nccl_bench.verdict.rows import LARGE_NBYTES, Case, Row, Status

ALONE = ("pairs with known-good hosts",)
"""Rows of other stages that speak against one host alone."""
LIKE_FRAC = 0.05
"""Like nodes that agree within this pass a stated floor (DESIGN.md section 3)."""
MOST_HOSTS = 8
"""Hosts of a world that are named one by one."""
CeilingOf = Callable[[Point], Ceiling]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What it comes to."""

    status: Status
    exit_code: int
    why: str
    rows: tuple[Row, ...]


def judge(case: Case, criteria: Criteria, ceiling_of: CeilingOf, floor_of: Callable[[Point], float | None] = lambda _: None) -> Verdict:
    """All rows and the verdict."""
    rows = [
        *judge_hosts.doctor(case, criteria), *judge_hosts.excluded(case), *judge_hosts.broken(case), *_data(case), *_gaps(case),
        *_bandwidth(case, criteria, ceiling_of, floor_of), *_required(case, criteria),
        *_spread(case, criteria), *_repeats(case, criteria), *_tail(case, criteria), *_pairs(case),
        *_counters(case, criteria), *_transport(case, criteria),
        *judge_hosts.not_run(case),
        *case.more,
    ]  # fmt: skip
    return _verdict(case, tuple(rows))


def _verdict(case: Case, rows: tuple[Row, ...]) -> Verdict:
    failed, open_ = [row for row in rows if row.status == "fail"], [row for row in rows if row.status == "inconclusive"]
    if case.not_nccl or case.shared_gpu:
        what = "not NCCL" if case.not_nccl else "ranks share a GPU"
        shown: Status = "inconclusive"
        return Verdict(status=shown, exit_code=INCONCLUSIVE, why=f"a rehearsal ({what}): {_counts(rows)}; nothing here accepts a cluster", rows=rows)
    if failed:
        wrong = any(row.criterion == "data" for row in failed)
        hosts = list(dict.fromkeys(host for row in failed for host in row.hosts))
        through = f", all through {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts" if hosts else ""
        return Verdict(status="fail", exit_code=WrongDataError.exit_code if wrong else FAIL, why=f"fail: {len(failed)} rows{through}", rows=rows)
    if open_ or not any(row.status == "pass" for row in rows):
        first = f": {open_[0].stage} {open_[0].criterion}: {open_[0].reason}" if open_ else ": nothing was judged"
        return Verdict(status="inconclusive", exit_code=INCONCLUSIVE, why=f"inconclusive: {len(open_)} rows{first}", rows=rows)
    status: Status = "warn" if any(row.status == "warn" for row in rows) else "pass"
    return Verdict(status=status, exit_code=PASS, why=f"{status}: {_counts(rows)}", rows=rows)


def _counts(rows: Sequence[Row]) -> str:
    names: tuple[Status, ...] = ("pass", "warn", "fail", "inconclusive")
    return ", ".join(f"{n} {name}" for name in names if (n := sum(row.status == name for row in rows)))


# ---- collectives


def _worlds(case: Case) -> dict[tuple[str, tuple[int, ...], str], list[Point]]:
    """Streaming points by (stage, ranks, collective)."""
    found: dict[tuple[str, tuple[int, ...], str], list[Point]] = {}
    for point in case.points:
        if point.pair is None and point.regime == "streaming" and point.kind == "collective" and point.status != "skipped":
            ranks = tuple(point.group.slowest or ()) if point.group is not None else ()
            name = f"{point.collective} (by node)" if point.shift == "node" else point.collective
            found.setdefault((point.stage or "cluster", ranks, name), []).append(point)
    return found


def _hosts(case: Case, ranks: Sequence[int]) -> tuple[str, ...]:
    hosts = tuple(dict.fromkeys(case.rank_hosts[rank] for rank in ranks if rank < len(case.rank_hosts)))
    return hosts if len(hosts) <= 4 else ()


def _largest(points: Sequence[Point]) -> Point:
    """The point of the largest size; of several passes, the middle one (the slower of two)."""
    most = max(point.nbytes for point in points)
    repeats = sorted((point for point in points if point.nbytes == most), key=lambda point: point.busbw_GBps or 0.0)
    return repeats[(len(repeats) - 1) // 2]


def measured(case: Case, ceiling_of: CeilingOf) -> list[Json]:
    """The largest size of every world beside what it is held against, for a page."""
    found = []
    for (stage, ranks, name), points in _worlds(case).items():
        largest = _largest(points)
        ceiling = ceiling_of(largest)
        if largest.busbw_GBps is not None and len(ranks) > 1:
            hosts = list(dict.fromkeys(case.rank_hosts[rank] for rank in ranks if rank < len(case.rank_hosts)))
            found.append({
                "stage": stage, "collective": name, "n_ranks": len(ranks), "hosts": hosts if len(hosts) <= MOST_HOSTS else hosts[:1],
                "n_hosts": len(hosts), "nbytes": largest.nbytes, "busbw_GBps": largest.busbw_GBps, "expected_low_GBps": ceiling.expected_low_GBps,
                "expected_high_GBps": ceiling.expected_high_GBps, "attainable_GBps": ceiling.attainable_GBps, "line_GBps": ceiling.line_GBps,
                "limited_by": ceiling.limited_by,
            })  # fmt: skip
    return found


def _repeats(case: Case, criteria: Criteria) -> Iterable[Row]:
    """Passes of one case at its largest size, against one another."""
    for (stage, ranks, name), points in _worlds(case).items():
        most = max(point.nbytes for point in points)
        rates = [point.busbw_GBps for point in points if point.nbytes == most and point.busbw_GBps]
        if len(rates) < 2:
            continue
        low, high = _middle(rates)
        apart = (high - low) / statistics.median(rates)
        status: Status = "pass" if apart <= criteria.agree.value else "inconclusive"
        yield Row(
            criterion=f"{name} repeats agree", stage=stage, status=status, measured=round(apart, 4), required=criteria.agree.value, unit="frac",
            reason="" if status == "pass" else f"{len(rates)} passes of {low:.4g} to {high:.4g} GB/s: which one counts?",
            source=criteria.agree.source, hosts=_hosts(case, ranks),
        )  # fmt: skip


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the middle 95 %; of fewer than 40 values the least and the largest."""
    ordered = sorted(values)
    cut = len(ordered) // 40
    return ordered[cut], ordered[-1 - cut]


def _data(case: Case) -> Iterable[Row]:
    stages: dict[str, list[Point]] = {}
    if not any(point.status == "ok" for point in case.points):
        yield Row(criterion="data", stage="cluster", status="inconclusive", reason="nothing was measured")
    for point in case.points:
        if point.status != "skipped" and point.kind == "collective" and (point.n_wrong or point.status == "ok"):
            stages.setdefault(point.stage or "cluster", []).append(point)
    for stage, points in stages.items():
        wrong = [point for point in points if point.n_wrong]
        unchecked = sum(point.n_wrong is None for point in points)
        for point in wrong:
            yield Row(
                criterion="data",
                stage=stage,
                status="fail",
                measured=point.n_wrong,
                required=0,
                unit="elements",
                reason=f"{point.collective}: {point.reason}",
            )
        if not wrong:
            status: Status = "inconclusive" if unchecked else "pass"
            yield Row(criterion="data", stage=stage, status=status, measured=0 if status == "pass" else None, required=0, unit="elements",
                      reason=f"{unchecked} of {len(points)} cases were not checked" if unchecked else "")  # fmt: skip


def _gaps(case: Case) -> Iterable[Row]:
    """Cases that were to be measured and gave no number: what is not there must not count as good."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in case.points:
        if point.kind == "collective":
            found.setdefault((point.stage or "cluster", point.collective), []).append(point)
    for (stage, name), points in found.items():
        missing = [point for point in points if point.status != "ok" and not point.n_wrong]
        if missing:
            first = max(missing, key=lambda point: point.requested_nbytes)
            ranks = tuple(first.group.slowest or ()) if first.group is not None else ()
            reason = f"{format_size(first.requested_nbytes)} {first.status}: {first.reason or 'no reason is known'}"
            yield Row(criterion=f"{name} measured", stage=stage, status="inconclusive", measured=len(points) - len(missing), required=len(points),
                      unit="cases", reason=reason, hosts=_hosts(case, ranks))  # fmt: skip


def _bandwidth(case: Case, criteria: Criteria, ceiling_of: CeilingOf, floor_of: Callable[[Point], float | None]) -> Iterable[Row]:
    worlds = _worlds(case)
    for (stage, ranks, name), points in worlds.items():
        if stage == "nic" or any(point.variant for point in points):
            # Beside a load it is slower by design, and of the NICs alone the ceiling is not modelled: repeats, spread and vendors' numbers judge.
            continue
        largest = _largest(points)
        if largest.busbw_GBps is None or not ranks or len(ranks) < 2:
            continue
        yield from judge_sizes.of_ranges(criteria, ceiling_of, stage, name, points, _hosts(case, ranks))
        like = [_largest(other).busbw_GBps for (at, who, what), other in worlds.items()
                if at == stage and what == name and len(who) == len(ranks)]  # fmt: skip
        status, required, reason = _against(largest, criteria, ceiling_of(largest), floor_of(largest), [rate for rate in like if rate])
        yield Row(
            criterion=f"{name} bandwidth", stage=stage, status=status, measured=round(largest.busbw_GBps, 4), required=required, unit="GB/s",
            reason=reason,
            source=criteria.share_of(largest.collective).source, hosts=_hosts(case, ranks),
        )  # fmt: skip


def _against(point: Point, criteria: Criteria, ceiling: Ceiling, floor: float | None, like: Sequence[float]) -> tuple[Status, float | None, str]:
    """(status, what is required, why) of a bandwidth."""
    rate, share = point.busbw_GBps or 0.0, criteria.share_of(point.collective).value
    if ceiling.line_GBps is not None and rate > ceiling.line_GBps:
        return "inconclusive", None, f"above the physical limit of {ceiling.line_GBps:.4g} GB/s: the model or the measurement is wrong"
    low = ceiling.expected_low_GBps
    if low is None and (ceiling.attainable_GBps is None or floor is None):
        return "inconclusive", None, "what to expect here is not known"
    if point.nbytes < LARGE_NBYTES:
        return "inconclusive", None, "measured below 1 GiB only"
    if low is not None:
        if rate < share * low:
            return "fail", round(share * low, 4), f"{rate / low:.0%} of the low end of what is expected; limit: {ceiling.limited_by}"
        return ("pass", round(share * low, 4), "") if rate >= low else ("warn", round(low, 4), "below the low end of what is expected")
    assert ceiling.attainable_GBps is not None
    assert floor is not None
    required = floor * ceiling.attainable_GBps
    if rate < required:
        return "fail", round(required, 4), f"below the stated floor of {floor:g} of attainable"
    agree = len(like) > 1 and max(like) - min(like) <= LIKE_FRAC * statistics.median(like)
    return (
        ("pass", round(required, 4), "") if agree else ("inconclusive", round(required, 4), "above the stated floor, but no like nodes agree with it")
    )


def _required(case: Case, criteria: Criteria) -> Iterable[Row]:
    worlds = _worlds(case)
    for one in criteria.require:
        found = {ranks: points for (stage, ranks, name), points in worlds.items() if stage == one.stage and name.split(" ")[0] == one.collective}
        if not found:
            yield Row(criterion=f"{one.collective} as required", stage=one.stage, status="inconclusive", reason="not measured", source=one.source)
        for ranks, points in found.items():
            yield from _one_required(one, ranks, points, case)


def _one_required(one: object, ranks: Sequence[int], points: Sequence[Point], case: Case) -> Iterable[Row]:
    from nccl_bench.verdict.criteria import Require

    assert isinstance(one, Require)
    rates = [(point.nbytes, point.busbw_GBps) for point in points if point.busbw_GBps is not None]
    if one.min_busbw_GBps is not None:
        values = [rate for _, rate in rates]
        rate = (
            None
            if not values
            else max(rates)[1]
            if one.statistic == "largest"
            else max(values)
            if one.statistic == "max"
            else statistics.fmean(values)
        )
        status: Status = "inconclusive" if rate is None else "pass" if rate >= one.min_busbw_GBps else "fail"
        note = "an average over sizes hides a slow one" if one.statistic == "average" else ""
        yield Row(criterion=f"{one.collective} as required ({one.statistic})", stage=one.stage, status=status,
            measured=None if rate is None else round(rate, 4),
                  required=one.min_busbw_GBps, unit="GB/s", reason=note, source=one.source, hosts=_hosts(case, ranks))  # fmt: skip
    if one.max_latency_us is not None:
        timed = [(point.nbytes, point.time_us.median) for point in points if point.time_us is not None]
        late = min(timed)[1] if timed else None
        status = "inconclusive" if late is None else "pass" if late <= one.max_latency_us else "fail"
        yield Row(criterion=f"{one.collective} latency as required", stage=one.stage, status=status, measured=late, required=one.max_latency_us,
            unit="µs",
                  source=one.source, hosts=_hosts(case, ranks))  # fmt: skip


def _spread(case: Case, criteria: Criteria) -> Iterable[Row]:
    """Worlds of one stage and size against their median."""
    groups: dict[tuple[str, str, int], dict[tuple[int, ...], float]] = {}
    for (stage, ranks, name), points in _worlds(case).items():
        largest = _largest(points)
        if largest.busbw_GBps and ranks:
            groups.setdefault((stage, name, len(ranks)), {})[ranks] = largest.busbw_GBps
    for (stage, name, _size), rates in groups.items():
        if len(rates) < 2:
            continue
        median = statistics.median(rates.values())
        low = {ranks: rate for ranks, rate in rates.items() if rate < (1 - criteria.spread.value) * median}
        worst = min(rates.values()) / median
        hosts = tuple(dict.fromkeys(host for ranks in low for host in _hosts(case, ranks)))
        yield Row(
            criterion=f"{name} alike", stage=stage, status="fail" if low else "pass", measured=round(1 - worst, 4), required=criteria.spread.value,
            unit="frac",
            reason=_slower(len(low), len(rates)), source=criteria.spread.source, hosts=hosts,
        )  # fmt: skip


def _slower(n_low: int, n: int) -> str:
    """How many of those that should be alike are not; of two, there is no most."""
    if not n_low:
        return ""
    return "one is slower than the other" if n == 2 else f"{n_low} of {n} {'is' if n_low == 1 else 'are'} slower than most"


def _tail(case: Case, criteria: Criteria) -> Iterable[Row]:
    for (stage, ranks, name), points in _worlds(case).items():
        largest = _largest(points)
        times = largest.time_us
        if times is None or not ranks or len(ranks) < 2:
            continue
        ratio = None if times.p95 is None else times.p95 / times.median
        status: Status = "inconclusive" if ratio is None else "pass" if ratio <= criteria.tail.value else "warn"
        yield Row(criterion=f"{name} p95/median", stage=stage, status=status, measured=None if ratio is None else round(ratio, 4),
            required=criteria.tail.value,
                  reason="too few samples for a 95th percentile" if ratio is None else "",
                  source=criteria.tail.source, hosts=_hosts(case, ranks))  # fmt: skip


# ---- pairs, counters, transport


def _pairs(case: Case) -> Iterable[Row]:
    for one in case.findings.suspects:
        yield Row(
            criterion=f"suspect: {one.name()}", stage="pairs", status="fail", measured=round(one.score, 4), unit="frac", required=0,
            reason=one.evidence[0] if one.evidence else "", hosts=(one.host,) if one.kind in ("node", "gpu", "nic", "rank") and one.host else (),
        )  # fmt: skip
    for one in case.findings.undetermined:
        yield Row(
            criterion=f"unclear: {one.name()}",
            stage="pairs",
            status="inconclusive",
            measured=round(one.score, 4),
            unit="frac",
            reason="; ".join(one.evidence),
        )
    if failed := case.findings.failed:
        reason = f"{', '.join(failed[:8])}{' ...' if len(failed) > 8 else ''}"
        yield Row(criterion="pairs that failed", stage="pairs", status="fail", measured=len(failed), required=0, unit="pairs", reason=reason)
    if case.pairs_ran and not case.findings.suspects and not case.findings.undetermined and not failed:
        yield Row(criterion="no outlier", stage="pairs", status="pass", measured=0, required=0, unit="suspects")


def _counters(case: Case, criteria: Criteria) -> Iterable[Row]:
    if criteria.counters == "ignore":
        return
    for one in case.counters:
        yield Row(criterion=f"counter of {one['device']}", stage=one["stage"], status=criteria.counters, measured=one["text"],
            required="did not move",
                  source=criteria.path or DEFAULT, hosts=(one["host"],))  # fmt: skip
    if not case.counters:
        status: Status = "pass" if case.counters_read else "inconclusive"
        yield Row(criterion="counters", stage="cluster", status=status, measured="none moved" if case.counters_read else None,
            required="did not move",
                  reason="" if case.counters_read else "no counter could be read", source=criteria.path or DEFAULT)  # fmt: skip


def _transport(case: Case, criteria: Criteria) -> Iterable[Row]:
    if case.n_hosts < 2:
        return
    if not case.has_rdma and criteria.rdma_required:
        yield Row(criterion="RDMA carries the traffic", stage="cluster", status="fail", measured="no RDMA port is up", required="RDMA",
                  source=criteria.path or DEFAULT)  # fmt: skip
    if not case.has_rdma or (criteria.transport == "ignore" and not criteria.rdma_required):
        return
    level: Status = "warn" if criteria.transport == "warn" and not criteria.rdma_required else "fail"
    if case.rdma_bytes is None:
        yield Row(criterion="RDMA carries the traffic", stage="cluster", status="inconclusive", reason="the ports' byte counters could not be read")
    else:
        status: Status = "pass" if case.rdma_bytes > LARGE_NBYTES else level
        yield Row(criterion="RDMA carries the traffic", stage="cluster", status=status, measured=case.rdma_bytes, required=LARGE_NBYTES, unit="bytes",
                  reason="" if status == "pass" else "RDMA ports are up, and the traffic went elsewhere (Socket?)",
                      source=criteria.path or DEFAULT)  # fmt: skip


def drain(suspects: Findings, rows: Sequence[Row], excluded: Sequence[Mapping[str, str]]) -> list[str]:
    """Hosts to take out: of suspects that are a host or a device in one, excluded ones, and those whose own rows fail."""
    hosts = [str(one.host) for one in suspects.suspects if one.kind in ("node", "gpu", "nic", "rank") and one.host]
    hosts += [str(one["host"]) for one in excluded]
    hosts += [host for row in rows if row.status == "fail" and (row.stage in ("doctor", "node") or row.criterion in ALONE) for host in row.hosts]
    return sorted(dict.fromkeys(hosts))
