"""Prices without a measurement: what healthy systems of this kind reach, low to middle (IDEAL.md), on this topology's own groups.

T = the least of NCCL's algorithms and protocols of: start + bytes x bus factor / (bus bandwidth x protocol's share), as NCCL chooses
(fabric/latency.py). All groups of a kind run at once, so groups that leave a node share its NICs. The fast end is what is attainable, the
middle between median and lower quartile of healthy systems of this kind, the slow end the least that one of them reached. Where fewer
than two are known it is between attainable and the stated floor, or the lowest that any system of several nodes reached; no algorithm is
thought to beat what those who set nothing reached, where that is known (as `ideal` says). On two nodes a
tree, or sums in switches, send half of a ring's bytes: where no system of this kind showed it, the price is the ring's, and only the fast
end the tree's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from nccl_bench.collectives import bus_factor
from nccl_bench.fabric import expected, ideal
from nccl_bench.fabric.topology import Topology
from nccl_bench.training.price import Place, Price, Pricer, cached, one_rank

RING_OR_TREE = "fast end: by the tree, which no two nodes of this kind are known to have shown"
FLOORED = "between attainable and a floor of"
"""How prices begin where fewer than two systems of this kind are known (docs/training.md)."""
DTYPE = "bfloat16"
"""What training mostly sends; NVSwitch adds it up."""


def seats_of(topology: Topology) -> tuple[tuple[int, int], ...]:
    """[rank] (node, local rank): GPUs counted node by node."""
    return tuple((at, local) for at, node in enumerate(topology.nodes) for local in range(len(node.gpus or ())))


def expected_pricer(topology: Topology, environ: Mapping[str, str]) -> Pricer:
    """Prices on every GPU of a topology. What it prices may raise DetectError where hardware is unknown."""
    return cached(_Expected(topology, environ).price)


class _Expected:
    def __init__(self, topology: Topology, environ: Mapping[str, str]) -> None:
        self.topology, self.environ = topology, environ
        self.per_node = [len(node.gpus or ()) for node in topology.nodes]
        self._known: dict[object, ideal.Ceilings] = {}
        self._share_GBps: float | None = None

    def price(self, collective: str, nbytes: int, place: Place) -> Price | None:
        alone = one_rank(place)
        if alone is not None:
            return alone
        found = self._of(_worst_group(place, self.per_node))
        row = found.collectives[collective]
        contention = self._contention(place, found)
        by, rates, seen = self._rates(found, collective, place)
        work = nbytes * bus_factor(collective, place.kind.size) * contention * 1e-3
        best = _least(row, {way: rate.fast for way, rate in rates.items()}, work)
        mid = (_least(row, {way: rates[way].median for way in seen}, work) + _least(row, {way: rates[way].quartile for way in seen}, work)) / 2
        slow = _least(row, {way: rates[way].slow for way in seen}, work)
        if contention > 1.01:
            by += f", NICs shared {contention:.3g}-fold"
        return Price(low_us=min(best, mid), mid_us=mid, high_us=max(mid, slow), by=by)

    def _rates(self, found: ideal.Ceilings, collective: str, place: Place) -> tuple[str, dict[str, _Rate], list[str]]:
        """(where from, GB/s of bus bandwidth by algorithm, the algorithms that such systems are known to have run)."""
        row = found.collectives[collective]
        lowest = expected.lowest_across(collective) if place.span.nodes > 1 else None
        floor = min(found.floor[collective], 1.0 if lowest is None else lowest)
        rates = {}
        for way, ceiling in row.by_algorithm.items():
            seen = row.best.expected if way in row.fastest else ceiling.expected
            known = None if seen is None else expected.lowest_of(found.platform, collective, None if way in row.fastest else way, row.fastest)
            rates[way] = _below(_rate(ceiling, seen, floor, known), row.best.expected)
        by = f"{FLOORED} {floor:.3g}" if row.best.expected is None else f"expected, {row.best.expected.n_sources} sources"
        doubtful = place.span.nodes == 2 and collective == "all_reduce" and "ring" in rates and "ring" not in row.fastest
        if not doubtful or expected.above_nics(found.platform, collective, row.fastest):
            return by, rates, list(rates)
        return f"by the ring; {RING_OR_TREE}", rates, ["ring"]

    def _of(self, group: tuple[int, ...]) -> ideal.Ceilings:
        if group not in self._known:
            self._known[group] = ideal.ceilings(self.topology, group, self.environ, dtype=DTYPE)
        return self._known[group]

    def _contention(self, place: Place, found: ideal.Ceilings) -> float:
        """How many times over the groups of the kind ask for the NICs that one group alone was credited with."""
        if place.span.nodes < 2 or "sendrecv:node" not in found.collectives:
            return 1.0
        own = found.collectives["sendrecv:node"].best.attainable_GBps
        if self._share_GBps is None:
            # Every GPU sends to the next node at once: its share of the node's NICs.
            everyone = self._of(tuple(range(sum(self.per_node))))
            self._share_GBps = everyone.collectives["sendrecv:node"].best.attainable_GBps
        busy = min(1.0, place.span.crossing * place.span.per_node / max(self.per_node))
        share = self._share_GBps / busy
        return max(1.0, own / share) if share > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Rate:
    """GB/s of bus bandwidth of one algorithm."""

    slow: float
    quartile: float
    median: float
    fast: float


def _rate(ceiling: ideal.Ceiling, seen: expected.Expected | None, floor: float, lowest: float | None) -> _Rate:
    """Of what healthy systems reached, down to the share `lowest`; else between the floor's share and what is attainable."""
    top = ceiling.attainable_GBps
    if seen is None:
        return _Rate(slow=floor * top, quartile=floor * top, median=top, fast=top)
    least = seen.low_GBps if lowest is None else min(seen.low_GBps, lowest * top)
    return _Rate(slow=least, quartile=seen.low_GBps, median=seen.mid_GBps, fast=max(top, seen.mid_GBps))


def _below(rate: _Rate, whole: expected.Expected | None) -> _Rate:
    """An algorithm that few or none reported, held under what systems reached that left the choice to NCCL: it would have taken the better one."""
    if whole is None:
        return rate
    quartile, median = min(rate.quartile, whole.low_GBps), min(rate.median, whole.mid_GBps)
    return _Rate(slow=min(rate.slow, quartile), quartile=quartile, median=median, fast=rate.fast)


def _least(row: ideal.CollectiveCeilings, rates: Mapping[str, float], work: float) -> float:
    """µs by the algorithm and protocol that cost least; `work`: bytes x bus factor in 1e3 bytes."""
    times = [one.us + work / (rate * one.frac) for way, rate in rates.items() for one in row.starts[way]]
    return min(times) if times else (row.latency_us or 0.0) + work / max(rates.values())


def _worst_group(place: Place, per_node: list[int]) -> tuple[int, ...]:
    """A group that touches the most nodes: those of one kind are mostly alike, and the slowest decides."""
    starts, total = [], 0
    for count in per_node:
        starts.append(total)
        total += count
    if place.span.nodes == 1 or len(set(per_node)) != 1:
        return place.kind.groups[0]
    size = per_node[0]
    return max(place.kind.groups[: 4 * size], key=lambda group: (len(Counter(rank // size for rank in group)), -group[0]))
