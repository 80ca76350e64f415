"""A supervisor's side of the board: finding it (or holding it), and asking it without ever blocking for long."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nccl_bench.errors import WorldError
from nccl_bench.launch.board import Board, BoardServer, LineReader, Replies, encode, prepare_socket

Json = dict[str, Any]
Then = Callable[[Json], None]

CONNECT_S = 5.0
"""Seconds for one try to connect: a lost SYN is sent again after 1 and 3 s (RFC 6298's initial time-out of 1 s, doubled)."""
ANSWER_S = 5.0
"""Seconds a listener has to prove that it is our board, and a millisecond more a rank: the board greets one after another."""
_ROUND_S = (0.05, 1.0)
"""Pause after the first round over all ports, and the longest one."""


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
                _await(self.fileno(), min(left, 0.5), write=not sent)
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
                messages += self._reader.feed(data)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the ranks of a job meet, and who this process is there."""

    host: str
    ports: tuple[int, ...]
    token: str
    ranks: tuple[int, ...]
    world_size: int
    who: str
    """host:pid"""
    may_hold: bool
    """Whether this process holds the board, should the address be this host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """This process's connection to the board, and the board where it is held here."""

    client: BoardClient
    server: BoardServer | None
    store_host: str
    """Name or address by which the others reach this process."""

    def leave(self, patience_s: float = 0.0) -> None:
        """Say bye; who holds the board waits up to `patience_s` seconds for the others to have left."""
        self.client.bye()
        if self.server is None:
            return
        end = time.monotonic() + patience_s
        while self.server.n_connected > 0 and time.monotonic() < end:
            time.sleep(0.005)
        self.server.close()


def meet_alone(token: str, who: str, ranks: tuple[int, ...]) -> Meeting:
    """A board for the only supervisor of a job."""
    holder = f"rank {ranks[0]} ({who})"
    wire = LocalWire(Board(token, holder))
    wire.send({"op": "hello", "id": 0, "token": token, "ranks": list(ranks), "world": len(ranks), "who": who})
    wire.receive()
    return Meeting(client=BoardClient(wire, holder), server=None, store_host="127.0.0.1")


def meet(address: Address, timeout_s: float, stop: threading.Event | None = None) -> Meeting:
    """Find the board of the job, or open it; all ranks try the same ports in the same order, round after round.

    On the board's host the first free port is taken, and a port that is taken is asked whether it is ours, so two
    processes never open two boards. Raises WorldError after `timeout_s` seconds, or once `stop` is set.
    """
    end = time.monotonic() + timeout_s
    pause_s, trouble = _ROUND_S[0], "nobody listens there"
    while time.monotonic() < end and not (stop and stop.is_set()):
        try:
            addresses = _resolve(address.host)
        except OSError as err:
            addresses, trouble = [], f"the name cannot be resolved: {err.strerror or err}"
        owned = bool(addresses) and any(_is_ours(found) for found in addresses)
        for port in address.ports if addresses else ():
            meeting = _try_port(address, addresses, port, owned, end)
            if isinstance(meeting, Meeting):
                return meeting
            trouble = meeting or trouble
        wait_s = min(pause_s, max(0.0, end - time.monotonic()))
        if stop is not None:
            stop.wait(wait_s)
        else:
            time.sleep(wait_s)
        pause_s = min(pause_s * 2, _ROUND_S[1])
    raise WorldError(
        f"rank {address.ranks[0]} reached nobody at {address.host} in {timeout_s:.0f} s: {trouble}",
        f"tried ports {', '.join(map(str, address.ports))}; is rank 0 running, and is TCP to these ports allowed between the nodes?",
        *(("MASTER_ADDR is each host's own loopback: set it to a host that has ranks",) if is_loopback(address.host) else ()),
    )


def _try_port(address: Address, addresses: list[str], port: int, owned: bool, end: float) -> Meeting | str:
    """The board at one port, opened there where it is free and ours to open; else what was wrong."""
    server = None
    if owned and address.may_hold:
        with contextlib.suppress(OSError):  # taken: by another job, or by our board
            board = Board(address.token, f"rank {address.ranks[0]} ({address.who})")
            server = BoardServer(port, board, loopback=is_loopback(address.host), n_clients=address.world_size)
    targets = ["127.0.0.1"] if server is not None else addresses
    trouble = ""
    for target in targets:
        left_s = end - time.monotonic()
        try:
            sock = socket.create_connection((target, port), timeout=max(0.1, min(CONNECT_S, left_s)))
        except OSError as err:
            trouble = err.strerror or str(err)
            continue
        try:
            client = _greet(sock, address, max(0.1, min(ANSWER_S + address.world_size / 1000, left_s)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            sock.close()
            trouble = f"port {port} is not our board"
            continue
        return Meeting(client=client[0], server=server, store_host=address.host if owned else client[1])
    if server is not None:
        server.close()
    return trouble


def _greet(sock: socket.socket, address: Address, timeout_s: float) -> tuple[BoardClient, str]:
    """Show the token; the client and our own address. Raises OSError, ValueError or KeyError where this is not our board."""
    prepare_socket(sock)
    wire = TcpWire(sock)
    wire.send({
        "op": "hello", "id": 0, "token": address.token, "ranks": list(address.ranks), "world": address.world_size, "who": address.who,
    })  # fmt: skip
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        _await(sock.fileno(), left)
        for answer in wire.receive():
            return BoardClient(wire, str(answer["board"])), wire.address
    raise TimeoutError


def _await(fd: int, timeout_s: float, *, write: bool = False) -> None:
    """Wait for something to read (or room to write); unlike select, for any number of open files."""
    poll = select.poll()
    poll.register(fd, select.POLLIN | (select.POLLOUT if write else 0))
    poll.poll(max(1, int(timeout_s * 1000)))


def _resolve(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_loopback(host: str) -> bool:
    """Whether an address means each host itself."""
    return host == "localhost" or host == "::1" or (host.startswith("127.") and host.replace(".", "").isdigit())


def _is_ours(address: str) -> bool:
    """Whether an address is one of this host: it can be bound, and it is the source of what is sent to it.

    The second matters where net.ipv4.ip_nonlocal_bind lets any address be bound.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return is_loopback(address) or sock.getsockname()[0] == address
    except OSError:
        return False


def who_am_i(host: str) -> str:
    """"host:pid" of this process."""
    return f"{host}:{os.getpid()}"
