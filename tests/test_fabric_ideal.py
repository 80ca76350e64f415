"""fabric/ideal.py, paths.py, shape.py, domain.py: ceilings against closed forms, published figures and properties."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nccl_bench.errors import DetectError, UsageError
from nccl_bench.fabric import gpus, pcie, spec
from nccl_bench.fabric.crowd import ALONE
from nccl_bench.fabric.ideal import Ceilings, ceilings
from nccl_bench.fabric.shape import gathered
from nccl_bench.fabric.spec import topology_of
from nccl_bench.fabric.topology import Gpu, Node, Topology
from nccl_bench.groups import axis_groups, parse_mesh


def of(gpus_: str, nics: str | None = None, nodes: int = 1, environ: dict[str, str] | None = None, **options) -> Ceilings:
    return ceilings(topology_of(gpus_, nics, nodes), None, environ or {}, **options)


def attainable(found: Ceilings, collective: str, algorithm: str | None = None, shift: str | None = None) -> float:
    return found.of(collective, algorithm, shift).attainable_GBps


def line(found: Ceilings, collective: str, algorithm: str | None = None, shift: str | None = None) -> float:
    return found.of(collective, algorithm, shift).line_GBps


@pytest.mark.parametrize(
    ("gpus_", "nics", "nodes", "collective", "algorithm", "figure"),
    [
        ("8xV100-SXM", None, 1, "all_reduce", None, 135),
        ("4xV100-SXM", None, 1, "all_reduce", None, 135),
        ("8xA100-SXM", None, 1, "all_reduce", None, 240),
        ("8xA100-SXM", None, 1, "all_to_all", None, 240),
        ("8xH100-SXM", None, 1, "all_reduce", None, 481.6),
        ("4xH100-SXM", None, 1, "all_reduce", None, 371.5),
        ("8xH100-SXM", None, 1, "all_reduce", "ring", 370.8),
        ("8xH100-SXM", None, 1, "all_gather", None, 370.8),
        ("8xH800", None, 1, "all_reduce", None, 214.1),
        ("8xA800", None, 1, "all_reduce", None, 160),
        ("8xB300", None, 1, "all_reduce", None, 836.5),
        ("8xB300", None, 1, "all_gather", None, 721.8),
        ("64xGB300", None, 1, "all_reduce", None, 930.5),
        ("72xGB200", None, 1, "all_reduce", None, 933.7),
        ("8xA100-SXM", "16x100-RoCE", 2, "all_reduce", None, 220.8),
        ("8xA100-SXM", "16x100-RoCE", 2, "all_gather", None, 196),
        ("8xA100-SXM", "16x100-RoCE", 2, "all_to_all", None, 45.9),
        ("8xA100-SXM", "4x100-EFA", 2, "all_reduce", None, 91.9),
        ("8xH100-SXM", "8x200-TCPX", 2, "all_reduce", None, 367.5),
        ("8xH100-SXM", "8x400-IB", 4, "all_reduce", None, 392),
        ("8xH100-SXM", "8x400-IB", 10, "all_to_all", None, 53.8),
        ("4xH100-SXM", "4x400-IB", 10, "all_to_all", None, 53.1),
        ("1xH100-SXM", "1x400-IB", 10, "all_reduce", None, 49),
        ("1xH100-SXM", "4x400-RoCE", 2, "all_reduce", None, 55.4),
        ("8xB200", "8x400-IB", 2, "all_reduce", None, 735),
        ("4xA100-SXM", "4x200-IB", 2, "all_reduce", "ring", 98),
        ("8xMI300X", None, 1, "all_reduce", None, 336),
        ("8xMI300X", "8x400-RoCE", 2, "all_reduce", None, 384),
        ("8xMI355X", None, 1, "all_reduce", None, 401.6),
        ("2xMI300X", None, 1, "all_reduce", None, 48),
        ("1xL40S", "1x100-RoCE", 2, "all_reduce", None, 12.25),
        ("4xA100-PCIE", None, 1, "all_reduce", None, 27),
        ("2xA100-PCIE", None, 1, "all_reduce", None, 240),
    ],
)
def test_attainable_of_known_systems(gpus_: str, nics: str | None, nodes: int, collective: str, algorithm: str | None, figure: float) -> None:
    assert attainable(of(gpus_, nics, nodes), collective, algorithm) == pytest.approx(figure, abs=0.06)


@pytest.mark.parametrize(
    ("gpus_", "nics", "nodes", "collective", "algorithm", "figure"),
    [
        ("8xH100-SXM", None, 1, "all_reduce", "ring", 450),
        ("8xH100-SXM", None, 1, "all_reduce", "nvls", 787.5),
        ("8xH100-SXM", "8x400-IB", 2, "all_reduce", "ring", 400),
        ("8xH100-SXM", "8x400-IB", 2, "all_reduce", "tree", 500),
        ("8xH100-SXM", "8x400-IB", 2, "all_reduce", "NVLSTree", 750),
        ("4xGH200", "4x200-Slingshot", 2, "all_reduce", "tree", 175),
        ("8xH100-SXM", "8x400-IB", 2, "all_gather", None, 400),
        ("8xH100-SXM", "8x400-IB", 2, "all_to_all", None, 93.75),
        ("8xH100-SXM", "8x400-IB", 2, "broadcast", None, 400),
        ("8xV100-SXM", None, 1, "all_to_all", None, 65.625),
        ("8xV100-SXM", None, 1, "all_reduce", None, 150),
        ("8xA100-SXM", "1x200-IB", 2, "all_to_all", None, 5.86),
        ("8xMI300X", "8x400-RoCE", 2, "all_gather", None, 400),
        ("2xV100-SXM", None, 1, "all_reduce", None, 50),
    ],
)
def test_line_of_known_systems(gpus_: str, nics: str | None, nodes: int, collective: str, algorithm: str | None, figure: float) -> None:
    assert line(of(gpus_, nics, nodes), collective, algorithm) == pytest.approx(figure, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(g=st.integers(2, 8), nodes=st.integers(2, 40), nics=st.integers(1, 16), rate=st.sampled_from([100, 200, 400]))
def test_line_is_the_closed_form_of_equal_nodes(g: int, nodes: int, nics: int, rate: int) -> None:
    found = of(f"{g}xH100-SXM", f"{nics}x{rate}-IB", nodes)
    n, links, slot = g * nodes, 450.0, pcie.rate(5, 16) or 0.0
    net = min(nics * rate / 8, g * slot)

    assert line(found, "all_gather") == pytest.approx(min(net, links * g / (g - 1)))
    assert line(found, "all_reduce", "ring") == pytest.approx(min(net, links * g / (g - 1)))
    assert line(found, "all_reduce", "tree") == pytest.approx(min(links + net / g, net * (n - 1) / (n - g)))
    assert line(found, "all_reduce", "nvls") == pytest.approx(min(2 * (n - 1) / n * (links + net / g), net * (n - 1) / (n - g)))
    assert line(found, "all_to_all") == pytest.approx(min(links + net / g, net / g * (n - 1) / (n - g)))
    assert line(found, "sendrecv", shift="node") == pytest.approx(min(slot, net / g))


MODELS = [model.name for model in gpus.MODELS if model.name != "MI250X"]
NICS = st.tuples(st.integers(1, 8), st.sampled_from([25, 100, 400]), st.sampled_from(["IB", "EFA"]))
FABRICS = st.tuples(st.integers(1, 9), st.sampled_from(MODELS), st.integers(1, 5), NICS)


def build(count: int, model: str, nodes: int, nics: tuple[int, int, str]) -> Topology:
    try:
        return topology_of(f"{count}x{model}", f"{nics[0]}x{nics[1]}-{nics[2]}", nodes)
    except DetectError:
        assume(False)
        raise


@settings(max_examples=80, deadline=None)
@given(FABRICS)
def test_no_attainable_is_above_its_line_and_every_limit_has_words(fabric: tuple) -> None:
    found = ceilings(build(*fabric), None, {})

    for row in found.collectives.values():
        for ceiling in (row.best, *row.by_algorithm.values()):
            assert 0 <= ceiling.attainable_GBps <= ceiling.line_GBps < 1e5
            assert ceiling.limited_by not in ("", "nothing", "link", "slot")
        assert row.best.line_GBps == max(ceiling.line_GBps for ceiling in row.by_algorithm.values())
        assert row.best.attainable_GBps == max(ceiling.attainable_GBps for ceiling in row.by_algorithm.values())


@settings(max_examples=60, deadline=None)
@given(FABRICS, st.floats(1.0, 3.0), st.integers(0, 30))
def test_a_faster_link_or_nic_lowers_no_bound(fabric: tuple, factor: float, which: int) -> None:
    topology = build(*fabric)
    node = replace(topology.nodes[0])
    assert node.gpus is not None
    at = which % len(node.gpus)
    links = node.gpus[at].nvlink
    if which % 2 or links is None or not links.per_direction_GBps:
        assert node.nics
        chosen = node.nics[at % len(node.nics)]
        better = replace(node, nics=tuple(replace(nic, rate_gbit=(nic.rate_gbit or 0) * (factor if nic is chosen else 1)) for nic in node.nics))
    else:
        gpu = replace(node.gpus[at], nvlink=replace(links, per_direction_GBps=links.per_direction_GBps * factor))
        better = replace(node, gpus=(*node.gpus[:at], gpu, *node.gpus[at + 1 :]))

    before = ceilings(topology, None, {})
    after = ceilings(replace(topology, nodes=(better, *topology.nodes[1:])), None, {})

    for name, row in before.collectives.items():
        for algorithm, ceiling in row.by_algorithm.items():
            assert after.collectives[name].by_algorithm[algorithm].line_GBps >= ceiling.line_GBps * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(FABRICS, st.randoms(use_true_random=False))
def test_a_bound_does_not_depend_on_how_ranks_are_numbered(fabric: tuple, order: random.Random) -> None:
    topology = build(*fabric)
    n = sum(len(node.gpus or ()) for node in topology.nodes)
    ranks = list(range(n))
    order.shuffle(ranks)

    one, two = ceilings(topology, None, {}), ceilings(topology, ranks, {})

    for name, row in one.collectives.items():
        if name.split(":")[0] not in ("sendrecv", "pingpong"):
            assert two.collectives[name].best.line_GBps == pytest.approx(row.best.line_GBps)
            assert two.collectives[name].best.attainable_GBps == pytest.approx(row.best.attainable_GBps)


@settings(max_examples=60, deadline=None)
@given(FABRICS)
def test_all_reduce_is_no_slower_than_reduce_scatter_and_all_gather_after_another(fabric: tuple) -> None:
    found = ceilings(build(*fabric), None, {})
    assume(found.n_ranks > 1)
    parts = 2 / (1 / line(found, "reduce_scatter") + 1 / line(found, "all_gather"))

    assert line(found, "all_reduce") >= parts * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(FABRICS)
def test_without_sums_in_switches_a_ring_is_below_every_link_it_takes(fabric: tuple) -> None:
    topology = build(*fabric)
    found = ceilings(topology, None, {})
    assume(found.n_domains > 1)
    net = sum(nic.line_GBps or 0 for nic in topology.nodes[0].nics or ())

    for name in ("all_gather", "reduce_scatter", "broadcast", "reduce"):
        assert line(found, name, "ring") <= net + 1e-9


def test_a_dead_nic_limits_all_nodes_but_the_sum_form_less() -> None:
    topology = topology_of("8xH100-SXM", "8x400-IB", 4)
    node = topology.nodes[0]
    worse = replace(node, nics=tuple(replace(nic, used=at != 3) for at, nic in enumerate(node.nics or ())))
    uneven = replace(topology, nodes=(*topology.nodes[:3], worse))

    found = ceilings(uneven, None, {})

    assert line(found, "all_gather") == 350
    assert line(found, "all_reduce", "tree") == pytest.approx((32 * 450 + 3 * 400 + 350) / 32)
    assert line(found, "all_reduce", "nvls") == pytest.approx(31 / 32 * (3 * 400 + 350) / 3)
    assert attainable(found, "all_reduce", "ring") == pytest.approx(343)


def test_part_of_a_node_has_its_own_nics_only() -> None:
    topology = topology_of("8xH100-SXM", "8x400-IB", 4)

    rail = ceilings(topology, [0, 8, 16, 24], {})
    pair = ceilings(topology, [("node", 0), ("node", 1)], {})

    assert (rail.n_domains, rail.ranks_per_domain) == (4, (1, 1))
    assert attainable(rail, "all_reduce") == pytest.approx(49)
    assert line(rail, "all_reduce") == pytest.approx(pcie.rate(5, 16))
    assert pair.n_domains == 1
    with pytest.raises(UsageError, match="no GPU 99"):
        ceilings(topology, [99], {})


def test_a_ring_shift_meets_one_nic_at_a_nodes_border_and_a_node_shift_meets_all() -> None:
    found = of("8xH100-SXM", "8x400-IB", 2)

    assert attainable(found, "sendrecv", shift="ring") == pytest.approx(49)
    assert attainable(found, "sendrecv", shift="node") == pytest.approx(49)
    few = of("8xH100-SXM", "4x400-IB", 2)
    assert attainable(few, "sendrecv", shift="ring") == pytest.approx(49)
    assert attainable(few, "sendrecv", shift="node") == pytest.approx(24.5)


def test_nvls_is_left_out_for_what_the_switch_cannot_add_up() -> None:
    for dtype, op, there in (("float32", "sum", True), ("float64", "sum", True), ("int8", "sum", False), ("float8_e4m3fn", "sum", False),
                             ("float32", "max", False), ("bfloat16", "max", True), ("float32", "avg", False)):  # fmt: skip
        found = of("8xH100-SXM", dtype=dtype, op=op)
        assert ("nvls" in found.collectives["all_reduce"].by_algorithm) is there
    assert attainable(of("8xH100-SXM", dtype="int8"), "all_reduce") == pytest.approx(370.8)


def test_nccls_variables_count() -> None:
    assert set(of("8xH100-SXM", environ={"NCCL_ALGO": "Ring"}).collectives["all_reduce"].by_algorithm) == {"ring"}
    assert set(of("8xH100-SXM", environ={"NCCL_ALGO": "^NVLS,NVLSTree"}).collectives["all_reduce"].by_algorithm) == {"ring", "tree"}
    assert set(of("8xH100-SXM", environ={"NCCL_ALGO": "allgather:ring;allreduce:tree"}).collectives["all_reduce"].by_algorithm) == {"tree"}
    assert "nvls" not in of("8xH100-SXM", environ={"NCCL_NVLS_ENABLE": "0"}).collectives["all_reduce"].by_algorithm
    without_p2p = of("8xH100-SXM", environ={"NCCL_P2P_DISABLE": "1"})
    assert line(without_p2p, "all_reduce") == pytest.approx(pcie.rate(5, 16))
    assert "through host memory" in without_p2p.of("all_reduce").limited_by
    by_nic = of("8xH100-SXM", "8x400-IB", environ={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})
    assert by_nic.n_domains == 8
    assert attainable(by_nic, "all_reduce") == pytest.approx(49)
    assert "collnet" in of("8xH100-SXM", "8x400-IB", 4, {"NCCL_COLLNET_ENABLE": "1"}).collectives["all_reduce"].by_algorithm


def test_a_list_of_algorithms_that_leaves_none_is_said() -> None:
    found = of("8xA100-SXM", environ={"NCCL_ALGO": "NVLS"})

    assert set(found.collectives["all_reduce"].by_algorithm) == {"ring", "tree"}
    assert any("NCCL_ALGO=NVLS leaves no algorithm for all_reduce" in text for text in found.warnings)


def test_sharp_lets_each_node_send_the_sum_once() -> None:
    found = of("8xB200", "8x400-IB", 4, sharp=True)

    assert line(found, "all_reduce", "collnet") == pytest.approx(2 * 31 / 32 * 400)
    assert attainable(found, "all_reduce", "CollNetDirect") == pytest.approx(0.72 * 775)


@pytest.mark.parametrize(
    ("gpus_", "nics", "nodes", "fastest"),
    [
        ("8xH100-SXM", None, 1, {"nvls"}),  # 481.6 over 370.8
        ("4xH100-SXM", None, 1, {"nvls"}),  # 371.5 over 370.8: 0.2 %
        ("4xB200", None, 1, {"ring"}),  # 721.8 over 645.3
        ("8xH100-SXM", "8x400-IB", 4, {"ring"}),  # 392 over 379.75 and 341.1
        ("8xA100-SXM", "8x200-IB", 2, {"tree"}),  # 220.8 over 196
        ("1xL40S", "1x100-RoCE", 2, {"ring", "tree"}),  # 12.25 both
    ],
)
def test_the_fastest_algorithms_are_those_within_a_thousandth_of_the_best(gpus_: str, nics: str | None, nodes: int, fastest: set[str]) -> None:
    row = of(gpus_, nics, nodes).collectives["all_reduce"]

    assert row.fastest == fastest
    assert row.fastest < set(row.by_algorithm) or len(row.by_algorithm) == len(fastest)


def test_nvls_gathers_inside_one_domain_alone_and_what_it_cannot_add_it_still_gathers() -> None:
    one, two, fp8 = of("8xH100-SXM"), of("8xH100-SXM", "8x400-IB", 2), of("8xH100-SXM", dtype="float8_e4m3fn")

    assert set(one.collectives["reduce_scatter"].by_algorithm) == set(one.collectives["all_gather"].by_algorithm) == {"ring", "nvls"}
    assert set(two.collectives["all_gather"].by_algorithm) == set(of("8xA100-SXM").collectives["all_gather"].by_algorithm) == {"ring"}
    assert set(fp8.collectives["all_gather"].by_algorithm) == {"ring", "nvls"}
    assert set(fp8.collectives["reduce_scatter"].by_algorithm) == {"ring"}
    assert set(fp8.collectives["all_reduce"].by_algorithm) == {"ring", "tree"}


def test_pat_gathers_over_nodes_of_one_gpu_at_three_quarters_of_the_ring() -> None:
    lonely, uneven = of("1xH100-SXM", "1x400-IB", 10), ceilings(topology_of("8xH100-SXM", "8x400-IB", 2), range(9), {})

    for name in ("all_gather", "reduce_scatter"):
        assert line(lonely, name, "pat") == line(lonely, name, "ring") == 50
        assert attainable(lonely, name, "pat") == pytest.approx(0.75 * 49)
        assert set(uneven.collectives[name].by_algorithm) == {"ring"}


@pytest.mark.parametrize(
    ("gpus_", "nodes", "environ", "figure"),
    [
        ("8xH100-SXM", 2, {}, 2 * 15 / 16 * 370.8 * 8 / 9 * 0.79),
        ("8xH100-SXM", 4, {}, 2 * 31 / 32 * 370.8 * 8 / 9 * 0.79),
        ("7xH100-SXM", 4, {}, 2 * 27 / 28 * 370.8 * 7 / 8 * 0.79),
        ("8xH100-SXM", 4, {"NCCL_NVLS_ENABLE": "0"}, 370.8),
        ("8xA100-SXM", 4, {}, 240),
    ],
)
def test_sharp_is_what_the_links_bring_to_the_nics(gpus_: str, nodes: int, environ: dict[str, str], figure: float) -> None:
    found = of(gpus_, "8x400-IB", nodes, environ, sharp=True)

    assert attainable(found, "all_reduce", "collnet") == pytest.approx(figure, rel=1e-4)


def test_sharp_between_nodes_of_one_gpu_is_what_the_nics_carry() -> None:
    assert attainable(of("1xH100-SXM", "1x400-IB", 10, sharp=True), "all_reduce", "collnet") == pytest.approx(2 * 9 / 10 * 50 * 0.72)


def test_pingpong_is_a_pairs_own_nic_or_links() -> None:
    near, far = of("8xH100-SXM").of("pingpong"), of("8xH100-SXM", "8x400-IB", 2).of("pingpong")

    assert (near.line_GBps, near.attainable_GBps, near.limited_by) == (450, pytest.approx(370.8), "GPU's 18 NVLink4")
    assert (far.line_GBps, far.attainable_GBps, far.limited_by) == (50, pytest.approx(49), "GPU's own 400G InfiniBand")


@pytest.mark.parametrize(("gpus_", "figure"), [("8xB200", 2 * 7 / 8 * 721.8 * 8 / 9 * 0.745), ("4xB200", 2 * 3 / 4 * 721.8 * 4 / 5 * 0.745)])
def test_nvls_on_blackwell_has_one_share_up_to_a_hosts_eight_gpus(gpus_: str, figure: float) -> None:
    assert attainable(of(gpus_), "all_reduce", "nvls") == pytest.approx(figure)


@pytest.mark.parametrize("g", [3, 5, 7])
def test_nvls_of_an_odd_number_of_gpus(g: int) -> None:
    assert attainable(of(f"{g}xH100-SXM"), "all_reduce", "nvls") == pytest.approx(2 * (g - 1) / g * 370.8 * g / (g + 1) * 0.835)


def test_one_rank_alone_has_ways_but_nobody_to_talk_to_and_two_have_no_such_warning() -> None:
    one, two = (ceilings(topology_of("8xH100-SXM", None, 1), range(n), {}) for n in (1, 2))

    assert {name: set(row.by_algorithm) for name, row in one.collectives.items()} == {
        name: {"p2p"} if name in ("all_to_all", "gather", "scatter", "sendrecv", "pingpong") else {"ring"} for name in one.collectives
    }
    assert {row.best.attainable_GBps for row in one.collectives.values()} == {0.0}
    assert ([text for text in one.warnings if "nobody" in text], [text for text in two.warnings if "nobody" in text]) == (
        ["one rank has nobody to talk to: bus bandwidth is 0"],
        [],
    )


def test_a_lone_gpu_beside_a_whole_node_is_bound_by_the_nic_that_nccl_takes_and_by_no_link() -> None:
    found = ceilings(topology_of("8xH100-SXM", "8x400-IB", 2), range(9), {}, sharp=True)
    slot = pcie.rate(5, 16) or 0.0
    ring, tree, nvls, collnet = (found.of("all_reduce", way) for way in ("ring", "tree", "nvls", "collnet"))

    assert (ring.line_GBps, ring.line_limited_by) == (slot, "GPU's PCIe Gen5 x16 slot")
    assert (ring.attainable_GBps, ring.limited_by) == (pytest.approx(49), "node's nearest 1x 400G InfiniBand")
    assert tree.attainable_GBps == nvls.attainable_GBps == pytest.approx(2 * 49 * 8 / 9)
    assert collnet.attainable_GBps == pytest.approx(2 * 8 / 9 * 50 * 0.72)


def test_racks_with_fewer_uplinks_bind() -> None:
    free = ceilings(topology_of("8xH100-SXM", "8x400-IB", 8, racks="2x4"), None, {})
    bound = ceilings(topology_of("8xH100-SXM", "8x400-IB", 8, racks="2x4", oversubscription="4:1"), None, {})

    assert line(bound, "all_to_all") < line(free, "all_to_all")
    assert line(bound, "all_to_all") == pytest.approx(400 * 63 / (32 * 32))
    assert bound.of("all_to_all").line_limited_by == "rack's uplinks (4:1)"


def test_pcie_bridges_that_gpus_share_bind() -> None:
    slot = pcie.link(4, 16)
    bridges = (("cpu0", None), ("0000:01:00.0", 15.754))
    gpus_ = tuple(Gpu(index=at, name="L40S", pcie=slot, bridges=bridges if at < 2 else (("cpu0", None),)) for at in range(4))
    found = ceilings(Topology(nodes=(Node(gpus=gpus_, switch=False),)), None, {})

    assert line(found, "all_gather") == pytest.approx(15.754)
    assert line(found, "all_to_all") == pytest.approx(15.754 * 3 / 4)
    assert "uplink of 15.754 GB/s that 2 GPUs share" in found.of("all_to_all").limited_by


def test_a_nic_in_a_narrow_slot_is_the_limit_in_words() -> None:
    topology = topology_of("8xH100-SXM", "8x400-IB", 2)
    node = topology.nodes[0]
    narrow = replace(node, nics=tuple(replace(nic, pcie=pcie.link(4, 8)) for nic in node.nics or ()))

    found = ceilings(replace(topology, nodes=(narrow, narrow)), None, {})

    assert line(found, "all_gather") == pytest.approx(8 * 15.754, abs=0.01)
    assert found.of("all_gather").limited_by == "NIC in a Gen4 x8 slot"


def test_the_active_mtu_of_roce_counts() -> None:
    topology = topology_of("8xH100-SXM", "8x400-RoCE", 2)
    node = topology.nodes[0]
    small = replace(node, nics=tuple(replace(nic, mtu=1024) for nic in node.nics or ()))

    assert attainable(ceilings(replace(topology, nodes=(small, small)), None, {}), "all_gather") == pytest.approx(400 * 1024 / 1106)


def test_hosts_of_one_clique_are_one_domain() -> None:
    node = topology_of("4xGB200", "4x400-IB", 1).nodes[0]
    nodes = tuple(replace(node, host=f"h{at}", gpus=tuple(replace(gpu, clique="u.1") for gpu in node.gpus or ())) for at in range(18))

    rack = ceilings(Topology(nodes=nodes), None, {})
    apart = ceilings(Topology(nodes=nodes), None, {"NCCL_MNNVL_ENABLE": "0"})

    assert (rack.n_domains, rack.n_ranks) == (1, 72)
    assert attainable(rack, "all_reduce") == pytest.approx(933.7, abs=0.06)
    assert apart.n_domains == 18


def test_what_is_unknown_is_refused_and_never_guessed() -> None:
    named = topology_of("8xH100-SXM", "8x400-IB", 2)
    node = named.nodes[0]
    nameless = replace(node, gpus=tuple(replace(gpu, name=None) for gpu in node.gpus or ()))
    strange = replace(node, gpus=tuple(replace(gpu, name="RTX 9999") for gpu in node.gpus or ()))
    rateless = replace(node, nics=tuple(replace(nic, rate_gbit=None) for nic in node.nics or ()))
    sliced = replace(node, gpus=tuple(replace(gpu, mig=True) for gpu in node.gpus or ()))

    for bad, words in ((nameless, "which model"), (strange, "'RTX 9999'"), (sliced, "MIG"), (replace(node, gpus=None), "its GPUs are not known")):
        with pytest.raises(DetectError, match=words):
            ceilings(Topology(nodes=(bad,)), None, {})
    without = ((rateless, "the rate of nic0, nic1, nic2, nic3 is not"), (replace(node, nics=None), "not known"), (replace(node, nics=()), "no NIC"))
    for bad, words in without:
        with pytest.raises(DetectError, match=words):
            ceilings(Topology(nodes=(bad, bad)), None, {})
        assert ceilings(Topology(nodes=(bad,)), None, {}).n_ranks == 8


def test_links_that_a_source_does_not_give_come_from_the_table_and_are_said() -> None:
    gpus_ = tuple(Gpu(index=at, name="H100 80GB HBM3") for at in range(8))

    found = ceilings(Topology(nodes=(Node(gpus=gpus_),)), None, {})

    assert attainable(found, "all_reduce") == pytest.approx(481.6, abs=0.1)
    assert any("with all its 18 links up" in text for text in found.assumptions)


def test_fewer_links_scale() -> None:
    node = topology_of("8xH100-SXM", None, 1).nodes[0]
    gpus_ = [replace(gpu, nvlink=replace(gpu.nvlink, links=9, per_direction_GBps=225.0)) for gpu in node.gpus or () if gpu.nvlink]

    found = ceilings(Topology(nodes=(replace(node, gpus=tuple(gpus_)),)), None, {})

    assert line(found, "all_gather") == 225
    assert attainable(found, "all_gather") == pytest.approx(185.4)


def test_one_rank_has_no_bandwidth_and_says_so() -> None:
    found = of("1xH100-SXM")

    assert line(found, "all_reduce") == attainable(found, "all_reduce") == 0
    assert any("one rank" in text for text in found.warnings)


def test_a_large_cluster_is_reckoned_by_its_kinds_of_nodes() -> None:
    from nccl_bench.fabric.shape import lay_out

    shape = lay_out(topology_of("8xH100-SXM", "8x400-IB", 2048), None, {})

    assert (shape.n, len(shape.domains), len(shape.kinds)) == (16384, 2048, 1)


@pytest.mark.parametrize(
    ("gpus_", "nics", "nodes", "collective", "model_us"),
    [
        ("8xA100-SXM", None, 1, "all_reduce", 15.0),
        ("8xA100-SXM", None, 1, "all_gather", 10.8),
        ("2xA100-SXM", None, 1, "all_reduce", 7.8),
        ("8xH100-SXM", "8x400-IB", 2, "all_reduce", 25.2),
        ("8xH100-SXM", "8x400-IB", 4, "all_reduce", 35.2),
        ("1xL40S", "1x100-RoCE", 2, "all_reduce", 12.0),
        ("4xGH200", "4x200-Slingshot", 2, "all_reduce", 20.4),
        ("8xA100-SXM", "4x100-EFA", 2, "all_reduce", 175.2),
        ("8xH100-SXM", "8x400-IB", 4, "broadcast", 6.6 + 28 * 1.0 + 3 * 2.7),  # all hops of the ring, one after the other
        ("8xA100-SXM", None, 1, "reduce", 10.8),
    ],
)
def test_the_latency_of_small_messages_is_nccls_own_model(gpus_: str, nics: str | None, nodes: int, collective: str, model_us: float) -> None:
    assert of(gpus_, nics, nodes).collectives[collective].latency_us == pytest.approx(model_us)


def test_a_message_to_many_takes_longer_with_more_ranks_or_is_said_to_be_the_least() -> None:
    few, many = (of("8xH100-SXM", "8x400-IB", nodes).collectives for nodes in (2, 128))
    for name, row in many.items():
        pairwise = name.startswith(("sendrecv", "pingpong"))
        assert row.latency_least == (name in ("all_to_all", "gather", "scatter"))
        assert pairwise or row.latency_least or row.latency_us > 2 * few[name].latency_us
    assert not of("2xH100-SXM", None, 1).collectives["gather"].latency_least


def test_the_physical_limit_of_a_ring_shift_is_the_slot_behind_which_any_nic_may_be_used() -> None:
    row = of("8xH100-SXM", "8x400-IB", 4).collectives
    ring, node = row["sendrecv"].best, row["sendrecv:node"].best

    assert (round(ring.line_GBps), "PCIe" in ring.line_limited_by) == (63, True)
    assert (round(node.line_GBps), node.line_limited_by) == (50, "node's 8x 400G InfiniBand")


def test_nothing_is_said_of_latency_over_tcp() -> None:
    assert of("8xH100-SXM", "1x100-Ethernet", 2).collectives["all_reduce"].latency_us is None


def test_a_dgx1_of_the_list_is_the_cube_mesh() -> None:
    node = spec.node_of(8, gpus.find("V100-SXM"), None)

    assert {sum(count for _peer, count in gpu.nvlink.bonds or ()) for gpu in node.gpus or () if gpu.nvlink} == {6}


def test_a_domain_larger_than_the_model_has_is_refused_and_not_reckoned_as_if_nothing_bound_it() -> None:
    with pytest.raises(DetectError, match="larger than 4"):
        topology_of("5xGH200", "1x25-IB", 1)


# ---- groups of one kind at once


def kind(mesh: str, axis: str, nics: str = "8x400-IB", nodes: int = 2, *, alone: bool = False) -> Ceilings:
    """The ceilings of the slowest group of an axis, beside all others or alone."""
    topology = topology_of("8xH100-SXM", nics, nodes)
    groups = axis_groups(parse_mesh(mesh), axis)
    at, crowd = gathered(topology, groups, {})
    return ceilings(topology, groups[at], {}, crowd=ALONE if alone else crowd)


@pytest.mark.parametrize(("mesh", "share", "sent"), [("dp=2,tp=8", 8, 50.0), ("dp=4,tp=4", 4, 100.0), ("dp=8,tp=2", 2, 200.0)])
def test_groups_that_leave_a_node_at_once_share_its_nics(mesh: str, share: int, sent: float) -> None:
    found = kind(mesh, "dp")

    assert line(found, "all_gather") == pytest.approx(sent)
    assert attainable(found, "all_gather") == pytest.approx(0.98 * sent, rel=0.01)
    assert f"shared by {share} groups" in found.of("all_gather").limited_by
    assert line(found, "all_gather") < line(kind(mesh, "dp", alone=True), "all_gather")


def test_groups_inside_nodes_share_nothing() -> None:
    assert kind("dp=2,tp=8", "tp").collectives == kind("dp=2,tp=8", "tp", alone=True).collectives


def test_two_gpus_on_one_nic_halve_it_when_both_send() -> None:
    both, alone = (kind("dp=2,tp=8", "dp", "4x400-IB", alone=alone) for alone in (False, True))

    assert attainable(both, "all_gather") == pytest.approx(attainable(alone, "all_gather") / 2, rel=0.01)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([2, 3, 4, 8]))
def test_what_all_groups_send_together_never_exceeds_the_nics(inner: int, nodes: int) -> None:
    found = kind(f"dp={8 * nodes // inner},tp={inner}", "dp", nodes=nodes)
    n = found.n_ranks

    # Of each group's all_gather (n - members here)/n of its bytes enter a node, and `inner` groups do so at once.
    assert inner * line(found, "all_gather") * (n - 8 // inner) / (n - 1) <= 400.0 * 1.001
