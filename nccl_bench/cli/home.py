"""The bare page, `nccl-bench` alone: what is here, what to expect of it, and the commands by question. No torch."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from nccl_bench import __version__
from nccl_bench.cli.commands import Command, by_question
from nccl_bench.errors import NcclBenchError
from nccl_bench.fabric.topology import Node, Topology, describe
from nccl_bench.units import three_digits

WIDTH = 100
NODES = 16
"""Nodes of the second figure of `expect`: enough for the network alone to decide (a tree's gain is at two nodes)."""
DRIVER = Path("/proc/driver/nvidia/version")
"""There where a driver is loaded (NVIDIA driver README, "The /proc interface")."""


def home(
    stream: TextIO, rows: Sequence[Command], node: Node | None = None, driver: Path = DRIVER, environ: Mapping[str, str] | None = None
) -> None:
    """Write the page for `node` (default: this one). What cannot be seen is said, never guessed."""
    node = node_here() if node is None else node
    environ = os.environ if environ is None else environ
    lines = [versions(), "", *_field("here", f"{node.host}: {here(node)}")]
    lines += [line for text in expect(node, environ) for line in _field("expect", text)]
    if node.gpus or driver.exists():
        # Without a driver the missing NVML is no news.
        lines += [line for text in node.warnings for line in _field("note", text)]
    lines.append("")
    for question, group in by_question(rows).items():
        for index, row in enumerate(group):
            first, *rest = row.example.splitlines()
            lines.append(f"  {question if index == 0 else '':<24}{row.name:<9}{first}")
            lines += [f"{'':<39}{line}" for line in rest]
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


def expect(node: Node, environ: Mapping[str, str]) -> list[str]:
    """What all_reduce should reach on this node, and on 16 of its kind, GB/s of bus bandwidth; why not where hardware is unknown.

    Nothing where there is no GPU, or one alone.
    """
    gpus = len(node.gpus or ())
    if not gpus:
        return []
    networked = any(nic.rate_gbit for nic in node.nics or () if nic.used is not False)
    try:
        parts = []
        if gpus > 1:
            rate, algorithm, _ = _reaches(node, 1, environ)
            parts.append(f"this node {rate} ({algorithm})")
        if networked:
            rate, _, limit = _reaches(node, NODES, environ)
            parts.append(f"{NODES} such nodes {rate} ({limit})")
    except NcclBenchError as err:
        return [f"not known: {err.why}"]
    return [f"all_reduce: {' · '.join(parts)}"] if parts else []


def _reaches(node: Node, nodes: int, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """(rate, algorithm, what limits it) in words."""
    from nccl_bench.fabric import ideal

    topology = Topology(nodes=tuple(replace(node, host=f"{node.host}-{index}") for index in range(nodes)))
    found = ideal.ceilings(topology, None, environ, collectives=("all_reduce",)).collectives["all_reduce"]
    algorithm = max(found.by_algorithm, key=lambda name: found.by_algorithm[name].attainable_GBps)
    seen = found.best.expected
    rate = f"~{three_digits(seen.mid_GBps)}" if seen is not None else f"at most {three_digits(found.best.attainable_GBps)}"
    return f"{rate} GB/s", algorithm.upper() if algorithm == "nvls" else algorithm, found.best.limited_by


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
