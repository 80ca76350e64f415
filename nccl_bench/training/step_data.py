"""Megatron's data parallelism: gradient buckets, the distributed optimizer."""

from __future__ import annotations

import math

from nccl_bench.training.call import Call, Window
from nccl_bench.training.layout import Layout, Stage
from nccl_bench.training.model import Model
from nccl_bench.training.weights import weights_of

BUCKET_ELEMENTS, BUCKET_ELEMENTS_A_RANK = 40_000_000, 1_000_000
"""Megatron's bucket: max(40 M, 1 M x DP) elements (distributed_data_parallel.py:131-137)."""


def data_calls(model: Model, layout: Layout, stage: Stage) -> list[Call]:
    """What gradients and parameters cost once a step, dense and of experts."""
    weights = weights_of(model, layout, stage)
    edp = layout.world // (layout.expert_tp * layout.ep * layout.pp)
    own_grid = layout.ep > 1 or layout.etp is not None
    axis = "dp_cp" if layout.cp > 1 else "dp"
    if not own_grid:
        return _reduce(layout, stage, "DP", axis, weights.total, layout.dp * layout.cp)
    return [
        *_reduce(layout, stage, "DP", axis, weights.dense, layout.dp * layout.cp),
        *_reduce(layout, stage, "expert DP", "edp", weights.experts, edp),
    ]


def _reduce(at: Layout, stage: Stage, kind: str, axis: str, params: int, size: int) -> list[Call]:
    if size == 1 or not params:
        return []
    n = buckets(params, size, split="grad" in at.overlap and stage.first)
    window: Window = "last_backward" if "grad" in at.overlap else "exposed"
    why = "asynchronous (overlap-grad-reduce)" if window == "last_backward" else "after the backward: no overlap-grad-reduce"
    reduced = math.ceil(params / n) * at.grad_nbytes
    if not at.dist_opt:
        where = "megatron param_and_grad_buffer.py:730"
        return [_once(f"{kind} gradients", "all_reduce", axis, reduced, n, at.grad_type, window, why, where)]
    gather: Window = "first_forward" if "param" in at.overlap else "exposed"
    how = "asynchronous (overlap-param-gather)" if gather == "first_forward" else "after the optimizer: no overlap-param-gather"
    gathered = math.ceil(params / n) * (1 if at.fp8 else at.param_nbytes)
    dtype = "float8_e4m3fn" if at.fp8 else at.param_dtype
    return [
        _once(f"{kind} gradients", "reduce_scatter", axis, reduced, n, at.grad_type, window, why, "megatron param_and_grad_buffer.py:718-724"),
        _once(f"{kind} parameters", "all_gather", axis, gathered, n, dtype, gather, how, "megatron param_and_grad_buffer.py:507-530"),
    ]


def buckets(params: int, size: int, *, split: bool) -> int:
    """Number of buckets: one unless gradients overlap, and then on the first stage only (distributed_data_parallel.py:160-171)."""
    return math.ceil(params / max(BUCKET_ELEMENTS, BUCKET_ELEMENTS_A_RANK * size)) if split else 1


def _once(kind: str, collective: str, axis: str, nbytes: int, count: int, dtype: str, window: Window, why: str, source: str) -> Call:
    return Call(kind=kind, collective=collective, axis=axis, nbytes=nbytes, count=count, dtype=dtype, window=window, why=why, source=source,
                per_microbatch=False)  # fmt: skip
