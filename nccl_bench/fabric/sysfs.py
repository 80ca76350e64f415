"""/sys: InfiniBand and RoCE ports, EFA, network interfaces, PCIe slots, NUMA nodes, PCI paths. The root is a parameter.

A thin reader: every file may be missing, empty or refuse to be read; a copied tree may lack its links. Layout: the kernel's
Documentation/ABI/stable/sysfs-class-infiniband, sysfs-class-net, sysfs-bus-pci.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nccl_bench.errors import DataError
from nccl_bench.fabric import ib, pcie
from nccl_bench.fabric.data import small_int
from nccl_bench.fabric.topology import Gpu, LinkLayer, Nic, Node, Pcie, with_warnings

MAX_FILE_BYTES = 4096
"""sysfs attributes are at most a page."""
MAX_DEVICES = 1024
SATURATED = 255
"""The largest value of an 8-bit counter (link_downed): it has stopped counting (InfiniBand Architecture Specification, PortCounters)."""
GID_SLOTS = 16
ROCE_MTU_OVERHEAD = 40 + 8 + 12 + 4 + 28 + 4
"""What the kernel takes off an interface's MTU: GRH, UDP, BTH, XRC, atomic header, ICRC (include/rdma/ib_addr.h iboe_get_mtu)."""
CLOUDS = {"Amazon EC2": "product_name", "Google": "product_name", "Microsoft Corporation": "product_name"}


def is_tree(path: Path) -> bool:
    """Whether a directory is a copy of /sys, or of its class/infiniband."""
    return _class_root(path) is not None


def _class_root(path: Path) -> Path | None:
    for inner in ("class", "sys/class"):
        if (path / inner / "infiniband").is_dir() or (path / inner / "net").is_dir():
            return path / inner
    return None


def read(root: Path, dev: Path | None = None) -> Node:
    """The NICs below `root` (a /sys). With `dev` (a /dev), ports without a device file there are said not to be usable.

    Raises DataError where there is neither class/infiniband nor class/net.
    """
    base = _class_root(root)
    if base is None:
        raise DataError(f"{root}: no copy of /sys: neither class/infiniband nor class/net is there")
    nics: list[Nic] = []
    warnings: list[str] = []
    for device in _entries(base / "infiniband"):
        found, texts = _rdma_device(device, base)
        if dev is not None and found and not _usable(device, dev):
            texts.append(f"{device.name}: no {dev}/infiniband/uverbs device: this container cannot open it")
            found = [replace(nic, state="NOT VISIBLE") for nic in found]
        nics += found
        warnings += texts
    rdma_interfaces = {name for nic in nics for name in _interfaces(base / "infiniband" / (nic.name or "-"))}
    nics += [nic for path in _entries(base / "net") if path.name not in rdma_interfaces and (nic := _interface(path)) is not None]
    return with_warnings(Node(nics=tuple(nics), platform=_platform(base)), *warnings)


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir(), key=lambda entry: _natural(entry.name))[:MAX_DEVICES]
    except OSError:
        return []


def _natural(name: str) -> list[tuple[int, str]]:
    """mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def text_of(path: Path) -> str | None:
    """The stripped text of an attribute; None where it is missing, unreadable or empty."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES)
    except OSError:
        return None
    return raw.decode("utf-8", errors="replace").strip() or None


def _rdma_device(device: Path, base: Path) -> tuple[list[Nic], list[str]]:
    nics: list[Nic] = []
    warnings: list[str] = []
    driver = _driver(device / "device")
    vendor = text_of(device / "device" / "vendor") or ""
    common = _pci_facts(device / "device")
    for port in _entries(device / "ports"):
        number = small_int(port.name)
        if number is None:
            continue
        rate, layer = text_of(port / "rate") or "", text_of(port / "link_layer") or ""
        nic, texts = ib.port(device.name, number, rate, layer, ib.state_word(text_of(port / "state")), driver=driver, vendor=vendor)
        nic = replace(nic, model=text_of(device / "hca_type") or text_of(device / "board_id") or driver or None, **common)
        if nic.link_layer == "RoCE":
            nic = replace(nic, gid_type=_gid_type(port), mtu=_roce_mtu(device, base))
        nics.append(nic)
        warnings += [*texts, *_port_warnings(device, port, nic)]
    return nics, warnings


def _port_warnings(device: Path, port: Path, nic: Nic) -> list[str]:
    warnings = []
    if small_int(text_of(port / "counters" / "link_downed")) == SATURATED:
        warnings.append(f"{nic.label}: link_downed stands at {SATURATED}, the end of its 8-bit counter: the link went down at least so often")
    now, most = _slot(device / "device", "current"), _slot(device / "device", "max")
    if now.GBps is not None and most.GBps is not None and now.GBps < most.GBps:
        slot, card = f"Gen{now.generation} x{now.width}", f"Gen{most.generation} x{most.width}"
        warnings.append(f"{nic.label}: its slot runs at {slot}, the card can {card}")
    return warnings


def _pci_facts(device: Path) -> dict[str, Any]:
    """numa, slot, address and bridges of a PCI device; nothing where the tree has no link to it."""
    numa = small_int(text_of(device / "numa_node"))
    path = real_path(device)
    slot = _slot(device, "current")
    return {
        "numa": None if numa is None or numa < 0 else numa,
        "pcie": slot if slot.generation is not None or slot.width is not None else None,
        "bus_id": pcie.address(path.name) if path is not None else None,
        "bridges": bridges_of(path) if path is not None else None,
    }


def real_path(device: Path) -> Path | None:
    """Where a device really is below /sys/devices; None where the tree has no link."""
    try:
        path = device.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return next((part for part in (path, *path.parents) if pcie.address(part.name)), None)


def bridges_of(path: Path, which: str = "current") -> tuple[tuple[str, float | None], ...] | None:
    """(address, uplink GB/s) of the bridges above a device, root complex first; None where the path shows none.

    `which`: the "current" speed of each, or the "max" one where an idle GPU may have slowed the links above it.
    """
    chain = [part for part in reversed(path.parents) if pcie.address(part.name) or re.match(r"pci[0-9a-f]{1,8}:[0-9a-f]{2}$", part.name)]
    if not chain or not chain[0].name.startswith("pci"):
        return None
    return tuple((part.name, None if part.name.startswith("pci") else _slot(part, which).GBps) for part in chain)


def _slot(device: Path, which: str) -> Pcie:
    speed, lanes = text_of(device / f"{which}_link_speed"), text_of(device / f"{which}_link_width")
    return pcie.link(pcie.generation(speed), pcie.width(lanes))


def _driver(device: Path) -> str:
    try:
        return (device / "driver").resolve(strict=True).name
    except (OSError, RuntimeError):
        return ""


def _gid_type(port: Path) -> str | None:
    """"RoCE v2" where any GID has it, else "IB/RoCE v1"; reading an empty slot fails, and is passed over."""
    found = {text_of(port / "gid_attrs" / "types" / str(slot)) for slot in range(GID_SLOTS)} - {None}
    return "RoCE v2" if "RoCE v2" in found else next(iter(sorted(word for word in found if word)), None)


def _interfaces(device: Path) -> list[str]:
    return [entry.name for entry in _entries(device / "device" / "net")]


def _roce_mtu(device: Path, base: Path) -> int | None:
    """The active MTU of RoCE, bytes: the largest InfiniBand MTU that fits the interface's, as the kernel reckons it."""
    sizes = [size for name in _interfaces(device) if (size := small_int(text_of(base / "net" / name / "mtu"))) is not None]
    return roce_mtu(min(sizes)) if sizes else None


def roce_mtu(interface_mtu: int) -> int | None:
    """RoCE's active MTU of an Ethernet MTU: 1500 -> 1024, 4200 and 9000 -> 4096."""
    return next((mtu for mtu in (4096, 2048, 1024, 512, 256) if interface_mtu - ROCE_MTU_OVERHEAD >= mtu), None)


def _interface(path: Path) -> Nic | None:
    """A physical or para-virtual Ethernet interface that is up; None for loopback, bridges and what is down."""
    if not (path / "device").exists() and text_of(path / "bonding" / "slaves") is None:
        return None
    if text_of(path / "type") not in (None, "1"):
        return None
    mbit = small_int(text_of(path / "speed"))
    state = (text_of(path / "operstate") or "").upper()
    facts = _pci_facts(path / "device")
    layer: LinkLayer = "Slingshot" if path.name.startswith("hsn") or _driver(path / "device").startswith("cxi") else "Ethernet"
    word = {"UP": "ACTIVE", "DOWN": "DOWN", "UNKNOWN": "ACTIVE"}.get(state)
    rate = mbit / 1000 if mbit is not None and mbit > 0 else None
    return replace(Nic(name=path.name, rate_gbit=rate, link_layer=layer, state=word), **facts)


def _usable(device: Path, dev: Path) -> bool:
    verbs = [entry.name for entry in _entries(device / "device" / "infiniband_verbs")]
    return not verbs or any((dev / "infiniband" / name).exists() for name in verbs)


def _platform(base: Path) -> str | None:
    """The instance type or board that the firmware names, on clouds that name it."""
    dmi = base / "dmi" / "id"
    vendor, product = text_of(dmi / "sys_vendor"), text_of(dmi / "product_name")
    return product if vendor is not None and any(vendor.startswith(cloud) for cloud in CLOUDS) else None


def with_paths(gpus: Iterable[Gpu], root: Path) -> tuple[Gpu, ...]:
    """GPUs with what /sys knows of their slots: bridges, NUMA node and the slowest hop up to the CPU."""
    return tuple(_with_path(gpu, root) for gpu in gpus)


def _with_path(gpu: Gpu, root: Path) -> Gpu:
    path = None if gpu.bus_id is None else real_path(root / "bus" / "pci" / "devices" / gpu.bus_id)
    if path is None:
        return gpu
    bridges = bridges_of(path, "max")
    numa = small_int(text_of(path / "numa_node"))
    hops = [rate for _name, rate in bridges or () if rate is not None]
    slot = gpu.pcie
    if slot is not None and hops and slot.GBps is not None and min(hops) < slot.GBps:
        slot = replace(slot, path_GBps=min(hops), note=f"a bridge above it carries {min(hops):g} GB/s")
    return replace(gpu, bridges=bridges, pcie=slot, numa=gpu.numa if numa is None or numa < 0 else numa)
