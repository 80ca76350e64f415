"""Hosts whose ranks come late to every meeting: a slow host, not a slow fabric. Pure.

In a series of isolated operations a late rank is the one that waits the shortest (DESIGN.md section 2); points keep, by host, how much
later than the first its ranks came.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nccl_bench.records import Point
from nccl_bench.verdict.evidence import Mark
from nccl_bench.verdict.rows import Row

MIN_HOSTS = 3
"""Fewer have no majority to be late against."""
MIN_SERIES = 4
"""Isolated series (collectives and sizes) before anything is said."""
SHARE = 0.75
"""Of the series in which a host must be late."""
MIN_LATE_US = 50.0
"""Less is how far apart NCCL calls of healthy hosts start: dispatch from torch takes 32-45 µs (DESIGN.md section 2)."""
DEVIATIONS = 6.0
"""Median absolute deviations, as normal standard deviations, that a host must be later than the median of all."""
MAD_TO_SIGMA = 1.4826
SOURCE = "nccl-bench's default: later than the median host by 50 µs and 6 deviations in 3 of 4 isolated series"


def late_hosts(points: Sequence[Point], stages: Sequence[str] = ("cluster", "soak")) -> dict[str, tuple[float, int, int]]:
    """Host -> (median lateness beyond the median host, series in which it was late, series)."""
    late: dict[str, list[float]] = {}
    n_series = 0
    for point in points:
        nodes = (point.lateness_us or {}).get("nodes") or {}
        if point.stage not in stages or len(nodes) < MIN_HOSTS:
            continue
        n_series += 1
        middle = statistics.median(nodes.values())
        spread = MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in nodes.values())
        for host, value in nodes.items():
            if value - middle > max(MIN_LATE_US, DEVIATIONS * spread):
                late.setdefault(host, []).append(value - middle)
    if n_series < MIN_SERIES:
        return {}
    return {host: (statistics.median(values), len(values), n_series) for host, values in late.items() if len(values) >= SHARE * n_series}


def marks(points: Sequence[Point]) -> list[Mark]:
    """What lateness adds to a suspect that measurements name; alone it names none: the host may be slow and its fabric sound."""
    return [
        Mark(kind="node", host=host, text=f"its ranks come {late_us:.0f} µs later than the median host, in {k} of {n} series", blames=False)
        for host, (late_us, k, n) in late_hosts(points).items()
    ]


def rows(points: Sequence[Point]) -> list[Row]:
    """A warning a late host; a pass where lateness was seen and nobody was late."""
    found = late_hosts(points)
    n = sum(len((point.lateness_us or {}).get("nodes") or {}) >= MIN_HOSTS and point.stage in ("cluster", "soak") for point in points)
    if not found:
        return (
            [Row(criterion="hosts arrive together", stage="cluster", status="pass", measured=0, required=0, unit="late hosts", source=SOURCE)]
            if n >= MIN_SERIES
            else []
        )
    return [
        Row(
            criterion="hosts arrive together", stage="cluster", status="warn", measured=round(late_us, 1), required=MIN_LATE_US, unit="µs",
            reason=f"late in {k} of {n_series} isolated series: look at its CPUs, governor and other processes", source=SOURCE, hosts=(host,),
        )
        for host, (late_us, k, n_series) in found.items()
    ]  # fmt: skip
