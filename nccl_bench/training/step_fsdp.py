"""FSDP2 and HSDP as torchtitan uses them, and plain DDP where a copy is not sharded."""

from __future__ import annotations

import math

from nccl_bench.training.call import Call, Window
from nccl_bench.training.layout import Layout, Stage
from nccl_bench.training.model import Model
from nccl_bench.training.weights import block_params, root_params, weights_of

DDP_BUCKET_NBYTES = 25 << 20
"""bucket_cap_mb of torch's DistributedDataParallel (nn/parallel/distributed.py)."""
SOURCE = "torch _fsdp_collectives.py:325,522,619,658, _fsdp_param_group.py:382,592,607,821"


def data_calls(model: Model, layout: Layout, stage: Stage) -> list[Call]:
    """The calls of every block and of the root: what FSDP2 gathers, reduces and, replicated, adds up."""
    if layout.fsdp_shard * layout.cp == 1:
        return _ddp(model, layout, stage)
    own_grid = layout.ep > 1
    sizes: dict[tuple[str, int], int] = {}
    for layer in stage.layers:
        dense, experts = block_params(model, layout, layer)
        for axis, params in (("fsdp", dense if own_grid else dense + experts), ("efsdp", experts if own_grid else 0)):
            if params:
                sizes[axis, params] = sizes.get((axis, params), 0) + 1
    calls = []
    for (axis, params), n in sizes.items():
        calls += _block(layout, "FSDP", axis, params, n)
    root = root_params(model, layout, stage)
    return [*calls, *(_block(layout, "FSDP root", "fsdp", root, 1) if root else [])]


def reshards(layout: Layout) -> bool:
    """Whether blocks are freed after the forward and gathered again: torchtitan's default unless there is a pipeline (distributed/fsdp.py:112)."""
    return layout.pp == 1


def _block(at: Layout, kind: str, axis: str, params: int, n: int) -> list[Call]:
    m = at.microbatches
    shard = at.fsdp_shard * at.cp if axis == "fsdp" else at.fsdp_shard * at.cp * at.tp // at.ep
    copies = at.dp // at.fsdp_shard
    # torchtitan's float8 gathers the blocks' weights in 8 bits (enable_fsdp_float8_all_gather), never embedding and head.
    narrow = at.fp8 and not kind.endswith("root")
    gathered, reduced = params * (1 if narrow else at.param_nbytes), params * at.grad_nbytes
    dtype = "float8_e4m3fn" if narrow else at.param_dtype
    ahead, behind = "gathered one block ahead", "reduced while the block before runs backward"
    if kind.endswith("root"):
        ahead = behind = "first and last: nothing runs beside it"
    forward: Window = "exposed" if kind.endswith("root") else "block_forward"
    backward: Window = "exposed" if kind.endswith("root") else "block_backward"
    calls = []
    if shard > 1:
        calls += [_call(f"{kind} forward", "all_gather", axis, gathered, n * m, dtype, forward, ahead)]
        # The root is not freed after the forward: it is what the backward starts with.
        if reshards(at) and not kind.endswith("root"):
            calls += [_call(f"{kind} backward", "all_gather", axis, gathered, n * m, dtype, backward, ahead)]
        times = 1 if at.no_sync or at.pp > 1 else m
        calls += [_call(f"{kind} gradients", "reduce_scatter", axis, reduced, n * times, at.grad_type, backward, behind, times == m)]
        if copies > 1:
            across = "dp_replicate" if axis == "fsdp" else "ereplicate"
            calls += [
                _call(f"{kind} copies", "all_reduce", across, math.ceil(reduced / shard), n * times, at.grad_type, backward, behind, times == m)
            ]
    elif copies > 1:
        calls += [
            _call(f"{kind} copies", "all_reduce", "dp_replicate" if axis == "fsdp" else "ereplicate", reduced, n * m, at.grad_type, backward, behind)
        ]
    return calls


def _ddp(model: Model, at: Layout, stage: Stage) -> list[Call]:
    if at.dp == 1:
        return []
    nbytes = weights_of(model, at, stage).total * at.grad_nbytes
    n = math.ceil(nbytes / DDP_BUCKET_NBYTES)
    times = 1 if at.no_sync else at.microbatches
    window: Window = "last_backward" if times == 1 else "block_backward"
    each, where, how = math.ceil(nbytes / n), "torch nn/parallel/distributed.py", "bucket by bucket beside the backward"
    return [
        Call(kind="DDP gradients", collective="all_reduce", axis="dp_replicate", nbytes=each, count=n * times, dtype=at.grad_type, window=window,
             why=how, source=where, per_microbatch=times > 1)
    ]  # fmt: skip


def _call(kind: str, collective: str, axis: str, nbytes: int, count: int, dtype: str, window: Window, why: str, per_microbatch: bool = True) -> Call:
    return Call(kind=kind, collective=collective, axis=axis, nbytes=nbytes, count=count, dtype=dtype, window=window, why=why, source=SOURCE,
                per_microbatch=per_microbatch)  # fmt: skip
