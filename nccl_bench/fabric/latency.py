"""When messages start to cost bandwidth: NCCL's own model of its protocols, µs. Soft figures: print them, never fail on them.

Constants: NVIDIA/nccl 2.30.7 src/graph/tuning.cc ncclTunerConstantsDefaults (base and hop latencies), getNetOverhead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nccl_bench.fabric.domain import Domain
from nccl_bench.fabric.shape import Shape

BASE_TREE_US, BASE_RING_US = 6.8, 6.6
HOP_LINK_US = 0.6
HOP_PCIE_US = 1.0
NET_TREE_US, NET_RING_US = 5.0, 2.7
NET_OVERHEAD_US = 1.0
"""Least cost of a hop inside a node while a ring also spans nodes (Intel hosts; 2 on AMD)."""
EXTRA_HOP_US = {"EFA": 25.0, "TCPX": 50.0, "Slingshot": 0.0}
"""Further cost of a network hop: EFA from 65-69 µs on two p5 nodes (awslabs/awsome-distributed-training), TCPX and TCPXO from
84-87 and 123 µs on two A3 Mega nodes (GoogleCloudPlatform/cluster-toolkit). TCP sockets are not modelled: their cost is the host's."""
EXTRA_HOP_EFA_V1_US = 75.0
"""EFA of the A100 generation: the plug-in's own figure (aws/aws-ofi-nccl@2daf7d30 src/platform-aws.cpp), 161-179 µs measured."""


NVLS_US, NVLS_NET_US = 25.0, 20.9
"""A sum in NVSwitch, and a hop of its tree between nodes (NVLS and NVLSTree, Simple)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What a protocol of NCCL pays before the first byte, and keeps of an algorithm's bandwidth."""

    base_tree_us: float
    base_ring_us: float
    hop_tree_us: tuple[float, float]
    """(by NVLink, by PCIe)."""
    hop_ring_us: tuple[float, float]
    net_tree_us: float
    net_ring_us: float
    ring_frac: float
    tree_frac: float
    overhead: float = 1.0
    """Times getNetOverhead that a hop costs at least."""


PROTOCOLS = {
    "LL": Protocol(base_tree_us=6.8, base_ring_us=6.6, hop_tree_us=(0.6, 1.0), hop_ring_us=(0.6, 1.0), net_tree_us=5.0, net_ring_us=2.7,
                   ring_frac=0.5, tree_frac=1 / 3.8),
    "LL128": Protocol(base_tree_us=14.0, base_ring_us=14.0, hop_tree_us=(1.25, 1.9), hop_ring_us=(1.9, 2.5), net_tree_us=8.5, net_ring_us=4.0,
                      ring_frac=0.92, tree_frac=0.92),
    "Simple": Protocol(base_tree_us=8.4, base_ring_us=8.4, hop_tree_us=(4.0, 4.0), hop_ring_us=(3.4, 5.7), net_tree_us=14.0, net_ring_us=14.0,
                       ring_frac=1.0, tree_frac=1.0, overhead=3.0),
}  # fmt: skip
"""Latencies, and shares of bandwidth (ncclTopoTuneModel: LL x 0.5, tree LL / 3.8, LL128 x 0.92)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One protocol of one algorithm: a call takes `us` and then its bytes at `frac` of the algorithm's bandwidth."""

    us: float
    frac: float


def starts(shape: Shape, collective: str, algorithm: str) -> tuple[Start, ...]:
    """What the protocols of an algorithm cost; NCCL takes the cheapest at each size. Empty where it is not modelled (expected_us).

    Ring: base + hops inside + hops between nodes, 2 (n-1) of them for all_reduce; tree: base + 2 (a chain inside + log2 N between).
    """
    steps = {"all_reduce": 2 * (shape.n - 1), "all_gather": shape.n - 1, "reduce_scatter": shape.n - 1}.get(collective)
    if steps is None or expected_us(shape, collective) is None:
        return ()
    nodes = len(shape.domains)
    extra = max(_extra(domain) for domain in shape.kinds) if shape.many else 0.0
    levels = math.floor(math.log2(nodes))
    if algorithm == "nvls":
        return (Start(us=NVLS_US + 2 * levels * (NVLS_NET_US + extra), frac=1.0),)
    linked = all(domain.whole or domain.size == 1 for domain in shape.kinds)
    net_steps = (2 if collective == "all_reduce" else 1) * (nodes - 1)
    found = []
    for name, one in PROTOCOLS.items():
        if name == "LL128" and not linked:
            continue  # NCCL keeps it off where PCIe joins the GPUs
        by = 0 if linked else 1
        if algorithm == "tree":
            per_node = max(domain.size for domain in shape.kinds)
            us = one.base_tree_us + 2 * ((per_node - 1) * one.hop_tree_us[by] + levels * (one.net_tree_us + extra))
            found.append(Start(us=us, frac=one.tree_frac))
            continue
        hop = max(one.hop_ring_us[by], one.overhead * NET_OVERHEAD_US) if shape.many else one.hop_ring_us[by]
        found.append(Start(us=one.base_ring_us + (steps - net_steps) * hop + net_steps * (one.net_ring_us + extra), frac=one.ring_frac))
    return tuple(found)


CHAINED = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1}
"""How often a small message passes all n - 1 hops of the ring before the last rank is done. NCCL runs broadcast and reduce by the ring
alone (tuning.cc: the tree is all_reduce's), and a message that fits into one chunk is not pipelined; tuning.cc itself reckons one hop there,
for large messages."""
FANNED = ("all_to_all", "gather", "scatter")
"""Sent as n - 1 messages side by side (grouped sends): how many of them go at once is not modelled, so one message's time is the least."""


def is_least(collective: str, n_ranks: int) -> bool:
    """Whether `expected_us` is only the least that a small operation takes: one message of several that a rank sends."""
    return collective in FANNED and n_ranks > 2


def expected_us(shape: Shape, collective: str) -> float | None:
    """µs of one small operation, the least of it where `is_least`; None for one rank, and over TCP."""
    if shape.n < 2 or (shape.many and any(domain.layer == "Ethernet" for domain in shape.kinds)):
        return None
    nodes = len(shape.domains)
    inner = max((_hop(domain) for domain in shape.kinds), default=HOP_LINK_US)
    extra = max(_extra(domain) for domain in shape.kinds) if shape.many else 0.0
    rounds = CHAINED.get(collective)
    if rounds is None:
        return round(BASE_RING_US + (NET_RING_US + extra if shape.many else inner), 2)
    ring = _ring(rounds * (shape.n - 1), nodes, inner, extra, rounds * (nodes - 1))
    if collective != "all_reduce":
        return round(ring, 2)
    per_node = max(domain.size for domain in shape.kinds)
    tree = BASE_TREE_US + 2 * ((per_node - 1) * inner + math.floor(math.log2(nodes)) * (NET_TREE_US + extra))
    return round(min(ring, tree) if shape.many else ring, 2)


def _ring(steps: int, nodes: int, inner: float, extra: float, net_steps: int) -> float:
    if nodes == 1:
        return BASE_RING_US + steps * inner
    return BASE_RING_US + (steps - net_steps) * max(inner, NET_OVERHEAD_US) + net_steps * (NET_RING_US + extra)


def _hop(domain: Domain) -> float:
    return HOP_LINK_US if domain.whole else HOP_PCIE_US


def _extra(domain: Domain) -> float:
    if domain.layer == "EFA" and (domain.cc or 0) < 90:
        return EXTRA_HOP_EFA_V1_US
    return EXTRA_HOP_US.get(domain.layer or "", 0.0)
