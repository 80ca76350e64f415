"""Topology from files: what kind each is by its content, its reading, and which of them describe one node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nccl_bench.errors import DataError, DetectError
from nccl_bench.fabric import ib, nccl_log, nccl_xml, rocm, smi, sysfs
from nccl_bench.fabric.complete import complete, refuse_unknown
from nccl_bench.fabric.data import read_text
from nccl_bench.fabric.merge import merge
from nccl_bench.fabric.topology import Node, Topology
from nccl_bench.inputs import parse_json

Reading = tuple[str, Node]
"""(source, what it says)."""
MAX_TABLE_CHARS = 4 << 20
"""Longest text of nvidia-smi, rocm-smi or ibstatus that is read; a log may be longer."""
KINDS = "NCCL topology or graph XML, an NCCL_DEBUG log, nvidia-smi topo -m or nvlink -s, rocm-smi, ibstatus, ibv_devinfo, a sysfs copy, a run"


def topology_from(
    paths: Sequence[Path], environ: Mapping[str, str], *, gpu_name: str | None = None, sysfs_root: Path | None = None
) -> Topology:
    """The topology that files describe. Files of one node (the same host, or no host and of different kinds) are merged.

    Raises DataError where a file cannot be read or is no topology, DetectError where a GPU it names is not known, or it has nothing.
    """
    readings = [reading for path in paths for reading in read(path)]
    if sysfs_root is not None:
        readings.append((f"sysfs: {sysfs_root}", sysfs.read(sysfs_root)))
    nodes = []
    for group in _by_node(readings):
        node = complete(merge(group), environ, gpu_name)
        refuse_unknown(node)
        nodes.append(node)
    if not any(node.gpus or node.nics or node.unknown_devices or node.nccl or node.switch is not None for node in nodes):
        raise DetectError(f"no GPU and no NIC in {', '.join(str(path) for path in paths) or sysfs_root}")
    return Topology(nodes=tuple(nodes), sources=tuple(source for source, _node in readings))


def read(path: Path) -> list[Reading]:
    """The readings of one file or directory; "latest" is the newest run. Raises DataError with the path."""
    if path.name == "points.jsonl":
        path = path.parent
    if str(path) == "latest" and not path.exists():
        path = Path("results/latest")
    if path.is_dir():
        return _read_directory(path)
    text = read_text(path)
    try:
        kind = kind_of(text, path.name)
        return [(f"{kind}: {path}", replace(node, stem=node.stem or path.stem)) for node in _parse(kind, text, path)]
    except DataError as err:
        where = str(err.why)
        raise DataError(where if where.startswith(str(path)) else f"{path}: {where}", *err.hints) from err


def kind_of(text: str, name: str) -> str:
    """What a text is, by its content; raises DataError where it is no topology source."""
    if not text.strip():
        if "nvlink" in name.lower():
            return "nvidia-smi nvlink -s"
        raise DataError("the file is empty", "the empty output of nvidia-smi nvlink -s means no NVLink: give it a name with \"nvlink\" in it")
    if re.match(r"\s*<", text):
        return "NCCL graph" if re.search(r"<graphs\b", text[:4096]) else "NCCL dump" if re.search(r"<gpu\b", text) else "NCCL topology file"
    if nccl_log.is_log(text):
        return "NCCL log"
    if re.match(r'\s*\{\s*"', text):
        return "run"
    if len(text) > MAX_TABLE_CHARS:
        raise DataError(f"a text of more than {MAX_TABLE_CHARS >> 20} MiB that is no NCCL log")
    for kind, fits in (
        ("rocm-smi", rocm.is_topology(text)),
        ("ibv_devinfo", re.search(r"^hca_id:", text, re.MULTILINE) is not None),
        ("ibstatus", "Infiniband device '" in text),
        ("nvidia-smi topo -m", smi.is_matrix(text)),
        ("nvidia-smi nvlink -s", smi.is_link_status(text)),
    ):
        if fits:
            return kind
    raise DataError("not a topology source", f"read are: {KINDS}")


def _parse(kind: str, text: str, path: Path) -> tuple[Node, ...]:
    match kind:
        case "NCCL graph" | "NCCL dump" | "NCCL topology file":
            return nccl_xml.parse(text)
        case "NCCL log":
            return _log_nodes(text)
        case "run":
            return _json_nodes(text, path)
        case "rocm-smi":
            return (rocm.parse(text),)
        case "ibv_devinfo":
            return (ib.parse_devinfo(text),)
        case "ibstatus":
            return (ib.parse_ibstatus(text),)
        case "nvidia-smi topo -m":
            return (smi.parse_matrix(text),)
        case _:
            return (smi.parse_link_status(text),)


def _log_nodes(text: str) -> tuple[Node, ...]:
    nodes = nccl_log.parse(text)
    if not nodes:
        raise DataError("NCCL's lines in this log name no host: a log with NCCL_DEBUG=INFO does")
    return nodes


def _json_nodes(text: str, path: Path) -> tuple[Node, ...]:
    """The nodes of a run's header, or of what `topo --json` printed."""
    try:
        record = parse_json(text)
    except ValueError as err:
        raise DataError(f"not JSON: {err}") from err
    if isinstance(record, Mapping) and "topology" in record:
        record = record["topology"]
        if record is None:
            raise DataError("this run recorded no topology")
    if not isinstance(record, Mapping) or not isinstance(record.get("nodes"), list) or not record["nodes"]:
        raise DataError("JSON without nodes: neither a run's run.json nor what topo --json prints")
    return tuple(Node.from_json(item if isinstance(item, Mapping) else {}) for item in record["nodes"])


def _read_directory(path: Path) -> list[Reading]:
    if (path / "run.json").is_file():
        return read(path / "run.json")
    if sysfs.is_tree(path):
        return [(f"sysfs: {path}", replace(sysfs.read(path), stem=path.name))]
    raise DataError(f"{path}: neither a run directory nor a copy of /sys (with class/infiniband or class/net)")


def _by_node(readings: Sequence[Reading]) -> list[list[Reading]]:
    """Groups of readings of one node: by host; those without a host join the only one, or the first that has none of their kind."""
    named: dict[str, list[Reading]] = {}
    nameless: list[list[Reading]] = []
    for reading in readings:
        host = reading[1].host
        if host is not None:
            named.setdefault(host, []).append(reading)
            continue
        kind = reading[0].split(":")[0]
        hash_ = (reading[1].nccl or {}).get("host_hash")
        free = [group for group in nameless if all(kind != source.split(":")[0] for source, _node in group)]
        if free and hash_ is None:
            free[0].append(reading)
        else:
            nameless.append([reading])
    if len(named) == 1 and len(nameless) == 1:
        return [[*next(iter(named.values())), *nameless[0]]]
    return [*named.values(), *nameless]
