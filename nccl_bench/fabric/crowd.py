"""Groups of one kind that run at once: how many leave a domain at the same time, and how many use each NIC.

Every rank of a mesh executes the same program, so all groups of an axis start together. With c groups of a domain that cross
its border, each sending the same, all of their bytes must pass its NICs in the time of the slowest: physics leaves each 1/c.
NCCL's figure counts the NICs nearest to a group's own GPUs, shared with the other groups that are nearest to the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nccl_bench.fabric.domain import Rules
from nccl_bench.fabric.rails import near
from nccl_bench.fabric.topology import Gpu, Node

Placed = tuple[int, Node, Gpu]
"""A rank: (position of its node, node, GPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The groups that run at once."""

    at_border: Mapping[object, int] = field(default_factory=dict)
    """By domain: how many of the groups leave it; one where it is not named."""
    at_nic: Mapping[int, int] = field(default_factory=dict)
    """By NIC (its id): how many of these use it; one where it is not named."""


ALONE = Crowd()
"""One group, and nobody beside it."""


def border_of(position: int, gpu: Gpu, rules: Rules) -> object:
    """What tells the domain of a GPU from others: its NVLink domain, else its host; the GPU itself where all traffic goes by NIC."""
    if rules.nic_only:
        return (position, gpu.index)
    return gpu.clique if gpu.clique and rules.mnnvl and rules.p2p else position


def crowd_of(groups: Sequence[Sequence[Placed]], rules: Rules) -> tuple[int, Crowd]:
    """(the group that is expected to be the slowest, the crowd of all).

    The slowest touches the most domains; of those, it is where the most groups leave at once.
    """
    borders = [frozenset(border_of(position, gpu, rules) for position, _node, gpu in group) for group in groups]
    at_border: Counter[object] = Counter()
    at_nic: Counter[int] = Counter()
    for found, group in zip(borders, groups, strict=True):
        if len(found) > 1:
            at_border.update(found)
            at_nic.update({id(nic) for _position, node, gpu in group for nic in near(node, gpu)})
    slowest = max(range(len(groups)), key=lambda at: (len(borders[at]), max((at_border[border] for border in borders[at]), default=0), -at))
    return slowest, Crowd(at_border=at_border, at_nic=at_nic)
