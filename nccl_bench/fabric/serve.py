"""Which GPU a NIC serves: by PCI path, by the words of a table, or by NUMA node; nothing is taken from equal numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nccl_bench.fabric import pcie
from nccl_bench.fabric.topology import DISTANCES, Distance, Gpu, Nic, Node, with_warnings

NEAR: tuple[Distance, ...] = ("PIX", "PXB")
"""What GPUDirect RDMA needs by default (NCCL_NET_GDR_LEVEL=PXB)."""


def nearest(node: Node) -> Node:
    """The node with each NIC's distances and the GPUs it serves: those to which no other NIC is nearer."""
    if node.gpus is None or node.nics is None:
        return node
    nics = tuple(nic if nic.distance is not None else replace(nic, distance=_distances(nic, node.gpus)) for nic in node.nics)
    node = replace(node, nics=nics)
    if not any(nic.distance for nic in nics):
        return _by_numa(node)
    if _says_nothing(nics):
        return _by_numa(node, "every GPU-NIC distance is SYS: which NIC serves which GPU cannot be told from it")
    served = _served(node.gpus or (), nics)
    return replace(node, nics=tuple(replace(nic, gpus=served[at] if nic.distance else None) for at, nic in enumerate(nics)))


def _distances(nic: Nic, gpus: tuple[Gpu, ...]) -> tuple[tuple[int, Distance], ...] | None:
    found = []
    for gpu in gpus:
        if nic.bridges is None or gpu.bridges is None:
            word = pcie.distance((), (), (nic.numa, gpu.numa)) if nic.bus_id else None
        else:
            word = pcie.distance([name for name, _rate in nic.bridges], [name for name, _rate in gpu.bridges], (nic.numa, gpu.numa))
        if word is None:
            return None
        found.append((gpu.index, word))
    return tuple(found)


def _served(gpus: tuple[Gpu, ...], nics: tuple[Nic, ...]) -> Mapping[int, tuple[int, ...]]:
    """By NIC position: the GPUs for which it is among the nearest."""
    rank = {word: at for at, word in enumerate(DISTANCES)}
    served: dict[int, list[int]] = {at: [] for at in range(len(nics))}
    for gpu in gpus:
        words = {at: rank[dict(nic.distance)[gpu.index]] for at, nic in enumerate(nics) if nic.distance and gpu.index in dict(nic.distance)}
        best = min(words.values(), default=None)
        for at, word in words.items():
            if word == best:
                served[at].append(gpu.index)
    return {at: tuple(found) for at, found in served.items()}


def _says_nothing(nics: tuple[Nic, ...]) -> bool:
    """All SYS with several NICs: Grace prints this though GDR works, and virtual machines do."""
    words = {word for nic in nics for _gpu, word in nic.distance or ()}
    return words == {"SYS"} and len(nics) > 1


def _by_numa(node: Node, warning: str | None = None) -> Node:
    assert node.gpus is not None
    assert node.nics is not None
    if all(gpu.numa is not None for gpu in node.gpus) and node.nics and all(nic.numa is not None for nic in node.nics):
        nics = tuple(replace(nic, gpus=tuple(gpu.index for gpu in node.gpus or () if gpu.numa == nic.numa)) for nic in node.nics)
        return replace(node, nics=nics)
    return with_warnings(node, warning) if warning else node


def is_near(nic: Nic) -> bool:
    """Whether a GPU that it serves is under the same switch."""
    return any(word in NEAR for gpu, word in nic.distance or () if nic.gpus and gpu in nic.gpus)
