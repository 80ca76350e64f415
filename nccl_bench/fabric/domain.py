"""Ranks that share a scale-up fabric: one host, or the hosts of one NVLink domain; what can cross inside it and at its border.

`line` figures are physics: marketed link rates, PCIe after coding, NIC data rates. `eff` figures are what the protocol leaves:
NCCL's rate of a link, payload of a slot, a port's share after headers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_bench.errors import DetectError
from nccl_bench.fabric import gpus as models
from nccl_bench.fabric import pcie
from nccl_bench.fabric.bounds import Part
from nccl_bench.fabric.rails import Rails
from nccl_bench.fabric.topology import Gpu, Node

Member = tuple[Node, Gpu]
MAX_CUT_RANKS = 12
"""Meshes up to this size are cut in every way (2^11 cuts); larger ones along hosts, switches and sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The figures of one domain, once as line and once as effective rates."""

    links: tuple[float, ...]
    """By member: all its links to other members."""
    slots: tuple[float, ...]
    """By member: its PCIe slot; infinite where a GPU reaches its NICs over C2C."""
    net: float
    """All NICs that its members may use, each capped by its slot."""
    net_words: str
    """What limits `net`: "node's 8x 400G InfiniBand"."""
    near: tuple[float, ...]
    """By member: the NICs nearest to it, capped by its slot."""
    pairs: tuple[tuple[float, ...], ...] | None
    """In a mesh: by member, its links to each member."""
    cuts: tuple[Part, ...]
    """Inner parts: of a mesh, of PCIe switches and sockets, of bridged pairs; single GPUs first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The ranks of one scale-up fabric."""

    size: int
    line: Rates
    eff: Rates
    whole: bool
    """Whether links alone join all members, so that no inner traffic needs PCIe."""
    switched: bool
    nvls: bool
    model: models.GpuModel | None
    cc: int | None
    hosts: int
    link_words: str
    """"GPU's 18 NVLink4"."""
    slot_words: str
    near_words: str
    layer: str | None
    """Link layer of the NICs in use."""
    net_known: bool
    """Whether NICs and their rates are known; asked for only where several domains talk."""
    why_no_net: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the environment forbids."""

    p2p: bool = True
    nvls: bool = True
    mnnvl: bool = True
    nic_only: bool = False
    """Neither P2P nor shared memory: every GPU talks through a NIC, even on one host."""


def rules_of(environ: Mapping[str, str]) -> Rules:
    """The rules of NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_SHM_DISABLE, NCCL_NVLS_ENABLE, NCCL_MNNVL_ENABLE (NCCL user guide)."""
    p2p = environ.get("NCCL_P2P_DISABLE", "0") != "1" and environ.get("NCCL_P2P_LEVEL", "") not in ("LOC", "0")
    return Rules(
        p2p=p2p,
        nvls=environ.get("NCCL_NVLS_ENABLE", "2") != "0" and p2p,
        mnnvl=environ.get("NCCL_MNNVL_ENABLE", "2") != "0",
        nic_only=not p2p and environ.get("NCCL_SHM_DISABLE", "0") == "1",
    )


NOBODY: Mapping[int, int] = {}


def build(members: Sequence[Member], rules: Rules, at_once: int = 1, shared: Mapping[int, int] = NOBODY) -> Domain:
    """The domain of these members. Raises DetectError naming the host and what is not known of its GPUs.

    at_once: groups that leave the domain at the same time and so share its NICs; shared: by NIC (id), how many of them use it.
    """
    assumptions: dict[str, None] = {}
    links = _link_matrix(members, rules, assumptions)
    hosts = list({id(node): node for node, _gpu in members}.values())
    gpus = [gpu for _node, gpu in members]
    whole = len(members) == 1 or links.joins_all
    slots = [_slot(node, gpu, assumptions, needed=not whole) for node, gpu in members]
    nics = Rails.of(hosts, members, shared)
    line, eff = (_rates(members, links, slots, nics, whole, at_once, effective=effective) for effective in (False, True))
    nvls = rules.nvls and links.switched and whole and len(members) > 1 and all(_nvls(node, gpu) for node, gpu in members)
    return Domain(
        size=len(members),
        line=line,
        eff=eff,
        whole=whole,
        switched=links.switched,
        nvls=nvls,
        model=gpus[0].model,
        cc=_cc(gpus),
        hosts=len(hosts),
        link_words=_link_words(gpus, links),
        slot_words=slots[0].words if whole else _pcie_words(slots[0].words, gpus, rules),
        near_words=nics.near_words(line.near, line.slots, slots[0].words),
        layer=nics.layer,
        net_known=nics.known,
        why_no_net=nics.why,
        assumptions=tuple(assumptions),
    )


def _cc(gpus: Sequence[Gpu]) -> int | None:
    """The least compute capability: what NCCL plans for."""
    known = [gpu.cc for gpu in gpus if gpu.cc is not None]
    return min(known, default=None)


def _nvls(node: Node, gpu: Gpu) -> bool:
    if node.nvls is False:
        return False
    return gpu.model.nvls if gpu.model is not None else (gpu.cc or 0) >= 90


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Links between members: a switch's, or a mesh's pair by pair."""

    line: list[list[float]] | list[float]
    eff: list[list[float]] | list[float]
    switched: bool
    joins_all: bool
    counts: tuple[int, ...]


def _link_matrix(members: Sequence[Member], rules: Rules, assumptions: dict[str, None]) -> _Matrix:
    """Per member all links (switch), or per pair (mesh); nothing where P2P is off or one host joins by PCIe alone."""
    none = _Matrix([0.0] * len(members), [0.0] * len(members), False, len(members) == 1, (0,) * len(members))
    if not rules.p2p:
        return none
    counts = [_links_of(node, gpu, assumptions) for node, gpu in members]
    if not any(counts):
        return none
    rates = [_rate_of(node, gpu, count) for (node, gpu), count in zip(members, counts, strict=True)]
    if all(_switched(node, gpu, assumptions) for node, gpu in members):
        line = [count * rate[0] for count, rate in zip(counts, rates, strict=True)]
        eff = [count * rate[1] for count, rate in zip(counts, rates, strict=True)]
        return _Matrix(line, eff, True, all(counts), tuple(counts))
    pairs = _pairs(members, counts, assumptions)
    line_pairs = [[count * rates[at][0] for count in row] for at, row in enumerate(pairs)]
    eff_pairs = [[count * rates[at][1] for count in row] for at, row in enumerate(pairs)]
    return _Matrix(line_pairs, eff_pairs, False, _connected(pairs), tuple(sum(row) for row in pairs))


def _links_of(node: Node, gpu: Gpu, assumptions: dict[str, None]) -> int:
    if gpu.nvlink is not None and gpu.nvlink.links is not None:
        return gpu.nvlink.links
    model = gpu.model
    if model is None:
        raise DetectError(f"{node.label}: what links GPU {gpu.index} has is not known, nor which model it is", "name the model: --gpu H100-SXM")
    if model.links:
        assumptions[f"{model.label} with all its {model.links} links up: the source does not say (table of models)"] = None
    return model.links


def _rate_of(node: Node, gpu: Gpu, count: int) -> tuple[float, float]:
    """(marketed, NCCL's) GB/s of one link."""
    if not count:
        return 0.0, 0.0
    link, model = gpu.nvlink, gpu.model
    line = link.per_direction_GBps / link.links if link is not None and link.links and link.per_direction_GBps else None
    if line is None:
        line = model.link_GBps if model is not None else models.link_rate(gpu.cc)
    eff = model.effective_link_GBps if model is not None else models.effective_link(gpu.cc)
    if line is None or eff is None:
        raise DetectError(f"{node.label}: the rate of the links of GPU {gpu.index} is not known", "name the model: --gpu H100-SXM")
    return line, eff


def _switched(node: Node, gpu: Gpu, assumptions: dict[str, None]) -> bool:
    if node.switch is not None:
        return node.switch
    model = gpu.model
    if model is None:
        raise DetectError(f"{node.label}: whether its GPUs are joined by NVSwitch is not known", "name the model: --gpu H100-SXM")
    if gpu.nvlink is not None and gpu.nvlink.bonds:
        return False
    if len(model.joined) > 1:
        assumptions[f"{model.label} joined by {'NVSwitch' if model.joined[0] == 'switch' else 'a mesh'}: the source does not say"] = None
    return model.joined[0] == "switch"


def _pairs(members: Sequence[Member], counts: Sequence[int], assumptions: dict[str, None]) -> list[list[int]]:
    """Links between each two members, from bonds; where there are none, as the model is sold."""
    rows = []
    for at, (node, gpu) in enumerate(members):
        known = gpu.nvlink.bonds if gpu.nvlink is not None else None
        bonds = dict(known) if known is not None else _usual_bonds(node, gpu, counts[at], assumptions)
        rows.append([bonds.get(other.index, 0) if peer is node and other is not gpu else 0 for peer, other in members])
    return rows


def _usual_bonds(node: Node, gpu: Gpu, count: int, assumptions: dict[str, None]) -> dict[int, int]:
    """Groups of neighbours in the order of their numbers, each sharing its links out evenly."""
    model = gpu.model
    group = model.domain if model is not None else None
    if not count or not group:
        return {}
    start = gpu.index // group * group
    others = [peer.index for peer in node.gpus or () if start <= peer.index < start + group and peer.index != gpu.index]
    assumptions[f"GPUs joined in groups of {group} in the order of their numbers: the source does not say which are"] = None
    return dict.fromkeys(others, count // len(others)) if others else {}


def _connected(pairs: Sequence[Sequence[int]]) -> bool:
    seen, todo = set(), [0]
    while todo:
        here = todo.pop()
        if here not in seen:
            seen.add(here)
            todo += [at for at, count in enumerate(pairs[here]) if count]
    return len(seen) == len(pairs)


@dataclass(frozen=True, slots=True)
class _Slot:
    line: float
    eff: float
    words: str


def _slot(node: Node, gpu: Gpu, assumptions: dict[str, None], *, needed: bool) -> _Slot:
    """A GPU's PCIe slot; no cap for a GPU on a Grace CPU, which reaches its NICs over C2C."""
    model = gpu.model
    if model is not None and model.c2c:
        return _Slot(math.inf, math.inf, "GPU's C2C link")
    slot = gpu.pcie
    generation, lanes = (slot.generation, slot.width) if slot is not None else (None, None)
    if (generation is None or lanes is None) and model is not None:
        if needed:
            assumptions[f"{model.label} in a PCIe Gen{model.pcie_gen} x{model.pcie_width} slot: the source does not say (table of models)"] = None
        generation, lanes = generation or model.pcie_gen, lanes or model.pcie_width
    line = pcie.rate(generation, lanes)
    if line is None:
        if needed:
            raise DetectError(f"{node.label}: the PCIe slot of GPU {gpu.index} is not known, nor which model it is", "name the model: --gpu L40S")
        return _Slot(math.inf, math.inf, "GPU's PCIe slot")
    path = slot.path_GBps if slot is not None and slot.path_GBps is not None and needed else line
    words = f"GPU's PCIe Gen{generation} x{lanes} slot" if path >= line else f"PCIe bridges of {path:g} GB/s above a GPU"
    return _Slot(min(line, path), pcie.payload(generation, min(line, path)), words)


def _pcie_words(words: str, gpus: Sequence[Gpu], rules: Rules) -> str:
    p2p = rules.p2p and all(gpu.model is None or gpu.model.p2p for gpu in gpus)
    return f"{words} (upper bound)" if p2p else f"{words}, through host memory (upper bound)"


Links = list[list[float]] | list[float]


def _rates(members: Sequence[Member], matrix: _Matrix, ways: Sequence[_Slot], nics: Rails, whole: bool, at_once: int, *, effective: bool) -> Rates:
    links, slots = (matrix.eff, [way.eff for way in ways]) if effective else (matrix.line, [way.line for way in ways])
    everything, nearest = nics.rates(effective=effective)
    net = min(everything if effective else everything / at_once, sum(slots))
    words = nics.words(len({id(node) for node, _gpu in members}), net, sum(slots), ways[0].words, effective=effective)
    sums = tuple(sum(row) if isinstance(row, list) else row for row in links)
    return Rates(
        links=sums,
        slots=tuple(slots),
        net=net,
        net_words=words + (f", shared by {at_once} groups" if at_once > 1 else ""),
        near=tuple(min(rate, slot) for rate, slot in zip(nearest, slots, strict=True)),
        pairs=tuple(tuple(row) for row in links if isinstance(row, list)) or None,
        cuts=_cuts(members, links, sums, slots, whole, effective=effective),
    )


def _cuts(
    members: Sequence[Member], links: Links, sums: tuple[float, ...], slots: list[float], whole: bool, *, effective: bool
) -> tuple[Part, ...]:
    """Inner parts. Where no link crosses a border, what crosses it goes by PCIe, within the uplinks of shared bridges."""
    size = len(members)
    if size < 2:
        return ()
    singles = [Part(1, rate if whole else rate + slot, "link" if rate else "slot") for rate, slot in zip(sums, slots, strict=True)]
    if links and not isinstance(links[0], list):
        return tuple(singles) if whole else (*singles, *_bridge_cuts(members, slots, effective=effective))
    matrix = [row for row in links if isinstance(row, list)]
    parts = [] if _uniform(matrix) else [_mesh_part(chosen, matrix, slots) for chosen in _subsets(members)]
    return (*singles, *parts, *(() if whole else _bridge_cuts(members, slots, effective=effective)))


def _uniform(matrix: list[list[float]]) -> bool:
    """Whether all pairs have the same links: then no cut is tighter than a single GPU's."""
    return len({rate for at, row in enumerate(matrix) for peer, rate in enumerate(row) if peer != at}) == 1 and matrix[0][1] > 0


def _subsets(members: Sequence[Member]) -> list[tuple[int, ...]]:
    """Every way to cut a small mesh in two, sides of two or more; of a large one the hosts' sockets and bridged groups."""
    size = len(members)
    if size <= MAX_CUT_RANKS:
        return [
            tuple(at for at in range(size) if mask >> at & 1)
            for mask in range(1, 1 << (size - 1))
            if 2 <= mask.bit_count() <= size - 2
        ]  # fmt: skip
    groups: dict[tuple[int, int | None], list[int]] = {}
    for at, (node, gpu) in enumerate(members):
        groups.setdefault((id(node), gpu.numa), []).append(at)
    halves = [tuple(range(size // 2)), *(tuple(group) for group in groups.values())]
    return [half for half in halves if 2 <= len(half) < size]


def _mesh_part(chosen: tuple[int, ...], links: list[list[float]], slots: list[float]) -> Part:
    """The smaller side of a cut in two: its border binds most."""
    inside = set(chosen)
    outside = [at for at in range(len(links)) if at not in inside]
    few = min(len(chosen), len(outside))
    crossing = sum(links[one][two] for one in chosen for two in outside)
    if crossing:
        return Part(few, crossing, f"links between {len(chosen)} of the GPUs and the other {len(outside)}")
    return Part(few, min(sum(slots[at] for at in chosen), sum(slots[at] for at in outside)), "slot")


def _bridge_cuts(members: Sequence[Member], slots: list[float], *, effective: bool) -> list[Part]:
    """GPUs below one PCIe bridge share its uplink to the rest."""
    below: dict[tuple[int, str], tuple[float, list[int]]] = {}
    for at, (node, gpu) in enumerate(members):
        for name, rate in gpu.bridges or ():
            if rate is not None:
                below.setdefault((id(node), name), (rate, []))[1].append(at)
    return [
        Part(len(found), pcie.payload(None, rate) if effective else rate, f"uplink of {rate:g} GB/s that {len(found)} GPUs share")
        for rate, found in below.values()
        if 1 < len(found) < len(members) and rate < sum(slots[at] for at in found)
    ]


def _link_words(gpus: Sequence[Gpu], links: _Matrix) -> str:
    gpu = gpus[0]
    least = min(links.counts, default=0)
    if not least:
        return "no links"
    kind = gpu.nvlink.kind if gpu.nvlink is not None else gpu.model.kind if gpu.model is not None else "NVLink"
    generation = (gpu.nvlink.generation if gpu.nvlink is not None else None) or (gpu.model.generation if gpu.model is not None else None)
    return f"GPU's {least} {kind}{generation or ''}" + ("" if kind == "NVLink" else " link" if least == 1 else " links")
