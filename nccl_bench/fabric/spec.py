"""Hardware by name: "8xH100-SXM", "8x400-IB", nodes, racks; into the same Topology that a machine gives."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from nccl_bench.errors import DetectError, UsageError
from nccl_bench.fabric import gpus as models
from nccl_bench.fabric import pcie
from nccl_bench.fabric.data import table
from nccl_bench.fabric.gpus import GpuModel
from nccl_bench.fabric.topology import Gpu, LinkLayer, Nic, Node, NvLink, Topology

_GPUS = re.compile(r"\s*(\d{1,5})\s*[xX*]\s*(\S.{0,60}?)\s*")
_NICS = re.compile(r"\s*(\d{1,5})\s*[xX*]\s*(\d{1,4}(?:\.\d)?)\s*[gG]?(?:-?\s*([A-Za-z][A-Za-z -]{0,20}))?\s*")
LAYERS: dict[str, LinkLayer] = {
    "ib": "InfiniBand", "infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA", "ethernet": "Ethernet", "eth": "Ethernet", "tcp": "Ethernet",
    "slingshot": "Slingshot", "cxi": "Slingshot", "omnipath": "Omni-Path", "opa": "Omni-Path", "tcpx": "TCPX", "tcpxo": "TCPX",
}  # fmt: skip
MAX_GPUS = 1024
"""GPUs of one domain; the largest sold has 72."""
MAX_NODES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A known system."""

    name: str
    gpus: str
    nics: str
    aliases: tuple[str, ...] = ()
    note: str = ""
    source: str = ""


def systems() -> tuple[System, ...]:
    """The known systems (systems.json)."""
    return tuple(System(**{**row, "aliases": tuple(row.get("aliases", ()))}) for row in table("systems.json"))


def find_system(name: str) -> System:
    """A known system by name or alias, in any case. Raises DetectError listing them."""
    key = re.sub(r"[\s_]+", "-", name.strip().lower())
    for system in systems():
        if key in {word.lower() for word in (system.name, *system.aliases)}:
            return system
    known = " ".join(system.name for system in systems())
    raise DetectError(f"the system {name!r} is not in the list", f"known: {known}", "or name its parts: --gpus --nics")


def parse_gpus(text: str) -> tuple[int, GpuModel]:
    """(count, model) of "8xH100-SXM". Raises UsageError where it is no such text, DetectError where the model is not known."""
    match = _GPUS.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= MAX_GPUS:
        raise UsageError(f"--gpus: {text!r} is not COUNTxMODEL", "the GPUs of one NVLink (or PCIe) domain: 8xH100-SXM, 72xGB200, 1xL40S")
    return int(match[1]), models.find(match[2])


def parse_nics(text: str) -> tuple[int, float, LinkLayer]:
    """(count, Gbit/s, layer) of "8x400-IB"; (0, 0, Ethernet) of "none". Raises UsageError."""
    if text.strip().lower() == "none":
        return 0, 0.0, "Ethernet"
    match = _NICS.fullmatch(text)
    layer = LAYERS.get(re.sub(r"[\s-]", "", (match[3] or "").lower())) if match is not None else None
    if match is None or layer is None or not 0 < int(match[1]) <= MAX_GPUS or not float(match[2]):
        raise UsageError(f"--nics: {text!r} is not COUNTxGBIT-KIND", "the NICs of one domain: 8x400-IB, 16x200-RoCE, 4x100-EFA, none")
    return int(match[1]), float(match[2]), layer


def topology_of(gpus: str, nics: str | None, nodes: int, *, racks: str | None = None, oversubscription: str | None = None) -> Topology:
    """`nodes` equal domains. Raises UsageError where a text is wrong, DetectError where the hardware is not known."""
    if not 0 < nodes <= MAX_NODES:
        raise UsageError(f"--nodes: {nodes} is not between 1 and {MAX_NODES}")
    count, model = parse_gpus(gpus)
    node = node_of(count, model, None if nics is None else parse_nics(nics))
    base = Topology(nodes=tuple([node] * nodes), sources=("command line, table of models",), assumptions=_assumptions(count, model))
    return with_racks(base, racks, oversubscription)


def node_of(count: int, model: GpuModel, nics: tuple[int, float, LinkLayer] | None) -> Node:
    """One domain of `count` GPUs, joined as the model is sold; NICs shared out evenly over the GPUs."""
    if model.c2c and model.domain is not None and count > model.domain:
        # Behind a Grace CPU there is no PCIe path that would join the rest.
        raise DetectError(
            f"{count}x{model.label}: no domain of this model is larger than {model.domain} GPUs",
            f"name the GPUs of one NVLink domain, and how many there are: --gpus {model.domain}x{model.name} --nodes N",
        )
    switched = model.joined[0] == "switch" and model.links > 0
    found = tuple(_gpu(at, count, model, switched) for at in range(count))
    return Node(gpus=found, nics=None if nics is None else _nics(count, *nics), switch=switched)


def _gpu(at: int, count: int, model: GpuModel, switched: bool) -> Gpu:
    bonds = None if switched or not model.links else _bonds(at, count, model)
    links = model.links if switched or (count == 1 and model.joined[0] == "mesh") else sum(number for _peer, number in bonds or ())
    rate = 0.0 if model.link_GBps is None else round(links * model.link_GBps, 3)
    link = NvLink(kind=model.kind, generation=model.generation if links else None, links=links, per_direction_GBps=rate, bonds=bonds)
    return Gpu(index=at, name=model.name, cc=model.cc, nvlink=link, pcie=pcie.link(model.pcie_gen, model.pcie_width))


def _bonds(at: int, count: int, model: GpuModel) -> tuple[tuple[int, int], ...]:
    """Direct links as the model is sold: V100 in the cube mesh of eight or the NV2 board of four, others evenly within their group."""
    if model.name == "V100-SXM" and count > 4:
        return tuple((peer, number) for peer, number in _DGX1[at % 8] if peer < count)
    if model.name == "V100-SXM":
        return tuple((peer, 2) for peer in range(count) if peer != at)
    group = model.domain or count
    start = at // group * group
    peers = [peer for peer in range(start, min(start + group, count)) if peer != at]
    # A part of a full mesh keeps its links to those that are left; a bridge gives all it has to those it joins.
    of = group - 1 if model.joined[0] == "mesh" else len(peers)
    if peers and model.links < of:
        raise DetectError(f"how {model.label} are joined differs from board to board", "give a topology file: --from topo.xml (NCCL_TOPO_DUMP_FILE)")
    return tuple((peer, model.links // of) for peer in peers)


_DGX1 = (
    ((1, 1), (2, 1), (3, 2), (4, 2)), ((0, 1), (2, 2), (3, 1), (5, 2)), ((0, 1), (1, 2), (3, 2), (6, 1)), ((0, 2), (1, 1), (2, 2), (7, 1)),
    ((0, 2), (5, 1), (6, 1), (7, 2)), ((1, 2), (4, 1), (6, 2), (7, 1)), ((2, 1), (4, 1), (5, 2), (7, 2)), ((3, 1), (4, 2), (5, 1), (6, 2)),
)  # fmt: skip
"""The hybrid cube mesh of a DGX-1V, as nvidia-smi topo -m prints it (microsoft/msccl-tools@030a750f tests/test_topologies.py)."""


def _nics(gpus: int, count: int, rate_gbit: float, layer: LinkLayer) -> tuple[Nic, ...]:
    return tuple(
        Nic(name=f"nic{at}", rate_gbit=rate_gbit, link_layer=layer, state="ACTIVE", gpus=_share(at, count, gpus), used=True) for at in range(count)
    )


def _share(at: int, count: int, gpus: int) -> tuple[int, ...]:
    """The GPUs that NIC `at` of `count` serves, neighbours together."""
    if count >= gpus:
        return (at * gpus // count,)
    return tuple(gpu for gpu in range(gpus) if gpu * count // gpus == at)


def _assumptions(count: int, model: GpuModel) -> tuple[str, ...]:
    texts = []
    if "unconfirmed" in model.source:
        texts.append(f"{model.label}: {model.source}")
    if len(model.joined) > 1:
        texts.append(f"{model.label} joined by {'NVSwitch' if model.joined[0] == 'switch' else 'a mesh'}; boards of another kind exist")
    if model.joined[0] == "bridge" and model.domain and count > 1:
        texts.append(f"{model.label} bridged in groups of {model.domain}; PCIe between the groups")
    return tuple(texts)


def with_racks(topology: Topology, racks: str | None, oversubscription: str | None) -> Topology:
    """The topology in racks: "4x32" is 4 racks of 32 nodes; "2:1" says that a rack's uplinks carry half of its NICs."""
    if oversubscription is not None and racks is None and all(node.rack is None for node in topology.nodes):
        raise UsageError("--oversubscription needs --racks: which nodes share uplinks", "for example --racks 4x32 --oversubscription 2:1")
    ratio = 1.0 if oversubscription is None else _ratio(oversubscription)
    if racks is None:
        return replace(topology, oversubscription=ratio)
    match = re.fullmatch(r"\s*(\d{1,5})\s*[xX]\s*(\d{1,5})\s*", racks)
    if match is None or int(match[1]) * int(match[2]) != len(topology.nodes):
        raise UsageError(f"--racks: {racks!r} is not RACKSxNODES for {len(topology.nodes)} nodes", "4x32: four racks of 32 nodes")
    size = int(match[2])
    per_rack: dict[tuple[int, int], Node] = {}
    nodes = []
    for at, node in enumerate(topology.nodes):
        key = (id(node), at // size)
        nodes.append(per_rack.setdefault(key, replace(node, rack=f"rack{at // size}")))
    return replace(topology, nodes=tuple(nodes), oversubscription=ratio)


def _ratio(text: str) -> float:
    match = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*:\s*(\d{1,3}(?:\.\d{1,3})?)\s*", text)
    if match is None or not float(match[2]) or float(match[1]) < float(match[2]):
        raise UsageError(f"--oversubscription: {text!r} is not like 2:1", "downlinks to uplinks of a rack: 1:1 is none, 2:1 halves")
    return float(match[1]) / float(match[2])


def repeat(topology: Topology, nodes: int) -> Topology:
    """A topology of one node as `nodes` equal ones. Raises UsageError where it has several already."""
    if nodes == len(topology.nodes):
        return topology
    if len(topology.nodes) != 1:
        raise UsageError(f"--nodes {nodes}: the source has {len(topology.nodes)} nodes already", "leave --nodes away, or give the source of one node")
    if not 0 < nodes <= MAX_NODES:
        raise UsageError(f"--nodes: {nodes} is not between 1 and {MAX_NODES}")
    return replace(topology, nodes=topology.nodes * nodes)


def with_nics(topology: Topology, nics: str) -> Topology:
    """The topology with these NICs in place of what its source says of NICs."""
    parsed = parse_nics(nics)
    nodes = tuple(replace(node, nics=_nics(len(node.gpus or ()) or 1, *parsed)) for node in topology.nodes)
    return replace(topology, nodes=nodes, assumptions=(*topology.assumptions, f"NICs as given: {nics}, shared out evenly over the GPUs"))
