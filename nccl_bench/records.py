"""Frozen values that are kept or passed between rooms: Case, Times, Point, RunHeader, HangReport.

A point's JSON keys are its field names, but for `pass_` (key "pass", a Python keyword). Unknown is null, never 0.

Schema history (`SCHEMA`), newest last; readers accept every version:
    1  the first one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

from nccl_bench.collectives import Placement, Shift, bus_factor
from nccl_bench.errors import DataError

SCHEMA = 1

Clock = Literal["graph", "queued", "eager", "host"]
Regime = Literal["streaming", "isolated"]
Register = Literal["none", "graph", "user", "symmetric"]
Status = Literal["ok", "skipped", "failed"]
Stop = Literal["precision", "time", "iters"]
Kind = Literal["collective", "gemm", "overlap"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The groups that ran a case at once: all of one kind of a mesh, or the world."""

    axis: str | None = None
    """Mesh axis, None for the world."""
    size: int
    """Ranks in each group."""
    n_groups: int = 1
    slowest: tuple[int, ...] | None = None
    """Ranks of the slowest group, where there are several."""
    spread_frac: float | None = None
    """(slowest - fastest group) / slowest, of the mean time of each group's slowest rank: 0 to 1, the share of the slowest group's time
    in which the fastest is done already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured; hashable: the join key of every comparison."""

    collective: str
    dtype: str
    """torch's name: "float32"."""
    op: str | None
    """Reduction by torch's name in lower case, None where nothing is reduced."""
    root: int | None
    nbytes: int
    """Bytes really moved: nccl-tests' size, the larger buffer of a rank."""
    requested_nbytes: int
    count: int
    """nccl-tests' count column, elements."""
    n_ranks: int
    axis: str | None = None
    special: str | None = None
    """What sets the case apart from a plain one: "solo" (one group of the axis alone, the others idle), "skew 2", "pair 0,8"."""
    work: str | None = None
    """JSON of what is done besides the collective, or in its place: see Point.details."""
    placement: Placement
    shift: Shift | None = None
    clock: Clock
    regime: Regime
    variant: str | None = None
    registered: Register = "none"

    def label(self) -> str:
        """Collective and size for messages: "all_gather 64 MiB"."""
        from nccl_bench.units import format_size

        return f"{self.collective} {format_size(self.nbytes or self.requested_nbytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Order statistics over batches (or operations) of the max over ranks, µs an operation."""

    median: float
    mean: float
    min: float
    max: float
    p95: float | None = None
    p99: float | None = None
    """None below 100 samples."""
    ci_low: float | None = None
    ci_high: float | None = None
    """95 % interval of the median; None where too few batches ran to give one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What a pair test exchanged."""

    level: Literal["node", "gpu"]
    round: int
    src: int
    dst: int
    both: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured case, a line of points.jsonl (CONTRACT.md section 3)."""

    collective: str
    dtype: str | None
    op: str | None
    root: int | None
    nbytes: int
    requested_nbytes: int
    count: int | None
    n_ranks: int | None
    group: Group | None = None
    placement: Placement | None
    shift: Shift | None = None
    clock: str | None
    """One of Clock; None for imported points whose clock is not known."""
    clock_reason: str | None = None
    """Why this clock ran where another was asked for."""
    regime: Regime | None
    variant: str | None = None
    registered: Register | None = None
    over_ranks: str = "max"
    """What a time is over: "max", or "mean (assumed)" for imported points."""
    kind: Kind = "collective"
    stage: str | None = None
    pass_: int = 0
    """Number of the pass under --duration, from 0; JSON key "pass"."""
    pair: Pair | None = None
    special: str | None = None
    """What sets the case apart from a plain one: "solo", "skew 2", "pair 0,8", "beside dp:reduce_scatter", the shape of a product."""
    details: Json | None = None
    """kind gemm: {name, m, n, k} of a product [m, k] x [k, n], {attention}, {pass_nbytes}. kind overlap: {beside, own_us, other_us,
    own_times, other_times, slowdown}: two things at once, each alone, and both together over the longer one."""
    iters: int | None = None
    """Operations timed."""
    batches: int | None = None
    series: int | None = None
    series_us: tuple[float, ...] = ()
    """Median of each series, µs an operation."""
    ops_per_batch: int | None = None
    sample: Literal["batch", "op"] | None = None
    """What the percentiles are of."""
    time_us: Times | None = None
    mean_over_ranks_us: float | None = None
    """Mean over ranks and batches, µs an operation: what nccl-tests prints."""
    window_us: float | None = None
    """Wall time from the first timed operation to the last, max over ranks, µs."""
    lateness_us: Json | None = None
    """Isolated series: how much later than the first each rank arrived; per-node medians and the 16 worst ranks."""
    algbw_GBps: float | None = None
    busbw_GBps: float | None = None
    n_wrong: int | None = None
    """Wrong elements over all ranks; None where the data was not checked."""
    stop: Stop | None = None
    status: Status = "ok"
    reason: str | None = None
    """Why a case was skipped or failed."""
    attempt: int = 1
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    sm_mhz_min: int | None = None
    throttle: tuple[str, ...] | None = None
    """Reasons NVML gave for lowered clocks under load; () for none, None where not sampled."""
    started_at: str | None = None
    """UTC, ISO 8601."""
    source: str | None = None
    """path:line of an imported point."""

    def to_json(self) -> Json:
        """Every key of the contract, unknown values null."""
        return _to_json(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The point of one JSON object of any schema version. Raises DataError naming the bad key."""
        try:
            values = _known(cls, record)
            values["group"] = None if values.get("group") is None else Group(**_tuples(_known(Group, values["group"])))
            values["pair"] = None if values.get("pair") is None else Pair(**_known(Pair, values["pair"]))
            values["time_us"] = None if values.get("time_us") is None else Times(**_known(Times, values["time_us"]))
            return cls(**_tuples(values))
        except (TypeError, AttributeError, ValueError) as err:
            raise DataError(f"not a point of nccl-bench: {err}") from err


def with_bandwidth(point: Point, median_us: float) -> Point:
    """The point with algbw and busbw of `median_us`, GB/s = 1e9 bytes/s (nccl-tests doc/PERFORMANCE.md)."""
    if median_us <= 0 or point.n_ranks is None:
        return point
    algbw = point.nbytes / median_us * 1e-3
    return replace(point, algbw_GBps=algbw, busbw_GBps=algbw * bus_factor(point.collective, point.n_ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What `plan --emit` asks a sweep to measure: exact groups, sizes and dtypes, matrix products, and what runs beside what."""

    schema: int = SCHEMA
    layout: str
    """In words, for the reader."""
    mesh: str
    """As --mesh takes it; its size is the number of ranks."""
    collectives: tuple[Json, ...] = ()
    """[{axis, collective, dtype, op, nbytes: [...], skew}]."""
    gemms: tuple[Json, ...] = ()
    """[{name, m, n, k, dtype, count}], [{attention: {batch, heads, seq, full_seq, dim}}], [{pass_nbytes}]."""
    overlaps: tuple[Json, ...] = ()
    """[{axis, collective, dtype, op, nbytes, gemm: {...}}]: a product beside a collective."""

    def to_json(self) -> Json:
        """Every key."""
        return _to_json(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The want of one JSON object. Raises DataError naming what is wrong."""
        version = record.get("schema")
        if not isinstance(version, int) or not 1 <= version <= SCHEMA:
            raise DataError("not what plan --emit writes: no schema version that this nccl-bench reads")
        try:
            found = cls(**_tuples(_known(cls, record)))
        except TypeError as err:
            raise DataError(f"not what plan --emit writes: {err}") from err
        if not isinstance(found.mesh, str) or not all(isinstance(row, dict) for row in (*found.collectives, *found.gemms, *found.overlaps)):
            raise DataError("not what plan --emit writes: mesh is text, and every item an object")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What one measured point is held against, from the fabric's ceilings; all None where they are not known."""

    expected_low_GBps: float | None = None
    """Bus bandwidth that healthy systems of this kind reach: low end."""
    expected_high_GBps: float | None = None
    share_frac: float | None = None
    """Measured over the middle of what is expected."""
    attainable_GBps: float | None = None
    """What the protocol leaves of the physical limit, for the algorithm that ran where it is known."""
    limited_by: str | None = None
    """In words: "8x 400G NICs", "latency"."""
    line_GBps: float | None = None
    """Physical limit of the algorithm that ran; a value above it is an error of the model or of the measurement."""
    latency_us: float | None = None
    """Expected time of the smallest messages."""


NOBODY_BEHIND = "no rank is ahead or behind"
PROGRAM_ERROR = "a program error, not a bad link"
"""What is said of ranks that all hang in one call, and in different calls: of a run of ours and of an imported log alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangReport:
    """Who did not arrive, who waited, who died: the facts of the supervisors when a run broke."""

    case: str | None
    """What was being measured, in words."""
    case_index: int | None
    n_cases: int | None
    timeout_s: float | None
    situation: Literal["fabric", "program", "rank", "died", "start", "unknown"]
    """All in one call; in different calls; one behind; one dead; before the first case; no facts."""
    culprits: tuple[Json, ...] = ()
    """Ranks to blame: {rank, host, device, pid, state, case, what}."""
    waiting: tuple[Json, ...] = ()
    """The others, at most 64."""
    lines: tuple[str, ...] = ()
    """The report as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """run.json: everything that is true of a whole run."""

    schema: int = SCHEMA
    tool: str
    """"nccl-bench 0.1.0"."""
    argv: tuple[str, ...]
    started_at: str | None
    """UTC, ISO 8601; None for an imported log that does not say."""
    ended_at: str | None = None
    exit_code: int | None = None
    """None while the run goes on, or where it was killed."""
    why: str | None = None
    """The last line of a run that did not end 0."""
    name: str | None = None
    launcher: str | None
    job: str | None = None
    backend: str | None
    not_nccl: bool = False
    """A gloo run, a rehearsal: says nothing about NCCL."""
    shared_gpu: bool = False
    """Ranks shared a GPU: behaviour, not a measurement."""
    n_ranks: int | None
    """None where an imported log does not tell."""
    n_nodes: int | None
    ranks: tuple[Json, ...] = ()
    """[{rank, host, local_rank, pid, gpu: {index, name, uuid, pci, memory_nbytes} | null, nics}]."""
    versions: Json = field(default_factory=dict)
    """{nccl_bench, python, torch, nccl, nccl_path, cuda, driver}."""
    spec: Json = field(default_factory=dict)
    topology: Json | None = None
    algorithms: tuple[Json, ...] = ()
    """[{collective, nbytes, algorithm, protocol, channels}] from a probe after the table, where the points could not say it."""
    plugins: tuple[str, ...] = ()
    nccl_conf: tuple[str, ...] = ()
    """nccl.conf files that NCCL reads, with their lines."""
    affinity: Json | None = None
    """{rank: CPUs it may run on}, for the ranks of rank 0's host."""
    env: Json = field(default_factory=dict)
    """Rank 0's variables of the allow-list; what differs on other ranks is a warning."""
    setup: Json = field(default_factory=dict)
    """Seconds: {meet_s, torch_import_s, communicator_s, first_collective_s}."""
    warnings: tuple[str, ...] = ()
    hang: Json | None = None

    def to_json(self) -> Json:
        """Every key, unknown values null."""
        return _to_json(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The header of one JSON object of any schema version. Raises DataError naming the bad key."""
        version = record.get("schema")
        if not isinstance(version, int) or version < 1:
            raise DataError("not a header of nccl-bench: no schema version")
        if version > SCHEMA:
            raise DataError(f"schema version {version} is newer than this nccl-bench reads ({SCHEMA})", "pip install -U nccl-bench")
        try:
            return cls(**_tuples(_known(cls, record)))
        except (TypeError, ValueError) as err:
            raise DataError(f"not a header of nccl-bench: {err}") from err


class Spec:
    """What was asked for, as a JSON object and back: the two methods of every frozen spec."""

    __slots__ = ()

    def to_json(self) -> Json:
        """Every key, for the workers and run.json."""
        return _to_json(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of to_json; what this version does not know is passed over."""
        return cls(**_tuples(_known(cls, record)))


def _key(name: str) -> str:
    return name.rstrip("_")


def _to_json(value: Any) -> Json:
    return {_key(key): item for key, item in asdict(value).items()}


def _known(cls: Any, record: Mapping[str, Any]) -> Json:
    """The entries of `record` that `cls` knows; keys of newer minor versions are passed over."""
    names = {_key(f.name): f.name for f in fields(cls)}
    return {names[key]: value for key, value in record.items() if key in names}


def _tuples(values: Json) -> Json:
    """Lists as tuples, and the lists inside those."""

    def whole(value: list[Any]) -> tuple[Any, ...]:
        return tuple(tuple(one) if isinstance(one, list) else one for one in value)

    return {key: whole(value) if isinstance(value, list) else value for key, value in values.items()}
