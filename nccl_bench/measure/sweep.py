"""The sweep: prepare, warm up, time in series until enough is known, check the data; yields one result a case.

Every decision that ends a loop is made from values reduced over ranks, so that all ranks make it alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import torch

from nccl_bench.measure.cases import Planned, slot_nbytes
from nccl_bench.measure.clocks import MAX_DOUBLINGS, QueuedTimer, Timer, make_timer
from nccl_bench.measure.data import Wrong
from nccl_bench.measure.events import Series, estimate_us
from nccl_bench.measure.gpu_state import REASONS, GpuState, reason_names
from nccl_bench.measure.ops import Op, prepare
from nccl_bench.measure.points import GEMM, Measured, Report, group_of_case, is_refusal, point_of, wrong_words
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.measure.stats import median
from nccl_bench.measure.stopping import MAX_BATCHES, OPS_FAST, StopRule, batches_per_series, ops_per_batch
from nccl_bench.measure.world import CollectiveError, OverdueError, World, first_line
from nccl_bench.records import Case, Clock, Json, with_bandwidth

FIRST_WARMUP_S = 1.0
"""The first case warms up at least so long: clocks, power and lazily made connections settle (DESIGN.md section 2)."""
WARM_TOLERANCE, MAX_WARM_SERIES = 0.05, 8
MAX_SLOTS = 64
MAX_VIEWS = 4096
"""Slots times ranks of a gather or scatter: each needs a tensor of its own."""
SAMPLE_STATE_US = 5000.0
"""GPU clocks are read during warm-up series at least this long: NVML's answer takes milliseconds."""
CACHE_TURNS = 2
"""The pool that slots walk through is at least twice the last-level cache."""

Prepare = Callable[..., Op]
Make = Callable[[int], Op]
"""An operation for a number of slots."""


@dataclass(slots=True)
class _Run:
    """What the steps of one case pass along."""

    world: World
    spec: SweepSpec
    case: Case
    op: Op
    report: Report
    timer: Timer
    clock_reason: str | None = None
    own_us: list[float] = field(default_factory=list)
    """This rank's own batch times, where usable."""
    meetings_us: list[float] = field(default_factory=list)
    window_us: float = 0.0
    sm_mhz: float = math.inf
    throttle: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(REASONS, False))


class Sweeper:
    """Measures cases of one spec in one world."""

    def __init__(self, world: World, spec: SweepSpec, prepare_op: Prepare = prepare, gpu: GpuState | None = None) -> None:
        """spec: with precision and budget filled in."""
        self.world, self.spec, self.gpu = world, spec, gpu
        self._prepare = prepare_op
        self._warm = False
        """Whether the first case has warmed the device."""

    def measure(self, planned: Planned, report: Report) -> Measured:
        """The result of one case. Raises CollectiveError, OverdueError."""
        if planned.skip is not None:
            return Measured(point=point_of(planned.case, status="skipped", reason=planned.skip))
        case = planned.case
        if slot_nbytes(case) > self.world.arena.numel():
            return Measured(
                point=point_of(case, status="skipped", reason=f"out of memory: {slot_nbytes(case)} bytes of buffers could not be had on every rank")
            )
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        report("setup", 0)
        if case.collective != GEMM and case.work is not None and "skew" not in case.work:
            from nccl_bench.measure.overlap import measure_both

            return measure_both(self, case, report, started_at)
        return self.run(case, self._maker(case), report, started_at, lateness=planned.lateness)

    def _maker(self, case: Case) -> Make:
        """How the case's operation is made for a number of slots."""
        if case.collective == GEMM:
            from nccl_bench.measure.gemm import prepare_product

            return lambda n_slots: prepare_product(case, self.world, n_slots)
        return lambda n_slots: self._prepare(case, self.world, n_slots, self.spec.pair)

    def run(self, case: Case, make: Make, report: Report, started_at: str, *, lateness: bool = False, check: bool = True) -> Measured:
        """Warm up, time and, where asked, check the operation that `make` gives. Raises CollectiveError, OverdueError."""
        refusal = self._try_once(case, make)
        if refusal is not None:
            return Measured(point=point_of(case, status="skipped", reason=refusal))
        run = self._start(case, make, report)
        measured = self._finish(run, self._time(run, lateness), started_at, check=check and self.spec.check and case.collective != GEMM)
        # Not in a `finally`: after a hang nothing may be destroyed, resetting a graph that hangs would hang too.
        run.timer.close()
        return measured

    def _try_once(self, case: Case, make: Make) -> str | None:
        """One call, untimed: connections are made, and what the backend refuses is found out; the refusal, or None."""
        trial = make(1)
        trial.fill()
        refusal = ""
        try:
            trial.calls[0]()
        except (TypeError, ValueError, NotImplementedError) as err:
            refusal = first_line(err)
        except RuntimeError as err:
            if not is_refusal(err):
                raise CollectiveError(f"{case.label()}: {first_line(err)}") from err
            refusal = first_line(err)
        if self.world.agree(not refusal):
            return None
        return f"{self.world.backend} refused it: {refusal or 'on another rank'}"

    def _start(self, case: Case, make: Make, report: Report) -> _Run:
        world, isolated = self.world, case.regime == "isolated"
        n_max = self._max_slots(case)
        look = make(min(n_max, 8))
        if look.lay is not None:
            look.lay()
        op_us = self._guard(case, lambda: estimate_us(world, look.calls, look.timed)) / look.trips
        k = min(ops_per_batch(op_us, self.spec.iters), n_max) if case.clock == "graph" else ops_per_batch(op_us, self.spec.iters)
        if case.clock == "graph" and self.spec.iters is not None:
            k = max(d for d in range(1, k + 1) if self.spec.iters % d == 0)
        n_slots = k if case.clock == "graph" else min(n_max, max(k, self._cache_slots(case)))
        op = make(n_slots)
        op.fill()
        timer, reason = self._timer(case.clock, op, k, isolated)
        return _Run(world=world, spec=self.spec, case=case, op=op, report=report, timer=timer, clock_reason=reason)

    def _timer(self, clock: Clock, op: Op, k: int, isolated: bool) -> tuple[Timer, str | None]:
        """The asked clock, or queued with the reason where a graph cannot be captured on every rank."""
        why, timer = "", None
        try:
            timer = make_timer(clock, self.world, op.calls, k, isolated)
        except RuntimeError as err:
            if clock != "graph":
                raise CollectiveError(f"{op.case.label()}: {first_line(err)}") from err
            why = first_line(err)
        if clock != "graph":
            assert timer is not None
            return timer, None
        if self.world.agree(timer is not None):
            assert timer is not None
            return timer, None
        if timer is not None:
            timer.close()
        return make_timer("queued", self.world, op.calls, k, isolated), f"CUDA graph capture failed: {why or 'on another rank'}"

    def _max_slots(self, case: Case) -> int:
        many = case.n_ranks if case.collective in ("gather", "scatter") else 1
        return max(1, min(MAX_SLOTS, MAX_VIEWS // many, self.world.arena.numel() // slot_nbytes(case)))

    def _cache_slots(self, case: Case) -> int:
        """Slots that outgrow the cache; none for messages so small that even the most would stay in it."""
        needed = -(-CACHE_TURNS * cache_nbytes(self.world) // slot_nbytes(case))
        return needed if needed <= MAX_SLOTS else 0

    def _guard(self, case: Case, step: Callable[[], float]) -> float:
        try:
            return step()
        except RuntimeError as err:
            raise CollectiveError(f"{case.label()}: {first_line(err)}") from err

    def _time(self, run: _Run, lateness: bool) -> StopRule:
        """Series until the rule says stop; for lateness alone the least number of them."""
        spec, timer = self.spec, run.timer
        assert spec.budget_s is not None
        assert spec.precision is not None
        first_us = self._warm_up(run)
        n_total = None if spec.iters is None else spec.iters // timer.k
        quantum = timer.quantum_us / run.op.trips
        rule = StopRule(precision=spec.precision, budget_s=spec.budget_s, quantum_us=quantum, n_batches=n_total, least=lateness)
        first = batches_per_series(first_us * timer.k * run.op.trips, spec.budget_s)
        if timer.k == 1 and timer.sample == "op" and first == MAX_BATCHES:
            first = OPS_FAST  # single quick operations: more of them cost nothing
        if n_total is not None:
            first = min(first, max(1, n_total // 6))
        started = time.monotonic()
        while rule.done() is None:
            run.report("time", rule.n_series)
            self._one_series(run, rule, rule.next_batches(first), started)
            if not rule.batches and rule.n_series > MAX_DOUBLINGS + 1:
                break  # a clock that gave nothing usable so often gives nothing
        return rule

    def _one_series(self, run: _Run, rule: StopRule, n_batches: int, started: float) -> None:
        series = self._series(run, n_batches)
        elapsed = time.monotonic() - started
        reduced = run.world.max_reduce((*(value / run.op.trips for value in series.batches_us), elapsed, series.window_us))
        *batches, elapsed, window = reduced
        rule.add(batches, elapsed)
        if isinstance(run.timer, QueuedTimer) and not all(map(math.isfinite, batches)):
            run.timer.double()
        run.window_us += window
        run.own_us.extend(value / run.op.trips for value, kept in zip(series.batches_us, batches, strict=True) if math.isfinite(kept) and kept > 0)
        run.meetings_us.extend(series.meeting_us)

    def _series(self, run: _Run, n_batches: int) -> Series:
        try:
            series = run.timer.series(n_batches)
        except RuntimeError as err:
            raise CollectiveError(f"{run.case.label()}: {first_line(err)}") from err
        if run.op.timed:
            return series
        return Series([0.0] * len(series.batches_us), series.window_us, series.meeting_us)

    def _warm_up(self, run: _Run) -> float:
        """Run until two series agree (and a second for the first case), or for the asked count; µs an operation, max over ranks."""
        least_s = 0.0 if self._warm else FIRST_WARMUP_S
        self._warm = True
        if self.spec.warmup_iters is not None:
            return self._warm_up_count(run, self.spec.warmup_iters)
        assert self.spec.budget_s is not None
        started, before, last, n_batches = time.monotonic(), math.inf, math.inf, 1
        for number in range(10_000):
            run.report("warmup", number)
            series = self._series(run, n_batches)
            *batches, spent = run.world.max_reduce((*series.batches_us, time.monotonic() - started))
            before, last = last, median(batches) / run.op.trips
            agree = abs(last - before) <= WARM_TOLERANCE * last
            if spent >= least_s and number and (agree or number + 1 >= MAX_WARM_SERIES or spent > max(least_s, 0.25 * self.spec.budget_s)):
                break
            n_batches = 2
        self._sample_state(run, last)
        return last

    def _warm_up_count(self, run: _Run, count: int) -> float:
        last = 0.0
        for number in range(-(-count // run.timer.k)):
            run.report("warmup", number)
            # A series runs one batch untimed and one timed: two batches, so half as many series.
            if number % 2 == 0:
                last = run.world.max_reduce(self._series(run, 1).batches_us)[0] / run.op.trips
        return last

    def _sample_state(self, run: _Run, op_us: float) -> None:
        """Read clocks and throttle reasons while a long batch runs on the device; `op_us` is the same on every rank."""
        calls = run.op.calls[: run.timer.k]
        if self.gpu is None or op_us * run.op.trips * len(calls) < SAMPLE_STATE_US:
            return
        for call in calls:
            call()
        state = self.gpu.sample()
        run.world.drain()
        if state is not None:
            run.sm_mhz = state[0]
            run.throttle = {name: bool(state[1] & bit) for name, bit in REASONS.items()}

    def _finish(self, run: _Run, rule: StopRule, started_at: str, *, check: bool) -> Measured:
        world, timer, case = run.world, run.timer, run.case
        times = rule.times()
        base = point_of(case, clock=timer.name, clock_reason=run.clock_reason, started_at=started_at)
        if times is None:
            return Measured(point=replace(base, status="failed", reason=_no_times(timer)))
        wrong_count, wrong = self._check(run) if check else (None, None)
        own = math.fsum(run.own_us) / len(run.own_us) if run.own_us else 0.0
        total, n_timed = world.sum_reduce((own, float(run.op.timed)))
        low_mhz, *flags = world.max_reduce((-run.sm_mhz if math.isfinite(run.sm_mhz) else -math.inf, *map(float, run.throttle.values())))
        point = replace(
            base,
            iters=len(rule.batches) * timer.k,
            batches=len(rule.batches),
            series=len(rule.series),
            series_us=tuple(rule.series),
            ops_per_batch=1 if timer.sample == "op" else timer.k,
            sample=timer.sample,
            time_us=times,
            mean_over_ranks_us=total / max(1.0, n_timed),
            window_us=run.window_us,
            n_wrong=wrong_count,
            stop=rule.done() or "time",
            sm_mhz_min=int(-low_mhz) if math.isfinite(low_mhz) else None,
            throttle=reason_names(dict(zip(REASONS, (flag > 0 for flag in flags), strict=True))) if math.isfinite(low_mhz) else None,
        )
        if case.collective != GEMM:
            point = with_bandwidth(point, times.median)
        if case.axis is not None:
            point = replace(point, group=group_of_case(case, world.team(case.axis).kind, world.gather(own)))
        if wrong_count:
            point = replace(point, status="failed", reason=wrong_words(wrong_count, wrong))
        elif self.spec.warmup_iters == 0:
            point = replace(point, reason="not warmed up (-w 0)")
        return Measured(point=point, batches_us=tuple(rule.batches), lateness_us=self._lateness(run), wrong=wrong)

    def _check(self, run: _Run) -> tuple[int, Json | None]:
        """Fresh inputs through the path that was timed, every slot once; (wrong elements over all ranks, the first culprit)."""
        world, op = run.world, run.op
        run.report("verify", 0)
        op.fill()
        world.meet()
        try:
            run.timer.once()
        except RuntimeError as err:
            raise CollectiveError(f"{run.case.label()}: {first_line(err)}") from err
        counted = op.count_wrong()
        world.drain()
        own = int(counted)
        count = int(world.sum_reduce((float(own),))[0])
        if count == 0:
            return 0, None
        rank = int(world.min_reduce(float(world.rank if own else world.size)))
        wrong = op.first_wrong() if rank == world.rank else Wrong(count=0)
        return count, {"rank": rank, **self._broadcast_wrong(rank, wrong)}

    def _broadcast_wrong(self, rank: int, wrong: Wrong) -> Json:
        """The culprit's first wrong element, to every rank; words travel as code points."""
        mine = self.world.rank == rank
        text = [float(ord(letter)) for letter in wrong.where[:64]] if mine else []
        numbers = [float(wrong.index), wrong.expected, 0.0 if math.isnan(wrong.got) else wrong.got, float(math.isnan(wrong.got))]
        sent = [*numbers, *text, *([0.0] * (64 - len(text)))] if mine else [0.0] * 68
        index, expected, got, is_nan, *letters = self.world.sum_reduce(sent)
        where = "".join(chr(int(code)) for code in letters if code)
        return {"where": where, "index": int(index), "expected": expected, "got": "nan" if is_nan else got}

    def _lateness(self, run: _Run) -> tuple[float, ...]:
        """Who waits longest in the meeting came first; the others came so much later."""
        if not run.meetings_us or run.case.regime != "isolated":
            return ()
        waited = run.world.gather(median(run.meetings_us))
        return tuple(max(waited) - value for value in waited)


def passes(sweeper: Sweeper, planned: tuple[Planned, ...], report: Callable[[int, Planned], Report]) -> Iterator[tuple[int, Planned, Measured]]:
    """All cases once, or again and again for the spec's duration: (number of the pass, what was planned, the result)."""
    started, number = time.monotonic(), 0
    while True:
        for index, item in enumerate(planned):
            measured = sweeper.measure(item, report(index, item))
            yield number, item, replace(measured, point=replace(measured.point, pass_=number))
        number += 1
        spent = sweeper.world.max_reduce((time.monotonic() - started,))[0]
        if sweeper.spec.duration_s is None or spent >= sweeper.spec.duration_s:
            return


def cache_nbytes(world: World) -> int:
    """Last-level cache: the GPU's L2 as CUDA says, 32 MiB on a CPU (what server parts give a socket or more is shared)."""
    if not world.on_gpu:
        return 32 << 20
    return int(torch.cuda.get_device_properties(world.device).L2_cache_size)


def _no_times(timer: Timer) -> str:
    if isinstance(timer, QueuedTimer):
        return f"enqueueing {timer.k} calls outlasted a spin of {timer.spin_s * 1e3:.0f} ms every time"
    return "the clock gave no usable time"


__all__ = ["CollectiveError", "Measured", "OverdueError", "Sweeper", "passes"]
