"""The pictures across ranks, hosts, runs and time: lateness, scaling, passes of a soak, pairs, groups, the fabric. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from nccl_bench.fabric.topology import Node, describe, domains
from nccl_bench.report.curves import Curve, Sample, View
from nccl_bench.report.naming import banner_of, caption, headline, judged
from nccl_bench.report.page import Axis, Dots, Fabric, FabricNode, Heat, Line, Mark, Picture, Plot
from nccl_bench.units import format_GBps, format_percent, format_size, format_us

MAX_DOTS = 24
MAX_MATRIX = 64
"""Hosts of a pair matrix that is drawn; of more, those with the slowest pairs."""
FEWEST_PAIRS = 3
"""Partners a host needs before it is held against others: with fewer, its partners decide."""
MAX_KINDS = 3
"""Kinds of nodes that are drawn."""
MAX_BINS = 300
BEND_FRAC = 0.05
"""A loss of efficiency from one size of a run to the next that is said: what like nodes may differ by (DESIGN.md section 3)."""


# ---- lateness ----


def lateness(view: View) -> Picture | None:
    """How much later than the first each host (of one host: each rank) comes to an isolated collective."""
    hosts = [late for late in view.late if late.rank is None]
    chosen = hosts if len(hosts) > 1 else [late for late in view.late if late.rank is not None]
    if len(chosen) < 2:
        return None
    what = "hosts" if chosen is hosts else "ranks"
    shown = chosen[:MAX_DOTS]
    middle = statistics.median(late.us for late in chosen)
    names, values = tuple(late.who for late in shown), tuple(late.us for late in shown)
    dots = Dots(names=names, values=values, label="µs later than the first to come", median=middle)
    series = [(view, curve) for curve in view.curves if curve.regime == "isolated"]
    title = f"How late {what} come"
    left_out = f" The {len(chosen) - len(shown)} least late are not drawn." if len(chosen) > len(shown) else ""
    note = "Time the others spend waiting in the meeting of an isolated series; streaming series cannot show it." + left_out
    words = f"{title}: the latest is {shown[0].who}, {format_us(shown[0].us)}; median {format_us(middle)}."
    return Picture(name="lateness", title=title, caption=caption([view], series), note=note, other=dots, words=words)


# ---- scaling ----


def scaling_rows(views: Sequence[View], name: str) -> list[tuple[int, View, Curve, Sample]]:
    """(ranks, run, curve, its sample at the largest shared size) by ranks, of equal ranks the fastest; [] for one count."""
    chosen = [(view, curve) for view in views for curve in view.main() if curve.collective == name]
    everything = [(view, curve) for view, curve in chosen if curve.n_ranks and curve.axis is None]
    if len({curve.n_ranks for _, curve in everything}) < 2:
        return []
    shared = set.intersection(*({sample.nbytes for sample in curve.samples if sample.busbw_GBps} for _, curve in everything))
    if not shared:
        return []
    size = max(shared)
    rows = [(curve.n_ranks or 0, view, curve, next(s for s in curve.samples if s.nbytes == size)) for view, curve in everything]
    best: dict[int, tuple[int, View, Curve, Sample]] = {}
    for row in rows:
        if row[0] not in best or (row[3].busbw_GBps or 0.0) > (best[row[0]][3].busbw_GBps or 0.0):
            best[row[0]] = row
    return [best[n] for n in sorted(best)]


def scaling(views: Sequence[View]) -> Picture | None:
    """Bus bandwidth and efficiency against nodes (ranks, where nodes are not known), with what the ceiling says."""
    name = headline(views)
    rows = scaling_rows(views, name) if name is not None else []
    if not rows:
        return None
    xs, axis = _across(rows)
    size = format_size(rows[0][3].nbytes)
    measured = tuple(row[3].busbw_GBps or 0.0 for row in rows)
    low, high = tuple(row[3].busbw_low_GBps for row in rows), tuple(row[3].busbw_high_GBps for row in rows)
    lines = [Line(label="measured", x=xs, y=measured, low=low, high=high)]
    ceilings = [row[2].ceiling for row in rows]
    known = [(x, ceiling) for x, ceiling in zip(xs, ceilings, strict=True) if ceiling is not None]
    if len(known) > 1:
        lines.append(_ceiling_line("attainable", [(x, ceiling.attainable_GBps) for x, ceiling in known]))
        seen = [(x, ceiling.expected.mid_GBps) for x, ceiling in known if ceiling.expected is not None]
        lines += [_ceiling_line("expected", seen)] if len(seen) > 1 else []
    shares, of_what = efficiencies(rows)
    label = f"{'nodes' if axis == 'nodes' else 'ranks'}"
    parts = (
        Plot(lines=tuple(lines), x_axis=axis, x_label=label, y_label="bus bandwidth (GB/s)", heading=f"at {size}"),
        Plot(
            lines=(Line(label="", x=xs, y=shares),),
            marks=(Mark(y=1.0, words=of_what),),
            x_axis=axis,
            x_label=label,
            y_label="efficiency (%)",
            heading="efficiency",
        ),
    )
    title = f"{name}: scaling"
    owned = [(row[1], row[2]) for row in rows]
    words = bend(xs, shares, label, ceilings=[None if c is None else c.limited_by for c in ceilings])
    return Picture(name="scaling", title=title, caption=caption(views, owned), note=words, parts=parts, words=f"{title} at {size}. {words}")


def _across(rows: Sequence[tuple[int, View, Curve, Sample]]) -> tuple[tuple[float, ...], Axis]:
    nodes = [row[1].header.n_nodes for row in rows]
    counted = [n for n in nodes if n is not None]
    if len(counted) == len(rows) and len(set(counted)) == len(rows):
        return tuple(float(n) for n in counted), "nodes"
    return tuple(float(row[0]) for row in rows), "ranks"


def _ceiling_line(label: str, points: Sequence[tuple[float, float]]) -> Line:
    xs, ys = tuple(x for x, _ in points), tuple(y for _, y in points)
    return Line(label=label, x=xs, y=ys, tone="other", dashed=True, color=2 if label == "expected" else 5)


def efficiencies(rows: Sequence[tuple[int, View, Curve, Sample]]) -> tuple[tuple[float, ...], str]:
    """Shares of attainable where all are known, else of the smallest run's bus bandwidth; and of what."""
    shares = [row[3].attainable_frac for row in rows]
    known = [share for share in shares if share is not None]
    if len(known) == len(rows):
        return tuple(known), "attainable"
    first = rows[0][3].busbw_GBps or 1.0
    return tuple((row[3].busbw_GBps or 0.0) / first for row in rows), f"as fast as with {rows[0][0]} ranks"


def bend(xs: Sequence[float], shares: Sequence[float], label: str, ceilings: Sequence[str | None]) -> str:
    """Where efficiency falls most from one size to the next, in words."""
    steps = [(before - after, at) for at, (before, after) in enumerate(pairwise(shares))]
    drop, at = max(steps)
    if drop < BEND_FRAC:
        return f"Efficiency stays between {format_percent(min(shares))} and {format_percent(max(shares))} % from {xs[0]:g} to {xs[-1]:g} {label}."
    limit = ceilings[at + 1]
    other = "" if not limit else "; the ceiling has one limit on both sides" if limit == ceilings[at] else f"; there the limit is the {limit}"
    return f"It bends between {xs[at]:g} and {xs[at + 1]:g} {label}: {format_percent(shares[at])} to {format_percent(shares[at + 1])} %{other}."


# ---- passes ----


def passes(views: Sequence[View]) -> Picture | None:
    """Bus bandwidth at the largest size pass by pass, of the first run that has more than two passes of its headline."""
    for view in views:
        curve = judged(view, headline([view]))
        found = view.passes.get(curve.way, ()) if curve is not None else ()
        if curve is not None and len(found) > 2:
            break
    else:
        return None
    bins = _binned(found)
    line = Line(
        label=curve.collective,
        x=tuple(x for x, _, _, _ in bins),
        y=tuple(y for _, y, _, _ in bins),
        low=tuple(low for _, _, low, _ in bins),
        high=tuple(high for _, _, _, high in bins),
    )
    rates = [rate for _, rate in found]
    middle, worst = statistics.median(rates), min(rates)
    size = format_size(curve.largest.nbytes)
    title = f"{curve.collective} at {size}: {len(found)} passes"
    every = -(-len(found) // MAX_BINS)
    note = f"Slowest pass {format_GBps(worst)} GB/s, {format_percent(1 - worst / middle)} % below the median of {format_GBps(middle)}."
    note += f" Each point is {every} passes: their median, ribbon from the slowest to the fastest." if every > 1 else ""
    low, high = min(worst, (1 - BEND_FRAC) * middle), max(*rates, (1 + BEND_FRAC) * middle)
    note += " The axis does not begin at 0."
    plot = Plot(lines=(line,), x_axis="pass", x_label="pass", y_label="bus bandwidth (GB/s)", y_from=low, y_to=high)
    return Picture(name="passes", title=title, caption=caption([view], [(view, curve)]), note=note, parts=(plot,), words=f"{title}. {note}")


def _binned(found: Sequence[tuple[int, float]]) -> list[tuple[float, float, float, float]]:
    """(pass, median, lowest, highest) of at most MAX_BINS runs of neighbouring passes."""
    every = -(-len(found) // MAX_BINS)
    groups = [sorted(found)[start : start + every] for start in range(0, len(found), every)]
    rows = []
    for group in groups:
        rates = [rate for _, rate in group]
        rows.append((float(group[0][0] + 1), statistics.median(rates), min(rates), max(rates)))
    return rows


# ---- pairs ----


def pairs(view: View) -> Picture | None:
    """The matrix of pairs at the largest size, GB/s (µs where only times are known)."""
    values = pair_values(view)
    if len(values) < 2:
        return None
    names = list(dict.fromkeys(name for pair in values for name in pair))
    if len(names) > MAX_MATRIX:
        slow = sorted(values, key=lambda pair: values[pair])[:MAX_MATRIX]
        names = list(dict.fromkeys(name for pair in slow for name in pair))[:MAX_MATRIX]
    names.sort()
    cells = tuple(tuple(values.get((row, column)) for column in names) for row in names)
    rates = [value for row in cells for value in row if value is not None]
    unit = "GB/s" if pairs_have_rates(view) else "µs"
    heat = Heat(rows=tuple(names), columns=tuple(names), values=cells, low=0.0, high=max(rates, default=1.0), label=unit)
    middle = statistics.median(rates)
    low = min(values, key=lambda pair: values[pair] if unit == "GB/s" else -values[pair])
    title = f"Pairs: {unit}"
    note = "Row: sender, column: receiver; where both directions ran together, either way round is the same measurement."
    words = f"{title} of {len(values)} pairs: median {middle:.3g}, worst {low[0]} to {low[1]} with {values[low]:.3g}."
    told = banner_of([view])
    about = " · ".join(part for part in (told and told.partition(":")[0], f"{len(names)} of them", "variant: as is", _pair_clock(view)) if part)
    return Picture(name="pairs", title=title, caption=about, note=note, other=heat, words=words)


def _pair_clock(view: View) -> str:
    clocks = " and ".join(dict.fromkeys(f"{pair.clock} clock" for pair in view.pairs if pair.clock))
    return clocks or (f"measured by {view.header.tool}" if view.run.imported else "clock not recorded")


def pairs_have_rates(view: View) -> bool:
    """Whether pairs hold GB/s; else µs."""
    return any(pair.busbw_GBps is not None for pair in view.pairs)


def pair_values(view: View) -> dict[tuple[str, str], float]:
    """(from, to) -> GB/s (or µs) at the largest size; a pair measured in both directions at once stands for both."""
    rates = pairs_have_rates(view)
    sizes = {pair.nbytes for pair in view.pairs}
    found: dict[tuple[str, str], float] = {}
    for pair in view.pairs:
        value = pair.busbw_GBps if rates else pair.time_us
        if value is None or pair.nbytes != max(sizes):
            continue
        for ends in ((pair.src, pair.dst), (pair.dst, pair.src)) if pair.both else ((pair.src, pair.dst),):
            found[ends] = min(value, found.get(ends, value)) if rates else max(value, found.get(ends, value))
    return found


def host_medians(view: View) -> dict[str, float]:
    """By host (or GPU) with FEWEST_PAIRS partners or more: the median over its pairs, GB/s or µs."""
    by_name: dict[str, dict[str, list[float]]] = {}
    for (src, dst), value in pair_values(view).items():
        by_name.setdefault(src, {}).setdefault(dst, []).append(value)
        by_name.setdefault(dst, {}).setdefault(src, []).append(value)
    known = {name: [value for values in found.values() for value in values] for name, found in by_name.items() if len(found) >= FEWEST_PAIRS}
    return {name: statistics.median(values) for name, values in known.items()}


# ---- groups ----


def axis_times(view: View) -> dict[str, float]:
    """By axis value of a table that lists groups one by one: the time at the largest size, µs. Axes of a mesh are no like groups: none then."""
    if view.header.spec.get("mesh") or view.header.spec.get("want"):
        return {}
    curves = [curve for curve in view.curves if curve.axis is not None]
    largest = max((curve.largest.nbytes for curve in curves), default=0)
    return {str(curve.axis): curve.largest.time_us for curve in curves if curve.largest.nbytes == largest}


def axis_groups(view: View) -> Picture | None:
    """The time of each group, where a run lists several axes or groups one by one."""
    times = axis_times(view)
    if len(times) < 2:
        return None
    ordered = sorted(times.items(), key=lambda item: -item[1])[:MAX_DOTS]
    middle = statistics.median(times.values())
    curves = [(view, curve) for curve in view.curves if curve.axis is not None]
    size = format_size(max(curve.largest.nbytes for _, curve in curves))
    title = f"Time of each group at {size}"
    dots = Dots(names=tuple(name for name, _ in ordered), values=tuple(us for _, us in ordered), label="time (µs)", median=middle)
    words = f"{title}: slowest {ordered[0][0]} with {format_us(ordered[0][1])}, median {format_us(middle)}."
    return Picture(name="groups", title=title, caption=caption([view], curves), other=dots, words=words)


# ---- the fabric ----


def fabric(view: View) -> Picture | None:
    """The kinds of nodes of a run, drawn; None where no GPU is known."""
    topology = view.ceilings.topology
    if topology is None or not any(node.gpus for node in topology.nodes):
        return None
    kinds = _kinds(topology.nodes)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    drawn = tuple(
        FabricNode(heading=_heading(kind.heading, names), gpus=kind.gpus, nics=kind.nics, joined=kind.joined, bonds=kind.bonds, switch=kind.switch)
        for kind, names in ordered[:MAX_KINDS]
    )
    title = "The fabric"
    sources = "; ".join(topology.sources) or "not said"
    note = f"{len(kinds) - MAX_KINDS} more kinds of nodes are not drawn." if len(kinds) > MAX_KINDS else ""
    words = f"{title}: {'; '.join(node.heading for node in drawn)}."
    return Picture(name="fabric", title=title, caption=f"from: {sources}", note=note, other=Fabric(nodes=drawn), words=words)


def kinds_of(view: View) -> frozenset[FabricNode]:
    """The kinds of nodes of a run, without their names."""
    return frozenset(_kinds(view.ceilings.topology.nodes) if view.ceilings.topology is not None else ())


def _kinds(nodes: Sequence[Node]) -> dict[FabricNode, list[str]]:
    """Names of the nodes of each kind."""
    kinds: dict[FabricNode, list[str]] = {}
    for node in nodes:
        kinds.setdefault(_drawn(node), []).append(node.label)
    return kinds


def _heading(words: str, names: Sequence[str]) -> str:
    count = "" if len(names) == 1 else f" and {len(names) - 1} more like it"
    return f"{names[0]}{count}: {words}"


def _drawn(node: Node) -> FabricNode:
    gpus = node.gpus or ()
    positions = {gpu.index: at for at, gpu in enumerate(gpus)}
    bonds = tuple(
        (positions[gpu.index], positions[peer], links)
        for gpu in gpus
        if gpu.nvlink is not None and not node.switch
        for peer, links in gpu.nvlink.bonds or ()
        if peer in positions and positions[peer] > positions[gpu.index] and links
    )
    nics = tuple(
        (
            f"{nic.name or 'NIC'} {'' if nic.rate_gbit is None else f'{nic.rate_gbit:g}G'}".strip(),
            None if nic.gpus is None else tuple(positions[index] for index in nic.gpus if index in positions),
        )
        for nic in node.nics or ()
        if nic.used is not False
    )
    return FabricNode(
        heading=describe(node), gpus=tuple(f"GPU {gpu.index}" for gpu in gpus), nics=nics, joined=_joined(node), bonds=bonds, switch=bool(node.switch)
    )


def _joined(node: Node) -> str:
    link = next((gpu.nvlink for gpu in node.gpus or () if gpu.nvlink is not None and gpu.nvlink.links), None)
    if node.switch and link is not None:
        return f"NVSwitch: {link.links} {link.kind}{link.generation or ''} a GPU"
    if node.switch:
        return "NVSwitch"
    parts = domains(node)
    if parts is None:
        return "how the GPUs are joined is not recorded"
    return "" if parts else "no links between GPUs: PCIe"
