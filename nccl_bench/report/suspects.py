"""Suspects and a matrix of pairs for the terminal. No pandas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nccl_bench.units import three_digits
from nccl_bench.verdict.evidence import Findings, Suspect

MOST = 12
"""Suspects and pairs shown; all are in the files."""


def suspect_lines(suspect: Suspect, head: str = "suspect") -> list[str]:
    """Who, then the evidence, each on a line."""
    serial = f", serial {suspect.serial}" if suspect.serial else ""
    luck = "" if suspect.chance is None else f"; by luck {'< 1e-9' if suspect.chance < 1e-9 else f'{suspect.chance:.1g}'}"
    first, *more = suspect.evidence or ("",)
    return [f"  {head:<9} {suspect.name()}{serial}", f"    {first}{luck}", *(f"    {text}" for text in more)]


def findings_lines(findings: Findings) -> list[str]:
    """The suspects, what is undetermined, what failed, what to measure next, notes."""
    lines = [line for suspect in findings.suspects[:MOST] for line in suspect_lines(suspect)]
    lines += [line for suspect in findings.undetermined[:MOST] for line in suspect_lines(suspect, "unclear")]
    if findings.failed:
        lines.append(f"  failed    {', '.join(findings.failed[:MOST])}")
    if findings.next_pairs:
        known = {frozenset((one.host, one.peer)) for one in findings.undetermined}
        pairs = (f"{a} - {b}{' again' if frozenset((a, b)) in known else ''}" for a, b in findings.next_pairs[:MOST])
        lines.append(f"  next      measure {', '.join(pairs)}")
    lines += [f"  note      {text}" for text in findings.notes]
    return lines or ["  no outlier"]


def matrix_lines(table: Mapping[str, Any]) -> list[str]:
    """GB/s of every pair of nodes, row sends to column."""
    hosts = [str(host) for host in table["hosts"]]
    width = max(7, *(min(12, len(host) + 1) for host in hosts))
    rows = [f"{'GB/s':<{width}}" + "".join(f"{host[-width + 1 :]:>{width}}" for host in hosts)]
    for host, values in zip(hosts, table["one_way_GBps"], strict=True):
        rows.append(f"{host[-width + 1 :]:<{width}}" + "".join(f"{'-' if value is None else three_digits(value):>{width}}" for value in values))
    return rows
