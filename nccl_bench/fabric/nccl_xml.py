"""NCCL's and RCCL's topology and graph XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE, NCCL_GRAPH_DUMP_FILE) as text.

Format: NVIDIA/nccl 2.30.7 src/graph/xml.cc, topo.cc; RCCL adds version 2, xgmi and gcn. Cloud vendors' files list PCI elements
only: they give grouping, not rates. The text is untrusted: no DTD, no entities, at most 4 MiB, at most 64 levels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from nccl_bench.errors import DataError
from nccl_bench.fabric import gpus as models
from nccl_bench.fabric import pcie
from nccl_bench.fabric.data import small_int
from nccl_bench.fabric.ib import EFA_VENDOR
from nccl_bench.fabric.serve import nearest
from nccl_bench.fabric.topology import Gpu, Json, LinkLayer, Nic, Node, NvLink, with_warnings

MAX_XML_BYTES = 4 << 20
"""A dump of a whole NVL72 rack has about 100 KiB."""
MAX_DEPTH = 64
NVSWITCH_CLASS = "0x0680"
SOCKET_DEFAULT_MBIT = 10000
"""What NCCL writes for a network interface whose speed it cannot read ("Defaulting to 10 Gbps")."""
PATTERNS = {4: "ring", 1: "balanced tree", 2: "split tree", 3: "tree", 5: "nvls", 6: "collnet direct"}
_GRAPH_IDS = {0: "ring", 1: "tree", 2: "collnet chain", 3: "nvls", 4: "collnet direct"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an element stands: its CPU, and the bridges above it with their uplinks."""

    host: str
    cpu: Element
    bridges: tuple[tuple[str, float | None], ...]
    depth: int


def parse(text: str) -> tuple[Node, ...]:
    """The nodes of a topology file, or one node with NCCL's graphs of a graph file. Raises DataError with the reason."""
    root = _root(text)
    if root.tag == "graphs":
        return (Node(nccl={"graphs": graphs(root)}),)
    if root.tag != "system":
        raise DataError(f"XML with root <{str(root.tag)[:40]}>, not NCCL's <system> or <graphs>")
    seen = list(_walk(root))
    hosts = list(dict.fromkeys(place.host for _element, place in seen)) or [""]
    comment = " ".join(re.findall(r"<!--(.*?)-->", text[:20000], re.DOTALL))
    return tuple(_node([(element, place) for element, place in seen if place.host == host], comment, host) for host in hosts)


def _root(text: str) -> Element:
    from defusedxml import ElementTree
    from defusedxml.common import DefusedXmlException

    if len(text.encode()) > MAX_XML_BYTES:
        raise DataError(f"XML of more than {MAX_XML_BYTES >> 20} MiB, which no NCCL topology has")
    try:
        root: Element = ElementTree.fromstring(text.strip(), forbid_dtd=True)
    except DefusedXmlException as err:
        raise DataError(f"XML with a DTD or entities is not read: {type(err).__name__}") from err
    except (ParseError, ValueError) as err:
        line = getattr(err, "position", (None,))[0]
        raise DataError(f"line {line}: not well-formed XML: {err}" if line else f"not well-formed XML: {err}") from err
    return root


def _walk(root: Element) -> Iterator[tuple[Element, _Place]]:
    """Every PCI element and every <nic> with its place. Raises DataError where elements nest too deep."""
    todo: list[tuple[Element, _Place]] = []
    for cpu in reversed(root.findall("cpu")):
        name = f"cpu{cpu.get('numaid', '?')}"
        place = _Place(cpu.get("host_hash", ""), cpu, ((name, None),), 0)
        todo += [(child, place) for child in reversed(cpu)]
    while todo:
        element, place = todo.pop()
        if place.depth > MAX_DEPTH:
            raise DataError(f"elements nest more than {MAX_DEPTH} deep")
        if element.tag in ("pci", "nic"):
            yield element, place
            if element.tag == "pci":
                uplink = (pcie.address(element.get("busid")) or element.get("busid", "?")[:40], _slot(element).GBps)
                inner = replace(place, bridges=(*place.bridges, uplink), depth=place.depth + 1)
                todo += [(child, inner) for child in reversed(element)]


def _slot(element: Element) -> Any:
    return pcie.link(pcie.generation(element.get("link_speed")), pcie.width(element.get("link_width")))


def _kind(element: Element) -> str:
    """gpu, nic, bridge, switch or unknown."""
    word = element.get("class", "")
    if element.find("gpu") is not None or word.startswith(("0x03", "0x12")):
        return "gpu"
    if element.find("nic") is not None or word.startswith("0x02"):
        return "nic"
    if word.startswith("0x0604") or element.find("pci") is not None:
        return "bridge"
    return "switch" if word.startswith(NVSWITCH_CLASS) else "unknown"


def _node(seen: list[tuple[Element, _Place]], comment: str, host_hash: str) -> Node:
    devices = [(element, place, _kind(element)) for element, place in seen if element.tag == "pci"]
    loose = [(element, place) for element, place in seen if element.tag == "nic" and len(place.bridges) == 1]
    unknown = [(element, place) for element, place, kind in devices if kind == "unknown"]
    warnings: list[str] = []
    nic_places = [(element, place) for element, place, kind in devices if kind == "nic"]
    if unknown and re.search(r"GPUs are not (reported|listed|given)", comment):
        warnings.append("the file says that GPUs are not in it: the devices it lists without a class are taken as NICs")
        nic_places, unknown = nic_places + unknown, []
    found = sorted(((element, place) for element, place, kind in devices if kind == "gpu"), key=_gpu_order)
    virtual = _virtual_bridges(devices)
    platform = re.search(r"topology for `([A-Za-z0-9._-]{1,40})`", comment)
    gpus, gpu_warnings = _gpus(found, virtual)
    nics = [nic for element, place in (*nic_places, *loose) for nic in _nics(element, place, virtual, platform[1] if platform else "")]
    warnings += [*gpu_warnings, *_node_warnings(seen, virtual), *_nic_warnings(nics)]
    node = Node(
        gpus=gpus or None,
        nics=tuple(nics) or None if unknown or not gpus else tuple(nics),
        switch=_switch(found),
        cpu=_cpu(seen),
        platform=platform[1] if platform else None,
        unknown_devices=len(unknown) or None,
        nccl={"host_hash": host_hash} if host_hash else None,
    )
    if unknown:
        warnings.append(f"{len(unknown)} PCI devices without a class: of what kind they are is not known")
    if gpus is None or not gpus:
        warnings.append("no GPU in this file: their number is not known")
    return with_warnings(nearest(node), *warnings)


def _gpu_order(item: tuple[Element, _Place]) -> tuple[int, str]:
    gpu = item[0].find("gpu")
    number = small_int(gpu.get("dev")) if gpu is not None else None
    return (number if number is not None else 1 << 20, pcie.address(item[0].get("busid")) or "")


def _gpus(found: list[tuple[Element, _Place]], virtual: set[str]) -> tuple[tuple[Gpu, ...], list[str]]:
    numbers = [_gpu_order(item)[0] for item in found]
    indices = numbers if len(set(numbers)) == len(numbers) and all(number < 1024 for number in numbers) else list(range(len(found)))
    by_bus = {pcie.address(element.get("busid")): index for (element, _place), index in zip(found, indices, strict=True)}
    warnings: list[str] = []
    values = []
    for (element, place), index in zip(found, indices, strict=True):
        gpu, texts = _gpu(element, place, index, by_bus, virtual)
        values.append(gpu)
        warnings += texts
    return tuple(values), warnings


def _gpu(element: Element, place: _Place, index: int, by_bus: dict[str | None, int], virtual: set[str]) -> tuple[Gpu, list[str]]:
    inner = element.find("gpu")
    gcn = inner.get("gcn") if inner is not None else None
    cc = small_int(inner.get("sm")) if inner is not None and gcn is None else None
    model = models.by_pci(element.get("vendor"), element.get("device")) or models.by_gcn(gcn)
    warnings = []
    if model is None and element.get("device") and element.get("vendor") not in (None, "0xffff", "0x0000"):
        warnings.append(f"GPU {index}: PCI device {element.get('vendor')}:{element.get('device')} is not in the table of known models")
    link, texts = (None, []) if inner is None else _links(inner, index, cc, model, by_bus)
    bridges = _honest(place.bridges, virtual)
    value = Gpu(
        index=index,
        name=None if model is None else model.name,
        bus_id=pcie.address(element.get("busid")),
        cc=cc if cc is not None else None if model is None else model.cc,
        nvlink=link,
        pcie=_path(_slot(element), bridges),
        numa=_numa(place.cpu),
        cpus=place.cpu.get("affinity"),
        bridges=bridges,
    )
    return value, warnings + texts


def _links(
    inner: Element, index: int, cc: int | None, model: models.GpuModel | None, by_bus: dict[str | None, int]
) -> tuple[NvLink, list[str]]:
    """The links of a <gpu>: a dump lists all there are, so none listed is none there."""
    found = [*inner.findall("nvlink"), *inner.findall("xgmi")]
    kind = "xGMI" if inner.find("xgmi") is not None or inner.get("gcn") else "NVLink"
    total = 0
    bonds: dict[int, int] = {}
    warnings: list[str] = []
    for link in found:
        count = small_int(link.get("count")) or 0
        if not 0 < count <= 64:
            continue
        total += count
        peer = by_bus.get(pcie.address(link.get("target")))
        if peer == index:
            warnings.append(f"GPU {index}: its links lead to itself in this file: with whom it is joined is not known")
        elif peer is not None:
            bonds[peer] = bonds.get(peer, 0) + count
    rate = model.link_GBps if model is not None and model.links else models.link_rate(cc) if kind == "NVLink" else None
    generation = None if kind == "xGMI" or not total else model.generation if model is not None else models.generation_of(cc)
    speed = 0.0 if not total else None if rate is None else round(total * rate, 3)
    known = tuple(sorted(bonds.items())) if sum(bonds.values()) == total else None
    return NvLink(kind=kind, generation=generation, links=total, per_direction_GBps=speed, bonds=known), warnings


def _switch(found: list[tuple[Element, _Place]]) -> bool | None:
    """True where every link ends in a switch, False where none does or there are none; None without <gpu> elements."""
    inner = [gpu for element, _place in found for gpu in element.findall("gpu")]
    if not inner:
        return None
    links = [link for gpu in inner for link in gpu.findall("nvlink")]
    ends = [link.get("tclass", "").startswith(NVSWITCH_CLASS) or link.get("target", "").startswith("fffffff") for link in links]
    return bool(ends) and all(ends) if not ends or len(set(ends)) == 1 else None


def _nics(element: Element, place: _Place, virtual: set[str], platform: str) -> list[Nic]:
    """One value a <net>; one for a PCI element that has none, as in vendors' files."""
    bridges = _honest(place.bridges, virtual)
    own = element.tag == "pci"
    common: dict[str, Any] = {
        "bus_id": pcie.address(element.get("busid")) if own else None,
        "numa": _numa(place.cpu),
        "bridges": bridges if own else None,
        "pcie": _path(_slot(element), bridges) if own else None,
    }
    nets = element.findall("nic/net") if own else element.findall("net")
    if not nets:
        return [Nic(link_layer=_layer(element, None, platform), **common)] if own else []
    return [_net(net, _layer(element, net, platform), common) for net in nets]


def _net(net: Element, layer: LinkLayer | None, common: dict[str, Any]) -> Nic:
    mbit = small_int(net.get("speed")) or 0
    known = mbit > 0 and not (layer == "Ethernet" and mbit == SOCKET_DEFAULT_MBIT)
    port = small_int(net.get("port"))
    return Nic(
        name=net.get("name"),
        port=None if port == 0 else port,
        rate_gbit=mbit / 1000 if known else None,
        link_layer=layer,
        sharp=True if net.get("coll") == "1" else None,
        **common,
    )


def _layer(element: Element, net: Element | None, platform: str) -> LinkLayer | None:
    if element.get("vendor") == EFA_VENDOR or re.fullmatch(r"p[0-9]\w*\.\w+", platform):
        return "EFA"
    if element.get("class", "").startswith("0x0207"):
        return "InfiniBand"
    name = "" if net is None else net.get("name", "")
    if re.match(r"efa|rdmap", name):
        return "EFA"
    if re.match(r"(eth|en[ospx]|bond|ib\d)", name):
        return "Ethernet"
    if net is not None and element.get("class", "").startswith("0x0200") and (small_int(net.get("port")) or 0) > 0:
        return "RoCE"
    return None


def _path(slot: Any, bridges: tuple[tuple[str, float | None], ...]) -> Any:
    """The slot with the slowest hop up to the CPU, where every hop has a rate."""
    hops = [slot.GBps, *(rate for name, rate in bridges if not name.startswith("cpu"))]
    slowest = min((hop for hop in hops if hop is not None), default=None)
    if slowest is None or None in hops:
        return slot
    note = None if slowest == slot.GBps else f"a bridge above it carries {slowest:g} GB/s"
    return replace(slot, path_GBps=slowest, note=note)


def _numa(cpu: Element) -> int | None:
    number = small_int(cpu.get("numaid"))
    return None if number is None or number < 0 else number


def _cpu(seen: list[tuple[Element, _Place]]) -> str | None:
    cpu = seen[0][1].cpu if seen else None
    if cpu is None or not cpu.get("vendor"):
        return None
    return " ".join(word for word in (cpu.get("vendor"), cpu.get("familyid"), cpu.get("modelid")) if word)


def _virtual_bridges(devices: list[tuple[Element, _Place, str]]) -> set[str]:
    """Addresses of emulated bridges: 2.5 GT/s x1 above faster devices is no real link but a virtual machine's default."""
    slow = {pcie.address(element.get("busid")) for element, _place, kind in devices if kind == "bridge" and (_slot(element).GBps or 99.0) < 1.0}
    above = {
        name for element, place, kind in devices if kind in ("gpu", "nic") and (pcie.generation(element.get("link_speed")) or 0) > 1
        for name, _rate in place.bridges
    }  # fmt: skip
    return {name for name in slow if name is not None and name in above}


def _honest(bridges: tuple[tuple[str, float | None], ...], virtual: set[str]) -> tuple[tuple[str, float | None], ...]:
    return tuple((name, None if name in virtual else rate) for name, rate in bridges)


def _node_warnings(seen: list[tuple[Element, _Place]], virtual: set[str]) -> list[str]:
    warnings = [
        f"virtual PCI bridge 2.5 GT/s x1 at {name}: its speed is not real, and NCCL plans with 0.25 GB/s: give NCCL_TOPO_FILE for this machine type"
        for name in sorted(virtual)
    ]
    if any("arch" not in place.cpu.attrib for _element, place in seen):
        warnings.append("a <cpu> has no arch: newer NCCL stops with \"Attribute arch of node cpu not found\"")
    return warnings


def _nic_warnings(nics: list[Nic]) -> list[str]:
    return [
        f"{nic.label}: 10 Gbit/s is what NCCL writes where it cannot read a speed; taken as not known"
        for nic in nics
        if nic.link_layer == "Ethernet" and nic.rate_gbit is None and nic.name
    ]


def graphs(root: Element) -> Json:
    """What NCCL's search found, by algorithm: channels, GB/s a channel inside and between nodes, GB/s of all, path types."""
    found: Json = {}
    for graph in root.findall("graph"):
        name = _GRAPH_IDS.get(small_int(graph.get("id")) or 0)
        channels, speed = small_int(graph.get("nchannels")), _float(graph.get("speedintra"))
        if name is None or channels is None:
            continue
        between = _float(graph.get("speedinter"))
        found[name] = {
            "channels": channels,
            "pattern": PATTERNS.get(small_int(graph.get("pattern")) or 0),
            "intra_GBps": speed,
            "inter_GBps": between,
            "total_GBps": None if speed is None else round(channels * speed, 3),
            "same_channels": graph.get("samechannels") != "0",
            "type_intra": graph.get("typeintra"),
            "type_inter": graph.get("typeinter"),
        }
    return found


def _float(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text) else None
