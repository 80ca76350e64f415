"""What a supervisor can say of its host without torch: the node's identity, and whether there should be GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.values import Plan

Json = dict[str, Any]

VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES", "NCCL_MULTI_RANK_GPU_ENABLE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE",
    "SLURMD_NODENAME",
)  # fmt: skip
"""Variables the ranks show each other."""
_VERSION = re.compile(r"Module(?:\s+for\s+\S+)?\s+([0-9][0-9.]*)")
_DEVICE = re.compile(r"nvidia[0-9]+")


def host_facts(environ: Mapping[str, str], root: Path = Path("/")) -> Json:
    """{"node", "gpu": {"driver", "devices", "slurm"}, "env"}; `root` is where /proc, /dev and /sys are looked up.

    "node" tells machines apart that share a name, as NCCL does (host name and boot id, src/misc/utils.cc).
    """
    return {
        "node": _first_line(root / "proc/sys/kernel/random/boot_id"),
        "gpu": {"driver": _driver(root), "devices": _devices(root), "slurm": _slurm_gpus(environ)},
        "env": {name: environ[name][:200] for name in VARIABLES if name in environ},
    }


def join_facts(rank: int, local_rank: int | None, launch: Launch, plan: Plan, about_host: Json) -> Json:
    """What a rank brings to the board: who it is, what it was asked to do, and its host."""
    who = {"rank": rank, "host": launch.host, "pid": os.getpid(), "local_rank": local_rank}
    return {**who, "offer": dict(plan.offer), "backend": plan.backend, **about_host}


def expects_gpu(gpu: Mapping[str, Any]) -> bool:
    """Whether a host should have GPUs: a driver, a device file, or Slurm gave it some."""
    return bool(gpu.get("driver") or gpu.get("devices") or gpu.get("slurm"))


def _driver(root: Path) -> str | None:
    """NVIDIA's kernel module: its version, from /proc/driver/nvidia/version."""
    line = _first_line(root / "proc/driver/nvidia/version")
    match = _VERSION.search(line or "")
    return match[1] if match else line


def _devices(root: Path) -> int:
    try:
        return sum(1 for path in (root / "dev").iterdir() if _DEVICE.fullmatch(path.name))
    except OSError:
        return 0


def _slurm_gpus(environ: Mapping[str, str]) -> str | None:
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if environ.get(name):
            return environ[name][:200]
    count = environ.get("SLURM_GPUS_ON_NODE", "0")
    return count[:20] if count not in ("", "0") else None


def _first_line(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(400).strip() or None
    except OSError:
        return None
