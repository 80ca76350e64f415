"""Each point beside its ceilings: the topology of a run, its ranks' places in it, and what the fabric's arithmetic says of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_bench.errors import DetectError
from nccl_bench.fabric import detect
from nccl_bench.fabric.topology import Topology
from nccl_bench.launch.values import Joined, Json
from nccl_bench.records import Ceiling, Point
from nccl_bench.verdict.ceilings import Places, RunCeilings, ceiling_of


class Fabric:
    """What is known of the fabric under a run."""

    def __init__(self, topology: Topology | None, places: Places | None, environ: Mapping[str, str], spec: Json | None = None) -> None:
        """places: [rank] (host, GPU index in the topology); None where ranks have no GPU of their own. spec: as run.json keeps it."""
        self.topology = topology
        self._ceilings = RunCeilings(topology, places, environ, None, spec)

    @property
    def why_not(self) -> str | None:
        """Why there are no ceilings."""
        return self._ceilings.why_not

    def of(self, point: Point) -> Ceiling:
        """The ceilings of one point; all None where there are none, or nobody to talk to."""
        if point.n_ranks == 1 or point.kind != "collective":
            return Ceiling()
        axis, ranks = (None, None) if point.group is None else (point.group.axis, point.group.slowest)
        names = ("n_ranks", "dtype", "op", "variant", "special")
        found = self._ceilings.of_case({**{name: getattr(point, name) for name in names}, "axis": axis, "slowest_ranks": ranks})
        return ceiling_of(found, point.collective, nbytes=point.nbytes, busbw_GBps=point.busbw_GBps, shift=point.shift, algorithm=point.algorithm)


def fabric_of(
    joined: Joined, *, nccl: bool, shared_gpu: bool, environ: Mapping[str, str], spec: Json | None = None
) -> tuple[Fabric, tuple[str, ...]]:
    """The fabric that the ranks' nodes told of, and what should be said about it. `spec`: what is measured, as run.json keeps it."""
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
    fabric = Fabric(topology, places, environ, spec)
    if places is None:
        return fabric, (*topology.all_warnings(), "no ceilings: the ranks' GPUs are not among those that NVML shows")
    fabric.of(Point(collective="all_reduce", dtype="float32", op="sum", root=None, nbytes=1, requested_nbytes=1, count=1, n_ranks=len(places),
                    placement="in", clock=None, regime=None))  # fmt: skip
    reason = (f"no ceilings: {fabric.why_not}",) if fabric.why_not else ()
    return fabric, (*topology.all_warnings(), *reason)


def _places(joined: Joined, topology: Topology) -> Places | None:
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
    return tuple(places)


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
