"""Where the ranks of a job meet: finding the board, or opening it, whoever this process is."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nccl_bench.errors import NcclBenchError, WorldError
from nccl_bench.launch.board import Board, BoardServer, prepare_socket
from nccl_bench.launch.client import BoardClient, LocalWire, TcpWire, await_fd
from nccl_bench.launch.interfaces import is_loopback
from nccl_bench.launch.launchers import Launch, candidate_ports

CONNECT_S = 5.0
"""Seconds for one try to connect: a lost SYN is sent again after 1 and 3 s (RFC 6298's initial time-out of 1 s, doubled)."""
ANSWER_S = 5.0
"""Seconds a listener has to prove that it is our board, and a millisecond more a rank: the board greets one after another."""
_ROUND_S = (0.05, 1.0)
"""Pause after the first round over all ports, and the longest one."""


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
    me: str = field(default_factory=lambda: secrets.token_hex(8))
    """By which the board knows this process when it comes again: a board on a busy host may greet it too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """This process's connection to the board, and the board where it is held here."""

    client: BoardClient
    server: BoardServer | None
    store_host: str
    """Name or address by which the others reach this process."""
    address: str
    """This process's own address on the way to the board."""

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
    return Meeting(client=BoardClient(wire, holder), server=None, store_host="127.0.0.1", address="127.0.0.1")


def meet(address: Address, timeout_s: float, stop: threading.Event | None = None) -> Meeting:
    """Find the board of the job, or open it; all ranks try the same ports in the same order, round after round.

    On the board's host the first free port is taken, and a port that is taken is asked whether it is ours, so two
    processes never open two boards. Raises WorldError after `timeout_s` seconds, or once `stop` is set.
    """
    end = time.monotonic() + timeout_s
    pause_s, trouble = _ROUND_S[0], "nobody listens there"
    silent_until: dict[int, float] = {}
    while time.monotonic() < end and not (stop and stop.is_set()):
        try:
            addresses = _resolve(address.host)
        except OSError as err:
            addresses, trouble = [], f"the name cannot be resolved: {err.strerror or err}"
        owned = bool(addresses) and any(_is_ours(found) for found in addresses)
        # A stranger who says nothing costs seconds: for as long as he did, only the other ports are asked.
        for port in [port for port in address.ports if addresses and silent_until.get(port, 0.0) <= time.monotonic()]:
            began = time.monotonic()
            meeting = _try_port(address, addresses, port, owned, end)
            if isinstance(meeting, Meeting):
                return meeting
            silent_until[port] = 2 * time.monotonic() - began if meeting == _stranger(port) else 0.0
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
        *(("another program listens there: a MASTER_PORT of its own gives this job other ports",) if "is not our board" in trouble else ()),
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
            trouble = _stranger(port)
            continue
        mine = next((found for found in addresses if not is_loopback(found)), client[1]) if owned else client[1]
        return Meeting(client=client[0], server=server, store_host=address.host if owned else client[1], address=mine)
    if server is not None:
        server.close()
    return trouble


def _stranger(port: int) -> str:
    return f"port {port} is not our board"


def _greet(sock: socket.socket, address: Address, timeout_s: float) -> tuple[BoardClient, str]:
    """Show the token; the client and our own address. Raises OSError, ValueError or KeyError where this is not our board."""
    prepare_socket(sock)
    wire = TcpWire(sock)
    wire.send({
        "op": "hello", "id": 0, "token": address.token, "ranks": list(address.ranks), "world": address.world_size, "who": address.who,
        "me": address.me,
    })  # fmt: skip
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        await_fd(sock.fileno(), left)
        for answer in wire.receive():
            return BoardClient(wire, str(answer["board"])), wire.address
    wire.send({"op": "bye"})  # a board that is only slow must not take this for a loss
    raise TimeoutError


def _resolve(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # An IPv4 address in IPv6 clothes, as some hosts files have for the sake of torch's store, is the same once more.
    return list(dict.fromkeys(str(entry[4][0]).removeprefix("::ffff:") for entry in found))


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


def address_of(launch: Launch, run_index: int) -> Address:
    """Where the ranks of a launched job meet for one of its runs.

    The board is held on the host of `board_host`, which need not be rank 0's, by its rank with local rank 0 (or by the
    first that comes, where no rank knows its local rank); where the address is each host's own, by rank 0 alone.
    """
    token = f"{launch.token}#{run_index}"
    return Address(
        host=launch.board_host,
        ports=candidate_ports(token),
        token=token,
        ranks=(launch.rank,),
        world_size=launch.world_size,
        who=who_am_i(launch.host),
        may_hold=launch.rank == 0 if is_loopback(launch.board_host) else launch.local_rank in (0, None),
    )


class Search:
    """Looks for the board in a thread: names may take seconds to resolve, and connections to be refused."""

    def __init__(self, address: Address, timeout_s: float, wake: Callable[[], None]) -> None:
        """Begin; `wake` is called once there is something to `take`."""
        self._found: Meeting | NcclBenchError | None = None
        self._call_off = threading.Event()
        threading.Thread(target=self._run, args=(address, timeout_s, wake), name="nccl-bench-meet", daemon=True).start()

    def take(self) -> Meeting | NcclBenchError | None:
        """What was found, once; None as long as there is nothing."""
        found, self._found = self._found, None
        return found

    def call_off(self) -> None:
        """What is found from now on is left at once."""
        self._call_off.set()
        found = self.take()
        if isinstance(found, Meeting):
            found.leave()

    def _run(self, address: Address, timeout_s: float, wake: Callable[[], None]) -> None:
        try:
            found: Meeting | NcclBenchError = meet(address, timeout_s, self._call_off)
        except NcclBenchError as err:
            found = err
        if self._call_off.is_set() and isinstance(found, Meeting):
            found.leave()
            return
        self._found = found
        wake()


def who_am_i(host: str) -> str:
    """"host:pid" of this process."""
    return f"{host}:{os.getpid()}"
