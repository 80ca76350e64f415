"""A document in a terminal: the sentence, the three numbers, a plain chart, a line of blocks for each curve, what to look at. No pandas."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from nccl_bench.report.curves import Curve, View
from nccl_bench.report.look import rate
from nccl_bench.report.page import SYMBOLS, Document, Line, Picture, Status
from nccl_bench.report.pictures import opening
from nccl_bench.report.tables import against
from nccl_bench.units import format_GBps, format_size, format_us

WIDTH = 100
"""Columns of a page."""
BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.:-=+*#"
"""Where the terminal has no blocks."""
HEIGHT = 8
"""Lines of the chart."""
SPARK = 16
"""Characters of a line of blocks."""
MAX_ROWS = 16
CODES: dict[Status, str] = {"pass": "32;1", "look": "33;1", "fail": "31;1", "unknown": "1"}


def lines(document: Document, views: Sequence[View], *, color: bool = False, blocks: bool = True) -> list[str]:
    """The story, line by line. `blocks`: whether the terminal shows block characters."""
    ink = BLOCKS if blocks else PLAIN
    found = [document.banner] if document.banner else []
    found += [document.title, *_wrapped(document.subtitle, "  "), ""]
    mark = SYMBOLS[document.status] if blocks else {"✓": "+", "✗": "x"}.get(SYMBOLS[document.status], SYMBOLS[document.status])
    told = _wrapped(document.sentence, "  ", first=f"{mark} ")
    found += [_painted(line, CODES[document.status], color) for line in told]
    found.append("")
    for number in document.numbers:
        found += [f"  {number.label}: {_painted(number.value, '1', color)}", *_wrapped(number.expected, "      ")]
    found += _chart(document.picture, ink)
    found += _rows(views, ink)
    found += _listed("suspects", [f"{suspect.who}: {suspect.evidence}" for suspect in document.suspects])
    found += _listed("missing or in doubt", document.missing)
    found += _listed("not tested", document.not_tested)
    found += [document.banner] if document.banner else []
    return found


def _wrapped(text: str, indent: str, *, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _painted(text: str, code: str, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, *(line for item in items for line in _wrapped(item, "    ", first="  - "))] if items else []


# ---- the chart ----


def _chart(picture: Picture | None, ink: str) -> list[str]:
    """The main line of the first picture as columns, one a size, on a linear axis from 0."""
    if picture is None or not picture.parts or not picture.parts[0].lines:
        return []
    plot = picture.parts[0]
    line = next((line for line in plot.lines if line.tone == "main"), plot.lines[0])
    wide = min(6, max(2, (WIDTH - 14) // max(1, len(line.x))))
    every = -(-len(line.x) // ((WIDTH - 14) // wide))
    xs, ys = line.x[::-1][::every][::-1], line.y[::-1][::every][::-1]
    top = max(ys) or 1.0
    level = next((mark.y for mark in plot.marks if mark.kind != "limit"), None)
    if level is not None:
        top = max(top, level * 1.02)
    rows = [_chart_row(ys, top, row, wide, level, ink) for row in range(HEIGHT - 1, -1, -1)]
    found = ["", f"  {line.label or picture.title}: {plot.y_label}, by size"]
    for at, row in enumerate(rows):
        tick = rate(top) if at == 0 else rate(top / 2) if at == HEIGHT // 2 else ""
        found.append(f"{tick:>10} {row}".rstrip())
    found.append(f"{'':>11}{_ticks(xs, wide)}".rstrip())
    words = next((mark.words for mark in plot.marks if mark.kind != "limit"), "")
    limit = next((mark.words for mark in plot.marks if mark.kind == "limit"), "")
    return [*found, *([f"{'':>11}{'--'} {words}"] if words else []), *([f"{'':>14}{limit}"] if limit else [])]


def _chart_row(ys: Sequence[float], top: float, row: int, wide: int, level: float | None, ink: str) -> str:
    steps = len(ink)
    dotted = level is not None and row == int(min(level / top, 0.999) * HEIGHT)
    cells = []
    for y in ys:
        filled = round(y / top * HEIGHT * steps) - row * steps
        blank = "-" if dotted else " "
        block = ink[-1] if filled >= steps else ink[filled - 1] if filled > 0 else blank
        cells.append(block * (wide - 1) + blank)
    return "".join(cells)


def _ticks(xs: Sequence[float], wide: int) -> str:
    """Sizes under their columns, as many as fit."""
    text = ""
    for at, x in enumerate(xs):
        if len(text) <= at * wide:
            text = f"{text:<{at * wide}}{format_size(round(x))} "
    return text


# ---- one line a curve ----


def _rows(views: Sequence[View], ink: str) -> list[str]:
    owned, labels = opening(views)
    if not owned:
        return []
    order = sorted(range(len(owned)), key=lambda at: owned[at][1].largest.busbw_GBps or 0.0) if len(owned) > MAX_ROWS else range(len(owned))
    shown = list(order)[:MAX_ROWS]
    wide = max(len(labels[at]) for at in shown)
    head = f"  {'':<{wide}}  {'by size':<{SPARK}}  {'smallest':>16}  {'largest':>18}  {'expected':>10}  {'share':>5}"
    found = ["", head.rstrip(), *(_row(owned[at][0], owned[at][1], labels[at], wide, ink) for at in shown)]
    return [*found, f"  and {len(owned) - len(shown)} more, all faster: the page has them"] if len(owned) > len(shown) else found


def _row(view: View, curve: Curve, label: str, wide: int, ink: str) -> str:
    first, last = curve.samples[0], curve.largest
    small = f"{format_us(first.time_us)} at {format_size(first.nbytes)}"
    large = f"{format_GBps(last.busbw_GBps)} at {format_size(last.nbytes)}"
    expected, share = against(curve, last, view)
    return f"  {label:<{wide}}  {spark(curve, ink):<{SPARK}}  {small:>16}  {large:>18}  {expected.text:>10}  {share.text:>5}"


def spark(curve: Curve, ink: str) -> str:
    """Bus bandwidth from the smallest size to the largest, linear from 0 to the peak, in at most SPARK characters."""
    line = Line(label="", x=(), y=tuple(sample.busbw_GBps or 0.0 for sample in curve.samples))
    ys = [line.y[round(at * (len(line.y) - 1) / (SPARK - 1))] for at in range(SPARK)] if len(line.y) > SPARK else list(line.y)
    top = max(ys, default=0.0)
    return "".join(ink[min(len(ink) - 1, int(y / top * len(ink)))] for y in ys) if top > 0 else ""
