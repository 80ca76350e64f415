"""The NICs that the ranks of a domain may use, and what they carry: within their slots, after headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_bench.fabric import ib, pcie
from nccl_bench.fabric.topology import Gpu, Nic, Node

MAX_HOST_GPUS = 16
"""No host has more GPUs: a larger group is a rack-scale NVLink domain."""


@dataclass(frozen=True, slots=True)
class Rails:
    """The NICs that a domain's members may use."""

    used: tuple[Nic, ...]
    by_member: tuple[tuple[Nic, ...], ...]
    reached: tuple[Nic, ...]
    """Those nearest to some member: what NCCL takes."""
    known: bool
    why: str
    shared: Mapping[int, int]
    """By NIC (its id): how many groups that run at once use it; one where it is not named."""

    @classmethod
    def of(cls, hosts: Sequence[Node], members: Sequence[tuple[Node, Gpu]], shared: Mapping[int, int]) -> Rails:
        """The NICs of these hosts, which of them serve which member, and how many groups share each."""
        used = tuple(nic for node in hosts for nic in node.nics or () if nic.used is not False)
        by_member = tuple(near(node, gpu) for node, gpu in members)
        ids = {id(nic) for nics in by_member for nic in nics}
        reached = tuple(nic for nic in used if id(nic) in ids)
        return cls(used, by_member, reached, *_known(hosts, used), shared)

    def rates(self, *, effective: bool) -> tuple[float, list[float]]:
        """(all NICs that members may use, by member the nearest ones), each NIC within its slot; effective: this group's share of each."""
        shared = self.shared if effective else {}
        rates = {id(nic): (nic_rate(nic, effective=effective) or 0.0) / shared.get(id(nic), 1) for nic in self.used}
        everything = self.reached if effective else self.used
        return sum(rates[id(nic)] for nic in everything), [sum(rates[id(nic)] for nic in nics) for nics in self.by_member]

    @property
    def layer(self) -> str | None:
        """The link layer, where all have one."""
        layers = {nic.link_layer for nic in self.used}
        return next(iter(layers)) if len(layers) == 1 else None

    def words(self, hosts: int, net: float, slots: float, slot_words: str, *, effective: bool) -> str:
        """What limits all NICs together: the GPUs' slots, a NIC's slot, or the NICs themselves."""
        if net >= slots > 0:
            return slot_words
        counted = self.reached if effective else self.used
        slow = [nic for nic in counted if nic.pcie is not None and _slot_binds(nic)]
        if slow and slow[0].pcie is not None:
            return f"NIC in a Gen{slow[0].pcie.generation} x{slow[0].pcie.width} slot"
        owner = "node's" if hosts == 1 and len(self.by_member) <= MAX_HOST_GPUS else "NVLink domain's"
        kinds: dict[str, int] = {}
        for nic in counted:
            kind = f"{'' if nic.rate_gbit is None else f'{nic.rate_gbit:g}G '}{nic.link_layer or 'NIC'}"
            kinds[kind] = kinds.get(kind, 0) + 1
        owner += " nearest" if len(counted) < len(self.used) else ""
        return f"{owner} " + " + ".join(f"{count}x {kind}" for kind, count in kinds.items()) if kinds else "no NIC"

    def near_words(self, near: Sequence[float], slots: Sequence[float], slot_words: str) -> str:
        """The same for what one GPU reaches."""
        if near and near[0] >= slots[0] > 0:
            return slot_words
        first = self.by_member[0] if self.by_member else ()
        if not first:
            return "no NIC"
        rate = first[0].rate_gbit
        kind = f"{'' if rate is None else f'{rate:g}G '}{first[0].link_layer or 'NIC'}"
        return f"GPU's own {kind}" if len(first) == 1 else f"GPU's own {len(first)}x {kind}"


def near(node: Node, gpu: Gpu) -> tuple[Nic, ...]:
    """The NICs that serve a GPU; all of its node where that is not known."""
    used = [nic for nic in node.nics or () if nic.used is not False]
    if any(nic.gpus is None for nic in used):
        return tuple(used)
    return tuple(nic for nic in used if gpu.index in (nic.gpus or ())) or tuple(used)


def _known(hosts: Sequence[Node], used: Sequence[Nic]) -> tuple[bool, str]:
    for node in hosts:
        mine = [nic for nic in node.nics or () if nic.used is not False]
        if node.nics is None:
            return False, f"{node.label}: which NICs it has is not known"
        if not mine:
            return False, f"{node.label} has no NIC that collectives could use"
        nameless = [nic.label for nic in mine if nic_rate(nic, effective=False) is None]
        if nameless:
            return False, f"{node.label}: the rate of {', '.join(nameless[:4])} is not known"
    return bool(used), ""


def nic_rate(nic: Nic, *, effective: bool) -> float | None:
    """GB/s of one port: its data rate within its slot; effective: after headers and within the slot's payload rate."""
    if nic.line_GBps is None:
        return None
    share = ib.wire_share(nic.link_layer, nic.mtu) if effective else 1.0
    slot = nic.pcie.GBps if nic.pcie is not None else None
    if slot is None:
        return nic.line_GBps * share
    return min(nic.line_GBps * share, pcie.payload(nic.pcie.generation if nic.pcie else None, slot) if effective else slot)


def _slot_binds(nic: Nic) -> bool:
    return nic.line_GBps is not None and nic.pcie is not None and nic.pcie.GBps is not None and nic.pcie.GBps < nic.line_GBps
