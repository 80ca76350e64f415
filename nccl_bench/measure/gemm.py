"""Arithmetic as a case: a matrix product, an attention, a memory pass, prepared as collectives are, so that the same clocks time it."""

from __future__ import annotations

import json
import math
import statistics
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from nccl_bench.measure.cases import aligned, product_nbytes
from nccl_bench.measure.ops import Call, Op
from nccl_bench.measure.world import cuda
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


HEAT_SIDE = 8192
"""Side of the square product that heats a GPU: 1.1 TFLOP in bfloat16, a millisecond or two on what it is for; DCGM's stress test takes
matrices of the same order."""
HEAT_AT_ONCE = 8
"""Products between two looks at the clock."""
MOST_RATES = 100_000
"""The last ones, about a quarter of an hour: a GPU that heats up shows at the end."""


class Heater:
    """Matrix products on this rank's GPU, on a stream and from a thread of their own, until it is stopped."""

    def __init__(self) -> None:
        shape = (HEAT_SIDE, HEAT_SIDE)
        self._a, self._b = (torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0.0, SPREAD) for _ in range(2))
        self._c = torch.empty_like(self._a)
        self._device = torch.cuda.current_device()
        self._stop = threading.Event()
        self._rates: deque[float] = deque(maxlen=MOST_RATES)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="gemm load", daemon=True)
        torch.cuda.synchronize()
        self._thread.start()

    def _run(self) -> None:
        try:
            torch.cuda.set_device(self._device)
            stream: Any = cuda.Stream()
            with torch.no_grad(), cuda.stream(stream):
                while not self._stop.is_set():
                    self._some(stream)
        except Exception as err:  # a thread's traceback would be lost; `stop` raises it
            self._error = err

    def _some(self, stream: Any) -> None:
        began, ended = (cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        began.record(stream)
        for _ in range(HEAT_AT_ONCE):
            torch.mm(self._a, self._b, out=self._c)
        ended.record(stream)
        ended.synchronize()
        self._rates.append(2.0 * HEAT_SIDE**3 * HEAT_AT_ONCE / (began.elapsed_time(ended) * 1e-3) * 1e-12)

    def stop(self) -> float:
        """Stop; the median rate in TFLOP/s, NaN where there was none. Raises what went wrong."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return statistics.median(self._rates) if self._rates else math.nan
