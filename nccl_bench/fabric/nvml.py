"""NVML: GPUs, links, slots, multi-node NVLink domains. pynvml is imported in the function that needs it; a like module may be passed.

What NVML does not answer stays unknown. Call names, field numbers and enums: nvidia-ml-py 13.615 (pynvml.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nccl_bench.fabric import gpus as models
from nccl_bench.fabric import pcie
from nccl_bench.fabric.nvml_ask import ask
from nccl_bench.fabric.topology import Gpu, Node, NvLink

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS."""
VERSION = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""NVLink generation by NVML_NVLINK_VERSION_*, which is an enum and no number."""
SPEED_OF_LINK, SPEED_COMMON = 164, 90
"""NVML_FI_DEV_NVLINK_GET_SPEED (scope: link) and NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: signalling rate, MB/s."""
TO_GPU, TO_SWITCH = 0, 2
"""NVML_NVLINK_DEVICE_TYPE_GPU, _SWITCH."""
FABRIC_DONE = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED."""
NOT_THERE = (2, 3)
"""NVML_ERROR_INVALID_ARGUMENT, _NOT_SUPPORTED: there is no such link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """What NVML said, or why it said nothing."""

    node: Node | None
    driver: str | None = None
    why: str | None = None
    """Why there is no node: NVML missing, no driver, no device."""


def load() -> ModuleType | None:
    """The pynvml module, None where it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]


def read(nvml: Any = None) -> NvmlReading:
    """The GPUs that NVML sees, in its own (PCI) order. Never raises for what NVML cannot do."""
    nvml = nvml if nvml is not None else load()
    if nvml is None:
        return NvmlReading(node=None, why="the Python package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as err:
        return NvmlReading(node=None, why=f"NVML does not start: {err}")
    try:
        driver = ask(nvml, "nvmlSystemGetDriverVersion")
        count = ask(nvml, "nvmlDeviceGetCount") or 0
        handles = [handle for index in range(count) if (handle := ask(nvml, "nvmlDeviceGetHandleByIndex", index)) is not None]
        if len(handles) < count or not count:
            why = "NVML sees no GPU" if not count else f"NVML opens {len(handles)} of {count} GPUs"
            if not handles:
                return NvmlReading(node=None, driver=_text(driver), why=why)
        return NvmlReading(node=_node(nvml, handles, count), driver=_text(driver))
    finally:
        ask(nvml, "nvmlShutdown")


def _node(nvml: Any, handles: list[Any], count: int) -> Node:
    warnings: list[str] = [] if len(handles) == count else [f"NVML opens {len(handles)} of {count} GPUs: the others have fallen off the bus"]
    buses = {_bus(nvml, handle): index for index, handle in enumerate(handles)}
    gpus, ends = [], set()
    for index, handle in enumerate(handles):
        gpu, kinds, texts = _gpu(nvml, handle, index, buses)
        gpus.append(gpu)
        ends |= kinds
        warnings += texts
    known = all(gpu.nvlink is not None for gpu in gpus)
    switch = None if not known or None in ends else ends == {TO_SWITCH} if len(ends) < 2 else None
    return Node(gpus=tuple(gpus), switch=switch, warnings=tuple(warnings))


def _gpu(nvml: Any, handle: Any, index: int, buses: dict[str | None, int]) -> tuple[Gpu, set[int | None], list[str]]:
    name = _text(ask(nvml, "nvmlDeviceGetName", handle))
    cc = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    mig = ask(nvml, "nvmlDeviceGetMigMode", handle)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    link, ends, warnings = _links(nvml, handle, index, buses)
    clique, degraded = _fabric(nvml, handle)
    if degraded:
        warnings.append(f"GPU {index}: the NVLink fabric says that its bandwidth is degraded")
    gpu = Gpu(
        index=index,
        name=None if name is None else models.bare(name),
        bus_id=_bus(nvml, handle),
        uuid=_text(ask(nvml, "nvmlDeviceGetUUID", handle)),
        cc=None if cc is None else 10 * int(cc[0]) + int(cc[1]),
        nvlink=link,
        pcie=_slot(nvml, handle),
        clique=clique,
        mig=None if mig is None else bool(mig[0]),
        memory_nbytes=None if memory is None else int(memory.total),
    )
    return gpu, ends, warnings


def _bus(nvml: Any, handle: Any) -> str | None:
    info = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    return None if info is None else pcie.address(_text(info.busId))


def _slot(nvml: Any, handle: Any) -> Any:
    """The best the slot and the GPU can do together: an idle GPU runs its link slower, so the current speed says nothing."""
    generation = ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    lanes = ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    slot = pcie.link(generation if generation in pcie.LANE_GBPS else None, pcie.width(str(lanes)))
    return None if slot.generation is None and slot.width is None else slot


def _links(nvml: Any, handle: Any, index: int, buses: dict[str | None, int]) -> tuple[NvLink | None, set[int | None], list[str]]:
    """The links that are up, where they end, and warnings of those that are down. None where NVML does not answer at all."""
    up: list[int] = []
    down: list[int] = []
    for number in range(MAX_LINKS):
        state = _link_state(nvml, handle, number)
        if state is None:
            return None, {None}, []
        if state < 0:
            break
        (up if state and _can_p2p(nvml, handle, number) else down).append(number)
    if not up and not down:
        return NvLink(links=0, per_direction_GBps=0.0, bonds=()), set(), []
    generation = next((VERSION[word] for number in up if (word := ask(nvml, "nvmlDeviceGetNvLinkVersion", handle, number)) in VERSION), None)
    speeds = [_speed(nvml, handle, number) for number in up]
    known = [speed for speed in speeds if speed]
    signal = sum(known) if len(known) == len(up) else None
    rate = None if signal is None else round(sum(models.marketed(speed, generation) for speed in known), 3)
    ends = [_end(nvml, handle, number, buses) for number in up]
    bonds: dict[int, int] = {}
    for _kind, peer in ends:
        if peer is not None and peer != index:
            bonds[peer] = bonds.get(peer, 0) + 1
    link = NvLink(
        generation=generation,
        links=len(up),
        inactive=len(down),
        per_direction_GBps=rate if up else 0.0,
        signal_GBps=None if signal is None else round(signal, 3),
        bonds=tuple(sorted(bonds.items())) if sum(bonds.values()) == len(up) else None,
    )
    which = ", ".join(str(number) for number in down)
    return link, {kind for kind, _peer in ends}, [f"GPU {index}: NVLink {which} down, {len(up)} up"] if down and up else []


def _link_state(nvml: Any, handle: Any, number: int) -> int | None:
    """1 up, 0 down, -1 no such link, None where NVML fails otherwise."""
    call = getattr(nvml, "nvmlDeviceGetNvLinkState", None)
    if call is None:
        return None
    try:
        return int(call(handle, number))
    except nvml.NVMLError as err:
        return -1 if getattr(err, "value", None) in NOT_THERE else None


def _can_p2p(nvml: Any, handle: Any, number: int) -> bool:
    """Whether the link carries peer-to-peer traffic (NVML_NVLINK_CAP_P2P_SUPPORTED = 0); NCCL passes over a link that cannot."""
    answer = ask(nvml, "nvmlDeviceGetNvLinkCapability", handle, number, 0)
    return answer is None or int(answer) != 0


def _speed(nvml: Any, handle: Any, number: int) -> float | None:
    """Signalling rate of a link, GB/s."""
    for field in ((SPEED_OF_LINK, number), SPEED_COMMON):
        values = ask(nvml, "nvmlDeviceGetFieldValues", handle, [field])
        if values is not None and len(values) and values[0].nvmlReturn == 0 and 0 < values[0].value.uiVal < 1 << 20:
            return float(values[0].value.uiVal) / 1000
    return None


def _end(nvml: Any, handle: Any, number: int, buses: dict[str | None, int]) -> tuple[int | None, int | None]:
    """(kind of device, GPU index) at the other end of a link."""
    kind = ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
    remote = ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
    text = "" if remote is None else (_text(remote.busId) or "")
    if text.upper().startswith("FFFFFF"):
        return TO_SWITCH, None
    address = pcie.address(text)
    peer = buses.get(address) if address is not None else None
    if peer is not None:
        return TO_GPU, peer
    return (kind if kind in (TO_GPU, TO_SWITCH) else None), None


def _fabric(nvml: Any, handle: Any) -> tuple[str | None, bool]:
    """("cluster uuid.clique" of a multi-node NVLink domain, whether its bandwidth is degraded)."""
    make = getattr(nvml, "c_nvmlGpuFabricInfoV_t", None)
    if make is None or getattr(nvml, "nvmlDeviceGetGpuFabricInfoV", None) is None:
        return None, False
    from ctypes import byref

    info = make()
    if ask(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, byref(info)) is None:
        return None, False
    cluster = bytes(info.clusterUuid).hex()
    if info.state != FABRIC_DONE or not int(cluster, 16):
        return None, False
    return f"{cluster}.{info.cliqueId:x}", info.healthMask & 0x3 == 1


def _text(value: Any) -> str | None:
    """Text of what old versions of the package give as bytes."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
