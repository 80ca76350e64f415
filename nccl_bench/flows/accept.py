"""Acceptance from start to verdict: stage after stage in fresh workers; who fails or is silent is left out, said, and the rest go on.

Node-local stages come before any world of several hosts exists. Everything that is judged is on disk first: points.jsonl,
pairs.jsonl and accept.json make `judge_run` give the same verdict again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from nccl_bench import __version__
from nccl_bench.flows.accept_run import (
    AcceptSpec,
    Ended,
    Event,
    Run,
    Said,
    StageBegun,
    attempts,
    exclude,
    judge_counters,
    read_counters,
)
from nccl_bench.flows.council import Council, Outcome, Serve, as_json
from nccl_bench.flows.doctor import diagnose
from nccl_bench.flows.events import Where
from nccl_bench.flows.header import conf_lines, driver_version
from nccl_bench.flows.judged import judge_run
from nccl_bench.flows.pairs import PAIRS_FILE, Seats, evidence_of, keep
from nccl_bench.flows.worlds import World
from nccl_bench.measure.pairs_spec import PairSpec
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Group, Json, Point, RunHeader
from nccl_bench.results.env import allowed_env
from nccl_bench.results.store import create_run, default_path, utc_text
from nccl_bench.verdict.criteria import Criteria
from nccl_bench.verdict.localise import localise, suggest

FACTS_FILE = "accept.json"
SIZES = {"nccl": (8, 1 << 30), "gloo": (1024, 1 << 20)}
"""Small for latency, large for bandwidth: bandwidth is judged at 1 GiB (DESIGN.md section 2)."""
NIC_ONLY = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""All traffic of a node through its NICs (NCCL user guide, environment variables)."""
MAX_CONFIRM = 512


def accept(
    spec: AcceptSpec, council: Council, serve: Serve, where: Where, criteria: Criteria, argv: Sequence[str], groups: Callable[[Sequence[str]], Any]
) -> Iterator[Event]:
    """Run the stages and judge; rank 0's part, the others `follow`. Raises UsageError where the run cannot be written."""
    hosts = {rank: str(council.joins[rank]["host"]) for rank in sorted(council.joins)}
    now = datetime.now(UTC)
    header = RunHeader(
        tool=f"nccl-bench {__version__}", argv=tuple(argv), started_at=utc_text(now), launcher=council.launch.launcher, job=council.launch.job,
            backend=None,
        n_ranks=len(hosts), n_nodes=len(set(hosts.values())), spec={"accept": asdict(spec)}, env=allowed_env(council.environ),
        ranks=tuple({"rank": rank, "host": host, "local_rank": council.joins[rank].get("local_rank"), "pid": None, "gpu": None} for rank,
            host in hosts.items()),
        versions={"nccl_bench": __version__, "driver": driver_version()}, nccl_conf=conf_lines(council.environ),
    )  # fmt: skip
    gloo = "-gloo" if spec.backend == "gloo" else ""
    path = where.out or default_path(where.root, now, council.launch.host, len(hosts), gloo=bool(gloo), job=council.launch.job, name=where.name)
    run = Run(spec, council, serve, create_run(path, header, latest=where.out is None), groups, dict(hosts))
    yield from _absent(run)
    for stage in spec.stages:
        yield from _stage(run, stage)
    _keep_facts(run)
    judged = judge_run(path, criteria, groups)
    run.writer.write_file("verdict.json", judged.to_json())
    run.writer.finish(datetime.now(UTC), judged.verdict.exit_code, judged.verdict.why)
    yield Ended(judged=judged, path=path)


def _absent(run: Run) -> Iterator[Event]:
    launch = run.council.launch
    if run.council.absent:
        missing = [rank for rank in range(run.council.n_ranks) if rank not in run.members]
        names = list(dict.fromkeys(launch.rank_hosts[rank] if rank < len(launch.rank_hosts) else f"rank {rank}" for rank in missing))
        for name in names:
            run.excluded.append({"host": name, "stage": "meeting", "reason": "never came"})
            yield Said(text=f"{name} never came: the others go on")
            run.members = {rank: host for rank, host in run.members.items() if host != name}
    for host in [name for name in run.hosts() if name in run.spec.exclude]:
        run.members = {rank: name for rank, name in run.members.items() if name != host}
        yield Said(text=f"{host} is left out, as asked")


def _stage(run: Run, stage: str) -> Iterator[Event]:
    before = read_counters(run)
    yield StageBegun(stage=stage, worlds=0, hosts=len(run.hosts()))
    if stage == "doctor":
        run.diagnosis = diagnose(run.council, run.serve, sorted(run.members), run.spec.silent_s)
        yield from exclude(run, stage, dict.fromkeys(run.diagnosis.silent_hosts, f"silent for {run.spec.silent_s:.0f} s"))
    elif stage == "pairs":
        yield from _pairs(run)
    else:
        yield from _collectives(run, stage)
    judge_counters(run, stage, before)


def _layout(run: Run, stage: str) -> Callable[[], list[list[int]]]:
    def layout() -> list[list[int]]:
        hosts, all_ranks = run.hosts(), sorted(run.members)
        match stage:
            case "node" | "nic":
                return [ranks for host in hosts if len(ranks := run.ranks_of(host)) > 1]
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
        yield Said(text=f"stage {stage} is left out: {reason}")
        return
    extra = NIC_ONLY if stage == "nic" else {}
    layouts = _scale(run) if stage == "scale" else [_layout(run, stage)]
    for layout in layouts:
        for item in attempts(run, stage, "sweep", as_json(_sweep_spec(run, stage)), layout, extra):
            if isinstance(item, tuple):
                for members, world in zip(*_pairs_of(item), strict=True):
                    _keep(run, stage, members, world)
            else:
                yield item


def _pairs_of(item: tuple[list[list[int]], Outcome]) -> tuple[list[list[int]], list[World]]:
    return item[0], item[1].worlds


def _why_not(run: Run, stage: str) -> str | None:
    hosts = run.hosts()
    most = max((len(run.ranks_of(host)) for host in hosts), default=0)
    if stage in ("node", "nic") and most < 2:
        return "one rank a host: nothing crosses a link inside it"
    if stage == "nic" and (run.backend == "gloo" or run.spec.backend == "gloo" or not _has_rdma(run)):
        return "no RDMA port, or not NCCL"
    if stage in ("rails", "scale") and len(hosts) < (2 if stage == "rails" else 3):
        return f"{len(hosts)} host{'s' * (len(hosts) != 1)}"
    if stage == "rails" and most < 2:
        return "one rank a host: the cluster stage is its one rail"
    if run.council.launch.launcher == "none" and stage in ("rails", "scale"):
        return "one process started all ranks"
    if len(run.members) < 2:
        return "fewer than two ranks are left"
    return None


def _has_rdma(run: Run) -> bool:
    return any(host.get("ports") for host in (run.diagnosis.hosts if run.diagnosis is not None else ()))


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


def _sweep_spec(run: Run, stage: str) -> SweepSpec:
    gloo = run.spec.backend == "gloo" or run.backend == "gloo" or (run.spec.backend == "auto" and not _has_gpus(run))
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all") if stage != "rails" else ("all_reduce", "sendrecv")
    return SweepSpec(
        collectives=names, sizes=SIZES["gloo" if gloo else "nccl"], budget_s=min(run.spec.budget_s, 0.2) if gloo else run.spec.budget_s,
        backend=run.spec.backend, timeout_s=run.spec.timeout_s, duration_s=run.spec.soak_s if stage == "soak" else None,
    )  # fmt: skip


def _has_gpus(run: Run) -> bool:
    return any(host.get("gpus") or host.get("n_device_files") for host in (run.diagnosis.hosts if run.diagnosis is not None else ()))


def _keep(run: Run, stage: str, members: Sequence[int], world: World) -> None:
    for message in world.of("point"):
        point = Point.from_json(message["point"])
        group = Group(axis=stage, size=len(members), slowest=tuple(members))
        run.writer.append(replace(point, stage=stage, group=group))


# ---- pairs


def _pairs(run: Run) -> Iterator[Event]:
    if len(run.members) < 2:
        run.not_run.append({"stage": "pairs", "reason": "fewer than two ranks are left", "fine": False})
        return
    spec = PairSpec(mode=run.spec.mode, backend=run.spec.backend, timeout_s=run.spec.timeout_s, budget_s=min(0.1, run.spec.budget_s))
    records: list[Json] = []
    seats: Seats | None = None
    for item in attempts(run, "pairs", "pairs", as_json(spec), _layout(run, "pairs"), {}):
        if isinstance(item, tuple):
            members, world = item[0][0], item[1].worlds[0]
            seats = seats_of(members, run.members)
            records = _with_ranks(world.of("pairs"), members)
            keep(run.writer, world.of("pairs"), seats)
            run.writer.append_record("pairs-seats.jsonl", {"members": members, "n_records": len(records), "ok": world.exit_code in (0, 7)})
        else:
            yield item
    if seats is None or not records or any(one["stage"] == "pairs" for one in run.broken):
        return
    evidence = evidence_of(records, seats, run.groups(seats.hosts), run.spec.oversubscription)
    number = {host: at for at, host in enumerate(seats.hosts)}
    more = tuple((number[a], number[b]) for a, b in suggest(evidence, localise(evidence))[:MAX_CONFIRM])
    if not more:
        return
    yield Said(text=f"{len(more)} pairs are measured once more, with other partners")
    for item in attempts(run, "pairs", "pairs", as_json(replace(spec, pairs=more)), _layout(run, "pairs"), {}):
        if isinstance(item, tuple):
            members, world = item[0][0], item[1].worlds[0]
            keep(run.writer, world.of("pairs"), seats_of(members, run.members))
            run.writer.append_record(
                "pairs-seats.jsonl", {"members": members, "n_records": len(world.of("pairs")), "ok": world.exit_code in (0, 7), "more": True}
            )
        else:
            yield item


def _with_ranks(records: Sequence[Json], members: Sequence[int]) -> list[Json]:
    return [{key: value for key, value in record.items() if key != "type"} for record in records]


def seats_of(members: Sequence[int], hosts: Mapping[int, str]) -> Seats:
    """The seats of a world's ranks: nodes by their lowest rank, local ranks in order."""
    names = list(dict.fromkeys(hosts.get(rank, "?") for rank in members))
    node = tuple(names.index(hosts.get(rank, "?")) for rank in members)
    local = tuple(sum(node[at] == node[before] for before in range(at)) for at in range(len(members)))
    return Seats(hosts=tuple(names), node=node, local=local)


def _keep_facts(run: Run) -> None:
    """accept.json: everything that is judged beside points and pairs."""
    diagnosis = run.diagnosis
    record = {
        "doctor": [] if diagnosis is None else [row.to_json() for row in diagnosis.results],
        "inventory": [] if diagnosis is None else list(diagnosis.inventory),
        "serials": {} if diagnosis is None else {f"{host}/{device}": serial for (host, device), serial in diagnosis.serials.items()},
        "excluded": run.excluded, "not_run": run.not_run, "broken": run.broken, "counters": run.bad_counters, "counters_read": run.counters_read,
        "rdma_bytes": run.rdma_bytes, "has_rdma": _has_rdma(run), "nic_of": run.nic_of, "stages": list(run.spec.stages),
            "min_hosts": run.spec.min_hosts,
        "hosts": list(dict.fromkeys(str(join["host"]) for join in run.council.joins.values())), "oversubscription": run.spec.oversubscription,
        "pairs_file": PAIRS_FILE, "judged_at": time.time(),
    }  # fmt: skip
    run.writer.write_file(FACTS_FILE, record)
