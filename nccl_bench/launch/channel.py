"""The wire between a supervisor and its worker: two pipes of JSON lines, a shared progress page, a stack file.

The page costs no system call to update, so a worker may tick after every batch; the supervisor reads it even while
the worker is stuck in C. The stack file is where the worker's faulthandler writes on SIGUSR1.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import mmap
import os
import select
import signal
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from nccl_bench.errors import BUG, LaunchError
from nccl_bench.launch.lines import LineReader, decode, encode

Json = dict[str, Any]
Phase = Literal["start", "meet", "setup", "warmup", "time", "verify", "done"]
PHASES: Final[tuple[Phase, ...]] = ("start", "meet", "setup", "warmup", "time", "verify", "done")

FDS = "NCCL_BENCH_FDS"
"""Variable that tells a worker its descriptors: read, write, page, stack file; then its supervisor's process id."""

_PAGE_NBYTES = 512
_ENTER = struct.Struct("<iiiHxxd")
_ENTER_AT = 8
"""case index, the highest so far, number of cases, bytes of text, deadline (monotonic seconds, 0 for none); after the 4-byte sequence number."""
_TICK = struct.Struct("<IId")
_TICK_AT = 40
"""phase, batch, time of the last change (monotonic seconds)."""
_TEXT_AT, _TEXT_NBYTES = 64, 256
_SEQUENCE = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h."""
STACK_SIGNAL = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Asks a worker for the Python stacks of its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a worker was doing at its last word."""

    case_index: int = -1
    """Case, from 0; -1 before the first and after the last."""
    reached: int = -1
    """The highest case index so far; -1 where no case was begun."""
    n_cases: int = 0
    phase: Phase = "start"
    batch: int = 0
    changed_s: float = 0.0
    """Monotonic time of the last change."""
    deadline_s: float = 0.0
    """Monotonic time by which something else must be entered; 0 for none."""
    text: str = ""
    """The call in words: "all_gather 64 MiB"."""

    def overdue(self, now: float, grace_s: float = 0.0) -> bool:
        """Whether the deadline passed more than `grace_s` seconds ago."""
        return self.deadline_s > 0 and now > self.deadline_s + grace_s


class WorkerChannel:
    """The worker's end. Everything is cheap: `tick` writes 16 bytes to memory."""

    def __init__(self, read_fd: int, write_fd: int, page_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._page = mmap.mmap(page_fd, _PAGE_NBYTES)
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)
        self._reader = LineReader()
        self._inbox: deque[bytes] = deque()
        self._sequence = 0
        self._reached, self._n_cases = -1, 0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> WorkerChannel:
        """The channel that the supervisor left in the environment; call it before anything slow is imported.

        Also makes sure that this process ends with its supervisor, and that SIGUSR1 and crashes leave stacks.
        Raises LaunchError where no supervisor started this process.
        """
        try:
            read_fd, write_fd, page_fd, stack_fd, parent = (int(word) for word in environ[FDS].split(","))
            channel = cls(read_fd, write_fd, page_fd)
        except (KeyError, ValueError, OSError) as err:
            raise LaunchError("a worker is started by nccl-bench itself, not by hand", "run: nccl-bench sweep") from err
        for fd in (read_fd, write_fd, page_fd, stack_fd):
            os.set_inheritable(fd, False)
        faulthandler.enable(sys.__stderr__ or 2)
        faulthandler.register(STACK_SIGNAL, file=stack_fd, all_threads=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # schedulers signal every process; the supervisor answers for both
        _end_with(parent, read_fd)
        return channel

    def send(self, type: str, **fields: Any) -> None:
        """Send one message to the supervisor: {"type": type, ...}."""
        data = encode({"type": type, **fields})
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except OSError:
            _leave()

    def receive(self, timeout_s: float | None = None) -> Json | None:
        """The next message of the supervisor, None after `timeout_s` seconds (None: wait for it)."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._inbox:
            left_ms = None if end is None else max(0, math.ceil((end - time.monotonic()) * 1000))
            if not self._poll.poll(left_ms):
                return None
            data = os.read(self._read_fd, 1 << 16)
            if not data:
                _leave()
            self._inbox.extend(self._reader.feed(data))
        return _message(self._inbox.popleft())

    def enter(self, case_index: int, n_cases: int, phase: Phase, text: str = "", deadline_s: float = 0.0) -> None:
        """Say what begins now; `deadline_s` seconds from now it must have been followed by something else (0: no limit)."""
        now = time.monotonic()
        data = text.encode("utf-8", "replace")[:_TEXT_NBYTES]
        self._sequence = self._sequence + 2 & 0xFFFFFFFF
        self._reached, self._n_cases = max(self._reached, case_index), max(self._n_cases, n_cases)
        deadline = now + deadline_s if deadline_s > 0 else 0.0
        _SEQUENCE.pack_into(self._page, 0, self._sequence | 1)
        _ENTER.pack_into(self._page, _ENTER_AT, case_index, self._reached, self._n_cases, len(data), deadline)
        self._page[_TEXT_AT : _TEXT_AT + len(data)] = data
        _TICK.pack_into(self._page, _TICK_AT, PHASES.index(phase), 0, now)
        _SEQUENCE.pack_into(self._page, 0, self._sequence)

    def meeting_step(self, text: str, number: int) -> None:
        """Say which step of forming the world begins; those with lower numbers are waited for by the others."""
        self.enter(-1, 0, "meet", text)
        self.tick("meet", number)

    def tick(self, phase: Phase, batch: int = 0) -> None:
        """Say that the case goes on; the deadline stays."""
        _TICK.pack_into(self._page, _TICK_AT, _PHASE_CODE[phase], batch & 0xFFFFFFFF, time.monotonic())


_PHASE_CODE: Final[dict[Phase, int]] = {phase: code for code, phase in enumerate(PHASES)}


class SupervisorChannel:
    """The supervisor's end of one worker's channel; `worker_fds` go to the child as they are."""

    def __init__(self) -> None:
        self._worker_read, self._write_fd = os.pipe()
        self._read_fd, self._worker_write = os.pipe()
        self._page_fd, self._stack_fd = _nameless_file(), _nameless_file()
        os.truncate(self._page_fd, _PAGE_NBYTES)
        self._page = mmap.mmap(self._page_fd, _PAGE_NBYTES)
        _ENTER.pack_into(self._page, _ENTER_AT, -1, -1, 0, 0, 0.0)
        _TICK.pack_into(self._page, _TICK_AT, 0, 0, time.monotonic())
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._reader = LineReader()
        self._outbox = b""
        self._last = self._read_page() or Progress()
        self.ended = False
        """Whether the worker closed its end."""

    @property
    def worker_fds(self) -> tuple[int, ...]:
        """Descriptors the child inherits."""
        return (self._worker_read, self._worker_write, self._page_fd, self._stack_fd)

    def environ(self) -> dict[str, str]:
        """The variable by which the child finds its end."""
        return {FDS: ",".join(str(number) for number in (*self.worker_fds, os.getpid()))}

    def started(self) -> None:
        """Close the child's ends here; call it once the child runs."""
        os.close(self._worker_read)
        os.close(self._worker_write)
        self._worker_read = self._worker_write = -1

    def fileno(self) -> int:
        """The descriptor that becomes readable with the worker's messages."""
        return self._read_fd

    def read(self) -> list[Json]:
        """All messages that are there; sets `ended` at the end of the pipe. What is no JSON becomes an error of kind "bug"."""
        messages: list[Json] = []
        try:
            while data := os.read(self._read_fd, 1 << 18):
                messages += [_message(line) for line in self._reader.feed(data)]
            self.ended = True
        except BlockingIOError:
            pass
        return messages

    def send(self, message: Json) -> None:
        """Send one message; what the pipe does not take now goes with the next `flush`."""
        self._outbox += encode(message)
        self.flush()

    def flush(self) -> bool:
        """Write what is left; True when nothing is."""
        try:
            while self._outbox:
                self._outbox = self._outbox[os.write(self._write_fd, self._outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox = b""
        return not self._outbox

    def progress(self) -> Progress:
        """The worker's last word; the one before it where the page is being written just now."""
        for _ in range(5):
            page = self._read_page()
            if page is not None:
                self._last = page
                break
        return self._last

    def read_stack(self) -> tuple[str, ...]:
        """What faulthandler wrote so far, innermost call first, as lines."""
        return tuple(os.pread(self._stack_fd, 1 << 16, 0).decode("utf-8", "replace").splitlines())

    def close(self) -> None:
        """Close everything; a worker that still lives ends by it."""
        for fd in (self._read_fd, self._write_fd, self._worker_read, self._worker_write, self._page_fd, self._stack_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self._write_fd = self._worker_read = self._worker_write = self._page_fd = self._stack_fd = -1
        self._page.close()

    def _read_page(self) -> Progress | None:
        (before,) = _SEQUENCE.unpack_from(self._page, 0)
        index, reached, n_cases, length, deadline = _ENTER.unpack_from(self._page, _ENTER_AT)
        phase, batch, changed = _TICK.unpack_from(self._page, _TICK_AT)
        text = bytes(self._page[_TEXT_AT : _TEXT_AT + min(length, _TEXT_NBYTES)])
        (after,) = _SEQUENCE.unpack_from(self._page, 0)
        if before != after or before & 1 or phase >= len(PHASES):
            return None
        return Progress(
            case_index=index, reached=reached, n_cases=n_cases, phase=PHASES[phase], batch=batch, changed_s=changed, deadline_s=deadline,
            text=text.decode("utf-8", "ignore"),
        )  # fmt: skip


def _message(line: bytes) -> Json:
    """What a line says; an error of kind "bug" where it is no message."""
    try:
        message = decode(line)
        if isinstance(message.get("type"), str):
            return message
    except ValueError:
        pass
    text = line[:200].decode("utf-8", "replace")
    return {"type": "error", "kind": "bug", "exit_code": BUG, "why": f"not a message of a worker: {text!r}"}


def _nameless_file() -> int:
    """A file without a name, in memory where the system has that: a full disk must not break the page."""
    if hasattr(os, "memfd_create"):
        return int(os.memfd_create("nccl-bench"))
    with tempfile.TemporaryFile(prefix="nccl-bench-") as file:
        return os.dup(file.fileno())


def _end_with(parent: int, read_fd: int) -> None:
    """End this process when its supervisor does: by the kernel on Linux, by a thread that sees the pipe close anywhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        _leave()
    threading.Thread(target=_watch, args=((read_fd,),), name="nccl-bench-life", daemon=True).start()


def _watch(fds: Sequence[int]) -> None:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, 0)  # only the end of the pipe is asked for
    poll.poll()
    _leave()


def _leave() -> NoReturn:
    """The supervisor is gone: nobody is left to tell."""
    os._exit(BUG)
