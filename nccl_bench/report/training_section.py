"""The report's section on what training pays: plan.json and search.json that lie in a run (written by plan --json and search --json)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from nccl_bench.report.page import Cell, Section, Table
from nccl_bench.report.pictures_layouts import layouts_picture
from nccl_bench.units import format_percent, format_us, short_or_exact

PLAN_FILE, SEARCH_FILE = "plan.json", "search.json"
MAX_ROWS = 40
MAX_NBYTES = 64 << 20
Document = Mapping[str, Any]


def training_section(folder: Path, label: str = "", at: int = 0) -> Section | None:
    """The section of a run directory; None where it holds neither file, or files that are none of ours. `label`, `at`: of one of several runs."""
    plan, layouts = _read(folder / PLAN_FILE), _read(folder / SEARCH_FILE)
    try:
        plans = [plan] if isinstance(plan, dict) else []
        rows = [row for row in layouts if isinstance(row, dict)] if isinstance(layouts, list) else []
        if not plans and not rows:
            return None
        words = tuple(word for document in plans for word in _words(document))
        tables = (*(_calls(document) for document in plans), *([_layouts(rows)] if rows else []))
        picture = layouts_picture(rows)
        end = f"-{at + 1}" if label else ""
        shown = () if picture is None else (replace(picture, name=f"{picture.name}{end}"),)
        title = "What training pays" + (f": {label}" if label else "")
        return Section(name=f"training{end}", title=title, words=words, tables=tables, pictures=shown)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read(path: Path) -> object:
    try:
        return orjson.loads(path.read_bytes()) if path.stat().st_size <= MAX_NBYTES else None
    except (OSError, orjson.JSONDecodeError):
        return None


def _words(document: Document) -> list[str]:
    layout, step, shares = document["layout"], document["step_s"], document["shares"]
    start = f"{document['model']} on {layout['world']} GPUs, {layout['text']}"
    memory = document["memory"]
    fits = [f"Memory: {memory['verdict'] or 'verdict unknown'}, {memory['nbytes'] / 1e9:.1f} GB on the heaviest stage."]
    if step is None or shares is None:
        return [f"{start}: no step time. What is sent is listed below.", *fits]
    span = f"{_seconds(step['mid'])} a step ({_seconds(step['low'])} to {_seconds(step['high'])})"
    parts = ", ".join(f"{name} {format_percent(shares[name])} %" for name in ("compute", "bubble", "exposed", "other"))
    hidden = f"hidden beside compute {format_percent(shares['hidden'])} %"
    lines = [f"{start}: {span}, priced by what was {document['priced_by']}. Of it {parts}; {hidden}."]
    tokens, mfu, cost = document["tokens_per_s_per_gpu"], document["mfu_frac"], document["cost"]
    rates = [f"{tokens:.4g} tokens/s a GPU"] if tokens is not None else []
    rates += [f"MFU {format_percent(mfu)} % ({document['flop_basis']})"] if mfu is not None else []
    if cost:
        money = cost["money_waiting_per_day"]
        rates += [f"{cost['gpu_hours_waiting_per_day']:.0f} GPU-hours a day wait" + (f", {money:.0f} in money" if money is not None else "")]
    lines += [f"{'; '.join(rates)}."] if rates else []
    ifs = [f"{row['what']}: {format_percent(row['saves_frac'])} % less" for row in document.get("what_if") or ()]
    lines += [f"What would pay: {'; '.join(ifs)}."] if ifs else []
    change = document.get("best_change")
    if change:
        fit = {"tight": ", but its memory is tight: it may run out", None: ""}.get(change["memory"], f" ({change['memory']})")
        lines.append(f"The layout next to it that saves most: {change['layout']['text']}, {format_percent(change['saves_frac'])} % less{fit}.")
    return [*lines, *fits]


def _calls(document: Document) -> Table:
    def total(call: Document) -> float:
        return float(call["price_us"] or 0.0) * float(call["count"])

    calls = sorted(document["calls"], key=total, reverse=True)
    rows = tuple(
        (
            Cell(text=str(call["kind"])),
            Cell(text=f"{call['collective']} over {call['axis']}"),
            _number(call["nbytes"], lambda value: short_or_exact(int(value))),
            _number(call["count"], lambda value: f"{value:.0f}"),
            _number(call["price_us"], format_us),
            _number(None if call["price_us"] is None else total(call), format_us),
            _number(call["exposed_us"], format_us),
            Cell(text=f"{call['why']}{', extrapolated' if call.get('extrapolated') else ''}"),
        )
        for call in calls[:MAX_ROWS]
    )
    left = f"{len(calls) - MAX_ROWS} smaller ones are in {PLAN_FILE}" if len(calls) > MAX_ROWS else ""
    columns = ("kind", "collective", "bytes", "calls a step", "a call", "total", "exposed", "why")
    return Table(columns=columns, numbers=(False, False, True, True, True, True, True, False), rows=rows, caption="The bill of one step", note=left)


def _layouts(documents: Sequence[Document]) -> Table:
    rows = []
    for row in documents[:MAX_ROWS]:
        step, shares = row["step_s"], row["shares"]
        if step is None or shares is None:
            continue
        parts = [_number(shares[name], lambda value: f"{format_percent(value)} %") for name in ("compute", "bubble", "exposed")]
        used = float(row["memory"]["nbytes"])
        memory = Cell(text=f"{row['memory']['verdict'] or '-'}, {used / 1e9:.0f} GB", value=used)
        tie = Cell(text=str(row["tie_group"]), value=float(row["tie_group"]))
        span = f"{_seconds(step['low'])} to {_seconds(step['high'])}"
        rows.append((tie, Cell(text=str(row["layout"]["text"])), _number(step["mid"], _seconds), Cell(text=span), *parts, memory))
    guess = "not measured: priced by what healthy systems of this kind reach; the order is only a hint"
    note = "" if documents[0].get("priced_by") == "measured" else guess
    columns = ("tie group", "layout", "a step", "range", "compute", "bubble", "exposed", "memory")
    numbers = (True, False, True, False, True, True, True, False)
    return Table(columns=columns, numbers=numbers, rows=tuple(rows), caption="Layouts, best first, those with tight memory last", note=note)


def _number(value: Any, words: Callable[[float], str]) -> Cell:
    return Cell(text="-") if value is None else Cell(text=words(float(value)), value=float(value))


def _seconds(value: float) -> str:
    return format_us(float(value) * 1e6)
