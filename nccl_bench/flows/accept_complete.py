"""What a finished stage must have left behind: a measurement that is not there must not count as good. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nccl_bench.collectives import NCCL_TESTS_ALIGN
from nccl_bench.errors import DataError
from nccl_bench.flows.accept_spec import N_SIZES, collectives_of
from nccl_bench.records import Json, Point
from nccl_bench.units import counted, format_size
from nccl_bench.verdict.rows import Row

_LISTS = ("doctor", "counters", "inventory", "hosts", "stages", "not_run", "excluded", "broken")
_OBJECTS = ("serials", "nic_of")


def check_facts(facts: Json, where: str) -> None:
    """Raise DataError where accept.json lacks a key that is judged, or holds something else there."""
    for names, kind, words in ((_LISTS, list, "list"), (_OBJECTS, dict, "object")):
        for name in names:
            if not isinstance(facts.get(name), kind):
                raise DataError(f"{where}:1: {name!r} is no {words}: not the file that an acceptance wrote", "accept --resume RUN, or measure again")
    for name in ("counters_read", "min_hosts", "rdma_bytes", "has_rdma", "oversubscription"):
        if name not in facts:
            raise DataError(f"{where}:1: {name!r} is missing: not the file that an acceptance wrote", "accept --resume RUN, or measure again")


def missing(facts: Json, points: Sequence[Point], rank_hosts: Sequence[str], *, pairs_ran: bool) -> Iterator[Row]:
    """A row for each finished stage and collective of which the run holds less than the stage measures."""
    told = {one["stage"] for one in (*facts["not_run"], *facts["broken"])}
    for stage in facts["stages"]:
        if stage in told or (facts.get("finished") is not None and stage not in facts["finished"]):
            continue  # said elsewhere
        if stage == "doctor":
            if not facts["doctor"]:
                yield _row(stage, "checks", "no check is recorded")
        elif stage == "pairs":
            if not pairs_ran:
                yield _row(stage, "pairs", "no whole round of pairs is recorded")
        else:
            yield from _of_stage(stage, facts, points, rank_hosts)


def _of_stage(stage: str, facts: Json, points: Sequence[Point], rank_hosts: Sequence[str]) -> Iterator[Row]:
    mine = [point for point in points if point.stage == stage and point.kind == "collective" and point.regime == "streaming"]
    gone = {one["host"] for one in facts["excluded"]}
    ranks = Counter(rank_hosts)
    wanted = {host for host in facts["hosts"] if host not in gone and ranks[host] > 1}
    more = tuple((str(at), str(name), nbytes) for at, name, nbytes in facts.get("more", ()))
    for name in collectives_of(stage, more):
        of_name = [point for point in mine if point.collective == name]
        n_sizes = _n_sizes(of_name)
        absent_sizes = [nbytes for at, what, nbytes in more if (at, what) == (stage, name) and nbytes and not _recorded(nbytes, of_name)]
        if n_sizes and absent_sizes:
            yield _row(stage, name, f"no point of {', '.join(map(format_size, absent_sizes))} is recorded")
        elif n_sizes < N_SIZES:
            yield _row(stage, name, f"points of {n_sizes} of {N_SIZES} sizes are recorded")
        elif stage == "node":
            seen = {rank_hosts[rank] for point in of_name for rank in (point.group.slowest or () if point.group else ()) if rank < len(rank_hosts)}
            if absent := sorted(wanted - seen):
                yield _row(stage, name, f"no point of {counted(len(absent), 'host')} is recorded, first {absent[0]}", tuple(absent[:8]))


def _n_sizes(points: Sequence[Point]) -> int:
    """How many sizes are recorded of the ranks with most: worlds of other numbers of ranks have other small sizes."""
    by_ranks: dict[int | None, set[int]] = {}
    for point in points:
        by_ranks.setdefault(point.n_ranks, set()).add(point.requested_nbytes)
    return max(map(len, by_ranks.values()), default=0)


def _recorded(nbytes: int, points: Sequence[Point]) -> bool:
    """Whether a size is recorded: a part for each rank of the largest world is the least that is asked of a collective that shares it out."""
    most = max([nbytes, *(NCCL_TESTS_ALIGN * (point.n_ranks or 1) for point in points)])
    return any(nbytes <= point.requested_nbytes <= most for point in points)


def _row(stage: str, what: str, reason: str, hosts: tuple[str, ...] = ()) -> Row:
    said = f"{what} recorded"
    return Row(criterion=said, stage=stage, status="inconclusive", measured="not there", required="all of it", reason=reason, hosts=hosts)
