"""What goes under the tables of a sweep: variants side by side, and the algorithms that a probe found. No pandas."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from nccl_bench.records import Point
from nccl_bench.units import format_GBps, format_size, format_us

AS_IS = "as is"
LATENCY_NBYTES = 1 << 16
"""Up to 64 KiB variants are compared by time, above by bus bandwidth: below it a bandwidth says the latency in other words."""
Key = tuple[str, str | None, str | None, str | None, str | None, str | None, int]


class Beside:
    """Collects the points of all variants of a run."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._points: dict[Key, dict[str, Point]] = {}

    def add(self, point: Point) -> None:
        """Take a measured point."""
        name = point.variant or AS_IS
        if name not in self._names:
            self._names.append(name)
        if point.status != "ok" or point.time_us is None:
            return
        key = (point.collective, point.dtype, point.op, point.placement, point.shift, f"{point.clock} {point.regime}", point.nbytes)
        self._points.setdefault(key, {})[name] = point

    def text(self) -> str:
        """One table a collective: sizes down, variants across; "" where there is one variant only."""
        if len(self._names) < 2:
            return ""
        width = max(12, *(len(name) + 2 for name in self._names))
        lines: list[str] = []
        cases: dict[tuple[object, ...], list[tuple[Key, dict[str, Point]]]] = {}
        for key, by_name in self._points.items():  # clocks take turns at each size
            cases.setdefault(key[:-1], []).append((key, by_name))
        for case, rows in cases.items():
            title = " · ".join(str(word) for word in (case[0], case[2], case[1], case[5], case[4]) if word)
            lines += ["", f"{title}: variants side by side (time to 64 KiB, then busbw in GB/s)"]
            lines += ["     size" + "".join(f"{name:>{width}}" for name in self._names)]
            for key, by_name in rows:
                lines.append(f"{format_size(key[-1]):>9}" + "".join(f"{_cell(by_name.get(name)):>{width}}" for name in self._names))
        return "\n".join(lines) + "\n"


def _cell(point: Point | None) -> str:
    if point is None or point.time_us is None:
        return "-"
    return format_us(point.time_us.median) if point.nbytes <= LATENCY_NBYTES else format_GBps(point.busbw_GBps)


def algorithms_text(algorithms: Iterable[Mapping[str, Any]]) -> str:
    """One line a collective: "all_reduce: tree LL to 64 KiB, ring Simple to 1 GiB"; "" where none is known."""
    lines = []
    for name, rows in itertools.groupby(sorted(algorithms, key=lambda row: (row["collective"], row["nbytes"])), key=lambda row: row["collective"]):
        spans = [
            (words, max(row["nbytes"] for row in group))
            for words, group in itertools.groupby(rows, key=lambda row: f"{row['algorithm']} {row['protocol']}")
        ]
        lines.append(f"  {name}: " + ", ".join(f"{words} to {format_size(most)}" for words, most in spans))
    return "\nalgorithms that NCCL chose (from a probe in fresh workers):\n" + "\n".join(lines) + "\n" if lines else ""
