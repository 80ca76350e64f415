"""The pictures of a certificate: bandwidth by stage against what is expected, the matrix of pairs, hosts beside each other. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nccl_bench.records import Json, RunHeader
from nccl_bench.report.page import Dots, Heat, Picture
from nccl_bench.report.terminal import banner
from nccl_bench.units import counted, format_size

MAX_ROWS = 40
"""Rows of dots; of more worlds the slowest of each stage and collective."""


def pictures(verdict: Json, header: RunHeader) -> tuple[Picture, ...]:
    """Those that the data allows, the first for the first fold."""
    told = banner(not_nccl=header.not_nccl, shared_gpu=header.shared_gpu)
    about = (told or "").partition(":")[0]
    found = [_bandwidth(verdict, about), _matrix(verdict, about), _hosts(verdict, about)]
    return tuple(picture for picture in found if picture is not None)


def _caption(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _failed(verdict: Json, stage: str, collective: str) -> bool:
    rows = [row for row in verdict["rows"] if row["stage"] == stage and row["criterion"].startswith(collective)]
    return any(row["status"] == "fail" for row in rows)


def _bandwidth(verdict: Json, about: str) -> Picture | None:
    """The slowest world of every stage and collective, each against its expected band."""
    slowest: dict[tuple[str, str], Json] = {}
    for one in verdict["measured"]:
        key = (one["stage"], one["collective"])
        if key not in slowest or one["busbw_GBps"] < slowest[key]["busbw_GBps"]:
            slowest[key] = one
    chosen = list(slowest.values())[:MAX_ROWS]
    if not chosen:
        return None
    bands = tuple(_band(one) for one in chosen)
    size = format_size(max(one["nbytes"] for one in chosen))
    unknown = sum(band is None for band in bands)
    values = tuple(float(one["busbw_GBps"]) for one in chosen)
    worst = min((value / band[0] for value, band in zip(values, bands, strict=True) if band is not None and band[0] > 0), default=None)
    words = f"Bus bandwidth of {len(chosen)} stages and collectives" + (
        "; what to expect is not known" if worst is None else f"; the lowest is {worst:.0%} of the low end of what is expected"
    )
    note = "Band: what healthy systems of this kind reach." if unknown < len(chosen) else "What to expect here is not known: no band."
    note += f" {unknown} without a band: not known." if 0 < unknown < len(chosen) else ""
    return Picture(
        name="bandwidth", title="Bus bandwidth by stage, against what is expected", note=note, words=words + ".",
        caption=_caption(about, f"largest size ({size}), slowest world of each stage, GB/s = 1e9 bytes/s"),
        other=Dots(
            names=tuple(_world(one) for one in chosen), values=values, label="bus bandwidth (GB/s)", bands=bands,
            marked=tuple(_failed(verdict, one["stage"], one["collective"]) for one in chosen),
        ),
    )  # fmt: skip


def _world(one: Json) -> str:
    where = f"{one['n_hosts']} hosts" if one["n_hosts"] > 1 else str(one["hosts"][0])
    return f"{one['stage']} {one['collective']} ({where})"


def _band(one: Json) -> tuple[float, float] | None:
    low, high = one["expected_low_GBps"], one["expected_high_GBps"]
    return None if low is None else (float(low), float(high if high is not None else low))


def _matrix(verdict: Json, about: str) -> Picture | None:
    """Pairs of hosts, large messages both ways at once."""
    matrix = verdict["matrix"]
    if matrix is None or len(matrix["hosts"]) < 2:
        return None
    values = tuple(tuple(row) for row in matrix["both_ways_GBps"])
    known = [value for row in values for value in row if value is not None]
    if not known:
        return None
    middle = statistics.median(known)
    hosts = tuple(matrix["hosts"])
    low, a, b = min((value, a, b) for a, row in enumerate(values) for b, value in enumerate(row) if value is not None)
    left_out = f"{matrix['left_out']} more hosts in pairs.jsonl" if matrix.get("left_out") else ""
    return Picture(
        name="pairs", title="Pairs of hosts: GB/s of the slowest local rank, both directions at once",
        caption=_caption(about, counted(len(hosts), "host"), left_out, f"median {middle:.3g} GB/s"),
        note="A dark row and column is a host; a dark cell alone a link; a dark block off the diagonal a boundary between groups.",
        words=f"Pairs of {counted(len(hosts), 'host')}: median {middle:.3g} GB/s, worst {hosts[a]} with {hosts[b]} at {low:.3g}.",
        other=Heat(rows=hosts, columns=hosts, values=values, low=0.0, high=max(known), label="GB/s"),
    )  # fmt: skip


def _hosts(verdict: Json, about: str) -> Picture | None:
    """Every host's own all_reduce beside the others': the spread between like nodes."""
    mine = [one for one in verdict["measured"] if one["stage"] == "node" and one["collective"] == "all_reduce" and one["n_hosts"] == 1]
    title = "all_reduce inside each host"
    values = {str(one["hosts"][0]): float(one["busbw_GBps"]) for one in mine}
    if len(values) < 2:
        values, title = _pair_medians(verdict), "Each host with the others: median of its pairs"
    if len(values) < 2:
        return None
    median = statistics.median(values.values())
    names = sorted(values, key=lambda host: values[host])[:MAX_ROWS]
    guilty = {one["host"] for one in verdict["suspects"]} | set(verdict["drain"])
    apart = (max(values.values()) - min(values.values())) / median if median else 0.0
    left_out = f"the slowest {len(names)} of {len(values)}" if len(values) > len(names) else counted(len(values), "host")
    return Picture(
        name="hosts", title=title, caption=_caption(about, left_out, f"largest to smallest {apart:.1%} of the median"),
        note="A diamond is a suspect or a host to drain.",
        words=f"{title}: median {median:.3g} GB/s, slowest {names[0]} with {values[names[0]]:.3g}.",
        other=Dots(names=tuple(names), values=tuple(values[name] for name in names), label="GB/s", median=median,
                   marked=tuple(name in guilty for name in names)),
    )  # fmt: skip


def _pair_medians(verdict: Json) -> dict[str, float]:
    matrix = verdict["matrix"]
    if matrix is None:
        return {}
    found: dict[str, list[float]] = {}
    for host, row in zip(matrix["hosts"], matrix["both_ways_GBps"], strict=True):
        found.setdefault(host, []).extend(value for value in row if value is not None)
    return {host: statistics.median(values) for host, values in found.items() if _enough(values)}


def _enough(values: Sequence[float]) -> bool:
    return len(values) > 0
