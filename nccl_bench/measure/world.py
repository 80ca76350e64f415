"""The process group and its device: meeting, reducing over ranks, waiting with a deadline, memory; closed by every path."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from nccl_bench.errors import LaunchError, UsageError, WorldError
from nccl_bench.groups import WORLD_AXIS, Kind
from nccl_bench.launch.values import Json
from nccl_bench.measure.cases import WorldFacts
from nccl_bench.measure.data import Tiles, tiles_for
from nccl_bench.measure.memory import free_nbytes
from nccl_bench.measure.nccl_library import running_nccl
from nccl_bench.measure.spec import Backend, SweepSpec

dist: Any = torch.distributed
"""Half of what is used of it carries no type hints."""
cuda: Any = torch.cuda

STORE_PORTS = range(20000, 32768)
"""Below Linux's ephemeral range (32768-60999), where gloo's own listeners of an earlier run can sit."""
STORE_TRIES = 64
SPIN_S, NAP_S = 2e-3, 1e-4
"""A wait polls without pause for 2 ms, then sleeps between polls."""


class CollectiveError(WorldError):
    """A collective raised: most often a symptom of another rank's fault."""


class OverdueError(WorldError):
    """A wait passed its deadline; nothing may be destroyed after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seatings:
    """Where this rank sits, from the supervisor's `go`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    n_nodes: int
    ranks_per_node: int | None
    one_host: bool
    backend: Backend
    shared_gpu: bool

    @classmethod
    def of(cls, go: Json) -> Seatings:
        """The seat in a `go` message."""
        names = ("rank", "local_rank", "local_size", "n_nodes", "ranks_per_node", "one_host", "backend", "shared_gpu")
        return cls(size=go["world_size"], **{name: go[name] for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The group of one axis that this rank is in."""

    group: Any
    """torch's process group; None where this rank takes no part in any."""
    rank: int
    """In the group; -1 where it takes no part."""
    ranks: tuple[int, ...]
    """World ranks, in the group's order."""
    kind: Kind
    """All groups of the axis."""


class World:
    """All ranks, as one group; the only place that talks to torch.distributed outside the timed calls."""

    def __init__(self, seat: Seatings, device: torch.device, timeout_s: float) -> None:
        self.seat = seat
        self.rank, self.size = seat.rank, seat.size
        self.backend, self.ranks_per_node = seat.backend, seat.ranks_per_node
        self.device, self.timeout_s = device, timeout_s
        self.group: Any = None
        self.arena = torch.empty(0, dtype=torch.uint8, device=device)
        """The bytes that all buffers are cut from."""
        self.deadline = float("inf")
        """Monotonic time after which a wait is overdue."""
        self.setup: dict[str, float] = {}
        self.tiles: Tiles
        self._one: torch.Tensor
        self._staging: tuple[torch.Tensor, torch.Tensor]
        self._pool: Any = None
        self._teams: dict[str, Team] = {}

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def open(self, store: Any, meet_s: float) -> None:
        """Form the group on `store` and run the first collective; times go to `setup`. Raises WorldError."""
        started = time.monotonic()
        # Ours is the deadline that speaks; torch's watchdog comes later and only where a worker cannot report.
        limit = timedelta(seconds=self.timeout_s + 60 if self.on_gpu else self.timeout_s)
        with _collective("forming the group"):
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore("nccl-bench", store),
                rank=self.rank,
                world_size=self.size,
                timeout=max(limit, timedelta(seconds=meet_s)) if self.on_gpu else limit,
                device_id=self.device if self.on_gpu else None,
            )
        self.group = dist.group.WORLD
        self.setup["communicator_s"] = time.monotonic() - started
        self._one = torch.zeros(1, device=self.device)
        self._staging = (torch.empty(256, dtype=torch.float64, pin_memory=self.on_gpu), torch.empty(256, dtype=torch.float64, device=self.device))
        started = time.monotonic()
        self.deadline = started + meet_s
        self.max_reduce((0.0,))
        self.setup["first_collective_s"] = time.monotonic() - started
        self.tiles = tiles_for(self.device)
        self.set_deadline()

    def make_teams(self, kinds: Iterable[Kind]) -> None:
        """Form the groups of these kinds, on all ranks in the same order; once a kind. Raises CollectiveError."""
        for kind in kinds:
            if kind.axis not in self._teams:
                mine = next((group for group in kind.groups if self.rank in group), ())
                group = self.group if len(mine) == self.size else self._form(kind)
                rank = mine.index(self.rank) if mine else -1
                self._teams[kind.axis] = Team(group=group if mine else None, rank=rank, ranks=mine, kind=kind)

    def team(self, axis: str | None) -> Team:
        """This rank's group of an axis; the world for None."""
        if axis is not None:
            return self._teams[axis]
        everyone = tuple(range(self.size))
        return Team(group=self.group, rank=self.rank, ranks=everyone, kind=Kind(axis=WORLD_AXIS, size=self.size, groups=(everyone,)))

    def _form(self, kind: Kind) -> Any:
        """This rank's group. One split of the world's communicator on NCCL; on gloo every group in turn, as torch asks."""
        groups = [list(ranks) for ranks in kind.groups]
        everyone = sum(map(len, groups)) == self.size
        with _collective(f"forming the groups of {kind.axis}"):
            if self.on_gpu and everyone and hasattr(dist, "split_group"):
                return dist.split_group(split_ranks=groups)
            limit = timedelta(seconds=self.timeout_s + 60 if self.on_gpu else self.timeout_s)
            mine = None
            for ranks in groups:
                made = dist.new_group(ranks, timeout=limit)
                mine = made if self.rank in ranks else mine
            return mine

    def close(self) -> None:
        """Destroy the group: without it a gloo rank can abort at exit (seen in 4 of 7 two-rank runs, torch 2.13)."""
        self.arena = torch.empty(0, dtype=torch.uint8, device=self.device)
        if dist.is_initialized():
            dist.destroy_process_group()

    def set_deadline(self) -> None:
        """Give what follows the time-out from now."""
        self.deadline = time.monotonic() + self.timeout_s

    def meet(self) -> None:
        """All ranks arrive before any goes on: a one-element all_reduce, in the stream's order on a GPU."""
        with _collective("meeting"):
            dist.all_reduce(self._one, dist.ReduceOp.MAX, self.group)

    def max_reduce(self, values: Sequence[float]) -> list[float]:
        """The element-wise maximum over ranks, in one tensor on the device; NaN is as large as it gets."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def sum_reduce(self, values: Sequence[float]) -> list[float]:
        """The element-wise sum over ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def min_reduce(self, value: float) -> float:
        """The minimum over ranks."""
        return -self.max_reduce((-value,))[0]

    def agree(self, ok: bool) -> bool:
        """Whether it went well on every rank."""
        return self.max_reduce((0.0 if ok else 1.0,))[0] == 0.0

    def gather(self, value: float) -> list[float]:
        """One number of every rank, by rank."""
        return [row[0] for row in self.gather_rows((value,))]

    def gather_rows(self, values: Sequence[float]) -> list[list[float]]:
        """As many numbers of every rank, by rank, in one message."""
        mine = torch.tensor(tuple(values), dtype=torch.float64, device=self.device)
        everyone = torch.empty(self.size * len(values), dtype=torch.float64, device=self.device)
        collect: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with _collective("gathering a number a rank"):
            collect(everyone, mine, self.group)
        self.drain()
        return [[float(item) for item in row] for row in everyone.view(self.size, len(values)).tolist()]

    def drain(self) -> None:
        """Wait until the device has done everything so far; raises OverdueError at the deadline."""
        if self.on_gpu:
            event = cuda.Event()
            event.record()
            self.wait(event.query)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Poll `ready` until it holds; never blocks in the driver. Raises OverdueError at the deadline."""
        started = time.monotonic()
        while not ready():
            now = time.monotonic()
            if now > self.deadline:
                raise OverdueError(f"not finished in {self.timeout_s:g} s")
            if now - started > SPIN_S:
                time.sleep(NAP_S)

    def reserve(self, wanted: Sequence[int], register: str) -> int:
        """Allocate the arena once: the largest of `wanted` (bytes, descending) that every rank can have; 0 where none."""
        for nbytes in wanted:
            arena = self._allocate(nbytes, register)
            if self.agree(arena is not None):
                assert arena is not None
                self.arena = arena
                return nbytes
            del arena
            if self.on_gpu:
                cuda.empty_cache()
        return 0

    def facts(self, spec: SweepSpec, clique: float | None = None) -> WorldFacts:
        """What the list of cases depends on, agreed by all ranks.

        clique: a number for the NVLink domain that all GPUs of this rank's node belong to, 0 where they belong to none or
        several; None on ranks that did not look.
        """
        share = self.seat.local_size if not self.on_gpu or self.seat.shared_gpu else 1
        free = self.min_reduce(free_nbytes(self.device) / share)
        major = cuda.get_device_capability(self.device)[0] if self.on_gpu else 0
        fp8 = self.on_gpu and major >= 9 and _nccl_version() >= (2, 24)
        return WorldFacts(
            n_ranks=self.size,
            n_nodes=self.seat.n_nodes,
            ranks_per_node=self.seat.ranks_per_node,
            backend=self.backend,
            one_domain=self.seat.one_host or self._one_clique(clique),
            memory_nbytes=int(free),
            fp8=self.agree(fp8),
        )

    def _one_clique(self, clique: float | None) -> bool:
        """Whether every node that looked is in one and the same NVLink domain (a GB200 rack, say)."""
        nobody = float("-inf")
        most, least = self.max_reduce((nobody, nobody) if clique is None else (clique, -clique))
        return most == -least and most > 0

    def _allocate(self, nbytes: int, register: str) -> torch.Tensor | None:
        try:
            if register not in ("user", "symmetric"):
                return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            return self._allocate_registered(nbytes, symmetric=register == "symmetric")
        except (torch.OutOfMemoryError, MemoryError):
            return None
        except RuntimeError as err:
            if "memory" in str(err).lower():  # the CPU allocator raises a plain RuntimeError
                return None
            raise

    def _allocate_registered(self, nbytes: int, symmetric: bool) -> torch.Tensor:
        backend: Any = self.group._get_backend(self.device)
        if not hasattr(backend, "register_mem_pool"):
            raise LaunchError(f"--register: torch {torch.__version__} cannot register buffers with NCCL", "it can from torch 2.7 on")
        self._pool = cuda.MemPool(*self._allocator(backend, symmetric))
        with cuda.use_mem_pool(self._pool):
            arena = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        try:
            backend.register_mem_pool(self._pool, symmetric) if symmetric else backend.register_mem_pool(self._pool)
        except TypeError as err:
            raise LaunchError(f"--register symmetric: torch {torch.__version__} has no symmetric registration", "use --register user") from err
        return arena

    @staticmethod
    def _allocator(backend: Any, symmetric: bool) -> tuple[Any, ...]:
        """NCCL's allocator; without it (no multicast) plain memory can still be registered, but not symmetrically."""
        try:
            return (backend.mem_allocator,)
        except RuntimeError as err:
            if symmetric:
                raise UsageError(f"--register symmetric cannot be had here: {first_line(err)}", "use --register user, or none") from err
            return ()

    def _reduce(self, values: Sequence[float], op: Any) -> list[float]:
        count = len(values)
        if count > self._staging[0].numel():
            self._staging = (
                torch.empty(2 * count, dtype=torch.float64, pin_memory=self.on_gpu),
                torch.empty(2 * count, dtype=torch.float64, device=self.device),
            )
        host, device = self._staging[0][:count], self._staging[1][:count]
        host.copy_(torch.tensor(values, dtype=torch.float64))
        device.copy_(host, non_blocking=True)
        with _collective("reducing times over ranks"):
            dist.all_reduce(device, op, self.group)
        host.copy_(device, non_blocking=True)
        self.drain()
        return [float(item) for item in host.tolist()]


@contextmanager
def _collective(what: str) -> Iterator[None]:
    """Map what torch.distributed raises to CollectiveError."""
    try:
        yield
    except RuntimeError as err:
        raise CollectiveError(f"{what}: {first_line(err)}") from err


def first_line(err: BaseException) -> str:
    """The first line of a foreign error, without the C++ stack that torch adds."""
    return next((line.strip() for line in str(err).splitlines() if line.strip()), type(err).__name__)


def open_store(meet_s: float, rng: random.Random | None = None) -> tuple[Any, int]:
    """Rank 0's store on a free port below 32768. Raises WorldError where 64 ports were taken."""
    ports = (rng or random.Random()).sample(STORE_PORTS, STORE_TRIES)
    for port in ports:
        try:
            return dist.TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=meet_s)), port
        except (RuntimeError, OSError) as err:
            last = err
    raise WorldError(f"no port between {STORE_PORTS.start} and {STORE_PORTS.stop - 1} could be had for torch's store: {first_line(last)}")


def join_store(host: str, port: int, meet_s: float) -> Any:
    """Another rank's end of the store. Raises WorldError naming the address."""
    try:
        return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=meet_s))
    except (RuntimeError, OSError) as err:
        raise WorldError(f"cannot reach torch's store at {host}:{port}: {first_line(err)}", "is a firewall between the hosts?") from err


def open_world(
    go: Json, timeout_s: float, meet_s: float, announce: Callable[[int], None], device_index: int | None, step: Callable[[str, int], None]
) -> World:
    """The world of a `go` message; rank 0 opens the store and announces its port. `step` is told what begins, and its number. Raises WorldError."""
    seat = Seatings.of(go)
    device = torch.device("cuda", device_index or 0) if seat.backend == "nccl" else torch.device("cpu")
    if seat.backend == "nccl":
        cuda.set_device(device)
        # Not the legacy default stream: it waits for every other stream, which costs each captured NCCL call
        # some µs (64 captured send/receives to self on an H200: 20 µs each there, 11 on a stream of one's own).
        cuda.set_stream(cuda.Stream())
    if go["store"] is None:
        store, port = open_store(meet_s)
        announce(port)
    else:
        step(f"reaching torch's store at {go['store'][0]}:{go['store'][1]}", 1)
        store = join_store(go["store"][0], go["store"][1], meet_s)
    step("forming the group", 2)
    world = World(seat, device, timeout_s)
    world.open(store, meet_s)
    return world


def _nccl_version() -> tuple[int, ...]:
    version, _ = running_nccl()
    return tuple(int(part) for part in version.split(".")) if version else (0,)
