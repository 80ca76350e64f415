"""The collectives of one training step, as data: one function a framework, what they share here. Nothing is priced here.

Line numbers are those of Megatron-LM d98e8a64, DeepSpeed edaa7221, torch 2.14.1, torchtitan b5bcd76c, TransformerEngine d0067d0d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nccl_bench.training import step_data, step_fsdp, step_zero
from nccl_bench.training.call import Call, Window, merged
from nccl_bench.training.layout import Layout, Stage
from nccl_bench.training.model import Model

BESIDE = "asynchronous beside a GEMM of the backward"
TITAN = "torchtitan models/common/decoder_sharding.py:200-260,305-338"
TITAN_EMBEDDING, TITAN_HEAD = (f"torchtitan models/common/decoder_sharding.py:{lines}" for lines in ("358-367", "159-179,370-376"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What messages are made of, for one stage."""

    tokens: int
    """Tokens of a micro-batch on a rank before sequence parallelism: s/c b."""
    hidden_nbytes: int
    """S = s/c b h 2 B: a layer's activations."""
    layers: int
    moe_layers: int
    times: int
    """Runs of the forward in one step and micro-batch: 2 with full recompute."""


def sizes_of(model: Model, layout: Layout, stage: Stage) -> Sizes:
    """The sizes of a stage; activations are two bytes wide."""
    tokens = layout.seq // layout.cp * layout.mbs
    moe = model.n_moe(stage.layers)
    return Sizes(tokens=tokens, hidden_nbytes=tokens * model.hidden * 2, layers=len(stage.layers), moe_layers=moe,
                 times=2 if layout.recompute == "full" else 1)  # fmt: skip


def step_calls(model: Model, layout: Layout, stage: Stage) -> tuple[Call, ...]:
    """Every collective that a rank of this stage takes part in during one step."""
    sizes = sizes_of(model, layout, stage)
    calls = [*_tensor(model, layout, stage, sizes), *_context(model, layout, sizes), *_experts(model, layout, sizes), *_pipeline(layout, sizes)]
    if layout.framework == "fsdp2":
        calls += step_fsdp.data_calls(model, layout, stage)
    elif layout.framework == "deepspeed":
        calls += step_zero.data_calls(model, layout, stage)
    else:
        calls += step_data.data_calls(model, layout, stage)
    calls += _tied(model, layout, stage)
    calls += _norms(layout)
    return merged(calls)


def _tensor(model: Model, at: Layout, stage: Stage, sizes: Sizes) -> list[Call]:
    if at.tp == 1:
        return []
    # A layer has two halves, attention and MLP; where the MLP is experts its own dispatcher talks.
    halves = at.microbatches * (2 * sizes.layers - sizes.moe_layers)
    kind, nbytes, m = ("TP", sizes.hidden_nbytes, at.microbatches)
    if at.sequence_parallel:
        calls = _sequence_parallel(at, nbytes, halves)
    else:
        forward = "synchronous in Megatron"
        calls = [_call(f"{kind} forward", "all_reduce", "tp", nbytes, halves, "exposed", forward, "megatron layers.py:1566")]
        if at.recompute == "full":
            calls.append(_call(f"{kind} recompute", "all_reduce", "tp", nbytes, halves, "exposed", forward, "megatron layers.py:1566"))
        beside = "asynchronous beside the weight-gradient GEMM"
        calls.append(_call(f"{kind} backward", "all_reduce", "tp", nbytes, halves, "gemm", beside, "megatron layers.py:694"))
    return calls + _ends(model, at, stage, sizes, m)


def _sequence_parallel(at: Layout, nbytes: int, halves: int) -> list[Call]:
    titan = at.framework == "fsdp2"
    pipelined: Window = "gemm" if "tp" in at.overlap else "exposed"
    how = "pipelined with its GEMM (userbuffers or async TP)" if "tp" in at.overlap else "synchronous"
    rows = [("TP forward", "all_gather", 1, pipelined, "layers.py:623-629"), ("TP forward", "reduce_scatter", 1, pipelined, "layers.py:1562")]
    if at.recompute == "full":
        rows += [
            ("TP recompute", "all_gather", 1, pipelined, "layers.py:623-629"),
            ("TP recompute", "reduce_scatter", 1, pipelined, "layers.py:1562"),
        ]
    rows += [("TP backward", "all_gather", 1, pipelined, "mappings.py (backward of the reduce-scatter)")]
    if titan:
        rows += [("TP backward", "reduce_scatter", 1, pipelined, TITAN)]
    else:
        rows += [
            ("TP backward, gathered again", "all_gather", 1, "gemm", "layers.py:667-676"),
            ("TP backward", "reduce_scatter", 1, "gemm", "layers.py:700-709"),
        ]
    return [
        _call(
            kind,
            name,
            "tp",
            nbytes,
            halves * n,
            window,
            BESIDE if window == "gemm" and window != pipelined else how,
            TITAN if titan else f"megatron {where}",
        )
        for kind, name, n, window, where in rows
    ]


def _ends(model: Model, at: Layout, stage: Stage, sizes: Sizes, m: int) -> list[Call]:
    """What embedding, head and loss add, once a micro-batch, and the norms' gradients, once a step."""
    s, calls, sync = sizes.hidden_nbytes, [], "synchronous, once a micro-batch"
    loss, titan = 4 * sizes.tokens, at.framework == "fsdp2"
    embedding = TITAN_EMBEDDING if titan else "megatron layers.py:367-383"
    if at.sequence_parallel:
        if stage.first:
            calls += [_call("embedding", "reduce_scatter", "tp", s, m, "exposed", sync, embedding)]
            calls += [_call("embedding backward", "all_gather", "tp", s, m, "exposed", sync, embedding)]
        if stage.last:
            calls += [_call("head", "all_gather", "tp", s, m, "exposed", sync, TITAN_HEAD if titan else "megatron layers.py:623-709")]
            if titan:  # autograd keeps the gathered input, and nothing runs beside
                calls += [_call("head backward", "reduce_scatter", "tp", s, m, "exposed", sync, TITAN_HEAD)]
            else:
                calls += [_call("head backward", "all_gather", "tp", s, m, "gemm", BESIDE, "megatron layers.py:623-709")]
                calls += [_call("head backward", "reduce_scatter", "tp", s, m, "gemm", BESIDE, "megatron layers.py:623-709")]
        if at.framework == "megatron":
            norms = (2 * len(stage.layers) + (1 if stage.last else 0)) * model.norm_params * at.grad_nbytes
            why = "synchronous, once a step"
            calls += [_call("norm gradients", "all_reduce", "tp", norms, 1, "exposed", why, "megatron finalize_model_grads.py:415-474", False,
                            at.grad_type)]  # fmt: skip
    else:
        if stage.first:
            calls += [_call("embedding", "all_reduce", "tp", s, m, "exposed", sync, embedding)]
        if stage.last:
            calls += [_call("head backward", "all_reduce", "tp", s, m, "gemm", BESIDE, "megatron layers.py:623-709")]
    if stage.last:
        where = "torchtitan components/loss.py:147-170" if titan else "megatron cross_entropy.py:130,146,150"
        calls += [_call("loss", "all_reduce", "tp", loss, 3 * m, "exposed", sync, where, dtype="float32")]
    return calls


def _context(model: Model, at: Layout, sizes: Sizes) -> list[Call]:
    if at.cp == 1:
        return []
    c, layers = at.cp, sizes.layers * at.microbatches
    heads, kv_heads, (k_dim, v_dim) = model.heads / at.tp, _kv_heads(model, at), model.head_dims()
    key, value = (int(sizes.tokens * kv_heads * dim * 2) for dim in (k_dim, v_dim))
    both = key + value
    again = sizes.times + (1 if at.recompute == "selective" else 0)
    if at.framework == "fsdp2":
        why, where = "before attention; their gradients after it", "torchtitan models/common/decoder_sharding.py:275-302"
        rows = (("CP forward", "all_gather", again), ("CP backward", "reduce_scatter", 1))
        return [_call(kind, name, "cp", c * nbytes, layers * n, "exposed", why, where) for kind, name, n in rows for nbytes in (key, value)]
    if at.context_comm == "all_gather":
        why = "cannot be overlapped (transformer_config.py:1034-1038)"
        where = "TE context_parallel.py:2455-2496"
        return [
            _call(kind, name, "cp", c * nbytes, layers * n, "exposed", why, where)
            for kind, name, n in (("CP forward", "all_gather", again), ("CP backward", "all_gather", 1), ("CP backward", "reduce_scatter", 1))
            for nbytes in (key, value)
        ]
    if at.context_comm == "a2a":
        # q, k and v go out and the output comes back; the backward mirrors it (one and three).
        sent = (int(sizes.tokens * heads * k_dim * 2), key, value, int(sizes.tokens * heads * v_dim * 2))
        why, where = "before and after attention", "TE context_parallel.py:3215,3788"
        return [
            _call(kind, "all_to_all", "cp", nbytes, layers * n, "exposed", why, where)
            for kind, n in (("CP forward", again), ("CP backward", 1))
            for nbytes in sent
        ]
    why, where = "beside the attention of the chunk before", "TE context_parallel.py:96-133,1690-1715"
    return [
        _call("CP ring forward", "sendrecv", "cp", both, (c - 1) * layers * again, "chunk", why, where),
        _call("CP ring backward", "sendrecv", "cp", both, 2 * layers, "chunk", why, where),
        _call("CP ring backward", "sendrecv", "cp", 2 * both, (c - 2) * layers, "chunk", why, where),
    ]


def _kv_heads(model: Model, at: Layout) -> float:
    """Key-value heads on a rank, at least one; MLA expands them to all heads."""
    return max(1.0, (model.kv_heads if model.mla is None else model.heads) / at.tp)


def _experts(model: Model, at: Layout, sizes: Sizes) -> list[Call]:
    if not sizes.moe_layers or at.ep * at.expert_tp == 1:
        return []
    tokens = sizes.tokens // at.tp if at.tp > 1 else sizes.tokens
    layers = sizes.moe_layers * at.microbatches
    window: Window = "moe" if "moe" in at.overlap else "exposed"
    why = "beside another micro-batch (overlap_moe_expert_parallel_comm)" if window == "moe" else "synchronous"
    where = {"megatron": "megatron token_dispatcher.py:557-596,705-724", "deepspeed": "deepspeed moe/sharded_moe.py:104 (capacity factor 1)",
             "fsdp2": "torchtitan models/common/token_dispatcher.py:313-371"}[at.framework]  # fmt: skip
    sent, probs = tokens * model.top_k * model.hidden * 2, tokens * model.top_k * 4
    calls = []
    if at.ep > 1:
        calls += _counts(model, at, layers * sizes.times)
        for kind, n in (("EP dispatch", sizes.times), ("EP combine", sizes.times), ("EP dispatch backward", 1), ("EP combine backward", 1)):
            calls += [_call(kind, "all_to_all", "ep", sent, layers * n, window, why, where)]
        if at.framework == "megatron":  # elsewhere a token's weights stay where it came from
            calls += [_call("EP probabilities", "all_to_all", "ep", probs, layers * (sizes.times + 1), window, why, where, dtype="float32")]
    if at.expert_tp > 1 and at.framework == "megatron":
        gathered, where = sent * at.expert_tp, "megatron token_dispatcher.py:746-751,829,864"
        for name in ("all_gather", "reduce_scatter"):
            calls += [_call("ETP", name, "etp", gathered, layers * (sizes.times + 1), "exposed", "synchronous", where)]
    return calls


def _counts(model: Model, at: Layout, n: int) -> list[Call]:
    """How many tokens go to each expert; DeepSpeed's capacity is fixed, and nothing is counted."""
    why = "synchronous, and the host waits for it"
    if at.framework == "deepspeed":
        return []
    if at.framework == "fsdp2":
        where = "torchtitan models/common/token_dispatcher.py:245-272"
        return [_call("EP counts", "all_to_all", "ep", 8 * model.experts, n, "exposed", why, where, dtype="int64")]
    nbytes = 8 * model.experts * at.ep * at.expert_tp
    return [_call("EP counts", "all_gather", "etp_ep", nbytes, n, "exposed", why, "megatron token_dispatcher.py:284-301", dtype="int64")]


def _pipeline(at: Layout, sizes: Sizes) -> list[Call]:
    """Activations forward and gradients backward; edge ranks send half of it, and are priced as the others since they wait for them."""
    if at.pp == 1:
        return []
    shared = at.tp if at.sequence_parallel or at.framework == "deepspeed" else 1
    nbytes = sizes.hidden_nbytes // shared
    where = {"megatron": "megatron schedules.py:957-965,2115-2144", "deepspeed": "deepspeed runtime/pipe/engine.py:1047-1131",
             "fsdp2": "torchtitan distributed/pipeline_parallel.py:205,300 (torch distributed/pipelining)"}[at.framework]  # fmt: skip
    calls = [_call("PP", "sendrecv", "pp", nbytes, 2 * at.microbatches * at.vpp, "pipeline", "warm-up and drain exposed", where)]
    if at.framework == "deepspeed" and at.tp > 1:
        why = "synchronous: sliced by TP and gathered again (pipe_partitioned, runtime/config.py:435)"
        where = "deepspeed runtime/pipe/engine.py:734,839"
        calls += [_call("PP gather", "all_gather", "tp", sizes.hidden_nbytes, 2 * at.microbatches, "exposed", why, where)]
    return calls


def _tied(model: Model, at: Layout, stage: Stage) -> list[Call]:
    if not model.tied or at.pp == 1 or not (stage.first or stage.last):
        return []
    nbytes = math.ceil(model.vocab / at.tp) * model.hidden * at.grad_nbytes
    why = "at the end of the step"
    where = "deepspeed runtime/pipe/module.py:457" if at.framework == "deepspeed" else "megatron finalize_model_grads.py:258"
    return [_call("tied embedding", "all_reduce", "ends=pp", nbytes, 1, "exposed", why, where, False, at.grad_type)]


def _norms(at: Layout) -> list[Call]:
    if at.world == 1:
        return []
    where = {"megatron": "megatron clip_grads.py:99-132,267-271", "fsdp2": "torchtitan distributed/utils.py:655-668",
             "deepspeed": "deepspeed runtime/utils.py:219-309,410"}[at.framework]  # fmt: skip
    why = "latency: gradient norm, once a step" if at.framework == "fsdp2" else "latency: gradient norm and overflow, once a step"
    return [_call("gradient norm", "all_reduce", "world", 8, 1 if at.framework == "fsdp2" else 2, "exposed", why, where, False, "float32")]


def _call(
    kind: str, collective: str, axis: str, nbytes: int, count: int, window: Window, why: str, source: str, per_microbatch: bool = True,
    dtype: str = "bfloat16",
) -> Call:  # fmt: skip
    return Call(kind=kind, collective=collective, axis=axis, nbytes=nbytes, count=count, dtype=dtype, window=window, why=why, source=source,
                per_microbatch=per_microbatch)  # fmt: skip
