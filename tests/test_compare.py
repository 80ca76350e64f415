"""compare: right on field cases, calibrated on noise as it was measured, and clear about what it cannot say."""

import json
import math
import re
from dataclasses import replace

import pytest
from field_cases import FILES, REFERENCE, needs_cases, needs_reference
from nccl_tests_samples import Measured, log
from run_samples import SIZES, point, seeded, sweep, truth, write_run

from nccl_bench.errors import UsageError
from nccl_bench.report.comparison import lines, notes
from nccl_bench.results.runs import open_runs
from nccl_bench.verdict.compare import compare_runs

MIB = 1 << 20


def compare(base, new, threshold=0.03):
    return compare_runs(open_runs([str(base)]), open_runs([str(new)]), threshold)


def reps(arm):
    return ",".join(str(FILES / f"reps_socket_{arm}_rep{i}.log") for i in (1, 2, 3))


def by_size(found, placement="out"):
    return {case.nbytes: case for case in found.cases if case.placement == placement}


# ---- field cases ----


@needs_cases
def test_a_missing_plug_in_is_a_regression_at_every_large_size():
    found = compare(FILES / "log_gh200_with_plugin.log", FILES / "log_gh200_no_plugin.log")
    cases = by_size(found)

    assert found.exit_code == 1
    assert [round(100 * cases[nbytes].change_frac, 1) for nbytes in (128 * MIB, 16 * MIB)] == [-95.6, -90.8]
    assert {case.verdict for nbytes, case in cases.items() if nbytes >= 16384} == {"regression"}
    # Both print 0.00 GB/s: the times are compared.
    assert (cases[8].by, cases[8].base_time_us, cases[8].new_time_us, cases[8].verdict) == ("time", 17.93, 85.47, "regression")
    assert cases[128 * MIB].by == "busbw"


@needs_cases
def test_two_runs_that_scatter_show_no_difference():
    log_path = FILES / "log_r9700_gdr_on_off_two_runs.log"
    found = compare(f"{log_path}#1", f"{log_path}#2")

    assert found.exit_code == 0
    assert found.counts()["regression"] == 0
    assert round(100 * by_size(found)[128 * MIB].change_frac, 1) == 0.5
    assert by_size(found)[128 * MIB].verdict == "within noise"
    assert [round(100 * by_size(found, placement)[8 * MIB].change_frac) for placement in ("out", "in")] == [-10, 23]
    assert found.summary == ("all_reduce 8 B-128 MiB: no difference shown",)


@needs_cases
def test_three_repeats_an_arm_call_what_their_spread_allows():
    found = compare(reps("default"), reps("nthreads4"))
    cases = by_size(found)

    assert found.exit_code == 1
    assert [round(100 * cases[nbytes].change_frac, 1) for nbytes in (64 * MIB, 32 * MIB, 16 * MIB)] == [-14.8, -16.9, 0.8]
    assert [cases[nbytes].verdict for nbytes in (64 * MIB, 32 * MIB, 16 * MIB)] == ["regression", "within noise", "within noise"]
    assert (cases[64 * MIB].base_busbw_GBps, cases[64 * MIB].new_busbw_GBps) == (pytest.approx(2.300), pytest.approx(1.960))
    assert (cases[64 * MIB].n_base, cases[64 * MIB].n_new) == (3, 3)


@needs_cases
def test_runs_of_different_ranks_are_not_comparable():
    found = compare(FILES / "log_a100_single_210.log", FILES / "log_a100_pair_150.log")

    assert found.exit_code == 8
    assert found.why == "nothing is comparable: ranks 8 against 16"
    assert {"what": "hosts", "base": "node01", "new": "node01, node02"} in found.changed


@needs_cases
def test_wrong_data_voids_the_speed():
    path = FILES / "log_gh200_wrong_one_size.log"
    found = compare(path, path)

    assert found.exit_code == 7
    assert by_size(found)[MIB].reason == "wrong data in BASE: 96 elements, NEW: 96 elements, so its speed says nothing"
    assert by_size(found)[2 * MIB].verdict == "within noise"


@needs_reference
def test_two_runs_of_nccl_tests_on_one_machine_do_not_differ():
    h200 = REFERENCE / "h200x2"
    found = compare(h200 / "nccl-tests-mpi-1.log", h200 / "nccl-tests-mpi-2.log")

    assert found.exit_code == 0
    assert found.counts() == {"regression": 0, "improvement": 0, "within noise": 116, "missing": 0, "not comparable": 0}


# ---- calibration: runs differ by 0.3 %, batches within a run by 2 % (two H200, reference measurements) ----


def families(tmp_path, n, slower=lambda collective, nbytes: 1.0, **noise):
    """n comparisons of a synthetic run with a repeat of itself."""
    for seed in range(n):
        rng = seeded(seed)
        base = write_run(tmp_path / f"{seed}-base", sweep(rng, **noise))
        new = write_run(tmp_path / f"{seed}-new", sweep(rng, slower=slower, **noise))
        yield compare(base, new)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Thousands of points are written here, and none must outlive a crash."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


def test_a_run_compared_with_a_repeat_of_itself_raises_no_alarm(tmp_path):
    found = list(families(tmp_path, 40))
    cases = [case for one in found for case in one.cases]

    assert sum(one.exit_code != 0 for one in found) == 0
    assert sum(case.verdict in ("regression", "improvement") for case in cases) <= 0.01 * len(cases)


def test_runs_that_differ_more_than_they_were_seen_to_raise_no_alarm_either(tmp_path):
    found = list(families(tmp_path, 20, run_frac=0.01))

    assert sum(one.exit_code != 0 for one in found) <= 1


def test_a_shift_of_5_percent_is_found_at_every_size(tmp_path):
    found = list(families(tmp_path, 12, slower=lambda collective, nbytes: 1.05))
    cases = [case for one in found for case in one.cases]

    assert sum(case.verdict == "regression" for case in cases) >= 0.95 * len(cases)
    assert all(one.exit_code == 1 for one in found)


def test_a_shift_of_5_percent_at_one_size_alone_is_found(tmp_path):
    found = list(families(tmp_path, 20, slower=lambda collective, nbytes: 1.05 if (collective, nbytes) == ("all_reduce", 4 * MIB) else 1.0))
    there = [case for one in found for case in one.cases if (case.collective, case.nbytes) == ("all_reduce", 4 * MIB)]

    assert sum(case.verdict == "regression" for case in there) >= 0.95 * len(there)
    assert sum(case.verdict == "regression" for one in found for case in one.cases) == sum(case.verdict == "regression" for case in there)


def test_a_printed_shift_of_large_messages_alone_is_named_by_its_range(tmp_path):
    for seed, (name, slower) in enumerate((("old", 1.0), ("new", 1.14))):
        rng = seeded(seed)
        sizes = [1 << k for k in range(20, 35)]
        rows = [Measured(n, *(n / 3e5 * (slower if n > 512 * MIB else 1.0) * (1 + rng.gauss(0, 0.004)) for _ in range(2))) for n in sizes]
        (tmp_path / f"{name}.log").write_text("\n".join(log("all_to_all", rows, 16, first=MIB)) + "\n")
    found = compare(tmp_path / "old.log", tmp_path / "new.log")

    assert {case.nbytes for case in found.cases if case.verdict == "regression"} == {1 << k for k in range(30, 35)}
    assert re.fullmatch(r"all_to_all 1-16 GiB is 1[1-3](?: to 1[1-3])? % slower; small unchanged", found.summary[0])


def test_several_baselines_make_one_band(tmp_path):
    rng = seeded(3)
    base = ",".join(str(write_run(tmp_path / f"b{i}", sweep(rng, collectives=("all_reduce",)))) for i in range(4))
    same = write_run(tmp_path / "same", sweep(rng, collectives=("all_reduce",)))
    slow = write_run(tmp_path / "slow", sweep(rng, collectives=("all_reduce",), slower=lambda collective, nbytes: 1.05))

    assert compare(base, same).exit_code == 0
    found = compare(base, slow)
    assert found.counts()["regression"] == len(SIZES)
    assert {(case.n_base, case.n_new) for case in found.cases} == {(4, 1)}


def test_repeats_that_scatter_widely_are_believed_over_what_was_seen_elsewhere(tmp_path):
    times = {"base": (100.0, 130.0, 85.0), "new": (118.0, 95.0, 140.0)}
    paths = {side: [write_run(tmp_path / f"{side}{i}", [point(time_us=time)]) for i, time in enumerate(found)] for side, found in times.items()}
    sides = {side: ",".join(map(str, found)) for side, found in paths.items()}

    assert compare(sides["base"], sides["new"]).cases[0].verdict == "within noise"


# ---- verdicts and reasons ----


def one(tmp_path, base, new, threshold=0.03, **headers):
    """The comparison of two runs of these points."""
    number = len(list(tmp_path.iterdir()))
    old = write_run(tmp_path / f"{number}-base", base)
    return compare(old, write_run(tmp_path / f"{number}-new", new, **headers), threshold)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"clock": "eager"}, "clock graph against eager"),
        ({"regime": "isolated"}, "regime streaming against isolated"),
        ({"placement": "out"}, "placement in against out"),
        ({"variant": "nvls-off"}, "variant unknown against nvls-off"),
        ({"n_ranks": 16}, "ranks 8 against 16"),
        ({"dtype": "bfloat16"}, "dtype float32 against bfloat16"),
        ({"registered": "user"}, "registered none against user"),
    ],
)
def test_cases_measured_differently_are_not_comparable_and_say_why(tmp_path, change, reason):
    found = one(tmp_path, [point(time_us=300.0)], [point(time_us=300.0, **change)])

    assert [(case.verdict, case.reason) for case in found.cases] == [("not comparable", reason)]
    assert found.exit_code == 8


@pytest.mark.parametrize(
    "time_us, ops, comparable",
    [(50.0, (64, 15), False), (50.0, (15, 15), False), (50.0, (128, 20), False), (50.0, (64, 16), True), (150.0, (64, 1), True)],
)
def test_few_operations_a_batch_count_below_100_us_only(tmp_path, time_us, ops, comparable):
    found = one(tmp_path, [point(time_us=time_us, ops_per_batch=ops[0])], [point(time_us=time_us, ops_per_batch=ops[1])])

    assert (found.cases[0].verdict == "within noise") is comparable
    assert comparable or "operations a batch" in found.cases[0].reason


def test_batches_of_calls_that_hosts_time_one_by_one_are_what_they_are(tmp_path):
    few = {"clock": "host", "ops_per_batch": 4}

    assert one(tmp_path, [point(time_us=50.0, **few)], [point(time_us=50.0, **few)]).exit_code == 0


def test_a_log_of_means_is_held_against_our_mean_over_ranks(tmp_path):
    rows = [Measured(256 * MIB, 995.0, 995.0)]
    (tmp_path / "vendor.log").write_text("\n".join(log("all_reduce", rows, 8, first=256 * MIB)) + "\n")
    ours = write_run(tmp_path / "ours", [point(256 * MIB, 1000.0)])
    found = compare(tmp_path / "vendor.log", ours)
    case = next(case for case in found.cases if case.placement == "in")

    assert (case.verdict, case.over_ranks) == ("within noise", "mean")
    assert (case.base_time_us, case.new_time_us) == (995.0, pytest.approx(995.0))
    without = write_run(tmp_path / "without", [point(256 * MIB, 1000.0, mean_over_ranks_us=None)])
    reasons = {case.reason for case in compare(tmp_path / "vendor.log", without).cases if case.placement == "in"}
    assert reasons == {"times are over ranks as max against mean (assumed), and one side has no mean"}


def test_a_short_time_of_a_log_is_not_held_against_a_graph(tmp_path):
    (tmp_path / "vendor.log").write_text("\n".join(log("all_reduce", [Measured(512, 9.5, 9.5)], 8, first=512)) + "\n")
    found = compare(tmp_path / "vendor.log", write_run(tmp_path / "ours", [point(512, 6.0)]))
    case = next(case for case in found.cases if case.placement == "in")

    assert (case.verdict, case.reason) == ("not comparable", "clock the log's own against graph, and below 100 µs launching counts")


def test_what_one_side_lacks_is_missing_and_says_where(tmp_path):
    failed = replace(point(64 * MIB), status="failed", reason="out of memory", time_us=None)
    found = one(tmp_path, [point(), point(8 * MIB), point(64 * MIB)], [point(), point(16 * MIB), failed])
    verdicts = {case.nbytes: (case.verdict, case.reason) for case in found.cases}

    assert verdicts[8 * MIB] == ("missing", "not in NEW")
    assert verdicts[16 * MIB] == ("missing", "not in BASE")
    assert verdicts[64 * MIB] == ("missing", "no measurement in NEW: out of memory")
    assert (found.exit_code, found.why) == (8, "none of 1 comparable cases is slower, but 1 case of BASE failed in NEW")
    assert found.summary[0] == "all_reduce: FAILED in NEW at 64 MiB"
    skipped = replace(failed, status="skipped")
    assert one(tmp_path, [point(), point(64 * MIB)], [point(), skipped]).exit_code == 0


def test_a_certain_change_below_the_threshold_is_no_regression(tmp_path):
    points = [point(nbytes, truth(nbytes)) for nbytes in SIZES]
    slower = [point(nbytes, truth(nbytes) * 1.02) for nbytes in SIZES]

    assert one(tmp_path, points, slower).counts()["within noise"] == len(SIZES)
    assert one(tmp_path, points, slower, threshold=0.01).counts()["regression"] == len(SIZES)


def test_a_faster_run_is_an_improvement_and_ends_0(tmp_path):
    points, faster = ([point(nbytes, truth(nbytes) * scale) for nbytes in SIZES] for scale in (1.0, 0.8))
    found = one(tmp_path, points, faster)

    assert (found.exit_code, found.counts()["improvement"]) == (0, len(SIZES))
    assert found.cases[0].ratio == pytest.approx(0.8)
    assert found.cases[0].change_frac == pytest.approx(0.25)
    assert found.cases[0].ratio_low < 0.8 < found.cases[0].ratio_high
    assert found.summary == ("all_reduce 8 B-1 GiB is 25 % faster",)


def test_a_case_has_the_means_of_its_sides_and_counts_their_measurements(tmp_path):
    base, new = (
        ",".join(str(write_run(tmp_path / f"{side}{us:g}", [point(time_us=us), *more])) for us in times)
        for side, times, more in (("base", (1000.0, 1010.0), [point(8 * MIB)]), ("new", (1100.0, 1110.0, 1150.0), [point(16 * MIB)]))
    )
    case, gone, come = compare(base, new).cases
    busbw = [MIB / us * 1e-3 * 2 * 7 / 8 for us in (1000, 1010, 1100, 1110, 1150)]

    assert [(one.n_base, one.n_new) for one in (case, gone, come)] == [(2, 3), (2, 0), (0, 3)]
    assert (case.base_time_us, case.new_time_us) == (pytest.approx(1005.0), pytest.approx(1120.0))
    assert (case.base_busbw_GBps, case.new_busbw_GBps) == (pytest.approx(sum(busbw[:2]) / 2), pytest.approx(sum(busbw[2:]) / 3))
    assert (case.ratio, case.change_frac) == (pytest.approx(1120 / 1005), pytest.approx(1005 / 1120 - 1))
    assert (case.by, case.over_ranks) == ("time", "max")
    assert (gone.ratio, gone.base_time_us, gone.p_value) == (None, None, None)


def test_the_interval_leaves_out_equality_where_the_chance_is_below_5_percent_and_only_there(tmp_path):
    cases = [case for one in families(tmp_path, 3, run_frac=0.02) for case in one.cases]
    sure = [case.p_value < 0.05 for case in cases]

    assert 5 < sum(sure) < len(cases) - 5
    assert [case.ratio_low > 1 or case.ratio_high < 1 for case in cases] == sure
    assert all(case.ratio_low < case.ratio < case.ratio_high for case in cases)
    assert all(case.ratio_low * case.ratio_high == pytest.approx(case.ratio**2) for case in cases)


def test_repeats_know_their_own_noise_whatever_single_sizes_beside_them_do(tmp_path):
    rng = seeded(1)
    single = [[point(nbytes, truth(nbytes) * math.exp(rng.gauss(0, 0.3))) for nbytes in SIZES if nbytes != MIB] for _ in range(2)]
    sides = []
    for name, us, more in (("base", 10.0, single[0]), ("new", 11.0, single[1])):
        runs = [write_run(tmp_path / f"{name}{at}", [point(MIB, us + 0.02 * at), *(more if at == 0 else [])]) for at in range(2)]
        sides.append(",".join(map(str, runs)))
    short = [case for case in compare(*sides).cases if case.base_time_us < 100]

    assert [(case.verdict, case.n_base) for case in short if case.nbytes == MIB] == [("regression", 2)]
    assert sum(case.verdict != "within noise" for case in short) <= 3, "10 % is little among single ones that scatter by 40 %"


def test_wrong_data_is_named_by_the_first_case_that_has_it(tmp_path):
    points = [point(MIB), point(8 * MIB), point(16 * MIB)]
    found = one(tmp_path, points, [points[0], replace(points[1], n_wrong=3), replace(points[2], n_wrong=4)])

    assert found.exit_code == 7
    assert found.why.startswith(f"all_reduce {8 * MIB} B: wrong data")


@pytest.mark.parametrize("side", ["BASE", "NEW"])
def test_wrong_data_counts_and_is_told_first_whatever_stands_against_it(tmp_path, side):
    right, wrong = [point(MIB), point(8 * MIB)], [point(MIB), point(8 * MIB), replace(point(16 * MIB), n_wrong=4)]
    base, new = (wrong, right) if side == "BASE" else (right, wrong)
    alone = one(tmp_path, base, new)
    beside = one(tmp_path, [*right, point(16 * MIB, clock="eager")], wrong)
    failed = one(tmp_path, right, [right[0], replace(right[1], n_wrong=4, status="failed", time_us=None)])

    assert (alone.exit_code, beside.exit_code, failed.exit_code) == (7, 7, 7)
    assert alone.summary == (f"all_reduce: WRONG DATA in {side} at 16 MiB", "all_reduce 1-8 MiB: no difference shown where the data was right")
    assert next(case.reason for case in alone.cases if case.verdict == "missing").endswith(f"; wrong data in {side}: 4 elements")
    assert lines(alone)[3] == f"all_reduce: WRONG DATA in {side} at 16 MiB"


@pytest.mark.parametrize("other, word", [({"not_nccl": True, "backend": "gloo"}, "gloo"), ({"shared_gpu": True}, "ranks that share a GPU")])
def test_a_rehearsal_is_held_against_its_like_alone(tmp_path, other, word):
    (tmp_path / "vendor.log").write_text("\n".join(log("all_reduce", [Measured(16 * MIB, 100.0, 100.0)], 8, first=16 * MIB)) + "\n")
    rehearsal = write_run(tmp_path / "rehearsal", [point(16 * MIB, 26300.0, clock="host")], **other)
    real = write_run(tmp_path / "real", [point(16 * MIB, 100.0, clock="host")])
    ends = [compare(*sides) for sides in ((rehearsal, tmp_path / "vendor.log"), (tmp_path / "vendor.log", rehearsal), (rehearsal, real))]

    assert [found.exit_code for found in ends] == [8, 8, 8]
    assert all(case.verdict in ("not comparable", "missing") for found in ends for case in found.cases)
    assert ends[0].why.startswith(f"nothing is comparable: backend {word} against NCCL")
    assert compare(rehearsal, rehearsal).exit_code == 0


def test_a_table_says_where_its_intervals_and_its_times_come_from(tmp_path):
    for name, us in (("old", 1000.0), ("new", 1020.0)):
        (tmp_path / f"{name}.log").write_text("\n".join(log("all_reduce", [Measured(256 * MIB, us, us)], 8, first=256 * MIB)) + "\n")
    printed = compare(tmp_path / "old.log", tmp_path / "new.log")
    ours = one(tmp_path, [point()], [point()])

    assert [{case.noise_from for case in found.cases} for found in (printed, ours)] == [{"assumed"}, {"series"}]
    assert [len(notes(found)) for found in (printed, ours)] == [2, 0]
    assert any(line.endswith("streaming · mean over ranks") for line in lines(printed))


def test_a_range_of_which_only_some_cases_changed_says_so(tmp_path):
    forms = [[point(nbytes, us, placement=form) for nbytes in SIZES] for us, form in ((400.0, "in"), (400.0, "out"))]
    slower = [replace(one, time_us=point(one.nbytes, 600.0).time_us) for one in forms[0]]
    found = one(tmp_path, forms[0] + forms[1], slower + forms[1])

    assert found.summary == (f"all_reduce 8 B-1 GiB is 33 % slower in {len(SIZES)} of {2 * len(SIZES)} cases",)


def test_what_is_not_called_says_why_not(tmp_path):
    cases = [case for one in families(tmp_path, 3, run_frac=0.03) for case in one.cases if case.verdict == "within noise"]
    large = [case for case in cases if abs(case.change_frac) > 0.03]
    reasons = {case.reason: case.p_value < 0.05 for case in large}

    assert reasons == {f"one of {2 * len(SIZES)} comparisons: can be chance": True, "not beyond what repeats differ by": False}
    steady = one(tmp_path, [point(nbytes, truth(nbytes)) for nbytes in SIZES], [point(nbytes, truth(nbytes) * 1.02) for nbytes in SIZES])
    assert {case.reason for case in steady.cases} == {"sure, but not more than 3 %"}
    assert {case.reason for case in one(tmp_path, [point()], [point()]).cases} == {None}


@pytest.mark.parametrize(
    ("in_place", "verdict", "reason"),
    [
        (0.8, "within noise", "the other half of the row moves the other way ({:+.1f} %)"),
        (1.02, "regression", None),
        (1.25, "regression", None),
    ],
)
def test_halves_of_a_printed_row_that_contradict_one_another_are_no_change(tmp_path, in_place, verdict, reason):
    sizes = [1 << k for k in range(26, 33)]
    for name, out, inside in (("old", 1.0, 1.0), ("new", 1.25, in_place)):
        rows = [Measured(n, n / 3e5 * out, n / 3e5 * inside) for n in sizes]
        (tmp_path / f"{name}.log").write_text("\n".join(log("all_reduce", rows, 8, first=sizes[0])) + "\n")
    cases = [case for case in compare(tmp_path / "old.log", tmp_path / "new.log").cases if case.placement == "out"]

    assert [case.change_frac for case in cases] == pytest.approx([-0.2] * len(sizes), abs=5e-3)
    assert {case.verdict for case in cases} == {verdict}
    words = {re.sub(r"[-+][\d.]+", "N", case.reason) if case.reason else None for case in cases}
    assert words == {re.sub(r"{.*?}", "N", reason) if reason else None}
    if reason:
        shown = [float(re.search(r"[-+][\d.]+", case.reason)[0]) for case in cases]
        assert shown == pytest.approx([25.0] * len(sizes), abs=0.1)


def test_halves_of_our_own_runs_are_measured_one_by_one_and_may_move_apart(tmp_path):
    points, moved = (
        [point(64 * MIB, 300.0 * scale, placement=placement) for placement, scale in (("in", inside), ("out", out))]
        for inside, out in ((1.0, 1.0), (1.25, 0.8))
    )

    assert [case.verdict for case in one(tmp_path, points, moved).cases] == ["regression", "improvement"]


def test_a_sentence_names_of_a_group_what_tells_it_from_the_collectives_other_groups_alone(tmp_path):
    kinds = [
        {"collective": "all_gather", "clock": "graph"},
        {"collective": "broadcast", "clock": "eager"},
        {"collective": "reduce", "clock": "graph"},
        {"collective": "reduce", "clock": "graph", "regime": "isolated"},
    ]
    points = [point(64 * MIB, 1000.0, **kind) for kind in kinds]
    found = one(tmp_path, points, points)

    assert [sentence.rpartition(" 64 MiB")[0] for sentence in found.summary] == ["all_gather", "broadcast", "reduce (streaming)", "reduce (isolated)"]


def test_the_end_says_how_many_are_slower_and_of_how_many(tmp_path):
    points = [point(nbytes, truth(nbytes)) for nbytes in SIZES]
    slower = [replace(at, time_us=point(at.nbytes, truth(at.nbytes) * 1.3).time_us) if at.nbytes > 64 * MIB else at for at in points]
    worse, same = one(tmp_path, points, slower), one(tmp_path, points, points)

    assert (worse.exit_code, worse.why) == (1, "4 of 28 comparable cases are slower")
    assert (same.exit_code, same.why) == (0, "none of 28 comparable cases is slower")
    assert one(tmp_path, [point()], [point(8 * MIB)]).why == "nothing is comparable: no case is measured on both sides"


def test_what_changed_between_the_headers_is_listed(tmp_path):
    new = {"versions": {"nccl": "2.29.2", "torch": "2.13.0"}, "env": {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "7"}, "plugins": ("aws-ofi-nccl",)}
    found = one(tmp_path, [point()], [point()], **new)

    assert {item["what"]: (item["base"], item["new"]) for item in found.changed} == {
        "version of nccl": (None, "2.29.2"),
        "version of torch": (None, "2.13.0"),
        "env NCCL_ALGO": (None, "Ring"),
        "plug-ins": (None, "aws-ofi-nccl"),
    }


def test_a_rehearsal_is_said_to_be_none(tmp_path):
    found = one(tmp_path, [point()], [point()], not_nccl=True)

    assert any("NOT NCCL" in warning for warning in found.warnings)


def test_the_document_is_json_without_nan(tmp_path):
    found = one(tmp_path, [point(), point(8 * MIB)], [point()])
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))

    assert document["counts"]["missing"] == 1
    assert document["cases"][1]["ratio"] is None
    assert set(document) == {"base", "new", "threshold_frac", "cases", "summary", "changed", "warnings", "exit_code", "why", "counts"}


def test_a_usage_error_is_not_swallowed(tmp_path):
    from nccl_bench.cli.compare import compare as command

    with pytest.raises(UsageError, match="--threshold 3"):
        command(str(tmp_path), str(tmp_path), threshold=3.0)
