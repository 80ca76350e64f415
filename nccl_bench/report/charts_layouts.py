"""The picture of a search: seconds of a step by layout, in its parts. Part of the home of matplotlib; drawn from the documents of `search --json`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nccl_bench.errors import UsageError
from nccl_bench.report.look import DPI, FAINT, INK, PALETTE, RC, SOFT, TEXT_IN, WIDTH_IN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = (("compute", PALETTE[0]), ("bubble", FAINT), ("exposed", PALETTE[1]), ("other", PALETTE[4]))
WORDS = {"exposed": "waiting for communication"}
ROW_IN = 0.26
FORMATS = ("svg", "png", "pdf")
TEXT_MOST = 44


def layouts_figure(documents: Sequence[Mapping[str, Any]]) -> Figure:
    """One bar a layout, best on top; the whisker is the range of the price. Layouts without a step time are left out."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = [row for row in documents if row.get("step_s") and row.get("shares")]
    if not rows:
        raise UsageError("no layout has a step time: there is nothing to draw", "give --gemm-eff, or --measured RUN")
    names = [_short(str(row["layout"]["text"])) for row in rows]
    height = 0.95 + ROW_IN * len(rows)
    with rc_context(cast(Any, RC)):
        fig = Figure(figsize=(WIDTH_IN, height), dpi=DPI)
        left = (0.3 + TEXT_IN * max(map(len, names))) / WIDTH_IN
        ax = fig.add_axes((left, 0.5 / height, 0.97 - left, 1 - 0.95 / height))
        ends = [0.0] * len(rows)
        for part, color in PARTS:
            widths = [float(row["shares"][part]) * float(row["step_s"]["mid"]) for row in rows]
            ax.barh(range(len(rows)), widths, left=ends, height=0.66, color=color, label=WORDS.get(part, part))
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        mids = [float(row["step_s"]["mid"]) for row in rows]
        below = [max(0.0, mid - float(row["step_s"]["low"])) for mid, row in zip(mids, rows, strict=True)]
        above = [max(0.0, float(row["step_s"]["high"]) - mid) for mid, row in zip(mids, rows, strict=True)]
        ax.errorbar(mids, range(len(rows)), xerr=[below, above], fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
        ax.set_yticks(range(len(rows)), names, size=7.8, color=INK)
        ax.invert_yaxis()
        ax.set_xlabel("seconds a step")
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(length=0)
        measured = rows[0].get("priced_by") == "measured"
        title = f"{rows[0]['model']}: a step by layout" + ("" if measured else ", not measured")
        fig.text(0.012, 1 - 0.2 / height, title, size=10, color=INK, va="center")
        fig.legend(loc="upper right", ncols=len(PARTS), frameon=False, fontsize=7.4, labelcolor=SOFT, bbox_to_anchor=(0.985, 1 - 0.24 / height))
    return fig


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MOST else f"{text[: TEXT_MOST - 1]}…"


def layouts_svg(documents: Sequence[Mapping[str, Any]]) -> str:
    """The picture as SVG text, the same for the same documents."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(cast(Any, RC)):
        layouts_figure(documents).savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def write_chart(documents: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture in the format of the file's name. Raises UsageError where it cannot be written."""
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"--chart {path}: no picture of this kind", f"end the name in {' '.join('.' + name for name in FORMATS)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context(cast(Any, RC)):
            layouts_figure(documents).savefig(path, format=kind)
    except OSError as err:
        raise UsageError(f"--chart {path} cannot be written: {err.strerror or type(err).__name__}", "name a file that you may write") from err
