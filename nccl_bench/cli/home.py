"""The bare page, `nccl-bench` alone: what is here, what to expect of it, and the commands by question. No torch."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TextIO

from nccl_bench import __version__
from nccl_bench.cli.commands import Command, by_question
from nccl_bench.units import three_digits

SYSFS_INFINIBAND = Path("/sys/class/infiniband")


def home(stream: TextIO, rows: Sequence[Command], host: str | None = None, infiniband: Path = SYSFS_INFINIBAND) -> None:
    """Write the page. What cannot be seen is said, never guessed."""
    lines = [versions(), "", f"  here     {socket.gethostname() if host is None else host}: {here(infiniband)}", ""]
    for question, group in by_question(rows).items():
        for index, row in enumerate(group):
            lines.append(f"  {question if index == 0 else '':<24}{row.name:<9}{row.example}")
    stream.write("\n".join(lines) + "\n")


def versions() -> str:
    """ "nccl-bench 0.1.0 · torch 2.11.0+cu130 · NCCL 2.28.9": from package metadata, torch is not imported.

    NCCL is named where torch came with it as a package; the library that a run loads is in its run.json.
    """
    parts = [f"nccl-bench {__version__}"]
    try:
        parts.append(f"torch {metadata.version('torch')}")
    except metadata.PackageNotFoundError:
        return f"{parts[0]} · no torch: pip install 'nccl-bench[torch]' to measure"
    nccl = _packaged_nccl()
    return " · ".join([*parts, f"NCCL {nccl}"] if nccl else parts)


def _packaged_nccl() -> str | None:
    """The version of the nvidia-nccl package that torch asks for, where it is installed."""
    names = {match[0] for line in metadata.requires("torch") or () if (match := re.match(r"nvidia-nccl[\w-]*", line))}
    for name in sorted(names):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def here(infiniband: Path = SYSFS_INFINIBAND) -> str:
    """This host in a line: GPUs by NVML, NICs by sysfs."""
    gpus, nics = gpu_names(), nic_rates(infiniband)
    parts = [_counted(gpus) if gpus else f"no GPU, {os.cpu_count()} CPUs: a sweep here is a rehearsal on gloo"]
    parts += [_counted(nics)] if nics else []
    return ", ".join(parts)


def _counted(words: list[str]) -> str:
    return ", ".join(f"{words.count(word)}x {word}" for word in dict.fromkeys(words))


def gpu_names() -> list[str]:
    """Names of the GPUs that NVML sees; none where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_text(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _text(name: str | bytes) -> str:
    return (name.decode(errors="replace") if isinstance(name, bytes) else name).removeprefix("NVIDIA ")


def nic_rates(infiniband: Path) -> list[str]:
    """ "400G InfiniBand" for each active port under /sys/class/infiniband (its `rate` and `link_layer` files)."""
    rates = []
    for port in sorted(infiniband.glob("*/ports/*")):
        rate, layer, state = (_read(port / name) for name in ("rate", "link_layer", "state"))
        if rate is not None and layer is not None and "ACTIVE" in (state or "") and (match := re.match(r"\s*([0-9.]+)", rate)):
            rates.append(f"{three_digits(float(match[1])).rstrip('.')}G {layer}")
    return rates


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
