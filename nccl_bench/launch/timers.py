"""Calls that are due later, for a selectors loop."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

_STILL_S = 1.0
"""A loop that turns many times a second does not look for so long: its process was stopped, or its host was."""


class Timers:
    """What is to be called when; times are monotonic."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._looked_s = time.monotonic()
        self._stood = (0.0, 0.0)

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` in so many seconds."""
        heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), then))

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next call, at most `longest_s`."""
        return max(0.0, min(longest_s, self._heap[0][0] - time.monotonic())) if self._heap else longest_s

    def due(self) -> list[Callable[[], None]]:
        """The calls whose time has come, each once."""
        now = time.monotonic()
        if now - self._looked_s > _STILL_S:
            self._stood = (now - self._looked_s, now)
        self._looked_s = now
        calls: list[Callable[[], None]] = []
        while self._heap and self._heap[0][0] <= now:
            calls.append(heapq.heappop(self._heap)[2])
        return calls

    def stood_s(self, least_s: float) -> float:
        """For how long this process stood still, where that was as long as `least_s` and ended no longer ago; else 0."""
        seconds, until = self._stood
        return seconds if seconds >= least_s and time.monotonic() - until < least_s else 0.0
