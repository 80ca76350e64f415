"""Order statistics: the median's interval without assuming normality, nearest-rank percentiles; no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from nccl_bench.records import Times

CONFIDENCE = 0.95
MIN_FOR_INTERVAL = 6
"""The least samples whose smallest and largest enclose the median with 95 %: 1 - 2 * 0.5**6 = 96.9 %."""
MIN_FOR_P95, MIN_FOR_P99 = 20, 100
"""Below these a nearest-rank percentile is the maximum, which says something else."""


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@lru_cache(maxsize=4096)
def interval_index(n: int) -> int | None:
    """How many order statistics to leave out at each end so that the rest encloses the median with 95 %.

    The number of samples below the median is binomial(n, 1/2), whatever the distribution (David and Nagaraja, Order
    Statistics, section 7.1). None below 6 samples. Past 1,000 samples the normal approximation of the binomial.
    """
    if n < MIN_FOR_INTERVAL:
        return None
    if n > 1000:
        return max(0, math.floor((n - 1.959964 * math.sqrt(n)) / 2 - 0.5))
    total, tail, skip = 2**n, 0, -1
    term = 1
    for i in range(n):
        tail += term
        if 2 * tail > (1 - CONFIDENCE) * total:
            break
        skip = i
        term = term * (n - i) // (i + 1)
    return skip if skip >= 0 else None


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median from order statistics; None below 6 samples."""
    skip = interval_index(len(values))
    if skip is None:
        return None
    ordered = sorted(values)
    return ordered[skip], ordered[-1 - skip]


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def interval(batches: Sequence[float], series: Sequence[float], quantum_us: float) -> tuple[float, float] | None:
    """The wider of the intervals over batches and over series medians, and never narrower than the clock's quantum.

    None where neither has six samples. `quantum_us` is the clock's step shared out over the operations of a batch.
    """
    found = [pair for pair in (median_interval(batches), median_interval(series)) if pair is not None]
    if not found:
        return None
    low, high = min(pair[0] for pair in found), max(pair[1] for pair in found)
    missing = quantum_us - (high - low)
    return (low - missing / 2, high + missing / 2) if missing > 0 else (low, high)


def summarise(batches: Sequence[float], series: Sequence[float], quantum_us: float) -> Times:
    """Times of the max-over-ranks batches (µs an operation) and the medians of the series they came in."""
    bounds = interval(batches, series, quantum_us)
    return Times(
        median=median(batches),
        mean=math.fsum(batches) / len(batches),
        min=min(batches),
        max=max(batches),
        p95=percentile(batches, 0.95) if len(batches) >= MIN_FOR_P95 else None,
        p99=percentile(batches, 0.99) if len(batches) >= MIN_FOR_P99 else None,
        ci_low=bounds[0] if bounds else None,
        ci_high=bounds[1] if bounds else None,
    )
