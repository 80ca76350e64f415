"""Groups as frameworks form them: Megatron's own answers for 16 GPUs, and what holds for any sizes."""

import math
import re

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
    assert span_of(kind_of(megatron(tp=8, dp=2), "tp"), SEATS).words() == "in node"


def test_ranks_are_seated_in_a_row():
    assert even_seats(7, 3) == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0))


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pp=2,pp=2", "pp is given twice"),
        ("deepspeed:pp2,order=pp", "'order=pp' is not AXIS=SIZE"),
        ("titan:pp2,order=pp", "'order=pp' is not AXIS=SIZE"),
        ("megatron:tp2,order=cp-cp-dp-ep-pp", "does not name tp cp ep dp pp once each"),
        ("megatron:tp2,order=tp-tp-ep-dp-pp", "does not name tp cp ep dp pp once each"),
        ("tp=2,order=tp", "'order=tp' is not AXIS=SIZE"),
        ("deepspeed:pp2,cp2,xx3", "no axis is called 'cp' there"),
        ("nobody:tp2", "no framework is called 'nobody'"),
        ("a=1048577", "between 1 and 1048576 ranks"),
    ],
)
def test_what_is_wrong_with_a_mesh_is_named(text, words):
    with pytest.raises(UsageError) as error:
        parse_mesh(text)
    assert words in error.value.why


def test_the_largest_mesh_that_is_read_has_1048576_ranks():
    assert parse_mesh("a=1024,b=1024").size == 1 << 20


@pytest.mark.parametrize(
    ("mesh", "text", "axes"),
    [
        (megatron(), "megatron:tp1,cp1,dp1,pp1", "pp dp cp tp dp_cp world"),
        (megatron(tp=2, dp=4, ep=2), "megatron:tp2,cp1,dp4,pp1,ep2,etp2", "pp dp cp tp epp edp ep etp dp_cp etp_ep world"),
        (megatron(tp=4, dp=2, etp=2), "megatron:tp4,cp1,dp2,pp1,ep1,etp2", "pp dp cp tp epp edp ep etp dp_cp etp_ep world"),
        (megatron(dp=4, etp=2), "megatron:tp1,cp1,dp4,pp1,ep1,etp2", "pp dp cp tp epp edp ep etp dp_cp etp_ep world"),
        (megatron(dp=2, order=MEGATRON_PP_DP_ORDER), "megatron:tp1,cp1,dp2,pp1,order=tp-cp-ep-pp-dp", "dp pp cp tp dp_cp world"),
        (deepspeed(), "deepspeed:pp1,dp1,tp1", "pp dp tp world"),
        (deepspeed(dp=4, ep=2), "deepspeed:pp1,dp4,tp1,ep2", "pp dp tp epp edp ep etp world"),
        (titan(), "titan:pp1,dp_replicate1,dp_shard1,cp1,tp1", "pp dp_replicate dp_shard cp tp fsdp dp world"),
        (titan(shard=4, ep=2), "titan:pp1,dp_replicate1,dp_shard4,cp1,tp1,ep2",
         "pp dp_replicate dp_shard cp tp epp ereplicate efsdp ep fsdp dp world"),
    ],
)  # fmt: skip
def test_a_mesh_is_written_as_it_is_read_and_has_an_expert_grid_where_experts_are_shared(mesh, text, axes):
    assert (mesh.text, " ".join(mesh.axes)) == (text, axes)
    assert parse_mesh(text) == mesh
    assert mesh.size == math.prod(int(size) for size in re.findall(r"(?:pp|dp|cp|tp|_replicate|_shard)(\d+)", text.split(",etp")[0].split(",ep")[0]))


def test_experts_are_shared_among_neighbours_of_the_ranks_that_hold_them():
    deep, titans = deepspeed(pp=2, dp=6, tp=2, ep=2), titan(replicate=2, shard=3, cp=2, ep=2)

    assert (axis_groups(deep, "ep")[:3], len(axis_groups(deep, "ep"))) == (((0, 2), (1, 3), (4, 6)), 12)
    assert (axis_groups(deep, "edp")[:2], len(axis_groups(deep, "edp"))) == (((0, 4, 8), (1, 5, 9)), 8)
    assert axis_groups(deep, "etp")[0] == (0, 1)
    assert axis_groups(deep, "epp")[0] == (0, 12)
    assert (axis_groups(titans, "ep")[:2], axis_groups(titans, "efsdp")[0]) == (((0, 1), (2, 3)), (0, 2, 4))
    assert axis_groups(titans, "ereplicate")[0] == (0, 6)
    for make in (lambda: deepspeed(dp=6, ep=4), lambda: titan(shard=6, ep=4)):
        with pytest.raises(UsageError, match="ep 4 does not divide"):
            make()


def test_an_axis_may_have_any_name():
    mesh = parse_mesh("zone=2,yard=3")

    assert axis_groups(mesh, "zone") == ((0, 3), (1, 4), (2, 5))
    assert axis_groups(mesh, "yard+zone") == axis_groups(mesh, "world") == (tuple(range(6)),)
    for twice in ("zone+zone", "world+zone"):
        with pytest.raises(UsageError, match="no such axis"):
            axis_groups(mesh, twice)


def test_rules_take_every_divisor_of_the_ranks_and_nothing_else():
    mesh = parse_mesh("dp=6")

    assert axis_groups(mesh, "neighbours=6") == (tuple(range(6)),)
    assert axis_groups(mesh, "strided=6") == tuple((rank,) for rank in range(6))
    assert axis_groups(mesh, "neighbours=1") == axis_groups(mesh, "strided=6")
    for wrong in ("neighbours=12", "neighbours=4", "strided=12", "neighbours=0"):
        with pytest.raises(UsageError, match="no such groups of 6 ranks"):
            axis_groups(mesh, wrong)


def test_an_axis_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="no such axis") as error:
        axis_groups(parse_mesh("dp=2,tp=2"), "pp")

    assert "dp tp world" in error.value.hints[0]


def test_experts_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="cannot be shared"):
        megatron(tp=2, dp=3, ep=4)
    with pytest.raises(UsageError, match="pp is the last"):
        megatron(tp=2, dp=8, pp=2, ep=4, etp=1, order=MEGATRON_PP_DP_ORDER)
    for sizes in ({"dp": 8, "ep": 4}, {"cp": 4, "dp": 2, "ep": 2}):  # the pipeline's stride is 2 and 8, among experts 8 and 4
        with pytest.raises(UsageError, match="pipeline groups of both grids differ"):
            megatron(tp=2, pp=2, order=MEGATRON_PP_DP_ORDER, **sizes)


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
