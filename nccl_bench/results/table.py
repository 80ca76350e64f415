"""The table of nccl-tests and rccl-tests: its columns by their header, of every age, and one row as numbers.

Formats read in the sources of nccl-tests b188a15 (2017, milliseconds) to a0b82b2 (2.19.6: util.cu writeResultHeader,
writeBenchmarkLineBody, writePerIterReport) and 3a3f1e8 (#bitdiff), and of rccl-tests in rocm-systems (hipevt, algo, proto, nchannels).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from nccl_bench.collectives import Placement

MAX_NUMBER = 1e15
"""A guard of ours: no time in µs and no rate in GB/s is larger, or smaller than its inverse; what is, is no number of a table."""
MAX_DIGITS = 18
"""A guard of ours: longer sizes and counts are no sizes."""

_COLUMNS = {"op": "redop", "cputime": "time", "#wrong": "wrong", "res": "error", "delta": "error"} | {
    word: word for word in ("redop", "root", "time", "algbw", "busbw", "error", "i_min", "i_max", "i_p99", "algo", "proto", "nchannels")
}
"""Words of the header -> what they are here; any other (hipevt, copybw, #bitdiff, i_cv%) is passed over."""

_BODY = frozenset(("time", "algbw", "busbw", "wrong", "error", "other", "i_min", "i_max", "i_p99"))
_TAIL = frozenset(("algo", "proto", "nchannels"))
_TYPES = r"(?:u?int(?:8|32|64)?|u?char|half|float|double|bfloat16|float16|float32|float64|fp8_e[45]m[23](?:fn|fnuz)?|f8e[45]m[23]|float8_?\w*)"
_ROW = re.compile(rf"\s*(\d+)\s+(\d+)\s+({_TYPES})(?=\s|$)(.*)")
_ROW_ANYWHERE = re.compile(rf"(?:^|[\s:>|\]])(\d+)\s+(\d+)\s+({_TYPES})\s(.*)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)")
_UNCHECKED = ("N/A", "n/a")
_WHOLE = re.compile(r"\d+\.\d\d|0|N/A")
"""Words that are not the beginning of a longer one, as printf's formats here go."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one table."""

    lead: tuple[str, ...]
    """Between type and the first block: of redop, root."""
    blocks: tuple[tuple[str, ...], ...]
    """Columns of each block, out of place first where there are two."""
    placements: tuple[Placement, ...]
    tail: tuple[str, ...] = ()
    milliseconds: bool = False
    """NCCL 1's programs, and nccl-tests before 2.0, print milliseconds under "time" (deltaSec * 1.0E3)."""
    cpu_time: bool = False
    """-C 1: how long the calls kept a thread of the CPU, not how long the operation took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One placement of a row, as printed."""

    placement: Placement
    time: float | None = None
    """In the table's unit; None where no number was printed."""
    algbw: float | None = None
    busbw: float | None = None
    bw_step: float = 0.01
    """The last printed digit of busbw, GB/s: two decimals, fewer for large numbers."""
    algbw_step: float = 0.01
    wrong: int | None = None
    """The #wrong column; None for N/A (not checked) and for the old error column, which counts nothing."""
    error: float | None = None
    """The old error column: the largest deviation."""
    i_min: float | None = None
    i_max: float | None = None
    i_p50: float | None = None
    """This and i_p95 are in -J files only."""
    i_p95: float | None = None
    i_p99: float | None = None
    problem: str | None = None
    """What was printed in the place of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    line: int
    size: int
    count: int
    dtype: str
    """nccl-tests' word."""
    redop: str | None
    root: int | None
    halves: tuple[Half, ...]
    algo: str | None = None
    proto: str | None = None
    channels: int | None = None
    problem: str | None = None
    """Why a part of the row was left out."""


@dataclass(slots=True)
class _Cells:
    words: list[str]
    at: int = 0
    problems: list[str] = field(default_factory=list)

    def left(self) -> int:
        return len(self.words) - self.at

    def take(self) -> str:
        self.at += 1
        return self.words[self.at - 1]


def header_layout(text: str, above: str) -> Layout | None:
    """The layout that a header line tells, `above` being the line before it; None where the line is no header."""
    words = text.lstrip("# \t").split()
    if not words or words[0] not in ("size", "bytes") or "algbw" not in words:
        return None
    named = [_COLUMNS.get(word, "other") for word in words if word != "timestamp"]
    starts = [i for i, name in enumerate(named) if name == "time"]
    ends = [*starts[1:], len(named)]
    blocks = tuple(tuple(name for name in named[i:j] if name in _BODY) for i, j in zip(starts, ends, strict=bool(starts)))
    if not blocks or not all({"time", "algbw", "busbw"} <= set(block) for block in blocks):
        return None
    tail = tuple(name for name in named[starts[-1] :] if name in _TAIL)
    lead = tuple(name for name in named[: starts[0]] if name in ("redop", "root"))
    only_in = "in-place" in above and "out-of-place" not in above
    placements: tuple[Placement, ...] = ("out", "in") if len(blocks) > 1 else ("in",) if only_in else ("out",)
    return Layout(lead, blocks[:2], placements, tail, milliseconds=words[0] == "bytes", cpu_time="cputime" in words)


def looks_like_row(text: str, *, commented: bool = False) -> bool:
    """Whether a line is a row of a table; `commented`: behind a "#"."""
    if not commented:
        return _ROW.match(text) is not None
    return text.lstrip().startswith("#") and _ROW.match(text.lstrip(" \t#")) is not None


def find_row(text: str) -> str | None:
    """The part of a line that is a row, where something unknown stands before it; None where there is none or it is commented out."""
    if _ROW.match(text):
        return text
    found = _ROW_ANYWHERE.search(text)
    if found is None or "#" in text[: found.start()] or len(found[4].split()) < 4:
        return None
    return text[found.start(1) :]


def parse_row(text: str, line: int, layout: Layout | None, *, may_be_cut: bool = False) -> Row:
    """One row. `layout` None: by its shape. `may_be_cut`: the file ends in this line without a newline, so that its last word may be short.

    What cannot be read is told in `problem`, of the row or of a half, and is None; a half whose numbers are incomplete is left out.
    """
    match = _ROW.match(text)
    if match is None:
        raise ValueError(f"not a row: {text!r}")
    if max(len(match[1]), len(match[2])) > MAX_DIGITS:
        return Row(line=line, size=0, count=0, dtype=match[3], redop=None, root=None, halves=(), problem="a size or count of too many digits")
    cells = _Cells(_TIMESTAMP.sub("", match[4]).split())
    if may_be_cut and cells.words and not _WHOLE.fullmatch(cells.words[-1]):
        cells.words.pop()
    shape = layout if layout is not None else shape_of(cells.words)
    if shape is None:
        return _row(match, line, None, None, (), {}, f"{len(cells.words)} words after the type: no row of a table")
    lead = {name: cells.take() for name in shape.lead if cells.left()}
    halves = tuple(half for half in (_half(cells, shape, i) for i in range(len(shape.blocks))) if half is not None)
    tail = {name: cells.take() for name in shape.tail if cells.left()}
    if cells.left():
        cells.problems.append(f"{cells.left()} words more than the header has columns")
    root = lead.get("root")
    return _row(match, line, lead.get("redop"), _integer(root) if root else None, halves, tail, "; ".join(cells.problems) or None)


def _row(
    match: re.Match[str], line: int, redop: str | None, root: int | None, halves: tuple[Half, ...], tail: dict[str, str], problem: str | None
) -> Row:
    return Row(
        line=line,
        size=int(match[1]),
        count=int(match[2]),
        dtype=match[3],
        redop=None if redop in (None, "none") else redop,
        root=None if root is None or root < 0 else root,
        halves=halves,
        algo=tail.get("algo"),
        proto=tail.get("proto"),
        channels=_integer(tail.get("nchannels", "")),
        problem=problem,
    )


def shape_of(words: Sequence[str]) -> Layout | None:
    """The layout of a row without a header, from what follows its type: [redop] [root] then one or two blocks of four or eight."""
    n_words = next((i for i, word in enumerate(words) if not word.isalpha() or word in _UNCHECKED), len(words))
    lead: tuple[str, ...] = ("redop",) if n_words else ()
    rest = len(words) - n_words
    if n_words > 1:
        return None
    for width in (4, 8):  # eight: with -I
        columns = ("time", "algbw", "busbw", "wrong") + (("i_min", "i_max", "i_p99", "other") if width == 8 else ())
        for n_blocks in (2, 1):
            if rest in (n_blocks * width, n_blocks * width + 1) and not (width == 8 and n_blocks == 1):
                with_root = rest == n_blocks * width + 1
                return Layout(lead + (("root",) if with_root else ()), (columns,) * n_blocks, ("out", "in") if n_blocks == 2 else ("out",))
    return None


def _half(cells: _Cells, shape: Layout, index: int) -> Half | None:
    """One block, None where it is missing or incomplete; cells.problems then says so."""
    columns, placement = shape.blocks[index], shape.placements[index]
    name = "in-place" if placement == "in" else "out-of-place"
    n_needed = columns.index("busbw") + 1
    if cells.left() < n_needed:
        cells.problems.append(f"the row is cut in its {name} half: {cells.left()} of {len(columns)} numbers" if cells.left() else f"no {name} half")
        cells.at = len(cells.words)
        return None
    taken = [cells.take() for _ in columns if cells.left()]
    values = dict(zip(columns, taken, strict=False))
    if len(taken) < len(columns):
        cells.problems.append(f"the row ends before the last column of its {name} half: that one is not known")
    return _half_of(values, placement)


def _half_of(values: dict[str, str], placement: Placement) -> Half:
    numbers = {name: _number(values.get(name, "")) for name in ("time", "algbw", "busbw", "i_min", "i_max", "i_p99")}
    bad = [f"{name} is {values[name]}" for name in ("time", "algbw", "busbw") if numbers[name] is None]
    wrong = values.get("wrong", "").rstrip("*")
    counted = _number(wrong)
    if wrong and wrong not in _UNCHECKED and counted is None:
        bad.append(f"#wrong is {wrong}")
    error = values.get("error", "").rstrip("*")
    return Half(
        placement=placement,
        **numbers,
        bw_step=_step(values["busbw"]),
        algbw_step=_step(values["algbw"]),
        # A count with decimals is the old error column under another name.
        wrong=int(counted) if counted is not None and counted == int(counted) and counted >= 0 else None,
        error=_number(error),
        problem=", ".join(bad) or None,
    )


def _number(word: str) -> float | None:
    if not _NUMBER.fullmatch(word):
        return None
    value = float(word)
    return value if abs(value) <= MAX_NUMBER and (value == 0 or abs(value) >= 1 / MAX_NUMBER) else None


def _integer(word: str | None) -> int | None:
    return int(word) if word and re.fullmatch(r"-?\d{1,18}", word) else None


def _step(word: str) -> float:
    """What one unit of the last printed digit is worth: 0.01 for "46.10", 1 for "11061", 1e5 for "1e+06" (within rounding)."""
    mantissa, _, exponent = word.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    power = int(exponent) if re.fullmatch(r"[-+]?\d{1,2}", exponent) else 0
    return float(10.0 ** (power - min(decimals, 18)))


_ANY_ROW = re.compile(rf"\d[ \t]+\d+[ \t]+{_TYPES}[ \t]")


def has_rows(text: str) -> bool:
    """Whether any line of a file looks like a row, commented out or not."""
    return _ANY_ROW.search(text) is not None
