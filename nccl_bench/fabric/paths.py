"""The bounds of bounds.py over the parts that a shape has: GPUs, inner cuts, domains, racks. `effective` takes NCCL's figures."""

from __future__ import annotations

import math
from collections import Counter

from nccl_bench.errors import DetectError
from nccl_bench.fabric import bounds
from nccl_bench.fabric.bounds import Bound, Part, least, most
from nccl_bench.fabric.domain import Domain, Rates
from nccl_bench.fabric.shape import Shape


def _rates(domain: Domain, effective: bool) -> Rates:
    return domain.eff if effective else domain.line


def _words(domain: Domain, part: Part) -> str:
    return {"link": domain.link_words, "slot": domain.slot_words}.get(part.words, part.words)


def _domain_parts(shape: Shape, effective: bool) -> list[Part]:
    """The partition into domains: what their NICs carry. None where there is one domain."""
    return [Part(domain.size, rates.net, rates.net_words) for domain in shape.domains for rates in (_rates(domain, effective),)] if shape.many else []


def _rack_parts(shape: Shape, effective: bool) -> tuple[Part, ...]:
    return (shape.racks_eff if effective else shape.racks) or ()


def _inner_parts(shape: Shape, effective: bool) -> list[Part]:
    """Parts inside domains, with what their own NICs add at their border where several domains talk."""
    found: list[Part] = []
    for domain in shape.kinds:
        rates = _rates(domain, effective)
        for part in rates.cuts:
            extra = min(rates.net, part.n_ranks * max(rates.slots)) if shape.many and domain.whole else 0.0
            found.append(Part(part.n_ranks, part.rate + extra, _words(domain, part)))
    return found


def _intake(shape: Shape, domain: Domain, rates: Rates) -> float:
    """What may enter all GPUs of a domain together: links and NICs; through slots alone where links do not join all."""
    by_slot = rates.net if domain.whole else sum(rates.slots)
    return sum(rates.links) + (by_slot if shape.many or not domain.whole else 0.0)


def _member_words(domain: Domain) -> str:
    return domain.link_words if domain.whole else domain.slot_words


def _shared_intake(shape: Shape) -> Bound | None:
    """The same a GPU, in the narrowest domain (L + b); line."""
    found = [Bound(_intake(shape, kind, kind.line) / kind.size, _member_words(kind)) for kind in shape.kinds if kind.size > 1]
    return least(*found) if found else None


def _mean_intake(shape: Shape) -> Bound | None:
    """The same a GPU over all domains: ranks that take in little may leave the adding up to others; line."""
    if all(kind.size == 1 for kind in shape.kinds):
        return None
    total = sum(_intake(shape, domain, domain.line) for domain in shape.domains)
    narrow = min((kind for kind in shape.kinds if kind.size > 1), key=lambda kind: _intake(shape, kind, kind.line) / kind.size)
    return Bound(total / shape.n, _member_words(narrow))


def ring(shape: Shape, *, effective: bool) -> Bound:
    """Flat rings: all of the bus bandwidth enters each domain by its NICs once, and inside passes from GPU to GPU."""
    n = shape.n
    inside = []
    for domain in shape.kinds:
        if domain.size < 2:
            continue
        rates = _rates(domain, effective)
        cuts = [Part(part.n_ranks, part.rate, _words(domain, part)) for part in rates.cuts]
        if not shape.many:
            inside.append(bounds.ring(n, cuts) if not effective or domain.whole else _ring_by_slot(domain))
        elif domain.whole:
            # Of g hops a ring makes in a domain g - 1 go by links; the channels begin at different GPUs, so links share the load.
            inside.append(Bound(sum(rates.links) / (domain.size - 1), domain.link_words))
            inside.append(bounds.ring(n, [part for part in cuts if part.n_ranks > 1]))
        else:
            inside.append(_ring_by_slot(domain) if effective else bounds.ring(n, cuts))
    return least(*inside, bounds.ring(n, _domain_parts(shape, effective)), bounds.ring(n, _rack_parts(shape, effective)))


def _ring_by_slot(domain: Domain) -> Bound:
    """A ring that leaves the links somewhere goes through one slot there: NCCL makes all its channels alike."""
    by_bridge = [Bound(part.rate, part.words) for part in domain.eff.cuts if part.words not in ("link", "slot")]
    return least(Bound(min(domain.eff.slots), domain.slot_words), *by_bridge)


def at_ends(shape: Shape) -> Bound:
    """all_reduce by any algorithm in which only GPUs add up, line."""
    return _combine(shape, in_switches=False)


def in_switches(shape: Shape) -> Bound:
    """all_reduce with sums in the switches of each domain, line."""
    return _combine(shape, in_switches=True)


def _combine(shape: Shape, *, in_switches: bool) -> Bound:
    n = shape.n
    intake = _shared_intake(shape)
    each = None if intake is None else Bound(2 * (n - 1) / n * intake.GBps, intake.words)
    cuts = [bounds.all_reduce_in_fabric(n, [part, part]) for part in _inner_parts(shape, effective=False)]
    return least(
        None if in_switches else _mean_intake(shape),
        each,
        *cuts,
        bounds.all_reduce_at_ends(n, _domain_parts(shape, effective=False)),
        bounds.all_reduce_at_ends(n, _rack_parts(shape, effective=False)),
    )


def in_network(shape: Shape) -> Bound:
    """all_reduce with sums in the network's switches, and in NVSwitch where a domain has it, line."""
    n = shape.n
    inside = []
    for domain in shape.kinds:
        if domain.size > 1:
            share = domain.line.net / domain.size
            mean = sum(domain.line.links) / domain.size
            # Without switches that add up, g GPUs and the network combine over g edges and spread over g: 2 g S <= T (g L + 2 B).
            inside.append(Bound(2 * (n - 1) / n * (mean + share if domain.nvls else mean / 2 + share), domain.link_words))
    return least(*inside, bounds.all_reduce_in_fabric(n, _domain_parts(shape, effective=False)))


def exchange(shape: Shape, *, effective: bool) -> Bound:
    """all_to_all over GPUs, inner cuts, domains and racks."""
    n = shape.n
    inner = _inner_parts(shape, effective)
    intake = _slowest_member(shape) if effective else _shared_intake(shape)
    return least(
        intake, bounds.exchange(n, inner), bounds.exchange(n, _domain_parts(shape, effective)), bounds.exchange(n, _rack_parts(shape, effective))
    )


def _slowest_member(shape: Shape) -> Bound | None:
    """NCCL's figure of the slowest GPU's way out: its links, or its slot."""
    found = [
        Bound(min(domain.eff.links), domain.link_words) if domain.whole else Bound(min(domain.eff.slots), domain.slot_words)
        for domain in shape.kinds
        if domain.size > 1
    ]
    return least(*found) if found else None


def rooted(shape: Shape, *, effective: bool) -> Bound:
    """gather and scatter: what the root's links and slot, its domain's NICs and its rack bring in, at the place best for a root."""
    n = shape.n
    found = []
    for domain in shape.kinds:
        rates = _rates(domain, effective)
        own = most(_root(shape, domain, rates, at) for at in range(domain.size)) if domain.size > 1 else None
        net = bounds.gather_like(n, [Part(domain.size, rates.net, rates.net_words)]) if shape.many else None
        found.append(least(own, net))
    racks = [bounds.gather_like(n, [part]) for part in _rack_parts(shape, effective)]
    return least(most(found), most(racks) if racks else None)


def _root(shape: Shape, domain: Domain, rates: Rates, at: int) -> Bound:
    """What one GPU can take in from all others; by its slot comes what no link brings."""
    if domain.whole:
        by_nic = min(rates.slots[at], rates.net) if shape.many else 0.0
        return Bound(rates.links[at] + by_nic, domain.link_words)
    linked = sum(1 for rate in rates.pairs[at] if rate) if rates.pairs is not None else 0
    others = shape.n - 1 - linked
    return Bound(min(rates.slots[at] * (shape.n - 1) / others, rates.links[at] + rates.slots[at]), domain.slot_words)


def shift(shape: Shape, *, by_node: bool, effective: bool) -> Bound:
    """sendrecv: rank i to i + 1 (ring), or to i + ranks of a domain (node), all at once."""
    step = max(domain.size for domain in shape.domains) if by_node else 1
    return _flows(shape, [(rank, (rank + step) % shape.n) for rank in range(shape.n)], effective=effective)


def halves(shape: Shape, *, effective: bool) -> Bound:
    """pingpong: rank i and i + n/2, one direction at a time, all pairs at once."""
    half = shape.n // 2
    return _flows(shape, [(rank, rank + half) for rank in range(half)], effective=effective)


def _flows(shape: Shape, pairs: list[tuple[int, int]], *, effective: bool) -> Bound:
    """The slowest of equal flows that run at once: each within its own way, a domain's within its NICs, a rack's within its uplinks."""
    out = [0] * len(shape.domains)
    into = [0] * len(shape.domains)
    found: dict[Bound, None] = {}
    for source, target in pairs:
        (one, first), (two, second) = shape.places[source], shape.places[target]
        if one == two:
            found[_inside(shape.domains[one], first, second, effective)] = None
            continue
        out[one] += 1
        into[two] += 1
        for domain, member in ((shape.domains[one], first), (shape.domains[two], second)):
            rates = _rates(domain, effective)
            by_slot = not effective and rates.slots[member] < rates.net
            own = rates.near[member] if effective else min(rates.net, rates.slots[member])
            found[Bound(own, domain.near_words if effective else domain.slot_words if by_slot else rates.net_words)] = None
    for domain, sent, received in zip(shape.domains, out, into, strict=True):
        busier = max(sent, received)
        if busier:
            rates = _rates(domain, effective)
            found[Bound(rates.net / busier, rates.net_words)] = None
    return least(*found, *_flows_of_racks(shape, pairs, effective=effective))


def _flows_of_racks(shape: Shape, pairs: list[tuple[int, int]], *, effective: bool) -> list[Bound]:
    """What the uplinks of each rack leave of them to a flow."""
    out: Counter[int] = Counter()
    into: Counter[int] = Counter()
    for source, target in pairs if shape.rack_of else ():
        one, two = (shape.rack_of[shape.places[rank][0]] for rank in (source, target))
        if one != two:
            out[one] += 1
            into[two] += 1
    return [Bound(part.rate / max(out[at], into[at]), part.words) for at, part in enumerate(_rack_parts(shape, effective)) if out[at] or into[at]]


def _inside(domain: Domain, first: int, second: int, effective: bool) -> Bound:
    """Two GPUs of one domain: a switch gives all links, a mesh those of the pair, else a slot carries it."""
    rates = _rates(domain, effective)
    if domain.switched and domain.whole:
        return Bound(min(rates.links[first], rates.links[second]), domain.link_words)
    pair = rates.pairs[first][second] if rates.pairs is not None else 0.0
    if pair:
        return Bound(pair, f"links between GPU {first} and {second}" if domain.size > 2 else domain.link_words)
    if domain.whole and rates.pairs is not None:
        # NCCL relays through a GPU that both are linked to (NVB); physics allows all their links.
        relays = [min(rates.pairs[first][at], rates.pairs[at][second]) for at in range(domain.size)]
        rate = max(relays) if effective else min(rates.links[first], rates.links[second])
        return Bound(rate, f"links between GPU {first} and {second}, by way of another")
    slots = min(rates.slots[first], rates.slots[second])
    if math.isinf(slots):
        raise DetectError(f"how GPU {first} and GPU {second} of one node are joined is not known: no link between them, and no PCIe slot")
    return Bound(slots, domain.slot_words)
