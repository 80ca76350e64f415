"""How a training job is laid out over its ranks: sizes, framework, schedule, dtypes; what frameworks refuse; stages and groups.

Defaults are each framework's own; every one that matters for the price is told as an assumption (assumptions.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from nccl_bench import groups
from nccl_bench.errors import UsageError
from nccl_bench.groups import Kind, Mesh
from nccl_bench.training.model import Model

Framework = Literal["megatron", "deepspeed", "fsdp2"]
Recompute = Literal["none", "selective", "full"]
CpComm = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to train; sizes are numbers of ranks unless said otherwise."""

    framework: Framework = "megatron"
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    """Model chunks a pipeline rank (interleaved schedule)."""
    pp_layout: tuple[int, ...] = ()
    """Layers of each stage (of each chunk in turn where vpp > 1); empty: equal."""
    cp: int = 1
    cp_comm: CpComm | None = None
    """None: the framework's own."""
    ep: int = 1
    etp: int | None = None
    """Tensor parallelism of experts; None: tp for Megatron (its default), 1 elsewhere."""
    dp: int = 1
    shard: int | None = None
    """FSDP2: ranks that share one copy (HSDP); None: all of dp. 1 is plain DDP."""
    copies: int | None = None
    """FSDP2: copies that HSDP keeps, where it was said; it must fit."""
    sp: bool = False
    order: str = groups.MEGATRON_ORDER
    dist_opt: bool = False
    zero: int = 0
    qwz: bool = False
    hpz: int = 0
    """Ranks of ZeRO++'s secondary partition; 0: none."""
    qgz: bool = False
    node_ranks: int = 8
    """GPUs of a node: what qgZ's first exchange spans (coalesced_collectives.py:38, device_count)."""
    recompute: Recompute = "none"
    overlap: frozenset[str] = field(default_factory=frozenset)
    overlap_off: bool = False
    """DeepSpeed: overlap_comm is false where its default is true (stage 3)."""
    reduce_bucket: int = 500_000_000
    """DeepSpeed: elements reduced together (reduce_bucket_size, zero/config.py:113)."""
    persistent: int = 100_000
    """DeepSpeed: parameters smaller than this stay on every rank (stage3_param_persistence_threshold, zero/config.py:221)."""
    param_dtype: str = "bfloat16"
    grad_dtype: str | None = None
    """What gradients are reduced in; None: the framework's default."""
    fp8: bool = False
    no_sync: bool = False
    """FSDP2: gradients are reduced in the last micro-batch only (set_requires_gradient_sync)."""
    flash: bool = True
    """Attention that keeps no scores in memory."""
    seq: int = 2048
    gbs: int = 1
    """Sequences a step."""
    mbs: int = 1
    """Sequences a micro-batch."""

    @property
    def world(self) -> int:
        """Ranks."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def microbatches(self) -> int:
        """m = gbs / (dp mbs)."""
        return max(1, self.gbs // (self.dp * self.mbs))

    @property
    def fsdp_shard(self) -> int:
        """Ranks over which FSDP2 shards, without context parallelism."""
        return self.dp if self.shard is None else self.shard

    @property
    def context_comm(self) -> CpComm:
        """How context parallelism talks: Megatron's default is the ring; torchtitan gathers keys and values (decoder_sharding.py:275)."""
        return self.cp_comm or ("all_gather" if self.framework == "fsdp2" else "p2p")

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism of experts (Megatron: --expert-tensor-parallel-size defaults to tp)."""
        return self.etp if self.etp is not None else self.tp if self.framework == "megatron" else 1

    @property
    def param_nbytes(self) -> int:
        """Bytes of a parameter as it is gathered."""
        return ITEMSIZE[self.param_dtype]

    @property
    def grad_nbytes(self) -> int:
        """Bytes of a gradient as it is reduced."""
        return ITEMSIZE[self.grad_type]

    @property
    def grad_type(self) -> str:
        """The dtype that gradients are reduced in: fp32 in Megatron with bf16 (arguments.py:1215-1217) and in torchtitan, else the parameter's."""
        if self.grad_dtype is not None:
            return self.grad_dtype
        own = self.framework == "deepspeed" or (self.framework == "fsdp2" and self.fsdp_shard == 1)
        own = own or (self.framework == "megatron" and self.param_dtype != "bfloat16")
        return self.param_dtype if own else "float32"

    @property
    def sequence_parallel(self) -> bool:
        """Megatron's option; torchtitan's tensor parallelism always shards the sequence."""
        return self.tp > 1 and (self.sp or self.framework == "fsdp2")

    @property
    def overlap_grad(self) -> bool:
        """Whether gradients are reduced beside the backward: FSDP2 always, DeepSpeed by default in stage 3 only (zero/config.py:383-385)."""
        return "grad" in self.overlap or self.framework == "fsdp2" or (self.framework == "deepspeed" and self.zero == 3 and not self.overlap_off)

    def text(self) -> str:
        """ "TP8 PP4 DP2", with what else differs from 1."""
        words = [f"TP{self.tp}", f"PP{self.pp}" + (f"x{self.vpp}" if self.vpp > 1 else ""), f"DP{self.dp}"]
        words += [f"uneven {min(self.pp_layout)}-{max(self.pp_layout)}"] if len(set(self.pp_layout)) > 1 else []
        words += [f"CP{self.cp}"] if self.cp > 1 else []
        words += [f"EP{self.ep}"] if self.ep > 1 else []
        words += [f"ETP{self.expert_tp}"] if (self.ep > 1 or self.etp is not None) and self.expert_tp != self.tp else []
        if self.shard is not None and self.framework == "fsdp2":
            words += ["DDP" if self.shard == 1 and self.cp == 1 else f"HSDP {self.dp // self.fsdp_shard}x{self.fsdp_shard}"]
        words += [f"ZeRO-{self.zero}"] if self.framework == "deepspeed" else []
        words += [name for name, used in (("qwZ", self.qwz), (f"hpZ{self.hpz}", self.hpz > 0), ("qgZ", self.qgz)) if used]
        words += ["SP"] if self.sp and self.tp > 1 else []
        words += ["dist-opt"] if self.dist_opt else []
        words += [self.order] if self.framework == "megatron" and self.order != groups.MEGATRON_ORDER else []
        words += [f"mbs{self.mbs}"] if self.mbs > 1 else []
        words += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one pipeline rank holds."""

    index: int
    layers: tuple[int, ...]
    first: bool
    last: bool


def split_layers(layers: int, parts: int) -> tuple[int, ...]:
    """Layers shared out as evenly as they go; the ends, which also hold embedding and head, get the smaller share."""
    low, more = divmod(layers, parts)
    start = (parts - more + 1) // 2
    return tuple(low + (1 if start <= at < start + more else 0) for at in range(parts))


def stages_of(layout: Layout, model: Model) -> tuple[Stage, ...]:
    """What every pipeline rank holds; with vpp, rank r holds the chunks r, r + pp, ..."""
    return _stages(layout.pp_layout or split_layers(model.layers, layout.pp * layout.vpp), layout.pp)


@lru_cache(maxsize=1024)
def _stages(sizes: tuple[int, ...], pp: int) -> tuple[Stage, ...]:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    chunks = [tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    return tuple(
        Stage(index=rank, layers=tuple(i for chunk in chunks[rank::pp] for i in chunk), first=rank == 0, last=rank == pp - 1) for rank in range(pp)
    )


def mesh_of(layout: Layout) -> Mesh:
    """The framework's own numbering of the ranks. Raises UsageError where its grids do not agree."""
    at = layout
    if at.framework == "megatron":
        expert = at.ep > 1 or at.etp is not None
        etp = at.expert_tp if expert else None
        return groups.megatron(tp=at.tp, cp=at.cp, dp=at.dp, pp=at.pp, ep=at.ep, etp=etp, order=at.order, option="layout")
    if at.framework == "deepspeed":
        return groups.deepspeed(pp=at.pp, dp=at.dp, tp=at.tp, ep=at.ep)
    return groups.titan(pp=at.pp, replicate=at.dp // at.fsdp_shard, shard=at.fsdp_shard, cp=at.cp, tp=at.tp, ep=at.ep)


def axes_of(layout: Layout, used: Sequence[str]) -> tuple[Kind, ...]:
    """The kinds of the axes that calls use, in their order, once each."""
    mesh = mesh_of(layout)
    return tuple(groups.kind_of(mesh, axis) for axis in dict.fromkeys(used))


def with_world(layout: Layout, world: int) -> Layout:
    """The layout with dp such that it fills `world` ranks. Raises UsageError where the other sizes do not divide it."""
    inner = layout.tp * layout.pp * layout.cp
    if world % inner:
        raise UsageError(f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp} = {inner} does not divide {world} ranks", "choose sizes that do")
    return replace(layout, dp=world // inner)
