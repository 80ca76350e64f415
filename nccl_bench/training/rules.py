"""What frameworks refuse, in words: sizes that do not fit the model or each other, and options that do not apply, which are never passed over."""

from __future__ import annotations

from nccl_bench.errors import UsageError
from nccl_bench.groups import MEGATRON_ORDER
from nccl_bench.training.layout import ITEMSIZE, Layout, split_layers
from nccl_bench.training.model import Model

OVERLAPS = ("grad", "param", "tp", "p2p", "moe")
_OWN_OVERLAPS = {"megatron": OVERLAPS, "deepspeed": ("grad",), "fsdp2": ("tp", "moe")}
"""What each can switch on: DeepSpeed overlap_comm, torchtitan async TP and its expert overlap; FSDP2's own prefetch is always on."""
Rule = tuple[bool, str]


def why_not(layout: Layout, model: Model) -> str | None:
    """Why the framework refuses this layout for this model, in words; None where it takes it."""
    for check in (_numbers, _batches, _widths, _pipeline, _context, _experts, _options):
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
        step = at.dp * at.mbs
        near = " or ".join(str(n) for n in (at.gbs // step * step, (at.gbs // step + 1) * step) if n)
        return f"a global batch of {at.gbs} cannot be shared by DP {at.dp} in micro-batches of {at.mbs} (--gbs {near} can)"
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
    if at.cp_comm is not None and at.cp == 1:
        return f"--cp-comm {at.cp_comm} without --cp"
    if at.cp_comm == "a2a+p2p":
        return "a2a+p2p has groups of two kinds within CP, and no price here: p2p and a2a have"
    if at.framework == "fsdp2" and at.cp_comm not in (None, "all_gather"):
        return f"torchtitan gathers keys and values: --cp-comm all_gather, and no {at.cp_comm}"
    if at.cp > 1 and at.seq % (2 * at.cp):
        return f"a sequence of {at.seq} cannot be cut into 2 x CP {at.cp} parts"
    shared = model.heads if model.mla is not None else model.kv_heads
    if at.cp > 1 and at.context_comm == "a2a" and (shared % (at.tp * at.cp) or model.heads % (at.tp * at.cp)):
        return f"all-to-all context parallelism cannot share {shared} key-value heads by TP x CP {at.tp * at.cp}"
    if at.sequence_parallel and at.seq % (at.cp * at.tp):
        return f"sequence parallelism cannot share {at.seq // at.cp} tokens by TP {at.tp}"
    return None


def _experts(at: Layout, model: Model) -> str | None:
    if at.ep == 1 and (at.etp is None or (at.etp == 1 and not model.experts)):
        return None if not (model.experts and at.tp > 1 and at.framework == "megatron" and not at.sp) else "MoE with TP needs --sp"
    if not model.experts:
        return f"{'EP' if at.ep > 1 else 'ETP'} without experts in the model"
    if model.experts % at.ep:
        return f"{model.experts} experts cannot be shared by EP {at.ep}"
    if model.moe_ffn % at.expert_tp:
        return f"experts of width {model.moe_ffn} cannot be shared by ETP {at.expert_tp}"
    if (at.tp * at.cp * at.dp) % (at.expert_tp * at.ep):
        return f"EP {at.ep} x ETP {at.expert_tp} does not divide TP x CP x DP = {at.tp * at.cp * at.dp}"
    if at.tp > 1 and at.framework == "megatron" and not at.sp:
        return "MoE with TP needs --sp"
    return None


def _options(at: Layout, model: Model) -> str | None:
    """Why the framework refuses one of the options; None where it takes all."""
    if at.framework == "fsdp2" and model.tied and at.pp > 1:
        return "torchtitan ties no embeddings over a pipeline (models/common/decoder.py:168)"
    rules = {"megatron": _megatron, "deepspeed": _deepspeed, "fsdp2": _fsdp2}[at.framework](at)
    return next((reason for wrong, reason in [*_overlaps(at), *rules] if wrong), None)


def _overlaps(at: Layout) -> list[Rule]:
    own = _OWN_OVERLAPS[at.framework]
    strange = [name for name in sorted(at.overlap) if name not in own]
    return [
        (bool(strange), f"{at.framework} has no switch to overlap {' '.join(strange)} (it has {' '.join(own)})"),
        ("tp" in at.overlap and not at.sequence_parallel, "overlapping TP needs TP and --sp (model_parallel_config.py)"),
        ("param" in at.overlap and not at.dist_opt, "overlapping the parameter gather needs --dist-opt"),
        ("p2p" in at.overlap and at.vpp == 1, "overlapping the pipeline's sends needs --vpp (arguments.py: the plain schedule has none)"),
        ("moe" in at.overlap and at.ep == 1, "overlapping expert all-to-all needs --ep"),
    ]


def _megatron(at: Layout) -> list[Rule]:
    return [
        (at.zero != 0, "--zero belongs to DeepSpeed (here: --dist-opt)"),
        (bool(at.qwz or at.qgz or at.hpz), "ZeRO++ belongs to DeepSpeed"),
        (at.shard is not None, "--hsdp belongs to fsdp2"),
        (at.no_sync, "--no-sync belongs to fsdp2: Megatron always reduces once a step"),
        (at.fp8 and not at.dist_opt, "gathering parameters in 8 bits (--fp8) needs --dist-opt"),
    ]


def _deepspeed(at: Layout) -> list[Rule]:
    across = at.world % at.node_ranks == 0 and at.world > at.node_ranks
    return [
        (at.zero not in (0, 1, 2, 3), f"there is no ZeRO-{at.zero}"),
        (at.pp > 1 and at.zero > 1, f"ZeRO-{at.zero} with a pipeline (runtime/pipe/engine.py asserts stage < 2)"),
        (at.vpp > 1, "DeepSpeed's pipeline is not interleaved"),
        (at.dist_opt, "--dist-opt belongs to Megatron (here: --zero 1)"),
        (bool(at.qwz or at.qgz or at.hpz) and at.zero != 3, "ZeRO++ needs --zero 3"),
        (bool(at.hpz) and at.dp % max(1, at.hpz) != 0, f"hpZ of {at.hpz} does not divide DP {at.dp}"),
        (at.qgz and not across, f"qgZ needs several nodes of {at.node_ranks} GPUs, and there are {at.world} (utils/groups.py:672-694)"),
        (at.sp, "--sp belongs to Megatron"),
        (at.shard is not None, "--hsdp belongs to fsdp2"),
        (at.etp is not None, "--etp belongs to Megatron"),
        (at.order != MEGATRON_ORDER, "--order belongs to Megatron"),
        (at.no_sync, "--no-sync belongs to fsdp2"),
        (at.fp8, "DeepSpeed gathers no parameters in 8 bits by --fp8 (here: --zeropp qwz)"),
    ]


def _fsdp2(at: Layout) -> list[Rule]:
    return [
        (at.zero != 0, "--zero belongs to DeepSpeed"),
        (bool(at.qwz or at.qgz or at.hpz), "ZeRO++ belongs to DeepSpeed"),
        (at.dist_opt, "--dist-opt belongs to Megatron"),
        (at.sp, "--sp belongs to Megatron: torchtitan always shards the sequence beside TP"),
        (at.etp is not None, "--etp belongs to Megatron"),
        (at.order != MEGATRON_ORDER, "--order belongs to Megatron"),
        (at.dp % at.fsdp_shard != 0, f"a shard of {at.fsdp_shard} does not divide DP {at.dp}"),
        (at.copies is not None and at.copies * at.fsdp_shard != at.dp, f"HSDP {at.copies}x{at.fsdp_shard} is not DP {at.dp}"),
        (at.ep > 1 and (at.fsdp_shard * at.cp * at.tp) % at.ep != 0, f"EP {at.ep} does not divide shard x CP x TP"),
    ]
