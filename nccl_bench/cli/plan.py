"""`nccl-bench plan`: what a training step sends and what that costs on this fabric."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nccl_bench.cli import training_options as o

if TYPE_CHECKING:
    from nccl_bench.cli.training_inputs import Inputs


def plan(
    gpus: o.Gpus = None,
    nics: o.Nics = None,
    nodes: o.Nodes = None,
    world: o.World = None,
    gpus_per_node: o.PerNode = None,
    gpu_mem: o.GpuMem = None,
    mem_headroom: o.Headroom = 0.1,
    model: o.ModelFile = None,
    preset: o.Preset = None,
    seq: o.Seq = None,
    gbs: o.Gbs = None,
    mbs: o.Mbs = None,
    flash: o.Flash = True,
    tp: o.Tp = None,
    pp: o.Pp = None,
    vpp: o.Vpp = None,
    pp_layout: o.PpLayout = None,
    cp: o.Cp = None,
    cp_comm: o.CpComm = None,
    ep: o.Ep = None,
    etp: o.Etp = None,
    dp: o.Dp = None,
    hsdp: o.Hsdp = None,
    sp: o.Sp = False,
    order: o.Order = None,
    framework: o.Framework = None,
    dist_opt: o.DistOpt = False,
    zero: o.Zero = None,
    zeropp: o.Zeropp = None,
    recompute: o.Recompute = None,
    overlap: o.Overlap = None,
    param_dtype: o.ParamDtype = None,
    grad_dtype: o.GradDtype = None,
    fp8: o.Fp8 = False,
    no_sync: o.NoSync = False,
    ds_config: o.DsConfig = None,
    megatron_args: o.MegatronArgs = None,
    torchtitan: o.Torchtitan = None,
    measured: o.Measured = None,
    gemm_eff: o.GemmEff = None,
    peak: o.Peak = None,
    hbm: o.Hbm = None,
    flop_basis: o.Basis = "full-attention",
    tokens: o.Tokens = None,
    gpu_hour_price: o.HourPrice = None,
    observed_step: o.Observed = None,
    emit: Annotated[
        Path | None, typer.Option("--emit", metavar="FILE", help="write what must be measured, for sweep --want", rich_help_panel="Price")
    ] = None,
    wide: o.Wide = False,
    as_json: o.AsJson = False,
) -> None:
    """Say what one training step sends, what it costs, how much of it is waiting, and what would pay."""
    given = o.given_of(locals())
    from nccl_bench.cli.files import check_writable
    from nccl_bench.cli.training_inputs import inputs_of
    from nccl_bench.cli.training_notes import said_of
    from nccl_bench.training.document import assumptions_of, plan_json
    from nccl_bench.training.plan import answer
    from nccl_bench.training.rules import checked

    check_writable(emit, "--emit")
    inputs = inputs_of(given)
    layout = checked(inputs.layout, inputs.model)
    if emit is not None:
        _emit(inputs, emit)
    found = answer(inputs.model, layout, inputs.fabric, inputs.basis)
    assumed = assumptions_of(layout, inputs.fabric, inputs.basis, inputs.assumptions)
    said = said_of(given, inputs, timed=found.cost.step_s is not None, sized=True)
    if as_json:
        document = plan_json(found, inputs.fabric, inputs.money, assumed)
        document["notes"] += said
        sys.stdout.write(json.dumps({**document, "unknown_keys": list(inputs.unknown), "not_nccl": inputs.not_nccl}, indent=1) + "\n")
        return
    from nccl_bench.report.bill import lines_of, write_lines

    lines = lines_of(found, inputs.fabric, inputs.money, assumed, wide=wide)
    write_lines(with_warnings(inputs, [*lines, *said]), sys.stdout)


def with_warnings(inputs: Inputs, lines: list[str]) -> list[str]:
    """The page, and what must be said first and last: that prices are none of NCCL's, and keys of a file that were passed over."""
    from nccl_bench.report.terminal import NOT_NCCL

    if inputs.unknown:
        lines = [*lines, f"keys without a part in this: {' '.join(inputs.unknown)}"]
    return [NOT_NCCL, *lines, NOT_NCCL] if inputs.not_nccl else lines


def _emit(inputs: Inputs, path: Path) -> None:
    from nccl_bench.cli.files import write_text
    from nccl_bench.training.want import want_of

    write_text(path, json.dumps(want_of(inputs.model, inputs.layout).to_json(), indent=1) + "\n", "--emit")
