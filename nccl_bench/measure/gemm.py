"""Arithmetic as a case: a matrix product, an attention, a memory pass, prepared as collectives are, so that the same clocks time it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from nccl_bench.measure.cases import aligned, product_nbytes
from nccl_bench.measure.ops import Call, Op
from nccl_bench.records import Case, Json

if TYPE_CHECKING:
    from nccl_bench.measure.world import World

SPREAD = 0.02
"""Standard deviation of the values: as of a trained model's weights. Zeros or poison would draw less power, and run faster."""


def prepare_product(case: Case, world: World, n_slots: int) -> Op:
    """The arithmetic of a case of kind gemm in `n_slots` slots of the arena: every rank does it by itself, at the same time."""
    row = json.loads(case.work or "{}")
    return product_op(case, row, world, world.arena, n_slots)


def product_op(case: Case, row: Json, world: World, arena: torch.Tensor, n_slots: int) -> Op:
    """The product, attention or pass that `row` describes, in `arena`."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    sizes = product_nbytes(row, dtype.itemsize)
    stride = sum(map(aligned, sizes))
    slots = []
    for slot in range(n_slots):
        tensors, start = [], slot * stride
        for nbytes in sizes:
            tensors.append(arena[start : start + nbytes].view(dtype))
            start += aligned(nbytes)
        slots.append(tensors)

    def lay() -> None:
        for tensors in slots:
            for tensor in tensors:
                tensor.normal_(0.0, SPREAD) if tensor.is_floating_point() else tensor.fill_(1)

    return Op(
        case=case,
        calls=tuple(_call(row, tensors) for tensors in slots),
        arena=arena[: stride * n_slots],
        inputs=(),
        outputs=(),
        values=(),
        expected=(),
        tolerance=0.0,
        tiles=world.tiles,
        lay=lay,
    )


def _call(row: Json, tensors: list[torch.Tensor]) -> Call:
    if "attention" in row:
        return _attention(row["attention"], tensors)
    if "pass_nbytes" in row:
        source, target = tensors
        return lambda: target.copy_(source)
    a, b, c = tensors
    m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
    left, right, out = a.view(m, k), b.view(k, n), c.view(m, n)
    return lambda: torch.mm(left, right, out=out)


def _attention(a: Json, tensors: list[torch.Tensor]) -> Call:
    shape = (int(a["batch"]), int(a["heads"]))
    query, key, value, _out = tensors
    q = query.view(*shape, int(a["seq"]), int(a["dim"]))
    k, v = (t.view(*shape, int(a["full_seq"]), int(a["dim"])) for t in (key, value))
    attend: Any = torch.nn.functional.scaled_dot_product_attention
    causal = a["seq"] == a["full_seq"]

    def call() -> None:
        with torch.no_grad():
            attend(q, k, v, is_causal=causal)

    return call
