"""The stopping rule and its statistics: pure, always ends, the same on every rank."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.measure.stats import interval, interval_index, median, median_interval, percentile, summarise
from nccl_bench.measure.stopping import MAX_SERIES, MIN_SERIES, StopRule, batches_per_series, ops_per_batch

anything = st.floats(allow_nan=True, allow_infinity=True)


@given(
    series=st.lists(st.lists(anything, max_size=5), min_size=1, max_size=5),
    elapsed=st.lists(anything, min_size=1, max_size=5),
    precision=st.floats(1e-6, 0.5),
    budget=st.floats(1e-3, 1e9),
    n_batches=st.none() | st.integers(1, 50),
)
def test_the_rule_ends_whatever_it_is_fed(series, elapsed, precision, budget, n_batches):
    rule = StopRule(precision=precision, budget_s=budget, n_batches=n_batches)
    count = 0
    while rule.done() is None:
        rule.add(series[count % len(series)], elapsed[count % len(elapsed)])
        count += 1
        assert count <= MAX_SERIES
    assert rule.done() in {"precision", "time", "iters"}


@given(st.lists(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=6), min_size=1, max_size=20))
def test_two_rules_fed_the_same_values_stop_at_the_same_series(series):
    first, second = (StopRule(precision=0.05, budget_s=10.0) for _ in range(2))
    for number, batches in enumerate(series):
        first.add(batches, 0.1 * number)
        second.add(batches, 0.1 * number)

        assert first.done() == second.done()
        assert first.times() == second.times()


def test_steady_times_stop_by_precision_after_six_series_and_noisy_ones_by_time():
    steady, noisy = (StopRule(precision=0.01, budget_s=2.0) for _ in range(2))
    for number in range(MIN_SERIES):
        assert steady.done() is None
        steady.add([10.0, 10.01], 0.01 * number)
        noisy.add([10.0, 14.0 + number], 0.01 * number)
    assert steady.done() == "precision"
    assert noisy.done() is None

    noisy.add([10.0, 30.0], 2.5)

    assert noisy.done() == "time"


def test_a_spent_budget_waits_for_the_six_batches_of_an_interval_but_not_for_ever():
    slow, slower = (StopRule(precision=0.01, budget_s=2.0) for _ in range(2))
    for number in (1, 2):
        slow.add([1e6, 1.1e6], 2.2 * number)
        assert slow.done() is None
        slower.add([2e6, 2.1e6], 4.1 * number)

    slow.add([1e6, 1.1e6], 6.6)

    assert (slow.done(), slower.done()) == ("time", "time")
    assert slow.times().ci_low == 1e6


def test_a_fixed_count_stops_at_that_count():
    rule = StopRule(precision=0.01, budget_s=1e-3, n_batches=5)
    while rule.done() is None:
        rule.add([1.0] * rule.next_batches(2), 99.0)

    assert len(rule.batches) == 5
    assert rule.done() == "iters"


def test_the_quantum_of_the_clock_widens_the_interval():
    rule = StopRule(precision=0.01, budget_s=2.0, quantum_us=0.5)
    for _ in range(MIN_SERIES):
        rule.add([5.0] * 4, 0.1)

    assert rule.done() is None
    assert rule.rel_half_width() == pytest.approx(0.05)


@pytest.mark.parametrize("n", [6, 7, 8, 9, 10, 15, 20, 33, 100, 999])
def test_the_interval_encloses_the_median_with_95_percent_and_the_next_one_does_not(n):
    skip = interval_index(n)
    outside = 2 * sum(math.comb(n, i) for i in range(skip + 1)) / 2**n
    narrower = outside + 2 * math.comb(n, skip + 1) / 2**n

    assert outside <= 0.05 < narrower


def test_no_interval_below_six_samples():
    assert [interval_index(n) for n in range(6)] == [None] * 6
    assert median_interval([1.0] * 5) is None


def test_the_normal_approximation_meets_the_exact_index():
    exact = interval_index(1000)

    assert abs(interval_index(1001) - exact) <= 1


@given(st.lists(st.floats(1e-3, 1e9), min_size=6, max_size=200), st.floats(0, 10))
def test_the_median_lies_in_its_interval_and_the_interval_within_the_values(values, quantum):
    low, high = interval(values, [], quantum)

    assert low <= median(values) <= high
    assert high - low >= quantum * 0.999
    if quantum == 0:
        assert min(values) <= low
        assert high <= max(values)


@given(st.lists(st.floats(1.0, 100.0), min_size=6, max_size=60), st.lists(st.floats(1.0, 100.0), min_size=6, max_size=10))
def test_the_interval_is_the_wider_of_batches_and_series(batches, series):
    low, high = interval(batches, series, 0.0)

    for part in (median_interval(batches), median_interval(series)):
        assert low <= part[0]
        assert part[1] <= high


def test_percentiles_are_nearest_rank_and_absent_where_they_would_be_the_maximum():
    values = [float(v) for v in range(1, 101)]

    assert percentile(values, 0.95) == 95.0
    assert summarise(values, [], 0.0).p99 == 99.0
    assert summarise(values[:99], [], 0.0).p99 is None
    assert summarise(values[:19], [], 0.0).p95 is None


def test_k_is_a_rule():
    assert [ops_per_batch(us) for us in (5.0, 99.0, 100.0, 999.0, 1000.0, 1e6)] == [64, 64, 4, 4, 1, 1]


@given(st.floats(0.1, 1e6), st.integers(1, 5000))
def test_a_fixed_count_is_shared_out_into_whole_batches(op_us, iters):
    k = ops_per_batch(op_us, iters)

    assert iters % k == 0
    assert 1 <= k <= 64


def test_a_series_is_two_to_eight_batches():
    assert [batches_per_series(us, 2.0) for us in (384.0, 2500.0, 13e3, math.nan, 0.0)] == [8, 4, 2, 8, 8]


@pytest.mark.parametrize(("op_us", "iters", "k"), [(10.0, 65, 13), (500.0, 10, 2), (500.0, 25, 1), (10.0, 64, 64), (10.0, 128, 64), (5e3, 20, 1)])
def test_the_batch_of_a_fixed_count_is_its_largest_divisor_within_the_rule(op_us, iters, k):
    assert ops_per_batch(op_us, iters) == k


def test_lateness_takes_the_six_series_of_an_interval_and_no_more_however_wide_it_is():
    narrow, wide = (StopRule(precision=0.01, budget_s=100.0, least=True) for _ in range(2))
    for number in range(MIN_SERIES):
        assert (narrow.done(), wide.done()) == (None, None)
        narrow.add([10.0, 10.0], 0.01 * number)
        wide.add([10.0, 90.0 + number], 0.01 * number)

    assert (narrow.done(), wide.done()) == ("precision", "iters")

    wide.add([10.0, 90.0], 0.1)

    assert wide.done() == "iters"


def test_discarded_batches_count_towards_a_fixed_count_and_never_as_times():
    rule = StopRule(precision=0.01, budget_s=1.0, n_batches=5)
    rule.add([1.0, math.inf, math.nan], 0.1)

    assert (rule.n_discarded, rule.done(), rule.next_batches(8)) == (2, None, 2)

    rule.add([3.0, -1.0], 0.1)

    assert (rule.batches, rule.n_discarded, rule.done()) == ([1.0, 3.0], 3, "iters")


def test_series_grow_where_many_were_not_enough():
    rule = StopRule(precision=1e-9, budget_s=1e9)
    taken = []
    for _ in range(7 * MIN_SERIES):
        taken.append(rule.next_batches(2))
        rule.add([1.0, 2.0], 0.0)

    assert taken[:: MIN_SERIES] == [2, 2, 4, 8, 16, 32, 64]
    assert taken[2 * MIN_SERIES - 1] == 2
    assert rule.next_batches(2) == 64


def test_six_series_are_needed_and_a_thousand_are_the_end():
    steady, endless = (StopRule(precision=precision, budget_s=9.0) for precision in (0.01, 1e-9))
    counted = StopRule(precision=0.01, budget_s=9.0, n_batches=2)
    ends = []
    for _ in range(1001):
        steady.add([5.0], 0.0)
        endless.add([1.0, 2.0], 0.0)
        counted.add([], 0.0)
        ends.append((steady.done(), endless.done(), counted.done()))

    assert [at[0] for at in ends].index("precision") + 1 == 6
    assert [at[1] for at in ends].index("time") + 1 == [at[2] for at in ends].index("iters") + 1 == 1000
    assert ends[-1] == ("precision", "time", "iters")


def test_precision_that_comes_late_stops_too():
    rule = StopRule(precision=0.05, budget_s=9.0)
    for us in (5.0, 9.0) * 3:
        rule.add([us], 0.0)
    assert rule.done() is None

    for _ in range(94):
        rule.add([5.0], 0.0)

    assert rule.done() == "precision"


def test_a_count_is_over_once_it_is_passed_and_not_before_it_is_reached():
    rule = StopRule(precision=0.01, budget_s=1.0, n_batches=6)
    rule.add([1.0, 1.0, math.nan, math.nan, math.nan], 0.1)

    assert rule.done() is None

    rule.add([1.0, 1.0], 0.1)

    assert rule.done() == "iters"


def test_without_any_budget_one_series_is_taken():
    rule = StopRule(precision=0.01, budget_s=0.0)

    assert rule.done() is None

    rule.add([1.0], 0.0)

    assert rule.done() == "time"


def test_the_budget_may_be_overdrawn_fourfold_for_an_interval_and_not_beyond():
    within, beyond = (StopRule(precision=0.01, budget_s=2.0) for _ in range(2))
    within.add([1e6], 7.9)
    beyond.add([1e6], 8.0)

    assert (within.done(), beyond.done()) == (None, "time")


def test_a_clock_without_a_number_ends_a_case_after_its_first_series():
    rule = StopRule(precision=0.01, budget_s=2.0)

    assert rule.done() is None

    rule.add([5.0], math.nan)

    assert rule.done() == "time"


def test_without_a_quantum_equal_times_have_no_width():
    rule = StopRule(precision=0.01, budget_s=2.0)
    for _ in range(MIN_SERIES):
        rule.add([5.0], 0.1)

    assert rule.rel_half_width() == 0.0
