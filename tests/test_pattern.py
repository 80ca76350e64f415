"""What is sent and what must arrive: exact arithmetic, checked by brute force and by what it catches."""

import functools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.dtypes import DTYPES, OPS
from nccl_bench.measure.pattern import MODULUS, PERIOD, RANK_STEP, pattern_for, phase, residue

pytestmark = pytest.mark.pure
PURE = {"sum": sum, "max": max, "min": min, "product": lambda values: functools.reduce(operator.mul, values)}


def wrapped(value, dtype):
    """Two's complement, as integer hardware has it."""
    if DTYPES[dtype].is_float:
        return float(value)
    bits = 8 * DTYPES[dtype].itemsize
    value %= 1 << bits
    return float(value - (1 << bits) if DTYPES[dtype].signed and value >= 1 << (bits - 1) else value)


@given(st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(PURE)), st.integers(1, 40), st.integers(0, 3 * PERIOD))
@settings(max_examples=300)
def test_what_must_arrive_is_the_reduction_of_what_all_ranks_sent(dtype, op, n, index):
    pattern = pattern_for(dtype, op, n)
    sent = [pattern.values[(phase(index) + residue(rank, 3)) % MODULUS] for rank in range(n)]

    expected = pattern.reduced[(phase(index) + residue(0, 3)) % MODULUS]

    assert abs(expected - wrapped(PURE[op](sent), dtype)) <= pattern.tolerance


@given(st.sampled_from(sorted(name for name in DTYPES if DTYPES[name].is_float)), st.integers(1, 16384))
@settings(max_examples=60)
def test_every_partial_sum_of_floats_is_an_integer_the_dtype_holds_or_a_tolerance_is_stated(dtype, n):
    pattern = pattern_for(dtype, "sum", n)

    assert pattern.tolerance > 0 or max(pattern.reduced) <= DTYPES[dtype].exact_int
    assert (pattern.tolerance > 0) == (pattern.why_tolerance is not None)
    assert max(pattern.values) >= 1


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_averages_over_a_power_of_two_are_exact(dtype, n):
    pattern = pattern_for(dtype, "avg", n)

    assert pattern.tolerance == 0
    assert pattern.reduced == tuple(total / n for total in pattern_for(dtype, "sum", n).reduced)


def test_averages_over_three_ranks_state_their_tolerance():
    pattern = pattern_for("float32", "avg", 3)

    assert 0 < pattern.tolerance < 1e-4
    assert "3 ranks" in pattern.why_tolerance


@given(st.integers(0, 3 * PERIOD))
def test_the_phase_repeats_after_a_period_and_not_after_a_power_of_two(index):
    assert phase(index + PERIOD) == phase(index)


@pytest.mark.parametrize("shift", [1 << bit for bit in range(24)])
def test_data_shifted_by_a_power_of_two_shows(shift):
    values = pattern_for("float32", None, 2).values

    assert any(values[phase(i)] != values[phase(i + shift)] for i in range(0, PERIOD, 97))


@given(st.integers(0, 4096), st.integers(0, 4096), st.integers(0, 63), st.integers(0, 63))
def test_two_ranks_or_slots_send_the_same_only_where_their_residues_meet(rank, other, slot, other_slot):
    same = residue(rank, slot) == residue(other, other_slot)

    assert same == ((RANK_STEP * (rank - other) + 17 * (slot - other_slot)) % MODULUS == 0)


def test_every_reduction_and_dtype_has_a_pattern():
    for dtype in DTYPES:
        for op in (None, *OPS):
            pattern = pattern_for(dtype, op, 8)

            assert len(pattern.values) == len(pattern.reduced) == MODULUS
            assert len(set(pattern.values)) > 1
