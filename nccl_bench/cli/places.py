"""Options that pairs and accept share: groups of nodes, oversubscription, ranks to start here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_bench.errors import UsageError

CPU_RANKS = 2
"""Ranks of a self-launch without a GPU: the fewest that talk."""


GroupsOf = Callable[[Sequence[str]], Any]


def groups_of(path: Path | None, environ: Mapping[str, str], addresses: Mapping[str, str] | None = None) -> GroupsOf:
    """From hosts to their Groups: a CSV's leaves (else racks), else Slurm's topology, else none. Raises DataError with path:line.

    addresses: host -> its SLURM_TOPOLOGY_ADDR, of a job that runs.
    """
    from nccl_bench.fabric import placement
    from nccl_bench.launch.slurm_topology import leaves

    if path is None:
        slurm = leaves(environ, addresses)
        # One leaf for all says nothing of boundaries: what the pairs show counts.
        return _groups({} if slurm is None else slurm.of, "" if slurm is None else slurm.source, least=2)
    places = placement.read(path)
    return _groups({host: place.leaf or place.rack for host, place in places.items()}, f"--groups {path}", least=1)


def _groups(names: Mapping[str, str | None], source: str, least: int) -> GroupsOf:
    from nccl_bench.verdict.evidence import Groups

    short = {host.split(".")[0]: name for host, name in names.items()}

    def of(hosts: Sequence[str]) -> Groups | None:
        found = tuple(names.get(host) or short.get(host.split(".")[0]) for host in hosts)
        return Groups(of=found, source=source) if len(set(found) - {None}) >= least else None

    return of


def ratio(text: str | None) -> float | None:
    """2.0 of "2:1" or "2"."""
    if text is None:
        return None
    head, _, tail = text.partition(":")
    try:
        value = float(head) / float(tail or 1)
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 1 <= value < 1000:
        raise UsageError(f"--oversubscription {text!r}: not a ratio", "2:1 for uplinks that carry half of what the nodes send")
    return value


def local_count(nproc: int | None, launch: Any, backend: str, environ: Mapping[str, str]) -> int:
    """Workers to start here: one where a launcher started us, else as many as asked for, or as there are GPUs."""
    from nccl_bench.launch.local import visible_gpus

    if launch.launcher != "none":
        if nproc not in (None, 1, launch.local_size):
            raise UsageError(f"-g {nproc} starts ranks here, but {launch.launcher} has started {launch.world_size} already", "leave -g out")
        return 1
    if nproc is not None:
        return nproc
    return (visible_gpus(environ) if backend != "gloo" else 0) or CPU_RANKS
