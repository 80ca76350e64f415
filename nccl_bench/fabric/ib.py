"""InfiniBand, RoCE and EFA as text: rate strings, wire efficiency, `ibstatus`, `ibv_devinfo`. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import get_args

from nccl_bench.errors import DataError
from nccl_bench.fabric.data import small_int
from nccl_bench.fabric.topology import LinkLayer, Nic, Node

_RATE = re.compile(r"\s*([0-9]{1,5}(?:\.[0-9]{1,2})?)\s*Gb/sec(?:\s*\(\s*([0-9]{1,2})X\s*([A-Z0-9]*)\s*\))?", re.IGNORECASE)
CODING = {"SDR": 8 / 10, "DDR": 8 / 10, "QDR": 8 / 10, "FDR10": 1.0, "FDR": 64 / 66 * 56.25 / 56}
"""Data share of the printed rate. SDR to QDR print the signalling rate of an 8b/10b line; FDR prints 56 for 4 x 14.0625 at 64b/66b;
from EDR on, and for FDR10, the printed figure is the data rate (InfiniBand Architecture Specification; kernel ib rate_show)."""
EFA_VENDOR = "0x1d0f"
NOT_REPORTED = "link state not reported by this driver"
IB_PACKET_BYTES = 26
"""LRH 8 + BTH 12 + ICRC 4 + VCRC 2 in the same subnet (InfiniBand Architecture Specification)."""
ROCE_PACKET_BYTES = 82
"""Preamble and gap 20, Ethernet 14 + 4, IPv4 20, UDP 8, BTH 12, ICRC 4 (RoCEv2 annex). MTU 4096 gives 392.1 of 400 Gb/s;
perftest measured 392 (NVIDIA/nccl#2409)."""
TCP_SHARE = 1448 / 1538
"""Payload of a TCP segment with time stamps in a full 1500-byte frame over its bytes on the wire (RFC 9293, IEEE 802.3)."""
NIC_SHARE = 0.98
"""What NCCL was seen to get of a port: 46-49 GB/s of 400G, 24 of 200G, 12 of 100G
(NVIDIA/nccl-tests#290, #319, #119; xxrjun/nccl-tests-cluster: 48.9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A port's rate as the kernel prints it."""

    rate_gbit: float | None
    data_GBps: float | None
    """Where line coding takes a part of it; None otherwise."""
    doubt: str | None = None
    """Why the text cannot be believed."""


def parse_rate(text: str) -> Rate:
    """The rate of "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)"; both None where the text is none, or cannot be true.

    Old kernels print 10 Gb/sec for every speed they do not know: it is not believed.
    """
    match = _RATE.match(text)
    if match is None:
        return Rate(rate_gbit=None, data_GBps=None, doubt=f"rate {text.strip()[:40]!r} is not understood" if text.strip() else None)
    value, word = float(match[1]), (match[3] or "").upper()
    if value == 10 and word in ("", "SDR"):
        why = "rate 10 Gb/sec: an old kernel prints this for a speed it does not know (ask ibstat or ethtool)"
        return Rate(rate_gbit=None, data_GBps=None, doubt=why)
    if value == 0:
        return Rate(rate_gbit=None, data_GBps=None, doubt="rate 0 Gb/sec")
    share = CODING.get(word)
    return Rate(rate_gbit=value, data_GBps=None if share in (None, 1.0) else round(value / 8 * (share or 1.0), 3))


def layer_of(text: str, name: str = "", driver: str = "", vendor: str = "") -> LinkLayer | None:
    """InfiniBand, RoCE, EFA ... of what a driver prints as link layer, with the device's name, driver and vendor."""
    if driver == "efa" or vendor == EFA_VENDOR or re.match(r"efa_|rdmap", name):
        return "EFA"
    if driver.startswith("hfi1") or name.startswith("hfi1"):
        return "Omni-Path"
    if driver.startswith("irdma") and text == "iWARP":
        return "iWARP"
    word = text.strip()
    if word == "Ethernet":
        return "RoCE"
    return next((layer for layer in get_args(LinkLayer) if layer == word), None)


def wire_share(layer: LinkLayer | None, mtu: int | None) -> float:
    """The share of a port's data rate that NCCL's payload can get.

    RoCE at a small MTU loses more to headers than the 0.98 seen elsewhere; TCP is bounded by its own headers.
    """
    if layer == "Ethernet":
        return TCP_SHARE
    if mtu is None or layer not in ("RoCE", "InfiniBand"):
        return NIC_SHARE
    overhead = ROCE_PACKET_BYTES if layer == "RoCE" else IB_PACKET_BYTES
    return min(NIC_SHARE, mtu / (mtu + overhead))


def parse_ibstatus(text: str) -> Node:
    """The ports of `ibstatus` output. Raises DataError where there are none."""
    nics, warnings = [], []
    for block in re.split(r"(?=Infiniband device ')", text):
        head = re.match(r"Infiniband device '([^'\n]{1,64})' port ([0-9]{1,3})", block)
        if head is None:
            continue
        state = state_word(_value(block, "state"))
        nic, doubts = port(head[1], int(head[2]), _value(block, "rate") or "", _value(block, "link_layer") or "", state)
        nics.append(nic)
        warnings += doubts
    if not nics:
        raise DataError("no port in this ibstatus text")
    return Node(nics=tuple(nics), warnings=tuple(warnings))


def port(
    name: str, number: int | None, rate_text: str, layer_text: str, state: str | None, *, driver: str = "", vendor: str = ""
) -> tuple[Nic, list[str]]:
    """A NIC of the texts that sysfs and ibstatus share, and what is doubtful about them.

    The rate of a port that is down is not a speed: it is left unknown. EFA's driver always says ACTIVE: its state is unknown.
    """
    layer = layer_of(layer_text, name, driver, vendor)
    parsed = parse_rate(rate_text)
    warnings = []
    if layer == "EFA":
        state = None
        warnings.append(f"{name}: {NOT_REPORTED}")
    down = state is not None and state != "ACTIVE"
    if parsed.doubt and not down:
        warnings.append(f"{name}: {parsed.doubt}")
    rate_gbit, data = (None, None) if down else (parsed.rate_gbit, parsed.data_GBps)
    return Nic(name=name, port=number, rate_gbit=rate_gbit, data_GBps=data, link_layer=layer, state=state), warnings


def _value(block: str, key: str) -> str | None:
    match = re.search(rf"^[ \t]*{re.escape(key)}:[ \t]*([^\n]*)$", block, re.MULTILINE)
    return None if match is None else match[1].strip()


def state_word(text: str | None) -> str | None:
    """ACTIVE of "4: ACTIVE", "PORT_ACTIVE (4)", "ACTIVE"."""
    match = re.search(r"[A-Za-z_]{2,}", text or "")
    return None if match is None else match[0].upper().removeprefix("PORT_")


def parse_devinfo(text: str) -> Node:
    """The ports of `ibv_devinfo` output (with or without -v). Raises DataError where there are none."""
    nics: list[Nic] = []
    warnings: list[str] = []
    for block in re.split(r"(?m)^(?=hca_id:)", text):
        head = re.match(r"hca_id:\s*(\S{1,64})", block)
        if head is None:
            continue
        vendor = (_value(block, "vendor_id") or "").lower()
        for part in re.split(r"(?m)^(?=[ \t]+port:)", block)[1:]:
            number = small_int(_value(part, "port"))
            rate = _devinfo_rate(_value(part, "active_speed") or "", _value(part, "active_width") or "")
            state = state_word(_value(part, "state"))
            nic, doubts = port(head[1], number, rate, _value(part, "link_layer") or "", state, vendor=vendor)
            mtu = re.match(r"[0-9]{3,5}", _value(part, "active_mtu") or "")
            board = _value(block, "board_id") or _value(block, "hw_ver")
            nics.append(replace(nic, mtu=None if mtu is None else int(mtu[0]), model=board))
            warnings += doubts
    if not nics:
        raise DataError("no port in this ibv_devinfo text")
    return Node(nics=tuple(nics), warnings=tuple(warnings))


def _devinfo_rate(speed: str, lanes: str) -> str:
    """The kernel's spelling of verbose output's "active_speed: 100.0 Gbps (64)", "active_width: 4X (2)"."""
    rate = re.match(r"([0-9.]{1,6})\s*Gbps", speed)
    number = re.match(r"([0-9]{1,2})X", lanes)
    return "" if rate is None or number is None else f"{float(rate[1]) * int(number[1]):g} Gb/sec ({number[1]}X {_lane_word(float(rate[1]))})"


def _lane_word(lane_gbit: float) -> str:
    """SDR ... XDR by what verbs call the speed of a lane, Gbit/s."""
    words = ((3, "SDR"), (6, "DDR"), (10.1, "QDR"), (15, "FDR"), (26, "EDR"), (51, "HDR"), (101, "NDR"))
    return next((word for most, word in words if lane_gbit <= most), "XDR")
