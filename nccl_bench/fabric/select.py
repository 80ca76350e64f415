"""Which ports NCCL takes: its variables first, then what is down, far, slow or of another kind is left out and said so.

Rules of NCCL_IB_HCA and NCCL_SOCKET_IFNAME: NVIDIA/nccl 2.30.7 src/misc/utils.cc parseStringList, matchIfList; os/linux.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from nccl_bench.fabric.serve import is_near
from nccl_bench.fabric.topology import Nic, Node, with_warnings

RDMA = ("InfiniBand", "RoCE", "EFA", "Slingshot", "Omni-Path", "iWARP")
_NEVER = re.compile(r"(lo$|docker|veth|virbr|br-|cni|cali|flannel|ifb|dummy)")
"""Interfaces that NCCL passes over (lo, docker) or that containers make."""


def wanted(name: str, port: int | None, text: str) -> bool:
    """Whether NCCL_IB_HCA or NCCL_SOCKET_IFNAME `text` takes this device: "^" excludes, "=" is exact, "name:port"; prefixes otherwise."""
    body = text.strip()
    exclude = body.startswith("^")
    body = body.removeprefix("^")
    exact = body.startswith("=")
    entries = [entry.strip() for entry in body.removeprefix("=").split(",") if entry.strip()]
    if not entries:
        return True
    return any(_matches(name, port, entry, exact) for entry in entries) != exclude


def _matches(name: str, port: int | None, entry: str, exact: bool) -> bool:
    parts = entry.split(":")
    number = int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() and len(parts[1]) < 6 else None
    named = name == parts[0] if exact else name.startswith(parts[0])
    return named and (number is None or port is None or number == port)


def choose(node: Node, environ: Mapping[str, str]) -> Node:
    """The node with `used` and `why` of each NIC, and warnings of what was left out."""
    if node.nics is None:
        return node
    listed = environ.get("NCCL_IB_HCA", "")
    sockets = environ.get("NCCL_IB_DISABLE") == "1" or environ.get("NCCL_NET") == "Socket"
    reasons: dict[int, str] = {}
    for at, nic in enumerate(node.nics):
        reason = _refused(nic, listed, sockets, environ.get("NCCL_SOCKET_IFNAME", ""))
        if reason is not None:
            reasons[at] = reason
    left = {at: nic for at, nic in enumerate(node.nics) if at not in reasons}
    rdma = {at: nic for at, nic in left.items() if nic.link_layer != "Ethernet"}
    if rdma:
        reasons |= {at: "not RDMA: RDMA ports are there" for at in left if at not in rdma}
        if not listed or listed.startswith("^"):
            reasons |= _by_kind(rdma)
    nics = tuple(replace(nic, used=at not in reasons, why=reasons.get(at)) for at, nic in enumerate(node.nics))
    return with_warnings(replace(node, nics=nics), *_warnings(nics, listed, sockets))


def _refused(nic: Nic, listed: str, sockets: bool, ifname: str) -> str | None:
    """Why NCCL cannot or may not take this port, whatever the others are."""
    name = nic.name or ""
    if nic.state is not None and nic.state != "ACTIVE":
        return f"port is {nic.state}"
    if nic.link_layer == "Ethernet":
        if ifname and not wanted(name, None, ifname):
            return f"not in NCCL_SOCKET_IFNAME={ifname}"
        return "an interface of containers or the host itself" if not ifname and _NEVER.match(name) else None
    if sockets:
        return "InfiniBand and RoCE are switched off (NCCL_IB_DISABLE or NCCL_NET)"
    if listed and name and not wanted(name, nic.port, listed):
        return f"not in NCCL_IB_HCA={listed}"
    return None


def _by_kind(rdma: Mapping[int, Nic]) -> dict[int, str]:
    """Ports of another link layer than most bandwidth has, far from every GPU, or slower than the rest, by position."""
    reasons: dict[int, str] = {}
    layers: dict[str, float] = {}
    for nic in rdma.values():
        layers[nic.link_layer or ""] = layers.get(nic.link_layer or "", 0.0) + (nic.rate_gbit or 1.0)
    most = max(layers, key=lambda layer: layers[layer])
    near = any(is_near(nic) for nic in rdma.values())
    usual = _usual_rate([nic for nic in rdma.values() if (nic.link_layer or "") == most])
    for at, nic in rdma.items():
        if (nic.link_layer or "") != most and nic.link_layer is not None:
            reasons[at] = f"{nic.link_layer} among {most or 'other'} ports: storage or management"
        elif near and nic.gpus == ():
            reasons[at] = "nearest to no GPU: storage or front end"
        elif nic.rate_gbit is not None and nic.rate_gbit < usual and _spare(nic, rdma.values(), usual):
            reasons[at] = f"{nic.rate_gbit:g}G among ports of {usual:g}G: storage or front end"
    return reasons


def _usual_rate(nics: Iterable[Nic]) -> float:
    """The rate that most of the bandwidth has, Gbit/s."""
    totals: dict[float, float] = {}
    for nic in nics:
        if nic.rate_gbit is not None:
            totals[nic.rate_gbit] = totals.get(nic.rate_gbit, 0.0) + nic.rate_gbit
    return max(totals, key=lambda rate: totals[rate], default=0.0)


def _spare(slow: Nic, others: Iterable[Nic], usual: float) -> bool:
    """Whether a slow port is another kind of card, or every GPU it serves has a fast port as near; else it is a rail trained down."""
    fast = [nic for nic in others if nic.rate_gbit == usual]
    if slow.gpus:
        return all(any(gpu in (nic.gpus or ()) for nic in fast) for gpu in slow.gpus)
    return slow.model is not None and all(nic.model is not None and nic.model != slow.model for nic in fast)


def _warnings(nics: tuple[Nic, ...], listed: str, sockets: bool) -> list[str]:
    warnings = [f"{nic.label} left out: {nic.why}" for nic in nics if nic.why is not None and not nic.why.startswith(("not RDMA", "an interface"))]
    used = [nic for nic in nics if nic.used]
    rates = {nic.rate_gbit for nic in used if nic.rate_gbit is not None}
    if len(rates) > 1:
        slow = [nic.label for nic in used if nic.rate_gbit is not None and nic.rate_gbit < max(rates)]
        warnings.append(f"{', '.join(slow)} slower than the other ports ({min(rates):g}G of {max(rates):g}G): trained down?")
    rdma = [nic for nic in nics if nic.link_layer in RDMA]
    if listed and rdma and not any(nic in used for nic in rdma):
        warnings.append(f"NCCL_IB_HCA={listed} takes no active port of this node")
    active = [nic for nic in rdma if nic.state in ("ACTIVE", None)]
    if sockets and active:
        warnings.append(f"{len(active)} RDMA ports are active but switched off (NCCL_IB_DISABLE or NCCL_NET): NCCL uses TCP")
    return warnings
