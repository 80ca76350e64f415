"""The options that plan and search share, and what they make: a model, a layout, a fabric with prices. Nothing heavy, no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nccl_bench.cli import completion

_HARD, _MODEL, _LAYOUT, _PRICE, _SHOW = "Hardware", "Model", "Layout", "Price", "Screen"

Gpus = Annotated[str | None, typer.Option("--gpus", metavar="NxMODEL", help="GPUs of one NVLink domain: 8xH100-SXM", rich_help_panel=_HARD)]
Nics = Annotated[str | None, typer.Option("--nics", metavar="NxGBIT-KIND", help="NICs of one domain: 8x400-IB", rich_help_panel=_HARD)]
Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", help="number of such domains", rich_help_panel=_HARD)]
World = Annotated[int | None, typer.Option("--world", metavar="N", min=1, help="number of GPUs", rich_help_panel=_HARD)]
PerNode = Annotated[int | None, typer.Option("--gpus-per-node", metavar="G", min=1, help="where only the number is known", rich_help_panel=_HARD)]
GpuMem = Annotated[float | None, typer.Option("--gpu-mem", metavar="GB", help="memory of a GPU, 1e9 bytes", rich_help_panel=_HARD)]
Headroom = Annotated[float, typer.Option("--mem-headroom", metavar="F", min=0, max=0.9, help="share kept free", rich_help_panel=_HARD)]
ModelFile = Annotated[Path | None, typer.Option("--model", metavar="FILE", help="config.json of Hugging Face", rich_help_panel=_MODEL)]
Preset = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="a known model: llama3-70b", autocompletion=completion.presets, rich_help_panel=_MODEL)
]
Seq = Annotated[int | None, typer.Option("--seq", min=1, help="tokens of a sequence (default 4096)", rich_help_panel=_MODEL)]
Gbs = Annotated[int | None, typer.Option("--gbs", min=1, help="sequences of a step, over all GPUs", rich_help_panel=_MODEL)]
Mbs = Annotated[int | None, typer.Option("--mbs", min=1, help="sequences of a micro-batch (default 1)", rich_help_panel=_MODEL)]
Flash = Annotated[bool, typer.Option("--flash/--no-flash", help="attention that keeps no scores", rich_help_panel=_MODEL)]
Tp = Annotated[int | None, typer.Option("--tp", min=1, help="tensor parallel", rich_help_panel=_LAYOUT)]
Pp = Annotated[int | None, typer.Option("--pp", min=1, help="pipeline stages", rich_help_panel=_LAYOUT)]
Vpp = Annotated[int | None, typer.Option("--vpp", min=1, help="chunks a stage (interleaved)", rich_help_panel=_LAYOUT)]
PpLayout = Annotated[str | None, typer.Option("--pp-layout", metavar="N,N,..", help="layers of each stage, where uneven", rich_help_panel=_LAYOUT)]
Cp = Annotated[int | None, typer.Option("--cp", min=1, help="context parallel", rich_help_panel=_LAYOUT)]
CpComm = Annotated[
    Literal["p2p", "all_gather", "a2a", "a2a+p2p"] | None,
    typer.Option("--cp-comm", help="how it talks (Megatron p2p, fsdp2 all_gather; a2a+p2p is refused)", rich_help_panel=_LAYOUT),
]
Ep = Annotated[int | None, typer.Option("--ep", min=1, help="expert parallel", rich_help_panel=_LAYOUT)]
Etp = Annotated[int | None, typer.Option("--etp", min=1, help="tensor parallel of experts", rich_help_panel=_LAYOUT)]
Dp = Annotated[int | None, typer.Option("--dp", min=1, help="data parallel (default: what is left)", rich_help_panel=_LAYOUT)]
Hsdp = Annotated[str | None, typer.Option("--hsdp", metavar="F or RxF", help="fsdp2: shard over F ranks; 1 is plain DDP", rich_help_panel=_LAYOUT)]
Sp = Annotated[bool, typer.Option("--sp", help="sequence parallel beside TP (Megatron)", rich_help_panel=_LAYOUT)]
Order = Annotated[str | None, typer.Option("--order", help="Megatron: tp-cp-ep-dp-pp, tp-cp-ep-pp-dp, any", rich_help_panel=_LAYOUT)]
Framework = Annotated[
    Literal["megatron", "deepspeed", "fsdp2"] | None, typer.Option("--framework", help="whose defaults (megatron)", rich_help_panel=_LAYOUT)
]
DistOpt = Annotated[bool, typer.Option("--dist-opt", help="Megatron's distributed optimizer", rich_help_panel=_LAYOUT)]
Zero = Annotated[int | None, typer.Option("--zero", min=0, max=3, help="DeepSpeed's stage", rich_help_panel=_LAYOUT)]
Zeropp = Annotated[str | None, typer.Option("--zeropp", metavar="qwz,hpz:8,qgz", help="ZeRO++", rich_help_panel=_LAYOUT)]
Recompute = Annotated[Literal["none", "selective", "full"] | None, typer.Option("--recompute", help="of activations", rich_help_panel=_LAYOUT)]
Overlap = Annotated[str | None, typer.Option("--overlap", metavar="LIST", help="grad,param,tp,p2p,moe", rich_help_panel=_LAYOUT)]
ParamDtype = Annotated[str | None, typer.Option("--param-dtype", help="of gathered weights", rich_help_panel=_LAYOUT)]
GradDtype = Annotated[str | None, typer.Option("--grad-dtype", help="of reduced gradients", rich_help_panel=_LAYOUT)]
Fp8 = Annotated[bool, typer.Option("--fp8", help="weights gathered in 8 bits", rich_help_panel=_LAYOUT)]
NoSync = Annotated[bool, typer.Option("--no-sync", help="fsdp2, DDP: gradients reduced in the last micro-batch only", rich_help_panel=_LAYOUT)]
DsConfig = Annotated[Path | None, typer.Option("--ds-config", metavar="FILE", help="DeepSpeed's JSON", rich_help_panel=_LAYOUT)]
MegatronArgs = Annotated[Path | None, typer.Option("--megatron-args", metavar="FILE", help="Megatron's arguments", rich_help_panel=_LAYOUT)]
Torchtitan = Annotated[Path | None, typer.Option("--torchtitan", metavar="FILE", help="torchtitan's TOML", rich_help_panel=_LAYOUT)]
Measured = Annotated[str | None, typer.Option("--measured", metavar="RUN", help="price with this run", rich_help_panel=_PRICE)]
GemmEff = Annotated[float | None, typer.Option("--gemm-eff", metavar="F", help="kernel efficiency 0-1, not MFU", rich_help_panel=_PRICE)]
Peak = Annotated[float | None, typer.Option("--peak", metavar="TFLOPS", help="dense, of one GPU (default: its datasheet)", rich_help_panel=_PRICE)]
Hbm = Annotated[float | None, typer.Option("--hbm", metavar="GB/s", help="memory bandwidth (default: its datasheet)", rich_help_panel=_PRICE)]
Basis = Annotated[str, typer.Option("--flop-basis", help="of MFU: full-attention megatron-head 96-form 72-form", rich_help_panel=_PRICE)]
Tokens = Annotated[str | None, typer.Option("--tokens", metavar="N", help="of the whole training: 15T", rich_help_panel=_PRICE)]
HourPrice = Annotated[float | None, typer.Option("--gpu-hour-price", metavar="P", help="money an hour of one GPU", rich_help_panel=_PRICE)]
Observed = Annotated[float | None, typer.Option("--observed-step", metavar="S", help="seconds a step really takes", rich_help_panel=_PRICE)]
Wide = Annotated[bool, typer.Option("--wide", help="all calls, assumptions and sources", rich_help_panel=_SHOW)]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document", rich_help_panel=_SHOW)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was typed; None where it was not."""

    gpus: str | None = None
    nics: str | None = None
    nodes: int | None = None
    world: int | None = None
    gpus_per_node: int | None = None
    gpu_mem: float | None = None
    mem_headroom: float = 0.1
    model: Path | None = None
    preset: str | None = None
    seq: int | None = None
    gbs: int | None = None
    mbs: int | None = None
    flash: bool = True
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    pp_layout: str | None = None
    cp: int | None = None
    cp_comm: Literal["p2p", "all_gather", "a2a", "a2a+p2p"] | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    hsdp: str | None = None
    sp: bool = False
    order: str | None = None
    framework: Literal["megatron", "deepspeed", "fsdp2"] | None = None
    dist_opt: bool = False
    zero: int | None = None
    zeropp: str | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    overlap: str | None = None
    param_dtype: str | None = None
    grad_dtype: str | None = None
    fp8: bool = False
    no_sync: bool = False
    ds_config: Path | None = None
    megatron_args: Path | None = None
    torchtitan: Path | None = None
    measured: str | None = None
    gemm_eff: float | None = None
    peak: float | None = None
    hbm: float | None = None
    flop_basis: str = "full-attention"
    tokens: str | None = None
    gpu_hour_price: float | None = None
    observed_step: float | None = None
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def given_of(values: dict[str, Any]) -> Given:
    """What a command's parameters hold; those that only one of the commands has are left to it."""
    names = {f.name for f in fields(Given)}
    return Given(**{name: value for name, value in values.items() if name in names})
