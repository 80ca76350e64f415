"""Rates of arithmetic from a run: the GEMM shapes, attention and memory passes that `sweep --want` measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nccl_bench.records import Json, Point
from nccl_bench.training.compute import MEMORY_PASSES, Attention, Gemm

NEAR = 1.5
"""A product whose m, n and k are all within this factor of a measured one takes its FLOP rate unmarked."""


class MeasuredRates:
    """Times by shape; other shapes take the FLOP rate of the nearest measured one, and are told in `extrapolated`."""

    def __init__(self, points: Sequence[Point], passes: float = MEMORY_PASSES) -> None:
        """points: of kind gemm. `passes`: times that activations cross the memory bus."""
        self.passes = passes
        self.gemms: dict[tuple[int, int, int], float] = {}
        self.attention: list[tuple[Json, float]] = []
        self.pass_rates: list[tuple[int, float]] = []
        self.extrapolated: dict[str, str] = {}
        self._known: dict[tuple[int, int, int], float] = {}
        for point in points:
            if point.kind == "gemm" and point.status == "ok" and point.details is not None and point.time_us is not None:
                self._add(point.details, point.time_us.mean * 1e-6)

    def _add(self, what: Json, seconds: float) -> None:
        if "pass_nbytes" in what:
            self.pass_rates.append((int(what["pass_nbytes"]), what["pass_nbytes"] / seconds))
        elif "attention" in what:
            self.attention.append((what["attention"], seconds))
        else:
            self.gemms[int(what["m"]), int(what["n"]), int(what["k"])] = seconds

    @property
    def complete(self) -> bool:
        """Whether there is enough to price a step: products, and a memory pass."""
        return bool(self.gemms) and bool(self.pass_rates)

    def gemm_s(self, gemm: Gemm) -> float:
        """Seconds of one product."""
        shape = (gemm.m, gemm.n, gemm.k)
        if shape in self.gemms:
            return self.gemms[shape]
        if shape not in self._known:
            near = min(self.gemms, key=lambda other: _distance(shape, other))
            self._known[shape] = self.gemms[near] * (shape[0] * shape[1] * shape[2]) / (near[0] * near[1] * near[2])
            if _distance(shape, near) > math.log(NEAR):
                words = "{}x{}x{}".format
                self.extrapolated[gemm.name] = f"GEMM {gemm.name} {words(*shape)}: at the FLOP rate of {words(*near)}"
        return self._known[shape]

    def attention_s(self, attention: Attention) -> float:
        """Seconds of the forward: measured, at the FLOP rate of the nearest measured one, or of the fastest product where none was."""
        rows = [(row, seconds) for row, seconds in self.attention if row.get("flash", True) == attention.flash] or self.attention
        if not rows:
            self.extrapolated["attention"] = "attention: not measured, at the FLOP rate of the fastest product"
            return attention.flops / max(2.0 * m * n * k / seconds for (m, n, k), seconds in self.gemms.items())
        flops = [(Attention(**row).flops, seconds) for row, seconds in rows]
        near = min(flops, key=lambda row: abs(math.log(row[0] / attention.flops)))
        if abs(math.log(near[0] / attention.flops)) > math.log(NEAR):
            self.extrapolated["attention"] = "attention: at the FLOP rate of another shape"
        return near[1] * attention.flops / near[0]

    def pass_s(self, nbytes: float) -> float:
        """Seconds in which `nbytes` cross the memory bus, at the rate of the largest measured pass."""
        return nbytes / max(self.pass_rates)[1]


def _distance(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    return max(abs(math.log(x / y)) for x, y in zip(a, b, strict=True))


def sigma_of(points: Sequence[Point]) -> dict[str, float] | None:
    """Stretch of compute beside a collective from points of kind overlap: median for low and mid, the most for high; None without any."""
    found = sorted(
        float(point.details["slowdown"])
        for point in points
        if point.kind == "overlap"
        and point.status == "ok"
        and point.details is not None
        and point.details.get("gemm")
        and point.details.get("slowdown")
    )
    if not found:
        return None
    middle = max(1.0, found[len(found) // 2])
    return {"low": middle, "mid": middle, "high": max(1.0, found[-1])}
