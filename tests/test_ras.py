"""Asking NCCL's RAS threads: the words of the protocol as NCCL's own client has them, and an end however they answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nccl_bench.launch.ras import ADDRESS, LIMIT_S, Inquiry, ask, ras_environ

REPORT = b"Job summary\n===========\n\nErrors\n======\n\n#0-0 (27a079b828ff1a75) INCOMPLETE\n  Missing communicator data from 1 job process\n"


@contextmanager
def listening(answer: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """An address where each connection is answered by a function."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve() -> None:
            for number in range(100):
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock:
                    answer(sock, number)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)


def as_nccl(sock: socket.socket, report: bytes = REPORT) -> None:
    """What src/ras/client_support.cc answers."""
    with sock.makefile("rb") as words:
        assert words.readline() == b"CLIENT PROTOCOL 2\n"
        sock.sendall(b"SERVER PROTOCOL 2\n")
        assert words.readline() == b"TIMEOUT 1\n"
        sock.sendall(b"OK\n")
        assert words.readline() == b"VERBOSE STATUS\n"
        sock.sendall(report)


def test_the_report_comes_line_by_line() -> None:
    with listening(lambda sock, _: as_nccl(sock)) as address:
        assert ask(address) == REPORT.decode().splitlines()


def test_a_stopped_process_that_shares_the_port_is_passed_over() -> None:
    def answer(sock: socket.socket, number: int) -> None:
        if number == 0:
            sock.recv(1)
            time.sleep(0.7)  # longer than HELLO_S, as the kernel takes a connection for a stopped process
        else:
            as_nccl(sock)

    with listening(answer) as address:
        assert ask(address, 5.0) == REPORT.decode().splitlines()


def test_a_report_that_does_not_end_is_cut_at_the_limit() -> None:
    def answer(sock: socket.socket, number: int) -> None:
        as_nccl(sock)
        time.sleep(1.5)

    with listening(answer) as address:
        assert ask(address, 1.0) == REPORT.decode().splitlines()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xfe\n"])
def test_whoever_is_no_ras_thread_gives_no_report(answer: bytes) -> None:
    with listening(lambda sock, _: sock.sendall(answer)) as address:
        assert ask(address, 0.5) == []


def test_nobody_there_is_known_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    inquiry = Inquiry(address)
    end = time.monotonic() + LIMIT_S
    while inquiry.going_on and time.monotonic() < end:
        time.sleep(0.01)
    assert not inquiry.going_on
    assert inquiry.lines == ()
    assert not Inquiry(None).going_on


def test_each_job_has_a_port_of_its_own_unless_the_user_chose() -> None:
    first, second = ras_environ("job 1", {}, "nccl"), ras_environ("job 2", {}, "nccl")
    assert first != second
    assert first[ADDRESS].startswith("localhost:")
    assert ras_environ("job 1", {}, "gloo") == {}
    assert ras_environ("job 1", {ADDRESS: "localhost:1"}, "nccl") == {}
    assert ras_environ("job 1", {"NCCL_RAS_ENABLE": "0"}, "nccl") == {}


def test_a_hang_waits_for_the_report_and_keeps_it() -> None:
    """A run on the tests' own worker that says it has NCCL; RAS listens where the user says."""
    import json
    from pathlib import Path

    tests = Path(__file__).parent
    with listening(lambda sock, _: as_nccl(sock)) as address:
        device = json.dumps({"index": 0, "uuid": "GPU-0", "name": "H200"})
        env = {
            **os.environ, "PYTHONPATH": str(tests.parent), "FAKE": "1 hang", "FAKE_DEVICE": device, "FAKE_VISIBLE": "1", ADDRESS: address,
            "FAKE_RUN": json.dumps({"plan": {"n_local": 1}}),
        }  # fmt: skip
        done = subprocess.run([sys.executable, tests / "fake_run.py"], env=env, capture_output=True, text=True, timeout=60, check=False)
    last = [json.loads(line) for line in done.stdout.splitlines()][-1]
    assert (done.returncode, last["event"]) == (4, "Finished"), done.stderr
    assert last["ras"] == REPORT.decode().splitlines()
