"""Somebody else's table of pairs as evidence, and what its findings mean for an exit code."""

from __future__ import annotations

import math

from nccl_bench.errors import FAIL, INCONCLUSIVE, PASS
from nccl_bench.results.pair_table import PairTable
from nccl_bench.units import counted
from nccl_bench.verdict.evidence import LARGE_BOTH, SMALL_BOTH, Evidence, Exchanges, Findings, Groups
from nccl_bench.verdict.lax import MOST_APART
from nccl_bench.verdict.localise import ALL_FAILED


def evidence_of(table: PairTable, groups: Groups | None = None, oversubscription: float | None = None) -> Evidence:
    """One exchange a row, both directions together; times are turned over so that more is better."""
    number = {node: at for at, node in enumerate(table.nodes)}
    kind = SMALL_BOTH if table.is_time else LARGE_BOTH
    rows = [(number[row.a], number[row.b], 0, _speed(row.value, table.is_time), kind) for row in table.rows]
    return Evidence(hosts=table.nodes, exchanges=Exchanges.of(rows), groups=groups, oversubscription=oversubscription)


MOST_VALUES = 1024
"""Nodes of the largest matrix that is written out: a million values."""


def values(table: PairTable) -> list[list[float | None]] | None:
    """[node][node] the table's own values, the last of a pair that it has twice; None where not measured, and for more than MOST_VALUES nodes."""
    n = len(table.nodes)
    if n > MOST_VALUES:
        return None
    number = {node: at for at, node in enumerate(table.nodes)}
    found: list[list[float | None]] = [[None] * n for _ in range(n)]
    for row in table.rows:
        a, b = number[row.a], number[row.b]
        found[a][b] = found[b][a] = row.value
    return found


def _speed(value: float | None, is_time: bool) -> float:
    if value is None or value <= 0:
        return math.nan
    return 1.0 / value if is_time else value


def verdict(findings: Findings, n_nodes: int) -> tuple[int, str]:
    """(exit code, why) of findings of pairs alone."""
    if findings.suspects:
        names = ", ".join(suspect.name() for suspect in findings.suspects[:3])
        more = f" and {len(findings.suspects) - 3} more" if len(findings.suspects) > 3 else ""
        return FAIL, f"suspects: {names}{more}"
    if findings.failed:
        after = f": {ALL_FAILED}" if ALL_FAILED in findings.notes else ""
        return FAIL, f"{counted(len(findings.failed), 'pair')} failed{after}"
    if findings.undetermined:
        n = len(findings.undetermined)
        return FAIL, f"{counted(n, 'pair')} {'is' if n == 1 else 'are'} slow, and this data cannot say why"
    if findings.unseen_frac > MOST_APART:
        return INCONCLUSIVE, f"exchanges scatter so much that losses below {findings.unseen_frac:.0%} are not seen"
    if n_nodes < 3:
        return INCONCLUSIVE, "two nodes have nobody to be compared with"
    return PASS, "no outlier"
