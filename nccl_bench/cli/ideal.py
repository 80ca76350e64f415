"""`nccl-bench ideal`: what this or any other fabric should reach, and what limits it."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from nccl_bench.errors import DetectError, UsageError
from nccl_bench.units import format_GBps, format_us

if TYPE_CHECKING:
    from nccl_bench.fabric.ideal import Ceiling, Ceilings, CollectiveCeilings
    from nccl_bench.fabric.topology import Topology

WIDTH = 100
LIMIT = "attainable is limited by"
NAMED = "nccl-bench ideal --gpus 8xH100-SXM --nics 8x400-IB --nodes 4"


def ideal(
    from_: Annotated[list[Path] | None, typer.Option("--from", metavar="PATH", help="the fabric of a file or run: as topo --from")] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="NxMODEL", help="GPUs of one NVLink (or PCIe) domain: 8xH100-SXM, 72xGB200")] = None,
    nics: Annotated[str | None, typer.Option("--nics", metavar="NxGBIT-KIND", help="NICs of one domain: 8x400-IB, 4x100-EFA, none")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="number of such domains (default 1)")] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="NAME", help="a known system: DGX-H100, aws-p5.48xlarge")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="the GPU model where the source does not say")] = None,
    racks: Annotated[str | None, typer.Option("--racks", metavar="RxN", help="4x32: four racks of 32 nodes")] = None,
    oversubscription: Annotated[str | None, typer.Option("--oversubscription", metavar="A:B", help="2:1: uplinks carry half")] = None,
    sharp: Annotated[bool, typer.Option("--sharp", help="InfiniBand switches add up (SHARP)")] = False,
    dtype: Annotated[str, typer.Option("-d", "--dtype", help="element type; NVSwitch adds up only some")] = "float32",
    op: Annotated[str, typer.Option("-o", "--op", help="reduction; NVSwitch does only some")] = "sum",
    sysfs_root: Annotated[Path | None, typer.Option("--sysfs-root", metavar="DIR", help="a copied /sys")] = None,
    groups: Annotated[Path | None, typer.Option("--groups", metavar="FILE", help="CSV: host, rack, leaf, rail switch")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """Say what should I get: physical limit, attainable, and what healthy systems of this kind reached."""
    from nccl_bench.dtypes import find_dtype, find_op
    from nccl_bench.fabric.ideal import ceilings

    sources = [bool(from_ or sysfs_root), gpus is not None, system is not None]
    if sum(sources) > 1:
        raise UsageError("--from, --gpus and --system each name the hardware", "give one of them")
    if any(sources[1:]) and (gpu is not None or groups is not None):
        raise UsageError("--gpu and --groups belong to a source that is read", "--gpus and --system name the model; use --racks for places")
    topology = _named(gpus, nics, nodes, system) if any(sources[1:]) else _read(from_ or [], sysfs_root, gpu, groups, nics, nodes)
    topology = _with_racks(topology, racks, oversubscription)
    if sharp:
        _need_infiniband(topology)
    found = ceilings(topology, None, os.environ, dtype=find_dtype(dtype).name, op=find_op(op), sharp=True if sharp else None)
    if as_json:
        sys.stdout.write(json.dumps(to_json(found, topology), indent=1) + "\n")
        return
    show(found, topology, sys.stdout)
    for line in found.warnings:
        sys.stderr.write(f"warning: {line}\n")


def _named(gpus: str | None, nics: str | None, nodes: int | None, system: str | None) -> Topology:
    from nccl_bench.fabric import spec

    count = 1 if nodes is None else nodes
    if system is not None:
        known = spec.find_system(system)
        gpus, nics = known.gpus, nics or known.nics
    if count > 1 and (nics is None or nics.strip().lower() == "none"):
        raise UsageError(f"--nodes {count}: {count} nodes talk through NICs, and none are given", "for example --nics 8x400-IB")
    return spec.topology_of(gpus or "", nics, count)


def _read(paths: list[Path], sysfs_root: Path | None, gpu: str | None, groups: Path | None, nics: str | None, nodes: int | None) -> Topology:
    from nccl_bench.cli.topo import read_topology
    from nccl_bench.fabric import spec

    try:
        topology = read_topology(paths, sysfs_root, gpu, groups, os.environ)
    except DetectError as err:
        _only_part_named(paths or sysfs_root, nics, nodes)
        raise DetectError(err.why, *err.hints, f"or name the hardware: {NAMED}") from err
    if not any(node.gpus for node in topology.nodes):
        _only_part_named(paths or sysfs_root, nics, nodes)
        where = "this machine" if not paths else ", ".join(str(path) for path in paths)
        raise DetectError(f"no GPU is known on {where}", f"name the hardware: {NAMED}")
    if nics is not None:
        topology = spec.with_nics(topology, nics)
    return topology if nodes is None else spec.repeat(topology, nodes)


def _only_part_named(source: object, nics: str | None, nodes: int | None) -> None:
    """Raises UsageError where NICs or nodes are named without GPUs, and this machine has none to complete them."""
    named = [name for name, value in (("--nics", nics), ("--nodes", nodes)) if value is not None]
    if named and not source:
        why = f"{' and '.join(named)} without --gpus: whose? No GPU is seen on this machine"
        raise UsageError(why, f"add --gpus: {NAMED}", "or a source that is read: --from PATH")


def _need_infiniband(topology: Topology) -> None:
    """Raises UsageError where --sharp has no InfiniBand switch that could add up."""
    if len(topology.nodes) < 2:
        raise UsageError("--sharp: one node alone uses no InfiniBand switch", "--nodes N, or leave --sharp out")
    layers = {nic.link_layer for node in topology.nodes for nic in node.nics or ()} - {"InfiniBand", None}
    if layers:
        names = ", ".join(sorted(filter(None, layers)))
        raise UsageError(f"--sharp: switches that add up are InfiniBand's, and these NICs are {names}", "leave --sharp out")


def _with_racks(topology: Topology, racks: str | None, oversubscription: str | None) -> Topology:
    if racks is None and oversubscription is None:
        return topology
    from nccl_bench.fabric import spec

    return spec.with_racks(topology, racks, oversubscription)


def to_json(found: Ceilings, topology: Topology) -> dict[str, Any]:
    """The document of CONTRACT.md section 2; further keys say on what it rests."""
    collectives = {}
    for name, row in found.collectives.items():
        if ":" in name:
            continue
        record = _collective_json(row)
        by_node = found.collectives.get(f"{name}:node")
        if by_node is not None:
            record["by_shift"] = {"ring": _ceiling_json(row.best), "node": _ceiling_json(by_node.best)}
        record["floor_frac"] = found.floor.get(name)
        collectives[name] = record
    return {
        "n_ranks": found.n_ranks,
        "n_domains": found.n_domains,
        "ranks_per_domain": list(found.ranks_per_domain),
        "platform": found.platform,
        "collectives": collectives,
        "assumptions": list(found.assumptions),
        "warnings": [*topology.all_warnings(), *found.warnings],
    }


def _collective_json(row: CollectiveCeilings) -> dict[str, Any]:
    return {
        "bus_factor": row.bus_factor,
        **_ceiling_json(row.best),
        "latency_expected_us": row.latency_us,
        "latency_is_least": row.latency_least,
        "by_algorithm": {name: _ceiling_json(ceiling) for name, ceiling in row.by_algorithm.items()},
    }


def _ceiling_json(ceiling: Ceiling) -> dict[str, Any]:
    seen = ceiling.expected
    return {
        "line_busbw_GBps": _number(ceiling.line_GBps),
        "attainable_busbw_GBps": _number(ceiling.attainable_GBps),
        "expected_busbw_GBps": None
        if seen is None
        else {"low": _number(seen.low_GBps), "mid": _number(seen.mid_GBps), "n_sources": seen.n_sources, "sources": list(seen.sources)},
        "limited_by": ceiling.limited_by,
        "line_limited_by": ceiling.line_limited_by,
    }


def _number(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def show(found: Ceilings, topology: Topology, stream: TextIO) -> None:
    """Write the page: one row a collective, all_reduce by algorithm, and what the figures rest on."""
    from rich.console import Console

    from nccl_bench.fabric.topology import describe

    console = Console(file=stream, width=None if stream.isatty() else WIDTH, highlight=False)
    nodes = len(topology.nodes)
    head = f"{'' if nodes == 1 else f'{nodes} nodes of '}{describe(topology.nodes[0])}{_racked(topology)}"
    console.print(head, style="bold", markup=False, soft_wrap=True)
    plural = "s" if found.n_ranks > 1 else ""
    console.print(f"{found.n_ranks} rank{plural}, bus bandwidth in GB/s (1e9 bytes/s), largest sizes; latency at the smallest\n", markup=False)
    console.print(_table(found))
    ways = _ways(found)
    if len(ways) > 1:
        console.print("\nall_reduce by algorithm", markup=False)
        console.print(_algorithms(ways))
    for line in _notes(found):
        console.print(line, markup=False, style="dim", soft_wrap=True)


def _racked(topology: Topology) -> str:
    """ ", in 2 racks of 4 nodes, uplinks 2:1"; nothing where no racks are known."""
    sizes = sorted(Counter(node.rack for node in topology.nodes if node.rack is not None).values())
    if not sizes:
        return ""
    each = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    ratio = f"uplinks {topology.oversubscription:g}:1" if topology.oversubscription > 1 else "uplinks as wide as the NICs"
    return f", in {len(sizes)} rack{'s' if len(sizes) > 1 else ''} of {each} node{'s' if sizes[-1] > 1 else ''}, {ratio}"


def _ways(found: Ceilings) -> Mapping[str, Ceiling]:
    row = found.collectives.get("all_reduce")
    return {} if row is None else row.by_algorithm


def _columns(*titles: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        left = title in ("collective", "algorithm", LIMIT)
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    return table


def _table(found: Ceilings) -> Any:
    table = _columns("collective", "physical limit", "attainable", "expected", "latency", LIMIT)
    for name, row in found.collectives.items():
        late = f"{'>= ' if row.latency_least and row.latency_us is not None else ''}{format_us(row.latency_us)}"
        table.add_row(_shown(found, name), *_rates(row.best), late, row.best.limited_by)
    return table


def _shown(found: Ceilings, name: str) -> str:
    return name.replace(":node", " by node") if ":" in name else f"{name} by ring" if f"{name}:node" in found.collectives else name


def _algorithms(ways: Mapping[str, Ceiling]) -> Any:
    table = _columns("algorithm", "physical limit", "attainable", "expected", LIMIT)
    for name, ceiling in ways.items():
        table.add_row(name.upper() if name == "nvls" else name, *_rates(ceiling), ceiling.limited_by)
    return table


def _rates(ceiling: Ceiling) -> tuple[str, str, str]:
    seen = ceiling.expected
    words = "-" if seen is None else f"{seen.low_GBps:.0f}-{seen.mid_GBps:.0f} ({seen.n_sources})"
    return format_GBps(ceiling.line_GBps), format_GBps(ceiling.attainable_GBps), words


def _notes(found: Ceilings) -> list[str]:
    lines = ["", "expected: lower quartile to median of what healthy systems of this kind reached (sources); - where fewer than two are known"]
    others: dict[str, list[str]] = {}
    for name, row in found.collectives.items():
        if row.best.line_limited_by.removesuffix(" (upper bound)") != row.best.limited_by.removesuffix(" (upper bound)"):
            others.setdefault(row.best.line_limited_by, []).append(_shown(found, name))
    if others:
        limits = "; ".join(f"{words} ({', '.join(names)})" for words, names in others.items())
        lines.append(f"what makes a physical limit, where it is another: {limits}")
    if any(row.latency_least for row in found.collectives.values()):
        lines.append(">=: the time of one message; a rank sends or takes one for each other rank, and how many go at once is not modelled")
    if len(_ways(found)) > 1:
        lines.append("bus bandwidth above the wire's is no mistake where switches add up, or on two nodes with a tree: it is a convention")
    ring = _ways(found).get("ring")
    if found.n_domains > 1 and found.ranks_per_domain[0] > 1 and ring is not None and ring.limited_by.startswith("node's"):
        lines.append("a ring over nodes may pass one node's own: in each node one hop in g goes by the NICs, so GPU links carry (g-1)/g of it")
    return [*lines, *(f"assumed: {text}" for text in found.assumptions)]
