"""Which leaf switch or block each host of a Slurm job hangs on: topology.conf, `scontrol show topology`, or SLURM_TOPOLOGY_ADDR.

SLURM_TOPOLOGY_ADDR is "spine.leaf.node" with SLURM_TOPOLOGY_ADDR_PATTERN "switch.switch.node" (srun's manual); it speaks of one host.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nccl_bench.errors import LaunchError
from nccl_bench.launch.hostlist import expand

PATIENCE_S = 5.0
"""scontrol waits for a minute where the controller is out of reach."""
MAX_FILE_BYTES = 16 << 20
_WORD = re.compile(r"(\w+)=(\S*)")
RunCommand = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """Hosts by their lowest switch or block."""

    of: Mapping[str, str]
    source: str


def scontrol(argv: Sequence[str]) -> str | None:
    """What a command of Slurm prints; None where there is none, or it fails."""
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def leaves(environ: Mapping[str, str], addresses: Mapping[str, str] | None = None, run: RunCommand = scontrol) -> Leaves | None:
    """The leaves of a job's hosts, None outside Slurm and where its topology is flat. `addresses`: host -> its SLURM_TOPOLOGY_ADDR."""
    if not any(name in environ for name in ("SLURM_JOB_ID", "SLURM_CONF")):
        return None
    found = _from_addresses(addresses or {}, environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""))
    if found:
        return Leaves(of=found, source="Slurm's topology (SLURM_TOPOLOGY_ADDR)")
    path = Path(environ["SLURM_CONF"]).parent / "topology.conf" if environ.get("SLURM_CONF") else Path("/etc/slurm/topology.conf")
    text = _read(path)
    if text is not None and (found := parse(text)):
        return Leaves(of=found, source="Slurm's topology (topology.conf)")
    text = run(("scontrol", "show", "topology")) if "SLURM_JOB_ID" in environ else None
    if text is not None and (found := parse(text)):
        return Leaves(of=found, source="Slurm's topology (scontrol show topology)")
    return None


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def parse(text: str) -> dict[str, str]:
    """Host -> leaf switch or block of topology.conf or of scontrol's answer; {} where it names none. Lines that are no such are passed over.

    A switch with Nodes= is a leaf in the file; scontrol repeats all nodes below on higher levels, so the lowest level counts.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        words = {name.lower(): value for name, value in _WORD.findall(line.partition("#")[0])}
        name = words.get("switchname") or words.get("blockname")
        if not name or not words.get("nodes") or words["nodes"] == "(null)":
            continue
        level = int(words["level"]) if words.get("level", "").isdecimal() else 0
        try:
            hosts = expand(words["nodes"])
        except LaunchError:
            continue
        for host in hosts:
            if host not in found or level < found[host][0]:
                found[host] = (level, name)
    return {host: name for host, (_, name) in found.items()}


def _from_addresses(addresses: Mapping[str, str], pattern: str) -> dict[str, str]:
    """Host -> the part before the node of its address, where the pattern says that this is a switch or block."""
    kinds = pattern.split(".")
    if len(kinds) < 2 or kinds[-1] != "node" or kinds[-2] not in ("switch", "block"):
        return {}
    found = {}
    for host, address in addresses.items():
        parts = address.split(".")
        if len(parts) == len(kinds) and parts[-2]:
            found[host] = parts[-2]
    return found
