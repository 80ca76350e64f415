"""Lines of one number a rank: "node_id 0 local_rank 3 5313036288 bytes: 0.277 sec", as users print them from their own loops.

Each group of equal local ranks over the nodes is one rail; the ranks that lag on every node point at a rail, not at a node.
"""

from __future__ import annotations

import math
import re
import statistics

from nccl_bench.errors import DataError
from nccl_bench.records import Group, Point, Times
from nccl_bench.results.imported import Imported
from nccl_bench.results.text import Text

SLOW_RATIO = 1.1
"""How much longer than the median of all local ranks, on every node, is pointed out; repeats of one large message differ by about 1 %."""

_LINE = re.compile(r"node(?:_id|_rank)?[ =:]+(\S+?),? +local_?rank[ =:]+(\d{1,6}),? +(\d{1,18}) *bytes[ :]+([\d.]{1,24}) *(sec|s|ms|us)\b")
_TO_US = {"sec": 1e6, "s": 1e6, "ms": 1e3, "us": 1.0}


def is_rank_table(text: Text) -> bool:
    """Whether a file has such lines."""
    return _LINE.search(text.text) is not None


def import_ranks(text: Text, name: str) -> Imported:
    """The points of such lines: one a rank. Raises DataError with path:line where a line that begins alike cannot be read."""
    rows: list[tuple[int, str, int, int, float]] = []
    for line in text.lines():
        match = _LINE.search(line.text)
        if match is None and re.match(r"\s*node\S*\s.*local_?rank", line.text):
            raise DataError(f"{name}:{line.number}: not one number of one rank: {line.text.strip()[:80]!r}")
        if match is not None:
            rows.append((line.number, match[1], int(match[2]), int(match[3]), _us(match[4], match[5], f"{name}:{line.number}")))
    nodes = list(dict.fromkeys(row[1] for row in rows))
    locals_ = sorted({row[2] for row in rows})
    points = tuple(_point(name, row, len(nodes), len(locals_)) for row in rows)
    ranks = tuple(
        {"rank": nodes.index(node) * len(locals_) + local, "host": node, "local_rank": local, "pid": None, "gpu": None, "nics": None}
        for _, node, local, _, _ in rows
    )
    facts = {"source": f"{name}:{rows[0][0]}", "collective": None, "rows": len(rows), "hosts": nodes}
    missing = len(nodes) * len(locals_) - len(rows)
    warnings = [f"{name}: no line names the collective"]
    warnings += [f"{name}: {missing} of {len(nodes) * len(locals_)} ranks have no line"] if missing > 0 else []
    return Imported(
        path=name,
        kind="rank table",
        points=points,
        warnings=(*warnings, *_slow(name, rows)),
        n_ranks=len(nodes) * len(locals_),
        n_nodes=len(nodes),
        ranks=ranks,
        runs=(facts,),
    )


def _us(word: str, unit: str, place: str) -> float:
    try:
        us = float(word) * _TO_US[unit]
    except ValueError as err:
        raise DataError(f"{place}: {word!r} is not a number") from err
    if not 0 < us < math.inf:
        raise DataError(f"{place}: {word} is no time of a rank")
    return us


def _point(name: str, row: tuple[int, str, int, int, float], n_nodes: int, n_groups: int) -> Point:
    line, _, local, nbytes, time = row
    return Point(
        collective="unknown",
        dtype=None,
        op=None,
        root=None,
        nbytes=nbytes,
        requested_nbytes=nbytes,
        count=None,
        n_ranks=n_nodes,
        group=Group(axis=f"local_rank {local}", size=n_nodes, n_groups=n_groups),
        placement=None,
        clock=None,
        regime=None,
        over_ranks="one rank",
        time_us=Times(median=time, mean=time, min=time, max=time),
        source=f"{name}:{line}",
    )


def _slow(name: str, rows: list[tuple[int, str, int, int, float]]) -> list[str]:
    """Local ranks that are slow on every node: what they share is a rail (their NIC, its place in the topology), no node."""
    times: dict[int, dict[str, float]] = {}
    for _, node, local, _, time in rows:
        times.setdefault(local, {})[node] = time
    usual = statistics.median(statistics.median(found.values()) for found in times.values())
    slow = [local for local, found in times.items() if len(found) > 1 and min(found.values()) > SLOW_RATIO * usual]
    if not slow:
        return []
    ratio = usual / statistics.median(statistics.median(times[local].values()) for local in slow)
    who = f"local rank{'s' * (len(slow) > 1)} {', '.join(map(str, slow))}"
    return [f"{name}: {who} run at {ratio:.2f} of the others' speed on every node: look at their GPU-NIC mapping (rail), not at a node"]
