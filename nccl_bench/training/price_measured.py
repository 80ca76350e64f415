"""Prices from a run's own curves: mean of the max over groups at the exact kind; what reaches further is marked.

A step is thousands of calls, so a call costs the mean; the range runs from median to 95th percentile. Between measured sizes the
time is linear in the bytes, below the smallest it is the smallest's, beyond the largest it follows the last two. A larger group than
measured needs at least three measured sizes of its kind, and never beats the ceiling.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_bench.groups import even_seats, kind_of, parse_mesh, span_of
from nccl_bench.records import Point, RunHeader
from nccl_bench.training.price import Place, Price, Pricer, cached, one_rank, widened

FAR = 2.0
"""Beyond so many times the largest measured size a price is marked."""
LATENCY_NBYTES = 64 << 10
"""Up to this size a call costs little but its latency (two H200: all_reduce takes 6.1 µs at 512 B and 9.8 µs at 512 KiB, nccl-tests in a
CUDA graph): a price below the smallest measured size is marked only where that size is larger."""
LEAST_SIZES = 3
"""Group sizes from which a larger group is extrapolated."""
_CLOCKS = {"graph": 0, "queued": 1, "host": 2, "eager": 3}
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Times of one collective by one kind of group, ascending in bytes."""

    nbytes: tuple[int, ...]
    low_us: tuple[float, ...]
    """Medians."""
    mid_us: tuple[float, ...]
    """Means."""
    high_us: tuple[float, ...]
    """95th percentiles."""
    n_groups: int

    def at(self, nbytes: int) -> tuple[float, float, float]:
        """(low, mid, high) µs."""
        low, mid, high = (_interpolate(self.nbytes, column, nbytes) for column in (self.low_us, self.mid_us, self.high_us))
        return min(low, mid), mid, max(mid, high)

    def beyond(self, nbytes: int) -> str | None:
        """Why a price at this size is extrapolated; None where it is not."""
        if nbytes > FAR * self.nbytes[-1]:
            return f"{nbytes / self.nbytes[-1]:.3g} times the largest measured size"
        if nbytes * FAR < self.nbytes[0] and self.nbytes[0] > LATENCY_NBYTES:
            return f"{self.nbytes[0] / nbytes:.3g} times smaller than the smallest measured size, whose price it is"
        return None


def _interpolate(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    if x <= xs[0]:
        return ys[0]
    if len(xs) == 1:
        return ys[0] * x / xs[0]  # one size: its rate
    at = min(bisect_left(xs, x), len(xs) - 1)
    x0, x1, y0, y1 = xs[at - 1], xs[at], ys[at - 1], ys[at]
    value = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    # A falling last piece is noise: more bytes never cost less than the largest measured.
    return max(value, ys[-1]) if x > xs[-1] else value


def run_seats(header: RunHeader) -> tuple[tuple[int, int], ...]:
    """[rank] (node, local rank) of a run; nodes in order of their first rank. Without a list of ranks: as many on every node."""
    if not header.ranks:
        n, nodes = header.n_ranks or 0, header.n_nodes or 1
        return even_seats(n, max(1, n // nodes))
    hosts = {host: at for at, host in enumerate(dict.fromkeys(rank.get("host") for rank in header.ranks))}
    taken: dict[object, int] = {}
    seats = []
    for rank in header.ranks:
        host = rank.get("host")
        local = rank.get("local_rank")
        taken[host] = taken.get(host, -1) + 1
        seats.append((hosts[host], taken[host] if local is None else int(local)))
    return tuple(seats)


def measured_pricer(header: RunHeader, points: Sequence[Point], ceiling: Pricer | None = None) -> Pricer:
    """Prices from a run. `ceiling`: prices that no extrapolation may beat (its fast end); None where the fabric is not known."""
    return cached(_Measured(curves_of(header, points), ceiling).price)


def curves_of(header: RunHeader, points: Sequence[Point]) -> dict[tuple[str, Shape], list[Curve]]:
    """Curves by collective and shape of the group, several where different numbers of such groups ran at once."""
    seats = run_seats(header)
    shapes: dict[object, Shape | None] = {}
    found: dict[tuple[str, Shape, int], dict[int, tuple[int, Point]]] = {}
    for point in points:
        if point.kind != "collective" or point.status != "ok" or point.time_us is None or point.regime != "streaming" or point.variant is not None:
            continue
        group = point.group
        if point.special is not None:
            continue
        axis = None if group is None else group.axis
        key = (axis, point.n_ranks)
        if key not in shapes:
            shapes[key] = _shape(header, seats, axis, point.n_ranks)
        shape = shapes[key]
        if shape is None or (point.collective == "sendrecv" and point.shift == "node" and axis is None):
            continue
        rank = _CLOCKS.get(point.clock or "", 4)
        sizes = found.setdefault((point.collective, shape, 1 if group is None else group.n_groups), {})
        # Of several clocks or dtypes at one size the wire's own is taken: graph, queued, host, then eager.
        if point.nbytes not in sizes or rank < sizes[point.nbytes][0]:
            sizes[point.nbytes] = (rank, point)
    curves: dict[tuple[str, Shape], list[Curve]] = {}
    for (collective, shape, n_groups), by_size in found.items():
        curves.setdefault((collective, shape), []).append(_curve(n_groups, by_size))
    return curves


def _curve(n_groups: int, by_size: Mapping[int, tuple[int, Point]]) -> Curve:
    rows = [(nbytes, point.time_us) for nbytes, (_rank, point) in sorted(by_size.items()) if point.time_us is not None]
    return Curve(
        nbytes=tuple(nbytes for nbytes, _times in rows),
        low_us=tuple(times.median for _nbytes, times in rows),
        mid_us=tuple(times.mean for _nbytes, times in rows),
        high_us=tuple(times.p95 if times.p95 is not None else times.max for _nbytes, times in rows),
        n_groups=n_groups,
    )


def _shape(header: RunHeader, seats: Sequence[tuple[int, int]], axis: str | None, n_ranks: int | None) -> Shape | None:
    if axis is None:
        if n_ranks is None or n_ranks > len(seats):
            return None
        taken = [node for node, _local in seats[:n_ranks]]
        return n_ranks, len(set(taken)), max((taken.count(node) for node in set(taken)), default=1)
    want = header.spec.get("want")
    text = want.get("mesh") if isinstance(want, Mapping) else header.spec.get("mesh")
    if not isinstance(text, str):
        return None
    kind = kind_of(parse_mesh(text), axis)
    span = span_of(kind, seats)
    return kind.size, span.nodes, span.per_node


class _Measured:
    def __init__(self, curves: Mapping[tuple[str, Shape], list[Curve]], ceiling: Pricer | None) -> None:
        self.curves, self.ceiling = curves, ceiling

    def price(self, collective: str, nbytes: int, place: Place) -> Price | None:
        alone = one_rank(place)
        if alone is not None:
            return alone
        known = self.curves.get((collective, place.shape))
        if known is None:
            return self._larger(collective, nbytes, place)
        n_groups = len(place.kind.groups)
        curve = min(known, key=lambda c: abs(math.log(c.n_groups / n_groups)))
        low, mid, high = curve.at(nbytes)
        price = Price(low_us=low, mid_us=mid, high_us=high, by="measured", extrapolated=curve.beyond(nbytes))
        if curve.n_groups == n_groups:
            return price
        fewer = curve.n_groups < n_groups and place.span.nodes > 1
        why = f"measured with {curve.n_groups} such groups at once, not {n_groups}"
        # Groups that share a node's NICs may take as many times as long as there are more of them.
        return widened(price, 1.0, min(n_groups / curve.n_groups, 8.0) if fewer else 1.0, price.extrapolated or why)

    def _larger(self, collective: str, nbytes: int, place: Place) -> Price | None:
        """A group of a size that was not measured, from at least three sizes of its kind: latency grows between log n and n, rate settles."""
        inside = place.span.nodes == 1
        rows = []
        for (name, shape), known in self.curves.items():
            alike = (shape[1] == 1) == inside and (inside or shape[2] == place.span.per_node)
            if name == collective and alike and shape[0] > 1:
                curve = known[0]
                rows.append((shape[0], curve.at(1)[1], curve.at(nbytes)[1] - curve.at(1)[1], curve.beyond(nbytes)))
        if len({n for n, *_rest in rows}) < LEAST_SIZES:
            return None
        n = place.kind.size
        low = _fit([(math.log2(size), alpha) for size, alpha, _b, _w in rows], math.log2(n))
        high = _fit([(float(size), alpha) for size, alpha, _b, _w in rows], float(n))
        # The rate of a ring settles as (n-1)/n does; what is left of its change with n widens the range.
        betas = [(1 / size, beta) for size, _a, beta, _w in rows]
        beta, worst = _fit(betas, 1 / n), max(value for _x, value in betas)
        fast, slow = max(0.0, min(low, high)) + beta, max(low, high) + max(beta, worst * (n - 1) / n)
        if self.ceiling is not None and (cap := self.ceiling(collective, nbytes, place)) is not None:
            fast = max(fast, cap.low_us)
        slow = max(fast, slow)
        sizes = ", ".join(map(str, sorted({size for size, *_rest in rows})))
        return Price(low_us=fast, mid_us=(fast + slow) / 2, high_us=slow, by="measured", extrapolated=f"groups of {n} from those of {sizes}")


def _fit(rows: Sequence[tuple[float, float]], x: float) -> float:
    """Least squares through (x, y), at x; never below 0."""
    n = len(rows)
    mean_x, mean_y = math.fsum(r[0] for r in rows) / n, math.fsum(r[1] for r in rows) / n
    spread = math.fsum((r[0] - mean_x) ** 2 for r in rows)
    slope = math.fsum((r[0] - mean_x) * (r[1] - mean_y) for r in rows) / spread if spread > 0 else 0.0
    return max(0.0, mean_y + slope * (x - mean_x))
