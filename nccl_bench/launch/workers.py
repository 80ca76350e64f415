"""A worker's process as its supervisor sees it: started, noisy, stopped, dead; killed with all that it started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_bench.errors import TOO_MANY_FILES, LaunchError, too_many_files
from nccl_bench.launch.channel import STACK_SIGNAL, SupervisorChannel

Json = dict[str, Any]

KEPT_LINES = 200
"""Last lines of a worker's output that are kept."""
_TOLD_LINES, _TOLD_CHARS = 4, 300
"""Lines that a healthy rank tells rank 0, and how much of each: 16,384 ranks then send no more than 20 MB."""
_COMPLAINT = re.compile(r"\b(WARN(ING)?|ERROR|FATAL|Traceback)\b|([Ww]arning|[Ee]rror|[Ff]ail(ed|ure))\b|(^|:)\[[WEF]\d{4}\b")
"""NCCL's and Python's words, and the first letter of a line of torch's C++ logger."""
_CHATTER = re.compile(r"\bNCCL (INFO|TRACE)\b|hostname of the client socket cannot be retrieved|^frame #\d+: |^Exception raised from ")
"""No complaint: what the user asked for with NCCL_DEBUG (it tells of plug-ins that "failed" to be there), torch where addresses have no
names, the rest of a C++ stack."""
_LINE_CHARS = 2000
"""A longer line is cut: something that writes no line ends must not fill memory."""


class Worker:
    """One worker, from its start to its end. Its stdout and stderr are one pipe; messages have their own."""

    def __init__(self, argv: Sequence[str], rank: int, environ: Mapping[str, str]) -> None:
        """Start it, in a session of its own so that a terminal's Ctrl-C does not reach it. Raises LaunchError."""
        self.rank = rank
        _check_folder()
        try:
            self.channel = SupervisorChannel()
            self.noise_fd, noise_write = os.pipe()
        except OSError as err:
            raise _cannot_start(rank, argv, err) from err
        self.kept: deque[str] = deque(maxlen=KEPT_LINES)
        self.stopped_s: float | None = None
        """Monotonic time since when a signal has stopped it."""
        self.exit: int | None = None
        """Exit code, or minus the signal that ended it."""
        self.ended_s: float | None = None
        self.hello: Json | None = None
        self.done: Json | None = None
        """Its last word when all went well."""
        self.done_s = 0.0
        self.error: Json | None = None
        """Its last word when something failed."""
        self.error_s = 0.0
        self.noise_ended = False
        """Whether nothing holds the other end of its output any more."""
        self._partial = b""
        os.set_blocking(self.noise_fd, False)
        try:
            self._process = subprocess.Popen(
                argv, env={**environ, **self.channel.environ()}, pass_fds=self.channel.worker_fds, stdin=subprocess.DEVNULL, stdout=noise_write,
                stderr=noise_write, start_new_session=True,
            )  # fmt: skip
        except OSError as err:
            self.close()
            raise _cannot_start(rank, argv, err) from err
        finally:
            os.close(noise_write)
        self.pid = self._process.pid
        self.channel.started()

    @property
    def running(self) -> bool:
        """Whether the process is there, stopped or not."""
        return self.exit is None

    def reap(self) -> bool:
        """Take note of what happened to the process; True when it ended just now."""
        while self.exit is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:  # somebody else took its status
                pid, status = self.pid, 0
            if pid == 0:
                return False
            if os.WIFSTOPPED(status):
                self.stopped_s = time.monotonic()
            elif os.WIFCONTINUED(status):
                self.stopped_s = None
            else:
                self.exit = self._process.returncode = os.waitstatus_to_exitcode(status)
                self.ended_s = time.monotonic()
                self._kill_group()
                return True
        return False

    def kill(self) -> None:
        """SIGKILL, to it and what it started: a hung communicator hears nothing else."""
        if self.exit is None:
            self._kill_group()

    def ask_for_stack(self) -> bool:
        """Let its faulthandler write; False where it could not."""
        if self.exit is not None or self.stopped_s is not None or self.hello is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, STACK_SIGNAL)
        return True

    def read_noise(self) -> list[str]:
        """Lines it wrote since the last call; the unfinished one too, once it has ended."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while len(data) < 1 << 22:
                chunk = os.read(self.noise_fd, 1 << 16)
                self.noise_ended = not chunk
                if not chunk:
                    break
                data += chunk
        *lines, self._partial = (self._partial + data).replace(b"\r\n", b"\n").split(b"\n")
        if self._partial and (self.exit is not None or len(self._partial) > _LINE_CHARS):
            lines.append(self._partial)
            self._partial = b""
        found = [line.decode("utf-8", "replace")[:_LINE_CHARS] for line in lines]
        self.kept.extend(found)
        return found

    def close(self) -> None:
        """Free what is held of it; kill it first."""
        self.channel.close()
        if self.noise_fd >= 0:
            os.close(self.noise_fd)
            self.noise_fd = -1

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def fact(self, host: str) -> Json:
        """What this rank was doing, for blame.py."""
        now = time.monotonic()
        progress = self.channel.progress()
        device = (self.hello or {}).get("device") or {}
        state, since = self._state(now)
        fact: Json = {
            "rank": self.rank, "host": host, "pid": self.pid, "device": device.get("index"), "state": state, "for_s": round(now - since, 3),
            "exit": self.exit, "error": self.error, "case": progress.case_index, "reached": progress.reached, "n_cases": progress.n_cases,
            "phase": progress.phase, "batch": progress.batch, "text": progress.text, "idle_s": round(now - progress.changed_s, 3),
            "stack": stack(self.channel.read_stack()),
        }  # fmt: skip
        if state == "dead" or self.error is not None:
            said, crash = split_crash([line for line in self.kept if line.strip()])
            fact["lines"] = [line[:_TOLD_CHARS] for line in said[-12:]]
            fact["stack"] = fact["stack"] or stack(crash)
        else:
            fact["lines"] = self.complaints()
        return fact

    def complaints(self) -> list[str]:
        """The last few lines that it, or a library in it, wrote to warn; cut, since those of all ranks go to one."""
        return [line[:_TOLD_CHARS] for line in self.kept if is_complaint(line)][-_TOLD_LINES:]

    def _state(self, now: float) -> tuple[str, float]:
        if self.done is not None:
            return "done", self.done_s
        if self.error is not None:
            return "alive" if self.exit is None else "dead", self.error_s
        if self.exit is not None:
            return "dead", self.ended_s or now
        return ("alive", now) if self.stopped_s is None else ("stopped", self.stopped_s)


def _check_folder() -> None:
    """Raise LaunchError where the working directory is gone: libraries look for themselves by it, and torch's loading then fails with their words."""
    try:
        Path.cwd()
    except OSError as err:
        raise LaunchError(
            f"the working directory of this process is gone ({err.strerror})", "cd to a directory that exists, and start it there"
        ) from err


def _cannot_start(rank: int, argv: Sequence[str], err: OSError) -> LaunchError:
    """What the system refused when the worker of a rank was to start."""
    if err.errno in TOO_MANY_FILES:
        files = too_many_files(err)
        return LaunchError(f"the worker of rank {rank} cannot be started: {files.why}", *files.hints)
    return LaunchError(f"the worker of rank {rank} cannot be started: {err.strerror or err}", f"command: {' '.join(argv)[:200]}")


def is_complaint(line: str) -> bool:
    """Whether a line that a library wrote warns, or tells of an error."""
    return _COMPLAINT.search(line) is not None and _CHATTER.search(line) is None


def split_crash(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """What a worker wrote, up to faulthandler's headline ("Fatal Python error: Aborted"), and the stacks that follow it."""
    for index, line in enumerate(lines):
        if line.startswith("Fatal Python error:"):
            return list(lines[: index + 1]), list(lines[index + 1 :])
    return list(lines), []


def stack(lines: Sequence[str]) -> list[str]:
    """The calls of the main thread in a faulthandler dump, innermost first: "ops.py:88 launch"; at most 8."""
    calls: list[str] = []
    current = False
    for line in lines:
        if line and not line.startswith(" "):
            current = line.startswith("Current thread")
            calls = [] if current else calls
        elif current and line.startswith('  File "'):
            path, _, rest = line.removeprefix('  File "').partition('", line ')
            number, _, function = rest.partition(" in ")
            calls.append(f"{path.rsplit('/', 1)[-1]}:{number} {function}")
    return calls[:8]


def worker_environ(
    environ: Mapping[str, str], *, rank: int, world_size: int, local_rank: int, local_size: int | None, extra: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a worker: ours, the rank's place as torchrun would set it, and what the run adds."""
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    return {**environ, **{name: str(value) for name, value in place.items() if value is not None}, **extra}
