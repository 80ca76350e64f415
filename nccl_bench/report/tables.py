"""The tables of a report: a digest, every case, ceilings, what did not run, dispatch overhead, pairs. No pandas."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_bench.report.curves import Curve, Sample, View
from nccl_bench.report.look import rate
from nccl_bench.report.naming import judged, what_differs
from nccl_bench.report.page import Cell, Status, Table
from nccl_bench.report.pictures import overhead_us
from nccl_bench.report.pictures_across import pair_values, pairs_have_rates
from nccl_bench.report.sentence import about_size, half_bandwidth_nbytes, short_size
from nccl_bench.units import format_GBps, format_percent, format_size, format_us, three_digits

MAX_CASES = 1500
"""Rows of the table of cases; a page stays below 3 MB and quick to sort."""
MAX_DIGEST = 600
MAX_PAIRS = 60
NONE = Cell(text="-")


def text(value: object) -> Cell:
    """A cell of words; "-" for nothing."""
    return Cell(text=str(value)) if value not in (None, "") else NONE


def left_out(n: int, most: int) -> str:
    """What a table says of the rows that it does not show; "" where it shows all."""
    return f"{n - most} rows more are left out: nccl-bench export has every point." if n > most else ""


def number(words: str, value: float | None, status: Status | None = None) -> Cell:
    """A cell that sorts by a number."""
    return NONE if value is None else Cell(text=words, value=value, status=status)


# ---- digest ----


def digest(views: Sequence[View]) -> Table:
    """One row a curve: of one run every form and clock, of several runs what each is judged by."""
    many = len(views) > 1
    owned = [(view, curve) for view in views for curve in (view.main() if many else _told(view))]
    labels = what_differs([curve for _, curve in owned]) if owned else []
    names = ("run",) if many else ()
    columns = (*names, "collective", "ranks", "how", "time", "at", "peak busbw", "at", "expected", "share", "limited by", "half speed at", "wrong")
    flags = (*(False for _ in names), False, True, False, True, True, True, True, True, True, False, True, True)
    rows = [(*((text(view.label),) if many else ()), *_digest_row(view, curve, label)) for (view, curve), label in zip(owned, labels, strict=True)]
    caption = "time: at the smallest size; busbw: GB/s"
    return Table(columns=columns, numbers=flags, rows=tuple(rows[:MAX_DIGEST]), caption=caption, note=left_out(len(rows), MAX_DIGEST))


def _told(view: View) -> list[Curve]:
    """Curves worth a row of the digest: not the isolated series beside a streaming sweep."""
    streaming = {(curve.collective, curve.n_ranks) for curve in view.curves if curve.regime != "isolated"}
    return [curve for curve in view.curves if curve.regime != "isolated" or (curve.collective, curve.n_ranks) not in streaming]


def _digest_row(view: View, curve: Curve, label: str) -> tuple[Cell, ...]:
    smallest, peak = curve.samples[0], curve.peak
    half = half_bandwidth_nbytes(curve.samples)
    expected, share = against(curve, peak or curve.largest, view)
    wrong = [sample.n_wrong for sample in curve.samples]
    n_wrong = None if None in wrong else sum(n or 0 for n in wrong)
    how = ", ".join(part for part in label.split(", ") if part != curve.collective and not part.endswith(" ranks"))
    return (
        text(curve.collective),
        number(str(curve.n_ranks), curve.n_ranks),
        text(how),
        number(format_us(smallest.time_us), smallest.time_us),
        number(format_size(smallest.nbytes), smallest.nbytes),
        number(format_GBps(peak.busbw_GBps), peak.busbw_GBps) if peak else NONE,
        number(format_size(peak.nbytes), peak.nbytes) if peak else NONE,
        expected,
        share,
        text(curve.ceiling.limited_by if curve.ceiling else None),
        NONE if half is None else number(about_size(half), half),
        Cell(text="not checked") if n_wrong is None else number(str(n_wrong), n_wrong, "fail" if n_wrong else None),
    )


def against(curve: Curve, sample: Sample, view: View) -> tuple[Cell, Cell]:
    """(expected, share) of a curve at one size: of what healthy systems reach, else of attainable ("≤")."""
    ceiling = curve.ceiling
    if ceiling is None or sample.busbw_GBps is None or view.rehearsal:
        return NONE, NONE
    seen = ceiling.expected
    if seen is not None:
        share = sample.busbw_GBps / seen.mid_GBps
        return number(f"{rate(seen.low_GBps)}-{rate(seen.mid_GBps)}", seen.mid_GBps), number(f"{format_percent(share)} %", share)
    if not ceiling.attainable_GBps:
        return NONE, NONE
    share = sample.busbw_GBps / ceiling.attainable_GBps
    return number(f"≤{rate(ceiling.attainable_GBps)}", ceiling.attainable_GBps), number(f"{format_percent(share)} %", share)


# ---- every case ----


def cases(views: Sequence[View]) -> Table:
    """Every case of every curve, passes pooled; of many the headline curves first."""
    many = len(views) > 1
    owned = [(view, curve) for view in views for curve in view.curves]
    labels = what_differs([curve for _, curve in owned]) if owned else []
    order = sorted(range(len(owned)), key=lambda at: owned[at][1] not in owned[at][0].main()) if _n_cases(views) > MAX_CASES else range(len(owned))
    names = ("run",) if many else ()
    rows: list[tuple[Cell, ...]] = []
    for at in order:
        view, curve = owned[at]
        for sample in curve.samples:
            if len(rows) == MAX_CASES:
                break
            rows.append((*((text(view.label),) if many else ()), *_case_row(view, curve, sample, labels[at])))
    columns = (*names, "collective", "how", "size", "time", "±", "busbw", "% of attainable", "limited by", "algo", "p95/p50", "wrong", "passes")
    flags = (*(False for _ in names), False, False, True, True, True, True, True, False, False, True, True, True)
    caption = "GB/s = 1e9 B/s; size: larger buffer of a rank"
    return Table(columns=columns, numbers=flags, rows=tuple(rows), caption=caption, note=left_out(_n_cases(views), MAX_CASES))


def _n_cases(views: Sequence[View]) -> int:
    return sum(len(curve.samples) for view in views for curve in view.curves)


def _case_row(view: View, curve: Curve, sample: Sample, label: str) -> tuple[Cell, ...]:
    half = None if not sample.low_us or not sample.high_us else (sample.high_us - sample.low_us) / 2 / sample.time_us
    spread = None if sample.p95_us is None else sample.p95_us / sample.time_us
    share = None if view.rehearsal else sample.attainable_frac
    above = bool(sample.ceiling.line_GBps and (sample.busbw_low_GBps or sample.busbw_GBps or 0.0) > sample.ceiling.line_GBps)
    simple = sample.protocol is None or sample.protocol.lower() == "simple"
    algorithm = sample.algorithm if simple or sample.algorithm is None else f"{sample.algorithm} {sample.protocol}"
    how = ", ".join(part for part in label.split(", ") if part != curve.collective)
    return (
        text(curve.collective),
        text(how),
        number(short_size(sample.nbytes, sample.requested_nbytes), sample.nbytes),
        number(format_us(sample.time_us), sample.time_us),
        NONE if half is None else number(f"{format_percent(half)} %", half),
        number(format_GBps(sample.busbw_GBps), sample.busbw_GBps, "fail" if above else None),
        NONE if share is None else number(format_percent(share), share),
        text(sample.ceiling.limited_by),
        text(algorithm),
        NONE if spread is None else number(f"{spread:.2f}", spread),
        NONE if sample.n_wrong is None else number(str(sample.n_wrong), sample.n_wrong, "fail" if sample.n_wrong else None),
        number(str(sample.passes), sample.passes),
    )


# ---- the others ----


def ceilings(views: Sequence[View]) -> Table | None:
    """What the judged curves are held against."""
    found: dict[tuple[Cell, ...], None] = {}
    for view in views:
        for curve in view.main():
            one = curve.ceiling
            if one is not None:
                seen = one.expected
                row = (
                    text(curve.collective),
                    number(str(curve.n_ranks), curve.n_ranks),
                    number(rate(one.line_GBps), one.line_GBps),
                    text(one.line_limited_by),
                    number(rate(one.attainable_GBps), one.attainable_GBps),
                    text(one.limited_by),
                    NONE if seen is None else number(f"{rate(seen.low_GBps)}-{rate(seen.mid_GBps)}", seen.mid_GBps),
                    NONE if seen is None else number(str(seen.n_sources), seen.n_sources),
                )
                found[row] = None
    columns = ("collective", "ranks", "physical limit", "set by", "attainable", "limited by", "expected", "sources")
    flags = (False, True, True, False, True, False, True, True)
    return Table(columns=columns, numbers=flags, rows=tuple(found), caption="GB/s of bus bandwidth at large sizes") if found else None


def troubles(views: Sequence[View]) -> Table | None:
    """Cases that were skipped or failed."""
    rows = [
        (
            *((text(view.label),) if len(views) > 1 else ()),
            text(trouble.collective),
            Cell(text=trouble.status, status="fail" if trouble.status == "failed" else None),
            text(_sizes(trouble.sizes)),
            number(str(trouble.n), trouble.n),
            text(trouble.reason),
        )
        for view in views
        for trouble in view.troubles
    ]
    names = ("run",) if len(views) > 1 else ()
    columns = (*names, "collective", "what", "sizes", "cases", "why")
    flags = (*(False for _ in names), False, False, False, True, False)
    return Table(columns=columns, numbers=flags, rows=tuple(rows[:MAX_DIGEST]), note=left_out(len(rows), MAX_DIGEST)) if rows else None


def _sizes(sizes: Sequence[int]) -> str:
    return format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"


def overhead(pairs: Sequence[tuple[Curve, Curve]]) -> Table:
    """Eager beside the fabric's own time, case by case."""
    found = [(eager, size, more_us) for eager, other in pairs for size, more_us in overhead_us(eager, other)]
    times = {id(eager): {sample.nbytes: sample.time_us for sample in eager.samples} for eager, _ in pairs}
    rows = []
    for eager, size, more_us in found[:MAX_CASES]:
        eager_us = times[id(eager)][size]
        cells = (eager_us, eager_us - more_us, more_us)
        rows.append((text(eager.collective), number(format_size(size), size), *(number(format_us(us), us) for us in cells)))
    columns = ("collective", "size", "eager", str(pairs[0][1].clock) if pairs else "", "overhead")
    return Table(columns=columns, numbers=(False, True, True, True, True), rows=tuple(rows), note=left_out(len(found), MAX_CASES))


def slow_pairs(view: View) -> Table:
    """The slowest pairs."""
    values = pair_values(view)
    rates = pairs_have_rates(view)
    ordered = sorted(values.items(), key=lambda item: item[1] if rates else -item[1])
    rows = tuple((text(src), text(dst), number(f"{value:.4g}", value)) for (src, dst), value in ordered[:MAX_PAIRS])
    note = f"The slowest {MAX_PAIRS} of {len(values)}: nccl-bench export has them all." if len(values) > MAX_PAIRS else ""
    return Table(columns=("from", "to", "GB/s" if rates else "µs"), numbers=(False, False, True), rows=rows, note=note)


def groups(views: Sequence[View]) -> Table | None:
    """Groups of an axis: how far apart they are, and how much longer they take at once than one of them alone."""
    alone = [_against_alone(view) for view in views]
    some = any(alone)
    rows = tuple(
        (
            text(group.axis),
            text(group.collective),
            number(format_size(group.nbytes), group.nbytes),
            number(str(group.n_groups), group.n_groups),
            number(f"{100 * group.spread_frac:.1f} %", group.spread_frac),
            text(", ".join(map(str, group.slowest[:16]))),
            *((known.get((group.axis, group.collective, group.nbytes), text("-")),) if some else ()),
        )
        for view, known in zip(views, alone, strict=True)
        for group in view.groups
    )
    more = ("at once against one alone",) if some else ()
    columns = ("axis", "collective", "size", "groups", "fastest done earlier by", "ranks of the slowest", *more)
    flags = (False, False, True, True, True, False, *((True,) if some else ()))
    return Table(columns=columns, numbers=flags, rows=rows[:MAX_DIGEST], note=left_out(len(rows), MAX_DIGEST)) if rows else None


def _against_alone(view: View) -> dict[tuple[str | None, str, int], Cell]:
    """By axis, collective and size: the time of all groups at once over that of one alone (sweep --solo); a number only beyond both intervals."""
    times: dict[tuple[bool, str | None, str, int], Sample] = {
        (curve.special == "solo", curve.axis, curve.collective, sample.nbytes): sample
        for curve in view.curves
        if curve.axis is not None and curve.variant is None and curve.special in (None, "solo")
        for sample in curve.samples
    }
    found = {}
    for (alone, axis, collective, nbytes), solo in times.items():
        together = times.get((False, axis, collective, nbytes))
        if not alone or together is None or solo.time_us <= 0:
            continue
        factor = together.time_us / solo.time_us
        low, high = (together.low_us or 0.0) / (solo.high_us or 1.0), (together.high_us or 0.0) / (solo.low_us or 1.0)
        words = "within noise" if low <= 1.0 <= high else f"{three_digits(factor)} times"
        found[axis, collective, nbytes] = number(words, factor)
    return found


def per_run(views: Sequence[View], name: str | None, judgements: Sequence[tuple[Status, str]]) -> Table:
    """One row a run: what it is judged by, and the judgement."""
    rows = []
    for view, (status, why) in zip(views, judgements, strict=True):
        curve = judged(view, name)
        peak = curve.peak if curve is not None else None
        header = view.header
        rows.append(
            (
                text(view.label),
                number(str(header.n_ranks), header.n_ranks),
                number(str(header.n_nodes), header.n_nodes),
                number(format_GBps(peak.busbw_GBps), peak.busbw_GBps) if peak else NONE,
                number(format_us(curve.samples[0].time_us), curve.samples[0].time_us) if curve else NONE,
                text(header.started_at),
                Cell(text=status, status=status),
                text(why or "as expected"),
            )
        )
    columns = ("run", "ranks", "nodes", f"{name or ''} peak GB/s".strip(), "smallest", "started", "judged", "why")
    return Table(columns=columns, numbers=(False, True, True, True, True, False, False, False), rows=tuple(rows))
