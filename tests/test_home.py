"""cli/home.py: the bare page."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nccl_bench.cli.commands import COMMANDS, available
from nccl_bench.cli.home import home, node_here, versions
from nccl_bench.fabric.topology import Gpu, Nic, Node

CPU_NODE = Node(host="login", gpus=(), nics=())
GPU_NODE = Node(
    host="gpu-017",
    gpus=tuple(Gpu(index=index, name="NVIDIA H100 80GB HBM3") for index in range(8)),
    nics=tuple(Nic(name=f"mlx5_{index}", rate_gbit=400.0, link_layer="InfiniBand", state="ACTIVE") for index in range(8)),
)


def page(node: Node, driver: Path = Path("/nowhere"), rows: tuple = COMMANDS) -> str:
    stream = io.StringIO()
    home(stream, rows, node, driver)
    return stream.getvalue()


@pytest.mark.parametrize("node", [CPU_NODE, GPU_NODE], ids=["cpu", "gpu"])
def test_the_page_says_what_is_here_and_what_can_be_asked(node: Node) -> None:
    text = page(node)

    assert text.startswith("nccl-bench ")
    assert f"  here     {node.host}: " in text
    for row in COMMANDS:
        assert row.example in text
    for question in ("How fast is it?", "How fast could it be?", "Is it healthy?", "What changed?", "Show it", "What does training pay?", "Slurm"):
        assert text.count(question) == 1
    assert max(map(len, text.splitlines())) <= 100


def test_gpus_and_nics_are_named() -> None:
    here = next(line for line in page(GPU_NODE).splitlines() if "here" in line)

    assert "8x H100 SXM" in here
    assert "8x 400G InfiniBand" in here


def test_a_node_without_a_gpu_is_told_what_it_can_do() -> None:
    assert "login: no GPU, " in page(CPU_NODE)
    assert "rehearsal on gloo" in page(CPU_NODE)


def test_a_driver_that_does_not_answer_is_news_and_no_driver_is_none(tmp_path: Path) -> None:
    driver = tmp_path / "version"
    driver.touch()
    broken = Node(host="gpu-003", gpus=None, warnings=("no GPU is known here: NVML does not start: Driver/library version mismatch",))

    assert "  note     no GPU is known here: NVML does not start" in page(broken, driver)
    assert "note" not in page(broken)


def test_the_page_offers_only_what_exists() -> None:
    for row in COMMANDS:
        assert (row.example in page(CPU_NODE, rows=available())) == (row in available())


def test_a_node_is_seen_without_nvml_and_without_sys(tmp_path: Path) -> None:
    node = node_here({}, sysfs_root=tmp_path, dev_root=None, host="bare")

    assert node.host == "bare"
    assert "bare: " in page(node)


def test_versions_are_one_line() -> None:
    assert "\n" not in versions()
