"""Who is to blame: from exchanges of pairs, single measurements and marks to ranked suspects, or to what would decide. numpy.

Rails first, then boundaries, then nodes and ports, then links: what a larger cause explains is not blamed on smaller ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from nccl_bench.units import counted
from nccl_bench.verdict import inside as within
from nccl_bench.verdict import places as between
from nccl_bench.verdict.blame_ends import End, Search, beyond_paths, by_node, slow_ends, slow_rails
from nccl_bench.verdict.ends import SHARE, SIGMAS, less_common, look
from nccl_bench.verdict.evidence import LARGE_BOTH, LARGE_ONE, SMALL_BOTH, SMALL_ONE, Evidence, Exchanges, Findings, Ints, Mark, Suspect
from nccl_bench.verdict.ranked import noisy_ends, stalling_ends

STRATA = {
    LARGE_BOTH: "large, both directions",
    LARGE_ONE: "large, one direction",
    SMALL_BOTH: "small, both directions",
    SMALL_ONE: "small, one direction",
}
MOST_AT_ONCE = 32
"""Nodes beyond which a screen without known groups is judged by the slower of two heaps: neighbours under one switch are then the fast
ones, and many a node has met none of its own."""
MAX_LINKS = 16
"""More slow pairs than this are no links but something that this data cannot name."""
MIN_LINK_LOSS = 0.10
"""Of a link's speed in each of its exchanges, before the link is named: it has no other partners to confirm it."""
LINK_ROUNDS = 3
"""Rounds in which it must have been slow: two that were disturbed by something else are no link."""
CONFIRM_WITH = 3
"""Known-good partners that a suspect is tried with again."""
ALL_FAILED = "every pair failed, so no host was seen to work and nothing says which is to blame"


def localise(evidence: Evidence) -> Findings:
    """The findings of one run's evidence."""
    suspects: list[Suspect] = []
    findings = Findings()
    if evidence.exchanges is not None and len(evidence.exchanges):
        findings = _between_nodes(evidence, evidence.exchanges)
        suspects += findings.suspects
    if evidence.inside is not None:
        suspects += within.slow_gpus(evidence.inside, evidence.hosts)
    for alone in evidence.alone:
        suspects += within.slow_alone(alone, evidence.hosts)
    suspects += [_marked(mark) for mark in evidence.marks if mark.blames]
    merged = _merge(suspects, evidence)
    ranked = sorted(merged, key=lambda one: (-_weight(one), one.name()))
    return replace(findings, suspects=tuple(replace(one, serial=one.serial or _serial(one, evidence)) for one in ranked))


def _weight(suspect: Suspect) -> float:
    """What is seen directly or beyond any luck counts in full; else the loss times how sure it is."""
    sure = 1.0 if suspect.chance is None else min(1.0, -math.log10(max(suspect.chance, 1e-300)) / 9)
    return suspect.score * max(sure, 0.0)


def _between_nodes(evidence: Evidence, exchanges: Exchanges) -> Findings:
    if not (np.isfinite(exchanges.speed) & (exchanges.speed > 0)).any():
        return _all_failed(evidence, exchanges)
    n_nodes = len(evidence.hosts)
    groups = evidence.groups or between.infer(exchanges, n_nodes, evidence.hosts)
    places = None if groups is None else between.Places.of(groups)
    across = None if places is None else places.across(exchanges)
    levels = None if places is None else between.levels(exchanges, places)
    looked = look(exchanges, None if across is None else across.astype(np.int64), places is None and n_nodes > MOST_AT_ONCE, levels)
    if places is not None or n_nodes > MOST_AT_ONCE:  # without known groups a round of few nodes may be slow by who meets whom
        looked = less_common(exchanges, looked, None if across is None else across.astype(np.int64))
    search = Search(evidence=evidence, exchanges=exchanges, looked=looked, use=np.ones(len(exchanges), dtype=bool), across=across)
    suspects = slow_rails(search)
    notes: list[str] = []
    crossing = np.zeros(len(exchanges), dtype=bool)
    if groups is not None and places is not None:
        found, crossing, notes = between.between(exchanges, looked, places, groups, search.use, evidence.oversubscription)
        suspects += found
        search.use &= ~crossing
    ends = noisy_ends(search)
    ends += slow_ends(search)
    ends, boundary = _only_their_place(search, ends)
    core, explained = between.leftovers(exchanges, looked, search.use, places)
    if core is not None:
        ends = beyond_paths(search, ends, core.score)
    search.use &= ~explained
    ends = [*ends, *stalling_ends(search)]
    suspects += [*boundary, *by_node(search, ends), *([] if core is None else [core])]
    links, undetermined, next_pairs = _links(search, search.use)
    failed, how = _failed(evidence, exchanges, places)
    unseen = [1 - math.exp(-SIGMAS * sigma) for number, sigma in looked.sigma.items() if number in (LARGE_BOTH, LARGE_ONE)]
    noisy = [f"{STRATA[number]}: exchanges scatter by {sigma:.0%}, so losses below {1 - math.exp(-SIGMAS * sigma):.0%} are not seen"
             for number, sigma in looked.sigma.items() if sigma > 0.05]  # fmt: skip
    return Findings(
        suspects=(*suspects, *links), undetermined=tuple(undetermined), failed=failed, next_pairs=tuple(next_pairs),
        notes=(*notes, *how, *noisy), unseen_frac=max(unseen, default=0.0),
        reference={STRATA[number]: value for number, value in looked.reference.items()},
    )  # fmt: skip


def _all_failed(evidence: Evidence, exchanges: Exchanges) -> Findings:
    """Undetermined: where nothing worked, who has most of the pairs is no more to blame than the others."""
    hosts, n = evidence.hosts, min(len(evidence.hosts), MAX_LINKS)
    met = {(min(pair), max(pair)) for pair in zip(exchanges.src.tolist(), exchanges.dst.tolist(), strict=True)}
    unclear = (Suspect(kind="link", host=hosts[a], peer=hosts[b], score=1.0, evidence=("failed, as every pair did",)) for a, b in sorted(met))
    fresh = [(hosts[a], hosts[b]) for a in range(n) for b in range(a + 1, n) if (a, b) not in met]
    return Findings(
        undetermined=tuple(itertools.islice(unclear, MAX_LINKS)), failed=_failed(evidence, exchanges, None)[0], next_pairs=tuple(fresh[:MAX_LINKS]),
        notes=(ALL_FAILED,),
    )  # fmt: skip


def _only_their_place(search: Search, ends: list[End]) -> tuple[list[End], list[Suspect]]:
    """Nodes that are slow with the world and fast with one another are set free; their way out is the suspect."""
    by_host: dict[int, int] = {}
    for end in ends:
        by_host[end.node] = by_host.get(end.node, 0) + 1
    whole = [node for node, n in by_host.items() if n >= max(1, SHARE * search.exchanges.n_rails)]
    found: list[Suspect] = []
    for place in between.together(whole, search.exchanges, search.looked.slow, search.n_nodes):
        mine = [end for end in ends if end.node in place]
        ends = [end for end in ends if end.node not in place]
        names = ", ".join(search.evidence.hosts[node] for node in place)
        loss = float(np.median([end.loss for end in mine]))
        texts = (f"{len(place)} nodes are slow with the others ({mine[0].words()}) and normal with one another: their common way out, not they",)
        found.append(
            Suspect(kind="boundary", host="{" + names + "}", peer="the others", score=loss, chance=min(end.chance for end in mine), evidence=texts)
        )
    return ends, found


def _links(search: Search, use: np.ndarray) -> tuple[list[Suspect], list[Suspect], list[tuple[str, str]]]:
    """Slow exchanges whose ends are fast with others: a link where repeats agree, else undetermined, with the pairs that would decide."""
    exchanges, hosts = search.exchanges, search.evidence.hosts
    rows = use & search.looked.slow & np.isfinite(search.looked.loss)
    if not rows.any():
        return [], [], []
    size, rails = search.n_nodes, exchanges.n_rails
    low, high = np.minimum(exchanges.src, exchanges.dst), np.maximum(exchanges.src, exchanges.dst)
    key = ((low * size + high) * rails + exchanges.rail) * 2 + (exchanges.stratum >= SMALL_BOTH)
    numbers, at = np.unique(key, return_inverse=True)
    n, k = np.bincount(at, weights=use), np.bincount(at, weights=rows)
    occasions = _occasions(exchanges, at, len(numbers))
    worst = np.full(len(numbers), np.inf)
    np.minimum.at(worst, at[rows], search.looked.loss[rows])
    fast_nodes = np.zeros(size, dtype=bool)
    fine = search.use & ~search.looked.slow
    fast_nodes[exchanges.src[fine]] = fast_nodes[exchanges.dst[fine]] = True
    ends = np.stack((numbers // 2 // rails // size, numbers // 2 // rails % size)) * rails + numbers // 2 % rails
    often = np.bincount(ends[:, k > 0].ravel(), minlength=size * rails) > 2  # both sizes of one link are two
    sure: list[Suspect] = []
    unsure: list[Suspect] = []
    chosen = sorted((int(i) for i in np.flatnonzero(k > 0)), key=lambda i: -k[i] / n[i] * worst[i])
    for i in chosen[: 4 * MAX_LINKS]:
        pair = int(numbers[i]) // 2 // rails
        a, b = divmod(pair, size)
        loss = 1 - math.exp(-float(worst[i]))
        known = [hosts[node] for node in (a, b) if fast_nodes[node]]
        text = f"{hosts[a]} - {hosts[b]}: -{loss:.0%} in {int(k[i])} of {int(n[i])} exchanges" + (
            f" (local rank {int(numbers[i]) // 2 % rails})" if rails > 1 else ""
        )
        why = f"{' and '.join(known)} fast with others: link or route" if len(known) == 2 else "no other pair says which end it is"
        suspect = Suspect(kind="link", host=hosts[a], peer=hosts[b], score=loss, chance=None, evidence=(text, why))
        alone = not often[ends[:, i]].any()
        often_seen = n[i] >= 6 and k[i] == n[i] and occasions[i] >= LINK_ROUNDS
        (sure if often_seen and len(known) == 2 and alone and loss >= MIN_LINK_LOSS else unsure).append(suspect)
    if len(sure) > MAX_LINKS:
        sure, unsure = [], [*sure, *unsure]
    return sure, unsure[:MAX_LINKS], _next_pairs(search, unsure[:MAX_LINKS], fast_nodes)


def _occasions(exchanges: Exchanges, at: Ints, n: int) -> Ints:
    """[key] in how many rounds it was measured; enough of them where rounds are not known."""
    if exchanges.round is None:
        return np.full(n, LINK_ROUNDS, dtype=np.int64)
    met = np.unique(at * (int(exchanges.round.max()) + 1) + exchanges.round)
    return np.bincount(met // (int(exchanges.round.max()) + 1), minlength=n)


def _next_pairs(search: Search, unsure: Sequence[Suspect], fast: np.ndarray) -> list[tuple[str, str]]:
    """Each doubtful end with a node that is known to be good and that it has not met; the slow pair itself again where all have met all."""
    hosts = search.evidence.hosts
    numbers = {host: at for at, host in enumerate(hosts)}
    met = set(zip(search.exchanges.src.tolist(), search.exchanges.dst.tolist(), strict=True)) if len(hosts) <= 512 else set()
    lost = search.looked.slow
    n_lost = np.bincount(search.exchanges.src[lost], minlength=len(hosts)) + np.bincount(search.exchanges.dst[lost], minlength=len(hosts))
    good = sorted((int(node) for node in np.flatnonzero(fast)), key=lambda node: n_lost[node])
    found: list[tuple[str, str]] = []
    for suspect in unsure:
        ends = [numbers[str(name)] for name in (suspect.host, suspect.peer)]
        both = all(fast[at] for at in ends)
        fresh = []
        for at in ends:
            if fast[at] and not both:
                continue
            partner = next((node for node in good if node not in ends and (at, node) not in met and (node, at) not in met), None)
            fresh += [] if partner is None else [(hosts[at], hosts[partner])]
        found += fresh or ([(str(suspect.host), str(suspect.peer))] if both else [])
    return [pair for at, pair in enumerate(found) if pair not in found[:at] and pair[::-1] not in found[:at]]


def _failed(evidence: Evidence, exchanges: Exchanges, places: between.Places | None) -> tuple[tuple[str, ...], list[str]]:
    rows = np.flatnonzero(~np.isfinite(exchanges.speed))
    pairs = list(dict.fromkeys((int(exchanges.src[row]), int(exchanges.dst[row])) for row in rows))
    names = tuple(f"{evidence.hosts[a]} - {evidence.hosts[b]}" for a, b in pairs)
    if not pairs or places is None:
        return names, []
    crossing = sum(places.group[a] != places.group[b] for a, b in pairs)
    return names, [f"{counted(len(pairs), 'pair')} failed, {crossing} of them across the boundary"]


def suggest(evidence: Evidence, findings: Findings) -> tuple[tuple[str, str], ...]:
    """Pairs to measure next: each suspect with known-good partners it has not met, suspects with one another, and what is undetermined again."""
    exchanges = evidence.exchanges
    if exchanges is None:
        return ()
    hosts, numbers = evidence.hosts, {host: at for at, host in enumerate(evidence.hosts)}
    accused = sorted({numbers[one.host] for one in findings.suspects if one.kind in ("node", "nic", "rank") and one.host in numbers})
    good = [at for at in range(len(hosts)) if at not in set(accused)]
    found: list[tuple[int, int]] = []
    for order, at in enumerate(accused):
        mine = (exchanges.src == at) | (exchanges.dst == at)
        met = set(exchanges.src[mine].tolist()) | set(exchanges.dst[mine].tolist())
        fresh = [node for node in good if node not in met] or [node for node in good if node != at]
        found += [(at, fresh[(order + step * max(1, len(fresh) // CONFIRM_WITH)) % len(fresh)]) for step in range(min(CONFIRM_WITH, len(fresh)))]
    found += [(a, b) for a in accused[:8] for b in accused[:8] if a < b]
    pairs = [(hosts[a], hosts[b]) for a, b in dict.fromkeys((min(pair), max(pair)) for pair in found)]
    again = [(str(one.host), str(one.peer)) for one in findings.undetermined if one.kind == "link" and one.host in numbers and one.peer in numbers]
    return tuple(dict.fromkeys([*pairs, *findings.next_pairs, *again]))


def rails_of(times: dict[tuple[str, int], float]) -> Findings:
    """Findings of one time a (host, local rank), where each local rank's group runs alone over all nodes (smaller is better)."""
    hosts = tuple(dict.fromkeys(host for host, _ in times))
    locals_ = sorted({local for _, local in times})
    rows = [(at, (at + 1) % len(hosts), local, 1.0 / times[host, local], LARGE_BOTH)
            for at, host in enumerate(hosts) for local in locals_ if times.get((host, local))]  # fmt: skip
    exchanges = Exchanges.of(rows, n_rails=max(locals_, default=0) + 1)
    search = Search(evidence=Evidence(hosts=hosts), exchanges=exchanges, looked=look(exchanges), use=np.ones(len(exchanges), dtype=bool))
    return Findings(suspects=tuple(slow_rails(search)), notes=("times by local rank; a node would show in all of its local ranks",))


def _marked(mark: Mark) -> Suspect:
    return Suspect(kind=mark.kind, host=mark.host, gpu=mark.gpu, nic=mark.nic, peer=mark.peer, score=1.0, chance=None, evidence=(mark.text,))


def _merge(suspects: Iterable[Suspect], evidence: Evidence) -> list[Suspect]:
    """One suspect a place; what a GPU or port explains is not held against its node's own totals; hints join where they fit."""
    merged: dict[tuple[object, ...], Suspect] = {}
    for one in suspects:
        key = (one.kind, one.host, one.gpu, one.nic, one.peer)
        known = merged.get(key)
        merged[key] = one if known is None else _joined(known, one)
    found = _device_before_node(list(merged.values()), evidence)
    hints = [mark for mark in evidence.marks if not mark.blames]
    return [replace(one, evidence=(*one.evidence, *(mark.text for mark in hints if _fits(mark, one)))) for one in found]


def _joined(one: Suspect, other: Suspect) -> Suspect:
    chances = [value for value in (one.chance, other.chance) if value is not None]
    measured = [item for item in (one, other) if item.chance is not None]
    score = max(item.score for item in (measured or (one, other)))
    return replace(one, score=score, chance=min(chances) if chances else None, evidence=tuple(dict.fromkeys((*one.evidence, *other.evidence))))


def _device_before_node(suspects: list[Suspect], evidence: Evidence) -> list[Suspect]:
    """A GPU or NIC that is named explains its node's slow totals and its own local rank's slow exchanges."""
    gpus = {(one.host, one.gpu) for one in suspects if one.kind == "gpu"}
    nics = {(one.host, one.nic) for one in suspects if one.kind == "nic"}
    local_nic = {(host, local): nic for (host, local), nic in evidence.nic_of.items()}
    kept: list[Suspect] = []
    extra: dict[tuple[str | None, int | None], list[str]] = {}
    for one in suspects:
        if one.kind == "node" and _only_totals(one) and any(host == one.host for host, _ in gpus | nics):
            for host, gpu in gpus:
                if host == one.host:
                    extra.setdefault((host, gpu), []).extend(one.evidence)
            continue
        if one.kind == "rank" and (one.host, one.gpu) in gpus:
            extra.setdefault((one.host, one.gpu), []).extend(one.evidence)
            continue
        if one.kind == "rank" and one.host and (one.host, local_nic.get((one.host, one.gpu or 0))) in nics:
            continue
        kept.append(one)
    return [
        replace(one, evidence=(*one.evidence, *extra[one.host, one.gpu])) if one.kind == "gpu" and (one.host, one.gpu) in extra else one
        for one in kept
    ]


def _only_totals(suspect: Suspect) -> bool:
    """Whether a node is held to be slow by what it does as a whole, inside, alone."""
    return all("the node reaches" in text for text in suspect.evidence)


def _fits(mark: Mark, suspect: Suspect) -> bool:
    if mark.host != suspect.host:
        return False
    return suspect.kind == "node" or (mark.nic is not None and mark.nic == suspect.nic) or (mark.gpu is not None and mark.gpu == suspect.gpu)


def _serial(suspect: Suspect, evidence: Evidence) -> str | None:
    device = suspect.nic if suspect.kind == "nic" else f"gpu {suspect.gpu}" if suspect.kind == "gpu" else None
    return evidence.serials.get((str(suspect.host), device)) if device else None
