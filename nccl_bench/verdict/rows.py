"""What a judgement is made of: its rows, and all that is judged. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from nccl_bench.records import Json, Point
from nccl_bench.verdict.criteria import DEFAULT
from nccl_bench.verdict.evidence import Findings

Status = Literal["pass", "warn", "fail", "inconclusive"]
LARGE_NBYTES = 1 << 30
"""Bandwidth is judged at 1 GiB or more on NCCL (DESIGN.md section 2)."""

UNKNOWN = "nothing is known to be expected"
"""How the reason of a row begins that a [[require]] of the criteria would settle."""
SUPPLY = "[[require]] in --criteria says what is enough (nccl-bench explain criteria)"
AS_FOUND = "hardware as found, not as bought"
"""The criterion of a row that says what of a node nobody asked for."""
NOT_ASKED = "not asked for (--stages)"
"""Why a stage was not run, where --stages left it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One criterion at one place."""

    criterion: str
    stage: str
    status: Status
    measured: float | str | None = None
    required: float | str | None = None
    unit: str | None = None
    reason: str = ""
    source: str = DEFAULT
    hosts: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """The keys of the contract."""
        return {**asdict(self), "hosts": list(self.hosts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that is judged."""

    points: tuple[Point, ...]
    """Of stages with collectives; group.slowest are the ranks of each world."""
    rank_hosts: tuple[str, ...]
    doctor: tuple[Json, ...] = ()
    counters: tuple[Json, ...] = ()
    """[{host, device, counter, text, stage}] that speak against a device."""
    counters_read: bool = False
    counters_missing: tuple[str, ...] = ()
    """Hosts whose counters could not be read around some stage."""
    findings: Findings = field(default_factory=Findings)
    pairs_ran: bool = False
    excluded: tuple[Json, ...] = ()
    """[{host, stage, reason}]."""
    not_run: tuple[Json, ...] = ()
    """[{stage, reason}]: what was not tested."""
    broken: tuple[Json, ...] = ()
    """[{stage, world, reason, hosts}]: worlds that did not end well."""
    rdma_bytes: int | None = None
    """Bytes that RDMA ports sent during the cluster stage; None where not read."""
    rdma_of: Mapping[str, int] = field(default_factory=dict)
    """[host] the same; {} in runs that kept the sum alone."""
    has_rdma: bool = False
    domains: Mapping[str, str] = field(default_factory=dict)
    """[host] the multi-node NVLink domain of all its GPUs; hosts that are not here have none."""
    not_nccl: bool = False
    shared_gpu: bool = False
    n_hosts: int = 0
    """Hosts that were to take part, without spares."""
    min_hosts: int = 0
    spares: tuple[str, ...] = ()
    replaced: tuple[Json, ...] = ()
    """[{host, by, stage}]: spares that took a host's place."""
    more: tuple[Row, ...] = ()
    """Rows that others worked out: baseline, reference, lateness."""
