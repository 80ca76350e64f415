"""What an importer hands back: points, hang reports, warnings and what the file says of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from nccl_bench.records import HangReport, Json, Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One file, read."""

    path: str
    """As it was named."""
    kind: str
    """What it is: "nccl-tests", "rccl-tests", "deepspeed", "watchdog", "pair table", "rank table"."""
    points: tuple[Point, ...] = ()
    hangs: tuple[HangReport, ...] = ()
    warnings: tuple[str, ...] = ()
    tool: str | None = None
    """Program and version that measured: "nccl-tests 2.19.6"."""
    argv: tuple[str, ...] = ()
    started_at: str | None = None
    ended_at: str | None = None
    n_ranks: int | None = None
    n_nodes: int | None = None
    ranks: tuple[Json, ...] = ()
    """As RunHeader.ranks."""
    shared_gpu: bool = False
    not_nccl: bool = False
    """A table that nccl-bench printed of a rehearsal on gloo."""
    versions: Json = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    runs: tuple[Json, ...] = ()
    """Facts of each run in the file: source, collective, n_ranks, rows, printed average, completeness ..."""
    failure: str | None = None
    """path:line and the quoted line, where the run failed before it measured anything."""
    hints: tuple[str, ...] = ()
    """What to do about the failure."""
