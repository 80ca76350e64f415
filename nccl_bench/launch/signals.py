"""Signals as bytes in a pipe that a selectors loop watches; handlers are put back afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a run: Ctrl-C, the scheduler or the launcher, a lost terminal."""

_HANGUP = getattr(signal, "SIGHUP", None)


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up pipe has it."""


class Signals:
    """A pipe that becomes readable with the numbers of signals, and with `wake` from any thread.

    Outside the main thread Python takes no handlers: then only `wake` works.
    """

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._old: dict[int, Any] = {}
        self._old_fd = -1
        self._lock = threading.Lock()
        self.decided: int = 0
        """The exit code that this process has got, which a SIGTERM must not change any more, nor, where it was interrupted, one more Ctrl-C.

        srun --kill-on-bad-exit and torchrun answer the first bad exit with SIGTERM to all; srun then reports the highest code.
        """
        if threading.current_thread() is threading.main_thread():
            self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in (*ENDING, signal.SIGCHLD):
                # nohup's wish is kept. A script's background jobs ignore SIGINT too, but Ctrl-C is meant for ranks started like that.
                if number != _HANGUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._old[number] = signal.signal(number, _noted)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._old:
            signal.set_wakeup_fd(self._old_fd)
            for number, handler in self._old.items():
                over = self.decided and (number == signal.SIGTERM or (number == signal.SIGINT and self.decided > 128))
                signal.signal(number, signal.SIG_IGN if over else handler)
        with self._lock:
            os.close(self._write)
            self._write = -1
        os.close(self._read)

    def fileno(self) -> int:
        """The descriptor to watch."""
        return self._read

    def wake(self) -> None:
        """Make the loop turn; from any thread."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._write >= 0:
                os.write(self._write, b"\0")

    def read(self) -> list[int]:
        """The ending signals that came, in order; others only wake."""
        found: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read, 256):
                found += [number for number in data if number in ENDING]
        return found
