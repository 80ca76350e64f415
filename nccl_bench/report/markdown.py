"""A document as Markdown that fits into a pull request: the first fold, the digest, the rest folded away. No pandas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nccl_bench.report.page import SYMBOLS, Cell, Document, Picture, Section, Status, Table

COLORS: dict[Status, str] = {"pass": "🟢", "look": "🟡", "fail": "🔴", "unknown": "⚪"}
MAX_ROWS = 40
"""Rows of a table; a pull request's text ends at 65,536 characters, and the page has all."""
MAX_CHARS = 60_000


def markdown(document: Document, files: Mapping[str, str]) -> str:
    """The text. `files`: by picture's name, the file beside it that shows it; none where pictures are not written."""
    lines = [f"# {_text(document.title)}", ""]
    lines += [f"> **{_text(document.banner)}**", ""] if document.banner else []
    lines += [f"{COLORS[document.status]} **{SYMBOLS[document.status]} {_text(document.sentence)}**", "", _text(document.subtitle), ""]
    lines += ["| | | expected |", "|---|--:|---|"]
    lines += [f"| {_text(number.label)} | **{_text(number.value)}** | {_text(number.expected)} |" for number in document.numbers]
    lines += ["", *_picture(document.picture, files)]
    lines += _listing("Suspects", [f"**{_text(suspect.who)}**: {_text(suspect.evidence)}" for suspect in document.suspects])
    lines += _listing("Missing or in doubt", [_text(item) for item in document.missing])
    lines += _listing("Not tested", [_text(item) for item in document.not_tested])
    for section in document.sections:
        if section.name != "cases":
            lines += _section(section, files)
    lines += [f"> **{_text(document.banner)}**", ""] if document.banner else []
    lines += [f"Made by {_text(document.tool)}. GB/s = 1e9 bytes/s; sizes are the larger buffer of a rank."]
    return _cut("\n".join(lines) + "\n")


def _section(section: Section, files: Mapping[str, str]) -> list[str]:
    body = [line for words in section.words for line in (_text(words), "")]
    body += [line for picture in section.pictures for line in _picture(picture, files)]
    body += [line for table in section.tables for line in _table(table)]
    body += ["```", *(command.replace("```", "'''") for command in section.commands), "```", ""] if section.commands else []
    if not body:
        return []
    if section.name in ("collectives", "runs"):
        return [f"## {_text(section.title)}", "", *body]
    return [f"<details><summary>{_text(section.title)}</summary>", "", *body, "</details>", ""]


def _picture(picture: Picture | None, files: Mapping[str, str]) -> list[str]:
    if picture is None:
        return []
    name = files.get(picture.name)
    shown = [f"![{_text(picture.words)}]({name})", ""] if name else []
    return [*shown, f"*{_text(picture.title)}: {_text(picture.caption)}.{f' {_text(picture.note)}' if picture.note else ''}*", ""]


def _table(table: Table) -> list[str]:
    lines = [_row(table.columns), _row(["--:" if number else "---" for number in table.numbers])]
    lines += [_row([_cell(cell) for cell in row]) for row in table.rows[:MAX_ROWS]]
    more = len(table.rows) - MAX_ROWS
    notes = [table.note, f"{more} rows more are on the page." if more > 0 else "", table.caption]
    return [*lines, "", *(line for note in notes if note for line in (_text(note), ""))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    words = _text(cell.text)
    return f"{COLORS[cell.status]} {words}" if cell.status else words


def _listing(title: str, items: Sequence[str]) -> list[str]:
    return [f"**{title}**", "", *(f"- {item}" for item in items), ""] if items else []


def _text(words: str) -> str:
    """Words that Markdown leaves alone: no markup, no tags, no line breaks, nobody's name called."""
    return re.sub(r"([\\`*|\[\]])", r"\\\1", " ".join(words.split())).replace("<", "&lt;").replace("@", "&#64;")


def _cut(whole: str) -> str:
    """At most MAX_CHARS: the sections that do not fit are left out, from the last."""
    if len(whole) <= MAX_CHARS:
        return whole
    head, *sections = re.split(r"(?=^<details>|^## )", whole, flags=re.MULTILINE)
    kept, size = [head], len(head)
    for section in sections:
        if size + len(section) > MAX_CHARS:
            break
        kept.append(section)
        size += len(section)
    return "".join(kept) + "\nThe rest is on the page.\n"
