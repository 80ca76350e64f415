"""Rows about hosts: doctor's checks, who was lost, worlds that broke, what was not tested. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_bench.records import Json
from nccl_bench.verdict.criteria import DEFAULT, Criteria
from nccl_bench.verdict.rows import Case, Row, Status


def doctor(case: Case, criteria: Criteria) -> Iterable[Row]:
    """One row a check."""
    for check in case.doctor:
        status = check["status"]
        if status == "skipped":
            continue
        row = _of_word(status, bool(check.get("required")), criteria)
        where = f" {check['device']}" if check.get("device") else ""
        yield Row(
            criterion=f"{check['id']}{where}", stage="doctor", status=row, measured=check["measured"], required=check["expected"],
            reason="" if row == "pass" else _why(check), source=criteria.path or DEFAULT, hosts=tuple(check["hosts"]),
        )  # fmt: skip


def _why(check: Json) -> str:
    """What a check found; one that could not be read found nothing, and what it would mean is no finding."""
    if check["status"] != "unknown":
        return str(check.get("why") or "")
    asked = f": {check['what']}" if check.get("what") else ""
    return f"could not be read{' (needs root)' if check.get('needs_root') else ''}{asked}"


def _of_word(status: str, required: bool, criteria: Criteria) -> Status:
    """What one of doctor's words makes of its row; a word in no list is not green, nor is a required check that could not be read."""
    if status == "ok":
        return "pass"
    if status in criteria.doctor_fail:
        return "fail"
    return "warn" if status in criteria.doctor_warn and not (status == "unknown" and required) else "inconclusive"


def excluded(case: Case) -> Iterable[Row]:
    """A host that was lost fails, unless --min-nodes said how many must be left and so many are; it goes to the drain list either way."""
    lost, spares = {one["host"] for one in case.excluded}, set(case.spares)
    left = case.n_hosts - len(lost - spares) + len({one["by"] for one in case.replaced} - lost)
    enough = 0 < case.min_hosts <= left
    by = {one["host"]: one["by"] for one in case.replaced}
    for one in case.excluded:
        text = f"; spare {by[one['host']]} took its place" if one["host"] in by else ""
        yield Row(
            criterion="takes part", stage=one["stage"], status="warn" if enough else "fail", measured="excluded", required="takes part",
            reason=one["reason"] + text, source="--min-nodes" if enough else DEFAULT, hosts=(one["host"],),
        )  # fmt: skip
    if case.min_hosts:
        yield Row(
            criterion="enough hosts", stage="cluster", status="pass" if enough else "fail", measured=left, required=case.min_hosts, unit="hosts",
            source="--min-nodes",
        )  # fmt: skip


def broken(case: Case) -> Iterable[Row]:
    """Worlds that did not end well."""
    for one in case.broken:
        yield Row(criterion=f"{one['world']} ends well", stage=one["stage"], status="fail", reason=one["reason"], hosts=tuple(one["hosts"]))


def not_run(case: Case) -> Iterable[Row]:
    """Stages that were not tested: a warning where there is nothing to test or nobody asked, else inconclusive."""
    for one in case.not_run:
        status: Status = "warn" if one.get("fine") else "inconclusive"
        yield Row(criterion="was tested", stage=one["stage"], status=status, measured="not tested", required="tested", reason=one["reason"])
