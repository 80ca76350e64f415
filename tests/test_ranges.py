"""Verdicts by size in a sentence."""

import pytest

from nccl_bench.verdict.ranges import sentence, size_range

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    "first, last, words",
    [(4 * MIB, 64 * MIB, "4-64 MiB"), (512 * KIB, 64 * MIB, "512 KiB-64 MiB"), (8, 8, "8 B"), (8, GIB, "8 B-1 GiB"), (100, 3000, "100-3000 B")],
)
def test_a_range_of_sizes_names_its_unit_once_where_both_ends_have_it(first, last, words):
    assert size_range(first, last) == words


def cases(marks, change=-0.12):
    """One case a size from 1 KiB on, doubling: "s" slower, "f" faster, "." unchanged."""
    verdicts = {"s": ("regression", change), "f": ("improvement", -change), ".": ("within noise", 0.001)}
    return [(KIB << k, *verdicts[mark]) for k, mark in enumerate(marks)]


@pytest.mark.parametrize(
    "marks, words",
    [
        ("....", "x 1-8 KiB: no difference shown"),
        ("ssss", "x 1-8 KiB is 12 % slower"),
        (".ss.", "x 2-4 KiB is 12 % slower; small and large unchanged"),
        ("ss..", "x 1-2 KiB is 12 % slower; large unchanged"),
        ("..ss", "x 4-8 KiB is 12 % slower; small unchanged"),
        ("s..f", "x 1 KiB is 12 % slower, 8 KiB is 12 % faster; the sizes between unchanged"),
        (".s.s.", "x 2 KiB is 12 % slower, 8 KiB is 12 % slower; small and large and some between unchanged"),
        ("s.s.s.s.f", "x at 4 of 9 sizes in 1-64 KiB is 12 % slower, at 1 of 9 sizes in 256 KiB is 12 % faster; the others unchanged"),
    ],
)
def test_a_sentence_says_which_sizes_changed_and_what_of_the_rest(marks, words):
    assert sentence("x", cases(marks)) == words


def test_a_size_changed_where_any_of_its_cases_did():
    both = [*cases("....")[:2], (KIB, "regression", -0.1), (2 * KIB, "regression", -0.2)]

    assert sentence("x", both) == "x 1-2 KiB is 10 to 20 % slower in 2 of 4 cases"
