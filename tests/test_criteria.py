"""Criteria files, rows, verdicts: what is missing, noisy or above physics is never green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import junitparser
import pytest

from nccl_bench.errors import UsageError
from nccl_bench.fabric.expected import observations, quartile
from nccl_bench.measure.cases import WorldFacts, expand
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Ceiling, Group, Point, Times
from nccl_bench.verdict.criteria import Criteria, parse, read
from nccl_bench.verdict.evidence import Findings, Suspect
from nccl_bench.verdict.judge import drain, judge
from nccl_bench.verdict.junit import junit_xml, prometheus
from nccl_bench.verdict.lax import LEAST_SHARE, words
from nccl_bench.verdict.rows import NOT_ASKED, Case, Row

ROOT = Path(__file__).parent.parent
GIB = 1 << 30
EXPECTED = Ceiling(expected_low_GBps=400.0, expected_high_GBps=450.0, attainable_GBps=480.0, limited_by="8x 400G NICs", line_GBps=500.0)


def point(rate: float, *, stage: str = "cluster", ranks: tuple[int, ...] = (0, 1), nbytes: int = GIB, wrong: int | None = 0, **more: Any) -> Point:
    us = nbytes / rate * 1e-3
    return Point(
        collective="all_reduce", dtype="float32", op="sum", root=None, nbytes=nbytes, requested_nbytes=nbytes, count=nbytes // 4, n_ranks=len(ranks),
        placement="in", clock="graph", regime="streaming", stage=stage, group=Group(axis=stage, size=len(ranks), slowest=ranks), busbw_GBps=rate,
        n_wrong=wrong, time_us=Times(median=us, mean=us, min=us, max=us, p95=us * 1.02), **more,
    )  # fmt: skip


def case(*points: Point, **more: Any) -> Case:
    values = {"points": points, "rank_hosts": ("h0", "h1", "h2", "h3"), "counters_read": True, "n_hosts": 2, **more}
    return Case(**values)


def status(verdict: Any, criterion: str) -> list[str]:
    return [row.status for row in verdict.rows if row.criterion.startswith(criterion)]


@pytest.mark.parametrize("rate, expected", [(430, "pass"), (395, "warn"), (300, "fail"), (501, "inconclusive")])
def test_bandwidth_against_what_is_expected_and_above_the_line_is_inconclusive(rate, expected):
    verdict = judge(case(point(rate)), Criteria(), lambda _: EXPECTED)
    assert status(verdict, "all_reduce bandwidth") == [expected]
    assert verdict.exit_code == {"pass": 0, "warn": 0, "fail": 1, "inconclusive": 8}[expected]


def test_unknown_hardware_small_messages_and_no_data_are_inconclusive():
    assert judge(case(point(430)), Criteria(), lambda _: Ceiling()).exit_code == 8
    assert judge(case(point(430, nbytes=1 << 20)), Criteria(), lambda _: EXPECTED).exit_code == 8
    assert judge(case(point(430), counters_read=False), Criteria(), lambda _: EXPECTED).exit_code == 8
    assert judge(case(point(430, wrong=None)), Criteria(), lambda _: EXPECTED).exit_code == 8
    assert judge(replace(case(), counters_read=False), Criteria(), lambda _: EXPECTED).exit_code == 8


@pytest.mark.parametrize("lost", [{"status": "failed", "reason": "the clock gave no usable time"}, {"status": "skipped", "reason": "out of memory"}])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_a_case_that_gave_no_number_is_inconclusive_beside_good_ones(lost, collective):
    gone = replace(point(430), collective=collective, time_us=None, busbw_GBps=None, n_wrong=None, **lost)

    verdict = judge(case(point(430), gone), Criteria(), lambda _: EXPECTED)

    assert verdict.exit_code == 8
    (row,) = [row for row in verdict.rows if row.criterion == f"{collective} measured"]
    assert lost["reason"] in row.reason


@pytest.mark.parametrize("n_ranks", [16, 24])
def test_ranks_that_cannot_share_a_size_in_whole_parts_leave_no_row_open(n_ranks):
    """8 B are less than one part of 16 B a rank, and of 24 ranks 1 GiB leaves 256 B over: the planned cases, as a good system runs them."""
    facts = WorldFacts(n_ranks=n_ranks, n_nodes=n_ranks // 8, ranks_per_node=8, backend="nccl", one_domain=False)
    points = []
    for planned in expand(SweepSpec(collectives=("all_reduce", "all_gather", "all_to_all"), sizes=(8, GIB)), facts):
        one = planned.case
        values = {"collective": one.collective, "nbytes": one.nbytes, "n_ranks": n_ranks, "regime": one.regime}
        good = replace(point(430, ranks=tuple(range(n_ranks))), requested_nbytes=one.requested_nbytes, **values)
        lost = {"status": "skipped", "reason": planned.skip, "time_us": None, "busbw_GBps": None, "n_wrong": None}
        points.append(good if planned.skip is None else replace(good, **lost))

    verdict = judge(case(*points, rank_hosts=tuple(f"h{rank // 8}" for rank in range(n_ranks))), Criteria(), lambda _: EXPECTED)

    assert [row for row in verdict.rows if row.status != "pass"] == []


REQUIRE = {"stage": "cluster", "collective": "allreduce", "min_busbw_GBps": 360.0, "source": "contract 4711"}


@pytest.mark.parametrize("rate, code, expected", [(430, 0, "pass"), (300, 1, "fail")])
@pytest.mark.parametrize(
    "ceiling, floor", [(Ceiling(), None), (Ceiling(line_GBps=500.0), None), (Ceiling(attainable_GBps=480.0, line_GBps=500.0), 0.5)]
)
def test_a_requirement_stands_in_for_what_nobody_has_seen(rate, code, expected, ceiling, floor):
    criteria = parse({"require": [REQUIRE]}, "c.toml")
    verdict = judge(case(point(rate)), criteria, lambda _: ceiling, lambda _: floor)
    (row,) = [row for row in verdict.rows if row.criterion == "all_reduce bandwidth"]
    assert (row.status, row.required, row.source) == (expected, 360.0, "contract 4711")
    assert "held against [[require]]" in row.reason
    assert verdict.exit_code == code
    assert judge(case(point(430)), Criteria(), lambda _: ceiling, lambda _: floor).exit_code == 8


@pytest.mark.parametrize(
    "one, points",
    [
        ({**REQUIRE, "stage": "node"}, [point(430), point(430, stage="node", ranks=(2, 3))]),
        ({**REQUIRE, "collective": "all_gather"}, [point(430), replace(point(430), collective="all_gather")]),
        ({"stage": "cluster", "collective": "all_reduce", "max_latency_us": 1e8}, [point(430)]),
        (REQUIRE, [point(430, nbytes=1 << 20)]),
        (REQUIRE, [point(501)]),
    ],
    ids=["another stage", "another collective", "latency alone", "small messages", "above the line"],
)
def test_a_requirement_of_something_else_stands_in_for_nothing(one, points):
    verdict = judge(case(*points), parse({"require": [one]}, "c.toml"), lambda _: Ceiling(line_GBps=500.0))
    assert "inconclusive" in status(verdict, "all_reduce bandwidth")
    assert verdict.exit_code == 8


def test_the_last_line_names_the_cells_that_nobody_knows_and_how_to_say_what_is_enough():
    points = [replace(point(430, stage=stage), collective=name) for stage in ("node", "cluster") for name in ("all_reduce", "all_to_all")]
    verdict = judge(case(*points), Criteria(), lambda _: Ceiling())
    cells = "node all_reduce, node all_to_all, cluster all_reduce, cluster all_to_all"
    assert verdict.why == (
        f"inconclusive: 4 rows: nothing is known to be expected of {cells}: "
        "[[require]] in --criteria says what is enough (nccl-bench explain criteria)"
    )


def test_stages_without_any_bandwidth_that_was_held_against_something_are_not_green():
    points = [point(430, stage="nic", ranks=(0, 1)), point(431, stage="nic", ranks=(2, 3))]
    verdict = judge(case(*points), Criteria(), lambda _: EXPECTED)
    assert (verdict.exit_code, status(verdict, "bandwidth")) == (8, ["inconclusive"])
    assert judge(case(*points), parse({"require": [{**REQUIRE, "stage": "nic"}]}, "c.toml"), lambda _: EXPECTED).exit_code == 0


def test_of_several_passes_the_largest_size_counts_by_its_middle_one_not_by_its_best():
    points = [point(rate) for rate in (300, 300, 430)]
    criteria = parse({"require": [REQUIRE], "repeats": {"agree": 1.0}}, "c.toml")
    assert status(judge(case(*points), criteria, lambda _: Ceiling()), "all_reduce as required") == ["fail"]


@pytest.mark.parametrize(
    "record, what",
    [
        ({"bandwidth": {"share": 0.05}}, "share of expected"),
        ({"bandwidth": {"shares": {"all_reduce": 0.7}}}, "share of expected, all_reduce"),
        ({"bandwidth": {"ranges": [{"collective": "all_reduce", "from": "1G", "to": "2G", "share": 0.1}]}}, "share of expected, all_reduce of"),
        ({"spread": {"max": 0.9}}, "spread between like nodes"),
        ({"repeats": {"agree": 0.5}}, "repeats agree within"),
        ({"baseline": {"threshold": 0.5}}, "slower than the baseline"),
        ({"counters": {"errors": "ignore"}}, "counters of errors"),
        ({"transport": {"rdma": "ignore"}}, "RDMA there and not used"),
        ({"doctor": {"fail": [], "warn": ["fail", "warn", "unknown"]}}, "doctor: fails on"),
        ({"require": [{**REQUIRE, "min_busbw_GBps": 5}]}, "all_reduce as required"),
    ],
)
def test_a_threshold_that_lets_a_broken_system_through_is_a_warning_in_the_verdict(record, what):
    criteria = parse(record, "c.toml")
    verdict = judge(case(point(430)), criteria, lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if row.criterion.startswith("threshold is lax")]
    assert row.criterion.startswith(f"threshold is lax: {what}")
    assert (row.status, verdict.status, row.source) == ("warn", "warn", "contract 4711" if "require" in record else "c.toml")
    assert all(what in line for line in words(criteria))


def test_neither_the_default_nor_any_example_is_lax_and_no_healthy_system_is_below_the_bound():
    assert not words(Criteria())
    assert not [line for path in sorted((ROOT / "criteria").glob("*.toml")) for line in words(read(path))]
    cells: dict[Any, list[float]] = {}
    for one in observations():
        cells.setdefault((one.platform, one.collective, one.algorithm), []).append(one.share_frac)
    shares = [min(found) / quartile(found) for found in cells.values() if len(found) > 1]
    assert min(shares) > 0.94 > LEAST_SHARE


def test_the_last_line_names_stage_collective_worst_row_and_suspect():
    slow = [point(rate, stage="node", ranks=ranks) for rate, ranks in ((300, (0, 1)), (200, (2, 3)))]
    suspect = Suspect(kind="node", host="h3", score=0.5, chance=1e-12, evidence=("-50 % in 6 of 6",))
    why = judge(case(*slow, findings=Findings(suspects=(suspect,)), pairs_ran=True), Criteria(), lambda _: EXPECTED).why
    assert why.startswith("fail: 4 rows on 4 hosts: worst: node all_reduce bandwidth on h2, h3 200 GB/s, required 380.0 (50% of")
    assert why.endswith("; suspect: node h3 (-50 % in 6 of 6)")


def test_wrong_data_is_named_with_collective_size_and_hosts():
    verdict = judge(case(point(430), point(430, nbytes=8, wrong=12)), Criteria(), lambda _: EXPECTED)
    assert verdict.exit_code == 7
    assert verdict.why.startswith("fail: 1 row on 2 hosts: cluster data on h0, h1 12 elements, required 0 (all_reduce of 8 B)")
    assert not [row for row in verdict.rows if "None" in row.reason]


def test_a_verdict_of_some_stages_says_so_in_its_sentence():
    left_out = ({"stage": "pairs", "reason": NOT_ASKED, "fine": True}, {"stage": "nic", "reason": "no RDMA port, or not NCCL", "fine": True})
    verdict = judge(case(point(430), not_run=left_out), Criteria(), lambda _: EXPECTED)
    assert verdict.exit_code == 0
    assert verdict.why.startswith("of the stages asked for (not of pairs): warn: ")


def test_counters_that_one_host_of_many_does_not_show_are_open_unless_it_is_out():
    assert judge(case(point(430), counters_missing=("h1",)), Criteria(), lambda _: EXPECTED).exit_code == 8
    out = ({"host": "h1", "stage": "node", "reason": "silent"},)
    verdict = judge(case(point(430), counters_missing=("h1",), excluded=out), Criteria(), lambda _: EXPECTED)
    assert status(verdict, "counters of every host") == []


def test_no_outlier_is_worth_nothing_where_exchanges_scatter_and_little_between_two_hosts():
    noisy = judge(case(point(430), pairs_ran=True, findings=Findings(unseen_frac=0.4), n_hosts=8), Criteria(), lambda _: EXPECTED)
    assert (noisy.exit_code, status(noisy, "no outlier")) == (8, ["inconclusive"])
    for n, expected in ((1, "pass"), (2, "warn"), (8, "pass")):
        assert status(judge(case(point(430), pairs_ran=True, n_hosts=n), Criteria(), lambda _: EXPECTED), "no outlier") == [expected]


@pytest.mark.parametrize("gone", [{"busbw_GBps": None}, {"group": None}])
def test_a_point_that_cannot_be_judged_is_open_beside_good_ones(gone):
    other = replace(point(430), collective="all_gather", **gone)
    verdict = judge(case(point(430), other), Criteria(), lambda _: EXPECTED)
    assert (verdict.exit_code, status(verdict, "all_gather bandwidth")) == (8, ["inconclusive"])


def test_one_unchecked_case_leaves_the_data_open():
    assert judge(case(point(430), point(430, nbytes=8, wrong=None)), Criteria(), lambda _: EXPECTED).exit_code == 8


@pytest.mark.parametrize("rate, expected", [(330, "pass"), (310, "fail")])
def test_a_range_of_sizes_has_a_share_of_its_own(rate, expected):
    ranges = [{"collective": "allreduce", "from": "64M", "to": "512M", "share": 0.8, "source": "annex B"}]
    criteria = parse({"bandwidth": {"ranges": ranges}}, "c.toml")
    points = [point(430), point(400, nbytes=512 << 20), point(rate, nbytes=64 << 20)]
    verdict = judge(case(*points), criteria, lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if "64 MiB to 512 MiB" in row.criterion]
    assert (row.status, row.measured, row.required, row.source) == (expected, rate, 320, "annex B")
    assert status(judge(case(point(430)), criteria, lambda _: EXPECTED), "all_reduce of") == ["inconclusive"]
    assert status(judge(case(*points), criteria, lambda _: Ceiling()), "all_reduce of") == ["inconclusive"]


@pytest.mark.parametrize(
    "lists, word, required, expected",
    [
        ({}, "ok", False, "pass"), ({}, "warn", False, "warn"), ({}, "unknown", False, "warn"), ({}, "unknown", True, "inconclusive"),
        ({"fail": ["fail", "warn"]}, "warn", False, "fail"), ({"warn": ["warn"]}, "unknown", False, "inconclusive"),
    ],
)  # fmt: skip
def test_what_doctors_words_mean_is_the_criterias_to_say_and_what_they_leave_out_is_not_green(lists, word, required, expected):
    check = {"id": "nic.acs", "status": word, "hosts": ["h1"], "device": None, "measured": None, "expected": None, "why": "it is on"}
    check |= {"required": required, "needs_root": True, "what": "is it off?"}
    verdict = judge(case(point(430), doctor=(check,)), parse({"doctor": lists}, "c.toml"), lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if row.criterion == "nic.acs"]
    assert row.status == expected
    assert row.reason == {"ok": "", "unknown": "could not be read (needs root): is it off?"}.get(word, "it is on")


def test_latency_and_tail_are_held_against_their_limits():
    criteria = parse({"require": [{"collective": "all_reduce", "max_latency_us": 40.0, "source": "annex C"}], "tail": {"p95_over_median": 1.1}}, "c")
    small = replace(point(1, nbytes=8), time_us=Times(median=41.0, mean=41.0, min=41.0, max=41.0))
    large = point(430)
    slow_tail = replace(large, time_us=replace(large.time_us, p95=large.time_us.median * 1.3))
    verdict = judge(case(small, slow_tail), criteria, lambda _: EXPECTED)
    assert status(verdict, "all_reduce latency") == ["fail"]
    assert status(verdict, "all_reduce p95/median") == ["warn"]
    assert ("all_reduce in stage cluster", "<= 40 µs", "annex C") in criteria.thresholds()


def test_a_stated_floor_fails_a_row_and_passes_it_only_with_like_nodes():
    ceiling = Ceiling(attainable_GBps=400.0, line_GBps=500.0)

    def rows(*rates: float) -> list[str]:
        points = [point(rate, stage="node", ranks=(2 * at, 2 * at + 1)) for at, rate in enumerate(rates)]
        return status(judge(case(*points), Criteria(), lambda _: ceiling, lambda _: 0.85), "all_reduce bandwidth")

    assert rows(330) == ["fail"]
    assert rows(350) == ["inconclusive"]
    assert rows(350, 352) == ["pass", "pass"]
    assert rows(350, 395) == ["inconclusive", "inconclusive"]


def test_wrong_data_ends_7_and_a_rehearsal_8_whatever_its_rows_say():
    assert judge(case(point(430, wrong=3)), Criteria(), lambda _: EXPECTED).exit_code == 7
    for more in ({"not_nccl": True}, {"shared_gpu": True}):
        verdict = judge(case(point(430), **more), Criteria(), lambda _: EXPECTED)
        assert (verdict.exit_code, verdict.status) == (8, "inconclusive")
        assert "rehearsal" in verdict.why


def test_unlike_nodes_suspects_exclusions_and_counters_fail():
    points = [point(rate, stage="node", ranks=(2 * at, 2 * at + 1)) for at, rate in enumerate((430, 380))]
    assert status(judge(case(*points, rank_hosts=("h0", "h0", "h1", "h1")), Criteria(), lambda _: EXPECTED), "all_reduce alike") == ["fail"]
    suspect = Suspect(kind="nic", host="h1", nic="mlx5_3", score=0.5, chance=1e-12, evidence=("-50 %",))
    verdict = judge(case(point(430), findings=Findings(suspects=(suspect,)), pairs_ran=True), Criteria(), lambda _: EXPECTED)
    assert (verdict.exit_code, verdict.why) == (1, "fail: 1 row, all through h1; suspect: NIC mlx5_3 of h1 (-50 %)")
    assert drain(Findings(suspects=(suspect,)), verdict.rows, [{"host": "h9"}]) == ["h1", "h9"]
    gone = judge(case(point(430), excluded=({"host": "h7", "stage": "node", "reason": "silent"},)), Criteria(), lambda _: EXPECTED)
    assert gone.exit_code == 1
    moved = ({"host": "h1", "device": "mlx5_0", "counter": "link_downed", "text": "link_downed +1", "stage": "pairs"},)
    assert judge(case(point(430), counters=moved), Criteria(), lambda _: EXPECTED).exit_code == 1
    assert judge(case(point(430), counters=moved), parse({"counters": {"errors": "warn"}}, "x"), lambda _: EXPECTED).exit_code == 0


def test_pairs_that_failed_are_no_pass():
    verdict = judge(case(point(430), pairs_ran=True, findings=Findings(failed=("h0 - h1",))), Criteria(), lambda _: EXPECTED)
    assert (verdict.exit_code, status(verdict, "pairs that failed"), status(verdict, "no outlier")) == (1, ["fail"], [])


def test_rdma_that_is_there_and_carries_nothing_fails():
    needed = parse({"transport": {"required": True, "rdma": "ignore"}}, "c.toml")
    assert status(judge(case(point(430), has_rdma=False), needed, lambda _: EXPECTED), "RDMA") == ["fail"]
    assert status(judge(case(point(430), has_rdma=True, rdma_bytes=5), needed, lambda _: EXPECTED), "RDMA") == ["fail"]
    assert status(judge(case(point(430), has_rdma=False), Criteria(), lambda _: EXPECTED), "RDMA") == []
    assert status(judge(case(point(430), has_rdma=True, rdma_bytes=5), Criteria(), lambda _: EXPECTED), "RDMA") == ["fail"]
    assert status(judge(case(point(430), has_rdma=True, rdma_bytes=None), Criteria(), lambda _: EXPECTED), "RDMA") == ["inconclusive"]
    assert status(judge(case(point(430), has_rdma=True, rdma_bytes=99 * GIB), Criteria(), lambda _: EXPECTED), "RDMA") == ["pass"]
    one_idle = {"h0": 49 * GIB, "h1": 50 * GIB, "h2": 4096}
    verdict = judge(case(point(430), has_rdma=True, rdma_bytes=99 * GIB, rdma_of=one_idle), Criteria(), lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if row.criterion.startswith("RDMA")]
    assert (row.status, row.measured, row.hosts) == ("fail", 4096, ("h2",)), "what others sent does not excuse one host"


@pytest.mark.parametrize("statistic, rate, expected", [("largest", 420, "pass"), ("max", 420, "pass"), ("average", 420, "fail")])
def test_a_vendors_number_is_judged_by_the_statistic_it_was_measured_by(statistic, rate, expected):
    criteria = parse({"require": [{"collective": "allreduce", "min_busbw_GBps": 400, "statistic": statistic, "source": "contract 7"}]}, "c.toml")
    verdict = judge(case(point(rate), point(10, nbytes=1 << 20)), criteria, lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if "as required" in row.criterion]
    assert (row.status, row.source) == (expected, "contract 7")
    assert ("average" in row.reason) == (statistic == "average")


@pytest.mark.parametrize(
    "record, said",
    [
        ({"bandwith": {}}, "did you mean 'bandwidth'"),
        ({"bandwidth": {"shar": 1}}, "did you mean 'share'"),
        ({"bandwidth": {"share": "much"}}, "a number between"),
        ({"bandwidth": {"share": True}}, "a number between"),
        ({"bandwidth": {"shares": {"allreduces": 0.9}}}, "allreduces"),
        ({"require": [{"collective": "all_reduce"}]}, "neither min_busbw_GBps nor max_latency_us"),
        ({"require": [{"stage": "moon", "collective": "all_reduce", "max_latency_us": 1}]}, "stage is one of"),
        ({"doctor": {"fail": "warn"}}, "a list of"),
        ({"counters": {"errors": "maybe"}}, "fail, warn or ignore"),
        ({"transport": {"required": "yes"}}, "true or false"),
        ({"bandwidth": {"ranges": [{"collective": "all_reduce", "from": "1M", "share": 0.5}]}}, "to is missing"),
        ({"bandwidth": {"ranges": [{"collective": "all_reduce", "from": "1G", "to": "1M", "share": 0.5}]}}, "is no range"),
        ({"bandwidth": {"ranges": [{"collectiv": "all_reduce"}]}}, "did you mean 'collective'"),
        ({"bandwidth": {"shares": {"foo": 1}}}, "[bandwidth.shares]: no collective is called 'foo'"),
        ({"bandwidth": {"ranges": [{"collective": "foo", "from": 1, "to": 2, "share": 0.9}]}}, "number 1: collective: no collective is called 'foo'"),
        ({"bandwidth": {"ranges": [{"collective": "all_reduce", "from": "x", "to": 2, "share": 0.9}]}}, "number 1: from: 'x' is not a size"),
        ({"require": [{"collective": "foo", "min_busbw_GBps": 1}]}, "[[require]] number 1: collective: no collective"),
        ({"require": [{"collective": "all_reduce", "min_busbw_GBps": 0}]}, "[[require]] number 1: min_busbw_GBps = 0"),
    ],
)
def test_a_key_or_value_that_is_none_is_a_usage_error_that_says_which(record, said):
    with pytest.raises(UsageError) as caught:
        parse(record, "c.toml")
    assert said in "\n".join([caught.value.why, *caught.value.hints])
    assert caught.value.why.startswith("c.toml: "), "which file"


@pytest.mark.parametrize("path", sorted((ROOT / "criteria").glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_read_and_every_threshold_has_a_source(path):
    criteria = read(path)
    assert all(source for _, _, source in criteria.thresholds())


def test_there_are_examples():
    assert len(list((ROOT / "criteria").glob("*.toml"))) >= 3


def test_a_file_that_is_no_toml_is_a_usage_error(tmp_path):
    (tmp_path / "c.toml").write_text("share = = 1")
    for path in (tmp_path / "c.toml", tmp_path / "none.toml"):
        with pytest.raises(UsageError):
            read(path)


def test_junit_has_a_suite_a_stage_and_inconclusive_is_an_error():
    rows = [
        Row(criterion="a", stage="node", status="pass"), Row(criterion="b", stage="node", status="fail", reason="<slow> & \"bad\""),
        Row(criterion="c", stage="cluster", status="inconclusive"), Row(criterion="d", stage="cluster", status="warn"),
    ]  # fmt: skip
    xml = junitparser.JUnitXml.fromstring(junit_xml(rows, "accept"))
    assert (xml.tests, xml.failures, xml.errors) == (4, 1, 1)
    assert [suite.name for suite in xml] == ["node", "cluster"]


def test_prometheus_text_has_verdict_rows_and_rates():
    verdict = judge(case(point(430)), Criteria(), lambda _: EXPECTED)
    record = {"exit_code": 0, "rows": [row.to_json() for row in verdict.rows], "suspects": []}
    text = prometheus(record)
    assert "nccl_bench_accept_exit_code 0\n" in text
    assert "nccl_bench_accept_busbw_bytes_per_second{" in text
    assert " 4.3e+11\n" in text
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
