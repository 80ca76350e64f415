"""What an acceptance measures because its criteria judge it: sizes of ranges, collectives of requirements, and what of it is estimated and said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_accept_complete import facts, said, whole
from test_criteria import EXPECTED, GIB, case, point, status

from nccl_bench.cli.accept_options import with_criteria
from nccl_bench.collectives import COLLECTIVES, effective_nbytes
from nccl_bench.errors import UsageError
from nccl_bench.flows.accept_cases import MOST_NBYTES, added, each, lines, n_cases, not_measured
from nccl_bench.flows.accept_plan import estimate
from nccl_bench.flows.accept_spec import DEFAULT_STAGES, STAGES, AcceptSpec, collectives_of
from nccl_bench.measure.cases import WorldFacts, expand
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Ceiling, Times
from nccl_bench.verdict.criteria import Criteria, parse, read
from nccl_bench.verdict.judge import judge

MIB = 1 << 20
RANGE = {"collective": "all_reduce", "from": "64M", "to": "512M", "share": 0.8}


def of(stages: Any = DEFAULT_STAGES, load: str | None = None, **record: Any) -> dict[str, dict[str, list[int | None]]]:
    found: dict[str, dict[str, list[int | None]]] = {}
    for stage, name, nbytes in added(parse(record, "c.toml"), stages, load):
        found.setdefault(stage, {}).setdefault(name, []).append(nbytes)
    return found


def test_without_ranges_or_requirements_nothing_is_added():
    assert added(Criteria(), STAGES) == ()
    assert of(require=[{"collective": "all_reduce", "min_busbw_GBps": 1}], bandwidth={"shares": {"all_to_all": 0.9, "sendrecv": 0.9}}) == {}


def test_a_range_is_measured_at_both_ends_in_every_stage_that_judges_its_collective():
    both = {"all_reduce": [64 * MIB, 512 * MIB]}
    assert of(bandwidth={"ranges": [RANGE]}) == dict.fromkeys(("node", "rails", "scale", "cluster"), both)
    assert of(("node", "soak"), bandwidth={"ranges": [RANGE]}) == {"node": both, "soak": both}
    assert of(("node", "soak"), "gemm", bandwidth={"ranges": [RANGE]}) == {"node": both}, "beside a load nothing is held against what is expected"
    gather = of(bandwidth={"ranges": [{**RANGE, "collective": "all_gather"}]})
    assert set(gather) == {"node", "scale", "cluster"}, "a rail has no all-gather"
    assert of(("doctor", "pairs"), bandwidth={"ranges": [RANGE]}) == {}


def test_a_range_without_a_sensible_end_is_measured_up_to_8_gib_and_one_size_once():
    assert of(("node",), bandwidth={"ranges": [{**RANGE, "to": "1T"}]}) == {"node": {"all_reduce": [64 * MIB, MOST_NBYTES]}}
    assert of(("node",), bandwidth={"ranges": [{**RANGE, "from": "16G", "to": "1T"}]}) == {"node": {"all_reduce": [16 * GIB]}}
    assert of(("node",), bandwidth={"ranges": [{**RANGE, "to": "64M"}]}) == {"node": {"all_reduce": [64 * MIB]}}


def test_a_collective_that_no_stage_measures_is_added_where_it_is_asked_for():
    assert of(require=[{"stage": "rails", "collective": "all_gather", "min_busbw_GBps": 1}]) == {"rails": {"all_gather": [None]}}
    assert of(("node",), require=[{"stage": "rails", "collective": "all_gather", "min_busbw_GBps": 1}]) == {}
    assert of(bandwidth={"shares": {"broadcast": 0.9}}) == {"node": {"broadcast": [None]}, "cluster": {"broadcast": [None]}}
    assert of(("rails",), bandwidth={"shares": {"broadcast": 0.9}}) == {"rails": {"broadcast": [None]}}
    ranged = of(bandwidth={"ranges": [{**RANGE, "collective": "reduce"}]})
    assert ranged == {"node": {"reduce": [64 * MIB, 512 * MIB]}, "cluster": {"reduce": [64 * MIB, 512 * MIB]}}
    there = of(require=[{"stage": "scale", "collective": "reduce", "min_busbw_GBps": 1}], bandwidth={"shares": {"reduce": 0.9}})
    assert there == {"scale": {"reduce": [None]}}, "a stage has it already"


@pytest.mark.parametrize(
    ("statistic", "sizes"), [("largest", [256 * MIB, 2 * GIB]), ("max", [256 * MIB, 2 * GIB]), ("average", [256 * MIB, 512 * MIB, GIB, 2 * GIB])]
)
def test_a_requirement_of_a_range_is_measured_at_its_ends_and_an_average_over_the_doublings_between(statistic, sizes):
    one = {"stage": "node", "collective": "all_reduce", "min_busbw_GBps": 1, "from": "256M", "to": "2G", "statistic": statistic}
    assert of(require=[one]) == {"node": {"all_reduce": sizes}}


CRITERIA = {
    "bandwidth": {"ranges": [RANGE, {**RANGE, "collective": "all_gather", "from": "2G", "to": "4G"}], "shares": {"broadcast": 0.9}},
    "require": [{"stage": "cluster", "collective": "sendrecv", "min_busbw_GBps": 1}, {"stage": "rails", "collective": "gather", "max_latency_us": 9}],
}


@pytest.mark.parametrize("stage", ["node", "nic", "rails", "scale", "cluster"])
@pytest.mark.parametrize("record", [{}, CRITERIA], ids=["plain", "more"])
def test_the_estimate_counts_the_cases_that_the_workers_run(stage, record):
    more = added(parse(record, "c.toml"), DEFAULT_STAGES)
    alone = stage in ("node", "nic")
    n_ranks, n_nodes = {"rails": (4, 4)}.get(stage, (8, 1) if alone else (32, 4))
    world = WorldFacts(n_ranks=n_ranks, n_nodes=n_nodes, ranks_per_node=n_ranks // n_nodes, backend="nccl", one_domain=alone)
    spec = SweepSpec(collectives=collectives_of(stage, more), each=each(stage, more, "nccl", n_ranks))
    planned = expand(SweepSpec.from_json(spec.to_json()), world)
    assert len(planned) == n_cases(stage, more, "nccl", 1 if alone else 4)
    assert [one.skip for one in planned if one.skip] == [], "no size that these ranks cannot share"
    mine = {name: sorted({one.case.requested_nbytes for one in planned if one.case.collective == name}) for name in spec.collectives}
    for at, name, nbytes in more:
        assert at != stage or nbytes is None or nbytes in mine[name]
    assert all(len(sizes) == 2 for name, sizes in mine.items() if not [1 for at, what, n in more if (at, what) == (stage, name) and n])
    assert mine["all_reduce"][0] == 8
    assert all(sizes[0] == 16 * n_ranks for name, sizes in mine.items() if COLLECTIVES[name].split)


def test_what_is_added_is_in_the_estimate_in_words_and_within_a_budget():
    more = added(parse(CRITERIA, "c.toml"), DEFAULT_STAGES)
    plain, found = (estimate(AcceptSpec(more=some), 8, 8, "nccl") for some in ((), more))
    assert all(found.seconds[stage] > plain.seconds[stage] for stage in ("node", "rails", "scale", "cluster"))
    assert all(found.seconds[stage] == plain.seconds[stage] for stage in ("doctor", "nic", "pairs"))
    assert [line for line in found.lines() if line.startswith("measured for the criteria")] == lines(more)
    assert any("cluster: sendrecv" in line for line in lines(more))
    assert "measured for the criteria in node, cluster: broadcast" not in lines(more), "what differs is not run together"
    tight = AcceptSpec(more=more, budget_s=plain.total_s)
    assert estimate(tight, 8, 8, "nccl").total_s <= plain.total_s
    assert estimate(tight, 8, 8, "nccl").case_s < plain.case_s


def test_a_spec_keeps_what_is_added_and_says_what_other_criteria_would_add():
    spec = AcceptSpec(more=added(parse({"bandwidth": {"ranges": [RANGE]}}, "c.toml"), DEFAULT_STAGES))
    assert AcceptSpec.from_json(spec.to_json()) == spec
    assert list(not_measured(spec, parse({"bandwidth": {"ranges": [RANGE]}}, "c.toml"))) == []
    (line,) = not_measured(spec, parse({"bandwidth": {"ranges": [{**RANGE, "to": "256M"}]}}, "c.toml"))
    assert line.startswith("not measured for the criteria in node, rails, scale, cluster: all_reduce 256 MiB: ")


def test_a_resumed_run_is_held_against_the_file_that_it_was_begun_with(tmp_path, monkeypatch):
    (tmp_path / "c.toml").write_text("[spread]\nmax = 0.01\n")
    monkeypatch.chdir(tmp_path)
    spec, _ = with_criteria(AcceptSpec(), read(Path("c.toml")), {"resume": None, "criteria": Path("c.toml")})
    monkeypatch.chdir("/")
    assert with_criteria(spec, Criteria(), {"resume": "run", "criteria": None})[1].spread.value == 0.01
    (tmp_path / "d.toml").write_text("[spread]\nmax = 0.02\n")
    other = read(tmp_path / "d.toml")
    assert with_criteria(spec, other, {"resume": "run", "criteria": tmp_path / "d.toml"})[1] is other
    (tmp_path / "c.toml").unlink()
    with pytest.raises(UsageError, match=r"c\.toml"):
        with_criteria(spec, Criteria(), {"resume": "run", "criteria": None})


# ---- recorded


def test_a_size_or_collective_of_the_criteria_that_is_not_recorded_leaves_its_stage_open():
    given = facts(more=[["cluster", "all_reduce", 512], ["cluster", "broadcast", None], ["node", "all_reduce", 1024]])
    assert said(whole(), given) == [("cluster", "all_reduce recorded", "inconclusive"), ("cluster", "broadcast recorded", "inconclusive")]
    like = next(one for one in whole() if one.stage == "cluster")
    more = [replace(like, requested_nbytes=512), *(replace(like, collective="broadcast", requested_nbytes=size) for size in (8, 1024))]
    assert said([*whole(), *more], given) == []


# ---- judged


def test_the_ends_of_a_range_count_by_what_was_asked_for_not_by_what_ranks_share():
    ranks = tuple(range(24))
    low = effective_nbytes("all_gather", 64 * MIB, 24, 4)
    assert low < 64 * MIB
    points = [replace(point(rate, ranks=ranks, nbytes=nbytes), collective="all_gather", requested_nbytes=asked)
              for rate, nbytes, asked in ((430, GIB, GIB), (300, low, 64 * MIB))]  # fmt: skip
    criteria = parse({"bandwidth": {"ranges": [{**RANGE, "collective": "all_gather"}]}}, "c.toml")
    verdict = judge(case(*points, rank_hosts=("h0",) * 24), criteria, lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if row.criterion.startswith("all_gather of")]
    assert (row.status, row.measured, row.reason) == ("fail", 300, "worst at 64 MiB")


def test_of_a_range_what_latency_limits_is_not_judged_and_said():
    def ceiling(one: Any) -> Ceiling:
        return EXPECTED if one.nbytes > MIB else Ceiling(attainable_GBps=480.0, limited_by="latency")

    criteria = parse({"bandwidth": {"ranges": [{**RANGE, "from": "1K"}]}}, "c.toml")
    verdict = judge(case(point(430), point(430, nbytes=512 * MIB), point(1, nbytes=1024)), criteria, ceiling)
    (row,) = [row for row in verdict.rows if row.criterion.startswith("all_reduce of")]
    assert (row.status, row.reason) == ("pass", "worst at 512 MiB; 1 KiB not judged: latency limits it, or nothing is known")


@pytest.mark.parametrize("record", [{"bandwidth": {"ranges": [{**RANGE, "from": "8G", "to": "8G"}]}},
                                    {"require": [{"collective": "all_reduce", "min_busbw_GBps": 400, "from": "8G", "to": "8G"}]}])  # fmt: skip
def test_a_size_that_memory_does_not_hold_is_open_with_the_reason(record):
    gone = replace(point(1, nbytes=8 * GIB), status="skipped", reason="does not fit: 8 GiB of buffers a rank, 5 GiB free on the fullest rank",
                   busbw_GBps=None, time_us=None, n_wrong=None)  # fmt: skip
    verdict = judge(case(point(430), gone), parse(record, "c.toml"), lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if "of 8 GiB" in row.criterion]
    assert (verdict.exit_code, row.status, row.reason) == (8, "inconclusive", f"not measured: 8 GiB skipped: {gone.reason}")


@pytest.mark.parametrize(("slow", "by_node"), [(300, 430), (430, 300)])
def test_both_shifts_of_sendrecv_must_reach_what_is_required(slow, by_node):
    points = [replace(point(rate), collective="sendrecv", shift=shift) for rate, shift in ((slow, "ring"), (by_node, "node"))]
    criteria = parse({"require": [{"collective": "sendrecv", "min_busbw_GBps": 400}]}, "c.toml")
    rows = [row for row in judge(case(*points), criteria, lambda _: EXPECTED).rows if "as required" in row.criterion]
    assert {row.criterion.partition(" as ")[0]: row.status for row in rows} == {
        "sendrecv": "pass" if slow > 400 else "fail", "sendrecv (by node)": "pass" if by_node > 400 else "fail",
    }  # fmt: skip


def test_a_requirement_of_a_range_judges_its_sizes_alone_and_stands_in_only_for_those():
    points = [point(430), point(300, nbytes=256 * MIB), point(10, nbytes=8)]
    one = {"collective": "all_reduce", "min_busbw_GBps": 290, "from": "256M", "to": "512M"}

    def judged(**more: Any) -> Any:
        return judge(case(*points), parse({"require": [{**one, **more}]}, "c.toml"), lambda _: Ceiling())

    assert status(judged(), "all_reduce as required of 256 MiB to 512 MiB (largest)") == ["pass"]
    assert status(judged(min_busbw_GBps=310), "all_reduce as required") == ["fail"]
    assert status(judged(), "all_reduce bandwidth") == ["inconclusive"], "nobody said what is enough at 1 GiB"
    assert status(judged(to="2G", statistic="max"), "all_reduce bandwidth") == ["pass"]
    average = [row for row in judged(to="2G", statistic="average", min_busbw_GBps=366).rows if "as required" in row.criterion]
    assert [(row.status, row.measured) for row in average] == [("fail", 365.0)]


def test_latency_is_of_the_smallest_size_by_its_middle_pass_and_1_gib_has_none():
    def late(us: float, nbytes: int = 8) -> Any:
        return replace(point(1, nbytes=nbytes), time_us=Times(median=us, mean=us, min=us, max=us))

    def judged(*points: Any, **more: Any) -> list[str]:
        criteria = parse({"require": [{"collective": "all_reduce", "max_latency_us": 40, **more}]}, "c.toml")
        return status(judge(case(*points), criteria, lambda _: EXPECTED), "all_reduce latency")

    assert judged(late(39), late(60, 1024)) == ["pass"]
    assert judged(late(39), late(60, 1024), **{"from": "1K", "to": "1K"}) == ["fail"]
    assert judged(late(39), late(41), late(42)) == ["fail"]
    assert judged(late(5000, GIB)) == ["inconclusive"]


@pytest.mark.parametrize(
    ("record", "said_"),
    [
        ({"bandwidth": {"shares": {"pingpong": 0.9}}}, "[bandwidth.shares]: pingpong is measured in stage pairs"),
        ({"bandwidth": {"ranges": [{**RANGE, "collective": "pingpong"}]}}, "[[bandwidth.ranges]] number 1: collective: pingpong is measured"),
        ({"require": [{"collective": "pingpong", "max_latency_us": 5}]}, "[[require]] number 1: collective: pingpong is measured in stage pairs"),
        ({"require": [{"collective": "all_reduce", "max_latency_us": 5, "from": "1K"}]}, "[[require]] number 1: to is missing"),
        ({"require": [{"collective": "reduce", "max_latency_us": 5, "from": "2K", "to": "1K"}]}, "[[require]] number 1: from 2K to 1K is no range"),
        ({"bandwidth": {"ranges": [{**RANGE, "from": 0}]}}, "[[bandwidth.ranges]] number 1: from 0"),
    ],
)
def test_what_accept_cannot_measure_is_refused_with_its_key(record, said_):
    with pytest.raises(UsageError) as caught:
        parse(record, "c.toml")
    assert caught.value.why.startswith(f"c.toml: {said_}")
