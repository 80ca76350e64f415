"""Points of an acceptance by the world that measured them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_bench.records import Point
from nccl_bench.units import format_size
from nccl_bench.verdict.rows import Case

MOST_HOSTS = 4
"""Hosts of a world that a row names; a world of more is all of them."""
World = tuple[str, tuple[int, ...], str]
"""(stage, ranks, collective)."""


def worlds(case: Case) -> dict[World, list[Point]]:
    """Streaming points by (stage, ranks, collective)."""
    found: dict[World, list[Point]] = {}
    for point in case.points:
        if point.pair is None and point.regime == "streaming" and point.kind == "collective" and point.status != "skipped":
            ranks = tuple(point.group.slowest or ()) if point.group is not None else ()
            name = f"{point.collective} (by node)" if point.shift == "node" else point.collective
            found.setdefault((point.stage or "cluster", ranks, name), []).append(point)
    return found


def hosts_of(case: Case, ranks: Sequence[int]) -> tuple[str, ...]:
    """The hosts of a world, where they are few."""
    hosts = tuple(dict.fromkeys(case.rank_hosts[rank] for rank in ranks if rank < len(case.rank_hosts)))
    return hosts if len(hosts) <= MOST_HOSTS else ()


def why_lost(case: Case, world: World, sizes: tuple[int, int] | None) -> str:
    """Why a world has no number of these sizes, where a case of them was skipped or failed: memory that is too small."""
    stage, ranks, name = world
    for point in case.points:
        mine = (point.stage or "cluster", point.collective) == (stage, name.split(" ")[0]) and point.status != "ok" and point.reason
        among = point.group is None or not ranks or tuple(point.group.slowest or ()) == ranks
        if mine and among and (sizes is None or sizes[0] <= point.requested_nbytes <= sizes[1]):
            return f"not measured: {format_size(point.requested_nbytes)} {point.status}: {point.reason}"
    return ""


def largest_of(points: Sequence[Point]) -> Point:
    """The point of the largest size; of several passes, the middle one (the slower of two)."""
    most = max(point.nbytes for point in points)
    repeats = sorted((point for point in points if point.nbytes == most), key=lambda point: point.busbw_GBps or 0.0)
    return repeats[(len(repeats) - 1) // 2]
