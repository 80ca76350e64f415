"""The board: a small key-value server in one supervisor, where the ranks meet and tell each other what happened.

`Board` is the pure part, messages in and replies out; `BoardServer` puts it on a port, in a thread of its own. Messages
are JSON objects, one a line:

    {"op": "hello", "id", "token", "ranks": [r, ...], "world", "who": "host:pid", "me": any text}
                                                                               first; answered with "board", or refused. "me": the same
                                                                               where a process that gave up waiting comes again
    {"op": "set", "values": {key: value}}                                      no answer
    {"op": "claim", "key", "value"}                                            set, unless somebody did before
    {"op": "wait", "id", "key"}                                                answered with "value" once it is set
    {"op": "collect", "id", "prefix", "n", "timeout_s", "present"}             answered with "values" {rank: value} of prefix/0..n-1
                                                                               when all are there (if present: of all that are
                                                                               connected), else then with "missing" too
    {"op": "bye"}                                                              leaves: the end of its connection is no loss

Keys that the board sets by itself: "abort", when a client is lost without a bye, when a rank is claimed twice, or when
worlds differ; the first abort stays. "facts/<rank>" of a lost client that left none. Every client sends a fixed number
of short messages.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from nccl_bench.errors import LaunchError
from nccl_bench.launch.lines import LineReader, decode, encode

Json = dict[str, Any]
Replies = list[tuple[int, Json]]

ABORT: Final = "abort"
"""The key under which the first failure stands."""
FACTS: Final = "facts"
"""Prefix of what each rank was doing when a run broke."""
LINE_NBYTES = 4 << 20
"""A longer message than 4 MiB is not one of ours."""
STRANGER_NBYTES = 1 << 16
"""Before the token was shown a client may send no more than this."""
STRANGER_S = 10.0
"""Seconds a client has to show the token."""
_SPARE_FDS = 256
"""Descriptors a process needs besides one a client."""


@dataclass(slots=True)
class _Client:
    ranks: tuple[int, ...]
    who: str
    me: str
    left: bool = False


@dataclass(slots=True)
class _Collect:
    client: int
    request: int
    prefix: str
    n: int
    deadline: float
    present: bool
    """Whether only ranks that are connected are waited for."""


@dataclass(slots=True)
class Board:
    """The pure board; `now` is monotonic seconds."""

    token: str
    holder: str
    """The process that holds it: "rank 0 (host:pid)"."""
    clients: dict[int, _Client] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    _ranked: defaultdict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    _waiting: defaultdict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _collects: list[_Collect] = field(default_factory=list)
    _by_rank: dict[int, int] = field(default_factory=dict)
    _world: tuple[int, str] | None = None

    def handle(self, client: int, message: Json, now: float) -> Replies:
        """Replies to one message of one client. A KeyError, TypeError or ValueError means that it is no message of ours."""
        op = message["op"]
        if op == "hello":
            return self._hello(client, message, now)
        if client not in self.clients:
            raise ValueError("no hello")
        match op:
            case "set":
                return self._set(dict(message["values"]), now)
            case "claim":
                return [] if message["key"] in self._values else self._set({str(message["key"]): message["value"]}, now)
            case "wait":
                return self._wait(client, int(message["id"]), str(message["key"]))
            case "collect":
                deadline = now + float(message["timeout_s"])
                present = bool(message.get("present"))
                self._collects.append(_Collect(client, int(message["id"]), str(message["prefix"]), int(message["n"]), deadline, present))
                return self.expire(now)
            case "bye":
                self.clients[client].left = True
                return []
            case _:
                raise ValueError(f"unknown op {op!r}")

    def leave(self, client: int, now: float) -> Replies:
        """The connection of a client ended: a loss, unless it said bye."""
        known = self.clients.pop(client, None)
        self._collects = [collect for collect in self._collects if collect.client != client]
        if known is None:
            return []
        held = [rank for rank in known.ranks if self._by_rank.get(rank) == client]
        for rank in held:
            del self._by_rank[rank]
        if known.left or not held:  # or the same process has come again
            return []
        news: Json = {f"{FACTS}/{rank}": {"rank": rank, "state": "lost", "who": known.who} for rank in known.ranks if rank not in self._ranked[FACTS]}
        if ABORT not in self._values:
            news[ABORT] = {"kind": "lost", "ranks": list(known.ranks), "who": known.who}
        return self._set(news, now)

    def expire(self, now: float) -> Replies:
        """Answers to the collects that are complete, or whose time is over."""
        replies: Replies = []
        open_: list[_Collect] = []
        for collect in self._collects:
            values = self._ranked[collect.prefix]
            enough = len(values) >= (min(collect.n, len(self._by_rank)) if collect.present else collect.n) and (
                not collect.present or all(rank in values for rank in self._by_rank)
            )
            if not enough and now < collect.deadline:
                open_.append(collect)
                continue
            reply: Json = {"id": collect.request, "values": {str(rank): value for rank, value in values.items()}}
            if len(values) < collect.n:
                reply["missing"] = rank_ranges(rank for rank in range(collect.n) if rank not in values)
            replies.append((collect.client, reply))
        self._collects = open_
        return replies

    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return min((collect.deadline for collect in self._collects), default=None)

    def _hello(self, client: int, message: Json, now: float) -> Replies:
        request = int(message["id"])
        if message["token"] != self.token:
            return [(client, {"id": request, "refused": "another job's board"})]
        world, who = int(message["world"]), str(message["who"])
        ranks = tuple(int(rank) for rank in message["ranks"])
        replies: Replies = [(client, {"id": request, "board": self.holder})]
        me = str(message.get("me") or f"client {client}")
        self.clients[client] = _Client(ranks, who, me)
        self._world = self._world or (world, f"rank {ranks[0]} ({who})")
        problem = None
        if world != self._world[0]:
            problem = f"rank {ranks[0]} ({who}) says there are {world} ranks, {self._world[1]} says {self._world[0]}"
        for rank in ranks:
            other = self.clients.get(self._by_rank.setdefault(rank, client))
            if other is not None and other.me == me:
                self._by_rank[rank] = max(client, self._by_rank[rank])
            elif other is not None:
                problem = f"rank {rank} claimed by 2 processes: {other.who} and {who}"
        if problem is not None and ABORT not in self._values:
            replies += self._set({ABORT: {"kind": "clash", "why": problem, "ranks": list(ranks)}}, now)
        return replies

    def _set(self, values: Json, now: float) -> Replies:
        replies: Replies = []
        for key, value in values.items():
            self._values[key] = value
            prefix, slash, rank = key.rpartition("/")
            if slash and rank.isdigit():
                self._ranked[prefix][int(rank)] = value
            replies += [(client, {"id": request, "value": value}) for client, request in self._waiting.pop(key, ())]
        return replies + (self.expire(now) if self._collects else [])

    def _wait(self, client: int, request: int, key: str) -> Replies:
        if key in self._values:
            return [(client, {"id": request, "value": self._values[key]})]
        self._waiting[key].append((client, request))
        return []


def rank_ranges(ranks: Iterable[int]) -> str:
    """Ranks as text: "1, 4-7, 9"; sorted, each once."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" if last > first + 1 else f"{first}, {last}" for first, last in runs)


@dataclass(slots=True, eq=False)
class _Connection:
    number: int
    """Name of the client on the board; never used again, as descriptors are."""
    sock: socket.socket
    since: float
    reader: LineReader = field(default_factory=lambda: LineReader(STRANGER_NBYTES))
    outbox: bytes = b""
    refused: bool = False


class BoardServer:
    """The board on a port; the thread is a daemon and ends with `close`."""

    def __init__(self, port: int, board: Board, *, loopback: bool = False, n_clients: int = 0) -> None:
        """Listen on `port` of all addresses (or of loopback alone). Raises OSError where the port is taken.

        Raises LaunchError where `n_clients` connections would need more descriptors than this process may have.
        """
        _raise_descriptor_limit(n_clients)
        self.board = board
        self._listener = _listen(port, loopback)
        self.port: int = self._listener.getsockname()[1]
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._connections: dict[int, _Connection] = {}
        self._strangers: dict[int, _Connection] = {}
        self._n_accepted = 0
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="nccl-bench-board", daemon=True)
        self._thread.start()

    @property
    def n_connected(self) -> int:
        """Clients that are here, this process's own one too."""
        return len(self._connections)

    def close(self) -> None:
        """Stop serving; every client sees its connection end."""
        self._closing = True
        os.write(self._wake_write, b"x")
        self._thread.join(timeout=5)
        os.close(self._wake_write)

    def _serve(self) -> None:
        try:
            while not self._closing:
                deadline = self.board.next_deadline()
                timeout = 1.0 if deadline is None else min(1.0, max(0.0, deadline - time.monotonic()))
                for key, events in self._selector.select(timeout):
                    self._turn(key, events)
                now = time.monotonic()
                self._send_all(self.board.expire(now))
                for stranger in [one for one in self._strangers.values() if now - one.since > STRANGER_S]:
                    self._drop(stranger)
        finally:
            for connection in self._connections.values():
                connection.sock.close()
            self._listener.close()
            self._selector.close()
            os.close(self._wake_read)

    def _turn(self, key: selectors.SelectorKey, events: int) -> None:
        connection = key.data
        if key.fileobj is self._listener:
            self._accept()
        elif connection is not None and connection.number in self._connections:
            if events & selectors.EVENT_WRITE:
                self._write(connection)
            if events & selectors.EVENT_READ:
                self._read(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # nobody there any more
            while True:
                sock, _ = self._listener.accept()
                prepare_socket(sock)
                self._n_accepted += 1
                connection = _Connection(self._n_accepted, sock, time.monotonic())
                self._connections[connection.number] = self._strangers[connection.number] = connection
                self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(1 << 16)
            for line in connection.reader.feed(data):
                self._send_all(self.board.handle(connection.number, decode(line), time.monotonic()))
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            data = b""
        if not data:
            self._drop(connection)
        elif connection.number in self.board.clients and connection.number in self._strangers:
            del self._strangers[connection.number]
            connection.reader.limit_nbytes = LINE_NBYTES

    def _send_all(self, replies: Replies) -> None:
        for number, reply in replies:
            connection = self._connections.get(number)
            if connection is not None:
                connection.outbox += encode(reply)
                connection.refused = connection.refused or "refused" in reply
                self._write(connection)

    def _write(self, connection: _Connection) -> None:
        try:
            while connection.outbox:
                connection.outbox = connection.outbox[connection.sock.send(connection.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            return self._drop(connection)
        if connection.refused and not connection.outbox:
            return self._drop(connection)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        if self._selector.get_key(connection.sock).events != wanted:
            self._selector.modify(connection.sock, wanted, connection)
        return None

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._strangers.pop(connection.number, None)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._send_all(self.board.leave(connection.number, time.monotonic()))


def prepare_socket(sock: socket.socket) -> None:
    """Non-blocking, no delay, and notice within half a minute that the other host is gone."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _listen(port: int, loopback: bool) -> socket.socket:
    if loopback:
        listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    elif socket.has_dualstack_ipv6():
        listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    else:
        listener = socket.create_server(("", port), backlog=4096)
    listener.setblocking(False)
    return listener


def _raise_descriptor_limit(n_clients: int) -> None:
    """Let this process hold a descriptor a client: the soft limit is raised as far as needed, up to the hard one."""
    if sys.platform == "win32":
        return
    import resource

    needed = n_clients + _SPARE_FDS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LaunchError(
            f"{n_clients} ranks need {needed} open files in rank 0's process, and {socket.gethostname()} allows {hard}",
            "raise the hard limit of open files there: ulimit -Hn, or LimitNOFILE of the service that starts the ranks",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
