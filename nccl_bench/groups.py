"""Rank arithmetic: from "pp=2,dp=4,tp=8" to named groups of ranks, and which nodes and rails the groups of a kind span.

Every framework lays its dimensions out over consecutive ranks: rank = sum of index_i x product of the sizes of the faster ones.
They differ in which varies fastest:

    row-major  pp=2,dp=4,tp=8          the rightmost, as torch's DeviceMesh
    megatron:  tp-cp-ep-dp-pp          the leftmost of the order (parallel_state.py, RankGenerator); experts lie in a grid of their own
    deepspeed: pp, dp, tp              the rightmost (runtime/pipe/topology.py, PipeModelDataParallelTopology)
    titan:     pp, dp_replicate, dp_shard, cp, tp   the rightmost (torchtitan distributed/parallel_dims.py); experts in a grid of their own
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from nccl_bench.errors import UsageError

MEGATRON_ORDER = "tp-cp-ep-dp-pp"
"""Megatron-LM's default (parallel_state.py initialize_model_parallel, order)."""
MEGATRON_PP_DP_ORDER = "tp-cp-ep-pp-dp"
"""With --use-tp-pp-dp-mapping."""
WORLD_AXIS = "world"
MAX_RANKS = 1 << 20
_PART = re.compile(r"([a-z][a-z_]*?)\s*=?\s*(\d{1,7})")
Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One way to number all ranks: axes from the slowest to the fastest."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Ranks."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """All ranks, numbered by one grid, or by two where experts have their own."""

    text: str
    """What `parse_mesh` reads back to this mesh."""
    grids: tuple[Grid, ...]
    joined: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names of several axes together: ("dp_cp", ("dp", "cp"))."""

    @property
    def size(self) -> int:
        """Ranks."""
        return self.grids[0].size

    @property
    def axes(self) -> tuple[str, ...]:
        """Every name that `axis_groups` takes, slowest first."""
        return tuple(dict.fromkeys([*(name for grid in self.grids for name in grid.names), *(name for name, _parts in self.joined), WORLD_AXIS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """All groups of one axis: what runs at the same time, since every rank executes the same program."""

    axis: str
    size: int
    """Ranks in each group."""
    groups: tuple[Ranks, ...]
    """Ascending within a group, and by first rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where the groups of a kind lie on nodes."""

    nodes: int
    """Nodes that a group touches, the most."""
    per_node: int
    """Ranks of a group on one node, the most."""
    crossing: int
    """Groups that use the network of one node at the same time, the most; 0 where none leaves its node."""
    rails: int
    """Different local ranks through which they do, the most over nodes; 0 where none leaves its node."""
    aligned: bool
    """Whether all members of every group have the same local rank, so that traffic stays on its rail."""

    def words(self) -> str:
        """ "in node", "rail, 8 at once", "2 nodes, 4 at once"."""
        if self.nodes <= 1:
            return "in node"
        return f"{'rail' if self.aligned else f'{self.nodes} nodes'}, {self.crossing} at once"


def parse_mesh(text: str, option: str = "--mesh") -> Mesh:
    """The mesh of "pp=2,dp=4,tp=8", "megatron:tp8,dp4,pp2", "deepspeed:pp2,dp4,tp8" or "titan:pp2,dp_shard8,tp1".

    Megatron's order may follow: "megatron:tp8,dp4,pp2,order=tp-cp-ep-pp-dp". Raises UsageError.
    """
    style, colon, rest = text.strip().lower().rpartition(":")
    order = MEGATRON_ORDER
    found: dict[str, int] = {}
    for part in filter(None, (word.strip() for word in rest.split(","))):
        if style == "megatron" and part.startswith("order="):
            order = part.removeprefix("order=")
            continue
        match = _PART.fullmatch(part)
        if match is None or int(match[2]) < 1:
            raise UsageError(f"{option} {text!r}: {part!r} is not AXIS=SIZE", "for example --mesh pp=2,dp=4,tp=8, or megatron:tp8,dp4,pp2")
        if match[1] in found:
            raise UsageError(f"{option} {text!r}: {match[1]} is given twice")
        found[match[1]] = int(match[2])
    if not found or math.prod(found.values()) > MAX_RANKS:
        raise UsageError(f"{option} {text!r}: between 1 and {MAX_RANKS} ranks", "for example --mesh pp=2,dp=4,tp=8")
    if not colon:
        return row_major(found, option)
    makers = {"megatron": lambda: _megatron_of(found, order, option), "deepspeed": lambda: _deepspeed_of(found, option),
              "titan": lambda: _titan_of(found, option), "torchtitan": lambda: _titan_of(found, option)}  # fmt: skip
    if style not in makers:
        raise UsageError(f"{option} {text!r}: no framework is called {style!r}", "megatron: deepspeed: titan: or plain axes, slowest first")
    return makers[style]()


def row_major(sizes: dict[str, int], option: str = "--mesh") -> Mesh:
    """A mesh whose rightmost axis varies fastest, as torch's DeviceMesh."""
    if WORLD_AXIS in sizes:
        raise UsageError(f"{option}: {WORLD_AXIS} names all ranks together, and is no axis")
    text = ",".join(f"{name}={size}" for name, size in sizes.items())
    return Mesh(text=text, grids=(Grid(names=tuple(sizes), sizes=tuple(sizes.values())),))


def megatron(
    *, tp: int = 1, cp: int = 1, dp: int = 1, pp: int = 1, ep: int = 1, etp: int | None = None, order: str = MEGATRON_ORDER, option: str = "--mesh"
) -> Mesh:
    """Megatron's two grids: dense (ep = 1) and expert (cp = 1, its own tp and dp); parallel_state.py:617, 857-907.

    Axes: tp cp dp pp, dp_cp (gradients), and with experts etp ep edp. Raises UsageError where the grids do not agree.
    """
    words = order.split("-")
    if sorted(words) != sorted(MEGATRON_ORDER.split("-")):
        raise UsageError(f"{option}: the order {order!r} does not name tp cp ep dp pp once each", f"the default is {MEGATRON_ORDER}")
    world, etp_size = tp * cp * dp * pp, tp if etp is None else etp
    text = f"megatron:tp{tp},cp{cp},dp{dp},pp{pp}" + (f",ep{ep},etp{etp_size}" if ep > 1 or etp_size != tp else "")
    text += "" if order == MEGATRON_ORDER else f",order={order}"
    dense = _ordered({"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": 1}, words)
    grids = [_without(dense, "ep")]
    joined = [("dp_cp", ("dp", "cp"))]
    if ep > 1 or etp_size != tp:
        if world % (etp_size * ep * pp):
            raise UsageError(f"{option}: {world} ranks cannot be shared by etp {etp_size} x ep {ep} x pp {pp}", "Megatron asks that it divides")
        edp = world // (etp_size * ep * pp)
        if words[-1] != "pp" and tp != etp_size:
            raise UsageError(f"{option}: with experts pp is the last of Megatron's order (parallel_state.py)", f"order={MEGATRON_ORDER}")
        named = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "epp"}
        expert = _without(_ordered({"tp": etp_size, "ep": ep, "dp": edp, "pp": pp, "cp": 1}, words), "cp")
        grids.append(Grid(names=tuple(named[name] for name in expert.names), sizes=expert.sizes))
        joined.append(("etp_ep", ("etp", "ep")))
    mesh = Mesh(text=text, grids=tuple(grids), joined=tuple(joined))
    if len(grids) > 1 and axis_groups(mesh, "pp") != axis_groups(mesh, "epp"):
        raise UsageError(f"{option}: the pipeline groups of both grids differ", f"Megatron refuses it; order={MEGATRON_ORDER} works")
    return mesh


def _ordered(sizes: dict[str, int], fastest_first: Sequence[str]) -> Grid:
    names = tuple(reversed(fastest_first))
    return Grid(names=names, sizes=tuple(sizes[name] for name in names))


def _without(grid: Grid, name: str) -> Grid:
    kept = [(n, size) for n, size in zip(grid.names, grid.sizes, strict=True) if n != name]
    return Grid(names=tuple(n for n, _size in kept), sizes=tuple(size for _n, size in kept))


def deepspeed(*, pp: int = 1, dp: int = 1, tp: int = 1, ep: int = 1) -> Mesh:
    """DeepSpeed's pipeline grid [pipe, data, model], row-major (runtime/pipe/topology.py:244-248).

    Experts are shared among neighbours of a data-parallel group (utils/groups.py _create_expert_and_data_parallel): axes ep, edp.
    """
    grids = [Grid(names=("pp", "dp", "tp"), sizes=(pp, dp, tp))]
    if ep > 1:
        if dp % ep:
            raise UsageError(f"ep {ep} does not divide dp {dp}", "DeepSpeed shares experts among data-parallel ranks")
        grids.append(Grid(names=("epp", "edp", "ep", "etp"), sizes=(pp, dp // ep, ep, tp)))
    return Mesh(text=f"deepspeed:pp{pp},dp{dp},tp{tp}" + (f",ep{ep}" if ep > 1 else ""), grids=tuple(grids))


def titan(*, pp: int = 1, replicate: int = 1, shard: int = 1, cp: int = 1, tp: int = 1, ep: int = 1) -> Mesh:
    """torchtitan's mesh (distributed/parallel_dims.py:211-330); axes also fsdp = dp_shard x cp, dp = both dp, efsdp and ep for experts."""
    text = f"titan:pp{pp},dp_replicate{replicate},dp_shard{shard},cp{cp},tp{tp}" + (f",ep{ep}" if ep > 1 else "")
    grids = [Grid(names=("pp", "dp_replicate", "dp_shard", "cp", "tp"), sizes=(pp, replicate, shard, cp, tp))]
    if ep > 1:
        inside = shard * cp * tp
        if inside % ep:
            raise UsageError(f"ep {ep} does not divide dp_shard x cp x tp = {inside}", "torchtitan cuts experts out of these")
        grids.append(Grid(names=("epp", "ereplicate", "efsdp", "ep"), sizes=(pp, replicate, inside // ep, ep)))
    return Mesh(text=text, grids=tuple(grids), joined=(("fsdp", ("dp_shard", "cp")), ("dp", ("dp_replicate", "dp_shard"))))


def _pick(found: dict[str, int], names: Sequence[str], option: str) -> dict[str, int]:
    unknown = [name for name in found if name not in names]
    if unknown:
        raise UsageError(f"{option}: no axis is called {unknown[0]!r} there", f"axes: {' '.join(names)}")
    return found


def _megatron_of(found: dict[str, int], order: str, option: str) -> Mesh:
    known = _pick(found, ("tp", "cp", "dp", "pp", "ep", "etp"), option)
    etp = known.pop("etp", None)
    return megatron(**known, etp=etp, order=order, option=option)


def _deepspeed_of(found: dict[str, int], option: str) -> Mesh:
    return deepspeed(**_pick(found, ("pp", "dp", "tp", "ep"), option))


def _titan_of(found: dict[str, int], option: str) -> Mesh:
    known = _pick(found, ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep"), option)
    short = {"dp_replicate": "replicate", "dp_shard": "shard"}
    return titan(**{short.get(name, name): size for name, size in known.items()})


def axis_groups(mesh: Mesh, axis: str) -> tuple[Ranks, ...]:
    """All groups of an axis: of one name, of several joined ("dp+cp"), the world, or of a rule:

    neighbours=8  8 ranks in a row (ZeRO++ hpZ; deepspeed utils/groups.py:859-887)
    strided=8     the ranks with the same place in each row of 8 (qgZ's global step; utils/groups.py:672-694)
    ends=pp       first and last of each group of an axis (tied embeddings); the others take no part

    Raises UsageError for an unknown name.
    """
    rule, equals, value = axis.partition("=")
    if equals:
        return _by_rule(mesh, axis, rule, value)
    parts = dict(mesh.joined).get(axis, tuple(axis.split("+")))
    if parts == (WORLD_AXIS,):
        return (tuple(range(mesh.size)),)
    grid = next((grid for grid in mesh.grids if set(parts) <= set(grid.names)), None)
    if grid is None or len(set(parts)) != len(parts):
        hint = f"there are: {' '.join(mesh.axes)}; several of them joined by +"
        raise UsageError(f"--axis {axis}: the mesh {mesh.text} has no such axis", hint)
    return _groups(grid, frozenset(parts))


def _by_rule(mesh: Mesh, axis: str, rule: str, value: str) -> tuple[Ranks, ...]:
    if rule == "ends":
        return tuple((group[0], group[-1]) for group in axis_groups(mesh, value) if len(group) > 1)
    size = int(value) if value.isdecimal() else 0
    if rule not in ("neighbours", "strided") or size < 1 or mesh.size % size:
        raise UsageError(f"--axis {axis}: no such groups of {mesh.size} ranks", "neighbours=N and strided=N with N a divisor of them, or ends=AXIS")
    if rule == "neighbours":
        return tuple(tuple(range(start, start + size)) for start in range(0, mesh.size, size))
    return tuple(tuple(range(start, mesh.size, size)) for start in range(size))


@cache
def _groups(grid: Grid, parts: frozenset[str]) -> tuple[Ranks, ...]:
    inside, outside = [0], [0]
    stride = grid.size
    # From the slowest axis to the fastest, so that both lists stay ascending.
    for name, size in zip(grid.names, grid.sizes, strict=True):
        stride //= size
        steps = [index * stride for index in range(size)]
        if name in parts:
            inside = [base + step for base in inside for step in steps]
        else:
            outside = [base + step for base in outside for step in steps]
    return tuple(tuple(base + step for step in inside) for base in outside)


def kind_of(mesh: Mesh, axis: str) -> Kind:
    """The kind of an axis. Raises UsageError where there is none."""
    groups = axis_groups(mesh, axis)
    if not groups:
        raise UsageError(f"--axis {axis}: there are no such groups in {mesh.text}")
    return Kind(axis=axis, size=len(groups[0]), groups=groups)


def span_of(kind: Kind, seats: Sequence[tuple[int, int]]) -> Span:
    """Where a kind lies; seats: [rank] (node, local rank)."""
    crossing: Counter[int] = Counter()
    rails: dict[int, set[int]] = {}
    nodes = per_node = 1
    aligned = True
    for group in kind.groups:
        counts = Counter(seats[rank][0] for rank in group)
        nodes, per_node = max(nodes, len(counts)), max(per_node, *counts.values())
        aligned = aligned and len({seats[rank][1] for rank in group}) == 1
        if len(counts) > 1:
            crossing.update(counts.keys())
            for rank in group:
                rails.setdefault(seats[rank][0], set()).add(seats[rank][1])
    most = max((len(found) for found in rails.values()), default=0)
    return Span(nodes=nodes, per_node=per_node, crossing=max(crossing.values(), default=0), rails=most, aligned=aligned)


def even_seats(world: int, per_node: int) -> tuple[tuple[int, int], ...]:
    """[rank] (node, local rank) where every node has `per_node` ranks in a row."""
    return tuple((rank // per_node, rank % per_node) for rank in range(world))
