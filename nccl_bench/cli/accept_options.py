"""Options of accept: what goes together, the spec they make, and how long that takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nccl_bench.errors import UsageError

MEASURES = ("stages", "hosts", "exclude", "spares", "min_nodes", "soak", "load", "reference", "budget", "case_budget", "mode", "oversubscription")
"""Options that say what is measured: a recorded run has its own."""


def check_together(given: Mapping[str, Any]) -> None:
    """Raise UsageError for options that do not go together."""
    if given["run"] is not None and given["resume"] is not None:
        raise UsageError("--run judges what is recorded, --resume measures on: give one of them")
    if given["dry_run"] and given["as_json"]:
        raise UsageError("--dry-run says in words what would be done, it has no JSON", "leave --json out")
    told = "run" if given["run"] is not None else "resume" if given["resume"] is not None else None
    if told is None:
        return
    more = ("out", "dry_run") if told == "run" else ("out", "baseline")
    wrong = [name for name in (*MEASURES, *more) if given[name]]
    if wrong:
        option = "--" + wrong[0].replace("_", "-")
        why = "nothing is measured with --run" if told == "run" else "a resumed run goes on as it was begun"
        raise UsageError(f"{option} does not go with --{told}: {why}", f"leave {option} out")


def baseline_of(words: Sequence[str] | None) -> tuple[str, ...]:
    """The runs of --baseline as paths that hold from anywhere. Raises DataError where one cannot be read."""
    from nccl_bench.results.runs import open_runs

    return tuple(str(run.path.resolve()) for run in open_runs(list(words))) if words else ()


def spec_of(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """(AcceptSpec, accept.json of a run to resume or {}). Raises UsageError, DataError."""
    from nccl_bench.cli.places import ratio
    from nccl_bench.flows.accept_hosts import hosts_of, least
    from nccl_bench.flows.accept_spec import DEFAULT_STAGES, STAGES, AcceptSpec
    from nccl_bench.measure.pairs_spec import PairSpec
    from nccl_bench.units import parse_seconds

    if given["resume"] is not None:
        return _resumed(given)
    stages = DEFAULT_STAGES if given["stages"] is None else tuple(word.strip() for word in given["stages"].split(",") if word.strip())
    if bad := [word for word in stages if word not in STAGES]:
        raise UsageError(f"--stages: {bad[0]!r} is no stage", f"there are: {', '.join(STAGES)}")
    if not stages:
        raise UsageError("--stages names no stage", f"there are: {', '.join(STAGES)}")
    if "soak" in stages and given["soak"] is None:
        raise UsageError("--stages soak needs --soak 4h")
    wanted = {*stages, *(("soak",) if given["soak"] is not None else ())}
    PairSpec(mode=given["mode"])  # what is wrong with it is said before anybody is met
    if given["min_nodes"] is not None:
        least(given["min_nodes"])
    if given["load"] is not None:
        _check_load(given, environ)
    return AcceptSpec(
        stages=tuple(stage for stage in STAGES if stage in wanted), backend=given["backend"], case_s=given["case_budget"],
        budget_s=None if given["budget"] is None else 60.0 * given["budget"],
        soak_s=None if given["soak"] is None else parse_seconds(given["soak"], "--soak"), load=given["load"],
        hosts=hosts_of(given["hosts"], "--hosts"), exclude=hosts_of(given["exclude"], "--exclude"),
        spares=given["spares"], baseline=baseline_of(given["baseline"]), oversubscription=ratio(given["oversubscription"]), mode=given["mode"],
        timeout_s=given["timeout"], silent_s=given["silent"],
    ), {}  # fmt: skip


def with_criteria(spec: Any, criteria: Any, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """(the spec with what the criteria judge beside the sizes of all, the criteria).

    A resumed run is held against the file that it was begun with unless another is given; what that one judges beside it is not measured, and said.
    """
    from pathlib import Path

    from nccl_bench.flows.accept_cases import added, not_measured
    from nccl_bench.report.terminal import write_warning
    from nccl_bench.verdict.criteria import read

    if given["resume"] is None:
        path = None if criteria.path is None else str(Path(criteria.path).resolve())
        return replace(spec, more=added(criteria, spec.stages, spec.load), criteria=path), criteria
    if given["criteria"] is None and spec.criteria is not None:
        criteria = read(Path(spec.criteria))
    for line in not_measured(spec, criteria):
        write_warning(line, sys.stderr)
    return spec, criteria


def _check_load(given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    from nccl_bench.launch.local import visible_gpus

    if given["backend"] == "gloo" or not visible_gpus(environ):
        why = "--backend gloo uses none" if given["backend"] == "gloo" else "there is none here"
        raise UsageError(f"--load gemm heats GPUs, and {why}", "leave --load out: the soak then repeats the cluster stage alone")


def _resumed(given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    from nccl_bench.flows.accept_state import recorded
    from nccl_bench.results.store import find_run

    spec, facts = recorded(find_run(given["resume"], first="accept"))
    return (spec if given["backend"] == "auto" else _same_backend(spec, given["backend"])), {"finished": {}, **facts}


def _same_backend(spec: Any, backend: str) -> Any:
    if spec.backend != backend:
        raise UsageError(f"--backend {backend}: the run was begun with {spec.backend}", "leave --backend out")
    return spec


def with_hosts(spec: Any, given: Mapping[str, Any], here: Sequence[str], absent: Sequence[str] = (), *, whole: bool = True) -> Any:
    """The spec with what depends on the hosts: --min-nodes as a number of those that were to come, and whom --reference names.

    `absent`: hosts that never came; `whole`: whether both are all of the allocation. Raises UsageError for what cannot be.
    """
    from nccl_bench.flows.accept_hosts import chosen, least, min_hosts
    from nccl_bench.flows.accept_reference import reference_of

    chosen(spec, here, absent)
    known = None if given["reference"] is None else reference_of(given["reference"], here).to_json()
    spec = replace(spec, reference=known)
    if given["min_nodes"] is None:
        return spec
    return replace(spec, min_hosts=min_hosts(least(given["min_nodes"]), spec, (*here, *absent), whole=whole))


def estimate_of(spec: Any, n_hosts: int, n_local: int, environ: Mapping[str, str], facts: Mapping[str, Any]) -> Any:
    """What runs and how long it takes; of a resumed run, its open stages."""
    from nccl_bench.flows.accept_plan import estimate
    from nccl_bench.launch.local import visible_gpus

    nccl = spec.backend == "nccl" or (spec.backend == "auto" and bool(visible_gpus(environ)))
    open_ = tuple(stage for stage in spec.stages if stage not in facts.get("finished", {}))
    return estimate(replace(spec, stages=open_) if spec.load is None or "soak" in open_ else replace(spec, stages=open_, load=None),
                    n_hosts, n_local, "nccl" if nccl else "gloo")  # fmt: skip

