"""The four clocks: how a series of batches is run and timed on this rank (DESIGN.md section 2).

    graph    k calls captured in a CUDA graph, replayed, an event between replays: the fabric
    queued   k calls enqueued behind a spinning kernel: the fabric where capture cannot be had
    eager    calls one by one, an event between: what a framework pays
    host     a monotonic clock around k calls: gloo's

Streaming runs calls back to back. Isolated puts a one-element all_reduce before every call and times from its end, so
that no call overlaps the one before; the time spent in that meeting shows who came late.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from nccl_bench.measure.events import (
    Series,
    capture,
    cycles_per_s,
    enqueue_isolated,
    event_quantum_us,
    event_series,
    isolated_series,
    nothing,
    run_calls,
    take_events,
)
from nccl_bench.measure.ops import Call
from nccl_bench.measure.world import World, cuda
from nccl_bench.records import Clock

MAX_DOUBLINGS = 3
"""How often a spin that ended too early is doubled before the clock gives up."""
SPIN_MARGIN, SPIN_EXTRA_S = 1.5, 3e-4
MAX_SPIN_S = 0.2


class Timer(Protocol):
    """A clock over the calls of one case."""

    name: Clock
    k: int
    """Operations a batch."""
    sample: Literal["batch", "op"]
    """What one value of a series is of."""
    quantum_us: float
    """The clock's step over the operations of a sample."""

    def series(self, n_batches: int) -> Series:
        """Meet, run one batch untimed, then time `n_batches`."""
        ...

    def once(self) -> None:
        """Run every slot exactly once on the timed path, and wait."""
        ...

    def close(self) -> None:
        """Release what the clock holds; no graph stays alive."""
        ...


class _Rotation:
    """Batches of k calls that walk through the slots."""

    def __init__(self, calls: Sequence[Call], k: int) -> None:
        self._calls, self._k, self._next = calls, k, 0

    def batch(self) -> list[Call]:
        first, n = self._next, len(self._calls)
        self._next = (first + self._k) % n
        return [self._calls[(first + j) % n] for j in range(self._k)]


class HostTimer:
    """Wall clock around k calls; on a GPU until the device has done them."""

    name: Clock = "host"
    quantum_us = 1e-3 * max(1.0, time.get_clock_info("perf_counter").resolution * 1e9)

    def __init__(self, world: World, calls: Sequence[Call], k: int, isolated: bool) -> None:
        self.world, self.calls, self.isolated = world, calls, isolated
        self.k = 1 if isolated else k
        self.sample: Literal["batch", "op"] = "op" if self.k == 1 else "batch"
        self.quantum_us = HostTimer.quantum_us / self.k
        self._rotation = _Rotation(calls, self.k)

    def series(self, n_batches: int) -> Series:
        """See Timer."""
        batches = [self._rotation.batch() for _ in range(n_batches + 1)]
        self.world.meet()
        run_calls(batches[0])
        self.world.drain()
        return self._isolated(batches[1:]) if self.isolated else self._streaming(batches[1:])

    def _streaming(self, batches: list[list[Call]]) -> Series:
        self.world.meet()
        self.world.drain()
        drain = self.world.drain if self.world.on_gpu else None
        stamps = [0] * (len(batches) + 1)
        clock = time.perf_counter_ns
        stamps[0] = clock()
        for number, batch in enumerate(batches, 1):
            for call in batch:
                call()
            if drain is not None:
                drain()
            stamps[number] = clock()
        times = [(after - before) * 1e-3 / self.k for before, after in itertools.pairwise(stamps)]
        return Series(times, (stamps[-1] - stamps[0]) * 1e-3)

    def _isolated(self, batches: list[list[Call]]) -> Series:
        drain = self.world.drain if self.world.on_gpu else nothing
        meet, clock = self.world.meet, time.perf_counter_ns
        times: list[float] = []
        meetings: list[float] = []
        started = clock()
        for (call,) in batches:
            arrived = clock()
            meet()
            drain()
            before = clock()
            call()
            drain()
            after = clock()
            times.append((after - before) * 1e-3)
            meetings.append((before - arrived) * 1e-3)
        return Series(times, (clock() - started) * 1e-3, meetings)

    def once(self) -> None:
        """See Timer."""
        run_calls(self.calls)
        self.world.drain()

    def close(self) -> None:
        """Nothing is held."""


class EagerTimer:
    """CUDA events between single calls, as a framework makes them."""

    name: Clock = "eager"
    k = 1
    sample: Literal["batch", "op"] = "op"

    def __init__(self, world: World, calls: Sequence[Call], isolated: bool) -> None:
        self.world, self.calls, self.isolated = world, calls, isolated
        self.quantum_us = event_quantum_us(world)
        self._rotation = _Rotation(calls, 1)
        self._events: list[Any] = []

    def series(self, n_batches: int) -> Series:
        """See Timer."""
        batches = [self._rotation.batch()[0] for _ in range(n_batches + 1)]
        events = take_events(self._events, 3 * n_batches if self.isolated else n_batches + 1)
        self.world.meet()
        batches[0]()
        if self.isolated:
            enqueue_isolated(self.world, batches[1:], events)
        else:
            events[0].record()
            for call, event in zip(batches[1:], events[1:], strict=False):
                call()
                event.record()
        self.world.wait(events[-1].query)
        return isolated_series(events) if self.isolated else event_series(events, 1)

    def once(self) -> None:
        """See Timer."""
        run_calls(self.calls)
        self.world.drain()

    def close(self) -> None:
        """Nothing is held."""


class QueuedTimer:
    """k calls enqueued while a kernel spins, so that the host is never what is timed."""

    name: Clock = "queued"

    def __init__(self, world: World, calls: Sequence[Call], k: int, isolated: bool) -> None:
        self.world, self.calls, self.k, self.isolated = world, calls, k, isolated
        self.sample: Literal["batch", "op"] = "op" if isolated or k == 1 else "batch"
        self.quantum_us = event_quantum_us(world) / (1 if isolated else k)
        self.doublings = 0
        self._rotation = _Rotation(calls, k)
        self._events: list[Any] = []
        self.spin_s = min(MAX_SPIN_S, SPIN_MARGIN * self._enqueue_s() + SPIN_EXTRA_S)

    def series(self, n_batches: int) -> Series:
        """See Timer; batches that were late come back infinite."""
        total: list[float] = []
        meetings: list[float] = []
        started = time.perf_counter()
        for number in range(n_batches + 1):
            batch, is_late = self._batch()
            if number == 0:  # the untimed one
                continue
            total.extend([float("inf")] * len(batch.batches_us) if is_late else batch.batches_us)
            meetings.extend(batch.meeting_us)
        return Series(total, (time.perf_counter() - started) * 1e6, meetings)

    def double(self) -> None:
        """Spin twice as long from now on, at most three times; called on all ranks when any rank was late."""
        if self.doublings < MAX_DOUBLINGS:
            self.doublings += 1
            self.spin_s = min(MAX_SPIN_S, 2 * self.spin_s)

    def _batch(self) -> tuple[Series, bool]:
        calls = self._rotation.batch()
        events = take_events(self._events, 3 * self.k if self.isolated else 2)
        cuda._sleep(int(self.spin_s * cycles_per_s(self.world)))
        if self.isolated:
            enqueue_isolated(self.world, calls, events)
        else:
            self.world.meet()
            events[0].record()
            run_calls(calls)
            events[-1].record()
        late = bool(events[0].query())
        self.world.wait(events[-1].query)
        return (isolated_series(events) if self.isolated else event_series(events, self.k)), late

    def _enqueue_s(self) -> float:
        """Seconds that enqueueing one batch takes while the device is busy."""
        calls = self._rotation.batch()
        cuda._sleep(int(2e-3 * cycles_per_s(self.world)))
        started = time.perf_counter()
        if self.isolated:
            enqueue_isolated(self.world, calls, take_events(self._events, 3 * self.k))
        else:
            run_calls(calls)
        spent = time.perf_counter() - started
        self.world.drain()
        return spent

    def once(self) -> None:
        """See Timer."""
        cuda._sleep(int(self.spin_s * cycles_per_s(self.world)))
        run_calls(self.calls)
        self.world.drain()

    def close(self) -> None:
        """Nothing is held."""


class GraphTimer:
    """k calls in a CUDA graph, replayed; needs one slot a call, so that one replay runs every slot once."""

    name: Clock = "graph"

    def __init__(self, world: World, calls: Sequence[Call], isolated: bool) -> None:
        """Capture the calls. Raises RuntimeError where capture fails; nothing is left alive then."""
        self.world, self.k, self.isolated = world, len(calls), isolated
        self.sample: Literal["batch", "op"] = "op" if isolated or self.k == 1 else "batch"
        self.quantum_us = event_quantum_us(world) / (1 if isolated else self.k)
        self._events: list[Any] = []
        self._inner = [cuda.Event(enable_timing=True, external=True) for _ in range(3 * self.k)] if isolated else []
        self._graph = cuda.CUDAGraph()
        world.drain()
        with capture(self._graph):
            if isolated:
                enqueue_isolated(world, calls, self._inner)
            else:
                run_calls(calls)

    def series(self, n_batches: int) -> Series:
        """See Timer."""
        if self.isolated:
            return self._isolated_replays(n_batches)
        events = take_events(self._events, n_batches + 1)
        self.world.meet()
        self._graph.replay()
        events[0].record()
        for event in events[1:]:
            self._graph.replay()
            event.record()
        self.world.wait(events[-1].query)
        return event_series(events, self.k)

    def _isolated_replays(self, n_batches: int) -> Series:
        """A replay overwrites its events, so each is read before the next."""
        times: list[float] = []
        meetings: list[float] = []
        started = time.perf_counter()
        self._graph.replay()
        for _ in range(n_batches):
            self.world.drain()
            self._graph.replay()
            self.world.drain()
            series = isolated_series(self._inner)
            times.extend(series.batches_us)
            meetings.extend(series.meeting_us)
        return Series(times, (time.perf_counter() - started) * 1e6, meetings)

    def once(self) -> None:
        """See Timer."""
        self._graph.replay()
        self.world.drain()

    def close(self) -> None:
        """Free the graph and wait: a live graph slows eager calls and hangs destroy and abort (DESIGN.md section 2)."""
        self._graph.reset()
        self.world.drain()


def make_timer(name: Clock, world: World, calls: Sequence[Call], k: int, isolated: bool) -> Timer:
    """The timer for a clock's name; for `graph`, one slot a call is used."""
    if name == "host":
        return HostTimer(world, calls, k, isolated)
    if name == "eager":
        return EagerTimer(world, calls, isolated)
    if name == "queued":
        return QueuedTimer(world, calls, k, isolated)
    return GraphTimer(world, calls[:k], isolated)
