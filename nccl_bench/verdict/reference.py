"""Hosts under re-test against known-good partners: pair by pair and node by node, at the level that good hosts reach. Pure but for numpy."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nccl_bench.records import Json, Point
from nccl_bench.verdict.criteria import Threshold
from nccl_bench.verdict.evidence import LARGE_ONE, Evidence, Exchanges
from nccl_bench.verdict.rows import Row, Status

Key = tuple[str, int, int]
"""(collective, bytes, ranks) of a node's own measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Who is known to be good, and what good hosts reached in an earlier run."""

    hosts: tuple[str, ...]
    source: str
    """"--reference h1,h2", "run 2026..."."""
    backend: str | None = None
    """Of the earlier run; None where only hosts were named."""
    pairs: Mapping[int, float] = field(default_factory=dict)
    """Stratum of a pair -> median speed between good hosts then."""
    nodes: Mapping[Key, float] = field(default_factory=dict)
    """A good host's median bus bandwidth then, GB/s."""

    def to_json(self) -> Json:
        """As accept.json keeps it."""
        nodes = [[*key, rate] for key, rate in self.nodes.items()]
        return {"hosts": list(self.hosts), "source": self.source, "backend": self.backend, "pairs": {str(k): v for k, v in self.pairs.items()},
                "nodes": nodes}  # fmt: skip

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Reference:
        """The inverse of to_json."""
        nodes = {(str(name), int(nbytes), int(n)): float(rate) for name, nbytes, n, rate in record["nodes"]}
        return cls(
            hosts=tuple(record["hosts"]), source=str(record["source"]), backend=record["backend"],
            pairs={int(k): float(v) for k, v in record["pairs"].items()}, nodes=nodes,
        )  # fmt: skip


def levels(exchanges: Exchanges | None, hosts: Sequence[str], good: Sequence[str]) -> dict[int, float]:
    """Stratum -> median speed of exchanges between good hosts; large messages alone."""
    if exchanges is None or not len(exchanges):
        return {}
    both = _is(exchanges.src, hosts, good) & _is(exchanges.dst, hosts, good) & np.isfinite(exchanges.speed)
    strata = {int(number) for number in np.unique(exchanges.stratum[both]) if number <= LARGE_ONE}
    return {number: float(np.median(exchanges.speed[both & (exchanges.stratum == number)])) for number in strata}


def node_rates(points: Sequence[Point], rank_hosts: Sequence[str]) -> dict[str, dict[Key, float]]:
    """Host -> bus bandwidth of its own collectives at the largest size (stage node)."""
    found: dict[str, dict[Key, float]] = {}
    for point in points:
        ranks = tuple(point.group.slowest or ()) if point.group is not None else ()
        if point.stage != "node" or point.regime != "streaming" or not point.busbw_GBps or not ranks or point.status != "ok":
            continue
        found.setdefault(rank_hosts[ranks[0]], {})[point.collective, point.nbytes, len(ranks)] = point.busbw_GBps
    most: dict[str, int] = {}
    for name, nbytes, _n in (key for rates in found.values() for key in rates):
        most[name] = max(nbytes, most.get(name, 0))  # each by itself: what ranks share is rounded down to whole parts
    return {host: {key: rate for key, rate in rates.items() if key[1] == most[key[0]]} for host, rates in found.items()}


def node_levels(rates: Mapping[str, Mapping[Key, float]], good: Sequence[str]) -> dict[Key, float]:
    """What good hosts reach alone: the median over them."""
    keys = {key for host in good for key in rates.get(host, ())}
    return {key: statistics.median(rates[host][key] for host in good if key in rates.get(host, ())) for key in sorted(keys)}


def rows(
    reference: Reference, evidence: Evidence | None, points: Sequence[Point], rank_hosts: Sequence[str], hosts: Sequence[str], backend: str | None,
    spread: Threshold,
) -> list[Row]:  # fmt: skip
    """A row a host under re-test, for its pairs with good hosts and for each collective of its own."""
    source = f"known-good: {reference.source}; {spread.source}"
    good = [host for host in hosts if host in reference.hosts]
    tested = [host for host in hosts if host not in reference.hosts]
    if not tested:
        return [Row(criterion="re-test", stage="pairs", status="inconclusive", reason="every host is a known-good one", source=source)]
    if reference.backend is not None and reference.backend != backend:
        return [Row(criterion="re-test", stage="pairs", status="inconclusive", source=source,
                    reason=f"the known-good run was of {reference.backend}, this one of {backend}")]  # fmt: skip
    found = _pairs(reference, evidence, good, tested, spread, source)
    return found + _nodes(reference, node_rates(points, rank_hosts), good, tested, spread, source)


def _pairs(
    reference: Reference, evidence: Evidence | None, good: Sequence[str], tested: Sequence[str], spread: Threshold, source: str
) -> list[Row]:
    exchanges = None if evidence is None else evidence.exchanges
    names = () if evidence is None else evidence.hosts
    now = levels(exchanges, names, good)
    level = reference.pairs or now
    found = [
        Row(
            criterion="known-good hosts reach what they did", stage="pairs", status="warn", unit="frac", source=source,
            measured=round(now[stratum] / reference.pairs[stratum], 4), required=1 - spread.value,
            reason="the known-good hosts themselves are slower than in their run", hosts=tuple(good[:4]),
        )
        for stratum in sorted(set(now) & set(reference.pairs))
        if now[stratum] < (1 - spread.value) * reference.pairs[stratum]
    ]  # fmt: skip
    for host in tested:
        ratios = _ratios(exchanges, names, host, good, level)
        found.append(_judged(
            "pairs with known-good hosts", "pairs", host, ratios, spread, source,
            "no known-good host is here" if not good else "no level: two known-good hosts, or a recorded run, are needed" if not level
            else "no pair with a known-good host was measured",
        ))  # fmt: skip
    return found


def _ratios(exchanges: Exchanges | None, names: Sequence[str], host: str, good: Sequence[str], level: Mapping[int, float]) -> list[float]:
    if exchanges is None or not len(exchanges) or host not in names:
        return []
    mine = _is(exchanges.src, names, [host]) & _is(exchanges.dst, names, good)
    mine |= _is(exchanges.dst, names, [host]) & _is(exchanges.src, names, good)
    found = []
    for number, reached in level.items():
        rows = mine & (exchanges.stratum == number)
        # A pair that failed counts as nothing reached.
        found += [float(value) / reached for value in np.nan_to_num(exchanges.speed[rows], nan=0.0)]
    return found


def _nodes(
    reference: Reference, rates: Mapping[str, Mapping[Key, float]], good: Sequence[str], tested: Sequence[str], spread: Threshold, source: str
) -> list[Row]:
    level = reference.nodes or node_levels(rates, good)
    if not rates:
        return []
    found = []
    for host in tested:
        for name in dict.fromkeys(key[0] for key in level):
            ratios = [rate / level[key] for key, rate in rates.get(host, {}).items() if key[0] == name and key in level]
            text = f"{name} against known-good hosts"
            found.append(_judged(text, "node", host, ratios, spread, source, "not measured alike on both"))
    if not level:
        found.append(Row(criterion="against known-good hosts", stage="node", status="inconclusive", reason="no known-good host was measured alone",
                         source=source))  # fmt: skip
    return found


def _judged(criterion: str, stage: str, host: str, ratios: Sequence[float], spread: Threshold, source: str, why: str) -> Row:
    if not ratios:
        return Row(criterion=criterion, stage=stage, status="inconclusive", reason=why, source=source, hosts=(host,))
    ratio = statistics.median(ratios)
    status: Status = "pass" if ratio >= 1 - spread.value else "fail"
    return Row(
        criterion=criterion, stage=stage, status=status, measured=round(ratio, 4), required=round(1 - spread.value, 4), unit="frac",
        reason=f"median of {len(ratios)}" + ("" if status == "pass" else ", below what good hosts reach"), source=source, hosts=(host,),
    )  # fmt: skip


def _is(nodes: Any, names: Sequence[str], wanted: Sequence[str]) -> Any:
    return np.isin(nodes, [at for at, name in enumerate(names) if name in set(wanted)])
