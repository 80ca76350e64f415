"""Commands that one process does for all, where a launcher has started many; and terminals that show ASCII alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nccl_bench.cli.commands import available
from nccl_bench.cli.ranks import part_of
from nccl_bench.cli.streams import PLAIN, prepare_streams

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "h[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURMD_NODENAME": "h2"}


def torchrun(rank: int, local_rank: int) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 2}
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **{name: str(value) for name, value in place.items()}}


def step(rank: int, local_rank: int) -> dict[str, str]:
    place = {"SLURM_PROCID": rank, "SLURM_LOCALID": local_rank, "SLURM_NODEID": rank // 2, "SLURM_NTASKS": 4, "SLURM_STEP_NUM_TASKS": 4}
    return {**SLURM, **{name: str(value) for name, value in place.items()}}


@pytest.mark.parametrize("launched", [torchrun, step])
@pytest.mark.parametrize(
    "argv, parts",
    [
        (("explain", "busbw"), ["alone", "silent", "silent", "silent"]),
        (("report", "latest"), ["alone", "silent", "silent", "silent"]),
        (("--version",), ["alone", "silent", "silent", "silent"]),
        ((), ["alone", "silent", "silent", "silent"]),
        (("sweep", "--help"), ["alone", "silent", "silent", "silent"]),
        (("topo", "--json"), ["alone", "silent", "alone", "silent"]),
        (("sweep", "all_reduce"), ["together"] * 4),
        (("doctor",), ["together"] * 4),
        (("pairs",), ["together"] * 4),
        (("accept", "--dry-run"), ["together"] * 4),
        (("no-such-command",), ["together"] * 4),
    ],
)
def test_who_of_four_ranks_on_two_nodes_runs_a_command(launched, argv, parts) -> None:  # type: ignore[no-untyped-def]
    assert [part_of(argv, available(), launched(rank, rank % 2)) for rank in range(4)] == parts


def test_nobody_launched_or_badly_launched_a_command_runs() -> None:
    assert part_of(("explain",), available(), {}) == "alone"
    assert part_of(("explain",), available(), {"RANK": "3"}) == "alone", "contradictory variables are no matter of such a command"
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "h[1-2]"}
    assert part_of(("report", "latest"), available(), batch) == "alone"


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nccl_bench", *argv], env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60
    )


def test_ranks_print_a_page_once_and_an_error_once() -> None:
    pages = [run("explain", "busbw", **torchrun(rank, rank % 2)) for rank in range(2)]
    assert [page.returncode for page in pages] == [0, 0]
    assert pages[0].stdout.startswith("busbw: ")
    assert pages[1].stdout + pages[1].stderr == ""
    errors = [run("explain", "no-such-word", **torchrun(rank, rank % 2)) for rank in range(2)]
    assert errors[0].returncode == 2
    assert "no-such-word" in errors[0].stderr
    assert errors[1].stdout + errors[1].stderr == ""


def test_a_terminal_of_ascii_shows_what_is_nearest() -> None:
    prepare_streams()
    assert "5.9 µs ±3 % · 10 ≤ 20 … ✓ ⚡".encode("ascii", PLAIN) == b"5.9 us +-3 % - 10 <= 20 ... + ?"
    shown = run("ideal", "--gpus", "8xH100-SXM", "--nics", "none", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0
    assert " us" in shown.stdout
    assert "?" not in shown.stdout
