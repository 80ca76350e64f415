"""The frozen values of this room: what a run is asked to do (Plan, Limits), what was agreed (Go, Seat), what happens (events).

Messages between worker and supervisor are JSON objects with a "type" (channel.py carries them):

    worker -> supervisor
      {"type": "hello", "pid", "versions": {"python", "torch", "nccl", "cuda", ...}, "device": {"index", "name", "uuid",
       "pci_bus_id", ...} | null, "visible_gpus": n, "has_nccl": bool, "import_s": s}     once, when torch is imported
      {"type": "store", "port": p}                    rank 0 only: its TCPStore listens; an answer to "go"
      {"type": "done", "exit_code": 0 | 7, "why": text}                                  the last word, then it exits
      {"type": "error", "kind": "own" | "comm" | "bug", "exit_code", "why", "hints": [], "lines": []}     likewise
      anything else ("cases", "point", "warning", ...)  handed on as Message events
    supervisor -> worker
      {"type": "go", "rank", "world_size", "local_rank", "local_size", "node_index", "n_nodes", "ranks_per_node",
       "one_host", "backend", "shared_gpu", "store": [host, port] | null,               null: rank 0 opens the store
       "env": {variable: value}}                                     to be set before anything of torch.distributed is
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from nccl_bench.errors import NcclBenchError
from nccl_bench.records import HangReport

Json = dict[str, Any]
Backend = Literal["nccl", "gloo"]
BackendRequest = Literal["auto", "nccl", "gloo"]


def meeting_s(n_ranks: int, patience_s: float, least_s: float = 60.0) -> float:
    """Seconds that ranks have to meet: `patience_s`, `least_s` at least, and 30 ms a rank (CONTRACT.md, -T)."""
    return max(patience_s, least_s) + 0.03 * n_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every rank does: the worker's command, and what must be the same on all ranks."""

    argv: tuple[str, ...]
    """Command of a worker."""
    offer: Mapping[str, Any] = field(default_factory=dict)
    """What this process brings: {"nccl_bench": version, "torch": version or None, "options": text, ...}; unlike values end 3."""
    timeout_s: float = 60.0
    """-T: what the worker's own deadlines are made of; also the start of the meeting deadline."""
    meet_s: float | None = None
    """Seconds for the ranks to meet, and again for their workers to say hello; None: max(timeout_s, 60) + 0.03 a rank."""
    n_local: int = 1
    """Workers of a self-launch; 1 under a launcher."""
    backend: BackendRequest = "auto"
    extra_env: Mapping[str, str] = field(default_factory=dict)
    """Added to the workers' environment (a variant's NCCL variables)."""
    error: NcclBenchError | None = None
    """What already went wrong here, before any worker: the ranks meet to end with it together."""
    run_index: int = 0
    """Number of this run within the process: runs of one job after one another never mix."""

    def meeting_s(self, world_size: int) -> float:
        """Seconds the ranks have to meet (CONTRACT.md, -T)."""
        return meeting_s(world_size, self.timeout_s) if self.meet_s is None else self.meet_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds of patience; together they stay below ten after a time-out."""

    overdue_s: float = 2.0
    """Past a worker's deadline before its supervisor steps in: the worker's own error says more."""
    settle_s: float = 0.5
    """After a failed collective: whoever caused it may be seen to die first, and stacks are written."""
    facts_s: float = 3.0
    """For the facts of all ranks to come."""
    kill_s: float = 1.0
    """For killed workers to be gone."""
    leave_s: float = 2.0
    """For rank 0 to have shown what happened: a launcher may kill all at the first exit code."""
    linger_s: float = 10.0
    """For a worker that said its last word to exit."""
    grace_s: float = 5.0
    """Beyond a common deadline, for whoever decides on it."""
    tick_s: float = 0.2
    """Between looks at the progress pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one rank sits."""

    rank: int
    local_rank: int
    local_size: int
    node_index: int
    """Nodes are numbered by their lowest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """What rank 0 decided for all ranks before a communicator exists."""

    world_size: int
    n_nodes: int
    ranks_per_node: int | None
    """None where nodes hold different numbers of ranks."""
    one_host: bool
    backend: Backend
    shared_gpu: bool = False
    """Ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1): behaviour, not a measurement."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was decided for the user, who may want to know."""

    @classmethod
    def from_json(cls, value: Json) -> Go:
        """What asdict made."""
        return cls(**{**value, "warnings": tuple(value["warnings"]), "notes": tuple(value["notes"])})

    def message(self, seat: Seat, store: tuple[str, int] | None, env: Mapping[str, str] | None = None) -> Json:
        """What the worker of one rank is told; `store` is None for rank 0, which opens it."""
        common = asdict(self)
        del common["warnings"], common["notes"]
        return {"type": "go", **common, **asdict(seat), "store": None if store is None else list(store), "env": dict(env or {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """All ranks met and their workers said hello; on rank 0 alone. One object a rank, in rank order."""

    facts: tuple[Json, ...]
    """{rank, host, pid, local_rank, local_size, node_index, offer, gpu, env, hello: {what the worker said}}."""
    meet_s: float
    """Seconds from the start until all ranks had met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The workers of this process were told to go."""

    go: Go


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A local worker said something that is not the supervisor's own business."""

    rank: int
    content: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A line that a local worker, or a library in it, wrote to stdout or stderr."""

    rank: int
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event, the same on every rank. The other ranks leave once rank 0 has taken it and comes back for more."""

    exit_code: int
    why: str
    """For the last line: `nccl-bench: exit N: why`; "" with exit code 0."""
    lines: tuple[str, ...] = ()
    """For the screen, the first one without "error: "; empty on ranks that leave the word to rank 0 (or another, if that is lost)."""
    hang: HangReport | None = None
    """Where a run broke after the ranks met; on rank 0, or where rank 0 is lost."""
    ras: tuple[str, ...] = ()
    """On rank 0 of a run on NCCL that hung: the report of NCCL's own RAS threads."""
    kept: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The last lines each local worker wrote; on rank 0 also what the others' told: the end of a dead one, complaints of the rest."""


Event = Joined | Started | Message | Noise | Finished
