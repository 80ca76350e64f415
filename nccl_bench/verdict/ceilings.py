"""The ceilings of a recorded run: its topology, its ranks' places in it, and what the fabric's arithmetic says of each case.

A run that recorded no topology (a log of nccl-tests) is held against the models of the GPUs it names, and the assumptions say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nccl_bench.errors import NcclBenchError, UsageError
from nccl_bench.fabric import files, ideal
from nccl_bench.fabric.complete import complete
from nccl_bench.fabric.crowd import ALONE, Crowd
from nccl_bench.fabric.gpus import by_driver_name
from nccl_bench.fabric.select import choose
from nccl_bench.fabric.shape import RankPlace, gathered
from nccl_bench.fabric.topology import Gpu, Node, Topology
from nccl_bench.groups import Mesh, axis_groups, parse_mesh
from nccl_bench.records import Ceiling, Json, RunHeader
from nccl_bench.results.runs import Run

BY_MODEL = "GPUs as the log lists them, joined as their models are sold: it has no topology"
Places = tuple[RankPlace, ...]
"""By rank: (host, GPU index in the topology), or the number of a GPU counted node by node."""
Groups = Sequence[Sequence[int]]
"""Ranks of each group."""
_CHOOSES_ALGORITHM = {"NCCL_ALGO", "NCCL_NVLS_ENABLE"}
"""What a variant may set and still be held against what healthy systems reach by that algorithm."""
_CHOOSES_NICS = {"NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_SOCKET_IFNAME"}
SOLO = "solo"
"""`special` of a point of one group alone."""


class RunCeilings:
    """What a run's cases are held against; each combination is reckoned once."""

    def __init__(
        self, topology: Topology | None, places: Places | None, environ: Mapping[str, str], why_not: str | None, spec: Json | None = None
    ) -> None:
        """spec: what was measured, as run.json keeps it; its mesh and its variants count."""
        self.topology = topology
        """None where nothing is known of the fabric."""
        self.why_not = why_not
        """Why there are no ceilings at all; of single cases, what was last missing."""
        self._places, self._environ = places, environ
        self._mesh = _mesh_of(spec or {})
        self._variants: Mapping[str, Mapping[str, str]] = (spec or {}).get("variants") or {}
        self._known: dict[object, ideal.Ceilings | None] = {}
        self._gathered: dict[object, tuple[Places, Crowd]] = {}

    def of(
        self, n_ranks: int | None, *, dtype: str | None = None, op: str | None = None, groups: Groups | None = None, variant: str | None = None
    ) -> ideal.Ceilings | None:
        """The ceilings of a case; None where they are not known.

        groups: the ranks of each group that ran at once, where it was not all ranks together; the slowest to be expected counts.
        variant: whose settings count beside those of the run.
        """
        found = self._of_groups(n_ranks, groups)
        if self.topology is None or found is None or (variant is not None and variant not in self._variants):
            return None
        places, crowd = found
        key = (dtype, op, variant, places, id(crowd))
        if key not in self._known:
            try:
                self._known[key] = self._under(variant, places, crowd, dtype or "float32", op or "sum")
            except NcclBenchError as err:
                self._known[key], self.why_not = None, err.why
        return self._known[key]

    def of_case(self, case: Mapping[str, Any]) -> ideal.Ceilings | None:
        """The ceilings of a point given by its columns: n_ranks dtype op variant special axis slowest_ranks."""
        if case["special"] not in (None, SOLO):
            return None
        n_ranks = None if case["n_ranks"] is None else int(case["n_ranks"])
        groups = self.groups_of(case["axis"], case["slowest_ranks"], solo=case["special"] == SOLO)
        return self.of(n_ranks, dtype=case["dtype"], op=case["op"], groups=groups, variant=case["variant"])

    def groups_of(self, axis: str | None, ranks: Sequence[int] | None, *, solo: bool = False) -> Groups | None:
        """The groups of an axis of the run's mesh, or the first of them alone; where it has no such axis, the one group of `ranks`."""
        if axis is None:
            return None
        try:
            groups = axis_groups(self._mesh, axis) if self._mesh is not None else ()
        except UsageError:
            groups = ()
        return groups[:1] if solo and groups else groups or (None if ranks is None else (ranks,))

    def _under(self, variant: str | None, places: Places, crowd: Crowd, dtype: str, op: str) -> ideal.Ceilings:
        """The ceilings under a variant's settings; other routes than the usual have no share of healthy systems."""
        assert self.topology is not None
        added = {} if variant is None else self._variants[variant]
        environ, topology = {**self._environ, **added}, self.topology
        if _CHOOSES_NICS & added.keys():
            topology = replace(topology, nodes=tuple(choose(node, environ) for node in topology.nodes))
        found = ideal.ceilings(topology, places, environ, dtype=dtype, op=op, crowd=crowd)
        return found if added.keys() <= _CHOOSES_ALGORITHM else ideal.without_expected(found)

    def _of_groups(self, n_ranks: int | None, groups: Groups | None) -> tuple[Places, Crowd] | None:
        ranks = self._places
        if groups is None or ranks is None or any(len(group) != n_ranks or not all(0 <= rank < len(ranks) for rank in group) for group in groups):
            places = self._of_all(n_ranks)
            return None if places is None else (places, ALONE)
        key = tuple(map(tuple, groups))
        if key not in self._gathered and self.topology is not None:
            seats: list[Places] = [tuple(ranks[rank] for rank in group) for group in groups]
            self._gathered[key] = (seats[0], ALONE) if len(seats) == 1 else _gathered(self.topology, seats, self._environ)
        return self._gathered.get(key)

    def _of_all(self, n_ranks: int | None) -> Places | None:
        if self._places is None or n_ranks is None:
            return None
        if n_ranks == len(self._places):
            return self._places
        known = len(self._places)
        self.why_not = (
            f"which {n_ranks} of the {known} ranks took part is not recorded"
            if n_ranks < known
            else f"of {n_ranks} ranks it names the GPUs of {known} only"
        )
        return None


def _gathered(topology: Topology, seats: Sequence[Places], environ: Mapping[str, str]) -> tuple[Places, Crowd]:
    slowest, crowd = gathered(topology, seats, environ)
    return seats[slowest], crowd


def _mesh_of(spec: Json) -> Mesh | None:
    """The mesh that was measured; None where there is none, or it cannot be read."""
    text = spec.get("mesh") or (spec.get("want") or {}).get("mesh")
    try:
        return parse_mesh(str(text)) if text else None
    except UsageError:
        return None


def latency_nbytes(found: ideal.Ceilings | None, collective: str, *, shift: str | None = None, algorithm: str | None = None) -> float:
    """The size in bytes below which latency costs more than the bytes (both terms of T = latency + S / rate); 0 where it is not known."""
    if found is None or collective not in found.collectives:
        return 0.0
    row, rate = _row(found, collective, shift), found.of(collective, algorithm, shift).attainable_GBps
    return 0.0 if row.latency_us is None or row.bus_factor <= 0 else row.latency_us * rate * 1e3 / row.bus_factor


def _row(found: ideal.Ceilings, collective: str, shift: str | None) -> ideal.CollectiveCeilings:
    by_node = f"{collective}:node"
    return found.collectives[by_node if shift == "node" and by_node in found.collectives else collective]


def ceiling_of(
    found: ideal.Ceilings | None, collective: str, *, nbytes: int, busbw_GBps: float | None, shift: str | None = None, algorithm: str | None = None
) -> Ceiling:
    """What one measured case is held against; all None where nothing is known.

    Below `latency_nbytes` it is limited by latency, and no bandwidth is expected of it.
    """
    if found is None or collective not in found.collectives:
        return Ceiling()
    latency_us = _row(found, collective, shift).latency_us
    best = found.of(collective, algorithm, shift)
    slow = nbytes < latency_nbytes(found, collective, shift=shift, algorithm=algorithm)
    if slow or best.expected is None:
        limit = "latency" if slow else best.limited_by
        return Ceiling(attainable_GBps=best.attainable_GBps, line_GBps=best.line_GBps, limited_by=limit, latency_us=latency_us)
    return Ceiling(
        expected_low_GBps=best.expected.low_GBps,
        expected_high_GBps=best.expected.mid_GBps,
        share_frac=None if busbw_GBps is None else busbw_GBps / best.expected.mid_GBps,
        attainable_GBps=best.attainable_GBps,
        limited_by=best.limited_by,
        line_GBps=best.line_GBps,
        latency_us=latency_us,
    )


def ceilings_of(run: Run) -> RunCeilings:
    """The ceilings of a run. Never raises: what is missing is said in `why_not`."""
    header = run.header
    if header.not_nccl or header.shared_gpu:
        return RunCeilings(_recorded(header), None, header.env, "it is no measurement of NCCL")
    try:
        topology = _recorded(header) or _from_log(run) or _from_ranks(header)
    except NcclBenchError as err:
        return RunCeilings(None, None, header.env, err.why)
    if topology is None:
        return RunCeilings(None, None, header.env, "the run names no GPUs, so what they could do is not known")
    places = _places(header, topology)
    why = None if places is not None else "the ranks' GPUs are not among those of the recorded topology"
    found = RunCeilings(topology, places, header.env, why, header.spec)
    found.of(header.n_ranks)
    return found


def _recorded(header: RunHeader) -> Topology | None:
    """The topology that run.json holds."""
    record = header.topology
    nodes = record.get("nodes") if isinstance(record, Mapping) else None
    if not isinstance(nodes, list) or not nodes:
        return None
    read = tuple(Node.from_json(node if isinstance(node, Mapping) else {}) for node in nodes)
    sources = record.get("sources") if isinstance(record, Mapping) else None
    told = tuple(str(source) for source in sources) if isinstance(sources, list) else ()
    return Topology(nodes=read, sources=told or ("the run's own record",))


def _from_log(run: Run) -> Topology | None:
    """What NCCL's own lines in a log say, where they name every GPU."""
    path = Path(run.path)
    if not path.is_file() or run.points is None:
        return None
    try:
        topology = files.topology_from([path], run.header.env)
    except NcclBenchError:
        return None
    known = all(node.gpus and all(gpu.model is not None for gpu in node.gpus) for node in topology.nodes)
    return topology if known and _places(run.header, topology) is not None else None


def _from_ranks(header: RunHeader) -> Topology | None:
    """Nodes of the GPUs that the ranks name, joined as these models are sold."""
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for rank in header.ranks:
        if not isinstance(rank.get("gpu"), Mapping) or not rank["gpu"].get("name"):
            return None
        by_host.setdefault(str(rank.get("host")), []).append(rank["gpu"])
    if not by_host:
        return None
    nodes = tuple(complete(Node(host=host, gpus=_gpus(found)), header.env) for host, found in by_host.items())
    return Topology(nodes=nodes, sources=("the log's list of devices, table of models",), assumptions=(BY_MODEL,))


def _gpus(found: Sequence[Mapping[str, Any]]) -> tuple[Gpu, ...]:
    gpus = [Gpu(index=at, name=str(gpu["name"]).removeprefix("NVIDIA ").strip(), bus_id=gpu.get("pci")) for at, gpu in enumerate(found)]
    # The table's own name, so that "H100 80GB HBM3" is the SXM.
    return tuple(replace(gpu, name=model.name) if (model := by_driver_name(gpu.name or "")) is not None else gpu for gpu in gpus)


def _places(header: RunHeader, topology: Topology) -> Places | None:
    """By rank: its GPU found in its host's node by UUID, else by PCI address, else by its number; None where one is not there."""
    nodes = {node.label: node for node in topology.nodes}
    if len(topology.nodes) == 1 and len({rank.get("host") for rank in header.ranks}) == 1:
        nodes |= {str(header.ranks[0].get("host")): topology.nodes[0]}
    places = []
    for rank in header.ranks:
        node, gpu = nodes.get(str(rank.get("host"))), rank.get("gpu")
        index = _index(node.gpus or (), gpu) if node is not None and isinstance(gpu, Mapping) else None
        if node is None or index is None:
            return None
        places.append((node.label, index))
    return tuple(places) if len(set(places)) == len(places) and places else None


def _index(gpus: Sequence[Gpu], wanted: Mapping[str, Any]) -> int | None:
    if wanted.get("uuid") and any(gpu.uuid for gpu in gpus):
        return next((gpu.index for gpu in gpus if gpu.uuid == wanted["uuid"]), None)
    # Old logs write "0x00" for every GPU of a virtual machine.
    if wanted.get("pci") and any(gpu.bus_id for gpu in gpus) and len({_bus(gpu.bus_id) for gpu in gpus}) == len(gpus):
        return next((gpu.index for gpu in gpus if _bus(gpu.bus_id) == _bus(wanted["pci"])), None)
    return next((gpu.index for gpu in gpus if gpu.index == wanted.get("index")), None)


def _bus(text: str | None) -> str:
    """A PCI address without function, with a four-digit domain, lower case: "0000:1a:00" of "00000000:1A:00.0"."""
    domain, _, rest = (text or "").lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"
