"""`nccl-bench pairs`: every pair of nodes or GPUs, and who is to blame; or somebody else's table judged."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from nccl_bench.cli.outcome import Ended

MATRIX_UP_TO = 16
"""More nodes than this do not fit beside each other on a page; --json has them all."""


def pairs(
    level: Annotated[Literal["node", "gpu", "both"], typer.Option("--level", help="pairs of nodes, of GPUs inside nodes, or both")] = "both",
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="full|screen|K", help="all pairs, a screen, or K rounds (default: full up to 32 nodes)")
    ] = None,
    from_: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="judge a table of pairs instead of measuring: a,b,value")] = None,
    groups: Annotated[Path | None, typer.Option("--groups", metavar="FILE", help="CSV: host, rack, leaf, rail switch")] = None,
    oversubscription: Annotated[
        str | None, typer.Option("--oversubscription", metavar="N:1", help="how much slower pairs between groups may be")
    ] = None,
    budget: Annotated[float, typer.Option("--budget", help="seconds a round, size and direction")] = 0.1,
    sizes: Annotated[str | None, typer.Option("--sizes", metavar="LIST", help="message sizes (default 8 and 64M; 8 and 1M on gloo)")] = None,
    nproc_per_node: Annotated[int | None, typer.Option("-g", "--nproc-per-node", min=1, help="ranks to start here")] = None,
    backend: Annotated[Literal["auto", "nccl", "gloo"], typer.Option("--backend", help="nccl where there are GPUs, else gloo")] = "auto",
    timeout: Annotated[float, typer.Option("-T", "--timeout", help="seconds without progress before a round is given up")] = 60.0,
    confirm: Annotated[bool, typer.Option("--confirm/--no-confirm", help="measure suspects again with other partners")] = True,
    out: Annotated[Path | None, typer.Option("-O", "--out", help="the run directory itself")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document: matrix, suspects, evidence")] = False,
) -> Ended:
    """Measure all pairs in rounds of disjoint pairs, each direction alone and together, and name the suspects.

    Ends 1 where something is slow or failed, 8 where nothing can be said (two nodes, no NCCL).
    """
    from nccl_bench.cli.files import check_free
    from nccl_bench.cli.places import groups_of, ratio
    from nccl_bench.measure.pairs_spec import PairSpec
    from nccl_bench.measure.spec import parse_sizes

    # Somebody else's table is not of this job: --groups alone speaks for it.
    places, allowed = groups_of(groups, {}), ratio(oversubscription)
    if from_ is not None:
        return judge_table(from_, places, allowed, as_json=as_json, stdout=sys.stdout, stderr=sys.stderr)
    check_free(out)
    spec = PairSpec(
        levels=("node", "gpu") if level == "both" else (level,), mode=mode, sizes=() if sizes is None else parse_sizes(sizes), budget_s=budget,
        timeout_s=timeout, backend=backend,
    )  # fmt: skip
    return _measure(spec, nproc_per_node, groups, allowed, out, confirm=confirm, as_json=as_json)


def judge_table(
    path: Path, groups: Callable[[Sequence[str]], Any], oversubscription: float | None, *, as_json: bool, stdout: TextIO, stderr: TextIO
) -> Ended:
    """Judge a table of pairs, or of one number a rank."""
    from nccl_bench.report.suspects import findings_lines
    from nccl_bench.report.terminal import write_warning
    from nccl_bench.results.pair_table import parse_pairs
    from nccl_bench.results.rank_table import import_ranks, is_rank_table
    from nccl_bench.results.text import read_text
    from nccl_bench.units import counted
    from nccl_bench.verdict.localise import localise, rails_of
    from nccl_bench.verdict.table_pairs import evidence_of, values, verdict

    text = read_text(path)
    warnings: tuple[str, ...] = ()
    told: dict[str, Any] = {"values": None, "direction": None, "unit": None}
    if is_rank_table(text):
        imported = import_ranks(text, str(path))
        times = {
            (str(rank["host"]), int(rank["local_rank"])): point.time_us.median
            for rank, point in zip(imported.ranks, imported.points, strict=True)
            if point.time_us
        }
        findings, nodes = rails_of(times), tuple(dict.fromkeys(host for host, _ in times))
        code, why = verdict(findings, max(3, len(nodes)))
    else:
        table = parse_pairs(text, str(path), all_may_fail=True)
        findings, nodes, warnings = localise(evidence_of(table, groups(table.nodes), oversubscription)), table.nodes, table.warnings
        code, why = verdict(findings, len(nodes))
        told = {"values": values(table), "direction": "both", "unit": "µs" if table.is_time else "GB/s"}
    for line in warnings:
        write_warning(line, stderr)
    if as_json:
        stdout.write(json.dumps({"hosts": list(nodes), **told, **findings.to_json(), "exit_code": code}, indent=1) + "\n")
    else:
        stdout.write("\n".join([f"{counted(len(nodes), 'node')}, {path}", *findings_lines(findings), why]) + "\n")
    return Ended(exit_code=code, why=why)


def _measure(
    spec: Any, nproc: int | None, groups: Path | None, allowed: float | None, out: Path | None, *, confirm: bool, as_json: bool
) -> Ended:
    from nccl_bench.cli.places import groups_of, local_count
    from nccl_bench.fabric.host_read import Roots
    from nccl_bench.flows.council import convene, dismiss, follow
    from nccl_bench.flows.doctor import server
    from nccl_bench.flows.events import Where
    from nccl_bench.flows.pairs import run_pairs
    from nccl_bench.flows.sweep import torch_version
    from nccl_bench.launch.launchers import from_environ
    from nccl_bench.measure.pairs_spec import estimate_s
    from nccl_bench.report.progress import Progress
    from nccl_bench.units import counted, format_seconds, format_size

    torch_version()
    launch = from_environ(os.environ, self_launch=nproc is not None)
    n_local = local_count(nproc, launch, spec.backend, os.environ)
    council = convene(launch, os.environ, n_local, stderr=sys.stderr)
    try:
        if not council.leads:
            code, _ = follow(council, server(council, Roots()))
            return Ended(exit_code=code if 2 <= code <= 7 else 0, why="")
        hosts = list(dict.fromkeys(join["host"] for join in council.joins.values()))
        places = groups_of(groups, os.environ, council.addresses())
        n, seconds = estimate_s(spec, len(hosts), max(1, council.n_ranks // max(1, len(hosts))), "nccl" if spec.backend == "nccl" else "gloo")
        who = f"{counted(len(hosts), 'node')}, {counted(council.n_ranks, 'rank')}"
        sys.stderr.write(f"{who}: {counted(n, 'case')}, at most {format_seconds(seconds + 20)}\n")
        progress, done = Progress(sys.stderr), 0

        def on(message: dict[str, Any]) -> None:
            nonlocal done
            if message["type"] == "pairs":
                done += 1
                progress.update(min(done, n), n, f"round {message['round'] + 1}", format_size(message["nbytes"]))

        try:
            tested = run_pairs(spec, council, Where(out=out), argv=sys.argv, groups=places, oversubscription=allowed, on=on, confirm=confirm)
        finally:
            progress.close()
        dismiss(council, tested.exit_code, tested.why)
        _show(tested, as_json=as_json)
        return Ended(exit_code=tested.exit_code, why=tested.why)
    finally:
        council.close()


def _show(tested: Any, *, as_json: bool) -> None:
    from nccl_bench.report.suspects import findings_lines, matrix_lines
    from nccl_bench.report.terminal import banner
    from nccl_bench.verdict.measured_pairs import matrix

    text = banner(not_nccl=tested.not_nccl, shared_gpu=tested.shared_gpu)
    table = matrix(tested.evidence.exchanges, tested.hosts) if tested.evidence is not None and tested.evidence.exchanges is not None else None
    if as_json:
        shown = {} if table is None else {"hosts": table["hosts"], "values": table["one_way_GBps"], "direction": "row to column", "unit": "GB/s"}
        how = {"exit_code": tested.exit_code, "not_nccl": tested.not_nccl, "path": tested.path}
        record = {**shown, "matrix": table, **tested.findings.to_json(), **how}
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    else:
        lines = [text] if text else []
        lines += matrix_lines(table) if table is not None and len(tested.hosts) <= MATRIX_UP_TO else []
        lines += findings_lines(tested.findings) + ([f"kept in {tested.path}"] if tested.path else []) + ([text] if text else [])
        sys.stdout.write("\n".join(lines) + "\n")
    if tested.exit_code in range(2, 8) and tested.lines:
        sys.stderr.write("\n       ".join([f"error: {tested.lines[0]}", *tested.lines[1:]]) + "\n")
