"""Rounds of disjoint pairs: every pair once, nobody twice in a round; pure, no torch.

The circle method of round-robin tournaments (Kirkman 1847): the last of an even number stays, the others move round by one
each round. An odd number plays with a bye.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["node", "gpu"]
FULL_UP_TO = 32
"""Nodes up to which all pairs are measured unless asked otherwise (CONTRACT.md, pairs): 31 rounds."""
SCREEN_ROUNDS = 8
"""Rounds of a screen: so many partners a node that three slow ones in a row are beyond chance, and the odd bad partner does not matter."""


def n_rounds(n: int) -> int:
    """Rounds that all pairs of n take: n - 1 for an even n, n for an odd one."""
    return 0 if n < 2 else n - 1 + n % 2


def partner(n: int, number: int, who: int) -> int | None:
    """Whom `who` meets in round `number`, 0-based; None where it rests."""
    m = n + n % 2
    if m < 2:
        return None
    last = m - 1
    at = number % last
    if who == last:
        found = at * (m // 2) % last
    else:
        found = (at - who) % last
        if found == who:
            found = last
    return None if found >= n else found


def pairs_of(n: int, number: int) -> tuple[tuple[int, int], ...]:
    """The pairs of one round, the smaller number first."""
    return tuple((a, b) for a in range(n) if (b := partner(n, number, a)) is not None and a < b)


def screen_rounds(n: int, k: int = SCREEN_ROUNDS) -> tuple[int, ...]:
    """k of the rounds, spread evenly: neighbours by number and far ones are met alike."""
    total = n_rounds(n)
    k = min(k, total)
    return tuple(sorted({(2 * i + 1) * total // (2 * k) for i in range(k)})) if k else ()


INSIDE_ROUNDS = 5
"""More rounds of a screen inside groups, where these are known: an oversubscribed way out hides a slow port from everybody but its neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a level: who meets whom."""

    level: Level
    number: int
    pairs: tuple[tuple[int, int], ...]
    """Of nodes, or of local ranks (on all nodes at once)."""


def rounds_of(level: Level, n: int, mode: str = "full") -> Iterator[Round]:
    """The rounds of n nodes, or of n local ranks. `mode`: full, screen, or a number of rounds."""
    chosen: Sequence[int] = range(n_rounds(n)) if mode == "full" else screen_rounds(n, SCREEN_ROUNDS if mode == "screen" else int(mode))
    for number in chosen:
        yield Round(level=level, number=number, pairs=pairs_of(n, number))


def inside_rounds(groups: Sequence[Sequence[int]], k: int, first: int) -> Iterator[Round]:
    """k rounds in which every group plays among its own members, all groups at once, numbered from `first`."""
    total = max((n_rounds(len(group)) for group in groups), default=0)
    for at in range(min(k, total)):
        pairs = [(group[a], group[b]) for group in groups for a, b in pairs_of(len(group), at) if at < n_rounds(len(group))]
        yield Round(level="node", number=first + at, pairs=tuple((min(pair), max(pair)) for pair in pairs))


def rounds_for(level: Level, pairs: Sequence[tuple[int, int]], first: int) -> Iterator[Round]:
    """Chosen pairs in as few rounds as a greedy choice makes: each pair in the first round in which both are free."""
    left = list(dict.fromkeys(pairs))
    number = first
    while left:
        busy: set[int] = set()
        now = []
        for pair in left:
            if not busy & set(pair):
                now.append(pair)
                busy |= set(pair)
        left = [pair for pair in left if pair not in now]
        yield Round(level=level, number=number, pairs=tuple(now))
        number += 1


def default_mode(n_nodes: int) -> str:
    """All pairs up to 32 nodes, else a screen (then suspects with known-good partners)."""
    return "full" if n_nodes <= FULL_UP_TO else "screen"
