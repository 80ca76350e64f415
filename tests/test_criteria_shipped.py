"""The criteria that are shipped ask no more of a healthy cluster than our own table of healthy systems shows (nccl-bench ideal)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_bench.fabric import ideal
from nccl_bench.fabric.spec import topology_of
from nccl_bench.verdict import criteria

pytestmark = pytest.mark.pure
FOLDER = Path(__file__).parent.parent / "criteria"
BOUGHT = [path.name for path in sorted(FOLDER.glob("*.toml")) if path.name != "default.toml"]
MANY = (2, 4, 16, 64)
NODES = {"a100-8x200-roce.toml": (2,)}
"""Whose requirement is of two nodes, as its source says: of more such nodes nothing is published."""


@pytest.mark.parametrize("name", BOUGHT)
def test_what_is_required_healthy_systems_reach(name: str) -> None:
    found = criteria.read(FOLDER / name)
    bought = found.hardware
    kind = "RoCE" if "roce" in name else "IB"
    assert found.require
    for one in found.require:
        assert one.source
        for nodes in (1,) if one.stage == "node" else NODES.get(name, MANY):
            nics = None if nodes == 1 else f"{bought.nics_per_node}x{bought.nic_gbps:g}-{kind}"
            topology = topology_of(f"{bought.gpus_per_node}x{bought.gpu}", nics, nodes)
            best = ideal.ceilings(topology, None, {}, collectives=[one.collective]).collectives[one.collective].best
            assert best.expected is not None
            assert one.min_busbw_GBps <= best.expected.low_GBps
