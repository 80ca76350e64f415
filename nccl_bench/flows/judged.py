"""A recorded acceptance judged: read what is on disk, localise, hold every criterion against it. The same for the first time and for --run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nccl_bench.errors import DataError
from nccl_bench.fabric.expected import floor_of
from nccl_bench.flows.accept_complete import check_facts, missing
from nccl_bench.flows.accept_spec import DEFAULT_STAGES
from nccl_bench.flows.pairs import PAIRS_FILE, Seats, evidence_of
from nccl_bench.records import Ceiling, Json, Point, RunHeader
from nccl_bench.results.runs import Run, json_lines, open_run, open_runs, points_of
from nccl_bench.verdict import baseline, lateness, provisioned, reference
from nccl_bench.verdict.ceilings import ceiling_of, ceilings_of
from nccl_bench.verdict.criteria import Criteria
from nccl_bench.verdict.evidence import Alone, Evidence, Findings, Groups, Mark
from nccl_bench.verdict.judge import drain, judge, measured
from nccl_bench.verdict.localise import localise
from nccl_bench.verdict.measured_pairs import matrix as matrix_of
from nccl_bench.verdict.outcome import Verdict
from nccl_bench.verdict.rows import NOT_ASKED, Case, Row

FACTS_FILE = "accept.json"
HOSTS_FILE = "hosts.json"
"""What doctor read on every host, whole: what was bought is judged by it, and a resumed run needs it."""
MOST_MATRIX = 64
"""Hosts of the matrix that verdict.json keeps; pairs.jsonl has them all."""
GroupsOf = Callable[[Sequence[str]], Groups | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict with what it rests on."""

    verdict: Verdict
    findings: Findings
    excluded: tuple[Json, ...]
    drain: tuple[str, ...]
    facts: Json
    header: RunHeader
    criteria: Criteria
    n_points: int
    measured: tuple[Json, ...]
    """The largest size of every world beside what was to be expected: what the certificate draws."""
    matrix: Json | None
    """Pairs of hosts, large messages: {hosts, values, direction}."""

    def to_json(self) -> Json:
        """verdict.json."""
        facts = self.facts
        return {
            "status": self.verdict.status, "exit_code": self.verdict.exit_code, "why": self.verdict.why,
            "rows": [row.to_json() for row in self.verdict.rows],
            "suspects": [one.to_json() for one in self.findings.suspects], "undetermined": [one.to_json() for one in self.findings.undetermined],
            "excluded": list(self.excluded), "drain": list(self.drain), "not_run": facts["not_run"], "hosts": facts["hosts"],
            "spares": facts.get("spares", []), "spares_left": facts.get("spares_left", []), "replaced": facts.get("replaced", []),
            "baseline": facts.get("baseline", []), "reference": facts.get("reference"), "groups": _groups_words(facts),
            "measured": list(self.measured), "matrix": self.matrix, "notes": list(self.findings.notes),
            "thresholds": [{"what": what, "value": value, "source": source} for what, value, source in self.criteria.thresholds()],
        }  # fmt: skip


def _groups_words(facts: Json) -> str:
    """Where the groups of hosts come from, in words."""
    known = facts.get("groups")
    if known is None:
        return "not known (no --groups, no topology of Slurm): inferred where the pairs show them, which a suspect's evidence then says"
    return f"{known['source']}: {len(set(known['of'].values()) - {None})} groups"


def judge_run(path: Path, criteria: Criteria, groups: GroupsOf = lambda _: None, against: Sequence[str] | None = None) -> Judged:
    """Judge the acceptance in a run directory; `against` in place of the one it recorded. Raises DataError where it is none."""
    facts = _facts(path)
    if against is not None:
        facts["baseline"] = list(against)
    run = open_run(str(path))
    points, header = _finished(points_of(run), facts), run.header
    rank_hosts = tuple(str(rank["host"]) for rank in header.ranks)
    evidence, ran = _evidence(path, facts, points, rank_hosts, groups)
    findings = localise(evidence)
    facts["not_run"] = [*facts["not_run"], *_never_begun(facts)]
    there = _hosts_read(path)
    case = Case(
        points=points, rank_hosts=rank_hosts, doctor=(*facts["doctor"], *provisioned.checks_of(there, criteria.hardware)),
        counters=tuple(facts["counters"]), counters_read=facts["counters_read"],
        counters_missing=tuple(facts.get("counters_missing", ())),
        findings=findings, pairs_ran=ran, excluded=tuple(facts["excluded"]), not_run=tuple(facts["not_run"]), broken=tuple(facts["broken"]),
        rdma_bytes=facts["rdma_bytes"], rdma_of=facts.get("rdma_of") or {}, has_rdma=facts["has_rdma"], shared_gpu=header.shared_gpu,
        not_nccl=header.not_nccl or header.backend not in (None, "nccl"),
        n_hosts=len(set(facts["hosts"]) - set(facts.get("spares", ()))), min_hosts=facts["min_hosts"], spares=tuple(facts.get("spares", ())),
        replaced=tuple(facts.get("replaced", ())),
        domains=provisioned.domains(there, header.env),
        more=(
            *provisioned.rows(there, criteria), *_more(run, facts, points, rank_hosts, evidence, criteria),
            *missing(facts, points, rank_hosts, pairs_ran=ran),
        ),
    )  # fmt: skip
    ceilings = ceilings_of(run)
    rails = tuple(dict.fromkeys(_world_of(point) for point in points if point.stage == "rails"))

    def ceiling(point: Point) -> Ceiling:
        ranks = _world_of(point)
        groups = rails if point.stage == "rails" else (ranks,) if ranks else None
        found = ceilings.of(point.n_ranks, dtype=point.dtype, op=point.op, groups=groups)
        return ceiling_of(found, point.collective, nbytes=point.nbytes, busbw_GBps=point.busbw_GBps, shift=point.shift, algorithm=point.algorithm)

    verdict = judge(case, criteria, ceiling, lambda point: floor_of(point.collective, point.n_ranks or 2))
    hosts = drain(findings, verdict.rows, facts["excluded"])
    matrix = _matrix(evidence, findings)
    return Judged(
        verdict=verdict, findings=findings, excluded=tuple(facts["excluded"]), drain=tuple(hosts), facts=facts, header=header, criteria=criteria,
        n_points=len(points), measured=tuple(measured(case, ceiling)), matrix=matrix,
    )  # fmt: skip


def _world_of(point: Point) -> tuple[int, ...]:
    """The ranks of the world that measured a point."""
    return tuple(point.group.slowest or ()) if point.group is not None else ()


def _matrix(evidence: Evidence, findings: Findings) -> Json | None:
    """The matrix of pairs of at most MOST_MATRIX hosts: those of the suspects first."""
    exchanges = evidence.exchanges
    if exchanges is None:
        return None
    accused = [one.host for one in (*findings.suspects, *findings.undetermined) if one.host in evidence.hosts]
    chosen = list(dict.fromkeys([*accused, *evidence.hosts]))[:MOST_MATRIX]
    hosts = [host for host in evidence.hosts if host in set(chosen)]
    if len(hosts) == len(evidence.hosts):
        return dict(matrix_of(exchanges, hosts))
    place = np.full(len(evidence.hosts), -1)
    place[[evidence.hosts.index(host) for host in hosts]] = np.arange(len(hosts))
    rows = (place[exchanges.src] >= 0) & (place[exchanges.dst] >= 0)
    part = replace(exchanges, src=place[exchanges.src[rows]], dst=place[exchanges.dst[rows]], rail=exchanges.rail[rows],
                   speed=exchanges.speed[rows], stratum=exchanges.stratum[rows])  # fmt: skip
    return {**matrix_of(part, hosts), "left_out": len(evidence.hosts) - len(hosts)}


def _finished(points: Sequence[Point], facts: Json) -> tuple[Point, ...]:
    """Without the points of stages that were cut off: they were measured again, or stay open."""
    finished = facts.get("finished")
    return tuple(points) if finished is None else tuple(point for point in points if finished.get(point.stage) == point.attempt)


def _never_begun(facts: Json) -> list[Json]:
    """Stages that were asked for and did not end; and those that were not asked for."""
    known = {one["stage"] for one in facts["not_run"]}
    finished = facts.get("finished")
    cut = [] if finished is None else [stage for stage in facts["stages"] if stage not in finished and stage not in known]
    rest = [stage for stage in DEFAULT_STAGES if stage not in facts["stages"] and stage not in known]
    return [
        *({"stage": stage, "reason": "the run was cut off before its end: --resume goes on", "fine": False} for stage in cut),
        *({"stage": stage, "reason": NOT_ASKED, "fine": True} for stage in rest),
    ]


def _more(
    run: Run, facts: Json, points: Sequence[Point], rank_hosts: Sequence[str], evidence: Evidence, criteria: Criteria
) -> list[Row]:
    """Rows against earlier runs and known-good hosts, and of hosts that come late."""
    found = lateness.rows(points)
    if facts.get("reference") is not None:
        gone = {one["host"] for one in facts["excluded"]}
        hosts = [host for host in facts["hosts"] if host not in gone]
        known = reference.Reference.from_json(facts["reference"])
        found += reference.rows(known, evidence, points, rank_hosts, hosts, run.header.backend, criteria.spread)
    if facts.get("baseline"):
        try:
            before = open_runs(facts["baseline"])
        except DataError as err:
            return [*found, Row(criterion="against the baseline", stage="cluster", status="inconclusive", reason=err.why, source="--baseline")]
        kept = Run(label=run.label, path=run.path, header=run.header, points=tuple(points))
        found += baseline.rows(before, kept, facts["stages"], criteria.baseline)
    return found


def _hosts_read(path: Path) -> list[Json]:
    """What doctor read on each host; [] where it did not run, or an older run kept nothing."""
    try:
        return [host for host in json.loads((path / HOSTS_FILE).read_text())["hosts"] if isinstance(host, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _facts(path: Path) -> Json:
    try:
        record = json.loads((path / FACTS_FILE).read_text())
    except (OSError, ValueError) as err:
        raise DataError(
            f"{path}: no acceptance: {FACTS_FILE} is missing or broken", "--run and --reference take a directory that nccl-bench accept wrote"
        ) from err
    if not isinstance(record, dict):
        raise DataError(f"{path / FACTS_FILE}:1: no JSON object")
    check_facts(record, str(path / FACTS_FILE))
    return record


def evidence_in(path: Path) -> tuple[Evidence, tuple[Point, ...], tuple[str, ...], Json]:
    """(evidence, points, [rank] host, accept.json) of a recorded acceptance, for those who hold another run against it."""
    facts, run = _facts(path), open_run(str(path))
    points = _finished(points_of(run), facts)
    rank_hosts = tuple(str(rank["host"]) for rank in run.header.ranks)
    return _evidence(path, facts, points, rank_hosts, lambda _: None)[0], points, rank_hosts, facts


def _evidence(path: Path, facts: Json, points: Sequence[Point], rank_hosts: Sequence[str], groups: GroupsOf) -> tuple[Evidence, bool]:
    """What pairs, nodes alone, counters, doctor and lateness say together; whether pairs were measured to their end."""
    marks = (*_marks(facts), *lateness.marks(points))
    serials = {(key.rpartition("/")[0], key.rpartition("/")[2]): value for key, value in facts["serials"].items()}
    nic_of = {(key.rpartition("/")[0], int(key.rpartition("/")[2])): value for key, value in facts["nic_of"].items()}
    used, members = _rounds(path, facts)
    if not used:
        hosts = tuple(facts["hosts"])
        return Evidence(hosts=hosts, marks=marks, serials=serials, alone=_alone(facts, points, rank_hosts, hosts)), False
    seats = _seats(members, rank_hosts)
    evidence = evidence_of(used, seats, groups(seats.hosts) or _recorded_groups(facts, seats.hosts), facts["oversubscription"], marks)
    hosts = (*evidence.hosts, *(host for host in facts["hosts"] if host not in evidence.hosts))
    of = evidence.groups and replace(evidence.groups, of=(*evidence.groups.of, *(None for _ in hosts[len(evidence.hosts) :])))
    return replace(evidence, hosts=hosts, groups=of, nic_of=nic_of, serials=serials, alone=_alone(facts, points, rank_hosts, hosts)), True


def _recorded_groups(facts: Json, hosts: Sequence[str]) -> Groups | None:
    known = facts.get("groups")
    return None if known is None else Groups(of=tuple(known["of"].get(host) for host in hosts), source=str(known["source"]))


def _rounds(path: Path, facts: Json) -> tuple[list[Json], list[int]]:
    """The rounds of pairs that count, and who sat where: worlds that ended well, all with the members of the last full one."""
    worlds, records = _lines(path / "pairs-seats.jsonl"), _lines(path / PAIRS_FILE)
    attempt = (facts.get("finished") or {}).get("pairs")
    by_world: dict[int, list[Json]] = {}
    for record in records:
        by_world.setdefault(record.get("world", -1), []).append(record)
    used, members, at = list[Json](), list[int](), 0
    for world in worlds:
        part = by_world.get(world["world"], []) if "world" in world else records[at : at + world["n_records"]]
        at += world["n_records"]
        whole = world["ok"] and len(part) >= world["n_records"]
        if whole and world.get("attempt", 1) == (attempt or world.get("attempt", 1)) and (not members or world["members"] == members):
            members = world["members"]
            used += part
    return used, members


def _alone(facts: Json, points: Sequence[Point], rank_hosts: Sequence[str], hosts: Sequence[str]) -> tuple[Alone, ...]:
    """Products of a soak under load, by GPU: a slow one is no matter of its links."""
    number = {host: at for at, host in enumerate(hosts)}
    rows = [
        (number[one["host"]], int(one["gpu"]), float(one["tflops"]))
        for one in facts.get("load_rates", ())
        if one["host"] in number and one["tflops"]
    ]
    return (Alone.of("bf16 products of 8192 during soak, TFLOP/s", rows),) if rows else ()


def _seats(members: Sequence[int], rank_hosts: Sequence[str]) -> Seats:
    names = list(dict.fromkeys(rank_hosts[rank] for rank in members))
    node = tuple(names.index(rank_hosts[rank]) for rank in members)
    return Seats(hosts=tuple(names), node=node, local=tuple(sum(node[at] == node[before] for before in range(at)) for at in range(len(members))))


def _marks(facts: Json) -> list[Mark]:
    found = []
    for one in facts["counters"]:
        device = str(one["device"])
        if device == "kernel":
            found.append(Mark(kind="node", host=one["host"], text=f"{one['text']} during {one['stage']}"))
        elif device.startswith("gpu "):
            found.append(
                Mark(kind="gpu", host=one["host"], gpu=int(device[4:]), text=f"{one['text']} during {one['stage']}", blames=bool(one["fault"]))
            )
        else:
            found.append(Mark(kind="nic", host=one["host"], nic=device, text=f"{one['text']} during {one['stage']}", blames=bool(one["fault"])))
    for check in facts["doctor"]:
        if check["status"] not in ("fail", "warn") or not check.get("device"):
            continue
        for host in check["hosts"]:
            found += [mark for mark in [_of_check(check, str(host))] if mark is not None]
    return found


def _of_check(check: Mapping[str, Any], host: str) -> Mark | None:
    text = f"doctor: {check['id']}: {check['measured']} (expected {check['expected']})"
    device, blames = str(check["device"]), check["status"] == "fail" and check["id"] not in ("gpu.processes", "gpu.mig")
    if device.startswith("GPU ") and device[4:].isdigit():
        return Mark(kind="gpu", host=host, gpu=int(device[4:]), text=text, blames=blames)
    return Mark(kind="nic", host=host, nic=device, text=text, blames=blames) if check["id"].startswith("nic.") else None


def _lines(path: Path) -> list[Json]:
    """The records of a file of the run; what a torn last line belonged to is incomplete, and does not count."""
    return [record for _number, record in json_lines(path, [], "not a record of an acceptance")] if path.exists() else []
