"""This node, as it is: NVML and /sys into one short message; and many such messages into one topology, odd nodes flagged.

No torch, no CUDA: a supervisor may call this while CUDA is broken. Every input can be passed.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nccl_bench.errors import DataError, DetectError
from nccl_bench.fabric import nvml as nvml_reader
from nccl_bench.fabric import sysfs
from nccl_bench.fabric.complete import complete
from nccl_bench.fabric.merge import merge
from nccl_bench.fabric.select import RDMA
from nccl_bench.fabric.topology import Json, Node, Topology, with_warnings


def node_facts(
    environ: Mapping[str, str], sysfs_root: Path = Path("/sys"), dev_root: Path | None = Path("/dev"), *, nvml: Any = None, host: str | None = None
) -> Json:
    """What this node is, as one short JSON-able message for the board; works without GPUs, without NVML and without /sys."""
    return short(node_here(environ, sysfs_root, dev_root, nvml=nvml, host=host)).to_json()


def node_here(
    environ: Mapping[str, str], sysfs_root: Path = Path("/sys"), dev_root: Path | None = Path("/dev"), *, nvml: Any = None, host: str | None = None
) -> Node:
    """This node in full. `nvml` may be a pynvml-like module; `environ` holds NCCL's and Slurm's variables."""
    readings: list[tuple[str, Node]] = []
    warnings: list[str] = []
    gpus = nvml_reader.read(nvml)
    if gpus.node is not None:
        node = gpus.node
        if node.gpus is not None:
            node = replace(node, gpus=sysfs.with_paths(node.gpus, sysfs_root))
        readings.append(("NVML", node))
    elif gpus.why is not None:
        readings.append(("NVML", Node(gpus=())) if gpus.why == "NVML sees no GPU" else ("", Node()))
        warnings.append(f"no GPU is known here: {gpus.why}")
    try:
        readings.append(("sysfs", sysfs.read(sysfs_root, _dev(dev_root))))
    except DataError as err:
        warnings.append(err.why)
    node = merge([reading for reading in readings if reading[0]])
    node = replace(node, host=host or socket.gethostname(), leaf=slurm_leaf(environ), nccl=None if gpus.driver is None else {"driver": gpus.driver})
    if "MIG-" in environ.get("CUDA_VISIBLE_DEVICES", ""):
        warnings.append("CUDA_VISIBLE_DEVICES names MIG slices: NCCL does not run slices of a GPU as ranks")
    return with_warnings(complete(node, environ), *warnings)


def _dev(root: Path | None) -> Path | None:
    """A /dev in which ports can be missing: only where it has InfiniBand devices at all, as a container with some of them."""
    return root if root is not None and (root / "infiniband").is_dir() else None


def slurm_leaf(environ: Mapping[str, str]) -> str | None:
    """The leaf switch of this node from Slurm's topology plug-in: SLURM_TOPOLOGY_ADDR "s0.s2.node7" -> "s2"; None without one."""
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    switches = [name for name, kind in zip(names, kinds, strict=False) if kind == "switch" and name]
    return switches[-1] if len(names) == len(kinds) and switches else None


def short(node: Node) -> Node:
    """The node without what only a reader of this node needs: affinities, distances."""
    gpus = None if node.gpus is None else tuple(replace(gpu, cpus=None) for gpu in node.gpus)
    nics = None if node.nics is None else tuple(replace(nic, distance=None) for nic in node.nics)
    return replace(node, gpus=gpus, nics=nics, facts=())


def here(environ: Mapping[str, str], **roots: Any) -> Topology:
    """The topology of this node alone. Raises DetectError where it has neither a GPU nor an RDMA port."""
    node = node_here(environ, **roots)
    if not node.gpus and not any(nic.link_layer in RDMA for nic in node.nics or ()):
        why = next((text for text in node.warnings if text.startswith("no GPU")), "no GPU is known here")
        raise DetectError(f"{node.label}: {why}, and no RDMA port is there", "read the files of another machine: --from, --sysfs-root")
    return Topology(nodes=(node,), sources=tuple(dict.fromkeys(source for _fact, source in node.facts)))


def topology_of(facts: Sequence[Json | Node]) -> Topology:
    """The topology of many nodes' facts, in the order given. Nodes unlike most are flagged by name.

    Raises DataError where a message is no node's.
    """
    nodes = tuple(item if isinstance(item, Node) else Node.from_json(item) for item in facts)
    return Topology(nodes=nodes, sources=("NVML and sysfs of each node",), warnings=tuple(odd_nodes(nodes)))


def odd_nodes(nodes: Sequence[Node]) -> list[str]:
    """What single nodes have that most have not: "node gpu-7: 7 active NICs, the others 8"."""
    warnings: list[str] = []
    if len(nodes) < 2:
        return warnings
    for what, values in _features(nodes).items():
        usual, times = Counter(values).most_common(1)[0]
        odd = [at for at, value in enumerate(values) if value != usual]
        if not odd:
            continue
        if times <= len(nodes) // 2:
            warnings.append(f"nodes differ in {what}: {', '.join(f'{count}x {value}' for value, count in Counter(values).most_common(6))}")
            continue
        warnings += [f"node {nodes[at].label}: {values[at]} {what}, the others {usual}" for at in odd[:16]]
        if len(odd) > 16:
            warnings.append(f"and {len(odd) - 16} more nodes with another {what} than most")
    return warnings


def _features(nodes: Sequence[Node]) -> dict[str, list[str]]:
    return {
        "GPUs": [_number(node.gpus) for node in nodes],
        "as GPU model": [_words({gpu.name or "unknown" for gpu in node.gpus or ()}) for node in nodes],
        "NVLinks a GPU": [_words({str(gpu.nvlink.links) for gpu in node.gpus or () if gpu.nvlink is not None}) for node in nodes],
        "active NICs": ["?" if node.nics is None else str(sum(nic.used is not False for nic in node.nics)) for node in nodes],
        "as rate of NICs": [_words({f"{nic.rate_gbit:g}G" for nic in node.nics or () if nic.used is not False and nic.rate_gbit}) for node in nodes],
        "as driver": [str((node.nccl or {}).get("driver", "?")) for node in nodes],
    }


def _number(items: tuple[Any, ...] | None) -> str:
    return "?" if items is None else str(len(items))


def _words(words: set[str]) -> str:
    return " and ".join(sorted(words)) or "none"
