"""The values that a report is drawn from: a run's curves, each sample beside its ceilings, and what else a run holds. No pandas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.fabric.ideal import Ceiling as BestCeiling
from nccl_bench.records import Ceiling, RunHeader
from nccl_bench.results.runs import Run
from nccl_bench.verdict.ceilings import RunCeilings

CLOCKS = ("graph", "queued", "host", "eager", None)
"""The clock that a collective is judged by is the first of these that ran; None: an imported log that does not say."""
JUDGED_NBYTES = 1 << 30
"""Bandwidth is judged at 1 GiB or more: below it the slope may not have ended (DESIGN.md section 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One size of a curve."""

    nbytes: int
    requested_nbytes: int
    passes: int
    """Points that were pooled."""
    time_us: float
    """Median; of several passes the median of their medians."""
    low_us: float | None
    high_us: float | None
    """95 % interval of the median; of several passes the middle 95 % of their medians. None where neither is known."""
    busbw_GBps: float | None
    p95_us: float | None
    n_wrong: int | None
    """None where the data of any pass was not checked."""
    algorithm: str | None
    protocol: str | None
    ceiling: Ceiling
    """Without share_frac: shares are worked out where they are shown."""

    @property
    def busbw_low_GBps(self) -> float | None:
        """Bus bandwidth at the slow end of the interval."""
        return None if self.busbw_GBps is None or not self.high_us else self.busbw_GBps * self.time_us / self.high_us

    @property
    def busbw_high_GBps(self) -> float | None:
        """Bus bandwidth at the fast end of the interval."""
        return None if self.busbw_GBps is None or not self.low_us else self.busbw_GBps * self.time_us / self.low_us

    @property
    def attainable_frac(self) -> float | None:
        """Bus bandwidth over what is attainable."""
        most = self.ceiling.attainable_GBps
        return None if not most or self.busbw_GBps is None else self.busbw_GBps / most


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One collective as it was measured in one way, over its sizes."""

    run: str
    kind: str
    collective: str
    dtype: str | None
    op: str | None
    root: int | None
    placement: str | None
    shift: str | None
    clock: str | None
    regime: str | None
    variant: str | None
    registered: str | None
    over_ranks: str | None
    axis: str | None
    special: str | None
    """What sets its cases apart beyond the rest: one group alone, uneven shares, something else at the same time; a product's shape."""
    n_ranks: int | None
    samples: tuple[Sample, ...]
    """In order of size."""
    ceiling: BestCeiling | None
    """Of the algorithm that ran at the largest size, else the best of this fabric."""
    floor_frac: float | None
    """Share of attainable below which a result fails where nothing is known of like systems."""

    @property
    def largest(self) -> Sample:
        """The largest size."""
        return self.samples[-1]

    @property
    def peak(self) -> Sample | None:
        """The size with the highest bus bandwidth; None where there is none."""
        rated = [sample for sample in self.samples if sample.busbw_GBps]
        return max(rated, key=lambda sample: sample.busbw_GBps or 0.0, default=None)

    @property
    def way(self) -> tuple[Any, ...]:
        """How it was measured: the same on the curves of other runs that can be laid over it."""
        how = (self.placement, self.shift, self.clock, self.regime, self.variant)
        return (self.collective, self.dtype, self.op, self.root, *how, self.axis, self.special)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Cases that did not run, or ran into an error, for one reason."""

    collective: str
    status: str
    reason: str
    sizes: tuple[int, ...]
    """Bytes asked for."""
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """How much later than the first something comes to a collective; medians over the isolated series, µs."""

    who: str
    host: str
    rank: int | None
    """None for a host as a whole (the median of its ranks)."""
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairValue:
    """One pair of hosts or GPUs."""

    src: str
    dst: str
    both: bool
    nbytes: int
    busbw_GBps: float | None
    time_us: float | None
    clock: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpread:
    """The groups of one axis at one size: how far apart they are."""

    collective: str
    axis: str
    nbytes: int
    n_groups: int
    spread_frac: float
    slowest: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One run, reduced to what is shown of it."""

    label: str
    run: Run
    ceilings: RunCeilings
    assumptions: tuple[str, ...] = ()
    """What the ceilings rest on beyond what is known."""
    curves: tuple[Curve, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    late: tuple[Late, ...] = ()
    late_than_us: float | None = None
    """Median time of the isolated operations that lateness was seen in."""
    pairs: tuple[PairValue, ...] = ()
    groups: tuple[GroupSpread, ...] = ()
    throttle: Mapping[str, int] = field(default_factory=dict)
    """Reasons for lowered clocks: how many cases each."""
    passes: Mapping[tuple[Any, ...], tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """By curve's way: (pass, bus bandwidth at the largest size), where there were several passes."""
    n_points: int = 0
    verdict: Mapping[str, Any] | None = None
    """What verdict.json of the run holds."""

    @property
    def header(self) -> RunHeader:
        """What is true of the whole run."""
        return self.run.header

    @property
    def rehearsal(self) -> bool:
        """Whether the run says nothing about NCCL's speed."""
        return self.header.not_nccl or self.header.shared_gpu

    def main(self) -> tuple[Curve, ...]:
        """One curve a collective, axis, shift and number of ranks: the one that is judged, as things are (no variant, nothing beside it)."""
        found: dict[tuple[Any, ...], Curve] = {}
        for curve in sorted(self.curves, key=_rank):
            if curve.kind == "collective" and curve.variant is None and curve.special is None:
                found.setdefault((curve.collective, curve.axis, curve.shift, curve.n_ranks), curve)
        order = {name: at for at, name in enumerate(COLLECTIVES)}
        return tuple(sorted(found.values(), key=lambda curve: order.get(curve.collective, len(order))))


def _rank(curve: Curve) -> tuple[int, ...]:
    """Smaller is more telling: streaming before isolated, large sizes before none, the clocks in their order, out of place before in place."""
    isolated = curve.regime == "isolated" and curve.collective != "pingpong"
    clock = CLOCKS.index(curve.clock) if curve.clock in CLOCKS else len(CLOCKS)
    registered = curve.registered not in (None, "none")
    return (isolated, curve.largest.nbytes < JUDGED_NBYTES, clock, registered, curve.placement == "in", -len(curve.samples))
