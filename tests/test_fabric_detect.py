"""fabric/detect.py: this node as one message, many messages as a topology."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_fabric_nvml import UNKNOWN, FakeNvml

from nccl_bench.errors import DataError, DetectError
from nccl_bench.fabric import detect
from nccl_bench.fabric.spec import topology_of
from nccl_bench.fabric.topology import Node, describe

H200 = FakeNvml([{"name": "NVIDIA H200", "links": ["switch"] * 18}] * 8)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for at in range(8):
        port = tmp_path / "sys" / "class" / "infiniband" / f"mlx5_{at}" / "ports" / "1"
        port.mkdir(parents=True)
        for name, text in (("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand"), ("state", "4: ACTIVE")):
            (port / name).write_text(text + "\n")
    return tmp_path / "sys"


def test_the_facts_of_a_node_are_short_json_with_gpus_and_nics(sysfs: Path) -> None:
    facts = detect.node_facts({}, sysfs, None, nvml=H200, host="gpu-1")

    assert len(json.dumps(facts)) < 8000
    topology = detect.topology_of([facts])
    assert describe(topology.nodes[0]) == "8x H200 SXM, 18 NVLink4 each through NVSwitch (450 GB/s), 8x 400G InfiniBand"
    assert topology.nodes[0].host == "gpu-1"
    assert (topology.nodes[0].nccl or {})["driver"] == "580.82"


def test_a_node_without_nvml_and_without_sysfs_still_has_facts(tmp_path: Path) -> None:
    facts = detect.node_facts({}, tmp_path / "none", None, nvml=FakeNvml([], init=UNKNOWN), host="login")

    node = Node.from_json(facts)
    assert node.gpus is None
    assert any("no GPU is known here: NVML does not start" in text for text in node.warnings)
    assert any("neither class/infiniband nor class/net" in text for text in node.warnings)


def test_nccls_variables_count(sysfs: Path) -> None:
    facts = detect.node_facts({"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, sysfs, None, nvml=H200, host="gpu-1")

    assert sum(bool(nic.used) for nic in Node.from_json(facts).nics or ()) == 2


def test_slices_of_a_gpu_are_said(sysfs: Path) -> None:
    facts = detect.node_facts({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, sysfs, None, nvml=H200, host="gpu-1")

    assert any("CUDA_VISIBLE_DEVICES names MIG slices" in text for text in Node.from_json(facts).warnings)


def test_slurms_topology_gives_the_leaf_switch() -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": "s0.s3.gpu-1", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}

    assert detect.slurm_leaf(environ) == "s3"
    assert detect.slurm_leaf({"SLURM_TOPOLOGY_ADDR": "gpu-1", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}) is None
    assert detect.slurm_leaf({}) is None


def test_a_node_unlike_the_others_is_named_with_what_it_has() -> None:
    node = topology_of("8xH100-SXM", "8x400-IB", 1).nodes[0]
    nodes = [replace(node, host=f"gpu-{at}") for at in range(4)]
    nodes[2] = replace(nodes[2], nics=tuple(replace(nic, used=at != 3) for at, nic in enumerate(node.nics or ())))

    assert detect.topology_of(nodes).warnings == ("node gpu-2: 7 active NICs, the others 8",)


def test_nodes_without_a_majority_are_counted() -> None:
    nodes = [replace(topology_of(f"{count}xH100-SXM", None, 1).nodes[0], host=f"h{count}") for count in (8, 4)]

    assert any("nodes differ in GPUs: 1x 8, 1x 4" in text for text in detect.topology_of(nodes).warnings)


def test_a_message_of_something_else_is_refused() -> None:
    with pytest.raises(DataError):
        detect.topology_of([{"gpus": "many"}])


def test_a_machine_without_gpu_and_rdma_has_no_topology(tmp_path: Path) -> None:
    with pytest.raises(DetectError, match="no RDMA port"):
        detect.here({}, sysfs_root=tmp_path, nvml=FakeNvml([]), host="login")
