"""Stalls and slow hosts among exchanges that scatter widely, as four hosts on one machine measure them."""

from __future__ import annotations

import numpy as np
import pytest

from nccl_bench.verdict.evidence import LARGE_BOTH, LARGE_ONE, SMALL_BOTH, SMALL_ONE, Evidence, Exchanges
from nccl_bench.verdict.localise import localise
from nccl_bench.verdict.measured_pairs import exchanges_of

WAYS = (("both", LARGE_BOTH, SMALL_BOTH), ("ab", LARGE_ONE, SMALL_ONE), ("ba", LARGE_ONE, SMALL_ONE))


def four(seed, *, slower=lambda src, dst, large: 1.0, stall=lambda src, dst, large: 1.0, noise=1.0, n=4):
    """Times of n hosts whose noise is e-fold and skewed, as a shared machine's is."""
    rng = np.random.default_rng(seed)
    rows, means = [], []
    for a in range(n):
        for b in range(a + 1, n):
            for way, *strata in WAYS:
                for large, kind in zip((True, False), strata, strict=True):
                    src, dst = (b, a) if way == "ba" else (a, b)
                    us = (1000.0 if large else 50.0) * np.exp(abs(rng.normal(0, noise))) * slower(src, dst, large)
                    if way == "both":
                        us *= max(slower(src, dst, large), slower(dst, src, large)) / slower(src, dst, large)
                    worse = max(stall(src, dst, large), stall(dst, src, large)) if way == "both" else stall(src, dst, large)
                    rows.append((src, dst, 0, 1 / us, kind))
                    means.append(1 / (us * np.exp(abs(rng.normal(0, 0.5 * noise))) * worse))
    return localise(Evidence(hosts=tuple(f"h{at}" for at in range(n)), exchanges=Exchanges.of(rows, means=means)))


def named(found):
    return [(one.kind, one.host) for one in found.suspects]


@pytest.mark.parametrize("seed", range(8))
def test_a_host_that_loses_packets_is_named_by_its_means_where_its_medians_are_normal(seed):
    found = four(seed, stall=lambda a, b, large: 60.0 if 2 in (a, b) else 1.0)
    assert named(found) == [("node", "h2")]
    assert "stalls" in found.suspects[0].evidence[0]


def test_the_direction_that_stalls_is_said():
    found = four(3, stall=lambda a, b, large: 400.0 if a == 1 else 1.0, noise=0.2)
    assert named(found) == [("node", "h1")]
    assert "sending" in found.suspects[0].evidence[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_host_is_named_where_four_deviations_of_the_noise_hide_it(seed):
    assert named(four(seed, slower=lambda a, b, large: 40.0 if large and 3 in (a, b) else 1.0)) == [("node", "h3")]


def test_noise_however_large_names_nobody():
    assert [seed for seed in range(300) if four(seed, n=4 + seed % 5, noise=(0.05, 0.5, 1.5)[seed % 3]).suspects] == []


def test_a_stall_with_one_partner_alone_is_no_host():
    assert four(1, stall=lambda a, b, large: 60.0 if {a, b} == {0, 1} else 1.0, noise=0.2).suspects == ()


def test_records_without_means_are_judged_by_their_medians():
    record = {"level": "node", "round": 0, "nbytes": 8, "way": "both", "pairs": [[0, 1]], "us": [5.0, 6.0]}
    old = exchanges_of([record], (0, 1), (0, 0))
    new = exchanges_of([{**record, "mean_us": [9.0, 8.0]}], (0, 1), (0, 0))
    assert old is not None
    assert old.mean is None
    assert new is not None
    assert new.mean is not None
    assert new.mean.tolist() == [1 / 9.0]


def test_a_round_that_something_else_disturbed_blames_nobody_and_hides_nobody():
    rng = np.random.default_rng(5)
    rows, rounds = [], []
    for number, step in enumerate((1, 3, 5, 7, 9, 11, 13, 15)):
        for a in range(64):
            speed = 48 * np.exp(rng.normal(0, 0.01)) * (0.85 if number == 2 else 1.0) * (0.75 if 7 in (a, (a + step) % 64) else 1.0)
            rows.append((a, (a + step) % 64, 0, speed, LARGE_BOTH))
            rounds.append(number)
    hosts = tuple(f"h{at}" for at in range(64))
    found = localise(Evidence(hosts=hosts, exchanges=Exchanges.of(rows, rounds=rounds)))
    assert named(found) == [("node", "h7")]
    assert len(found.undetermined) == 0
