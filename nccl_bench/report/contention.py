"""What a sweep of a mesh says beyond its tables: groups and where they lie, contention, what two things at once cost, products. No pandas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nccl_bench.groups import Mesh, kind_of, span_of
from nccl_bench.records import Json, Point, Times
from nccl_bench.units import format_size, format_us, three_digits

MOST_LINES = 24
"""Lines of one kind on the screen; points.jsonl has all."""


def group_lines(mesh: Mesh, axes: Iterable[str], seats: Sequence[tuple[int, int]]) -> list[str]:
    """The groups of each axis: how many, the nodes and rails they span, and whether they keep to their rail."""
    lines = [f"mesh {mesh.text}"]
    for axis in axes:
        kind = kind_of(mesh, axis)
        span = span_of(kind, seats)
        first = ",".join(map(str, kind.groups[0][:8])) + (",..." if kind.size > 8 else "")
        where = "in one node" if span.nodes == 1 else f"{span.nodes} nodes each, {span.crossing} at once on a node, {span.rails} of its local ranks"
        where += "" if span.nodes == 1 else ", rail-aligned" if span.aligned else ", not rail-aligned"
        lines.append(f"  {axis:<12} {len(kind.groups)} group{'s' if len(kind.groups) > 1 else ''} of {kind.size} (first: {first}): {where}")
    return lines


class Contention:
    """Takes the points of a sweep, and says at the end what no single one of them tells."""

    def __init__(self) -> None:
        self._plain: dict[object, Point] = {}
        self._solo: dict[object, Point] = {}
        self._both: list[Point] = []
        self._products: list[Point] = []

    @staticmethod
    def special(point: Point) -> bool:
        """Whether a point is none of a table of collectives: a product, or two things at once."""
        return point.kind != "collective"

    def add(self, point: Point) -> None:
        """Take a point."""
        if point.status != "ok" or point.time_us is None:
            return
        if point.kind == "overlap":
            self._both.append(point)
        elif point.kind == "gemm":
            self._products.append(point)
        elif point.group is not None and point.group.axis is not None and point.regime == "streaming":
            key = (point.group.axis, point.collective, point.dtype, point.op, point.nbytes, point.clock, point.variant, point.pass_)
            if point.special is None:
                self._plain[key] = point
            elif point.special == "solo":
                self._solo[key] = point

    def text(self) -> str:
        """All lines; "" where there is nothing to say."""
        lines = [*self._contention(), *map(_together, self._both[:MOST_LINES]), *map(_product, self._products[:MOST_LINES])]
        return "".join(f"{line}\n" for line in (["", *lines] if lines else []))

    def _contention(self) -> list[str]:
        lines = []
        for key, solo in list(self._solo.items())[:MOST_LINES]:
            plain = self._plain.get(key)
            if plain is None or plain.time_us is None or solo.time_us is None or plain.group is None:
                continue
            what = f"axis {plain.group.axis}, {plain.collective} {format_size(plain.nbytes)}"
            lines.append(f"{what}: all {plain.group.n_groups} groups at once take {_factor(plain.time_us, solo.time_us)}{_slowest(plain)}")
        return lines


def _factor(together: Times, alone: Times) -> str:
    """How many times as long, with the range that both intervals leave; where that holds 1 no number is claimed."""
    if together.ci_low is None or together.ci_high is None or not alone.ci_low or not alone.ci_high:
        return f"{three_digits(together.median / alone.median)} times one alone (one batch: no interval)"
    low, high = together.ci_low / alone.ci_high, together.ci_high / alone.ci_low
    span = f"{three_digits(low)} to {three_digits(high)}"
    if low <= 1.0 <= high:
        return f"as long as one alone, within noise ({span} times)"
    return f"{three_digits(together.median / alone.median)} times one alone ({span})"


def _slowest(point: Point) -> str:
    group = point.group
    if group is None or group.slowest is None or group.spread_frac is None:
        return ""
    return f"; slowest ranks {','.join(map(str, group.slowest[:8]))}, the fastest group is done {100 * group.spread_frac:.0f} % earlier"


def _together(point: Point) -> str:
    details = point.details or {}
    axis = "" if point.group is None else f" over {point.group.axis}"
    what = f"{point.collective} {format_size(point.nbytes)}{axis}"
    each = [(details.get(f"{side}_times"), format_us(details.get(f"{side}_us"))) for side in ("own", "other")]
    alone = "alone " + " and ".join(f"{times} x {time}" for times, time in each)
    both = None if point.time_us is None else point.time_us.mean
    slowdown = float(details.get("slowdown", 0.0))
    noise = " (below 1: noise)" if 0.0 < slowdown < 1.0 else ""
    return f"{what} {point.special}: {alone}, together {format_us(both)}: {three_digits(slowdown)} times the longer one{noise}"


def _product(point: Point) -> str:
    assert point.time_us is not None
    return f"{point.special} {point.dtype}: {format_us(point.time_us.mean)}{_speed(point.details or {}, point.time_us.mean)}"


def _speed(row: Json, us: float) -> str:
    if "pass_nbytes" in row:
        return f", {row['pass_nbytes'] / us * 1e-3:.0f} GB/s"
    if "m" in row:
        return f", {2.0 * row['m'] * row['n'] * row['k'] / us * 1e-6:.3g} TFLOPS"
    return ""
