"""What a sweep's flow yields, and where its run is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nccl_bench.records import Ceiling, Json, Point, RunHeader
from nccl_bench.results.store import RESULTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the run is kept."""

    out: Path | None = None
    """The run directory itself; None: a default one under `root`."""
    root: Path = Path(RESULTS)
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The run directory exists and the ranks start; the first event on rank 0."""

    header: RunHeader
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The list of cases is made."""

    n_cases: int
    arena_nbytes: int
    one_domain: bool
    """All ranks share a host or an NVLink domain."""
    probe: bool = False
    """Whether this is the probe for algorithms after the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseBegun:
    """A case is being measured now."""

    index: int
    n_cases: int
    collective: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A point is on disk."""

    point: Point
    ceiling: Ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something the user should know."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something that was decided for the user."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event. `lines` are for stderr, the first without "error: "."""

    exit_code: int
    why: str
    lines: tuple[str, ...] = ()
    path: Path | None = None
    n_points: int = 0
    algorithms: tuple[Json, ...] = ()
    """What the probe after the table found NCCL to choose."""


Event = Opened | Listed | CaseBegun | Kept | Warned | Noted | Ended
