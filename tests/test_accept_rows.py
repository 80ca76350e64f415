"""Rows of an acceptance against earlier runs and known-good hosts, of late hosts, repeats, spares; each from values alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_criteria import EXPECTED, case, point

from nccl_bench.collectives import effective_nbytes
from nccl_bench.records import Point, RunHeader
from nccl_bench.results.runs import Run
from nccl_bench.verdict import baseline, lateness, reference
from nccl_bench.verdict.criteria import Criteria
from nccl_bench.verdict.evidence import LARGE_BOTH, SMALL_BOTH, Evidence, Exchanges
from nccl_bench.verdict.judge import drain, judge
from nccl_bench.verdict.junit import prometheus

THRESHOLD, SPREAD = Criteria().baseline, Criteria().spread


def run_of(label: str, points: list[Point]) -> Run:
    header = RunHeader(tool="nccl-bench", argv=(), started_at=None, launcher="none", backend="nccl", n_ranks=2, n_nodes=2)
    return Run(label=label, path=Path(label), header=header, points=tuple(points))


def steady(rate: float, **more: Any) -> Point:
    """A point whose six series agree within a part in a thousand."""
    one = point(rate, **more)
    us = one.time_us.median  # type: ignore[union-attr]
    return replace(one, series=6, series_us=tuple(us * (1 + 2e-4 * at) for at in range(6)), batches=60, ops_per_batch=1, over_ranks="max")


# ---- baseline


def test_slower_than_the_signed_run_fails_with_its_name_and_equal_passes():
    rows = baseline.rows([run_of("signed", [steady(400)])], run_of("now", [steady(340)]), ("cluster",), THRESHOLD)
    assert [(row.status, row.stage) for row in rows] == [("fail", "cluster")]
    assert rows[0].source.startswith("baseline signed")
    assert rows[0].required == pytest.approx(400 * 0.97, rel=1e-3)
    same = baseline.rows([run_of("signed", [steady(400)])], run_of("now", [steady(401)]), ("cluster",), THRESHOLD)
    assert [row.status for row in same] == ["pass"]


def test_several_signed_runs_pool_and_all_are_named():
    before = [run_of("one", [steady(400)]), run_of("two", [steady(404)])]
    rows = baseline.rows(before, run_of("now", [steady(330)]), ("cluster",), THRESHOLD)
    assert [row.status for row in rows] == ["fail"]
    assert "baseline one, two" in rows[0].source


def test_a_sweep_of_all_ranks_stands_against_the_cluster_stage():
    plain = replace(steady(400), stage=None, group=None)
    rows = baseline.rows([run_of("sweep", [plain])], run_of("now", [steady(300)]), ("cluster",), THRESHOLD)
    assert [row.status for row in rows] == ["fail"]


@pytest.mark.parametrize("which", ["not_nccl", "shared_gpu"])
def test_a_rehearsal_is_no_baseline_of_a_measurement(which):
    signed, now = run_of("signed", [steady(400)]), run_of("now", [steady(401)])
    rehearsal = replace(signed, header=replace(signed.header, **{which: True}))
    (row,) = baseline.rows([rehearsal], now, ("cluster",), THRESHOLD)
    assert row.status == "inconclusive"
    assert "signed" in row.reason


def test_what_cannot_be_compared_is_inconclusive_never_a_pass():
    other = replace(steady(400), clock="eager")
    rows = baseline.rows([run_of("signed", [other])], run_of("now", [steady(400)]), ("cluster",), THRESHOLD)
    assert {row.status for row in rows} == {"inconclusive"}
    lost = baseline.rows([run_of("signed", [steady(400), steady(300, stage="rails")])], run_of("now", [steady(400)]), ("rails", "cluster"), THRESHOLD)
    assert [(row.status, row.stage) for row in lost if row.status != "pass"] == [("inconclusive", "rails")]
    not_asked = baseline.rows([run_of("signed", [steady(400), steady(300, stage="rails")])], run_of("now", [steady(400)]), ("cluster",), THRESHOLD)
    assert [(row.status, row.stage) for row in not_asked if row.status != "pass"] == [("warn", "rails")]


# ---- known-good hosts

HOSTS = ("good1", "good2", "back")


def evidence(speed: float) -> Evidence:
    rows = [(0, 1, 0, 50.0, LARGE_BOTH), (0, 2, 0, speed, LARGE_BOTH), (1, 2, 0, speed, LARGE_BOTH), (0, 2, 0, 0.001, SMALL_BOTH)]
    return Evidence(hosts=HOSTS, exchanges=Exchanges.of(rows))


def rows_of(known: reference.Reference, found: Evidence | None, points: tuple[Point, ...] = (), backend: str = "nccl") -> list[Any]:
    return reference.rows(known, found, points, HOSTS, HOSTS, backend, SPREAD)


@pytest.mark.parametrize("speed, status", [(49.9, "pass"), (30.0, "fail"), (float("nan"), "fail")])
def test_a_repaired_host_is_held_against_the_pairs_of_known_good_ones(speed, status):
    rows = rows_of(reference.Reference(hosts=("good1", "good2"), source="--reference good[1-2]"), evidence(speed))
    assert [(row.status, row.hosts) for row in rows] == [(status, ("back",))]
    assert "good[1-2]" in rows[0].source


def test_one_known_good_host_alone_gives_no_level_but_a_recorded_run_does():
    alone = rows_of(reference.Reference(hosts=("good1",), source="x"), evidence(30.0))
    assert {row.status for row in alone} == {"inconclusive"}
    known = reference.Reference(hosts=("good1",), source="run r", backend="nccl", pairs={LARGE_BOTH: 50.0})
    rows = {row.hosts[0]: row.status for row in rows_of(known, evidence(30.0))}
    assert rows == {"good2": "pass", "back": "fail"}


def test_known_good_hosts_that_are_slower_than_then_are_said_and_another_backend_says_nothing():
    known = reference.Reference(hosts=("good1", "good2"), source="run r", backend="nccl", pairs={LARGE_BOTH: 80.0})
    assert ("warn", "known-good hosts reach what they did") in [(row.status, row.criterion) for row in rows_of(known, evidence(50.0))]
    assert [row.status for row in rows_of(known, evidence(80.0), backend="gloo")] == ["inconclusive"]
    everybody = reference.Reference(hosts=HOSTS, source="x")
    assert [row.status for row in rows_of(everybody, evidence(50.0))] == ["inconclusive"]


def test_each_nodes_own_collectives_are_held_against_those_of_good_ones():
    hosts = ("good1", "good1", "good2", "good2", "back", "back")
    points = tuple(point(rate, stage="node", ranks=ranks) for rate, ranks in ((450, (0, 1)), (452, (2, 3)), (300, (4, 5))))
    known = reference.Reference(hosts=("good1", "good2"), source="x")
    rows = reference.rows(known, None, points, hosts, HOSTS, "nccl", SPREAD)
    assert [(row.status, row.hosts) for row in rows if row.stage == "node"] == [("fail", ("back",))]


def test_a_collective_whose_largest_size_is_rounded_down_to_whole_parts_is_held_against_good_hosts_too():
    hosts = tuple(name for name in HOSTS for _ in range(6))
    points = []
    for at, rate in enumerate((450, 452, 300)):
        one = point(rate, stage="node", ranks=tuple(range(6 * at, 6 * at + 6)))
        points += [one, replace(one, collective="all_gather", nbytes=effective_nbytes("all_gather", one.nbytes, 6, 4))]
    assert points[1].nbytes < points[0].nbytes
    rows = reference.rows(reference.Reference(hosts=("good1", "good2"), source="x"), None, points, hosts, HOSTS, "nccl", SPREAD)
    assert {row.criterion.partition(" ")[0]: row.status for row in rows if row.stage == "node"} == {"all_reduce": "fail", "all_gather": "fail"}


def test_a_reference_is_kept_and_read_again():
    known = reference.Reference(hosts=("a",), source="run r", backend="nccl", pairs={0: 1.5}, nodes={("all_reduce", 8, 2): 3.0})
    assert reference.Reference.from_json(known.to_json()) == known


# ---- lateness


def late(us: dict[str, float]) -> Point:
    return replace(point(400), regime="isolated", lateness_us={"nodes": us, "worst": []})


def test_a_host_that_comes_late_in_most_series_is_said_and_alone_blames_nobody():
    points = [late({"a": 3.0, "b": 5.0, "c": 900.0, "d": 4.0}) for _ in range(6)]
    assert [(mark.host, mark.blames) for mark in lateness.marks(points)] == [("c", False)]
    assert [(row.status, row.hosts) for row in lateness.rows(points)] == [("warn", ("c",))]


def test_now_and_then_late_few_hosts_or_few_series_say_nothing():
    once = [late({"a": 3.0, "b": 5.0, "c": 900.0 if at == 0 else 4.0, "d": 4.0}) for at in range(6)]
    assert [row.status for row in lateness.rows(once)] == ["pass"]
    assert lateness.rows([late({"a": 1.0, "b": 900.0}) for _ in range(6)]) == []
    assert lateness.rows([late({"a": 3.0, "b": 5.0, "c": 900.0})]) == []


# ---- repeats, load, spares


def test_repeats_that_disagree_are_inconclusive_and_the_middle_one_counts():
    rates = (430, 300, 431)
    points = [replace(point(rate, stage="soak"), pass_=at) for at, rate in enumerate(rates)]
    verdict = judge(case(*points), Criteria(), lambda _: EXPECTED)
    rows = {row.criterion: row for row in verdict.rows}
    assert rows["all_reduce repeats agree"].status == "inconclusive"
    assert rows["all_reduce bandwidth"].measured == 430
    assert verdict.exit_code == 8
    agreed = judge(case(*[replace(one, busbw_GBps=430.0) for one in points]), Criteria(), lambda _: EXPECTED)
    assert agreed.exit_code == 0


def test_beside_a_load_bandwidth_is_not_held_against_what_an_idle_system_reaches():
    points = [replace(point(300, stage="soak"), variant="beside gemm"), point(430)]
    verdict = judge(case(*points), Criteria(), lambda _: EXPECTED)
    assert [(row.stage, row.status) for row in verdict.rows if row.criterion == "all_reduce bandwidth"] == [("cluster", "pass")]


LOST = ({"host": "h1", "stage": "pairs", "reason": "died"},)


def test_a_lost_host_fails_whether_a_spare_replaced_it_or_not_unless_enough_were_asked_for():
    base = {"excluded": LOST, "n_hosts": 2, "spares": ("h2",), "replaced": ({"host": "h1", "by": "h2", "stage": "pairs"},)}
    assert judge(case(point(430), **base), Criteria(), lambda _: EXPECTED).exit_code == 1
    enough = judge(case(point(430), **base, min_hosts=2), Criteria(), lambda _: EXPECTED)
    assert enough.exit_code == 0
    assert [row.status for row in enough.rows if row.criterion == "takes part"] == ["warn"]
    assert "spare h2 took its place" in next(row.reason for row in enough.rows if row.criterion == "takes part")
    assert drain(case().findings, enough.rows, LOST) == ["h1"]
    few = judge(case(point(430), excluded=LOST, n_hosts=2, min_hosts=2), Criteria(), lambda _: EXPECTED)
    assert few.exit_code == 1


def test_a_lost_spare_does_not_count_among_the_hosts_that_must_be_left():
    lost = ({"host": "h2", "stage": "node", "reason": "died"},)
    verdict = judge(case(point(430), excluded=lost, n_hosts=2, spares=("h2",), min_hosts=2), Criteria(), lambda _: EXPECTED)
    assert next(row.measured for row in verdict.rows if row.criterion == "enough hosts") == 2


def test_nothing_measured_is_no_pass():
    ok = {"id": "x", "status": "ok", "hosts": ["h0"], "measured": 1, "expected": 1, "why": "", "required": True, "device": None}
    assert judge(case(doctor=(ok,)), Criteria(), lambda _: EXPECTED).exit_code == 8


def test_a_prometheus_series_stands_once_and_of_several_worlds_the_slowest_counts():
    link = {"kind": "link", "host": "a", "gpu": None, "nic": None, "peer": "b", "serial": None, "chance": None, "evidence": []}
    row = {"stage": "scale", "status": "pass", "unit": "GB/s", "criterion": "all_reduce bandwidth", "hosts": []}
    rows = [{**row, "measured": 9.0}, {**row, "measured": 4.0}, {**row, "measured": 1.0, "criterion": "all_reduce 1 GiB against the baseline"}]
    suspects = [{**link, "score": 0.2}, {**link, "score": 0.5}, {**link, "peer": "c", "score": 0.1}]
    text = prometheus({"exit_code": 1, "rows": rows, "suspects": suspects})
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert 'peer="b"} 0.5' in text
    assert [line for line in text.splitlines() if line.startswith("nccl_bench_accept_busbw")] == [
        'nccl_bench_accept_busbw_bytes_per_second{stage="scale",case="all_reduce bandwidth",host=""} 4e+09'
    ]
