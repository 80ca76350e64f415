"""Rows of an acceptance: every criterion against what was measured, and what they come to. Inconclusive is never green. Pure.

A row passes only on data; where data is missing, too noisy, not of NCCL, or above the physical limit, it is inconclusive.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from nccl_bench.records import Json, Point
from nccl_bench.units import counted, format_size
from nccl_bench.verdict import judge_hosts, judge_rates, lax
from nccl_bench.verdict.criteria import DEFAULT, Criteria
from nccl_bench.verdict.evidence import Findings
from nccl_bench.verdict.judge_rates import CeilingOf
from nccl_bench.verdict.outcome import Verdict, verdict
from nccl_bench.verdict.rows import LARGE_NBYTES, Case, Row, Status
from nccl_bench.verdict.worlds import hosts_of, largest_of, worlds

ALONE = ("pairs with known-good hosts",)
"""Rows of other stages that speak against one host alone."""
MOST_HOSTS = 8
"""Hosts of a world that are named one by one."""


def judge(case: Case, criteria: Criteria, ceiling_of: CeilingOf, floor_of: Callable[[Point], float | None] = lambda _: None) -> Verdict:
    """All rows and the verdict."""
    rows = [
        *judge_hosts.doctor(case, criteria), *judge_hosts.excluded(case), *judge_hosts.broken(case), *_data(case), *_gaps(case),
        *lax.rows(criteria), *judge_rates.rows(case, criteria, ceiling_of, floor_of),
        *_spread(case, criteria), *_repeats(case, criteria), *_tail(case, criteria), *_pairs(case),
        *_counters(case, criteria), *_transport(case, criteria),
        *judge_hosts.not_run(case),
        *case.more,
    ]  # fmt: skip
    return verdict(case, tuple(rows))


# ---- collectives


def measured(case: Case, ceiling_of: CeilingOf) -> list[Json]:
    """The largest size of every world beside what it is held against, for a page."""
    found = []
    for (stage, ranks, name), points in worlds(case).items():
        largest = largest_of(points)
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
    for (stage, ranks, name), points in worlds(case).items():
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
            source=criteria.agree.source, hosts=hosts_of(case, ranks),
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
                reason=f"{point.collective} of {format_size(point.nbytes)}{f': {point.reason}' if point.reason else ''}",
                hosts=hosts_of(case, tuple(point.group.slowest or ()) if point.group is not None else ()),
            )
        if not wrong:
            status: Status = "inconclusive" if unchecked else "pass"
            yield Row(criterion="data", stage=stage, status=status, measured=0 if status == "pass" else None, required=0, unit="elements",
                      reason=f"{unchecked} of {counted(len(points), 'case')} not checked" if unchecked else "")  # fmt: skip


def _gaps(case: Case) -> Iterable[Row]:
    """Cases that were to be measured and gave no number: what is not there must not count as good."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in case.points:
        if point.kind == "collective":
            found.setdefault((point.stage or "cluster", point.collective), []).append(point)
    for (stage, name), points in found.items():
        # Bytes that so many ranks cannot share are no case: sweeps skip them.
        missing = [point for point in points if point.status != "ok" and not point.n_wrong and (point.nbytes or point.status != "skipped")]
        if missing:
            first = max(missing, key=lambda point: point.requested_nbytes)
            ranks = tuple(first.group.slowest or ()) if first.group is not None else ()
            reason = f"{format_size(first.requested_nbytes)} {first.status}: {first.reason or 'no reason is known'}"
            yield Row(criterion=f"{name} measured", stage=stage, status="inconclusive", measured=len(points) - len(missing), required=len(points),
                      unit="cases", reason=reason, hosts=hosts_of(case, ranks))  # fmt: skip


def _spread(case: Case, criteria: Criteria) -> Iterable[Row]:
    """Worlds of one stage and size against their median."""
    groups: dict[tuple[str, str, int], dict[tuple[int, ...], float]] = {}
    for (stage, ranks, name), points in worlds(case).items():
        largest = largest_of(points)
        if largest.busbw_GBps and ranks:
            groups.setdefault((stage, name, len(ranks)), {})[ranks] = largest.busbw_GBps
    for (stage, name, _size), rates in groups.items():
        if len(rates) < 2:
            continue
        median = statistics.median(rates.values())
        low = {ranks: rate for ranks, rate in rates.items() if rate < (1 - criteria.spread.value) * median}
        worst = min(rates.values()) / median
        hosts = tuple(dict.fromkeys(host for ranks in low for host in hosts_of(case, ranks)))
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
    for (stage, ranks, name), points in worlds(case).items():
        largest = largest_of(points)
        times = largest.time_us
        if times is None or not ranks or len(ranks) < 2:
            continue
        ratio = None if times.p95 is None else times.p95 / times.median
        status: Status = "inconclusive" if ratio is None else "pass" if ratio <= criteria.tail.value else "warn"
        yield Row(criterion=f"{name} p95/median", stage=stage, status=status, measured=None if ratio is None else round(ratio, 4),
            required=criteria.tail.value,
                  reason="too few samples for a 95th percentile" if ratio is None else "",
                  source=criteria.tail.source, hosts=hosts_of(case, ranks))  # fmt: skip


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
        said, why = _no_outlier(case)
        yield Row(criterion="no outlier", stage="pairs", status=said, measured=0, required=0, unit="suspects", reason=why)


def _no_outlier(case: Case) -> tuple[Status, str]:
    """What it is worth that nobody is a suspect."""
    unseen = case.findings.unseen_frac
    if unseen > lax.MOST_APART:
        return "inconclusive", f"exchanges scatter so much that losses below {unseen:.0%} are not seen"
    return ("warn", "two hosts have nobody to be compared with") if case.n_hosts == 2 else ("pass", "")


def _counters(case: Case, criteria: Criteria) -> Iterable[Row]:
    if criteria.counters == "ignore":
        return
    for one in case.counters:
        yield Row(criterion=f"counter of {one['device']}", stage=one["stage"], status=criteria.counters, measured=one["text"],
            required="did not move",
                  source=criteria.path or DEFAULT, hosts=(one["host"],))  # fmt: skip
    gone = {one["host"] for one in case.excluded}
    if case.counters_read and (missing := tuple(host for host in case.counters_missing if host not in gone)):
        reason = f"no counter could be read on {counted(len(missing), 'host')}"
        yield Row(criterion="counters of every host", stage="cluster", status="inconclusive", required="did not move", reason=reason, hosts=missing)
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
    inside = {case.domains.get(host) for host in case.rdma_of} if case.rdma_of else {None}
    if len(inside) == 1 and None not in inside and not criteria.rdma_required:
        yield Row(criterion="RDMA carries the traffic", stage="cluster", status="warn", measured=case.rdma_bytes, unit="bytes",
                  reason="all hosts share one NVLink domain: nothing had to cross their NICs, which stage nic tests alone")  # fmt: skip
    elif case.rdma_bytes is None:
        yield Row(criterion="RDMA carries the traffic", stage="cluster", status="inconclusive", reason="the ports' byte counters could not be read")
    else:
        idle = _idle(case)
        sent = idle[0][0] if idle else case.rdma_bytes
        status: Status = "pass" if sent > LARGE_NBYTES else level
        yield Row(criterion="RDMA carries the traffic", stage="cluster", status=status, measured=sent, required=LARGE_NBYTES, unit="bytes",
                  reason="" if status == "pass" else "RDMA ports are up, and the traffic went elsewhere (Socket?)",
                  hosts=tuple(host for _, host in idle), source=criteria.path or DEFAULT)  # fmt: skip


def _idle(case: Case) -> list[tuple[int, str]]:
    """(bytes, host) of hosts whose NICs carried too little; the NICs of an NVLink domain over several hosts count together."""
    name = {host: case.domains.get(host, f"host {host}") for host in case.rdma_of}
    sent: dict[str, int] = {}
    for host, n in case.rdma_of.items():
        sent[name[host]] = sent.get(name[host], 0) + n
    return sorted((n, host) for host, n in case.rdma_of.items() if sent[name[host]] <= LARGE_NBYTES)


def drain(suspects: Findings, rows: Sequence[Row], excluded: Sequence[Mapping[str, str]]) -> list[str]:
    """Hosts to take out: of suspects that are a host or a device in one, excluded ones, and those whose own rows fail."""
    hosts = [str(one.host) for one in suspects.suspects if one.kind in ("node", "gpu", "nic", "rank") and one.host]
    hosts += [str(one["host"]) for one in excluded]
    hosts += [host for row in rows if row.status == "fail" and (row.stage in ("doctor", "node") or row.criterion in ALONE) for host in row.hosts]
    return sorted(dict.fromkeys(hosts))
