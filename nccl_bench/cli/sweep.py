"""`nccl-bench sweep`: options to a spec, the flow's events to the screen, its end to an exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nccl_bench.cli import completion
from nccl_bench.cli.outcome import Ended
from nccl_bench.errors import UsageError

_SIZES, _WHAT, _MESH, _CLOCKS, _STOP = "Sizes", "What is sent", "Groups of training", "Clocks", "When to stop"
_LAUNCH, _KEEP, _SHOW = "Launch", "What is kept", "Screen"


def sweep(
    context: typer.Context,
    collectives: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLLECTIVE]...",
            autocompletion=completion.collectives,
            help="all_reduce all_gather reduce_scatter sendrecv (these by default) all_to_all broadcast reduce gather scatter pingpong, or all",
        ),
    ] = None,
    minbytes: Annotated[
        str | None, typer.Option("-b", "--minbytes", help="smallest size: 8, 64K, 1.5M (default 8; 1K on gloo)", rich_help_panel=_SIZES)
    ] = None,
    maxbytes: Annotated[
        str | None, typer.Option("-e", "--maxbytes", help="largest size (default 8G or what memory holds; 16M on gloo)", rich_help_panel=_SIZES)
    ] = None,
    stepfactor: Annotated[
        float | None, typer.Option("-f", "--stepfactor", help="factor between sizes (default 2; 4 on gloo)", rich_help_panel=_SIZES)
    ] = None,
    stepbytes: Annotated[
        str | None, typer.Option("-i", "--stepbytes", help="bytes between sizes, instead of a factor", rich_help_panel=_SIZES)
    ] = None,
    sizes: Annotated[str | None, typer.Option("--sizes", help="a list instead of a range: 8,64K,1M", rich_help_panel=_SIZES)] = None,
    dtype: Annotated[str, typer.Option("-d", "--dtype", help="torch's or nccl-tests' names, a list, or all", rich_help_panel=_WHAT)] = "float32",
    op: Annotated[str, typer.Option("-o", "--op", help="sum product max min avg premul_sum, a list, or all", rich_help_panel=_WHAT)] = "sum",
    root: Annotated[str, typer.Option("-r", "--root", help="root of rooted collectives, a list, or all", rich_help_panel=_WHAT)] = "0",
    placement: Annotated[
        Literal["in", "out", "both"] | None,
        typer.Option("--placement", help="one buffer or two (default out where torch has it)", rich_help_panel=_WHAT),
    ] = None,
    shift: Annotated[
        Literal["ring", "node", "both"] | None,
        typer.Option(
            "--shift", help="sendrecv to the next rank, or to the next node on all rails (default ring; both across nodes)", rich_help_panel=_WHAT
        ),
    ] = None,
    pair: Annotated[str | None, typer.Option("--pair", metavar="A,B", help="pingpong between these two ranks only", rich_help_panel=_WHAT)] = None,
    mesh: Annotated[
        str | None,
        typer.Option("--mesh", metavar="SPEC", help="all ranks as pp=2,dp=4,tp=8 or megatron:tp8,dp4,pp2", rich_help_panel=_MESH),
    ] = None,
    axis: Annotated[
        str | None, typer.Option("--axis", metavar="LIST", help="axes of the mesh, all groups of one at once (default all)", rich_help_panel=_MESH)
    ] = None,
    solo: Annotated[bool, typer.Option("--solo", help="also one group of each axis alone: the contention factor", rich_help_panel=_MESH)] = False,
    with_: Annotated[
        str | None, typer.Option("--with", metavar="AXIS:COLLECTIVE", help="this kind at the same time: the slowdown factor", rich_help_panel=_MESH)
    ] = None,
    skew: Annotated[
        float | None, typer.Option("--skew", metavar="F", help="all_to_all: one rank gets F times the mean", rich_help_panel=_MESH)
    ] = None,
    want: Annotated[Path | None, typer.Option("--want", metavar="FILE", help="exactly what plan --emit asks for", rich_help_panel=_MESH)] = None,
    check_level: Annotated[int | None, typer.Option("-c", min=0, help="0: no data check (as nccl-tests)", rich_help_panel=_WHAT)] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="check the data of every case", rich_help_panel=_WHAT)] = True,
    clock: Annotated[
        str,
        typer.Option(
            "--clock",
            help="auto, or a list of graph queued eager host (nccl-bench explain clock)",
            autocompletion=completion.clocks,
            rich_help_panel=_CLOCKS,
        ),
    ] = "auto",
    regime: Annotated[
        Literal["streaming", "isolated"], typer.Option("--regime", help="back to back, or each call after a meeting", rich_help_panel=_CLOCKS)
    ] = "streaming",
    register: Annotated[
        str,
        typer.Option("-R", "--register", help="buffer registration: none graph user symmetric (nccl-tests' 0, 1, 2 too)", rich_help_panel=_CLOCKS),
    ] = "none",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME[:ENV=VAL,...]",
            help="sweep again in fresh workers: ring tree nvls-off sharp nic-only, or your own; repeatable",
            rich_help_panel=_CLOCKS,
        ),
    ] = None,
    iters: Annotated[int | None, typer.Option("-n", "--iters", help="exactly so many operations a case", rich_help_panel=_STOP)] = None,
    warmup_iters: Annotated[int | None, typer.Option("-w", "--warmup-iters", help="exactly so many before them", rich_help_panel=_STOP)] = None,
    precision: Annotated[
        float | None,
        typer.Option("--precision", help="half-width of the 95 % interval to stop at (default 0.01; 0.05 on gloo)", rich_help_panel=_STOP),
    ] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="seconds a case at most (default 2; 0.5 on gloo)", rich_help_panel=_STOP)] = None,
    timeout: Annotated[
        float, typer.Option("-T", "--timeout", help="seconds without progress before a case is given up", rich_help_panel=_STOP)
    ] = 60.0,
    duration: Annotated[str | None, typer.Option("--duration", help="repeat the sweep for so long: 600, 30m, 4h", rich_help_panel=_STOP)] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option("-g", "--nproc-per-node", min=1, help="ranks to start here (default: one a visible GPU, else 2)", rich_help_panel=_LAUNCH),
    ] = None,
    backend: Annotated[
        Literal["auto", "nccl", "gloo"], typer.Option("--backend", help="nccl where there are GPUs, else gloo", rich_help_panel=_LAUNCH)
    ] = "auto",
    out: Annotated[Path | None, typer.Option("-O", "--out", help="the run directory itself", rich_help_panel=_KEEP)] = None,
    name: Annotated[str | None, typer.Option("--name", help="name of the run under results/", rich_help_panel=_KEEP)] = None,
    keep_ranks: Annotated[bool, typer.Option("--keep-ranks", help="keep every rank's lateness", rich_help_panel=_KEEP)] = False,
    keep_batches: Annotated[bool, typer.Option("--keep-batches", help="keep every batch in batches.jsonl", rich_help_panel=_KEEP)] = False,
    output_format: Annotated[Literal["table", "nccl-tests"], typer.Option("--format", help="of what is printed", rich_help_panel=_SHOW)] = "table",
    wide: Annotated[bool, typer.Option("--wide", help="more columns", rich_help_panel=_SHOW)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one point a line on stdout, as they come", rich_help_panel=_SHOW)] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would be measured, how long and in how much memory", rich_help_panel=_SHOW)
    ] = False,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="a progress line on stderr", rich_help_panel=_SHOW)] = True,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file whose keys are these long options", rich_help_panel=_SHOW)] = None,
) -> Ended:
    """Measure collectives over all sizes; the same command under srun, mpirun, torchrun or alone."""
    from nccl_bench.cli.sweep_options import Options, with_config

    given: dict[str, Any] = {key: value for key, value in locals().items() if key not in ("context", "config", "Options", "with_config")}
    given["variant"] = given["variant"] or []
    typed = str(getattr(context.get_parameter_source("check"), "name", "")) == "COMMANDLINE"
    if typed and check_level is not None and check != (check_level > 0):
        raise UsageError(f"--{'' if check else 'no-'}check and -c {check_level} contradict each other", "leave one out")
    options = Options(**with_config(given, context, config))
    from nccl_bench.cli.sweep_run import run

    return run(options, os.environ, sys.argv, sys.stdout, sys.stderr)
