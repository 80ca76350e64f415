"""From a case and what was seen of it to the parts of its point; words of what went wrong. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nccl_bench.groups import Kind
from nccl_bench.records import Case, Group, Json, Point

GEMM = "gemm"
"""The `collective` of a point of kind gemm."""


Report = Callable[[str, int], None]
"""Called with (phase, batch): the rank is alive, and the time-out starts anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One case's result on this rank."""

    point: Point
    batches_us: tuple[float, ...] = ()
    """Max over ranks of every batch kept, µs an operation."""
    lateness_us: tuple[float, ...] = ()
    """[rank] how much later than the first each rank came to the meetings, median; isolated series only."""
    wrong: Json | None = None
    """The first rank with wrong data: {rank, where, index, expected, got}."""


def point_of(case: Case, **more: object) -> Point:
    """The point of a case, with further fields."""
    fields = {name: getattr(case, name) for name in Case.__slots__ if name not in ("axis", "work")}
    if case.collective == GEMM:
        values: dict[str, object] = {**fields, "kind": "gemm", "details": json.loads(case.work or "{}"), **more}
    else:
        details = json.loads(case.work) if case.work else None
        values = {**fields, "group": Group(axis=case.axis, size=case.n_ranks), "details": details, **more}
    return Point(**values)  # type: ignore[arg-type]


def is_refusal(err: RuntimeError) -> bool:
    """Whether a backend says that it has no such call, type or reduction, rather than that a call failed."""
    text = str(err).lower()
    words = (
        "not support",
        "unsupported",
        "invalid scalar type",
        "cannot use reduceop",
        "can't be cast",
        "not implemented",
        "invalid data type",
        "ncclinvalidargument",
    )
    return any(word in text for word in words)


def wrong_words(count: int, wrong: Json | None) -> str:
    """How many elements are wrong, and where the first is."""
    if wrong is None:
        return f"{count} wrong elements"
    place = f"rank {wrong['rank']}, {wrong['where']}, element {wrong['index']}"
    return f"{count} wrong elements, first on {place}: expected {wrong['expected']:g}, got {wrong['got']}"


def group_of_case(case: Case, kind: Kind, own_us: Sequence[float]) -> Group:
    """The groups of a case with the slowest of them; own_us: [rank] mean of each rank's own times, 0 where it took no part."""
    taken = [max(own_us[rank] for rank in group) for group in kind.groups]
    ran = [(us, group) for us, group in zip(taken, kind.groups, strict=True) if us > 0]
    if len(ran) < 2:
        return Group(axis=case.axis, size=case.n_ranks, n_groups=max(1, len(ran)))
    slowest, fastest = max(ran), min(ran)
    return Group(axis=case.axis, size=case.n_ranks, n_groups=len(ran), slowest=slowest[1], spread_frac=1 - fastest[0] / slowest[0])
