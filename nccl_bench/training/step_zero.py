"""DeepSpeed's data parallelism: ZeRO-0 to 3 and ZeRO++."""

from __future__ import annotations

import math

from nccl_bench.training.call import Call, Window
from nccl_bench.training.layout import Layout, Stage
from nccl_bench.training.model import Model
from nccl_bench.training.weights import block_params, root_params, root_parts, weights_of

QUANTISED_TOGETHER = 8000
"""Most weights that share an fp32 scale in qwZ (partition_parameters.py:846-881, CUDAQuantizer.target_group_size)."""


def data_calls(model: Model, layout: Layout, stage: Stage) -> list[Call]:
    """What gradients and parameters cost, dense and of experts."""
    if layout.dp == 1:
        return []
    if layout.zero == 3:
        return _zero3(model, layout, stage)
    weights = weights_of(model, layout, stage)
    if layout.ep == 1:
        return _reduced(layout, "DP", "dp", weights.total)
    expert = _reduced(layout, "expert DP", "edp", weights.experts) if layout.dp > layout.ep else []
    return [*_reduced(layout, "DP", "dp", weights.dense), *expert]


def _reduced(at: Layout, kind: str, axis: str, params: int) -> list[Call]:
    if not params:
        return []
    n = math.ceil(params / at.reduce_bucket)
    times = at.microbatches if at.zero == 2 else 1
    window: Window = "last_backward" if at.overlap_grad else "exposed"
    how = "beside the backward (overlap_comm)" if at.overlap_grad else "after the backward: overlap_comm is off by default below stage 3"
    where = "deepspeed stage_1_and_2.py:1443-1468" if at.zero else "deepspeed runtime/engine.py allreduce_gradients"
    calls = [
        # "reduce_scatter: true" of stage 1 and 2 is an all-reduce since buckets span ranks (zero/config.py:119-124, issues 5758, 7059, 6463).
        Call(kind=f"{kind} gradients", collective="all_reduce", axis=axis, nbytes=math.ceil(params / n) * at.grad_nbytes, count=n * times,
             dtype=at.grad_type, window=window, why=how, source=where, per_microbatch=at.zero == 2)
    ]  # fmt: skip
    if at.zero:
        calls += [
            Call(kind=f"{kind} parameters", collective="all_gather", axis=axis, nbytes=params * at.param_nbytes, count=1, dtype=at.param_dtype,
                 window="exposed", why="after the optimizer, one call for the whole flat group", source="deepspeed runtime/utils.py:1005-1019",
                 per_microbatch=False)
        ]  # fmt: skip
    return calls


def submodules(model: Model, layout: Layout, layer: int) -> list[int]:
    """Parameters of each submodule that ZeRO-3 fetches by itself: every Linear of a block above the persistence threshold."""
    t, h = layout.tp, model.hidden
    if model.mla is None:
        shapes = [h * model.heads * model.head_dim, h * model.kv_heads * model.head_dim, h * model.kv_heads * model.head_dim]
        shapes.append(model.heads * model.head_dim * h)
    else:
        a, n = model.mla, model.heads
        qk = a.qk_nope + a.qk_rope
        shapes = [h * a.q_lora, a.q_lora * n * qk] if a.q_lora else [h * n * qk]
        shapes += [h * (a.kv_lora + a.qk_rope), a.kv_lora * n * (a.qk_nope + a.v_dim), n * a.v_dim * h]
    if model.is_moe(layer):
        experts = model.experts // layout.ep
        shapes += [h * model.experts, *([h * model.moe_ffn] * (model.mlp_matrices * experts))]
        shapes += [h * model.shared_ffn] * model.mlp_matrices if model.shared_ffn else []
    else:
        shapes += [h * model.ffn] * model.mlp_matrices
    return [shape // t for shape in shapes if shape // t >= layout.persistent]


def _windows(at: Layout, why: str) -> tuple[Window, Window, str]:
    """What hides stage 3's calls in forward and backward: nothing without overlap_comm, which puts them on streams of their own."""
    if not at.overlap_grad:
        return "exposed", "exposed", "overlap_comm is off: on the stream of the arithmetic (stage3.py)"
    return "block_forward", "block_backward", why


def _zero3(model: Model, at: Layout, stage: Stage) -> list[Call]:
    """Two gathers of every parameter and a reduce-scatter of every gradient in each micro-batch (ZeRO-3 sends m x what Megatron sends once)."""
    m = at.microbatches
    wide = 1 if at.qwz else at.param_nbytes
    dtype = "int8" if at.qwz else at.param_dtype
    sizes: dict[int, int] = {}
    for layer in stage.layers:
        for size in submodules(model, at, layer):
            sizes[size] = sizes.get(size, 0) + 1
    for size in root_parts(model, at, stage):
        if size >= at.persistent:
            sizes[size] = sizes.get(size, 0) + 1
    back_axis = f"neighbours={at.hpz}" if at.hpz else "dp"
    forward, backward, why = _windows(at, "prefetched on a stream of its own")
    where = "deepspeed partitioned_param_coordinator.py:353-490"
    calls = []
    for size, n in sizes.items():
        calls += [_each("ZeRO-3 forward", "all_gather", "dp", size * wide, n * m, dtype, forward, why, where)]
        calls += [_each("ZeRO-3 backward", "all_gather", back_axis, size * wide, n * m, dtype, backward, why, where)]
        if at.qwz:
            scales = 4 * at.dp * math.ceil(math.ceil(size / at.dp) / QUANTISED_TOGETHER)
            calls += [_each("qwZ scales", "all_gather", "dp", scales, n * m, "float32", forward, why, where)]
            calls += [_each("qwZ scales", "all_gather", back_axis, scales, n * m, "float32", backward, why, where)]
    gradients = sum(sum(block_params(model, at, layer)) for layer in stage.layers) + root_params(model, at, stage)
    return [*calls, *_zero3_gradients(at, sizes, gradients)]


def _zero3_gradients(at: Layout, sizes: dict[int, int], gradients: int) -> list[Call]:
    m, (_forward, backward, why) = at.microbatches, _windows(at, "on the reduce stream")
    if not at.qgz:
        n = math.ceil(gradients / at.reduce_bucket)
        where = "deepspeed stage3.py:1791-1813, coalesced_collectives.py:158-218"
        nbytes = math.ceil(gradients / n) * at.grad_nbytes
        return [_each("ZeRO-3 gradients", "reduce_scatter", "dp", nbytes, n * m, at.grad_type, backward, why, where)]
    where, g = "deepspeed coalesced_collectives.py:31-76", at.node_ranks
    calls = []
    for size, n in sizes.items():
        # Four-bit gradients: inside the node, then the same local ranks across nodes.
        calls += [_each("qgZ in node", "all_to_all", f"neighbours={g}", size // 2, n * m, "int8", backward, why, where)]
        calls += [_each("qgZ across", "all_to_all", f"strided={g}", size // (2 * g), n * m, "int8", backward, why, where)]
    return calls


def _each(kind: str, collective: str, axis: str, nbytes: int, count: int, dtype: str, window: Window, why: str, source: str) -> Call:
    return Call(kind=kind, collective=collective, axis=axis, nbytes=nbytes, count=count, dtype=dtype, window=window, why=why, source=source)
