"""Topology of the machine itself: NVML against the driver's own tools and NCCL's dump."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_bench.fabric import detect, nccl_log, smi
from nccl_bench.fabric import nvml as nvml_reader
from nccl_bench.fabric.files import topology_from
from nccl_bench.fabric.ideal import ceilings
from nccl_bench.fabric.topology import Node, describe

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def node() -> Node:
    return detect.node_here(dict(os.environ))


def smi_text(*argv: str) -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        pytest.skip("no nvidia-smi here")
    return subprocess.run([tool, *argv], capture_output=True, text=True, timeout=60, check=True).stdout


def test_nvml_names_every_gpu_of_a_model_that_the_table_knows(node: Node) -> None:
    import torch

    assert node.gpus is not None
    assert len(node.gpus) >= torch.cuda.device_count()
    for gpu in node.gpus:
        assert gpu.model is not None, gpu.name
        assert gpu.cc == gpu.model.cc
        assert gpu.bus_id is not None
        assert gpu.pcie is not None
    assert describe(node)


def test_links_are_those_of_nvidia_smi(node: Node) -> None:
    status = smi.parse_link_status(smi_text("nvlink", "-s"))
    assert node.gpus is not None

    for gpu in node.gpus:
        told = next((other.nvlink for other in status.gpus or () if other.index == gpu.index), None)
        assert gpu.nvlink is not None
        assert gpu.nvlink.links == (0 if told is None else told.links)
        if told is not None and told.per_direction_GBps:
            assert gpu.nvlink.per_direction_GBps == pytest.approx(told.per_direction_GBps, rel=0.02)


def test_the_matrix_of_nvidia_smi_agrees(node: Node) -> None:
    matrix = smi.parse_matrix(smi_text("topo", "-m"))
    assert node.gpus is not None

    assert len(matrix.gpus or ()) == len(node.gpus)
    if len(node.gpus) > 1:
        for gpu in matrix.gpus or ():
            other = node.gpu(gpu.index)
            assert other is not None
            assert other.nvlink is not None
            assert bool(gpu.nvlink and gpu.nvlink.bonds) == bool(other.nvlink.links)


def test_the_dump_of_nccl_agrees_with_nvml(node: Node, tmp_path: Path) -> None:
    """One rank a GPU that NCCL may use, in one process each; the dump must have the links that NVML counts."""
    import torch

    n = min(2, torch.cuda.device_count())
    code = (
        "import os, torch, torch.distributed as dist\n"
        "rank = int(os.environ['RANK']); torch.cuda.set_device(rank)\n"
        "dist.init_process_group('nccl', device_id=torch.device('cuda', rank))\n"
        "dist.all_reduce(torch.ones(1 << 20, device='cuda')); torch.cuda.synchronize(); dist.destroy_process_group()\n"
    )
    environ = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23457", "WORLD_SIZE": str(n), "NCCL_TOPO_DUMP_FILE": str(tmp_path / "topo.xml"),
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING,NET,GRAPH", "NCCL_DEBUG_FILE": str(tmp_path / "nccl.%p.log"), "NCCL_NVLS_ENABLE": "0",
    }  # fmt: skip
    ranks = [subprocess.Popen([sys.executable, "-c", code], env={**environ, "RANK": str(rank)}) for rank in range(n)]
    assert [rank.wait(180) for rank in ranks] == [0] * n

    dumped = topology_from([tmp_path / "topo.xml"], {}).nodes[0]
    for gpu in dumped.gpus or ():
        ours = next(other for other in node.gpus or () if other.bus_id == gpu.bus_id)
        assert gpu.nvlink is not None
        assert ours.nvlink is not None
        assert gpu.nvlink.links == ours.nvlink.links
        assert gpu.nvlink.per_direction_GBps == pytest.approx(ours.nvlink.per_direction_GBps or 0, rel=0.02)
    text = "".join(path.read_text() for path in sorted(tmp_path.glob("nccl.*.log")))
    found = nccl_log.network(text)
    assert found.version is not None
    assert re.match(r"\d+\.\d+", found.version)
    if n > 1:
        assert ("all_reduce", 4 << 20) in nccl_log.algorithms(text)


def test_this_machine_has_ceilings(node: Node) -> None:
    topology = detect.here(dict(os.environ))

    found = ceilings(topology, None, {})

    assert found.n_ranks == len(node.gpus or ())
    if found.n_ranks > 1:
        assert found.of("all_reduce").attainable_GBps > 0


def test_nvml_is_shut_down_and_can_be_read_twice() -> None:
    assert nvml_reader.read().node == nvml_reader.read().node
