"""What one call costs: a price with its range and where it comes from. Times are µs. Never bus bandwidth times a peak.

A pricer takes (collective, bytes, place) and gives a price, or None where nothing is known of that call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nccl_bench.collectives import bus_factor
from nccl_bench.groups import Kind, Mesh, Ranks, Span, kind_of, span_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """All groups of one kind, and where they lie."""

    kind: Kind
    span: Span

    @property
    def shape(self) -> tuple[int, int, int]:
        """(ranks, nodes, most ranks of a group on one node): what makes two kinds alike."""
        return self.kind.size, self.span.nodes, self.span.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """µs of one call."""

    low_us: float
    mid_us: float
    high_us: float
    by: str
    """"measured", "expected", or what else it rests on, in words."""
    extrapolated: str | None = None
    """Why it reaches beyond what was measured; None where it does not."""


Pricer = Callable[[str, int, Place], Price | None]


class Places:
    """Places of axes, each reckoned once."""

    def __init__(self, seats: Sequence[tuple[int, int]]) -> None:
        """seats: [rank] (node, local rank)."""
        self.seats = seats
        self._known: dict[tuple[str, str], Place] = {}
        self._spans: dict[tuple[Ranks, ...], Span] = {}
        """By groups: meshes of other names often have the same."""

    def of(self, mesh: Mesh, axis: str) -> Place:
        """The place of an axis of a mesh. Raises UsageError where there is no such axis."""
        key = (mesh.text, axis)
        if key not in self._known:
            kind = kind_of(mesh, axis)
            if kind.groups not in self._spans:
                self._spans[kind.groups] = span_of(kind, self.seats)
            self._known[key] = Place(kind=kind, span=self._spans[kind.groups])
        return self._known[key]


def cached(pricer: Pricer) -> Pricer:
    """The pricer with each answer kept: a search asks the same thousands of times. Places are told apart by shape and neighbours."""
    known: dict[tuple[str, int, int], Price | None] = {}
    alike: dict[object, int] = {}
    seen: dict[int, tuple[Place, int]] = {}  # by id, which the place kept beside it holds

    def number_of(place: Place) -> int:
        if id(place) not in seen:
            same = (place.shape, place.span, len(place.kind.groups), place.kind.groups[0])
            seen[id(place)] = place, alike.setdefault(same, len(alike))
        return seen[id(place)][1]

    def price(collective: str, nbytes: int, place: Place) -> Price | None:
        key = (collective, nbytes, number_of(place))
        if key not in known:
            known[key] = pricer(collective, nbytes, place)
        return known[key]

    return price


def first_of(*pricers: Pricer) -> Pricer:
    """The first answer."""

    def price(collective: str, nbytes: int, place: Place) -> Price | None:
        return next((found for pricer in pricers if (found := pricer(collective, nbytes, place)) is not None), None)

    return price


def faster(pricer: Pricer, *, inside: float = 1.0, across: float = 1.0) -> Pricer:
    """What if links inside nodes, or those between them, carried so many times as much: each call costs what fewer bytes cost now."""

    def price(collective: str, nbytes: int, place: Place) -> Price | None:
        factor = across if place.span.nodes > 1 else inside
        return pricer(collective, max(1, round(nbytes / factor)), place)

    return price


def nothing(collective: str, nbytes: int, place: Place) -> Price | None:
    """No price: neither measured nor is the hardware known."""
    return None


def linear(latency_us: float, busbw_GBps: float, collective: str, nbytes: int, n: int) -> float:
    """µs of T = latency + bytes x bus factor / bus bandwidth."""
    return latency_us + nbytes * bus_factor(collective, n) / busbw_GBps * 1e-3


def one_rank(place: Place) -> Price | None:
    """A group of one talks to nobody."""
    return Price(low_us=0.0, mid_us=0.0, high_us=0.0, by="one rank") if place.kind.size == 1 else None


def widened(price: Price, low: float, high: float, why: str) -> Price:
    """The price with its range stretched by factors, and marked."""
    return replace(price, low_us=price.low_us * low, high_us=price.high_us * high, extrapolated=why)
