"""cli/home.py: the bare page."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from nccl_tests_samples import Measured, log
from run_samples import point, write_run

from nccl_bench.cli.commands import COMMANDS, Command, available
from nccl_bench.cli.home import home, node_here, versions
from nccl_bench.fabric.spec import topology_of
from nccl_bench.fabric.topology import Gpu, Node

CPU_NODE = Node(host="login", gpus=(), nics=())
GPU_NODE = replace(topology_of("8xH100-SXM", "8x400-IB", 1).nodes[0], host="gpu-017")


def page(node: Node, driver: Path = Path("/nowhere"), rows: tuple = COMMANDS) -> str:
    stream = io.StringIO()
    home(stream, rows, node, driver, environ={})
    return stream.getvalue()


@pytest.mark.parametrize("node", [CPU_NODE, GPU_NODE], ids=["cpu", "gpu"])
def test_the_page_says_what_is_here_and_what_can_be_asked(node: Node) -> None:
    text = page(node)

    assert text.startswith("nccl-bench ")
    assert f"  here     {node.host}: " in text
    for row in COMMANDS:
        assert all(line in text for line in row.example.splitlines())
    for question in ("How fast is it?", "How fast could it be?", "Is it healthy?", "What changed?", "Show it", "What does training pay?", "Slurm"):
        assert text.count(question) == 1
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_what_the_page_says_to_type_runs(row: Command, tmp_path: Path) -> None:
    """As it stands; what measures is asked for its plan alone."""
    for name in ("last-week", "results/now"):
        write_run(tmp_path / name, [point()])
    (tmp_path / "results/latest").symlink_to("now")
    (tmp_path / "all_reduce.log").write_text("\n".join(log("all_reduce", [Measured(1 << 20, 100.0, 100.0)], 8, first=1 << 20)) + "\n")
    dry = {"sweep": " --dry-run", "accept": " --dry-run", "pairs": " --help"}.get(row.name, "")
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", re.split(" {3,}", row.example)[0] + dry], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
    )

    here = {"doctor": (0, 1, 8), "topo": (0, 6)}
    assert done.returncode in here.get(row.name, (0,)), done.stderr


def test_gpus_and_nics_are_named() -> None:
    here = next(line for line in page(GPU_NODE).splitlines() if "here" in line)

    assert "8x H100 SXM" in here
    assert "8x 400G InfiniBand" in here


def test_what_to_expect_is_told_with_its_limit() -> None:
    """8x H100 with NVLS reach 473-487 GB/s, sixteen nodes with 8x 400G NICs stay below the 400 GB/s of a node's NICs."""
    text = " ".join(page(GPU_NODE).split())
    pattern = r"expect all_reduce: this node ~([\d.]+) GB/s \(NVLS\) · 16 such nodes ~([\d.]+) GB/s \(node's 8x 400G InfiniBand\)"
    match = re.search(pattern, text)

    assert match is not None
    assert 473 <= float(match[1]) <= 487
    assert 350 <= float(match[2]) <= 400


def test_without_a_network_only_this_node_is_told() -> None:
    text = page(replace(GPU_NODE, nics=()))

    assert "this node" in text
    assert "such nodes" not in text


def test_unknown_hardware_is_said_and_nothing_is_guessed() -> None:
    text = page(Node(host="h", gpus=(Gpu(index=0, name="NVIDIA Z9000"), Gpu(index=1, name="NVIDIA Z9000")), nics=()))

    assert "  expect   not known: " in text
    assert "GB/s" not in text


def test_nothing_is_expected_of_a_node_without_gpus() -> None:
    assert "expect" not in page(CPU_NODE)


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
        assert (row.example.splitlines()[0] in page(CPU_NODE, rows=available())) == (row in available())


def test_a_node_is_seen_without_nvml_and_without_sys(tmp_path: Path) -> None:
    node = node_here({}, sysfs_root=tmp_path, dev_root=None, host="bare")

    assert node.host == "bare"
    assert "bare: " in page(node)


def test_versions_are_one_line() -> None:
    assert "\n" not in versions()
