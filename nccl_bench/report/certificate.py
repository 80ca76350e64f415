"""The certificate of an acceptance: one self-contained HTML page that can be printed, signed and repeated. Built on the report's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_bench.records import Json, RunHeader
from nccl_bench.report.html import html
from nccl_bench.report.page import Cell, Document, Number, Section, Status, Suspect, Table
from nccl_bench.report.terminal import banner

_STATUS: Mapping[str, Status] = {"pass": "pass", "warn": "look", "fail": "fail", "inconclusive": "unknown"}
WORDS = {"pass": "ACCEPTED", "warn": "ACCEPTED, with warnings", "fail": "NOT ACCEPTED", "inconclusive": "INCONCLUSIVE: not accepted"}
ORDER = ("fail", "inconclusive", "warn", "pass")


def certificate(verdict: Json, header: RunHeader, facts: Json) -> str:
    """The page of a verdict.json, its run's header and accept.json."""
    counts = {status: sum(row["status"] == status for row in verdict["rows"]) for status in ORDER}
    document = Document(
        title=f"Acceptance: {WORDS[verdict['status']]}",
        subtitle=f"{header.n_nodes} hosts, {header.n_ranks} ranks · {header.started_at} · job {header.job or '-'} · {header.tool}",
        banner=banner(not_nccl=header.not_nccl, shared_gpu=header.shared_gpu),
        status=_STATUS[verdict["status"]],
        sentence=str(verdict["why"]),
        numbers=(
            Number(label="passed", value=str(counts["pass"]), expected=f"of {len(verdict['rows'])} rows", status="pass"),
            Number(label="failed", value=str(counts["fail"]), expected="0", status="fail" if counts["fail"] else "pass"),
            Number(
                label="inconclusive",
                value=str(counts["inconclusive"]),
                expected="0; never green",
                status="unknown" if counts["inconclusive"] else "pass",
            ),
        ),
        picture=None,
        suspects=tuple(Suspect(who=_who(one), evidence="; ".join(one["evidence"])) for one in verdict["suspects"]),
        missing=tuple(row["criterion"] + ": " + row["reason"] for row in verdict["rows"] if row["status"] == "inconclusive")[:20],
        not_tested=tuple(f"{one['stage']}: {one['reason']}" for one in verdict["not_run"]),
        sections=(_rows(verdict), *_taken_out(verdict), _thresholds(verdict), *_inventory(facts), _environment(header)),
        tool=f"{header.tool}: {' '.join(header.argv)}",
    )
    return html(document, {})


def _who(one: Json) -> str:
    device = f"NIC {one['nic']} of " if one["nic"] else f"GPU {one['gpu']} of " if one["gpu"] is not None else ""
    serial = f", serial {one['serial']}" if one["serial"] else ""
    return f"{one['kind']}: {device}{one['host'] or ''}{' | ' + one['peer'] if one['peer'] else ''}{serial}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], statuses: Sequence[Status | None] | None = None, caption: str = "") -> Table:
    cells = [tuple(Cell(text="-" if value is None else str(value), status=statuses[at] if statuses and place == 0 else None) for place,
        value in enumerate(row))
             for at, row in enumerate(rows)]  # fmt: skip
    return Table(columns=tuple(columns), numbers=(False,) * len(columns), rows=tuple(cells), caption=caption)


def _rows(verdict: Json) -> Section:
    rows = sorted(verdict["rows"], key=lambda row: ORDER.index(row["status"]))
    values = [
        (
            row["status"],
            row["stage"],
            row["criterion"],
            row["measured"],
            row["required"],
            row["unit"],
            ", ".join(row["hosts"]),
            row["reason"],
            row["source"],
        )
        for row in rows
    ]
    columns = ("status", "stage", "criterion", "measured", "required", "unit", "hosts", "reason", "source")
    return Section(name="rows", title="Every row", tables=(_table(columns, values, [_STATUS[row["status"]] for row in rows]),))


def _taken_out(verdict: Json) -> list[Section]:
    rows = [(one["host"], one["stage"], one["reason"]) for one in verdict["excluded"]]
    words = (f"to drain: {', '.join(verdict['drain'])}",) if verdict["drain"] else ()
    if not rows and not words:
        return []
    return [Section(name="out", title="Hosts taken out", words=words, tables=(_table(("host", "stage", "reason"), rows),) if rows else ())]


def _thresholds(verdict: Json) -> Section:
    rows = [(one["what"], one["value"], one["source"]) for one in verdict["thresholds"]]
    return Section(name="thresholds", title="Thresholds, and who set them", tables=(_table(("what", "value", "source"), rows),))


def _inventory(facts: Json) -> list[Section]:
    gpus = [
        (one["host"], gpu["index"], gpu["name"], gpu["serial"], gpu["uuid"], gpu["vbios"], gpu["pci"])
        for one in facts["inventory"]
        for gpu in one["gpus"]
    ]
    nics = [(one["host"], nic["name"], nic["rate"], nic["firmware"], nic["psid"], nic["guid"]) for one in facts["inventory"] for nic in one["nics"]]
    hosts = [(one["host"], *(_of(one, "chassis", key) for key in ("product_name", "product_serial", "chassis_serial"))) for one in facts["inventory"]]
    tables = [_table(("host", "product", "serial", "chassis serial"), hosts)] if hosts else []
    tables += [_table(("host", "GPU", "model", "serial", "UUID", "VBIOS", "PCI"), gpus)] if gpus else []
    tables += [_table(("host", "NIC", "rate", "firmware", "PSID", "GUID"), nics)] if nics else []
    return [Section(name="inventory", title="Inventory", tables=tuple(tables))] if tables else []


def _of(one: Json, table: str, key: str) -> object:
    return (one.get(table) or {}).get(key)


def _environment(header: RunHeader) -> Section:
    rows = [(name, value) for name, value in {**header.versions, **header.env}.items() if value is not None]
    rows += [("nccl.conf", line) for line in header.nccl_conf]
    command = " ".join(header.argv)
    return Section(
        name="environment",
        title="Versions, environment, and how to repeat it",
        tables=(_table(("name", "value"), rows),),
        commands=(command,) if command else (),
    )
