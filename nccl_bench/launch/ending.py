"""How a run ends for one process: the first verdict stays, and not every rank repeats what one says for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nccl_bench.errors import NcclBenchError, WorldError
from nccl_bench.launch.blame import Verdict, blame
from nccl_bench.launch.launchers import Launch

Json = dict[str, Any]

N_SPEAKERS = 4
"""Ranks that speak where rank 0 cannot, besides one a node: the first few, of which some will be there."""


class Ending:
    """The verdict of this process, None while the run goes on."""

    def __init__(self, launch: Launch) -> None:
        self.verdict: Verdict | None = None
        self.speaks = launch.local_rank in (0, None) or launch.rank < N_SPEAKERS
        """Whether this rank says what all see when rank 0 is lost or silent."""

    def conclude(self, verdict: Verdict, *, speak: bool = True) -> None:
        """End with a verdict, unless one stands; without `speak` somebody else has the words."""
        self.verdict = self.verdict or (verdict if speak else replace(verdict, lines=()))

    def fail(self, error: NcclBenchError, *, speak: bool = True) -> None:
        """End with an error."""
        self.conclude(verdict_of(error), speak=speak)


def verdict_of(error: NcclBenchError) -> Verdict:
    """An error as a verdict: its code, its line, its hints."""
    return Verdict(exit_code=error.exit_code, why=error.why, lines=(error.why, *error.hints))


def verdict_from_here(known: dict[int, Json], reason: Mapping[str, Any], world_size: int, timeout_s: float, holder: str | None) -> Verdict:
    """The verdict from what one process knows, without a word of rank 0; `holder` holds the board."""
    if reason["kind"] == "lost":
        known |= {int(rank): {"rank": int(rank), "state": "lost", "who": reason["who"]} for rank in reason["ranks"]}
    return blame(known, world_size=world_size, reason=reason, timeout_s=timeout_s, hosts={}, partial=True, board=holder)


def rank_0_is_silent(when: str) -> WorldError:
    """Rank 0 should have said something by then."""
    return WorldError(f"rank 0 did not say anything {when}", "see whether its process is stopped, or its host down")
