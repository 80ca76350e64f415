"""The ceilings of a recorded run: from its topology, from a log's own lines, from the models it names; else why not."""

import pytest
import report_samples as samples
from field_cases import REFERENCE, needs_reference

from nccl_bench.records import Ceiling
from nccl_bench.results.runs import open_run
from nccl_bench.verdict.ceilings import BY_MODEL, ceiling_of, ceilings_of

pytestmark = pytest.mark.pure


def held(tmp_path, head):
    return ceilings_of(open_run(str(samples.write_fast(tmp_path / "run", head, []))))


def test_the_recorded_topology_is_taken_as_it_is(tmp_path):
    found = held(tmp_path, samples.header())

    assert found.why_not is None
    assert found.of(16).of("all_gather").line_GBps == 400.0
    assert found.of(16).n_domains == 2


def test_nccls_variables_of_the_run_count(tmp_path):
    ring = held(tmp_path, samples.header(env={"NCCL_ALGO": "Ring"}))

    assert set(ring.of(16).collectives["all_reduce"].by_algorithm) == {"ring"}


def test_a_run_without_topology_is_held_against_the_models_it_names_and_says_so(tmp_path):
    found = held(tmp_path, samples.header(1, topology=False))

    assert found.of(8).of("all_gather").line_GBps == 450.0
    assert BY_MODEL in found.of(8).assumptions


def test_several_nodes_without_known_nics_have_no_ceiling(tmp_path):
    found = held(tmp_path, samples.header(2, topology=False))

    assert found.of(16) is None
    assert "NIC" in found.why_not


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu": "NVIDIA Z999", "topology": False}, "Z999"),
        ({"ranks": (), "topology": False}, "names no GPUs"),
        ({"not_nccl": True}, "no measurement of NCCL"),
        ({"shared_gpu": True}, "no measurement of NCCL"),
    ],
)
def test_why_there_are_none_is_said(tmp_path, changes, why):
    found = held(tmp_path, samples.header(**changes))

    assert found.of(16) is None
    assert why in found.why_not


def test_a_part_of_the_ranks_has_ceilings_only_where_it_is_known_which(tmp_path):
    found = held(tmp_path, samples.header())

    assert found.of(8) is None
    assert "which 8 of the 16 ranks took part is not recorded" in found.why_not
    assert found.of(8, groups=[range(8)]).n_domains == 1
    assert found.of(2, groups=[(0, 8)]).n_domains == 2


def test_ranks_are_found_by_address_where_their_numbers_mislead(tmp_path):
    head = samples.header(1)
    turned = tuple({**rank, "gpu": {**rank["gpu"], "index": 0}} for rank in head.ranks)
    nodes = head.topology["nodes"]
    for gpu, rank in zip(nodes[0]["gpus"], head.ranks, strict=True):
        gpu["bus_id"] = f"{rank['gpu']['pci']}"

    found = held(tmp_path, samples.header(1, ranks=turned, topology=True))
    placed = held(tmp_path / "by-address", type(head)(**{**{name: getattr(head, name) for name in head.__slots__}, "ranks": turned}))

    assert found.of(8) is None
    assert placed.of(8).n_ranks == 8


def test_below_the_size_where_latency_costs_as_much_no_bandwidth_is_expected(tmp_path):
    found = held(tmp_path, samples.header()).of(16)
    small = ceiling_of(found, "all_reduce", nbytes=8, busbw_GBps=0.001)
    large = ceiling_of(found, "all_reduce", nbytes=1 << 33, busbw_GBps=469.0)

    assert (small.limited_by, small.expected_low_GBps, small.share_frac) == ("latency", None, None)
    assert large.share_frac == pytest.approx(1.0, abs=0.01)
    assert ceiling_of(found, "unknown", nbytes=8, busbw_GBps=None) == Ceiling()
    assert ceiling_of(None, "all_reduce", nbytes=8, busbw_GBps=None) == Ceiling()


def test_sends_to_the_next_node_have_a_ceiling_of_their_own(tmp_path):
    found = held(tmp_path, samples.header()).of(16)
    ring, node = (ceiling_of(found, "sendrecv", nbytes=1 << 33, busbw_GBps=48.0, shift=shift) for shift in ("ring", "node"))

    assert ring.line_GBps != node.line_GBps


@needs_reference
@pytest.mark.parametrize("name", ["nccl-tests-mpi-1.log", "nccl-tests-debug-info.log"])
def test_logs_of_two_h200_have_the_ceiling_of_their_links(name):
    found = ceilings_of(open_run(str(REFERENCE / "h200x2" / name)))

    best = found.of(2).of("all_reduce")
    assert (best.line_GBps, best.attainable_GBps, best.limited_by) == (450.0, 370.8, "GPU's 18 NVLink4")


MESHED = {"mesh": "dp=2,tp=8", "variants": {"nic-only": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "ring": {"NCCL_ALGO": "Ring"}}}


def case(**changes):
    return {"n_ranks": 16, "dtype": "float32", "op": "sum", "variant": None, "special": None, "axis": None, "slowest_ranks": None, **changes}


def test_a_point_of_an_axis_is_held_against_its_groups_at_once_and_one_alone_against_itself(tmp_path):
    found = held(tmp_path, samples.header(spec=MESHED))

    together = found.of_case(case(n_ranks=2, axis="dp", slowest_ranks=[3, 11]))
    alone = found.of_case(case(n_ranks=2, axis="dp", special="solo"))
    inside = found.of_case(case(n_ranks=8, axis="tp"))

    assert together.of("all_gather").line_GBps == 50.0
    assert "shared by 8 groups" in together.of("all_gather").limited_by
    assert alone.of("all_gather").line_GBps > 50.0
    assert (inside.of("all_gather").line_GBps, inside.n_domains) == (450.0, 1)


def test_uneven_shares_and_two_things_at_once_have_no_ceiling(tmp_path):
    found = held(tmp_path, samples.header(spec=MESHED))

    assert found.of_case(case(special="skew 2")) is None
    assert found.of_case(case(special="beside tp:all_gather")) is None


def test_a_variants_settings_count_and_what_nobody_published_is_not_expected(tmp_path):
    found = held(tmp_path, samples.header(1, spec=MESHED))

    usual, nics, ring = (found.of_case(case(n_ranks=8, variant=name)).of("all_reduce") for name in (None, "nic-only", "ring"))

    assert (usual.line_GBps, usual.expected is None) == (787.5, False)
    assert nics.line_GBps < 100.0
    assert nics.expected is None
    assert ring.line_GBps == 450.0
    assert found.of_case(case(n_ranks=8, variant="not recorded")) is None
