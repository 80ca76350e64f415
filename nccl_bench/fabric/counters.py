"""Counters of ports and GPUs before and after a stage: errors, waits, bytes; what moved, and which rail carried the traffic. Read only.

Port files: the kernel's Documentation/ABI/stable/sysfs-class-infiniband; mlx5's hw_counters (NVIDIA, "Understanding mlx5
Linux Counters"). port_xmit_data and port_rcv_data count words of 4 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nccl_bench.fabric import nvml as nvml_reader
from nccl_bench.fabric.host_read import Roots, xids_of
from nccl_bench.fabric.nvml_ask import ask, link_errors, text
from nccl_bench.fabric.sysfs import text_of
from nccl_bench.fabric.topology import Json

Meaning = Literal["fault", "errors", "congestion", "bytes"]
WORD_NBYTES = 4
PORT: Mapping[str, Meaning] = {
    "link_downed": "fault", "link_error_recovery": "errors", "symbol_error": "errors", "port_rcv_errors": "errors",
    "port_rcv_remote_physical_errors": "errors", "local_link_integrity_errors": "errors", "excessive_buffer_overrun_errors": "errors",
    "port_xmit_discards": "errors", "port_rcv_constraint_errors": "errors", "port_xmit_constraint_errors": "errors",
    "port_xmit_wait": "congestion", "port_xmit_data": "bytes", "port_rcv_data": "bytes",
    "out_of_sequence": "errors", "packet_seq_err": "errors", "local_ack_timeout_err": "errors", "rnr_nak_retry_err": "errors",
    "implied_nak_seq_err": "errors", "roce_adp_retrans": "errors", "roce_adp_retrans_to": "errors", "rx_icrc_encapsulated": "errors",
    "np_cnp_sent": "congestion", "rp_cnp_handled": "congestion", "np_ecn_marked_roce_packets": "congestion",
    "duplicate_request": "errors", "out_of_buffer": "errors",
    "retrans_pkts": "errors", "retrans_timeout_events": "errors", "tx_bytes": "bytes", "rx_bytes": "bytes", "rx_drops": "errors",
}  # fmt: skip
"""What a counter of a port means. The last line is EFA's; out_of_sequence and what follows RoCE's."""
GPU: Mapping[str, Meaning] = {
    "ecc_uncorrected": "fault", "ecc_corrected": "errors", "pcie_replays": "errors", "nvlink_replay": "errors", "nvlink_recovery": "fault",
    "nvlink_crc_flit": "errors", "nvlink_crc_data": "errors",
}  # fmt: skip
SATURATES = {"link_downed": 255, "link_error_recovery": 255, "local_link_integrity_errors": 15, "excessive_buffer_overrun_errors": 15}
"""Ends of narrow counters, where a difference of 0 says nothing (InfiniBand Architecture Specification, PortCounters)."""
GONE = "gone"
"""Stands for the counters of a device that no longer answers."""
FEW = 10
"""Errors of one port in a stage that are passed over unless like ports have none at all: a healthy link makes single bit errors (the InfiniBand
specification allows a bit error rate of 1e-12: one each 2.5 s at 400 Gbit/s, before error correction)."""
TIMES_OTHERS = 20
"""How many times the median of like ports makes errors stand out."""
EVEN_SHARE = 0.5
"""Of an even share of the bytes that a NIC must have carried for its rail to count as proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One counter that moved during a stage."""

    host: str
    device: str
    """"mlx5_0", "gpu 3"."""
    counter: str
    meaning: Meaning
    delta: int
    saturated: bool = False


def read(roots: Roots, *, nvml: Any = None) -> Json:
    """{device: {counter: value}} of this host now, "xids" the number of Xids since boot; what cannot be read is missing."""
    found: Json = {}
    base = roots.sys / "class" / "infiniband"
    for device in _entries(base):
        for port in _entries(device / "ports"):
            values = _port(port)
            if values:
                name = device.name if port.name == "1" else f"{device.name}:{port.name}"
                found[name] = values
    found |= _gpus(nvml if nvml is not None else nvml_reader.load())
    xids = xids_of(roots.dev / "kmsg", [])
    if xids is not None:
        found["kernel"] = {"xids": len(xids)}
    return found


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())[:1024]
    except OSError:
        return []


def _port(port: Path) -> dict[str, int]:
    values: dict[str, int] = {}
    for folder in ("counters", "hw_counters"):
        for name in PORT:
            word = text_of(port / folder / name)
            if word is not None and word.isdecimal() and len(word) <= 20:
                values.setdefault(name, int(word))
    return values


def _gpus(nvml: Any) -> Json:
    if nvml is None:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    found: Json = {}
    try:
        for index in range(int(ask(nvml, "nvmlDeviceGetCount") or 0)):
            handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            values = {
                "ecc_corrected": ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 0, 0),
                "ecc_uncorrected": ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0),
                "pcie_replays": ask(nvml, "nvmlDeviceGetPcieReplayCounter", handle),
                **link_errors(nvml, handle),
            }
            found[f"gpu {index}"] = {name: int(value) for name, value in values.items() if value is not None}
            uuid = text(ask(nvml, "nvmlDeviceGetUUID", handle))
            if uuid:
                found[f"gpu {index}"]["uuid"] = uuid
    finally:
        ask(nvml, "nvmlShutdown")
    return found


def moved(host: str, before: Json, after: Json) -> list[Moved]:
    """What changed on one host; a counter that went back was reset, and its new value counts. A device that is gone is a fault."""
    gone = [device for device in before if device not in after and device != "kernel"] if after else []
    found = [Moved(host=host, device=device, counter=GONE, meaning="fault", delta=1) for device in gone]
    for device, values in after.items():
        old = before.get(device) or {}
        for counter, value in values.items():
            if counter == "uuid" or counter not in old:
                continue
            delta = value - old[counter] if value >= old[counter] else value
            if counter == "xids":  # counted in a ring buffer, which loses old ones
                delta = max(0, value - old[counter])
            limit = SATURATES.get(counter)
            full = limit is not None and value >= limit
            if delta or full:
                found.append(
                    Moved(host=host, device=device, counter=counter, meaning=_meaning(device, counter), delta=delta, saturated=full and not delta)
                )
    return found


def _meaning(device: str, counter: str) -> Meaning:
    if counter == "xids":
        return "fault"
    return GPU.get(counter, "errors") if device.startswith("gpu ") else PORT.get(counter, "errors")


def judge(moves: Sequence[Moved], n_devices: Mapping[str, int]) -> list[tuple[Moved, str]]:
    """The moves that speak against a device, with the sentence. `n_devices`: how many devices have each counter, for the median of the others."""
    found: list[tuple[Moved, str]] = []
    for move in moves:
        if move.meaning in ("bytes", "congestion"):
            continue
        if move.saturated:
            found.append((move, f"{move.counter} stands at the end of its counter: it cannot be said whether it moved"))
            continue
        if move.counter == GONE:
            found.append((move, "answered before, and can no longer be read"))
            continue
        if move.meaning == "fault":
            found.append((move, f"{move.counter} +{move.delta}"))
            continue
        others = sorted(one.delta for one in moves if one.counter == move.counter and one is not move)
        absent = max(0, n_devices.get(move.counter, 1) - 1 - len(others))
        like = [0] * absent + others
        median = like[len(like) // 2] if like else 0
        if move.delta > max(FEW, TIMES_OTHERS * median):
            found.append((move, f"{move.counter} +{move.delta} (median of {len(like)} others: {median})"))
    return found


def sent(moves: Sequence[Moved]) -> dict[tuple[str, str], int]:
    """(host, NIC) -> bytes it sent."""
    words = {(one.host, one.device): one.delta * WORD_NBYTES for one in moves if one.counter == "port_xmit_data"}
    return words | {(one.host, one.device): one.delta for one in moves if one.counter == "tx_bytes"}


def proven(moves: Sequence[Moved], serves: Mapping[tuple[str, int], str]) -> dict[tuple[str, int], str]:
    """(host, local rank) -> NIC, of those that the topology says (`serves`), where the NIC carried its share of the host's bytes.

    Shown only where the NICs of a host serve one local rank each, and all of them carried at least half of an even share.
    """
    bytes_of = sent(moves)
    found: dict[tuple[str, int], str] = {}
    for host in {host for host, _ in serves}:
        mine = {local: nic for (name, local), nic in serves.items() if name == host}
        total = sum(n for (name, _), n in bytes_of.items() if name == host)
        if not total or len(set(mine.values())) != len(mine):
            continue
        least = EVEN_SHARE * total / len(mine)
        if all(bytes_of.get((host, nic), 0) >= least for nic in mine.values()):
            found |= {(host, local): nic for local, nic in mine.items()}
    return found
