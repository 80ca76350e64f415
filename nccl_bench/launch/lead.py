"""What rank 0's supervisor does besides: compares what the ranks bring, says go, gathers the facts, gives the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from nccl_bench.errors import NcclBenchError, WorldError
from nccl_bench.launch.blame import Verdict, blame
from nccl_bench.launch.board import FACTS
from nccl_bench.launch.client import BoardClient
from nccl_bench.launch.ending import verdict_of
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.placement import absent, seats, unlike, whom
from nccl_bench.launch.preflight import Check
from nccl_bench.launch.ras import Inquiry
from nccl_bench.launch.values import Event, Go, Joined, Plan, Seat

Json = dict[str, Any]

_FOR_EVER_S = 1e9
"""The end of a run has no deadline of its own: the workers have theirs."""


class Supervising(Protocol):
    """What the lead needs of its supervisor."""

    def emit(self, event: Event) -> None:
        """Something the flow should know."""

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` later, unless the run is over."""

    def tell_first(self, go: Go) -> None:
        """Rank 0's worker goes first."""

    def announce(self, verdict: Verdict) -> None:
        """The verdict, for all ranks."""


class Lead:
    """Rank 0's part of a run, one step after the other: joined, seated, hello, go, ended."""

    def __init__(self, owner: Supervising, board: BoardClient, store_host: str, launch: Launch, plan: Plan, world_size: int, check: Check) -> None:
        self._owner, self._board, self._store_host, self._check = owner, board, store_host, check
        self._launch, self._plan, self._n = launch, plan, world_size
        self._limit_s = plan.meeting_s(world_size)
        self._begun_s = time.monotonic()
        self._joins: dict[int, Json] = {}
        self._seats: tuple[Seat, ...] = ()
        self._go: Go | None = None
        self._broken = False
        self.noise: dict[int, tuple[str, ...]] = {}
        """What workers of all ranks wrote last, as far as they told."""
        self.ras = Inquiry(None)
        self.ras_address: str | None = None
        """Where NCCL's RAS threads of this host listen; None where they do not."""
        self._meet_s = 0.0

    def begin(self, started_s: float) -> None:
        """Wait for all ranks to join the board; `started_s` is the monotonic time at which this process began."""
        self._begun_s = started_s
        left_s = max(0.0, started_s + self._limit_s - time.monotonic())
        self._board.collect("join", self._n, left_s, self._on_joins)

    def on_store(self, port: int) -> None:
        """Rank 0's worker opened the store: now the others may go."""
        if self._go is not None:
            self._board.set({"go": {"go": asdict(self._go), "store": [self._store_host, port]}})
            self._go = None

    def gather_facts(self, reason: Mapping[str, Any], timeout_s: float) -> None:
        """Something broke: take the facts of all that are there, then give the verdict.

        Before all have met, the others may be about to come with the same error (an option that all were given).
        """
        self._broken = True
        if reason["kind"] in ("hang", "comm"):
            self.ras = Inquiry(self.ras_address)
        met = bool(self._seats) or reason["kind"] != "own"
        self._board.collect(FACTS, self._n, timeout_s, lambda facts, _: self._on_facts(reason, facts), present=met)

    def _on_joins(self, joins: dict[int, Json], missing: str) -> None:
        self._joins = joins
        if self._broken:
            return None
        if missing:
            return self._refuse(absent(joins, self._n, self._limit_s, self._launch.rank_hosts))
        ordered = [joins[rank] for rank in sorted(joins)]
        error = unlike(ordered)
        if error is not None:
            return self._refuse(error)
        self._seats = seats(ordered)
        self._meet_s = time.monotonic() - self._begun_s
        self._board.set({f"seat/{seat.rank}": asdict(seat) for seat in self._seats})
        self._board.collect("hello", self._n, self._limit_s, self._on_hellos)
        return None

    def _on_hellos(self, hellos: dict[int, Json], missing: str) -> None:
        if missing:
            late = [join for rank, join in self._joins.items() if rank not in hellos]
            why = f"{whom(late)}: the worker said nothing for {self._limit_s:.0f} s"
            return self._refuse(WorldError(why, "importing torch from a slow file system takes long: give it more time with -T"))
        facts = tuple({**self._joins[seat.rank], **asdict(seat), "hello": hellos[seat.rank]} for seat in self._seats)
        self._owner.emit(Joined(facts=facts, meet_s=self._meet_s))
        result = self._check(facts)
        if isinstance(result, NcclBenchError):
            return self._refuse(result)
        self._go = result
        self._board.collect("end", self._n, _FOR_EVER_S, self._on_ends)
        self._owner.tell_first(result)
        self._owner.after(self._limit_s, self._no_store)
        return None

    def _no_store(self) -> None:
        if self._go is not None and self._n > 1:
            self._refuse(WorldError(f"rank 0's worker opened no store in {self._limit_s:.0f} s"))

    def _on_facts(self, reason: Mapping[str, Any], facts: dict[int, Json]) -> None:
        if self.ras.going_on:  # it ends soon, and before it does the workers must live
            return self._owner.after(0.05, lambda: self._on_facts(reason, facts))
        self._listen(facts)
        hosts = {rank: str(join["host"]) for rank, join in self._joins.items()} or dict(enumerate(self._launch.rank_hosts))
        self._owner.announce(blame(facts, world_size=self._n, reason=reason, timeout_s=self._plan.timeout_s, hosts=hosts))
        return None

    def _listen(self, told: Mapping[int, Json]) -> None:
        self.noise = {rank: tuple(one["lines"]) for rank, one in sorted(told.items()) if one.get("lines")}

    def _on_ends(self, ends: dict[int, Json], _: str) -> None:
        self._listen(ends)
        worst = max(ends.values(), key=lambda end: int(end["exit_code"]))
        why = str(worst["why"]) if worst["exit_code"] else ""
        self._owner.announce(Verdict(exit_code=int(worst["exit_code"]), why=why, lines=(why,) if why else ()))

    def _refuse(self, error: NcclBenchError) -> None:
        self._owner.announce(verdict_of(error))
