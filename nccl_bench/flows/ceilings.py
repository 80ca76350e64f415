"""Each point beside its ceilings: the topology of a run, its ranks' places in it, and what the fabric's arithmetic says of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_bench.errors import DetectError, NcclBenchError
from nccl_bench.fabric import detect, ideal
from nccl_bench.fabric.shape import RankPlace
from nccl_bench.fabric.topology import Topology
from nccl_bench.launch.values import Joined, Json
from nccl_bench.records import Ceiling, Point

UNKNOWN = Ceiling()


class Fabric:
    """What is known of the fabric under a run."""

    def __init__(self, topology: Topology | None, places: Sequence[RankPlace] | None, environ: Mapping[str, str]) -> None:
        """places: [rank] (host, GPU index in the topology) or a GPU's number; None where ranks have no GPU of their own."""
        self.topology, self._places, self._environ = topology, places, environ
        self._known: dict[tuple[str, str], ideal.Ceilings | None] = {}
        self.why_not: str | None = None
        """Why there are no ceilings."""

    def of(self, point: Point) -> Ceiling:
        """The ceilings of one point; UNKNOWN where there are none, or nobody to talk to."""
        if point.n_ranks == 1:
            return UNKNOWN
        found = self._ceilings(point.dtype or "float32", point.op or "sum")
        if found is None or point.collective not in found.collectives:
            return UNKNOWN
        name = "sendrecv:node" if point.shift == "node" and "sendrecv:node" in found.collectives else point.collective
        ceiling, latency_us = found.of(point.collective, point.algorithm, point.shift), found.collectives[name].latency_us
        if _is_latency(point, found.collectives[name].bus_factor, ceiling.attainable_GBps, latency_us):
            return Ceiling(limited_by="latency", line_GBps=ceiling.line_GBps, latency_us=latency_us)
        expected = ceiling.expected
        return Ceiling(
            expected_low_GBps=expected.low_GBps if expected else None,
            expected_high_GBps=expected.mid_GBps if expected else None,
            share_frac=point.busbw_GBps / expected.mid_GBps if expected and point.busbw_GBps is not None else None,
            attainable_GBps=ceiling.attainable_GBps,
            limited_by=ceiling.limited_by,
            line_GBps=ceiling.line_GBps,
            latency_us=latency_us,
        )

    def _ceilings(self, dtype: str, op: str) -> ideal.Ceilings | None:
        if self.topology is None or self._places is None:
            return None
        if (dtype, op) not in self._known:
            try:
                self._known[dtype, op] = ideal.ceilings(self.topology, self._places, self._environ, dtype=dtype, op=op)
            except NcclBenchError as err:
                self._known[dtype, op], self.why_not = None, err.why
        return self._known[dtype, op]


def _is_latency(point: Point, bus_factor: float, attainable_GBps: float, latency_us: float | None) -> bool:
    """Whether the smallest message's expected time outweighs the bytes' at the attainable rate (both terms of T = latency + S / rate)."""
    if latency_us is None or attainable_GBps <= 0:
        return False
    return point.nbytes * bus_factor / attainable_GBps * 1e-3 < latency_us


def fabric_of(joined: Joined, *, nccl: bool, shared_gpu: bool, environ: Mapping[str, str]) -> tuple[Fabric, tuple[str, ...]]:
    """The fabric that the ranks' nodes told of, and what should be said about it."""
    nodes = [facts["hello"]["fabric"] for facts in joined.facts if facts["hello"].get("fabric")]
    if not nodes:
        return Fabric(None, None, environ), ()
    try:
        topology = detect.topology_of(nodes)
    except (DetectError, KeyError, TypeError, ValueError) as err:
        return Fabric(None, None, environ), (f"the fabric could not be read: {err}",)
    if not nccl or shared_gpu:
        return Fabric(topology, None, environ), ()
    places = _places(joined, topology)
    fabric = Fabric(topology, places, environ)
    if places is None:
        return fabric, (*topology.all_warnings(), "no ceilings: the ranks' GPUs are not among those that NVML shows")
    fabric.of(Point(collective="all_reduce", dtype="float32", op="sum", root=None, nbytes=1, requested_nbytes=1, count=1, n_ranks=len(places),
                    placement="in", clock=None, regime=None))  # fmt: skip
    reason = (f"no ceilings: {fabric.why_not}",) if fabric.why_not else ()
    return fabric, (*topology.all_warnings(), *reason)


def _places(joined: Joined, topology: Topology) -> list[tuple[str, int]] | None:
    """[rank] (host, index): CUDA's device of each rank found among its node's GPUs by UUID, else by PCI address."""
    hosts = {node.host: node for node in topology.nodes}
    places: list[tuple[str, int]] = []
    for facts in joined.facts:
        node, device = hosts.get(facts["host"]), facts["hello"].get("device")
        if node is None or device is None:
            return None
        index = _index(node.gpus or (), device)
        if index is None:
            return None
        places.append((str(node.host), index))
    return places


def _index(gpus: Sequence[object], device: Json) -> int | None:
    for gpu in gpus:
        uuid, bus_id = getattr(gpu, "uuid", None), getattr(gpu, "bus_id", None)
        if (uuid and uuid == device.get("uuid")) or (bus_id and _bus(bus_id) == _bus(device.get("pci_bus_id"))):
            return int(gpu.index)  # type: ignore[attr-defined]
    return None


def _bus(text: str | None) -> str:
    """A PCI address with a four-digit domain, lower case."""
    domain, _, rest = (text or "").lower().partition(":")
    return f"{domain[-4:]}:{rest}"
