"""Where an acceptance is: a live table of its stages on a terminal, plain lines elsewhere. No pandas.

The table stands below whatever else is written to stderr meanwhile: rich takes that and puts it above.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from nccl_bench.units import counted, format_seconds, format_size

PLAIN_EVERY_S = 60.0
"""Seconds between two lines of one stage where there is no terminal."""
TURNS_A_SECOND = 4


@dataclass(slots=True)
class _Stage:
    name: str
    estimate_s: float
    state: str = "to come"
    began: float | None = None
    took_s: float | None = None
    hosts: int | None = None
    worlds: int = 0
    now: str = ""
    how: str = ""


class StageView:
    """Shows stages as they begin and end. Use as a context, so that the terminal is left as it was found."""

    def __init__(self, stream: TextIO, *, live: bool | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._live = (stream.isatty() and os.environ.get("TERM") != "dumb") if live is None else live
        self._stages: dict[str, _Stage] = {}
        self._current: _Stage | None = None
        self._written = now()
        self._n_cases, self._n_done = 0, 0
        self._shown: Any = None
        self._console: Any = None

    def __enter__(self) -> StageView:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def begin(self, seconds: Mapping[str, float], left_out: Mapping[str, str]) -> None:
        """Say which stages there are and how long each takes."""
        self._stages = {name: _Stage(name, estimate) for name, estimate in seconds.items()}
        for name, why in left_out.items():
            self._stages[name] = _Stage(name, 0.0, state="left out", how=why)
        if self._live:
            from rich.console import Console
            from rich.live import Live

            self._console = Console(file=self._stream)
            self._shown = Live(console=self._console, get_renderable=self._table, refresh_per_second=TURNS_A_SECOND, redirect_stdout=False)
            self._shown.start()

    def stage(self, name: str, hosts: int, worlds: int) -> None:
        """A stage, or another attempt of it, begins."""
        one = self._stages.setdefault(name, _Stage(name, 0.0))
        one.state, one.hosts, one.worlds = "runs", hosts, max(worlds, one.worlds)
        one.began = self._now() if one.began is None else one.began
        self._current, self._n_cases, self._n_done = one, 0, 0
        if not self._live:
            about = f", about {format_seconds(one.estimate_s)}" if one.estimate_s and not worlds else ""
            more = f", {counted(worlds, 'world')}" if worlds else about
            self._line(f"stage {name}: {counted(hosts, 'host')}{more}")

    def message(self, message: Mapping[str, Any]) -> None:
        """What the worker of the first rank says of its cases."""
        one = self._current
        if one is None:
            return
        match message["type"]:
            case "cases":
                self._n_cases, self._n_done = int(message["n"]), 0
            case "case":
                of = f"{int(message['index']) + 1}/{self._n_cases} " if self._n_cases else ""
                one.now = f"{of}{message['collective']} {format_size(int(message['nbytes']))}"
            case "pairs":
                self._n_done += 1
                one.now = f"round {int(message['round']) + 1}, {format_size(int(message['nbytes']))}, {self._n_done} done"
            case _:
                return
        if not self._live and self._now() - self._written > PLAIN_EVERY_S:
            self._line(f"stage {one.name}: {one.now}")

    def end(self, name: str, seconds: float, how: str) -> None:
        """A stage is over."""
        one = self._stages.setdefault(name, _Stage(name, 0.0))
        one.state, one.took_s, one.how, one.now = "left out" if how.startswith("left out") else "done", seconds, how, ""
        self._current = None
        if not self._live:
            self._line(f"stage {name}: {one.how if one.state == 'left out' else f'done in {format_seconds(seconds)}'}" +
                       (f" ({how})" if how and one.state == "done" else ""))  # fmt: skip

    def note(self, text: str) -> None:
        """Something that happened."""
        self._line(f"note: {text}")

    def _line(self, text: str) -> None:
        self._written = self._now()
        if self._shown is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("stage", "", "hosts", "time", "estimate", "now"):
            table.add_column(column, justify="right" if column in ("hosts", "time", "estimate") else "left", no_wrap=column != "now")
        for one in self._stages.values():
            running = one.began is not None and one.state == "runs"
            spent = self._now() - one.began if running and one.began is not None else one.took_s
            table.add_row(
                one.name, one.state, "" if one.hosts is None else str(one.hosts), "" if spent is None else format_seconds(spent),
                format_seconds(one.estimate_s) if one.estimate_s else "", one.now or one.how, style=_STYLE.get(one.state),
            )  # fmt: skip
        return table


_STYLE = {"to come": "dim", "runs": "bold", "left out": "yellow"}
