"""`nccl-bench accept`: accept or reject a cluster."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nccl_bench.cli.outcome import Ended

_WHO, _WHAT, _AGAINST, _FILES = "Who takes part", "What is measured", "What it is held against", "What is written"

def accept(
    nproc_per_node: Annotated[int | None, typer.Option("-g", "--nproc-per-node", min=1, help="ranks to start here, where no launcher did")] = None,
    out: Annotated[Path | None, typer.Option("-O", "--out", help="the run directory itself")] = None,
    criteria: Annotated[Path | None, typer.Option("--criteria", metavar="FILE.toml", help="what is required (see: explain criteria)")] = None,
    stages: Annotated[
        str | None,
        typer.Option(
            "--stages", metavar="LIST", help="of doctor,node,nic,pairs,rails,scale,cluster: these, and a verdict on these", rich_help_panel=_WHAT
        ),
    ] = None,
    hosts: Annotated[str | None, typer.Option("--hosts", metavar="LIST", help="only these hosts of the allocation", rich_help_panel=_WHO)] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", metavar="HOSTS", help="hosts to leave out", rich_help_panel=_WHO)] = None,
    spares: Annotated[
        int,
        typer.Option("--spares", metavar="K", min=0, help="hold the last K hosts back: checked alone, they replace lost ones", rich_help_panel=_WHO),
    ] = 0,
    min_nodes: Annotated[
        str | None,
        typer.Option("--min-nodes", metavar="N|FRAC", help="hosts that must be left: a lost one then warns instead of failing", rich_help_panel=_WHO),
    ] = None,
    soak: Annotated[str | None, typer.Option("--soak", metavar="4h", help="repeat the cluster stage for so long", rich_help_panel=_WHAT)] = None,
    load: Annotated[Literal["gemm"] | None, typer.Option("--load", help="during soak: matrix products on every GPU", rich_help_panel=_WHAT)] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option("--baseline", metavar="RUN", help="signed earlier runs (a,b): slower by compare's rules fails", rich_help_panel=_AGAINST),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="RUN|HOSTS", help="known-good partners to re-test the other hosts against", rich_help_panel=_AGAINST),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option("--groups", metavar="FILE", help="CSV: host, rack, leaf, rail switch (else Slurm's topology)", rich_help_panel=_AGAINST),
    ] = None,
    oversubscription: Annotated[
        str | None, typer.Option("--oversubscription", metavar="N:1", help="how much slower pairs between groups may be", rich_help_panel=_AGAINST)
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="MIN", help="minutes for all: shorter cases, then fewer stages, which are said", rich_help_panel=_WHAT),
    ] = None,
    case_budget: Annotated[
        float | None, typer.Option("--case-budget", metavar="SECONDS", help="seconds a case (1; gloo 0.2)", rich_help_panel=_WHAT)
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="full|screen|K", help="of the pairs stage", rich_help_panel=_WHAT)] = None,
    backend: Annotated[Literal["auto", "nccl", "gloo"], typer.Option("--backend", help="nccl where there are GPUs, else gloo")] = "auto",
    timeout: Annotated[float, typer.Option("-T", "--timeout", help="seconds without progress before a case is given up")] = 60.0,
    silent: Annotated[float, typer.Option("--silent", help="seconds until a host counts as silent")] = 30.0,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="go on with an acceptance that was cut off; its options count")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="judge a recorded acceptance again")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="JUnit XML", rich_help_panel=_FILES)] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="the certificate", rich_help_panel=_FILES)] = None,
    prometheus: Annotated[
        Path | None, typer.Option("--prometheus", metavar="FILE", help="a textfile for node_exporter", rich_help_panel=_FILES)
    ] = None,
    drain: Annotated[
        Literal["scontrol", "kubectl"] | None, typer.Option("--drain", help="print the lines to run; nothing is run", rich_help_panel=_FILES)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say stages, thresholds and an estimate; nothing is started")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="verdict.json on stdout")] = False,
) -> Ended:
    """Checks, measurements, suspects and a verdict for a whole allocation: may this cluster be signed for, and if not, what goes back.

    Ends 0 pass, 1 fail, 7 wrong data, 8 inconclusive. A run that is not NCCL, or whose ranks share a GPU, is a rehearsal and ends 8.
    The verdict is of the stages asked for: what --stages leaves out is not tested, the run can still end 0, and its sentence says so.
    """
    given: dict[str, Any] = dict(locals())
    from nccl_bench.cli.accept_options import check_together
    from nccl_bench.cli.files import check_writable
    from nccl_bench.verdict.criteria import Criteria, read

    check_together(given)
    for path, option in ((junit, "--junit"), (html, "--html"), (prometheus, "--prometheus")):
        check_writable(path, option, made=out)
    wanted = Criteria() if criteria is None else read(criteria)
    return _again(run, wanted, given) if run is not None else _live(wanted, given)


def _again(text: str, criteria: Any, given: dict[str, Any]) -> Ended:
    from nccl_bench.cli.accept_options import baseline_of
    from nccl_bench.cli.files import write_text
    from nccl_bench.cli.places import groups_of
    from nccl_bench.flows.judged import judge_run
    from nccl_bench.results.store import find_run

    _warn(criteria)
    path = find_run(text, first="accept")
    _say_whose(path, criteria)
    judged = judge_run(path.resolve(), criteria, groups_of(given["groups"], {}), baseline_of(given["baseline"]) or None)
    write_text(path / "verdict.json", json.dumps(judged.to_json(), indent=1, ensure_ascii=False) + "\n", "--run")
    return _show(judged, path, given)


def _say_whose(path: Path, criteria: Any) -> None:
    """A run that was begun with criteria of somebody's own, and is judged by the defaults, could turn green without a word."""
    from nccl_bench.report.terminal import write_warning
    from nccl_bench.results.store import read_header

    begun = (read_header(path / "run.json").spec.get("accept") or {}).get("criteria")
    if criteria.path is None and begun:
        write_warning(f"judged by nccl-bench's defaults; the run was begun with --criteria {begun}", sys.stderr)


def _warn(criteria: Any) -> None:
    """Thresholds that would let a broken system through are said before the start."""
    from nccl_bench.report.terminal import write_warning
    from nccl_bench.verdict.lax import words

    for line in words(criteria):
        write_warning(line, sys.stderr)


def _live(criteria: Any, given: dict[str, Any]) -> Ended:
    from nccl_bench.cli.accept_dry import dry_lines
    from nccl_bench.cli.accept_options import spec_of, with_criteria
    from nccl_bench.cli.places import groups_of, local_count
    from nccl_bench.fabric.host_read import Roots
    from nccl_bench.flows.council import convene, follow
    from nccl_bench.flows.doctor import server
    from nccl_bench.flows.sweep import torch_version
    from nccl_bench.launch.launchers import from_environ

    spec, facts = spec_of(given, os.environ)
    spec, criteria = with_criteria(spec, criteria, given)
    launch = from_environ(os.environ, self_launch=given["nproc_per_node"] is not None)
    n_local = local_count(given["nproc_per_node"], launch, spec.backend, os.environ)
    groups_of(given["groups"], {})  # what is wrong in the file is said before anybody is met
    if given["dry_run"]:
        if launch.rank == 0:
            _warn(criteria)
            sys.stdout.write("\n".join(dry_lines(spec, facts, criteria, given, launch, n_local)) + "\n")
        return Ended(exit_code=0, why="")
    torch_version()
    council = convene(launch, os.environ, n_local, patience_s=given["silent"], stderr=sys.stderr)
    try:
        serve = server(council, Roots())
        if council.leads:
            return _lead(spec, facts, council, serve, criteria, given)
        code, _ = follow(council, serve)
        return Ended(exit_code=0 if code in (0, 1, 8) else code, why="")
    finally:
        council.close()


def _lead(spec: Any, facts: Any, council: Any, serve: Any, criteria: Any, given: dict[str, Any]) -> Ended:
    """Rank 0's part; whatever ends it ends the others too."""
    from nccl_bench.errors import NcclBenchError
    from nccl_bench.flows.council import dismiss

    try:
        judged, path = _stages(spec, facts, council, serve, criteria, given)
    except NcclBenchError as err:
        dismiss(council, err.exit_code, err.why)
        raise
    ended = _show(judged, path, given)
    _say_who_stays(judged, council)
    dismiss(council, ended.exit_code, ended.why)
    return ended


def _say_who_stays(judged: Any, council: Any) -> None:
    """A process that hangs keeps its step of Slurm open after all others have ended: how to end it."""
    lost = {one["host"] for one in judged.excluded}
    stay = [rank for rank, join in council.joins.items() if join["host"] in lost and rank not in council.gone]
    if stay and council.launch.launcher == "slurm":
        step = ".".join(os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        hosts = ", ".join(dict.fromkeys(str(council.joins[rank]["host"]) for rank in stay))
        sys.stderr.write(f"note: where a process on {hosts} still hangs, Slurm waits for it to the job's time limit; scancel {step} ends that\n")


def _stages(spec: Any, facts: Any, council: Any, serve: Any, criteria: Any, given: dict[str, Any]) -> tuple[Any, Path]:
    from dataclasses import replace

    from nccl_bench.cli.accept_options import estimate_of, with_hosts
    from nccl_bench.cli.places import groups_of
    from nccl_bench.flows import accept as flow
    from nccl_bench.flows.accept_run import Ended as FlowEnded
    from nccl_bench.flows.accept_run import Said, StageBegun, StageEnded
    from nccl_bench.flows.events import Where
    from nccl_bench.report.acceptance import threshold_lines
    from nccl_bench.report.stages import StageView

    here = list(dict.fromkeys(str(join["host"]) for join in council.joins.values()))
    absent = flow.absent_hosts(council)
    groups = groups_of(given["groups"], os.environ, council.addresses())
    if given["resume"] is None:
        spec = with_hosts(spec, given, here, absent, whole=not any(host.startswith("rank ") for host in absent))
    taking_part = [host for host in here if (not spec.hosts or host in spec.hosts) and host not in spec.exclude]
    plan = estimate_of(spec, max(1, len(taking_part) - spec.spares), max(1, len(council.joins) // len(here)), os.environ, facts)
    _warn(criteria)
    sys.stderr.write("\n".join([*plan.lines(), *threshold_lines(criteria.thresholds())]) + "\n")
    with StageView(sys.stderr) as view:
        view.begin(plan.seconds, plan.left_out)
        if given["resume"] is None:
            events = flow.accept(spec, council, serve, Where(out=given["out"]), criteria, sys.argv, groups, plan, view.message)
        else:
            from nccl_bench.results.store import find_run

            spec, path = replace(spec, timeout_s=given["timeout"], silent_s=given["silent"]), find_run(given["resume"], first="accept")
            events = flow.resume(path.resolve(), spec, facts, council, serve, criteria, groups, plan, view.message)
        for event in events:
            match event:
                case FlowEnded():
                    return event.judged, event.path
                case Said():
                    view.note(event.text)
                case StageBegun():
                    view.stage(event.stage, event.hosts, event.worlds)
                case StageEnded():
                    view.end(event.stage, event.seconds, event.how)
    raise AssertionError("an acceptance ends with its verdict")


def _drawn(verdict: Any, header: Any) -> tuple[tuple[Any, ...], dict[str, str]]:
    """The certificate's pictures, and each as a part of a page."""
    from nccl_bench.report import acceptance_pictures, charts

    pictures = acceptance_pictures.pictures(verdict, header)
    return pictures, {picture.name: charts.inline(charts.svg(picture), picture) for picture in pictures}


def _show(judged: Any, path: Path, given: dict[str, Any]) -> Ended:
    """Write the files that were asked for, and the page."""
    from nccl_bench.cli.files import write_text
    from nccl_bench.report.acceptance import drain_commands, lines
    from nccl_bench.report.certificate import certificate
    from nccl_bench.report.terminal import banner
    from nccl_bench.verdict.junit import junit_xml, prometheus

    verdict = judged.to_json()
    junit, html = given["junit"] or path / "junit.xml", given["html"] or path / "certificate.html"
    write_text(junit, junit_xml(judged.verdict.rows, "nccl-bench accept"), "--junit")
    write_text(html, certificate(verdict, judged.header, judged.facts, *_drawn(verdict, judged.header)), "--html")
    if given["prometheus"] is not None:
        write_text(given["prometheus"], prometheus(verdict), "--prometheus")
    text = banner(not_nccl=judged.header.not_nccl, shared_gpu=judged.header.shared_gpu)
    if given["as_json"]:
        sys.stdout.write(json.dumps(verdict, indent=1, ensure_ascii=False) + "\n")
    else:
        files = [str(path / "verdict.json"), str(html), str(junit)]
        page = lines(judged.header, judged.verdict.rows, judged.findings.suspects, verdict, files)
        page += drain_commands(verdict["drain"], judged.verdict.why, given["drain"]) if given["drain"] else []
        sys.stdout.write("\n".join([*([text] if text else []), *page, *([text] if text else [])]) + "\n")
    return Ended(exit_code=judged.verdict.exit_code, why=judged.verdict.why)
