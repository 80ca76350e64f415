"""cli/home.py: the bare page."""

from __future__ import annotations

import io
from pathlib import Path

from nccl_bench.cli.commands import COMMANDS, available
from nccl_bench.cli.home import home, nic_rates, versions


def port(root: Path, device: str, rate: str, layer: str, state: str) -> None:
    folder = root / device / "ports" / "1"
    folder.mkdir(parents=True)
    for name, text in (("rate", rate), ("link_layer", layer), ("state", state)):
        (folder / name).write_text(text + "\n")


def test_the_page_says_what_is_here_and_what_can_be_asked() -> None:
    stream = io.StringIO()
    home(stream, COMMANDS, host="gpu-017")
    text = stream.getvalue()

    assert text.startswith("nccl-bench ")
    assert "  here     gpu-017: " in text
    for row in COMMANDS:
        assert row.example in text
    for question in ("How fast is it?", "How fast could it be?", "Is it healthy?", "What changed?", "Show it", "What does training pay?", "Slurm"):
        assert text.count(question) == 1
    assert max(map(len, text.splitlines())) <= 100


def test_the_page_offers_only_what_exists() -> None:
    stream = io.StringIO()
    home(stream, available())

    for row in COMMANDS:
        assert (row.example in stream.getvalue()) == (row in available())


def test_active_ports_are_counted_with_their_rate(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", "400 Gb/sec (4X NDR)", "InfiniBand", "4: ACTIVE")
    port(tmp_path, "mlx5_1", "400 Gb/sec (4X NDR)", "InfiniBand", "1: DOWN")
    port(tmp_path, "mlx5_2", "100 Gb/sec (4X EDR)", "Ethernet", "4: ACTIVE")

    assert nic_rates(tmp_path) == ["400G InfiniBand", "100G Ethernet"]


def test_a_host_without_rdma_devices_has_none(tmp_path: Path) -> None:
    assert nic_rates(tmp_path / "absent") == []


def test_versions_are_one_line() -> None:
    assert "\n" not in versions()
