"""`nccl-bench search`: which parallel layout wastes least."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from nccl_bench.cli import training_options as o
from nccl_bench.errors import UsageError

SIZES = ("tp", "pp", "cp", "ep", "vpp", "mbs", "zero")


def search(
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
    flash: o.Flash = True,
    cp: o.Cp = None,
    cp_comm: o.CpComm = None,
    ep: o.Ep = None,
    etp: o.Etp = None,
    hsdp: o.Hsdp = None,
    sp: o.Sp = False,
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
    top: Annotated[int, typer.Option("--top", min=1, max=1000, help="layouts to show")] = 10,
    fix: Annotated[list[str] | None, typer.Option("--fix", metavar="tp=8,mbs=1", help="sizes to keep; repeatable")] = None,
    max_tp: Annotated[int | None, typer.Option("--max-tp", min=1, help="largest tensor parallelism")] = None,
    chart: Annotated[Path | None, typer.Option("--chart", metavar="FILE", help="shares of the step by layout, as .svg .png or .pdf")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Rank all layouts that the framework accepts and memory allows; ties are said so."""
    given = o.given_of(locals())
    from nccl_bench.cli.files import check_writable
    from nccl_bench.cli.training_inputs import inputs_of
    from nccl_bench.cli.training_notes import said_of
    from nccl_bench.training.document import assumptions_of, plan_json
    from nccl_bench.training.search import search as find

    check_writable(chart, "--chart")
    inputs = inputs_of(given, sized=False)
    fixed = _fixed(fix or [], given)
    if cp_comm is not None and fixed.get("cp", 1) == 1:
        raise UsageError(f"--cp-comm {cp_comm} without CP", "search tries context parallelism where --cp says how wide: --cp 2")
    found = find(
        inputs.model, inputs.layout, inputs.world, inputs.fabric, inputs.basis, top=top, fixed=fixed, max_tp=max_tp, per_node=inputs.per_node,
        recompute=recompute,
    )  # fmt: skip
    said = said_of(given, inputs, timed=True, sized=False)
    documents = []
    for row in found.answers if chart is not None or as_json else ():
        assumed = assumptions_of(row.layout, inputs.fabric, inputs.basis, inputs.assumptions)
        document = plan_json(row, inputs.fabric, inputs.money, assumed)
        document["notes"] += said
        documents.append({**document, "tie_group": row.tie_group, "not_nccl": inputs.not_nccl})
    if chart is not None:
        from nccl_bench.report.pictures_layouts import write_chart

        write_chart(documents, chart)
    if as_json:
        sys.stdout.write(json.dumps(documents, indent=1) + "\n")
        return
    from nccl_bench.cli.plan import with_warnings
    from nccl_bench.report.bill import search_lines, write_lines

    write_lines(with_warnings(inputs, [*search_lines(found, inputs.fabric, inputs.money), *said]), sys.stdout)


def _fixed(texts: list[str], given: o.Given) -> dict[str, int]:
    """What --fix names, and the sizes that have an option of their own. Raises UsageError where two of them disagree."""
    fixed: dict[str, int] = {name: value for name in SIZES if (value := getattr(given, name)) is not None}
    for word in (part for text in texts for part in re.split(r"[,\s]+", text) if part):
        name, _equals, value = word.lower().partition("=")
        if name not in SIZES or not value.isdecimal() or (int(value) < 1 and name != "zero"):
            raise UsageError(f"--fix {word!r} is not SIZE=NUMBER", f"sizes: {' '.join(SIZES)}; for example --fix tp=8,mbs=1")
        if fixed.setdefault(name, int(value)) != int(value):
            raise UsageError(f"--fix {word!r}: {name} is {fixed[name]} already", "give each size once")
    return fixed
