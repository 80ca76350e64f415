"""What a finished stage must have left: a run without its data is open, never accepted."""

import pytest

from nccl_bench.errors import DataError
from nccl_bench.flows.accept_complete import check_facts, missing
from nccl_bench.flows.judged import _rounds
from nccl_bench.records import Group, Point, Times

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
HOSTS = ("h0", "h0", "h1", "h1")


def point(stage, name, nbytes, ranks, **more):
    times = Times(median=1.0, mean=1.0, min=1.0, max=1.0)
    return Point(collective=name, dtype="float32", op="sum", root=None, nbytes=nbytes, requested_nbytes=nbytes, count=1, n_ranks=len(ranks),
                 placement="in", clock="host", regime="streaming", stage=stage, group=Group(axis=stage, size=len(ranks), slowest=ranks),
                 time_us=times, **more)  # fmt: skip


def facts(**changes):
    base = {"doctor": [{"id": "x"}], "stages": ["doctor", "node", "cluster"], "finished": {"doctor": 1, "node": 1, "cluster": 1}, "not_run": [],
            "broken": [], "excluded": [], "hosts": ["h0", "h1"]}  # fmt: skip
    return {**base, **changes}


def whole():
    node = [point("node", name, size, ranks) for name in NAMES for size in (8, 1024) for ranks in ((0, 1), (2, 3))]
    return node + [point("cluster", name, size, (0, 1, 2, 3)) for name in NAMES for size in (8, 1024)]


def said(points, given=None, *, pairs_ran=True):
    return [(row.stage, row.criterion, row.status) for row in missing(given or facts(), points, HOSTS, pairs_ran=pairs_ran)]


def test_a_whole_run_lacks_nothing():
    assert said(whole()) == []


@pytest.mark.parametrize(
    ("gone", "row"),
    [
        (lambda p: p.collective == "all_to_all" and p.stage == "cluster", ("cluster", "all_to_all recorded", "inconclusive")),
        (lambda p: p.collective == "all_gather" and p.stage == "node" and p.nbytes == 1024, ("node", "all_gather recorded", "inconclusive")),
        (lambda p: p.collective == "all_reduce" and p.group.slowest == (2, 3), ("node", "all_reduce recorded", "inconclusive")),
    ],
)
def test_points_that_are_not_there_are_open(gone, row):
    assert said([p for p in whole() if not gone(p)]) == [row]


def test_a_host_that_was_excluded_owes_no_point_and_a_stage_that_was_left_out_none_either():
    kept = [p for p in whole() if p.group.slowest != (2, 3)]
    assert said(kept, facts(excluded=[{"host": "h1", "stage": "node", "reason": "silent"}])) == []
    node = [p for p in whole() if p.stage == "node"]
    assert said(node, facts(not_run=[{"stage": "cluster", "reason": "one host"}])) == []
    assert said(node, facts(finished={"doctor": 1, "node": 1})) == []


def test_doctor_without_checks_and_pairs_without_rounds_are_open():
    assert said(whole(), facts(doctor=[])) == [("doctor", "checks recorded", "inconclusive")]
    given = facts(stages=["pairs"], finished={"pairs": 1})
    assert said([], given, pairs_ran=False) == [("pairs", "pairs recorded", "inconclusive")]
    assert said([], given) == []


def test_facts_without_a_key_are_refused_with_the_files_name():
    with pytest.raises(DataError, match=r"run/accept.json:1: 'counters'"):
        check_facts(facts(), "run/accept.json")


def test_a_torn_last_round_counts_for_nothing_and_another_broken_line_is_refused(tmp_path):
    (tmp_path / "pairs-seats.jsonl").write_text('{"members": [0, 1], "n_records": 2, "ok": true, "world": 1}\n')
    (tmp_path / "pairs.jsonl").write_text('{"world": 1}\n{"wor')
    assert _rounds(tmp_path, {}) == ([], [])
    (tmp_path / "pairs.jsonl").write_text('{"world": 1}\n{"world": 1}\n')
    assert len(_rounds(tmp_path, {})[0]) == 2
    (tmp_path / "pairs.jsonl").write_text('{"world": 1}\n3\n')
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: not a record of an acceptance"):
        _rounds(tmp_path, {})
