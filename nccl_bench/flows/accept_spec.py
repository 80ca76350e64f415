"""What an acceptance is asked to do: stages, hosts, budget, what it is held against. Frozen; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nccl_bench.errors import UsageError
from nccl_bench.flows.council import SILENT_S
from nccl_bench.records import Json, Spec

STAGES = ("doctor", "node", "nic", "pairs", "rails", "scale", "cluster", "soak")
DEFAULT_STAGES = STAGES[:-1]
N_SIZES = 2
"""Of a stage's cases: one for latency, one for bandwidth."""
More = tuple[tuple[str, str, int | None], ...]
"""(stage, collective, bytes) that the criteria add to what a stage measures; None: the collective at the sizes of all."""


def collectives_of(stage: str, more: More = ()) -> tuple[str, ...]:
    """What a stage measures; of a rail the two that tell a slow one."""
    usual = ("all_reduce", "sendrecv") if stage == "rails" else ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return tuple(dict.fromkeys((*usual, *(name for at, name, _ in more if at == stage))))


LOCAL_STAGES = ("doctor", "node", "nic")
"""Stages that need no world of several hosts: spares run them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptSpec(Spec):
    """One acceptance."""

    stages: tuple[str, ...] = DEFAULT_STAGES
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    case_s: float | None = None
    """Seconds a case; None: the default of the backend, less under a budget."""
    budget_s: float | None = None
    """Seconds for the whole."""
    soak_s: float | None = None
    load: Literal["gemm"] | None = None
    """What else runs on every GPU during soak."""
    min_hosts: int = 0
    hosts: tuple[str, ...] = ()
    """Only these take part; empty: all of the allocation."""
    exclude: tuple[str, ...] = ()
    spares: int = 0
    baseline: tuple[str, ...] = ()
    """Runs of before, as paths."""
    criteria: str | None = None
    """The file that the run was begun with, as a path that holds from anywhere."""
    more: More = ()
    reference: Json | None = None
    """Known-good partners: verdict.reference."""
    oversubscription: float | None = None
    mode: str | None = None
    timeout_s: float = 60.0
    silent_s: float = SILENT_S

    def __post_init__(self) -> None:
        if self.load is not None and "soak" not in self.stages:
            raise UsageError("--load heats GPUs during the soak stage, and there is none", "add --soak 1h")
        if self.budget_s is not None and self.soak_s is not None and self.soak_s >= self.budget_s:
            raise UsageError(
                f"--soak of {self.soak_s / 60:.4g} min does not fit into --budget {self.budget_s / 60:g} (minutes for all)", "give more minutes"
            )
        for option, seconds, low, example in (
            ("--case-budget", self.case_s, 1e-3, "seconds a case, 1"), ("--budget", self.budget_s, 1.0, "minutes for all, 30"),
            ("--soak", self.soak_s, 1.0, "--soak 4h"), ("-T/--timeout", self.timeout_s, 1e-3, "seconds without progress, 60"),
            ("--silent", self.silent_s, 1e-3, "seconds until a host counts as silent, 30"),
        ):  # fmt: skip
            if seconds is not None and not low <= seconds < 1e7:
                raise UsageError(f"{option}: {seconds:g} seconds are out of range", example)
