"""What a fabric allows: `line` from physics, `attainable` from what NCCL's protocols leave, by collective and algorithm. Pure.

With n ranks in N domains of g ranks (hosts, or NVLink domains), L a GPU's links, B a domain's NICs, b = B/g; `line`:

    ring                 min(B, L g/(g-1))                          (one domain: L)
    tree, any without in-network sums   min(L + b, B (n-1)/(n-g))
    NVLS                 min(2 (n-1)/n (L + b), B (n-1)/(n-g))      (one domain: 2 (n-1)/n L)
    SHARP                2 (n-1)/n min(L + b, B) with NVLS inside, 2 (n-1)/n min(L/2 + b, B) without
    all_to_all           min(L + b, b (n-1)/(n-g))
    scatter, gather      min(L + the root's slot, B (n-1)/(n-g))
    sendrecv by ring     the pair at a domain's border: min(L, B, slot);  by node: min(L, b)

bounds.py has them for uneven parts, meshes and racks. Attainable puts NCCL's figures in their place, with the factors below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nccl_bench.collectives import COLLECTIVES, bus_factor
from nccl_bench.errors import UsageError
from nccl_bench.fabric import expected as expected_table
from nccl_bench.fabric import paths
from nccl_bench.fabric.algorithms import allowed, ceiling_key, nvls_adds
from nccl_bench.fabric.bounds import Bound, least, most
from nccl_bench.fabric.crowd import ALONE, Crowd
from nccl_bench.fabric.expected import Expected
from nccl_bench.fabric.latency import Start, expected_us, is_least, starts
from nccl_bench.fabric.shape import RankPlace, Shape, lay_out
from nccl_bench.fabric.topology import Topology

NVLS_HOPPER, NVLS_HOPPER_NODES = 0.835, 0.79
"""Share of 2 (n-1)/n L g/(g+1) that NVLS reached on Hopper: 482.3 GB/s on 8x H100 (xxrjun/nccl-tests-cluster), 487.3 on two
nodes (awslabs/awsome-distributed-training): fitted on these."""
NVLS_BLACKWELL, NVLS_BLACKWELL_RACK = 0.745, 0.665
"""The same on Blackwell up to 8 GPUs (845 GB/s on 8x B300, NVIDIA/nccl#2140) and in an NVL72 (930.5 on 64x GB300, OCI)."""
TREE_SHARE = 0.92
"""NCCL's own factor for the tree (src/graph/tuning.cc: busBw * .92)."""
PAT_SHARE = 0.75
"""NCCL's own factor for PAT (src/graph/tuning.cc)."""
SHARP_SHARE = 0.72
"""554 of 775 GB/s on four B200 nodes, the one published figure (Together AI): weak."""
GPUS_OF_A_HOST = 8
SAME_FRAC = 0.999
"""Algorithms this close to the best reach as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The ceilings of one collective by one algorithm, GB/s of bus bandwidth."""

    line_GBps: float
    attainable_GBps: float
    limited_by: str
    """What makes `attainable`, in words."""
    line_limited_by: str
    expected: Expected | None = None
    """What healthy systems of this kind reached; None where fewer than two sources are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCeilings:
    """One collective: by algorithm, and the best of those this fabric has."""

    collective: str
    bus_factor: float
    by_algorithm: Mapping[str, Ceiling]
    best: Ceiling
    fastest: frozenset[str]
    """The algorithms whose attainable is `best`'s."""
    latency_us: float | None
    """Expected time of the smallest messages (latency.py); None where it is not modelled."""
    latency_least: bool
    """Whether that is only the least it takes."""
    starts: Mapping[str, tuple[Start, ...]]
    """By algorithm: what each protocol costs before the first byte, and keeps of the bandwidth; empty where it is not modelled."""

    def of(self, algorithm: str | None) -> Ceiling:
        """The ceiling of the algorithm that ran ("NVLSTree", "ring"), the best where it is None or none of this fabric's."""
        return self.by_algorithm.get(ceiling_key(algorithm), self.best) if algorithm else self.best


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """All collectives of a group of ranks."""

    n_ranks: int
    n_domains: int
    ranks_per_domain: tuple[int, int]
    """(fewest, most)."""
    collectives: Mapping[str, CollectiveCeilings]
    """By name; sendrecv by ring shift, and "sendrecv:node" by node shift where there are several domains."""
    platform: str
    """What kind of system `expected` was looked up for."""
    floor: Mapping[str, float]
    """By collective: the stated floor, as a share of attainable, for what `expected` does not know."""
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    def of(self, collective: str, algorithm: str | None = None, shift: str | None = None) -> Ceiling:
        """The ceiling of a measured case."""
        name = f"{collective}:node" if shift == "node" and f"{collective}:node" in self.collectives else collective
        return self.collectives[name].of(algorithm)


def ceilings(
    topology: Topology,
    ranks: Iterable[RankPlace] | None,
    environ: Mapping[str, str],
    *,
    dtype: str = "float32",
    op: str = "sum",
    sharp: bool | None = None,
    collectives: Iterable[str] | None = None,
    crowd: Crowd = ALONE,
) -> Ceilings:
    """The ceilings of these ranks (all GPUs where None) on this fabric, under NCCL's variables in `environ`.

    `ranks`: numbers of GPUs counted node by node, or (host, GPU index), in rank order. `dtype`, `op`: what NVLS cannot add up falls
    back to ring and tree. `sharp`: whether InfiniBand switches add up; None asks NCCL_COLLNET_ENABLE and what NCCL's log said.
    `crowd`: the groups that run beside this one and share its NICs (shape.gathered).
    Raises DetectError where hardware is unknown: no ceiling is guessed. UsageError for a rank that the topology lacks.
    """
    shape = lay_out(topology, ranks, environ, crowd)
    names = list(COLLECTIVES) if collectives is None else list(collectives)
    with_sharp = sharp if sharp is not None else environ.get("NCCL_COLLNET_ENABLE") == "1" or _sharp_seen(topology)
    adds = nvls_adds(dtype, op)
    platform = expected_table.platform_of(shape)
    warnings: list[str] = []
    found = {}
    for name in names:
        for key in (name, f"{name}:node") if name == "sendrecv" and shape.many else (name,):
            ways = _ways(shape, key, nvls=adds, sharp=with_sharp)
            kept, warning = allowed(ways, name, environ)
            warnings += [warning] if warning else []
            found[key] = _collective(shape, key, kept, platform)
    if shape.n == 1:
        warnings.append("one rank has nobody to talk to: bus bandwidth is 0")
    sizes = [domain.size for domain in shape.domains]
    return Ceilings(
        n_ranks=shape.n,
        n_domains=len(shape.domains),
        ranks_per_domain=(min(sizes), max(sizes)),
        collectives=found,
        platform=platform.name,
        floor={name: expected_table.floor_of(name, shape.n) for name in names},
        assumptions=shape.assumptions,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def without_expected(found: Ceilings) -> Ceilings:
    """The same, held against nothing that other systems reached: for settings under which nobody published results."""

    def bare(row: CollectiveCeilings) -> CollectiveCeilings:
        ways = {way: replace(ceiling, expected=None) for way, ceiling in row.by_algorithm.items()}
        return replace(row, by_algorithm=ways, best=replace(row.best, expected=None))

    return replace(found, collectives={name: bare(row) for name, row in found.collectives.items()})


def _sharp_seen(topology: Topology) -> bool:
    return any((node.nccl or {}).get("sharp_used") for node in topology.nodes)


def _collective(shape: Shape, key: str, ways: Mapping[str, tuple[Bound, Bound]], platform: expected_table.Platform) -> CollectiveCeilings:
    name = key.partition(":")[0]
    line = most(bound for bound, _attainable in ways.values())
    attainable = most(bound for _line, bound in ways.values())
    fastest = frozenset(way for way, (_line, bound) in ways.items() if bound.GBps >= SAME_FRAC * attainable.GBps)
    unseen = fastest if _unseen(shape, key, attainable, fastest, platform) else frozenset()

    def seen(way: str | None) -> expected_table.Share | None:
        return None if (way is None and unseen) or way in unseen else expected_table.lookup(platform, key, way, fastest)

    by_algorithm = {way: _ceiling(way_line, way_attainable, seen(way)) for way, (way_line, way_attainable) in ways.items()}
    best = _ceiling(line, attainable, seen(None))
    return CollectiveCeilings(
        collective=name,
        bus_factor=bus_factor(name, shape.n),
        by_algorithm=by_algorithm,
        best=best,
        fastest=fastest,
        latency_us=expected_us(shape, name),
        latency_least=is_least(name, shape.n),
        starts={way: starts(shape, name, way) for way in ways},
    )


def _unseen(shape: Shape, key: str, attainable: Bound, fastest: frozenset[str], platform: expected_table.Platform) -> bool:
    """Whether a tree's gain over the NICs on two nodes is what nobody showed on such systems: shares that links limited tell nothing of it."""
    by_nics = attainable.words in {domain.eff.net_words for domain in shape.kinds}
    if not by_nics or key != "all_reduce" or len(shape.domains) != 2 or "ring" in fastest:
        return False
    return not expected_table.above_nics(platform.name, key, fastest)


def _ceiling(line: Bound, attainable: Bound, share: expected_table.Share | None) -> Ceiling:
    most_GBps = min(attainable.GBps, line.GBps)
    return Ceiling(
        line_GBps=line.GBps,
        attainable_GBps=most_GBps,
        limited_by=attainable.words,
        line_limited_by=line.words,
        expected=None if share is None else share.of(most_GBps, line.GBps),
    )


def _ways(shape: Shape, key: str, *, nvls: bool, sharp: bool) -> dict[str, tuple[Bound, Bound]]:
    """(line, attainable) by algorithm."""
    if shape.n < 2:
        nothing = Bound(0.0, "one rank has nobody to talk to")
        return {"ring" if key in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce") else "p2p": (nothing, nothing)}
    match key.partition(":")[0]:
        case "all_reduce":
            return _all_reduce(shape, nvls=nvls, sharp=sharp)
        case "all_gather" | "reduce_scatter":
            return _gather_like(shape, nvls=nvls or key == "all_gather")
        case "broadcast" | "reduce":
            return {"ring": (paths.ring(shape, effective=False), paths.ring(shape, effective=True))}
        case "all_to_all":
            return {"p2p": (paths.exchange(shape, effective=False), paths.exchange(shape, effective=True))}
        case "gather" | "scatter":
            return {"p2p": (paths.rooted(shape, effective=False), paths.rooted(shape, effective=True))}
        case "sendrecv":
            by_node = key.endswith(":node")
            return {"p2p": (paths.shift(shape, by_node=by_node, effective=False), paths.shift(shape, by_node=by_node, effective=True))}
        case "pingpong":
            return {"p2p": (paths.halves(shape, effective=False), paths.halves(shape, effective=True))}
        case _:
            raise UsageError(f"no ceiling is known for {key!r}")


def _all_reduce(shape: Shape, *, nvls: bool, sharp: bool) -> dict[str, tuple[Bound, Bound]]:
    ring = paths.ring(shape, effective=True)
    ways = {"ring": (paths.ring(shape, effective=False), ring), "tree": (paths.at_ends(shape), _tree(shape))}
    if nvls and all(domain.nvls or domain.size == 1 for domain in shape.kinds) and any(domain.nvls for domain in shape.kinds):
        ways["nvls"] = (paths.in_switches(shape), _nvls(shape))
    if sharp and shape.many:
        ways["collnet"] = (paths.in_network(shape), _collnet(shape))
    return ways


def _gather_like(shape: Shape, *, nvls: bool) -> dict[str, tuple[Bound, Bound]]:
    line, attainable = paths.ring(shape, effective=False), paths.ring(shape, effective=True)
    ways = {"ring": (line, attainable)}
    if nvls and not shape.many and shape.kinds[0].nvls:
        ways["nvls"] = (line, attainable)
    if shape.many and all(domain.size == 1 for domain in shape.kinds):
        ways["pat"] = (line, Bound(attainable.GBps * PAT_SHARE, attainable.words))
    return ways


def _links_eff(shape: Shape) -> Bound:
    """The slowest GPU's links by NCCL's figures; no bound where every domain is one GPU."""
    bounds = [Bound(min(domain.eff.links), domain.link_words) for domain in shape.kinds if domain.size > 1 and domain.whole]
    slots = [Bound(min(domain.eff.slots), domain.slot_words) for domain in shape.kinds if domain.size > 1 and not domain.whole]
    return least(*bounds, *slots)


def _net_eff(shape: Shape) -> Bound:
    return least(*(Bound(domain.eff.net, domain.eff.net_words) for domain in shape.kinds))


def _trees_net(shape: Shape) -> Bound | None:
    """Two nodes send the sum once each way, so the factor credits what was never sent; inner nodes of larger trees send it twice."""
    if not shape.many:
        return None
    net, n = _net_eff(shape), shape.n
    return Bound(net.GBps * (2 if len(shape.domains) == 2 else 1) * (n - 1) / n, net.words)


def _tree(shape: Shape) -> Bound:
    links = _links_eff(shape)
    return least(Bound(links.GBps * TREE_SHARE, links.words), _trees_net(shape), _racks_eff(shape))


def _racks_eff(shape: Shape) -> Bound | None:
    return least(*(Bound(part.rate, part.words) for part in shape.racks_eff)) if shape.racks_eff else None


def _nvls(shape: Shape) -> Bound:
    bounds = []
    for domain in shape.kinds:
        if domain.size > 1:
            share = nvls_share(domain.cc, domain.size, nodes=len(shape.domains))
            g = domain.size
            bounds.append(Bound(share * 2 * (shape.n - 1) / shape.n * min(domain.eff.links) * g / (g + 1), domain.link_words))
    return least(*bounds, _trees_net(shape), _racks_eff(shape))


def nvls_share(cc: int | None, size: int, nodes: int) -> float:
    """The fitted factor of NVLS at this compute capability, domain size and number of domains."""
    if (cc or 0) >= 100:
        return NVLS_BLACKWELL if size <= GPUS_OF_A_HOST else NVLS_BLACKWELL_RACK
    return NVLS_HOPPER if nodes == 1 else NVLS_HOPPER_NODES


def _collnet(shape: Shape) -> Bound:
    n = shape.n
    net = _net_eff(shape)
    bounds = [Bound(2 * (n - 1) / n * net.GBps / 0.98 * SHARP_SHARE, net.words)]
    for domain in shape.kinds:
        if domain.size > 1:
            links = min(domain.eff.links)
            inside = 2 * (n - 1) / n * links * domain.size / (domain.size + 1) * nvls_share(domain.cc, domain.size, 2) if domain.nvls else links
            bounds.append(Bound(inside, domain.link_words))
    return least(*bounds)


