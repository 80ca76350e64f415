"""How far two measurements of the same thing lie apart by chance: from their repeats, their intervals, and what repeats were seen to do.

A difference counts when it is beyond this. Every floor is what two runs of one thing on one machine, minutes apart, were seen to differ by.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nccl_bench.verdict.arms import LAUNCH_BOUND_US, Arm, Measurement

RUN_TO_RUN = {"graph": 0.003, "queued": 0.003}
"""Standard deviation of the log of a run's median, by clock, beyond what its own interval tells.

Two H200, all_reduce of 512 B to 256 MiB: medians of two runs of graph replays agreed within 0.5 % (0.2 % standard deviation)."""
HOST_RUN_TO_RUN = ((LAUNCH_BOUND_US, 0.10), (math.inf, 0.02))
"""The same for clocks that hosts disturb (eager, host, unknown): up to so many µs, and beyond.

Eager calls of 512 B took 32 to 45 µs from run to run on those two H200, those of 128 MiB 476 to 479."""
PRINTED_RUN_TO_RUN = ((LAUNCH_BOUND_US, 0.133), (math.inf, 0.0092))
"""The same for a table of nccl-tests, whose rows are one batch each.

Two runs of nccl-tests 2.19.6 on two H200, four collectives, 8 B to 2 GiB: the logs of the ratios have a standard deviation of 0.19 below
100 µs (88 halves) and 0.013 above (28); a run has that over sqrt(2)."""
PRIOR_DF = 10.0
"""Degrees of freedom we give these floors: they were estimated from a handful of runs, and tails are heavier than normal."""
HOST_SERIES_SHARE = 1.0
"""On clocks that hosts disturb, runs differ from one another as the series of one run do: gloo on a busy 2-core machine, six runs, 14 cases:
0.09 to 0.48 among runs where the series of a run had 0.2 to 0.9."""
MIN_NEIGHBOURS = 8
"""Pairs of neighbouring sizes that it takes to learn the noise of two runs from how their ratios jump."""
MAD_EFFICIENCY = 0.37
"""What a median absolute deviation makes of its samples, against a standard deviation (Hampel, J. of the American Statistical Ass. 69, 1974)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What chance alone does to the log of new time over base time."""

    se: float
    df: float


def noise_of(base: Arm, new: Arm) -> Noise:
    """The standard error of the log ratio of two arms, and its degrees of freedom."""
    n_base, n_new = len(base.found), len(new.found)
    parts = [_variances(item, arm) for arm in (base, new) for item in arm.found]
    floor = math.fsum(seen + within for seen, within, _ in parts) / len(parts)
    df_floor = _df(parts)
    among = _among(base, new)
    if among is not None and among[0] > floor * _refuting(among[1]):
        # The repeats differ by more than was ever seen: they know better.
        return Noise(se=math.sqrt(among[0] * (1 / n_base + 1 / n_new)), df=among[1])
    variance = max(floor, among[0] if among is not None else 0.0)
    return Noise(se=math.sqrt(variance * (1 / n_base + 1 / n_new)), df=df_floor)


def _variances(item: Measurement, arm: Arm) -> tuple[float, float, float]:
    """(variance of the log between runs as it was seen, variance within the run, the latter's degrees of freedom) of one measurement."""
    if item.source is not None or (item.se is None and item.spread is None):
        floor = _step(PRINTED_RUN_TO_RUN, item.median_us)
        return floor * floor, 0.0, math.inf
    clock = arm.get("clock")
    floor = RUN_TO_RUN[clock] if clock in RUN_TO_RUN else max(_step(HOST_RUN_TO_RUN, item.median_us), HOST_SERIES_SHARE * (item.spread or 0.0))
    return floor * floor, (item.se or 0.0) ** 2, item.df


def _step(steps: Sequence[tuple[float, float]], time_us: float) -> float:
    return next(value for limit, value in steps if time_us < limit)


def _df(parts: Sequence[tuple[float, float, float]]) -> float:
    """Degrees of freedom of a sum of variances (Welch and Satterthwaite); what was seen between runs is one estimate that all share."""
    seen = math.fsum(part[0] for part in parts)
    total = seen + math.fsum(part[1] for part in parts)
    return total * total / (seen * seen / PRIOR_DF + math.fsum(part[1] ** 2 / part[2] for part in parts))


def _among(base: Arm, new: Arm) -> tuple[float, float] | None:
    """(variance of the logs within the arms, degrees of freedom) where repeats give one."""
    df = len(base.found) + len(new.found) - 2
    if df < 1:
        return None
    total, by_mean = 0.0, uses_mean(base, new)
    for arm in (base, new):
        logs = [math.log(time_of(item, by_mean=by_mean)) for item in arm.found]
        mean = math.fsum(logs) / len(logs)
        total += math.fsum((value - mean) ** 2 for value in logs)
    return total / df, float(df)


def _refuting(df: float) -> float:
    """How many times the floor a variance of so many degrees of freedom exceeds by chance once in twenty: chi^2 over df.

    Wilson and Hilferty's cube (Proc. Natl. Acad. Sci. 17, 1931) with the normal's 95 % quantile 1.6449.
    """
    return float((1 - 2 / (9 * df) + 1.6449 * math.sqrt(2 / (9 * df))) ** 3)


def uses_mean(base: Arm, new: Arm) -> bool:
    """Whether the two are compared by the mean over ranks: like for like with a log that has nothing else."""
    return not (base.is_max and new.is_max) and base.has_mean and new.has_mean


def time_of(item: Measurement, *, by_mean: bool) -> float:
    """The time of a measurement, µs: the mean over ranks, or the median of the maximum over ranks."""
    return item.mean_us if by_mean and item.mean_us is not None else item.median_us


def neighbours_noise(ratios: Sequence[tuple[object, int, float, float]]) -> dict[bool, Noise]:
    """The noise of single runs against single runs, by whether times are below 100 µs, from (series, bytes, time, log ratio) of all cases.

    What changed changes a range of sizes: ratios of neighbouring sizes jump at its ends only. What all the other jumps come to is chance, of
    this pair on this machine today. Robust against the few: 1.4826 times their median over sqrt(2) (von Neumann's successive differences).
    """
    jumps: dict[bool, list[float]] = {True: [], False: []}
    ordered = sorted(ratios, key=lambda item: (str(item[0]), item[1]))
    for before, after in itertools.pairwise(ordered):
        if before[0] == after[0] and before[1] < after[1]:
            jumps[max(before[2], after[2]) < LAUNCH_BOUND_US].append(abs(after[3] - before[3]))
    return {
        short: Noise(se=1.4826 * statistics.median(found) / math.sqrt(2), df=MAD_EFFICIENCY * len(found))
        for short, found in jumps.items()
        if len(found) >= MIN_NEIGHBOURS
    }
