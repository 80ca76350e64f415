"""The workers of one supervisor: started, heard, watched; what happens to them goes to their owner."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TextIO

from nccl_bench.launch.values import Event, Go, Message, Noise, Plan, Seat
from nccl_bench.launch.workers import Worker, worker_environ

Json = dict[str, Any]

VERBOSE = ("NCCL_DEBUG", "TORCH_DISTRIBUTED_DEBUG")
"""Who sets one of these wants to see what the libraries say, as they say it."""


class Owner(Protocol):
    """Who is told."""

    def abort(self, reason: Json) -> None:
        """Something broke here."""

    def emit(self, event: Event) -> None:
        """Something the flow should know."""

    def on_hello(self, rank: int, hello: Json) -> None:
        """A worker has imported what it needs."""

    def on_store(self, port: int) -> None:
        """Rank 0's worker opened its store."""

    def on_done(self, ends: Json) -> None:
        """All workers of this process ended well; their last words by rank."""


class Crew:
    """The workers of this process by rank."""

    def __init__(self, plan: Plan, environ: Mapping[str, str], world_size: int, selector: selectors.BaseSelector, stderr: TextIO | None) -> None:
        self.workers: dict[int, Worker] = {}
        self.go_s: float | None = None
        """Monotonic time when they were told to go."""
        self._plan, self._environ, self._world_size = plan, environ, world_size
        self._selector = selector
        self._aloud = stderr if any(environ.get(name) for name in VERBOSE) else None

    def start(self, owner: Owner, rank: int, local_rank: int, local_size: int | None) -> None:
        """Start the worker of one rank. Raises LaunchError."""
        environ = worker_environ(
            self._environ, rank=rank, world_size=self._world_size, local_rank=local_rank, local_size=local_size, extra=self._plan.extra_env
        )
        worker = self.workers[rank] = Worker(self._plan.argv, rank, environ)
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda: self._hear(owner, worker))
        self._selector.register(worker.noise_fd, selectors.EVENT_READ, lambda: self._listen(owner, worker))

    def look(self, owner: Owner, overdue_s: float, linger_s: float) -> None:
        """Deaths, stops and deadlines.

        `overdue_s` is the patience beyond a deadline; after `linger_s` a worker that said its last word and does not exit
        is killed, and its word counts.
        """
        for worker in self.workers.values():
            worker.channel.flush()
            if worker.reap():
                self._hear(owner, worker)
                self._listen(owner, worker)
                self._on_exit(owner, worker)
            elif worker.running and self._is_overdue(worker, overdue_s):
                owner.abort({"kind": "hang", "rank": worker.rank})
            elif worker.running and worker.done is not None and time.monotonic() > worker.done_s + linger_s:
                worker.kill()

    def go(self, go: Go, seats: Mapping[int, Seat], store: tuple[str, int] | None, env: Mapping[str, str]) -> None:
        """Tell rank 0's worker to go and open the store (None), or all others where it is; `env` is set in them."""
        for rank, worker in self.workers.items():
            if (rank == 0) == (store is None):
                worker.channel.send(go.message(seats[rank], store, env))
        self.go_s = self.go_s or time.monotonic()

    def ask_for_stacks(self) -> None:
        """Let the workers write where they are."""
        for worker in self.workers.values():
            worker.ask_for_stack()

    def facts(self, host: str, ranks: Iterable[int], still_s: float = 0.0) -> dict[int, Json]:
        """What each rank was doing, for blame.py; without a worker yet, it was starting. `still_s`: for so long this process stood still."""
        found = {rank: self.workers[rank].fact(host) if rank in self.workers else {"rank": rank, "host": host} for rank in ranks}
        still = {"state": "stopped", "still_s": still_s, "for_s": still_s} if still_s else {}
        return {rank: {**fact, **still} if _held_up(fact) else fact for rank, fact in found.items()}

    def kept(self) -> dict[int, tuple[str, ...]]:
        """The last lines of each worker that wrote any."""
        return {rank: tuple(worker.kept) for rank, worker in self.workers.items() if worker.kept}

    def end(self, owner: Owner, patience_s: float) -> None:
        """Kill what is left; what was said before still counts."""
        for worker in self.workers.values():
            worker.kill()
        limit = time.monotonic() + patience_s
        while [worker for worker in self.workers.values() if not worker.reap() and worker.running] and time.monotonic() < limit:
            time.sleep(0.005)
        for worker in self.workers.values():
            self._hear(owner, worker)
            self._listen(owner, worker)

    def close(self) -> None:
        """Leave nothing of them behind."""
        for worker in self.workers.values():
            worker.kill()
            worker.reap()
            for source in (worker.channel, worker.noise_fd):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(source)
            worker.close()
        self.workers.clear()

    def _hear(self, owner: Owner, worker: Worker) -> None:
        for message in worker.channel.read():
            self._on_message(owner, worker, message)
        if worker.channel.ended:
            with contextlib.suppress(KeyError):
                self._selector.unregister(worker.channel)

    def _listen(self, owner: Owner, worker: Worker) -> None:
        for line in worker.read_noise():
            owner.emit(Noise(rank=worker.rank, line=line))
            if self._aloud is not None:
                self._aloud.write(f"[rank {worker.rank}] {line}\n")
        if worker.noise_ended:
            with contextlib.suppress(KeyError):
                self._selector.unregister(worker.noise_fd)

    def _on_message(self, owner: Owner, worker: Worker, message: Json) -> None:
        match message["type"]:
            case "hello":
                worker.hello = message
                owner.on_hello(worker.rank, message)
            case "store" if worker.rank == 0:
                owner.on_store(int(message["port"]))
            case "done":
                worker.done, worker.done_s = message, time.monotonic()
            case "error":
                worker.error, worker.error_s = {name: value for name, value in message.items() if name != "type"}, time.monotonic()
                owner.abort({"kind": message.get("kind", "own"), "rank": worker.rank})
            case _:
                owner.emit(Message(rank=worker.rank, content=message))

    def _on_exit(self, owner: Owner, worker: Worker) -> None:
        if worker.done is None and worker.error is None:
            owner.abort({"kind": "died", "rank": worker.rank})
        elif all(one.done is not None and not one.running for one in self.workers.values()):
            owner.on_done({str(rank): _end(one) for rank, one in self.workers.items()})

    def _is_overdue(self, worker: Worker, overdue_s: float) -> bool:
        """Past its own deadline; before its first one, past the meeting's. Stopped for the whole time-out, at any time."""
        if worker.done is not None or worker.error is not None:
            return False
        progress, now = worker.channel.progress(), time.monotonic()
        if worker.stopped_s is not None and now > worker.stopped_s + self._plan.timeout_s + overdue_s:
            return True
        if progress.deadline_s > 0:
            return progress.overdue(now, overdue_s)
        idle = self.go_s is not None and progress.changed_s < self.go_s
        return idle and now > (self.go_s or now) + self._plan.meeting_s(self._world_size)


def _held_up(fact: Json) -> bool:
    """Whether nothing worse happened to a rank than that others were not there: they leave one that stands still."""
    return fact.get("state", "alive") == "alive" or (fact.get("error") or {}).get("kind") == "comm"


def _end(worker: Worker) -> Json:
    """How a worker ended, in short, for the board."""
    word = worker.done or {}
    return {"exit_code": int(word.get("exit_code", 0)), "why": word.get("why", ""), "lines": worker.complaints()}
