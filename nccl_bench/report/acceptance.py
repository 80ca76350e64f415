"""What a terminal shows of an acceptance: rows by stage, suspects, what to drain, files. No pandas."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_bench.records import Json, RunHeader
from nccl_bench.report.suspects import suspect_lines
from nccl_bench.units import counted
from nccl_bench.verdict.evidence import Suspect
from nccl_bench.verdict.lax import LAX
from nccl_bench.verdict.rows import AS_FOUND, Row, Status

STATUSES: tuple[Status, ...] = ("pass", "warn", "fail", "inconclusive")
ORDER = ("meeting", "resume", "doctor", "node", "nic", "pairs", "rails", "scale", "cluster", "soak")
MOST = 12


def lines(header: RunHeader, rows: Sequence[Row], suspects: Sequence[Suspect], verdict: Json, files: Sequence[str]) -> list[str]:
    """The page."""
    who = f"{counted(header.n_nodes or 0, 'node')}, {counted(header.n_ranks or 0, 'rank')}"
    found = [f"ACCEPTANCE   {who}   {verdict['status'].upper()}", f"  {verdict['why']}", ""]
    found += [f"  {'stage':<10}{'rows':>6}" + "".join(f"{status:>14}" for status in STATUSES)]
    for stage in sorted({row.stage for row in rows}, key=lambda stage: ORDER.index(stage) if stage in ORDER else -1):
        mine = [row.status for row in rows if row.stage == stage]
        found.append(f"  {stage:<10}{len(mine):>6}" + "".join(f"{mine.count(status):>14}" for status in STATUSES))
    found.append("")
    for suspect in suspects[:MOST]:
        found += suspect_lines(suspect)
    for status in ("fail", "inconclusive", "warn"):
        chosen = [row for row in rows if row.status == status and not row.criterion.startswith("suspect: ")]
        chosen.sort(key=lambda row: (not row.criterion.startswith(("unclear", LAX, AS_FOUND)), row.criterion != "was tested"))
        found += [f"  {status:<13} {_row(row)}" for row in chosen[:MOST]]
        found += [f"  {'':<13} and {len(chosen) - MOST} more (verdict.json)"] if len(chosen) > MOST else []
    found += [f"  excluded      {one['host']}: {one['reason']} (stage {one['stage']})" for one in verdict["excluded"]]
    if verdict["drain"]:
        found.append(f"  drain         {' '.join(verdict['drain'])}")
    found.append(f"  files         {' · '.join(files)}")
    return found


def _row(row: Row) -> str:
    more = f" and {len(row.hosts) - 3} more" if len(row.hosts) > 3 else ""
    hosts = f" on {', '.join(row.hosts[:3])}{more}" if row.hosts else ""
    measured = "" if row.measured is None else f": {row.measured} {row.unit or ''}".rstrip()
    required = "" if row.required is None else f" (required {row.required})"
    return f"{row.stage} {row.criterion}{hosts}{measured}{required}{', ' + row.reason if row.reason else ''}"


def threshold_lines(thresholds: Sequence[tuple[str, str, str]]) -> list[str]:
    """Every threshold with its source, before anything is measured."""
    return ["thresholds:", *(f"  {what}: {value} ({source})" for what, value, source in thresholds)]


def drain_commands(hosts: Sequence[str], why: str, how: str) -> list[str]:
    """The lines to run, on request only: scontrol or kubectl."""
    reason = why.replace('"', "'")[:120]
    if how == "kubectl":
        return [f"kubectl cordon {host}" for host in hosts]
    return [f'scontrol update nodename={host} state=drain reason="nccl-bench accept: {reason}"' for host in hosts]
