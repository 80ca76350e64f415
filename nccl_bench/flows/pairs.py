"""A pair test from launch to suspects: rounds of all or some pairs, then the suspects once more with other partners; every round on disk first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from nccl_bench.errors import FAIL, INCONCLUSIVE, PASS, WorldError
from nccl_bench.flows.council import Council, as_json, run_worlds
from nccl_bench.flows.events import Where
from nccl_bench.flows.header import header_of
from nccl_bench.flows.worlds import World
from nccl_bench.measure.pairs_spec import ALL_AGAIN_UP_TO, PairSpec
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Group, Json, Pair, Point, Times
from nccl_bench.results.store import RunWriter, create_run, default_path
from nccl_bench.verdict import measured_pairs
from nccl_bench.verdict.evidence import Evidence, Findings, Groups, Mark
from nccl_bench.verdict.lax import MOST_APART
from nccl_bench.verdict.localise import localise, suggest
from nccl_bench.verdict.table_pairs import verdict

PAIRS_FILE = "pairs.jsonl"
"""Each rank's own time in every round: what points of whole nodes leave out."""
MAX_CONFIRM = 512
"""Pairs that are measured once more at most."""


@dataclass(slots=True, kw_only=True)
class Tested:
    """A pair test that ended."""

    exit_code: int
    why: str
    lines: tuple[str, ...] = ()
    findings: Findings = field(default_factory=Findings)
    evidence: Evidence | None = None
    hosts: tuple[str, ...] = ()
    path: str | None = None
    not_nccl: bool = False
    shared_gpu: bool = False
    leads: bool = False
    """Whether this process spoke for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """Who sat where."""

    hosts: tuple[str, ...]
    """[node]"""
    node: tuple[int, ...]
    """[rank]"""
    local: tuple[int, ...]


def seats_of(world: World) -> Seats:
    """The seats of the ranks of a world."""
    assert world.joined is not None
    facts = world.joined.facts
    names = {int(fact["node_index"]): str(fact["host"]) for fact in facts}
    return Seats(
        hosts=tuple(names[at] for at in sorted(names)),
        node=tuple(int(fact["node_index"]) for fact in facts),
        local=tuple(int(fact["local_rank"]) for fact in facts),
    )


def run_pairs(
    spec: PairSpec, council: Council, where: Where, *, argv: Sequence[str], groups: Callable[[Sequence[str]], Groups | None] = lambda _: None,
    oversubscription: float | None = None, on: Callable[[Json], None] | None = None, confirm: bool = True,
) -> Tested:  # fmt: skip
    """Run the rounds, keep them, judge, and measure the suspects again in fresh workers; rank 0's part, the others `follow`."""
    ranks = sorted(council.joins)
    if council.absent:
        raise WorldError(f"ranks did not join: {council.absent}", "see whether they were started, and what they said")
    first = run_worlds(council, "pairs", as_json(spec), [ranks], on=on).worlds[0]
    if first.joined is None or first.go is None:
        return Tested(exit_code=first.exit_code, why=first.why, lines=first.lines, leads=True)
    writer = _open(first, spec, council, where, argv)
    seats, records = seats_of(first), list(first.of("pairs"))
    keep(writer, records, seats)
    known = groups(seats.hosts)
    evidence = evidence_of(records, seats, known, oversubscription, marks_of_hang(first, seats))
    findings = localise(evidence)
    more = confirming(evidence, findings) if confirm and first.exit_code == 0 else ()
    if more:
        second = run_worlds(council, "pairs", as_json(replace(spec, pairs=more)), [ranks], on=on).worlds[0]
        extra = second.of("pairs")
        keep(writer, extra, seats)
        evidence = evidence_of([*records, *extra], seats, known, oversubscription, evidence.marks)
        findings = localise(evidence)
    return _end(first, writer, findings, evidence, seats)


def confirming(evidence: Evidence, findings: Findings) -> tuple[tuple[int, int], ...]:
    """What to measure once more: of few nodes everything, as each has met all others already; else what would confirm or decide.

    Of few nodes also where exchanges scatter so much that nobody could be named: a machine that was busy for a moment may be quiet now.
    """
    n, unsure = len(evidence.hosts), findings.suspects or findings.undetermined or findings.unseen_frac > MOST_APART
    if 2 < n <= ALL_AGAIN_UP_TO and evidence.exchanges is not None and unsure:
        return tuple((a, b) for a in range(n) for b in range(a + 1, n))
    number = {host: at for at, host in enumerate(evidence.hosts)}
    return tuple((number[a], number[b]) for a, b in suggest(evidence, findings)[:MAX_CONFIRM])


def evidence_of(records: Sequence[Json], seats: Seats, groups: Groups | None, oversubscription: float | None, marks: Sequence[Mark] = ()) -> Evidence:
    """The evidence of the rounds measured so far."""
    rank_hosts = [seats.hosts[node] for node in seats.node]
    return Evidence(
        hosts=seats.hosts,
        exchanges=measured_pairs.exchanges_of(records, seats.node, seats.local),
        inside=measured_pairs.inside_of(records, seats.node, seats.local),
        marks=(*marks, *measured_pairs.wrong_data(records, rank_hosts, seats.local)),
        groups=groups,
        oversubscription=oversubscription,
    )


def marks_of_hang(world: World, seats: Seats) -> list[Mark]:
    """Ranks that died or did not arrive, as marks."""
    if world.hang is None:
        return []
    found = []
    for culprit in world.hang.culprits:
        rank = culprit.get("rank")
        if isinstance(rank, int) and rank < len(seats.node):
            found.append(
                Mark(
                    kind="rank",
                    host=seats.hosts[seats.node[rank]],
                    gpu=seats.local[rank],
                    text=f"rank {rank}: {culprit.get('what') or culprit.get('state')}",
                )
            )
    return found


def _open(world: World, spec: PairSpec, council: Council, where: Where, argv: Sequence[str]) -> RunWriter:
    assert world.joined is not None
    assert world.go is not None
    now, go, launch = datetime.now(UTC), world.go, council.launch
    header = replace(header_of(world.joined, go, SweepSpec(), launch, council.environ, argv, now), spec={"pairs": spec.to_json()})
    path = where.out or default_path(where.root, now, launch.host, go.world_size, gloo=go.backend == "gloo", job=launch.job, name=where.name)
    return create_run(path, header, latest=where.out is None)


def keep(
    writer: RunWriter, records: Sequence[Json], seats: Seats, stage: str = "pairs", attempt: int = 1, numbers: Sequence[int] | None = None
) -> None:
    """Every record a line of pairs.jsonl, and a point for each pair of nodes (or of GPUs): its slowest local rank.

    numbers: [rank of the world] its rank in the run, where a world has only some of them.
    """
    for record in records:
        writer.append_record(PAIRS_FILE, {key: value for key, value in record.items() if key != "type"})
        for point in points_of(record, seats, stage):
            writer.append(replace(_renumbered(point, numbers), attempt=attempt))


def _renumbered(point: Point, numbers: Sequence[int] | None) -> Point:
    if numbers is None or point.pair is None:
        return point
    return replace(point, pair=replace(point.pair, src=numbers[point.pair.src], dst=numbers[point.pair.dst]))


def points_of(record: Json, seats: Seats, stage: str = "pairs") -> list[Point]:
    """Points of one round: one a pair of nodes, or one a pair of GPUs of a node."""
    found: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    for a, b in record["pairs"]:
        src, dst = (b, a) if record["way"] == "ba" else (a, b)
        key = (seats.node[src], seats.node[dst]) if record["level"] == "node" else (src, dst)
        found.setdefault(key, []).append((src, dst, max(record["us"][a], record["us"][b])))
    return [_point(record, ends, stage) for ends in found.values()]


def _point(record: Json, ends: Sequence[tuple[int, int, float]], stage: str) -> Point:
    src, dst, us = max(ends, key=lambda end: end[2])
    nbytes = int(record["nbytes"])
    rate = nbytes / us * 1e-3 if us > 0 else None
    return Point(
        collective="sendrecv", dtype="uint8", op=None, root=None, nbytes=nbytes, requested_nbytes=nbytes, count=nbytes, n_ranks=2,
        group=Group(axis="pair", size=2, n_groups=len(record["pairs"])), placement="out", clock=None, regime="streaming", stage=stage,
        pair=Pair(level=record["level"], round=record["round"], src=src, dst=dst, both=record["way"] == "both"),
        time_us=Times(median=us, mean=us, min=us, max=us), mean_over_ranks_us=sum(end[2] for end in ends) / len(ends),
        algbw_GBps=rate, busbw_GBps=rate, n_wrong=sum(rank in (end[0], end[1]) for end in ends for rank in record.get("wrong_ranks", ())),
    )  # fmt: skip


def _end(world: World, writer: RunWriter, findings: Findings, evidence: Evidence, seats: Seats) -> Tested:
    header = writer.header
    code, why = verdict(findings, max(len(seats.hosts), 3 if evidence.inside is not None and evidence.exchanges is None else len(seats.hosts)))
    if code == FAIL and not findings.suspects and not findings.failed:
        code, why = INCONCLUSIVE, f"{why}: measure again, with more --budget"
    if world.exit_code:
        code, why = world.exit_code, world.why
    elif header.not_nccl or header.shared_gpu:
        code, why = (INCONCLUSIVE, "a rehearsal: not NCCL") if code in (PASS, INCONCLUSIVE) and header.not_nccl else (code, why)
        code, why = (INCONCLUSIVE, "ranks share a GPU: behaviour, not a measurement") if code == PASS else (code, why)
    writer.write_file("suspects.json", findings.to_json())
    writer.finish(datetime.now(UTC), code, why if code else None)
    return Tested(
        exit_code=code, why=why if code != FAIL or world.exit_code else f"fail: {why}", lines=world.lines, findings=findings, evidence=evidence,
        hosts=seats.hosts, path=str(writer.path), not_nccl=header.not_nccl, shared_gpu=header.shared_gpu, leads=True,
    )  # fmt: skip
