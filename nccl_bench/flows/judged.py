"""A recorded acceptance judged: read what is on disk, localise, hold every criterion against it. The same for the first time and for --run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl_bench.errors import DataError
from nccl_bench.fabric.expected import floor_of
from nccl_bench.flows.pairs import PAIRS_FILE, Seats, evidence_of
from nccl_bench.records import Ceiling, Json, Point, RunHeader
from nccl_bench.results.runs import open_run, points_of
from nccl_bench.verdict.ceilings import ceiling_of, ceilings_of
from nccl_bench.verdict.criteria import Criteria
from nccl_bench.verdict.evidence import Evidence, Findings, Mark
from nccl_bench.verdict.judge import Case, Verdict, drain, judge
from nccl_bench.verdict.localise import localise

FACTS_FILE = "accept.json"


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

    def to_json(self) -> Json:
        """verdict.json."""
        return {
            "status": self.verdict.status, "exit_code": self.verdict.exit_code, "why": self.verdict.why,
                "rows": [row.to_json() for row in self.verdict.rows],
            "suspects": [one.to_json() for one in self.findings.suspects], "undetermined": [one.to_json() for one in self.findings.undetermined],
            "excluded": list(self.excluded), "drain": list(self.drain), "not_run": self.facts["not_run"],
            "thresholds": [{"what": what, "value": value, "source": source} for what, value, source in self.criteria.thresholds()],
        }  # fmt: skip


def judge_run(path: Path, criteria: Criteria, groups: Callable[[Sequence[str]], Any] = lambda _: None) -> Judged:
    """Judge the acceptance in a run directory. Raises DataError where it is none."""
    facts = _facts(path)
    run = open_run(str(path))
    points, header = points_of(run), run.header
    rank_hosts = tuple(str(rank["host"]) for rank in header.ranks)
    findings, ran = _findings(path, facts, rank_hosts, groups)
    case = Case(
        points=points, rank_hosts=rank_hosts, doctor=tuple(facts["doctor"]), counters=tuple(facts["counters"]), counters_read=facts["counters_read"],
        findings=findings, pairs_ran=ran, excluded=tuple(facts["excluded"]), not_run=tuple(facts["not_run"]), broken=tuple(facts["broken"]),
        rdma_bytes=facts["rdma_bytes"], has_rdma=facts["has_rdma"], not_nccl=header.not_nccl or header.backend is None, shared_gpu=header.shared_gpu,
        n_hosts=len(facts["hosts"]), min_hosts=facts["min_hosts"],
    )  # fmt: skip
    ceilings = ceilings_of(run)

    def ceiling(point: Point) -> Ceiling:
        ranks = tuple(point.group.slowest or ()) if point.group is not None else ()
        found = ceilings.of(point.n_ranks, dtype=point.dtype, op=point.op, group=ranks or None)
        return ceiling_of(found, point.collective, nbytes=point.nbytes, busbw_GBps=point.busbw_GBps, shift=point.shift, algorithm=point.algorithm)

    verdict = judge(case, criteria, ceiling, lambda point: floor_of(point.collective, point.n_ranks or 2))
    hosts = drain(findings, verdict.rows, facts["excluded"])
    return Judged(
        verdict=verdict, findings=findings, excluded=tuple(facts["excluded"]), drain=tuple(hosts), facts=facts, header=header, criteria=criteria,
        n_points=len(points),
    )  # fmt: skip


def _facts(path: Path) -> Json:
    try:
        record = json.loads((path / FACTS_FILE).read_text())
    except (OSError, ValueError) as err:
        raise DataError(f"{path}: no acceptance: {FACTS_FILE} is missing or broken", "--run takes a directory that nccl-bench accept wrote") from err
    if not isinstance(record, dict):
        raise DataError(f"{path / FACTS_FILE}:1: no JSON object")
    return record


def _findings(path: Path, facts: Json, rank_hosts: Sequence[str], groups: Callable[[Sequence[str]], Any]) -> tuple[Findings, bool]:
    """What pairs, counters and doctor say together; whether pairs were measured to their end."""
    marks = tuple(_marks(facts))
    serials = {(key.rpartition("/")[0], key.rpartition("/")[2]): value for key, value in facts["serials"].items()}
    nic_of = {(key.rpartition("/")[0], int(key.rpartition("/")[2])): value for key, value in facts["nic_of"].items()}
    worlds, records = _lines(path / "pairs-seats.jsonl"), _lines(path / PAIRS_FILE)
    used, members, at = list[Json](), list[int](), 0
    for world in worlds:
        part = records[at : at + world["n_records"]]
        at += world["n_records"]
        if world["ok"] and (not members or world["members"] == members):
            members = world["members"]
            used += part
    if not used:
        return localise(Evidence(hosts=tuple(facts["hosts"]), marks=marks, serials=serials)), False
    seats = _seats(members, rank_hosts)
    evidence = evidence_of(used, seats, groups(seats.hosts), facts["oversubscription"], marks)
    full = Evidence(
        hosts=evidence.hosts, exchanges=evidence.exchanges, inside=evidence.inside, marks=evidence.marks, groups=evidence.groups,
        oversubscription=evidence.oversubscription, nic_of=nic_of, serials=serials,
    )  # fmt: skip
    return localise(full), True


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
    if not path.exists():
        return []
    found: list[Json] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError as err:
            raise DataError(f"{path}:{number}: no JSON") from err
    return found
