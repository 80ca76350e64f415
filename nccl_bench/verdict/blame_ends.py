"""From counts by end to suspects: rails, nodes, ports; the strongest first, what they explain is set aside, and again. numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nccl_bench.verdict.ends import ANY, BOTH, MAX_CHANCE, RECEIVE, SEND, SHARE, SOME, WAYS, Ends, Looked, binomial_tail, count
from nccl_bench.verdict.evidence import SMALL_BOTH, Bools, Evidence, Exchanges, Ints, Suspect, named

MIN_PARTNERS = 3
"""Whoever is slow with one or two may be their victim; a table that shows a node with two partners only is all there is (MIN_FEW)."""
MIN_FEW = 2
OFTEN = 0.1
"""Exchanges of healthy ends slow more often than this are so by their paths, not by chance."""
STEADY = 0.85
"""Of an end's exchanges with slow partners that are slow, above which it is slow with some partners, not now and then."""
MOST_RAILS = 0.75
"""Of a node's local ranks that must be slow for the node itself to be the suspect."""
FEW_NODES = 64
"""Up to here each end is held against others' losses of its own size."""
FEW_PARTNERS = 4
"""Up to so many nodes partners are too few to be counted instead of exchanges; all of them are measured twice there."""
MOST_RECOUNTED = 400
"""More ends than this in one round are taken together: each recount reads all rows."""
SIZES = ("large messages", "small messages")


@dataclass(slots=True)
class Search:
    """The state of looking for ends in one run."""

    evidence: Evidence
    exchanges: Exchanges
    looked: Looked
    use: Bools
    """[row] not explained yet."""
    across: Bools | None = None
    """[row] whether it crosses groups, where these are known: a port slower than its leaf's way out shows inside the leaf alone."""
    suspects: list[Suspect] = field(default_factory=list)
    _met: Ints | None = None

    def met(self) -> Ints:
        """[end] how many partners it has met at all."""
        if self._met is None:
            everything = np.ones(len(self.exchanges), dtype=bool)
            self._met = count(self.exchanges, self.looked.slow, everything, self.n_nodes).partners
        return self._met

    @property
    def n_nodes(self) -> int:
        """Nodes of the run."""
        return len(self.evidence.hosts)

    def size_rows(self, small: bool | None) -> Bools:
        """Rows of large or of small messages; of both for None."""
        if small is None:
            return np.ones(len(self.exchanges), dtype=bool)
        rows: Bools = (self.exchanges.stratum >= SMALL_BOTH) == small
        return rows

    def touching(self, ends: Iterable[int]) -> Bools:
        """Rows that have one of these ends."""
        chosen = np.zeros(self.n_nodes * self.exchanges.n_rails, dtype=bool)
        chosen[list(ends)] = True
        rails = self.exchanges.n_rails
        found: Bools = chosen[self.exchanges.src * rails + self.exchanges.rail] | chosen[self.exchanges.dst * rails + self.exchanges.rail]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end that is slow, and how it shows."""

    node: int
    rail: int
    way: int
    small: bool | None
    """None: of both sizes."""
    k: int
    n: int
    partners: int
    loss: float
    chance: float
    by: str = ""
    """What it was judged by, where that is not the median of each exchange."""

    def words(self, what: str = "") -> str:
        """ "-49 % in 62 of 62 exchanges with 31 partners, both directions at once (large messages)"."""
        where = f"{self.k} of {self.n} exchanges with {self.partners} partners"
        return f"{what}-{self.loss:.0%} in {where}, {WAYS[self.way]} ({_size(self.small)}){self.by}"


def _size(small: bool | None) -> str:
    return "all messages" if small is None else SIZES[small]


def slow_ends(search: Search) -> list[End]:
    """The ends that are slow whoever they talk to, in rounds: those with nearly all of their exchanges first."""
    found: dict[int, End] = {}
    for least in (0.9, SHARE, SOME):
        for _ in range(8):
            fresh = [(end, rows) for small, rows in _slices(search) for end in _round(search, small, rows, least) if _key(search, end) not in found]
            if not fresh:
                break
            for end, rows in sorted(fresh, key=lambda item: (item[0].chance, -item[0].k)):
                if _key(search, end) not in found and (len(fresh) > MOST_RECOUNTED or _stands(search, end, rows, least)):
                    found[_key(search, end)] = end
                    search.use &= ~search.touching([_key(search, end)])
    return list(found.values())


def _stands(search: Search, end: End, rows: Bools, least: float) -> bool:
    """Whether an end is still slow once those that were found before it are set aside: partners may have been the cause."""
    mine = search.use & rows & search.touching([_key(search, end)])
    n, k = int(mine.sum()), int((mine & search.looked.slow).sum())
    enough = MIN_FEW if end.way in (ANY, BOTH) else 1
    return k >= enough and k >= least * (0.5 if end.way in (SEND, RECEIVE) else 1.0) * n


def _slices(search: Search) -> list[tuple[bool, Bools]]:
    """(small, rows): each size as a whole, and inside and across groups alone."""
    slices = []
    for small in (False, True):
        rows = search.size_rows(small)
        slices.append((small, rows))
        if search.across is not None:
            slices += [(small, rows & search.across), (small, rows & ~search.across)]
    return slices


def _key(search: Search, end: End) -> int:
    return end.node * search.exchanges.n_rails + end.rail


def _round(search: Search, small: bool, rows: Bools, least: float) -> list[End]:
    use = search.use & rows
    if not use.any():
        return []
    rough = count(search.exchanges, search.looked.slow, use, search.n_nodes, pairs=False)
    if not ((rough.n_slow >= MIN_FEW) & (rough.n_slow >= least * rough.n)).any():
        return []
    ends = count(search.exchanges, search.looked.slow, use, search.n_nodes)
    base = _base(search, ends, use, least)
    ways = int(np.count_nonzero(ends.n[BOTH]) > 0) + 2 * int(np.count_nonzero(ends.n[SEND]) > 0)
    tested = max(1, int((ends.n[ANY] >= MIN_FEW).sum())) * ways
    found = []
    for at in np.flatnonzero(((ends.n_slow >= MIN_FEW) & (ends.n_slow >= least * ends.n)).any(axis=0)):
        end = _judge(search, ends, int(at), least, min(base, _as_slow(search, int(at), use)), tested, small)
        if end is not None:
            found.append(end)
    return found


def _base(search: Search, ends: Ends, use: Bools, least: float) -> float:
    """How often exchanges of healthy ends are slow: the median over ends, without the rows of those that are nearly always slow.

    Where some of the paths in the core are slow this is large, and no end is named for having met them.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.max(np.where(ends.n > 0, ends.n_slow / ends.n, 0.0), axis=0)
    suspected = np.flatnonzero(share >= max(least, SHARE))
    rest = use & ~search.touching(suspected)
    if not rest.any():
        return 0.5
    healthy = count(search.exchanges, search.looked.slow, rest, search.n_nodes, pairs=False)
    seen = healthy.n[ANY] > 0
    middle = float(np.median(healthy.n_slow[ANY][seen] / healthy.n[ANY][seen]))
    known = ends.n[ANY] > 0
    quarter = float(np.percentile(ends.n_slow[ANY][known] / ends.n[ANY][known], 25))
    return min(0.5, max(middle, quarter, float((rest & search.looked.slow).sum() / rest.sum()), 0.01, 1 / (int(rest.sum()) + 2)))


def _as_slow(search: Search, at: int, use: Bools) -> float:
    """How often exchanges of others are at least half as slow as this end's slow ones: noise that is large but not so large does not excuse it.

    In large runs the plain share is good enough, and this would cost a pass over all rows for each end.
    """
    if search.n_nodes > FEW_NODES:
        return 1.0
    mine = search.touching([at])
    losses = search.looked.loss[mine & use & search.looked.slow]
    rest = search.looked.loss[~mine & use]
    typical = float(np.median(losses)) if len(losses) else 0.0
    return max(float(np.sum(rest >= 0.5 * typical)) / max(1, len(rest)), 0.01, 1 / (len(rest) + 2)) if math.isfinite(typical) else 1.0


def _judge(search: Search, ends: Ends, at: int, least: float, base: float, tested: int, small: bool) -> End | None:
    """The way in which an end is slow with enough partners and beyond luck; None where it is not."""
    # A table with one value a pair is all there is; where pairs were measured several times, chance must be ruled out.
    few = search.met()[at] <= MIN_PARTNERS and ends.n[ANY, at] == ends.partners[at]
    best: tuple[float, int] | None = None
    for way in (ANY, BOTH, SEND, RECEIVE):
        n, k = int(ends.n[way, at]), int(ends.n_slow[way, at])
        if n < MIN_FEW or k < max(MIN_FEW, least * n) or (least < SHARE and way != ANY):
            continue
        steady = least < SHARE and k > STEADY * int(ends.met_slow[at])
        luck = _tail(k, n, base, int(ends.partners[at]), steady)
        now_and_then = least < SHARE and search.n_nodes > FEW_PARTNERS
        chance = min(1.0, (max(luck, _by_partners(ends, at, base)) if now_and_then else luck) * tested)
        if (few or chance <= MAX_CHANCE) and (best is None or chance < best[0]):
            best = (chance, way)
    partners = int(ends.slow_partners[at])
    if best is None or partners < (MIN_FEW if few else MIN_PARTNERS):
        return None
    way = _direction(ends, at, best[1])
    node, rail = divmod(at, search.exchanges.n_rails)
    n, k = int(ends.n[way, at]), int(ends.n_slow[way, at])
    return End(node=node, rail=rail, way=way, small=small, k=k, n=n, partners=partners, loss=_loss(search, at, small), chance=best[0])


def _tail(k: int, n: int, base: float, partners: int, steady: bool) -> float:
    """The chance of k slow ones of n.

    Where many are slow anyway, or always with the same partners (`steady`), a path is slow, and all exchanges of a pair
    take one path: partners are counted then.
    """
    if (base < OFTEN and not steady) or partners >= n:
        return binomial_tail(k, n, base)
    return binomial_tail(k * partners // n, partners, base)


def _by_partners(ends: Ends, at: int, base: float) -> float:
    """The chance of so many partners with any slow exchange: what disturbs a node for a moment slows all that it does with one partner."""
    partners = int(ends.partners[at])
    any_slow = 1 - (1 - base) ** (int(ends.n[ANY, at]) / max(1, partners))
    return binomial_tail(int(ends.slow_partners[at]), partners, any_slow)


def _direction(ends: Ends, at: int, way: int) -> int:
    """One direction, where the other alone is normal."""
    n, k = ends.n[:, at], ends.n_slow[:, at]
    for one, other in ((SEND, RECEIVE), (RECEIVE, SEND)):
        if n[one] and n[other] and k[one] >= SHARE * n[one] and k[other] <= 0.5 * n[other]:
            return one
    return way


def _loss(search: Search, at: int, small: bool) -> float:
    rows = search.touching([at]) & search.use & search.size_rows(small) & search.looked.slow
    losses = search.looked.loss[rows]
    return 1 - math.exp(-float(np.median(losses))) if len(losses) and np.isfinite(np.median(losses)) else 1.0


def slow_rails(search: Search) -> list[Suspect]:
    """Local ranks that are slow on nearly all nodes, against the others: a rail where its switch is proven, else what the local ranks share."""
    exchanges, rails = search.exchanges, search.exchanges.n_rails
    found: list[Suspect] = []
    if rails < 2:
        return found
    for small in (False, True):
        use = search.use & search.size_rows(small)
        ends = count(exchanges, search.looked.slow, use, search.n_nodes, pairs=False)
        share = ends.n_slow[ANY].reshape(-1, rails) / np.maximum(1, ends.n[ANY].reshape(-1, rails))
        seen = ends.n[ANY].reshape(-1, rails) > 0
        for rail in range(rails):
            nodes = int(seen[:, rail].sum())
            bad = int((share[:, rail] >= SHARE)[seen[:, rail]].sum())
            if nodes < 2 or bad < 0.8 * nodes or any(one.gpu == rail for one in found):
                continue
            rows = use & (exchanges.rail == rail)
            n, k = int(rows.sum()), int((rows & search.looked.slow).sum())
            loss = 1 - math.exp(-float(np.median(search.looked.loss[rows])))
            found.append(_rail(search, rail, (bad, nodes), (k, n), loss))
            search.use &= exchanges.rail != rail
    return found


def _rail(search: Search, rail: int, nodes: tuple[int, int], rows: tuple[int, int], loss: float) -> Suspect:
    nics = [nic for (host, local), nic in search.evidence.nic_of.items() if local == rail]
    proven = len(nics) >= nodes[1]
    usual = max(set(nics), key=nics.count) if nics else None
    rest = search.use & (search.exchanges.rail != rail)
    base = (int((rest & search.looked.slow).sum()) + 1) / (int(rest.sum()) + 2)
    chance = min(1.0, binomial_tail(rows[0], rows[1], min(0.5, base)) * search.exchanges.n_rails)
    text = f"local rank {rail} is slow on {nodes[0]} of {nodes[1]} nodes: {rows[0]} of {rows[1]} exchanges, {1 - loss:.2f} of the others' speed"
    what = (f"its traffic goes through {usual} on every node (counters)",) if proven else (
        "no node is at fault: look at which NIC serves it (GPU-NIC mapping, its switch); which NIC its traffic took is not proven",)  # fmt: skip
    return Suspect(kind="rail" if proven else "rank", gpu=rail, nic=usual if proven else None, score=loss, chance=chance, evidence=(text, *what))


def beyond_paths(search: Search, ends: Sequence[End], rate: float) -> list[End]:
    """The ends that are slow with more partners than bad luck with the core makes, where `rate` of its paths are slow."""
    kept = []
    for end in ends:
        mine = search.touching([_key(search, end)]) & search.size_rows(end.small)
        home = mine if search.across is None else mine & ~search.across
        counts = count(search.exchanges, search.looked.slow, mine if search.across is None else mine & search.across, search.n_nodes)
        partners, slow = int(counts.partners[_key(search, end)]), int(counts.slow_partners[_key(search, end)])
        at_home = search.looked.slow[home]
        lost_at_home = int(at_home.sum()) >= MIN_PARTNERS and float(at_home.mean()) >= 1 / 3
        chance = binomial_tail(slow, partners, min(0.9, 1.5 * rate)) * search.n_nodes * search.exchanges.n_rails
        if lost_at_home or chance <= MAX_CHANCE:
            kept.append(end)
    return kept


def by_node(search: Search, ends: Sequence[End]) -> list[Suspect]:
    """Suspects of slow ends: a node where most of its local ranks are slow, else each port."""
    nodes: dict[int, list[End]] = {}
    for end in ends:
        nodes.setdefault(end.node, []).append(end)
    found: list[Suspect] = []
    for node, mine in nodes.items():
        rails = search.exchanges.n_rails
        if rails == 1 or len(mine) >= max(2, MOST_RAILS * rails):
            found.append(_node(search, node, mine))
        else:
            found += [_port(search, end, mine) for end in mine]
    return found


def _node(search: Search, node: int, ends: Sequence[End]) -> Suspect:
    host, rails = search.evidence.hosts[node], search.exchanges.n_rails
    worst = max(ends, key=lambda end: (end.k / end.n, end.n))
    which = f"{len(ends)} of its {rails} local ranks, " if rails > 1 else ""
    partners = _good_partners(search, node)
    also = f"its partners are fast with others: {named(partners, 4)}" if partners else ""
    nic = search.evidence.nic_of.get((host, 0)) if rails == 1 else None
    chance = min(end.chance for end in ends)
    texts = tuple(text for text in (worst.words(which), also, f"its traffic goes through {nic}" if nic else "") if text)
    return Suspect(kind="node", host=host, score=worst.loss, chance=chance, evidence=texts)


def _good_partners(search: Search, node: int) -> list[str]:
    """Its partners that have fast exchanges with others."""
    exchanges, slow = search.exchanges, search.looked.slow
    mine = (exchanges.src == node) | (exchanges.dst == node)
    fast = np.zeros(search.n_nodes, dtype=bool)
    fast[exchanges.src[~mine & ~slow]] = fast[exchanges.dst[~mine & ~slow]] = True
    partners = np.unique(np.where(exchanges.src[mine] == node, exchanges.dst[mine], exchanges.src[mine]))
    return [search.evidence.hosts[int(at)] for at in partners if fast[at]]


def _port(search: Search, end: End, mine: Sequence[End]) -> Suspect:
    """A port of a node: its NIC where that is proven, else the local rank."""
    host = search.evidence.hosts[end.node]
    nic = search.evidence.nic_of.get((host, end.rail))
    others = [other.rail for other in mine if other.rail != end.rail and abs(other.loss - end.loss) < 0.1]
    texts = [
        end.words(f"local rank {end.rail}: "),
        f"its other {search.exchanges.n_rails - len(mine)} of {search.exchanges.n_rails} local ranks are normal",
    ]
    if others:
        texts.append(f"local rank {', '.join(map(str, others))} of the same node loses as much: were their cables swapped?")
    if nic is None:
        texts.append("which NIC its traffic took is not proven: the NIC, its cable, or what joins it to the GPU")
    return Suspect(
        kind="nic" if nic else "rank",
        host=host,
        gpu=end.rail if nic is None else None,
        nic=nic,
        score=end.loss,
        chance=end.chance,
        evidence=tuple(texts),
    )
