"""Pair tests between real gloo ranks, and what a pair test is made of."""

from __future__ import annotations

from typing import Any

import pytest
from ranks import on_ranks

from nccl_bench.errors import UsageError
from nccl_bench.measure.pairs_spec import Case, PairSpec, cases_of, estimate_s, rank_pairs, with_sizes


def run(world: Any, fields: dict[str, Any], node: tuple[int, ...], local: tuple[int, ...]) -> dict[str, Any]:
    import torch.distributed as dist

    from nccl_bench.measure.pairs import Layout, measure

    made: list[Any] = []
    new_group = dist.new_group
    dist.new_group = lambda *args, **more: made.append(args) or new_group(*args, **more)
    spec = with_sizes(PairSpec.from_json(fields), "gloo")
    layout = Layout(node=node, local=local)
    cases = tuple(cases_of(spec, max(node) + 1, max(local) + 1))
    messages = list(measure(world, layout, spec, cases, lambda *_: world.set_deadline()))
    return {"messages": messages, "groups": len(made), "all": len(dist.distributed_c10d._world.pg_map)}


def test_every_pair_of_four_nodes_is_measured_in_both_sizes_and_all_directions_on_one_group():
    answers = on_ranks(4, run, {"budget_s": 0.005, "sizes": [8, 65536]}, (0, 1, 2, 3), (0, 0, 0, 0))
    assert all(answer["groups"] == 0 and answer["all"] == 1 for answer in answers)
    messages = answers[0]["messages"]
    assert messages == answers[3]["messages"]
    assert len(messages) == 3 * 2 * 3
    met = {(tuple(pair), one["nbytes"], one["way"]) for one in messages for pair in one["pairs"]}
    assert met == {((a, b), size, way) for a in range(4) for b in range(a + 1, 4) for size in (8, 65536) for way in ("both", "ab", "ba")}
    assert all(value > 0 for one in messages for value in one["us"])
    assert sum(one["n_wrong"] for one in messages) == 0


def test_three_nodes_rest_in_turn_and_gpus_meet_on_all_nodes_at_once():
    answers = on_ranks(4, run, {"budget_s": 0.005, "sizes": [1024], "levels": ["gpu"]}, (0, 0, 1, 1), (0, 1, 0, 1))
    assert [one["pairs"] for one in answers[0]["messages"]] == [[[0, 1], [2, 3]]] * 3
    three = on_ranks(3, run, {"budget_s": 0.005, "sizes": [1024], "levels": ["node"]}, (0, 1, 2), (0, 0, 0))
    resting = [[rank for rank, value in enumerate(one["us"]) if value == 0] for one in three[0]["messages"]]
    assert sorted(resting) == sorted([[0], [1], [2]] * 3)


def damaged(world: Any) -> list[int]:
    import torch.distributed as dist

    from nccl_bench.measure import pairs

    if world.rank == 1:
        pairs._fill = lambda tensor, rank: tensor.fill_(7)
    messages = run(world, {"budget_s": 0.005, "sizes": [1024], "levels": ["node"]}, (0, 1), (0, 0))["messages"]
    assert dist.is_initialized()
    return [one["wrong_ranks"] for one in messages]


def test_wrong_bytes_are_counted_at_the_rank_that_received_them():
    assert on_ranks(2, damaged)[0] == [[0], [], [0]]


def test_ranks_meet_their_like_and_uneven_nodes_leave_the_odd_ones_out():
    node, local = (0, 0, 1, 1, 2), (0, 1, 0, 1, 0)
    case = Case(level="node", round=0, pairs=((0, 1), (1, 2)), nbytes=8, way="both")
    assert rank_pairs(case, node, local) == [(0, 2), (1, 3), (2, 4)]
    assert rank_pairs(Case(level="gpu", round=0, pairs=((0, 1),), nbytes=8, way="ab"), node, local) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("n_nodes, rounds", [(8, 7), (9, 9), (32, 31), (64, 8), (1024, 8)])
def test_cases_and_seconds_grow_with_rounds_and_not_with_pairs(n_nodes, rounds):
    n, seconds = estimate_s(PairSpec(levels=("node",)), n_nodes, 8, "nccl")
    assert n == rounds * 2 * 3
    assert seconds == pytest.approx(n * 0.25)


def test_a_mode_or_level_that_is_none_is_a_usage_error():
    for fields in ({"mode": "some"}, {"mode": "0"}, {"levels": ("rack",)}, {"budget_s": 0.0}):
        with pytest.raises(UsageError):
            PairSpec(**fields)


def test_a_spec_survives_json():
    import json

    spec = PairSpec(levels=("node",), mode="7", pairs=((1, 2),), groups=((0, 1), (2,)), sizes=(8,))
    assert PairSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
