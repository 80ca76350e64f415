"""What the rows come to, in one sentence: the code, the worst row, whom to look at. Inconclusive is never green. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nccl_bench.errors import FAIL, INCONCLUSIVE, PASS, WrongDataError
from nccl_bench.units import counted
from nccl_bench.verdict.evidence import Suspect
from nccl_bench.verdict.rows import AS_FOUND, NOT_ASKED, SUPPLY, UNKNOWN, Case, Row, Status

SUSPECT = "suspect: "
"""How the criterion of a suspect's row begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What it comes to."""

    status: Status
    exit_code: int
    why: str
    rows: tuple[Row, ...]


def verdict(case: Case, rows: tuple[Row, ...]) -> Verdict:
    """The verdict of these rows; where stages were left out on request, it says that it is of the others alone."""
    status, code, why = _of(case, rows)
    left_out = [str(one["stage"]) for one in case.not_run if one["reason"] == NOT_ASKED]
    only = f"of the stages asked for (not of {', '.join(left_out)}): " if left_out and not (case.not_nccl or case.shared_gpu) else ""
    return Verdict(status=status, exit_code=code, why=only + why, rows=rows)


def _of(case: Case, rows: Sequence[Row]) -> tuple[Status, int, str]:
    failed, open_ = [row for row in rows if row.status == "fail"], [row for row in rows if row.status == "inconclusive"]
    if case.not_nccl or case.shared_gpu:
        what = "not NCCL" if case.not_nccl else "ranks share a GPU"
        return "inconclusive", INCONCLUSIVE, f"a rehearsal ({what}): {_counts(rows)}; nothing here accepts a cluster"
    if failed:
        code = WrongDataError.exit_code if any(row.criterion == "data" for row in failed) else FAIL
        return "fail", code, f"fail: {_failed(failed)}{_whom(case.findings.suspects)}"
    if open_ or not any(row.status == "pass" for row in rows):
        return "inconclusive", INCONCLUSIVE, f"inconclusive: {_open(open_) if open_ else 'nothing was judged'}"
    status: Status = "warn" if any(row.status == "warn" for row in rows) else "pass"
    said = [f"held against what was found: {row.measured} a node" if row.measured else row.reason.partition(";")[0] for row in rows
            if row.criterion == AS_FOUND]  # fmt: skip
    found = "".join(f"; {text}" for text in said)
    return status, PASS, f"{status}: {_counts(rows)}{found}"


def _counts(rows: Sequence[Row]) -> str:
    names: tuple[Status, ...] = ("pass", "warn", "fail", "inconclusive")
    return ", ".join(f"{n} {name}" for name in names if (n := sum(row.status == name for row in rows)))


def _failed(rows: Sequence[Row]) -> str:
    """How many, through whom, and the worst: stage, criterion, where, measured and required."""
    hosts = list(dict.fromkeys(host for row in rows for host in row.hosts))
    through = f", all through {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts" if hosts else ""
    head = counted(len(rows), "row") + through
    others = [row for row in rows if not row.criterion.startswith(SUSPECT)]
    if not others:
        return head  # the suspects follow
    worst = max(others, key=_badness)
    where = f" on {', '.join(worst.hosts[:2])}{' ...' if len(worst.hosts) > 2 else ''}" if worst.hosts and len(hosts) != 1 else ""
    unit = {"frac": "", None: ""}.get(worst.unit, f" {worst.unit}")
    numbers = "" if worst.measured is None else f" {worst.measured}{unit}"
    required = "" if worst.required is None or not numbers else f", required {worst.required}"
    reason = f" ({worst.reason})" if worst.reason else ""
    return f"{head}: {'worst: ' if len(rows) > 1 else ''}{worst.stage} {worst.criterion}{where}{numbers}{required}{reason}"


def _badness(row: Row) -> tuple[int, float]:
    """Wrong data first, then how far a rate is below what is required."""
    if row.criterion == "data":
        return 2, float(row.measured) if isinstance(row.measured, int | float) else 0.0
    if row.unit == "GB/s" and isinstance(row.measured, int | float) and isinstance(row.required, int | float) and row.required > 0:
        return 1, 1 - row.measured / row.required
    return 0, 0.0


def _whom(suspects: Sequence[Suspect]) -> str:
    if not suspects:
        return ""
    more = f", and {len(suspects) - 1} more" if len(suspects) > 1 else ""
    return f"; {SUSPECT}{suspects[0].name()}{f' ({suspects[0].evidence[0]})' if suspects[0].evidence else ''}{more}"


def _open(rows: Sequence[Row]) -> str:
    """The first open row; where nothing is known to be expected, of which stages and collectives, and what mends it."""
    unknown = [row for row in rows if row.reason.startswith(UNKNOWN)]
    if len(unknown) < len(rows):
        first = next(row for row in rows if row not in unknown)
        return f"{counted(len(rows), 'row')}: {first.stage} {first.criterion}: {first.reason}"
    cells = list(dict.fromkeys(f"{row.stage} {row.criterion.removesuffix(' bandwidth')}" for row in unknown))
    shown = ", ".join(cells[:8]) + (f" and {len(cells) - 8} more" if len(cells) > 8 else "")
    return f"{counted(len(rows), 'row')}: {UNKNOWN} of {shown}: {SUPPLY}"
