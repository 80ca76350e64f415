"""`nvidia-smi topo -m` and `nvidia-smi nvlink -s` as text. Pure functions.

The table's own traps: lost tabs, blanks for tabs, words of old drivers (SOC), colours, columns without values, NICs by device
name or with a legend (real files of all these are in the tests).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nccl_bench.errors import DataError
from nccl_bench.fabric import gpus as models
from nccl_bench.fabric.data import clean, small_int
from nccl_bench.fabric.serve import nearest
from nccl_bench.fabric.topology import Distance, Gpu, Nic, Node, NvLink

_CELL = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_ROW = re.compile(r"[ \t]*(GPU\d{1,4}|NIC\d{1,4}|[a-z][a-z0-9_]{1,30})")
_DEVICE = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|[a-z][A-Za-z0-9_]{1,30}")
_TAIL = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_WORDS: dict[str, Distance] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS", "SOC": "SYS"}


@dataclass(frozen=True, slots=True)
class _Table:
    names: tuple[str, ...]
    """Columns of devices, in order."""
    rows: dict[str, tuple[str, ...]]
    """Cells of each row."""
    tails: dict[str, str]
    """What follows the cells."""
    header: str


def is_matrix(text: str) -> bool:
    """Whether a text holds a `topo -m` table."""
    return _head(clean(text).split("\n")) is not None


def _head(lines: list[str]) -> int | None:
    """The number of the header line: GPU0 first, and the row of GPU0 not far below it."""
    for at, line in enumerate(lines):
        if re.match(r"[ \t]*GPU0(\b|GPU)", line) and not _first_row(line):
            return at if any(_first_row(below) for below in lines[at + 1 : at + 4]) else None
    return None


def _first_row(line: str) -> bool:
    return re.match(r"[ \t]*GPU0[ \t]*X\b", line) is not None


def parse_matrix(text: str) -> Node:
    """The GPUs, NICs, bonds and distances of a `topo -m` table. Raises DataError with the reason.

    The table carries neither models nor rates: a generation or a rate is known only where the count of links leaves no choice.
    """
    table = _read(clean(text))
    gpu_names = [name for name in table.names if re.fullmatch(r"GPU\d+", name)]
    nic_names = [name for name in table.names if name not in gpu_names]
    if not gpu_names:
        raise DataError("no GPU column in this topo -m table")
    legend = dict(re.findall(r"^[ \t]*(NIC\d{1,4}):[ \t]*(\S{1,64})", text, re.MULTILINE))
    affinity = {name: _affinity(table, name) for name in gpu_names}
    gpus = tuple(
        Gpu(
            index=int(name[3:]),
            nvlink=_link(table, name, gpu_names),
            numa=affinity[name][1],
            cpus=affinity[name][0],
        )
        for name in gpu_names
    )
    nics = tuple(Nic(name=legend.get(name, name), distance=_distances(table, name, gpu_names)) for name in nic_names)
    return nearest(Node(gpus=gpus, nics=nics))


def _read(text: str) -> _Table:
    lines = text.split("\n")
    head = _head(lines)
    if head is None:
        raise DataError("no header and row of GPU0 in this topo -m table")
    names = tuple(dict.fromkeys(_DEVICE.findall(re.split(r"CPU Affinity|NUMA", lines[head])[0])))
    rows: dict[str, tuple[str, ...]] = {}
    tails: dict[str, str] = {}
    for line in lines[head + 1 :]:
        match = _ROW.match(line)
        if match is None or match[1] not in names or match[1] in rows:
            if rows and not line.strip():
                break
            continue
        cells, rest = _cells(line[match.end() :], len(names))
        if len(cells) == len(names):
            rows[match[1]], tails[match[1]] = cells, rest
        elif match[1].startswith("GPU"):
            raise DataError(f"row {match[1]} of this topo -m table has {len(cells)} cells for {len(names)} columns")
    missing = [name for name in names if name.startswith("GPU") and name not in rows]
    if missing:
        raise DataError(f"no row for {missing[0]} in this topo -m table")
    return _Table(names, rows, tails, lines[head])


def _cells(text: str, count: int) -> tuple[tuple[str, ...], str]:
    """The first `count` cells, however they are set apart, and what follows them."""
    cells: list[str] = []
    at = 0
    while len(cells) < count:
        blank = re.compile(r"[ \t]*").match(text, at)
        at = blank.end() if blank else at
        match = _CELL.match(text, at)
        if match is None:
            break
        cells.append(match[0])
        at = match.end()
    return tuple(cells), text[at:]


def _link(table: _Table, name: str, gpu_names: list[str]) -> NvLink:
    """Bonds by peer. How many links the GPU has follows when it is known whether a switch is between (see complete)."""
    bonds = []
    for other, cell in zip(table.names, table.rows[name], strict=True):
        if other in gpu_names and other != name and cell.startswith("NV"):
            bonds.append((int(other[3:]), int(cell[2:])))
    if not bonds:
        # Alone in the table, a GPU shows no bonds whatever it has.
        return NvLink(links=0, per_direction_GBps=0.0, bonds=()) if len(gpu_names) > 1 else NvLink()
    return NvLink(bonds=tuple(bonds))


def _distances(table: _Table, nic: str, gpu_names: list[str]) -> tuple[tuple[int, Distance], ...] | None:
    found = []
    column = table.names.index(nic)
    for name in gpu_names:
        word = _WORDS.get(table.rows[name][column])
        if word is None:
            return None
        found.append((int(name[3:]), word))
    return tuple(found)


def _affinity(table: _Table, name: str) -> tuple[str | None, int | None]:
    """CPU and NUMA affinity: by the header's tabs or columns, for a blank cell may stand where a job has no CPU there."""
    heads = [word for word in _TAIL if word in table.header]
    tail = table.tails[name]
    cells = tail.lstrip(" ").removeprefix("\t").split("\t") if "\t" in tail else re.split(r"[ ]{2,}|(?<=\d)[ ]+(?=\d|N/A)", tail.strip())
    cells = [cell.strip() for cell in cells]
    if "\t" not in tail and len(cells) < len(heads) and not _blank_numa(cells):
        cells = [""] * (len(heads) - len(cells)) + cells
    values = dict(zip(heads, cells, strict=False))
    cpus = values.get("CPU Affinity") or None
    return cpus, small_int(values.get("NUMA Affinity"))


def _blank_numa(cells: list[str]) -> bool:
    """Whether the first cell is a list of CPUs, so that what lacks is further right."""
    return bool(cells) and bool(re.search(r"[-,]", cells[0]))


_GPU_LINE = re.compile(r"^[ \t]*GPU (\d{1,4}): (.{1,100}?) \(UUID: ([^)\n]{1,64})\)", re.MULTILINE)
_LINK_LINE = re.compile(r"^[ \t]*Link (\d{1,3}): (?:([0-9.]{1,9}) GB/s|<?(inactive|disabled)>?)", re.MULTILINE | re.IGNORECASE)


def is_link_status(text: str) -> bool:
    """Whether a text holds `nvidia-smi nvlink -s` output."""
    return _GPU_LINE.search(text) is not None and _LINK_LINE.search(text) is not None


def parse_link_status(text: str) -> Node:
    """The GPUs and links of `nvidia-smi nvlink -s`; an empty text means that no GPU has NVLink, which is no error."""
    if not text.strip():
        return Node(warnings=("nvidia-smi nvlink -s printed nothing: no GPU has NVLink",), switch=False, nccl=None)
    marks = list(_GPU_LINE.finditer(text))
    if not marks:
        raise DataError("no GPU line in this nvlink -s text")
    gpus, warnings = [], []
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        block = text[mark.end() : after.start() if after else len(text)]
        gpu, texts = _status(int(mark[1]), mark[2], mark[3], block)
        gpus.append(gpu)
        warnings += texts
    return Node(gpus=tuple(gpus), warnings=tuple(warnings))


def _status(index: int, name: str, uuid: str, block: str) -> tuple[Gpu, list[str]]:
    """One GPU: speeds are signalling rates, turned into marketed ones (gpus.marketed)."""
    model = models.by_driver_name(name)
    generation = None if model is None else model.generation
    signal = [float(speed) for _link, speed, _off in _LINK_LINE.findall(block) if re.fullmatch(r"\d+(\.\d+)?", speed)]
    speeds = [models.marketed(speed, generation) for speed in signal]
    off = [int(link) for link, _speed, word in _LINK_LINE.findall(block) if word]
    total = round(sum(speeds), 3)
    link = NvLink(
        generation=generation if speeds else None, links=len(speeds), inactive=len(off), per_direction_GBps=total, signal_GBps=round(sum(signal), 3)
    )
    gpu = Gpu(index=index, name=models.bare(name), uuid=uuid, cc=None if model is None else model.cc, nvlink=link)
    if not off:
        return gpu, []
    which = ", ".join(str(number) for number in off)
    left = f"{sum(signal):.1f} GB/s of signalling rate are left"
    return gpu, [f"GPU {index}: {len(off)} of {len(off) + len(speeds)} NVLinks are inactive (link {which}): {left}"]


