"""The alpha-beta line of a curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.report.fit import fit_line

SIZES = [8 * 4**i for i in range(14)]


@given(st.floats(0.5, 1e4), st.floats(0.01, 2000.0))
def test_a_noiseless_line_gives_its_numbers_back(alpha, beta):
    line = fit_line((size, alpha + size / beta * 1e-3) for size in SIZES)

    assert line.alpha_us == pytest.approx(alpha, rel=1e-3)
    assert line.beta_GBps == pytest.approx(beta, rel=1e-3)
    assert line.error_frac < 1e-4


@given(st.lists(st.tuples(st.integers(1, 1 << 34), st.floats(0.1, 1e7)), max_size=30))
def test_whatever_it_is_given_the_fit_is_a_rising_line_or_none(points):
    line = fit_line(points)

    assert line is None or (line.alpha_us >= 0 and line.beta_GBps > 0 and line.error_frac >= 0)


def test_two_numbers_are_not_taken_from_three_sizes():
    assert fit_line([(8, 5.0), (1024, 6.0), (1 << 20, 20.0)]) is None


def test_a_curve_with_a_step_says_how_badly_a_line_describes_it():
    line = fit_line((size, (5.0 if size < 1 << 16 else 50.0) + size * 1e-5) for size in SIZES)

    assert line.error_frac > 0.1
