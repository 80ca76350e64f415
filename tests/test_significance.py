"""Student's t and Holm's rule against tables and against counting."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.verdict.significance import holm, t_quantile, two_sided_p

TABLE = [
    *[(12.706, 1, 0.05), (63.657, 1, 0.01), (2.776, 4, 0.05), (4.604, 4, 0.01)],
    *[(2.228, 10, 0.05), (3.169, 10, 0.01), (2.042, 30, 0.05), (1.96, math.inf, 0.05)],
]


@pytest.mark.parametrize("t, df, p", TABLE)
def test_the_t_distribution_is_that_of_the_tables(t, df, p):
    assert two_sided_p(t, df) == pytest.approx(p, rel=2e-3)
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-3)


@given(st.floats(1e-12, 0.99), st.one_of(st.floats(1, 1e6), st.just(math.inf)))
def test_the_quantile_is_the_t_of_that_chance(p, df):
    t = t_quantile(p, df)

    assert two_sided_p(t * (1 - 1e-9), df) >= p * (1 - 1e-12)
    assert two_sided_p(t * (1 + 1e-9), df) <= p * (1 + 1e-12)


@given(st.floats(0, 1e6), st.floats(0.5, 1e4))
def test_a_chance_lies_between_0_and_1_and_falls_with_t(t, df):
    assert 0 <= two_sided_p(t * 1.01 + 0.01, df) <= two_sided_p(t, df) <= 1


def test_what_is_no_number_is_no_difference():
    assert two_sided_p(math.nan, 5) == 1.0
    assert two_sided_p(math.inf, 5) == 0.0


def test_holm_calls_step_by_step_and_stops():
    assert holm([0.04, 0.001, 0.02, 0.5], 0.05) == [False, True, False, False]
    assert holm([0.01, 0.013, 0.02, 0.04], 0.05) == [True, True, True, True]
    assert holm([0.02, 0.02, 0.02], 0.05) == [False, False, False]
    assert holm([], 0.05) == []


def test_holm_is_wrong_at_all_in_no_more_than_alpha_of_families_without_a_difference():
    rng = random.Random(7)
    families = [any(holm([rng.random() for _ in range(40)], 0.05)) for _ in range(2000)]

    assert sum(families) / len(families) < 0.065
