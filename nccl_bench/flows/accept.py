"""Acceptance from start to verdict: stage after stage in fresh workers; who fails or is silent is left out, said, and the rest go on.

Node-local stages come before any world of several hosts exists. Everything that is judged is on disk first: points.jsonl,
pairs.jsonl and accept.json make `judge_run` give the same verdict again, and `--resume` go on after a kill.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nccl_bench import __version__
from nccl_bench.errors import InterruptedRun, NcclBenchError
from nccl_bench.flows.accept_cases import SIZES, each
from nccl_bench.flows.accept_hosts import chosen, not_there
from nccl_bench.flows.accept_plan import Estimate, pair_budget_s
from nccl_bench.flows.accept_run import (
    Ended,
    Event,
    Run,
    Said,
    StageBegun,
    StageEnded,
    attempts,
    exclude,
    judge_counters,
    read_counters,
    replace_host,
)
from nccl_bench.flows.accept_spec import AcceptSpec, collectives_of
from nccl_bench.flows.accept_state import has_rdma, keep_facts, keep_hosts, restore
from nccl_bench.flows.council import Council, Serve, as_json, dismiss
from nccl_bench.flows.doctor import diagnose
from nccl_bench.flows.events import Where
from nccl_bench.flows.header import conf_lines, driver_version
from nccl_bench.flows.judged import judge_run
from nccl_bench.flows.keeper import condense
from nccl_bench.flows.pairs import Seats, confirming, evidence_of, keep
from nccl_bench.flows.worlds import World
from nccl_bench.measure.pairs_spec import PairSpec
from nccl_bench.measure.spec import Backend, SweepSpec
from nccl_bench.records import Group, Json, Point, RunHeader
from nccl_bench.results.env import allowed_env
from nccl_bench.results.store import create_run, default_path, resume_run, utc_text
from nccl_bench.units import counted, format_seconds
from nccl_bench.verdict.criteria import Criteria
from nccl_bench.verdict.localise import localise

NIC_ONLY = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""All traffic of a node through its NICs (NCCL user guide, environment variables)."""
OnMessage = Callable[[Json], None]


def accept(
    spec: AcceptSpec, council: Council, serve: Serve, where: Where, criteria: Criteria, argv: Sequence[str], groups: Callable[[Sequence[str]], Any],
    plan: Estimate, on: OnMessage | None = None,
) -> Iterator[Event]:  # fmt: skip
    """Run the stages and judge; rank 0's part, the others `follow`. Raises UsageError where the run cannot be written."""
    hosts = {rank: str(council.joins[rank]["host"]) for rank in sorted(council.joins)}
    now = datetime.now(UTC)
    header = RunHeader(
        tool=f"nccl-bench {__version__}", argv=tuple(argv), started_at=utc_text(now), launcher=council.launch.launcher, job=council.launch.job,
            backend=None, not_nccl=spec.backend == "gloo",
        n_ranks=len(hosts), n_nodes=len(set(hosts.values())), spec={"accept": spec.to_json()}, env=allowed_env(council.environ),
        ranks=tuple({"rank": rank, "host": host, "local_rank": council.joins[rank].get("local_rank"), "pid": None, "gpu": None} for rank,
            host in hosts.items()),
        versions={"nccl_bench": __version__, "driver": driver_version()}, nccl_conf=conf_lines(council.environ),
    )  # fmt: skip
    gloo = "-gloo" if spec.backend == "gloo" else ""
    path = where.out or default_path(where.root, now, council.launch.host, len(hosts), gloo=bool(gloo), job=council.launch.job, name=where.name)
    run = Run(spec, council, serve, create_run(path, header, latest=where.out is None), groups, dict(hosts), plan, on=on)
    yield from _chosen(run)
    yield from _absent(run)
    yield from _to_the_end(run, criteria)


def resume(
    path: Path, spec: AcceptSpec, facts: Json, council: Council, serve: Serve, criteria: Criteria, groups: Callable[[Sequence[str]], Any],
    plan: Estimate, on: OnMessage | None = None,
) -> Iterator[Event]:  # fmt: skip
    """Go on with a run that was cut off: its finished stages are kept. Raises UsageError where other hosts are here."""
    run = Run(spec, council, serve, resume_run(path), groups, {rank: str(join["host"]) for rank, join in council.joins.items()}, plan, on=on)
    known = run.writer.header.ranks
    if "hosts" not in facts:  # cut off before its first stage
        for _ in _chosen(run):
            pass
    for text in restore(run, facts, tuple(known)):
        yield Said(text=text)
    kept = [stage for stage in spec.stages if stage in run.finished]
    yield Said(text=f"resumed: {', '.join(kept) if kept else 'no stage'} kept, attempt {run.attempt}")
    yield from _to_the_end(run, criteria)


def _to_the_end(run: Run, criteria: Criteria) -> Iterator[Event]:
    began = time.monotonic()
    keep_facts(run)
    try:
        for stage in run.spec.stages:
            if stage in run.finished:
                continue
            yield from _stage(run, stage, began)
            keep_facts(run)
    except (InterruptedRun, KeyboardInterrupt) as err:
        raise _broken_off(run, err) from None
    path = run.writer.path
    judged = judge_run(path, criteria, run.groups)
    run.writer.write_file("verdict.json", judged.to_json())
    run.writer.finish(datetime.now(UTC), judged.verdict.exit_code, judged.verdict.why)
    yield Ended(judged=judged, path=path)


def _broken_off(run: Run, err: BaseException) -> InterruptedRun:
    """Keep what there is, let the others go; the stage that was cut is not finished."""
    keep_facts(run)
    ended = err if isinstance(err, InterruptedRun) else InterruptedRun(signal.SIGINT, "interrupted")
    run.writer.finish(datetime.now(UTC), ended.exit_code, ended.why)
    with contextlib.suppress(NcclBenchError, OSError):
        dismiss(run.council, ended.exit_code, ended.why)
    return InterruptedRun(ended.exit_code - 128, ended.why, f"finished stages are kept: nccl-bench accept --resume {run.writer.path}")


def _chosen(run: Run) -> Iterator[Event]:
    """Who takes part: --hosts and --exclude, and the last hosts as spares. Raises UsageError for a host that is not there."""
    spec, here, absent = run.spec, run.hosts(), absent_hosts(run.council)
    taking_part, spares = chosen(spec, here, absent)
    for host in not_there(spec, (*here, *absent)):
        yield Said(text=f"--exclude: {host} is not in this allocation")
    for host in [host for host in here if host not in taking_part]:
        yield Said(text=f"{host} is left out, as asked")
    run.hosts_at_start, run.spares_at_start = taking_part, spares
    run.bench = {rank: host for rank, host in run.members.items() if host in spares}
    run.members = {rank: host for rank, host in run.members.items() if host in taking_part and host not in spares}
    if spares:
        yield Said(text=f"spares, held back from stages across hosts: {', '.join(spares)}")


def absent_hosts(council: Council) -> list[str]:
    """Hosts of ranks that never came, "rank N" where nobody knows its host."""
    where, missing = council.launch.rank_hosts, [rank for rank in range(council.n_ranks) if rank not in council.joins]
    return list(dict.fromkeys(where[rank] if rank < len(where) else f"rank {rank}" for rank in missing)) if council.absent else []


def _absent(run: Run) -> Iterator[Event]:
    for name in absent_hosts(run.council):
        if name in run.spec.exclude or (run.spec.hosts and name not in run.spec.hosts):
            continue
        run.excluded.append({"host": name, "stage": "meeting", "reason": "never came"})
        run.hosts_at_start += [] if name in run.hosts_at_start else [name]
        run.members = {rank: host for rank, host in run.members.items() if host != name}
        yield Said(text=f"{name} never came: the others go on")
        yield from replace_host(run, "meeting", name)


def _stage(run: Run, stage: str, began: float) -> Iterator[Event]:
    if (reason := _no_time(run, stage, began)) is not None:
        run.not_run.append({"stage": stage, "reason": reason, "fine": False})
        yield StageEnded(stage=stage, seconds=0.0, how=f"left out: {reason}")
        return
    started, n_excluded = time.monotonic(), len(run.excluded)
    yield StageBegun(stage=stage, worlds=0, hosts=len(run.taking_part(stage)))
    before = read_counters(run)
    if stage == "doctor":
        yield from _doctor(run)
    elif stage == "pairs":
        yield from _pairs(run)
    else:
        yield from _collectives(run, stage)
    judge_counters(run, stage, before)
    run.finished[stage] = run.attempt
    left_out = [str(one["reason"]) for one in run.not_run if one["stage"] == stage]
    lost = [str(one["host"]) for one in run.excluded[n_excluded:]]
    broken = ["broke"] if any(one["stage"] == stage for one in run.broken) else []
    how = "; ".join([*(f"not tested: {text}" for text in left_out), *broken, *([f"lost {', '.join(lost)}"] if lost else [])])
    yield StageEnded(stage=stage, seconds=time.monotonic() - started, how=how)


def _no_time(run: Run, stage: str, began: float) -> str | None:
    """Why a stage is left out for want of time: by the plan, or because the stages before took longer."""
    if stage in run.plan.left_out:
        return run.plan.left_out[stage]
    needs, budget_s = run.plan.seconds.get(stage, 0.0), run.spec.budget_s
    left = None if budget_s is None else budget_s - (time.monotonic() - began)
    if left is not None and needs > left:
        return f"needs about {format_seconds(needs)}, and of --budget {format_seconds(max(0.0, left))} are left"
    return None


def _doctor(run: Run) -> Iterator[Event]:
    run.diagnosis = diagnose(run.council, run.serve, sorted(run.local()), run.spec.silent_s)
    run.doctor = [row.to_json() for row in run.diagnosis.results]
    keep_hosts(run)
    known = [host for host in run.diagnosis.silent_hosts if host in run.local().values()]
    yield from exclude(run, "doctor", dict.fromkeys(known, f"silent for {run.spec.silent_s:.0f} s"))


def _layout(run: Run, stage: str) -> Callable[[], list[list[int]]]:
    def layout() -> list[list[int]]:
        hosts, all_ranks = run.hosts(), sorted(run.members)
        match stage:
            case "node" | "nic":
                return [ranks for host in run.taking_part(stage) if len(ranks := run.ranks_of(host)) > 1]
            case "rails":
                width = min((len(run.ranks_of(host)) for host in hosts), default=0)
                return [[run.ranks_of(host)[local] for host in hosts] for local in range(width)] if width > 1 and len(hosts) > 1 else []
            case _:
                return [all_ranks] if len(all_ranks) > 1 else []

    return layout


def _collectives(run: Run, stage: str) -> Iterator[Event]:
    reason = _why_not(run, stage)
    if reason is not None:
        run.not_run.append({"stage": stage, "reason": reason, "fine": stage in ("nic", "rails", "scale", "node")})
        return
    extra = NIC_ONLY if stage == "nic" else {}
    layouts = _scale(run) if stage == "scale" else [_layout(run, stage)]
    for layout in layouts:
        hear = _Hear(run, stage, layout)
        for item in attempts(run, stage, "sweep", as_json(_sweep_spec(run, stage, layout())), layout, extra, hear):
            if isinstance(item, tuple):
                for members, world in zip(item[0], item[1].worlds, strict=True):
                    _keep(run, stage, members, world, hear.n_kept if run.council.launch.rank in members else 0)
                hear = hear.again()
            else:
                yield item


class _Hear:
    """Keeps the points of this process's own world as they are measured: a kill in a long soak loses none."""

    def __init__(self, run: Run, stage: str, layout: Callable[[], list[list[int]]]) -> None:
        self.run, self.stage, self.layout, self.n_kept = run, stage, layout, 0
        self._members: list[int] | None = None

    def again(self) -> _Hear:
        """For the next attempt: other members, nothing kept."""
        self.n_kept, self._members = 0, None
        return self

    def __call__(self, message: Json) -> None:
        if self.run.on is not None:
            self.run.on(message)
        if message["type"] != "point":
            return
        if self._members is None:
            rank = self.run.council.launch.rank
            self._members = next((members for members in self.layout() if rank in members), [])
        if self._members:
            keep_point(self.run, self.stage, self._members, message)
            self.n_kept += 1


def _why_not(run: Run, stage: str) -> str | None:
    hosts = run.taking_part(stage)
    most = max((len(run.ranks_of(host)) for host in hosts), default=0)
    if stage in ("node", "nic") and most < 2:
        return "one rank a host: nothing crosses a link inside it"
    if stage == "nic" and (run.backend == "gloo" or run.spec.backend == "gloo" or not has_rdma(run)):
        return "no RDMA port, or not NCCL"
    if stage in ("rails", "scale") and len(hosts) < (2 if stage == "rails" else 3):
        return counted(len(hosts), "host")
    if stage == "rails" and most < 2:
        return "one rank a host: the cluster stage is its one rail"
    if run.council.launch.launcher == "none" and stage in ("rails", "scale"):
        return "one process started all ranks"
    if len(run.members) < 2:
        return "fewer than two ranks are left"
    return None


def _scale(run: Run) -> list[Callable[[], list[list[int]]]]:
    """Groups of 2, 4, 8 ... hosts at once, up to half of them."""

    def groups(k: int) -> Callable[[], list[list[int]]]:
        def layout() -> list[list[int]]:
            hosts = run.hosts()
            return [[rank for host in hosts[at : at + k] for rank in run.ranks_of(host)] for at in range(0, len(hosts) - k + 1, k)]

        return layout

    sizes, k = [], 2
    while k <= len(run.hosts()) // 2:
        sizes.append(k)
        k *= 2
    return [groups(k) for k in sizes or [2]]


def _sweep_spec(run: Run, stage: str, worlds: Sequence[Sequence[int]]) -> SweepSpec:
    gloo = run.spec.backend == "gloo" or run.backend == "gloo" or (run.spec.backend == "auto" and not _has_gpus(run))
    backend: Backend = "gloo" if gloo else "nccl"
    load = run.spec.load if stage == "soak" else None
    return SweepSpec(
        collectives=collectives_of(stage, run.spec.more), sizes=SIZES[backend],
        each=each(stage, run.spec.more, backend, max(map(len, worlds), default=1)), budget_s=run.plan.case_s, backend=run.spec.backend,
        timeout_s=run.spec.timeout_s, duration_s=run.spec.soak_s if stage == "soak" else None, load=load,
        variant=None if load is None else f"beside {load}", clocks=("auto",) if load is None else ("eager",),
    )  # fmt: skip


def _has_gpus(run: Run) -> bool:
    return any(host.get("gpus") or host.get("n_device_files") for host in (run.diagnosis.hosts if run.diagnosis is not None else ()))


def _keep(run: Run, stage: str, members: Sequence[int], world: World, n_kept: int) -> None:
    """Keep what a world measured, but for the first `n_kept` points, which are on disk."""
    for message in world.of("point")[n_kept:]:
        keep_point(run, stage, members, message)
    for message in world.of("load"):
        seen: dict[str, int] = {}
        for rank, tflops in zip(members, message["tflops"], strict=True):
            host = str(run.council.joins[rank]["host"])
            seen[host] = seen.get(host, -1) + 1
            run.load_rates.append({"host": host, "gpu": seen[host], "tflops": tflops})


def keep_point(run: Run, stage: str, members: Sequence[int], message: Json) -> None:
    """One point, with the stage and the ranks of its world."""
    hosts = [str(run.council.joins[rank]["host"]) for rank in members]
    point = Point.from_json(message["point"])
    if message["lateness_us"]:
        point = replace(point, lateness_us=condense(message["lateness_us"], hosts, keep_all=False))
    group = Group(axis=stage, size=len(members), slowest=run.numbers(members))
    run.writer.append(replace(point, stage=stage, group=group, attempt=run.attempt))


# ---- pairs


def _pairs(run: Run) -> Iterator[Event]:
    if len(run.members) < 2:
        run.not_run.append({"stage": "pairs", "reason": "fewer than two ranks are left", "fine": False})
        return
    spec = PairSpec(mode=run.plan.mode, backend=run.spec.backend, timeout_s=run.spec.timeout_s, budget_s=pair_budget_s(run.plan.case_s))
    records: list[Json] = []
    seats: Seats | None = None
    for item in attempts(run, "pairs", "pairs", as_json(spec), _layout(run, "pairs"), {}, run.on):
        if isinstance(item, tuple):
            members, world = item[0][0], item[1].worlds[0]
            seats, records = _keep_pairs(run, members, world)
        else:
            yield item
    if seats is None or not records or any(one["stage"] == "pairs" for one in run.broken):
        return
    evidence = evidence_of(records, seats, run.groups(seats.hosts), run.spec.oversubscription)
    more = confirming(evidence, localise(evidence))
    if not more:
        return
    yield Said(text=f"{counted(len(more), 'pair is', 'pairs are')} measured once more")
    for item in attempts(run, "pairs", "pairs", as_json(replace(spec, pairs=more)), _layout(run, "pairs"), {}, run.on):
        if isinstance(item, tuple):
            _keep_pairs(run, item[0][0], item[1].worlds[0])
        else:
            yield item


def _keep_pairs(run: Run, members: Sequence[int], world: World) -> tuple[Seats, list[Json]]:
    """Keep the rounds of one world, then who sat where: rounds without that line belong to a world that was cut off."""
    hosts = {rank: str(join["host"]) for rank, join in run.council.joins.items()}
    seats, records = seats_of(members, hosts), [{**record, "world": run.n_pair_worlds} for record in world.of("pairs")]
    keep(run.writer, records, seats, attempt=run.attempt, numbers=run.numbers(members))
    run.writer.append_record("pairs-seats.jsonl", {
        "world": run.n_pair_worlds, "members": list(run.numbers(members)), "n_records": len(records), "ok": world.exit_code in (0, 7),
        "attempt": run.attempt,
    })  # fmt: skip
    run.n_pair_worlds += 1
    return seats, records


def seats_of(members: Sequence[int], hosts: Mapping[int, str]) -> Seats:
    """The seats of a world's ranks: nodes by their lowest rank, local ranks in order."""
    names = list(dict.fromkeys(hosts.get(rank, "?") for rank in members))
    node = tuple(names.index(hosts.get(rank, "?")) for rank in members)
    local = tuple(sum(node[at] == node[before] for before in range(at)) for at in range(len(members)))
    return Seats(hosts=tuple(names), node=node, local=local)
