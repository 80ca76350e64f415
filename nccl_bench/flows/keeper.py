"""Rank 0's part of a sweep: every point on disk before it is shown, the header kept up to date, the end written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from nccl_bench.fabric.nccl_log import socket_warning
from nccl_bench.fabric.topology import topology_json
from nccl_bench.flows.ceilings import Fabric, fabric_of
from nccl_bench.flows.events import CaseBegun, Ended, Event, Kept, Listed, Noted, Opened, Warned, Where
from nccl_bench.flows.header import header_of, node_names, start_notes
from nccl_bench.flows.noise import STDERR, complaining, in_few_words, keep_noise
from nccl_bench.flows.tuning import TuningLog
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.values import Finished, Go, Joined, Json, Message, Noise, Started
from nccl_bench.measure.spec import SweepSpec, check_backend
from nccl_bench.records import Point
from nccl_bench.results.store import RunWriter, create_run, default_path

BATCHES_FILE = "batches.jsonl"
WORST = 16
"""Late ranks that a point names without --keep-ranks."""


class Keeper:
    """Turns the supervisor's events into kept points and the flow's events, pass after pass of one run."""

    def __init__(
        self, spec: SweepSpec, launch: Launch, where: Where, environ: Mapping[str, str], argv: tuple[str, ...], variants: Json | None = None
    ) -> None:
        self.variants: Json = variants or {}
        """What each variant sets, as run.json keeps it."""
        self.spec, self.launch, self.where, self.environ, self.argv = spec, launch, where, environ, argv
        self.joined: Joined | None = None
        self.writer: RunWriter | None = None
        self.fabric = Fabric(None, None, environ)
        self.log = TuningLog(None)
        self.n_cases = 0
        self._probing = False
        self._sizes: set[tuple[str, int]] = set()
        """(collective, bytes) of the points kept."""
        self._backend: str | None = None
        self._hang: Json | None = None
        self._said: tuple[str, ...] = ()

    def begin(self, spec: SweepSpec, log: TuningLog, *, probe: bool = False) -> Keeper:
        """Take the events of another pass; a probe's points are not kept."""
        self.spec, self.log, self._probing = spec, log, probe
        return self

    def wants_probe(self, spec: SweepSpec) -> bool:
        """Whether the algorithms are unknown and NCCL could say them; from what every rank knows, so that all decide alike."""
        return self._backend == "nccl" and bool({"eager", "host"} & set(spec.clocks))

    def take(self, event: Joined | Started | Message | Noise | Finished) -> Iterator[Event]:
        """What one event of the supervisor comes to."""
        if isinstance(event, Joined):
            self.joined = event
        elif isinstance(event, Started):
            yield from self._start(event.go)
        elif isinstance(event, Message):
            yield from self._message(event.content)
        elif isinstance(event, Finished):
            self._hang = None if event.hang is None else asdict(event.hang)
            yield from self._noise(event)
            yield Ended(exit_code=event.exit_code, why=event.why, lines=(*event.lines, *self._said))

    def _start(self, go: Go) -> Iterator[Event]:
        self._backend = go.backend
        check_backend(self.spec, go.backend)  # before a directory is made
        if self.joined is None:
            return  # not rank 0
        self.log.n_ranks = go.world_size
        if self.writer is not None:
            return  # another pass of the same run
        started_at = datetime.now(UTC)
        header = header_of(self.joined, go, self.spec, self.launch, self.environ, self.argv, started_at)
        spec = {**header.spec, "variants": self.variants}
        self.fabric, notes = fabric_of(self.joined, nccl=go.backend == "nccl", shared_gpu=go.shared_gpu, environ=self.environ, spec=spec)
        topology = None if self.fabric.topology is None else topology_json(self.fabric.topology)
        header = replace(header, topology=topology, warnings=(*header.warnings, *notes, *self._cautions(go)), spec=spec)
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
        for text in (*go.notes, *start_notes(self.joined)):
            yield Noted(text=text)
        for text in header.warnings:
            yield Warned(text=text)

    def _cautions(self, go: Go) -> Iterator[str]:
        """What was asked for and does less than it seems to."""
        if self.variants and go.backend != "nccl":
            yield "variants set variables of NCCL, which gloo ignores: what differs between them here is noise"
        if self.spec.warmup_iters == 0:
            yield "-w 0: nothing is warmed up, so first batches include making connections"
        if "pingpong" in self.spec.collectives and go.world_size % 2 and go.world_size > 1 and self.spec.pair is None:
            yield f"pingpong pairs rank i with i + {go.world_size // 2}: rank {go.world_size - 1} sits out"

    def _message(self, content: Json) -> Iterator[Event]:
        if self.writer is None:
            return
        match content["type"]:
            case "ready" if not self._probing and self.spec.variant is None:
                self.writer.update_header(setup={**self.writer.header.setup, **content["setup"]})
            case "cases":
                self.n_cases = content["n"]
                yield from self._network()
                one_domain = content["facts"]["one_domain"]
                yield Listed(n_cases=content["n"], arena_nbytes=content["arena_nbytes"], one_domain=one_domain, probe=self._probing)
            case "case":
                yield CaseBegun(index=content["index"], n_cases=self.n_cases, collective=content["collective"], nbytes=content["nbytes"])
            case "warning":
                yield self._warn(content["text"])
            case "point" if not self._probing:
                yield self._keep(content)

    def _noise(self, event: Finished) -> Iterator[Event]:
        """What libraries wrote of their own: of a run that broke all of it, else of the ranks that complained."""
        self._said = ()
        if self.writer is None:
            return
        kept = event.kept if event.exit_code else complaining(event.kept)
        words, where = in_few_words(kept, event.lines), self.writer.path / STDERR
        if not keep_noise(self.writer.path, kept, event.ras):
            return
        if event.exit_code:
            self._said = (*(f"output        {text}" for text in words), f"output kept   {where}")
        else:
            yield self._warn(f"libraries complained: {'; '.join(words)}; see {where}")

    def _network(self) -> Iterator[Event]:
        """What NCCL said of its network when the communicator was made, once."""
        assert self.writer is not None
        network = self.log.network()
        if network is None or self.fabric.topology is None or self.spec.variant is not None:
            return
        self.writer.update_header(topology={**(self.writer.header.topology or {}), "network": network.to_json()})
        warnings = [text for node in self.fabric.topology.nodes[:1] if (text := socket_warning(network, node)) is not None]
        for text in warnings:
            yield self._warn(text)

    def _warn(self, text: str) -> Warned:
        assert self.writer is not None
        self.writer.update_header(warnings=(*self.writer.header.warnings, text))
        return Warned(text=text)

    def _keep(self, content: Json) -> Kept:
        assert self.writer is not None
        assert self.joined is not None
        point = self.log.tell(Point.from_json(content["point"]))
        if content["lateness_us"]:
            point = replace(point, lateness_us=condense(content["lateness_us"], node_names(self.joined), self.spec.keep_ranks))
        if content["wrong"]:
            point = replace(point, reason=self._culprit(point.reason or "", content["wrong"]["rank"]))
        self.writer.append(point)
        self._sizes.add((point.collective, point.nbytes))
        if content["batches_us"]:
            self.writer.append_record(BATCHES_FILE, {"point": self.writer.n_points - 1, "batches_us": content["batches_us"]})
        return Kept(point=point, ceiling=self.fabric.of(point))

    def _culprit(self, reason: str, rank: int) -> str:
        """The worker knows the rank; its host and GPU are known here."""
        assert self.joined is not None
        facts = self.joined.facts[rank]
        device = (facts.get("hello") or {}).get("device")
        gpu = f", GPU {device['index']}" if device else ""
        return reason.replace(f"rank {rank},", f"rank {rank} (host {facts['host']}{gpu}),", 1)

    def end_pass(self) -> None:
        """Keep what a probe found, and take NCCL's log away."""
        if self.writer is not None and self._probing:
            # The log also tells of our own small reductions: only sizes of the table count.
            found = tuple(row for row in self.log.choices() if (row["collective"], row["nbytes"]) in self._sizes)
            self.writer.update_header(algorithms=found)
        self.log.remove()

    def close(self, ended: Ended) -> Ended:
        """Write how the run ended; the last event, with where it is kept."""
        if self.writer is None:
            return ended
        path, n_points, lines = self.writer.path, self.writer.n_points, ended.lines
        more = self.writer.finish(datetime.now(UTC), ended.exit_code, ended.why or None, hang=self._hang)
        if ended.exit_code:
            lines = (*lines, f"kept          {n_points} case{'' if n_points == 1 else 's'} in {path}", *([more] if more else []))
        return replace(ended, lines=lines, path=path, n_points=n_points, algorithms=self.writer.header.algorithms)


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
