"""What the picture of a search shows, from the documents of `search --json`; and that picture as a file of its own. No matplotlib here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_bench.errors import UsageError
from nccl_bench.report.page import Bars, Picture
from nccl_bench.units import format_percent

PARTS = {"compute": "compute", "bubble": "bubble", "exposed": "waiting for communication", "other": "optimizer"}
FORMATS = ("svg", "png", "pdf")
MOST_BARS = 24


def layouts_picture(documents: Sequence[Mapping[str, Any]]) -> Picture | None:
    """One bar a layout, best on top; None where no layout has a step time."""
    priced = [row for row in documents if row.get("step_s") and row.get("shares")]
    rows = priced[:MOST_BARS]
    if not rows:
        return None
    measured = rows[0].get("priced_by") == "measured"
    first = rows[0]
    caption = f"seconds of a step by layout, {first['layout']['world']} GPUs, {'measured prices' if measured else 'not measured: only a hint'}"
    words = f"{first['layout']['text']} is fastest with {first['step_s']['mid']:.3g} s, of which {format_percent(first['shares']['exposed'])} % wait."
    return Picture(
        name="layouts",
        title=f"{first['model']}: a step by layout" + ("" if measured else ", not measured"),
        caption=caption + ("; NOT NCCL" if first.get("not_nccl") else ""),
        note="The whisker is the range of the price." + (f" The first {MOST_BARS} of {len(priced)} layouts." if len(priced) > MOST_BARS else ""),
        words=words,
        other=Bars(
            names=tuple(str(row["layout"]["text"]) for row in rows),
            parts=tuple(PARTS.values()),
            values=tuple(tuple(float(row["shares"][part]) * float(row["step_s"]["mid"]) for part in PARTS) for row in rows),
            low=tuple(float(row["step_s"]["low"]) for row in rows),
            high=tuple(float(row["step_s"]["high"]) for row in rows),
            label="seconds a step",
        ),
    )


def write_chart(documents: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture in the format of the file's name. Raises UsageError where it cannot be written."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"--chart {path}: no picture of this kind", f"end the name in {' '.join('.' + name for name in FORMATS)}")
    picture = layouts_picture(documents)
    if picture is None:
        raise UsageError("no layout has a step time: there is nothing to draw", "give --gemm-eff, or --measured RUN")
    from nccl_bench.report import charts

    try:
        if kind == "svg":
            path.write_text(charts.svg(picture), encoding="utf-8")
        elif kind == "png":
            path.write_bytes(charts.png(picture))
        else:
            with charts.settings():
                charts.figure(picture).savefig(path, format="pdf")
    except OSError as err:
        raise UsageError(f"--chart {path} cannot be written: {err.strerror or type(err).__name__}", "name a file that you may write") from err
