"""Groups of training on real gloo ranks: every collective in every axis, solo, beside another kind, uneven shares, and exactly what is wanted."""

import pytest

pytest.importorskip("torch")

from mesh_ranks import meshed
from ranks import on_ranks

from nccl_bench.collectives import COLLECTIVES, bus_factor
from nccl_bench.errors import UsageError
from nccl_bench.measure.cases import WorldFacts, skewed_shares
from nccl_bench.measure.listing import axes_of, list_cases
from nccl_bench.measure.spec import SweepSpec

QUICK = {"budget_s": 0.02, "warmup_iters": 1, "sizes": (4096,)}


@pytest.fixture(scope="module")
def meshed_points():
    """Four ranks as dp=2,tp=2, all collectives, each axis."""
    return on_ranks(4, meshed, {"collectives": tuple(COLLECTIVES), "mesh": "dp=2,tp=2", **QUICK})[0]


def test_every_collective_runs_in_every_axis_and_its_data_is_right(meshed_points):
    assert {(p["collective"], p["group"]["axis"]) for p in meshed_points} == {(name, axis) for name in COLLECTIVES for axis in ("dp", "tp")}
    for point in meshed_points:
        assert (point["status"], point["n_wrong"], point["wrong"]) == ("ok", 0, None), point


def test_a_point_tells_its_groups_and_the_slowest_of_them(meshed_points):
    members = {"dp": ([0, 2], [1, 3]), "tp": ([0, 1], [2, 3])}
    for point in meshed_points:
        group = point["group"]
        if point["collective"] == "pingpong":
            continue
        assert (group["size"], group["n_groups"], point["n_ranks"]) == (2, 2, 2)
        assert list(group["slowest"]) in members[group["axis"]]
        assert 0 <= group["spread_frac"] < 1
        assert point["busbw_GBps"] == pytest.approx(point["algbw_GBps"] * bus_factor(point["collective"], 2))


def test_a_wrong_result_in_one_group_names_its_rank():
    fields = {"collectives": ("all_reduce",), "mesh": "dp=2,tp=2", "axes": ("tp",), **QUICK}
    points = on_ranks(4, meshed, fields, {"rank": 3, "slot": 0, "element": 5})[0]

    assert points[0]["status"] == "failed"
    assert points[0]["wrong"]["rank"] == 3
    assert points[0]["wrong"]["index"] == 5


def test_one_group_alone_and_two_kinds_at_once():
    fields = {"collectives": ("all_reduce",), "mesh": "dp=2,tp=2", "axes": ("tp",), "solo": True, "beside": "dp:reduce_scatter", **QUICK}
    plain, solo, both = on_ranks(4, meshed, fields)[0]

    assert (plain["special"], plain["group"]["n_groups"], plain["kind"]) == (None, 2, "collective")
    assert (solo["special"], solo["group"]["n_groups"], solo["n_wrong"]) == ("solo", 1, 0)
    assert (both["special"], both["kind"], both["status"]) == ("beside dp:reduce_scatter", "overlap", "ok")
    details = both["details"]
    assert details["with"]["axis"] == "dp"
    longer = max(details["own_us"] * details["own_times"], details["other_us"] * details["other_times"])
    assert details["slowdown"] == pytest.approx(both["time_us"]["mean"] / longer)
    assert min(details["own_times"], details["other_times"]) == 1


def test_uneven_shares_arrive_right_and_are_checked():
    spec = {"collectives": ("all_to_all",), "skew": 2.0, **QUICK}
    streaming = [p for p in on_ranks(4, meshed, spec)[0] if p["regime"] == "streaming"]
    broken = on_ranks(4, meshed, spec, {"rank": 0, "slot": 0, "element": 9})[0]

    assert [(p["special"], p["status"], p["n_wrong"]) for p in streaming] == [("skew 2", "ok", 0)]
    assert broken[0]["status"] == "failed"
    hot, rest = skewed_shares(4096, 4, 2.0, 4)
    assert hot / ((hot + 3 * rest) / 4) == pytest.approx(2.0, rel=0.02)
    assert streaming[0]["nbytes"] == hot + 3 * rest <= 4096


def test_a_group_that_no_rank_fills_leaves_the_others_idle():
    points = on_ranks(4, meshed, {"collectives": ("all_reduce",), "mesh": "pp=4", "axes": ("ends=pp",), **QUICK})[0]

    assert (points[0]["status"], points[0]["n_wrong"]) == ("ok", 0)
    assert (points[0]["group"]["size"], points[0]["group"]["n_groups"]) == (2, 1)


WANT = {
    "schema": 1,
    "layout": "a test",
    "mesh": "dp=2,tp=2",
    "collectives": [{"axis": "dp", "collective": "reduce_scatter", "dtype": "float32", "op": "sum", "nbytes": [1000, 65536]}],
    "gemms": [
        {"name": "qkv", "m": 64, "n": 96, "k": 32, "dtype": "float32"},
        {"name": "attention", "attention": {"batch": 2, "heads": 2, "seq": 16, "full_seq": 16, "dim": 8, "flash": True}, "dtype": "float32"},
        {"name": "memory pass", "pass_nbytes": 65536, "dtype": "float32"},
    ],
    "overlaps": [
        {"axis": "tp", "collective": "all_reduce", "dtype": "float32", "op": "sum", "nbytes": 65536,
         "gemm": {"name": "up", "m": 64, "n": 96, "k": 32}}
    ],
}  # fmt: skip


def test_a_want_is_measured_to_the_letter():
    points = on_ranks(4, meshed, {"want": WANT, "budget_s": 0.02, "warmup_iters": 1})[0]

    assert all(p["status"] == "ok" for p in points), [p["reason"] for p in points]
    assert [p["kind"] for p in points] == ["gemm"] * 3 + ["collective"] * 2 + ["overlap"]
    assert [p["special"] for p in points[:3]] == ["qkv 64x96x32", "attention 2x2x16x8", "memory pass 64 KiB"]
    assert [(p["requested_nbytes"], p["nbytes"], p["group"]["axis"]) for p in points[3:5]] == [(1000, 1024, "dp"), (65536, 65536, "dp")]
    assert points[0]["details"]["m"] == 64
    assert points[0]["busbw_GBps"] is None
    assert points[5]["details"]["gemm"]["name"] == "up"
    assert points[5]["details"]["slowdown"] > 0


FACTS = WorldFacts(n_ranks=4, n_nodes=1, ranks_per_node=4, backend="gloo", one_domain=True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"axes": ("tp",)}, "needs --mesh"),
        ({"solo": True}, "needs --mesh"),
        ({"mesh": "dp=2,tp=2", "axes": ("pp",)}, "no such axis"),
        ({"mesh": "dp=2,tp=2", "axes": ("dp",), "beside": "dp:all_reduce"}, "beside itself"),
        ({"mesh": "dp=2,tp=2", "beside": "all_reduce"}, "AXIS:COLLECTIVE"),
        ({"skew": 2.0}, "all_to_all"),
        ({"skew": 0.5, "collectives": ("all_to_all",)}, "more than 1"),
        ({"want": WANT, "mesh": "dp=4"}, "--want says itself"),
        ({"want": {**WANT, "mesh": "x"}}, "--want"),
    ],
)
def test_mesh_options_that_do_not_go_together_are_refused(fields, why):
    with pytest.raises(UsageError, match=why):
        SweepSpec(**fields)


def test_a_mesh_of_another_size_is_refused_and_so_is_an_impossible_skew():
    with pytest.raises(UsageError, match="is 8 ranks, and there are 4"):
        list_cases(SweepSpec(mesh="dp=4,tp=2"), FACTS)
    with pytest.raises(UsageError, match="one of 4 ranks cannot get 9 times"):
        list_cases(SweepSpec(collectives=("all_to_all",), skew=9.0, sizes=(4096,)), FACTS)
    planned = list_cases(SweepSpec(collectives=("all_to_all",), mesh="dp=1,tp=4", axes=("dp", "tp"), skew=3.0, sizes=(4096,)), FACTS)
    assert [item.skip is None for item in planned] == [False, True]


def test_all_axes_with_more_than_one_rank_are_measured_by_default():
    assert axes_of(SweepSpec(mesh="pp=1,dp=2,tp=2")) == ("dp", "tp")
    assert axes_of(SweepSpec(want=WANT)) == ("dp", "tp")
    spec = SweepSpec(mesh="dp=2,tp=2", want=None, axes=("tp",))
    assert SweepSpec.from_json(spec.to_json()) == spec
