"""The pictures over message size: bus bandwidth, time, efficiency, dispatch overhead, spread. Values only; charts draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.report.curves import Curve, Sample, View
from nccl_bench.report.look import rate
from nccl_bench.report.naming import caption, headline, judged, short_labels, what_differs
from nccl_bench.report.page import Heat, Line, Mark, Picture, Plot, Tone
from nccl_bench.units import format_GBps, format_percent, format_size, format_us

MAX_POINTS = 400
"""Points of a drawn line; of more, evenly many are left out."""
MAX_COLORED = 6
"""Lines in colours of their own; of more, the fastest and the slowest are named and the others grey."""
MAX_ROWS = 40
"""Rows of a heat map; of more runs, the slowest."""
MAX_PANELS = 8
LEAST_SPREAD = 1.1
"""Upper end of the axis of the spread at least: a spread of a percent should look like one."""
RIBBON = "Ribbon: 95 % interval of the median; of several passes, the middle 95 % of them."
SIZE = "size: the larger buffer of a rank"
BUSBW = "bus bandwidth (GB/s)"
NUMBER = {name: at for at, name in enumerate(("all_reduce", "all_gather", "reduce_scatter", "sendrecv", "all_to_all", "broadcast"))}
"""The colour of a collective, the same in all pictures."""
Owned = tuple[View, Curve]


def lines_of(
    owned: Sequence[Owned],
    labels: Sequence[str],
    y_of: Callable[[Sample], float | None],
    low_of: Callable[[Sample], float | None] | None = None,
    high_of: Callable[[Sample], float | None] | None = None,
    *,
    worse_is_high: bool = False,
) -> tuple[Line, ...]:
    """A line a curve; of more than MAX_COLORED the ends are named and the rest is grey."""
    found = []
    for (_, curve), label in zip(owned, labels, strict=True):
        samples = [sample for sample in thinned(curve.samples) if y_of(sample) is not None]
        if not samples:
            continue
        low = tuple(low_of(sample) for sample in samples) if low_of else ()
        high = tuple(high_of(sample) for sample in samples) if high_of else ()
        known = any(value is not None for value in (*low, *high))
        found.append(
            Line(
                label=label,
                x=tuple(float(sample.nbytes) for sample in samples),
                y=tuple(y_of(sample) or 0.0 for sample in samples),
                low=low if known else (),
                high=high if known else (),
            )
        )
    return tuple(found) if len(found) <= MAX_COLORED else _many(found, worse_is_high)


def _many(lines: Sequence[Line], worse_is_high: bool) -> tuple[Line, ...]:
    """Grey for most; in colour the two worst and the best, by their ends."""
    ranked = sorted(lines, key=lambda line: line.y[-1], reverse=worse_is_high)
    special = {id(ranked[0]): 1, id(ranked[1]): 4, id(ranked[-1]): 0}
    grey = [_toned(line, "faint", None, "") for line in lines if id(line) not in special]
    return (*grey, *(_toned(line, "main", special[id(line)], line.label) for line in lines if id(line) in special))


def _toned(line: Line, tone: Tone, color: int | None, label: str) -> Line:
    low, high = (line.low, line.high) if tone != "faint" else ((), ())
    return replace(line, label=label, low=low, high=high, tone=tone, color=color)


def thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    """At most MAX_POINTS samples, first and last among them."""
    if len(samples) <= MAX_POINTS:
        return samples
    step = (len(samples) - 1) / (MAX_POINTS - 1)
    return [samples[round(at * step)] for at in range(MAX_POINTS)]


def marks_of(curves: Sequence[Curve], *, short: bool = False) -> tuple[Mark, ...]:
    """The physical limit, and what is expected (else attainable); none where curves have unlike ones. `short`: words for a small plot."""
    ceilings = [curve.ceiling for curve in curves]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    if not known or len(known) < len(ceilings) or len({round(ceiling.line_GBps, 3) for ceiling in known}) > 1:
        return ()
    one = known[0]
    limit = f"limit {rate(one.line_GBps)}" if short else f"physical limit {rate(one.line_GBps)} GB/s"
    marks = [Mark(y=one.line_GBps, words=f"{limit}: {one.line_limited_by}")]
    seen = one.expected
    if seen is not None:
        words = f"expected {rate(seen.low_GBps)} to {rate(seen.mid_GBps)} GB/s at large sizes (quartile, median of {seen.n_sources} healthy systems)"
        words = f"expected {rate(seen.low_GBps)} to {rate(seen.mid_GBps)}" if short else words
        marks.append(Mark(y=seen.low_GBps, high=max(seen.mid_GBps, seen.low_GBps * 1.002), words=words, kind="expected"))
    elif abs(one.attainable_GBps - one.line_GBps) > 0.01 * one.line_GBps:
        words = f"attainable {rate(one.attainable_GBps)}" + ("" if short else " GB/s: what NCCL's protocol leaves of it")
        marks.append(Mark(y=one.attainable_GBps, words=words, kind="attainable"))
    return tuple(marks)


def _busbw_plot(owned: Sequence[Owned], labels: Sequence[str], heading: str = "") -> Plot:
    lines = lines_of(owned, labels, lambda s: s.busbw_GBps, lambda s: s.busbw_low_GBps, lambda s: s.busbw_high_GBps)
    forms = {(curve.collective, curve.placement) for _, curve in owned}
    if len(lines) == len(owned) and len({name for name, _ in forms}) == 1 < len(forms):
        lines = tuple(replace(line, dashed=curve.placement == "in") for line, (_, curve) in zip(lines, owned, strict=True))
    marks = marks_of([curve for _, curve in owned if curve.variant is None], short=bool(heading))
    return Plot(lines=lines, marks=marks, x_label="size" if heading else SIZE, y_label=BUSBW, heading=heading)


def _all_of(views: Sequence[View], collective: str) -> tuple[list[Owned], list[str]]:
    """Each run's judged curve of a collective, and the runs' short names (with their ranks where these differ)."""
    owned = [(view, curve) for view in views if (curve := judged(view, collective)) is not None]
    owned.sort(key=lambda item: item[1].n_ranks or 0)
    names = short_labels([view.label for view, _ in owned])
    unlike = len({curve.n_ranks for _, curve in owned}) > 1
    return owned, [names[view.label] + (f" ({curve.n_ranks} ranks)" if unlike and curve.n_ranks else "") for view, curve in owned]


# ---- the first picture ----


def opening(views: Sequence[View]) -> tuple[list[Owned], list[str]]:
    """The curves that a report opens with, and their names: of one run one a collective, of several runs the headline of each."""
    if len(views) > 1:
        name = headline(views)
        owned, labels = _all_of(views, name) if name is not None else ([], [])
        kept = [at for at, (_, curve) in enumerate(owned) if curve.peak is not None]
        return [owned[at] for at in kept], [labels[at] for at in kept]
    curves = _by_collective(views[0])
    return [(views[0], curve) for curve in curves], [curve.collective for curve in curves]


def first(views: Sequence[View]) -> Picture | None:
    """Bus bandwidth against size: of one run all collectives, the headline's bold and its ceilings; of several runs the headline of each."""
    name = headline(views)
    if name is None:
        return None
    owned, labels = opening(views)
    if len(views) > 1:
        plot = _busbw_plot(owned, labels)
        note = f"{_ribbon((plot,))} {_grey_note(len(owned))}".strip()
        return _busbw_picture("busbw", f"{name}: bus bandwidth of {len(owned)} runs", views, owned, (plot,), note)
    chosen = judged(views[0], name)
    lines = []
    for line, (_, curve) in zip(_busbw_plot(owned, labels).lines, owned, strict=True):
        main = curve is chosen
        lines.append(_toned(line, "main" if main else "other", NUMBER.get(curve.collective), line.label))
    marks = marks_of([chosen]) if chosen is not None else ()
    plot = Plot(lines=tuple(lines), marks=marks, x_label=SIZE, y_label=BUSBW)
    note = f"{_ribbon((plot,))}{f' Limits are those of {name}.' if marks and len(lines) > 1 else ''}".strip()
    return _busbw_picture("busbw", "Bus bandwidth against size", views, owned, (plot,), note)


def _ribbon(plots: Sequence[Plot]) -> str:
    """What the ribbon is, where there is one."""
    return RIBBON if any(line.low for plot in plots for line in plot.lines) else ""


def _grey_note(n: int) -> str:
    return f"Named: the fastest and the two slowest; grey: the other {n - 3}." if n > MAX_COLORED else ""


def _by_collective(view: View) -> list[Curve]:
    """One curve a collective, those with a rate."""
    names = dict.fromkeys(curve.collective for curve in view.main())
    found = [judged(view, name) for name in names]
    return [curve for curve in found if curve is not None and curve.peak is not None][:MAX_COLORED]


def _busbw_picture(name: str, title: str, views: Sequence[View], owned: Sequence[Owned], parts: tuple[Plot, ...], note: str) -> Picture:
    names = [(curve.collective if len(views) == 1 else view.label, curve.peak) for view, curve in owned[:12]]
    peaks = [f"{label} {format_GBps(peak.busbw_GBps)} GB/s" for label, peak in names if peak is not None]
    more = f" and {len(owned) - 12} more" if len(owned) > 12 else ""
    words = f"{title}, logarithmic size axis. Peaks: {', '.join(peaks)}{more}."
    return Picture(name=name, title=title, caption=caption(views, owned), note=note, parts=parts, words=words)


# ---- by collective ----


def by_collective(views: Sequence[View]) -> Picture | None:
    """A plot a collective: of one run every form and variant of it, of several runs each run; None where the first picture shows it all."""
    names = [name for name in COLLECTIVES if any(judged(view, name) is not None for view in views)][:MAX_PANELS]
    parts, everything = [], []
    for name in names:
        if len(views) > 1:
            owned, labels = _all_of(views, name)
        else:
            owned = [(views[0], curve) for curve in _forms(views[0], name)]
            labels = what_differs([curve for _, curve in owned])
        kept = [at for at, (_, curve) in enumerate(owned) if curve.peak is not None]
        if kept:
            parts.append(_busbw_plot([owned[at] for at in kept], [labels[at] for at in kept], heading=name))
            everything += [owned[at] for at in kept]
    shown_already = len(parts) < 2 and (len(views) > 1 or len(everything) < 2)
    if not parts or shown_already:
        return None
    note = f"{_ribbon(parts)} {_grey_note(len(views))}".strip()
    return _busbw_picture("busbw-by-collective", "Bus bandwidth by collective", views, everything, tuple(parts), note)


def _forms(view: View, collective: str) -> list[Curve]:
    """All curves of a collective by the clock and number of ranks it is judged by: placements, data types, roots, shifts, variants."""
    chosen = judged(view, collective)
    if chosen is None:
        return []
    same = (chosen.clock, chosen.regime, chosen.n_ranks, chosen.axis)
    found = [c for c in view.curves if c.collective == collective and c.kind == "collective" and (c.clock, c.regime, c.n_ranks, c.axis) == same]
    return [curve for curve in found if curve.peak is not None]


# ---- time ----


def time(views: Sequence[View]) -> Picture | None:
    """Time against size, both axes logarithmic."""
    name = headline(views)
    if len(views) > 1:
        if name is None:
            return None
        owned, labels = _all_of(views, name)
        title = f"{name}: time of an operation"
    else:
        owned = [(views[0], curve) for curve in _timed(views[0])]
        labels, title = [curve.collective for _, curve in owned], "Time of an operation"
    lines = lines_of(owned, labels, lambda s: s.time_us, lambda s: s.low_us, lambda s: s.high_us, worse_is_high=True)
    if not lines:
        return None
    if len(views) == 1:
        lines = tuple(_toned(line, "main", NUMBER.get(curve.collective), line.label) for line, (_, curve) in zip(lines, owned, strict=True))
    one_way = [curve.collective for _, curve in owned if curve.collective in COLLECTIVES and COLLECTIVES[curve.collective].one_way]
    overlap = f"Streaming {', '.join(dict.fromkeys(one_way))}: calls overlap, so the time is a rate and no latency." if one_way else ""
    firsts = [(label, curve.samples[0]) for (_, curve), label in zip(owned, labels, strict=True)]
    smallest = [f"{label} {format_us(sample.time_us)} at {format_size(sample.nbytes)}" for label, sample in firsts]
    plot = Plot(lines=lines, x_label=SIZE, y_label="time (µs)", y_log=True)
    note = f"{_ribbon((plot,))} {overlap}".strip()
    words = f"{title} against size, both axes logarithmic: {', '.join(smallest[:8])}."
    return Picture(name="time", title=title, caption=caption(views, owned), note=note, parts=(plot,), words=words)


def _timed(view: View) -> list[Curve]:
    names = dict.fromkeys(curve.collective for curve in view.main())
    return [curve for name in names if (curve := judged(view, name)) is not None][:MAX_COLORED]


# ---- efficiency ----


def efficiency(views: Sequence[View]) -> Picture | None:
    """Share of attainable as a heat map: collective x size of one run, run x size of the headline of several."""
    name = headline(views)
    if len(views) == 1:
        owned = [(views[0], curve) for curve in _by_collective(views[0])]
        labels = [curve.collective for _, curve in owned]
    else:
        owned, labels = _all_of(views, name) if name is not None else ([], [])
    rows = [(label, curve) for (_, curve), label in zip(owned, labels, strict=True) if curve.ceiling is not None and curve.ceiling.attainable_GBps]
    if not rows:
        return None
    if len(rows) > MAX_ROWS:
        rows = sorted(rows, key=lambda row: row[1].largest.attainable_frac or 0.0)[:MAX_ROWS]
    sizes = sorted({sample.nbytes for _, curve in rows for sample in thinned(curve.samples)})
    sizes = sizes if len(sizes) <= 64 else sizes[:: -(-len(sizes) // 64)]
    shares = [{sample.nbytes: sample.attainable_frac for sample in curve.samples} for _, curve in rows]
    values = tuple(tuple(share.get(size) for size in sizes) for share in shares)
    title = "Share of what is attainable" + ("" if len(views) == 1 else f": {name}")
    heat = Heat(
        rows=tuple(label for label, _ in rows),
        columns=tuple(format_size(size) for size in sizes),
        values=values,
        low=0.0,
        high=max(1.0, *(value for row in values for value in row if value is not None)),
        label="of attainable",
        percent=True,
    )
    best = ", ".join(f"{label} {format_percent(curve.largest.attainable_frac)} %" for label, curve in rows[:8])
    note = "Percent of the bus bandwidth that NCCL's protocol leaves of the physical limit; small sizes are limited by latency, not by bandwidth."
    if len(owned) > len(rows):
        note += f" {len(owned) - len(rows)} more are left out: no ceiling is known for them, or they are faster than these."
    words = f"{title}, linear colours from 0. At the largest sizes: {best}."
    return Picture(name="efficiency", title=title, caption=caption(views, owned), note=note, other=heat, words=words)


# ---- dispatch overhead ----


def dispatch(views: Sequence[View]) -> Picture | None:
    """What an eager call costs beside the same operation replayed from a graph or queued: time of both, of the first run that has both."""
    for view in views:
        pairs = both_clocks(view)
        if pairs:
            break
    else:
        return None
    parts, told = [], []
    for eager, other in pairs[:4]:
        owned = [(view, eager), (view, other)]
        lines = lines_of(owned, ["eager", str(other.clock)], lambda s: s.time_us, lambda s: s.low_us, lambda s: s.high_us)
        heading = eager.collective if len(pairs) > 1 else ""
        parts.append(Plot(lines=lines, x_label="size" if heading else SIZE, y_label="time (µs)", y_log=True, heading=heading))
        small = overhead_us(eager, other)[0]
        told.append(f"{eager.collective} {format_us(small[1])} at {format_size(small[0])}")
    title = "Dispatch overhead: eager calls beside the fabric's own time"
    owned = [(view, curve) for pair in pairs[:4] for curve in pair]
    note = f"The gap is what the host pays for a call: {', '.join(told)}. {_ribbon(parts)}".strip()
    return Picture(name="dispatch", title=title, caption=caption([view], owned), note=note, parts=tuple(parts), words=f"{title}. {note}")


def both_clocks(view: View) -> list[tuple[Curve, Curve]]:
    """(eager, graph or queued) of the same way, with sizes in common, streaming."""
    found = []
    by_way = {(curve.way[:6], curve.way[7:], curve.n_ranks, curve.clock): curve for curve in view.curves if curve.regime == "streaming"}
    for (head, tail, n, clock), eager in by_way.items():
        other = next((by_way[key] for name in ("graph", "queued") if (key := (head, tail, n, name)) in by_way), None)
        if clock == "eager" and other is not None and overhead_us(eager, other) and eager.variant is None:
            found.append((eager, other))
    return found


def overhead_us(eager: Curve, other: Curve) -> list[tuple[int, float]]:
    """(size, eager minus the other clock's median, µs) at the sizes that both have."""
    times = {sample.nbytes: sample.time_us for sample in other.samples}
    return [(sample.nbytes, sample.time_us - times[sample.nbytes]) for sample in eager.samples if sample.nbytes in times]


# ---- spread ----


def spread(views: Sequence[View]) -> Picture | None:
    """How far the slow end is from the median: p95 over p50, linear."""
    name = headline(views)
    if len(views) == 1:
        owned = [(views[0], curve) for curve in _timed(views[0])]
        labels = [curve.collective for _, curve in owned]
    else:
        owned, labels = _all_of(views, name) if name is not None else ([], [])
    lines = lines_of(owned, labels, lambda s: None if s.p95_us is None else s.p95_us / s.time_us, worse_is_high=True)
    if not lines:
        return None
    if len(views) == 1 and len(lines) == len(owned):
        lines = tuple(_toned(line, "main", NUMBER.get(curve.collective), line.label) for line, (_, curve) in zip(lines, owned, strict=True))
    worst = max(((y, line.label, x) for line in lines for x, y in zip(line.x, line.y, strict=True)), key=lambda item: item[0])
    title = "Spread: 95th percentile over median"
    most = max(worst[0], LEAST_SPREAD)
    plot = Plot(lines=lines, x_label=SIZE, y_label="p95 / p50", y_from=1.0, y_to=1.0 + 1.08 * (most - 1.0))
    note = "1.0: every batch (or operation) took as long as the median."
    words = f"{title}, linear. Largest: {worst[0]:.2f} of {worst[1] or 'a run'} at {format_size(round(worst[2]))}."
    return Picture(name="spread", title=title, caption=caption(views, owned), note=note, parts=(plot,), words=words)
