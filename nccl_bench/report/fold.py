"""The first fold: one sentence with a status, three numbers beside what was expected, suspects, what is missing, what was not tested.

Never green where data is missing, where nothing is known of like systems, or where a run is a rehearsal. No pandas.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.report.curves import JUDGED_NBYTES, Curve, View
from nccl_bench.report.look import rate
from nccl_bench.report.naming import headline, judged
from nccl_bench.report.page import Status
from nccl_bench.report.pictures_across import axis_times, host_medians, pair_values, pairs_have_rates
from nccl_bench.units import counted, format_GBps, format_percent, format_size, format_us

LIKE_FRAC = 0.05
"""Like nodes agree within this where they are healthy (DESIGN.md section 3: what lets a stated floor pass a row)."""
ENOUGH_FRAC = 0.999
"""Printed figures are rounded to so much."""
RANK: dict[Status, int] = {"pass": 0, "look": 1, "unknown": 2, "fail": 3}
"""Of several runs or collectives the worst speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is to be said of one run or collective."""

    status: Status
    why: str
    """The reason, as the second half of a sentence; "" for a pass."""
    who: str = ""
    """The collective that it is about; "" for the run as a whole."""
    kind: str = ""
    """The reason without figures, by which alike ones are told together."""
    share: float = 1.0
    """Of what it is held against: of equal ones the lowest speaks."""


def overall(views: Sequence[View]) -> Judgement:
    """The judgement of a report: its worst run's, and why."""
    found = [(view, judge(view, views)) for view in views]
    view, worst = min(found, key=lambda item: (-RANK[item[1].status], item[1].share))
    if len(views) == 1 or worst.status == "pass":
        return worst
    same = sum(judgement.status == worst.status for _, judgement in found)
    words = {"fail": "fail", "look": "need a look", "unknown": "cannot be judged", "pass": ""}[worst.status]
    first = "" if same == 1 else f"{same} of {len(views)} runs {words}, {'worst' if worst.share < 1 else 'first'} "
    return Judgement(status=worst.status, why=f"{first}{view.label}: {worst.who + ' ' if worst.who else ''}{worst.why}")


def judge(view: View, views: Sequence[View]) -> Judgement:
    """The judgement of one run; `views`: all of the report, for like nodes beside it."""
    early = _broken(view) or _rehearsal(view) or _verdict(view)
    if early is not None:
        return early
    if not view.curves:
        return _by_pairs(view) if view.pairs else Judgement(status="unknown", why="nothing was measured")
    rows = [(curve, judge_curve(curve, view, views)) for curve in view.main() if curve.axis is None]
    if not rows:
        return _by_groups(view)
    worst = max(RANK[judgement.status] for _, judgement in rows)
    found = [(curve.collective, judgement) for curve, judgement in rows if RANK[judgement.status] == worst]
    if worst == 0:
        lacking = missing(view)
        return Judgement(status="look", why=f"not everything was measured: {lacking[0]}") if lacking else found[0][1]
    return _together(found, headline([view]))


def _together(found: Sequence[tuple[str, Judgement]], first: str | None) -> Judgement:
    """One judgement of the collectives that fare worst, the headline's first."""
    name, worst = next((row for row in found if row[0] == first), found[0])
    others = list(dict.fromkeys(other for other, _ in found if other != name))
    if not others:
        return Judgement(status=worst.status, why=worst.why, who=name, share=worst.share)
    if name != first and len({judgement.kind for _, judgement in found}) == 1 and worst.kind:
        return Judgement(status=worst.status, why=f"{worst.kind}", who=_and([name, *others]))
    why = f"{worst.why}; the same of {_and(others)}" if worst.status == "fail" else worst.why
    return Judgement(status=worst.status, why=why, who=name, share=worst.share)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _broken(view: View) -> Judgement | None:
    """Wrong data, or a run that broke."""
    wrong = [(curve, sample) for curve in view.curves for sample in curve.samples if sample.n_wrong]
    if wrong:
        curve, sample = wrong[0]
        return Judgement(status="fail", why=f"WRONG DATA: {sample.n_wrong} elements of {curve.collective} at {format_size(sample.nbytes)}")
    header = view.header
    if header.hang:
        return Judgement(status="fail", why=f"the run did not finish: {header.why or 'it hung'}")
    if header.exit_code not in (None, 0, 8):
        return Judgement(status="fail", why=f"the run ended with exit {header.exit_code}: {header.why or 'no reason was recorded'}")
    failed = [trouble for trouble in view.troubles if trouble.status == "failed"]
    if failed:
        n = sum(trouble.n for trouble in failed)
        return Judgement(status="fail", why=f"{n} case{'' if n == 1 else 's'} failed, first {failed[0].collective}: {failed[0].reason}")
    return None


def _rehearsal(view: View) -> Judgement | None:
    if not view.rehearsal:
        return None
    what = "gloo on CPUs, not NCCL" if view.header.not_nccl else "ranks shared a GPU"
    return Judgement(status="unknown", why=f"a rehearsal ({what}): its numbers say nothing about the fabric")


def _verdict(view: View) -> Judgement | None:
    """What `accept` said, where it was not a pass."""
    said = (view.verdict or {}).get("status")
    if said not in ("fail", "inconclusive", "warn"):
        return None
    rows = [row for row in (view.verdict or {}).get("rows") or () if row.get("status") in ("fail", "inconclusive", "warn")]
    first = f", first {rows[0].get('criterion')}: {rows[0].get('reason') or rows[0].get('status')}" if rows else ""
    n_rows = f", {counted(len(rows), 'row')}" if rows else ""
    status: Status = "fail" if said == "fail" else "unknown" if said == "inconclusive" else "look"
    return Judgement(status=status, why=f"acceptance: {said}{n_rows}{first}")


def _by_pairs(view: View) -> Judgement:
    """A run of pairs alone: nothing says how fast they should be, but like hosts should be alike."""
    medians = host_medians(view)
    if len(medians) > 2:
        rates, middle = pairs_have_rates(view), statistics.median(medians.values())
        name = (min if rates else max)(medians, key=lambda key: medians[key])
        frac = medians[name] / middle - 1
        if abs(frac) > LIKE_FRAC:
            return Judgement(status="look", why=f"{name} is {format_percent(abs(frac))} % {'below' if rates else 'above'} the median host")
    alike = "hosts are alike, but " if len(medians) > 2 else ""
    return Judgement(status="unknown", why=f"{alike}how fast such pairs should be is not known")


def _by_groups(view: View) -> Judgement:
    """A run of groups alone, one by one: like groups should be alike."""
    times = axis_times(view)
    if len(times) > 2:
        name, middle = max(times, key=lambda key: times[key]), statistics.median(times.values())
        if times[name] > (1 + LIKE_FRAC) * middle:
            return Judgement(status="look", why=f"{name} takes {format_percent(times[name] / middle - 1)} % longer than the median group")
    return Judgement(status="unknown", why="no collective of all ranks was measured")


def judge_curve(curve: Curve, view: View, views: Sequence[View]) -> Judgement:
    """One collective at its largest size against expected, else against the stated floor."""
    sample, ceiling = curve.largest, curve.ceiling
    if curve.n_ranks == 1:
        return Judgement(status="unknown", why="ran on one rank: nothing crosses a wire")
    if sample.busbw_GBps is None or ceiling is None:
        why = f"cannot be held against anything: {view.ceilings.why_not or 'no ceiling is known for it'}"
        return Judgement(status="unknown", why=why, kind=why)
    if (sample.busbw_low_GBps or sample.busbw_GBps) > ceiling.line_GBps:
        above = f"is above the physical limit ({rate(sample.busbw_GBps)} of {rate(ceiling.line_GBps)} GB/s)"
        return Judgement(status="unknown", why=f"{above}: the limit or the measurement is wrong")
    if sample.nbytes < JUDGED_NBYTES:
        why = f"was measured up to {format_size(sample.nbytes)} only; bandwidth is judged at 1 GiB or more"
        return Judgement(status="unknown", why=why, kind="ended below 1 GiB, where bandwidth is judged")
    if ceiling.expected is not None:
        seen = ceiling.expected
        if sample.busbw_GBps >= ENOUGH_FRAC * seen.low_GBps:
            return Judgement(status="pass", why="")
        share = sample.busbw_GBps / seen.mid_GBps
        reach = f"{rate(seen.low_GBps)} to {rate(seen.mid_GBps)} GB/s"
        return Judgement(status="fail", why=f"is {format_percent(share)} % of what healthy systems like this reach ({reach})", share=share)
    return _by_floor(curve, view, views)


def _by_floor(curve: Curve, view: View, views: Sequence[View]) -> Judgement:
    """The stated floor fails a row; it passes one only where like nodes agree."""
    share, floor = curve.largest.attainable_frac or 0.0, curve.floor_frac or 0.0
    text = f"is {format_percent(share)} % of what is attainable"
    if share < floor:
        why = f"{text}, less than the {format_percent(floor)} % that is the least for a healthy system"
        return Judgement(status="fail", why=why, share=share)
    rates = [peer.largest.busbw_GBps or 0.0 for peer in _peers(curve, view, views)]
    if len(rates) > 1 and max(rates) - min(rates) <= LIKE_FRAC * statistics.median(rates):
        return Judgement(status="pass", why="")
    why = "too few systems like this are known, and no like node was measured beside it" if len(rates) < 2 else "like nodes differ by more than 5 %"
    return Judgement(status="unknown", why=f"{text}; whether that is healthy cannot be said: {why}", kind=f"cannot be judged: {why}")


def _peers(curve: Curve, view: View, views: Sequence[View]) -> list[Curve]:
    """The same case on other hosts of the same kind, this one included."""
    found: dict[frozenset[str], Curve] = {}
    for other in views:
        for candidate in other.main():
            if candidate.way == curve.way and candidate.n_ranks == curve.n_ranks and candidate.ceiling == curve.ceiling:
                found.setdefault(frozenset(str(rank.get("host")) for rank in other.header.ranks), candidate)
    return list(found.values())


# ---- what is missing ----


def missing(view: View) -> list[str]:
    """Data that should be there: cases that did not run between others, unchecked data, an end that was not written."""
    found = []
    header = view.header
    for trouble in view.troubles:
        sizes = [size for size in trouble.sizes if _inside(view, trouble.collective, size)]
        if trouble.status == "failed" or sizes:
            at = f" at {format_size(sizes[0])}{f' and {len(sizes) - 1} more sizes' if len(sizes) > 1 else ''}" if sizes else ""
            found.append(f"{trouble.collective}{at} {trouble.status}: {trouble.reason}")
    unchecked = dict.fromkeys(curve.collective for curve in view.main() if any(sample.n_wrong is None for sample in curve.samples))
    if unchecked:
        known = [name for name in unchecked if name in COLLECTIVES]
        found.append(f"the data{f' of {_and(known)}' if known else ''} was not checked")
    if header.exit_code is None:
        found.append(header.why or "how the run ended is not recorded: it was cut off, or is still going on")
    found += [warning for warning in view.run.warnings if "torn" in warning or "missing" in warning or "no run.json" in warning]
    found += [f"clocks were lowered in {n} case{'' if n == 1 else 's'}: {reason}" for reason, n in view.throttle.items()]
    return found


def _inside(view: View, collective: str, nbytes: int) -> bool:
    """Whether a case that did not run is as large as the smallest that did: smaller ones cannot be shared out among the ranks."""
    sizes = [sample.nbytes for curve in view.main() if curve.collective == collective for sample in curve.samples]
    return bool(sizes) and nbytes >= min(sizes)


def not_tested(views: Sequence[View]) -> list[str]:
    """What these runs cannot say."""
    found = []
    curves = [curve for view in views for curve in view.curves]
    ran = {curve.collective for curve in curves}
    absent = [name for name in COLLECTIVES if name not in ran]
    if absent:
        found.append(f"collectives: {', '.join(absent)}")
    largest = max((curve.largest.nbytes for curve in curves), default=0)
    if 0 < largest < JUDGED_NBYTES:
        found.append(f"sizes above {format_size(largest)}")
    types = dict.fromkeys(curve.dtype for curve in curves if curve.dtype)
    if len(types) == 1:
        found.append(f"data types other than {next(iter(types))}")
    if curves and all(view.header.n_nodes == 1 for view in views):
        found.append("the network: every run was on one node")
    if curves and not any(view.pairs for view in views):
        found.append("single links and pairs: a collective shows the slowest part, not which it is")
    if curves and not any(view.late for view in views):
        found.append("lateness of ranks (no isolated series)")
    if curves and not ({"eager"} & {curve.clock for curve in curves} and {"graph", "queued"} & {curve.clock for curve in curves}):
        found.append("dispatch overhead (one clock only)")
    return found


# ---- the sentence ----


def sentence(views: Sequence[View], judgement: Judgement) -> str:
    """The report in one sentence: what was reached, then what to think of it."""
    name = headline(views)
    text = _reached(views, name) if name is not None else ""
    why = judgement.why
    if not text:
        paired = next((view for view in views if view.pairs), None)
        text = _paired(paired) if paired is not None else _grouped(views[0])
        return f"{text}; {why}." if text else f"{why[:1].upper()}{why[1:]}."
    if judgement.status == "pass":
        return f"{text}{_as_expected(views, name)}."
    if len(views) > 1:
        return f"{text}; {why}."
    if judgement.status == "look":
        return f"{text}{_as_expected(views, name)}, but {why}."
    if judgement.status == "fail" and not judgement.who:
        return f"{why[:1].upper()}{why[1:]}. {text}."
    if judgement.who == name:
        return f"{text}: that {why}." if why.startswith("is ") else f"{text}; it {why}."
    return f"{text}{_as_expected(views, name) if judgement.who else ''}; {judgement.who + ' ' if judgement.who else ''}{why}."


def _reached(views: Sequence[View], name: str | None) -> str:
    """ "all_reduce reaches 468 GB/s at 8 GiB"; of several runs the range."""
    owned = [(view, curve) for view in views if (curve := judged(view, name)) is not None and curve.peak is not None]
    if not owned:
        return ""
    peaks = sorted(((curve.peak.busbw_GBps or 0.0, view) for view, curve in owned if curve.peak is not None), key=lambda item: item[0])
    if len(owned) == 1:
        peak = owned[0][1].peak
        return f"{name} reaches {format_GBps(peak.busbw_GBps)} GB/s at {format_size(peak.nbytes)}" if peak is not None else ""
    (low, slow), (high, fast) = peaks[0], peaks[-1]
    return f"{name} reaches {format_GBps(low)} ({slow.label}) to {format_GBps(high)} GB/s ({fast.label}) in {len(owned)} runs"


def _paired(view: View) -> str:
    """ "496 pairs of 32 hosts: median 49 GB/s, worst 24 (gpu-001 to gpu-017)"."""
    values, rates = pair_values(view), pairs_have_rates(view)
    if not values:
        return ""
    worst = (min if rates else max)(values, key=lambda ends: values[ends])
    unit = "GB/s" if rates else "µs"
    ends = {frozenset(pair) for pair in values}
    names = {name for pair in values for name in pair}
    middle = statistics.median(values.values())
    return f"{len(ends)} pairs of {len(names)}: median {middle:.3g} {unit}, worst {values[worst]:.3g} ({worst[0]} to {worst[1]})"


def _grouped(view: View) -> str:
    """ "8 groups: median 277 ms, slowest 439 ms (local_rank 0)"."""
    times = axis_times(view)
    if len(times) < 2:
        return ""
    slowest = max(times, key=lambda key: times[key])
    return f"{len(times)} groups: median {format_us(statistics.median(times.values()))}, slowest {format_us(times[slowest])} ({slowest})"


def _as_expected(views: Sequence[View], name: str | None) -> str:
    curve = judged(views[0], name)
    if curve is None or curve.ceiling is None:
        return ""
    if len(views) > 1:
        return ", as expected"
    limit = f" ({curve.ceiling.limited_by} limits it)"
    if curve.ceiling.expected is None:
        return f", {format_percent(curve.largest.attainable_frac)} % of what is attainable{limit}"
    share = (curve.largest.busbw_GBps or 0.0) / curve.ceiling.expected.mid_GBps
    return f", {format_percent(share)} % of what healthy systems like this reach{limit}"
