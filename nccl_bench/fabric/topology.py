"""The frozen values of a fabric: GPUs, their links, NICs, nodes, the whole; None is unknown, never 0.

A reader fills what its source says and nothing else; `merge` joins sources, `complete` derives what follows from them.
Rates are GB/s = 1e9 bytes/s one way; a NIC's line rate alone is Gbit/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

from nccl_bench.errors import DataError
from nccl_bench.fabric import gpus as models
from nccl_bench.fabric.gpus import GpuModel

Json = dict[str, Any]
LinkLayer = Literal["InfiniBand", "RoCE", "EFA", "Ethernet", "Slingshot", "Omni-Path", "TCPX", "iWARP"]
Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
DISTANCES: tuple[Distance, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first, in nvidia-smi's words: one switch, several, the CPU's host bridge, one NUMA node, across sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """The links of one GPU to other GPUs or to switches, NVLink or xGMI."""

    kind: str = "NVLink"
    generation: int | None = None
    """NVLink generation; None for xGMI and where unknown."""
    links: int | None = None
    """Active links; 0 where there are none."""
    inactive: int | None = None
    """Links of the GPU that are down."""
    per_direction_GBps: float | None = None
    """All active links together, marketed rate."""
    signal_GBps: float | None = None
    """The same as nvidia-smi prints it: the signalling rate."""
    bonds: tuple[tuple[int, int], ...] | None = None
    """(GPU index, links) as a table or a dump names them, whether direct or through a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A PCIe link: generation and width, and what they carry."""

    generation: int | None = None
    width: int | None = None
    GBps: float | None = None
    """One way after line coding."""
    path_GBps: float | None = None
    """The slowest hop between the device and its CPU, where the source shows the path."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a node."""

    index: int
    """Number within the node, in the source's own order (NVML's and CUDA's is PCI order)."""
    name: str | None = None
    """As the driver names it, vendor removed."""
    bus_id: str | None = None
    """PCI address, four-digit domain, lower case: "0000:1a:00.0"."""
    uuid: str | None = None
    cc: int | None = None
    """CUDA compute capability times ten."""
    nvlink: NvLink | None = None
    pcie: Pcie | None = None
    numa: int | None = None
    cpus: str | None = None
    """CPU affinity as the source writes it."""
    bridges: tuple[tuple[str, float | None], ...] | None = None
    """(bridge address, its uplink GB/s or None) from the CPU down to the GPU."""
    clique: str | None = None
    """"cluster uuid.clique" where the GPU is part of a multi-node NVLink domain."""
    mig: bool | None = None
    memory_nbytes: int | None = None

    @property
    def model(self) -> GpuModel | None:
        """The row of the table of models; None where the name is unknown or missing."""
        return None if self.name is None else models.BY_NAME.get(self.name) or models.by_driver_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One port of a network adapter."""

    name: str | None = None
    port: int | None = None
    rate_gbit: float | None = None
    """Line rate, Gbit/s."""
    data_GBps: float | None = None
    """What the line carries after its coding; None means rate_gbit / 8."""
    link_layer: LinkLayer | None = None
    state: str | None = None
    """"ACTIVE", "DOWN" ... ; None where the source or the driver does not say."""
    numa: int | None = None
    gpus: tuple[int, ...] | None = None
    """GPUs that this port is nearest to; () for none, None where not known."""
    distance: tuple[tuple[int, Distance], ...] | None = None
    """(GPU index, word) for every GPU of the node."""
    pcie: Pcie | None = None
    bus_id: str | None = None
    bridges: tuple[tuple[str, float | None], ...] | None = None
    model: str | None = None
    """hca_type, board or driver as the source writes it."""
    mtu: int | None = None
    """Active MTU, bytes."""
    gid_type: str | None = None
    """"RoCE v2" where a GID of this kind is configured."""
    sharp: bool | None = None
    """Whether NCCL found SHARP on this port."""
    used: bool | None = None
    """Whether NCCL would take this port for collectives; None before selection."""
    why: str | None = None
    """Why it is left out."""

    @property
    def label(self) -> str:
        """Name and port for sentences: "mlx5_0", "mlx4_0:2", "NIC 0000:0c:00.0"."""
        if self.name is None:
            return f"NIC {self.bus_id}" if self.bus_id else "NIC"
        return self.name if self.port in (None, 1) else f"{self.name}:{self.port}"

    @property
    def line_GBps(self) -> float | None:
        """One way, after line coding."""
        return self.data_GBps if self.data_GBps is not None else None if self.rate_gbit is None else self.rate_gbit / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One host."""

    host: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    switch: bool | None = None
    """Whether the GPUs' links end in switches."""
    nvls: bool | None = None
    """Whether NCCL found multicast (NVLS); None where no source says."""
    cpu: str | None = None
    """CPU vendor, family and model: "GenuineIntel 6 143"."""
    platform: str | None = None
    """Cloud instance type or board, as the firmware says."""
    rack: str | None = None
    leaf: str | None = None
    unknown_devices: int | None = None
    """Devices that a source lists without saying what they are."""
    nccl: Json | None = None
    """What NCCL itself said in a log or dump."""
    facts: tuple[tuple[str, str], ...] = ()
    """(fact, source): where each came from."""
    warnings: tuple[str, ...] = ()
    stem: str | None = field(default=None)
    """What to call the node where its source carries no host."""

    @property
    def label(self) -> str:
        """The host, or what stands for it."""
        return self.host or self.stem or "node"

    def gpu(self, index: int) -> Gpu | None:
        """The GPU of this index."""
        return next((gpu for gpu in self.gpus or () if gpu.index == index), None)

    def to_json(self) -> Json:
        """Every field that is known, short enough for the board."""
        record = _known({key: value for key, value in asdict(self).items() if value is not None and (value != () or key in ("gpus", "nics"))})
        assert isinstance(record, dict)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The node of a JSON object, short or as `topo --json` prints it. Raises DataError where it is none."""
        try:
            values = _values(cls, record)
            for key, kind in (("gpus", Gpu), ("nics", Nic)):
                if values.get(key) is not None:
                    values[key] = tuple(_device(kind, item) for item in values[key])
            if isinstance(values.get("facts"), Mapping):
                values["facts"] = tuple(values["facts"].items())
            return cls(**{key: value if key == "nccl" else _tuples(value) for key, value in values.items()})
        except (TypeError, AttributeError, ValueError, KeyError) as err:
            raise DataError(f"not a node of nccl-bench: {err}") from err


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All nodes, in rank order of their first rank where known."""

    nodes: tuple[Node, ...]
    sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    oversubscription: float = 1.0
    """How much less than the NICs of a rack's nodes its uplinks carry: 2.0 for 2:1."""
    assumptions: tuple[str, ...] = ()

    def all_warnings(self) -> tuple[str, ...]:
        """Those of the whole, then each node's with its name; like ones of many nodes collapse into one line."""
        seen: dict[str, list[str]] = {}
        for node in self.nodes:
            for text in node.warnings:
                seen.setdefault(text, []).append(node.label)
        lines = [text if len(self.nodes) == 1 else f"{_hosts(hosts)}: {text}" for text, hosts in seen.items()]
        return (*self.warnings, *lines)


def _hosts(hosts: list[str]) -> str:
    return hosts[0] if len(hosts) == 1 else f"{hosts[0]} and {len(hosts) - 1} more"


def _known(value: Any) -> Any:
    """The value without keys that are None, at any depth."""
    if isinstance(value, Mapping):
        return {key: _known(item) for key, item in value.items() if item is not None}
    return [_known(item) for item in value] if isinstance(value, (list, tuple)) else value


_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "LinkLayer": (str,), "Json": (dict,)}


def _values(kind: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a JSON object that `kind` knows, each of the type it should have; raises TypeError."""
    found = {}
    for item in fields(kind):
        value = record.get(item.name)
        wanted = _SCALARS.get(str(item.type).split(" | ")[0])
        if value is not None and wanted is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise TypeError(f"{item.name} is {value!r}")
        if item.name in record:
            found[item.name] = value
    return found


def _device(kind: Any, record: Mapping[str, Any]) -> Any:
    values = _values(kind, record)
    for key, part in (("nvlink", NvLink), ("pcie", Pcie)):
        if values.get(key) is not None:
            values[key] = part(**{name: _tuples(item) for name, item in _values(part, values[key]).items()})
    return kind(**{key: _tuples(value) for key, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


def domains(node: Node) -> tuple[tuple[int, ...], ...] | None:
    """The groups of GPUs of one node that reach each other by links; None where that is not known."""
    links = {gpu.index: gpu.nvlink for gpu in node.gpus or ()}
    if node.gpus is None or any(link is None or (link.links is None and link.bonds is None) for link in links.values()):
        return None
    linked = {index: link for index, link in links.items() if link is not None and (link.links or link.bonds)}
    if node.switch:
        return (tuple(linked),) if linked else ()
    if any(link.bonds is None for link in linked.values()):
        return None
    return _components({index: {peer for peer, count in link.bonds or () if count} for index, link in linked.items()})


def _components(edges: Mapping[int, set[int]]) -> tuple[tuple[int, ...], ...]:
    """Connected parts of two or more, each sorted."""
    left, parts = set(edges), []
    while left:
        part, todo = set(), [min(left)]
        while todo:
            here = todo.pop()
            if here not in part:
                part.add(here)
                todo += sorted(edges.get(here, set()) & set(edges))
        left -= part
        parts.append(tuple(sorted(part)))
    return tuple(part for part in parts if len(part) > 1)


def cross_domains(nodes: Iterable[Node]) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """Groups of (node position, GPU index) that share links, over hosts by clique, else within a node; None where not known."""
    by_clique: dict[str, list[tuple[int, int]]] = {}
    groups: list[tuple[tuple[int, int], ...]] = []
    for position, node in enumerate(nodes):
        inside = domains(node)
        if inside is None:
            return None
        for part in inside:
            cliques = {gpu.clique for gpu in node.gpus or () if gpu.index in part}
            clique = cliques.pop() if len(cliques) == 1 else None
            if clique is None:
                groups.append(tuple((position, index) for index in part))
            else:
                by_clique.setdefault(clique, []).extend((position, index) for index in part)
    return tuple(sorted((*groups, *(tuple(members) for members in by_clique.values()))))


def topology_json(topology: Topology) -> Json:
    """The JSON of `topo --json` (CONTRACT.md section 2), plus what more is known; unknown values null."""
    cross = cross_domains(topology.nodes)
    names = [[f"{topology.nodes[position].label}:{index}" for position, index in part] for part in cross] if cross is not None else None
    return {
        "nodes": [_node_json(node) for node in topology.nodes],
        "nvlink_domains": names,
        "sources": list(topology.sources),
        "warnings": list(topology.all_warnings()),
        "assumptions": list(topology.assumptions),
    }


def _node_json(node: Node) -> Json:
    inside = domains(node)
    return {
        "host": node.host,
        "gpus": None if node.gpus is None else [_gpu_json(gpu) for gpu in node.gpus],
        "nics": None if node.nics is None else [{**asdict(nic), "line_GBps": nic.line_GBps} for nic in node.nics],
        "switch": node.switch,
        "nvlink_domains": None if inside is None else [list(part) for part in inside],
        "summary": describe(node),
        **{key: getattr(node, key) for key in ("nvls", "cpu", "platform", "rack", "leaf", "unknown_devices", "nccl")},
        "facts": dict(node.facts),
    }


def _gpu_json(gpu: Gpu) -> Json:
    model = gpu.model
    return {**asdict(gpu), "model": None if model is None else model.name}


def describe(node: Node) -> str:
    """One line: "8x H100 SXM, 18 NVLink4 each through NVSwitch (450 GB/s), 8x 400G InfiniBand"."""
    return ", ".join(part for part in (_gpu_words(node), _link_words(node), _nic_words(node)) if part)


def _gpu_words(node: Node) -> str:
    if node.gpus is None:
        return "GPUs not known"
    if not node.gpus:
        return "no GPU"
    return " + ".join(f"{count}x {name}" for name, count in _count(_gpu_name(gpu) for gpu in node.gpus).items())


def _gpu_name(gpu: Gpu) -> str:
    model = gpu.model
    return model.label if model is not None else gpu.name or "GPU of unknown model"


def _link_words(node: Node) -> str:
    links = [gpu.nvlink for gpu in node.gpus or () if gpu.nvlink is not None and gpu.nvlink.links is not None]
    if not links or not node.gpus:
        return ""
    if not any(link.links for link in links):
        return "no NVLink"
    most = max(links, key=lambda link: link.links or 0)
    least = min(link.links or 0 for link in links)
    count = f"{most.links}" if least == most.links else f"{least} to {most.links}"
    how = " through NVSwitch" if node.switch else _group_words(node)
    rate = f" ({most.per_direction_GBps:g} GB/s)" if most.per_direction_GBps else ""
    return f"{count} {most.kind}{most.generation or ''} each{how}{rate}"


def _group_words(node: Node) -> str:
    parts = domains(node) or ()
    if node.switch is None or not parts:
        return ""
    if len(parts) == 1:
        return " in a mesh" if len(parts[0]) > 2 else " in a pair"
    return f" in {len(parts)} groups of {' or '.join(dict.fromkeys(str(len(part)) for part in parts))}"


def _nic_words(node: Node) -> str:
    if node.nics is None:
        return ""
    used = [nic for nic in node.nics if nic.used is not False]
    if not used:
        return "no NIC for collectives" if node.nics else "no NIC"
    words = _count(f"{_rate_words(nic)}{nic.link_layer or 'NIC'}" for nic in used)
    return " + ".join(f"{count}x {kind}" for kind, count in words.items())


def _rate_words(nic: Nic) -> str:
    return "" if nic.rate_gbit is None else f"{nic.rate_gbit:g}G "


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def with_warnings(node: Node, *texts: str) -> Node:
    """The node with further warnings, each once."""
    return replace(node, warnings=(*node.warnings, *(text for text in dict.fromkeys(texts) if text not in node.warnings)))
