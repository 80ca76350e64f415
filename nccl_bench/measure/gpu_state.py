"""Clock and throttle reasons of the GPU under load, through NVML; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASONS: dict[str, int] = {
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""nvml.h, nvmlClocksEventReason* (idle, 0x1, is no throttling)."""


class GpuState:
    """NVML's view of one GPU; silent where NVML cannot say."""

    def __init__(self, uuid: str) -> None:
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as err:  # NVML is missing or broken in many ways; the sample is then null, which says so
            self.why_not = str(err)

    def sample(self) -> tuple[int, int] | None:
        """(SM clock in MHz, reasons as NVML's bit mask) now; None where NVML cannot say. Takes some ms."""
        if self._handle is None:
            return None
        import pynvml

        try:
            mhz = int(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM))
            return mhz, int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        except pynvml.NVMLError:
            return None


def reason_names(flags: Mapping[str, bool]) -> tuple[str, ...]:
    """The reasons that held on any rank."""
    return tuple(name for name in REASONS if flags[name])
