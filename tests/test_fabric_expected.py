"""fabric/expected.py and expected.json: what healthy systems reached."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.fabric import expected
from nccl_bench.fabric.expected import Observation, quartile, share_of
from nccl_bench.fabric.ideal import ceilings
from nccl_bench.fabric.spec import topology_of


def row(share: float, source: str) -> Observation:
    first = expected.observations()[0]
    return replace(first, share_frac=share, source=source, url=source)


def test_every_observation_has_the_share_that_its_ceilings_give() -> None:
    for seen in expected.observations():
        name = seen.collective.partition(":")[0]
        assert name in COLLECTIVES
        found = ceilings(topology_of(seen.gpus, seen.nics, seen.nodes), None, {}, collectives=[name])
        ceiling = found.collectives[seen.collective].of(seen.algorithm)

        assert found.platform == seen.platform
        assert seen.share_frac == pytest.approx(seen.busbw_GBps / ceiling.attainable_GBps, abs=1e-3)
        assert seen.busbw_GBps <= ceiling.line_GBps
        assert seen.url
        assert seen.source


def test_no_healthy_system_is_far_above_attainable_and_most_are_near_it() -> None:
    shares = [seen.share_frac for seen in expected.observations()]

    assert max(shares) <= 1.05
    assert statistics.median(shares) >= 0.92


def test_a_source_counts_once_with_its_best_and_two_are_needed() -> None:
    assert share_of([row(0.9, "a"), row(0.95, "a")]) is None
    share = share_of([row(0.9, "a"), row(0.95, "a"), row(0.85, "b")])

    assert share is not None
    assert (share.low_frac, share.mid_frac) == (pytest.approx(0.875), pytest.approx(0.9))
    assert share.of(1000, 890).low_GBps == pytest.approx(875)
    assert share.of(1000, 890).mid_GBps == 890


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_quarter_of_the_values_or_less_lies_below_the_quartile(values: list[float]) -> None:
    low = quartile(values)

    assert min(values) <= low <= max(values)
    assert sum(value < low for value in values) <= len(values) / 4 + 1


def test_what_the_table_knows_is_shown_and_the_rest_has_a_stated_floor() -> None:
    found = ceilings(topology_of("8xH100-SXM", "8x400-IB", 2), None, {})
    pair = ceilings(topology_of("2xH100-SXM", None, 1), None, {})

    seen = found.of("all_reduce").expected
    assert seen is not None
    assert seen.n_sources >= 2
    assert seen.low_GBps <= seen.mid_GBps <= found.of("all_reduce").line_GBps
    assert found.of("broadcast").expected is None
    assert found.floor["all_reduce"] == 0.85
    assert pair.floor["all_reduce"] == 0.70


def test_the_algorithm_that_ran_has_its_own_share() -> None:
    found = ceilings(topology_of("8xH100-SXM", None, 1), None, {})

    ring, nvls = found.of("all_reduce", "ring").expected, found.of("all_reduce", "NVLS").expected
    assert ring is not None
    assert nvls is not None
    assert ring.mid_GBps < 372
    assert nvls.mid_GBps > 470


def test_a_tree_over_two_nodes_is_expected_only_where_systems_of_the_kind_showed_more_than_their_nics():
    """A100 nodes with eight NICs reached 188 GB/s, links the limit: that share says nothing of a tree that four NICs limit."""

    def best(gpus: str, nics: str) -> object:
        return ceilings(topology_of(gpus, nics, 2), None, {}).collectives["all_reduce"].best.expected

    assert best("8xA100-SXM", "4x200-IB") is None
    assert best("8xA100-SXM", "8x200-IB") is not None
    assert best("8xH100-SXM", "4x400-IB") is not None
    assert expected.above_nics("Hopper switch, 8 a node, 2 nodes over RDMA", "all_reduce", frozenset({"nvls"}))
    assert not expected.above_nics("Ampere switch, 8 a node, 2 nodes over RDMA", "all_reduce", frozenset({"tree"}))
