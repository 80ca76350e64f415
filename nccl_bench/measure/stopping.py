"""When to stop: a pure object that sees max-over-ranks values only, so that every rank stops at the same batch; no torch.

It always ends, whatever it is fed: the interval is narrow enough, the budget is spent, the count is reached, or
`MAX_SERIES` series were seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nccl_bench.measure.stats import MIN_FOR_INTERVAL, interval, median, summarise
from nccl_bench.records import Stop, Times

MIN_SERIES = 6
"""Series before the interval is believed: six, so that their smallest and largest medians enclose the median with 96.9 %."""
MAX_SERIES = 1000
"""The end even where times or clocks are nonsense (NaN, zero, infinite, running backwards)."""
SERIES_SHARE, MIN_BATCHES, MAX_BATCHES = 0.005, 2, 8
"""A series lasts 0.5 % of the budget, in 2 to 8 batches: six of them leave most of the budget to cases that need more."""
OVERDRAFT = 4.0
"""How far the budget may be overdrawn for the six batches that an interval needs: operations of a second have a budget of two."""
OPS_FAST, OPS_SLOW = 64, 4
FAST_US, SLOW_US = 100.0, 1000.0


def ops_per_batch(op_us: float, iters: int | None = None) -> int:
    """k by rule: 64 operations a batch below 100 µs, 4 below 1 ms, 1 above (DESIGN.md section 2).

    With a fixed count of operations, the largest divisor of it up to k, so that exactly `iters` run.
    """
    k = OPS_FAST if op_us < FAST_US else OPS_SLOW if op_us < SLOW_US else 1
    if iters is None:
        return k
    return max(d for d in range(1, min(k, iters) + 1) if iters % d == 0)


def batches_per_series(batch_us: float, budget_s: float) -> int:
    """How many batches make a short series of the given budget; 2 to 8."""
    if not batch_us > 0:
        return MAX_BATCHES
    return int(min(MAX_BATCHES, max(MIN_BATCHES, SERIES_SHARE * budget_s * 1e6 / batch_us)))


class StopRule:
    """Collects series of batch times and says when enough is known."""

    def __init__(self, *, precision: float, budget_s: float, quantum_us: float = 0.0, n_batches: int | None = None, least: bool = False) -> None:
        """Stop at `precision` (half-width of the 95 % interval over the median) or `budget_s`; or after exactly `n_batches`.

        quantum_us: the clock's step over the operations of a batch. least: stop after the six series of an interval, however wide.
        """
        self.precision = precision
        self.budget_s = budget_s
        self.quantum_us = quantum_us
        self.n_batches = n_batches
        self.least = least
        self.batches: list[float] = []
        """Usable batches so far: max over ranks, µs an operation."""
        self.series: list[float] = []
        """Median of each series with a usable batch."""
        self.elapsed_s = 0.0
        self.n_series = 0
        self.n_discarded = 0

    def add(self, batches_us: Sequence[float], elapsed_s: float) -> None:
        """One more series: batches (max over ranks, µs an operation) and the time spent on the case (max over ranks, s)."""
        usable = [value for value in batches_us if math.isfinite(value) and value > 0]
        self.n_series += 1
        self.n_discarded += len(batches_us) - len(usable)
        self.batches.extend(usable)
        if usable:
            self.series.append(median(usable))
        self.elapsed_s = elapsed_s

    def done(self) -> Stop | None:
        """Why to stop now; None to go on."""
        if self.n_batches is not None:
            return "iters" if len(self.batches) + self.n_discarded >= self.n_batches or self.n_series >= MAX_SERIES else None
        if self.least and self.n_series >= MIN_SERIES:
            return "precision" if self.rel_half_width() <= self.precision else "iters"
        if self.n_series >= MIN_SERIES and self.rel_half_width() <= self.precision:
            return "precision"
        # A clock that stands still, runs backwards or gives NaN must not keep the sweep for ever: "not less" holds for NaN.
        limit = self.budget_s if len(self.batches) >= MIN_FOR_INTERVAL else OVERDRAFT * self.budget_s
        spent = self.n_series >= 1 and not self.elapsed_s < limit
        return "time" if spent or self.n_series >= MAX_SERIES else None

    def rel_half_width(self) -> float:
        """Half of the 95 % interval over the median; infinite where there is none yet."""
        bounds = interval(self.batches, self.series, self.quantum_us)
        if bounds is None:
            return math.inf
        return (bounds[1] - bounds[0]) / 2 / median(self.batches)

    def next_batches(self, first: int) -> int:
        """How many batches the next series takes: `first` for twelve series, then twice as many every six, at most 64."""
        if self.n_batches is not None:
            return min(first, self.n_batches - len(self.batches) - self.n_discarded)
        return min(64, first << max(0, self.n_series // MIN_SERIES - 1))

    def times(self) -> Times | None:
        """The statistics; None where no batch was usable."""
        return summarise(self.batches, self.series, self.quantum_us) if self.batches else None
