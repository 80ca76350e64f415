"""One table of a sweep in a sentence, and the small values that a table is shown with. No pandas.

Rates are GB/s of 1e9 bytes/s; sizes are bytes of a rank's larger buffer, as in nccl-tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.records import Ceiling, Point
from nccl_bench.report.fit import fit_line
from nccl_bench.units import format_GBps, format_percent, format_size, format_us

ONE_RANK = "one rank: nothing crosses a wire, so bus bandwidth is 0 and there is no verdict"


# ---- values ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is true of every table of a run."""

    n_nodes: int | None
    clocks: tuple[str, ...]
    """Clocks that the sweep runs; with two, rows name theirs."""
    regime: str
    not_nccl: bool = False
    shared_gpu: bool = False
    wide: bool = False
    color: bool = False


class Rated(Protocol):
    """What has a size and a bus bandwidth: a point, a sample of a curve."""

    @property
    def nbytes(self) -> int:
        """Bytes."""

    @property
    def busbw_GBps(self) -> float | None:
        """Bus bandwidth, None where there is none."""


NOTHING = Ceiling()


# ---- sizes in few characters ----


def short_size(nbytes: int, requested_nbytes: int) -> str:
    """A size in at most 8 characters; "<1 MiB" for the largest size below 1 MiB that the ranks can share."""
    text = format_size(nbytes)
    if len(text) <= 8:
        return text
    asked = format_size(requested_nbytes)
    return f"<{asked}" if nbytes < requested_nbytes and len(asked) < 8 else about_size(nbytes)


def about_size(nbytes: float) -> str:
    """A size to two or three digits: "34 MiB", "1.5 KiB"."""
    power = 0
    while nbytes >= 1024 and power < 4:
        nbytes, power = nbytes / 1024, power + 1
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{nbytes:.0f} {unit}" if nbytes >= 10 or power == 0 else f"{nbytes:.1f} {unit}"


# ---- what a table says ----


def above_line(point: Point, ceiling: Ceiling) -> bool:
    """Whether even the slow end of the point's interval is above the physical limit of the algorithm that ran."""
    times, line = point.time_us, ceiling.line_GBps
    if line is None or point.busbw_GBps is None or times is None:
        return False
    slow = times.median if times.ci_high is None or times.ci_high <= 0 else times.ci_high
    return point.busbw_GBps * times.median / slow > line


def summary(rows: Iterable[tuple[Point, Ceiling]], isolated: Iterable[Point], look: Look) -> str:
    """One table in words: peak, share of expected, limit, latency, half-bandwidth size, and what went wrong."""
    rows = list(rows)
    clock = rows[0][0].clock
    good = [(point, ceiling) for point, ceiling in rows if point.status == "ok" and point.time_us is not None and point.clock == clock]
    name = rows[0][0].collective
    if not good:
        return f"{name}: nothing was measured." + _trouble(rows)
    parts = [_speed(name, good, look), _latency(name, good, look), *_one_call(isolated), *_dispatch(rows), *_line(good)]
    return "; ".join(part for part in parts if part) + "." + _trouble(rows)


def _speed(name: str, good: list[tuple[Point, Ceiling]], look: Look) -> str:
    with_rate = [(point, ceiling) for point, ceiling in good if point.busbw_GBps]
    if not with_rate:
        return f"{name}: {ONE_RANK}" if good[0][0].n_ranks == 1 else f"{name}: no bus bandwidth"
    peak, ceiling = max(with_rate, key=lambda item: item[0].busbw_GBps or 0.0)
    rate = format_GBps(peak.busbw_GBps) if (peak.busbw_GBps or 0.0) >= 0.0005 else "less than 0.001"
    text = f"{name} reaches {rate} GB/s at {short_size(peak.nbytes, peak.requested_nbytes)}"
    if look.not_nccl or look.shared_gpu:
        return f"{text} ({'gloo, not NCCL' if look.not_nccl else 'shared GPU, not a measurement'})"
    limit = f" (limited by {ceiling.limited_by})" if ceiling.limited_by else ""
    if ceiling.share_frac is not None:
        return f"{text}, {format_percent(ceiling.share_frac)} % of what healthy systems like this reach{limit}"
    if ceiling.attainable_GBps:
        share = (peak.busbw_GBps or 0.0) / ceiling.attainable_GBps
        return f"{text}, {format_percent(share)} % of what is attainable here{limit}"
    return text + limit


def _latency(name: str, good: list[tuple[Point, Ceiling]], look: Look) -> str:
    smallest = min((point for point, _ in good), key=lambda point: point.nbytes)
    times = smallest.time_us
    text = f"{format_us(None if times is None else times.median)} at {format_size(smallest.nbytes)}"
    if smallest.regime == "streaming" and name in COLLECTIVES and COLLECTIVES[name].one_way:
        text += " (calls back to back overlap: a rate, not a latency)"
    half = half_bandwidth_nbytes(point for point, _ in good)
    return text if half is None else f"{text}; half of its speed at {about_size(half)}"


def half_bandwidth_nbytes(points: Iterable[Rated]) -> float | None:
    """The size in bytes from which on half of the peak bus bandwidth is kept up to the peak; None where even the smallest size is that fast.

    n1/2 of Hockney, The communication challenge for MPP, Parallel Computing 20 (1994), with the peak seen for the limit.
    Interpolated between neighbouring sizes, both axes logarithmic.
    """
    rates = {point.nbytes: point.busbw_GBps for point in points if point.busbw_GBps}
    half = max(rates.values(), default=0.0) / 2
    fastest = max(rates, key=lambda nbytes: rates[nbytes], default=0)
    sizes = sorted(nbytes for nbytes in rates if nbytes <= fastest)
    for small, large in reversed(list(itertools.pairwise(sizes))):
        low, high = rates[small], rates[large]
        if low < half <= high:
            step = math.log(half / low) / math.log(high / low)
            return math.exp(math.log(small) + step * math.log(large / small))
    return None


def _one_call(isolated: Iterable[Point]) -> list[str]:
    """The smallest isolated case, with half of its interval where that is not negligible."""
    known = [(point.nbytes, point.time_us) for point in isolated if point.time_us is not None]
    if not known:
        return []
    nbytes, times = min(known, key=lambda item: item[0])
    half = 0.0 if times.ci_low is None or times.ci_high is None else (times.ci_high - times.ci_low) / 2 / times.median
    sure = "" if half < 0.02 else f" (± {format_percent(half)} %)"
    return [f"one call alone {format_us(times.median)}{sure} at {format_size(nbytes)}"]


def _dispatch(rows: list[tuple[Point, Ceiling]]) -> list[str]:
    """What an eager call costs more at the smallest size that ran on both clocks."""
    medians = {(point.nbytes, point.clock): point.time_us.median for point, _ in rows if point.time_us is not None}
    for nbytes, clock in sorted(medians, key=lambda key: key[0]):
        if clock in ("graph", "queued") and (nbytes, "eager") in medians:
            return [f"an eager call costs {format_us(medians[nbytes, 'eager'] - medians[nbytes, clock])} more at {format_size(nbytes)}"]
    return []


def _line(good: list[tuple[Point, Ceiling]]) -> list[str]:
    """The alpha-beta line of the first clock, with its error."""
    clock = good[0][0].clock
    line = fit_line((point.nbytes, point.time_us.median) for point, _ in good if point.time_us is not None and point.clock == clock)
    if line is None:
        return []
    return [f"time is about {format_us(line.alpha_us)} + size / {format_GBps(line.beta_GBps)} GB/s (rms error {format_percent(line.error_frac)} %)"]


def _trouble(rows: list[tuple[Point, Ceiling]]) -> str:
    wrong = [point for point, _ in rows if point.n_wrong]
    above = [(point, ceiling) for point, ceiling in rows if above_line(point, ceiling)]
    text = ""
    if wrong:
        text += f" WRONG DATA at {_sizes(wrong)}."
    if above:
        line = format_GBps(max(ceiling.line_GBps or 0.0 for _, ceiling in above))
        text += f" Above the physical limit ({line} GB/s) at {_sizes(point for point, _ in above)}: the limit or the measurement is wrong."
    spent = sum(point.stop == "time" for point, _ in rows)
    if spent:
        text += f" {spent} of {len(rows)} rows spent their budget before their interval was narrow enough."
    for status in ("failed", "skipped"):
        some = [point for point, _ in rows if point.status == status]
        text += f" {len(some)} {status}." if some else ""
    return text


def _sizes(points: Iterable[Point]) -> str:
    names = list(dict.fromkeys(short_size(point.nbytes, point.requested_nbytes) for point in points))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more sizes" if len(names) > 4 else "")
