"""An answer as the JSON document of CONTRACT.md section 2, with what it assumed. Unknown is null, never 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nccl_bench.groups import WORLD_AXIS, span_of
from nccl_bench.records import Json
from nccl_bench.training.compute import PASSES_RANGE
from nccl_bench.training.cost import PHI, SIGMA, Priced
from nccl_bench.training.layout import Layout, mesh_of
from nccl_bench.training.memory import Memory
from nccl_bench.training.model import BASES
from nccl_bench.training.notes import notes_of
from nccl_bench.training.plan import Answer, Fabric, axes_with_ranks
from nccl_bench.training.traffic import LOSS_MEGATRON, LOSS_SOURCE, LOSS_TORCH

HOURS_A_DAY = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Something taken as given."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What turns shares into cost."""

    gpu_hour_price: float | None = None
    tokens: float | None = None
    """Of the whole training."""
    observed_step_s: float | None = None
    idle_gpus: int = 0
    """GPUs that were named, and that the layout leaves out."""


def plan_json(answer: Answer, fabric: Fabric, money: Money, assumptions: Sequence[Assumption]) -> Json:
    """The document."""
    cost = answer.cost
    return {
        "model": answer.model.name,
        "params": answer.model.params,
        "layout": layout_json(answer.layout),
        "groups": groups_json(answer, fabric),
        "memory": _memory_json(answer.memory),
        "step_s": None if cost.step_s is None else dict(cost.step_s),
        "tokens_per_s_per_gpu": answer.tokens_per_s_per_gpu,
        "mfu_frac": answer.mfu_frac,
        "flop_basis": answer.basis,
        "shares": None if cost.shares is None else {name: getattr(cost.shares, name) for name in ("compute", "bubble", "exposed", "hidden", "other")},
        "calls": [_call_json(row) for row in cost.calls],
        "extrapolated": extrapolated(answer),
        "unpriced": list(cost.unpriced),
        "priced_by": fabric.priced_by,
        "assumptions": [{"name": a.name, "value": a.value, "source": a.source} for a in assumptions],
        "what_if": [{"what": row.what, "step_s": row.step_s, "saves_frac": row.saves_frac} for row in answer.what_if],
        "best_change": _change_json(answer),
        "cost": cost_json(answer, money),
        "observed": observed_json(answer, money),
        "notes": notes_of(answer, fabric),
    }


def layout_json(layout: Layout) -> Json:
    """Sizes and choices, and the whole in words."""
    names = ("framework", "tp", "pp", "vpp", "cp", "ep", "dp", "sp", "order", "dist_opt", "zero", "qwz", "hpz", "qgz", "recompute")
    record: dict[str, Any] = {"text": layout.text(), **{name: getattr(layout, name) for name in names}}
    record["cp_comm"] = layout.context_comm if layout.cp > 1 else None
    record |= {"etp": layout.expert_tp, "hsdp": layout.shard, "pp_layout": list(layout.pp_layout), "overlap": sorted(layout.overlap)}
    record |= {"param_dtype": layout.param_dtype, "grad_dtype": layout.grad_type, "fp8": layout.fp8}
    return record | {"seq": layout.seq, "gbs": layout.gbs, "mbs": layout.mbs, "microbatches": layout.microbatches, "world": layout.world}


def groups_json(answer: Answer, fabric: Fabric) -> list[Json]:
    """Every axis with more than one rank: how many groups, the nodes each spans, the rails and groups at once of a node."""
    rows = []
    used = [row.call.axis for row in answer.cost.calls if row.call.axis != WORLD_AXIS]
    for axis in dict.fromkeys([*axes_with_ranks(answer.layout), *used]):
        place = fabric.places.of(mesh_of(answer.layout), axis)
        if place.kind.size == 1:
            continue
        span = span_of(place.kind, fabric.places.seats)
        rows.append(
            {"axis": axis, "size": place.kind.size, "count": len(place.kind.groups), "nodes": span.nodes, "rails": span.rails,
             "crossing": span.crossing, "rail_aligned": span.aligned, "first": list(place.kind.groups[0])}
        )  # fmt: skip
    return rows


def _memory_json(memory: Memory) -> Json:
    heaviest = memory.heaviest
    stages = [{"stage": row.stage, "nbytes": round(row.nbytes)} for row in memory.stages]
    return {"verdict": memory.verdict, "nbytes": memory.nbytes, "of_nbytes": memory.of_nbytes, "stage": heaviest.stage,
            "parts": {name: round(value) for name, value in heaviest.parts.items()}, "stages": stages}  # fmt: skip


def _call_json(row: Priced) -> Json:
    price, call = row.price, row.call
    return {
        "kind": call.kind,
        "collective": call.collective,
        "axis": call.axis,
        "nbytes": call.nbytes,
        "count": call.count,
        "dtype": call.dtype,
        "price_us": None if price is None else price.mid_us,
        "price_range_us": None if price is None else [price.low_us, price.high_us],
        "priced_by": None if price is None else price.by,
        "exposed_us": row.exposed_us.get("mid"),
        "why": call.why,
        "source": call.source,
        "extrapolated": None if price is None else price.extrapolated,
    }


def extrapolated(answer: Answer) -> list[str]:
    """Prices that reach beyond what was measured, in words."""
    found = [f"{row.call.kind} ({row.call.collective}, {row.call.axis}): {row.price.extrapolated}" for row in answer.cost.calls
             if row.price is not None and row.price.extrapolated]  # fmt: skip
    return list(dict.fromkeys(found))


def _change_json(answer: Answer) -> Json | None:
    change = answer.change
    if change is None:
        return None
    return {
        "layout": layout_json(change.layout),
        "step_s": change.step_s,
        "saves_frac": change.saves_frac,
        "sure": change.sure,
        "memory": change.memory.verdict,
        "memory_nbytes": change.memory.nbytes,
    }


def cost_json(answer: Answer, money: Money) -> Json | None:
    """GPU-hours a day that wait for communication, what they cost, and how long a training takes; None without a step time."""
    cost = answer.cost
    if cost.step_s is None or cost.shares is None:
        return None
    world = answer.layout.world
    waiting = world * HOURS_A_DAY * cost.shares.exposed
    days = None
    if money.tokens is not None:
        days = money.tokens / (answer.layout.gbs * answer.layout.seq) * cost.step_s["mid"] / 86400.0
    price = money.gpu_hour_price
    return {
        "gpu_hours_waiting_per_day": waiting,
        "money_waiting_per_day": None if price is None else waiting * price,
        "training_days": days,
        "training_money": None if days is None or price is None else days * HOURS_A_DAY * world * price,
        "gpu_hours_idle_per_day": money.idle_gpus * HOURS_A_DAY,
        "money_idle_per_day": None if price is None else money.idle_gpus * HOURS_A_DAY * price,
        "gpu_hour_price": price,
    }


def observed_json(answer: Answer, money: Money) -> Json | None:
    """Predicted beside observed, and the share that nothing here explains; None without an observed step."""
    observed, step = money.observed_step_s, answer.cost.step_s
    if observed is None or step is None:
        return None
    return {"observed_s": observed, "predicted_s": step["mid"], "unexplained_frac": 1 - step["mid"] / observed}


def assumptions_of(answer_layout: Layout, fabric: Fabric, basis: str, extra: Sequence[Assumption] = ()) -> list[Assumption]:
    """What every price of this layout rests on, each with its source."""
    at = answer_layout
    rows = list(extra)
    rows.append(
        Assumption(name="gradients reduced in", value=at.grad_type, source=f"default of {at.framework}" if at.grad_dtype is None else "given")
    )
    rows.append(Assumption(name="rank order", value=at.order if at.framework == "megatron" else f"{at.framework}'s own", source="framework"))
    rows.append(
        Assumption(name="overlap", value=", ".join(sorted(at.overlap)) or "the framework's defaults", source="given" if at.overlap else "framework")
    )
    rows.append(Assumption(name="attention", value="flash" if at.flash else "keeps its scores", source="given" if not at.flash else "default"))
    if at.framework == "fsdp2" and at.fsdp_shard * at.cp > 1:
        value = "each block, and one for embedding, head and norm (torchtitan wraps the embedding apart: one gather of it more a micro-batch)"
        rows.append(Assumption(name="FSDP units", value=value, source="torch fully_shard by block; torchtitan distributed/fsdp.py"))
    if at.fp8:
        rows.append(Assumption(name="fp8", value="parameters are gathered in 8 bits; GEMMs at the rate that was measured or given", source="given"))
    if at.pp > 1:
        value = f"hidden in the steady state (high end: exposed, phi {PHI['high']:g})"
        rows.append(Assumption(name="pipeline sends", value=value, source="fitted vTrain's rows best"))
    if at.tp > 1 and at.framework != "fsdp2" and "tp" not in at.overlap:
        value = "hidden beside the weight-gradient GEMM (high end: not)"
        rows.append(Assumption(name="TP calls of the backward", value=value, source="needs CUDA_DEVICE_MAX_CONNECTIONS=1; Megatron issues 827, 1468"))
    if fabric.sigma is None:
        value = f"none (high end {SIGMA['high']:g})"
        rows.append(Assumption(name="compute stretched beside a collective", value=value, source="not measured; pytorch PR 179937"))
    rows.append(Assumption(name="FLOP basis", value=basis, source=BASES[basis]))
    rows.append(Assumption(name="not modelled", value="stragglers, data loading, checkpoints", source="out of scope of a price"))
    return rows


def traffic_assumptions(layout: Layout, rate: str) -> list[Assumption]:
    """How often activations and logits cross the memory bus."""
    low, mid, high = PASSES_RANGE.values()
    source = "fitted on published rows (vTrain): benchmarks/training.py"
    per_logit = sum(LOSS_TORCH if layout.framework == "fsdp2" else LOSS_MEGATRON)
    return [
        Assumption(name="passes over memory a layer", value=f"{mid:g} at {rate} (range {low:g} to {high:g})", source=source),
        Assumption(name="memory traffic of the loss", value=f"{per_logit} bytes a logit, not fused", source=LOSS_SOURCE[layout.framework]),
    ]
