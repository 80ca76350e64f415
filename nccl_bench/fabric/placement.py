"""Racks, leaf switches and rail switches of hosts, from a CSV file: host, rack, leaf, rail switch."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

from nccl_bench.errors import DataError
from nccl_bench.fabric.data import read_text
from nccl_bench.fabric.topology import Topology

COLUMNS = ("host", "rack", "leaf", "rail")
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a host stands; None where its cell is empty."""

    rack: str | None = None
    leaf: str | None = None
    rail: str | None = None
    """Rail switch, or a list of them as the file writes it."""


def read(path: Path) -> dict[str, Place]:
    """The places of a file by host. A header is optional; # begins a comment. Raises DataError with path:line."""
    return parse(read_text(path, MAX_FILE_BYTES), str(path))


def parse(text: str, path: str = "groups") -> dict[str, Place]:
    """The places of a CSV text by host. Raises DataError with path:line for a row without a host, or a host named twice."""
    names: tuple[str, ...] = COLUMNS
    found: dict[str, Place] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if cells[0].lower() in ("host", "hostname", "node") and not found:
            names = tuple(_column(cell, path, number) for cell in cells)
            continue
        row = dict(zip(names, cells, strict=False))
        host = row.get("host", "")
        if not host or len(cells) > len(names):
            raise DataError(f"{path}:{number}: not host,rack,leaf,rail: {line.strip()[:80]!r}")
        if host in found:
            raise DataError(f"{path}:{number}: host {host} stands here a second time")
        found[host] = Place(**{name: row.get(name) or None for name in ("rack", "leaf", "rail")})
    if not found:
        raise DataError(f"{path}: no host in it", "write one a line: host,rack,leaf,rail switch")
    return found


def _column(cell: str, path: str, number: int) -> str:
    word = cell.lower().replace("_", " ").removesuffix(" switch").strip()
    name = {"hostname": "host", "node": "host", "rail": "rail", "leaf": "leaf", "rack": "rack", "host": "host"}.get(word)
    if name is None:
        raise DataError(f"{path}:{number}: column {cell!r} is none of host, rack, leaf, rail switch")
    return name


def apply(topology: Topology, places: dict[str, Place]) -> Topology:
    """The topology with racks and leaves; hosts that the file lacks are a warning. Short and full host names match."""
    short = {host.split(".")[0]: place for host, place in places.items()}
    nodes, missing = [], []
    for node in topology.nodes:
        place = places.get(node.label) or short.get(node.label.split(".")[0])
        if place is None:
            missing.append(node.label)
        nodes.append(node if place is None else replace(node, rack=place.rack or node.rack, leaf=place.leaf or node.leaf))
    warnings = [f"not in the groups file: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"] if missing else []
    return replace(topology, nodes=tuple(nodes), warnings=(*topology.warnings, *warnings))
