"""Pictures as matplotlib figures, and those as SVG and PNG. The home of matplotlib; Figure objects only, never pyplot's state."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from nccl_bench.report import charts_other
from nccl_bench.report.look import (
    BAND,
    DPI,
    FAINT,
    GAP_IN,
    GRID,
    HEIGHT_IN,
    MARK_IN,
    PALETTE,
    PANEL_IN,
    PAPER,
    RC,
    SOFT,
    TEXT_IN,
    VARIABLES,
    WIDTH_IN,
)
from nccl_bench.report.page import Line, Mark, Picture, Plot
from nccl_bench.units import format_size

AnyFigure = Figure | SubFigure


@contextmanager
def settings() -> Iterator[None]:
    """Our own look, whatever a user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, RC))
        yield


def height_in(picture: Picture) -> float:
    """Height of a picture that is WIDTH_IN wide, inches."""
    if len(picture.parts) > 1:
        return head_in(picture) + PANEL_IN * math.ceil(len(picture.parts) / 2)
    return charts_other.height_in(picture.other) + head_in(picture) if picture.other is not None else HEIGHT_IN


def figure(picture: Picture) -> Figure:
    """The picture as a figure of its own."""
    fig = Figure(figsize=(WIDTH_IN, height_in(picture)), dpi=DPI, facecolor=PAPER)
    draw(picture, fig, WIDTH_IN, height_in(picture))
    return fig


def png(picture: Picture) -> bytes:
    """The picture as PNG."""
    with settings():
        buffer = io.BytesIO()
        figure(picture).savefig(buffer, format="png", metadata={"Software": None, "Title": picture.title})
        return buffer.getvalue()


def svg(picture: Picture) -> str:
    """The picture as an SVG file: text stays text, and equal pictures are equal files."""
    with settings():
        buffer = io.StringIO()
        figure(picture).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": picture.title})
        return buffer.getvalue().replace("'DejaVu Sans'", FONTS)


FONTS = "'DejaVu Sans', Verdana, sans-serif"
"""Where DejaVu Sans is not installed: Verdana is as wide."""
_NAMED = re.compile(r' id="([^"]*)"')
_USED = re.compile(r'(?:url\(#|xlink:href="#)([^")]*)')


def inline(file: str, picture: Picture) -> str:
    """An SVG file as a part of a page: colours by the page's variables, names that no other picture has, its words for screen readers."""
    body = file[file.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    used = set(_USED.findall(body))
    body = _NAMED.sub(lambda match: f' id="{picture.name}-{match[1]}"' if match[1] in used else "", body)
    body = _USED.sub(lambda match: match[0].replace("#", f"#{picture.name}-", 1), body)
    body = body.replace(FONTS, "var(--font)")
    body = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", body)
    for color, variable in VARIABLES.items():
        body = body.replace(color, f"var({variable})")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', body)
    box = f'viewBox="0 0 {size[1]} {size[2]}"' if size else ""
    head = f'<svg {box} role="img" aria-label="{_attribute(picture.words)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"<svg[^>]*>", lambda _: head, body, count=1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


# ---- a picture ----


def head_in(picture: Picture) -> float:
    """Height of title and caption, inches."""
    return 0.42 + 0.15 * len(_caption(picture))


def _caption(picture: Picture) -> list[str]:
    return textwrap.wrap(picture.caption, 124, break_on_hyphens=False)


def draw(picture: Picture, fig: AnyFigure, width: float, height: float) -> None:
    """Draw title, caption and content into a figure of this size (inches)."""
    fig.text(0.12 / width, 1 - 0.08 / height, picture.title, va="top", ha="left", size=10.5, weight="bold")
    fig.text(0.12 / width, 1 - 0.29 / height, "\n".join(_caption(picture)), va="top", ha="left", size=7.2, color=SOFT, linespacing=1.3)
    top = 1 - head_in(picture) / height
    if picture.other is not None:
        charts_other.draw(picture.other, fig, width, height, top)
    elif len(picture.parts) == 1:
        _plot(picture.parts[0], fig, (0.0, 0.0, 1.0, top), width, height)
    else:
        rows = math.ceil(len(picture.parts) / 2)
        for at, part in enumerate(picture.parts):
            row, column = divmod(at, 2)
            box = (column / 2, top * (1 - (row + 1) / rows), 0.5, top / rows)
            _plot(part, fig, box, width, height)


Box = tuple[float, float, float, float]
"""(left, bottom, width, height) as fractions of the figure."""


def _plot(plot: Plot, fig: AnyFigure, box: Box, width: float, height: float) -> None:
    longest = max((len(line.label) for line in plot.lines), default=0)
    left, right = (0.72 if plot.y_log else 0.6) / width, (0.24 + TEXT_IN * min(longest, 30)) / width
    bottom, above = 0.46 / height, (0.2 if plot.heading else 0.06) / height
    size = (box[2] - left - right, box[3] - bottom - above)
    ax = fig.add_axes((box[0] + left, box[1] + bottom, *size))
    if plot.heading:
        ax.set_title(plot.heading, size=8.8, weight="bold", loc="left", pad=4)
    _frame(ax)
    _axes(ax, plot, wide=box[2] > 0.6)
    low, high = ax.get_ylim()
    for mark in plot.marks:
        close = any(0 < other.y - mark.y < MARK_IN / (size[1] * height) * (high - low) for other in plot.marks)
        _mark(ax, mark, below=close or mark.high is not None)
    colors = _colors(plot.lines)
    for line, color in zip(plot.lines, colors, strict=True):
        _line(ax, line, color, plot)
    _labels(ax, plot, colors, size[1] * height)


def _frame(ax: Axes) -> None:
    ax.set_facecolor("none")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(length=2.5, width=0.7, labelsize=7.6)


def _colors(lines: Sequence[Line]) -> list[str]:
    """Grey for the many; of the others the colour asked for, else the next."""
    taken = {line.color for line in lines if line.color is not None and line.tone != "faint"}
    free = [at for at in range(len(PALETTE)) if at not in taken]
    colors = []
    for line in lines:
        if line.tone == "faint":
            colors.append(FAINT)
        else:
            number = line.color if line.color is not None else free.pop(0) if free else 0
            colors.append(PALETTE[number % len(PALETTE)])
    return colors


# ---- axes ----


def _axes(ax: Axes, plot: Plot, *, wide: bool) -> None:
    xs = [x for line in plot.lines for x in line.x]
    _x_axis(ax, plot, min(xs, default=1.0), max(xs, default=2.0), 8 if wide else 5)
    ax.set_xlabel(plot.x_label, size=8, labelpad=3)
    ax.set_ylabel(plot.y_label, size=8, labelpad=4)
    low, high = _y_limits(plot)
    if plot.y_log:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=12))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_formatter(FuncFormatter(_y_text(plot)))
    ax.set_ylim(low, high)


def _y_text(plot: Plot) -> Callable[[float, int], str]:
    if plot.y_label.endswith("(µs)"):
        return lambda value, _: _time_text(value)
    if "%" in plot.y_label:
        return lambda value, _: f"{100 * value:.0f}"
    return lambda value, _: f"{value:g}"


def _time_text(us: float) -> str:
    for scale, unit in ((1.0, "µs"), (1e3, "ms"), (1e6, "s")):
        if us < 1000 * scale or unit == "s":
            return f"{us / scale:g} {unit}"
    return f"{us:g}"


def _x_axis(ax: Axes, plot: Plot, low: float, high: float, most: int) -> None:
    if plot.x_axis in ("size", "ranks", "nodes"):
        ax.set_xscale("log", base=2)
        ticks = _size_ticks(low, high, most) if plot.x_axis == "size" else sorted({x for line in plot.lines for x in line.x})
        ax.xaxis.set_major_locator(FixedLocator(_spread_out(ticks, most)))
        ax.xaxis.set_minor_locator(NullLocator())
        words = (lambda value, _: format_size(round(value))) if plot.x_axis == "size" else (lambda value, _: f"{value:g}")
        ax.xaxis.set_major_formatter(FuncFormatter(words))
        pad = (high / low) ** 0.02 if high > low else 1.5
        ax.set_xlim(low / pad, high * pad)
        return
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=plot.x_axis == "pass"))
    room = 0.02 * (high - low) or 0.5
    ax.set_xlim(low - room, high + room)


def _size_ticks(low: float, high: float, most: int) -> list[float]:
    """At most so many powers of two between the ends, equally far apart."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = next(step for step in (1, 2, 3, 5, 10, 20, 50) if (last - first) // step < most)
    return [2.0**power for power in range(first, last + 1) if (power - first) % step == 0] or [low]


def _spread_out(ticks: Sequence[float], most: int) -> list[float]:
    """Ticks of a logarithmic axis that are far enough apart to be read."""
    if len(ticks) < 2:
        return list(ticks)
    least = math.log(ticks[-1] / ticks[0]) / (1.5 * most)
    kept = [ticks[0]]
    for tick in ticks[1:]:
        if math.log(tick / kept[-1]) >= least:
            kept.append(tick)
    return kept


def _y_limits(plot: Plot) -> tuple[float, float]:
    ys = [y for line in plot.lines for y in (*line.y, *line.low, *line.high) if y is not None and math.isfinite(y)]
    if plot.y_log:
        ys = [y for y in ys if y > 0]
        return (min(ys, default=1.0) / 1.6, max(ys, default=10.0) * 1.6)
    high = max([*ys, *(mark.high or mark.y for mark in plot.marks)], default=1.0)
    low = plot.y_from if plot.y_from is not None else min(ys, default=0.0)
    top = plot.y_to if plot.y_to is not None else high + 0.1 * (high - low or 1.0)
    if plot.y_from is None:
        low -= 0.1 * (high - low or 1.0)
    return low, max(top, low + 1e-9)


# ---- what is drawn ----


def _mark(ax: Axes, mark: Mark, *, below: bool) -> None:
    """A line or band across, its words above it or, where others are there, below."""
    if mark.high is not None:
        ax.axhspan(mark.y, mark.high, color=BAND, linewidth=0, zorder=0.5)
    else:
        style = "-" if mark.kind == "limit" else (0, (4, 3))
        ax.axhline(mark.y, color=FAINT if mark.kind == "limit" else SOFT, linewidth=0.9, linestyle=style, zorder=1)
    where = "top" if below else "bottom"
    ax.text(0.012, mark.y, mark.words, transform=ax.get_yaxis_transform(), va=where, ha="left", size=7, color=SOFT, zorder=4)


def _line(ax: Axes, line: Line, color: str, plot: Plot) -> None:
    main = line.tone == "main"
    width = 1.9 if main else 1.2 if line.tone == "other" else 0.8
    if line.low and line.tone != "faint":
        low, high = ([math.nan if y is None else y for y in ys] for ys in (line.low, line.high))
        ax.fill_between(line.x, low, high, color=color, alpha=0.22, linewidth=0, zorder=2)
    marker = "o" if len(line.x) <= 40 and line.tone != "faint" else None
    ys = [math.nan if plot.y_log and y <= 0 else y for y in line.y]
    dash = (0, (4, 2)) if line.dashed else "-"
    ax.plot(line.x, ys, color=color, linewidth=width, linestyle=dash, marker=marker, markersize=2.6, zorder=3 if main else 2.5)


def _labels(ax: Axes, plot: Plot, colors: Sequence[str], height: float) -> None:
    """The name of each line beside its end, moved apart where they would meet; `height` of the axes in inches."""
    ends = [(_place(ax, plot, line), line, color) for line, color in zip(plot.lines, colors, strict=True) if line.label and line.x]
    ends.sort(key=lambda end: end[0])
    spots = apart([end[0] for end in ends], GAP_IN / height)
    (_, right), log_x = ax.get_xlim(), ax.get_xscale() == "log"
    for (place, line, color), spot in zip(ends, spots, strict=True):
        low, high = ax.get_xlim()
        at = math.log(line.x[-1] / low) / math.log(right / low) if log_x else (line.x[-1] - low) / (high - low)
        ax.plot([at, 1.015, 1.03], [place, spot, spot], transform=ax.transAxes, color=color, linewidth=0.7, clip_on=False, zorder=2)
        weight = "bold" if line.tone == "main" and len(ends) > 1 and any(other.tone != "main" for _, other, _ in ends) else "normal"
        label = line.label if len(line.label) <= 30 else f"{line.label[:29]}…"
        ax.text(1.04, spot, label, transform=ax.transAxes, va="center", ha="left", size=8, weight=weight, clip_on=False)


def _place(ax: Axes, plot: Plot, line: Line) -> float:
    """Where a line ends, as a fraction of the axes' height."""
    low, high = ax.get_ylim()
    y = line.y[-1]
    if plot.y_log:
        return math.log(max(y, low) / low) / math.log(high / low)
    return (y - low) / (high - low)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Sorted places moved so that neighbours are `gap` apart, as little as need be, within 0 and 1 where they fit."""
    spots = list(places)
    for _ in range(50):
        moved = False
        for at in range(1, len(spots)):
            short = gap - (spots[at] - spots[at - 1])
            if short > 1e-6:
                spots[at - 1] -= short / 2
                spots[at] += short / 2
                moved = True
        if spots and spots[0] < 0:
            spots = [spot - spots[0] for spot in spots]
        elif spots and spots[-1] > 1 and spots[-1] - spots[0] <= 1:
            spots = [spot - (spots[-1] - 1) for spot in spots]
        if not moved:
            break
    return spots
