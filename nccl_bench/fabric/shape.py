"""Ranks laid out over a topology: which domains they form, in which order, in which racks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_bench.errors import DetectError, UsageError
from nccl_bench.fabric.bounds import Part
from nccl_bench.fabric.crowd import ALONE, Crowd, Placed, border_of, crowd_of
from nccl_bench.fabric.domain import Domain, Member, Rules, build, rules_of
from nccl_bench.fabric.gpus import BY_NAME
from nccl_bench.fabric.topology import Gpu, Node, Topology

RankPlace = int | tuple[str, int]
"""A rank as the number of a GPU counted node by node, or as (host, GPU index)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A group of ranks on a fabric."""

    n: int
    domains: tuple[Domain, ...]
    kinds: tuple[Domain, ...]
    """The different ones among them: a cluster has thousands of equal nodes."""
    places: tuple[tuple[int, int], ...]
    """By rank: (domain, member of it)."""
    racks: tuple[Part, ...] | None
    """What each rack's uplinks carry, line; None where all ranks are in one, or racks are not known."""
    racks_eff: tuple[Part, ...] | None
    rack_of: tuple[int, ...]
    """By domain: its place in `racks`; empty where that is None."""
    assumptions: tuple[str, ...]

    @property
    def many(self) -> bool:
        """Whether ranks of several domains talk, by NIC."""
        return len(self.domains) > 1


def lay_out(topology: Topology, ranks: Iterable[RankPlace] | None, environ: Mapping[str, str], crowd: Crowd = ALONE) -> Shape:
    """The shape of these ranks (all GPUs where None), beside the other groups of a crowd.

    Raises DetectError for what is not known, UsageError for a rank that is not there.
    """
    members = members_of(topology, ranks)
    if not members:
        raise DetectError("no GPU in this topology", "name the hardware: --gpus 8xH100-SXM")
    rules = rules_of(environ)
    groups: dict[object, list[int]] = {}
    for rank, (position, node, gpu) in enumerate(members):
        if gpu.model is None:
            raise _unknown(node, gpu)
        if gpu.mig:
            raise DetectError(f"{node.label}: GPU {gpu.index} is in MIG mode: NCCL does not run slices of a GPU as ranks")
        groups.setdefault(border_of(position, gpu, rules), []).append(rank)
    places: list[tuple[int, int]] = [(0, 0)] * len(members)
    domains: list[Domain] = []
    racks: list[str | None] = []
    known: dict[object, Domain] = {}
    alike: dict[Domain, Domain] = {}
    for number, (border, group) in enumerate(groups.items()):
        for at, rank in enumerate(group):
            places[rank] = (number, at)
        inside: list[Member] = [(members[rank][1], members[rank][2]) for rank in group]
        domains.append(_cached(known, alike, inside, rules, crowd.at_border.get(border, 1), crowd.at_nic))
        racks.append(members[group[0]][1].rack or members[group[0]][1].leaf)
    _refuse_unknown_net(domains)
    line, eff = _rack_parts(domains, racks, topology.oversubscription)
    told = tuple(dict.fromkeys((*topology.assumptions, *(text for domain in alike for text in domain.assumptions))))
    kinds = tuple({id(domain): domain for domain in domains}.values())
    names = list(dict.fromkeys(racks))
    rack_of = () if line is None else tuple(names.index(rack) for rack in racks)
    return Shape(n=len(members), domains=tuple(domains), kinds=kinds, places=tuple(places), racks=line, racks_eff=eff, rack_of=rack_of,
                 assumptions=told)  # fmt: skip


def gathered(topology: Topology, groups: Sequence[Sequence[RankPlace]], environ: Mapping[str, str]) -> tuple[int, Crowd]:
    """(which of the groups that run at once is expected to be the slowest, the crowd that they are).

    Raises UsageError for a rank that is not there.
    """
    members = iter(members_of(topology, [rank for group in groups for rank in group]))
    return crowd_of([[next(members) for _rank in group] for group in groups], rules_of(environ))


def _unknown(node: Node, gpu: Gpu) -> DetectError:
    if gpu.name is None:
        return DetectError(f"{node.label}: which model GPU {gpu.index} is is not known", "name it: --gpu H100-SXM")
    return DetectError(f"{node.label}: the GPU {gpu.name!r} is not in the table of known models", f"known: {' '.join(BY_NAME)}")


def members_of(topology: Topology, ranks: Iterable[RankPlace] | None) -> list[Placed]:
    """The ranks' nodes and GPUs."""
    everything = [(position, node, gpu) for position, node in enumerate(topology.nodes) for gpu in node.gpus or ()]
    if ranks is None:
        unknown = [node.label for node in topology.nodes if node.gpus is None]
        if unknown:
            raise DetectError(f"{unknown[0]}: its GPUs are not known", "name them: --gpus 8xH100-SXM")
        return everything
    by_name: dict[tuple[str, int], Placed] = {(node.label, gpu.index): (at, node, gpu) for at, node, gpu in everything}
    found = []
    for rank in ranks:
        item = (everything[rank] if 0 <= rank < len(everything) else None) if isinstance(rank, int) else by_name.get(rank)
        if item is None:
            raise UsageError(f"no GPU {rank} in this topology of {len(everything)} GPUs on {len(topology.nodes)} nodes")
        found.append(item)
    return found


def _cached(
    known: dict[object, Domain], alike: dict[Domain, Domain], members: Sequence[Member], rules: Rules, at_once: int, shared: Mapping[int, int]
) -> Domain:
    """Equal nodes are reckoned once: a cluster has thousands of them."""
    nodes = list(dict.fromkeys(id(node) for node, _gpu in members))
    key = (tuple(nodes), tuple((nodes.index(id(node)), gpu.index) for node, gpu in members)) if len(nodes) == 1 else None
    if key is not None and key in known:
        return known[key]
    built = build(members, rules, at_once, shared)
    domain = alike.setdefault(built, built)
    known[key if key is not None else len(known)] = domain
    return domain


def _refuse_unknown_net(domains: Sequence[Domain]) -> None:
    if len(domains) < 2:
        return
    for domain in domains:
        if not domain.net_known:
            raise DetectError(f"{domain.why_no_net}, and {len(domains)} nodes talk through them", "name them: --nics 8x400-IB")


def _rack_parts(
    domains: Sequence[Domain], racks: Sequence[str | None], oversubscription: float
) -> tuple[tuple[Part, ...] | None, tuple[Part, ...] | None]:
    if len(set(racks)) < 2 or None in racks:
        return None, None
    names = list(dict.fromkeys(rack for rack in racks if rack is not None))
    members = {name: [domain for domain, rack in zip(domains, racks, strict=True) if rack == name] for name in names}
    words = f"rack's uplinks ({oversubscription:g}:1)"
    sizes = {name: sum(domain.size for domain in found) for name, found in members.items()}
    line = tuple(Part(sizes[name], sum(domain.line.net for domain in found) / oversubscription, words) for name, found in members.items())
    eff = tuple(Part(sizes[name], sum(domain.eff.net for domain in found) / oversubscription, words) for name, found in members.items())
    return line, eff
