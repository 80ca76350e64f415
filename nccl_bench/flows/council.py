"""The processes of a job between worlds: rank 0 gives orders, the others follow, each order runs some worlds of workers.

A board of its own outlives every world, so a world that breaks ends a stage and not the job. An order is {"what": "world",
"kind": "pairs" | "sweep", "spec", "worlds": [[rank, ...], ...], "extra": {env}, "number"}, {"what": "doctor" | "counters"}, or
{"what": "end", "exit_code"}.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TextIO

from nccl_bench.errors import WorldError
from nccl_bench.flows.worlds import World, pairs_plan, run_world, sweep_plan
from nccl_bench.launch.board import FACTS
from nccl_bench.launch.client import BoardClient, await_fd
from nccl_bench.launch.facts import host_facts
from nccl_bench.launch.launchers import LOOPBACK, Launch
from nccl_bench.launch.meeting import Meeting, address_of, meet, meet_alone, who_am_i
from nccl_bench.measure.pairs_spec import PairSpec
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Json

OUTER = 1_000_000
"""Run index of this board's token: none of a world's."""
SILENT_S = 30.0
"""After so long without a word a host is silent (DESIGN.md section 5)."""
FOR_EVER_S = 1e7
CHUNK = 200
"""Messages of a worker that travel together: far below the board's 4 MiB a message."""
Serve = Callable[[str], Json]


@dataclass(slots=True, kw_only=True)
class Council:
    """This process's place among the others."""

    launch: Launch
    environ: Mapping[str, str]
    client: BoardClient
    meeting: Meeting
    n_local: int
    stderr: TextIO | None = None
    joins: dict[int, Json] = field(default_factory=dict)
    """[rank] {host, pid, local_rank, node, address}; rank 0 alone has all."""
    absent: str = ""
    """Ranks that never came, in words."""
    gone: set[int] = field(default_factory=set)
    """Ranks whose process ended without a word, as the board saw it; rank 0 alone knows."""
    _orders: int = 0
    _watched: set[int] = field(default_factory=set)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0's process."""
        return self.launch.rank == 0

    def addresses(self) -> dict[str, str]:
        """Host -> where Slurm says it hangs, of those that say it."""
        return {str(join["host"]): str(join["address"]) for join in self.joins.values() if join.get("address")}

    @property
    def n_ranks(self) -> int:
        """Ranks of the job."""
        return self.n_local if self.launch.launcher == "none" else self.launch.world_size

    def close(self) -> None:
        """Leave; who holds the board waits for the others."""
        self.meeting.leave(2.0)


def convene(launch: Launch, environ: Mapping[str, str], n_local: int, *, patience_s: float = 60.0, stderr: TextIO | None = None) -> Council:
    """Meet all processes of the job; whoever has not come after `patience_s` is left out. Raises WorldError where nobody can be reached."""
    if launch.launcher == "none":
        meeting = meet_alone("", who_am_i(launch.host), tuple(range(n_local)))
        council = Council(launch=launch, environ=environ, client=meeting.client, meeting=meeting, n_local=n_local, stderr=stderr)
        council.joins = {rank: _join(launch, rank, environ) for rank in range(n_local)}
        return council
    meeting = meet(address_of(launch, OUTER), patience_s)
    council = Council(launch=launch, environ=environ, client=meeting.client, meeting=meeting, n_local=1, stderr=stderr)
    council.client.set({f"join/{launch.rank}": _join(launch, launch.local_rank, environ)})
    if council.leads:
        council.joins, council.absent = council.client.gather("join", launch.world_size, patience_s)
    return council


def _join(launch: Launch, local_rank: int | None, environ: Mapping[str, str]) -> Json:
    node, address = host_facts(environ)["node"], environ.get("SLURM_TOPOLOGY_ADDR")
    return {"host": launch.host, "pid": os.getpid(), "local_rank": local_rank, "node": node, "address": address}


# ---- the leader's side


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How the worlds of an order ended."""

    worlds: list[World]
    """In the order of their ranks' lists; messages are those of each world's rank 0."""
    silent: list[int]
    """Ranks whose process said nothing in time."""


def command(council: Council, order: Json) -> int:
    """Give an order to all processes; its number."""
    number = council._orders
    council._orders += 1
    council.client.set({f"order/{number}": {**order, "number": number}})
    return number


def answers(council: Council, number: int, ranks: Sequence[int], wait_s: float) -> tuple[dict[int, Json], list[int]]:
    """What these ranks answered to an order, and who did not: in `wait_s` seconds, or because its process is gone."""
    client, found, gone = council.client, dict[int, Json](), council.gone
    for rank in ranks:
        client.wait(f"answer/{number}/{rank}", partial(found.__setitem__, rank))
        if rank not in council._watched:
            # The board says so at once when a connection ends without a farewell.
            client.wait(f"{FACTS}/{rank}", partial(_add, gone, rank))
            council._watched.add(rank)
    end = time.monotonic() + wait_s
    while not client.lost and time.monotonic() < end and not all(rank in found or rank in gone for rank in ranks):
        sent = client.pump()
        if client.fileno() >= 0 and not client.lost:
            await_fd(client.fileno(), 0.2, write=not sent)
        elif not client.lost:
            time.sleep(0.01)
    if client.lost:
        raise WorldError(f"{client.board} is gone, and with it the board where the ranks meet")
    return found, [rank for rank in ranks if rank not in found]


def _add(gone: set[int], rank: int, _facts: object) -> None:
    gone.add(rank)


def ask(council: Council, what: str, ranks: Sequence[int], serve: Serve, wait_s: float = SILENT_S) -> tuple[dict[int, Json], list[int]]:
    """An order that every process answers by itself (doctor, counters): answers by rank, and who was silent."""
    number = command(council, {"what": what})
    if council.launch.launcher == "none":
        return dict.fromkeys(ranks, serve(what)), []
    council.client.set({f"answer/{number}/{council.launch.rank}": serve(what)})
    return answers(council, number, ranks, wait_s)


def run_worlds(
    council: Council, kind: str, spec: Json, worlds: Sequence[Sequence[int]], *, extra: Mapping[str, str] | None = None,
    on: Callable[[Json], None] | None = None, meet_s: float | None = None, wait_s: float = SILENT_S, rest_s: float = FOR_EVER_S,
) -> Outcome:  # fmt: skip
    """Run these worlds at once: fresh workers, one world a list of ranks. Ranks in no list rest.

    meet_s: seconds for the ranks of a world to meet, and again for their workers to import torch and speak; None: what -T gives (Plan.meeting_s).
    Worlds elsewhere are waited for twice as long as this process's own took and `wait_s` more, or `rest_s` where it rests: a slow host is
    no silent one.
    """
    began = time.monotonic()
    order = {"what": "world", "kind": kind, "spec": spec, "worlds": [list(ranks) for ranks in worlds], "extra": dict(extra or {}), "meet_s": meet_s}
    number = command(council, order)
    mine = take_part(council, {**order, "number": number}, on)
    if council.launch.launcher == "none":
        assert mine is not None
        return Outcome(worlds=[mine[1]], silent=[])
    ranks = [rank for members in worlds for rank in members if rank != council.launch.rank]
    said, silent = answers(council, number, ranks, rest_s if mine is None else wait_s + time.monotonic() - began)
    return Outcome(worlds=[_of_world(council, number, at, members, mine, said) for at, members in enumerate(worlds)], silent=silent)


def _of_world(council: Council, number: int, at: int, members: Sequence[int], mine: tuple[int, World] | None, said: Mapping[int, Json]) -> World:
    if mine is not None and mine[0] == at and council.launch.rank == members[0]:
        return mine[1]
    first = said.get(members[0])
    if first is None:
        others = [said[rank] for rank in members if rank in said]
        why = next((str(one["why"]) for one in others if one["why"]), "its first rank was silent")
        return World(exit_code=max([WorldError.exit_code, *(int(one["exit_code"]) for one in others)]), why=why)
    world = World(exit_code=int(first["exit_code"]), why=str(first["why"]), lines=tuple(first["lines"]))
    world.culprits = [dict(one) for one in first["culprits"]]
    world.facts = dict(first["facts"])
    for chunk in range(int(first["n_chunks"])):
        world.messages += council.client.get(f"said/{number}/{members[0]}/{chunk}", SILENT_S) or []
    return world


def dismiss(council: Council, exit_code: int, why: str) -> None:
    """The last order."""
    council.client.set({f"order/{council._orders}": {"what": "end", "exit_code": exit_code, "why": why}})
    council._orders += 1


# ---- everybody's side


def follow(council: Council, serve: Serve) -> tuple[int, str]:
    """Do as rank 0 says until the end: (exit code, why). Raises WorldError where rank 0 is gone."""
    while True:
        order = council.client.get(f"order/{council._orders}", FOR_EVER_S)
        number, council._orders = council._orders, council._orders + 1
        if order is None:
            raise WorldError("rank 0 gave no order")
        if order["what"] == "end":
            return int(order["exit_code"]), str(order["why"])
        if order["what"] == "world":
            taken = take_part(council, order, None)
            if taken is not None:
                _report(council, number, order["worlds"][taken[0]], taken[1])
        else:
            council.client.set({f"answer/{number}/{council.launch.rank}": serve(order["what"])})


def _report(council: Council, number: int, members: Sequence[int], world: World) -> None:
    rank, chunks = council.launch.rank, 0
    if rank == members[0]:
        for start in range(0, len(world.messages), CHUNK):
            council.client.set({f"said/{number}/{rank}/{chunks}": world.messages[start : start + CHUNK]})
            chunks += 1
    culprits = [dict(one) for one in world.hang.culprits] if world.hang is not None else []
    answer = {
        "exit_code": world.exit_code,
        "why": world.why,
        "lines": list(world.lines)[:20],
        "n_chunks": chunks,
        "culprits": culprits,
        "facts": world.about(),
    }
    council.client.set({f"answer/{number}/{rank}": answer})
    council.client.pump()


def take_part(council: Council, order: Json, on: Callable[[Json], None] | None) -> tuple[int, World] | None:
    """Run this process's world of an order: (its number, how it ended); None where it rests."""
    launch, rank = council.launch, council.launch.rank
    at = 0 if launch.launcher == "none" else next((at for at, members in enumerate(order["worlds"]) if rank in members), None)
    if at is None:
        return None
    spec, number = order["spec"], 1 + int(order["number"])
    sub = launch if launch.launcher == "none" else _sub_launch(council, order["worlds"][at], at)
    local = {} if launch.local_rank is None or launch.launcher == "none" else {"LOCAL_RANK": str(launch.local_rank)}
    extra = {**order["extra"], **local}
    if order["kind"] == "pairs":
        plan = pairs_plan(PairSpec.from_json(spec), council.n_local, council.environ, number, order["meet_s"])
    else:
        plan = sweep_plan(SweepSpec.from_json(spec), council.n_local, council.environ, number, order["meet_s"])
    plan = replace(plan, extra_env={**plan.extra_env, **extra})
    try:
        return at, run_world(sub, plan, council.environ, council.stderr, on)
    except WorldError as err:
        return at, World(exit_code=err.exit_code, why=err.why)


def _sub_launch(council: Council, members: Sequence[int], at: int) -> Launch:
    """This process's place in a world of some of the job's ranks."""
    launch = council.launch
    hosts = _hosts(council, members)
    mine = [rank for rank in members if hosts[rank] == launch.host]
    alone = len(set(hosts.values())) == 1
    board = LOOPBACK if alone else launch.board_host if _holds_board(council, hosts) else hosts[members[0]]
    return replace(
        launch, rank=list(members).index(launch.rank), world_size=len(members), local_rank=mine.index(launch.rank), local_size=len(mine),
        node_rank=None,
        board_host=board, token=f"{launch.token}/{at}/{members[0]}", rank_hosts=(),
    )  # fmt: skip


def _hosts(council: Council, members: Sequence[int]) -> dict[int, str]:
    """[rank] host of the members, from what all brought to the board."""
    found: dict[int, str] = {}
    for rank in members:
        known = council.joins.get(rank) or council.client.get(f"join/{rank}", SILENT_S)
        if known is None:
            raise WorldError(f"rank {rank} never said where it is")
        council.joins[rank] = known
        found[rank] = str(known["host"])
    return found


def _holds_board(council: Council, hosts: Mapping[int, str]) -> bool:
    """Whether the job's meeting host, rank 0's, has a member."""
    first = council.joins.get(0) or council.client.get("join/0", SILENT_S)
    return first is not None and str(first["host"]) in hosts.values()


def as_json(value: Any) -> Json:
    """A frozen value as an order carries it."""
    record: Json = json.loads(json.dumps(value.to_json() if hasattr(value, "to_json") else asdict(value)))
    return record
