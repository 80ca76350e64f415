"""Expected time of the smallest messages: NCCL's own model of the LL protocol, µs. A soft figure: print it, never fail on it.

Constants: NVIDIA/nccl 2.30.7 src/graph/tuning.cc ncclTunerConstantsDefaults (base and hop latencies of LL), getNetOverhead.
"""

from __future__ import annotations

import math

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


def expected_us(shape: Shape, collective: str) -> float | None:
    """µs of one small operation; None for one rank, and over TCP."""
    if shape.n < 2 or (shape.many and any(domain.layer == "Ethernet" for domain in shape.kinds)):
        return None
    nodes = len(shape.domains)
    inner = max((_hop(domain) for domain in shape.kinds), default=HOP_LINK_US)
    extra = max(_extra(domain) for domain in shape.kinds) if shape.many else 0.0
    steps = {"all_reduce": 2 * (shape.n - 1), "all_gather": shape.n - 1, "reduce_scatter": shape.n - 1}.get(collective)
    if steps is None:
        return round(BASE_RING_US + (NET_RING_US + extra if shape.many else inner), 2)
    ring = _ring(steps, nodes, inner, extra, 2 * (nodes - 1) if collective == "all_reduce" else nodes - 1)
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
