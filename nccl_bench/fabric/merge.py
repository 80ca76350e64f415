"""Several sources of one node into one value: the more trusted wins, disagreements are said, every fact keeps its source.

Trust, highest first: NCCL's own dump or log (what the job used), NVML and sysfs (what the machine has), tables as text, and
last the table of models (complete.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from nccl_bench.fabric.topology import Gpu, Nic, Node, with_warnings

TRUST = (
    "NCCL dump", "NCCL log", "NVML", "sysfs", "run", "NCCL topology file", "nvidia-smi nvlink -s", "nvidia-smi topo -m", "rocm-smi",
    "ibv_devinfo", "ibstatus", "NCCL graph",
)  # fmt: skip
_QUIET = {
    "cpus", "distance", "used", "why", "bonds", "bridges", "signal_GBps", "note", "model", "gpus", "path_GBps", "inactive", "port", "stem",
    "index", "host", "platform",
}  # fmt: skip
"""Fields whose difference between sources says nothing: words, guesses of a reader, what only one kind of source can see."""
_SAME_FRAC = 0.03
"""Rates closer than this are the same: marketed and signalling figures differ by up to 3 %."""


def trust(source: str) -> int:
    """Place in the order of trust; unknown sources last."""
    kind = source.split(":")[0]
    return TRUST.index(kind) if kind in TRUST else len(TRUST)


def merge(readings: Sequence[tuple[str, Node]]) -> Node:
    """One node of (source, node) readings. `facts` says where each field came from."""
    ordered = sorted(readings, key=lambda reading: trust(reading[0]))
    merged = Node()
    facts: dict[str, str] = {}
    warnings: list[str] = []
    for source, node in ordered:
        node = _renumbered(node, merged)
        merged, texts = _join_nodes(merged, node, source, facts)
        warnings += [*node.warnings, *texts]
    return with_warnings(replace(merged, facts=tuple(sorted(facts.items()))), *warnings)


def _join_nodes(base: Node, more: Node, source: str, facts: dict[str, str]) -> tuple[Node, list[str]]:
    warnings: list[str] = []
    values: dict[str, Any] = {}
    for item in fields(Node):
        old, new = getattr(base, item.name), getattr(more, item.name)
        if item.name in ("gpus", "nics", "facts", "warnings"):
            continue
        if item.name == "nccl" and old is not None and new is not None:
            values["nccl"] = {**new, **old}
        elif old is None and new is not None:
            values[item.name] = new
            _note(facts, item.name, source)
        elif new is not None and new != old and item.name not in _QUIET:
            warnings.append(f"{item.name}: {facts.get(item.name, 'one source')} says {old}, {source} says {new}")
    values["gpus"], texts = _join_lists(base.gpus, more.gpus, _same_gpu, lambda gpu: f"GPU {gpu.index}", source, facts, "gpus")
    values["nics"], more_texts = _join_lists(base.nics, more.nics, _same_nic, lambda nic: nic.label, source, facts, "nics")
    return replace(base, **values), [*warnings, *texts, *more_texts]


def _join_lists(
    base: tuple[Any, ...] | None, more: tuple[Any, ...] | None, same: Callable[[Any, Any], bool], label: Callable[[Any], str], source: str,
    facts: dict[str, str], path: str,
) -> tuple[tuple[Any, ...] | None, list[str]]:  # fmt: skip
    if more is None:
        return base, []
    found, warnings = list(base or ()), []
    for new in more:
        at = next((at for at, old in enumerate(found) if same(old, new)), None)
        if at is None:
            found.append(new)
            for name in _set_fields(new):
                _note(facts, f"{path}.{name}", source)
        else:
            found[at], texts = _join_values(found[at], new, source, facts, path, label(found[at]))
            warnings += texts
    return tuple(found), warnings


def _set_fields(value: Any) -> list[str]:
    return [item.name for item in fields(value) if getattr(value, item.name) is not None and item.name != "index"]


def _join_values(old: Any, new: Any, source: str, facts: dict[str, str], path: str, label: str) -> tuple[Any, list[str]]:
    """Field by field; values inside values (links, slots) likewise."""
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for item in fields(old):
        one, two = getattr(old, item.name), getattr(new, item.name)
        where = f"{path}.{item.name}"
        if one is None and two is not None:
            values[item.name] = two
            _note(facts, where, source)
        elif one is not None and two is not None and is_dataclass(one):
            values[item.name], texts = _join_values(one, two, source, facts, where, f"{label} {item.name}")
            warnings += texts
        elif two is not None and item.name not in _QUIET and not _alike(item.name, one, two):
            known = facts.get(where) or facts.get(where.rsplit(".", 1)[0]) or "one source"
            warnings.append(f"{label} {item.name}: {known} says {one}, {source} says {two}")
    return replace(old, **values), warnings


def _alike(name: str, one: Any, two: Any) -> bool:
    if name == "name":
        first, second = Gpu(index=0, name=one).model, Gpu(index=0, name=two).model
        return str(one).lower() == str(two).lower() or (first is not None and first is second)
    if isinstance(one, float) or isinstance(two, float):
        return bool(abs(one - two) <= _SAME_FRAC * max(abs(one), abs(two)))
    same: bool = one == two
    return same


def _note(facts: dict[str, str], path: str, source: str) -> None:
    kinds = facts.get(path, "").split(" + ") if path in facts else []
    if source not in kinds:
        facts[path] = " + ".join([*kinds, source])


def _same_gpu(one: Gpu, two: Gpu) -> bool:
    if one.bus_id is not None and two.bus_id is not None:
        return one.bus_id == two.bus_id
    if one.uuid is not None and two.uuid is not None:
        return one.uuid == two.uuid
    return one.index == two.index


def _same_nic(one: Nic, two: Nic) -> bool:
    if one.name is not None and two.name is not None:
        return one.name == two.name and (one.port or 1) == (two.port or 1)
    return one.bus_id is not None and one.bus_id == two.bus_id


def _renumbered(node: Node, base: Node) -> Node:
    """The node with the GPU numbers of `base`, where the same GPU is known there under another."""
    numbers = {new.index: old.index for new in node.gpus or () for old in base.gpus or () if _same_gpu(old, new)}
    if all(old == new for old, new in numbers.items()):
        return node
    gpus = tuple(_with_number(gpu, numbers) for gpu in node.gpus or ())
    nics = None if node.nics is None else tuple(_with_numbers(nic, numbers) for nic in node.nics)
    return replace(node, gpus=gpus, nics=nics)


def _with_number(gpu: Gpu, numbers: dict[int, int]) -> Gpu:
    link = gpu.nvlink
    if link is not None and link.bonds is not None:
        link = replace(link, bonds=tuple(sorted((numbers.get(peer, peer), count) for peer, count in link.bonds)))
    return replace(gpu, index=numbers.get(gpu.index, gpu.index), nvlink=link)


def _with_numbers(nic: Nic, numbers: dict[int, int]) -> Nic:
    served = None if nic.gpus is None else tuple(sorted(numbers.get(index, index) for index in nic.gpus))
    words = None if nic.distance is None else tuple(sorted((numbers.get(index, index), word) for index, word in nic.distance))
    return replace(nic, gpus=served, distance=words)
