"""Two things at once: a collective beside another kind's, or beside a matrix product; each alone first, then both, so that each hides the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from nccl_bench.measure.cases import other_case, plain_nbytes
from nccl_bench.measure.gemm import product_op
from nccl_bench.measure.ops import Call, Op, prepare
from nccl_bench.measure.points import GEMM, Measured, Report, point_of
from nccl_bench.measure.world import cuda
from nccl_bench.records import Case, Point

if TYPE_CHECKING:
    from nccl_bench.measure.world import World

MOST_TIMES = 32
"""How often the shorter of the two is repeated at most, so that it lasts as long as the other."""


class Runner(Protocol):
    """What times one operation: the sweep."""

    world: World

    def run(self, case: Case, make: Callable[[int], Op], report: Report, started_at: str, *, lateness: bool = False, check: bool = True) -> Measured:
        """See measure/sweep.py, Sweeper.run."""
        ...


def measure_both(sweeper: Runner, case: Case, report: Report, started_at: str) -> Measured:
    """The point of kind overlap: time of both together, each alone, and how much longer than the longer one they take."""
    world, work = sweeper.world, json.loads(case.work or "{}")
    own_case = replace(case, work=None, special=None)
    room = plain_nbytes(own_case)
    own = prepare(own_case, world, 1, None, world.arena[:room])
    if "with" in work:
        second = other_case(case, work["with"])
        other = prepare(second, world, 1, None, world.arena[room:])
    else:
        second = replace(case, collective=GEMM, special=None, work=json.dumps(work["gemm"]))
        other = product_op(second, work["gemm"], world, world.arena[room:], 1)
    alone = [sweeper.run(one, _repeated(op), report, started_at, check=False).point for one, op in ((own_case, own), (second, other))]
    times = [point.time_us.mean for point in alone if point.status == "ok" and point.time_us is not None]
    if len(times) < 2 or min(times) <= 0:
        bad = next((point.reason for point in alone if point.status != "ok"), "a clock gave no usable time")
        return _measured(point_of(case, kind="overlap", status="skipped", reason=f"alone: {bad}"))
    n_own, n_other = (max(1, min(MOST_TIMES, round(max(times) / time))) for time in times)
    with _Together(world) as together:
        call = together.call(own.calls[0], n_own, other.calls[0], n_other)
        both = replace(own, calls=(call,), timed=own.timed or other.timed, lay=_fill_both(own, other), inputs=(), outputs=())
        plain = replace(own_case, special=case.special)
        found = sweeper.run(plain, _repeated(both), report, started_at, check=False).point
    if found.status != "ok" or found.time_us is None:
        return _measured(replace(found, kind="overlap", details=work))
    longer = max(times[0] * n_own, times[1] * n_other)
    details = {**work, "own_us": times[0], "other_us": times[1], "own_times": n_own, "other_times": n_other,
               "slowdown": found.time_us.mean / longer}  # fmt: skip
    return _measured(replace(found, kind="overlap", details=details, algbw_GBps=None, busbw_GBps=None, n_wrong=None))


def _measured(point: Point) -> Measured:
    return Measured(point=point)


def _repeated(op: Op) -> Callable[[int], Op]:
    """The same buffers in every slot: what runs beside it decides, not the cache. Their data cannot be checked: they are added to again."""
    return lambda n_slots: replace(op, calls=op.calls[:1] * n_slots)


def _fill_both(own: Op, other: Op) -> Callable[[], None]:
    def fill() -> None:
        own.fill()
        other.fill()

    return fill


class _Together:
    """Launches two calls so that neither waits for the other: two streams on a GPU, a second thread on a CPU."""

    def __init__(self, world: World) -> None:
        self.on_gpu = world.on_gpu
        self.stream: Any = cuda.Stream() if world.on_gpu else None
        self.threads = None if world.on_gpu else ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> _Together:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.threads is not None:
            self.threads.shutdown(wait=False)

    def call(self, own: Call, n_own: int, other: Call, n_other: int) -> Call:
        """Both, so many times each; done when both are."""
        threads = self.threads
        if threads is None:
            return lambda: self._on_streams(own, n_own, other, n_other)

        def run() -> None:
            beside = threads.submit(_times, other, n_other)
            _times(own, n_own)
            beside.result()

        return run

    def _on_streams(self, own: Call, n_own: int, other: Call, n_other: int) -> None:
        here = cuda.current_stream()
        self.stream.wait_stream(here)
        with cuda.stream(self.stream):
            _times(other, n_other)
        _times(own, n_own)
        here.wait_stream(self.stream)


def _times(call: Call, n: int) -> None:
    for _ in range(n):
        call()
