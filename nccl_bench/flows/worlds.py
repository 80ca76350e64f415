"""One supervised world of workers from start to end, as stages of a larger flow use it; what rank 0's worker said is handed over."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from nccl_bench import __version__
from nccl_bench.flows.sweep import WORKER, torch_version, worker_env
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.supervisor import supervise
from nccl_bench.launch.values import Finished, Go, Joined, Message, Plan, Started
from nccl_bench.measure.pairs_spec import SPEC as PAIRS_VARIABLE
from nccl_bench.measure.pairs_spec import PairSpec
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import HangReport, Json

PAIRS_WORKER = (sys.executable, "-m", "nccl_bench.measure.pairs")


@dataclass(slots=True, kw_only=True)
class World:
    """How one world ended, and what it said; `messages` and `joined` on its rank 0 alone."""

    exit_code: int = 0
    why: str = ""
    lines: tuple[str, ...] = ()
    hang: HangReport | None = None
    joined: Joined | None = None
    go: Go | None = None
    messages: list[Json] = field(default_factory=list)
    kept: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    culprits: list[Json] = field(default_factory=list)
    """Of a world elsewhere: whom its hang report names, by its own ranks."""
    facts: Json = field(default_factory=dict)
    """Of a world elsewhere: what `about` said there."""

    def blamed(self) -> list[Json]:
        """Whom the hang report names, by this world's ranks."""
        return self.culprits or ([dict(one) for one in self.hang.culprits] if self.hang is not None else [])

    def about(self) -> Json:
        """What is true of the whole world: backend, whether a GPU is shared, versions, devices by rank."""
        if self.facts or self.joined is None:
            return self.facts
        hellos = [fact["hello"] for fact in self.joined.facts]
        return {
            "backend": self.go.backend if self.go is not None else None,
            "shared_gpu": self.go.shared_gpu if self.go is not None else False,
            "versions": hellos[0]["versions"],
            "devices": [hello.get("device") for hello in hellos],
            "fabric": [hello["fabric"] for hello in hellos if hello.get("fabric")],
        }

    def of(self, kind: str) -> list[Json]:
        """Messages of one type."""
        return [message for message in self.messages if message["type"] == kind]


def run_world(
    launch: Launch, plan: Plan, environ: Mapping[str, str], stderr: TextIO | None = None, on: Callable[[Json], None] | None = None
) -> World:
    """Run one world to its end. `on` hears each message of rank 0's worker as it comes."""
    world = World()
    with contextlib.closing(supervise(launch, plan, environ, stderr=stderr)) as events:
        for event in events:
            match event:
                case Joined():
                    world.joined = event
                case Started():
                    world.go = event.go
                case Message() if event.rank == 0 and world.joined is not None:
                    world.messages.append(event.content)
                    if on is not None:
                        on(event.content)
                case Finished():
                    world.exit_code, world.why, world.lines = event.exit_code, event.why, event.lines
                    world.hang, world.kept = event.hang, event.kept
                case _:
                    pass
    return world


def pairs_plan(spec: PairSpec, n_local: int, environ: Mapping[str, str], run_index: int, meet_s: float | None = None) -> Plan:
    """The plan of a pair test's workers."""
    more = {PAIRS_VARIABLE: json.dumps(spec.to_json()), **({} if "OMP_NUM_THREADS" in environ else {"OMP_NUM_THREADS": "1"})}
    return Plan(
        argv=PAIRS_WORKER, offer=_offer(json.dumps(spec.to_json())), timeout_s=spec.timeout_s, n_local=n_local, backend=spec.backend,  # type: ignore[arg-type]
        extra_env=more, run_index=run_index, meet_s=meet_s,
    )  # fmt: skip


def sweep_plan(
    spec: SweepSpec, n_local: int, environ: Mapping[str, str], run_index: int, meet_s: float | None = None, extra: Mapping[str, str] | None = None
) -> Plan:
    """The plan of a sweep's workers, as one stage."""
    return Plan(
        argv=WORKER, offer=_offer(spec.digest()), timeout_s=spec.timeout_s, n_local=n_local, backend=spec.backend,
        extra_env={**worker_env(spec, environ), **(extra or {})}, run_index=run_index, meet_s=meet_s,
    )  # fmt: skip


def _offer(options: str) -> dict[str, Any]:
    return {"nccl_bench": __version__, "torch": torch_version(), "options": options}
