"""Runs as files for other programs."""

import csv
import io
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from nccl_tests_samples import Measured, log
from run_samples import point, write_run

from nccl_bench.records import Point
from nccl_bench.results.runs import open_runs
from nccl_bench.verdict.export import write_csv, write_jsonl, write_parquet
from nccl_bench.verdict.frame import COLUMNS


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("\n".join(log("all_reduce", [Measured(1 << 20, 50.0, 51.0)], 8)) + "\n")
    return open_runs([str(write_run(tmp_path / "a", [point(), point(8, root=0)])), str(path)])


def test_csv_has_a_row_a_point_and_whole_numbers_without_a_point(runs):
    stream = io.StringIO()
    n = write_csv(runs, stream)
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))

    assert (n, len(rows), tuple(rows[0])) == (4, 4, COLUMNS)
    assert [row["nbytes"] for row in rows] == ["1048576", "8", "1048576", "1048576"]
    assert [row["root"] for row in rows] == ["", "0", "", ""]
    assert [row["run"] for row in rows] == ["a", "a", "x", "x"]
    assert json.loads(rows[0]["series_us"]) == [100.0] * 6
    assert rows[2]["source"].endswith("x.log:18")


def test_json_lines_are_points_that_can_be_read_again(runs):
    stream = io.StringIO()
    write_jsonl(runs, stream)
    records = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert [record["run"] for record in records] == ["a", "a", "x", "x"]
    assert Point.from_json(records[0]) == point()


def without_pyarrow(*argv):
    """Run a command in a Python that has no pyarrow."""
    code = "import sys; sys.modules['pyarrow'] = None; from nccl_bench.cli.main import run; sys.exit(run(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *map(str, argv)], capture_output=True, text=True, check=False, timeout=120)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path):
    run = write_run(tmp_path / "a", [point(), point(8, root=0)])
    parquet = without_pyarrow("export", run, "--format", "parquet", "-O", tmp_path / "x.parquet")
    table = without_pyarrow("export", run, "--format", "csv")

    assert parquet.returncode == 2
    assert "nccl-bench[parquet]" in parquet.stderr
    assert len(table.stdout.splitlines()) == 3


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_holds_the_same_table(runs, tmp_path):
    import pandas as pd

    assert write_parquet(runs, tmp_path / "x.parquet") == 4
    assert list(pd.read_parquet(tmp_path / "x.parquet")["nbytes"]) == [1048576, 8, 1048576, 1048576]
