"""Prices without a measurement: what healthy systems of this kind reach, low to middle (IDEAL.md), on this topology's own groups.

T = latency + bytes x bus factor / bus bandwidth. All groups of a kind run at once, so groups that leave a node share its NICs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from nccl_bench.fabric import ideal
from nccl_bench.fabric.topology import Topology
from nccl_bench.training.price import Place, Price, Pricer, cached, linear, one_rank

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
        group = _worst_group(place, self.per_node)
        found = self._of(group)
        row = found.collectives[collective]
        best = row.best
        contention = self._contention(place, found)
        low, high, by = best.attainable_GBps, found.floor[collective] * best.attainable_GBps, "attainable, stated floor"
        if best.expected is not None:
            low, high = best.expected.mid_GBps, best.expected.low_GBps
            by = f"expected, {best.expected.n_sources} sources"
        latency = row.latency_us or 0.0
        fast, slow = (linear(latency, rate / contention, collective, nbytes, place.kind.size) for rate in (low, high))
        if contention > 1.01:
            by += f", NICs shared {contention:.3g}-fold"
        return Price(low_us=fast, mid_us=(fast + slow) / 2, high_us=slow, by=by)

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
