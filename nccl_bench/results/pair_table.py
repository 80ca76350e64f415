"""Tables of pairs: "a,b,value", "a b value", and CSV with a header whose nodes stand in two columns or in one node list.

They become points with a `pair`, for later judgement; `parse_pairs` hands out the same rows for those who judge a table directly.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_bench.collectives import find
from nccl_bench.errors import DataError, UsageError
from nccl_bench.records import Pair, Point, Times
from nccl_bench.results.imported import Imported
from nccl_bench.results.text import Text
from nccl_bench.units import counted

MAX_NODES = 65536
"""A guard of ours against a node list that is a bomb."""

_VALUE = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(GB/s|GBps|GiB/s|Gb/s|Gbps|Gbit/s|us|µs|ms|s)?")
_MISSING = ("", "-", "nan", "NaN", "N/A", "n/a", "none", "None", "null", "FAILED", "failed", "error", "timeout")
_SEPARATOR = re.compile(r"\s*(?:,|;|\t|<?-+>|<->|\s)\s*")
_NAME = re.compile(r"[\w.:-]+")
_NO_NAME = ("link", "gpu", "rank", "node", "port", "channel")
"""Words that a listing numbers: "Link 0: 25 GB/s" is no pair of "Link" and "0"."""
_FIRST = ("a", "src", "from", "node1", "node_a", "host1", "host_a", "node a", "sender", "rank_a", "gpu_a")
_SECOND = ("b", "dst", "to", "node2", "node_b", "host2", "host_b", "node b", "receiver", "rank_b", "gpu_b")
_LISTS = ("nodes", "nodelist", "hosts", "pair", "node_pair")
_RATES = ("value", "busbw_gbps", "busbw", "bus_bw", "avg_bus_bw_gbs", "avg_busbw_gbps", "avg_busbw", "avg_bus_bw", "avg", "bandwidth", "bw", "gb/s")
_TIMES = ("time_us", "latency_us", "latency", "us", "time_ms", "time_s", "seconds")
_TO_GBps = {"GB/s": 1.0, "GBps": 1.0, "GiB/s": 1.073741824, "Gb/s": 0.125, "Gbps": 0.125, "Gbit/s": 0.125}
_TO_US = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One pair."""

    a: str
    b: str
    value: float | None
    """GB/s, or µs where the table holds times; None where the pair has none (it failed)."""
    line: int
    collective: str | None = None
    nbytes: int | None = None
    n_ranks: int | None = None
    note: str | None = None
    """What stood behind a "#", or why there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """A table of pairs."""

    rows: tuple[PairRow, ...]
    nodes: tuple[str, ...]
    """Every name, in the order of first mention."""
    is_time: bool
    """Whether values are µs; else GB/s."""
    column: str | None
    """The column that was taken, where the table names them."""
    warnings: tuple[str, ...] = ()


def is_pair_table(text: Text) -> bool:
    """Whether most lines of a file are pairs with a value."""
    if _csv_columns(text) is not None:
        return True
    lines = [line for line in text.text.split("\n")[:200] if line.split("#")[0].strip()]
    fitting = sum(_plain(line) is not None for line in lines)
    return fitting > 0 and fitting >= 0.8 * len(lines)


def parse_pairs(text: Text, name: str, *, all_may_fail: bool = False) -> PairTable:
    """The rows of a table. Raises DataError with path:line where a line is no pair, or where no pair has a value and all must not have failed."""
    columns = _csv_columns(text)
    rows, is_time, column, warnings = _plain_rows(text, name) if columns is None else _csv_rows(text, name, columns)
    if not rows or not (all_may_fail or any(row.value is not None for row in rows)):
        raise DataError(f"{name}: no pair has a value", "a table of pairs has two names and a number a line: h001,h002,92.1")
    nodes = tuple(dict.fromkeys(itertools.chain.from_iterable((row.a, row.b) for row in rows)))
    failed = [row for row in rows if not row.value]
    if failed:
        first = ", ".join(f"{row.a}-{row.b} (line {row.line})" for row in failed[:8])
        warnings.append(f"{name}: {len(failed)} of {counted(len(rows), 'pair')} without a value, or with 0, taken as failed: {first}")
    return PairTable(rows=tuple(rows), nodes=nodes, is_time=is_time, column=column, warnings=tuple(warnings))


def import_pairs(text: Text, name: str) -> Imported:
    """The points of a table of pairs."""
    table = parse_pairs(text, name)
    index = {node: i for i, node in enumerate(table.nodes)}
    points = tuple(_point(row, index, name, is_time=table.is_time) for row in table.rows)
    ranks = tuple({"rank": i, "host": node, "local_rank": None, "pid": None, "gpu": None, "nics": None} for node, i in index.items())
    facts = {"source": name, "collective": points[0].collective, "column": table.column, "pairs": len(points), "hosts": list(table.nodes)}
    unit = "µs" if table.is_time else "GB/s"
    taken = f"the column {table.column!r}" if table.column else "the numbers"
    warnings = [f"{name}: {taken} taken as {unit} of both directions together", *table.warnings]
    return Imported(path=name, kind="pair table", points=points, warnings=tuple(warnings), n_nodes=len(table.nodes), ranks=ranks, runs=(facts,))


def _point(row: PairRow, index: dict[str, int], name: str, *, is_time: bool) -> Point:
    value = row.value
    time = value if is_time else None
    return Point(
        collective=row.collective or "unknown",
        dtype=None,
        op=None,
        root=None,
        nbytes=row.nbytes or 0,
        requested_nbytes=row.nbytes or 0,
        count=None,
        n_ranks=row.n_ranks,
        placement=None,
        clock=None,
        regime=None,
        over_ranks="unknown",
        stage="pairs",
        pair=Pair(level="node", round=0, src=index[row.a], dst=index[row.b], both=True),
        time_us=Times(median=time, mean=time, min=time, max=time) if time is not None else None,
        busbw_GBps=None if is_time else value,
        status="ok" if value is not None else "failed",
        reason=row.note if value is None else None,
        source=f"{name}:{row.line}",
    )


# ---- plain lines ----


def _plain(line: str) -> tuple[str, str, str] | None:
    """(a, b, value) of "a,b 49.36", "a b 49.36 GB/s", "a -> b 49.36"; None where a line is none."""
    words = [word for word in _SEPARATOR.split(line.split("#")[0].strip().rstrip(":")) if word and word != ":"]
    if len(words) == 4 and words[3] in (*_TO_GBps, *_TO_US):
        words[2:] = [words[2] + words[3]]
    if len(words) != 3 or not all(_NAME.fullmatch(word) for word in words[:2]) or words[0] == words[1] or words[0].lower() in _NO_NAME:
        return None
    return (words[0], words[1].rstrip(":"), words[2]) if _VALUE.fullmatch(words[2]) or words[2] in _MISSING else None


def _plain_rows(text: Text, name: str) -> tuple[list[PairRow], bool, str | None, list[str]]:
    rows, warnings, units = list[PairRow](), list[str](), set[str | None]()
    for number, line in enumerate(text.text.split("\n"), start=1):
        if not line.split("#")[0].strip():
            continue
        found = _plain(line)
        if found is None:
            if not rows and not warnings:  # a heading
                warnings.append(f"{name}:{number}: taken for a heading: {line.strip()[:80]}")
                continue
            raise DataError(f"{name}:{number}: not a pair and its value: {line.strip()[:80]!r}", "two names and a number: h001,h002,92.1")
        a, b, word = found
        value, unit = _value(word, f"{name}:{number}")
        units |= {unit} if value is not None else set()
        note = line.partition("#")[2].strip() or None
        rows.append(PairRow(a=a, b=b, value=value, line=number, note=note if value is not None else note or "no value in the table"))
    times = {unit for unit in units if unit in _TO_US}
    if times and times != units:
        words = ", ".join(sorted(map(str, times)))
        raise DataError(f"{name}: some values are times ({words}) and some are rates", "one table holds one kind of value")
    return rows, bool(times), None, warnings


def _value(word: str, where: str) -> tuple[float | None, str | None]:
    """(value in GB/s or µs, its unit as printed). Raises DataError for a number that is no rate and no time."""
    match = _VALUE.fullmatch(word.strip())
    if match is None:
        return None, None
    value = float(match[1]) * (_TO_GBps | _TO_US).get(match[2] or "GB/s", 1.0)
    if not 0 <= value < math.inf:
        raise DataError(f"{where}: {word.strip()[:40]} is no rate and no time of a pair", "a pair that failed has 0, nan, FAILED or nothing there")
    return value, match[2]


# ---- CSV with a header ----


@dataclass(frozen=True, slots=True)
class _Columns:
    first: int
    second: int | None
    """None where `first` is a list of both."""
    value: int
    name: str
    factor: float
    is_time: bool
    others: dict[str, int]


def _csv_columns(text: Text) -> _Columns | None:
    head = next((line for line in text.text.split("\n") if line.strip() and not line.lstrip().startswith("#")), "")
    try:
        names = [name.strip().lower() for name in next(csv.reader([head.replace("\r", " ")]), [])]
    except csv.Error:
        return None
    if len(names) < 2:
        return None
    first, second = _find(names, _FIRST), _find(names, _SECOND)
    if first is None or second is None:
        first, second = _find(names, _LISTS), None
    rate, time = _find(names, _RATES), _find(names, _TIMES)
    value = rate if rate is not None else time
    if first is None or value is None:
        return None
    factor = {"time_ms": 1e3, "time_s": 1e6, "seconds": 1e6}.get(names[value], 1.0)
    wanted: tuple[str, ...] = ("test", "collective", "n", "g", "maxbytes", "nbytes", "size")
    others = {name: names.index(name) for name in wanted if name in names}
    return _Columns(first, second, value, names[value], factor, rate is None, others)


def _find(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((names.index(word) for word in wanted if word in names), None)


def _csv_rows(text: Text, name: str, columns: _Columns) -> tuple[list[PairRow], bool, str | None, list[str]]:
    rows, header = list[PairRow](), False
    try:
        for number, cells in _cells(text):
            if not header:
                header = True
                continue
            rows.append(_csv_row(cells, number, name, columns))
    except csv.Error as err:
        raise DataError(f"{name}: not CSV that can be read: {err}") from err
    return rows, columns.is_time, columns.name, []


def _cells(text: Text) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text.text.replace("\r", " ")))
    for cells in reader:
        if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
            yield reader.line_num, cells


def _csv_row(cells: Sequence[str], number: int, name: str, columns: _Columns) -> PairRow:
    needed = max(columns.first, columns.second or 0)
    if len(cells) <= needed:
        raise DataError(f"{name}:{number}: {len(cells)} columns, fewer than its header has")
    pair = (cells[columns.first], cells[columns.second]) if columns.second is not None else _nodes(cells[columns.first])
    names = [part.strip() for part in pair]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise DataError(f"{name}:{number}: {', '.join(names)[:80]!r} does not name two nodes")
    word = cells[columns.value].strip() if columns.value < len(cells) else ""
    value = _value(word, f"{name}:{number}")[0]
    if value is None and word not in _MISSING:
        raise DataError(f"{name}:{number}: {word[:40]!r} is not a value")
    cell = {key: cells[i].strip() for key, i in columns.others.items() if i < len(cells)}
    n, per_node, nbytes = (_count(cell.get(key, "")) for key in ("n", "g", "maxbytes"))
    return PairRow(
        a=names[0],
        b=names[1],
        value=None if value is None else value * columns.factor,
        line=number,
        collective=_collective(cell.get("test") or cell.get("collective")),
        nbytes=nbytes or _count(cell.get("nbytes", "")) or _count(cell.get("size", "")),
        n_ranks=n * per_node if n and per_node else None,
        note=None if value is not None else "no value in the table",
    )


def _count(word: str) -> int | None:
    return int(word) if re.fullmatch(r"\d{1,18}", word) else None


def _collective(word: str | None) -> str | None:
    try:
        return find(word).name if word else None
    except UsageError:
        return None


def _nodes(text: str) -> list[str]:
    """The nodes of "h001,h002", "h[001,005]" or "h[001-002]", and of "h001-h002" where nothing else separates them."""
    found = list(_expand(text))
    if len(found) == 1 and (match := re.fullmatch(r"(.+?)[-_:](\w*[A-Za-z]\S*)", text.strip())):
        return [match[1], match[2]]
    return found


def _expand(text: str) -> Iterator[str]:
    for word in re.findall(r"(?:[^,\s\[\]]|\[[^\[\]]*\])+", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](\S*)", word)
        if match is None:
            yield word
            continue
        for part in match[2].split(","):
            span = re.fullmatch(r"\s*(\d{1,9})-(\d{1,9})\s*", part)
            numbers = range(int(span[1]), min(int(span[2]), int(span[1]) + MAX_NODES) + 1) if span else ()
            yield from (f"{match[1]}{number:0{len(span[1])}d}{match[3]}" for number in numbers) if span else (f"{match[1]}{part.strip()}{match[3]}",)
