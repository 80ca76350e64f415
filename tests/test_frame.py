"""Points of many runs as one table."""

import json
import math

import pytest
from nccl_tests_samples import Measured, log
from run_samples import point, write_run

from nccl_bench.errors import DataError
from nccl_bench.records import Pair, Point
from nccl_bench.results.runs import open_run, open_runs
from nccl_bench.verdict.frame import COLUMNS, NESTED_NUMBERS, NESTED_OTHERS, NUMBERS, OBJECTS, TEXT, frame_of


def test_every_field_of_a_point_has_a_column():
    nested = {"time_us", "group", "pair"}
    fields = set(point().to_json()) - nested

    assert fields == {*TEXT, *NUMBERS, *OBJECTS}
    for name in nested:
        whole = point(pair=Pair(level="node", round=0, src=0, dst=1, both=True)).to_json()[name]
        assert set(whole) == {*NESTED_NUMBERS[name], *NESTED_OTHERS.get(name, {})}
    assert len(COLUMNS) == len(set(COLUMNS))


def test_a_row_holds_what_its_point_holds(tmp_path):
    whole = point(4096, 12.5, n_ranks=4, algorithm="nvls", pass_=3, pair=Pair(level="gpu", round=2, src=1, dst=3, both=False), throttle=("hw",))
    frame = frame_of([open_run(str(write_run(tmp_path / "a", [whole])))])
    row = frame.iloc[0]

    assert (row["run"], row["nbytes"], row["pass"], row["n_ranks"], row["algorithm"]) == ("a", 4096, 3, 4, "nvls")
    assert (row["median_us"], row["ci_low_us"], row["series_us"]) == (12.5, whole.time_us.ci_low, list(whole.series_us))
    assert (row["pair_src"], row["pair_dst"], row["pair_both"], row["group_size"], row["throttle"]) == (1, 3, False, 4, ["hw"])
    assert math.isnan(row["p99_us"])
    assert row["root"] is None or math.isnan(row["root"])


def test_runs_of_every_kind_stand_in_one_table(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("\n".join(log("all_reduce", [Measured(1 << 20, 50.0, 51.0)], 8)) + "\n")
    frame = frame_of(open_runs([str(write_run(tmp_path / "a", [point(), point(8)])), str(path), str(write_run(tmp_path / "none", []))]))

    assert list(frame["run"]) == ["a", "a", "x", "x"]
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame["over_ranks"]) == ["max", "max", "mean (assumed)", "mean (assumed)"]
    assert str(frame["collective"].dtype) == "category"


def test_no_points_are_an_empty_table_with_all_columns(tmp_path):
    assert frame_of([open_run(str(write_run(tmp_path / "none", [])))]).shape == (0, len(COLUMNS))
    assert frame_of([]).shape[0] == 0


def test_points_of_an_older_kind_without_some_keys_are_read(tmp_path):
    run = write_run(tmp_path / "a", [point(), point()])
    lines = [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]
    del lines[1]["lateness_us"], lines[1]["time_us"]["p99"], lines[1]["group"]["slowest"]
    (run / "points.jsonl").write_text("".join(json.dumps({**line, "from_the_future": 1}) + "\n" for line in lines))

    assert len(frame_of([open_run(str(run))])) == 2


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("nbytes", "8", "nbytes is '8'"),
        ("nbytes", None, "no nbytes"),
        ("collective", None, "no collective"),
        ("clock", 3, "clock is '3'"),
        ("time_us", [1], "time_us is '[1]'"),
        ("n_ranks", True, "n_ranks is 'True'"),
    ],
)
def test_a_value_of_another_type_is_an_error_with_its_line(tmp_path, key, value, words):
    run = write_run(tmp_path / "a", [point(), point()])
    lines = [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]
    lines[1][key] = value
    (run / "points.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    with pytest.raises(DataError) as caught:
        frame_of([open_run(str(run))])
    assert f"{run}/points.jsonl:2: not a point of nccl-bench: " in caught.value.why
    assert words in caught.value.why


def test_many_points_become_a_table_without_points_as_objects(tmp_path, monkeypatch):
    run = write_run(tmp_path / "a", [point()])
    line = (run / "points.jsonl").read_text()
    (run / "points.jsonl").write_text(line * 9001)
    monkeypatch.setattr(Point, "from_json", None)

    assert len(frame_of([open_run(str(run))])) == 9001
