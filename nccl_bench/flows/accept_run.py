"""The state of an acceptance in rank 0's process: who still takes part, what was seen, and worlds tried until they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nccl_bench.errors import BUG, DataError, InterruptedRun, UsageError, WrongDataError
from nccl_bench.fabric import counters
from nccl_bench.flows.accept_plan import Estimate
from nccl_bench.flows.accept_spec import LOCAL_STAGES, AcceptSpec
from nccl_bench.flows.council import Council, Outcome, Serve, ask, run_worlds
from nccl_bench.flows.doctor import Diagnosis
from nccl_bench.flows.judged import Judged
from nccl_bench.launch import values
from nccl_bench.records import Json
from nccl_bench.results.store import RunWriter
from nccl_bench.units import counted

ATTEMPTS = 3
"""Worlds of one stage until it is given up: each loses the hosts that the one before it lost."""
EXCLUDED_AT_RESUME = "resume"
INTERRUPTED = (129, 130, 143)
"""Exit codes of a world that SIGHUP, SIGINT or SIGTERM ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBegun:
    """A stage begins."""

    stage: str
    worlds: int
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnded:
    """A stage is over; `how` in words where it did not end well."""

    stage: str
    seconds: float
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Something that happened, in words."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event."""

    judged: Judged
    path: Path


Event = StageBegun | StageEnded | Said | Ended


@dataclass(slots=True)
class Run:
    """The state of one acceptance in rank 0's process."""

    spec: AcceptSpec
    council: Council
    serve: Serve
    writer: RunWriter
    groups: Callable[[Sequence[str]], Any]
    members: dict[int, str]
    """[rank] host of those that still take part."""
    plan: Estimate
    bench: dict[int, str] = field(default_factory=dict)
    """[rank] host of spares: they take part in node-local stages alone until one replaces a host that is lost."""
    number: dict[int, int] = field(default_factory=dict)
    """[rank] its number in the run's records: another one where a resumed job counts its ranks otherwise."""
    hosts_at_start: list[str] = field(default_factory=list)
    """All that were to take part, spares last."""
    spares_at_start: list[str] = field(default_factory=list)
    replaced: list[Json] = field(default_factory=list)
    """[{host, by, stage}]."""
    finished: dict[str, int] = field(default_factory=dict)
    """Stage -> the attempt that finished it."""
    attempt: int = 1
    """1, and one more with every --resume."""
    doctor: list[Json] = field(default_factory=list)
    """Rows of the doctor stage."""
    on: Callable[[Json], None] | None = None
    """Hears what rank 0's worker says, as it says it."""
    excluded: list[Json] = field(default_factory=list)
    not_run: list[Json] = field(default_factory=list)
    broken: list[Json] = field(default_factory=list)
    bad_counters: list[Json] = field(default_factory=list)
    counters_read: bool = False
    counters_missing: set[str] = field(default_factory=set)
    """Hosts whose counters could not be read before or after a stage that they took part in."""
    rdma_bytes: int | None = None
    rdma_of: dict[str, int] = field(default_factory=dict)
    """[host] the same, of those whose counters were read."""
    nic_of: dict[str, str] = field(default_factory=dict)
    """"host/local rank" -> NIC, where proven."""
    diagnosis: Diagnosis | None = None
    backend: str | None = None
    shared_gpu: bool = False
    n_pair_worlds: int = 0
    load_rates: list[Json] = field(default_factory=list)
    """[{host, gpu, tflops}]: products beside the soak."""

    def hosts(self) -> list[str]:
        """Hosts that take part, in rank order."""
        return list(dict.fromkeys(self.members.values()))

    def local(self) -> dict[int, str]:
        """[rank] host of all that node-local stages run on: spares too."""
        return self.members | self.bench

    def ranks_of(self, host: str) -> list[int]:
        """Its ranks."""
        return [rank for rank, name in self.local().items() if name == host]

    def taking_part(self, stage: str) -> list[str]:
        """Hosts of a stage, in rank order."""
        return list(dict.fromkeys((self.local() if stage in LOCAL_STAGES else self.members).values()))

    def numbers(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """What the records call these ranks."""
        return tuple(self.number.get(rank, rank) for rank in ranks)


# ---- counters


def read_counters(run: Run) -> dict[str, Json]:
    """Each host's counters now."""
    found, _ = ask(run.council, "counters", sorted(run.local()), run.serve, run.spec.silent_s)
    return {str(answer["host"]): answer["counters"] for answer in found.values() if answer.get("counters")}


def judge_counters(run: Run, stage: str, before: Mapping[str, Json]) -> None:
    """Keep what moved since `before`, and judge it."""
    after = read_counters(run)
    moves = [move for host in after if host in before for move in counters.moved(host, before[host], after[host])]
    have = {name for values in after.values() for device in values.values() for name in device}
    n_devices = {name: sum(name in device for values in after.values() for device in values.values()) for name in have}
    run.counters_read = run.counters_read or bool(have - {"xids"})
    told = {host for host, values in after.items() if host in before and {name for device in values.values() for name in device} - {"xids"}}
    run.counters_missing |= set(run.local().values()) - told
    run.bad_counters += [
        {"host": move.host, "device": move.device, "counter": move.counter, "text": text, "stage": stage, "fault": not move.saturated}
        for move, text in counters.judge(moves, n_devices) if not move.saturated or stage == "doctor"
    ]  # fmt: skip
    run.writer.append_record("counters.jsonl", {"stage": stage, "moved": [asdict(move) for move in moves]})
    sent = counters.sent(moves)
    if stage == "cluster" and have & {"port_xmit_data", "tx_bytes"}:
        run.rdma_bytes = sum(sent.values())
        run.rdma_of = {host: sum(n for (name, _), n in sent.items() if name == host) for host in run.hosts() if host in told}
    if stage in ("pairs", "rails"):
        run.nic_of |= {f"{host}/{local}": nic for (host, local), nic in counters.proven(moves, _serves(run)).items()}


def _serves(run: Run) -> dict[tuple[str, int], str]:
    """(host, local rank) -> the NIC that the topology says serves its GPU alone."""
    found: dict[tuple[str, int], str] = {}
    for host in run.diagnosis.hosts if run.diagnosis is not None else ():
        nics = [nic for nic in (host.get("node") or {}).get("nics") or () if nic.get("used") is not False and len(nic.get("gpus") or ()) == 1]
        found |= {(str(host["host"]), int(nic["gpus"][0])): str(nic["name"]) for nic in nics}
    return found


# ---- worlds


def exclude(run: Run, stage: str, hosts: Mapping[str, str]) -> Iterator[Event]:
    """Leave hosts out from here on, with stage and reason; a spare takes the place of one that took part."""
    for host, reason in hosts.items():
        if any(one["host"] == host for one in run.excluded):
            continue
        run.excluded.append({"host": host, "stage": stage, "reason": reason})
        if host in run.bench.values():
            run.bench = {rank: name for rank, name in run.bench.items() if name != host}
            yield Said(text=f"spare {host} is left out from stage {stage} on: {reason}")
        elif host in run.members.values():
            run.members = {rank: name for rank, name in run.members.items() if name != host}
            yield Said(text=f"{host} is left out from stage {stage} on: {reason}")
            yield from replace_host(run, stage, host)


def replace_host(run: Run, stage: str, host: str) -> Iterator[Event]:
    """The first spare that is left takes the place of a host."""
    if not run.bench:
        return
    spare = next(iter(run.bench.values()))
    taken = {rank: name for rank, name in run.bench.items() if name == spare}
    run.bench = {rank: name for rank, name in run.bench.items() if name != spare}
    run.members = dict(sorted((run.members | taken).items()))
    run.replaced.append({"host": host, "by": spare, "stage": stage})
    yield Said(text=f"spare {spare} takes the place of {host} from stage {stage} on")


def lost_hosts(run: Run, outcome: Outcome, worlds: Sequence[Sequence[int]]) -> dict[str, str]:
    """Hosts whose process was silent, or whom a world's report names as dead or absent; of node-local worlds, the host itself."""
    local = run.local()
    found = {local[rank]: "its supervisor was silent" for rank in outcome.silent if rank in local}
    for members, world in zip(worlds, outcome.worlds, strict=True):
        if world.exit_code in (0, WrongDataError.exit_code, BUG, UsageError.exit_code) or world.exit_code > BUG:
            continue  # nothing of this speaks against a host
        hosts = {local[rank] for rank in members if rank in local}
        if len(hosts) == 1:
            found.setdefault(hosts.pop(), world.why)
            continue
        for culprit in world.blamed():
            rank = culprit.get("rank")
            if isinstance(rank, int) and 0 <= rank < len(members):
                found.setdefault(local.get(members[rank], ""), f"{culprit.get('what') or culprit.get('state') or world.why}")
    found.pop("", None)
    return found


def meeting_s(silent_s: float, n_ranks: int) -> float:
    """Seconds for fresh workers to speak: twice what makes a host silent (all import torch from one file system, often), and 30 ms a rank."""
    return values.meeting_s(n_ranks, 2 * silent_s, least_s=20.0)


def attempts(
    run: Run, stage: str, kind: str, spec: Json, layout: Callable[[], list[list[int]]], extra: Mapping[str, str],
    on: Callable[[Json], None] | None = None,
) -> Iterator[Event | tuple[list[list[int]], Outcome]]:
    """Worlds of a stage, again without the hosts that were lost; yields events, then (worlds, outcome) of each attempt."""
    for attempt in range(ATTEMPTS):
        worlds = layout()
        if not worlds:
            return
        yield StageBegun(stage=stage, worlds=len(worlds), hosts=len(run.taking_part(stage)))
        patience_s = run.spec.silent_s + run.spec.timeout_s
        outcome = run_worlds(
            run.council, kind, spec, worlds, extra=extra, on=on, meet_s=meeting_s(run.spec.silent_s, len(run.council.joins)), wait_s=patience_s,
            rest_s=patience_s + 4 * run.plan.seconds.get(stage, 0.0),
        )  # fmt: skip
        learn(run, outcome, worlds)
        if cut := [world.exit_code for world in outcome.worlds if world.exit_code in INTERRUPTED]:
            raise InterruptedRun(cut[0] - 128, f"{'interrupted' if cut[0] == INTERRUPTED[1] else 'terminated'} in stage {stage}")
        lost = lost_hosts(run, outcome, worlds)
        bad = [(members, world) for members, world in zip(worlds, outcome.worlds, strict=True) if world.exit_code not in (0, 7)]
        if stage == "node":  # a host that is lost is excluded; what broke without that must be said
            bad = [(members, world) for members, world in bad if run.local().get(members[0]) not in lost]
        yield worlds, outcome
        yield from exclude(run, stage, lost)
        if not bad:
            return
        if not lost or attempt + 1 == ATTEMPTS or stage == "node":
            for members, world in bad:
                hosts = list(dict.fromkeys(run.local().get(rank, "") for rank in members))
                name, few = f"world of {counted(len(members), 'rank')}", hosts if len(hosts) < 5 else []
                run.broken.append({"stage": stage, "world": name, "reason": world.why, "hosts": few})
                yield Said(text=f"stage {stage}: {world.why}")
            return


def learn(run: Run, outcome: Outcome, worlds: Sequence[Sequence[int]]) -> None:
    """Keep what a world tells of backend, versions, devices and fabric."""
    for members, world in zip(worlds, outcome.worlds, strict=True):
        about = world.about()
        if not about:
            continue
        run.backend, run.shared_gpu = about["backend"] or run.backend, run.shared_gpu or bool(about["shared_gpu"])
        header = run.writer.header
        ranks = [dict(one) for one in header.ranks]
        for rank, device in zip(run.numbers(members), about["devices"], strict=False):
            if device is not None and about["backend"] == "nccl" and rank < len(ranks):
                gpu = {"index": device["index"], "name": device["name"], "uuid": device["uuid"], "pci": device["pci_bus_id"]}
                ranks[rank]["gpu"] = {**gpu, "memory_nbytes": device["memory_nbytes"]}
        run.writer.update_header(
            backend=run.backend, not_nccl=run.backend not in (None, "nccl"), shared_gpu=run.shared_gpu, ranks=tuple(ranks),
            versions={**header.versions, **about["versions"]}, topology=header.topology or _topology(run),
        )  # fmt: skip


def _topology(run: Run) -> Json | None:
    """The fabric as doctor read it on every host."""
    from nccl_bench.fabric.detect import topology_of
    from nccl_bench.fabric.topology import topology_json

    if run.diagnosis is None or not run.diagnosis.hosts:
        return None
    try:
        return topology_json(topology_of([host["node"] for host in run.diagnosis.hosts]))
    except DataError:
        return None
