"""How long the start of a run takes by number of ranks, and what rank 0 must handle for it.

    python benchmarks/startup.py                      the board up to 16,384 ranks, torch's store, 2 and 4 real ranks
    python benchmarks/startup.py --board 64,1024 --ranks 2,8

Where ::ffff:127.0.0.1 has no name in the hosts file, each client of torch's store waits for DNS, seconds for some of them.

Board: a real supervisor of rank 0 with a worker that only speaks the protocol; all other ranks are connections of a few
processes that send what a supervisor sends. Seconds until all have met, until all were told to go, and until all have
left, with the messages and bytes a rank. Store: torch's TCPStore in a process of its own, whose clients ask once for a
value, as NCCL's ranks do for the identity of their communicator. Real ranks: `nccl-bench sweep` on gloo, one size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from nccl_bench.launch.facts import host_facts, join_facts
from nccl_bench.launch.interfaces import socket_facts
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.meeting import address_of
from nccl_bench.launch.supervisor import supervise
from nccl_bench.launch.values import Finished, Joined, Plan, Started

ROOT = Path(__file__).parent.parent
PER_NODE = 8
CLIENT_PROCESSES = 2
WORKER = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from nccl_bench.launch.channel import WorkerChannel
channel = WorkerChannel.from_environ()
hello = dict(pid=os.getpid(), versions={{"torch": "2.13.0", "nccl": None}}, device=None, visible_gpus=0, has_nccl=False, import_s=0.0)
channel.send("hello", **hello)
channel.receive()
channel.send("store", port=23456)
channel.enter(0, 1, "time", "all_reduce 8 B", 60)
channel.send("done", exit_code=0, why="")
"""
OFFER = {"nccl_bench": "0.1.0", "torch": "2.13.0", "options": "0123456789abcdef", "variants": ""}


def main() -> None:
    """Print three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--board", default="256,1024,4096,16384", help="ranks, a list")
    parser.add_argument("--store", default="1024,4096,16384")
    parser.add_argument("--ranks", default="2,4", help="real gloo ranks on this machine")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as folder:
        worker = Path(folder) / "worker.py"
        worker.write_text(WORKER)
        table("board", "ranks  met s  told to go s  all left s  µs a rank  messages a rank  bytes a rank to / from the board", [
            board(n, worker) for n in numbers(options.board)
        ])  # fmt: skip
        table("torch's store", "ranks  seconds  µs a rank", [store(n) for n in numbers(options.store)])
        table("gloo", "ranks  met s  torch import s  group s  first collective s  all s", [gloo(n, Path(folder)) for n in numbers(options.ranks)])


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def table(name: str, header: str, rows: list[dict[str, float]]) -> None:
    """One line a row, and how the time grows: the exponent of the number of ranks between the first and the last row."""
    print(f"\n{name}: {header}")
    for row in rows:
        print("  ".join(f"{value:>12.6g}" for value in row.values()))
    if len(rows) > 1:
        first, last = (list(row.values()) for row in (rows[0], rows[-1]))
        growth = math.log(last[1] / first[1]) / math.log(last[0] / first[0])
        print(f"the second column grows as the ranks to the power of {growth:.2f}")
    sys.stdout.flush()


# ---- the board


def place(rank: int, n: int, port: int) -> Launch:
    """Where a rank of the job is."""
    return Launch(
        launcher="slurm", rank=rank, world_size=n, local_rank=rank % PER_NODE, local_size=PER_NODE, host=f"gpu-{rank // PER_NODE:04}",
        board_host="127.0.0.1", token=f"startup:{port}", job="1",
    )  # fmt: skip


def board(n: int, worker: Path) -> dict[str, float]:
    """A start of n ranks with a real rank 0."""
    port, queue = random.randrange(1 << 30), multiprocessing.Queue()
    edges = [1 + (n - 1) * number // CLIENT_PROCESSES for number in range(CLIENT_PROCESSES + 1)]
    clients = [multiprocessing.Process(target=connect, args=(first, last, n, port, queue)) for first, last in itertools.pairwise(edges)]
    began, met, told = time.monotonic(), 0.0, 0.0
    plan = Plan(argv=(sys.executable, str(worker)), offer=OFFER, timeout_s=60.0, backend="gloo")
    for client in clients:
        client.start()
    for event in supervise(place(0, n, port), plan, os.environ):
        at = time.monotonic() - began
        if isinstance(event, Joined):
            met = event.meet_s
        elif isinstance(event, Started):
            told = at
        elif isinstance(event, Finished):
            assert event.exit_code == 0, event
    counted = [queue.get(timeout=120) for _ in clients]
    for client in clients:
        client.join()
    left = time.monotonic() - began
    sent, nbytes_to, nbytes_from = (sum(column) / (n - 1) for column in zip(*counted, strict=True))
    return {"n": n, "met": met, "go": told, "left": left, "us": left / n * 1e6, "messages": sent, "to": nbytes_to, "from": nbytes_from}


def connect(first: int, last: int, n: int, port: int, queue: Queue[tuple[int, int, int]]) -> None:
    """The supervisors of ranks first..last-1, as connections of one process."""
    os.nice(5)
    address = address_of(place(0, n, port), 0)
    selector = selectors.DefaultSelector()
    about_host = {**host_facts({}), "sockets": socket_facts("127.0.0.1", {})}
    counted = [0, 0, 0]
    for rank in range(first, last):
        Client(place(rank, n, port), address.token, found(address.ports), about_host, selector, counted)
    left = last - first
    while left:
        for key, _ in selector.select(60):
            left -= key.data.read()
    queue.put((counted[0], counted[1], counted[2]))


PORT_FOUND: list[int] = []


def found(ports: tuple[int, ...]) -> int:
    """The port of the board, looked for once a process."""
    end = time.monotonic() + 30
    while not PORT_FOUND and time.monotonic() < end:
        for port in ports:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                PORT_FOUND.append(port)
                break
            except OSError:
                continue
        time.sleep(0.01)
    return PORT_FOUND[0]


class Client:
    """What one supervisor says and hears when all goes well."""

    def __init__(
        self, launch: Launch, token: str, board_port: int, about_host: dict[str, Any], selector: selectors.BaseSelector, counted: list[int]
    ) -> None:
        rank = launch.rank
        self.rank, self.selector, self.counted = rank, selector, counted
        self.sock = socket.create_connection(("127.0.0.1", board_port), timeout=60)
        self.rest = b""
        who = f"{launch.host}:{100 + rank}"
        self.say({"op": "hello", "id": 0, "token": token, "ranks": [rank], "world": launch.world_size, "who": who})
        for number, key in enumerate(("abort", "verdict", "leave", "go", f"seat/{rank}"), start=1):
            self.say({"op": "wait", "id": number, "key": key})
        plan = Plan(argv=(), offer=OFFER, backend="gloo")
        self.say({"op": "set", "values": {f"join/{rank}": join_facts(rank, launch.local_rank, launch, plan, about_host)}})
        selector.register(self.sock, selectors.EVENT_READ, self)

    def say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.counted[0] += 1
        self.counted[1] += len(data)
        self.sock.sendall(data)

    def read(self) -> bool:
        """Take what came; True when this rank has left."""
        data = self.sock.recv(1 << 16)
        self.counted[2] += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            match json.loads(line)["id"]:
                case 5:  # seated: the worker has said hello
                    versions = {"torch": "2.13.0", "nccl": None}
                    hello = {"pid": 1, "versions": versions, "device": None, "visible_gpus": 0, "has_nccl": False, "import_s": 0.0}
                    self.say({"op": "set", "values": {f"hello/{self.rank}": hello}})
                case 4:  # go
                    self.say({"op": "set", "values": {f"end/{self.rank}": {"exit_code": 0, "why": "", "lines": []}}})
                case 2:  # the verdict
                    self.say({"op": "bye"})
                    self.selector.unregister(self.sock)
                    self.sock.close()
                    return True
        return False


# ---- torch's store, and real ranks


def store(n: int) -> dict[str, float]:
    """Clients of one TCPStore that each ask once for a value of 128 bytes, as long as NCCL's unique identity."""
    context = multiprocessing.get_context("spawn")
    queue: Queue[int] = context.Queue()
    server = context.Process(target=serve, args=(queue,))
    server.start()
    port = queue.get(timeout=60)
    done: Queue[int] = context.Queue()
    start = context.Event()
    clients = [context.Process(target=ask, args=(port, n // CLIENT_PROCESSES, done, start)) for _ in range(CLIENT_PROCESSES)]
    for client in clients:
        client.start()
    for _ in clients:
        done.get(timeout=60)
    began = time.monotonic()
    start.set()
    for _ in clients:
        done.get(timeout=300)
    seconds = time.monotonic() - began
    for client in clients:
        client.join()
    server.terminate()
    server.join()
    return {"n": n, "s": seconds, "us": seconds / n * 1e6}


def serve(queue: Queue[int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    from nccl_bench.measure.world import open_store

    kept, port = open_store(60.0)
    kept.set("identity", "x" * 128)
    queue.put(port)
    time.sleep(600)


def ask(port: int, n: int, done: Queue[int], start: Any) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    from nccl_bench.measure.world import join_store

    done.put(0)
    start.wait()
    kept = [join_store("127.0.0.1", port, 60.0) for _ in range(n)]
    for client in kept:
        client.get("identity")
    done.put(n)


def gloo(n: int, folder: Path) -> dict[str, float]:
    """A sweep of one size on n ranks that were launched one by one."""
    run, port = folder / f"gloo{n}", str(random.randrange(20000, 32000))
    command = [sys.executable, "-m", "nccl_bench", "sweep", "all_reduce", "--backend", "gloo", "--sizes", "1K", "--budget", "0.05", "-O", str(run)]
    began = time.monotonic()
    ranks = []
    for rank in range(n):
        env = {"RANK": rank, "WORLD_SIZE": n, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        place_of = {name: str(value) for name, value in env.items()}
        ranks.append(subprocess.Popen(command, env={**os.environ, **place_of, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL))
    assert [rank.wait() for rank in ranks] == [0] * n
    setup = json.loads((run / "run.json").read_text())["setup"]
    seconds = time.monotonic() - began
    return {"n": n, "met": setup["meet_s"], "import": setup["torch_import_s"], "group": setup["communicator_s"],
            "first": setup["first_collective_s"], "all": seconds}  # fmt: skip


if __name__ == "__main__":
    main()
