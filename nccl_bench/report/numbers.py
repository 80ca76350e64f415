"""The three numbers of the first fold, and the suspects. No pandas."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.report.curves import Curve, Late, View
from nccl_bench.report.fold import LIKE_FRAC
from nccl_bench.report.look import rate
from nccl_bench.report.naming import headline, judged
from nccl_bench.report.page import Number, Suspect
from nccl_bench.report.pictures_across import axis_times, host_medians, pair_values, pairs_have_rates
from nccl_bench.units import format_GBps, format_percent, format_size, format_us

MAX_SUSPECTS = 12
FAR_OUT = 3.0
"""Tukey's outer fence: so many interquartile ranges beyond the upper quartile (Exploratory Data Analysis, 1977)."""
FEWEST_FOR_FENCE = 4


def numbers(views: Sequence[View]) -> tuple[Number, ...]:
    """Peak of the headline, latency at the smallest size, worst against median host or group."""
    name = headline(views)
    owned = [(view, curve) for view in views if (curve := judged(view, name)) is not None]
    if not owned and any(view.pairs for view in views):
        return (*_of_pairs(next(view for view in views if view.pairs)), _worst(views, owned))
    return (_peak(views, owned, name), _latency(owned, name), _worst(views, owned))


def _of_pairs(view: View) -> tuple[Number, Number]:
    """The median pair and the worst, where a run holds pairs and no collective."""
    values, rates = pair_values(view), pairs_have_rates(view)
    if not values:
        nothing = Number(label="pairs", value="-", expected="no pair has a value")
        return nothing, nothing
    unit = "GB/s" if rates else "µs"
    ends = (min if rates else max)(values, key=lambda pair: values[pair])
    middle = statistics.median(values.values())
    return (
        Number(label="median pair", value=f"{middle:.3g} {unit}", expected="expected: not known, pairs are held against each other"),
        Number(label="worst pair", value=f"{values[ends]:.3g} {unit}", expected=f"{ends[0]} to {ends[1]}, {_percent(values[ends] / middle - 1)}"),
    )


def _peak(views: Sequence[View], owned: Sequence[tuple[View, Curve]], name: str | None) -> Number:
    label = f"{name or 'collectives'}: peak bus bandwidth"
    rated = [(view, curve, curve.peak) for view, curve in owned if curve.peak is not None]
    if not rated:
        return Number(label=label, value="-", expected="no bus bandwidth in it")
    view, curve, peak = max(rated, key=lambda row: row[2].busbw_GBps or 0.0)
    who = f", {view.label}" if len(views) > 1 else ""
    return Number(label=label, value=f"{format_GBps(peak.busbw_GBps)} GB/s", expected=f"at {format_size(peak.nbytes)}{who}; {_of_peak(view, curve)}")


def _of_peak(view: View, curve: Curve) -> str:
    if view.rehearsal:
        return "expected: nothing, a rehearsal"
    ceiling = curve.ceiling
    if ceiling is None:
        return f"expected: not known ({view.ceilings.why_not or 'no ceiling'})"
    if ceiling.expected is not None:
        return f"expected {rate(ceiling.expected.low_GBps)} to {rate(ceiling.expected.mid_GBps)} ({ceiling.expected.n_sources} healthy systems)"
    return f"attainable {rate(ceiling.attainable_GBps)}; too few like systems are known to expect more or less"


def _latency(owned: Sequence[tuple[View, Curve]], name: str | None) -> Number:
    label = f"{name or 'collectives'}: time at the smallest size"
    if not owned:
        return Number(label=label, value="-", expected="no collective of all ranks was measured")
    view, curve = min(owned, key=lambda item: (item[1].samples[0].nbytes, item[1].samples[0].time_us))
    sample = curve.samples[0]
    text = f"at {format_size(sample.nbytes)}{f', {view.label}' if len(owned) > 1 else ''}"
    latency = sample.ceiling.latency_us
    if view.rehearsal:
        text += "; expected: nothing, a rehearsal"
    elif curve.collective in COLLECTIVES and COLLECTIVES[curve.collective].one_way and curve.regime == "streaming":
        text += "; calls overlap: a rate, not a latency"
    else:
        text += "; expected: not known" if latency is None else f"; expected about {format_us(latency)} by NCCL's own constants"
    text += _how(view, curve)
    return Number(label=label, value=format_us(sample.time_us), expected=text)


def _how(view: View, curve: Curve) -> str:
    if curve.clock is None:
        return f" (timed by {view.header.tool})" if view.run.imported else ""
    return f" ({curve.clock} clock)"


# ---- worst against median ----


def _worst(views: Sequence[View], owned: Sequence[tuple[View, Curve]]) -> Number:
    for step in (_worst_host, _worst_group, _worst_run, _worst_late):
        if (found := step(views, owned)) is not None:
            return found
    why = "one node, one group, one run: nothing to hold it against"
    return Number(label="worst against median host or group", value="-", expected=why)


def _like(frac: float) -> str:
    return f"like ones agree within {format_percent(LIKE_FRAC)} % where they are healthy" + ("" if abs(frac) <= LIKE_FRAC else ": look at it")


def _percent(frac: float) -> str:
    return f"{100 * frac:+.1f} %"


def _worst_host(views: Sequence[View], owned: Sequence[tuple[View, Curve]]) -> Number | None:
    for view in views:
        medians = host_medians(view)
        if len(medians) > 2:
            name, frac = _furthest(medians, higher_is_better=pairs_have_rates(view))
            return Number(label="worst against median host, over their pairs", value=_percent(frac), expected=f"{name}; {_like(frac)}")
    return None


def _furthest(values: dict[str, float], *, higher_is_better: bool) -> tuple[str, float]:
    """(name, value over the median less 1) of the worst."""
    middle = statistics.median(values.values())
    name = (min if higher_is_better else max)(values, key=lambda key: values[key])
    return name, values[name] / middle - 1


def _worst_group(views: Sequence[View], owned: Sequence[tuple[View, Curve]]) -> Number | None:
    groups = [group for view in views for group in view.groups]
    if groups:
        largest = max(group.nbytes for group in groups)
        worst = max((group for group in groups if group.nbytes == largest), key=lambda group: group.spread_frac)
        who = f"axis {worst.axis}, {worst.collective}: slowest of {worst.n_groups} is ranks {_ranks(worst.slowest)}; {_like(worst.spread_frac)}"
        return Number(label="fastest group done earlier than the slowest", value=_percent(worst.spread_frac), expected=who)
    for view in views:
        times = axis_times(view)
        if len(times) > 2:
            name, frac = _furthest(times, higher_is_better=False)
            return Number(label="worst against median group, time", value=_percent(frac), expected=f"{name}; {_like(frac)}")
    return None


def _ranks(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:8]))
    return f"{text} ..." if len(ranks) > 8 else text or "not recorded"


def _worst_run(views: Sequence[View], owned: Sequence[tuple[View, Curve]]) -> Number | None:
    """Runs of one number of ranks, at the largest size they share."""
    counts: dict[int | None, list[tuple[View, Curve]]] = {}
    for view, curve in owned:
        counts.setdefault(curve.n_ranks, []).append((view, curve))
    alike = max(counts.values(), key=len, default=[])
    if len(alike) < 2:
        return None
    shared = set.intersection(*({sample.nbytes for sample in curve.samples if sample.busbw_GBps} for _, curve in alike))
    if not shared:
        return None
    size = max(shared)
    rates = {view.label: next(s.busbw_GBps or 0.0 for s in curve.samples if s.nbytes == size) for view, curve in alike}
    name, frac = _furthest(rates, higher_is_better=True)
    label = f"slowest against median of {len(rates)} runs, at {format_size(size)}"
    return Number(label=label, value=_percent(frac), expected=f"{name}; {_like(frac)}")


def _worst_late(views: Sequence[View], owned: Sequence[tuple[View, Curve]]) -> Number | None:
    for view in views:
        hosts = [late for late in view.late if late.rank is None]
        if len(hosts) > 2:
            middle = statistics.median(late.us for late in hosts)
            return Number(
                label="latest against median host", value=format_us(hosts[0].us - middle), expected=f"{hosts[0].who}; later than the median host"
            )
    return None


# ---- suspects ----


def suspects(views: Sequence[View]) -> tuple[Suspect, ...]:
    """What to look at first, with the evidence: from the verdict, from a hang, wrong data, late hosts, slow hosts of pairs."""
    found: list[Suspect] = []
    for view in views:
        where = f" ({view.label})" if len(views) > 1 else ""
        mine = (*_judged_suspects(view), *_hang(view), *_wrong(view), *_late(view), *_slow_hosts(view), *_slow_groups(view))
        found += [Suspect(who=f"{suspect.who}{where}", evidence=suspect.evidence) for suspect in mine]
    return tuple(found[:MAX_SUSPECTS])


def _judged_suspects(view: View) -> list[Suspect]:
    found = []
    for row in (view.verdict or {}).get("suspects") or ():
        parts = [row.get("kind"), row.get("host"), f"GPU {row['gpu']}" if row.get("gpu") is not None else None, row.get("nic")]
        evidence = row.get("evidence")
        text = "; ".join(map(str, evidence)) if isinstance(evidence, list | tuple) else str(evidence or "")
        found.append(Suspect(who=" ".join(str(part) for part in parts if part), evidence=text))
    return found


def _hang(view: View) -> list[Suspect]:
    found = []
    for culprit in (view.header.hang or {}).get("culprits") or ():
        who = f"rank {culprit.get('rank')}" + (f" on {culprit['host']}" if culprit.get("host") else "")
        found.append(Suspect(who=who, evidence=str(culprit.get("what") or culprit.get("state") or "did not arrive")))
    return found


def _wrong(view: View) -> list[Suspect]:
    reasons = [trouble.reason for trouble in view.troubles if trouble.status == "failed" and "rank " in trouble.reason]
    return [Suspect(who="wrong or failed", evidence=reason) for reason in reasons[:3]]


def _late(view: View) -> list[Suspect]:
    """Hosts beyond the outer fence that come later than an operation takes."""
    hosts = [late for late in view.late if late.rank is None]
    if len(hosts) < FEWEST_FOR_FENCE:
        return []
    low, _, high = statistics.quantiles([late.us for late in hosts], n=4)
    fence = max(high + FAR_OUT * (high - low), view.late_than_us or 0.0)
    return [Suspect(who=late.host, evidence=_late_words(late, hosts)) for late in hosts if late.us > fence]


def _late_words(late: Late, hosts: Sequence[Late]) -> str:
    middle = statistics.median(other.us for other in hosts)
    return f"comes {format_us(late.us)} later than the first to every collective; the median host {format_us(middle)}"


def _slow_hosts(view: View) -> list[Suspect]:
    medians = host_medians(view)
    if len(medians) < FEWEST_FOR_FENCE:
        return []
    rates = pairs_have_rates(view)
    middle = statistics.median(medians.values())
    unit = "GB/s" if rates else "µs"
    worse = {name: value / middle - 1 for name, value in medians.items()}
    slow = [name for name, frac in worse.items() if (frac < -LIKE_FRAC if rates else frac > LIKE_FRAC)]
    slow.sort(key=lambda name: -abs(worse[name]))
    words = {name: f"median of its pairs {medians[name]:.3g} {unit}, {_percent(worse[name])} against the median host" for name in slow}
    return [Suspect(who=name, evidence=text) for name, text in words.items()]


def _slow_groups(view: View) -> list[Suspect]:
    times = axis_times(view)
    if len(times) < FEWEST_FOR_FENCE:
        return []
    middle = statistics.median(times.values())
    slow = [name for name, us in times.items() if us > middle * (1 + LIKE_FRAC)]
    return [Suspect(who=name, evidence=f"{format_us(times[name])}, {_percent(times[name] / middle - 1)} against the median group") for name in slow]
