"""A document as one self-contained page: no network, no library, printable, light and dark; tables sort and filter."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

import jinja2
from markupsafe import Markup

from nccl_bench.report.page import SYMBOLS, WORDS, Cell, Document

_FOLDER = files("nccl_bench.report") / "templates"


def html(document: Document, drawn: Mapping[str, str]) -> str:
    """The page. `drawn`: by picture's name, its SVG as `charts.inline` gives it."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    template = environment.from_string((_FOLDER / "report.html.j2").read_text("utf-8"))
    return template.render(
        doc=document,
        drawn={name: Markup(svg) for name, svg in drawn.items()},
        css=Markup((_FOLDER / "report.css").read_text("utf-8")),
        js=Markup((_FOLDER / "report.js").read_text("utf-8")),
        symbols=SYMBOLS,
        words=WORDS,
        attributes=_attributes,
        short_banner=(document.banner or "").partition(":")[0],
    )


_WHOLE = ("run", "collective", "host", "started", "fact")
"""Columns of names, which are not broken into lines."""


def _attributes(cell: Cell, column: str, is_number: bool) -> Markup:
    """The attributes of a cell: right-aligned, what it sorts by, its colour."""
    kind = "n" if is_number else "k" if column in _WHOLE and len(cell.text) < 48 else "w" if len(cell.text) > 40 else ""
    names = " ".join(name for name in (kind, cell.status or "") if name)
    named = f' class="{names}"' if names else ""
    value = "" if cell.value is None else f' data-v="{cell.value:.10g}"'
    return Markup(named + value)
