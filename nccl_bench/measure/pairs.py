"""The worker of pair tests: rounds of disjoint pairs, each one batched exchange on the world's communicator; no communicator a pair.

Started like measure.worker; what to do comes in NCCL_BENCH_PAIRS. Every rank's own time of every round goes to rank 0 in
one gathered number a rank; the supervisor is told one message a case.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch  # noqa: TID253
import torch.distributed  # noqa: TID253

from nccl_bench.errors import BUG, NcclBenchError, WrongDataError
from nccl_bench.launch.channel import WorkerChannel
from nccl_bench.launch.values import meeting_s
from nccl_bench.measure import worker
from nccl_bench.measure.clocks import MAX_DOUBLINGS, QueuedTimer, make_timer
from nccl_bench.measure.events import estimate_us
from nccl_bench.measure.pairs_spec import SPEC, Case, PairSpec, cases_of, rank_pairs, with_sizes
from nccl_bench.measure.stopping import ops_per_batch
from nccl_bench.measure.world import CollectiveError, World, first_line, open_world
from nccl_bench.records import Json

dist: Any = torch.distributed
BLOCK = 1 << 16
"""Bytes after which the pattern of a message repeats."""
PRIME = 251
MIN_BATCHES, MAX_BATCHES = 5, 25
MOST_OPS = 32
Call = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Who sits where."""

    node: tuple[int, ...]
    """[rank] number of its node."""
    local: tuple[int, ...]
    """[rank] local rank."""

    @classmethod
    def of(cls, world: World, node_index: int) -> Layout:
        """From every rank's own word."""
        nodes, locals_ = world.gather(float(node_index)), world.gather(float(world.seat.local_rank))
        return cls(node=tuple(map(int, nodes)), local=tuple(map(int, locals_)))


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run one worker of pair tests; the return value is the process's exit code."""
    channel = WorkerChannel.from_environ(environ)
    warnings.simplefilter("ignore")
    try:
        return _work(channel, environ)
    except Exception as err:
        channel.send("error", **worker._describe(err))
        sys.stderr.flush()
        os._exit(err.exit_code if isinstance(err, NcclBenchError) else BUG)


def _work(channel: WorkerChannel, environ: Mapping[str, str]) -> int:
    spec = PairSpec.from_json(json.loads(environ[SPEC]))
    hello = worker._hello(environ)
    channel.send("hello", **hello)
    go = channel.receive(None)
    assert go is not None
    channel.enter(-1, 0, "meet", "opening the world")
    os.environ.update(go.get("env") or {})
    meet_s = meeting_s(go["world_size"], spec.timeout_s)
    index = hello["device"]["index"] if hello["device"] else None
    world = open_world(go, spec.timeout_s, meet_s, lambda port: channel.send("store", port=port), index, channel.meeting_step)
    channel.send("ready", setup=world.setup)
    channel.enter(-1, 0, "setup", "allocating buffers", spec.timeout_s)
    spec = with_sizes(spec, world.backend)
    n_wrong = 0
    layout = Layout.of(world, int(go["node_index"]))
    cases = tuple(cases_of(spec, max(layout.node) + 1, max(layout.local) + 1))
    channel.send("cases", n=len(cases))

    def report(number: int, case: Case, phase: str, batch: int) -> None:
        world.set_deadline()
        channel.enter(number, len(cases), phase, case.label(), world.timeout_s)  # type: ignore[arg-type]
        channel.tick(phase, batch)  # type: ignore[arg-type]

    for message in measure(world, layout, spec, cases, report):
        n_wrong += message["n_wrong"]
        if world.rank == 0:
            channel.send("pairs", **message)
    channel.enter(-1, 0, "done", "leaving", spec.timeout_s)
    world.close()
    channel.send("done", exit_code=WrongDataError.exit_code if n_wrong else 0, why=f"wrong data in {n_wrong} exchanges" if n_wrong else "")
    return 0


def measure(world: World, layout: Layout, spec: PairSpec, cases: Sequence[Case], report: Callable[[int, Case, str, int], None]) -> Iterator[Json]:
    """One message a case, the same on every rank: {level, round, nbytes, way, pairs, us [rank], mean_us [rank], n_wrong}."""
    largest = max((case.nbytes for case in cases), default=BLOCK)
    send, receive = (torch.empty(max(largest, BLOCK), dtype=torch.uint8, device=world.device) for _ in range(2))
    _fill(send, world.rank)
    for number, case in enumerate(cases):
        report(number, case, "setup", 0)
        peers = rank_pairs(case, layout.node, layout.local)
        peer, sends, receives = _part(case, peers, world.rank)
        out, into = send[: case.nbytes], receive[: case.nbytes]
        receive.fill_(255)
        call = _exchange(world, out if sends else None, into if receives else None, peer)
        try:
            times = _time(world, call, spec, lambda batch, number=number, case=case: report(number, case, "time", batch))  # type: ignore[misc]
        except RuntimeError as err:
            raise CollectiveError(f"{case.label()}: {first_line(err)}") from err
        wrong = int(receives and peer is not None and not _matches(into, peer))
        everyone = world.gather_rows((float(wrong), *(times if peer is not None else (0.0, 0.0))))
        wrong_by_rank = [row[0] for row in everyone]
        yield {
            "level": case.level, "round": case.round, "nbytes": case.nbytes, "way": case.way, "pairs": [list(pair) for pair in peers],
            "us": [round(row[1], 4) for row in everyone], "mean_us": [round(row[2], 4) for row in everyone], "n_wrong": int(sum(wrong_by_rank)),
            "wrong_ranks": [rank for rank, value in enumerate(wrong_by_rank) if value],
        }  # fmt: skip


def _part(case: Case, peers: Sequence[tuple[int, int]], rank: int) -> tuple[int | None, bool, bool]:
    """(partner, whether this rank sends, whether it receives) in one case."""
    for a, b in peers:
        if rank in (a, b):
            return (
                (b if rank == a else a),
                case.way == "both" or rank == (a if case.way == "ab" else b),
                case.way == "both" or rank == (b if case.way == "ab" else a),
            )
    return None, False, False


def _exchange(world: World, out: torch.Tensor | None, into: torch.Tensor | None, peer: int | None) -> Call:
    """One batch_isend_irecv on the world's group; nothing for who rests."""
    batch = [] if out is None else [dist.P2POp(dist.isend, out, peer, world.group)]
    batch += [] if into is None else [dist.P2POp(dist.irecv, into, peer, world.group)]

    def call() -> None:
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    return call if batch else lambda: None


def _time(world: World, call: Call, spec: PairSpec, report: Callable[[int], None]) -> tuple[float, float]:
    """This rank's own median and mean of batches, µs an exchange; counts are agreed by all ranks. A stall now and then shows in the mean alone."""
    report(0)
    first_us = max(estimate_us(world, [call]), 0.1)
    k = min(ops_per_batch(first_us, None), MOST_OPS)
    n_batches = max(MIN_BATCHES, min(MAX_BATCHES, int(spec.budget_s * 1e6 / (first_us * k))))
    timer = make_timer("queued" if world.on_gpu else "host", world, [call], k, False)
    try:
        for attempt in range(MAX_DOUBLINGS + 2):
            report(1 + attempt)
            series = timer.series(n_batches)
            usable = [value for value in series.batches_us if math.isfinite(value)]
            enough = world.agree(2 * len(usable) > n_batches)
            if enough or not isinstance(timer, QueuedTimer):
                break
            timer.double()
        return (statistics.median(usable), statistics.fmean(usable)) if usable else (math.inf, math.inf)
    finally:
        timer.close()


def _pattern(rank: int, device: torch.device) -> torch.Tensor:
    """BLOCK bytes that tell whose they are."""
    steps = torch.arange(BLOCK, dtype=torch.int32, device=device)
    return ((steps * (rank % 97 + 1) + rank) % PRIME).to(torch.uint8)


def _fill(tensor: torch.Tensor, rank: int) -> None:
    tensor[: len(tensor) // BLOCK * BLOCK].view(-1, BLOCK).copy_(_pattern(rank, tensor.device))


def _matches(received: torch.Tensor, rank: int) -> bool:
    pattern = _pattern(rank, received.device)
    if len(received) < BLOCK:
        return bool(torch.equal(received, pattern[: len(received)]))
    return bool((received[: len(received) // BLOCK * BLOCK].view(-1, BLOCK) == pattern).all())


if __name__ == "__main__":
    sys.exit(main())
