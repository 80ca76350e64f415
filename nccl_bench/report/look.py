"""Colours and measures of every picture. No matplotlib.

Colours are those of Okabe and Ito (Color Universal Design, 2008; Wong, Nature Methods 8, 2011): told apart by the colour-blind too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nccl_bench.units import three_digits

INK, SOFT, GRID, FAINT, PAPER, BAND = "#1f2329", "#5d6670", "#e3e7eb", "#b4bcc5", "#fffffe", "#cfe6d8"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Blue, vermillion, green, purple, orange, sky."""
VARIABLES: Mapping[str, str] = {
    INK: "--ink",
    SOFT: "--soft",
    GRID: "--grid",
    FAINT: "--faint",
    PAPER: "--paper",
    BAND: "--band",
    **{color: f"--c{at}" for at, color in enumerate(PALETTE)},
}
"""Colours by the CSS variable that stands for them in a page, which is light or dark."""
WIDTH_IN = 7.6
HEIGHT_IN = 4.2
PANEL_IN = 2.5
"""Height of one of several plots in a picture."""
TEXT_IN = 0.068
"""Width of a character of a label (8 points), to keep room for it."""
GAP_IN = 0.145
"""Least distance of two labels at line ends."""
MARK_IN = 0.14
"""Height of the words on a mark."""
DPI = 144
"""Of PNG files: sharp on a slide."""
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "svg.fonttype": "none",
    "svg.hashsalt": "nccl-bench",
    "path.simplify_threshold": 0.5,
}
"""matplotlib's settings."""


def rate(value: float) -> str:
    """A rate in few digits."""
    return three_digits(value) if value < 1000 else f"{value:.0f}"
