"""Points to curves: the passes of a case pooled, cases of one kind in order of size, each beside its ceilings.

All that is shown is drawn from these values; the frame is read once and let go.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nccl_bench.fabric.ideal import Ceilings
from nccl_bench.records import Ceiling, RunHeader
from nccl_bench.report.curves import Curve, GroupSpread, Late, PairValue, Sample, Trouble, View
from nccl_bench.results.runs import Run
from nccl_bench.verdict.ceilings import RunCeilings, ceiling_of, latency_nbytes

if TYPE_CHECKING:
    import pandas as pd

KEYS = (
    *("kind", "collective", "dtype", "op", "root", "placement", "shift", "clock", "regime", "variant", "registered", "over_ranks", "axis"),
    "special",
    "n_ranks",
)
"""What all points of a curve share."""
_NUMBERS = ("median_us", "busbw_GBps", "ci_low_us", "ci_high_us", "p95_us")
_TOLD = ("nbytes", "requested_nbytes", "algorithm", "protocol", "slowest_ranks")
"""What a sample takes from the first of its passes."""
MIDDLE = (0.025, 0.975)
"""The middle 95 % of passes."""
Row = Mapping[Any, Any]


def views_of(runs: Sequence[tuple[Run, RunCeilings]], frame: pd.DataFrame, verdicts: Mapping[str, Mapping[str, Any]]) -> tuple[View, ...]:
    """Each run's view. `frame`: the points of all, as verdict.frame makes it."""
    labels = frame["run"].to_numpy(object)
    return tuple(_view(run, ceilings, frame[labels == run.label] if len(runs) > 1 else frame, verdicts.get(run.label)) for run, ceilings in runs)


def _view(run: Run, ceilings: RunCeilings, frame: pd.DataFrame, verdict: Mapping[str, Any] | None) -> View:
    paired = frame["pair_src"].notna().to_numpy()
    good = (frame["status"] == "ok").to_numpy()
    timed = good & ~paired & (frame["median_us"] > 0).to_numpy()
    curves, passes = _curves(run, ceilings, frame[timed])
    held = ceilings.of(run.header.n_ranks) if run.header.n_ranks else None
    late, than_us = _late(frame[timed & frame["lateness_us"].notna().to_numpy()])
    return View(
        label=run.label,
        run=run,
        ceilings=ceilings,
        assumptions=held.assumptions if held is not None else (),
        curves=curves,
        passes=passes,
        troubles=_troubles(frame[~good]),
        late=late,
        late_than_us=than_us,
        pairs=_pairs(run.header, frame[paired & good]),
        groups=_groups(frame[timed & (frame["n_groups"] > 1).to_numpy() & frame["spread_frac"].notna().to_numpy()]),
        throttle=Counter(reason for reasons in frame["throttle"].dropna() for reason in reasons),
        n_points=len(frame),
        verdict=verdict,
    )


# ---- curves ----


def _ids(frame: pd.DataFrame, names: Iterable[str]) -> Any:
    """[row] a number, the same for rows alike in all these columns."""
    import numpy as np
    import pandas as pd

    total = np.zeros(len(frame), dtype=np.int64)
    for name in names:
        column = frame[name]
        codes = column.cat.codes.to_numpy() if isinstance(column.dtype, pd.CategoricalDtype) else pd.factorize(column)[0]
        total = total * (int(codes.max(initial=0)) + 2) + codes + 1
        if total.max(initial=0) > 1 << 40:
            total = np.unique(total, return_inverse=True)[1]
    return np.unique(total, return_inverse=True)[1]


def _curves(run: Run, ceilings: RunCeilings, frame: pd.DataFrame) -> tuple[tuple[Curve, ...], dict[tuple[Any, ...], tuple[tuple[int, float], ...]]]:
    """The curves in the order of first appearance, and the bandwidth of each pass at each curve's largest size."""
    import numpy as np

    if frame.empty:
        return (), {}
    ways, cases = _ids(frame, KEYS), _ids(frame, (*KEYS, "nbytes"))
    firsts = np.unique(cases, return_index=True)[1]
    pooled = _pooled(frame, cases)
    of_way = ways[firsts]
    names = (*KEYS, *_TOLD)
    first = frame[list(names)].iloc[firsts]
    columns = [first[name].astype(object).where(first[name].notna(), None).tolist() for name in names]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    members: dict[int, list[int]] = {}
    for case, way in enumerate(of_way):
        members.setdefault(int(way), []).append(case)
    curves, passes = [], {}
    for way in sorted(members, key=lambda way: min(firsts[members[way]])):
        order = sorted(members[way], key=lambda case: float(rows[case]["nbytes"]))
        curve = _curve(run, ceilings, [rows[case] for case in order], [{key: pooled[key][case] for key in pooled} for case in order])
        curves.append(curve)
        if curve.largest.passes > 1:
            chosen = frame[cases == order[-1]]
            numbered = zip(chosen["pass"], chosen["busbw_GBps"], strict=True)
            passes[curve.way] = tuple((int(number), float(rate)) for number, rate in numbered if number == number and rate == rate)
    return tuple(curves), passes


def _pooled(frame: pd.DataFrame, cases: Any) -> dict[str, list[float]]:
    """By case: the medians over its passes, the interval, wrong elements (NaN where any pass was not checked)."""
    import numpy as np

    grouped = frame[list(_NUMBERS)].groupby(cases)
    found = grouped.median()
    sizes = grouped.size().to_numpy()
    several = sizes > 1
    if several.any():
        low, high = (grouped["median_us"].quantile(share).to_numpy() for share in MIDDLE)
        found["ci_low_us"] = np.where(several, low, found["ci_low_us"])
        found["ci_high_us"] = np.where(several, high, found["ci_high_us"])
    wrong = frame["n_wrong"].groupby(cases)
    found["n_wrong"] = np.where(wrong.count() == sizes, wrong.sum(), np.nan)
    found["passes"] = sizes
    return {str(name): found[name].tolist() for name in found.columns}


def _curve(run: Run, ceilings: RunCeilings, rows: Sequence[Row], pooled: Sequence[Mapping[str, float]]) -> Curve:
    first = rows[0]
    n_ranks = None if first["n_ranks"] is None else int(first["n_ranks"])
    held = ceilings.of_case({**first, "slowest_ranks": rows[-1]["slowest_ranks"]}) if first["kind"] in (None, "collective") else None
    chosen = {(str(row.get("collective")), row.get("nbytes")): row for row in run.header.algorithms}
    name = str(first["collective"])
    held_against = _held_against(held, name, first["shift"])
    samples = tuple(_sample(row, numbers, held_against, chosen) for row, numbers in zip(rows, pooled, strict=True))
    known = held is not None and name in held.collectives
    return Curve(
        run=run.label,
        **{key: first[key] for key in KEYS if key not in ("kind", "root", "n_ranks")},
        kind=first["kind"] or "collective",
        root=None if first["root"] is None else int(first["root"]),
        n_ranks=n_ranks,
        samples=samples,
        ceiling=held.of(name, samples[-1].algorithm, first["shift"]) if held is not None and known else None,
        floor_frac=held.floor.get(name) if held is not None and known else None,
    )


def _held_against(held: Ceilings | None, name: str, shift: str | None) -> Callable[[str | None, int], Ceiling]:
    """What a size is held against, by the algorithm that ran; the few different answers are made once."""
    known: dict[tuple[str | None, bool], Ceiling] = {}
    turns: dict[str | None, float] = {}

    def of(algorithm: str | None, nbytes: int) -> Ceiling:
        if algorithm not in turns:
            turns[algorithm] = latency_nbytes(held, name, shift=shift, algorithm=algorithm)
        key = (algorithm, nbytes < turns[algorithm])
        if key not in known:
            known[key] = ceiling_of(held, name, nbytes=nbytes, busbw_GBps=None, shift=shift, algorithm=algorithm)
        return known[key]

    return of


def _sample(
    row: Row, numbers: Mapping[str, float], held_against: Callable[[str | None, int], Ceiling], chosen: Mapping[tuple[str, Any], Row]
) -> Sample:
    nbytes = int(row["nbytes"])
    told = row if row["algorithm"] is not None else chosen.get((str(row["collective"]), nbytes), row)
    busbw = _number(numbers["busbw_GBps"])
    ceiling = held_against(told["algorithm"], nbytes)
    wrong = _number(numbers["n_wrong"])
    requested = row["requested_nbytes"]
    return Sample(
        nbytes=nbytes,
        requested_nbytes=nbytes if requested is None else int(requested),
        passes=int(numbers["passes"]),
        time_us=numbers["median_us"],
        low_us=_number(numbers["ci_low_us"]),
        high_us=_number(numbers["ci_high_us"]),
        busbw_GBps=busbw,
        p95_us=_number(numbers["p95_us"]),
        n_wrong=None if wrong is None else int(wrong),
        algorithm=told["algorithm"],
        protocol=told["protocol"],
        ceiling=ceiling,
    )


def _number(value: float) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


# ---- what else is in a run ----


def _troubles(frame: pd.DataFrame) -> tuple[Trouble, ...]:
    """Skipped and failed cases by collective, status and reason."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for name, status, reason, size in zip(*(frame[key] for key in ("collective", "status", "reason", "requested_nbytes")), strict=True):
        key = (str(name), str(status), reason if isinstance(reason, str) else "no reason was given")
        found.setdefault(key, []).append(int(size) if size == size else 0)
    return tuple(Trouble(collective=n, status=s, reason=r, sizes=tuple(sorted(set(sizes))), n=len(sizes)) for (n, s, r), sizes in found.items())


def _late(frame: pd.DataFrame) -> tuple[tuple[Late, ...], float | None]:
    """Hosts, then the worst ranks, each the latest first."""
    hosts: dict[str, list[float]] = {}
    ranks: dict[tuple[str, int], list[float]] = {}
    for record in frame["lateness_us"]:
        for host, us in _items(record, "nodes"):
            hosts.setdefault(host, []).append(us)
        for row in record.get("worst") or ():
            ranks.setdefault((str(row.get("host")), int(row.get("rank", -1))), []).append(float(row.get("us", 0.0)))
    found = [Late(who=host, host=host, rank=None, us=statistics.median(values)) for host, values in hosts.items()]
    found += [Late(who=f"rank {rank} ({host})", host=host, rank=rank, us=statistics.median(values)) for (host, rank), values in ranks.items()]
    than = float(frame["median_us"].median()) if len(frame) else None
    return tuple(sorted(found, key=lambda late: (late.rank is not None, -late.us))), than


def _items(record: Mapping[str, Any], key: str) -> Iterator[tuple[str, float]]:
    inner = record.get(key)
    if isinstance(inner, Mapping):
        yield from ((str(name), float(value)) for name, value in inner.items())


def _pairs(header: RunHeader, frame: pd.DataFrame) -> tuple[PairValue, ...]:
    """The largest size's pairs by name: ranks' hosts at node level, host and GPU number else."""
    names = {rank.get("rank"): rank for rank in header.ranks}
    hosts = list(dict.fromkeys(str(rank.get("host")) for rank in header.ranks))
    found = []
    columns = ("pair_src", "pair_dst", "pair_both", "pair_level", "nbytes", "busbw_GBps", "median_us", "clock")
    for src, dst, both, level, nbytes, rate, time, clock in zip(*(frame[name] for name in columns), strict=True):
        ends = [_end(int(end), str(level), names, hosts) for end in (src, dst)]
        found.append(
            PairValue(
                src=ends[0],
                dst=ends[1],
                both=bool(both),
                nbytes=int(nbytes),
                busbw_GBps=_number(rate),
                time_us=_number(time),
                clock=clock if isinstance(clock, str) else None,
            )
        )
    return tuple(found)


def _end(end: int, level: str, names: Mapping[Any, Mapping[str, Any]], hosts: Sequence[str]) -> str:
    if level == "node":
        return hosts[end] if end < len(hosts) else f"node {end}"
    rank = names.get(end)
    return f"rank {end}" if rank is None else f"{rank.get('host')}:{rank.get('local_rank')}"


def _groups(frame: pd.DataFrame) -> tuple[GroupSpread, ...]:
    columns = ("collective", "axis", "nbytes", "n_groups", "spread_frac", "slowest_ranks")
    return tuple(
        GroupSpread(
            collective=str(name),
            axis=str(axis),
            nbytes=int(nbytes),
            n_groups=int(n),
            spread_frac=float(spread),
            slowest=tuple(map(int, slowest or ())),
        )
        for name, axis, nbytes, n, spread, slowest in zip(*(frame[key] for key in columns), strict=True)
    )
