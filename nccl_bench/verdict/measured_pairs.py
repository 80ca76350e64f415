"""What a pair test measured as evidence: messages of its worker, or the lines of pairs.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from nccl_bench.records import Json
from nccl_bench.verdict.evidence import Exchanges, Inside, Mark, stratum

SMALL_NBYTES = 64 << 10
"""Messages up to here are judged by their time: latency outweighs bytes there (half of the rate is reached at 100 KiB and more)."""


def speed_of(nbytes: int, us: float) -> float:
    """More is better: GB/s of large messages, 1/µs of small ones; NaN where nothing was timed."""
    if not us > 0 or not math.isfinite(us):
        return math.nan
    return 1 / us if nbytes <= SMALL_NBYTES else nbytes / us * 1e-3


def exchanges_of(records: Iterable[Json], node: Sequence[int], local: Sequence[int]) -> Exchanges | None:
    """Exchanges between nodes; node and local: [rank]."""
    rows, means, rounds = [], [], []
    for record in records:
        if record["level"] != "node":
            continue
        for (a, b, speed), (_, _, mean) in zip(_ends(record), _ends(record, "mean_us"), strict=True):
            rows.append((node[a], node[b], local[a], speed, stratum(small=record["nbytes"] <= SMALL_NBYTES, both=record["way"] == "both")))
            means.append(mean)
            rounds.append(int(record["round"]))
    known = any(math.isfinite(mean) for mean in means)
    return Exchanges.of(rows, n_rails=max(local, default=0) + 1, means=means if known else None, rounds=rounds) if rows else None


def inside_of(records: Iterable[Json], node: Sequence[int], local: Sequence[int]) -> Inside | None:
    """Exchanges of GPUs of one node."""
    rows = []
    for record in records:
        if record["level"] != "gpu":
            continue
        for a, b, speed in _ends(record):
            rows.append((node[a], local[a], local[b], speed, stratum(small=record["nbytes"] <= SMALL_NBYTES, both=record["way"] == "both")))
    return Inside.of(rows) if rows else None


def _ends(record: Json, times: str = "us") -> Iterable[tuple[int, int, float]]:
    """(sender, receiver, speed); the slower of the two ends' clocks counts. Old records have no means: NaN."""
    us = record.get(times)
    for a, b in record["pairs"]:
        src, dst = (b, a) if record["way"] == "ba" else (a, b)
        yield src, dst, math.nan if us is None else speed_of(record["nbytes"], max(us[a], us[b]))


def wrong_data(records: Iterable[Json], hosts: Sequence[str], local: Sequence[int]) -> list[Mark]:
    """A mark for every rank that received wrong bytes; hosts: [rank]."""
    seen = {rank: record for record in records for rank in record.get("wrong_ranks", ())}
    return [
        Mark(
            kind="rank",
            host=hosts[rank],
            gpu=local[rank],
            text=f"wrong data received by rank {rank} in round {record['round'] + 1} of {record['level']} pairs",
        )
        for rank, record in sorted(seen.items())
    ]


def matrix(exchanges: Exchanges, hosts: Sequence[str]) -> Mapping[str, object]:
    """The slowest local rank of every pair of nodes: {hosts, large: [[GB/s]], small: [[µs]]}, row sends to column; null where not measured."""
    n = len(hosts)
    large: list[list[float | None]] = [[None] * n for _ in range(n)]
    small: list[list[float | None]] = [[None] * n for _ in range(n)]
    both: list[list[float | None]] = [[None] * n for _ in range(n)]
    for src, dst, speed, kind in zip(
        exchanges.src.tolist(), exchanges.dst.tolist(), exchanges.speed.tolist(), exchanges.stratum.tolist(), strict=True
    ):
        if not math.isfinite(speed):
            continue
        target, value = (large, speed) if kind == 1 else (both, speed) if kind == 0 else (small, 1 / speed)
        if kind == 2:
            continue
        for a, b in ((src, dst), (dst, src)) if kind == 0 else ((src, dst),):
            known = target[a][b]
            target[a][b] = value if known is None else max(known, value) if target is small else min(known, value)
    return {"hosts": list(hosts), "one_way_GBps": large, "both_ways_GBps": both, "one_way_us": small}
