"""Groups of nodes and what lies between them: inferred from who is fast with whom, or given; slow boundaries. numpy.

Two nodes at fault are slow with one another too. Nodes that are slow with all the world but fast among themselves share
a place, and it is their way out that is slow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nccl_bench.verdict.ends import MAX_CHANCE, MIN_EFFECT, SHARE, Looked, binomial_tail, reference_of, split
from nccl_bench.verdict.evidence import LARGE_ONE, Bools, Exchanges, Groups, Ints, Suspect, named

CONSISTENT = 0.9
"""Of the pairs inside inferred groups that must be fast, and of those across that must be slow."""
DENSE = 0.6
"""Of all pairs that must have been measured before groups are read out of them: a screen meets too few of a node's neighbours."""
MIN_NODES = 2
"""A group of one node is that node."""


def infer(exchanges: Exchanges, n_nodes: int, hosts: Sequence[str]) -> Groups | None:
    """The groups of nodes that are fast among themselves and slow across; None where there are none to be seen."""
    pairs, speed = _pair_speed(exchanges, n_nodes)
    if len(pairs) < DENSE * n_nodes * (n_nodes - 1) / 2:
        return None
    known = np.isfinite(speed)
    level = split(np.sort(speed[known])) if known.any() else None
    if level is None:
        return None
    fast = known & (speed >= level)
    group = _components(pairs[fast], n_nodes)
    sizes = np.bincount(group, minlength=n_nodes)
    seen = np.zeros(n_nodes, dtype=bool)
    seen[pairs.ravel()] = True
    large = [int(at) for at in np.flatnonzero(sizes >= MIN_NODES)]
    if len(large) < 2 or sizes[large].sum() < CONSISTENT * seen.sum():
        return None
    in_large = np.isin(group, large)
    both = in_large[pairs[:, 0]] & in_large[pairs[:, 1]] & known
    same = group[pairs[:, 0]] == group[pairs[:, 1]]
    inside, across = both & same, both & ~same
    if not across.any() or fast[inside].mean() < CONSISTENT or fast[across].mean() > 1 - CONSISTENT:
        return None
    names = {number: _group_name([hosts[int(node)] for node in np.flatnonzero(group == number)]) for number in large}
    return Groups(of=tuple(names.get(int(number)) for number in group), source="inferred from the measurements")


def _group_name(hosts: Sequence[str]) -> str:
    return "{" + ", ".join(hosts) + "}" if len(hosts) <= 20 else "{" + named(hosts, 8) + "}"


def _pair_speed(exchanges: Exchanges, n_nodes: int) -> tuple[Ints, np.ndarray]:
    """([pair, 2], [pair] median speed over rails) of the stratum with most rows."""
    if not len(exchanges):
        return np.zeros((0, 2), dtype=np.int64), np.zeros(0)
    numbers, counts = np.unique(exchanges.stratum, return_counts=True)
    rows = exchanges.stratum == numbers[int(np.argmax(counts))]
    low = np.minimum(exchanges.src[rows], exchanges.dst[rows])
    high = np.maximum(exchanges.src[rows], exchanges.dst[rows])
    keys, at = np.unique(low * n_nodes + high, return_inverse=True)
    order = np.lexsort((exchanges.speed[rows], at))
    counts = np.bincount(at)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    middle = exchanges.speed[rows][order][first + (counts - 1) // 2]
    return np.stack((keys // n_nodes, keys % n_nodes), axis=1), middle


def _components(edges: Ints, n: int) -> Ints:
    """[node] number of its connected part: labels spread until they stand (the smallest wins)."""
    label = np.arange(n)
    while len(edges):
        before = label.copy()
        least = np.minimum(label[edges[:, 0]], label[edges[:, 1]])
        np.minimum.at(label, edges[:, 0], least)
        np.minimum.at(label, edges[:, 1], least)
        label = label[label]
        if np.array_equal(before, label):
            break
    return label


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Groups as numbers."""

    group: Ints
    """[node] number of its group, -1 where not known."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, groups: Groups) -> Places:
        """From names."""
        names = tuple(dict.fromkeys(name for name in groups.of if name is not None))
        numbers = {name: at for at, name in enumerate(names)}
        return cls(group=np.asarray([-1 if name is None else numbers[name] for name in groups.of], dtype=np.int64), names=names)

    def across(self, exchanges: Exchanges) -> Bools:
        """[row] whether it crosses from one known group to another."""
        a, b = self.group[exchanges.src], self.group[exchanges.dst]
        crosses: Bools = (a >= 0) & (b >= 0) & (a != b)
        return crosses


def levels(exchanges: Exchanges, places: Places) -> dict[int, float]:
    """[stratum] what exchanges across groups reach: the ninth decile over pairs of groups, or the faster of two heaps.

    One bad way out lowers nothing.
    """
    across = places.across(exchanges)
    n = len(places.names)
    a, b = places.group[exchanges.src], places.group[exchanges.dst]
    found: dict[int, float] = {}
    for number in np.unique(exchanges.stratum[across]):
        rows = across & (exchanges.stratum == number) & np.isfinite(exchanges.speed)
        key = np.minimum(a, b)[rows] * n + np.maximum(a, b)[rows]
        order = np.lexsort((exchanges.speed[rows], key))
        _, counts = np.unique(key, return_counts=True)
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        medians = np.sort(exchanges.speed[rows][order][first + (counts - 1) // 2])
        decile = float(medians[math.ceil(0.9 * (len(medians) - 1))]) if len(medians) else math.nan
        found[int(number)] = max(decile, reference_of(exchanges.speed[rows]))
    return found


def together(nodes: Sequence[int], exchanges: Exchanges, slow: Bools, n_nodes: int) -> list[list[int]]:
    """Those of these slow nodes that are fast with one another, by place: their common way is at fault, not they."""
    chosen = np.zeros(n_nodes, dtype=bool)
    chosen[list(nodes)] = True
    rows = chosen[exchanges.src] & chosen[exchanges.dst]
    if not rows.any():
        return []
    keys = np.minimum(exchanges.src[rows], exchanges.dst[rows]) * n_nodes + np.maximum(exchanges.src[rows], exchanges.dst[rows])
    pairs, at = np.unique(keys, return_inverse=True)
    share = np.bincount(at, weights=slow[rows]) / np.bincount(at)
    fast = pairs[share <= 1 - SHARE]
    part = _components(np.stack((fast // n_nodes, fast % n_nodes), axis=1), n_nodes)
    places = [[node for node in nodes if part[node] == number] for number in dict.fromkeys(int(part[node]) for node in nodes)]
    return [place for place in places if len(place) >= MIN_NODES]


def between(
    exchanges: Exchanges, looked: Looked, places: Places, groups: Groups, use: Bools, oversubscription: float | None
) -> tuple[list[Suspect], Bools, list[str]]:
    """Boundaries that lose more than they may: (suspects, the rows they explain, notes). `looked` is against like rows inside and across."""
    across = places.across(exchanges) & use
    explained = np.zeros(len(exchanges), dtype=bool)
    if not across.any():
        return [], explained, []
    suspects, notes = _whole(exchanges, places, groups, across, oversubscription)
    if suspects:
        return suspects, across, notes
    large = exchanges.stratum <= LARGE_ONE
    inside, across = use & ~across & large, across & large
    group, slow, size = places.group, looked.slow, len(places.names)
    n_of, k_of = (_by_group(rows, group[exchanges.src], group[exchanges.dst], size) for rows in (across, across & slow))
    home, home_slow = (np.bincount(group[exchanges.src[rows & (group[exchanges.src] >= 0)]], minlength=size) for rows in (inside, inside & slow))
    total, total_slow = int(across.sum()), int((across & slow).sum())
    for number, name in enumerate(places.names):
        n, k = int(n_of[number]), int(k_of[number])
        base = (total_slow - k + 1) / (total - n + 2)
        if n < 4 or k < SHARE * n or n == total or base > 0.5:
            continue
        if home[number] and home_slow[number] > 0.5 * home[number]:
            continue  # its nodes are slow at home as well
        chance = min(1.0, binomial_tail(k, n, base) * len(places.names))
        if chance <= MAX_CHANCE:
            mine = across & ((group[exchanges.src] == number) ^ (group[exchanges.dst] == number))
            loss = 1 - math.exp(-float(np.median(looked.loss[mine & looked.slow])))
            at_home = f", and normal inside ({home[number] - home_slow[number]} of {home[number]})" if home[number] else ""
            text = f"{k} of {n} exchanges between {name} and other groups are {loss:.0%} slower than between the others{at_home}"
            suspects.append(
                Suspect(kind="boundary", host=name, peer="the others", score=loss, chance=chance, evidence=(text, f"groups: {groups.source}"))
            )
            explained |= mine
    return suspects, explained, notes


def _by_group(rows: Bools, src: Ints, dst: Ints, size: int) -> Ints:
    """[group] rows that begin or end in it."""
    return np.bincount(src[rows], minlength=size) + np.bincount(dst[rows], minlength=size)


def _whole(exchanges: Exchanges, places: Places, groups: Groups, across: Bools, oversubscription: float | None) -> tuple[list[Suspect], list[str]]:
    """All boundaries alike against the inside of the groups: a fault where more is lost than was said, or where groups were inferred."""
    inside = (places.group[exchanges.src] >= 0) & ~places.across(exchanges)
    ratios = []
    known = levels(exchanges, places)
    for number in np.unique(exchanges.stratum):
        if number > LARGE_ONE:
            continue
        rows = exchanges.stratum == number
        here, there = exchanges.speed[rows & inside], exchanges.speed[rows & across]
        here, there = here[np.isfinite(here)], there[np.isfinite(there)]
        if len(here) and len(there):
            ratios.append((known[int(number)] / reference_of(here), len(here), len(there), here, there))
    if not ratios:
        return [], []
    ratio, n_in, n_out, here, there = min(ratios, key=lambda item: item[0])
    allowed = 1.0 / (oversubscription or 1.0)
    inferred = groups.source.startswith("inferred")
    if ratio >= allowed * (1 - 2 * MIN_EFFECT):
        return [], []
    if not inferred and oversubscription is None and len(places.names) > 2:
        return [], [f"between groups ({groups.source}) exchanges reach {ratio:.2f} of inside, all groups alike: no fault by itself"]
    wide = [f"{float(np.min(values)):.4g}-{float(np.max(values)):.4g}" for values in (here, there)]
    text = f"inside the groups {wide[0]} ({n_in} exchanges), across {wide[1]} ({n_out}): {ratio:.2f} of it"
    said = f", where {oversubscription:g}:1 was stated" if oversubscription else ""
    n = max(1, min(n_in, n_out))
    if inferred and 2.0 ** -min(n, 900) > MAX_CHANCE:
        return [], [f"{text}: too few exchanges to call it a boundary"]
    suspect = Suspect(
        kind="boundary", host=places.names[0], peer=" | ".join(places.names[1:]), score=1 - ratio, chance=max(1e-300, 2.0 ** -min(n, 900)),
        evidence=(text + said, f"groups: {groups.source}", "no node is slow by itself: each is fast inside its group"),
    )  # fmt: skip
    return [suspect], []


def leftovers(exchanges: Exchanges, looked: Looked, use: Bools, places: Places | None) -> tuple[Suspect | None, Bools]:
    """Slow exchanges that no end explains but that all cross groups: some of the paths between the groups (one spine of several).

    Switches spread a pair's local ranks and directions over the paths: a bad path slows some of them. What slows all of them
    was there while the pair was measured, traffic of others on a leaf's way out, say, and is no path: it is taken off first.
    """
    nothing = np.zeros(len(exchanges), dtype=bool)
    if places is None:
        return None, nothing
    large = exchanges.stratum <= LARGE_ONE
    across = places.across(exchanges) & use & large
    inside = use & ~across & large
    slow = looked.slow & (looked.loss - _whole_pair(exchanges, looked, across) > looked.limit)
    n, k = int(across.sum()), int((across & slow).sum())
    n_in, k_in = int(inside.sum()), int((inside & slow).sum())
    base = max((k_in + 1) / (n_in + 2), 0.02)
    if n < 20 or k < 0.04 * n or k / n < 3 * (k_in / n_in if n_in else 0.0):
        return None, nothing
    chance = binomial_tail(k, n, base)
    if chance > MAX_CHANCE:
        return None, nothing
    text = f"{k} of {n} exchanges across groups are slow, {k_in} of {n_in} inside groups, no node or port stands out: some paths between the groups"
    return Suspect(kind="boundary", host="between groups", peer="some paths", score=k / n, chance=chance, evidence=(text,)), across & looked.slow


def _whole_pair(exchanges: Exchanges, looked: Looked, rows: Bools) -> np.ndarray:
    """[row] what its pair's exchanges of one round lose all together: the loss of the quarter that loses least, 0 outside `rows`."""
    found = np.zeros(len(exchanges))
    if not rows.any():
        return found
    low, high = np.minimum(exchanges.src[rows], exchanges.dst[rows]), np.maximum(exchanges.src[rows], exchanges.dst[rows])
    loss = np.minimum(looked.loss[rows], 10.0)  # of failed ones too
    number = np.zeros(len(low), dtype=np.int64) if exchanges.round is None else exchanges.round[rows]
    key = (low * (int(high.max()) + 1) + high) * (int(number.max()) + 1) + number
    _, at, counts = np.unique(key, return_inverse=True, return_counts=True)
    order = np.lexsort((loss, at))
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    found[rows] = np.maximum(0.0, loss[order][first + (counts - 1) // 4])[at]
    return found
