"""What the arithmetic of one micro-batch costs on one rank: GEMM shapes, attention, memory-bound passes; measured, or by an efficiency.

Times are seconds. An efficiency is of kernels, not of the step: a step's MFU already holds bubble and exposed communication.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nccl_bench.training.layout import Layout, Stage
from nccl_bench.training.model import Model
from nccl_bench.training.traffic import copies_nbytes, loss_nbytes
from nccl_bench.training.weights import weights_of

MEMORY_PASSES = 8.0
"""Times that a layer's activations (bytes of Korthikanti et al. 2022, table 2) cross the memory bus in one forward and backward of
unfused kernels. Chosen on published rows (vTrain), an absorber, not physics: between 6 and 10 each model left out of the fit of the other
constants is predicted within 15 % (benchmarks/training.py, docs/training.md). What is measured (sweep --want) replaces the rate, not the count."""
PASSES_RANGE = {"low": 6.0, "mid": MEMORY_PASSES, "high": 12.0}
"""The range of them: 6 is the fewest (read and written once in the forward, twice in the backward), and up to 12 predict the published rows within
12 % (docs/training.md); kernels that are fused better or worse lie between. Eager torch without any fusion is beyond (benchmarks/step.py)."""
FORWARD_SHARE = 1.0 / 3.0
"""Of the memory passes: a backward reads and writes twice what a forward does."""
FLASH_BACKWARD = 2.5
"""FlashAttention's backward has five matrix products where the forward has two (arXiv 2307.08691)."""
ADAM_BYTES = 30
"""Bytes a parameter moves in a fused Adam step: master, two moments read and written (24), gradient read (4), bf16 copy written (2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A matrix product [m, k] x [k, n]."""

    name: str
    m: int
    n: int
    k: int
    count: int = 1

    @property
    def flops(self) -> float:
        """2 m n k, all of them."""
        return 2.0 * self.m * self.n * self.k * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Scores and values of one layer."""

    batch: int
    heads: int
    seq: int
    """Of queries: a rank's part under context parallelism."""
    full_seq: int
    dim: int
    flash: bool

    @property
    def flops(self) -> float:
        """Forward; a flash kernel leaves out what the causal mask hides."""
        return 4.0 * self.batch * self.heads * self.seq * self.full_seq * self.dim * (0.5 if self.flash else 1.0)


class Rates(Protocol):
    """What gives times to arithmetic."""

    def gemm_s(self, gemm: Gemm) -> float:
        """Seconds of one product, without its count."""
        ...

    def attention_s(self, attention: Attention) -> float:
        """Seconds of the forward."""
        ...

    def pass_s(self, nbytes: float) -> float:
        """Seconds in which `nbytes` cross the memory bus."""
        ...

    @property
    def passes(self) -> float:
        """MEMORY_PASSES, or what was fitted in its place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Rates from a kernel efficiency: no measurement."""

    eff: float
    """Of the peak, 0-1."""
    peak_tflops: float
    hbm_GBps: float
    passes: float = MEMORY_PASSES

    def gemm_s(self, gemm: Gemm) -> float:
        """2 m n k / (eff peak)."""
        return 2.0 * gemm.m * gemm.n * gemm.k / (self.eff * self.peak_tflops * 1e12)

    def attention_s(self, attention: Attention) -> float:
        """At the same efficiency."""
        return attention.flops / (self.eff * self.peak_tflops * 1e12)

    def pass_s(self, nbytes: float) -> float:
        """At the datasheet's rate."""
        return nbytes / (self.hbm_GBps * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A GPU model's datasheet."""

    name: str
    tflops: float
    """Dense bf16."""
    hbm_GBps: float
    memory_GB: float
    source: str
    other_GB: tuple[float, ...] = ()
    """Memories of other boards that go by the same name."""


def accelerators() -> Mapping[str, Accelerator]:
    """By the names of the fabric's table of GPUs."""
    rows = json.loads(Path(__file__).with_name("accelerators.json").read_text(encoding="utf-8"))
    return {row["name"]: Accelerator(**{**row, "other_GB": tuple(row.get("other_GB", ()))}) for row in rows}


def layer_gemms(model: Model, at: Layout, layer: int) -> tuple[Gemm, ...]:
    """The forward products of one layer on one rank; the backward has two of each size."""
    tokens, t, h = at.seq // at.cp * at.mbs, at.tp, model.hidden
    if model.mla is None:
        kv = max(1, model.kv_heads // t)
        rows = [Gemm(name="qkv", m=tokens, n=(model.heads // t + 2 * kv) * model.head_dim, k=h)]
        rows += [Gemm(name="attention out", m=tokens, n=h, k=model.heads * model.head_dim // t)]
    else:
        a, heads = model.mla, model.heads // t
        qk = a.qk_nope + a.qk_rope
        rows = [Gemm(name="q up", m=tokens, n=heads * qk, k=a.q_lora or h), Gemm(name="kv down", m=tokens, n=a.kv_lora + a.qk_rope, k=h)]
        rows += [Gemm(name="q down", m=tokens, n=a.q_lora, k=h)] if a.q_lora else []
        rows += [
            Gemm(name="kv up", m=tokens, n=heads * (a.qk_nope + a.v_dim), k=a.kv_lora),
            Gemm(name="attention out", m=tokens, n=h, k=heads * a.v_dim),
        ]
    gates = model.mlp_matrices - 1
    if not model.is_moe(layer):
        return (*rows, Gemm(name="mlp up", m=tokens, n=gates * model.ffn // t, k=h), Gemm(name="mlp down", m=tokens, n=h, k=model.ffn // t))
    local = model.experts // at.ep
    routed = tokens // (t if t > 1 else 1) * model.top_k * at.expert_tp
    each = max(1, routed // local)
    rows += [
        Gemm(name="expert up", m=each, n=gates * model.moe_ffn // at.expert_tp, k=h, count=local),
        Gemm(name="expert down", m=each, n=h, k=model.moe_ffn // at.expert_tp, count=local),
    ]
    if model.shared_ffn:
        rows += [
            Gemm(name="shared up", m=tokens, n=gates * model.shared_ffn // t, k=h),
            Gemm(name="shared down", m=tokens, n=h, k=model.shared_ffn // t),
        ]
    return tuple(rows)


def head_gemm(model: Model, at: Layout) -> Gemm:
    """The logits."""
    return Gemm(name="head", m=at.seq // at.cp * at.mbs, n=-(-model.vocab // at.tp), k=model.hidden)


def backward_gemms(gemm: Gemm) -> tuple[Gemm, Gemm]:
    """The input's gradient and the weight's."""
    name, m, n, k = gemm.name, gemm.m, gemm.n, gemm.k
    return Gemm(name=f"{name} dgrad", m=m, n=k, k=n, count=gemm.count), Gemm(name=f"{name} wgrad", m=n, n=k, k=m, count=gemm.count)


def attention_of(model: Model, at: Layout) -> Attention:
    """Attention of a layer on one rank."""
    dim = model.head_dim if model.mla is None else (model.mla.qk_nope + model.mla.qk_rope + model.mla.v_dim) // 2
    return Attention(batch=at.mbs, heads=model.heads // at.tp, seq=at.seq // at.cp, full_seq=at.seq, dim=dim, flash=at.flash)


def activation_pass_nbytes(model: Model, at: Layout) -> float:
    """Bytes of a layer's activations: sbh(10 + 24/t), 34/t with sequence parallelism; 5 n b s2 / t more where scores are kept.

    Korthikanti et al. 2022, table 2.
    """
    sbh = at.seq // at.cp * at.mbs * model.hidden
    base = sbh * 34.0 / at.tp if at.sequence_parallel else sbh * (10.0 + 24.0 / at.tp)
    scores = 0.0 if at.flash else 5.0 * model.heads / at.tp * at.mbs * (at.seq // at.cp) * at.seq
    return base + scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of one micro-batch on one rank of a stage, all its layers."""

    forward: float
    backward: float
    recompute: float
    wgrad: float
    """One weight-gradient GEMM that a tensor-parallel reduction can run beside, mean."""
    attention: float
    """Forward of one layer's attention."""
    passing: float
    """Of all three together, passes of activations over memory: the part of which the range is known."""
    blocks: int
    optimizer: float
    """Once a step."""

    @property
    def total(self) -> float:
        """Forward, backward and recompute."""
        return self.forward + self.backward + self.recompute


def work_of(model: Model, at: Layout, stage: Stage, rates: Rates) -> Work:
    """The work of a stage."""
    attention = rates.attention_s(attention_of(model, at))
    passing = rates.passes * rates.pass_s(activation_pass_nbytes(model, at))
    forward = backward = 0.0
    wgrads: list[float] = []
    kinds = {moe: [i for i in stage.layers if model.is_moe(i) == moe] for moe in (False, True)}
    for layers in kinds.values():
        if not layers:
            continue
        gemms = layer_gemms(model, at, layers[0])
        one = sum(rates.gemm_s(g) * g.count for g in gemms)
        back = [(rates.gemm_s(d) * d.count, rates.gemm_s(w) * w.count) for d, w in map(backward_gemms, gemms)]
        wgrads += [w for _d, w in back] * len(layers)
        forward += len(layers) * (one + attention + FORWARD_SHARE * passing)
        times = FLASH_BACKWARD if at.flash else 2.0
        backward += len(layers) * (sum(d + w for d, w in back) + times * attention + (1 - FORWARD_SHARE) * passing)
    recompute = forward if at.recompute == "full" else len(stage.layers) * attention if at.recompute == "selective" and not at.flash else 0.0
    crossed = len(stage.layers) * passing * (1 + (FORWARD_SHARE if at.recompute == "full" else 0.0))
    copied = [rates.pass_s(nbytes) for nbytes in copies_nbytes(model, at, stage)]
    ends = _ends(model, at, rates) if stage.last else (0.0, 0.0)
    return Work(
        forward=forward + copied[0] + ends[0],
        backward=backward + copied[1] + ends[1],
        recompute=recompute,
        wgrad=sum(wgrads) / len(wgrads) if wgrads else 0.0,
        attention=attention,
        passing=crossed,
        blocks=max(1, len(stage.layers)),
        optimizer=rates.pass_s(ADAM_BYTES * optimizer_params(model, at, stage)),
    )


def _ends(model: Model, at: Layout, rates: Rates) -> tuple[float, float]:
    """Seconds of the last stage's head and loss, forward and backward."""
    head, loss = head_gemm(model, at), loss_nbytes(model, at)
    return rates.gemm_s(head) + rates.pass_s(loss[0]), sum(map(rates.gemm_s, backward_gemms(head))) + rates.pass_s(loss[1])


def optimizer_params(model: Model, at: Layout, stage: Stage) -> float:
    """Parameters whose optimizer step a rank does itself."""
    weights = weights_of(model, at, stage)
    edp = at.world / (at.expert_tp * at.ep * at.pp)
    if at.framework == "fsdp2":
        dense, expert = at.fsdp_shard * at.cp, max(1.0, at.fsdp_shard * at.cp * at.tp / at.ep)
    elif (at.framework == "megatron" and at.dist_opt) or at.zero:
        dense, expert = at.dp * at.cp, max(1.0, edp)
    else:
        dense, expert = 1, 1.0
    return weights.dense / dense + weights.experts / expert


def all_gemms(model: Model, at: Layout, stages: Sequence[Stage]) -> Iterable[Gemm]:
    """Every product of a step, forward and backward, once each."""
    layers = sorted({layer for stage in stages for layer in stage.layers}, key=lambda i: (model.is_moe(i), i))
    kinds = {model.is_moe(layer): layer for layer in reversed(layers)}
    forward = [gemm for layer in kinds.values() for gemm in layer_gemms(model, at, layer)] + [head_gemm(model, at)]
    return dict.fromkeys(g for gemm in forward for g in (gemm, *backward_gemms(gemm)))
