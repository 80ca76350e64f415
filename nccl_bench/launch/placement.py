"""Who sits where, and whether all ranks were started alike: pure functions of what the ranks said when they joined."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from nccl_bench.errors import LaunchError, WorldError
from nccl_bench.launch.board import rank_ranges
from nccl_bench.launch.values import Seat

Json = dict[str, Any]


def seats(joins: Sequence[Json]) -> tuple[Seat, ...]:
    """The seat of each rank, in rank order; a node is a host name and a boot id.

    The launcher's local ranks count where they are all there and differ, else the order of the ranks on the node.
    """
    nodes: defaultdict[tuple[str, str | None], list[Json]] = defaultdict(list)
    for join in sorted(joins, key=lambda join: int(join["rank"])):
        nodes[join["host"], join.get("node")].append(join)
    found: list[Seat] = []
    for index, members in enumerate(nodes.values()):
        given = [join.get("local_rank") for join in members]
        numbers = given if set(given) == set(range(len(members))) else list(range(len(members)))
        found.extend(
            Seat(rank=int(join["rank"]), local_rank=number or 0, local_size=len(members), node_index=index)
            for join, number in zip(members, numbers, strict=True)
        )
    return tuple(sorted(found, key=lambda seat: seat.rank))


def unlike(joins: Sequence[Json]) -> LaunchError | None:
    """The error where ranks bring unlike versions or options, naming values and hosts; None where all are alike."""
    offers = [_flat(join["offer"]) for join in joins]
    for name in dict.fromkeys(name for offer in offers for name in offer):
        groups: defaultdict[str, list[Json]] = defaultdict(list)
        for join, offer in zip(joins, offers, strict=True):
            groups[_text(offer.get(name))].append(join)
        if len(groups) == 1:
            continue
        ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
        parts = [f"{text} on {whom(members)}" for text, members in ordered[:4]]
        more = f", and {len(ordered) - 4} more" if len(ordered) > 4 else ""
        if "." in name:
            return LaunchError(f"unlike {name.replace('.', ': ')}: {', '.join(parts)}{more}", "start all ranks with the same command line")
        return LaunchError(
            f"unlike versions of {name}: {', '.join(parts)}{more}", "give all nodes the same environment (one on a shared file system, or one image)"
        )
    return None


def _flat(offer: Mapping[str, Any]) -> Json:
    """The offer with the keys of inner objects as "outer.key"."""
    flat: Json = {}
    for name, value in offer.items():
        flat.update({f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value})
    return flat


def _text(value: Any) -> str:
    return "none" if value is None else str(value)[:80]


def whom(ranks: Iterable[Mapping[str, Any]]) -> str:
    """Ranks in few words: "rank 3 (h2)", "ranks 0-7 (h2)", "h044, h045 (x16 ranks)", "127 hosts (x1016 ranks, first h017)"."""
    known = sorted(ranks, key=lambda rank: int(rank["rank"]))
    hosts = list(Counter(str(rank.get("host", "?")) for rank in known))
    numbers = rank_ranges(int(rank["rank"]) for rank in known)
    if len(known) == 1:
        return f"rank {numbers} ({hosts[0]})"
    if len(hosts) == 1:
        return f"ranks {numbers} ({hosts[0]})" if len(numbers) < 40 else f"{hosts[0]} (x{len(known)} ranks)"
    if len(hosts) <= 4:
        return f"{', '.join(hosts)} (x{len(known)} ranks)"
    return f"{len(hosts)} hosts (x{len(known)} ranks, first {hosts[0]})"


def absent(joined: Collection[int], world_size: int, timeout_s: float, rank_hosts: Sequence[str]) -> WorldError:
    """"1 of 2 ranks joined in 60 s; missing: rank 1 (host h2)"; `rank_hosts` is where each rank was put, () if unknown."""
    absentees = [rank for rank in range(world_size) if rank not in joined]
    missing = rank_ranges(absentees)
    hosts = list(dict.fromkeys(rank_hosts[rank] for rank in absentees if rank < len(rank_hosts)))
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    where = f" (host{'s' if len(hosts) > 1 else ''} {shown})" if hosts else ""
    if len(missing) > 60:
        missing = missing[:60].rsplit(",", 1)[0] + ", ..."
    plural = "ranks" if len(absentees) > 1 else "rank"
    why = f"{len(joined)} of {world_size} ranks joined in {timeout_s:.0f} s; missing: {plural} {missing}{where}"
    return WorldError(why, "see whether these ranks were started, and what they said")
