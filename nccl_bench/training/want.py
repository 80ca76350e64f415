"""What must be measured to price a layout: exactly its groups, sizes and dtypes, its products, and what overlaps."""

from __future__ import annotations

from typing import Any

from nccl_bench.dtypes import DTYPES
from nccl_bench.groups import axis_groups
from nccl_bench.records import Json, Want
from nccl_bench.training.call import Call
from nccl_bench.training.compute import activation_pass_nbytes, all_gemms, attention_of
from nccl_bench.training.layout import Layout, mesh_of, stages_of
from nccl_bench.training.model import Model
from nccl_bench.training.step import step_calls

REDUCED = ("all_reduce", "reduce_scatter")
SMALL_NBYTES = 4096
"""One small size beside each large one, so that a price between them has a latency."""


def want_of(model: Model, layout: Layout) -> Want:
    """The list for `sweep --want`."""
    stages, mesh = stages_of(layout, model), mesh_of(layout)
    calls = [call for stage in stages for call in step_calls(model, layout, stage)]
    calls = [call for call in dict.fromkeys(calls) if len(axis_groups(mesh, call.axis)[0]) > 1]
    return Want(
        layout=f"{model.name} {layout.text()}",
        mesh=mesh.text,
        collectives=_collectives(calls),
        gemms=_work(model, layout),
        overlaps=_overlaps(model, layout, calls),
    )


def _collectives(calls: list[Call]) -> tuple[Json, ...]:
    found: dict[tuple[str, str, str], set[int]] = {}
    for call in calls:
        dtype = call.dtype if call.dtype in DTYPES else "bfloat16"
        found.setdefault((call.axis, call.collective, dtype), set()).add(call.nbytes)
    rows = []
    for (axis, collective, dtype), sizes in found.items():
        wanted = sizes | ({SMALL_NBYTES} if max(sizes) > SMALL_NBYTES else set())
        op = "sum" if collective in REDUCED else None
        rows.append({"axis": axis, "collective": collective, "dtype": dtype, "op": op, "nbytes": sorted(wanted)})
    return tuple(rows)


def _work(model: Model, layout: Layout) -> tuple[Json, ...]:
    rows: list[Json] = [
        {"name": g.name, "m": g.m, "n": g.n, "k": g.k, "dtype": layout.param_dtype} for g in all_gemms(model, layout, stages_of(layout, model))
    ]
    a = attention_of(model, layout)
    attention: dict[str, Any] = {"batch": a.batch, "heads": a.heads, "seq": a.seq, "full_seq": a.full_seq, "dim": a.dim, "flash": a.flash}
    rows.append({"name": "attention", "attention": attention, "dtype": layout.param_dtype})
    rows.append({"name": "memory pass", "pass_nbytes": int(activation_pass_nbytes(model, layout)) // 2 * 2, "dtype": layout.param_dtype})
    return tuple(rows)


def _overlaps(model: Model, layout: Layout, calls: list[Call]) -> tuple[Json, ...]:
    """The largest hidden call of each axis beside the largest product of a layer."""
    hidden: dict[str, Call] = {}
    for call in calls:
        if call.window not in ("exposed", "pipeline") and (call.axis not in hidden or call.nbytes > hidden[call.axis].nbytes):
            hidden[call.axis] = call
    gemms = [g for g in all_gemms(model, layout, stages_of(layout, model)) if not g.name.startswith("head")]
    largest = max(gemms, key=lambda g: g.m * g.n * g.k)
    product = {"name": largest.name, "m": largest.m, "n": largest.n, "k": largest.k}
    return tuple(
        {"axis": axis, "collective": call.collective, "dtype": call.dtype if call.dtype in DTYPES else "bfloat16",
         "op": "sum" if call.collective in REDUCED else None, "nbytes": call.nbytes, "gemm": product}
        for axis, call in hidden.items()
    )  # fmt: skip
