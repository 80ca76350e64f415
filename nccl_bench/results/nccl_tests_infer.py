"""What a log of nccl-tests does not print: its collective from its columns, its ranks from busbw / algbw, within what rounding allows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from nccl_bench.collectives import find
from nccl_bench.dtypes import find_dtype
from nccl_bench.errors import UsageError
from nccl_bench.results.nccl_tests import TestRun
from nccl_bench.results.table import Half, Row

UNKNOWN = "unknown"
"""The collective of a table that nothing names."""
MAX_RANKS = 1 << 20
"""A guard of ours for ranges that rounding leaves open."""

_REDUCE = ("all_reduce",)
_SHARE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_LAUNCHERS = re.compile(r"(?:^|/)(?:mpirun|mpiexec\S*|srun|orterun|prterun|torchrun|jsrun)$")


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many ranks took part in each collective, and how that is known."""

    n: int | None
    said_by: str | None
    """"device list", "count column", "NCCL INFO", "busbw/algbw", "command line"; None where nothing tells."""
    low: int | None = None
    """The range that busbw / algbw allows, where the collective's factor depends on the ranks."""
    high: int | None = None
    n_groups: int = 1
    """Groups that ran at once (NCCL_TESTS_SPLIT)."""

    @property
    def disagrees(self) -> bool:
        """Whether busbw / algbw rules the number out."""
        return self.n is not None and self.low is not None and self.high is not None and not self.low <= self.n <= self.high


def collective_of(run: TestRun, path: str) -> tuple[str, str]:
    """(collective, how it is known): "program", "command line", "columns", "file name", or ("unknown", why).

    Programs that we have no row for (hypercube, alltoallv) keep their own name.
    """
    if run.program:
        return _named(run.program), "program"
    for word in run.command:
        if "_perf" in word:
            return _named(PurePath(word).name), "command line"
    candidates = by_columns(run)
    if len(candidates) == 1:
        return candidates[0], "columns"
    hinted = [name for name in candidates if _mentions(PurePath(path).name, name)]
    if len(hinted) == 1:
        return hinted[0], "file name"
    return UNKNOWN, "its columns fit " + (" and ".join(candidates) if candidates else "no collective")


def _named(program: str) -> str:
    word = re.sub(r"_perf.*$", "", program)
    try:
        return find(word).name
    except UsageError:
        return word.lower()


def _mentions(text: str, name: str) -> bool:
    words = {name, name.replace("_", ""), *find(name).aliases, find(name).nccl_tests}
    plain = text.lower().replace("-", "_")
    return any(re.search(rf"(?:^|[^a-z]){re.escape(word)}(?:[^a-z]|$)", plain) for word in words)


def by_columns(run: TestRun) -> tuple[str, ...]:
    """The collectives that the columns allow: redop and root, size against count, busbw against algbw, which half was checked."""
    rows = [row for row in run.rows if row.size and row.count]
    if not rows:
        return ()
    reduces, rooted = any(row.redop for row in rows), any(row.root is not None for row in rows)
    in_checked, two_halves = any(_checked(row, "in") for row in rows), any(len(row.halves) > 1 for row in rows)
    only_out_checked = two_halves and not in_checked and any(_checked(row, "out") for row in rows)
    if share_of(rows) not in (1, None) or not (reduces or rooted):
        if reduces:
            return ("reduce_scatter",)
        if rooted:
            return ("gather", "scatter")
        # nccl-tests leaves in-place all_to_all unchecked (alltoall.cu reportErrors); rows nobody checked fit both.
        return ("all_to_all",) if only_out_checked else ("all_gather",) if in_checked else ("all_gather", "all_to_all")
    if rooted:
        return ("reduce",) if reduces else ("broadcast",)
    return _whole(run, rows, only_out_checked=only_out_checked)


def _whole(run: TestRun, rows: Sequence[Row], *, only_out_checked: bool) -> tuple[str, ...]:
    """all_reduce or sendrecv: both have whole buffers, no root and a redop."""
    low, high = ratio_of(rows)
    if low > 1 or high < 1:
        return ("all_reduce",)
    listed = len({(device.rank, device.group) for device in run.devices})
    if only_out_checked or listed > 2:
        return ("sendrecv",)  # its in-place half is left unchecked (sendrecv.cu reportErrors)
    return ("all_reduce",) if any(_checked(row, "in") for row in rows) or listed == 2 else ("all_reduce", "sendrecv")


def _checked(row: Row, placement: str) -> bool:
    return any(half.placement == placement and (half.wrong is not None or half.error is not None) for half in row.halves)


def share_of(rows: Sequence[Row]) -> int | None:
    """size / (count x itemsize), the same in all rows: 1 for whole buffers, the ranks where the size is shared out; else None."""
    shares = set()
    for row in rows:
        itemsize = itemsize_of(row.dtype)
        if not (row.size and row.count and itemsize):
            continue
        share, rest = divmod(row.size, row.count * itemsize)
        shares.add(share if rest == 0 else None)
    return shares.pop() if len(shares) == 1 else None


def itemsize_of(dtype: str) -> int | None:
    """Bytes of an element by nccl-tests' name; None for a name nobody knows."""
    if dtype in ("uint32", "uint64"):  # nccl-tests has them, torch's collectives do not
        return int(dtype[4:]) // 8
    try:
        return find_dtype(dtype).itemsize
    except UsageError:
        return 1 if dtype.startswith(("f8", "fp8", "float8")) else None


def ratio_of(rows: Sequence[Row]) -> tuple[float, float]:
    """The range of busbw / algbw that every half of every row allows, their last digits being rounded; (0, inf) where none tells.

    Rows that contradict each other (a log put together by hand) give the range of the row with the most digits.
    """
    ranges = [found for row in rows for half in row.halves if (found := _ratio(half)) is not None]
    if not ranges:
        return 0.0, math.inf
    low, high = max(pair[0] for pair in ranges), min(pair[1] for pair in ranges)
    return (low, high) if low <= high else min(ranges, key=lambda pair: pair[1] - pair[0])


def _ratio(half: Half) -> tuple[float, float] | None:
    if half.algbw is None or half.busbw is None:
        return None
    # A half of the last digit, and a little for what printf makes of ties.
    a, b = 0.501 * half.algbw_step, 0.501 * half.bw_step
    if half.algbw <= 2 * a:
        return None
    return max(0.0, (half.busbw - b) / (half.algbw + a)), (half.busbw + b) / (half.algbw - a)


def ranks_of(run: TestRun, collective: str) -> Ranks:
    """The ranks of each collective, and whether what is printed agrees."""
    low, high = _range(run.rows, collective)
    listed, n_groups = _listed(run)
    share = share_of(run.rows) if collective in _SHARE else None
    said = (
        (listed, "device list"),
        (share, "count column"),
        (run.n_ranks_said, "NCCL INFO"),
        (low if low is not None and low == high else None, "busbw/algbw"),
        (_from_command(run), "command line"),
    )
    n, by = next(((n, by) for n, by in said if n), (None, None))
    return Ranks(n, by, low, high, n_groups)


def _listed(run: TestRun) -> tuple[int | None, int]:
    """Ranks a group by the device list, and groups: the highest rank + 1, since heads of logs get cut."""
    if not run.devices:
        return None, 1
    n_groups = len({device.group for device in run.devices})
    if n_groups > 1:
        n_listed = len({(device.rank, device.group) for device in run.devices})
        return (n_listed // n_groups if n_listed % n_groups == 0 else None), n_groups
    return max(device.rank for device in run.devices) + 1, 1


def _range(rows: Sequence[Row], collective: str) -> tuple[int | None, int | None]:
    """The ranks that busbw / algbw allows: 2(n-1)/n or (n-1)/n, inverted (nccl-tests doc/PERFORMANCE.md)."""
    scale = 2.0 if collective in _REDUCE else 1.0 if collective in _SHARE else None
    low, high = ratio_of(rows)
    if scale is None or math.isinf(high):
        return None, None
    first, last = _ranks(low / scale), _ranks(high / scale)
    lowest = max(1, math.ceil(first - 1e-9)) if math.isfinite(first) else MAX_RANKS
    highest = min(MAX_RANKS, math.floor(last + 1e-9)) if math.isfinite(last) else MAX_RANKS
    # A gap between two whole numbers: the rows fit no number of ranks at all; the nearest two enclose it.
    return (lowest, highest) if lowest <= highest else (highest, lowest)


def _ranks(share: float) -> float:
    return 1 / (1 - share) if share < 1 else math.inf


def _from_command(run: TestRun) -> int | None:
    """-t times -g of a command that no launcher started."""
    words = run.command
    if not words or any(_LAUNCHERS.search(word) for word in words):
        return None
    found = [_option(words, short, long) for short, long in (("-t", "--nthreads"), ("-g", "--ngpus"))]
    return math.prod(n for n in found if n) if any(found) else None


def _option(words: Sequence[str], *names: str) -> int | None:
    for i, word in enumerate(words):
        value = words[i + 1] if word in names and i + 1 < len(words) else word[2:] if word.startswith(names[0]) and word[:2] != "--" else ""
        if re.fullmatch(r"\d{1,6}", value):
            return int(value)
    return None


def hosts_of(run: TestRun) -> tuple[str, ...] | None:
    """The host of each rank from 0 on; None where the list has a hole that its neighbours do not fill.

    Ranks between two of one host are on that host: launchers fill a node before the next, and where they do not, the list shows it.
    """
    if not run.devices or len({device.group for device in run.devices}) > 1:
        return None
    known = {device.rank: device.host for device in run.devices}
    n = max(known) + 1
    if n > MAX_RANKS or 0 not in known:
        return None
    hosts: list[str] = []
    for rank in range(n):
        if rank in known:
            hosts.append(known[rank])
            continue
        after = next(known[later] for later in range(rank + 1, n) if later in known)
        if after != hosts[-1]:
            return None
        hosts.append(after)
    return tuple(hosts)
