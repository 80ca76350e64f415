"""How long an acceptance takes: seconds by stage, and what of it fits into a budget of minutes. Pure.

What does not fit is left out in the order DROP, said before anything starts, and inconclusive in the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from nccl_bench.flows.accept_cases import lines as more_lines
from nccl_bench.flows.accept_cases import more_nbytes, n_cases
from nccl_bench.flows.accept_spec import AcceptSpec, More
from nccl_bench.measure.pairs_spec import ALL_AGAIN_UP_TO, PairSpec, estimate_s
from nccl_bench.units import format_seconds

Backend = Literal["nccl", "gloo"]
WORLD_S: dict[Backend, float] = {"nccl": 20.0, "gloo": 7.0}
"""Seconds from the order for a world to its first case, and to its end: importing torch, meeting, communicators. Measured: 5-8 s for 4 gloo
ranks on 2 cores. For NCCL a stated figure: torch's import alone took 3.7 s on an H200 host with torch on a local disk, the rest is room."""
CASE_S: dict[Backend, float] = {"nccl": 1.0, "gloo": 0.7}
"""Seconds that a case takes beyond its budget: buffers, warm-up, checks. Measured: 16 cases of a budget of 0.2 s on 4 gloo ranks in 13 s. For NCCL a
stated figure: the first case warms up for a second, and 1 GiB takes milliseconds."""
BYTE_S: dict[Backend, float] = {"nccl": 5e-10, "gloo": 9e-8}
"""Seconds a byte that a size of the criteria's adds to its case: buffers, warm-up, check and a batch at least, whatever its budget. Measured:
all_reduce on 3 gloo ranks on 2 cores, budget 0.05 s, in 9, 32 and 108 s at 1 KiB, 256 MiB and 1 GiB. For NCCL a stated figure: 4 s at 8 GiB."""
DOCTOR_S = 5.0
DEFAULT_CASE_S: dict[Backend, float] = {"nccl": 1.0, "gloo": 0.2}
LEAST_CASE_S = 0.05
"""A case that is given less shows its noise: it would be inconclusive."""
DROP = ("scale", "rails", "nic", "pairs", "cluster", "node")
"""What is given up first where minutes are short: node and cluster answer most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What runs, and how long it takes."""

    case_s: float
    """Seconds a case."""
    mode: str | None
    """Of the pairs stage."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage, in the order they run."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Stages that do not fit, and why."""
    idle: dict[str, str] = field(default_factory=dict)
    """Stages in which these hosts have nothing to measure, and why."""
    more: More = ()
    """What is measured because the criteria judge it."""

    @property
    def total_s(self) -> float:
        """Seconds of all stages that run."""
        return sum(self.seconds.values())

    def lines(self) -> list[str]:
        """In words, before the start."""
        parts = ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in self.seconds.items() if seconds)
        found = [f"estimate: about {format_seconds(self.total_s)} ({parts}), {self.case_s:.3g} s a case; busy hosts and large operations take longer"]
        found += [f"nothing to measure in stage {stage}: {reason}" for stage, reason in self.idle.items()]
        found += more_lines(tuple(one for one in self.more if self.seconds.get(one[0])))
        return found + [f"not tested: {stage}: {reason}" for stage, reason in self.left_out.items()]


def stage_s(stage: str, spec: AcceptSpec, case_s: float, mode: str | None, n_hosts: int, n_local: int, backend: Backend) -> float:
    """Seconds of one stage; 0 where these hosts have nothing to measure in it."""
    cases = n_cases(stage, spec.more, backend, n_hosts) * (case_s + CASE_S[backend]) + more_nbytes(stage, spec.more) * BYTE_S[backend]
    match stage:
        case "doctor":
            return DOCTOR_S
        case "node":
            return WORLD_S[backend] + cases if n_local > 1 else 0.0
        case "nic":
            return WORLD_S[backend] + cases if n_local > 1 and backend == "nccl" else 0.0
        case "pairs":
            n, seconds = estimate_s(PairSpec(mode=mode, budget_s=pair_budget_s(case_s)), n_hosts, n_local, backend)
            again = seconds if 2 < n_hosts <= ALL_AGAIN_UP_TO else 0.0  # of more hosts a few pairs alone
            return 2 * WORLD_S[backend] + seconds + again if n else 0.0  # what is slow is measured again in a second world
        case "rails":
            return WORLD_S[backend] + cases if n_hosts > 1 and n_local > 1 else 0.0
        case "scale":
            return (WORLD_S[backend] + cases) * max(1, (n_hosts // 2).bit_length() - 1) if n_hosts > 2 else 0.0
        case "soak":
            return WORLD_S[backend] + (spec.soak_s or 0.0)
        case _:
            return WORLD_S[backend] + cases


def idle_of(stages: Sequence[str], n_hosts: int, n_local: int, backend: Backend) -> dict[str, str]:
    """Stages in which so many hosts have nothing to measure, and why."""
    alone, one = n_hosts == 1, n_local == 1
    reasons = {
        "node": "one rank a host" if one else None,
        "nic": "it tests the NICs that NCCL takes, and this is gloo" if backend == "gloo" else "one rank a host" if one else None,
        "pairs": "one host with one rank" if alone and one else None,
        "rails": "one host" if alone else "one rank a host" if one else None,
        "scale": "fewer than 3 hosts" if n_hosts < 3 else None,
    }
    return {stage: reason for stage in stages if (reason := reasons.get(stage)) is not None}


def pair_budget_s(case_s: float) -> float:
    """Seconds a round of pairs: a tenth of a second is plenty (pairs' default)."""
    return min(0.1, case_s)


def estimate(spec: AcceptSpec, n_hosts: int, n_local: int, backend: Backend) -> Estimate:
    """What runs on so many hosts; under a budget with shorter cases, a screen of pairs, and without the stages that do not fit."""
    default = spec.case_s if spec.case_s is not None else DEFAULT_CASE_S[backend]
    plain = _of(spec, default, spec.mode, spec.stages, n_hosts, n_local, backend)
    if spec.budget_s is None or plain.total_s <= spec.budget_s:
        return plain
    stages = list(spec.stages)
    modes = [spec.mode] if spec.mode is not None else [None, "screen"]
    left_out: dict[str, str] = {}
    for gone in (None, *[stage for stage in DROP if stage in stages]):
        if gone is not None:
            needs = stage_s(gone, spec, _least(spec), modes[-1], n_hosts, n_local, backend)
            left_out[gone] = f"needs about {format_seconds(needs)}, which --budget of {format_seconds(spec.budget_s)} does not leave"
            stages.remove(gone)
        for mode in modes:
            fitted = _shortened(spec, mode, stages, n_hosts, n_local, backend)
            if fitted is not None:
                return replace(fitted, left_out=left_out)
    rest = _of(spec, _least(spec), modes[-1], stages, n_hosts, n_local, backend)
    return replace(rest, left_out=left_out)


def _least(spec: AcceptSpec) -> float:
    return spec.case_s if spec.case_s is not None else LEAST_CASE_S


def _shortened(spec: AcceptSpec, mode: str | None, stages: Sequence[str], n_hosts: int, n_local: int, backend: Backend) -> Estimate | None:
    """These stages with the longest cases that fit; None where the shortest do not."""
    assert spec.budget_s is not None
    most = spec.case_s if spec.case_s is not None else DEFAULT_CASE_S[backend]
    for share in (1.0, 0.5, 0.25, 0.1, 0.0):
        case_s = max(_least(spec), share * most)
        found = _of(spec, case_s, mode, stages, n_hosts, n_local, backend)
        if found.total_s <= spec.budget_s:
            return found
    return None


def _of(spec: AcceptSpec, case_s: float, mode: str | None, stages: Sequence[str], n_hosts: int, n_local: int, backend: Backend) -> Estimate:
    seconds = {stage: stage_s(stage, spec, case_s, mode, n_hosts, n_local, backend) for stage in stages}
    return Estimate(case_s=case_s, mode=mode, seconds=seconds, idle=idle_of(stages, n_hosts, n_local, backend), more=spec.more)
