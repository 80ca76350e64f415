"""Curves as points again, for those who word or print points: one a size, passes pooled. No pandas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nccl_bench.records import Ceiling, Point, Times
from nccl_bench.report.curves import Curve


def points_of_curve(curve: Curve) -> list[tuple[Point, Ceiling]]:
    """(point, what it is held against) of each size."""
    names = ("collective", "dtype", "op", "root", "placement", "shift", "clock", "regime")
    fields: dict[str, Any] = {name: getattr(curve, name) for name in names}
    found = []
    for sample in curve.samples:
        time = sample.time_us
        times = Times(median=time, mean=time, min=time, max=time, p95=sample.p95_us, ci_low=sample.low_us, ci_high=sample.high_us)
        point = Point(
            **fields,
            nbytes=sample.nbytes,
            requested_nbytes=sample.requested_nbytes,
            count=None,
            n_ranks=curve.n_ranks,
            variant=curve.variant,
            time_us=times,
            busbw_GBps=sample.busbw_GBps,
            n_wrong=sample.n_wrong,
            algorithm=sample.algorithm,
            protocol=sample.protocol,
        )
        most = sample.ceiling.expected_high_GBps
        share = None if most is None or sample.busbw_GBps is None else sample.busbw_GBps / most
        found.append((point, replace(sample.ceiling, share_frac=share)))
    return found
