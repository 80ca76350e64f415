"""Prices, memory, the composed step, plans and searches: what must hold whatever the numbers are."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import UsageError
from nccl_bench.fabric import ideal, spec
from nccl_bench.groups import even_seats, kind_of, megatron, parse_mesh, span_of
from nccl_bench.records import Group, Point, RunHeader, Times
from nccl_bench.report.bill import search_lines
from nccl_bench.training.compute import Efficiency, Gemm
from nccl_bench.training.config import from_config, preset
from nccl_bench.training.cost import ENDS, Setting, cost_of
from nccl_bench.training.layout import Layout
from nccl_bench.training.memory import layer_activation_nbytes, memory_of
from nccl_bench.training.plan import Fabric, answer, best_change, neighbours
from nccl_bench.training.price import Place, Places, Price, faster, nothing
from nccl_bench.training.price_expected import FLOORED, expected_pricer, seats_of
from nccl_bench.training.price_measured import measured_pricer, run_seats
from nccl_bench.training.rates import MeasuredRates, sigma_of
from nccl_bench.training.rules import why_not
from nccl_bench.training.search import candidates, search
from nccl_bench.training.want import want_of

pytestmark = pytest.mark.pure
MIB = 1 << 20
H100 = Efficiency(eff=0.7, peak_tflops=989.4, hbm_GBps=3350)


def header(n_ranks, per_node, **fields):
    ranks = tuple({"rank": r, "host": f"h{r // per_node}", "local_rank": r % per_node} for r in range(n_ranks))
    spec_json = {"mesh": fields.pop("mesh", None)}
    return RunHeader(tool="t", argv=(), started_at=None, launcher=None, backend="nccl", n_ranks=n_ranks, n_nodes=n_ranks // per_node, ranks=ranks,
                     spec=spec_json, **fields)  # fmt: skip


def point(collective, nbytes, mean_us, n, axis=None, n_groups=1, median_us=None, p95_us=None, **more):
    times = Times(median=median_us or mean_us, mean=mean_us, min=mean_us, max=mean_us, p95=p95_us)
    group = Group(axis=axis, size=n, n_groups=n_groups)
    values = {"dtype": "float32", "op": "sum", "root": None, "placement": "in", "clock": "graph", "regime": "streaming", **more}
    return Point(collective=collective, nbytes=nbytes, requested_nbytes=nbytes, count=None, n_ranks=n, group=group, time_us=times, **values)


def place(mesh, axis, per_node):
    kind = kind_of(mesh, axis)
    return Place(kind=kind, span=span_of(kind, even_seats(mesh.size, per_node)))


def test_a_measured_call_costs_the_mean_between_median_and_95th_percentile():
    points = [point("all_reduce", n, us, 4, "tp", 2, median_us=0.9 * us, p95_us=1.5 * us) for n, us in ((MIB, 100.0), (4 * MIB, 220.0))]
    price = measured_pricer(header(8, 8, mesh="dp=2,tp=4"), points)
    tp = place(parse_mesh("dp=2,tp=4"), "tp", 8)

    found = price("all_reduce", MIB, tp)
    assert (found.low_us, found.mid_us, found.high_us, found.by, found.extrapolated) == (90.0, 100.0, 150.0, "measured", None)
    assert price("all_reduce", 2 * MIB, tp).mid_us == pytest.approx(140)
    assert price("all_reduce", 100, tp).mid_us == 100
    far = price("all_reduce", 16 * MIB, tp)
    assert far.mid_us == pytest.approx(220 + 12 * 40)
    assert "4 times the largest" in far.extrapolated
    assert price("all_gather", MIB, tp) is None


def test_a_price_far_below_the_smallest_measured_size_is_marked():
    tp = place(parse_mesh("dp=2,tp=4"), "tp", 8)
    large = measured_pricer(header(8, 8, mesh="dp=2,tp=4"), [point("all_reduce", n, 100.0, 4, "tp", 2) for n in (MIB, 4 * MIB)])
    small = measured_pricer(header(8, 8, mesh="dp=2,tp=4"), [point("all_reduce", n, 100.0, 4, "tp", 2) for n in (4096, 4 * MIB)])

    assert "smaller than the smallest" in large("all_reduce", 64, tp).extrapolated
    assert large("all_reduce", MIB // 2, tp).extrapolated is None
    assert small("all_reduce", 8, tp).extrapolated is None


def test_other_clocks_solo_runs_and_failures_give_no_price():
    bad = [
        point("all_reduce", MIB, 1.0, 4, "tp", 2, special="solo"),
        point("all_reduce", MIB, 2.0, 4, "tp", 2, regime="isolated"),
        point("all_reduce", MIB, 3.0, 4, "tp", 2, status="failed"),
        point("all_reduce", MIB, 4.0, 4, "tp", 2, variant="ring"),
        point("all_reduce", MIB, 50.0, 4, "tp", 2, clock="eager"),
    ]
    price = measured_pricer(header(8, 8, mesh="dp=2,tp=4"), bad)

    assert price("all_reduce", MIB, place(parse_mesh("dp=2,tp=4"), "tp", 8)).mid_us == 50.0
    better = measured_pricer(header(8, 8, mesh="dp=2,tp=4"), [*bad, point("all_reduce", MIB, 20.0, 4, "tp", 2)])
    assert better("all_reduce", MIB, place(parse_mesh("dp=2,tp=4"), "tp", 8)).mid_us == 20.0


def test_fewer_groups_at_once_than_measured_is_marked_and_widens_the_range():
    points = [point("all_reduce", MIB, 100.0, 16)]
    price = measured_pricer(header(16, 8), points)
    exact = price("all_reduce", MIB, place(megatron(dp=16), "dp", 8))
    two = price("all_reduce", MIB, place(megatron(dp=16, pp=2), "dp", 8))

    assert exact.extrapolated is None
    assert "1 such groups at once, not 2" in two.extrapolated
    assert two.high_us > exact.high_us


def test_a_larger_group_needs_three_measured_sizes_and_never_beats_the_ceiling():
    # three runs cannot be in one header; three axes of one mesh can
    mesh = "a=2,b=2,c=2"
    points = [point("all_reduce", n, us, 2 ** len(axis.split("+")), axis, 8 // 2 ** len(axis.split("+")))
              for axis, base in (("c", 10.0), ("b+c", 20.0), ("a+b+c", 30.0)) for n, us in ((4096, base), (MIB, base + 100.0))]  # fmt: skip
    wide = place(megatron(tp=16), "tp", 16)
    price = measured_pricer(header(8, 8, mesh=mesh), points)
    few = measured_pricer(header(8, 8, mesh=mesh), points[:4])
    capped = measured_pricer(header(8, 8, mesh=mesh), points, lambda *_: Price(low_us=1e4, mid_us=1e4, high_us=1e4, by="line"))

    found = price("all_reduce", MIB, wide)
    assert "groups of 16 from those of 2, 4, 8" in found.extrapolated
    assert 130 < found.mid_us < 220
    assert found.low_us <= found.mid_us <= found.high_us
    assert few("all_reduce", MIB, wide) is None
    assert capped("all_reduce", MIB, wide).low_us == 1e4


def test_seats_of_a_run_come_from_its_hosts():
    assert run_seats(header(4, 2)) == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_expected_prices_of_rails_share_no_nic_and_four_nics_are_shared_by_eight_gpus():
    rails = place(megatron(tp=8, dp=2), "dp", 8)
    full, half = (expected_pricer(spec.topology_of("8xH100-SXM", nics, 2), {}) for nics in ("8x400-IB", "4x400-IB"))

    one, two = (pricer("all_reduce", 1 << 30, rails) for pricer in (full, half))
    assert two.mid_us == pytest.approx(2 * one.mid_us, rel=0.02)
    assert "shared 2-fold" in two.by
    assert one.low_us < one.mid_us < one.high_us


def test_tensor_parallelism_across_nodes_is_priced_by_the_nics():
    topology = spec.topology_of("8xA100-SXM", "4x200-IB", 2)
    pricer = expected_pricer(topology, {})
    inside, across = (pricer("all_reduce", 256 * MIB, place(megatron(tp=tp, dp=16 // tp), "tp", 8)) for tp in (8, 16))

    assert across.mid_us > 1.5 * inside.mid_us


def test_two_nodes_that_never_showed_a_tree_are_priced_by_the_ring_and_the_tree_is_the_fast_end():
    """A100 nodes: what is published is explained by a ring (188 GB/s of eight NICs' 200). H100 nodes showed more than their NICs carry."""
    wide, nbytes = place(megatron(tp=16), "tp", 8), 1 << 30
    ampere = expected_pricer(spec.topology_of("8xA100-SXM", "4x200-IB", 2), {})("all_reduce", nbytes, wide)
    hopper = expected_pricer(spec.topology_of("8xH100-SXM", "8x400-IB", 2), {})("all_reduce", nbytes, wide)
    rate = {name: nbytes * 1.875 / getattr(ampere, name) * 1e-3 for name in ("low_us", "mid_us", "high_us")}

    assert 150 < rate["low_us"] < 184  # the tree, NICs carrying half of a ring's bytes
    assert 78 < rate["mid_us"] < 98  # the ring
    assert 70 < rate["high_us"] < 78  # the lowest share that published systems of several nodes reached
    assert "ring" in ampere.by
    assert "ring" not in hopper.by
    assert nbytes * 1.875 / hopper.high_us * 1e-3 > 400


@pytest.mark.parametrize(("gpus", "nics", "nodes"), [("8xH100-SXM", "8x400-IB", 16), ("8xH100-SXM", "8x400-IB", 2), ("8xA100-SXM", "8x200-IB", 4),
                                                     ("8xB200", "8x400-IB", 4)])  # fmt: skip
def test_a_large_call_is_priced_within_what_ideal_expects(gpus, nics, nodes):
    """An algorithm that nobody reported is not thought to beat what systems reached that left the choice to NCCL."""
    topology, nbytes = spec.topology_of(gpus, nics, nodes), 64 << 30
    row = ideal.ceilings(topology, None, {}, dtype="bfloat16", collectives=["all_reduce"]).collectives["all_reduce"]
    price = expected_pricer(topology, {})("all_reduce", nbytes, place(megatron(dp=8 * nodes), "dp", 8))
    rate = nbytes * row.bus_factor / price.mid_us * 1e-3
    seen = row.best.expected

    if seen is None:
        assert price.by.startswith(FLOORED)
        assert rate <= row.best.attainable_GBps
    else:
        assert 0.998 * seen.low_GBps <= rate <= seen.mid_GBps


def test_a_price_takes_the_protocol_that_costs_least_at_its_size():
    """A ring of 16 over two nodes in Simple: 8.4 + 28 x 3.4 + 2 x 14 = 131.6 µs before the first byte (NCCL's tuning.cc)."""
    pricer = expected_pricer(spec.topology_of("8xA100-SXM", "4x200-IB", 2), {})
    wide = place(megatron(tp=16), "tp", 8)
    small, large = (pricer("all_gather", nbytes, wide) for nbytes in (4096, 1 << 30))
    half = pricer("all_gather", 1 << 29, wide)

    assert small.low_us == pytest.approx(23.3, abs=0.2)  # LL
    assert 2 * half.low_us - large.low_us == pytest.approx(8.4 + 14 * 3.4 + 14, abs=0.5)  # Simple
    sizes = [4 << (10 + step) for step in range(18)]
    times = [pricer("all_reduce", nbytes, wide).high_us for nbytes in sizes]
    assert times == sorted(times)


def test_one_rank_talks_to_nobody():
    for pricer in (measured_pricer(header(1, 1), []), expected_pricer(spec.topology_of("8xH100-SXM", None, 1), {})):
        assert pricer("all_reduce", MIB, place(megatron(dp=1), "tp", 8)).mid_us == 0


def gemm_point(us, **details):
    return point("gemm", 1, us, 1, kind="gemm", details=details)


def test_measured_products_are_taken_as_they_are_and_others_at_the_nearest_rate():
    rates = MeasuredRates([gemm_point(1000.0, m=1000, n=1000, k=1000), gemm_point(10.0, pass_nbytes=1_000_000)])

    assert rates.complete
    assert rates.gemm_s(Gemm(name="x", m=1000, n=1000, k=1000)) == pytest.approx(1e-3)
    assert rates.gemm_s(Gemm(name="x", m=2000, n=1000, k=1000)) == pytest.approx(2e-3)
    assert "x" in rates.extrapolated
    assert rates.pass_s(1e6) == pytest.approx(1e-5)
    assert not MeasuredRates([]).complete


def test_the_stretch_of_compute_is_that_of_products_beside_collectives():
    both = [point("all_reduce", MIB, 1.0, 2, kind="overlap", details={"gemm": {"m": 1}, "slowdown": s}) for s in (1.1, 1.2, 1.4)]

    assert sigma_of(both) == {"low": 1.2, "mid": 1.2, "high": 1.4}
    assert sigma_of([]) is None


# ---- memory ----


def test_activations_are_those_of_the_paper():
    gpt = from_config({"hidden_size": 25600, "num_hidden_layers": 128, "num_attention_heads": 160, "vocab_size": 51200, "hidden_act": "gelu"}, "1T")
    plain = Layout(tp=8, seq=2048, flash=False)

    assert layer_activation_nbytes(gpt, plain) * 128 / 2**30 == pytest.approx(131.25)
    assert layer_activation_nbytes(gpt, replace(plain, sp=True, recompute="selective")) * 128 / 2**30 == pytest.approx(26.5625)


def test_the_distributed_optimizer_takes_6_and_12_over_d_bytes_a_parameter():
    gpt = from_config({"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 51200, "hidden_act": "gelu"}, "g")
    plain, sharded = (memory_of(gpt, Layout(dp=4, gbs=4, dist_opt=on), None).heaviest.parts for on in (False, True))

    assert plain["weights"] + plain["gradients"] + plain["optimizer"] == pytest.approx(18 * gpt.params, rel=1e-3)
    assert sharded["optimizer"] == pytest.approx(12 * gpt.params / 4, rel=1e-3)


def test_a_verdict_says_fits_tight_or_impossible():
    model, layout = preset("llama3-8b"), Layout(dp=8, gbs=8, seq=2048)
    used = memory_of(model, layout, None).nbytes

    assert memory_of(model, layout, None).verdict is None
    assert memory_of(model, layout, 2 * used).verdict == "fits"
    assert memory_of(model, layout, int(1.05 * used)).verdict == "tight"
    assert memory_of(model, layout, int(0.9 * used)).verdict == "impossible"


# ---- the step ----


def fabric(nodes=8, gpus="8xH100-SXM", nics="8x400-IB", rates=H100, memory=80e9):
    topology = spec.topology_of(gpus, nics, nodes)
    return Fabric(places=Places(seats_of(topology)), pricer=expected_pricer(topology, {}), rates=rates, priced_by="expected", peak_tflops=989.4,
                  memory_nbytes=int(memory))  # fmt: skip


FABRIC = fabric()
LLAMA = preset("llama3-70b")
LAYOUTS = [
    Layout(tp=8, pp=4, dp=2, sp=True, dist_opt=True, gbs=64, seq=4096),
    Layout(tp=4, pp=4, dp=4, vpp=5, sp=True, gbs=64, seq=4096, overlap=frozenset({"grad"}), recompute="full"),
    Layout(tp=8, pp=2, cp=2, dp=2, sp=True, gbs=32, seq=8192),
    Layout(framework="deepspeed", zero=3, dp=64, gbs=128, seq=4096, recompute="full"),
    Layout(framework="deepspeed", zero=1, tp=8, pp=2, dp=4, gbs=64, seq=4096),
    Layout(framework="fsdp2", tp=8, dp=8, gbs=64, seq=4096),
    Layout(framework="fsdp2", dp=64, shard=8, gbs=64, seq=4096),
    Layout(tp=16, pp=2, dp=2, sp=True, gbs=32, seq=4096),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.framework} {layout.text()}")
def test_the_parts_of_a_step_add_up_and_its_range_is_a_range(layout):
    assert why_not(layout, LLAMA) is None
    cost = cost_of(LLAMA, layout, FABRIC.setting)
    shares = cost.shares

    assert shares.compute + shares.bubble + shares.exposed + shares.other == pytest.approx(1, abs=2e-3)
    assert min(shares.compute, shares.bubble, shares.exposed, shares.hidden, shares.other) >= -1e-9
    assert cost.step_s["low"] <= cost.step_s["mid"] <= cost.step_s["high"]
    for row in cost.calls:
        for end in ENDS:
            price = {"low": row.price.low_us, "mid": row.price.mid_us, "high": row.price.high_us}[end]
            total = price * row.call.count + (2 * layout.pp * price if row.call.window == "pipeline" else 0)
            assert -1e-6 <= row.exposed_us[end] <= total * (1 + 1e-9) + 1e-6, row


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.framework} {layout.text()}")
def test_faster_links_and_more_overlap_never_cost_time(layout):
    now = cost_of(LLAMA, layout, FABRIC.setting).step_s["mid"]

    for inside, across in ((2.0, 1.0), (1.0, 2.0), (4.0, 4.0)):
        setting = replace(FABRIC.setting, pricer=faster(FABRIC.pricer, inside=inside, across=across))
        assert cost_of(LLAMA, layout, setting).step_s["mid"] <= now * (1 + 1e-9)
    for name in ("grad", "param", "tp", "moe"):
        other = replace(layout, overlap=layout.overlap | {name})
        if why_not(other, LLAMA) is None and name != "grad":
            assert cost_of(LLAMA, other, FABRIC.setting).step_s["mid"] <= now * (1 + 1e-9)


def test_a_bubble_is_p_minus_1_over_m_and_interleaving_divides_it():
    silent = replace(FABRIC, pricer=lambda *_: Price(low_us=0, mid_us=0, high_us=0, by="free"))
    gpt = from_config({"hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 64, "hidden_act": "gelu"}, "g")
    one, four = (cost_of(gpt, Layout(pp=4, vpp=vpp, gbs=16, seq=512), silent.setting).shares for vpp in (1, 4))

    assert one.bubble / one.compute == pytest.approx(3 / 16, rel=0.01)
    assert four.bubble / four.compute == pytest.approx(3 / 16 / 4, rel=0.01)


def test_uneven_stages_wait_for_the_heaviest():
    model, silent = preset("llama3-8b"), replace(FABRIC, pricer=lambda *_: Price(low_us=0, mid_us=0, high_us=0, by="free"))
    even, uneven = (cost_of(model, Layout(pp=2, pp_layout=split, gbs=32, seq=2048), silent.setting) for split in ((16, 16), (24, 8)))

    assert uneven.stage == 0
    assert uneven.step_s["mid"] > 1.2 * even.step_s["mid"]


def test_without_compute_or_a_price_there_is_no_step_time():
    no_compute = cost_of(LLAMA, LAYOUTS[0], replace(FABRIC, rates=None).setting)
    no_price = cost_of(LLAMA, LAYOUTS[0], replace(FABRIC, pricer=nothing).setting)

    assert no_compute.step_s is None
    assert no_compute.unpriced == ()
    assert all(row.price is not None for row in no_compute.calls)
    assert no_price.step_s is None
    assert any("TP forward" in text for text in no_price.unpriced)


def test_the_two_orders_send_the_same_bytes_over_other_links():
    one, other = (Layout(tp=4, pp=2, dp=2, sp=True, gbs=8, seq=4096, order=order) for order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"))
    two = fabric(nodes=2)
    rows = [{(r.call.kind, r.call.collective): (r.call.nbytes, r.call.count, r.price.mid_us) for r in cost_of(LLAMA, at, two.setting).calls}
            for at in (one, other)]  # fmt: skip

    for key in rows[0]:
        assert rows[0][key][:2] == rows[1][key][:2]
    assert rows[0]["DP gradients", "all_reduce"][2] < rows[1]["DP gradients", "all_reduce"][2]
    assert rows[0]["PP", "sendrecv"][2] > rows[1]["PP", "sendrecv"][2]


@settings(max_examples=40, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]), m=st.sampled_from([4, 8, 16]), zero=st.sampled_from([0, 1]), sp=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]), framework=st.sampled_from(["megatron", "deepspeed", "fsdp2"]),
)  # fmt: skip
def test_any_accepted_layout_has_a_finite_price(tp, pp, m, zero, sp, recompute, framework):
    dp = 64 // tp // pp
    layout = Layout(framework=framework, tp=tp, pp=pp, dp=dp, gbs=dp * m, seq=2048, recompute=recompute,
                    zero=zero if framework == "deepspeed" else 0, sp=sp and framework == "megatron")  # fmt: skip
    if why_not(layout, LLAMA) is not None:
        return
    found = answer(LLAMA, layout, FABRIC, "full-attention", deep=False)

    assert math.isfinite(found.cost.step_s["mid"])
    assert 0 < found.mfu_frac < 0.8
    assert found.memory.nbytes > 0
    assert want_of(LLAMA, layout).collectives


def test_neighbours_keep_the_number_of_ranks():
    for layout in LAYOUTS:
        assert all(other.world == layout.world for other in neighbours(layout))


# ---- search ----


def test_a_search_ranks_what_fits_and_says_its_ties():
    base = Layout(gbs=128, seq=4096, dist_opt=True)
    found = search(LLAMA, base, 64, FABRIC, "full-attention", top=12, fixed={"mbs": 1}, max_tp=8, per_node=8)
    steps = [row.cost.step_s["mid"] for row in found.answers]
    ties = [row.tie_group for row in found.answers]

    tight = [row.memory.verdict == "tight" for row in found.answers]
    assert list(zip(tight, steps, strict=True)) == sorted(zip(tight, steps, strict=True))
    assert ties[0] == 1
    assert all(b - a in (0, 1) for a, b in itertools.pairwise(ties))
    for tie in set(ties):
        mine = [step for step, group in zip(steps, ties, strict=True) if group == tie]
        assert max(mine) <= 1.05 * min(mine) * (1 + 1e-9)
    assert all(row.memory.verdict != "impossible" for row in found.answers)
    assert all(row.layout.tp <= 8 and row.layout.world == 64 for row in found.answers)
    assert found.n_impossible > 0
    assert found.answers[0].change is not None or found.why


def test_what_is_tight_ranks_below_what_fits_and_is_named_where_it_is_faster():
    """CUDA, NCCL and fragmentation are not in the sum: a layout of 79 of 80 GB is no recommendation."""
    base = Layout(gbs=512, seq=8192, dist_opt=True)
    options = {"fixed": {"mbs": 1, "tp": 4}, "max_tp": None, "per_node": 8, "recompute": "none"}
    wide = fabric(nodes=16)
    few, many = (search(LLAMA, base, 128, wide, "full-attention", top=top, **options) for top in (1, 100))
    tight = [row.memory.verdict == "tight" for row in many.answers]

    assert tight == sorted(tight)
    assert True in tight
    assert many.faster_tight is None
    first, fastest = few.answers[0], min((row for row in many.answers if row.memory.verdict == "tight"), key=lambda row: row.cost.step_s["mid"])
    assert first.memory.verdict == "fits"
    assert few.faster_tight.layout == fastest.layout
    assert fastest.cost.step_s["mid"] < first.cost.step_s["mid"]
    assert len({row.memory.verdict for row in many.answers if row.tie_group == many.answers[tight.index(True)].tie_group}) == 1
    text = "\n".join(search_lines(few, wide))
    assert f"may run out of memory, for what CUDA, NCCL and fragmentation take is not reckoned: {fastest.layout.text()}" in text


def test_the_best_change_fits_where_one_that_fits_is_faster():
    layout = Layout(tp=8, pp=4, dp=4, sp=True, dist_opt=True, gbs=512, seq=8192)
    wide = fabric(nodes=16)
    cost = cost_of(LLAMA, layout, wide.setting)
    others = [other for other in neighbours(layout) if why_not(other, LLAMA) is None]
    quick = [other for other in others if cost_of(LLAMA, other, wide.setting).step_s["mid"] < cost.step_s["mid"]]
    used = sorted(memory_of(LLAMA, other, None).nbytes for other in quick)
    assert len(used) > 1

    just = replace(wide, memory_nbytes=int(used[-1] * 1.01))  # the largest of them is tight
    assert best_change(LLAMA, layout, just, cost).memory.verdict == "fits"
    alone = replace(wide, memory_nbytes=int(used[0] * 1.01))
    assert best_change(LLAMA, layout, alone, cost).memory.verdict == "tight"


def test_a_batch_that_cannot_be_shared_names_those_next_to_it_that_can():
    base = Layout(dp=16, seq=2048)
    assert why_not(replace(base, gbs=500), LLAMA).endswith("(--gbs 496 or 512 can)")
    assert why_not(replace(base, gbs=7), LLAMA).endswith("(--gbs 16 can)")
    assert all(why_not(replace(base, gbs=n), LLAMA) is None for n in (16, 496, 512))


def test_fixed_sizes_stay_and_nothing_found_is_an_error():
    base = Layout(gbs=128, seq=4096)
    assert {layout.tp for layout in candidates(base, 64, 32, {"tp": 8}, None, 8)} == {8}
    with pytest.raises(UsageError, match="no layout of 64 ranks"):
        search(LLAMA, replace(base, gbs=1), 64, FABRIC, "full-attention", top=3, fixed={"pp": 1, "tp": 1}, max_tp=None, per_node=8)
    with pytest.raises(UsageError, match="fits into"):
        search(LLAMA, base, 64, replace(FABRIC, memory_nbytes=10**9), "full-attention", top=3, fixed={}, max_tp=None, per_node=8)
    with pytest.raises(UsageError, match="can be priced"):
        search(LLAMA, base, 64, replace(FABRIC, rates=None), "full-attention", top=3, fixed={"mbs": 1}, max_tp=None, per_node=8)


def step_of(layout, us=1000.0, model=None):
    """Cost of a step where every call takes the same time."""
    gpt = model or from_config({"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 51200}, "gpt")
    setting = Setting(pricer=lambda *_: Price(low_us=us, mid_us=us, high_us=us, by="t"), places=Places(even_seats(layout.world, 8)), rates=H100)
    return cost_of(gpt, layout, setting)


def test_the_bubble_is_p_minus_1_over_m_v_of_the_work():
    for pp, vpp, gbs in ((2, 1, 8), (4, 1, 8), (4, 2, 8), (2, 4, 2)):
        cost = step_of(Layout(pp=pp, vpp=vpp, gbs=gbs), us=0.0)
        # The last stage also has the head: by the formula of the slowest stage, the others' share of fill and drain is less.
        assert cost.shares.bubble / cost.shares.compute <= (pp - 1) / (gbs * vpp)
        even = step_of(Layout(pp=pp, vpp=vpp, gbs=gbs), us=0.0, model=from_config(
            {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 1, "intermediate_size": 4096}, "gpt"))  # fmt: skip
        assert even.shares.bubble / even.shares.compute == pytest.approx((pp - 1) / (gbs * vpp), rel=1e-3)


def test_the_last_bucket_has_nothing_left_to_hide_under():
    layout = Layout(dp=8, gbs=8, overlap=frozenset({"grad"}))
    gradients = next(row for row in step_of(layout).calls if row.call.kind == "DP gradients")

    assert gradients.call.count == 6
    assert 1000.0 <= gradients.exposed_us["mid"] < 6000.0
    one_bucket = next(row for row in step_of(Layout(pp=2, dp=8, gbs=64, overlap=frozenset({"grad"}))).calls if row.call.kind == "DP gradients")
    assert one_bucket.exposed_us["mid"] >= 1000.0


def test_pipeline_sends_are_exposed_as_far_as_the_schedule_can_expose_them():
    plain, chunks = Layout(pp=4, gbs=64), Layout(pp=4, vpp=2, gbs=64)
    told = replace(chunks, overlap=frozenset({"p2p"}))
    high = [next(row for row in step_of(layout).calls if row.call.kind == "PP").exposed_us["high"] / 1000.0 for layout in (plain, chunks, told)]

    assert high == [6 + 2 * 64, 6 + 2 * (2 * 3 + 4), 6]


def test_memory_of_the_optimizer_follows_the_dtype_of_the_weights():
    gpt = from_config({"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 51200}, "gpt")
    for dtype, each in (("bfloat16", 2 + 4 + 12), ("float32", 4 + 4 + 8)):
        parts = memory_of(gpt, Layout(param_dtype=dtype), None).heaviest.parts
        assert parts["weights"] + parts["gradients"] + parts["optimizer"] == each * gpt.params
    root = 2 * 51200 * 1024 + 1024
    parts = memory_of(gpt, Layout(framework="fsdp2", dp=8, gbs=8), None).heaviest.parts
    assert parts["gathered"] == 2 * (2 * gpt.layer_params(0) + root)


def test_latent_attention_keeps_wide_keys():
    deepseek = preset("deepseek-v3")
    per_token = layer_activation_nbytes(deepseek, Layout(seq=4096), True) / 4096
    attention = 4 * 128 * (192 + 128) + 2 * (1536 + 512 + 64)
    experts = 4 * (8 * 2048 + 2048) * 1.5

    assert per_token == pytest.approx(10 * 7168 + attention + experts)
