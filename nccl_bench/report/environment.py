"""Where and with what the runs of a report ran: facts side by side, hosts, how to repeat them. No pandas."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from nccl_bench.records import RunHeader
from nccl_bench.report.curves import View
from nccl_bench.report.page import Table
from nccl_bench.report.tables import number, text

MAX_COLUMNS = 6
"""Runs with a column each; of more, equal values are counted."""
MAX_HOSTS = 256
MAX_NAMED = 3
"""Runs that are named beside a value that few have."""

_FACTS: dict[str, Callable[[RunHeader], Any]] = {
    "program": lambda header: header.tool,
    "started (UTC)": lambda header: header.started_at,
    "ended (UTC)": lambda header: header.ended_at,
    "exit": lambda header: header.exit_code,
    "launcher": lambda header: header.launcher,
    "job": lambda header: header.job,
    "backend": lambda header: header.backend,
    "ranks": lambda header: header.n_ranks,
    "nodes": lambda header: header.n_nodes,
    "GPUs": lambda header: _gpus(header),
    "shared GPU": lambda header: "yes: not a measurement" if header.shared_gpu else None,
    "plug-ins": lambda header: ", ".join(header.plugins),
    "nccl.conf": lambda header: "; ".join(header.nccl_conf),
}


def facts(header: RunHeader) -> dict[str, str]:
    """Each known fact of a run in words, in the order they are shown."""
    found = {what: read(header) for what, read in _FACTS.items()}
    found |= {f"version: {name}": value for name, value in header.versions.items()}
    found |= {f"set-up: {name.removesuffix('_s')}": f"{value:.3g} s" for name, value in header.setup.items() if isinstance(value, int | float)}
    found |= {f"env {name}": value for name, value in header.env.items()}
    found |= {f"option {name}": _word(value) for name, value in header.spec.items() if name != "imported"}
    found |= _imported(header)
    return {what: str(value) for what, value in found.items() if value not in (None, "", (), [], {})}


def _gpus(header: RunHeader) -> str:
    names = [gpu["name"] for rank in header.ranks if isinstance(gpu := rank.get("gpu"), Mapping) and gpu.get("name")]
    return ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_word, value))
    return "" if value is None else str(value)


def _imported(header: RunHeader) -> dict[str, str]:
    files = header.spec.get("imported")
    found: dict[str, dict[str, None]] = {}
    for file in files if isinstance(files, list | tuple) else ():
        if isinstance(file, Mapping):
            found.setdefault("imported from", {})[str(file.get("path"))] = None
            for run in file.get("runs") or ():
                for key, value in (run.get("config") or {}).items():
                    found.setdefault(f"nccl-tests {key}", {})[str(value)] = None
    return {what: ", ".join(values) for what, values in found.items()}


def table(views: Sequence[View]) -> Table:
    """Facts down, runs across; of many runs each fact with its values and how many runs have each."""
    every = [facts(view.header) for view in views]
    names = list(dict.fromkeys(name for found in every for name in found))
    if len(views) <= MAX_COLUMNS:
        rows = tuple((text(name), *(text(found.get(name)) for found in every)) for name in names)
        columns = ("fact", *(view.label for view in views)) if len(views) > 1 else ("fact", "value")
        return Table(columns=columns, numbers=(False,) * len(columns), rows=rows)
    rows = tuple((text(name), text(_counted(name, every, views))) for name in names)
    return Table(columns=("fact", "values"), numbers=(False, False), rows=rows)


def _counted(name: str, every: Sequence[Mapping[str, str]], views: Sequence[View]) -> str:
    by_value: dict[str, list[str]] = {}
    for found, view in zip(every, views, strict=True):
        by_value.setdefault(found.get(name, "not recorded"), []).append(view.label)
    if len(by_value) == 1:
        return next(iter(by_value))
    ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
    parts = [f"{value} (x{len(runs)}{': ' + ', '.join(runs) if len(runs) <= MAX_NAMED else ''})" for value, runs in ordered[:8]]
    return "; ".join(parts) + (f"; and {len(ordered) - 8} more values" if len(ordered) > 8 else "")


def hosts(view: View) -> Table | None:
    """The hosts of a run: ranks and GPUs of each."""
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for rank in view.header.ranks:
        by_host.setdefault(str(rank.get("host")), []).append(rank)
    if not by_host:
        return None
    rows = []
    for host, ranks in list(by_host.items())[:MAX_HOSTS]:
        numbers = [rank["rank"] for rank in ranks if isinstance(rank.get("rank"), int)]
        gpus = [gpu for rank in ranks if isinstance(gpu := rank.get("gpu"), Mapping)]
        names = [str(gpu.get("name")) for gpu in gpus]
        kinds = ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))
        addresses = ", ".join(str(gpu["pci"]) for gpu in gpus[:16] if gpu.get("pci"))
        rows.append((text(host), number(str(len(ranks)), len(ranks)), text(_span(numbers)), text(kinds or "no GPU of its own"), text(addresses)))
    note = f"{len(by_host) - MAX_HOSTS} more hosts are in run.json." if len(by_host) > MAX_HOSTS else ""
    flags = (False, True, False, False, False)
    return Table(columns=("host", "ranks", "which", "GPUs", "PCI addresses"), numbers=flags, rows=tuple(rows), note=note)


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}" if high - low + 1 == len(set(numbers)) else ", ".join(map(str, sorted(numbers)[:16]))


def commands(views: Sequence[View]) -> tuple[str, ...]:
    """What was typed, and what shows more."""
    found: dict[str, None] = {}
    for view in views:
        files = view.header.spec.get("imported")
        for file in files if isinstance(files, list | tuple) else ():
            if isinstance(file, Mapping):
                if file.get("command"):
                    found[shlex.join(map(str, file["command"]))] = None
                found[f"nccl-bench import {shlex.quote(str(file.get('path')))}"] = None
        if view.header.argv and not view.run.imported:
            found[shlex.join([PurePath(view.header.argv[0]).name, *view.header.argv[1:]])] = None
    return tuple(found)


def next_commands(views: Sequence[View]) -> tuple[str, ...]:
    """Commands of ours that say more of the same runs."""
    paths = [shlex.quote(str(view.run.path)) for view in views[:2]]
    found = [f"nccl-bench export {paths[0]} --format csv"]
    return (*found, f"nccl-bench compare {paths[0]} {paths[1]}") if len(paths) > 1 else tuple(found)
