"""Real gloo ranks for tests of the measuring room: N spawned processes, one world, a function on each."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_ranks(n: int, function: Callable[..., Any], *args: Any, timeout_s: float = 30.0) -> list[Any]:
    """What `function(world, *args)` returns on each of `n` gloo ranks; a rank's exception fails the test with its traceback."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        ranks = [context.Process(target=_rank, args=(rank, n, folder, timeout_s, function, args, queue)) for rank in range(n)]
        for process in ranks:
            process.start()
        try:
            answers = dict(queue.get(timeout=180) for _ in ranks)
        finally:
            for process in ranks:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()
    for rank, (ok, value) in sorted(answers.items()):
        assert ok, f"rank {rank}: {value}"
    return [answers[rank][1] for rank in range(n)]


def _rank(rank: int, n: int, folder: str, timeout_s: float, function: Callable[..., Any], args: tuple[Any, ...], queue: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    from nccl_bench.measure.world import Seatings, World

    seat = Seatings(rank=rank, size=n, local_rank=rank, local_size=n, n_nodes=1, ranks_per_node=n, one_host=True, backend="gloo", shared_gpu=False)
    world = World(seat, torch.device("cpu"), timeout_s)
    try:
        world.open(dist.FileStore(str(Path(folder) / "store"), n), 30.0)
        queue.put((rank, (True, function(world, *args))))
        world.close()
    except BaseException:
        queue.put((rank, (False, traceback.format_exc())))
    queue.close()
    queue.join_thread()


def sweep_on(world: Any, spec_fields: dict[str, Any], damage: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Measure a spec's cases in this world; the points as JSON, rank by rank the same but for what is local.

    damage: {"rank", "slot", "element"}: that rank's output is changed there after every call that writes the slot.
    """
    from nccl_bench.measure.cases import expand
    from nccl_bench.measure.ops import prepare
    from nccl_bench.measure.spec import SweepSpec, with_defaults
    from nccl_bench.measure.sweep import Sweeper, passes
    from nccl_bench.measure.worker import POOL_NBYTES, arena_sizes

    spec = with_defaults(SweepSpec(**spec_fields), "gloo")
    facts = world.facts(spec)
    planned = expand(spec, facts)
    world.reserve(arena_sizes(planned, facts.memory_nbytes, POOL_NBYTES["gloo"]), "none")
    sweeper = Sweeper(world, spec, damaged(prepare, damage) if damage else prepare)

    def report(_index: int, _item: Any) -> Callable[[str, int], None]:
        return lambda _phase, _batch: world.set_deadline()

    return [
        {**measured.point.to_json(), "lateness": list(measured.lateness_us), "wrong": measured.wrong}
        for _, _, measured in passes(sweeper, planned, report)
    ]


def damaged(prepare: Callable[..., Any], damage: dict[str, Any]) -> Callable[..., Any]:
    """`prepare` whose calls really corrupt one element of one rank's output in one slot, after the collective has run."""
    from dataclasses import replace

    def prepare_damaged(case: Any, world: Any, n_slots: int, pair: Any) -> Any:
        op = prepare(case, world, n_slots, pair)
        slot = damage["slot"]
        if world.rank != damage["rank"] or slot >= n_slots:
            return op
        row = next(region.rows[i] for region in op.outputs for i, label in enumerate(region.labels) if label.split()[1].rstrip(",") == str(slot))
        call = op.calls[slot]

        def damaging() -> None:
            call()
            row[damage["element"]] += 1

        return replace(op, calls=(*op.calls[:slot], damaging, *op.calls[slot + 1 :]))

    return prepare_damaged


def calls_between_clock_reads(world: Any, k: int) -> list[list[str]]:
    """What torch does between two clock reads of a host series of batches of k: names of operations, by batch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from nccl_bench.measure.cases import expand
    from nccl_bench.measure.clocks import HostTimer
    from nccl_bench.measure.ops import prepare
    from nccl_bench.measure.spec import SweepSpec

    spec = SweepSpec(collectives=("all_reduce",), sizes=(4096,))
    world.reserve([64 << 10], "none")
    op = prepare(expand(spec, world.facts(spec))[0].case, world, 4)
    op.fill()
    timer = HostTimer(world, op.calls, k, isolated=False)
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    import time

    real = time.perf_counter_ns
    marks: list[int] = []

    def marked() -> int:
        marks.append(len(seen))
        return real()

    time.perf_counter_ns = marked  # the clock itself tells where it was read
    try:
        with Watch():
            timer.series(3)
    finally:
        time.perf_counter_ns = real
    return [seen[a:b] for a, b in itertools.pairwise(marks)]


def domain_of_cliques(world: Any, cliques: tuple[float | None, ...]) -> bool:
    """Whether ranks on hosts of their own, with these cliques, make one NVLink domain."""
    from dataclasses import replace

    from nccl_bench.measure.spec import SweepSpec

    world.seat = replace(world.seat, one_host=False)
    return bool(world.facts(SweepSpec(), cliques[world.rank]).one_domain)


def against_a_bare_loop(world: Any, pairs: int, k: int = 4) -> list[tuple[float, float]]:
    """(ours, bare) µs a 1 MiB all_reduce, in batches of k, interleaved in one process in changing order, max over ranks."""
    import time

    import torch
    import torch.distributed as dist

    from nccl_bench.measure.cases import expand
    from nccl_bench.measure.clocks import HostTimer
    from nccl_bench.measure.ops import prepare
    from nccl_bench.measure.spec import SweepSpec

    spec = SweepSpec(collectives=("all_reduce",), sizes=(1 << 20,))
    world.reserve([4 << 20], "none")
    op = prepare(expand(spec, world.facts(spec))[0].case, world, k)
    timer = HostTimer(world, op.calls, k, isolated=False)
    buffers, one = [torch.ones(1 << 18) for _ in range(k)], torch.zeros(1)

    def ours() -> float:
        op.fill()
        return float(timer.series(1).batches_us[0])

    def bare() -> float:
        for buffer in buffers:
            buffer.fill_(1.0)
        for buffer in buffers:
            dist.all_reduce(buffer)
        dist.all_reduce(one)
        started = time.perf_counter()
        for buffer in buffers:
            dist.all_reduce(buffer)
        return (time.perf_counter() - started) * 1e6 / k

    values: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            theirs, mine = bare(), ours()
        else:
            mine, theirs = ours(), bare()
        values.append((mine, theirs))
    most = world.max_reduce([value for pair in values for value in pair])
    return list(zip(most[::2], most[1::2], strict=True))
