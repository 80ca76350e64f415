"""Layouts as stacked bars: seconds of a step in its parts. Part of the home of matplotlib, which draws into figures that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nccl_bench.report.look import FAINT, INK, PALETTE, SOFT, TEXT_IN
from nccl_bench.report.page import Bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

    AnyFigure = Figure | SubFigure

COLORS = (PALETTE[0], FAINT, PALETTE[1], PALETTE[4])
ROW_IN = 0.26
TEXT_MOST = 44


def height_in(bars: Bars) -> float:
    """Height without title and caption, inches."""
    return 0.8 + ROW_IN * max(1, len(bars.names))


def bars(content: Bars, fig: AnyFigure, width: float, height: float, top: float) -> None:
    """One bar a name, best on top; the whisker is the range of the whole."""
    names = [_short(name) for name in content.names]
    left = (0.3 + TEXT_IN * max(map(len, names), default=4)) / width
    ax = fig.add_axes((left, 0.5 / height, 0.97 - left, top - 0.8 / height))
    ends = [0.0] * len(names)
    for at, part in enumerate(content.parts):
        widths = [row[at] for row in content.values]
        ax.barh(range(len(names)), widths, left=ends, height=0.66, color=COLORS[at % len(COLORS)], label=part)
        ends = [end + wide for end, wide in zip(ends, widths, strict=True)]
    below = [max(0.0, end - low) for end, low in zip(ends, content.low, strict=True)]
    above = [max(0.0, high - end) for end, high in zip(ends, content.high, strict=True)]
    ax.errorbar(ends, range(len(names)), xerr=[below, above], fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
    ax.set_yticks(range(len(names)), names, size=7.8, color=INK)
    ax.invert_yaxis()
    ax.set_xlim(left=0.0)
    ax.set_xlabel(content.label)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(length=0)
    handles, labels = ax.get_legend_handles_labels()
    shown = [(handle, label) for handle, label in zip(handles, labels, strict=True) if label in content.parts]
    fig.legend(*zip(*shown, strict=True), loc="upper left", ncols=len(content.parts), frameon=False, fontsize=7.4, labelcolor=SOFT,
               bbox_to_anchor=(left - 0.1 / width, top + 0.02 / height))  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MOST else f"{text[: TEXT_MOST - 1]}…"
