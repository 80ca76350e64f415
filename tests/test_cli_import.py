"""The commands import, compare and export, from argv to exit code."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from field_cases import FILES, needs_cases
from nccl_tests_samples import Measured, log
from run_samples import SIZES, point, truth, write_run

from nccl_bench.cli.import_ import MOST_RUNS
from nccl_bench.cli.main import run
from nccl_bench.results.store import read_run

ROWS = [Measured(1 << k, 10 + (1 << k) / 3e5, 11 + (1 << k) / 3e5) for k in range(20, 30)]


@pytest.fixture(autouse=True)
def in_its_own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text("\n".join(log("all_reduce", ROWS, 8, first=1 << 20)) + "\n")
    return str(path)


@pytest.fixture
def crashed(tmp_path):
    path = tmp_path / "crashed.log"
    failure = "h1: Test NCCL failure common.cu:392 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
    path.write_text("\n".join([*log("all_gather", [], 2, summary=False), failure]) + "\n")
    return str(path)


def test_import_writes_a_run_that_reads_back(good, tmp_path, capsys):
    assert run(["import", good, "-O", str(tmp_path / "r")]) == 0
    header, points, warnings = read_run(tmp_path / "r")

    assert (header.tool, header.n_ranks, header.exit_code, len(points), warnings) == ("nccl-tests 2.19.6", 8, 0, 20, [])
    assert "20 points in" in capsys.readouterr().out
    assert run(["import", good, "-O", str(tmp_path / "r")]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_log_of_very_many_runs_is_told_in_two_pages(tmp_path, capsys):
    runs = 100
    path = tmp_path / "all_reduce.log"
    path.write_text(("\n".join(log("all_reduce", ROWS[:2], 8, first=1 << 20, last=1 << 24)) + "\n") * runs)
    assert run(["import", str(path), "-O", str(tmp_path / "r")]) == 0
    said = capsys.readouterr()

    header, points, _ = read_run(tmp_path / "r")
    assert (len(header.spec["imported"][0]["runs"]), len(points)) == (runs, 4 * runs)
    assert len(header.warnings) >= runs  # each run lacks sizes, and the run says so of each
    assert f"... and {runs - MOST_RUNS} more runs of" in said.out
    assert max(len(said.out.splitlines()), len(said.err.splitlines())) < 60


def test_import_without_a_directory_makes_one_under_results_and_latest_names_it(good, tmp_path, capsys):
    assert run(["import", good]) == 0
    assert len(list((tmp_path / "results").iterdir())) == 2
    capsys.readouterr()
    assert run(["export", "latest", "--format", "csv"]) == 0

    assert len(capsys.readouterr().out.splitlines()) == 21
    assert read_run(tmp_path / "results" / "latest")[0].spec["imported"][0]["kind"] == "nccl-tests"


def test_import_json_is_one_document_and_writes_nothing_unasked(good, tmp_path, capsys):
    assert run(["import", good, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert set(document) == {"points", "header", "hangs", "warnings"}
    assert len(document["points"]) == 20
    assert not (tmp_path / "results").exists()
    first = document["points"][0]
    assert (first["over_ranks"], first["source"], first["n_wrong"], first["root"]) == ("mean (assumed)", f"{good}:18", 0, None)


def test_a_failed_run_ends_4_and_quotes_its_line(crashed, capsys):
    assert run(["import", crashed]) == 4
    shown = capsys.readouterr()

    assert "common.cu:392" in shown.err
    assert f"nccl-bench: exit 4: {crashed}:" in shown.err.splitlines()[-1]
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert run(["import", crashed, "--json", "-O", "r"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert (document["points"], document["hangs"]) == ([], [])
    assert "common.cu:392" in document["header"]["why"]
    assert not Path("r").exists()


def test_in_a_batch_the_failed_are_recorded_and_the_rest_goes_on(good, crashed, tmp_path, capsys):
    assert run(["import", good, crashed, "-O", str(tmp_path / "r")]) == 4
    header, points, _ = read_run(tmp_path / "r")

    assert len(points) == 20
    assert "common.cu:392" in header.spec["imported"][1]["failed"]
    assert "1 of 2 files" in capsys.readouterr().err


def test_what_is_no_log_ends_5(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("remember the milk\n")

    assert run(["import", str(tmp_path / "notes.txt")]) == 5
    assert run(["import", str(tmp_path / "nowhere.log")]) == 5
    assert run(["import", str(tmp_path)]) == 5
    assert "Traceback" not in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_ends_2(good, tmp_path):
    (tmp_path / "file").write_text("")

    assert run(["import", good, "-O", str(tmp_path / "file" / "run")]) == 2


@needs_cases
def test_watchdog_text_prints_the_hang_and_ends_4(tmp_path, capsys):
    path = str(FILES / "err_w02_watchdog_mismatched_ops.txt")

    assert run(["import", path, "--json", "-O", str(tmp_path / "hang")]) == 4
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["points"] == []
    assert document["hangs"][0]["situation"] == "program"
    assert "ranks disagree on collective #80078" in shown.err
    assert read_run(tmp_path / "hang")[0].hang["situation"] == "program"
    assert run(["import", path]) == 4
    assert "rank 7 BROADCAST, rank 3 ALLREDUCE" in capsys.readouterr().out


@needs_cases
def test_secrets_of_a_foreign_environment_reach_no_output(tmp_path, capsys):
    path = str(FILES / "derived_J_gh200_8ranks.json")

    assert run(["import", path, "-O", str(tmp_path / "r")]) == 0
    assert run(["import", path, "--json"]) == 0
    for format in ("csv", "jsonl", "nccl-tests"):
        assert run(["export", str(tmp_path / "r"), "--format", format]) == 0
    shown = capsys.readouterr()
    written = "".join(file.read_text() for file in (tmp_path / "r").iterdir())
    for secret in ("EXAMPLE-not-a-real-secret", "hf_EXAMPLE", "/home/user"):
        assert secret not in shown.out + shown.err + written


def test_compare_ends_1_on_a_regression_and_writes_its_page(tmp_path, capsys):
    base, new = (write_run(tmp_path / name, [point(n, truth(n) * scale) for n in SIZES]) for name, scale in (("b", 1.0), ("n", 1.1)))

    page = tmp_path / "c.html"
    assert run(["compare", str(base), str(new), "--html", str(page)]) == 1
    shown = capsys.readouterr()
    assert "all_reduce 8 B-1 GiB is 9 % slower" in shown.out
    assert shown.err.splitlines()[-1] == "nccl-bench: exit 1: 28 of 28 comparable cases are slower"
    assert page.read_text().startswith("<!doctype html>")
    assert run(["compare", str(new), str(base)]) == 0


def test_compare_json_is_one_document(tmp_path, capsys):
    base = write_run(tmp_path / "b", [point()])

    assert run(["compare", str(base), str(base), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["cases"][0]["verdict"], document["cases"][0]["change_frac"]) == (0, "within noise", 0.0)


def test_compare_ends_8_where_nothing_is_comparable_and_5_where_nothing_is_read(good, tmp_path):
    base = write_run(tmp_path / "b", [point(n_ranks=16)])

    assert run(["compare", str(base), good]) == 8
    assert run(["compare", str(base), str(tmp_path / "nowhere")]) == 5
    assert run(["compare", str(base), str(base), "--threshold", "3"]) == 2


@pytest.mark.parametrize("format, ending", [("csv", "csv"), ("jsonl", "jsonl"), ("nccl-tests", "log"), ("parquet", "parquet")])
def test_export_writes_a_file_or_to_stdout(good, tmp_path, capsys, format, ending):
    if format == "parquet":
        pytest.importorskip("pyarrow")
        assert run(["export", good, "--format", format]) == 2
    else:
        assert run(["export", good, "--format", format]) == 0
        assert "1048576" in capsys.readouterr().out
    (tmp_path / "out").mkdir()
    assert run(["export", good, "--format", format, "-O", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / f"all_reduce.{ending}").stat().st_size > 500


def test_a_log_that_cannot_hold_all_points_says_how_many_it_leaves_out(tmp_path, capsys):
    points = [point(n, truth(n)) for n in SIZES[10:]]
    others = [replace(point(n, truth(n)), clock="eager") for n in SIZES[10:]]
    run_path = write_run(tmp_path / "r", [*points, *others])

    assert run(["export", str(run_path), "--format", "nccl-tests", "-O", str(tmp_path / "ours.log")]) == 0
    said = capsys.readouterr().err
    assert f"{len(points)} points in" in said
    assert f"{len(others)} points left out" in said


def test_an_exported_log_is_imported_again_with_its_numbers(tmp_path, capsys):
    points = [point(n, truth(n)) for n in SIZES[10:]]
    run_path = write_run(tmp_path / "r", points)

    assert run(["export", str(run_path), "--format", "nccl-tests", "-O", str(tmp_path / "ours.log")]) == 0
    assert run(["import", str(tmp_path / "ours.log"), "-O", str(tmp_path / "again")]) == 0
    again = read_run(tmp_path / "again")[1]
    assert [(p.nbytes, p.placement, p.clock, p.over_ranks) for p in again] == [(p.nbytes, "in", "graph", "max") for p in points]
    assert [p.time_us.median for p in again] == pytest.approx([p.time_us.median for p in points], rel=1e-3)
