"""Rounds of disjoint pairs: properties of every size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.measure.schedule import default_mode, inside_rounds, n_rounds, pairs_of, partner, rounds_for, rounds_of, screen_rounds

pytestmark = pytest.mark.pure


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 90))
def test_all_rounds_hold_every_pair_once_and_nobody_twice_in_a_round(n):
    met = []
    for number in range(n_rounds(n)):
        pairs = pairs_of(n, number)
        players = [who for pair in pairs for who in pair]
        assert len(players) == len(set(players))
        assert len(players) >= n - 1  # one rests where the number is odd, nobody else
        met += pairs
    assert sorted(met) == [(a, b) for a in range(n) for b in range(a + 1, n)]


@given(st.integers(2, 20_000), st.integers(0, 20_000), st.data())
def test_partners_agree_on_each_other(n, number, data):
    who = data.draw(st.integers(0, n - 1))
    other = partner(n, number, who)
    assert other is None or (other != who and partner(n, number, other) == who)


@given(st.sampled_from([2, 8, 64, 1024, 4096]))
def test_an_even_number_takes_one_round_less_than_it_has_members(n):
    assert n_rounds(n) == n - 1
    assert len(pairs_of(n, 0)) == n // 2


@given(st.integers(2, 5000), st.integers(1, 20))
def test_a_screen_takes_so_many_different_rounds_and_gives_each_node_so_many_partners(n, k):
    rounds = screen_rounds(n, k)
    assert len(rounds) == min(k, n_rounds(n)) == len(set(rounds))
    assert all(0 <= number < n_rounds(n) for number in rounds)
    partners = [partner(n, number, 0) for number in rounds]
    assert len({one for one in partners if one is not None}) >= len(rounds) - 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda p: p[0] < p[1]), max_size=60))
def test_chosen_pairs_are_all_met_once_with_nobody_twice_in_a_round(pairs):
    rounds = list(rounds_for("node", pairs, 100))
    assert sorted(pair for one in rounds for pair in one.pairs) == sorted(set(pairs))
    assert [one.number for one in rounds] == list(range(100, 100 + len(rounds)))
    for one in rounds:
        players = [who for pair in one.pairs for who in pair]
        assert len(players) == len(set(players))


def test_inside_rounds_stay_inside_groups_and_use_all_groups_at_once():
    groups = [range(4), range(4, 8), (8,)]
    rounds = list(inside_rounds(groups, 5, 7))
    assert [one.number for one in rounds] == [7, 8, 9]
    for one in rounds:
        assert len(one.pairs) == 4
        assert all((a < 4) == (b < 4) and 8 not in (a, b) for a, b in one.pairs)


def test_modes_full_up_to_32_nodes_then_a_screen_or_any_number_of_rounds():
    assert (default_mode(32), default_mode(33)) == ("full", "screen")
    assert len(list(rounds_of("node", 32))) == 31
    assert len(list(rounds_of("node", 1024, "screen"))) == 8
    assert len(list(rounds_of("node", 64, "3"))) == 3
    assert list(rounds_of("gpu", 1)) == []
