"""Memory of a rank, stage by stage: weights, gradients, optimizer, activations in flight, logits, gathered blocks, buckets.

Bytes. Formulas: Korthikanti et al. 2022 table 2 for activations; ZeRO paper (arXiv 1910.02054) and Megatron's
theoretical_memory_usage.py for the rest. For rejecting layouts, not for fine tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nccl_bench.training.layout import Layout, Stage, stages_of
from nccl_bench.training.model import Model
from nccl_bench.training.step_data import BUCKET_ELEMENTS, BUCKET_ELEMENTS_A_RANK
from nccl_bench.training.step_fsdp import DDP_BUCKET_NBYTES, reshards
from nccl_bench.training.weights import block_params, root_params, weights_of

Verdict = Literal["fits", "tight", "impossible"]
LIVE_ELEMENTS = 1_000_000_000
"""stage3_max_live_parameters (DeepSpeed zero/config.py)."""
HEADROOM = 0.10
"""Share of the memory for NCCL's buffers, fragmentation and workspace: a fit into less is called tight."""
LOGIT_BYTES = 8
"""Bytes a logit on the last stage: bf16 and fp32 copies and the gradient (theoretical_memory_usage.py:368-376 counts 4, with the loss 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a rank of one stage holds, bytes by part."""

    stage: int
    parts: dict[str, float]

    @property
    def nbytes(self) -> float:
        """The sum."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The verdict and the sum of the heaviest stage, and all stages."""

    verdict: Verdict | None
    """None where the GPU's memory is not known."""
    nbytes: int
    of_nbytes: int | None
    stages: tuple[StageMemory, ...]

    @property
    def heaviest(self) -> StageMemory:
        """The stage that decides."""
        return max(self.stages, key=lambda stage: stage.nbytes)


def memory_of(model: Model, layout: Layout, gpu_nbytes: int | None, headroom: float = HEADROOM) -> Memory:
    """Memory of every stage, and whether the heaviest fits."""
    stages = stages_of(layout, model)
    states: dict[object, dict[str, float]] = {}
    rows = []
    for stage in stages:
        in_flight = min(layout.microbatches, layout.pp - stage.index)
        key = (len(stage.layers), model.n_moe(stage.layers), stage.first, stage.last)
        if key not in states:
            states[key] = _state(model, layout, stage)
        rows.append(StageMemory(stage=stage.index, parts={**states[key], **_activations(model, layout, stage, in_flight)}))
    nbytes = max(row.nbytes for row in rows)
    verdict: Verdict | None = None
    if gpu_nbytes is not None:
        verdict = "impossible" if nbytes > gpu_nbytes else "tight" if nbytes > (1 - headroom) * gpu_nbytes else "fits"
    return Memory(verdict=verdict, nbytes=round(nbytes), of_nbytes=gpu_nbytes, stages=tuple(rows))


def _state(model: Model, at: Layout, stage: Stage) -> dict[str, float]:
    weights = weights_of(model, at, stage)
    edp = max(1.0, at.world / (at.expert_tp * at.ep * at.pp))
    if at.framework == "fsdp2":
        return _fsdp_state(model, at, stage, weights.dense, weights.experts)
    if at.framework == "deepspeed":
        return _zero_state(at, weights.dense, weights.experts, edp)
    grad = at.grad_nbytes
    shards = (at.dp * at.cp, edp) if at.dist_opt else (1, 1)
    state = _optimizer_nbytes(at)
    optimizer = state * weights.dense / shards[0] + state * weights.experts / shards[1]
    return {"weights": float(at.param_nbytes) * weights.total, "gradients": float(grad) * weights.total, "optimizer": optimizer}


def _optimizer_nbytes(at: Layout) -> float:
    """Adam's two moments in fp32, and an fp32 master copy where the weights themselves are narrower."""
    return 8.0 if at.param_dtype == "float32" else 12.0


def _zero_state(at: Layout, dense: int, experts: int, edp: float) -> dict[str, float]:
    """4 Psi + 12 Psi/D, 2 Psi + 14 Psi/D, 16 Psi/D and what is gathered (ZeRO paper, algebra of section 5)."""
    shares = ((dense, float(at.dp)), (experts, edp))
    whole = {"weights": at.zero < 3, "gradients": at.zero < 2, "optimizer": at.zero < 1}
    each = {"weights": float(at.param_nbytes), "gradients": float(at.grad_nbytes), "optimizer": _optimizer_nbytes(at)}
    parts = {name: sum(each[name] * n / (1.0 if whole[name] else size) for n, size in shares) for name in each}
    bucket = min(at.reduce_bucket, dense + experts) * at.grad_nbytes
    parts["buckets"] = float(bucket) * (2 if at.zero >= 2 else 1)
    if at.zero == 3:
        parts["gathered"] = float(at.param_nbytes) * min(LIVE_ELEMENTS, dense + experts)
        parts["hpZ copy"] = float(1 if at.qwz else at.param_nbytes) * (dense + experts) / at.hpz if at.hpz else 0.0
    return parts


def _fsdp_state(model: Model, at: Layout, stage: Stage, dense: int, experts: int) -> dict[str, float]:
    """16 Psi/F in fp32 shards, root and two gathered blocks, one to be reduced (FSDP2 keeps fp32 masters as the parameters themselves)."""
    shard, eshard = at.fsdp_shard * at.cp, max(1, at.fsdp_shard * at.cp * at.tp // at.ep)
    each = max((sum(block_params(model, at, layer)) for layer in stage.layers), default=0)
    root = root_params(model, at, stage)
    block = max(each, root)
    parts = {"weights": 4.0 * (dense / shard + experts / eshard), "gradients": 4.0 * (dense / shard + experts / eshard)}
    parts["optimizer"] = 8.0 * (dense / shard + experts / eshard)
    if shard > 1 or eshard > 1:
        kept = float(at.param_nbytes) * ((2 * each + root) if reshards(at) else (dense + experts))
        parts |= {"gathered": kept, "buckets": float(at.grad_nbytes * block)}
    else:
        parts["buckets"] = float(min(DDP_BUCKET_NBYTES, (dense + experts) * at.grad_nbytes))
    return parts


def layer_activation_nbytes(model: Model, at: Layout, moe: bool | None = None) -> float:
    """Activations that one layer keeps for one micro-batch (Korthikanti table 2; 34 is 18 + 4 f/h for a plain MLP of 4h).

    `moe`: whether the layer routes to experts; None: whether the model has any.
    """
    s, b, h, t = at.seq / at.cp, at.mbs, model.hidden, at.tp
    if at.recompute == "full":
        return 2.0 * s * b * h / (t if at.sequence_parallel else 1)
    return _whole_layer(model, at, bool(model.experts) if moe is None else moe, scores=not at.flash and at.recompute != "selective")


def _whole_layer(model: Model, at: Layout, moe: bool, *, scores: bool) -> float:
    s, b, h, t = at.seq / at.cp, at.mbs, model.hidden, at.tp
    kept = 5.0 * model.heads * s * at.seq / at.cp * b / t if scores else 0.0
    shared, whole = _attention_bytes(model) + _mlp_bytes(model, moe), 10.0
    return s * b * h * ((shared + whole) / t if at.sequence_parallel else whole + shared / t) + kept


def _attention_bytes(model: Model) -> float:
    """Bytes over sbh of queries, keys, values and output: 8 where the heads are as wide as h; MLA keeps its compressed forms too."""
    if model.mla is None:
        return max(8.0, 4.0 * model.head_dim * (model.heads + model.kv_heads) / model.hidden)
    a, (k_dim, v_dim) = model.mla, model.head_dims()
    return (4.0 * model.heads * (k_dim + v_dim) + 2.0 * (a.q_lora + a.kv_lora + a.qk_rope)) / model.hidden


def _mlp_bytes(model: Model, moe: bool) -> float:
    """Bytes over sbh that the MLP keeps: 16 for a plain one of 4h; per expert reached, where there are experts (a gate keeps one more)."""
    width = model.top_k * model.moe_ffn + model.shared_ffn if moe else model.ffn
    return 4.0 * width / model.hidden * (1.5 if model.gated else 1.0)


def _activations(model: Model, at: Layout, stage: Stage, in_flight: int) -> dict[str, float]:
    """Micro-batches in flight on stage r: min(m, p - r); interleaving adds (p-1)/(p v) of it (theoretical_memory_usage.py:341-366)."""
    factor = 1 + (at.pp - 1) / (at.pp * at.vpp) if at.vpp > 1 else 1.0
    routed = model.n_moe(stage.layers)
    counts = {True: routed, False: len(stage.layers) - routed}
    layers = sum(layer_activation_nbytes(model, at, moe) * n for moe, n in counts.items() if n)
    parts = {"activations": layers * in_flight * factor}
    if at.recompute == "full":
        # One layer is alive while it is run again.
        parts["recomputed layer"] = max((_whole_layer(model, at, moe, scores=not at.flash) for moe, n in counts.items() if n), default=0.0)
    if stage.last:
        parts["logits"] = LOGIT_BYTES * at.seq / at.cp * at.mbs * model.vocab / at.tp
    if at.framework == "megatron" and "grad" in at.overlap and not at.dist_opt:
        parts["buckets"] = 4.0 * max(BUCKET_ELEMENTS, BUCKET_ELEMENTS_A_RANK * at.dp)
    return parts
