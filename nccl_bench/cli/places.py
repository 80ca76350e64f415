"""Options that pairs and accept share: groups of nodes, oversubscription, ranks to start here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_bench.errors import UsageError

CPU_RANKS = 2
"""Ranks of a self-launch without a GPU: the fewest that talk."""


def groups_of(path: Path | None, environ: Mapping[str, str]) -> Callable[[Sequence[str]], Any]:
    """From hosts to their Groups: a CSV's leaves (else racks), else none. Raises DataError with path:line."""
    from nccl_bench.fabric import placement
    from nccl_bench.verdict.evidence import Groups

    if path is None:
        return lambda hosts: None
    places = placement.read(path)
    short = {host.split(".")[0]: place for host, place in places.items()}

    def of(hosts: Sequence[str]) -> Groups | None:
        found = [places.get(host) or short.get(host.split(".")[0]) for host in hosts]
        names = tuple(None if place is None else place.leaf or place.rack for place in found)
        return Groups(of=names, source=f"--groups {path}") if any(names) else None

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
