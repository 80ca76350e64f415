"""Calls that are due later, for a selectors loop."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable


class Timers:
    """What is to be called when; times are monotonic."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` in so many seconds."""
        heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), then))

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next call, at most `longest_s`."""
        return max(0.0, min(longest_s, self._heap[0][0] - time.monotonic())) if self._heap else longest_s

    def due(self) -> list[Callable[[], None]]:
        """The calls whose time has come, each once."""
        now = time.monotonic()
        calls: list[Callable[[], None]] = []
        while self._heap and self._heap[0][0] <= now:
            calls.append(heapq.heappop(self._heap)[2])
        return calls
