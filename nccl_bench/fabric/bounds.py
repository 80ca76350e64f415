"""Upper bounds on bus bandwidth from what must cross a partition of the ranks. Pure.

A partition splits n ranks into parts; part p holds n_p of them and C_p GB/s can cross its border one way. With size S and time T
(nccl-tests' sizes: the larger buffer of a rank) what must cross is counted, and busbw = S / T x bus factor follows:

    all_reduce, ends add up   an element needs P-1 messages to be combined and P-1 to be spread: 2 (P-1) S <= T sum C_p,
                              and every part sends and receives S at least once: min((n-1)/n x sum C / (P-1), 2 (n-1)/n x min C)
    all_reduce, fabric adds   every part sends S and receives S: 2 (n-1)/n x min C
    all_gather, reduce_scatter  part p receives (sends) (n - n_p)/n x S: C_p (n-1) / (n - n_p)
    all_to_all                n_p ranks send S/n to each of n - n_p others: C_p (n-1) / (n_p (n - n_p))
    broadcast, reduce         every part but one receives (sends) S: min C
    gather, scatter           the root's part receives (sends) (n - n_p)/n x S: as all_gather, over the root's parts
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A part of a partition."""

    n_ranks: int
    rate: float
    """GB/s that can cross its border, one way; math.inf for what does not bind."""
    words: str
    """What the border is made of, for sentences."""


class Bound(NamedTuple):
    """A bound on bus bandwidth and what makes it."""

    GBps: float
    words: str


NO_BOUND = Bound(math.inf, "nothing")


def least(*bounds: Bound | None) -> Bound:
    """The tightest; the first of equal ones."""
    return min((bound for bound in bounds if bound is not None), key=lambda bound: bound.GBps, default=NO_BOUND)


def most(bounds: Iterable[Bound]) -> Bound:
    """The highest: the best of several ways."""
    return max(bounds, key=lambda bound: bound.GBps, default=NO_BOUND)


def _narrowest(parts: Sequence[Part]) -> Part:
    return min(parts, key=lambda part: part.rate)


def all_reduce_at_ends(n: int, parts: Sequence[Part]) -> Bound:
    """All ranks end with the sum, and only the ranks add up."""
    if len(parts) < 2:
        return NO_BOUND
    narrow = _narrowest(parts)
    total = sum(part.rate for part in parts)
    return least(Bound((n - 1) / n * total / (len(parts) - 1), narrow.words), all_reduce_in_fabric(n, parts))


def all_reduce_in_fabric(n: int, parts: Sequence[Part]) -> Bound:
    """All ranks end with the sum, and what joins the parts may add up."""
    if len(parts) < 2:
        return NO_BOUND
    narrow = _narrowest(parts)
    return Bound(2 * (n - 1) / n * narrow.rate, narrow.words)


def gather_like(n: int, parts: Iterable[Part]) -> Bound:
    """all_gather and reduce_scatter: each part takes in (gives out) what the others have."""
    return least(*(Bound(part.rate * (n - 1) / (n - part.n_ranks), part.words) for part in parts if part.n_ranks < n))


def exchange(n: int, parts: Iterable[Part]) -> Bound:
    """all_to_all: each rank of a part sends a share to each rank outside."""
    return least(*(Bound(part.rate * (n - 1) / (part.n_ranks * (n - part.n_ranks)), part.words) for part in parts if part.n_ranks < n))


def spread(n: int, parts: Iterable[Part]) -> Bound:
    """broadcast and reduce: every part but the root's takes in (gives out) the whole."""
    return least(*(Bound(part.rate, part.words) for part in parts if part.n_ranks < n))


def ring(n: int, parts: Iterable[Part]) -> Bound:
    """A ring crosses the border of every part at least once each way, with all of the bus bandwidth."""
    return spread(n, parts)
