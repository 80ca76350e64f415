"""A document as PDF: A4 pages of words, pictures and tables, each page with its banner and number. Part of the home of matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from nccl_bench.report.charts import draw, height_in, settings
from nccl_bench.report.look import FAINT, INK, PAPER, SOFT, WIDTH_IN
from nccl_bench.report.page import SYMBOLS, Document, Picture, Section, Status, Table

PAGE_IN = (8.27, 11.69)
"""A4."""
MARGIN_IN = (PAGE_IN[0] - WIDTH_IN) / 2
TOP_IN, BOTTOM_IN = 0.45, 0.6
MAX_ROWS = 60
"""Rows of a table; the page in HTML has all."""
POINT_IN = 1 / 72
CHAR = 0.58
"""Width of a character of DejaVu Sans over its size, on average."""
COLORS: dict[Status, str] = {"pass": "#00704f", "look": "#8a5a00", "fail": "#b3261e", "unknown": SOFT}
GAP_IN = 0.12


@dataclass(frozen=True, slots=True)
class _Block:
    """Something that stays on one page: its height in inches, and how it is drawn into a figure of that height."""

    height: float
    draw: Callable[[SubFigure, float], None]
    keep: bool = False
    """Whether it must not be the last of a page: a title."""


def pdf(document: Document) -> bytes:
    """The document as a PDF file."""
    pages = _pages(list(_blocks(document)))
    buffer = io.BytesIO()
    with settings(), PdfPages(buffer, metadata={"Title": document.title, "Creator": document.tool, "CreationDate": None}) as file:
        for at, blocks in enumerate(pages):
            file.savefig(_page(document, blocks, at + 1, len(pages)))
    return buffer.getvalue()


def _pages(blocks: Sequence[_Block]) -> list[list[_Block]]:
    room = PAGE_IN[1] - TOP_IN - BOTTOM_IN
    pages: list[list[_Block]] = [[]]
    left = room
    for at, block in enumerate(blocks):
        last = next((later for later in range(at, len(blocks)) if not blocks[later].keep), at)
        needed = min(room, sum(kept.height for kept in blocks[at : last + 1]))
        if needed > left and pages[-1]:
            pages.append([])
            left = room
        pages[-1].append(block)
        left -= block.height
    return pages


def _page(document: Document, blocks: Sequence[_Block], number: int, total: int) -> Figure:
    fig = Figure(figsize=PAGE_IN, facecolor=PAPER)
    used = sum(block.height for block in blocks)
    rest = max(0.01, PAGE_IN[1] - TOP_IN - used)
    heights = [TOP_IN, *(block.height for block in blocks), rest]
    grid = fig.add_gridspec(len(heights), 3, height_ratios=heights, width_ratios=[MARGIN_IN, WIDTH_IN, MARGIN_IN])
    for at, block in enumerate(blocks):
        part = fig.add_subfigure(grid[at + 1, 1])
        part.set_facecolor("none")
        block.draw(part, block.height)
    x = MARGIN_IN / PAGE_IN[0]
    fig.text(1 - x, 0.28 / PAGE_IN[1], f"{number} of {total}", size=7, color=SOFT, ha="right")
    if document.banner:
        fig.text(x, 0.28 / PAGE_IN[1], "\n".join(textwrap.wrap(document.banner, 120)), size=7, color=COLORS["fail"], weight="bold")
    else:
        fig.text(x, 0.28 / PAGE_IN[1], _cut(f"{document.title} · {document.tool}", 100), size=7, color=SOFT)
    return fig


# ---- blocks ----


def _blocks(document: Document) -> Iterator[_Block]:
    if document.banner:
        yield _words(document.banner, 10, weight="bold", color=COLORS["fail"])
    yield _words(document.title, 14, weight="bold")
    yield _words(document.subtitle, 8, color=SOFT)
    yield _words(f"{SYMBOLS[document.status]} {document.sentence}", 11.5, weight="bold", color=COLORS[document.status])
    for number in document.numbers:
        yield _words(f"{number.label}: {number.value}", 9.5, weight="bold", keep=True)
        yield _words(number.expected, 8, color=SOFT)
    if document.picture is not None:
        yield from _pictured(document.picture)
    yield from _listing("Suspects", [f"{suspect.who}: {suspect.evidence}" for suspect in document.suspects])
    yield from _listing("Missing or in doubt", document.missing)
    yield from _listing("Not tested", document.not_tested)
    for section in document.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[_Block]:
    yield _words(section.title, 12, weight="bold", keep=True, above=0.18)
    for words in section.words:
        yield _words(words, 8.5)
    for picture in section.pictures:
        yield from _pictured(picture)
    for table in section.tables:
        yield from _table(table)
    for command in section.commands:
        yield _words(command, 7.5, color=SOFT)


def _listing(title: str, items: Sequence[str]) -> Iterator[_Block]:
    if items:
        yield _words(title, 9, weight="bold", keep=True)
        for item in items:
            yield _words(f"· {item}", 8)


def _pictured(picture: Picture) -> Iterator[_Block]:
    yield _Block(height_in(picture) + GAP_IN, lambda part, height: draw(picture, part, WIDTH_IN, height), keep=bool(picture.note))
    if picture.note:
        yield _words(picture.note, 7.5, color=SOFT)


def _words(text: str, size: float, *, weight: str = "normal", color: str = INK, keep: bool = False, above: float = 0.03) -> _Block:
    """Wrapped words of a size in points."""
    wide = int(WIDTH_IN / (size * POINT_IN * CHAR * (1.1 if weight == "bold" else 1.0)))
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, wide, break_on_hyphens=False) or [""]][:60]
    height = len(lines) * size * POINT_IN * 1.35 + 0.05 + above

    def into(part: SubFigure, height: float) -> None:
        place = 1 - above / height
        part.text(0.01, place, "\n".join(lines), size=size, weight=weight, color=color, va="top", ha="left", linespacing=1.15)

    return _Block(height, into, keep=keep)


def _table(table: Table) -> Iterator[_Block]:
    """A line of the table a block, so that it breaks between pages anywhere; titles first."""
    size = 6.4 if len(table.columns) > 6 else 7.2
    shown = [[cell.text for cell in row] for row in table.rows[:MAX_ROWS]]
    places, widths = _columns(table, shown, size)
    if table.caption:
        yield _words(table.caption, 7, color=SOFT, keep=True)
    yield _line(list(table.columns), table, places, widths, size, weight="bold", keep=True)
    for row in shown:
        yield _line(row, table, places, widths, size)
    left_out = len(table.rows) - len(shown)
    notes = [table.note, f"{left_out} rows more are on the HTML page." if left_out > 0 else ""]
    for note in notes:
        if note:
            yield _words(note, 7, color=SOFT)


def _columns(table: Table, rows: Sequence[Sequence[str]], size: float) -> tuple[list[float], list[int]]:
    """Where columns begin, as fractions of the width, and how many characters each has."""
    longest = [max([len(title), *(len(row[at]) for row in rows)]) for at, title in enumerate(table.columns)]
    room = int(WIDTH_IN / (size * POINT_IN * CHAR)) - 2 * len(longest)
    widths = list(longest)
    while sum(widths) > room and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    whole = room + 2 * len(longest)
    places = [(sum(widths[:at]) + 2 * at) / whole for at in range(len(widths))]
    return places, widths


def _line(
    cells: Sequence[str], table: Table, places: Sequence[float], widths: Sequence[int], size: float, *, weight: str = "normal", keep: bool = False
) -> _Block:
    height = size * POINT_IN * 1.55
    whole = int(WIDTH_IN / (size * POINT_IN * CHAR))

    def into(part: SubFigure, _: float) -> None:
        for at, text in enumerate(cells):
            right = table.numbers[at]
            x = places[at] + (widths[at] / whole if right else 0.0)
            part.text(0.01 + 0.98 * x, 0.5, _cut(text, widths[at]), size=size, weight=weight, va="center", ha="right" if right else "left")
        if weight == "bold":
            part.add_artist(_rule())

    return _Block(height, into, keep=keep)


def _rule() -> Line2D:
    return Line2D([0.01, 0.99], [0.02, 0.02], color=FAINT, linewidth=0.6)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(1, most - 1)]}…"
