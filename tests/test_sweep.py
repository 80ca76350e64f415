"""The measuring room on real gloo ranks: every collective, dtype and reduction, the check, the clocks' honesty."""

import pytest

pytest.importorskip("torch")

from ranks import against_a_bare_loop, calls_between_clock_reads, domain_of_cliques, on_ranks, sweep_on

from nccl_bench.collectives import COLLECTIVES, bus_factor
from nccl_bench.dtypes import DTYPES, OPS
from nccl_bench.measure.stats import median_interval

QUICK = {"budget_s": 0.02, "warmup_iters": 1}


@pytest.fixture(scope="module")
def everything():
    """Two ranks, all collectives at three sizes."""
    return on_ranks(2, sweep_on, {"collectives": tuple(COLLECTIVES), "sizes": (64, 4096, 100_010), "budget_s": 0.05})


def test_every_collective_runs_and_its_data_is_right(everything):
    for point in everything[0]:
        assert (point["status"], point["n_wrong"], point["wrong"]) == ("ok", 0, None), point

    assert {point["collective"] for point in everything[0]} == set(COLLECTIVES)


def test_all_ranks_see_the_same_points(everything):
    for mine, theirs in zip(*everything, strict=True):
        for name in ("collective", "nbytes", "batches", "series", "series_us", "time_us", "stop", "busbw_GBps", "mean_over_ranks_us", "lateness"):
            assert mine[name] == theirs[name], name


def test_bandwidths_follow_from_the_median_and_the_bus_factor(everything):
    for point in everything[0]:
        algbw = point["nbytes"] / point["time_us"]["median"] * 1e-3

        assert point["algbw_GBps"] == pytest.approx(algbw)
        assert point["busbw_GBps"] == pytest.approx(algbw * bus_factor(point["collective"], 2))


def test_statistics_are_ordered_and_count_what_ran(everything):
    for point in everything[0]:
        times = point["time_us"]

        assert times["min"] <= times["median"] <= times["max"]
        assert (times["ci_low"] is None) == (point["batches"] < 6)  # a budget overdrawn four times ends a case even so
        if times["ci_low"] is not None:
            assert times["min"] <= times["ci_low"] <= times["median"] <= times["ci_high"] <= times["max"]
        assert point["batches"] * (point["ops_per_batch"]) == point["iters"]
        assert len(point["series_us"]) == point["series"] >= 1
        assert (times["p99"] is None) == (point["batches"] < 100)
        # The isolated series that shows lateness is a fixed number of series: it may stop at that count.
        assert point["stop"] in ("precision", "time") or (point["stop"] == "iters" and point["regime"] == "isolated")


def test_isolated_series_carry_the_lateness_of_every_rank_and_streaming_ones_none(everything):
    for point in everything[0]:
        if point["regime"] == "isolated":
            assert len(point["lateness"]) == 2
            assert min(point["lateness"]) == 0
            assert point["sample"] == "op"
        else:
            assert point["lateness"] == []


def test_sizes_that_cannot_be_shared_evenly_are_said_and_measured_below(everything):
    gathered = [point for point in everything[0] if point["collective"] == "all_gather" and point["requested_nbytes"] == 100_010]

    assert gathered[0]["nbytes"] == 100_000
    assert gathered[0]["count"] == 100_000 // 4 // 2


@pytest.mark.parametrize("n", [1, 3, 4])
def test_other_numbers_of_ranks(n):
    points = on_ranks(n, sweep_on, {"collectives": tuple(COLLECTIVES), "sizes": (3000,), **QUICK})[0]

    skipped = {point["collective"] for point in points if point["status"] == "skipped"}
    assert skipped == ({"sendrecv", "pingpong"} if n == 1 else set())
    assert all(point["n_wrong"] == 0 for point in points if point["status"] == "ok")


def test_every_dtype_and_reduction_is_right_or_skipped_with_the_reason():
    spec = {"collectives": ("all_reduce", "reduce_scatter", "reduce"), "sizes": (960,), "dtypes": tuple(DTYPES), "ops": tuple(OPS), **QUICK}
    points = on_ranks(3, sweep_on, spec)[0]

    wrong = [(p["collective"], p["dtype"], p["op"], p["reason"]) for p in points if p["status"] == "failed"]
    assert wrong == []
    ran = {(p["dtype"], p["op"]) for p in points if p["status"] == "ok"}
    assert {("float32", "avg"), ("bfloat16", "sum"), ("float16", "product"), ("int8", "sum"), ("uint8", "max"), ("int64", "min")} <= ran
    assert all(p["reason"] for p in points if p["status"] == "skipped")


def test_every_dtype_is_moved_even_those_gloo_cannot_reduce():
    names = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", "sendrecv", "pingpong")
    points = on_ranks(2, sweep_on, {"collectives": names, "sizes": (960,), "dtypes": tuple(DTYPES), **QUICK})[0]

    assert {(p["collective"], p["dtype"]) for p in points if p["status"] == "ok" and p["n_wrong"] == 0} == {(c, d) for c in names for d in DTYPES}


def test_both_placements_where_torch_has_them():
    points = on_ranks(2, sweep_on, {"collectives": ("all_gather", "reduce_scatter", "all_reduce"), "sizes": (4096,), "placement": "both", **QUICK})[0]
    ran = {(p["collective"], p["placement"]): p["status"] for p in points}

    assert ran == {
        ("all_gather", "in"): "ok", ("all_gather", "out"): "ok", ("reduce_scatter", "in"): "ok", ("reduce_scatter", "out"): "ok",
        ("all_reduce", "in"): "ok", ("all_reduce", "out"): "skipped",
    }  # fmt: skip


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "sendrecv", "all_to_all", "broadcast", "scatter"])
@pytest.mark.parametrize("slot", [0, 2])
def test_one_changed_element_on_one_rank_is_found_and_named(collective, slot):
    damage = {"rank": 1, "slot": slot, "element": 5}
    spec = {"collectives": (collective,), "sizes": (8 << 20,), **QUICK}  # of this size several slots are needed to outgrow the cache

    for points in on_ranks(2, sweep_on, spec, damage):
        point = points[0]
        assert (point["status"], point["n_wrong"]) == ("failed", 1)
        assert (point["wrong"]["rank"], point["wrong"]["index"]) == (1, 5)
        assert f"slot {slot}" in point["wrong"]["where"]
        assert float(point["wrong"]["got"]) == point["wrong"]["expected"] + 1
        assert "rank 1" in point["reason"]


def test_without_the_check_nothing_is_called_right():
    damage = {"rank": 1, "slot": 0, "element": 5}

    point = on_ranks(2, sweep_on, {"collectives": ("all_reduce",), "sizes": (4096,), "check": False, **QUICK}, damage)[0][0]

    assert (point["status"], point["n_wrong"]) == ("ok", None)


def test_a_fixed_count_runs_exactly_so_many_operations():
    points = on_ranks(2, sweep_on, {"collectives": ("all_reduce", "broadcast"), "sizes": (64, 65536), "iters": 30, "warmup_iters": 2})[0]

    assert {(p["iters"], p["stop"]) for p in points if p["regime"] == "streaming"} == {(30, "iters")}


def test_an_unwarmed_case_says_so():
    points = on_ranks(2, sweep_on, {"collectives": ("all_reduce",), "sizes": (64,), "iters": 4, "warmup_iters": 0})[0]

    assert "not warmed up" in points[0]["reason"]


def test_the_first_size_is_no_faster_and_no_slower_than_the_same_size_at_the_end():
    """Order must not matter: 64 KiB measured first, and again after others (bigscience-workshop/bigscience#64)."""
    spec = {"collectives": ("all_reduce",), "sizes": (65536, 1 << 20, 65537), "budget_s": 0.5}

    points = [p for p in on_ranks(2, sweep_on, spec)[0] if p["regime"] == "streaming"]

    assert points[0]["nbytes"] == points[2]["nbytes"] == 65536
    # The fastest batches: other programs on the machine slow some, a cold start would slow all. A busy machine slows even those:
    # the bound is far outside of what any order of sizes could do, and inside of what connecting within the timing costs (hundreds of times).
    assert 0.1 < points[0]["time_us"]["min"] / points[2]["time_us"]["min"] < 10


def test_a_duration_repeats_the_sweep_and_numbers_the_passes():
    points = on_ranks(2, sweep_on, {"collectives": ("broadcast",), "sizes": (64,), "duration_s": 0.5, **QUICK})[0]

    assert {p["pass"] for p in points} == set(range(max(p["pass"] for p in points) + 1))
    assert max(p["pass"] for p in points) >= 1


@pytest.mark.parametrize("k", [1, 4])
def test_exactly_k_collectives_and_nothing_else_run_between_two_clock_reads(k):
    for batches in on_ranks(2, calls_between_clock_reads, k):
        assert len(batches) == 3
        for names in batches:
            assert len(names) == k
            assert all("allreduce" in name for name in names)


def test_a_case_costs_what_a_bare_loop_costs():
    pairs = on_ranks(2, against_a_bare_loop, 200)[0]
    ratios = [ours / bare for ours, bare in pairs]

    low, high = median_interval(ratios)

    assert low < 1.25  # dearer by so much beyond noise would be our doing; benchmarks/claims.py has the ratios
    assert high > 0.8


@pytest.mark.parametrize(
    ("cliques", "one"),
    [((5.0, None, 5.0), True), ((5.0, None, 7.0), False), ((5.0, 0.0, 5.0), False), ((0.0, 0.0, 0.0), False), ((None, None, None), False)],
)
def test_nodes_share_an_nvlink_domain_only_where_all_that_looked_are_in_the_same(cliques, one):
    assert on_ranks(3, domain_of_cliques, cliques) == [one] * 3
