"""Ends that stall, or that are slow among exchanges too noisy for a limit: judged by ranks, which know no size of noise. numpy.

A link that loses packets keeps the median of its batches and spoils their mean: most messages are as fast as ever, some wait
for a timeout. And where exchanges scatter by tens of per cent, four deviations hide a slow host. In both cases the bad end
has the slow exchanges whoever it meets: its ranks among all exchanges say so (Wilcoxon's rank sum, blocked by stratum as
van Elteren does, Bull. Int. Stat. Inst. 37, 1960), with every partner, beyond what the other pairs differ by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from nccl_bench.verdict.blame_ends import MIN_PARTNERS, End, Search, slow_ends
from nccl_bench.verdict.ends import ANY, MAD_TO_SIGMA, MAX_CHANCE, RECEIVE, SEND, SHARE, less_common, look, look_at
from nccl_bench.verdict.evidence import LARGE_ONE, SMALL_ONE, Bools, Floats, Ints

MIN_LOSS = 0.10
"""Of the time, that an end's exchanges must lose against the others'."""
BEYOND_OTHERS = 1.0
"""Robust standard deviations of the other pairs' medians that its loss must exceed."""
NOISY = 0.05
"""A standard deviation of a stratum (log) above which four of them hide what is worth knowing: losses of 20 %."""
MOST_NODES = 64
"""Larger runs have partners enough for counts of slow exchanges, and each round of ranks would cost a sort of millions of rows."""
MOST_ENDS = 8
LOOKS: dict[tuple[int, bool | None], float] = {
    (ANY, False): 0.3, (ANY, True): 0.15, (ANY, None): 0.15,
    **{(way, small): 0.4 / 6 for way in (SEND, RECEIVE) for small in (False, True, None)},
}  # fmt: skip
"""Where is looked, (direction, small messages alone, or large, or both): its share of the chance that luck is allowed (Bonferroni, weighted)."""
BY_MEAN = ", by the mean of its batches, their median being normal: it stalls now and then (packets lost? a flapping link?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows in use, ranked."""

    a: Ints
    b: Ints
    """[row] the two ends."""
    loss: Floats
    """[row] log of the reference over its speed."""
    score: Floats
    """[row] its rank in its stratum, as a share: near 1 is slowest."""
    stratum: Ints


def stalling_ends(search: Search) -> list[End]:
    """Ends whose batches stall: by the mean of each exchange's batches, of those that its median did not name."""
    if search.exchanges.mean is None:
        return []
    found = _ends(search, search.exchanges.mean) if search.n_nodes <= MOST_NODES else _counted(search, search.exchanges.mean)
    return [replace(end, by=BY_MEAN) for end in found]


def _counted(search: Search, mean: Floats) -> list[End]:
    """The same of many nodes, by counts of exchanges with a slow mean."""
    exchanges = replace(search.exchanges, speed=mean)
    classes = None if search.across is None else search.across.astype(np.int64)
    looked = less_common(exchanges, look(exchanges, classes), classes)
    return slow_ends(Search(evidence=search.evidence, exchanges=exchanges, looked=looked, use=search.use, across=search.across))


def noisy_ends(search: Search) -> list[End]:
    """Ends slow with everybody in strata that scatter too much for a limit."""
    noisy = [number for number, sigma in search.looked.sigma.items() if sigma > NOISY]
    if search.n_nodes > MOST_NODES or not noisy:
        return []
    return _ends(search, search.exchanges.speed, np.isin(search.exchanges.stratum, noisy))


def _ends(search: Search, speed: Floats, rows: Bools | None = None) -> list[End]:
    """The ends found one after the other, each with its rows set aside."""
    found: list[End] = []
    use = search.use & np.isfinite(speed) & (speed > 0)
    for _ in range(MOST_ENDS):
        end = _worst(search, speed, use & search.use if rows is None else use & search.use & rows)
        if end is None:
            break
        found.append(end)
        search.use &= ~search.touching([end.node * search.exchanges.n_rails + end.rail])
    return found


def _table(search: Search, speed: Floats, use: Bools) -> Table:
    exchanges = search.exchanges
    rails = exchanges.n_rails
    classes = None if search.across is None else search.across[use].astype(np.int64)
    stratum = exchanges.stratum[use]
    looked = look_at(speed[use], stratum, classes)
    score = np.zeros(len(stratum))
    for number in np.unique(stratum):
        rows = np.flatnonzero(stratum == number)
        score[rows[np.argsort(looked.loss[rows])]] = np.arange(1, len(rows) + 1) / (len(rows) + 1)
    a, b = exchanges.src[use] * rails + exchanges.rail[use], exchanges.dst[use] * rails + exchanges.rail[use]
    return Table(a=a, b=b, loss=looked.loss, score=score, stratum=stratum)


def _worst(search: Search, speed: Floats, use: Bools) -> End | None:
    """The end with the slowest ranks among large, small, or all messages, in one direction or all, where it stands out."""
    tables = {small: _table(search, speed, rows) for small in (False, True, None) if (rows := use & search.size_rows(small)).any()}
    looks = [(way, small, share) for (way, small), share in LOOKS.items() if small in tables]
    found = [end for way, small, share in looks if (end := _worst_of(search, tables[small], way, share, small)) is not None]
    return min(found, key=lambda end: (end.chance, end.way), default=None)


def _worst_of(search: Search, table: Table, way: int, share: float, small: bool | None) -> End | None:
    z, log_chance, tested = _standing(table, way, search.n_nodes * search.exchanges.n_rails)
    for at in np.argsort(-z)[:MOST_ENDS]:
        by_luck = 0.5 * math.erfc(float(z[at]) / math.sqrt(2)) if log_chance[at] == 0 else math.exp(log_chance[at])
        chance = min(1.0, by_luck * tested / share)
        if chance > MAX_CHANCE:
            break
        end = _judge(search, table, int(at), way, chance)
        if end is not None:
            return replace(end, small=small)
    return None


def _standing(table: Table, way: int, size: int) -> tuple[Floats, Floats, int]:
    """How the ranks of each end lie in one direction: (deviations of their sum above chance, log of the exact chance, ends with rows).

    The chance is that of all its rows being the slowest of their strata; 0 where they are not.
    """
    total, variance, exact = np.zeros(size), np.zeros(size), np.zeros(size)
    top, seen = np.ones(size, dtype=bool), np.zeros(size, dtype=bool)
    for number in np.unique(table.stratum):
        rows = np.flatnonzero(table.stratum == number)
        sides = _sides(table, int(number), way)
        n_all = len(rows)
        n = sum((np.bincount(side[rows], minlength=size) for side in sides), start=np.zeros(size, dtype=np.int64))
        above = sum((np.bincount(side[rows], weights=table.score[rows] - 0.5, minlength=size) for side in sides), start=np.zeros(size))
        total, variance, seen = total + above, variance + n * (n_all - n) / (12 * (n_all + 1)), seen | (n > 0)
        most = n * (n_all - n) / (2 * (n_all + 1))  # the n largest of n_all ranks, against their mean
        top &= (n == 0) | (above >= most - 1e-9)
        log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n_all + 1)))))
        exact -= log_factorial[n_all] - log_factorial[n] - log_factorial[n_all - n]
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(variance > 0, total / np.sqrt(variance), -np.inf)
    return z, np.where(top, exact, 0.0), max(1, int(seen.sum()))


def _sides(table: Table, stratum: int, way: int) -> tuple[Ints, ...]:
    """The ends that count in a stratum: one of one-way exchanges, where a direction is looked at."""
    if way == ANY or stratum not in (LARGE_ONE, SMALL_ONE):
        return table.a, table.b
    return (table.a,) if way == SEND else (table.b,)


def _judge(search: Search, table: Table, at: int, way: int, chance: float) -> End | None:
    """The end, where it is slow with its partners one by one, and by more than other pairs differ."""
    touched = (table.a == at) | (table.b == at)
    one = np.isin(table.stratum, (LARGE_ONE, SMALL_ONE))
    mine = touched if way == ANY else touched & (~one | ((table.a if way == SEND else table.b) == at))
    if touched.all() or not mine.any():
        return None
    partner = np.where(table.a[mine] == at, table.b[mine], table.a[mine])
    rest = table.loss[~touched]
    others = _medians(rest, table.a[~touched] * (int(table.b.max()) + 1) + table.b[~touched])
    with_each = _medians(table.loss[mine], partner)
    limit = max(float(np.percentile(others, 75)), float(np.median(others)) + BEYOND_OTHERS * _deviation(others))
    apart = float(np.median(with_each) - np.median(others))
    n_slow = int((with_each > limit).sum())
    if n_slow < max(MIN_PARTNERS, SHARE * len(with_each)) or apart < -math.log1p(-MIN_LOSS):
        return None
    node, rail = divmod(at, search.exchanges.n_rails)
    k, n = int((table.loss[mine] > np.median(rest)).sum()), int(mine.sum())
    return End(node=node, rail=rail, way=way, small=None, k=k, n=n, partners=n_slow, loss=1 - math.exp(-apart), chance=chance)


def _deviation(values: Floats) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _medians(loss: Floats, key: Ints) -> Floats:
    """The median loss of each key."""
    order = np.lexsort((loss, key))
    _, first, counts = np.unique(key[order], return_index=True, return_counts=True)
    middle: Floats = (loss[order][first + (counts - 1) // 2] + loss[order][first + counts // 2]) / 2
    return middle
