"""torch's flight recorder, on request: a file a rank that torch's own format reads, and one line that says where."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from ranks import on_ranks

pytest.importorskip("torch")

from nccl_bench.measure.flight import flight_record


@pytest.mark.parametrize("environ", [{}, {"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_FR_DUMP_TEMP_FILE": "somewhere"}])
def test_nobody_who_did_not_ask_gets_a_file(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert flight_record(environ) == []
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (line,) = flight_record({"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "no/such/r")})
    assert "could not be written" in line


def recorded(world: Any, prefix: str) -> list[str]:
    """On a rank: one call, then the record."""
    world.meet()
    return flight_record({"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": prefix, "RANK": str(world.rank)})


def test_each_rank_leaves_its_record_and_the_same_line_says_where(tmp_path: Path) -> None:
    prefix = str(tmp_path / "record_")
    said = on_ranks(2, recorded, prefix)
    assert said == [[f"torch's flight recorder: {prefix}RANK on each host"]] * 2
    for rank in range(2):
        record = pickle.loads(Path(f"{prefix}{rank}").read_bytes())
        assert "gloo:all_reduce" in {entry["profiling_name"] for entry in record["entries"]}
