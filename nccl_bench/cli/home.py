"""The bare page, `nccl-bench` alone: what is here, what to expect of it, and the commands by question. No torch."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from nccl_bench import __version__
from nccl_bench.cli.commands import Command, by_question
from nccl_bench.fabric.topology import Node, describe

WIDTH = 100
DRIVER = Path("/proc/driver/nvidia/version")
"""There where a driver is loaded (NVIDIA driver README, "The /proc interface")."""


def home(stream: TextIO, rows: Sequence[Command], node: Node | None = None, driver: Path = DRIVER) -> None:
    """Write the page for `node` (default: this one). What cannot be seen is said, never guessed."""
    node = node_here() if node is None else node
    lines = [versions(), "", *_field("here", f"{node.host}: {here(node)}")]
    if node.gpus or driver.exists():
        # Without a driver the missing NVML is no news.
        lines += [line for text in node.warnings for line in _field("note", text)]
    lines.append("")
    for question, group in by_question(rows).items():
        for index, row in enumerate(group):
            lines.append(f"  {question if index == 0 else '':<24}{row.name:<9}{row.example}")
    stream.write("\n".join(lines) + "\n")


def node_here(environ: Mapping[str, str] | None = None, **roots: Any) -> Node:
    """What NVML and /sys say of this node (fabric/detect); nothing is loaded but what that needs."""
    from nccl_bench.fabric import detect

    return detect.node_here(os.environ if environ is None else environ, **roots)


def here(node: Node) -> str:
    """A node in a line; without a GPU, what can be done all the same."""
    if node.gpus:
        return describe(node)
    nics = describe(node).partition(", ")[2]
    parts = ["no GPU", f"{os.cpu_count()} CPUs", *([nics] if nics else [])]
    return f"{', '.join(parts)}: a sweep here is a rehearsal on gloo"


def _field(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<9}", subsequent_indent=" " * 11, break_on_hyphens=False)


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
