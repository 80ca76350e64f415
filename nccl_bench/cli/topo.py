"""`nccl-bench topo`: the fabric as it is here, or as files say it is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from nccl_bench.fabric.topology import Gpu, Nic, Node, Pcie, Topology, domains

WIDTH = 100
"""Columns of the page where stdout is no terminal."""
SAME_NODES = 4
"""More nodes than this that are alike are shown once."""


def topo(
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="PATH", help="read a file instead of this machine: NCCL XML or log, nvidia-smi, rocm-smi, ibstatus, a sysfs copy, a run"
        ),
    ] = None,
    sysfs_root: Annotated[Path | None, typer.Option("--sysfs-root", metavar="DIR", help="a copied /sys, or another root for this machine's")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="the GPU model where the source does not say: H100-SXM")] = None,
    groups: Annotated[Path | None, typer.Option("--groups", metavar="FILE", help="CSV: host, rack, leaf, rail switch")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """Show GPUs, NVLink, PCIe and NICs of this node or of files, and where each fact comes from."""
    from nccl_bench.fabric.topology import topology_json

    topology = read_topology(from_ or [], sysfs_root, gpu, groups, os.environ)
    if as_json:
        sys.stdout.write(json.dumps(topology_json(topology), indent=1) + "\n")
        return
    show(topology, sys.stdout)
    for line in topology.all_warnings():
        sys.stderr.write(f"warning: {line}\n")


def read_topology(paths: list[Path], sysfs_root: Path | None, gpu: str | None, groups: Path | None, environ: Mapping[str, str]) -> Topology:
    """The topology of files, or of this machine where there are none. Raises DetectError where nothing is found or hardware is unknown."""
    from nccl_bench.fabric import detect, files, placement
    from nccl_bench.fabric.complete import complete, refuse_unknown

    if paths or (sysfs_root is not None and sysfs_root != Path("/sys")):
        topology = files.topology_from(paths, environ, gpu_name=gpu, sysfs_root=sysfs_root)
    else:
        topology = detect.here(environ)
        if gpu is not None:
            topology = replace(topology, nodes=tuple(complete(node, environ, gpu) for node in topology.nodes))
        for node in topology.nodes:
            refuse_unknown(node)
    return topology if groups is None else placement.apply(topology, placement.read(groups))


def show(topology: Topology, stream: TextIO) -> None:
    """Write the page: nodes with their tables, NVLink domains over hosts, racks, sources."""
    from rich.console import Console

    console = Console(file=stream, width=None if stream.isatty() else WIDTH, highlight=False)
    for count, node in _alike(topology):
        _node(console, node, count)
    for line in _whole(topology):
        console.print(line, markup=False, soft_wrap=True)


def _alike(topology: Topology) -> Iterator[tuple[int, Node]]:
    """Nodes, those alike but for their names together where there are many."""
    if len(topology.nodes) <= SAME_NODES:
        yield from ((1, node) for node in topology.nodes)
        return
    kinds: dict[Node, list[Node]] = {}
    for node in topology.nodes:
        kinds.setdefault(_nameless(node), []).append(node)
    yield from ((len(nodes), nodes[0]) for nodes in kinds.values())


def _nameless(node: Node) -> Node:
    """What makes two nodes alike: not their names, addresses or serial numbers."""
    gpus = None if node.gpus is None else tuple(replace(gpu, uuid=None, clique=None) for gpu in node.gpus)
    return Node(gpus=gpus, nics=node.nics, switch=node.switch)


def _node(console: Any, node: Node, count: int) -> None:
    from nccl_bench.fabric.topology import describe

    console.print(f"{node.label}{'' if count == 1 else f' and {count - 1} like it'}: {describe(node)}", style="bold", markup=False, soft_wrap=True)
    for line in _node_facts(node):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if node.gpus:
        console.print(_gpu_table(node.gpus))
    if node.nics:
        console.print(_nic_table(node.nics))
    if node.gpus and node.nics and any(nic.distance or nic.gpus is not None for nic in node.nics):
        console.print(_matrix(node.gpus, node.nics))
    console.print()


def _node_facts(node: Node) -> list[str]:
    parts = domains(node)
    joined = "not known" if parts is None else "none" if not parts else "  ".join("{" + ",".join(map(str, part)) + "}" for part in parts)
    facts = [f"GPUs joined by links: {joined}"] if node.gpus else []
    words = (("rack", node.rack), ("leaf switch", node.leaf), ("machine", node.platform), ("CPU", node.cpu))
    place = [f"{name} {value}" for name, value in words if value]
    facts += [", ".join(place)] if place else []
    nccl = node.nccl or {}
    if nccl.get("name") or nccl.get("version"):
        facts.append(f"NCCL {nccl.get('version', '?')} uses {nccl.get('name', 'an unnamed network')}" + _transports(nccl.get("transports")))
    if node.nvls is not None:
        facts.append(f"NVLS (sums in NVSwitch): {'available' if node.nvls else 'not available'}")
    return facts


def _transports(found: Mapping[str, int] | None) -> str:
    return "" if not found else f": {', '.join(f'{count}x {name}' for name, count in found.items())}"


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _gpu_table(gpus: tuple[Gpu, ...]) -> Any:
    table = _table("  GPU", "model", "links", "GB/s one way", "PCIe", "NUMA", "address")
    for gpu in gpus:
        link = gpu.nvlink
        count = "?" if link is None or link.links is None else "none" if not link.links else f"{link.links} {link.kind}{link.generation or ''}"
        rate = "" if link is None or not link.links else "?" if link.per_direction_GBps is None else f"{link.per_direction_GBps:g}"
        name = gpu.name or "?"
        table.add_row(f"  {gpu.index}", name, count, rate, _slot(gpu.pcie), _text(gpu.numa), gpu.bus_id or "")
    return table


def _nic_table(nics: tuple[Nic, ...]) -> Any:
    table = _table("  NIC", "Gbit/s", "kind", "state", "PCIe", "NUMA", "serves GPU", "for collectives")
    for nic in nics:
        used = "yes" if nic.used else "?" if nic.used is None else f"no: {nic.why}"
        serves = "?" if nic.gpus is None else ",".join(map(str, nic.gpus)) or "none"
        rate = "?" if nic.rate_gbit is None else f"{nic.rate_gbit:g}"
        kind = f"{nic.link_layer or '?'}{'' if nic.mtu is None else f' MTU {nic.mtu}'}"
        table.add_row(f"  {nic.label}", rate, kind, nic.state or "?", _slot(nic.pcie), _text(nic.numa), serves, used)
    return table


def _slot(slot: Pcie | None) -> str:
    if slot is None or (slot.generation is None and slot.width is None):
        return "?"
    word = f"Gen{slot.generation or '?'} x{slot.width or '?'}"
    return word if slot.path_GBps is None or slot.path_GBps == slot.GBps else f"{word}, path {slot.path_GBps:g} GB/s"


def _text(value: int | None) -> str:
    return "?" if value is None else str(value)


def _matrix(gpus: tuple[Gpu, ...], nics: tuple[Nic, ...]) -> Any:
    """The GPU-NIC map: the PCI distance of each pair, or a mark for who serves whom; the nearest in bold."""
    table = _table("  GPU-NIC", *(nic.label.removeprefix("mlx5_") if len(nics) > 8 else nic.label for nic in nics))
    for gpu in gpus:
        cells = []
        for nic in nics:
            serves = nic.gpus is not None and gpu.index in nic.gpus
            word = dict(nic.distance or ()).get(gpu.index) or ("*" if serves else ".")
            cells.append(f"[bold]{word}[/bold]" if serves else f"[dim]{word}[/dim]")
        table.add_row(f"  {gpu.index}", *cells)
    return table


def _whole(topology: Topology) -> list[str]:
    lines = []
    if any(gpu.clique for node in topology.nodes for gpu in node.gpus or ()):
        from nccl_bench.fabric.topology import cross_domains

        for part in cross_domains(topology.nodes) or ():
            hosts = {position for position, _index in part}
            if len(hosts) > 1:
                lines.append(f"NVLink domain of {len(part)} GPUs on {len(hosts)} hosts, first {topology.nodes[min(hosts)].label}")
    if len(topology.nodes) > 1:
        racks = {node.rack or node.leaf for node in topology.nodes} - {None}
        known = f"{len(topology.nodes)} nodes, {len(racks)} racks or leaf switches"
        lines.append(known if racks else "racks not known (no --groups, no Slurm topology)")
    return [*lines, f"sources: {'; '.join(topology.sources) or 'none'}"]
