"""Runs for the tests of reports, made up: what a sweep writes on H100 nodes, with times from latency + bytes / rate."""

import json
import random
from dataclasses import asdict as asdict
from datetime import UTC, datetime
from pathlib import Path

from nccl_bench.collectives import COLLECTIVES, bus_factor, count_elements, effective_nbytes
from nccl_bench.fabric.spec import topology_of
from nccl_bench.fabric.topology import topology_json
from nccl_bench.records import Group, Pair, Point, RunHeader, Times, with_bandwidth
from nccl_bench.results.store import create_run

ROOT = Path(__file__).parent.parent
SIZES = tuple(8 << shift for shift in range(0, 31, 2))
"""8 B to 8 GiB, each four times the one before."""
LATENCY_US = 20.0
PEAK_GBps = {"all_reduce": 470.0, "all_gather": 370.0, "reduce_scatter": 370.0, "sendrecv": 48.0}
"""Two nodes of 8 H100 with 8x 400G InfiniBand."""
COLLECTIVES_RUN = ("all_reduce", "all_gather", "reduce_scatter", "sendrecv")


def header(nodes=2, per_node=8, *, host="gpu-{:03d}", gpu="NVIDIA H100 80GB HBM3", nics="8x400-IB", topology=True, **changes):
    """The header of a run on H100 nodes."""
    hosts = [host.format(node) for node in range(1, nodes + 1)]
    ranks = tuple(
        {
            "rank": node * per_node + local,
            "host": name,
            "local_rank": local,
            "pid": 1000 + local,
            "gpu": {"index": local, "name": gpu, "uuid": None, "pci": f"0000:{local + 1:02x}:00.0", "memory_nbytes": 85_000_000_000},
        }
        for node, name in enumerate(hosts)
        for local in range(per_node)
    )
    record = None
    if topology:
        record = topology_json(topology_of(f"{per_node}xH100-SXM", nics, nodes))
        for node, name in zip(record["nodes"], hosts, strict=True):
            node["host"] = name
    values = {
        "tool": "nccl-bench 0.1.0",
        "argv": ("/usr/bin/nccl-bench", "sweep"),
        "started_at": "2026-12-01T10:00:00Z",
        "ended_at": "2026-12-01T10:05:00Z",
        "exit_code": 0,
        "launcher": "srun",
        "job": "4711",
        "backend": "nccl",
        "n_ranks": nodes * per_node,
        "n_nodes": nodes,
        "ranks": ranks,
        "versions": {"nccl_bench": "0.1.0", "torch": "2.11.0", "nccl": "2.28.9", "cuda": "13.0", "driver": "580.95"},
        "spec": {"collectives": list(COLLECTIVES_RUN), "regime": "streaming", "clocks": ["auto"], "dtypes": ["float32"]},
        "topology": record,
        "env": {"NCCL_IB_HCA": "mlx5", "SLURM_JOB_NODELIST": f"gpu-[001-{nodes:03d}]"},
        "setup": {"meet_s": 0.2, "torch_import_s": 3.1},
    }
    return RunHeader(**{**values, **changes})


def point(
    collective="all_reduce", nbytes=1 << 20, n=16, *, share=1.0, latency=LATENCY_US, noise=0.002, clock="queued", regime="streaming", **changes
):
    """A point whose time is latency + bytes x factor / (share x what such nodes reach)."""
    moved = effective_nbytes(collective, nbytes, n, 4)
    if moved == 0:
        return Point(
            collective=collective, dtype="float32", op=None, root=None, nbytes=0, requested_nbytes=nbytes, count=0, n_ranks=n, placement="out",
            clock=clock, regime=regime, status="skipped", reason="the size rounds down to nothing for this many ranks",
        )  # fmt: skip
    us = latency + moved * bus_factor(collective, n) / (share * PEAK_GBps.get(collective, 300.0)) * 1e-3
    low, high = us * (1 - noise), us * (1 + noise)
    times = Times(median=us, mean=us * 1.001, min=low, max=us * (1 + 4 * noise), p95=us * (1 + 3 * noise), ci_low=low, ci_high=high)
    row = COLLECTIVES[collective]
    values = {
        "collective": collective, "dtype": "float32", "op": "sum" if row.reducing else None, "root": None, "nbytes": moved,
        "requested_nbytes": nbytes,
        "count": count_elements(collective, moved, n, 4), "n_ranks": n, "group": Group(size=n), "placement": row.placements[0],
        "shift": "ring" if collective == "sendrecv" else None, "clock": clock, "regime": regime, "registered": "none", "iters": 600, "batches": 10,
        "series": 6, "ops_per_batch": 64, "sample": "batch", "time_us": times, "mean_over_ranks_us": us, "n_wrong": 0, "stop": "precision",
        "started_at": "2026-12-01T10:01:00Z",
    }  # fmt: skip
    return with_bandwidth(Point(**{**values, **changes}), us)


def sweep(n=16, *, sizes=SIZES, collectives=COLLECTIVES_RUN, hosts=("gpu-001", "gpu-002"), eager=True, isolated=True, **changes):
    """The points of a whole sweep: the clock that counts, eager calls beside it, the isolated series at both ends."""
    points = []
    for name in collectives:
        for nbytes in sizes:
            points.append(point(name, nbytes, n, **changes))
            if eager:
                points.append(point(name, nbytes, n, **{**changes, "latency": 4 * LATENCY_US, "clock": "eager", "noise": 0.02}))
        for nbytes in (sizes[0], sizes[-1]) if isolated else ():
            late = {
                "nodes": {host: 2.0 + at for at, host in enumerate(hosts)},
                "worst": [{"rank": at, "host": host, "us": 3.0 + at} for at, host in enumerate(hosts)],
            }
            alone = point(name, nbytes, n, **{**changes, "latency": 2 * LATENCY_US, "regime": "isolated"})
            points.append(alone if alone.status != "ok" else Point.from_json({**alone.to_json(), "lateness_us": late}))
    return points


def pairs(names, slow=(), *, value=49.0, slow_value=24.0):
    """Points of all pairs, both directions at once; those with a slow host slower."""
    return [
        Point(
            collective="sendrecv", dtype="float32", op=None, root=None, nbytes=1 << 28, requested_nbytes=1 << 28, count=1 << 26, n_ranks=2,
            placement="out", clock="queued", regime="streaming", stage="pairs", busbw_GBps=slow_value if {a, b} & set(slow) else value,
            pair=Pair(level="node", round=0, src=names.index(a), dst=names.index(b), both=True), n_wrong=0,
            time_us=Times(median=5e3, mean=5e3, min=5e3, max=5e3),
        )
        for at, a in enumerate(names)
        for b in names[at + 1 :]
    ]  # fmt: skip


def write(path, head, points, *, verdict=None):
    """A run directory; its path."""
    writer = create_run(Path(path), head)
    for item in points:
        writer.append(item)
    if verdict is not None:
        writer.write_file("verdict.json", verdict)
    writer.finish(datetime(2026, 12, 1, 10, 5, tzinfo=UTC), head.exit_code if head.exit_code is not None else 0, head.why)
    return Path(path)


def write_fast(path, head, points):
    """The same without fsync, for many points."""
    folder = Path(path)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(head.to_json()))
    with (folder / "points.jsonl").open("w") as file:
        file.writelines(json.dumps(item if isinstance(item, dict) else item.to_json()) + "\n" for item in points)
    return folder


def soak(n_points, *, n=16, seed=1, sizes=SIZES):
    """Records of a sweep repeated until there are so many, pass after pass, with noise."""
    rng = random.Random(seed)
    once = [item.to_json() for item in sweep(n, sizes=sizes)]
    for number in range(n_points):
        record, at = dict(once[number % len(once)]), number // len(once)
        k = rng.gauss(1.0, 0.003)
        if record["time_us"] is not None:
            record["time_us"] = {key: None if value is None else value * k for key, value in record["time_us"].items()}
            record["busbw_GBps"] = None if record["busbw_GBps"] is None else record["busbw_GBps"] / k
        record["pass"] = at
        yield record
