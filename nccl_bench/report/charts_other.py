"""Pictures that are no plots: heat maps, dots, the fabric. Part of the home of matplotlib."""

from __future__ import annotations

import math
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING

from nccl_bench.report import charts_layouts
from nccl_bench.report.look import BAND, FAINT, GRID, INK, PALETTE, PAPER, SOFT, TEXT_IN, rate
from nccl_bench.report.page import Bars, Dots, Fabric, FabricNode, Heat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    AnyFigure = Figure | SubFigure

ROW_IN = 0.24
"""Height of a row of a heat map or of dots, inches."""
NODE_IN = 1.75
MAX_TEXTS = 900
"""Cells of a heat map that are written as numbers too."""
STEPS = 32
"""Colours of the bar that explains them."""
MAX_GPUS = 16
"""Boxes in a row; more GPUs of a node are said in words."""


def height_in(other: Heat | Dots | Bars | Fabric) -> float:
    """Height without title and caption, inches."""
    match other:
        case Heat():
            return 0.95 + ROW_IN * max(1, len(other.rows))
        case Dots():
            return 0.55 + ROW_IN * max(1, len(other.names))
        case Bars():
            return charts_layouts.height_in(other)
        case Fabric():
            return NODE_IN * len(other.nodes) + 0.1


def draw(other: Heat | Dots | Bars | Fabric, fig: AnyFigure, width: float, height: float, top: float) -> None:
    """Draw below `top` (a fraction of the height) of a figure of this size, inches."""
    match other:
        case Heat():
            _heat(other, fig, width, height, top)
        case Dots():
            _dots(other, fig, width, height, top)
        case Bars():
            charts_layouts.bars(other, fig, width, height, top)
        case Fabric():
            _fabric(other, fig, width, height, top)


def _short(text: str, most: int = 26) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _heat(heat: Heat, fig: AnyFigure, width: float, height: float, top: float) -> None:
    left = (0.3 + TEXT_IN * max((len(_short(row)) for row in heat.rows), default=4)) / width
    bottom, right = 0.62 / height, 0.75 / width
    ax = fig.add_axes((left, bottom, 1 - left - right, top - bottom - 0.05 / height))
    values = [[math.nan if value is None else value for value in row] for row in heat.values]
    ax.set_facecolor("none")
    ax.pcolormesh(values, cmap="cividis", vmin=heat.low, vmax=heat.high, edgecolors=PAPER, linewidth=0.8)
    ax.invert_yaxis()
    ax.set_yticks([at + 0.5 for at in range(len(heat.rows))], [_short(row) for row in heat.rows], size=7.8, color=INK)
    step = max(1, math.ceil(len(heat.columns) / 32))
    ticks = range(0, len(heat.columns), step)
    ax.set_xticks([at + 0.5 for at in ticks], [_short(heat.columns[at], 14) for at in ticks], size=7, rotation=60, ha="right", rotation_mode="anchor")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if len(heat.rows) * len(heat.columns) <= MAX_TEXTS and len(heat.columns) <= 36:
        _numbers(ax, heat)
    _scale(fig.add_axes((1 - right + 0.12 / width, bottom, 0.1 / width, top - bottom - 0.05 / height)), heat)


def _scale(ax: Axes, heat: Heat) -> None:
    """What the colours mean: a bar of steps, since a smooth one would be an image inside the drawing."""
    low, high = heat.low, heat.high
    edges = [low + (high - low) * at / STEPS for at in range(STEPS + 1)]
    middles = [[(lower + upper) / 2] for lower, upper in pairwise(edges)]
    ax.pcolormesh([0, 1], edges, middles, cmap="cividis", vmin=low, vmax=high)
    ax.spines[:].set_visible(False)
    ax.set_xticks([])
    ax.yaxis.tick_right()
    ends = [low, (low + high) / 2, high]
    ax.set_yticks(ends, [f"{100 * end:.0f} %" if heat.percent else f"{end:.3g}" for end in ends], size=7, color=SOFT)
    ax.tick_params(length=0)
    ax.set_title(heat.label, size=6.8, color=SOFT, loc="left", pad=4)


def _numbers(ax: Axes, heat: Heat) -> None:
    size = 6.6 if len(heat.columns) <= 24 else 5.4
    for y, row in enumerate(heat.values):
        for x, value in enumerate(row):
            if value is None:
                ax.text(x + 0.5, y + 0.5, "·", ha="center", va="center", size=size, color="#8a939c")
                continue
            share = (value - heat.low) / (heat.high - heat.low or 1.0)
            text = f"{100 * value:.0f}" if heat.percent else f"{value:.3g}"
            # cividis is dark below and bright above: numbers stand against either.
            ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", size=size, color="#ffffff" if share < 0.55 else "#111111")


def _dots(dots: Dots, fig: AnyFigure, width: float, height: float, top: float) -> None:
    left = (0.3 + TEXT_IN * max((len(_short(name, 34)) for name in dots.names), default=4)) / width
    bottom = 0.46 / height
    ax = fig.add_axes((left, bottom, 1 - left - 0.6 / width, top - bottom))
    ax.set_facecolor("none")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(visible=True, axis="x", color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    most = max([*dots.values, dots.median or 0.0, *(band[1] for band in dots.bands if band is not None)], default=1.0) or 1.0
    for at, band in enumerate(dots.bands):
        if band is not None:
            # A band of no width is a line: one number that is asked for.
            ax.barh(at, max(band[1] - band[0], 0.004 * most), left=band[0], height=0.62, color=BAND, linewidth=0, zorder=0.5)
    marked = dots.marked or (False,) * len(dots.values)
    for at, (value, special) in enumerate(zip(dots.values, marked, strict=True)):
        color = PALETTE[1] if special else PALETTE[0]
        ax.plot([0, value], [at, at], color=color, linewidth=1.2, alpha=0.45)
        ax.plot([value], [at], color=color, marker="D" if special else "o", markersize=4.5)
        ax.text(value + 0.012 * most, at, rate(value), va="center", ha="left", size=7.2, color=INK)
    if dots.median is not None:
        ax.axvline(dots.median, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.text(dots.median, -0.55, " median", va="center", ha="left", size=6.8, color=SOFT)
    ax.set_yticks(range(len(dots.names)), [_short(name, 34) for name in dots.names], size=7.6, color=INK)
    ax.set_ylim(len(dots.names) - 0.3, -0.7)
    ax.set_xlim(0, most * 1.1)
    ax.set_xlabel(dots.label, size=8, labelpad=3)
    ax.tick_params(length=2.5, width=0.7, labelsize=7.4, color=FAINT)
    ax.tick_params(axis="y", length=0)


# ---- the fabric ----


def _fabric(fabric: Fabric, fig: AnyFigure, width: float, height: float, top: float) -> None:
    share = top / max(1, len(fabric.nodes))
    for at, node in enumerate(fabric.nodes):
        ax = fig.add_axes((0.12 / width, top - (at + 1) * share + 0.04 / height, 1 - 0.24 / width, share - 0.08 / height))
        ax.set_facecolor("none")
        ax.set_axis_off()
        ax.set_xlim(0, 100)
        ax.set_ylim(0, 40)
        _node(ax, node)


def _node(ax: Axes, node: FabricNode) -> None:
    _box(ax, 0.3, 0.5, 99.4, 39, FAINT)
    ax.text(1.6, 37.2, node.heading, va="top", ha="left", size=8, weight="bold", color=INK)
    gpus = node.gpus[:MAX_GPUS]
    left_out = len(node.gpus) - len(gpus)
    room = 97.0 / max(1, len(gpus))
    centres = [1.5 + room * (at + 0.5) for at in range(len(gpus))]
    if node.switch and gpus:
        _box(ax, 1.8, 25.4, 96.4, 4.6, PALETTE[2])
        for centre in centres:
            ax.plot([centre, centre], [22.0, 25.4], color=PALETTE[2], linewidth=1.6)
    for first, second, links in node.bonds:
        if first < second < len(centres):
            lift = 24.0 + 5.0 * (second - first) / max(1, len(centres) - 1)
            ends = [centres[first], centres[first], centres[second], centres[second]]
            ax.plot(ends, [22.0, lift, lift, 22.0], color=PALETTE[2], linewidth=0.5 + 0.25 * links)
    words = f"{node.joined}{f'; and {left_out} GPUs more' if left_out else ''}"
    ax.text(50, 27.7 if node.switch else 31.2, words, va="center", ha="center", size=7, color=INK if node.switch else SOFT)
    for centre, name in zip(centres, gpus, strict=True):
        wide = min(room * 0.82, 11)
        _box(ax, centre - wide / 2, 15.5, wide, 6.5, PALETTE[0])
        ax.text(centre, 18.7, _short(name, 12), va="center", ha="center", size=6.4 if len(gpus) <= 8 else 5.2, color=INK)
    _nics(ax, node, centres)


def _nics(ax: Axes, node: FabricNode, centres: list[float]) -> None:
    if not node.nics:
        ax.text(50, 6, "NICs: none known", va="center", ha="center", size=7, color=SOFT)
        return
    nics = node.nics[:MAX_GPUS]
    room = 97.0 / len(nics)
    for at, (name, serves) in enumerate(nics):
        centre = 1.5 + room * (at + 0.5)
        for gpu in serves or ():
            if gpu < len(centres):
                ax.plot([centre, centres[gpu]], [8.6, 15.5], color=PALETTE[1], linewidth=0.8, alpha=0.7)
        wide = min(room * 0.86, 14)
        _box(ax, centre - wide / 2, 2.0, wide, 6.6, PALETTE[1])
        lines = "\n".join(textwrap.wrap(name, max(6, int(wide * 1.15)))[:2])
        ax.text(centre, 5.3, lines, va="center", ha="center", size=5.6 if len(nics) > 6 else 6.4, color=INK, linespacing=1.05)


def _box(ax: Axes, x: float, y: float, wide: float, tall: float, color: str) -> None:
    ax.plot([x, x + wide, x + wide, x, x], [y, y, y + tall, y + tall, y], color=color, linewidth=1.0, solid_joinstyle="round")
