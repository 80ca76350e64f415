"""AMD's tables: `rocm-smi --showtopo`, `--showtopotype` as text. Pure functions.

The tables say how two GPUs are joined (XGMI or PCIE) and over how many hops, not by how many links nor which model they are.
"""

from __future__ import annotations

import re

from nccl_bench.errors import DataError
from nccl_bench.fabric.topology import Gpu, Node, NvLink

_TITLE = re.compile(r"^=+ ([A-Za-z][A-Za-z0-9 ()-]{2,60}?) =+\s*$", re.MULTILINE)
_NUMA = re.compile(r"^GPU\[(\d{1,4})\]\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d{1,4})", re.MULTILINE)
_NAME = re.compile(r"^GPU\[(\d{1,4})\]\s*:\s*Card [Ss]eries:\s*(\S[^\n]{0,80}?)\s*$", re.MULTILINE)


def is_topology(text: str) -> bool:
    """Whether a text holds tables of `rocm-smi --showtopo` or `--showtopotype`."""
    return re.search(r"(Link Type|Hops|Weight) between two GPUs", text) is not None


def parse(text: str) -> Node:
    """The GPUs and who is joined with whom. Raises DataError with the reason."""
    tables = {title.strip(): _matrix(block) for title, block in _blocks(text)}
    types = tables.get("Link Type between two GPUs")
    if not types:
        raise DataError("no table of link types between GPUs in this rocm-smi text")
    hops = tables.get("Hops between two GPUs") or {}
    numa = {int(index): int(node) for index, _word, node in _NUMA.findall(text) if int(node) >= 0}
    names = {int(index): name for index, name in _NAME.findall(text)}
    size = len(types)
    if any(len(row) != size for row in types.values()):
        raise DataError("a row of this rocm-smi table has another number of cells than there are GPUs")
    gpus = tuple(Gpu(index=index, name=names.get(index), numa=numa.get(index), nvlink=_link(index, types, hops)) for index in sorted(types))
    return Node(gpus=gpus, switch=False)


def _blocks(text: str) -> list[tuple[str, str]]:
    marks = list(_TITLE.finditer(text))
    return [(mark[1], text[mark.end() : after.start() if after else len(text)]) for mark, after in zip(marks, [*marks[1:], None], strict=False)]


def _matrix(block: str) -> dict[int, tuple[str, ...]]:
    """Rows by GPU number."""
    rows = re.findall(r"^GPU(\d{1,4})[ \t]+([A-Za-z0-9/ \t]+)$", block, re.MULTILINE)
    return {int(index): tuple(cells.split()) for index, cells in rows if not cells.startswith("GPU")}


def _link(index: int, types: dict[int, tuple[str, ...]], hops: dict[int, tuple[str, ...]]) -> NvLink:
    """Peers reached by xGMI in one hop; how many links join a pair the tables do not say."""
    numbers = sorted(types)
    peers = []
    for at, other in enumerate(numbers):
        row = hops.get(index, ())
        direct = len(row) <= at or row[at] == "1"
        if other != index and types[index][at].upper() == "XGMI" and direct:
            peers.append((other, 1))
    if not peers:
        return NvLink(kind="xGMI", links=0, per_direction_GBps=0.0, bonds=())
    return NvLink(kind="xGMI", bonds=tuple(peers))
