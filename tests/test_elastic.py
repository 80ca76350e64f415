"""torchrun's error file: torch itself reads it, and the verdict is what its table says last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccl_bench.launch.elastic import VARIABLE, tell_torchrun

LINES = ("rank 1 died in case 2 of 9", "died          rank 1 (h2): signal 9")


def told(path: Path, *, guilty: bool, now: float = 1000.0) -> Path:
    tell_torchrun({VARIABLE: str(path)}, 4, "rank 1 died (signal 9)", LINES, guilty=guilty, now=now)
    return path


def test_torch_shows_the_verdict_and_takes_the_guilty_rank_for_the_root_cause(tmp_path: Path) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    files = {rank: told(tmp_path / str(rank), guilty=rank == 1) for rank in range(3)}
    failures = {rank: errors.ProcessFailure(local_rank=rank, pid=9, exitcode=4, error_file=str(path)) for rank, path in files.items()}
    failed = errors.ChildFailedError("nccl-bench", failures)
    assert failed.get_first_failure()[0] == 1
    root_cause = str(failed).split("Root Cause")[1]
    assert "nccl-bench: exit 4: rank 1 died (signal 9)\n  rank 1 died in case 2 of 9\n" in root_cause


def test_nothing_is_written_without_torchrun_or_where_all_went_well(tmp_path: Path) -> None:
    tell_torchrun({}, 4, "why", LINES, guilty=False)
    tell_torchrun({VARIABLE: str(tmp_path / "file")}, 0, "", (), guilty=False)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    told(tmp_path / "no" / "such" / "folder", guilty=True)
    assert not list(tmp_path.iterdir())


def test_a_later_verdict_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = told(tmp_path / "file", guilty=False, now=5.0)
    tell_torchrun({VARIABLE: str(path)}, 7, "wrong data in 1 of 3 cases", (), guilty=True, now=9.0)
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "nccl-bench: exit 7: wrong data in 1 of 3 cases"
    assert message["extraInfo"]["timestamp"] == "8"
