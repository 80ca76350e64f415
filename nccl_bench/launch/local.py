"""How many ranks to start here when nobody launched us: the GPUs that CUDA would show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nccl_bench.launch.facts import host_facts


def visible_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """GPUs of this host that a process with this environment sees, without loading CUDA.

    Device files count the GPUs; CUDA_VISIBLE_DEVICES picks among them, up to its first entry that names none (CUDA C++
    programming guide, environment variables). Names of MIG slices count here and are refused by the launch.
    """
    n_devices = int(host_facts(environ, root)["gpu"]["devices"])
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not n_devices:
        return n_devices
    count = 0
    for entry in (word.strip() for word in listed.split(",")):
        if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < n_devices):
            break
        count += 1
    return count
