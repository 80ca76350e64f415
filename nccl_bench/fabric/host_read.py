"""What doctor reads of one host: versions, GPUs, ports, settings, limits; plain JSON, no judgement, nothing is changed.

Works where CUDA, torch and NCCL are missing or broken. Every root is a parameter; what cannot be read is None, and what
needed root is listed by name under "needs_root". Call names: nvidia-ml-py 13.615; files: the kernel's Documentation/ABI.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from nccl_bench.fabric import nvml as nvml_reader
from nccl_bench.fabric import pcie
from nccl_bench.fabric.detect import node_here
from nccl_bench.fabric.nvml_ask import gpu_facts
from nccl_bench.fabric.sysfs import text_of
from nccl_bench.fabric.topology import Json

XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{4,20})\): (\d{1,4})")
MAX_KMSG = 4 << 20
"""The kernel's ring buffer is at most some MiB."""
ACS_CAPABILITY, EXPRESS_CAPABILITY = 0x000D, 0x10
"""PCI Express Base Specification 7.7.11 (ACS, extended), 7.5.3 (PCI Express capability)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where /sys, /proc, /dev and /etc are."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    etc: Path = Path("/etc")

    @classmethod
    def under(cls, root: Path) -> Roots:
        """All four below one folder, as a copied tree has them."""
        return cls(sys=root / "sys", proc=root / "proc", dev=root / "dev", etc=root / "etc")


def read_host(environ: Mapping[str, str], roots: Roots, *, nvml: Any = None, host: str | None = None) -> Json:
    """Everything of this host. `nvml`: a pynvml-like module, by default the installed one."""
    node = node_here(environ, roots.sys, roots.dev, nvml=nvml, host=host or socket.gethostname())
    library = nvml if nvml is not None else nvml_reader.load()
    denied: list[str] = []
    gpus, why = gpu_facts(library)
    ports = [_port(roots, port) for port in _rdma_ports(roots)]
    return {
        "host": node.host,
        "node": node.to_json(),
        "gpus": gpus,
        "why_no_gpus": why,
        "n_device_files": _device_files(roots.dev),
        "ports": ports,
        "interfaces": _interfaces(roots.sys),
        "versions": _versions(roots),
        **_kernel_log(roots.dev / "kmsg", denied),
        "settings": _settings(environ, roots, denied),
        "acs_on": _acs(roots.sys, denied),
        "limits": _limits(roots),
        "chassis": _chassis(roots.sys, denied),
        "nccl_conf": _conf(environ, roots.etc),
        "env": {name: environ[name] for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_IB_TC", "NCCL_IB_GID_INDEX") if name in environ},
        "needs_root": denied,
    }


def rank_facts(environ: Mapping[str, str]) -> Json:
    """What this process, a rank's, may use: its CPUs and the GPUs it was given."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"cpus": cpus, "visible": environ.get("CUDA_VISIBLE_DEVICES"), "multi_rank": environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"}


# ---- versions


def _versions(roots: Roots) -> Json:
    return {
        "driver": _driver(roots.proc),
        "torch": _package("torch"),
        "cuda": cuda_of_torch(),
        "nccl": next((found for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11") if (found := _package(name))), None),
        "ofed": text_of(roots.sys / "module" / "mlx5_core" / "version"),
        "efa": text_of(roots.sys / "module" / "efa" / "version"),
        "kernel": text_of(roots.proc / "sys" / "kernel" / "osrelease"),
        "nccl_bench": _package("nccl-bench"),
    }


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cuda_of_torch() -> str | None:
    """The CUDA that torch was built with, from its version file: torch itself may be broken, and loading it takes seconds."""
    try:
        path = distribution("torch").locate_file("torch/version.py")
        found = re.search(r"^cuda\b[^=]{0,40}= *['\"](\d{1,3}\.\d{1,3})", Path(str(path)).read_text(errors="replace"), re.MULTILINE)
    except (PackageNotFoundError, OSError):
        return None
    return found[1] if found else None


def _driver(proc: Path) -> str | None:
    text = text_of(proc / "driver" / "nvidia" / "version") or ""
    found = re.search(r"\b\d{3,4}\.\d{2,4}(\.\d{2,4})?\b", text)
    return found[0] if found else None


def _device_files(dev: Path) -> int:
    return sum(1 for name in _names(dev) if re.fullmatch(r"nvidia\d{1,3}", name))


# ---- ports


def _names(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir())[:4096]
    except OSError:
        return []


def _rdma_ports(roots: Roots) -> list[tuple[str, str]]:
    base = roots.sys / "class" / "infiniband"
    return [(device, port) for device in _names(base) for port in _names(base / device / "ports")]


def _port(roots: Roots, port: tuple[str, str]) -> Json:
    device = roots.sys / "class" / "infiniband" / port[0]
    at = device / "ports" / port[1]
    nets = _names(device / "device" / "net")
    config = _config(device / "device" / "config")
    return {
        "name": port[0],
        "port": port[1],
        "state": text_of(at / "state"),
        "phys_state": text_of(at / "phys_state"),
        "rate": text_of(at / "rate"),
        "layer": text_of(at / "link_layer"),
        "driver": _link_name(device / "device" / "driver"),
        "firmware": text_of(device / "fw_ver"),
        "psid": text_of(device / "board_id"),
        "guid": text_of(device / "node_guid"),
        "link_downed": text_of(at / "counters" / "link_downed"),
        "interfaces": nets,
        "mtu": text_of(roots.sys / "class" / "net" / nets[0] / "mtu") if nets else None,
        "traffic_class": text_of(device / "tc" / port[1] / "traffic_class"),
        "pfc": text_of(roots.sys / "class" / "net" / nets[0] / "qos" / "pfc") if nets else None,
        "speed": text_of(device / "device" / "current_link_speed"),
        "max_speed": text_of(device / "device" / "max_link_speed"),
        "width": text_of(device / "device" / "current_link_width"),
        "max_width": text_of(device / "device" / "max_link_width"),
        "read_request": None if config is None else max_read_request(config),
    }


def _link_name(path: Path) -> str | None:
    try:
        return path.resolve(strict=True).name
    except (OSError, RuntimeError):
        return None


def _interfaces(sys: Path) -> Json:
    base = sys / "class" / "net"
    return {name: {"state": text_of(base / name / "operstate"), "mtu": text_of(base / name / "mtu")} for name in _names(base)}


# ---- PCI configuration space


def _config(path: Path) -> bytes | None:
    """The configuration space; None where less than its capabilities may be read (64 bytes without root)."""
    try:
        data = path.read_bytes()[:4096]
    except OSError:
        return None
    return data if len(data) >= 256 else None


def max_read_request(config: bytes) -> int | None:
    """MaxReadReq in bytes from the PCI Express capability's device control register (bits 12-14)."""
    at = config[0x34] if len(config) >= 256 else 0
    for _ in range(48):
        if at < 0x40 or at + 10 > len(config):
            return None
        if config[at] == EXPRESS_CAPABILITY:
            return 128 << ((int.from_bytes(config[at + 8 : at + 10], "little") >> 12) & 7)
        at = config[at + 1]
    return None


def acs_enabled(config: bytes) -> bool | None:
    """Whether a bridge sends peer-to-peer traffic up to the CPU: P2P request redirect or source validation set in its ACS control."""
    at = 0x100
    for _ in range(96):
        if at < 0x100 or at + 8 > len(config):
            return None
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == ACS_CAPABILITY:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & 0x1D)
        at = head >> 20
    return None


def _acs(sys: Path, denied: list[str]) -> list[str] | None:
    """Addresses of PCI bridges with ACS redirection on; None where the configuration of one that is not known to have it cannot be read."""
    base = sys / "bus" / "pci" / "devices"
    if not base.is_dir():
        return None
    bridges = [name for name in _names(base) if (text_of(base / name / "class") or "").startswith("0x0604")]
    configs = {name: _config(base / name / "config") for name in bridges}
    on = [name for name, config in configs.items() if config is not None and acs_enabled(config)]
    if not on and any(config is None or len(config) <= 256 for config in configs.values()):  # ACS lies in the extended space, beyond 256 bytes
        denied.append("acs")
        return None
    return on


# ---- the kernel's words, settings, limits


def xids_of(path: Path, denied: list[str]) -> list[Json] | None:
    """[{pci, xid}] that the kernel's ring buffer holds; None where it may not be read."""
    found: list[Json] | None = _kernel_log(path, denied)["xids"]
    return found


def _kernel_log(path: Path, denied: list[str]) -> Json:
    """xids: [{pci, xid}] of the kernel's ring buffer, None where it may not be read; whether it goes back to when the driver was loaded."""
    data = _ring(path, denied)
    if data is None:
        return {"xids": None, "log_since_driver": None}
    xids = [
        {"pci": pcie.address(pci + ".0" if "." not in pci else pci) or pci, "xid": int(number)}
        for pci, number in XID.findall(data.decode("utf-8", "replace"))
    ]
    first = re.match(rb"\d{1,10},(\d{1,20}),", data)
    whole = first is None or int(first[1]) == 0 or b"NVRM: loading NVIDIA" in data
    return {"xids": xids, "log_since_driver": whole}


def _ring(path: Path, denied: list[str]) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except PermissionError:
        denied.append("xid")
        return None
    except OSError:
        return None
    data = b""
    try:
        while len(data) < MAX_KMSG and (chunk := os.read(fd, 8192)):
            data += chunk
    except BlockingIOError:
        pass
    except PermissionError:
        denied.append("xid")
        return None
    except OSError:
        pass  # the buffer was overwritten while it was read: what came counts
    finally:
        os.close(fd)
    return data


def _settings(environ: Mapping[str, str], roots: Roots, denied: list[str]) -> Json:
    cpus = roots.sys / "devices" / "system" / "cpu"
    governors = {text_of(cpus / name / "cpufreq" / "scaling_governor") for name in _names(cpus) if re.fullmatch(r"cpu\d{1,5}", name)} - {None}
    command = text_of(roots.proc / "cmdline")
    modules = roots.sys / "module"
    return {
        "governors": sorted(str(word) for word in governors),
        "numa_balancing": text_of(roots.proc / "sys" / "kernel" / "numa_balancing"),
        "iommu": _names(roots.sys / "class" / "iommu") if (roots.sys / "class" / "iommu").is_dir() else None,
        "iommu_passthrough": None if command is None else bool(re.search(r"\biommu(\.passthrough=1|=pt)\b", command)),
        "peermem": any((modules / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem")) if modules.is_dir() else None,
        "open_driver": "Open Kernel Module" in (text_of(roots.proc / "driver" / "nvidia" / "version") or ""),
        "numa_cpus": _numa_cpus(roots.sys),
    }


def _numa_cpus(sys: Path) -> Json:
    base = sys / "devices" / "system" / "node"
    return {name[4:]: cpu_list(text_of(base / name / "cpulist") or "") for name in _names(base) if re.fullmatch(r"node\d{1,4}", name)}


def cpu_list(text: str) -> list[int]:
    """The numbers of "0-3,8"."""
    found: list[int] = []
    for part in re.findall(r"\d{1,5}(?:-\d{1,5})?", text):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


def _limits(roots: Roots) -> Json:
    """Soft limits of this process: bytes of locked memory and open files, None for no limit; bytes of /dev/shm."""

    def soft(which: int) -> int | None:
        value = resource.getrlimit(which)[0]
        return None if value == resource.RLIM_INFINITY else value

    try:
        shm: int | None = shutil.disk_usage(roots.dev / "shm").total
    except OSError:
        shm = None
    return {"memlock": soft(resource.RLIMIT_MEMLOCK), "nofile": soft(resource.RLIMIT_NOFILE), "shm": shm}


def _chassis(sys: Path, denied: list[str]) -> Json:
    base = sys / "class" / "dmi" / "id"
    names = ("sys_vendor", "product_name", "product_serial", "chassis_serial", "board_serial")
    found = {name: text_of(base / name) for name in names}
    if found["product_serial"] is None and (base / "product_serial").exists():
        denied.append("chassis")
    return found


def _conf(environ: Mapping[str, str], etc: Path) -> list[str] | None:
    """Lines of nccl.conf without comments, none where there is no such file; None where it is there and cannot be read."""
    path = Path(environ["NCCL_CONF_FILE"]) if environ.get("NCCL_CONF_FILE") else etc / "nccl.conf"
    try:
        lines = path.read_text(errors="replace").splitlines()[:1000]
    except FileNotFoundError:
        return []
    except OSError:
        return None
    return sorted(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))
