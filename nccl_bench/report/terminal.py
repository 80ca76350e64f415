"""What a terminal shows of a sweep: the table, growing row by row, a sentence after each, banners and errors. No pandas.

Rates are GB/s of 1e9 bytes/s; sizes are bytes of a rank's larger buffer, as in nccl-tests.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from nccl_bench.errors import NcclBenchError
from nccl_bench.records import Ceiling as Ceiling
from nccl_bench.records import Point
from nccl_bench.report.sentence import NOTHING, above_line, short_size, summary
from nccl_bench.report.sentence import ONE_RANK as ONE_RANK
from nccl_bench.report.sentence import Look as Look
from nccl_bench.units import format_GBps, format_percent, format_size, format_us, three_digits

WIDTH = 100
"""Columns of every table that is not --wide."""
NOT_NCCL = "NOT NCCL: gloo on CPUs, a rehearsal; no number here says anything about NCCL or its fabric"
SHARED_GPU = "shared GPU, not a measurement: ranks share a GPU, so this shows behaviour and no speed"
LEGEND = "GB/s = 1e9 B/s · size: larger buffer of a rank · time: median of max over ranks · ±: 95 % interval"

MOST_ALIKE = 5
"""Warnings that differ in numbers alone and are told one by one."""
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class _Row:
    point: Point
    ceiling: Ceiling
    overhead_us: float | None


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: title, width with its space on the left, alignment, and the text of a row."""

    title: str
    width: int
    text: Callable[[_Row], str]
    left: bool = False

    def cell(self, text: str) -> str:
        room = self.width - (2 if self.left else 1)
        short = text if len(text) <= room else text[: room - 1] + "…"
        return f"  {short:<{room}}" if self.left else f"{short:>{self.width}}"


_BEFORE_UNIT = re.compile(r"(\d) ([KMGT]?i?B|[µm]?s|%|GB/s)(?![a-z])")
"""A number and its unit stay on one line."""


# ---- banners, errors ----


def banner(*, not_nccl: bool, shared_gpu: bool, comment: bool = False) -> str | None:
    """The line that opens and closes stdout of a run which measures nothing; `comment`: as a `#` line. None for a real run."""
    text = NOT_NCCL if not_nccl else SHARED_GPU if shared_gpu else None
    return f"# {text}" if text is not None and comment else text


def write_error(err: NcclBenchError, stream: TextIO) -> None:
    """ "error: why", then each hint indented below it."""
    first, *more = err.why.splitlines() or [""]
    lines = [f"error: {first}", *more, *(line for hint in err.hints for line in hint.splitlines())]
    stream.write("\n       ".join(lines) + "\n")


def write_warning(text: str, stream: TextIO) -> None:
    """ "warning: text" on one line, more lines indented."""
    stream.write("warning: " + text.replace("\n", "\n         ") + "\n")


def write_warnings(texts: Iterable[str], stream: TextIO) -> None:
    """Each of them; of those that differ in numbers alone the first few, and how many more there are."""
    kinds: dict[str, list[str]] = {}
    for text in texts:
        kinds.setdefault(_NUMBER.sub("#", text), []).append(text)
    for alike in kinds.values():
        for text in alike[:MOST_ALIKE]:
            write_warning(text, stream)
        if len(alike) > MOST_ALIKE:
            write_warning(f"... and {len(alike) - MOST_ALIKE} more that differ in their numbers alone", stream)


def last_line(exit_code: int, why: str) -> str:
    """The last line on stderr of a run that does not end 0: "nccl-bench: exit 4: rank 11 did not arrive"."""
    return f"nccl-bench: exit {exit_code}: {' '.join(why.split())}"


def wants_color(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a stream is a terminal that shows colour (NO_COLOR, https://no-color.org; TERM=dumb)."""
    environ = os.environ if environ is None else environ
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


# ---- columns ----


def _size(row: _Row) -> str:
    """What was moved; what was asked for where nothing was."""
    point = row.point
    return short_size(point.nbytes if point.status == "ok" else point.requested_nbytes, point.requested_nbytes)


def _gbps(rate: float | None) -> str:
    return "<0.001" if rate is not None and 0 < rate < 0.0005 else format_GBps(rate)


def _half_interval(row: _Row) -> str:
    times = row.point.time_us
    if times is None or times.ci_low is None or times.ci_high is None or times.median <= 0:
        return "-"
    frac = (times.ci_high - times.ci_low) / 2 / times.median
    return f"{format_percent(frac)}%" if frac < 10 else ">999%"


def _expected(row: _Row) -> str:
    """What healthy systems reach; where too few are known, what is attainable, behind "≤"."""
    low, high, most = row.ceiling.expected_low_GBps, row.ceiling.expected_high_GBps, row.ceiling.attainable_GBps
    if low is None:
        return "-" if most is None or row.ceiling.limited_by == "latency" else f"≤{_rate(most)}"
    return f">{_rate(low)}" if high is None else f"{_rate(low)}-{_rate(high)}"


def _percent(row: _Row) -> str:
    """Of the middle of what is expected, else of what is attainable."""
    share, most, busbw = row.ceiling.share_frac, row.ceiling.attainable_GBps, row.point.busbw_GBps
    if share is None and most and busbw is not None and row.ceiling.limited_by != "latency":
        share = busbw / most
    return format_percent(share)


def _rate(rate: float) -> str:
    return three_digits(rate) if rate < 1000 else f"{rate:.0f}"


def _algorithm(row: _Row) -> str:
    algorithm, protocol = row.point.algorithm, row.point.protocol
    if algorithm is None:
        return "-"
    return algorithm if protocol is None or protocol.lower() == "simple" else f"{algorithm} {protocol}"


def _spread(row: _Row) -> str:
    times = row.point.time_us
    if times is None or times.p95 is None or times.median <= 0:
        return "-"
    ratio = times.p95 / times.median
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _wrong(row: _Row) -> str:
    n_wrong = row.point.n_wrong
    if n_wrong is None:
        return "-"
    return str(n_wrong) if n_wrong < 10**6 else f"{n_wrong:.0e}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


_COLUMNS = (
    _Column("size", 9, _size),
    _Column("time", 10, lambda row: format_us(row.point.time_us.median if row.point.time_us else None)),
    _Column("±", 7, _half_interval),
    _Column("busbw", 8, lambda row: _gbps(row.point.busbw_GBps)),
    _Column("expected", 10, _expected),
    _Column("%", 5, _percent),
    _Column("limited by", 19, lambda row: (row.ceiling.limited_by or "-").removeprefix("node's "), left=True),
    _Column("algo", 15, _algorithm, left=True),
    _Column("p95/p50", 8, _spread),
    _Column("wrong", 7, _wrong),
)
_CLOCK = _Column("clock", 8, lambda row: row.point.clock or "-", left=True)
_OVERHEAD = _Column("overhead", 10, lambda row: format_us(row.overhead_us))
_ALGBW = _Column("algbw", 8, lambda row: _gbps(row.point.algbw_GBps))
_WIDE = (
    _Column("bytes", 15, lambda row: _number(row.point.nbytes)),
    _Column("asked", 11, lambda row: format_size(row.point.requested_nbytes)),
    _Column("iters", 9, lambda row: _number(row.point.iters)),
    _Column("mean/ranks", 12, lambda row: format_us(row.point.mean_over_ranks_us)),
)


def _columns(look: Look) -> tuple[_Column, ...]:
    """Two clocks, or --wide, add what an eager call costs more (dispatch overhead) and the algorithm bandwidth."""
    clock = (_CLOCK,) if len(look.clocks) > 1 else ()
    if look.wide:
        return (*_COLUMNS, *clock, _OVERHEAD, _ALGBW, *_WIDE)
    return (*_COLUMNS, *clock, _OVERHEAD, _ALGBW) if clock else _COLUMNS


# ---- the table ----


def section(point: Point) -> tuple[object, ...]:
    """What all rows of one table share; a point with another section belongs to the next table."""
    axis = None if point.group is None else point.group.axis
    where = (point.variant, axis, point.registered, point.pass_, point.special)
    return (point.collective, point.dtype, point.op, point.root, point.placement, point.shift, *where)


def heading(point: Point, look: Look) -> str:
    """The line above a table: what is true of all its rows."""
    n_ranks = point.n_ranks or 0
    group = point.group
    ranks = f"{n_ranks} rank{'' if n_ranks == 1 else 's'}"
    nodes = "" if look.n_nodes is None else f", {look.n_nodes} node{'' if look.n_nodes == 1 else 's'}"
    if group is not None and group.axis is not None:
        plural = "" if group.n_groups == 1 else "s"
        ranks = f"axis {group.axis}: {group.n_groups} group{plural} of {group.size} ranks"
    parts = [
        point.collective,
        ranks + nodes,
        f"{point.op} {point.dtype}" if point.op else point.dtype,
        None if point.placement is None else "in place" if point.placement == "in" else "out of place",
        None if point.root is None else f"root {point.root}",
        None if point.shift is None else "to the next rank" if point.shift == "ring" else "to the next node, all rails",
        f"{', '.join(look.clocks)} clock{'s' if len(look.clocks) > 1 else ''}, {point.regime or look.regime}",
        f"variant {point.variant}" if point.variant else None,
        f"registered: {point.registered}" if point.registered not in (None, "none") else None,
        point.special,
        f"pass {point.pass_ + 1}" if point.pass_ else None,
    ]
    return " · ".join(part for part in parts if part)


class SweepTable:
    """Writes tables to a stream as their points come."""

    def __init__(self, stream: TextIO, look: Look) -> None:
        self._stream = stream
        self._look = look
        self._columns = _columns(look)
        self._rows: list[_Row] = []
        self._others: list[Point] = []
        self._case: dict[tuple[object, ...], dict[str, float]] = {}
        self._n_tables = 0

    def add(self, point: Point, ceiling: Ceiling | None = None) -> None:
        """Show a point, under a new heading where it belongs to another table than the one before."""
        last = self._others[-1] if self._others else self._rows[-1].point if self._rows else None
        if last is None or section(last) != section(point):
            self.end()
            self.begin(point)
        self.row(point, ceiling)

    def begin(self, point: Point) -> None:
        """Write the heading of a point's table and the titles of its columns."""
        lines = [] if self._n_tables else [self._paint(LEGEND, "2")]
        lines += ["", *(self._paint(line, "1") for line in textwrap.wrap(heading(point, self._look), WIDTH, subsequent_indent="  "))]
        lines += [self._paint("".join(column.cell(column.title) for column in self._columns).rstrip(), "2")]
        self._write(lines)
        self._n_tables += 1
        self._case = {}

    def row(self, point: Point, ceiling: Ceiling | None = None) -> None:
        """Write a point's row. The isolated series of a streaming sweep is no row: the sentence tells of it."""
        if point.regime == "isolated" and self._look.regime == "streaming" and point.collective != "pingpong":
            self._others.append(point)
            return
        row = _Row(point, NOTHING if ceiling is None else ceiling, self._overhead_us(point))
        self._rows.append(row)
        if point.status != "ok":
            text = f"{_size(row):>9}  {point.status}: {point.reason or 'no reason was given'}"
            self._write([self._paint(text, "2" if point.status == "skipped" else "31")])
            return
        self._write(["".join(self._cell(column, row) for column in self._columns).rstrip()])

    def end(self) -> str:
        """Write and return the sentence that sums the table up; "" where there was no row."""
        rows, others = self._rows, self._others
        self._rows, self._others = [], []
        if not rows:
            return ""
        text = summary(((row.point, row.ceiling) for row in rows), others, self._look)
        whole = _BEFORE_UNIT.sub("\\1\0\\2", text)
        self._write(line.replace("\0", " ") for line in textwrap.wrap(whole, WIDTH, break_long_words=False, break_on_hyphens=False))
        return text

    def _overhead_us(self, point: Point) -> float | None:
        """Eager minus the other clock's median for the same case, µs: what the host pays for a call (DESIGN.md section 2)."""
        if point.time_us is None or point.clock is None:
            return None
        medians = self._case.setdefault((point.nbytes, point.requested_nbytes), {})
        medians[point.clock] = point.time_us.median
        other = next((medians[clock] for clock in ("graph", "queued") if clock in medians), None)
        return None if other is None or "eager" not in medians else medians["eager"] - other

    def _cell(self, column: _Column, row: _Row) -> str:
        text = column.cell(column.text(row))
        bad = (column.title == "wrong" and bool(row.point.n_wrong)) or (column.title == "busbw" and above_line(row.point, row.ceiling))
        return self._paint(text, "31;1") if bad else text

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._look.color and text else text

    def _write(self, lines: Iterable[str]) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()
