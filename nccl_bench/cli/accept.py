"""`nccl-bench accept`: accept or reject a cluster."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nccl_bench.cli.outcome import Ended


def accept(
    nproc_per_node: Annotated[int | None, typer.Option("-g", "--nproc-per-node", min=1, help="ranks to start here, where no launcher did")] = None,
    out: Annotated[Path | None, typer.Option("-O", "--out", help="the run directory itself")] = None,
    criteria: Annotated[Path | None, typer.Option("--criteria", metavar="FILE.toml", help="what is required (criteria/ has examples)")] = None,
    stages: Annotated[str | None, typer.Option("--stages", metavar="LIST", help="doctor,node,nic,pairs,rails,scale,cluster")] = None,
    min_nodes: Annotated[str | None, typer.Option("--min-nodes", metavar="N|FRAC", help="hosts that must be left")] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", metavar="HOSTS", help="hosts to leave out")] = None,
    soak: Annotated[str | None, typer.Option("--soak", metavar="4h", help="repeat the cluster stage for so long")] = None,
    groups: Annotated[Path | None, typer.Option("--groups", metavar="FILE", help="CSV: host, rack, leaf, rail switch")] = None,
    oversubscription: Annotated[
        str | None, typer.Option("--oversubscription", metavar="N:1", help="how much slower pairs between groups may be")
    ] = None,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", help="seconds a case")] = 1.0,
    mode: Annotated[str | None, typer.Option("--mode", metavar="full|screen|K", help="of the pairs stage")] = None,
    backend: Annotated[Literal["auto", "nccl", "gloo"], typer.Option("--backend", help="nccl where there are GPUs, else gloo")] = "auto",
    timeout: Annotated[float, typer.Option("-T", "--timeout", help="seconds without progress before a case is given up")] = 60.0,
    silent: Annotated[float, typer.Option("--silent", help="seconds until a host counts as silent")] = 30.0,
    run: Annotated[Path | None, typer.Option("--run", metavar="RUN", help="judge a recorded acceptance again")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="JUnit XML")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="the certificate")] = None,
    prometheus: Annotated[Path | None, typer.Option("--prometheus", metavar="FILE", help="a textfile for node_exporter")] = None,
    drain: Annotated[Literal["scontrol", "kubectl"] | None, typer.Option("--drain", help="print the lines to run; nothing is run")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say stages, thresholds and an estimate; nothing is started")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="verdict.json on stdout")] = False,
) -> Ended:
    """Checks, measurements, suspects and a verdict for a whole allocation: may this cluster be signed for, and if not, what goes back.

    Ends 0 pass, 1 fail, 7 wrong data, 8 inconclusive. A run that is not NCCL, or whose ranks share a GPU, is a rehearsal and ends 8.
    """
    given: dict[str, Any] = dict(locals())
    from nccl_bench.verdict.criteria import Criteria, read

    wanted = Criteria() if criteria is None else read(criteria)
    if run is not None:
        return _again(run, wanted, given)
    return _live(wanted, given)


def _again(path: Path, criteria: Any, given: dict[str, Any]) -> Ended:
    from nccl_bench.cli.places import groups_of
    from nccl_bench.flows.judged import judge_run
    from nccl_bench.results.store import find_run

    return _show(judge_run(find_run(str(path)).resolve(), criteria, groups_of(given["groups"], os.environ)), find_run(str(path)), given)


def _live(criteria: Any, given: dict[str, Any]) -> Ended:
    from nccl_bench.cli.places import groups_of, local_count
    from nccl_bench.fabric.host_read import Roots
    from nccl_bench.flows import accept as flow
    from nccl_bench.flows.accept_run import Ended as FlowEnded
    from nccl_bench.flows.accept_run import Said
    from nccl_bench.flows.council import convene, dismiss, follow
    from nccl_bench.flows.doctor import server
    from nccl_bench.flows.events import Where
    from nccl_bench.flows.sweep import torch_version
    from nccl_bench.launch.launchers import from_environ
    from nccl_bench.report.acceptance import threshold_lines

    spec = _spec(given)
    launch = from_environ(os.environ, self_launch=given["nproc_per_node"] is not None)
    n_local = local_count(given["nproc_per_node"], launch, spec.backend, os.environ)
    where, groups = Where(out=given["out"]), groups_of(given["groups"], os.environ)
    if given["dry_run"]:
        if launch.rank == 0:
            sys.stdout.write("\n".join([f"stages: {', '.join(spec.stages)}", _estimate(spec), *threshold_lines(criteria.thresholds())]) + "\n")
        return Ended(exit_code=0, why="")
    torch_version()
    council = convene(launch, os.environ, n_local, patience_s=given["silent"], stderr=sys.stderr)
    try:
        serve = server(council, Roots())
        if not council.leads:
            code, _ = follow(council, serve)
            return Ended(exit_code=0 if code in (0, 1, 8) else code, why="")
        spec = _with_min(spec, given["min_nodes"], len({join["host"] for join in council.joins.values()}))
        sys.stderr.write("\n".join([_estimate(spec), *threshold_lines(criteria.thresholds())]) + "\n")
        ended = None
        for event in flow.accept(spec, council, serve, where, criteria, sys.argv, groups):
            if isinstance(event, FlowEnded):
                ended = event
            elif isinstance(event, Said):
                sys.stderr.write(f"note: {event.text}\n")
            else:
                worlds = f", {event.worlds} world{'s' * (event.worlds != 1)}" if event.worlds else ""
                sys.stderr.write(f"stage {event.stage}: {event.hosts} hosts{worlds}\n")
        assert ended is not None
        dismiss(council, ended.judged.verdict.exit_code, ended.judged.verdict.why)
        return _show(ended.judged, ended.path, given)
    finally:
        council.close()


def _spec(given: dict[str, Any]) -> Any:
    from nccl_bench.cli.places import ratio
    from nccl_bench.errors import UsageError
    from nccl_bench.flows.accept_run import DEFAULT_STAGES, STAGES, AcceptSpec
    from nccl_bench.launch.hostlist import expand
    from nccl_bench.units import parse_seconds

    stages = DEFAULT_STAGES if given["stages"] is None else tuple(word.strip() for word in given["stages"].split(",") if word.strip())
    if bad := [word for word in stages if word not in STAGES]:
        raise UsageError(f"--stages: {bad[0]!r} is no stage", f"there are: {', '.join(STAGES)}")
    if "soak" in stages and given["soak"] is None:
        raise UsageError("--stages soak needs --soak 4h")
    stages = (*stages, "soak") if given["soak"] is not None and "soak" not in stages else stages
    return AcceptSpec(
        stages=stages, backend=given["backend"], budget_s=given["budget"], soak_s=None if given["soak"] is None else parse_seconds(given["soak"]),
        exclude=tuple(expand(given["exclude"])) if given["exclude"] else (), oversubscription=ratio(given["oversubscription"]), mode=given["mode"],
        timeout_s=given["timeout"], silent_s=given["silent"],
    )  # fmt: skip


def _with_min(spec: Any, text: str | None, n_hosts: int) -> Any:
    """The spec with --min-nodes as a number of hosts: "30", or a share, "0.9"."""
    from dataclasses import replace

    from nccl_bench.errors import UsageError

    if text is None:
        return spec
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"--min-nodes {text!r}: a number of hosts, or a share below 1") from None
    return replace(spec, min_hosts=int(-(-value * n_hosts // 1)) if value < 1 else int(value))


def _estimate(spec: Any) -> str:
    from nccl_bench.units import format_seconds

    n = sum(stage not in ("doctor", "soak") for stage in spec.stages)
    return f"{len(spec.stages)} stages, about {format_seconds(20 * n + 8 * n * spec.budget_s + (spec.soak_s or 0.0))} on a few hosts"


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
    write_text(html, certificate(verdict, judged.header, judged.facts), "--html")
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
