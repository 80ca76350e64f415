"""What a report is made of, whatever shows it: the first fold, then sections of words, pictures and tables. Frozen; no pandas, no matplotlib.

`document.build` makes one; html, markdown, charts (PNG, SVG, PDF) and story each show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "look", "fail", "unknown"]
SYMBOLS: dict[Status, str] = {"pass": "✓", "look": "!", "fail": "✗", "unknown": "?"}
"""A symbol beside each colour, so that nothing is told by colour alone."""
WORDS: dict[Status, str] = {"pass": "as expected", "look": "look at this", "fail": "below", "unknown": "cannot be judged"}
Tone = Literal["main", "other", "faint"]
Axis = Literal["size", "ranks", "nodes", "pass", "plain"]


# ---- pictures ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot, its name written at its end."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    """The ribbon; () where there is none."""
    tone: Tone = "main"
    """Whether the line is what the picture is of, one beside it, or one of many in grey."""
    color: int | None = None
    """Number in the palette; None: the next free one. Equal numbers are equal things in other pictures."""
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A level across a plot: a thin line with words on it, or a band where `high` is given."""

    y: float
    words: str
    high: float | None = None
    kind: Literal["limit", "attainable", "expected"] = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines over one axis."""

    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    x_axis: Axis = "size"
    """What x is: bytes and ranks have logarithmic axes (base 2)."""
    x_label: str
    y_label: str
    y_log: bool = False
    y_from: float | None = 0.0
    """Lower end of a linear y axis; None: by the data."""
    y_to: float | None = None
    heading: str = ""
    """Above the plot, where it is one of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A matrix of shares or rates as colours and numbers."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    low: float
    high: float
    """Ends of the linear scale of colours."""
    label: str
    percent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """One value a name, on a linear axis from 0."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    label: str
    median: float | None = None
    marked: tuple[bool, ...] = ()
    bands: tuple[tuple[float, float] | None, ...] = ()
    """By name, what it is held against: from and to, drawn behind it; () for none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One bar a name, put together of parts, with the range of its whole."""

    names: tuple[str, ...]
    parts: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """By name, then by part."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricNode:
    """One kind of node, drawn."""

    heading: str
    gpus: tuple[str, ...]
    nics: tuple[tuple[str, tuple[int, ...] | None], ...]
    """(name and rate, positions of the GPUs it serves; None where not known)."""
    joined: str
    """How the GPUs are joined, in words: "NVSwitch, 18 NVLink4 a GPU (450 GB/s)"."""
    bonds: tuple[tuple[int, int, int], ...] = ()
    """(GPU, GPU, links) of a mesh; () behind a switch."""
    switch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Kinds of nodes, the most frequent first."""

    nodes: tuple[FabricNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One chart, drawn by `charts`."""

    name: str
    """File name without its ending."""
    title: str
    caption: str
    """What is shown: clock, variant, ranks, data type; and that it is a rehearsal where it is one."""
    note: str = ""
    """How to read it."""
    parts: tuple[Plot, ...] = ()
    """One plot, or several beside each other."""
    other: Heat | Dots | Bars | Fabric | None = None
    """What a picture that is no plot shows."""
    words: str
    """The same in a sentence, for those who do not see it."""


# ---- tables ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a table holds; `value` is what it sorts by where that is a number."""

    text: str
    value: float | None = None
    status: Status | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under column titles."""

    columns: tuple[str, ...]
    numbers: tuple[bool, ...]
    """By column: whether it holds numbers (right-aligned, sorted as such)."""
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    note: str = ""
    """What was left out, and how to get it."""


# ---- the document ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One of the three numbers of the first fold."""

    label: str
    value: str
    expected: str
    """What was expected, in words; why not where it is not known."""
    status: Status | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Something to look at first, and why."""

    who: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section below the first fold."""

    name: str
    """Anchor."""
    title: str
    words: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    commands: tuple[str, ...] = ()
    """Shown as they are typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    banner: str | None
    """What every page of a rehearsal says."""
    status: Status
    sentence: str
    numbers: tuple[Number, ...]
    picture: Picture | None
    suspects: tuple[Suspect, ...]
    missing: tuple[str, ...]
    """Data that should be there and is not."""
    not_tested: tuple[str, ...]
    sections: tuple[Section, ...]
    tool: str
    """Who made the report, and of which runs."""

    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, the first fold's first."""
        first = () if self.picture is None else (self.picture,)
        return (*first, *(picture for section in self.sections for picture in section.pictures))
