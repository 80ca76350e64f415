"""One row of a training step's bill: which collective, how large, how often, over whom, and beside what it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Window = Literal["exposed", "gemm", "chunk", "block_forward", "block_backward", "last_backward", "first_forward", "pipeline", "moe"]
"""What hides a call:

exposed         nothing: a synchronous call
gemm            one backward GEMM of the layer (Megatron's asynchronous dgrad reduction, tp-comm-overlap)
chunk           the attention of one ring step (context parallelism)
block_forward   the forward of one block (FSDP's prefetch)
block_backward  the backward of one block
last_backward   the backward of the last micro-batch (gradient buckets)
first_forward   the next step's first forward (parameter gather)
pipeline        the steady state of the schedule: see price.py
moe             the other half of the batch in 1F1B (overlap_moe_expert_parallel_comm)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Calls of one kind of one rank in one step."""

    kind: str
    """In words: "TP forward"."""
    collective: str
    axis: str
    """Of the layout's mesh."""
    nbytes: int
    """nccl-tests' size of one call: the larger buffer of a rank."""
    count: int
    """Calls a step."""
    dtype: str
    window: Window
    why: str
    """Why it is exposed or hidden."""
    source: str
    per_microbatch: bool = True
    """Whether it comes in every micro-batch, and so in every slot of the pipeline."""


def merged(calls: list[Call]) -> tuple[Call, ...]:
    """The calls in order, those alike in everything but their number added up, and those that never happen or send nothing dropped."""
    found: dict[object, Call] = {}
    for call in calls:
        if call.count <= 0 or call.nbytes <= 0:
            continue
        key = (call.kind, call.collective, call.axis, call.nbytes, call.dtype, call.window, call.per_microbatch)
        old = found.get(key)
        if old is None:
            found[key] = call
        else:
            found[key] = Call(
                kind=call.kind, collective=call.collective, axis=call.axis, nbytes=call.nbytes, count=old.count + call.count, dtype=call.dtype,
                window=call.window, why=call.why, source=call.source, per_microbatch=call.per_microbatch,
            )  # fmt: skip
    return tuple(found.values())
