"""How a training job is laid out over its ranks: sizes, framework, schedule, dtypes; what frameworks refuse; stages and groups.

Defaults are each framework's own; every one that matters for the price is told as an assumption (assumptions.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from nccl_bench import groups
from nccl_bench.errors import UsageError
from nccl_bench.groups import Kind, Mesh
from nccl_bench.training.model import Model

Framework = Literal["megatron", "deepspeed", "fsdp2"]
Recompute = Literal["none", "selective", "full"]
CpComm = Literal["p2p", "all_gather", "a2a"]
OVERLAPS = ("grad", "param", "tp", "p2p", "moe")
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
    cp_comm: CpComm = "p2p"
    ep: int = 1
    etp: int | None = None
    """Tensor parallelism of experts; None: tp for Megatron (its default), 1 elsewhere."""
    dp: int = 1
    shard: int | None = None
    """FSDP2: ranks that share one copy (HSDP); None: all of dp. 1 is plain DDP."""
    sp: bool = False
    order: str = groups.MEGATRON_ORDER
    dist_opt: bool = False
    zero: int = 0
    qwz: bool = False
    hpz: int = 0
    """Ranks of ZeRO++'s secondary partition; 0: none."""
    qgz: bool = False
    recompute: Recompute = "none"
    overlap: frozenset[str] = field(default_factory=frozenset)
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
    def expert_tp(self) -> int:
        """Tensor parallelism of experts (Megatron: --expert-tensor-parallel-size defaults to tp)."""
        return self.etp if self.etp is not None else self.tp if self.framework == "megatron" else 1

    @property
    def param_nbytes(self) -> int:
        """Bytes of a parameter as it is gathered."""
        return ITEMSIZE[self.param_dtype]

    @property
    def grad_nbytes(self) -> int:
        """Bytes of a gradient as it is reduced: fp32 in Megatron with bf16 (arguments.py:1213-1217) and in torchtitan, else the parameter's."""
        return ITEMSIZE[self.grad_type]

    @property
    def grad_type(self) -> str:
        """The dtype that gradients are reduced in."""
        if self.grad_dtype is not None:
            return self.grad_dtype
        if self.framework == "deepspeed" or (self.framework == "fsdp2" and self.fsdp_shard == 1):
            return self.param_dtype
        return "float32"

    @property
    def sequence_parallel(self) -> bool:
        """Megatron's option; torchtitan's tensor parallelism always shards the sequence."""
        return self.tp > 1 and (self.sp or self.framework == "fsdp2")

    @property
    def overlap_grad(self) -> bool:
        """Whether gradients are reduced beside the backward: FSDP2 always, DeepSpeed by default in stage 3 only (zero/config.py:383-385)."""
        return "grad" in self.overlap or self.framework == "fsdp2" or (self.framework == "deepspeed" and self.zero == 3)

    def text(self) -> str:
        """ "TP8 PP4 DP2", with what else differs from 1."""
        words = [f"TP{self.tp}", f"PP{self.pp}" + (f"x{self.vpp}" if self.vpp > 1 else ""), f"DP{self.dp}"]
        words += [f"uneven {min(self.pp_layout)}-{max(self.pp_layout)}"] if self.pp_layout else []
        words += [f"CP{self.cp}"] if self.cp > 1 else []
        words += [f"EP{self.ep}"] if self.ep > 1 else []
        words += [f"ETP{self.expert_tp}"] if self.ep > 1 and self.expert_tp != self.tp else []
        words += [f"HSDP {self.dp // self.fsdp_shard}x{self.fsdp_shard}"] if self.shard is not None and self.framework == "fsdp2" else []
        words += [f"ZeRO-{self.zero}"] if self.framework == "deepspeed" else []
        words += [name for name, used in (("qwZ", self.qwz), (f"hpZ{self.hpz}", self.hpz > 0), ("qgZ", self.qgz)) if used]
        words += ["SP"] if self.sp else []
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


def why_not(layout: Layout, model: Model) -> str | None:
    """Why the framework refuses this layout for this model, in words; None where it takes it."""
    for check in (_numbers, _batches, _widths, _pipeline, _context, _experts, _framework):
        reason = check(layout, model)
        if reason is not None:
            return reason
    return None


def checked(layout: Layout, model: Model) -> Layout:
    """The layout. Raises UsageError with the reason where the framework refuses it."""
    reason = why_not(layout, model)
    if reason is not None:
        raise UsageError(f"{layout.framework} refuses {layout.text()} for {model.name}: {reason}")
    return layout


def _numbers(at: Layout, _model: Model) -> str | None:
    for name in ("tp", "pp", "vpp", "cp", "ep", "dp", "seq", "gbs", "mbs"):
        if getattr(at, name) < 1:
            return f"{name} is {getattr(at, name)}"
    for name in ("param_dtype", "grad_type"):
        if getattr(at, name) not in ITEMSIZE:
            return f"{getattr(at, name)} is no dtype of weights ({' '.join(ITEMSIZE)})"
    return None


def _batches(at: Layout, _model: Model) -> str | None:
    if at.gbs % (at.dp * at.mbs):
        return f"a global batch of {at.gbs} cannot be shared by DP {at.dp} in micro-batches of {at.mbs}"
    return None


def _widths(at: Layout, model: Model) -> str | None:
    if model.heads % at.tp:
        return f"{model.heads} heads cannot be shared by TP {at.tp}"
    if model.kv_heads % at.tp and at.tp % model.kv_heads:
        return f"{model.kv_heads} key-value heads cannot be shared by TP {at.tp}"
    if model.ffn % at.tp or model.hidden % at.tp:
        return f"widths of {model.hidden} and {model.ffn} cannot be shared by TP {at.tp}"
    return None


def _pipeline(at: Layout, model: Model) -> str | None:
    chunks = at.pp * at.vpp
    if at.vpp > 1 and at.pp < 2:
        return "VPP without PP"
    if at.vpp > 1 and at.microbatches % at.pp:
        return f"the interleaved schedule needs micro-batches in multiples of PP {at.pp}, and there are {at.microbatches}"
    if at.pp_layout:
        if len(at.pp_layout) != chunks or sum(at.pp_layout) != model.layers or min(at.pp_layout) < 0:
            return f"--pp-layout is {len(at.pp_layout)} numbers of together {sum(at.pp_layout)}, and must be {chunks} of together {model.layers}"
    elif chunks > model.layers:
        return f"{model.layers} layers are fewer than {chunks} stages"
    elif at.framework == "megatron" and model.layers % chunks:
        even = ",".join(map(str, split_layers(model.layers, chunks)))
        return f"{model.layers} layers cannot be shared evenly by {chunks} stages (say how: --pp-layout {even})"
    return None


def _context(at: Layout, model: Model) -> str | None:
    if at.cp > 1 and at.framework == "deepspeed":
        return "DeepSpeed has no context parallelism of this kind"
    if at.cp > 1 and at.seq % (2 * at.cp):
        return f"a sequence of {at.seq} cannot be cut into 2 x CP {at.cp} parts"
    if at.cp > 1 and at.cp_comm == "a2a" and (model.kv_heads % (at.tp * at.cp) or model.heads % (at.tp * at.cp)):
        return f"all-to-all context parallelism shares {model.kv_heads} key-value heads by TP x CP {at.tp * at.cp}"
    if at.sequence_parallel and at.seq % (at.cp * at.tp):
        return f"sequence parallelism cannot share {at.seq // at.cp} tokens by TP {at.tp}"
    return None


def _experts(at: Layout, model: Model) -> str | None:
    if at.ep == 1 and (at.etp is None or not model.experts):
        return None if not (model.experts and at.tp > 1 and at.framework == "megatron" and not at.sp) else "MoE with TP needs --sp"
    if not model.experts:
        return "EP without experts in the model"
    if model.experts % at.ep:
        return f"{model.experts} experts cannot be shared by EP {at.ep}"
    if model.moe_ffn % at.expert_tp:
        return f"experts of width {model.moe_ffn} cannot be shared by ETP {at.expert_tp}"
    if (at.tp * at.cp * at.dp) % (at.expert_tp * at.ep):
        return f"EP {at.ep} x ETP {at.expert_tp} does not divide TP x CP x DP = {at.tp * at.cp * at.dp}"
    if at.tp > 1 and at.framework == "megatron" and not at.sp:
        return "MoE with TP needs --sp"
    return None


def _framework(at: Layout, _model: Model) -> str | None:
    rules = {
        "megatron": (
            (at.zero != 0, "--zero belongs to DeepSpeed (here: --dist-opt)"),
            (at.shard is not None, "--hsdp belongs to fsdp2"),
            ("tp" in at.overlap and not at.sequence_parallel, "overlapping TP needs --sp (model_parallel_config.py)"),
            ("param" in at.overlap and not at.dist_opt, "overlapping the parameter gather needs --dist-opt"),
        ),
        "deepspeed": (
            (at.zero not in (0, 1, 2, 3), f"there is no ZeRO-{at.zero}"),
            (at.pp > 1 and at.zero > 1, f"ZeRO-{at.zero} with a pipeline (runtime/pipe/engine.py asserts stage < 2)"),
            (at.vpp > 1, "DeepSpeed's pipeline is not interleaved"),
            (at.dist_opt, "--dist-opt belongs to Megatron (here: --zero 1)"),
            (bool(at.qwz or at.qgz or at.hpz) and at.zero != 3, "ZeRO++ needs --zero 3"),
            (bool(at.hpz) and at.dp % max(1, at.hpz) != 0, f"hpZ of {at.hpz} does not divide DP {at.dp}"),
            (at.sp, "--sp belongs to Megatron"),
            (at.shard is not None, "--hsdp belongs to fsdp2"),
        ),
        "fsdp2": (
            (at.zero != 0, "--zero belongs to DeepSpeed"),
            (at.dist_opt, "--dist-opt belongs to Megatron"),
            (at.dp % at.fsdp_shard != 0, f"a shard of {at.fsdp_shard} does not divide DP {at.dp}"),
            (at.ep > 1 and (at.fsdp_shard * at.cp * at.tp) % at.ep != 0, f"EP {at.ep} does not divide shard x CP x TP"),
        ),
    }
    return next((reason for wrong, reason in rules[at.framework] if wrong), None)


def split_layers(layers: int, parts: int) -> tuple[int, ...]:
    """Layers shared out as evenly as they go; the ends, which also hold embedding and head, get the smaller share."""
    low, more = divmod(layers, parts)
    start = (parts - more + 1) // 2
    return tuple(low + (1 if start <= at < start + more else 0) for at in range(parts))


def stages_of(layout: Layout, model: Model) -> tuple[Stage, ...]:
    """What every pipeline rank holds; with vpp, rank r holds the chunks r, r + pp, ..."""
    sizes = layout.pp_layout or split_layers(model.layers, layout.pp * layout.vpp)
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    chunks = [tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    return tuple(
        Stage(index=rank, layers=tuple(i for chunk in chunks[rank :: layout.pp] for i in chunk), first=rank == 0, last=rank == layout.pp - 1)
        for rank in range(layout.pp)
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
