"""Runs without the names of their hosts, for pages that leave the house: hosts are numbered, addresses and serial numbers go. No pandas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from nccl_bench.fabric.topology import Topology
from nccl_bench.report.curves import Curve, View
from nccl_bench.verdict.ceilings import RunCeilings

HIDDEN = "(redacted)"
_PLACES = re.compile(r"NODELIST|NODENAME|HOSTLIST|TOPOLOGY_ADDR|HOSTNAME|HOSTS?$|_ADDR$|LAUNCH_NODE")
"""Names of variables and options whose values are hosts."""
_SERIALS = ("serial", "uuid", "guid", "gid")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])", re.IGNORECASE)
"""IPv4, and IPv6 or a GID; a PCI address has fewer colons."""
_COMPRESSED = re.compile(r"[A-Za-z][\w.-]*\[\d[\d,-]*\][\w.-]*")
"""Slurm's "gpu-[001-016]"."""
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)


def redacted(views: Sequence[View]) -> tuple[View, ...]:
    """The views with hosts as host-1, host-2 ... in the order they are met, the same in all of them."""
    clean = _cleaner(_hosts(views))
    labels = {view.label: clean(view.label) for view in views}
    if len(set(labels.values())) < len(labels):
        labels = {label: f"run-{at + 1}" for at, label in enumerate(labels)}
    return tuple(_view(view, labels[view.label], clean) for view in views)


def _hosts(views: Iterable[View]) -> list[str]:
    """Every name of a host that the runs mention, the long form and the short."""
    names: dict[str, None] = {}
    for view in views:
        names |= dict.fromkeys(str(rank["host"]) for rank in view.header.ranks if rank.get("host"))
        names |= dict.fromkeys(late.host for late in view.late)
        names |= dict.fromkeys(_named(view.ceilings.topology))
        for record in (view.header.hang, view.verdict):
            names |= dict.fromkeys(_mentioned(record))
    return [name for name in names if name not in ("", "None", "?")]


def _named(topology: Topology | None) -> list[str]:
    return [] if topology is None else [name for node in topology.nodes for name in (node.host, node.stem) if name]


def _mentioned(record: Any) -> list[str]:
    """Values of "host" keys and lists of hosts at any depth."""
    if isinstance(record, Mapping):
        found = [str(value) for key, value in record.items() if key in ("host", "peer") and isinstance(value, str)]
        lists = [value for key, value in record.items() if key in ("hosts", "drain", "excluded") and isinstance(value, list | tuple)]
        found += [item for value in lists for item in value if isinstance(item, str)]
        return found + [name for value in record.values() for name in _mentioned(value)]
    return [name for item in record for name in _mentioned(item)] if isinstance(record, list | tuple) else []


def _cleaner(hosts: Sequence[str]) -> Callable[[str], str]:
    """Text without these hosts, addresses, compressed lists and UUIDs."""
    numbered: dict[str, str] = {}
    for host in hosts:
        short = host.split(".")[0]
        numbered.setdefault(host, numbered.get(short, f"host-{len(set(numbered.values())) + 1}"))
        numbered.setdefault(short, numbered[host])
    names = sorted(numbered, key=len, reverse=True)
    pattern = re.compile(r"(?<![A-Za-z0-9])(" + "|".join(map(re.escape, names)) + r")(?![A-Za-z0-9])(?:\.[A-Za-z][A-Za-z0-9-]*)*") if names else None

    def clean(text: str) -> str:
        text = _COMPRESSED.sub("(hosts)", text)
        text = _UUID.sub(HIDDEN, _ADDRESS.sub(HIDDEN, text))
        return text if pattern is None else pattern.sub(lambda match: numbered[match[1]], text)

    return clean


def _walk(value: Any, clean: Callable[[str], str], key: str = "") -> Any:
    """A value with all its text cleaned, at any depth; what a key says is a host or a serial number goes as a whole."""
    match value:
        case str():
            if key.lower() in _SERIALS or (_PLACES.search(key.upper()) and key.isupper()):
                return HIDDEN
            return clean(value)
        case Mapping():
            return {clean(str(name)): _walk(item, clean, str(name)) for name, item in value.items()}
        case list() | tuple():
            return type(value)(_walk(item, clean, key) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: _walk(getattr(value, item.name), clean, item.name) for item in fields(value) if item.init})
    return value


def _view(view: View, label: str, clean: Callable[[str], str]) -> View:
    header = _walk(view.header, clean)
    run = replace(view.run, label=label, header=header, path=type(view.run.path)(clean(str(view.run.path))), warnings=_walk(view.run.warnings, clean))
    return View(
        label=label,
        run=run,
        ceilings=_ceilings(view.ceilings, clean),
        assumptions=_walk(view.assumptions, clean),
        curves=tuple(_curve(curve, label) for curve in view.curves),
        troubles=_walk(view.troubles, clean),
        late=_walk(view.late, clean),
        late_than_us=view.late_than_us,
        pairs=_walk(view.pairs, clean),
        groups=view.groups,
        throttle=view.throttle,
        passes=view.passes,
        n_points=view.n_points,
        verdict=_walk(view.verdict, clean),
    )


def _curve(curve: Curve, label: str) -> Curve:
    return replace(curve, run=label)


def _ceilings(ceilings: RunCeilings, clean: Callable[[str], str]) -> RunCeilings:
    """The ceilings for showing: the topology and the reason, no further reckoning."""
    why = None if ceilings.why_not is None else clean(ceilings.why_not)
    return RunCeilings(None if ceilings.topology is None else _walk(ceilings.topology, clean), None, {}, why)
