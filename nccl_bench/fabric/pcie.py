"""PCIe: speed texts to generations, generations to rates, addresses to distances."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nccl_bench.fabric.data import small_int
from nccl_bench.fabric.topology import Distance, Pcie

GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generation by GT/s a lane (PCI Express Base Specification)."""
LANE_GBPS = {1: 2.5 * 8 / 10 / 8, 2: 5 * 8 / 10 / 8, 3: 8 * 128 / 130 / 8, 4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8, 6: 64 * 236 / 256 / 8}
"""GB/s a lane one way after coding: 8b/10b, then 128b/130b, then 236 of 256 bytes of a flit (PCI Express Base Specification)."""
DMA_SHARE = {1: 0.8, 2: 0.8, 3: 12.5 / 15.754, 4: 27 / 31.508, 5: 55.4 / 63.015, 6: 55.4 / 63.015}
"""Share of it that payload of large transfers was seen to get on x16: 12-13, 26-28, 55.4 GB/s (host to device copies,
stas00/ml-engineering@744d01e1; gen 1, 2 as gen 3; gen 6 taken as gen 5, not yet seen)."""
_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,4})?)\s*GT/s", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])", re.IGNORECASE)


def generation(text: str | None) -> int | None:
    """The generation of "32.0 GT/s PCIe", "16 GT/s", "32 GT/s PCIe/s"; None for "" and "Unknown"."""
    match = _SPEED.match(text or "")
    return None if match is None else GENERATION.get(float(match[1]))


def width(text: str | None) -> int | None:
    """Lanes of "16" or "x16"; None for "", "0" and "255", which drivers give where they do not know."""
    value = small_int((text or "").strip().lower().removeprefix("x"))
    return value if value in (1, 2, 4, 8, 12, 16, 32) else None


def rate(gen: int | None, lanes: int | None) -> float | None:
    """GB/s one way after coding; None where either is unknown."""
    return None if gen is None or lanes is None or gen not in LANE_GBPS else round(LANE_GBPS[gen] * lanes, 3)


def link(gen: int | None, lanes: int | None, path_GBps: float | None = None, note: str | None = None) -> Pcie:
    """The value of a slot."""
    return Pcie(generation=gen, width=lanes, GBps=rate(gen, lanes), path_GBps=path_GBps, note=note)


def payload(gen: int | None, raw_GBps: float) -> float:
    """What large transfers get of a raw rate at this generation; 5's share where the generation is unknown."""
    return raw_GBps * DMA_SHARE.get(gen or 5, DMA_SHARE[5])


def address(text: str | None) -> str | None:
    """One spelling of a PCI address: "00000000:1A:00.0", "1a:00.0" -> "0000:1a:00.0"; None where it is none."""
    match = _ADDRESS.fullmatch((text or "").strip())
    if match is None:
        return None
    domain = int(match[1] or "0", 16)
    if domain == 0xFFFFFFF:
        return "fffffff:ff:ff.0"
    return f"{domain:04x}:{int(match[2], 16):02x}:{int(match[3], 16):02x}.{match[4].lower()}"


def distance(first: Sequence[str], second: Sequence[str], numa: tuple[int | None, int | None]) -> Distance | None:
    """nvidia-smi's word for two devices by the bridges above each, root first and without the device itself.

    A shared bridge below the root port means a switch: PIX where one bridge or switch is between them, PXB where more are.
    The same root complex (first element) means PHB, the same NUMA node NODE, else SYS. None where nothing tells.
    """
    common = next((at for at, (one, two) in enumerate(zip(first, second, strict=False)) if one != two), min(len(first), len(second)))
    if common >= 2:
        beyond = max(len(first), len(second)) - common
        return "PIX" if beyond <= 1 else "PXB"
    if common == 1:
        return "PHB"
    if numa[0] is not None and numa[1] is not None and numa[0] >= 0 and numa[1] >= 0:
        return "NODE" if numa[0] == numa[1] else "SYS"
    return None
