"""A GPU host as files on disk and a scripted NVML, healthy; tests break it piece by piece."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Error(Exception):
    """NVMLError."""

    value = 3


class Nvml:
    """As much of pynvml as doctor, counters and the reader of the fabric call; `gpus` is what each device answers."""

    NVMLError = Error

    def __init__(self, n: int = 8, name: str = "NVIDIA H100 80GB HBM3", starts: bool = True) -> None:
        self.starts = starts
        self.gpus: list[dict[str, Any]] = [
            {"name": name, "links": [1] * 18, "width": 16, "ecc": (1, 1), "wrong": 0, "corrected": 0, "rows": (0, 0, 0, 0), "throttle": 1,
            "limit": 700_000,
             "persistence": 1, "mig": (0, 0), "pids": [], "errors": [0, 0, 0, 0], "replays": 0, "slot": 5}
            for _ in range(n)
        ]  # fmt: skip

    def nvmlInit(self) -> None:
        if not self.starts:
            raise Error("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.82.07"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.gpus[index] is None:
            raise Error("GPU is lost")
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{0x10 + handle:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        links = self.gpus[handle]["links"]
        if link >= len(links):
            raise Error("not supported")
        return links[link]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId="FFFFFFFF:FF:FF.F")

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, number: int) -> int:
        return self.gpus[handle]["errors"][number] if link == 0 else 0

    def nvmlDeviceGetNvLinkCapability(self, handle: int, link: int, which: int) -> int:
        return 1

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, span: int) -> int:
        return self.gpus[handle]["wrong" if kind else "corrected"]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.gpus[handle]["pids"]]

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetName": "name", "nvmlDeviceGetCurrPcieLinkWidth": "width", "nvmlDeviceGetEccMode": "ecc",
            "nvmlDeviceGetRemappedRows": "rows",
            "nvmlDeviceGetCurrentClocksThrottleReasons": "throttle", "nvmlDeviceGetPowerManagementLimit": "limit",
            "nvmlDeviceGetPersistenceMode": "persistence", "nvmlDeviceGetMigMode": "mig", "nvmlDeviceGetPcieReplayCounter": "replays",
            "nvmlDeviceGetMaxPcieLinkGeneration": "slot",
        }  # fmt: skip
        fixed = {
            "nvmlDeviceGetUUID": lambda h: f"GPU-{h}", "nvmlDeviceGetSerial": lambda h: f"13225230{h:05d}",
            "nvmlDeviceGetVbiosVersion": lambda h: "96.00.74",
            "nvmlDeviceGetCudaComputeCapability": lambda h: (9, 0), "nvmlDeviceGetMaxPcieLinkWidth": lambda h: 16,
            "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda h: 5, "nvmlDeviceGetPowerManagementDefaultLimit": lambda h: 700_000,
            "nvmlDeviceGetNvLinkVersion": lambda h, link: 6, "nvmlDeviceGetNvLinkRemoteDeviceType": lambda h, link: 2,
            "nvmlDeviceGetTemperature": lambda h, which: 34,
        }  # fmt: skip
        if name in fixed:
            return fixed[name]
        if name in answers:
            return lambda handle: self.gpus[handle][answers[name]]
        raise AttributeError(name)


def write(root: Path, files: dict[str, str]) -> None:
    """Files below a root, their folders made."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def healthy(root: Path, n: int = 8) -> Path:
    """The files of a healthy host with n NICs of InfiniBand NDR."""
    for at in range(n):
        base, device = f"sys/class/infiniband/mlx5_{at}", f"sys/devices/pci0000:{at:02x}/0000:{at:02x}:01.0"
        write(root, {
            f"{base}/ports/1/state": "4: ACTIVE", f"{base}/ports/1/phys_state": "5: LinkUp", f"{base}/ports/1/rate": "400 Gb/sec (4X NDR)",
            f"{base}/ports/1/link_layer": "InfiniBand", f"{base}/ports/1/counters/link_downed": "0", f"{base}/ports/1/counters/symbol_error": "0",
            f"{base}/ports/1/counters/port_xmit_data": "1000", f"{base}/ports/1/counters/port_xmit_wait": "7",
            f"{base}/fw_ver": "28.39.1002", f"{base}/board_id": "MT_0000000838", f"{base}/node_guid": f"a088:c203:0000:000{at}",
            f"{device}/current_link_speed": "32.0 GT/s PCIe", f"{device}/max_link_speed": "32.0 GT/s PCIe", f"{device}/current_link_width": "16",
            f"{device}/max_link_width": "16", f"{device}/numa_node": "0",
        })  # fmt: skip
        (root / device / "config").write_bytes(config(4096))
        (root / base / "device").symlink_to(root / device)
    write(root, {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build",
        "proc/cmdline": "quiet iommu=pt",
        "proc/sys/kernel/numa_balancing": "0", "proc/sys/kernel/osrelease": "6.8.0", "sys/class/net/eth0/operstate": "up",
        "sys/class/net/eth0/mtu": "1500",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance", "sys/devices/system/node/node0/cpulist": "0-63",
        "sys/devices/system/node/node1/cpulist": "64-127", "sys/class/dmi/id/product_serial": "SN123", "sys/module/mlx5_core/version": "24.10",
        "sys/class/iommu/dmar0/x": "", "dev/kmsg": "6,0,1;boot",
    })  # fmt: skip
    (root / "dev" / "shm").mkdir()
    for at in range(n):
        write(root, {f"dev/nvidia{at}": "", f"sys/bus/pci/devices/0000:{0x10 + at:02x}:00.0/numa_node": "0"})
    bridge = root / "sys/bus/pci/devices/0000:aa:00.0"
    write(root, {"sys/bus/pci/devices/0000:aa:00.0/class": "0x060400"})
    (bridge / "config").write_bytes(config(512, acs=0))
    return root


def config(read_request: int, acs: int | None = None) -> bytes:
    """A configuration space with a PCI Express capability, and ACS where `acs` gives its control bits."""
    space = bytearray(4096)
    space[0x34], space[0x60] = 0x60, 0x10
    space[0x68:0x6A] = (((read_request // 128).bit_length() - 1) << 12).to_bytes(2, "little")
    if acs is not None:
        space[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x106:0x108] = acs.to_bytes(2, "little")
    return bytes(space)


def roce(root: Path, n: int = 8) -> Path:
    """The same host with n ports of RoCE v2, lossless, in one traffic class."""
    healthy(root, n)
    for at in range(n):
        base, device = f"sys/class/infiniband/mlx5_{at}", f"sys/devices/pci0000:{at:02x}/0000:{at:02x}:01.0"
        write(root, {
            f"{base}/ports/1/link_layer": "Ethernet", f"{base}/ports/1/gid_attrs/types/0": "RoCE v2", f"{base}/tc/1/traffic_class": "106",
            f"{device}/net/ens{at}/mtu": "9000", f"sys/class/net/ens{at}/mtu": "9000", f"sys/class/net/ens{at}/operstate": "up",
            f"sys/class/net/ens{at}/qos/pfc": "0,0,0,1,0,0,0,0",
        })  # fmt: skip
    return root
