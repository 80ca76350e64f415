"""What healthy systems were seen to reach, as a share of attainable (expected.json), and the floors where too few were seen.

A cell is a kind of platform, a collective, ranks a node, one, two or more nodes, and the algorithm. Its sources count once
each. `low` is the lower quartile of their shares, `mid` the median; a cell with fewer than two sources is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nccl_bench.fabric.data import table
from nccl_bench.fabric.shape import Shape

MIN_SOURCES = 2
FLOORS = {"all_reduce": 0.85, "sendrecv": 0.90, "pingpong": 0.90, "all_to_all": 0.75, "all_gather": 0.80, "reduce_scatter": 0.80}
"""Shares of attainable below which a row fails where no cell is known. They are stated, not measured: 10 of 51 healthy published results are
below 0.90 of attainable, the lowest of them 0.71 (fabric/expected.json has the sources)."""
FLOOR_OTHER = 0.75
FLOOR_TWO_RANKS = 0.70
"""Two ranks reach less of attainable than more do."""
_NET = {"InfiniBand": "RDMA", "RoCE": "RDMA", "Omni-Path": "RDMA", "EFA": "EFA", "TCPX": "TCPX", "Slingshot": "Slingshot", "Ethernet": "TCP"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What kind of system a group of ranks runs on."""

    family: str
    joined: str
    """"switch", "mesh" or "pcie"; "single" where a node has one rank."""
    net: str
    """"-" for one node, else the kind of network."""
    ranks_per_node: str
    """"1", "2", "4", "8", "rack" for NVL72."""
    nodes: str
    """"1", "2" or "more" (NVLink domains count as nodes)."""

    @property
    def name(self) -> str:
        """For sentences and keys."""
        return f"{self.family} {self.joined}, {self.ranks_per_node} a node, {self.nodes} node{'' if self.nodes == '1' else 's'}" + (
            "" if self.net == "-" else f" over {self.net}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """GB/s of bus bandwidth that healthy systems of this kind reached."""

    low_GBps: float
    mid_GBps: float
    n_sources: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The same as a share of attainable."""

    low_frac: float
    mid_frac: float
    sources: tuple[str, ...]

    def of(self, attainable_GBps: float, line_GBps: float) -> Expected:
        """The figures for one system; never above its line."""
        low, mid = (min(frac * attainable_GBps, line_GBps) for frac in (self.low_frac, self.mid_frac))
        return Expected(low_GBps=low, mid_GBps=mid, n_sources=len(self.sources), sources=self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One published result of a healthy system."""

    gpus: str
    nics: str | None
    nodes: int
    collective: str
    algorithm: str | None
    """The algorithm that ran, None where not told: then its share is of the best algorithm."""
    busbw_GBps: float
    share_frac: float
    """busbw over attainable; benchmarks/ceilings.py recomputes it and a test compares."""
    platform: str
    source: str
    """Who measured: results of one source count once a cell."""
    url: str


def platform_of(shape: Shape) -> Platform:
    """The kind of system that a shape is."""
    domain = shape.kinds[0]
    size = max(kind.size for kind in shape.kinds)
    joined = "single" if size == 1 else "switch" if domain.switched and domain.whole else "mesh" if domain.whole else "pcie"
    nodes = "1" if not shape.many else "2" if len(shape.domains) == 2 else "more"
    return Platform(
        family=domain.model.family if domain.model is not None else f"cc {domain.cc}",
        joined=joined,
        net="-" if not shape.many else _NET.get(domain.layer or "", "mixed"),
        ranks_per_node="rack" if size > 16 else str(size),
        nodes=nodes,
    )


@cache
def observations() -> tuple[Observation, ...]:
    """The table as it is kept."""
    rows: list[dict[str, Any]] = table("expected.json")
    return tuple(Observation(**row) for row in rows)


@cache
def _cells() -> dict[tuple[str, str, str | None], tuple[Observation, ...]]:
    cells: dict[tuple[str, str, str | None], list[Observation]] = {}
    for row in observations():
        cells.setdefault((row.platform, row.collective, row.algorithm), []).append(row)
    return {key: tuple(rows) for key, rows in cells.items()}


def cell(platform: str, key: str, algorithm: str | None) -> tuple[Observation, ...]:
    """The rows of one cell."""
    return _cells().get((platform, key, algorithm), ())


def lookup(platform: Platform, key: str, algorithm: str | None, best: frozenset[str]) -> Share | None:
    """The share for a kind of system, a collective ("sendrecv:node" too) and an algorithm; None with fewer than two sources.

    `best`: the algorithms that reach most on this fabric. Results that do not tell their algorithm stand for these, and
    `algorithm` None (what a user gets who sets nothing) takes the results of all of them.
    """
    return share_of(rows_for(platform.name, key, algorithm, best))


def rows_for(platform: str, key: str, algorithm: str | None, best: frozenset[str]) -> tuple[Observation, ...]:
    """The observations that count for a cell."""
    names = {None, *best} if algorithm is None else {algorithm, None} if algorithm in best else {algorithm}
    return tuple(row for name in names for row in cell(platform, key, name))


def lowest_across(key: str) -> float | None:
    """The smallest share that a healthy system of several nodes is known to have reached by a collective; None where none is known."""
    return min((row.share_frac for row in observations() if row.nodes > 1 and row.collective == key), default=None)


def lowest_of(platform: str, key: str, algorithm: str | None, best: frozenset[str]) -> float | None:
    """The smallest share of a cell; None where it is empty."""
    return min((row.share_frac for row in rows_for(platform, key, algorithm, best)), default=None)


def above_nics(platform: str, key: str, best: frozenset[str]) -> bool:
    """Whether a system of this kind showed more bus bandwidth than its NICs carry: then no ring ran, but a tree or sums in switches.

    On two nodes these send half of a ring's bytes. Where no result shows it, what ran may have been the ring: A100 nodes with eight
    NICs reached 188 of 200 GB/s by either (nccl-tests issue 196: there "the tree rarely beats the ring").
    """
    return any(row.busbw_GBps > nics_GBps(row.nics) for row in rows_for(platform, key, None, best) if row.nics is not None)


def nics_GBps(nics: str) -> float:
    """The line rate of "8x400-IB"."""
    count, _x, rest = nics.partition("x")
    return int(count) * float(rest.partition("-")[0]) / 8


def share_of(rows: Sequence[Observation]) -> Share | None:
    """Lower quartile and median of the sources' shares; a source with several results counts once, with its best."""
    best: dict[str, Observation] = {}
    for row in rows:
        if row.source not in best or row.share_frac > best[row.source].share_frac:
            best[row.source] = row
    if len(best) < MIN_SOURCES:
        return None
    shares = sorted(row.share_frac for row in best.values())
    return Share(low_frac=quartile(shares), mid_frac=statistics.median(shares), sources=tuple(row.url for row in best.values()))


def quartile(values: Iterable[float]) -> float:
    """The lower quartile, between the values it falls between (numpy's default)."""
    ordered = sorted(values)
    place = (len(ordered) - 1) / 4
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def floor_of(collective: str, n_ranks: int) -> float:
    """The stated floor, as a share of attainable: it can fail a row, and passes it only with like nodes beside it."""
    return FLOOR_TWO_RANKS if n_ranks == 2 else FLOORS.get(collective, FLOOR_OTHER)
