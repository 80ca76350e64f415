"""Groups as frameworks form them: Megatron's own answers for 16 GPUs, and what holds for any sizes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import UsageError
from nccl_bench.groups import (
    MEGATRON_PP_DP_ORDER,
    axis_groups,
    deepspeed,
    even_seats,
    kind_of,
    megatron,
    parse_mesh,
    span_of,
    titan,
)

pytestmark = pytest.mark.pure
SEATS = even_seats(16, 8)


def spanned(mesh, axis):
    """(groups, size, nodes, crossing at once, rails, aligned) of an axis on two nodes of eight."""
    kind = kind_of(mesh, axis)
    span = span_of(kind, SEATS)
    return len(kind.groups), kind.size, span.nodes, span.crossing, span.rails


INTRA, RAILS = (1, 0, 0), (2, 8, 8)


@pytest.mark.parametrize(
    ("mesh", "axis", "groups", "where", "first"),
    [
        (megatron(tp=8, dp=2), "tp", (2, 8), INTRA, tuple(range(8))),
        (megatron(tp=8, dp=2), "dp", (8, 2), RAILS, (0, 8)),
        (megatron(tp=4, dp=2, pp=2), "tp", (4, 4), INTRA, (0, 1, 2, 3)),
        (megatron(tp=4, dp=2, pp=2), "dp", (8, 2), INTRA, (0, 4)),
        (megatron(tp=4, dp=2, pp=2), "pp", (8, 2), RAILS, (0, 8)),
        (megatron(tp=4, dp=2, pp=2, order=MEGATRON_PP_DP_ORDER), "dp", (8, 2), RAILS, (0, 8)),
        (megatron(tp=4, dp=2, pp=2, order=MEGATRON_PP_DP_ORDER), "pp", (8, 2), INTRA, (0, 4)),
        (megatron(tp=2, dp=4, pp=2), "dp", (4, 4), INTRA, (0, 2, 4, 6)),
        (megatron(tp=2, dp=4, pp=2), "pp", (8, 2), RAILS, (0, 8)),
        (megatron(tp=2, dp=4, pp=2, order=MEGATRON_PP_DP_ORDER), "dp", (4, 4), (2, 4, 8), (0, 4, 8, 12)),
        (megatron(tp=2, dp=4, pp=2, order=MEGATRON_PP_DP_ORDER), "pp", (8, 2), INTRA, (0, 2)),
        (megatron(tp=2, cp=2, dp=2, pp=2), "dp_cp", (4, 4), INTRA, (0, 2, 4, 6)),
        (megatron(tp=2, cp=2, dp=2, pp=2), "pp", (8, 2), RAILS, (0, 8)),
        (megatron(tp=2, dp=8, ep=8, etp=1), "dp", (2, 8), (2, 2, 8), tuple(range(0, 16, 2))),
        (megatron(tp=2, dp=8, ep=8, etp=1), "ep", (2, 8), INTRA, tuple(range(8))),
        (megatron(tp=2, dp=8, ep=8, etp=1), "edp", (8, 2), RAILS, (0, 8)),
        (megatron(dp=16), "dp", (1, 16), (2, 1, 8), tuple(range(16))),
        (megatron(tp=16), "tp", (1, 16), (2, 1, 8), tuple(range(16))),
    ],
)
def test_sixteen_gpus_on_two_nodes_are_grouped_as_megatron_groups_them(mesh, axis, groups, where, first):
    assert spanned(mesh, axis) == (*groups, *where)
    assert axis_groups(mesh, axis)[0] == first


def test_four_groups_of_two_and_two_use_two_rails_each_and_are_not_aligned():
    span = span_of(kind_of(megatron(tp=2, dp=4, pp=2, order=MEGATRON_PP_DP_ORDER), "dp"), SEATS)

    assert (span.per_node, span.aligned, span.words()) == (2, False, "2 nodes, 4 at once")
    assert span_of(kind_of(megatron(tp=8, dp=2), "dp"), SEATS).words() == "rail, 8 at once"


def test_deepspeed_pipes_are_outermost_and_titan_replicates_across_nodes():
    assert axis_groups(deepspeed(pp=2, dp=2, tp=4), "pp")[0] == (0, 8)
    assert axis_groups(deepspeed(pp=2, dp=2, tp=4), "dp")[0] == (0, 4)
    mesh = titan(replicate=2, shard=8)
    assert spanned(mesh, "fsdp") == (2, 8, *INTRA)
    assert spanned(mesh, "dp_replicate") == (8, 2, *RAILS)
    assert spanned(mesh, "dp")[:2] == (1, 16)
    assert axis_groups(titan(shard=16, ep=8), "ep")[0] == tuple(range(8))
    assert axis_groups(titan(shard=16, ep=8), "efsdp")[0] == (0, 8)


def test_rules_make_the_groups_of_zero_plus_plus_and_of_tied_embeddings():
    mesh = megatron(tp=4, dp=1, pp=4)

    assert axis_groups(mesh, "neighbours=8") == (tuple(range(8)), tuple(range(8, 16)))
    assert axis_groups(mesh, "strided=8")[3] == (3, 11)
    assert axis_groups(mesh, "ends=pp") == ((0, 12), (1, 13), (2, 14), (3, 15))
    for wrong in ("neighbours=3", "strided=0", "ends=nobody", "every=2", "neighbours=x"):
        with pytest.raises(UsageError, match="axis"):
            axis_groups(mesh, wrong)
    with pytest.raises(UsageError, match="no such groups"):
        kind_of(megatron(tp=4), "ends=pp")


def test_the_rightmost_axis_of_a_plain_mesh_varies_fastest():
    mesh = parse_mesh("pp=2,dp=4,tp=2")

    assert axis_groups(mesh, "tp")[0] == (0, 1)
    assert axis_groups(mesh, "dp")[0] == (0, 2, 4, 6)
    assert axis_groups(mesh, "dp+tp")[1] == tuple(range(8, 16))
    assert axis_groups(mesh, "world") == (tuple(range(16)),)


@pytest.mark.parametrize(
    "text",
    ["", "pp", "pp=0", "pp=2,pp=2", "nobody:tp2", "megatron:xx2", "megatron:tp2,order=tp-dp", "world=2", "a=1048576,b=2", "deepspeed:cp2", "pp=-1"],
)
def test_what_is_no_mesh_is_refused_in_words(text):
    with pytest.raises(UsageError, match="mesh"):
        parse_mesh(text)


def test_an_axis_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="no such axis") as error:
        axis_groups(parse_mesh("dp=2,tp=2"), "pp")

    assert "dp tp world" in error.value.hints[0]


def test_experts_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="cannot be shared"):
        megatron(tp=2, dp=3, ep=4)
    with pytest.raises(UsageError, match="pp is the last"):
        megatron(tp=2, dp=8, pp=2, ep=4, etp=1, order=MEGATRON_PP_DP_ORDER)


small = st.sampled_from([1, 2, 3, 4, 8])


@settings(max_examples=150, deadline=None)
@given(tp=small, cp=small, dp=small, pp=small, order=st.permutations(["tp", "cp", "ep", "dp", "pp"]))
def test_every_rank_is_in_one_group_of_each_axis_and_sizes_multiply_to_the_world(tp, cp, dp, pp, order):
    mesh = megatron(tp=tp, cp=cp, dp=dp, pp=pp, order="-".join(order))

    assert parse_mesh(mesh.text).grids == mesh.grids
    assert math.prod(len(axis_groups(mesh, axis)[0]) for axis in ("tp", "cp", "dp", "pp")) == mesh.size
    for axis in mesh.axes:
        groups = axis_groups(mesh, axis)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
        assert {len(group) for group in groups} == {mesh.size // len(groups)}
        assert all(list(group) == sorted(group) for group in groups)


@settings(max_examples=100, deadline=None)
@given(tp=small, dp=small, pp=small, ep=small, per_node=st.sampled_from([1, 2, 4, 8]))
def test_expert_grids_share_the_ranks_too_and_spans_stay_within_the_nodes(tp, dp, pp, ep, per_node):
    world = tp * dp * pp
    if world % (ep * pp) or tp * dp % ep:
        return
    mesh = megatron(tp=tp, dp=dp, pp=pp, ep=ep, etp=1)
    seats = even_seats(world, per_node)

    for axis in mesh.axes:
        kind, span = kind_of(mesh, axis), span_of(kind_of(mesh, axis), seats)
        assert sorted(rank for group in kind.groups for rank in group) == list(range(world))
        assert span.nodes * span.per_node >= kind.size
        assert span.per_node <= per_node
        assert span.rails <= per_node
        assert (span.crossing == 0) == (span.nodes == 1)
