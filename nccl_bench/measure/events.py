"""CUDA events and graphs for the clocks: recording, reading, capturing, the clock's step; and a first look at a call's time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from nccl_bench.measure.ops import Call
from nccl_bench.measure.world import World, cuda

EVENT_QUANTUM_US = 0.5
"""Resolution of cudaEventElapsedTime where it cannot be seen (CUDA runtime API, event management: about 0.5 µs)."""
QUANTUM_EVENTS = 300


@dataclass(frozen=True, slots=True)
class Series:
    """One short series as this rank saw it, µs an operation; an infinite value is a batch to discard."""

    batches_us: list[float]
    window_us: float
    """From the first timed operation to the last."""
    meeting_us: list[float] = field(default_factory=list)
    """Isolated only: time spent in the meeting before each operation."""


@contextmanager
def capture(graph: Any) -> Iterator[None]:
    """Capture on a side stream; NCCL's watchdog thread may query events meanwhile, hence thread_local."""
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # the capture is broken already; its first error is the one to report
                graph.capture_end()
            graph.reset()
            raise
        graph.capture_end()
    cuda.current_stream().wait_stream(stream)


def enqueue_isolated(world: World, calls: Sequence[Call], events: Sequence[Any]) -> None:
    """Event, meeting, event, operation, event; three events a call."""
    for number, call in enumerate(calls):
        events[3 * number].record()
        world.meet()
        events[3 * number + 1].record()
        call()
        events[3 * number + 2].record()


def isolated_series(events: Sequence[Any]) -> Series:
    """The series of events that `enqueue_isolated` recorded."""
    triples = [events[i : i + 3] for i in range(0, len(events), 3)]
    times = [met.elapsed_time(end) * 1e3 for _, met, end in triples]
    meetings = [start.elapsed_time(met) * 1e3 for start, met, _ in triples]
    return Series(times, events[0].elapsed_time(events[-1]) * 1e3, meetings)


def event_series(events: Sequence[Any], k: int) -> Series:
    """The series of events with k operations between each two."""
    times = [before.elapsed_time(after) * 1e3 / k for before, after in itertools.pairwise(events)]
    return Series(times, events[0].elapsed_time(events[-1]) * 1e3)


def take_events(pool: list[Any], count: int) -> list[Any]:
    """The first `count` timing events of a pool that grows."""
    pool.extend(cuda.Event(enable_timing=True) for _ in range(count - len(pool)))
    return pool[:count]


def run_calls(calls: Sequence[Call]) -> None:
    """One call after another."""
    for call in calls:
        call()


def nothing() -> None:
    """Do nothing: what waits for a CPU."""


_QUANTUM_US: dict[torch.device, float] = {}


def event_quantum_us(world: World) -> float:
    """The step of this device's event clock, the coarsest of all ranks, measured once: the least difference between times seen.

    On an H200 with driver 580 it is 0.032 µs, far below the 0.5 µs that the CUDA documentation promises.
    """
    if world.device not in _QUANTUM_US:
        events = take_events([], QUANTUM_EVENTS)
        for event in events:
            event.record()
        world.wait(events[-1].query)
        seen = sorted({round(before.elapsed_time(after) * 1e6) for before, after in itertools.pairwise(events)})
        step = min((b - a for a, b in itertools.pairwise(seen)), default=0) * 1e-3
        _QUANTUM_US[world.device] = world.max_reduce((step or EVENT_QUANTUM_US,))[0]
    return _QUANTUM_US[world.device]


_CYCLES_PER_S: dict[torch.device, float] = {}


def cycles_per_s(world: World) -> float:
    """What torch.cuda._sleep's cycles are worth on this device now, measured once."""
    if world.device not in _CYCLES_PER_S:
        first, second = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda._sleep(100_000)
        first.record()
        cuda._sleep(2_000_000)
        second.record()
        world.wait(second.query)
        _CYCLES_PER_S[world.device] = 2_000_000 / max(1e-6, first.elapsed_time(second) * 1e-3)
    return _CYCLES_PER_S[world.device]


def estimate_us(world: World, calls: Sequence[Call], timed: bool = True) -> float:
    """A first look at the time of one call, µs, max over ranks of each rank's best of three short runs; it sets k, nothing else."""
    best = float("inf")
    for _ in range(3):
        world.meet()
        if world.on_gpu:
            first, second = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            first.record()
            n = max(1, min(8, len(calls)))
            run_calls(calls[:n])
            second.record()
            world.wait(second.query)
            best = min(best, first.elapsed_time(second) * 1e3 / n)
        else:
            started = time.perf_counter_ns()
            calls[0]()
            best = min(best, (time.perf_counter_ns() - started) * 1e-3)
    return world.max_reduce((best if timed else 0.0,))[0]
