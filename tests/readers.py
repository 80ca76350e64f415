"""Every reader of other people's files behind one call a room: what comes of any bytes is a value or an error in words, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from nccl_bench.errors import NcclBenchError
from nccl_bench.fabric import files
from nccl_bench.fabric.topology import Node
from nccl_bench.records import Point, RunHeader
from nccl_bench.results import importers
from nccl_bench.results.check import check
from nccl_bench.training import files as training_files
from nccl_bench.training.config import read_config
from nccl_bench.verdict import criteria


def imported(path: Path) -> None:
    """Import a file; what it gave is whole, and survives a round through JSON."""
    found = importers.import_file(path)
    points, header = importers.points_of([found]), importers.header_of([found])
    for point in points:
        check(point)
        assert Point.from_json(json.loads(json.dumps(point.to_json(), allow_nan=False))) == point
    check(header)
    kept = json.loads(json.dumps(header.to_json(), allow_nan=False))
    assert json.loads(json.dumps(RunHeader.from_json(kept).to_json())) == kept


def topology(path: Path) -> None:
    """Read a topology; its nodes survive a round through JSON."""
    for node in files.topology_from([path], {}).nodes:
        kept = json.loads(json.dumps(node.to_json(), allow_nan=False))
        again = Node.from_json(kept)
        assert replace(again, nccl=None) == replace(node, nccl=None)
        assert json.loads(json.dumps(again.to_json())) == kept


def criteria_file(path: Path) -> None:
    """Read acceptance criteria; every threshold has words."""
    assert all(all(row) for row in criteria.read(path).thresholds())


def training(path: Path) -> None:
    """Read a file as each of the training frameworks' configurations."""
    for reader in (training_files.deepspeed, training_files.megatron, training_files.torchtitan, read_config):
        try:
            reader(path)
        except NcclBenchError:
            continue


READERS: Mapping[str, Callable[[Path], None]] = {"import": imported, "topology": topology, "criteria": criteria_file, "training": training}


def refused(reader: Callable[[Path], None], path: Path) -> bool:
    """Whether the reader refused the file in words. Any other exception comes through: that is a bug of ours."""
    try:
        reader(path)
    except NcclBenchError as err:
        why = err.why
    else:
        return False
    assert why
    assert "\n" not in why, why
    return True
