"""A sweep from launch to last line: supervisors meet, workers measure, rank 0 keeps every point before it is shown.

Yields events; prints nothing. On ranks other than 0 only Ended comes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from nccl_bench import __version__
from nccl_bench.errors import LaunchError, NcclBenchError
from nccl_bench.flows.header import header_of, node_names
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.supervisor import supervise
from nccl_bench.launch.values import Finished, Go, Joined, Json, Message, Noise, Plan, Started
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Point, RunHeader
from nccl_bench.results.store import RESULTS, RunWriter, create_run, default_path

WORKER = (sys.executable, "-m", "nccl_bench.measure.worker")
SPEC_VARIABLE = "NCCL_BENCH_SPEC"
BATCHES_FILE = "batches.jsonl"
WORST = 16
"""Late ranks that a point names without --keep-ranks."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something the user should know."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event. `lines` are for stderr, the first without "error: "."""

    exit_code: int
    why: str
    lines: tuple[str, ...] = ()
    path: Path | None = None
    n_points: int = 0


Event = Opened | Listed | CaseBegun | Kept | Warned | Ended


def sweep(
    spec: SweepSpec,
    launch: Launch,
    where: Where,
    *,
    n_local: int,
    environ: Mapping[str, str],
    argv: Sequence[str],
    worker: tuple[str, ...] = WORKER,
) -> Iterator[Event]:
    """Run a sweep on the ranks of `launch` (n_local of them here where nobody launched us).

    Raises UsageError, LaunchError and what else ends a run before it begins.
    """
    plan = Plan(
        argv=worker,
        offer={"nccl_bench": __version__, "torch": torch_version(), "options": spec.digest()},
        timeout_s=spec.timeout_s,
        n_local=n_local,
        backend=spec.backend,
        extra_env=worker_env(spec, environ),
    )
    keeper = _Keeper(spec, launch, where, environ, tuple(argv))
    events = supervise(launch, plan, environ)
    for event in events:
        try:
            shown = list(keeper.take(event))
        except NcclBenchError as err:
            # Tell the others: every rank ends with this code.
            shown = [_stopped(keeper, err, events.throw(err))]
        yield from shown


def torch_version() -> str:
    """The installed torch, without importing it. Raises LaunchError with the pip line where there is none."""
    try:
        found = version("torch") if find_spec("torch") else None
    except PackageNotFoundError:
        found = "unknown"
    if found is None:
        raise LaunchError(
            "torch is not installed here: nothing can be measured", "pip install 'nccl-bench[torch]'   (or your site's own build of torch)"
        )
    return found


def worker_env(spec: SweepSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker's environment gets beyond the user's: the spec, and registration off unless it was asked for."""
    env = {SPEC_VARIABLE: json.dumps(spec.to_json())}
    if spec.register == "graph":
        env["NCCL_GRAPH_REGISTER"] = "1"
    elif "NCCL_GRAPH_REGISTER" not in environ:
        env["NCCL_GRAPH_REGISTER"] = "0"
    if "OMP_NUM_THREADS" not in environ:
        env["OMP_NUM_THREADS"] = "1"  # as torchrun does: gloo ranks would fight over the cores
    return env


class _Keeper:
    """Turns the supervisor's events into kept points and the flow's events."""

    def __init__(self, spec: SweepSpec, launch: Launch, where: Where, environ: Mapping[str, str], argv: tuple[str, ...]) -> None:
        self.spec, self.launch, self.where, self.environ, self.argv = spec, launch, where, environ, argv
        self.joined: Joined | None = None
        self.writer: RunWriter | None = None
        self.n_cases = 0

    def take(self, event: Joined | Started | Message | Noise | Finished) -> Iterator[Event]:
        """What one event of the supervisor comes to."""
        if isinstance(event, Joined):
            self.joined = event
        elif isinstance(event, Started):
            yield from self._open(event.go)
        elif isinstance(event, Message):
            yield from self._message(event.content)
        elif isinstance(event, Finished):
            yield self._finish(event)

    def _open(self, go: Go) -> Iterator[Event]:
        if self.joined is None:
            return  # not rank 0
        started_at = datetime.now(UTC)
        header = header_of(self.joined, go, self.spec, self.launch, self.environ, self.argv, started_at)
        path = self.where.out or default_path(
            self.where.root,
            started_at,
            self.launch.host,
            go.world_size,
            gloo=go.backend == "gloo",
            job=self.launch.job,
            name=self.where.name,
        )
        self.writer = create_run(path, header, latest=self.where.out is None)
        yield Opened(header=header, path=path)
        for text in header.warnings:
            yield Warned(text=text)

    def _message(self, content: Json) -> Iterator[Event]:
        if self.writer is None:
            return
        match content["type"]:
            case "ready":
                self.writer.update_header(setup={**self.writer.header.setup, **content["setup"]})
            case "cases":
                self.n_cases = content["n"]
                yield Listed(n_cases=content["n"], arena_nbytes=content["arena_nbytes"])
            case "case":
                yield CaseBegun(index=content["index"], n_cases=self.n_cases, collective=content["collective"], nbytes=content["nbytes"])
            case "warning":
                self.writer.update_header(warnings=(*self.writer.header.warnings, content["text"]))
                yield Warned(text=content["text"])
            case "point":
                yield self._keep(content)

    def _keep(self, content: Json) -> Kept:
        assert self.writer is not None
        assert self.joined is not None
        point = Point.from_json(content["point"])
        if content["lateness_us"]:
            point = replace(point, lateness_us=condense(content["lateness_us"], node_names(self.joined), self.spec.keep_ranks))
        if content["wrong"]:
            point = replace(point, reason=self._culprit(point.reason or "", content["wrong"]["rank"]))
        self.writer.append(point)
        if content["batches_us"]:
            self.writer.append_record(BATCHES_FILE, {"point": self.writer.n_points - 1, "batches_us": content["batches_us"]})
        return Kept(point=point)

    def _culprit(self, reason: str, rank: int) -> str:
        """The worker knows the rank; its host and GPU are known here."""
        assert self.joined is not None
        facts = self.joined.facts[rank]
        device = (facts.get("hello") or {}).get("device")
        gpu = f", GPU {device['index']}" if device else ""
        return reason.replace(f"rank {rank},", f"rank {rank} (host {facts['host']}{gpu}),", 1)

    def _finish(self, event: Finished) -> Ended:
        path, n_points = None, 0
        lines = event.lines
        if self.writer is not None:
            path, n_points = self.writer.path, self.writer.n_points
            hang = None if event.hang is None else {name: getattr(event.hang, name) for name in event.hang.__slots__}
            more = self.writer.finish(datetime.now(UTC), event.exit_code, event.why or None, hang=hang)
            if event.exit_code:
                lines = (*lines, f"kept          {n_points} case{'' if n_points == 1 else 's'} in {path}", *([more] if more else []))
        return Ended(exit_code=event.exit_code, why=event.why, lines=lines, path=path, n_points=n_points)


def _stopped(keeper: _Keeper, err: NcclBenchError, last: object) -> Ended:
    """The end that an error of the flow itself makes (a full disk, a directory that holds a run)."""
    path = keeper.writer.path if keeper.writer else None
    n_points = keeper.writer.n_points if keeper.writer else 0
    if keeper.writer is not None:
        keeper.writer.finish(datetime.now(UTC), err.exit_code, err.why)
    why = last.why if isinstance(last, Finished) and last.why else err.why
    return Ended(exit_code=err.exit_code, why=why, lines=(err.why, *err.hints), path=path, n_points=n_points)


def condense(lateness_us: Sequence[float], hosts: Sequence[str], keep_all: bool) -> Json:
    """Lateness by rank as a point keeps it: the median of each host, the 16 worst ranks; all with --keep-ranks (µs)."""
    by_host: dict[str, list[float]] = {}
    for host, value in zip(hosts, lateness_us, strict=True):
        by_host.setdefault(host, []).append(value)
    order = sorted(range(len(lateness_us)), key=lambda rank: -lateness_us[rank])
    kept: Json = {
        "nodes": {host: sorted(values)[len(values) // 2] for host, values in by_host.items()},
        "worst": [{"rank": rank, "host": hosts[rank], "us": lateness_us[rank]} for rank in order[:WORST]],
    }
    if keep_all:
        kept["ranks"] = list(lateness_us)
    return kept
