"""How much memory a rank may take for its buffers; torch only where a GPU is asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

GPU_RESERVE_NBYTES = 1 << 30
"""Left to NCCL's own buffers, which grow with channels and peers (nccl-tests#220: 1 GiB of headroom was just too little at 0.9)."""
GPU_SHARE = 0.9
CPU_SHARE = 0.5
"""Half of what is free: gloo and the checks work in the rest."""


def free_nbytes(device: Any, meminfo: Path = Path("/proc/meminfo"), status: Path = Path("/proc/self/status")) -> float:
    """Bytes that buffers may take on `device`, before it is shared out among ranks.

    GPU: 0.9 of what the driver says is free, less 1 GiB. CPU: half of MemAvailable, within RLIMIT_AS and the cgroup's limit.
    """
    if device.type == "cuda":
        import torch

        free, _total = torch.cuda.mem_get_info(device)
        return max(0.0, GPU_SHARE * free - GPU_RESERVE_NBYTES)
    limits = [limit for limit in (_meminfo(meminfo), _address_space(status), _cgroup()) if limit is not None]
    return CPU_SHARE * (min(limits) if limits else _installed())


def _installed() -> int:
    """Installed memory, where the system does not say what is free (macOS)."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _meminfo(path: Path) -> int | None:
    return _kib_line(path, "MemAvailable:")


def _address_space(status: Path) -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - (_kib_line(status, "VmSize:") or 0))


def _cgroup(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        limit, used = (root / "memory.max").read_text().strip(), (root / "memory.current").read_text().strip()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))


def _kib_line(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(key)), None)
