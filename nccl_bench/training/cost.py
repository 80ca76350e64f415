"""From calls, prices and work to the time of one step: what is exposed, what is hidden, and the range. Seconds.

slot   = compute + exposed calls of one micro-batch, by stage
T      = (m - 1/v) max(slot) + sum(slot)/v - ... : m slots of the slowest stage, and the fill and drain of the others over v chunks
         + 2 (p-1) T_p2p + phi 2 m v T_p2p        (phi from 0 to 1: whether steady-state sends are hidden; 0 fitted vTrain best)
         + max over stages(exposed gradient and parameter calls, the optimizer) - the time a later stage is done earlier
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nccl_bench.training.call import Call
from nccl_bench.training.compute import MEMORY_PASSES, PASSES_RANGE, Rates, Work, work_of
from nccl_bench.training.layout import Layout, Stage, mesh_of, stages_of
from nccl_bench.training.model import Model
from nccl_bench.training.price import Places, Price, Pricer
from nccl_bench.training.step import step_calls

End = Literal["low", "mid", "high"]
ENDS: tuple[End, ...] = ("low", "mid", "high")
SIGMA = {"low": 1.0, "mid": 1.0, "high": 1.35}
"""How far compute beside a collective is stretched where it was not measured: up to 1.30-1.40 (pytorch PR #179937)."""
PHI = {"low": 0.0, "mid": 0.0, "high": 1.0}
"""Share of the pipeline's other sends that is exposed, where the schedule can expose them: 0 fitted the vTrain rows best; both ends are
the range. Interleaved, Megatron hides the steady state by itself, and warm-up and flush where told to (model_parallel_config.py:385-427)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A call and what it costs."""

    call: Call
    price: Price | None
    exposed_us: dict[End, float]
    """Of all its calls in one step on the stage that the step waits for; empty where it has no price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of the step, 0-1; hidden communication runs beside compute and is not part of the sum."""

    compute: float
    bubble: float
    exposed: float
    hidden: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The bill of one step."""

    calls: tuple[Priced, ...]
    """Of the stage that the step waits for."""
    step_s: dict[End, float] | None
    """None where compute, or a call, has no price."""
    shares: Shares | None
    stage: int
    """The slowest stage."""
    unpriced: tuple[str, ...]
    """Calls without a price, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What prices a step."""

    pricer: Pricer
    places: Places
    rates: Rates | None
    sigma: Mapping[str, float] | None = None
    """Stretch of compute beside a collective by end; None: SIGMA."""


@dataclass(frozen=True, slots=True)
class _StageCost:
    stage: Stage
    work: Work | None
    priced: list[tuple[Call, Price | None]]
    exposed: dict[End, dict[int, float]]
    """By end and index of the call: µs a step."""
    slot_s: dict[End, float]
    once_s: dict[End, float]
    pipe_s: dict[End, float]
    """Of the pipeline's own sends, once a step."""
    hidden_s: float


def cost_of(model: Model, layout: Layout, setting: Setting) -> StepCost:
    """The bill. Raises UsageError where the framework's grids do not agree, DetectError where hardware is unknown."""
    mesh, stages = mesh_of(layout), stages_of(layout, model)
    known: dict[object, _StageCost] = {}
    costs = []
    for stage in stages:
        key = (len(stage.layers), model.n_moe(stage.layers), stage.first, stage.last)
        if key not in known:
            calls = step_calls(model, layout, stage)
            priced = [(call, setting.pricer(call.collective, call.nbytes, setting.places.of(mesh, call.axis))) for call in calls]
            known[key] = _stage(model, layout, stage, priced, setting)
        costs.append(known[key])
    return _compose(layout, costs)


def _stage(model: Model, layout: Layout, stage: Stage, priced: list[tuple[Call, Price | None]], setting: Setting) -> _StageCost:
    work = None if setting.rates is None else work_of(model, layout, stage, setting.rates)
    sigma = SIGMA if setting.sigma is None else setting.sigma
    exposed: dict[End, dict[int, float]] = {}
    slot: dict[End, float] = {}
    once: dict[End, float] = {}
    pipe: dict[End, float] = {}
    hidden_mid = 0.0
    m = layout.microbatches
    for end in ENDS:
        exposed[end], hidden_mb, hidden_once = _exposures(priced, work, layout, end)
        per_mb = sum(us for at, us in exposed[end].items() if _is_slot(priced[at][0])) / m * 1e-6
        per_step = sum(us for at, us in exposed[end].items() if not priced[at][0].per_microbatch) * 1e-6
        pipe[end] = sum(us for at, us in exposed[end].items() if priced[at][0].window == "pipeline") * 1e-6
        stretch = sigma[end] - 1.0
        slot[end] = _compute_s(work, end) + per_mb + stretch * hidden_mb / m
        once[end] = per_step + stretch * hidden_once + (work.optimizer if work else 0.0)
        if end == "mid":
            hidden_mid = hidden_mb + hidden_once
    return _StageCost(stage=stage, work=work, priced=priced, exposed=exposed, slot_s=slot, once_s=once, pipe_s=pipe, hidden_s=hidden_mid)


def _compute_s(work: Work | None, end: End) -> float:
    """Seconds of a micro-batch's arithmetic, with as many passes over memory as the end has."""
    return 0.0 if work is None else work.total + (PASSES_RANGE[end] / MEMORY_PASSES - 1.0) * work.passing


def _is_slot(call: Call) -> bool:
    return call.per_microbatch and call.window != "pipeline"


def _exposures(priced: list[tuple[Call, Price | None]], work: Work | None, layout: Layout, end: End) -> tuple[dict[int, float], float, float]:
    """(exposed µs by call, hidden seconds of micro-batch calls, hidden seconds of calls once a step)."""
    exposed: dict[int, float] = {}
    hidden = {True: 0.0, False: 0.0}
    shared: dict[str, list[int]] = {}
    for at, (call, price) in enumerate(priced):
        if price is None:
            continue
        one = _us(price, end)
        total = one * call.count
        match call.window:
            case "exposed":
                exposed[at] = total
            case "gemm" | "chunk":
                beside = 0.0 if work is None else work.wgrad if call.window == "gemm" else work.attention / layout.cp
                room = 0.0 if _in_turn(call, layout, end) else beside * 1e6
                exposed[at] = max(0.0, one - room) * call.count
                hidden[call.per_microbatch] += (total - exposed[at]) * 1e-6
            case "pipeline":
                trips = 2 * (layout.pp - 1)
                exposed[at] = one * (trips + PHI[end] * _could_show(layout, call.count))
                hidden[True] += max(0.0, total - exposed[at]) * 1e-6
            case _:
                shared.setdefault(call.window, []).append(at)
    for window, members in shared.items():
        _share_window(window, members, priced, work, layout, end, exposed, hidden)
    return exposed, hidden[True], hidden[False]


def _in_turn(call: Call, layout: Layout, end: End) -> bool:
    """Whether, at the high end, GEMM and call run one after the other: Megatron orders them side by side only under CUDA_DEVICE_MAX_CONNECTIONS=1
    (layers.py:678-711), and users saw none of it (Megatron issues 827, 1468). Userbuffers pipeline within the kernel."""
    return end == "high" and call.window == "gemm" and "tp" not in layout.overlap


def _could_show(layout: Layout, sends: int) -> float:
    """Of a rank's sends beside the fill and drain: all of the plain schedule's; interleaved, those of warm-up and flush unless they overlap too."""
    if layout.vpp == 1:
        return sends
    warm_up = 2 * (layout.pp - 1) + (layout.vpp - 1) * layout.pp  # schedules.py:964-965
    return 0 if "p2p" in layout.overlap else min(sends, 2 * warm_up)


def _share_window(
    window: str,
    members: list[int],
    priced: list[tuple[Call, Price | None]],
    work: Work | None,
    layout: Layout,
    end: End,
    exposed: dict[int, float],
    hidden: dict[bool, float],
) -> None:
    """Calls under one window share the links, so their times add up; what outlasts the window is exposed, and at its edge one call always is."""
    totals = {at: _us(price, end) * priced[at][0].count for at in members if (price := priced[at][1]) is not None}
    total = sum(totals.values())
    room_us, edge = _room(window, work, layout, totals, priced)
    over = min(total, max(0.0, total - edge - room_us) + edge)
    for at, own in totals.items():
        exposed[at] = over * own / total if total > 0 else 0.0
        hidden[priced[at][0].per_microbatch] += (own - exposed[at]) * 1e-6


def _room(
    window: str, work: Work | None, layout: Layout, totals: Mapping[int, float], priced: list[tuple[Call, Price | None]]
) -> tuple[float, float]:
    """(µs that a window hides in one step, µs that stick out at its edge)."""
    if work is None:
        return 0.0, 0.0
    m = layout.microbatches
    buckets = max(1, sum(priced[at][0].count for at in totals))
    largest = max((own / priced[at][0].count for at, own in totals.items()), default=0.0)
    match window:
        case "block_forward":
            return m * work.forward * (1 - 1 / work.blocks) * 1e6, sum(totals.values()) / work.blocks
        case "block_backward":
            return m * (work.backward + work.recompute) * (1 - 1 / work.blocks) * 1e6, sum(totals.values()) / work.blocks
        case "last_backward":
            # The first bucket is full only after its layers have run; the last one has nothing left to hide under.
            return (work.backward + work.recompute) * (1 - 1 / buckets) * 1e6, largest
        case "first_forward":
            # The first layers wait for the first bucket.
            return work.forward * (1 - 1 / buckets) * 1e6, largest
        case "moe":
            return m * (work.forward + work.backward) * 1e6, 0.0
    raise AssertionError(window)


def _us(price: Price, end: End) -> float:
    return {"low": price.low_us, "mid": price.mid_us, "high": price.high_us}[end]


def _compose(layout: Layout, costs: list[_StageCost]) -> StepCost:
    m, v = layout.microbatches, layout.vpp
    slowest = max(range(len(costs)), key=lambda at: costs[at].slot_s["mid"])
    worst = costs[slowest]
    unpriced = tuple(
        dict.fromkeys(f"{call.kind}: {call.collective} over {call.axis}" for cost in costs for call, price in cost.priced if price is None)
    )
    last = _last(layout, costs, "mid")
    calls = [
        Priced(call=call, price=price, exposed_us={end: cost.exposed[end][at] for end in ENDS if at in cost.exposed[end]})
        for cost, mine in ((worst, True), (costs[last[0]], False))
        for at, (call, price) in enumerate(cost.priced)
        if call.per_microbatch == mine
    ]
    if unpriced or worst.work is None:
        return StepCost(calls=tuple(calls), step_s=None, shares=None, stage=slowest, unpriced=unpriced)
    step: dict[End, float] = {}
    for end in ENDS:
        slots = [cost.slot_s[end] for cost in costs]
        step[end] = m * max(slots) + (sum(slots) - max(slots)) / v + worst.pipe_s[end] + _last(layout, costs, end)[1]
    shares = _shares(layout, costs, slowest, last, step["mid"])
    return StepCost(calls=tuple(calls), step_s=step, shares=shares, stage=slowest, unpriced=())


def _last(layout: Layout, costs: list[_StageCost], end: End) -> tuple[int, float]:
    """(stage, seconds) of what comes after the last micro-batch: a later stage has drained by so many backwards earlier."""

    def after(at: int) -> float:
        work = costs[at].work
        earlier = 0.0 if work is None else at * (work.backward + work.recompute) / layout.vpp
        return max(0.0, costs[at].once_s[end] - earlier)

    # Stages alike but for their place share one cost: the first of them is the latest to drain.
    candidates = list({id(cost): at for at, cost in reversed(list(enumerate(costs)))}.values())
    stage = max(candidates, key=after)
    return stage, after(stage)


def _shares(layout: Layout, costs: list[_StageCost], slowest: int, last: tuple[int, float], step_s: float) -> Shares:
    worst, m, v = costs[slowest], layout.microbatches, layout.vpp
    slots = [cost.slot_s["mid"] for cost in costs]
    work = worst.work
    assert work is not None
    compute = m * work.total
    bubble = (sum(slots) - max(slots)) / v
    per_mb = m * worst.slot_s["mid"] - compute
    optimizer = min(last[1], costs[last[0]].work.optimizer if costs[last[0]].work else 0.0)  # type: ignore[union-attr]
    exposed = per_mb + worst.pipe_s["mid"] + last[1] - optimizer
    return Shares(
        compute=compute / step_s, bubble=bubble / step_s, exposed=exposed / step_s, hidden=worst.hidden_s / step_s, other=optimizer / step_s
    )
