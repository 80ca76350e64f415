"""A run as nccl-tests prints one: 13 columns, `#` lines around them, for the parsers that people have. No pandas.

The layout is that of nccl-tests 2.19.6 (src/util.cu: writeDeviceReport, writeResultHeader, writeBenchmarkLine*, writeResultFooter).
What differs is said in `#` lines: time is the median of the maximum over ranks (nccl-tests prints the mean over ranks), and where one
placement was measured both halves of a row show it. No `#` line of ours holds a word that a known parser looks for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, TextIO

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.dtypes import DTYPES, OPS
from nccl_bench.records import Point, RunHeader

PROGRAM_SUFFIX = "_perf"
_LAYOUT = "nccl-tests 2.19.6"
_SAFE = (("out-of-place", "out of place"), ("in-place", "in place"), ("FAILED", "failed"), ("bandwidth", "rate"), ("busbw", "bus rate"))
"""Words by which superbench finds its table and the Azure checks find a failure or the summary, and what comments of ours say instead."""


class NcclTestsLog:
    """Writes a log to a stream as its points come: a table a collective (and clock's first kind, variant, shift, axis)."""

    def __init__(self, stream: TextIO, header: RunHeader, *, both: bool | None = None) -> None:
        """`both`: the run measures both placements, so a row waits for its other half; None: as the header's spec says."""
        self._stream = stream
        self._header = header
        self._both = header.spec.get("placement") == "both" if both is None else both
        self._table: tuple[object, ...] | None = None
        self._clock: str | None = None
        self._left_out: set[str] = set()
        self._held: dict[tuple[object, ...], Point] = {}
        self._single = False
        self._busbw: list[float] = []
        self._n_wrong_rows = 0
        self.n_points = 0
        """Points that have a row, or half of one."""

    def add(self, point: Point) -> None:
        """Write a point's row, under a header of its own where it begins a table."""
        table = _table_key(point)
        if table != self._table:
            self.end()
            self._begin(point, table)
        if point.status != "ok" or point.time_us is None:
            self._comment(f"size {point.requested_nbytes}: {point.status}: {point.reason or 'no reason was given'}")
        elif point.clock != self._clock or (
            point.regime == "isolated" and self._header.spec.get("regime") == "streaming" and point.collective != "pingpong"
        ):
            self._left_out.add(f"{point.clock} {point.regime}")
        else:
            self._row(point)

    def end(self) -> None:
        """Write the closing lines of the open table."""
        if self._table is None:
            return
        if self._held:
            self._comment("measured in one form only, which both halves show:")
            for point in self._held.values():
                self._write_row(point, point)
            self._held = {}
        if self._left_out:
            self._comment(f"in points.jsonl, not here: {', '.join(sorted(self._left_out))}")
        # nccl-tests sums over all sizes and both halves (common.cu: bw, bw_count).
        average = sum(self._busbw) / len(self._busbw) if self._busbw else 0.0
        self._write(f"# {'Out of bounds values':<20} : {self._n_wrong_rows} {'FAILED' if self._n_wrong_rows else 'OK'}")
        self._write(f"# {'Avg bus bandwidth':<20} : {_plain(average)} ")
        self._write("#", f"# Collective test concluded: {self._table[0]}", "#")
        self._table = None

    def _begin(self, point: Point, table: tuple[object, ...]) -> None:
        self._table, self._clock, self._left_out = table, point.clock, set()
        self._busbw, self._n_wrong_rows = [], 0
        self._write(*_header_lines(self._header, str(table[0])))
        for line in _about(point):
            self._comment(line)
        # torch has one form of some collectives; an imported log may hold both of any.
        row = COLLECTIVES.get(point.collective)
        single = not self._both or (point.source is None and row is not None and len(row.placements) == 1)
        self._single = single
        if single:
            form = "in place" if point.placement == "in" else "out of place"
            self._comment(f"one form was measured ({form}): both halves of a row show it")
        self._write(*_TITLES)

    def _row(self, point: Point) -> None:
        if self._single or point.placement is None:
            self._write_row(point, point)
            return
        key = (point.dtype, point.op, point.root, point.requested_nbytes, point.pass_)
        other = self._held.pop(key, None)
        if other is None:
            self._held[key] = point
        elif point.placement == "in":
            self._write_row(other, point)
        else:
            self._write_row(point, other)

    def _write_row(self, out: Point, into: Point) -> None:
        self.n_points += 1 if out is into else 2
        for half in (out, into):
            self._busbw.append(half.busbw_GBps or 0.0)
            self._n_wrong_rows += bool(half.n_wrong)
        dtype = DTYPES[out.dtype].nccl_tests if out.dtype in DTYPES else str(out.dtype)
        op = "none" if out.op is None else OPS.get(out.op, out.op)
        root = -1 if out.root is None else out.root
        self._write(f"{out.nbytes:>12}  {'N/A' if out.count is None else out.count:>12}  {dtype:>8}  {op:>6}  {root:>6}{_half(out)}{_half(into)}")

    def _comment(self, text: str) -> None:
        for word, instead in _SAFE:
            text = text.replace(word, instead)
        self._write(f"# {' '.join(text.split())}")

    def _write(self, *lines: str) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()


def write_log(stream: TextIO, header: RunHeader, points: Iterable[Point]) -> int:
    """Write a whole run, as `export --format nccl-tests` does; how many points have a row."""
    points = list(points)
    forms = {point.placement for point in points if point.status == "ok"}
    log = NcclTestsLog(stream, header, both={"in", "out"} <= forms)
    for point in points:
        if point.kind == "collective" and point.pair is None:
            log.add(point)
    log.end()
    return log.n_points


def _table_key(point: Point) -> tuple[object, ...]:
    """What one nccl-tests program prints in one table; its name first."""
    row = COLLECTIVES.get(point.collective)
    program = (point.collective if row is None else row.nccl_tests) + PROGRAM_SUFFIX
    axis = None if point.group is None else point.group.axis
    return (program, point.variant, point.shift, axis, point.registered)


def _about(point: Point) -> list[str]:
    """What the columns cannot say."""
    special = [
        f"time: {point.over_ranks} over ranks, from {point.source}"
        if point.source is not None
        else f"clock {point.clock}, {point.regime}, time: median of the maximum over ranks (nccl-tests: mean over ranks)",
        f"variant {point.variant}" if point.variant else "",
        f"shift {point.shift}" if point.shift else "",
        f"axis {point.group.axis}: {point.group.n_groups} groups of {point.group.size} ranks" if point.group is not None and point.group.axis else "",
        f"registered {point.registered}" if point.registered not in (None, "none") else "",
    ]
    return [text for text in special if text]


_BLANK = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
_TITLES = (
    "#",
    f"{_BLANK}           out-of-place                       in-place          ",
    f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}" + f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}" * 2 + " ",
    f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}" + f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}" * 2 + " ",
)


def _header_lines(header: RunHeader, program: str) -> list[str]:
    code = _nccl_code(header.versions.get("nccl"))
    library = "" if code is None else f" nccl-library={code}"
    spec = header.spec
    step = f"{spec['step_nbytes']}(bytes)" if spec.get("step_nbytes") else f"{_known(spec.get('step_factor'))}(factor)"
    sizes = f"minBytes {_known(spec.get('min_nbytes'))} maxBytes {_known(spec.get('max_nbytes'))} step: {step}"
    counts = f"warmup iters: {_known(spec.get('warmup_iters'))} iters: {_known(spec.get('iters'))} agg iters: auto"
    return [
        f"# {header.tool} in the layout of {_LAYOUT}{library}",
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 {sizes} {counts} validation: {int(bool(spec.get('check', True)))} graph: 0 unalign: 0",
        "#",
        "# Using devices",
        *(_device(rank) for rank in header.ranks),
    ]


def _known(value: object) -> str:
    """A number that was asked for; "auto" where the stopping rule or the defaults decide."""
    return "auto" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _device(rank: dict[str, Any]) -> str:
    gpu = rank.get("gpu")
    place = f"#  Rank {rank.get('rank', 0):>2} Group  0 Pid {rank.get('pid') or 0:>6} on {rank.get('host') or '?':>10}"
    if not gpu:
        return f"{place} CPU"
    return f"{place} device {gpu.get('index') or 0:>2} [{_pci(gpu.get('pci'))}] {gpu.get('name') or '?'}"


def _pci(address: str | None) -> str:
    """ "0000:18:00" of "00000000:18:00.0": domain, bus, device, as nccl-tests prints them."""
    match = re.fullmatch(r"(?:0000)?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.\d)?", (address or "").lower())
    return match[1] if match else address or "?"


def _nccl_code(version: object) -> int | None:
    """22809 of "2.28.9" (NCCL_VERSION_CODE, nccl.h, since 2.9)."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", str(version))
    return int(match[1]) * 10000 + int(match[2]) * 100 + int(match[3]) if match else None


def _half(point: Point) -> str:
    times = point.time_us
    median = None if times is None else times.median
    wrong = "N/A" if point.n_wrong is None else f"{point.n_wrong:g}"
    return f"  {_fitted(median, 7):>7}  {_fitted(point.algbw_GBps, 6):>6}  {_fitted(point.busbw_GBps, 6):>6}  {wrong:>6}"


def _fitted(value: float | None, width: int) -> str:
    """A number in at most `width` characters with as many of two decimals as fit (util.cu getFloatStr)."""
    if value is None or not math.isfinite(value):
        return "N/A"
    for digits in (2, 1, 0):
        text = f"{value:.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


def _plain(value: float) -> str:
    """Six significant digits as %g, but never with an exponent: parsers read 5.9e-05 as 5.9."""
    text = f"{value:.6g}"
    return text if "e" not in text else f"{value:.12f}".rstrip("0").rstrip(".") if value < 1 else f"{value:.0f}"
