"""Two sides of runs case by case: regression, improvement, within noise, missing, not comparable; in a sentence, by range of sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nccl_bench.errors import FAIL, INCONCLUSIVE, PASS, WrongDataError
from nccl_bench.records import Json
from nccl_bench.results.runs import Run
from nccl_bench.units import counted
from nccl_bench.verdict.arms import LAUNCH_BOUND_US, Arm, Match, arms_of, backend_of, match, wrong_data
from nccl_bench.verdict.frame import frame_of
from nccl_bench.verdict.noise import Noise, neighbours_noise, noise_of, time_of, uses_mean
from nccl_bench.verdict.significance import holm, t_quantile, two_sided_p

Verdict = Literal["regression", "improvement", "within noise", "missing", "not comparable"]
THRESHOLD = 0.03
"""Change of speed that matters, by default (CONTRACT.md, compare)."""
ALPHA = 0.05
"""The chance that a comparison calls any difference at all where there is none, as far as the noise is known; half of it are regressions."""
MIN_PRINTED_GBps = 1.0
"""From here on two printed decimals of busbw say more than 1 %; below, times are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case."""

    kind: str | None
    collective: str
    dtype: str | None
    op: str | None
    root: int | None
    nbytes: int
    n_ranks: int | None
    axis: str | None
    placement: str | None
    shift: str | None
    clock: str | None
    regime: str | None
    variant: str | None
    verdict: Verdict
    reason: str | None = None
    ratio: float | None = None
    """New time over base time: above 1 is slower."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    """95 % interval of the ratio."""
    change_frac: float | None = None
    """Change of speed: new over base, less 1; -0.12 is 12 % slower."""
    by: Literal["busbw", "time"] | None = None
    """What the change was worked out from."""
    over_ranks: Literal["max", "mean"] | None = None
    base_time_us: float | None = None
    new_time_us: float | None = None
    base_busbw_GBps: float | None = None
    new_busbw_GBps: float | None = None
    n_base: int = 0
    n_new: int = 0
    """Measurements (runs and passes) on each side."""
    p_value: float | None = None
    """Chance of such a difference where there is none, for this case alone."""
    noise_from: Literal["repeats", "series", "neighbours", "assumed"] | None = None
    """Where the interval and the chance come from: repeats of the case, the series of its runs, how neighbouring sizes scatter, or, for a
    table that prints one number a size, what two runs of one machine were seen to differ by."""
    wrong: str | None = None
    """Which sides computed wrong results, whatever the verdict on the speed."""
    failed: bool = False
    """Whether NEW tried it and has no measurement of it, where BASE has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All cases, and what to say of them."""

    base: tuple[str, ...]
    new: tuple[str, ...]
    threshold_frac: float
    cases: tuple[CaseResult, ...]
    summary: tuple[str, ...]
    """One sentence a collective."""
    changed: tuple[Json, ...]
    """What differs between the headers: [{what, base, new}]."""
    warnings: tuple[str, ...]
    exit_code: int
    why: str

    def counts(self) -> dict[str, int]:
        """How many cases have each verdict."""
        found = Counter(case.verdict for case in self.cases)
        return {verdict: found[verdict] for verdict in ("regression", "improvement", "within noise", "missing", "not comparable")}

    def to_json(self) -> Json:
        """The document that `compare --json` prints."""
        return {**asdict(self), "counts": self.counts()}


def compare_runs(base: Sequence[Run], new: Sequence[Run], threshold_frac: float = THRESHOLD) -> Comparison:
    """Compare two sides; several runs of one side are repeats of each other. Raises DataError where points cannot be read."""
    from nccl_bench.verdict.changes import changes_of, warnings_of

    torn: list[str] = []
    matches = match(_side(base, torn), _side(new, torn))
    cases = tuple(judge(matches, threshold_frac))
    exit_code, why = _exit(cases)
    return Comparison(
        base=tuple(run.label for run in base),
        new=tuple(run.label for run in new),
        threshold_frac=threshold_frac,
        cases=cases,
        summary=tuple(sentences(cases)),
        changed=tuple(changes_of(base, new)),
        warnings=(*torn, *warnings_of(base, new)),
        exit_code=exit_code,
        why=why,
    )


def _side(runs: Sequence[Run], torn: list[str]) -> list[Arm]:
    return arms_of(frame_of(runs, torn), {run.label: backend_of(run.header) for run in runs})


def judge(matches: Iterable[Match], threshold_frac: float = THRESHOLD) -> list[CaseResult]:
    """A verdict for every case, many comparisons allowed for."""
    matches = list(matches)
    comparable = [item for item in matches if item.base and item.new and item.reason is None and item.base.found and item.new.found]
    measured = {id(item): _measured(item) for item in comparable}
    around = _around(comparable, measured)
    for item in comparable:
        _add_chance(measured[id(item)], item, around)
    called = dict(zip(measured, holm([found["p_value"] for found in measured.values()], ALPHA), strict=True))
    siblings = _siblings(comparable, measured)
    results = []
    for item in matches:
        if id(item) in measured:
            found = measured[id(item)]
            verdict, reason = _verdict(found, threshold_frac, called[id(item)], siblings.get(id(item)), len(measured))
            results.append(_case(item, verdict, reason, found))
        else:
            results.append(_case(item, *_unmeasured(item), {}))
    return results


def _around(comparable: Sequence[Match], measured: dict[int, dict[str, Any]]) -> dict[bool, Noise]:
    """The noise that the neighbours of single measurements show."""
    ratios = []
    for item in comparable:
        if item.base is not None and item.new is not None and len(item.base.found) == len(item.new.found) == 1:
            found = measured[id(item)]
            series = (item.base.subject[:3], item.base.subject[4:], item.base.conditions)
            ratios.append((series, int(item.base.get("nbytes")), float(found["base_time_us"]), math.log(found["ratio"])))
    return neighbours_noise(ratios)


def _row(arm: Arm) -> tuple[Any, ...]:
    """What the two halves of a row of a log share."""
    return (*arm.subject, *(arm.get(name) for name in ("dtype", "op", "root", "n_ranks")))


def _measured(item: Match) -> dict[str, Any]:
    """The numbers of one comparison."""
    base, new = item.base, item.new
    if base is None or new is None:
        raise ValueError("a case without its like has no ratio")
    by_mean = uses_mean(base, new)
    times = [[time_of(found, by_mean=by_mean) for found in arm.found] for arm in (base, new)]
    rates = [_rates(arm) for arm in (base, new)]
    by_rate = base.imported and new.imported and all(rates) and min(map(min, rates)) >= MIN_PRINTED_GBps
    means = [math.fsum(values) / len(values) for values in (rates if by_rate else times)]
    change = means[1] / means[0] - 1 if by_rate else means[0] / means[1] - 1
    return {
        "ratio": 1 / (1 + change),
        "change_frac": change,
        "by": "busbw" if by_rate else "time",
        "over_ranks": "mean" if by_mean else "max" if base.is_max else None,
        "base_time_us": math.fsum(times[0]) / len(times[0]),
        "new_time_us": math.fsum(times[1]) / len(times[1]),
        "base_busbw_GBps": math.fsum(rates[0]) / len(rates[0]) if rates[0] else None,
        "new_busbw_GBps": math.fsum(rates[1]) / len(rates[1]) if rates[1] else None,
    }


def _add_chance(found: dict[str, Any], item: Match, around: dict[bool, Noise]) -> None:
    """Add the interval of the ratio and the chance of so large a difference: by the larger of the case's noise and its neighbours'."""
    base, new = item.base, item.new
    if base is None or new is None:
        return
    noise = noise_of(base, new)
    seen = around.get(found["base_time_us"] < LAUNCH_BOUND_US) if len(base.found) == len(new.found) == 1 else None
    if seen is not None and seen.se > noise.se:
        noise = seen
        found["noise_from"] = "neighbours"
    else:
        found["noise_from"] = _noise_from(base, new)
    log_ratio, reach = math.log(found["ratio"]), t_quantile(0.05, noise.df) * noise.se
    found["ratio_low"] = math.exp(max(log_ratio - reach, -700.0))
    found["ratio_high"] = math.exp(min(log_ratio + reach, 700.0))
    found["p_value"] = two_sided_p(log_ratio / noise.se, noise.df)


def _noise_from(base: Arm, new: Arm) -> str:
    if len(base.found) + len(new.found) > 2:
        return "repeats"
    return "assumed" if any(item.source is not None or (item.se is None and item.spread is None) for item in (*base.found, *new.found)) else "series"


def _rates(arm: Arm) -> list[float]:
    rates = [item.busbw_GBps for item in arm.found]
    return [rate for rate in rates if rate is not None] if None not in rates else []


def _siblings(comparable: Sequence[Match], measured: dict[int, dict[str, Any]]) -> dict[int, float]:
    """The change of the other half of the same row, for single logs."""
    rows: dict[tuple[Any, ...], list[Match]] = {}
    for item in comparable:
        if item.base is not None and item.new is not None and item.base.imported and len(item.base.found) == len(item.new.found) == 1:
            rows.setdefault(_row(item.base), []).append(item)
    pairs = [found for found in rows.values() if len(found) == 2]
    changes = {}
    for first, second in pairs:
        changes[id(first)] = measured[id(second)]["change_frac"]
        changes[id(second)] = measured[id(first)]["change_frac"]
    return changes


def _verdict(found: dict[str, Any], threshold_frac: float, called: bool, sibling: float | None, n_compared: int) -> tuple[Verdict, str | None]:
    change = found["change_frac"]
    if abs(change) <= threshold_frac:
        return "within noise", f"sure, but not more than {100 * threshold_frac:g} %" if called else None
    if not called:
        alone = found["p_value"] < ALPHA
        return "within noise", f"one of {n_compared} comparisons: can be chance" if alone else "not beyond what repeats differ by"
    if sibling is not None and sibling * change < 0 and abs(sibling) > threshold_frac:
        return "within noise", f"the other half of the row moves the other way ({100 * sibling:+.1f} %)"
    return ("regression" if change < 0 else "improvement"), None


def _unmeasured(item: Match) -> tuple[Verdict, str | None]:
    """The verdict of a case that has no ratio."""
    base, new = item.base, item.new
    if base is None or new is None:
        side, other = ("BASE", new) if base is None else ("NEW", base)
        problem = other.problem if other is not None and not other.found else None
        wrong = wrong_data(base, new)
        return "missing", f"not in {side}" + (f", and {problem} in the other" if problem else "") + (f"; {wrong}" if wrong else "")
    if item.reason is not None:
        return "not comparable", item.reason
    side, arm = ("BASE", base) if not base.found else ("NEW", new)
    return "missing", f"no measurement in {side}: {arm.problem or 'unknown why'}"


def _case(item: Match, verdict: Verdict, reason: str | None, found: dict[str, Any]) -> CaseResult:
    arm = item.base or item.new
    if arm is None:
        raise ValueError("a match has at least one side")
    fields = ("kind", "collective", "dtype", "op", "root", "nbytes", "n_ranks", "axis", "placement", "shift", "clock", "regime", "variant")
    return CaseResult(
        **{name: arm.get(name) for name in fields},
        verdict=verdict,
        reason=reason,
        wrong=wrong_data(item.base, item.new),
        failed=bool(item.base and item.base.found and item.new and item.new.failed and not item.new.found),
        n_base=len(item.base.found) if item.base else 0,
        n_new=len(item.new.found) if item.new else 0,
        **found,
    )


def _exit(cases: Sequence[CaseResult]) -> tuple[int, str]:
    wrong = [case for case in cases if case.wrong is not None]
    failed = [case for case in cases if case.failed]
    slower = [case for case in cases if case.verdict == "regression"]
    n_compared = sum(case.ratio is not None for case in cases)
    if wrong:
        return WrongDataError.exit_code, f"{wrong[0].collective} {wrong[0].nbytes} B: {wrong[0].wrong}"
    if slower:
        return FAIL, f"{len(slower)} of {n_compared} comparable cases are slower"
    if not n_compared:
        reasons = Counter(case.reason for case in cases if case.verdict == "not comparable")
        return INCONCLUSIVE, f"nothing is comparable: {reasons.most_common(1)[0][0] if reasons else 'no case is measured on both sides'}"
    if failed:
        return INCONCLUSIVE, f"none of {n_compared} comparable cases is slower, but {counted(len(failed), 'case')} of BASE failed in NEW"
    return PASS, f"none of {n_compared} comparable cases is slower"


def sentences(cases: Sequence[CaseResult]) -> list[str]:
    """What changed, a sentence a collective: "all_reduce 4-64 MiB is 12 % slower; small and large unchanged"."""
    groups: dict[tuple[Any, ...], list[CaseResult]] = {}
    for case in cases:
        if case.ratio is not None or case.wrong is not None or case.failed:
            groups.setdefault((case.collective, case.axis, case.variant, case.clock, case.regime, case.shift), []).append(case)
    return [text for key, found in groups.items() for text in _sentences(_name(key, list(groups)), found)]


def _sentences(name: str, cases: Sequence[CaseResult]) -> list[str]:
    """Wrong data and failures first: a speed without a right result is none."""
    from nccl_bench.verdict.ranges import sentence, sizes_in_words

    wrong = {side: [case.nbytes for case in cases if case.wrong is not None and side in case.wrong] for side in ("BASE", "NEW")}
    found = [f"{name}: WRONG DATA in {side} at {sizes_in_words(sizes)}" for side, sizes in wrong.items() if sizes]
    if failed := [case.nbytes for case in cases if case.failed]:
        found.append(f"{name}: FAILED in NEW at {sizes_in_words(failed)}")
    sized = [(case.nbytes, case.verdict, case.change_frac or 0.0) for case in cases if case.ratio is not None]
    said = sentence(name, sized) if sized else None
    if said is not None:
        found.append(f"{said} where the data was right" if any(case.wrong for case in cases) else said)
    return found


def _name(key: tuple[Any, ...], keys: Sequence[tuple[Any, ...]]) -> str:
    """A group's collective, and of the rest what tells it from the collective's other groups."""
    others = [other for other in keys if other[0] == key[0]]
    telling = [str(part) for i, part in enumerate(key) if i and part is not None and len({other[i] for other in others}) > 1]
    return f"{key[0]} ({', '.join(telling)})" if telling else str(key[0])
