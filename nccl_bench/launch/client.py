"""A supervisor's side of the board: asking it without ever blocking for long."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from nccl_bench.errors import WorldError
from nccl_bench.launch.board import Board, Replies
from nccl_bench.launch.lines import LineReader, decode, encode

Json = dict[str, Any]
Then = Callable[[Json], None]

ANSWER_S = 5.0
"""Seconds more than asked for that the board has to answer."""


class Wire(Protocol):
    """How messages reach a board: over TCP, or within the process."""

    def send(self, message: Json) -> None:
        """Send, or keep it for `flush`."""

    def receive(self) -> list[Json]:
        """What came; raises OSError where the board is gone."""

    def fileno(self) -> int:
        """Descriptor to watch, -1 for none."""

    def flush(self) -> bool:
        """Send what was kept; True when nothing is left."""

    def close(self) -> None:
        """Leave."""


class BoardClient:
    """Asks the board; answers arrive in `pump`, on the caller's thread."""

    def __init__(self, wire: Wire, board: str) -> None:
        self.board = board
        """The process that holds the board: "rank 0 (host:pid)"."""
        self.lost = False
        """Whether the board went away."""
        self._wire = wire
        self._pending: dict[int, Then] = {}
        self._next_id = 1

    def fileno(self) -> int:
        """Descriptor that becomes readable with answers; -1 within one process."""
        return self._wire.fileno()

    def pump(self) -> bool:
        """Take what came and call whoever waits for it; True when all of ours was sent."""
        if self.lost:
            return True
        try:
            while answers := self._wire.receive():
                for answer in answers:
                    then = self._pending.pop(int(answer["id"]), None)
                    if then is not None:
                        then(answer)
            return self._wire.flush()
        except OSError:
            self.lost = True
            return True

    def set(self, values: Json) -> None:
        """Put values up, each under its key."""
        self._send({"op": "set", "values": values})

    def claim(self, key: str, value: Any) -> None:
        """Put a value up, unless somebody else did before."""
        self._send({"op": "claim", "key": key, "value": value})

    def wait(self, key: str, then: Callable[[Any], None]) -> None:
        """Call `then` with the value once the key is set."""
        self._ask({"op": "wait", "key": key}, lambda answer: then(answer["value"]))

    def collect(self, prefix: str, n: int, timeout_s: float, then: Callable[[dict[int, Any], str], None], *, present: bool = False) -> None:
        """Call `then` with prefix/0..n-1 by rank, and with the missing ranks as text.

        That is when all are there, or the time is over; with `present` already when all have come that are connected.
        """
        message = {"op": "collect", "prefix": prefix, "n": n, "timeout_s": timeout_s, "present": present}
        self._ask(message, lambda answer: then({int(rank): value for rank, value in answer["values"].items()}, answer.get("missing", "")))

    def get(self, key: str, timeout_s: float) -> Any:
        """The value of a key, None after `timeout_s` seconds. Raises WorldError where the board is gone."""
        found: list[Any] = []
        self.wait(key, found.append)
        self._until(found, timeout_s)
        return found[0] if found else None

    def gather(self, prefix: str, n: int, timeout_s: float) -> tuple[dict[int, Any], str]:
        """The values of prefix/0..n-1 and the missing ranks as text. Raises WorldError where the board is gone or silent."""
        found: list[tuple[dict[int, Any], str]] = []
        self.collect(prefix, n, timeout_s, lambda values, missing: found.append((values, missing)))
        self._until(found, timeout_s + ANSWER_S)
        if not found:
            raise WorldError(f"the board of {self.board} does not answer")
        return found[0]

    def bye(self) -> None:
        """Leave in order: what follows is no loss."""
        if not self.lost:
            self._pending.clear()
            self._send({"op": "bye"})
        self._wire.close()
        self.lost = True

    def drop(self) -> None:
        """Leave without a word, as a process that dies."""
        self._wire.close()
        self.lost = True

    def _ask(self, message: Json, then: Then) -> None:
        self._pending[self._next_id] = then
        self._send({**message, "id": self._next_id})
        self._next_id += 1

    def _send(self, message: Json) -> None:
        if self.lost:
            return
        try:
            self._wire.send(message)
        except OSError:
            self.lost = True

    def _until(self, found: list[Any], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not found and not self.lost and (left := end - time.monotonic()) > 0:
            sent = self.pump()
            if not found and self.fileno() >= 0 and not self.lost:
                await_fd(self.fileno(), min(left, 0.5), write=not sent)
            elif not found and not self.lost:
                time.sleep(min(left, 0.01))
        if self.lost and not found:
            raise WorldError(f"{self.board} is gone, and with it the board where the ranks meet")


class LocalWire:
    """A board within this process, for a world of one supervisor."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._answers: Replies = []

    def send(self, message: Json) -> None:
        """Handled at once."""
        self._answers += self._board.handle(0, message, time.monotonic())

    def receive(self) -> list[Json]:
        """Answers so far, and those whose time is over."""
        answers = self._answers + self._board.expire(time.monotonic())
        self._answers = []
        return [answer for _, answer in answers]

    def fileno(self) -> int:
        """None to watch."""
        return -1

    def flush(self) -> bool:
        """Nothing is ever left."""
        return True

    def close(self) -> None:
        """Nothing to close."""


class TcpWire:
    """A connection to the board's process."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = LineReader()
        self._outbox = b""
        self.address: str = sock.getsockname()[0]
        """Our own address on the way to the board."""

    def send(self, message: Json) -> None:
        """Send what the socket takes, keep the rest."""
        self._outbox += encode(message)
        self.flush()

    def receive(self) -> list[Json]:
        """What came; raises OSError at the end of the connection."""
        messages: list[Json] = []
        while True:
            try:
                data = self._sock.recv(1 << 18)
            except BlockingIOError:
                return messages
            if not data:
                if messages:
                    return messages
                raise ConnectionResetError("the board closed the connection")
            try:
                messages += [decode(line) for line in self._reader.feed(data)]
            except ValueError as err:
                raise ConnectionResetError("not a board") from err

    def fileno(self) -> int:
        """The socket's."""
        return self._sock.fileno()

    def flush(self) -> bool:
        """Send what is left."""
        try:
            while self._outbox:
                self._outbox = self._outbox[self._sock.send(self._outbox) :]
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Send what can be sent at once, then close."""
        with contextlib.suppress(OSError):
            self.flush()
        self._sock.close()


def await_fd(fd: int, timeout_s: float, *, write: bool = False) -> None:
    """Wait for something to read (or room to write); unlike select, for any number of open files."""
    poll = select.poll()
    poll.register(fd, select.POLLIN | (select.POLLOUT if write else 0))
    poll.poll(max(1, int(timeout_s * 1000)))
