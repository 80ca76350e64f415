"""fabric/nccl_xml.py: NCCL's and RCCL's topology and graph XML."""

from __future__ import annotations

import pytest
from fabric_samples import GRAPH, XML, read_or_none, spoiled
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import DataError
from nccl_bench.fabric import nccl_xml
from nccl_bench.fabric.topology import domains

BRIDGE = 'class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"'


def test_a_dump_gives_links_slots_and_the_nic_of_each_gpu() -> None:
    (node,) = nccl_xml.parse(XML)

    assert [gpu.name for gpu in node.gpus or ()] == ["H100-SXM", "H100-SXM"]
    assert [gpu.nvlink.links for gpu in node.gpus or () if gpu.nvlink] == [18, 18]
    assert node.gpus is not None
    assert node.gpus[0].nvlink is not None
    assert node.gpus[0].nvlink.per_direction_GBps == 450
    assert node.gpus[0].pcie is not None
    assert (node.gpus[0].pcie.generation, node.gpus[0].pcie.width) == (5, 16)
    assert node.switch is True
    assert domains(node) == ((0, 1),)
    assert node.nics is not None
    assert [(nic.name, nic.rate_gbit, nic.link_layer, nic.gpus) for nic in node.nics] == [("mlx5_0", 400, "InfiniBand", (0, 1))]
    assert dict(node.nics[0].distance or ()) == {0: "PIX", 1: "PHB"}
    assert node.cpu == "GenuineIntel 6 143"


def test_a_vendor_file_without_gpu_elements_leaves_links_and_rates_unknown() -> None:
    text = XML.replace('<gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/></gpu>', "")
    text = text.replace('<gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/></gpu>', "")
    text = text.replace('<nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>', "")

    (node,) = nccl_xml.parse(text)

    assert [gpu.nvlink for gpu in node.gpus or ()] == [None, None]
    assert node.switch is None
    assert domains(node) is None
    assert [(nic.rate_gbit, nic.link_layer) for nic in node.nics or ()] == [(None, "InfiniBand")]


def test_a_dump_that_lists_no_links_means_there_are_none() -> None:
    text = XML.replace('<nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/>', "")

    (node,) = nccl_xml.parse(text)

    assert [gpu.nvlink.links for gpu in node.gpus or () if gpu.nvlink] == [0, 0]
    assert domains(node) == ()


def test_links_to_gpus_are_a_mesh_and_give_bonds() -> None:
    text = XML.replace('target="0000:f0:00.0" count="18" tclass="0x068000"', 'target="0000:21:00.0" count="4" tclass="0x030200"', 1)
    text = text.replace('target="0000:f0:00.0" count="18" tclass="0x068000"', 'target="0000:11:00.0" count="4" tclass="0x030200"', 1)

    (node,) = nccl_xml.parse(text)

    assert node.switch is False
    assert [gpu.nvlink.bonds for gpu in node.gpus or () if gpu.nvlink] == [((1, 4),), ((0, 4),)]


def test_each_host_hash_is_a_node_of_its_own() -> None:
    cpu = XML[XML.index("<cpu") : XML.index("</system>")]
    text = "<system version='1'>" + cpu.replace("<cpu ", '<cpu host_hash="0x1" ') + cpu.replace("<cpu ", '<cpu host_hash="0x2" ') + "</system>"

    nodes = nccl_xml.parse(text)

    assert [(node.nccl or {})["host_hash"] for node in nodes] == ["0x1", "0x2"]
    assert [len(node.gpus or ()) for node in nodes] == [2, 2]


def test_an_emulated_bridge_is_no_real_speed() -> None:
    text = XML.replace(BRIDGE, 'class="0x060400" link_speed="2.5 GT/s PCIe" link_width="1"', 1)

    (node,) = nccl_xml.parse(text)

    assert any("virtual PCI bridge 2.5 GT/s x1" in warning and "NCCL_TOPO_FILE" in warning for warning in node.warnings)
    assert node.gpus is not None
    assert node.gpus[0].bridges == (("cpu0", None), ("0000:10:00.0", None))


def test_the_slowest_hop_limits_the_path() -> None:
    text = XML.replace(BRIDGE, 'class="0x060400" link_speed="8 GT/s" link_width="16"', 1)

    (node,) = nccl_xml.parse(text)

    assert node.gpus is not None
    assert [gpu.pcie.path_GBps for gpu in node.gpus if gpu.pcie] == [15.754, 63.015]


def test_a_graph_gives_the_ring_that_nccl_planned() -> None:
    (node,) = nccl_xml.parse(GRAPH)

    assert node.nccl is not None
    assert node.nccl["graphs"]["ring"]["total_GBps"] == 360
    assert node.nccl["graphs"]["ring"]["inter_GBps"] == 25


@pytest.mark.parametrize(
    "text",
    [
        "<a/>",
        "<system",
        '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><system version="1"><cpu numaid="&b;"/></system>',
        '<!DOCTYPE x SYSTEM "file:///etc/passwd"><system/>',
        "<system version='1'><cpu numaid='0'>" + "<pci busid='0000:01:00.0'>" * 200 + "</pci>" * 200 + "</cpu></system>",
        "<system>" + " " * (5 << 20) + "</system>",
    ],
    ids=["other root", "cut", "entities", "external", "deep", "large"],
)
def test_what_is_no_topology_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(DataError) as caught:
        nccl_xml.parse(text)

    assert caught.value.why


@settings(max_examples=150, deadline=None)
@given(spoiled(XML))
def test_a_spoiled_file_is_read_or_refused(text: str) -> None:
    _read_or_refuse(text)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200).map(lambda text: f"<system>{text}</system>"))
def test_any_text_is_read_or_refused(text: str) -> None:
    _read_or_refuse(text)


def _read_or_refuse(text: str) -> None:
    for node in read_or_none(nccl_xml.parse, text) or ():
        assert all(gpu.nvlink is None or (gpu.nvlink.links or 0) >= 0 for gpu in node.gpus or ())
