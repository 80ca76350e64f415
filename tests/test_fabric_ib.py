"""fabric/ib.py, pcie.py and rocm.py: rate strings, wire shares, ibstatus, ibv_devinfo, rocm-smi."""

from __future__ import annotations

import pytest
from fabric_samples import DEVINFO, IBSTATUS, ROCM, read_or_none, spoiled
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import DataError
from nccl_bench.fabric import ib, pcie, rocm
from nccl_bench.fabric.topology import domains


@pytest.mark.parametrize(
    ("text", "rate_gbit", "data_GBps"),
    [
        ("400 Gb/sec (4X NDR)", 400, None),
        ("400 Gb/sec (8X HDR)", 400, None),
        ("800 Gb/sec (4X XDR)", 800, None),
        ("25 Gb/sec (1X EDR)", 25, None),
        ("40 Gb/sec (4X QDR)", 40, 4.0),
        ("40 Gb/sec (4X FDR10)", 40, None),
        ("56 Gb/sec (4X FDR)", 56, 6.818),
        ("2.5 Gb/sec (1X SDR)", 2.5, 0.25),
        ("100 Gb/sec", 100, None),
    ],
)
def test_a_rate_is_its_leading_number_less_its_line_coding(text: str, rate_gbit: float, data_GBps: float | None) -> None:
    rate = ib.parse_rate(text)

    assert (rate.rate_gbit, rate.data_GBps, rate.doubt) == (rate_gbit, data_GBps, None)


@pytest.mark.parametrize("text", ["10 Gb/sec (4X SDR)", "10 Gb/sec (4X)", "0 Gb/sec (4X)", "unknown"])
def test_a_rate_that_cannot_be_believed_is_unknown_and_says_why(text: str) -> None:
    rate = ib.parse_rate(text)

    assert rate.rate_gbit is None
    assert rate.doubt


def test_roce_at_a_small_mtu_gets_less_of_the_wire() -> None:
    assert ib.wire_share("RoCE", 1024) == pytest.approx(0.9259, abs=1e-4)
    assert ib.wire_share("RoCE", 4096) == ib.wire_share("InfiniBand", 4096) == ib.NIC_SHARE
    assert ib.wire_share("InfiniBand", None) == ib.NIC_SHARE
    assert ib.wire_share("Ethernet", None) < 0.95


def test_a_port_that_is_down_has_no_speed() -> None:
    node = ib.parse_ibstatus(IBSTATUS)

    assert [(nic.name, nic.rate_gbit, nic.state) for nic in node.nics or ()] == [("mlx5_0", 400, "ACTIVE"), ("mlx5_1", None, "DOWN")]
    assert node.warnings == ()


def test_devinfo_gives_rate_and_active_mtu() -> None:
    (nic,) = ib.parse_devinfo(DEVINFO).nics or ()

    assert (nic.rate_gbit, nic.link_layer, nic.mtu, nic.state) == (400, "RoCE", 1024, "ACTIVE")


def test_efa_is_known_by_its_vendor_and_its_state_is_not_believed() -> None:
    node = ib.parse_devinfo(DEVINFO.replace("0x02c9", "0x1d0f").replace("Ethernet", "InfiniBand"))

    assert node.nics is not None
    assert (node.nics[0].link_layer, node.nics[0].state) == ("EFA", None)
    assert node.warnings == (f"mlx5_0: {ib.NOT_REPORTED}",)


def test_pcie_speeds_are_read_in_every_spelling() -> None:
    assert [pcie.generation(text) for text in ("32.0 GT/s PCIe", "16 GT/s", "32 GT/s PCIe/s", "", "Unknown", None)] == [5, 4, 5, None, None, None]
    assert [pcie.width(text) for text in ("16", "x8", "0", "", "255", None)] == [16, 8, None, None, None, None]
    assert pcie.rate(5, 16) == pytest.approx(63.0, abs=0.1)
    assert pcie.rate(3, 16) == pytest.approx(15.75, abs=0.01)


def test_addresses_of_every_source_become_one_spelling() -> None:
    assert {pcie.address(text) for text in ("00000000:1A:00.0", "0000:1a:00.0", "1A:00.0")} == {"0000:1a:00.0"}
    assert pcie.address("pci0000:00") is None
    assert pcie.address("fffffff:ff:ff.0") == "fffffff:ff:ff.0"


def test_pci_paths_become_the_words_of_nvidia_smi() -> None:
    root = ["pci0000:00", "0000:00:01.0", "0000:01:00.0"]

    assert pcie.distance([*root, "0000:02:00.0"], [*root, "0000:02:01.0"], (0, 0)) == "PIX"
    assert pcie.distance([*root, "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"], [*root, "0000:02:01.0"], (0, 0)) == "PXB"
    assert pcie.distance(root, ["pci0000:00", "0000:00:02.0"], (0, 0)) == "PHB"
    assert pcie.distance(root, ["pci0000:80", "0000:80:02.0"], (0, 0)) == "NODE"
    assert pcie.distance(root, ["pci0000:80", "0000:80:02.0"], (0, 1)) == "SYS"
    assert pcie.distance(root, ["pci0000:80", "0000:80:02.0"], (None, 1)) is None


def test_rocm_tables_say_who_is_joined_directly_and_nothing_of_links() -> None:
    node = rocm.parse(ROCM)

    assert node.gpus is not None
    assert [gpu.nvlink.bonds for gpu in node.gpus if gpu.nvlink] == [((1, 1),), ((0, 1), (2, 1)), ((1, 1),)]
    assert [gpu.nvlink.links for gpu in node.gpus if gpu.nvlink] == [None, None, None]
    assert domains(node) == ((0, 1, 2),)


@pytest.mark.parametrize("parse", [ib.parse_ibstatus, ib.parse_devinfo, rocm.parse])
def test_another_text_is_refused(parse) -> None:
    with pytest.raises(DataError):
        parse("nothing of this kind")


SPOILED = st.one_of(
    st.tuples(st.just(ib.parse_ibstatus), spoiled(IBSTATUS)),
    st.tuples(st.just(ib.parse_devinfo), spoiled(DEVINFO)),
    st.tuples(st.just(rocm.parse), spoiled(ROCM)),
)


@settings(max_examples=120, deadline=None)
@given(SPOILED)
def test_a_spoiled_text_is_read_or_refused(case) -> None:
    node = read_or_none(*case)

    assert node is None or node.gpus is not None or node.nics is not None


@given(st.text(max_size=60))
def test_any_rate_text_gives_a_rate_or_none(text: str) -> None:
    rate = ib.parse_rate(text)

    assert rate.rate_gbit is None or rate.rate_gbit > 0
