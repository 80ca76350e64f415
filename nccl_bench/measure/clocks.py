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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from nccl_bench.measure.ops import Call
from nccl_bench.measure.world import World, cuda
from nccl_bench.records import Clock

EVENT_QUANTUM_US = 0.5
"""Resolution of cudaEventElapsedTime (CUDA runtime API, event management: about 0.5 µs)."""
MAX_DOUBLINGS = 3
"""How often a spin that ended too early is doubled before the clock gives up."""
SPIN_MARGIN, SPIN_EXTRA_S = 1.5, 3e-4
MAX_SPIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Series:
    """One short series as this rank saw it, µs an operation; an infinite value is a batch to discard."""

    batches_us: list[float]
    window_us: float
    """From the first timed operation to the last."""
    meeting_us: list[float] = field(default_factory=list)
    """Isolated only: time spent in the meeting before each operation."""


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
        _run(batches[0])
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
        drain = self.world.drain if self.world.on_gpu else _nothing
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
        _run(self.calls)
        self.world.drain()

    def close(self) -> None:
        """Nothing is held."""


class EagerTimer:
    """CUDA events between single calls, as a framework makes them."""

    name: Clock = "eager"
    k = 1
    sample: Literal["batch", "op"] = "op"
    quantum_us = EVENT_QUANTUM_US

    def __init__(self, world: World, calls: Sequence[Call], isolated: bool) -> None:
        self.world, self.calls, self.isolated = world, calls, isolated
        self._rotation = _Rotation(calls, 1)
        self._events: list[Any] = []

    def series(self, n_batches: int) -> Series:
        """See Timer."""
        batches = [self._rotation.batch()[0] for _ in range(n_batches + 1)]
        events = _events(self._events, 3 * n_batches if self.isolated else n_batches + 1)
        self.world.meet()
        batches[0]()
        if self.isolated:
            _enqueue_isolated(self.world, batches[1:], events)
        else:
            events[0].record()
            for call, event in zip(batches[1:], events[1:], strict=False):
                call()
                event.record()
        self.world.wait(events[-1].query)
        return _isolated_series(events) if self.isolated else _event_series(events, 1)

    def once(self) -> None:
        """See Timer."""
        _run(self.calls)
        self.world.drain()

    def close(self) -> None:
        """Nothing is held."""


class QueuedTimer:
    """k calls enqueued while a kernel spins, so that the host is never what is timed."""

    name: Clock = "queued"

    def __init__(self, world: World, calls: Sequence[Call], k: int, isolated: bool) -> None:
        self.world, self.calls, self.k, self.isolated = world, calls, k, isolated
        self.sample: Literal["batch", "op"] = "op" if isolated or k == 1 else "batch"
        self.quantum_us = EVENT_QUANTUM_US if isolated else EVENT_QUANTUM_US / k
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
        events = _events(self._events, 3 * self.k if self.isolated else 2)
        cuda._sleep(int(self.spin_s * cycles_per_s(self.world)))
        if self.isolated:
            _enqueue_isolated(self.world, calls, events)
        else:
            self.world.meet()
            events[0].record()
            _run(calls)
            events[-1].record()
        late = bool(events[0].query())
        self.world.wait(events[-1].query)
        return (_isolated_series(events) if self.isolated else _event_series(events, self.k)), late

    def _enqueue_s(self) -> float:
        """Seconds that enqueueing one batch takes while the device is busy."""
        calls = self._rotation.batch()
        cuda._sleep(int(2e-3 * cycles_per_s(self.world)))
        started = time.perf_counter()
        if self.isolated:
            _enqueue_isolated(self.world, calls, _events(self._events, 3 * self.k))
        else:
            _run(calls)
        spent = time.perf_counter() - started
        self.world.drain()
        return spent

    def once(self) -> None:
        """See Timer."""
        cuda._sleep(int(self.spin_s * cycles_per_s(self.world)))
        _run(self.calls)
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
        self.quantum_us = EVENT_QUANTUM_US if isolated else EVENT_QUANTUM_US / self.k
        self._events: list[Any] = []
        self._inner = [cuda.Event(enable_timing=True, external=True) for _ in range(3 * self.k)] if isolated else []
        self._graph = cuda.CUDAGraph()
        world.drain()
        with _capture(self._graph):
            if isolated:
                _enqueue_isolated(world, calls, self._inner)
            else:
                _run(calls)

    def series(self, n_batches: int) -> Series:
        """See Timer."""
        if self.isolated:
            return self._isolated_replays(n_batches)
        events = _events(self._events, n_batches + 1)
        self.world.meet()
        self._graph.replay()
        events[0].record()
        for event in events[1:]:
            self._graph.replay()
            event.record()
        self.world.wait(events[-1].query)
        return _event_series(events, self.k)

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
            series = _isolated_series(self._inner)
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


@contextmanager
def _capture(graph: Any) -> Iterator[None]:
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


def _enqueue_isolated(world: World, calls: Sequence[Call], events: Sequence[Any]) -> None:
    """Event, meeting, event, operation, event; three events a call."""
    for number, call in enumerate(calls):
        events[3 * number].record()
        world.meet()
        events[3 * number + 1].record()
        call()
        events[3 * number + 2].record()


def _isolated_series(events: Sequence[Any]) -> Series:
    triples = [events[i : i + 3] for i in range(0, len(events), 3)]
    times = [met.elapsed_time(end) * 1e3 for _, met, end in triples]
    meetings = [start.elapsed_time(met) * 1e3 for start, met, _ in triples]
    return Series(times, events[0].elapsed_time(events[-1]) * 1e3, meetings)


def _event_series(events: Sequence[Any], k: int) -> Series:
    times = [before.elapsed_time(after) * 1e3 / k for before, after in itertools.pairwise(events)]
    return Series(times, events[0].elapsed_time(events[-1]) * 1e3)


def _events(pool: list[Any], count: int) -> list[Any]:
    """The first `count` timing events of a pool that grows."""
    pool.extend(cuda.Event(enable_timing=True) for _ in range(count - len(pool)))
    return pool[:count]


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _nothing() -> None:
    pass


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
            _run(calls[:n])
            second.record()
            world.wait(second.query)
            best = min(best, first.elapsed_time(second) * 1e3 / n)
        else:
            started = time.perf_counter_ns()
            calls[0]()
            best = min(best, (time.perf_counter_ns() - started) * 1e-3)
    return world.max_reduce((best if timed else 0.0,))[0]


def make_timer(name: Clock, world: World, calls: Sequence[Call], k: int, isolated: bool) -> Timer:
    """The timer for a clock's name; for `graph`, one slot a call is used."""
    if name == "host":
        return HostTimer(world, calls, k, isolated)
    if name == "eager":
        return EagerTimer(world, calls, isolated)
    if name == "queued":
        return QueuedTimer(world, calls, k, isolated)
    return GraphTimer(world, calls[:k], isolated)
