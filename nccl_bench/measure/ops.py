"""One case made ready: buffers in the arena, one bound call a slot, what is sent and what must arrive.

Slots are copies of a case's buffers at different places, so that a batch walks through memory instead of one warm cache
line. Each slot's call is bound beforehand: between two clock reads there is the collective and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from nccl_bench.collectives import COLLECTIVES, buffer_nbytes
from nccl_bench.measure.cases import SLOT_ALIGN, aligned, skewed_shares, slot_nbytes
from nccl_bench.measure.data import Region, Tiles, Wrong, poison
from nccl_bench.measure.pattern import PREMUL_FACTOR, pattern_for, residue
from nccl_bench.records import Case

if TYPE_CHECKING:
    from nccl_bench.measure.world import World

dist: Any = torch.distributed
"""Half of what is used of it carries no type hints."""

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A case ready to be launched, filled and verified."""

    case: Case
    calls: tuple[Call, ...]
    """One collective each, by slot."""
    arena: torch.Tensor
    """The bytes of all slots."""
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    """What this rank must receive; empty where it receives nothing (a root's or an idle rank's side)."""
    values: tuple[float, ...]
    expected: tuple[float, ...]
    tolerance: float
    tiles: Tiles
    timed: bool = True
    """Whether this rank's clock counts: of a ping-pong, the side that serves."""
    lay: Callable[[], None] | None = None
    """Fills what the regions do not tell: of a matrix product."""
    trips: int = 1
    """Messages on the critical path of one call: 2 for a ping-pong, whose time is half the round trip."""

    def fill(self) -> None:
        """Poison every slot, then lay the inputs."""
        poison(self.arena)
        for region in self.inputs:
            self.tiles.fill(region, self.values)
        if self.lay is not None:
            self.lay()

    def count_wrong(self) -> torch.Tensor:
        """Wrong elements in all slots' outputs, a 0-dim int64 tensor on the device."""
        total = torch.zeros((), dtype=torch.int64, device=self.arena.device)
        for region in self.outputs:
            total += self.tiles.check(region, self.expected, self.tolerance)
        return total

    def first_wrong(self) -> Wrong:
        """The first wrong element of this rank; count 0 where there is none."""
        for region in self.outputs:
            wrong = self.tiles.first_wrong(region, self.expected, self.tolerance)
            if wrong is not None:
                return wrong
        return Wrong(count=0)


def prepare(case: Case, world: World, n_slots: int, pair: tuple[int, int] | None = None, arena: torch.Tensor | None = None) -> Op:
    """Buffers, calls and expectations of `case` in `n_slots` slots of `arena` (the world's where None).

    A rank whose group stands still, or that is in none, gets calls that do nothing.
    Raises ValueError where torch has no such call; what the backend refuses shows at the first call.
    """
    layout = _Layout(case, world, n_slots, pair, world.arena if arena is None else arena)
    if layout.idle:
        return _idle(case, layout, world.tiles, n_slots)
    pattern = pattern_for(case.dtype, case.op, case.n_ranks)
    build = _BUILDERS[case.collective]
    parts = [build(layout, slot) for slot in range(n_slots)]
    return Op(
        case=case,
        calls=tuple(part.call for part in parts),
        arena=layout.arena,
        inputs=_merged([part.inputs for part in parts]),
        outputs=_merged([part.outputs for part in parts]),
        values=tuple(map(float, pattern.values)),
        expected=pattern.reduced,
        tolerance=pattern.tolerance,
        tiles=world.tiles,
        timed=case.collective != "pingpong" or layout.serves,
        trips=2 if case.collective == "pingpong" else 1,
    )


def _idle(case: Case, layout: _Layout, tiles: Tiles, n_slots: int) -> Op:
    calls = (lambda: None,) * n_slots
    return Op(
        case=case, calls=calls, arena=layout.arena[:0], inputs=(), outputs=(), values=(), expected=(), tolerance=0.0, tiles=tiles, timed=False
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One slot: its call, and the regions it reads and writes."""

    call: Call
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]


class _Layout:
    """Where the buffers of each slot lie, and who the peers are."""

    def __init__(self, case: Case, world: World, n_slots: int, pair: tuple[int, int] | None, arena: torch.Tensor) -> None:
        team = world.team(case.axis)
        self.case, self.world, self.n, self.rank = case, world, case.n_ranks, team.rank
        self.group, self.ranks = team.group, team.ranks
        self.idle = team.rank < 0 or (case.special == "solo" and team.ranks != team.kind.groups[0])
        dtype: torch.dtype = getattr(torch, case.dtype)
        self.dtype = dtype
        self.stride = slot_nbytes(case)
        self.arena = arena[: self.stride * n_slots]
        self.send_nbytes, self.recv_nbytes = buffer_nbytes(case.collective, case.nbytes, case.n_ranks, case.placement)
        self.part = case.nbytes // self.dtype.itemsize // case.n_ranks
        """Elements of one rank's share, where the size is shared out."""
        self.op = reduce_op(case.op) if case.op else None
        half = self.n // 2
        self.partner = _partner(self.rank, self.n, pair)
        self.serves = self.partner is not None and (self.rank < half if pair is None else self.rank == pair[0])

    def send(self, slot: int) -> torch.Tensor:
        """The slot's send buffer (in place: the only one), [elements]."""
        return self._view(slot * self.stride, self.send_nbytes)

    def recv(self, slot: int) -> torch.Tensor:
        """The slot's receive buffer, [elements]."""
        first = -(-self.send_nbytes // SLOT_ALIGN) * SLOT_ALIGN if self.recv_nbytes else 0
        return self._view(slot * self.stride + first, self.recv_nbytes or self.send_nbytes)

    def root(self, slot: int) -> int:
        """The root of a slot: in isolated series every rank in turn, since the asked one's place in the chain would be measured."""
        root = self.case.root or 0
        return (root + slot) % self.n if self.case.regime == "isolated" else root

    def raw(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the backend takes it: gloo moves 8-bit floats as bytes."""
        return tensor.view(torch.uint8) if self.world.backend == "gloo" and self.case.dtype.startswith("float8") else tensor

    def _view(self, start: int, nbytes: int) -> torch.Tensor:
        return self.arena[start : start + nbytes].view(self.dtype)


def _partner(rank: int, n: int, pair: tuple[int, int] | None) -> int | None:
    if pair is not None:
        return pair[1 - pair.index(rank)] if rank in pair else None
    half = n // 2
    return None if rank >= 2 * half else (rank + half) % (2 * half)


def reduce_op(name: str) -> Any:
    """torch's reduction for our name; PREMUL_SUM with the pattern's factor."""
    if name == "premul_sum":
        return dist._make_nccl_premul_sum(PREMUL_FACTOR)
    return getattr(dist.ReduceOp, name.upper())


def _row(tensor: torch.Tensor, rank: int, slot: int, start: int = 0, what: str = "") -> Region:
    """One row that follows the pattern of `rank` from element `start`."""
    return Region(rows=tensor.view(1, -1), residues=(residue(rank, slot),), start=start, labels=(f"slot {slot}{what}",))


def _rows(tensor: torch.Tensor, n: int, slot: int, start: int = 0) -> Region:
    """[n, part]: row r follows the pattern of rank r."""
    labels = tuple(f"slot {slot}, part of rank {r}" for r in range(n))
    return Region(rows=tensor.view(n, -1), residues=tuple(residue(r, slot) for r in range(n)), start=start, labels=labels)


def _all_reduce(at: _Layout, slot: int) -> _Part:
    buffer, op, group = at.send(slot), at.op, at.group
    return _Part(lambda: dist.all_reduce(buffer, op, group), (_row(buffer, at.rank, slot),), (_row(buffer, 0, slot),))


def _all_gather(at: _Layout, slot: int) -> _Part:
    in_place = at.case.placement == "in"
    output = at.recv(slot)
    mine = output[at.rank * at.part : (at.rank + 1) * at.part] if in_place else at.send(slot)
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    out, own, group = at.raw(output), at.raw(mine), at.group
    return _Part(lambda: gather(out, own, group), (_row(mine, at.rank, slot),), (_rows(output, at.n, slot),))


def _reduce_scatter(at: _Layout, slot: int) -> _Part:
    source = at.send(slot)
    output = source[at.rank * at.part : (at.rank + 1) * at.part] if at.case.placement == "in" else at.recv(slot)
    scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    op, group = at.op, at.group
    return _Part(lambda: scatter(output, source, op, group), (_row(source, at.rank, slot),), (_row(output, 0, slot, at.rank * at.part),))


def _all_to_all(at: _Layout, slot: int) -> _Part:
    if at.case.work is not None:
        return _uneven(at, slot)
    source, output = at.send(slot), at.recv(slot)
    out, own, group = at.raw(output), at.raw(source), at.group
    received = _rows(output, at.n, slot, at.rank * at.part)
    return _Part(lambda: dist.all_to_all_single(out, own, None, None, group), (_row(source, at.rank, slot),), (received,))


def _uneven(at: _Layout, slot: int) -> _Part:
    """Every rank sends the first of its group more than the others: a popular expert."""
    itemsize, n = at.dtype.itemsize, at.n
    assert at.case.work is not None
    hot, rest = (part // itemsize for part in skewed_shares(at.case.requested_nbytes, n, json.loads(at.case.work)["skew"], itemsize))
    splits = [hot, *([rest] * (n - 1))]
    start = slot * at.stride
    source = at.arena[start : start + at.case.nbytes].view(at.dtype)
    received = n * splits[at.rank]
    first = start + aligned(at.case.nbytes)
    output = at.arena[first : first + received * itemsize].view(at.dtype)
    out, own, group, into = at.raw(output), at.raw(source), at.group, [splits[at.rank]] * n
    rows = _rows(output, n, slot, sum(splits[: at.rank]))
    return _Part(lambda: dist.all_to_all_single(out, own, into, splits, group), (_row(source, at.rank, slot),), (rows,))


def _broadcast(at: _Layout, slot: int) -> _Part:
    buffer, root = at.send(slot), at.root(slot)
    raw, group = at.raw(buffer), at.group
    sent = (_row(buffer, at.rank, slot),) if at.rank == root else ()
    return _Part(lambda: dist.broadcast(raw, at.ranks[root], group), sent, (_row(buffer, root, slot, what=f" from root {root}"),))


def _reduce(at: _Layout, slot: int) -> _Part:
    buffer, root, op, group = at.send(slot), at.root(slot), at.op, at.group
    received = (_row(buffer, 0, slot, what=f" at root {root}"),) if at.rank == root else ()
    return _Part(lambda: dist.reduce(buffer, at.ranks[root], op, group), (_row(buffer, at.rank, slot),), received)


def _gather(at: _Layout, slot: int) -> _Part:
    source, output, root, group = at.send(slot), at.recv(slot), at.root(slot), at.group
    own, is_root = at.raw(source), at.rank == root
    parts = list(at.raw(output).chunk(at.n)) if is_root else None
    received = (_rows(output, at.n, slot),) if is_root else ()
    return _Part(lambda: dist.gather(own, parts, at.ranks[root], group), (_row(source, at.rank, slot),), received)


def _scatter(at: _Layout, slot: int) -> _Part:
    source, output, root, group = at.send(slot), at.recv(slot), at.root(slot), at.group
    out, is_root = at.raw(output), at.rank == root
    parts = list(at.raw(source).chunk(at.n)) if is_root else None
    sent = (_row(source, at.rank, slot),) if is_root else ()
    received = _row(output, root, slot, at.rank * at.part, f" from root {root}")
    return _Part(lambda: dist.scatter(out, parts, at.ranks[root], group), sent, (received,))


def _sendrecv(at: _Layout, slot: int) -> _Part:
    step = 1 if at.case.shift == "ring" else at.world.ranks_per_node or 1
    source, output = at.send(slot), at.recv(slot)
    to, of = (at.rank + step) % at.n, (at.rank - step) % at.n
    return _Part(_exchange(at, source, to, output, of), (_row(source, at.rank, slot),), (_row(output, of, slot, what=f" from rank {of}"),))


def _pingpong(at: _Layout, slot: int) -> _Part:
    source, output, peer = at.send(slot), at.recv(slot), at.partner
    if peer is None and not _by_splits(at):
        return _Part(lambda: None, (), ())
    away = _exchange(at, source, peer, output, None)
    back = _exchange(at, source, None, output, peer)
    first, second = (away, back) if at.serves else (back, away)

    def call() -> None:
        first()
        second()

    if peer is None:
        return _Part(call, (), ())
    return _Part(call, (_row(source, at.rank, slot),), (_row(output, peer, slot, what=f" from rank {peer}"),))


def _by_splits(at: _Layout) -> bool:
    """Whether sends and receives go through all_to_all_single with one split that is not empty.

    That is one ncclSend and one ncclRecv in one group on the caller's stream, what nccl-tests does. batch_isend_irecv
    goes over a stream of torch's own and back: a price of the framework, so it is what `eager` and `host` time, but no
    part of the fabric (two ranks sharing an H200, 64 captured 512 B exchanges: 11.8 µs each, against 5.8 in nccl-tests).
    """
    return at.world.backend == "nccl" and at.case.clock in ("graph", "queued")


def _exchange(at: _Layout, source: torch.Tensor, to: int | None, output: torch.Tensor, of: int | None) -> Call:
    """Send to one rank and receive from another at once; None leaves that half out.

    Both ways stay on the world's communicator; bare send and recv would build one for each pair (DESIGN.md section 4).
    """
    group = at.group
    if _by_splits(at):
        into, out = ([tensor.numel() if rank == peer else 0 for rank in range(at.n)] for tensor, peer in ((source, to), (output, of)))
        sent, received = source if to is not None else source[:0], output if of is not None else output[:0]
        return lambda: dist.all_to_all_single(received, sent, out, into, group)
    batch = [] if to is None else [dist.P2POp(dist.isend, at.raw(source), at.ranks[to], group)]
    batch += [] if of is None else [dist.P2POp(dist.irecv, at.raw(output), at.ranks[of], group)]
    return lambda: _batched(batch)


def _batched(exchange: list[Any]) -> None:
    for work in dist.batch_isend_irecv(exchange):
        work.wait()


_BUILDERS: dict[str, Callable[[_Layout, int], _Part]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "sendrecv": _sendrecv,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "pingpong": _pingpong,
}
assert _BUILDERS.keys() == COLLECTIVES.keys()


def _merged(slots: Sequence[tuple[Region, ...]]) -> tuple[Region, ...]:
    """One region for all slots where each has a single row of the same place: fewer, larger device calls."""
    flat = [region for regions in slots for region in regions]
    if len(flat) < 2 or any(len(r.residues) != 1 for r in flat) or len({(r.start, r.rows.shape[1]) for r in flat}) != 1:
        return tuple(flat)
    first, second = flat[0].rows, flat[1].rows
    step = second.storage_offset() - first.storage_offset()
    if step <= 0 or any(r.rows.storage_offset() != first.storage_offset() + i * step for i, r in enumerate(flat)):
        return tuple(flat)
    rows = first.as_strided((len(flat), first.shape[1]), (step, 1), first.storage_offset())
    residues = tuple(r.residues[0] for r in flat)
    return (Region(rows=rows, residues=residues, start=flat[0].start, labels=tuple(r.labels[0] for r in flat)),)
