"""Rows of an acceptance against signed earlier runs, by the rules of `compare`: a regression fails, what cannot be compared is inconclusive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nccl_bench.results.runs import Run
from nccl_bench.units import format_size
from nccl_bench.verdict.arms import SUBJECT, Arm, arms_of, backend_of, match
from nccl_bench.verdict.compare import CaseResult, judge
from nccl_bench.verdict.criteria import Threshold
from nccl_bench.verdict.frame import frame_of
from nccl_bench.verdict.rows import Row, Status

_AT = {name: SUBJECT.index(name) for name in ("stage", "axis", "pair_src", "collective", "nbytes")}


def rows(base: Sequence[Run], new: Run, stages: Sequence[str], threshold: Threshold) -> list[Row]:
    """One row a case; what the baseline has in stages that did not run is one warning. Raises DataError where points cannot be read.

    Pairs are left out: they are judged against one another, and ranks sit elsewhere in another allocation.
    """
    source = f"baseline {', '.join(run.label for run in base)}: compare, change beyond {threshold.value:g} and noise ({threshold.source})"
    if unlike := [run.label for run in base if (run.header.not_nccl, run.header.shared_gpu) != (new.header.not_nccl, new.header.shared_gpu)]:
        reason = f"{unlike[0]} and this run are not alike: one is a rehearsal (not NCCL, or a shared GPU), the other is none"
        return [Row(criterion="against the baseline", stage="cluster", status="inconclusive", reason=reason, source=source)]
    theirs, ours = _arms(frame_arms(base)), _arms(frame_arms([new]))
    here = {arm.get("stage") for arm in ours}
    if not any(arm.get("stage") for arm in theirs):
        # A sweep of all ranks has no stages: it stands against the cluster stage.
        theirs = [_moved(arm, "cluster") for arm in theirs]
    elsewhere = [arm for arm in theirs if arm.get("stage") not in here]
    matches = match([arm for arm in theirs if arm.get("stage") in here], ours)
    results = judge(matches, threshold.value)
    staged = [(str((item.base or item.new).get("stage") or "cluster"), one) for item, one in zip(matches, results, strict=True)]  # type: ignore[union-attr]
    found = [_row(stage, one, threshold.value, source) for stage, one in staged if not (one.verdict == "missing" and one.n_base == 0)]
    unknown = Counter(stage for stage, one in staged if one.verdict == "missing" and one.n_base == 0)
    found += [
        Row(criterion="in the baseline", stage=stage, status="warn", measured=n, unit="cases", reason="measured now, not in the baseline",
            source=source)
        for stage, n in unknown.items()
    ]  # fmt: skip
    lost = Counter(str(arm.get("stage")) for arm in elsewhere)
    for stage, n in lost.items():
        asked: Status = "inconclusive" if stage in stages else "warn"
        found.append(Row(criterion="against the baseline", stage=stage, status=asked, measured=f"{n} cases not measured now",
                         reason="the baseline has this stage, and this run has no points of it", source=source))  # fmt: skip
    if not any(one.ratio is not None for one in results):
        found.append(Row(criterion="against the baseline", stage="cluster", status="inconclusive", reason="nothing is comparable", source=source))
    return found


def frame_arms(runs: Sequence[Run]) -> list[Arm]:
    """The cases of some runs."""
    return arms_of(frame_of(list(runs), []), {run.label: backend_of(run.header) for run in runs})


def _arms(arms: Sequence[Arm]) -> list[Arm]:
    """Collectives, not pairs; of an acceptance the axis is its stage's name and says nothing more."""
    return [_moved(arm, arm.subject[_AT["stage"]]) for arm in arms if arm.subject[_AT["pair_src"]] is None]


def _moved(arm: Arm, stage: object) -> Arm:
    subject = list(arm.subject)
    subject[_AT["stage"]] = stage
    if subject[_AT["axis"]] == arm.subject[_AT["stage"]]:
        subject[_AT["axis"]] = None
    return replace(arm, subject=tuple(subject))


def _row(stage: str, one: CaseResult, threshold: float, source: str) -> Row:
    status: Status = {"regression": "fail", "improvement": "pass", "within noise": "pass"}.get(one.verdict, "inconclusive")  # type: ignore[assignment]
    name = f"{one.collective} {format_size(one.nbytes)}{' isolated' if one.regime == 'isolated' else ''} against the baseline"
    rate = one.by is not None and bool(one.new_busbw_GBps and one.base_busbw_GBps) and one.nbytes >= 1 << 20
    measured, before = (one.new_busbw_GBps, one.base_busbw_GBps) if rate else (one.new_time_us, one.base_time_us)
    allowed = None if before is None else before * (1 - threshold) if rate else before / (1 - threshold)
    change = "" if one.change_frac is None else f"{one.change_frac:+.1%} of speed"
    return Row(
        criterion=name, stage=stage, status=status, measured=None if measured is None else round(measured, 4),
        required=None if allowed is None else round(allowed, 4), unit=None if measured is None else "GB/s" if rate else "µs",
        reason="; ".join(part for part in (change, one.reason or "", "" if status == "pass" else one.verdict) if part), source=source,
    )  # fmt: skip
