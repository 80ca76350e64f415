"""Real gloo ranks for tests of the measuring room: N spawned processes, one world, a function on each."""

from __future__ import annotations

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
