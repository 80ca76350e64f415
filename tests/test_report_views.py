"""Points to curves: passes pooled, intervals kept, each sample beside its ceilings; what is not a curve found too."""

from dataclasses import replace

import pytest
import report_samples as samples

from nccl_bench.records import Group, Times
from nccl_bench.report.document import read
from nccl_bench.report.naming import headline, judged, short_labels, what_differs
from nccl_bench.results.runs import open_runs

pytestmark = pytest.mark.pure


def views(*paths):
    found, _ = read(open_runs([str(path) for path in paths]))
    return found


def view(tmp_path, points, head=None, name="run"):
    return views(samples.write_fast(tmp_path / name, head or samples.header(), points))[0]


def test_one_pass_keeps_its_own_median_and_interval(tmp_path):
    point = samples.point(nbytes=1 << 30)

    curve = view(tmp_path, [point]).curves[0]

    sample = curve.samples[0]
    assert (sample.time_us, sample.low_us, sample.high_us) == (point.time_us.median, point.time_us.ci_low, point.time_us.ci_high)
    assert (sample.busbw_GBps, sample.passes, sample.n_wrong) == (point.busbw_GBps, 1, 0)


def test_passes_are_pooled_by_their_medians_and_the_ribbon_is_their_middle(tmp_path):
    base = samples.point(nbytes=1 << 30).to_json()
    records = [{**base, "pass": at, "time_us": {**base["time_us"], "median": 100.0 + at}} for at in range(101)]

    sample = view(tmp_path, records).curves[0].samples[0]

    assert (sample.passes, sample.time_us) == (101, 150.0)
    assert (sample.low_us, sample.high_us) == (102.5, 197.5)


def test_sizes_are_in_order_and_every_way_of_measuring_is_a_curve_of_its_own(tmp_path):
    points = [samples.point(nbytes=size, clock=clock) for size in (1 << 20, 8, 1 << 10) for clock in ("queued", "eager")]

    curves = view(tmp_path, points).curves

    assert [curve.clock for curve in curves] == ["queued", "eager"]
    assert [[sample.nbytes for sample in curve.samples] for curve in curves] == [[8, 1 << 10, 1 << 20]] * 2


def test_data_unchecked_in_one_pass_is_unchecked(tmp_path):
    checked, unchecked = samples.point(), samples.point(n_wrong=None)

    assert view(tmp_path, [checked, unchecked]).curves[0].samples[0].n_wrong is None
    assert view(tmp_path, [checked, samples.point(n_wrong=3)], name="wrong").curves[0].samples[0].n_wrong == 3


def test_each_sample_has_the_ceiling_of_the_algorithm_that_ran(tmp_path):
    points = [samples.point(nbytes=size, algorithm=name) for size, name in ((1 << 30, "ring"), (1 << 32, "NVLSTree"))]

    ring, tree = view(tmp_path, points).curves[0].samples

    assert ring.ceiling.line_GBps == 400.0
    assert tree.ceiling.line_GBps == 750.0


def test_the_algorithm_of_a_probe_is_taken_where_points_do_not_say_it(tmp_path):
    choice = {"collective": "all_reduce", "nbytes": 1 << 30, "algorithm": "ring", "protocol": "simple", "channels": 16}

    sample = view(tmp_path, [samples.point(nbytes=1 << 30)], samples.header(algorithms=(choice,))).curves[0].samples[0]

    assert (sample.algorithm, sample.ceiling.line_GBps) == ("ring", 400.0)


def test_small_sizes_are_limited_by_latency_and_large_ones_by_the_fabric(tmp_path):
    small, large = view(tmp_path, [samples.point(nbytes=8), samples.point(nbytes=1 << 33)]).curves[0].samples

    assert small.ceiling.limited_by == "latency"
    assert "InfiniBand" in large.ceiling.limited_by or "NVLink" in large.ceiling.limited_by


def test_a_variant_has_no_ceiling_since_they_are_for_things_as_they_are(tmp_path):
    curve = view(tmp_path, [samples.point(nbytes=1 << 30, variant="ring")]).curves[0]

    assert curve.ceiling is None
    assert curve.samples[0].ceiling.line_GBps is None


def test_a_rehearsal_has_no_ceilings(tmp_path):
    found = view(tmp_path, samples.sweep(), samples.header(not_nccl=True, backend="gloo"))

    assert all(curve.ceiling is None for curve in found.curves)
    assert "no measurement of NCCL" in found.ceilings.why_not


def test_a_collective_is_judged_by_streaming_and_by_the_clock_that_shows_the_fabric(tmp_path):
    points = [samples.point(nbytes=1 << 30, clock=clock, regime=regime) for clock, regime in (("eager", "streaming"), ("queued", "isolated"))]
    points.append(samples.point(nbytes=1 << 30, clock="queued"))

    curve = judged(view(tmp_path, points), "all_reduce")

    assert (curve.clock, curve.regime) == ("queued", "streaming")


def test_a_curve_that_reaches_a_gibibyte_goes_before_a_better_clock_that_does_not(tmp_path):
    points = [samples.point(nbytes=1 << 20, clock="graph"), samples.point(nbytes=1 << 30, clock="eager")]

    assert judged(view(tmp_path, points), "all_reduce").clock == "eager"


def test_skipped_and_failed_cases_are_counted_by_reason(tmp_path):
    skipped = [samples.point("all_gather", 8), samples.point("all_gather", 32)]

    found = view(tmp_path, [*skipped, samples.point()])

    assert [(trouble.collective, trouble.status, trouble.sizes, trouble.n) for trouble in found.troubles] == [("all_gather", "skipped", (8, 32), 2)]


def test_lateness_is_the_median_over_the_isolated_series_by_host_and_rank(tmp_path):
    def isolated(us):
        record = samples.point(regime="isolated").to_json()
        return {**record, "lateness_us": {"nodes": {"a": 1.0, "b": us}, "worst": [{"rank": 3, "host": "b", "us": us}]}}

    late = view(tmp_path, [isolated(5.0), isolated(7.0), isolated(100.0)]).late

    assert [(one.host, one.rank, one.us) for one in late] == [("b", None, 7.0), ("a", None, 1.0), ("b", 3, 7.0)]


def test_pairs_are_named_by_their_hosts(tmp_path):
    found = view(tmp_path, samples.pairs(["gpu-001", "gpu-002", "gpu-003"], ("gpu-003",)), samples.header(3))

    assert [(pair.src, pair.dst, pair.busbw_GBps) for pair in found.pairs] == [
        ("gpu-001", "gpu-002", 49.0),
        ("gpu-001", "gpu-003", 24.0),
        ("gpu-002", "gpu-003", 24.0),
    ]
    assert found.curves == ()


def test_all_reduce_stands_first_and_else_the_first_of_the_table(tmp_path):
    assert headline([view(tmp_path, samples.sweep())]) == "all_reduce"
    assert headline([view(tmp_path, samples.sweep(collectives=("sendrecv", "all_gather")), name="other")]) == "all_gather"
    assert headline([view(tmp_path, [], name="empty")]) is None


def test_a_time_without_a_rate_makes_no_headline(tmp_path):
    times = Times(median=5.0, mean=5.0, min=5.0, max=5.0)
    lone = samples.point()
    record = {**lone.to_json(), "busbw_GBps": None, "algbw_GBps": None, "time_us": samples.asdict(times)}

    assert headline([view(tmp_path, [record])]) is None


def test_labels_leave_out_what_all_begin_with_and_keep_a_word():
    labels = ["2026-12-01-gpu-001-8r", "2026-12-01-gpu-002-8r"]

    assert list(short_labels(labels).values()) == ["gpu-001-8r", "gpu-002-8r"]
    assert short_labels(["a", "b"]) == {"a": "a", "b": "b"}
    assert all(len(label) <= 28 for label in short_labels(["x" * 80, "y" * 80]).values())


def test_curves_are_told_apart_by_what_differs_only(tmp_path):
    curves = view(tmp_path, [samples.point(clock=clock, placement=form) for clock, form in (("graph", "in"), ("graph", "out"))]).curves

    assert what_differs(curves) == ["in place", "out of place"]
    assert what_differs(curves[:1]) == [""]


def test_one_group_alone_is_another_curve_than_all_at_once_and_is_not_judged(tmp_path):
    group = Group(axis="dp", size=2, n_groups=8, slowest=(3, 11))
    together = samples.point(nbytes=1 << 30, n_ranks=2, group=group)
    alone = replace(together, special="solo", time_us=replace(together.time_us, median=together.time_us.median / 4))

    found = view(tmp_path, [together, alone], samples.header(spec={"mesh": "dp=2,tp=8"}))

    assert [(curve.special, curve.samples[0].passes) for curve in found.curves] == [(None, 1), ("solo", 1)]
    assert [curve.special for curve in found.main()] == [None]
    assert found.curves[0].ceiling.line_GBps < found.curves[1].ceiling.line_GBps
    assert what_differs(found.curves) == ["all groups", "solo"]
