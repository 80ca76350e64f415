"""NVML's word on the health of each GPU, and its inventory; what it does not answer is None."""

from __future__ import annotations

from typing import Any

from nccl_bench.fabric import pcie
from nccl_bench.fabric.topology import Json

TOTAL_CORRECTED, TOTAL_UNCORRECTED = 0, 1
"""NVML_MEMORY_ERROR_TYPE_CORRECTED, _UNCORRECTED."""
VOLATILE = 0
"""NVML_VOLATILE_ECC: since the driver was loaded."""
NVLINK_ERRORS = {"nvlink_replay": 0, "nvlink_recovery": 1, "nvlink_crc_flit": 2, "nvlink_crc_data": 3}
"""NVML_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA: counters of one link."""
MAX_LINKS = 36


def gpu_facts(nvml: Any) -> tuple[list[Json] | None, str | None]:
    """([facts by GPU], None), or (None, why NVML does not answer)."""
    if nvml is None:
        return None, "the Python package nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as err:
        return None, f"NVML does not start: {err}"
    try:
        count = int(ask(nvml, "nvmlDeviceGetCount") or 0)
        return [_gpu(nvml, index) for index in range(count)], None
    finally:
        ask(nvml, "nvmlShutdown")


def ask(nvml: Any, name: str, *args: Any) -> Any:
    """One answer; None where the library or the device does not know it."""
    call = getattr(nvml, name, None)
    if call is None:
        return None
    try:
        return call(*args)
    except nvml.NVMLError:
        return None
    except (TypeError, ValueError):  # another version's signature
        return None


def _gpu(nvml: Any, index: int) -> Json:
    handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return {"index": index, "open": False}

    def of(name: str, *args: Any) -> Any:
        return ask(nvml, name, handle, *args)

    ecc, mig, remapped, pci = of("nvmlDeviceGetEccMode"), of("nvmlDeviceGetMigMode"), of("nvmlDeviceGetRemappedRows"), of("nvmlDeviceGetPciInfo")
    processes = of("nvmlDeviceGetComputeRunningProcesses")
    return {
        "index": index,
        "open": True,
        "name": text(of("nvmlDeviceGetName")),
        "uuid": text(of("nvmlDeviceGetUUID")),
        "serial": text(of("nvmlDeviceGetSerial")),
        "vbios": text(of("nvmlDeviceGetVbiosVersion")),
        "pci": None if pci is None else pcie.address(text(pci.busId) or ""),
        "width": of("nvmlDeviceGetCurrPcieLinkWidth"),
        "max_width": of("nvmlDeviceGetMaxPcieLinkWidth"),
        "max_generation": of("nvmlDeviceGetMaxPcieLinkGeneration"),
        "gpu_generation": of("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        "pcie_replays": of("nvmlDeviceGetPcieReplayCounter"),
        "ecc": None if ecc is None else bool(ecc[0]),
        "ecc_uncorrected": of("nvmlDeviceGetTotalEccErrors", TOTAL_UNCORRECTED, VOLATILE),
        "ecc_corrected": of("nvmlDeviceGetTotalEccErrors", TOTAL_CORRECTED, VOLATILE),
        "remapped": None if remapped is None else [int(value) for value in remapped],
        "throttle": of("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "power_limit_mw": of("nvmlDeviceGetPowerManagementLimit"),
        "power_default_mw": of("nvmlDeviceGetPowerManagementDefaultLimit"),
        "persistence": None if (mode := of("nvmlDeviceGetPersistenceMode")) is None else bool(mode),
        "mig": None if mig is None else bool(mig[0]),
        "pids": None if processes is None else [int(one.pid) for one in processes],
        "temperature": of("nvmlDeviceGetTemperature", 0),
    }


def link_errors(nvml: Any, handle: Any) -> dict[str, int]:
    """NVLink error counters of a GPU, summed over its links; what it does not count is missing."""
    found: dict[str, int] = {}
    for link in range(MAX_LINKS):
        if not ask(nvml, "nvmlDeviceGetNvLinkState", handle, link):
            continue
        for name, number in NVLINK_ERRORS.items():
            value = ask(nvml, "nvmlDeviceGetNvLinkErrorCounter", handle, link, number)
            if value is not None:
                found[name] = found.get(name, 0) + int(value)
    return found


def text(value: Any) -> str | None:
    """Text of what old versions of the package give as bytes."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
