"""Which ends of exchanges are slow, whoever they talk to: counts of slow exchanges by end, and how likely they are by luck. numpy.

An exchange is as fast as the slowest thing on its way (rate = min of both ends and the path). So one bad end makes all its
exchanges slow and few of anybody else's: an end is judged by how many of its exchanges are slow, not by how slow they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nccl_bench.verdict.evidence import LARGE_ONE, SMALL_ONE, Bools, Exchanges, Floats, Ints

MIN_EFFECT = 0.05
"""Losses below 5 % name nobody: healthy repeats of one large exchange differ by 1-2 %, like ports of a healthy cluster by up to 3 %
(xxrjun/nccl-tests-cluster cluster01: 45 pairs within 0.7 %)."""
SIGMAS = 4.0
"""How many robust standard deviations of its stratum an exchange must be below to count as slow."""
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation of a normal distribution (Hampel, J. of the American Statistical Ass. 69, 1974)."""
SHARE = 0.75
"""Of an end's exchanges that are slow: fewer point at some of its partners instead."""
SOME = 0.2
"""The same for an end that is slow now and then: a share that only a very unlikely coincidence makes (MAX_CHANCE)."""
MAX_CHANCE = 1e-3
"""Chance by luck, over all that was looked at, above which nobody is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Exchanges against their references."""

    loss: Floats
    """[row] log of reference over speed: 0.1 is 10 % slower; inf where it failed."""
    limit: Floats
    """[row] the loss from which it counts as slow."""
    slow: Bools
    sigma: dict[int, float]
    """By stratum."""
    reference: dict[int, float]


def reference_of(speeds: Floats, slower: bool = False) -> float:
    """What most exchanges reach: the median; of values in two clear heaps, the median of the faster heap (or the slower)."""
    known = np.sort(speeds[np.isfinite(speeds)])
    if not len(known):
        return math.nan
    level = split(known)
    if level is None:
        return float(np.median(known))
    return float(np.median(known[known < level] if slower else known[known >= level]))


def split(ordered: Floats) -> float | None:
    """The lowest value of the faster heap, where sorted speeds fall into two clear heaps; else None.

    Otsu's cut (IEEE Trans. on Systems, Man and Cybernetics 9, 1979) on the logarithms; clear: the heaps explain 80 % of the
    variance, and their medians lie 7 % apart. Each heap must hold a quarter or more.
    """
    n = len(ordered)
    if n < 3 or ordered[0] <= 0:
        return None
    logs = np.log(ordered)
    counts = np.arange(1, n)
    sums = np.cumsum(logs)[:-1]
    total, mean = float(logs.sum()), float(logs.mean())
    low, high = sums / counts, (total - sums) / (n - counts)
    between = counts * (low - mean) ** 2 + (n - counts) * (high - mean) ** 2
    at = int(np.argmax(between)) + 1
    whole = float(((logs - mean) ** 2).sum())
    if whole <= 0 or between[at - 1] < 0.8 * whole or at < 0.25 * n or n - at < 0.25 * n:
        return None
    apart = float(np.median(logs[at:]) - np.median(logs[:at]))
    return float(ordered[at]) if apart >= -math.log(0.93) else None


def look(exchanges: Exchanges, classes: Ints | None = None, slower: bool = False, levels: Mapping[int, float] | None = None) -> Looked:
    """Losses of all rows against what rows of their stratum (and class, where given) reach; of two heaps, the faster or the slower.

    `levels`: what rows of class 1 reach, by stratum, where the caller knows better.
    """
    return look_at(exchanges.speed, exchanges.stratum, classes, slower, levels)


def look_at(speed: Floats, strata: Ints, classes: Ints | None = None, slower: bool = False, levels: Mapping[int, float] | None = None) -> Looked:
    """The same of bare columns."""
    loss, limit = np.zeros(len(speed)), np.full(len(speed), MIN_EFFECT)
    sigma: dict[int, float] = {}
    reference: dict[int, float] = {}
    keys = strata if classes is None else strata * (int(classes.max(initial=0)) + 1) + classes
    for key in np.unique(keys):
        rows = keys == key
        number = int(strata[rows][0])
        level = reference_of(speed[rows], slower) if levels is None or classes is None or classes[rows][0] != 1 else levels[number]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(level / speed[rows])
        found = np.where(np.isfinite(speed[rows]) & (speed[rows] > 0), found, np.inf)
        spread = _sigma(found)
        sigma[number] = max(sigma.get(number, 0.0), spread)
        reference.setdefault(number, level)
        loss[rows], limit[rows] = found, max(-math.log1p(-MIN_EFFECT), SIGMAS * spread)
    return Looked(loss=loss, limit=limit, slow=loss > limit, sigma=sigma, reference=reference)


MIN_IN_COMMON = 16
"""Exchanges of one round, size, direction and class whose fastest quarter tells what the whole round lost: a group's bad way out slows half."""


def less_common(exchanges: Exchanges, looked: Looked, classes: Ints | None) -> Looked:
    """The same without what a whole round loses more than other rounds do: something else was on the fabric then, and nobody is to blame.

    Where rounds are not known, or too small, as it was; so are exchanges of class 1, across groups: a round in which one group
    alone meets others is slow by that group's way out.
    """
    if exchanges.round is None or not len(exchanges):
        return looked
    kind = exchanges.stratum if classes is None else exchanges.stratum * (int(classes.max(initial=0)) + 1) + classes
    width = int(exchanges.round.max()) + 1
    keys, at, counts = np.unique(kind * width + exchanges.round, return_inverse=True, return_counts=True)
    order = np.lexsort((looked.loss, at))
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    quarters = looked.loss[order][first + (counts - 1) // 4]
    more = np.zeros(len(keys))
    for number in np.unique(keys // width):
        mine = (keys // width == number) & (counts >= MIN_IN_COMMON) & np.isfinite(quarters)
        more[mine] = np.maximum(0.0, quarters[mine] - np.median(quarters[mine])) if mine.any() else 0.0
    loss = looked.loss - (more[at] if classes is None else np.where(classes == 1, 0.0, more[at]))
    return replace(looked, loss=loss, slow=loss > looked.limit)


def _sigma(loss: Floats) -> float:
    """Robust spread of those that are not slower than the reference, mirrored: slow ones are what we look for, not noise.

    The faster half alone would be too small where the reference is the median of a heap with a heavy slow tail: the
    median absolute deviation of the middle is taken where it is smaller than both.
    """
    known = loss[np.isfinite(loss)]
    if len(known) < 3:
        return 0.0
    fast = known[known <= 0]
    mirrored = MAD_TO_SIGMA * float(np.median(-fast)) if len(fast) else 0.0
    whole = MAD_TO_SIGMA * float(np.median(np.abs(known - np.median(known))))
    return max(min(mirrored, whole), 0.5 * mirrored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Counts by end (node * n_rails + rail)."""

    n: Ints
    """[way, end] exchanges that count; ways: any, sending alone, receiving alone, both at once."""
    n_slow: Ints
    partners: Ints
    """[end] distinct partners."""
    slow_partners: Ints
    met_slow: Ints
    """[end] exchanges with partners with which any was slow."""


WAYS = ("in all directions", "sending", "receiving", "both directions at once")
ANY, SEND, RECEIVE, BOTH = range(4)


def count(exchanges: Exchanges, slow: Bools, use: Bools, n_nodes: int, *, pairs: bool = True) -> Ends:
    """Count the rows of `use` by end and way; partners too, unless `pairs` is False (they cost most)."""
    rails = exchanges.n_rails
    size = n_nodes * rails
    at = np.flatnonzero(use)
    a, b = exchanges.src[at] * rails + exchanges.rail[at], exchanges.dst[at] * rails + exchanges.rail[at]
    one, lost = (exchanges.stratum[at] == LARGE_ONE) | (exchanges.stratum[at] == SMALL_ONE), slow[at]
    n, n_slow = np.zeros((4, size), dtype=np.int64), np.zeros((4, size), dtype=np.int64)
    for way, end, rows in ((SEND, a, one), (RECEIVE, b, one), (BOTH, a, ~one), (BOTH, b, ~one)):
        n[way] += np.bincount(end[rows], minlength=size)
        n_slow[way] += np.bincount(end[rows & lost], minlength=size)
    n[ANY], n_slow[ANY] = n[1:].sum(axis=0), n_slow[1:].sum(axis=0)
    nothing = np.zeros(size, dtype=np.int64)
    if not pairs:
        return Ends(n=n, n_slow=n_slow, partners=nothing, slow_partners=nothing, met_slow=nothing)
    met, which = np.unique(np.minimum(a, b) * size + np.maximum(a, b), return_inverse=True)
    times = np.bincount(which, minlength=len(met))
    bad = np.bincount(which[lost], minlength=len(met)) > 0
    low, high = met // size, met % size

    def by_end(weights: Ints | Bools | None) -> Ints:
        return sum((np.bincount(end, weights=weights, minlength=size) for end in (low, high)), start=np.zeros(size)).astype(np.int64)

    return Ends(n=n, n_slow=n_slow, partners=by_end(None), slow_partners=by_end(bad), met_slow=by_end(times * bad))


def binomial_tail(k: int, n: int, p: float) -> float:
    """The chance of k or more out of n, each with chance p (summed in logarithms)."""
    if k <= 0:
        return 1.0
    if p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    log_p, log_q = math.log(p), math.log1p(-p)
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_p + (n - i) * log_q for i in range(k, n + 1)]
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(value - top) for value in logs))
