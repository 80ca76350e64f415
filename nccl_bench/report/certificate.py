"""The certificate of an acceptance: one self-contained HTML page that can be printed, signed and repeated. Built on the report's page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from nccl_bench.records import Json, RunHeader
from nccl_bench.report.acceptance import ORDER as STAGES
from nccl_bench.report.html import html
from nccl_bench.report.page import Cell, Document, Number, Picture, Section, Status, Suspect, Table
from nccl_bench.report.terminal import banner
from nccl_bench.units import counted
from nccl_bench.verdict.criteria import DEFAULT
from nccl_bench.verdict.rows import NOT_ASKED

_STATUS: Mapping[str, Status] = {"pass": "pass", "warn": "look", "fail": "fail", "inconclusive": "unknown"}
WORDS = {"pass": "ACCEPTED", "warn": "ACCEPTED, with warnings", "fail": "NOT ACCEPTED", "inconclusive": "INCONCLUSIVE: not accepted"}
MOST_MISSING = 20
MOST_FAILURES = 12
ORDER = ("fail", "inconclusive", "warn", "pass")


def certificate(verdict: Json, header: RunHeader, facts: Json, pictures: Sequence[Picture] = (), drawn: Mapping[str, str] | None = None) -> str:
    """The page of a verdict.json, its run's header and accept.json. `drawn`: each picture as SVG."""
    counts = {status: sum(row["status"] == status for row in verdict["rows"]) for status in ORDER}
    missing = _missing(verdict)
    document = Document(
        title=f"Acceptance: {WORDS[verdict['status']]}{_only(verdict)}",
        subtitle=_subtitle(verdict, header),
        banner=banner(not_nccl=header.not_nccl, shared_gpu=header.shared_gpu),
        status=_STATUS[verdict["status"]],
        sentence=str(verdict["why"]),
        numbers=(
            Number(
                label="passed", value=str(counts["pass"]), expected=f"of {counted(len(verdict['rows']), 'row')}, {counts['warn']} warn", status="pass"
            ),
            Number(label="failed", value=str(counts["fail"]), expected="must be 0", status="fail" if counts["fail"] else "pass"),
            Number(
                label="inconclusive",
                value=str(counts["inconclusive"]),
                expected="must be 0: never green",
                status="unknown" if counts["inconclusive"] else "pass",
            ),
        ),
        picture=pictures[0] if pictures else None,
        suspects=(*(Suspect(who=_who(one), evidence="; ".join(one["evidence"])) for one in verdict["suspects"]), *_failures(verdict)),
        missing=(*missing[:MOST_MISSING], *([f"and {len(missing) - MOST_MISSING} more, below"] if len(missing) > MOST_MISSING else [])),
        not_tested=tuple(f"{one['stage']}: {one['reason']}" for one in verdict["not_run"]),
        sections=(
            _stages(verdict), *_taken_out(verdict), *_charts(pictures[1:]), _rows(verdict), _thresholds(verdict), _against(verdict),
            *_inventory(facts), _environment(header), _repeat(header),
        ),
        tool=f"{header.tool}: {' '.join(header.argv)}",
    )  # fmt: skip
    return html(document, drawn or {})


def _only(verdict: Json) -> str:
    """What the title must say of a verdict that is not of the whole."""
    left_out = [str(one["stage"]) for one in verdict["not_run"] if one["reason"] == NOT_ASKED]
    return f" (without {', '.join(left_out)})" if left_out else ""


def _failures(verdict: Json) -> list[Suspect]:
    """What failed and is no suspect's row: the first ones."""
    rows = [row for row in verdict["rows"] if row["status"] == "fail" and not row["criterion"].startswith("suspect: ")]
    found = []
    for row in rows[:MOST_FAILURES]:
        numbers = f" {_number(row['measured'], row['unit']).text}, required {_number(row['required'], row['unit']).text}"
        after = f": {row['reason']}" if row["reason"] else ""
        found.append(Suspect(who=", ".join(row["hosts"]) or f"stage {row['stage']}", evidence=f"failed {row['criterion']},{numbers}{after}"))
    more = len(rows) - MOST_FAILURES
    return [*found, Suspect(who=f"{counted(more, 'more row')} failed", evidence="below")] if more > 0 else found


def _missing(verdict: Json) -> list[str]:
    """Rows that are inconclusive, those of one reason together; what is slow and not understood first."""
    groups: dict[str, list[Json]] = {}
    for row in verdict["rows"]:
        if row["status"] == "inconclusive" and row["criterion"] != "was tested":
            groups.setdefault(row["reason"], []).append(row)
    ordered = sorted(groups.items(), key=lambda item: not item[1][0]["criterion"].startswith("unclear"))
    return [_together(rows, reason) for reason, rows in ordered]


def _together(rows: Sequence[Json], reason: str) -> str:
    after = f": {reason}" if reason else ""
    if len(rows) == 1:
        return f"{rows[0]['stage']}: {rows[0]['criterion']}{after}"
    stages = ", ".join(dict.fromkeys(row["stage"] for row in rows))
    return f"{counted(len(rows), 'row')} of {stages} ({rows[0]['criterion']} ...){after}"


def _subtitle(verdict: Json, header: RunHeader) -> str:
    spares = f", {len(verdict['spares'])} of them spares" if verdict["spares"] else ""
    hosts = f"{counted(len(verdict['hosts']), 'host')}{spares}"
    ended = f" to {header.ended_at}" if header.ended_at else ""
    return f"{hosts}, {counted(header.n_ranks or 0, 'rank')} · {header.started_at}{ended} · job {header.job or '-'} · {header.tool}"


def _stages(verdict: Json) -> Section:
    """Rows by stage and status."""
    stages = sorted({row["stage"] for row in verdict["rows"]}, key=lambda stage: STAGES.index(stage) if stage in STAGES else -1)
    rows = []
    for stage in stages:
        found = [row["status"] for row in verdict["rows"] if row["stage"] == stage]
        worst = next(status for status in ORDER if status in found)
        rows.append((Cell(text=stage), Cell(text=worst, status=_STATUS[worst]), *(_count(found.count(status)) for status in reversed(ORDER))))
    columns = ("stage", "worst", *reversed(ORDER))
    return Section(name="stages", title="By stage", tables=(Table(columns=columns, numbers=(False, False, *(True,) * 4), rows=tuple(rows)),))


def _count(n: int) -> Cell:
    return Cell(text=str(n) if n else "", value=n)


def _charts(pictures: Sequence[Picture]) -> list[Section]:
    return [Section(name="charts", title="Hosts and pairs", pictures=tuple(pictures))] if pictures else []


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
    cells = tuple(
        (
            Cell(text=row["status"], status=_STATUS[row["status"]]), Cell(text=row["stage"]), Cell(text=row["criterion"]),
            _number(row["measured"], row["unit"]), _number(row["required"], row["unit"]), Cell(text=", ".join(row["hosts"])),
            Cell(text=row["reason"]), Cell(text=_short(row["source"])),
        )
        for row in rows
    )  # fmt: skip
    columns = ("status", "stage", "criterion", "measured", "required", "hosts", "reason", "source")
    note = "A row's source says who asked for it (default: nccl-bench); in full under thresholds and in verdict.json."
    return Section(name="rows", title="Every row", tables=(Table(columns=columns, numbers=(False,) * 8, rows=cells, note=note),))


def _short(source: str) -> str:
    """Who asked for it, without why."""
    who = source.partition(": ")[0]
    return "default" if who == DEFAULT else who


def _number(value: object, unit: str | None) -> Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(text="-" if value is None else str(value))
    if unit == "frac":
        return Cell(text=f"{100 * value:.4g} %", value=float(value))
    text = f"{value:.4g}" if isinstance(value, float) else f"{value:,}".replace(",", "\u202f")
    return Cell(text=f"{text} {unit or ''}".rstrip(), value=float(value))


def _taken_out(verdict: Json) -> list[Section]:
    by = {one["host"]: one["by"] for one in verdict["replaced"]}
    rows = [(one["host"], one["stage"], one["reason"], by.get(one["host"])) for one in verdict["excluded"]]
    words = [f"To drain: {', '.join(verdict['drain'])}."] if verdict["drain"] else []
    if verdict["spares"]:
        left = ", ".join(verdict["spares_left"]) or "none"
        words.append(f"Spares: {', '.join(verdict['spares'])}; checked alone (doctor, node, nic); not used in stages across hosts: {left}.")
    if not rows and not words:
        return []
    table = (_table(("host", "lost in stage", "reason", "its place taken by"), rows),) if rows else ()
    return [Section(name="out", title="Hosts taken out, and spares", words=tuple(words), tables=table)]


def _against(verdict: Json) -> Section:
    """What the run was held against besides thresholds."""
    known = verdict["reference"]
    rows = [
        ("hosts", ", ".join(verdict["hosts"])), ("baseline", ", ".join(verdict["baseline"]) or None),
        ("known-good partners", None if known is None else f"{known['source']}: {', '.join(known['hosts'])}"), ("groups of hosts", verdict["groups"]),
        *(("note", text) for text in verdict["notes"]),
    ]  # fmt: skip
    return Section(name="against", title="Who took part, and what they were held against", tables=(_table(("what", "value"), rows),))


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
    return Section(name="environment", title="Versions and environment", tables=(_table(("name", "value"), rows),))


def _repeat(header: RunHeader) -> Section:
    """The same again: the command as it was typed, and its judgement from what is on disk."""
    command = shlex.join(["nccl-bench", *header.argv[1:]])
    return Section(name="repeat", title="To repeat it", commands=(command,))
