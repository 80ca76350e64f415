"""NCCL's own view of a run that hangs: the report of its RAS threads (NCCL 2.24 and later), asked for before the workers are ended.

The protocol is lines of text over TCP (NCCL, src/ras/client.cc; user guide, "RAS"). The port is shared by the processes
of a job on a host: a connection to a stopped one gets no answer, so it is tried again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping

from nccl_bench.launch.launchers import candidate_ports

ADDRESS, ENABLE = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
LIMIT_S = 2.5
"""Seconds for the whole report: the others wait for a verdict meanwhile."""
HELLO_S = 0.5
"""Seconds for one process to greet."""
PEERS_S = 1
"""Seconds that the process which is asked waits for the others (NCCL's default: 5)."""
MAX_NBYTES = 1 << 20
"""A longer report is cut."""


def ras_environ(token: str, environ: Mapping[str, str], backend: str) -> dict[str, str]:
    """A port of the job's own for its RAS threads: two jobs on one host would share the default one, and mix their answers."""
    if backend != "nccl" or environ.get(ADDRESS) or environ.get(ENABLE) == "0":
        return {}
    return {ADDRESS: f"localhost:{candidate_ports(f'ras:{token}')[0]}"}


def ask(address: str, limit_s: float = LIMIT_S) -> list[str]:
    """The lines of the verbose report of whoever listens at "host:port"; [] where nobody answers in time."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            text = _ask_once(host.strip("[]"), int(port), end)
        except (ConnectionRefusedError, ValueError):  # nobody listens there: an older NCCL
            return []
        except OSError:
            text = ""
        if text:
            return text.splitlines()
        time.sleep(min(0.1, max(0.0, end - time.monotonic())))
    return []


def _ask_once(host: str, port: int, end: float) -> str:
    with socket.create_connection((host, port), timeout=HELLO_S) as sock, sock.makefile("rb") as answers:
        for word, answer in ((b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL"), (f"TIMEOUT {PEERS_S}\n".encode(), b"OK")):
            sock.sendall(word)
            if not answers.readline(200).startswith(answer):
                return ""
        sock.sendall(b"VERBOSE STATUS\n")
        data = b""
        with contextlib.suppress(TimeoutError):  # what came counts
            while len(data) < MAX_NBYTES and (left := end - time.monotonic()) > 0:
                sock.settimeout(left)
                chunk = sock.recv(1 << 16)
                if not chunk:
                    break
                data += chunk
        return data.decode("utf-8", "replace")


class Inquiry:
    """Asks in a thread of its own."""

    def __init__(self, address: str | None) -> None:
        """Begin; None: there is nobody to ask."""
        self.lines: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, args=(address,), name="nccl-bench-ras", daemon=True)
        if address is not None:
            self._thread.start()

    @property
    def going_on(self) -> bool:
        """Whether there may still come an answer."""
        return self._thread.is_alive()

    def _run(self, address: str) -> None:
        self.lines = tuple(ask(address))
