"""What a pair test is asked to do: levels, mode, sizes; its cases and who meets whom. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nccl_bench.errors import UsageError
from nccl_bench.measure.schedule import INSIDE_ROUNDS, Level, Round, default_mode, inside_rounds, n_rounds, rounds_for, rounds_of
from nccl_bench.records import Spec
from nccl_bench.units import format_size

SPEC = "NCCL_BENCH_PAIRS"
Way = Literal["both", "ab", "ba"]
WAYS: tuple[Way, ...] = ("both", "ab", "ba")
SIZES = {"nccl": (8, 64 << 20), "gloo": (8, 1 << 20)}
"""Small and large. 64 MiB take 1.4 ms on a 400G port: long enough for its full rate, short enough for thousands of rounds."""
ALL_AGAIN_UP_TO = 8
"""Nodes of which all pairs are measured once more where something is slow: at most 7 rounds."""
OVERHEAD_S = 0.15
"""Seconds a case takes beyond its budget: agreeing, checking, gathering; for the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSpec(Spec):
    """One pair test."""

    levels: tuple[Level, ...] = ("node", "gpu")
    mode: str | None = None
    """full, screen or a number of rounds; None: full up to 32 nodes."""
    pairs: tuple[tuple[int, int], ...] = ()
    """These pairs of nodes alone, instead of rounds of all."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Nodes by group: a screen also plays inside them."""
    sizes: tuple[int, ...] = ()
    budget_s: float = 0.1
    timeout_s: float = 60.0
    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in (None, "full", "screen") and not (str(self.mode).isdigit() and int(str(self.mode)) > 0):
            raise UsageError(f"--mode {self.mode}: full, screen or a number of rounds", "--mode 8")
        if not self.levels or any(level not in ("node", "gpu") for level in self.levels):
            raise UsageError(f"--level {','.join(self.levels)}: node or gpu")
        if not 1e-3 <= self.budget_s < 1e6:
            raise UsageError(f"--budget {self.budget_s:g} is out of range", "seconds a case, 0.1")
        if not 1e-3 <= self.timeout_s < 1e7:
            raise UsageError(f"-T/--timeout {self.timeout_s:g} is out of range", "seconds without progress before a round is given up, 60")
        if any(nbytes < 1 for nbytes in self.sizes):
            raise UsageError("--sizes: a message has at least 1 byte", "--sizes 8,64M")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One round at one size in one direction."""

    level: Level
    round: int
    pairs: tuple[tuple[int, int], ...]
    nbytes: int
    way: Way

    def label(self) -> str:
        """ "pairs of nodes, round 3, 64 MiB"."""
        return f"pairs of {'nodes' if self.level == 'node' else 'GPUs'}, round {self.round + 1}, {format_size(self.nbytes)}"


def with_sizes(spec: PairSpec, backend: str) -> PairSpec:
    """The spec with its default sizes filled in."""
    return spec if spec.sizes else replace(spec, sizes=SIZES[backend])


def rounds(spec: PairSpec, n_nodes: int, n_local: int) -> Iterator[Round]:
    """The rounds of a spec in the order they run."""
    if spec.pairs:
        yield from rounds_for("node", spec.pairs, n_rounds(n_nodes))
        return
    mode = spec.mode or default_mode(n_nodes)
    if "node" in spec.levels:
        yield from rounds_of("node", n_nodes, mode)
        if mode != "full" and spec.groups:
            yield from inside_rounds(spec.groups, INSIDE_ROUNDS, n_rounds(n_nodes))
    if "gpu" in spec.levels:
        yield from rounds_of("gpu", n_local, "full" if mode == "screen" else mode)


def cases_of(spec: PairSpec, n_nodes: int, n_local: int) -> Iterator[Case]:
    """Every round in every size and direction."""
    for one in rounds(spec, n_nodes, n_local):
        for nbytes in sorted(spec.sizes, reverse=True):
            for way in WAYS:
                yield Case(level=one.level, round=one.number, pairs=one.pairs, nbytes=nbytes, way=way)


def estimate_s(spec: PairSpec, n_nodes: int, n_local: int, backend: str) -> tuple[int, float]:
    """(cases, seconds at most) of a spec."""
    n = sum(1 for _ in cases_of(with_sizes(spec, backend), n_nodes, n_local))
    return n, n * (spec.budget_s + OVERHEAD_S)


def rank_pairs(case: Case, node: Sequence[int], local: Sequence[int]) -> list[tuple[int, int]]:
    """Who of the ranks meets whom: every local rank with its peer's same local rank, or two local ranks on every node at once."""
    at = {(n, place): rank for rank, (n, place) in enumerate(zip(node, local, strict=True))}
    places, nodes = sorted(set(local)), sorted(set(node))
    if case.level == "node":
        return [(at[a, place], at[b, place]) for a, b in case.pairs for place in places if (a, place) in at and (b, place) in at]
    return [(at[n, a], at[n, b]) for a, b in case.pairs for n in nodes if (n, a) in at and (n, b) in at]
