"""A supervisor: meets the others, starts workers, watches them, and ends with the code that all ranks agree on.

One single-threaded loop over pipes, the board, signals and timers; only finding the board happens in a thread of its
own. Rank 0's supervisor also decides for all (lead.py). Whatever happens, the loop ends: each wait has a timer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, TextIO

from nccl_bench.errors import BUG, InterruptedRun, LaunchError, NcclBenchError, WorldError
from nccl_bench.launch import preflight
from nccl_bench.launch.blame import Verdict
from nccl_bench.launch.board import ABORT, FACTS
from nccl_bench.launch.client import BoardClient
from nccl_bench.launch.crew import Crew
from nccl_bench.launch.elastic import tell_torchrun
from nccl_bench.launch.ending import Ending, rank_0_is_silent, verdict_from_here, verdict_of
from nccl_bench.launch.facts import host_facts, join_facts
from nccl_bench.launch.interfaces import in_use, socket_facts, worker_sockets
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.lead import Lead
from nccl_bench.launch.meeting import Meeting, Search, address_of, meet_alone, who_am_i
from nccl_bench.launch.placement import absent
from nccl_bench.launch.ras import ADDRESS, ras_environ
from nccl_bench.launch.signals import Signals
from nccl_bench.launch.timers import Timers
from nccl_bench.launch.values import Event, Finished, Go, Limits, Plan, Seat, Started

Json = dict[str, Any]


def supervise(
    launch: Launch, plan: Plan, environ: Mapping[str, str] = os.environ, *, check: preflight.Check = preflight.check,
    stderr: TextIO | None = None, limits: Limits | None = None,
) -> Generator[Event, None, None]:
    """Run the workers of this process to the end that all ranks share; yields events, the last one is Finished.

    Call it on the main thread and use it up: rank 0 lets the others go when it comes back after Finished. A flow that
    must stop the run throws its NcclBenchError into the generator (`events.throw(error)`), which answers with Finished.
    `stderr`: where workers' lines go at once when the user asked for the libraries' debug output.
    """
    with Signals() as signals:
        supervisor = Supervisor(launch, plan, environ, check, stderr, limits or Limits(), signals)
        try:
            yield from supervisor.events()
        finally:
            supervisor.close()


class Supervisor:
    """The state of one run in one process."""

    def __init__(
        self, launch: Launch, plan: Plan, environ: Mapping[str, str], check: preflight.Check, stderr: TextIO | None, limits: Limits, signals: Signals
    ) -> None:
        self._launch, self._plan, self._environ, self._check, self._limits, self._signals = launch, plan, environ, check, limits, signals
        self._alone = launch.launcher == "none"
        self._ranks = tuple(range(plan.n_local)) if self._alone else (launch.rank,)
        self._world_size = plan.n_local if self._alone else launch.world_size
        self._started_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._crew = Crew(plan, environ, self._world_size, self._selector, stderr)
        self._queue: deque[Event] = deque()
        self._timers = Timers()
        self._search: Search | None = None
        self._meeting: Meeting | None = None
        self._lead: Lead | None = None
        self._seats: dict[int, Seat] = {}
        self._ends: Json = {}
        self._went, self._socket = False, ""
        self._sockets: Json = {}
        self._reason: Json | None = None
        """The first abort of the run; _own_reason is what went wrong here."""
        self._own_reason: Json | None = None
        self._ending = Ending(launch)
        self._may_leave = self._hurry = self._thrown = self._guilty = False
        self._interrupts, self._linger_s = 0, 0.0

    @property
    def _board(self) -> BoardClient | None:
        """The board, while it can be spoken to."""
        return self._meeting.client if self._meeting is not None and not self._meeting.client.lost else None

    def events(self) -> Generator[Event, None, None]:
        """Everything that happens, up to Finished."""
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        self._begin()
        while self._ending.verdict is None:
            self._turn()
            yield from self._queued()
        self._crew.end(self, self._limits.kill_s)
        yield from self._queued()
        self._wait_for_leave()
        verdict = self._ending.verdict
        finished = Finished(
            exit_code=verdict.exit_code, why=verdict.why, lines=verdict.lines, hang=verdict.hang,
            kept={**(self._lead.noise if self._lead else {}), **self._crew.kept()}, ras=self._lead.ras.lines if self._lead else (),
        )  # fmt: skip
        self._linger_s = tell_torchrun(self._environ, finished.exit_code, finished.why, finished.lines, guilty=self._guilty)
        try:
            yield finished
        except NcclBenchError:
            yield finished

    def _queued(self) -> Generator[Event, None, None]:
        """What happened so far; nothing any more once the flow has thrown an error."""
        while self._queue and not self._thrown:
            try:
                yield self._queue.popleft()
            except NcclBenchError as err:
                self._thrown = True
                self._fail(err)

    def emit(self, event: Event) -> None:
        """Hand an event to the flow."""
        self._queue.append(event)

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` in so many seconds, unless the run is over."""
        self._timers.after(seconds, then)

    def _turn(self) -> None:
        self._post_ends()
        for key, _ in self._selector.select(self._timers.wait_s(self._limits.tick_s)):
            key.data()
        self._pump()
        self._crew.look(self, self._limits.overdue_s, self._limits.linger_s)
        for call in self._timers.due():
            if self._ending.verdict is None:
                call()

    def _pump(self) -> None:
        board = self._board
        if board is None:
            return
        all_sent = board.pump()
        if board.lost:
            self._on_board_lost(board)
        elif board.fileno() >= 0:
            self._selector.modify(board, selectors.EVENT_READ | (0 if all_sent else selectors.EVENT_WRITE), _nothing)

    def _begin(self) -> None:
        """Start the workers at once, they import while the ranks meet; without a local rank they wait for a seat."""
        launch = self._launch
        if self._plan.error is not None:
            self._fail(self._plan.error)
        elif self._alone or launch.local_rank is not None:
            for index, rank in enumerate(self._ranks):
                self._start(rank, index if self._alone else launch.local_rank or 0, self._world_size if self._alone else launch.local_size)
        if self._world_size == len(self._ranks):
            self._on_met(meet_alone("", who_am_i(launch.host), self._ranks))
            return
        self._search = Search(address_of(launch, self._plan.run_index), self._plan.meeting_s(self._world_size), self._signals.wake)

    def _on_found(self, found: Meeting | NcclBenchError) -> None:
        if isinstance(found, Meeting):
            self._on_met(found)
        elif self._own_reason is not None:
            self._decide_from_here()
        else:
            self._ending.fail(found, speak=self._ending.speaks)

    def _on_met(self, meeting: Meeting) -> None:
        self._meeting = meeting
        board, launch = meeting.client, self._launch
        if board.fileno() >= 0:
            self._selector.register(board, selectors.EVENT_READ, _nothing)
        board.wait(ABORT, self._on_abort)
        board.wait("verdict", self._on_verdict)
        board.wait("leave", self._on_leave)
        board.wait("go", self._on_go)
        if self._own_reason is not None:
            board.claim(ABORT, self._own_reason)
            self.after(self._limits.facts_s, self._if_the_board_is_silent)
        self._sockets = socket_facts(meeting.address, self._environ)
        about_host = {**host_facts(self._environ), "sockets": self._sockets}
        for index, rank in enumerate(self._ranks):
            board.wait(f"seat/{rank}", self._on_seat)
            board.set({f"join/{rank}": join_facts(rank, index if self._alone else launch.local_rank, launch, self._plan, about_host)})
            worker = self._crew.workers.get(rank)
            if worker is not None and worker.hello is not None:
                self.on_hello(rank, worker.hello)
        if 0 in self._ranks:
            self._lead = Lead(self, board, meeting.store_host, launch, self._plan, self._world_size, self._check)
            self._lead.begin(self._started_s)
        else:
            left_s = self._started_s + self._plan.meeting_s(self._world_size) - time.monotonic()
            self.after(max(0.0, left_s) + self._limits.grace_s, self._ask_who_is_missing)

    def _ask_who_is_missing(self) -> None:
        """Rank 0 would have said it; it is not there, or silent."""
        board = self._board
        if not self._seats and board is not None:
            board.collect("join", self._world_size, 0.0, self._on_missing)
            self.after(self._limits.grace_s, lambda: self._on_missing({}, ""))

    def _on_missing(self, joins: dict[int, Any], _: str) -> None:
        if self._seats:
            return
        limit_s = self._plan.meeting_s(self._world_size)
        if not joins or 0 in joins:
            self._ending.fail(rank_0_is_silent(f"for {limit_s:.0f} s"), speak=self._ending.speaks)
        else:
            self._ending.fail(absent(joins, self._world_size, limit_s, self._launch.rank_hosts), speak=self._ending.speaks)

    def _on_seat(self, value: Json) -> None:
        seat = Seat(**value)
        self._seats[seat.rank] = seat
        self._start(seat.rank, seat.local_rank, seat.local_size)
        if len(self._seats) == len(self._ranks) and self._lead is None:
            self.after(2 * self._plan.meeting_s(self._world_size) + self._limits.grace_s, self._ask_for_go)

    def _ask_for_go(self) -> None:
        if not self._went:
            self._ending.fail(rank_0_is_silent("after all had met"), speak=self._ending.speaks)

    def _start(self, rank: int, local_rank: int, local_size: int | None) -> None:
        """Start a worker, unless it runs already or all is over."""
        if self._ending.verdict is None and self._own_reason is None and rank not in self._crew.workers:
            try:
                self._crew.start(self, rank, local_rank, local_size)
            except LaunchError as err:
                self._fail(err)

    def on_hello(self, rank: int, hello: Json) -> None:
        """A local worker is ready; before the ranks have met it waits in the worker."""
        if self._board is not None:
            self._board.set({f"hello/{rank}": hello})

    def on_store(self, port: int) -> None:
        """The store of torch is open."""
        if self._lead is not None:
            self._lead.on_store(port)

    def on_done(self, ends: Json) -> None:
        """The local workers ended well; the others' end is awaited, but not for ever."""
        self._ends = {f"end/{rank}": end for rank, end in ends.items()}

    def _post_ends(self) -> None:
        """The end is told once the flow has taken all that came before it: keeping that may still fail."""
        if self._ends and self._board is not None:
            self._board.set(self._ends)
            self._ends = {}
            patience_s = max(self._plan.timeout_s, 60.0) + self._limits.grace_s
            self.after(patience_s, lambda: self.abort({"kind": "hang", "rank": self._ranks[0]}))

    def tell_first(self, go: Go) -> None:
        """Rank 0's worker goes first: it opens the store."""
        self._tell(go, None)

    def _on_go(self, value: Json) -> None:
        host, port = value["store"]
        self._tell(Go.from_json(value["go"]), (str(host), int(port)))

    def _tell(self, go: Go, store: tuple[str, int] | None) -> None:
        ras = ras_environ(f"{self._launch.token}#{self._plan.run_index}", self._environ, go.backend)
        self._crew.go(go, self._seats, store, worker_sockets(self._sockets, go.backend, go.one_host) | ras)
        if self._lead is not None:
            self._lead.ras_address = ras.get(ADDRESS, self._environ.get(ADDRESS))
        if not self._went:
            self._socket = in_use(self._sockets, go.backend, go.one_host)
            self._went = True
            self.emit(Started(go=go))

    def abort(self, reason: Json) -> None:
        """Something broke here: tell the board, whose first abort counts for all."""
        if self._own_reason is not None or self._reason is not None or self._ending.verdict is not None:
            return
        self._own_reason = reason
        board = self._board
        if board is not None:
            board.claim(ABORT, reason)
            self.after(self._limits.facts_s, self._if_the_board_is_silent)
        elif reason["kind"] == "signal":
            self._decide_from_here()

    def _fail(self, error: NcclBenchError) -> None:
        """End the run for all ranks with an error of this process itself."""
        content = {"kind": "own", "exit_code": error.exit_code, "why": error.why, "hints": list(error.hints)}
        if self._lead is not None:
            self.announce(verdict_of(error))
        self.abort({"kind": "own", "rank": self._ranks[0], "error": content})

    def _if_the_board_is_silent(self) -> None:
        if self._reason is None:
            self._decide_from_here()

    def _on_abort(self, reason: Json) -> None:
        self._reason = reason
        if reason["kind"] == "clash":
            error = LaunchError(str(reason["why"]), "start every rank once; two jobs on one host need MASTER_PORTs of their own")
            self._ending.fail(error, speak=0 in self._ranks or self._launch.rank in reason["ranks"])
            return
        if reason["kind"] == "lost" and 0 in reason["ranks"] and self._lead is None:
            self._decide_from_here()
            return
        wait_s = self._limits.settle_s if reason["kind"] in ("comm", "hang") else 0.0
        if wait_s:
            self._crew.ask_for_stacks()
        self.after(wait_s, self._post_facts)
        if self._lead is not None:
            self._lead.gather_facts(reason, wait_s + self._limits.facts_s)
        self.after(wait_s + self._limits.facts_s + 1.0, self._decide_from_here)

    def _facts(self) -> dict[int, Json]:
        """What the ranks of this process were doing."""
        still_s = self._timers.stood_s(self._plan.timeout_s)
        found = {rank: {**fact, "socket": self._socket} for rank, fact in self._crew.facts(self._launch.host, self._ranks, still_s).items()}
        if self._own_reason is not None and "error" in self._own_reason:
            found[self._ranks[0]]["error"] = self._own_reason["error"]
        return found

    def _post_facts(self) -> None:
        facts = self._facts()
        self._guilty = any(fact.get("state") in ("dead", "stopped") for fact in facts.values())
        if self._board is not None:
            self._board.set({f"{FACTS}/{rank}": fact for rank, fact in facts.items()})

    def _on_board_lost(self, board: BoardClient) -> None:
        if self._ending.verdict is not None:
            return
        known = self._reason or self._own_reason
        if known is not None and known["kind"] not in ("comm", "hang"):  # those are symptoms of it
            self._decide_from_here()
            return
        error = WorldError(f"{board.board} is gone, and with it the board where the ranks meet", "see what it said last, and its host")
        self._ending.fail(error, speak=self._ending.speaks)

    def _decide_from_here(self) -> None:
        """No word of rank 0: the verdict from what this process knows."""
        reason = self._reason or self._own_reason or {"kind": "unknown"}
        holder = self._meeting.client.board if self._meeting is not None and not self._alone else None
        verdict = verdict_from_here(self._facts(), reason, self._world_size, self._plan.timeout_s, holder)
        self._ending.conclude(verdict, speak=self._ending.speaks or reason is self._own_reason)

    def announce(self, verdict: Verdict) -> None:
        """Rank 0's word, for all."""
        if self._board is not None and self._ending.verdict is None:
            self._board.claim("verdict", {"exit_code": verdict.exit_code, "why": verdict.why})
        self._ending.conclude(verdict)

    def _on_verdict(self, value: Json) -> None:
        """Rank 0 decided, and says it."""
        self._ending.conclude(Verdict(exit_code=int(value["exit_code"]), why=value["why"], lines=()))

    def _on_signals(self) -> None:
        for number in self._signals.read():
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                self._hurry = True
                self._ending.fail(InterruptedRun(number, f"interrupted by {signal.Signals(number).name}, twice"))
                return
            self._pump()  # what others said first counts
            self.abort({"kind": "signal", "rank": self._ranks[0], "signal": number})
        found = None if self._search is None or self._ending.verdict is not None else self._search.take()
        if found is not None:
            self._on_found(found)

    def _wait_for_leave(self) -> None:
        """Rank 0 shows and saves first: a launcher may kill the others' processes at the first exit code that is not 0."""
        if self._lead is not None or self._ending.verdict is None or self._ending.verdict.exit_code == 0:
            return
        end = time.monotonic() + self._limits.leave_s
        while not self._may_leave and not self._hurry and time.monotonic() < end and self._board is not None:
            self._board.pump()
            self._hurry = signal.SIGINT in self._signals.read()
            time.sleep(0.01)

    def _on_leave(self, _: Any) -> None:
        self._may_leave = True

    def close(self) -> None:
        """Leave nothing behind; the board's holder goes last."""
        if self._search is not None:
            self._search.call_off()
        if self._lead is not None:
            self.announce(Verdict(exit_code=BUG, why="rank 0 stopped listening", lines=("rank 0 stopped listening to its workers",)))
            if self._board is not None:
                self._board.set({"leave": True})
        self._signals.decided = 0 if self._ending.verdict is None else self._ending.verdict.exit_code
        self._crew.close()
        if self._meeting is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._meeting.client)
            self._meeting.leave(0.0 if self._hurry else self._limits.leave_s)
        self._selector.close()
        time.sleep(0.0 if self._hurry else self._linger_s)


def _nothing() -> None:
    """The board is pumped on every turn."""
