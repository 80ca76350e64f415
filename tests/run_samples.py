"""Run directories written for tests, through the real store."""

import math
import random

from nccl_bench.measure.stats import median, summarise
from nccl_bench.records import Group, Point, RunHeader
from nccl_bench.results.store import create_run


def header(**changes):
    base = {"tool": "nccl-bench 0.1.0", "argv": ("sweep",), "started_at": "2026-12-01T10:00:00Z", "launcher": "srun", "backend": "nccl"}
    return RunHeader(**{**base, "n_ranks": 8, "n_nodes": 1, **changes})


def point(nbytes=1 << 20, time_us=100.0, *, n_ranks=8, batches=60, rng=None, batch_frac=0.0, **changes):
    """One point; with `rng`, its batches vary by `batch_frac` around `time_us`, in six series."""
    series = [[time_us * math.exp(rng.gauss(0, batch_frac)) if rng else time_us for _ in range(batches // 6)] for _ in range(6)]
    medians = [median(one) for one in series]
    times = summarise([value for one in series for value in one], medians, 0.0)
    algbw = nbytes / times.median * 1e-3
    values = {
        "collective": "all_reduce",
        "dtype": "float32",
        "op": "sum",
        "root": None,
        "nbytes": nbytes,
        "requested_nbytes": nbytes,
        "count": nbytes // 4,
        "n_ranks": n_ranks,
        "group": Group(size=n_ranks),
        "placement": "in",
        "clock": "graph",
        "regime": "streaming",
        "registered": "none",
        "iters": batches * 64,
        "batches": batches,
        "series": 6,
        "series_us": tuple(medians),
        "ops_per_batch": 64,
        "sample": "batch",
        "time_us": times,
        "mean_over_ranks_us": times.median * 0.995,
        "algbw_GBps": algbw,
        "busbw_GBps": algbw * 2 * (n_ranks - 1) / n_ranks,
        "n_wrong": 0,
        "stop": "precision",
    }
    return Point(**{**values, **changes})


def write_run(path, points, **changes):
    """Make a run directory of these points."""
    writer = create_run(path, header(**changes))
    for one in points:
        writer.append(one)
    writer.close()
    return path


SIZES = tuple(8 << k for k in range(28))


def truth(nbytes):
    """A time that looks like all_reduce on one node, µs."""
    return 6.0 + nbytes / 2.4e5


def sweep(rng, *, run_frac=0.003, batch_frac=0.02, slower=lambda collective, nbytes: 1.0, collectives=("all_reduce", "broadcast"), **changes):
    """The points of one synthetic run: runs differ by `run_frac`, batches within a run by `batch_frac`, a case by `slower`."""
    points = []
    for collective in collectives:
        for nbytes in SIZES:
            time = truth(nbytes) * slower(collective, nbytes) * math.exp(rng.gauss(0, run_frac))
            points.append(point(nbytes, time, rng=rng, batch_frac=batch_frac, collective=collective, **changes))
    return points


def seeded(seed):
    return random.Random(seed)
