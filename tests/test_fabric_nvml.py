"""fabric/nvml.py: GPUs from an NVML that answers what a script says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nccl_bench.fabric import nvml
from nccl_bench.fabric.topology import domains


class Error(Exception):
    """NVMLError."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


NOT_SUPPORTED = Error(3)
UNKNOWN = Error(999)


class FakeNvml:
    """As much of pynvml as the reader calls; `gpus` is a list of what each device answers."""

    NVMLError = Error

    def __init__(self, gpus: list[dict[str, Any]], *, init: Error | None = None) -> None:
        self.gpus = gpus
        self.init = init

    def nvmlInit(self) -> None:
        if self.init is not None:
            raise self.init

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.82"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return str(self.gpus[handle]["name"])

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{0x10 + handle:02X}:00.0")

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.gpus[handle].get("cc", (9, 0))

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        links = self.gpus[handle]["links"]
        if isinstance(links, Error):
            raise links
        if link >= len(links):
            raise NOT_SUPPORTED
        return int(links[link] != "down")

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        return 6

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if self.gpus[handle]["links"][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        end = self.gpus[handle]["links"][link]
        return SimpleNamespace(busId="FFFFFFFF:FF:FF.0" if end == "switch" else f"00000000:{0x10 + int(end):02X}:00.0")

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[Any]) -> list[Any]:
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.gpus[handle].get("mig", False)), 0]


def test_links_through_a_switch_give_generation_and_marketed_rate() -> None:
    reading = nvml.read(FakeNvml([{"name": "NVIDIA H200", "links": ["switch"] * 18}] * 2))

    assert reading.driver == "580.82"
    node = reading.node
    assert node is not None
    assert node.switch is True
    assert domains(node) == ((0, 1),)
    assert [(gpu.name, gpu.cc, gpu.bus_id) for gpu in node.gpus or ()] == [("H200", 90, "0000:10:00.0"), ("H200", 90, "0000:11:00.0")]
    assert [(gpu.nvlink.links, gpu.nvlink.generation, gpu.nvlink.per_direction_GBps) for gpu in node.gpus or () if gpu.nvlink] == [(18, 4, 450)] * 2
    assert node.gpus is not None
    assert node.gpus[0].pcie is not None
    assert (node.gpus[0].pcie.generation, node.gpus[0].pcie.width) == (5, 16)


def test_links_to_gpus_are_bonds() -> None:
    node = nvml.read(FakeNvml([{"name": "NVIDIA H100 PCIe", "links": ["1"] * 12}, {"name": "NVIDIA H100 PCIe", "links": ["0"] * 12}])).node

    assert node is not None
    assert node.switch is False
    assert [gpu.nvlink.bonds for gpu in node.gpus or () if gpu.nvlink] == [((1, 12),), ((0, 12),)]


def test_a_link_that_is_down_is_counted_apart_and_said() -> None:
    node = nvml.read(FakeNvml([{"name": "NVIDIA H200", "links": ["switch"] * 17 + ["down"]}])).node

    assert node is not None
    assert node.gpus is not None
    assert node.gpus[0].nvlink is not None
    assert (node.gpus[0].nvlink.links, node.gpus[0].nvlink.inactive, node.gpus[0].nvlink.per_direction_GBps) == (17, 1, 425)
    assert node.warnings == ("GPU 0: NVLink 17 down, 17 up",)


def test_no_links_is_zero_and_an_nvml_that_fails_is_unknown() -> None:
    none = nvml.read(FakeNvml([{"name": "NVIDIA L40S", "cc": (8, 9), "links": []}])).node
    fails = nvml.read(FakeNvml([{"name": "NVIDIA L40S", "cc": (8, 9), "links": UNKNOWN}])).node

    assert none is not None
    assert none.gpus is not None
    assert none.gpus[0].nvlink is not None
    assert none.gpus[0].nvlink.links == 0
    assert fails is not None
    assert fails.gpus is not None
    assert fails.gpus[0].nvlink is None
    assert fails.switch is None


def test_mig_is_seen() -> None:
    node = nvml.read(FakeNvml([{"name": "NVIDIA A100-SXM4-80GB", "links": ["switch"] * 12, "mig": True}])).node

    assert node is not None
    assert [gpu.mig for gpu in node.gpus or ()] == [True]


def test_nvml_that_does_not_start_says_why() -> None:
    reading = nvml.read(FakeNvml([], init=UNKNOWN))

    assert reading.node is None
    assert reading.why == "NVML does not start: NVML error 999"


def test_no_gpu_is_said() -> None:
    assert nvml.read(FakeNvml([])).why == "NVML sees no GPU"
