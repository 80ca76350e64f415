"""What a RUN argument means, in one place."""

import json

import pytest
from nccl_tests_samples import Measured, log
from run_samples import point, write_run

from nccl_bench.errors import DataError, WorldError
from nccl_bench.results.runs import open_run, open_runs, points_of, records

ROWS = [Measured(8 << k, 10.0 + k, 11.0 + k) for k in range(6)]


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "results" / "monday", [point(8 << k) for k in range(4)])


def test_a_directory_its_points_and_its_header_are_the_same_run(run):
    for text in (run, run / "points.jsonl", run / "run.json"):
        opened = open_run(str(text))
        assert (opened.label, opened.header.tool, len(points_of(opened)), opened.imported) == ("monday", "nccl-bench 0.1.0", 4, False)
        assert [line for line, _ in records(opened)] == [1, 2, 3, 4]


def test_latest_is_the_run_that_the_link_under_results_names(run, tmp_path):
    (tmp_path / "results" / "latest").symlink_to("monday")

    assert open_run("latest", tmp_path / "results").label == "monday"
    with pytest.raises(DataError, match="no run is the latest"):
        open_run("latest", tmp_path / "elsewhere")


def test_a_log_is_a_run_and_says_that_it_was_imported(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text("\n".join(log("all_reduce", ROWS, 8) + log("all_gather", ROWS, 8)) + "\n")

    assert (open_run(str(path)).label, open_run(str(path)).imported, len(open_run(str(path)).points)) == ("all_reduce", True, 24)
    assert {p.collective for p in open_run(f"{path}#2").points} == {"all_gather"}
    assert open_run(f"{path}#2").label == "all_reduce#2"


def test_points_without_a_header_are_read_with_a_warning(run, tmp_path):
    alone = tmp_path / "points.jsonl"
    alone.write_text((run / "points.jsonl").read_text())
    opened = open_run(str(alone))

    assert len(points_of(opened)) == 4
    assert "no run.json beside it" in opened.warnings[0]


def test_a_torn_last_line_is_a_warning_and_any_other_bad_line_an_error(run):
    points = run / "points.jsonl"
    whole = points.read_text()
    points.write_text(whole[:-30])
    warnings = []

    assert len(list(records(open_run(str(run)), warnings))) == 3
    assert f"{points}:4: the last line is torn" in warnings[0]
    points.write_text(whole.replace("\n", "\nnot json\n", 1))
    with pytest.raises(DataError, match=r"points\.jsonl:2"):
        list(records(open_run(str(run))))
    points.write_text("[1]\n")
    with pytest.raises(DataError, match=r"points\.jsonl:1: not a point of nccl-bench: no JSON object"):
        list(records(open_run(str(run))))


def test_what_is_no_run_is_an_error_that_says_why(tmp_path):
    (tmp_path / "empty").mkdir()
    failure = "h1: Test NCCL failure common.cu:392 'unhandled cuda error'"
    (tmp_path / "crashed.log").write_text("\n".join([*log("all_reduce", [], 2, summary=False), failure]))

    with pytest.raises(DataError, match=r"a directory without run\.json"):
        open_run(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="no such file"):
        open_run(str(tmp_path / "nowhere"))
    with pytest.raises(WorldError, match=r"common\.cu:392"):
        open_run(str(tmp_path / "crashed.log"))
    with pytest.raises(DataError, match="an empty name"):
        open_runs([","])


def test_several_runs_in_one_argument_get_labels_of_their_own(run, tmp_path):
    other = write_run(tmp_path / "other" / "monday", [point()])

    assert [opened.label for opened in open_runs([f"{run},{other}", str(run)])] == ["monday", "monday (2)", "monday (3)"]


def test_a_header_of_a_newer_schema_is_refused(run):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "schema": 999}))

    with pytest.raises(DataError, match=r"run\.json:1: schema version 999 is newer"):
        open_run(str(run))
