"""fabric/merge.py, complete.py, topology.py: several sources of a node, what follows from them, JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fabric_samples import LINKS, MATRIX, XML

from nccl_bench.errors import DataError, DetectError
from nccl_bench.fabric import nccl_xml, smi
from nccl_bench.fabric.complete import complete, refuse_unknown
from nccl_bench.fabric.merge import merge
from nccl_bench.fabric.spec import topology_of
from nccl_bench.fabric.topology import Gpu, Nic, Node, NvLink, Topology, cross_domains, describe, domains, topology_json


def bonded(count: int, links: int, name: str | None = None) -> Node:
    gpus = tuple(
        Gpu(index=at, name=name, nvlink=NvLink(bonds=tuple((peer, links) for peer in range(count) if peer != at))) for at in range(count)
    )
    return Node(gpus=gpus)


def test_the_more_trusted_source_wins_and_the_other_is_named() -> None:
    dump = nccl_xml.parse(XML)[0]
    other = Node(nics=(Nic(name="mlx5_0", port=1, rate_gbit=200, link_layer="InfiniBand"),))

    node = merge([("ibstatus: a", other), ("NCCL dump: b", dump)])

    assert node.nics is not None
    assert node.nics[0].rate_gbit == 400
    assert any("mlx5_0 rate_gbit: NCCL dump: b says 400.0, ibstatus: a says 200" in text for text in node.warnings)


def test_sources_complete_each_other_and_each_fact_has_its_source() -> None:
    matrix = replace(smi.parse_matrix(MATRIX), gpus=(smi.parse_matrix(MATRIX).gpus or ())[:2])

    node = merge([("nvidia-smi topo -m", matrix), ("nvidia-smi nvlink -s", smi.parse_link_status(LINKS))])

    assert node.gpus is not None
    assert [(gpu.name, gpu.numa, gpu.nvlink.links) for gpu in node.gpus if gpu.nvlink] == [("H100 80GB HBM3", 0, 18), ("H100 80GB HBM3", 0, 17)]
    assert dict(node.facts)["gpus.name"] == "nvidia-smi nvlink -s"
    assert dict(node.facts)["gpus.numa"] == "nvidia-smi topo -m"


def test_gpus_are_matched_by_address_where_sources_number_them_otherwise() -> None:
    first = Node(gpus=(Gpu(index=0, bus_id="0000:10:00.0", name="H200"), Gpu(index=1, bus_id="0000:20:00.0", name="H200")))
    second = Node(
        gpus=(Gpu(index=0, bus_id="0000:20:00.0", numa=1), Gpu(index=1, bus_id="0000:10:00.0", numa=0)),
        nics=(Nic(name="mlx5_0", gpus=(0,)),),
    )

    node = merge([("NCCL dump", first), ("sysfs", second)])

    assert [(gpu.index, gpu.bus_id, gpu.numa) for gpu in node.gpus or ()] == [(0, "0000:10:00.0", 0), (1, "0000:20:00.0", 1)]
    assert node.nics is not None
    assert node.nics[0].gpus == (1,)


@pytest.mark.parametrize(
    ("count", "links", "name", "switch", "per_gpu", "rate"),
    [
        (8, 12, None, True, 12, 300),
        (8, 18, None, True, 18, None),
        (8, 18, "H20", True, 18, 450),
        (8, 8, None, True, 8, 200),
        (4, 2, None, False, 6, None),
        (4, 2, "V100-SXM", False, 6, 150),
        (4, 4, "A100-SXM", False, 12, 300),
        (2, 12, None, None, 12, 300),
        (2, 12, "A100-PCIE", False, 12, 300),
        (2, 12, "A100-SXM", None, 12, 300),
        (2, 3, None, False, 3, None),
        (4, 6, None, None, None, None),
        (4, 6, "GH200", False, 18, 450),
    ],
)
def test_a_switch_a_mesh_or_neither_to_be_told(
    count: int, links: int, name: str | None, switch: bool | None, per_gpu: int | None, rate: float | None
) -> None:
    node = complete(bonded(count, links, name), {})

    assert node.switch is switch
    assert {gpu.nvlink.links for gpu in node.gpus or () if gpu.nvlink} == {per_gpu}
    assert {gpu.nvlink.per_direction_GBps for gpu in node.gpus or () if gpu.nvlink} == {rate}
    assert domains(node) == (tuple(range(count)),)


def test_a_named_model_fills_what_the_source_lacks_and_never_overrides_it() -> None:
    node = complete(bonded(8, 18), {}, "H200")
    other = complete(bonded(8, 18, "H20"), {}, "H200")

    assert {gpu.name for gpu in node.gpus or ()} == {"H200-SXM"}
    assert {gpu.name for gpu in other.gpus or ()} == {"H20"}
    assert any("--gpu H200-SXM is not used" in text for text in other.warnings)


def test_links_that_are_fewer_than_the_model_has_are_said_only_for_a_known_model() -> None:
    known = complete(bonded(2, 3, "A40"), {})
    unknown = complete(bonded(2, 3), {})

    assert "GPU 0 has 3 active links; A40 has 4 in full" in known.warnings
    assert not any("in full" in text for text in unknown.warnings)
    assert any("name it with --gpu" in text for text in unknown.warnings)


def test_a_model_that_the_source_names_and_we_do_not_know_is_refused_by_name() -> None:
    with pytest.raises(DetectError, match="RTX 9999"):
        refuse_unknown(complete(bonded(2, 4, "RTX 9999"), {}))


def test_mig_is_said() -> None:
    node = complete(Node(gpus=(Gpu(index=0, name="A100-SXM4-80GB", mig=True),)), {})

    assert "GPU 0 is in MIG mode: NCCL does not run slices of a GPU as ranks" in node.warnings


def test_cliques_join_gpus_of_several_hosts() -> None:
    node = topology_of("4xGB200", None, 1).nodes[0]
    racked = [
        replace(node, host=f"h{at}", gpus=tuple(replace(gpu, clique=f"abc.{at // 2}") for gpu in node.gpus or ())) for at in range(4)
    ]

    found = cross_domains(racked)

    assert found is not None
    assert [len(part) for part in found] == [8, 8]
    assert topology_json(Topology(nodes=tuple(racked)))["nvlink_domains"][0] == [f"h{host}:{gpu}" for host in (0, 1) for gpu in range(4)]


def test_json_has_the_keys_of_the_contract_and_reads_back() -> None:
    topology = topology_of("8xH100-SXM", "8x400-IB", 1)

    record = json.loads(json.dumps(topology_json(topology)))

    (node,) = record["nodes"]
    assert {"host", "gpus", "nics", "switch", "nvlink_domains"} <= set(node)
    assert node["gpus"][0]["nvlink"]["links"] == 18
    assert node["gpus"][0]["nvlink"]["per_direction_GBps"] == 450
    assert {"index", "name", "nvlink", "pcie", "numa"} <= set(node["gpus"][0])
    assert {"name", "rate_gbit", "link_layer", "state", "numa", "gpus"} <= set(node["nics"][0])
    assert node["nvlink_domains"] == [list(range(8))]
    assert {"nvlink_domains", "sources", "warnings"} <= set(record)
    again = Node.from_json(node)
    assert (again.gpus, again.nics, again.switch) == (topology.nodes[0].gpus, topology.nodes[0].nics, True)


def test_the_short_message_reads_back_to_the_same_node() -> None:
    node = replace(topology_of("8xH100-SXM", "8x400-IB", 1).nodes[0], host="h")

    record = json.loads(json.dumps(node.to_json()))

    assert Node.from_json(record) == node
    assert len(json.dumps(record)) < 6000


@pytest.mark.parametrize(
    "record", [{"gpus": 3}, {"gpus": [1]}, {"gpus": [{"index": "a"}]}, {"nics": [{"rate_gbit": "fast"}]}, {"host": 4}, {"gpus": [{}]}]
)
def test_a_message_that_is_no_node_is_refused(record: dict) -> None:
    with pytest.raises(DataError):
        Node.from_json(record)


@pytest.mark.parametrize(
    ("gpus", "nics", "words"),
    [
        ("8xH100-SXM", "8x400-IB", "8x H100 SXM, 18 NVLink4 each through NVSwitch (450 GB/s), 8x 400G InfiniBand"),
        ("8xL40S", None, "8x L40S, no NVLink"),
        ("4xA100-PCIE", "1x100-RoCE", "4x A100 PCIe, 12 NVLink3 each in 2 groups of 2 (300 GB/s), 1x 100G RoCE"),
        ("8xMI300X", "none", "8x MI300X, 7 xGMI each in a mesh (448 GB/s), no NIC"),
    ],
)
def test_a_node_is_described_in_a_line(gpus: str, nics: str | None, words: str) -> None:
    assert describe(topology_of(gpus, nics, 1).nodes[0]) == words


def test_warnings_of_many_nodes_collapse() -> None:
    nodes = tuple(Node(host=f"h{at}", warnings=("same",)) for at in range(3))

    assert Topology(nodes=nodes).all_warnings() == ("h0 and 2 more: same",)
