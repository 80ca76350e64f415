"""Where a run is, on stderr: one live line on a terminal, a plain line now and then elsewhere. No pandas.

    [all_gather  12/60  64 MiB  ######....  1 min 20 s left]
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from nccl_bench.units import format_seconds

BAR = 10
"""Characters of the bar."""
PLAIN_EVERY_S = 60.0
"""Seconds between lines where there is no terminal: a log of an hour stays a page."""
LIVE_EVERY_S = 0.1
"""Seconds between redraws of the live line: faster than an eye follows."""
_CLEAR = "\r\x1b[K"


class Progress:
    """The line. What is written to the same terminal meanwhile goes inside `paused`, so that it never lands in it."""

    def __init__(self, stream: TextIO, *, enabled: bool = True, live: bool | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._enabled = enabled
        self._live = (stream.isatty() and os.environ.get("TERM") != "dumb") if live is None else live
        self._now = now
        self._started = now()
        self._written: float | None = None
        self._line = ""
        self._first_done = 0

    def update(self, done: int, total: int, name: str, size: str, left_s: float | None = None) -> None:
        """Say that `done` of `total` cases are done and which one runs; `left_s` in seconds, else reckoned from the cases so far."""
        if not self._enabled:
            return
        now = self._now()
        if self._written is None:
            self._started, self._first_done = now, done
        line = self._text(done, total, name, size, self._left(done, total, now) if left_s is None else left_s)
        every = LIVE_EVERY_S if self._live else PLAIN_EVERY_S
        if self._written is not None and now - self._written < every and (done < total or not self._live):
            return
        if not self._live and self._written is None:
            # The first plain line comes when a run turns out to be long.
            self._written = now
            return
        self._written = now
        self._line = line
        self._draw()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take the live line away while something else is written, then draw it again."""
        self._clear()
        try:
            yield
        finally:
            self._draw(again=True)

    def close(self) -> None:
        """Take the live line away for good."""
        self._clear()
        self._line = ""
        self._enabled = False

    def _left(self, done: int, total: int, now: float) -> float | None:
        finished = done - self._first_done
        return None if finished < 2 else (now - self._started) / finished * (total - done)

    def _text(self, done: int, total: int, name: str, size: str, left_s: float | None) -> str:
        filled = BAR * done // total if total else 0
        left = "" if left_s is None else f"  {format_seconds(left_s)} left"
        if self._live:
            return f"[{name}  {done}/{total}  {size}  {'#' * filled}{'.' * (BAR - filled)}{left}]"
        if done >= total:
            return f"nccl-bench: {done} of {total} cases done"
        return f"nccl-bench: {done} of {total} cases done, now {name} {size}{left.replace('  ', ', ')}"

    def _draw(self, again: bool = False) -> None:
        if not self._line or not self._enabled:
            return
        if self._live:
            self._stream.write(_CLEAR + self._line[: self._width() - 1])
            self._stream.flush()
        elif not again:
            self._stream.write(self._line + "\n")
            self._stream.flush()

    def _clear(self) -> None:
        if self._live and self._line and self._enabled:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80
