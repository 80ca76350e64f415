"""The checks of doctor's table that concern GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from nccl_bench.fabric import gpus as models
from nccl_bench.fabric.health import Check, Finding, Status, alike, each, finding, has_gpu_driver, mapping
from nccl_bench.fabric.topology import Json

HARMLESS_XIDS = (13, 31, 43, 45, 68, 137)
"""Faults of programs, not of hardware: graphics exception, MMU fault, stopped, preemptive cleanup (NVIDIA, "XID Errors")."""
THROTTLES = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
"""nvml.h, nvmlClocksEventReason*; idle, application clocks and display are none of concern."""
LONGER_LOG = "journalctl -k -b | grep Xid shows all since boot; log_buf_len=16M on the kernel's command line keeps more"
BAD_THROTTLES = 0x8 | 0x40 | 0x80


def _gpus(host: Json) -> Sequence[Json] | None:
    found: Sequence[Json] | None = host.get("gpus")
    return [gpu for gpu in found if gpu.get("open")] if found is not None else None


def _name(gpu: Json) -> str:
    return f"GPU {gpu['index']}"


def _count(hosts: Sequence[Json]) -> Iterable[Finding]:
    counts = {str(host["host"]): len(_gpus(host) or ()) for host in hosts}
    usual = Counter(counts.values()).most_common(1)[0][0]
    found = []
    for host in hosts:
        n, files = counts[str(host["host"])], int(host.get("n_device_files") or 0)
        expected = max(usual, files)
        if host.get("gpus") is None:
            status: Status = "fail" if has_gpu_driver(host) else "unknown"
            found.append(finding(host, status, host.get("why_no_gpus"), f"{expected} GPUs" if expected else "GPUs that NVML shows"))
        elif n == 0:
            found.append(finding(host, "fail" if expected else "unknown", "NVML sees no GPU", expected or None))
        else:
            found.append(finding(host, "ok" if n == expected else "fail", n, expected))
    return found


def _models(host: Json) -> str | None:
    names = Counter(models.bare(str(gpu["name"])) for gpu in _gpus(host) or () if gpu.get("name"))
    return ", ".join(f"{count}x {name}" for name, count in sorted(names.items())) or None


def _links(host: Json, gpu: Json) -> Finding | None:
    node = mapping(host.get("node"))
    known: Json = next((one for one in node.get("gpus") or () if one.get("index") == gpu["index"]), {})
    link, model = mapping(known.get("nvlink")), models.by_driver_name(models.bare(str(gpu.get("name") or "")))
    full = model.links if model is not None and model.kind == "NVLink" else None
    up, down = link.get("links"), link.get("inactive") or 0
    if up is None:
        return finding(host, "unknown" if full != 0 else "skipped", None, full, device=_name(gpu))
    if up == 0 and down == 0 and (full is None or "none" in (model.joined if model else ())):
        return finding(host, "skipped", "no NVLink", device=_name(gpu))
    if up == 0 and down == 0 and len(node.get("gpus") or ()) == 1:
        # A virtual machine that was given one GPU of a board has no link to anybody: seen on a rented H200.
        return finding(host, "warn", "no NVLink, as where one GPU was handed on alone", f"{full} in full", device=_name(gpu))
    if down or (up == 0 and full):
        return finding(host, "fail", f"{up} up, {down} down", full or up + down, device=_name(gpu))
    if full is not None and up < full:
        return finding(host, "warn", up, f"{full} in full", device=_name(gpu))
    return finding(host, "ok" if full is not None else "warn", up, full or "model not in the table", device=_name(gpu))


def _slot(host: Json, gpu: Json) -> Finding | None:
    width, most = gpu.get("width"), gpu.get("max_width")
    if width is None or most is None:
        return finding(host, "unknown", width, most, device=_name(gpu))
    slot, own = gpu.get("max_generation"), gpu.get("gpu_generation")
    if width < most:
        return finding(host, "fail", f"x{width}", f"x{most}", device=_name(gpu))
    if slot is not None and own is not None and slot < own:
        return finding(host, "warn", f"Gen{slot} x{width}", f"Gen{own} x{most}", device=_name(gpu), fix="a slot, riser or BIOS setting holds it back")
    return finding(host, "ok", f"Gen{slot} x{width}", device=_name(gpu))


def _ecc(host: Json, gpu: Json) -> Finding | None:
    if gpu.get("ecc") is None:
        return finding(host, "unknown", device=_name(gpu))
    if not gpu["ecc"]:
        return finding(host, "warn", "off", "on", device=_name(gpu))
    wrong = gpu.get("ecc_uncorrected")
    if wrong is None:
        return finding(host, "unknown", "on, errors not counted", device=_name(gpu))
    return finding(host, "fail" if wrong else "ok", f"{wrong} uncorrected errors", 0, device=_name(gpu))


def _remap(host: Json, gpu: Json) -> Finding | None:
    rows = gpu.get("remapped")
    if rows is None:
        return finding(host, "unknown", device=_name(gpu))
    corrected, uncorrected, pending, failed = rows
    if failed:
        return finding(host, "fail", "a row could not be remapped", "none", device=_name(gpu), fix="send the GPU back (RMA)")
    if pending:
        return finding(host, "fail", "a remapping is pending", "none", device=_name(gpu), fix="reset the GPU: nvidia-smi -r, or reboot")
    return finding(host, "warn" if uncorrected else "ok", f"{corrected + uncorrected} rows remapped", 0, device=_name(gpu))


def _xids(hosts: Sequence[Json]) -> Iterable[Finding]:
    found = []
    for host in hosts:
        xids = host.get("xids")
        if xids is None or (not xids and not has_gpu_driver(host)):
            found.append(finding(host, "unknown" if xids is None else "skipped"))
        elif not xids and not host.get("log_since_driver", True):
            found.append(finding(host, "unknown", "none in what the kernel's log still holds", "none since boot", fix=LONGER_LOG))
        elif not xids:
            found.append(finding(host, "ok", "none"))
        for (pci, number), times in Counter((one["pci"], one["xid"]) for one in xids or ()).items():
            index = next((gpu["index"] for gpu in host.get("gpus") or () if gpu.get("pci") == pci), None)
            status: Status = "warn" if number in HARMLESS_XIDS else "fail"
            found.append(
                finding(host, status, f"Xid {number}, {times} times", "none", device=f"GPU {index}" if index is not None else f"GPU at {pci}")
            )
    return found


def _throttle(host: Json, gpu: Json) -> Finding | None:
    mask = gpu.get("throttle")
    if mask is None:
        return finding(host, "unknown", device=_name(gpu))
    words = [word for bit, word in THROTTLES.items() if int(mask) & bit]
    status: Status = "fail" if int(mask) & BAD_THROTTLES else "warn" if words else "ok"
    return finding(host, status, ", ".join(words) or "none", "none", device=_name(gpu))


def _power(host: Json, gpu: Json) -> Finding | None:
    limit, usual = gpu.get("power_limit_mw"), gpu.get("power_default_mw")
    if limit is None or usual is None:
        return finding(host, "unknown", device=_name(gpu))
    return finding(host, "warn" if limit < usual else "ok", f"{limit / 1000:.0f} W", f"{usual / 1000:.0f} W", device=_name(gpu))


def _flag(key: str, good: bool, bad_status: Status, words: tuple[str, str]) -> Any:
    def judge(host: Json, gpu: Json) -> Finding | None:
        value = gpu.get(key)
        if value is None:
            return finding(host, "unknown", device=_name(gpu))
        return finding(host, "ok" if value is good else bad_status, words[int(value)], words[int(good)], device=_name(gpu))

    return judge


def _processes(host: Json, gpu: Json) -> Finding | None:
    pids = gpu.get("pids")
    if pids is None:
        return finding(host, "unknown", device=_name(gpu))
    others = [pid for pid in pids if pid not in (host.get("own_pids") or ())]
    return finding(
        host,
        "fail" if others else "ok",
        f"{len(others)} other processes" + (f" ({', '.join(map(str, others[:4]))})" if others else ""),
        0,
        device=_name(gpu),
    )


NVML = "NVML"
CHECKS = (
    Check(id="gpu.count", what="as many GPUs as there should be", how="NVML against /dev/nvidia* and the other hosts", required=True, judge=_count,
          why="a GPU that fell off the bus leaves a rank without one", fix="see dmesg for Xid 79; nvidia-smi; reseat or send back"),
    Check(id="gpu.model", what="the same GPUs on all hosts", how=NVML, judge=alike(_models), required=True,
          why="a collective runs at the speed of the slowest model", fix="leave the odd host out: --exclude"),
    Check(id="gpu.nvlink", what="all NVLinks up", how=NVML, judge=each(_gpus, _links, none="unknown"), required=True,
          why="a link that is down costs its share of the GPU's bandwidth, or hangs NCCL",
          fix="nvidia-smi nvlink -s; fabric manager's log; reset, else send back"),
    Check(id="gpu.pcie", what="PCIe width of each GPU", how=f"{NVML} (its speed rests when idle: sweep samples it under load)",
          judge=each(_gpus, _slot, none="unknown"),
          why="x8 halves what a GPU gets to and from NICs and host", fix="reseat the GPU or its riser"),
    Check(id="gpu.ecc", what="ECC on, no uncorrected errors since the driver was loaded", how=NVML, judge=each(_gpus, _ecc, none="unknown"),
          why="memory that corrupts data corrupts training", fix="nvidia-smi -e 1 and reboot; with errors: reset, watch, send back"),
    Check(id="gpu.remap", what="no row remapping pending or failed", how=NVML, judge=each(_gpus, _remap, none="unknown"),
          why="a failed remapping is NVIDIA's criterion for a return", fix="see NVIDIA's GPU memory error management"),
    Check(id="gpu.xid", what="no Xid since boot", how="/dev/kmsg", judge=_xids, needs_root=True,
          why="the driver logs what hardware does wrong", fix="look the number up in NVIDIA's XID documentation; drain the host"),
    Check(id="gpu.throttle", what="no throttling at rest", how=NVML, judge=each(_gpus, _throttle, none="unknown"),
          why="a GPU that is hot or braked at rest is slow under load", fix="cooling, power supplies, power brake cable"),
    Check(id="gpu.power", what="power limit at its default", how=NVML, judge=each(_gpus, _power, none="unknown"),
          why="a lower limit slows this GPU and with it all others", fix="nvidia-smi -pl DEFAULT"),
    Check(id="gpu.persistence", what="persistence mode on", how=NVML,
          judge=each(_gpus, _flag("persistence", True, "warn", ("off", "on")), none="unknown"),
          why="without it the driver unloads between jobs, and counters restart", fix="systemctl enable --now nvidia-persistenced"),
    Check(id="gpu.mig", what="MIG off", how=NVML, judge=each(_gpus, _flag("mig", False, "fail", ("off", "on")), none="unknown"),
          why="NCCL does not run slices of a GPU as ranks", fix="nvidia-smi -mig 0"),
    Check(id="gpu.processes", what="no other process on the GPUs", how=NVML, judge=each(_gpus, _processes, none="unknown"),
          why="whatever else runs there is measured too", fix="end it, or take the host exclusively"),
)  # fmt: skip
