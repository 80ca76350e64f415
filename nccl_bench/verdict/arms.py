"""The two sides of a comparison: the measurements of each case, and which case of one side stands against which of the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nccl_bench.records import RunHeader
from nccl_bench.units import counted

if TYPE_CHECKING:
    import pandas as pd

SUBJECT = ("kind", "stage", "collective", "nbytes", "axis", "pair_level", "pair_src", "pair_dst", "pair_both", "special")
"""What is measured: cases that differ here have nothing to do with each other."""
CONDITIONS = ("backend", "dtype", "op", "root", "n_ranks", "placement", "shift", "clock", "regime", "variant", "registered")
"""How it is measured: cases that differ here are not comparable, and the reason is said. The backend is its run's."""
_OPTIONAL = ("registered", "n_ranks", "dtype", "op", "root", "shift")
"""Conditions that a foreign log may not tell: unknown stands against anything. So does a backend that nothing tells."""
_VALUES = ("median_us", "mean_over_ranks_us", "busbw_GBps", "ci_low_us", "ci_high_us", "p95_us", "series_us", "batches", "ops_per_batch", "n_wrong")
_MORE = ("over_ranks", "status", "reason", "source", "run", "sample", "requested_nbytes")
LAUNCH_BOUND_US = 100.0
"""Below this the launching of calls shows in a time: DESIGN.md section 2, eager calls take 32-45 µs where the wire needs 6."""
MAX_OPS_APART, MIN_OPS = 4.0, 16
"""512 B read 6.7 µs at 6 operations a batch and 5.9 at 32 (DESIGN.md section 2): what one batch's ends cost a short operation."""

MIN_SERIES = 4
"""Series, each warmed up and met anew, from which their spread tells the error of a run's median; with fewer its interval does."""

Case = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One point of one run, as numbers."""

    median_us: float
    mean_us: float | None
    """Mean over ranks."""
    busbw_GBps: float | None
    se: float | None
    """Standard error of the log of the time within the run, by its interval or series; None where it has neither."""
    df: float
    """Degrees of freedom of `se`."""
    spread: float | None
    """Standard deviation of the logs of its series."""
    ops_per_batch: float | None
    n_wrong: float | None
    over_ranks: str
    run: str
    source: str | None


@dataclass(slots=True)
class Arm:
    """One case on one side."""

    subject: Case
    conditions: Case
    found: list[Measurement] = field(default_factory=list)
    problem: str | None = None
    """Why it was skipped or failed, where it has no measurement."""
    failed: bool = False
    """Whether a measurement of it was tried and failed."""
    n_wrong: int = 0
    """Wrong elements of all its points, those without a time too."""

    def get(self, name: str) -> Any:
        """A field of the case by its column's name."""
        return self.subject[SUBJECT.index(name)] if name in SUBJECT else self.conditions[CONDITIONS.index(name)]

    @property
    def is_max(self) -> bool:
        """Whether all times are maxima over ranks."""
        return all(item.over_ranks == "max" for item in self.found)

    @property
    def has_mean(self) -> bool:
        """Whether all have a mean over ranks."""
        return all(item.mean_us is not None for item in self.found)

    @property
    def imported(self) -> bool:
        """Whether all come from somebody else's log, rounded as printed."""
        return all(item.source is not None for item in self.found)


@dataclass(frozen=True, slots=True)
class Match:
    """A case of one side and what stands against it."""

    base: Arm | None
    new: Arm | None
    reason: str | None = None
    """Why the two cannot be compared; None where they can."""


def backend_of(header: RunHeader) -> str | None:
    """What a run measured, in a word that tells what its numbers can be held against; None where nothing says it."""
    if header.not_nccl:
        return "gloo"
    if header.shared_gpu:
        return "ranks that share a GPU"
    return "NCCL" if header.backend == "nccl" else header.backend


def arms_of(frame: pd.DataFrame, backends: Mapping[str, str | None]) -> list[Arm]:
    """The cases of one side, all its runs and passes together, in order of appearance. Cases of 0 bytes are none.

    `backends`: of each run, by its label.
    """
    names = (*SUBJECT, *CONDITIONS, *_VALUES, *_MORE)
    runs = _plain(frame["run"])
    columns = [[backends.get(run) for run in runs] if name == "backend" else _plain(frame[name]) for name in names]
    arms: dict[tuple[Case, Case], Arm] = {}
    for row in zip(*columns, strict=True):
        subject, conditions = row[: len(SUBJECT)], row[len(SUBJECT) : len(SUBJECT) + len(CONDITIONS)]
        values = dict(zip(names[len(SUBJECT) + len(CONDITIONS) :], row[len(SUBJECT) + len(CONDITIONS) :], strict=True))
        if not subject[SUBJECT.index("nbytes")] and values["status"] == "skipped":
            continue
        arm = arms.setdefault((subject, conditions), Arm(subject, conditions))
        arm.n_wrong += int(values["n_wrong"] or 0)
        arm.failed |= values["status"] == "failed"
        if values["status"] != "ok" or not values["median_us"] or values["median_us"] <= 0:
            arm.problem = arm.problem or values["reason"] or f"{values['status']} without a time"
        else:
            arm.found.append(_measurement(values))
    return list(arms.values())


def _plain(column: pd.Series[Any]) -> list[Any]:
    """A column as Python values, None for what is missing, whole numbers as int."""
    values = column.astype(object).where(column.notna(), None).tolist()
    return [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]


def _measurement(values: Mapping[str, Any]) -> Measurement:
    se, df, spread = _within(values)
    return Measurement(
        median_us=float(values["median_us"]),
        mean_us=_positive(values["mean_over_ranks_us"]),
        busbw_GBps=_positive(values["busbw_GBps"]),
        se=se,
        df=df,
        spread=spread,
        ops_per_batch=values["ops_per_batch"],
        n_wrong=values["n_wrong"],
        over_ranks=values["over_ranks"] or "max",
        run=values["run"],
        source=values["source"],
    )


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _within(values: Mapping[str, Any]) -> tuple[float | None, float, float | None]:
    """(standard error of the log time within a run, its degrees of freedom, spread of its series)."""
    series = [math.log(value) for value in values["series_us"] or () if isinstance(value, int | float) and value > 0]
    spread = _deviation(series) if len(series) > 1 else None
    if spread is not None and len(series) >= MIN_SERIES:
        return spread / math.sqrt(len(series)), float(len(series) - 1), spread
    low, high = values["ci_low_us"], values["ci_high_us"]
    if low and high and 0 < low <= high:
        # A 95 % interval is 2 x 1.96 standard errors wide.
        return math.log(high / low) / 3.92, max(3.0, min(float(values["batches"] or 0), 60.0) - 1), spread
    batches, median, p95 = float(values["batches"] or 0), values["median_us"], values["p95_us"]
    if batches >= MIN_SERIES and p95 and p95 > median:
        # The 95th percentile of a normal distribution lies 1.645 deviations out; a median spreads sqrt(pi/2) times as much as a mean.
        return math.sqrt(math.pi / 2 / batches) * math.log(p95 / median) / 1.645, batches - 1, spread
    return None, 1.0, spread


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def match(base: Sequence[Arm], new: Sequence[Arm]) -> list[Match]:
    """Every case of both sides: with its like, with the nearest that is not comparable (and why), or alone."""
    exact = {(arm.subject, arm.conditions): arm for arm in new}
    matches: list[Match] = []
    left: list[Arm] = []
    for arm in base:
        other = exact.pop((arm.subject, arm.conditions), None)
        if other is None:
            left.append(arm)
        else:
            matches.append(Match(arm, other, _reason(arm, other)))
    return matches + _nearest(left, list(exact.values()))


def _nearest(base: Sequence[Arm], new: Sequence[Arm]) -> list[Match]:
    """Pairs of one subject each, those with the fewest differences first; then what is left alone."""
    others: dict[Case, list[int]] = {}
    for j, arm in enumerate(new):
        others.setdefault(arm.subject, []).append(j)
    pairs = [(len(_differences(arm, new[j])), i, j) for i, arm in enumerate(base) for j in others.get(arm.subject, ())]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for _, i, j in sorted(pairs):
        if i not in partner and j not in taken:
            partner[i] = j
            taken.add(j)
    matches = [Match(arm, new[partner[i]], _reason(arm, new[partner[i]])) if i in partner else Match(arm, None) for i, arm in enumerate(base)]
    return matches + [Match(None, arm) for j, arm in enumerate(new) if j not in taken]


def _differences(base: Arm, new: Arm) -> list[str]:
    """Names of the conditions that differ; what one side does not know does not differ."""
    names = []
    for name, ours, theirs in zip(CONDITIONS, base.conditions, new.conditions, strict=True):
        silent = name == "backend" or (name in _OPTIONAL and (base.imported or new.imported))
        unknown = silent and (ours is None or theirs is None)
        if ours != theirs and not unknown:
            names.append(name)
    return names


def _reason(base: Arm, new: Arm) -> str | None:
    """Why two cases are not comparable; None where they are."""
    if not base.found or not new.found:
        return None
    if wrong := _wrong(base, new):
        return wrong
    different = _differences(base, new)
    unknown_clock = different == ["clock"] and None in (base.get("clock"), new.get("clock"))
    if different and not (unknown_clock and _fastest(base, new) >= LAUNCH_BOUND_US):
        words = ", ".join(f"{name.replace('n_ranks', 'ranks')} {_word(name, base)} against {_word(name, new)}" for name in different)
        return f"{words}, and below {LAUNCH_BOUND_US:.0f} µs launching counts" if unknown_clock else words
    return _over_ranks(base, new) or _batching(base, new)


def _word(name: str, arm: Arm) -> str:
    value = arm.get(name)
    if name == "clock" and value is None:
        return "the log's own"
    return "unknown" if value is None else str(value)


def _fastest(base: Arm, new: Arm) -> float:
    return min(item.median_us for arm in (base, new) for item in arm.found)


def wrong_data(base: Arm | None, new: Arm | None) -> str | None:
    """Which sides computed wrong results, with how many elements, whatever stands against them; None where none did."""
    found = []
    for side, arm in (("BASE", base), ("NEW", new)):
        if arm is not None and arm.n_wrong:
            found.append(f"{side}: {counted(arm.n_wrong, 'element')}")
    return f"wrong data in {', '.join(found)}" if found else None


def _wrong(base: Arm, new: Arm) -> str | None:
    wrong = wrong_data(base, new)
    return f"{wrong}, so its speed says nothing" if wrong else None


def _over_ranks(base: Arm, new: Arm) -> str | None:
    if base.is_max and new.is_max:
        return None
    if base.has_mean and new.has_mean:
        return None
    words = {item.over_ranks for arm in (base, new) for item in arm.found}
    if len(words) == 1:
        return None
    return f"times are over ranks as {' against '.join(sorted(words))}, and one side has no mean"


def _batching(base: Arm, new: Arm) -> str | None:
    """Short operations timed in batches of very different, or small, numbers."""
    if _fastest(base, new) >= LAUNCH_BOUND_US or base.get("regime") == "isolated" or base.get("clock") in ("eager", "host", "cpu"):
        return None
    ops = [sorted({item.ops_per_batch for item in arm.found if item.ops_per_batch}) for arm in (base, new)]
    if not all(ops):
        return None
    low, high = min(ops[0][0], ops[1][0]), max(ops[0][-1], ops[1][-1])
    if low >= MIN_OPS and high <= MAX_OPS_APART * low:
        return None
    return f"{ops[0][0]:g} against {ops[1][0]:g} operations a batch, which counts below {LAUNCH_BOUND_US:.0f} µs"
