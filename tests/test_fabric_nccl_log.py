"""fabric/nccl_log.py: what an NCCL_DEBUG log says."""

from __future__ import annotations

import pytest
from fabric_samples import LOG, spoiled
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.fabric import nccl_log
from nccl_bench.fabric.nccl_log import Choice
from nccl_bench.fabric.topology import Nic, Node

DUMP = """vm:5:5 [0] NCCL INFO ncclCommInitRankConfig comm 0x2f rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x3 - Init START
vm:5:5 [0] NCCL INFO CPU/0-0 (1/1/4)
vm:5:5 [0] NCCL INFO + PCI[48.0] - GPU/0-60 (0)
vm:5:5 [0] NCCL INFO               + NVL[370.8] - NVS/0-0
vm:5:5 [0] NCCL INFO + PCI[48.0] - GPU/0-70 (1)
vm:5:5 [0] NCCL INFO               + NVL[370.8] - NVS/0-0
vm:5:5 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1
vm:5:5 [0] NCCL INFO comm 0x2f rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
"""


def test_network_transports_and_channels_are_counted() -> None:
    found = nccl_log.network(LOG)

    assert (found.version, found.name) == ("2.28.9+cuda13.0", "IB")
    assert dict(found.transports) == {"P2P/CUMEM": 1, "NET/IB": 1}
    assert (found.gdr, found.pxn) == (True, True)
    assert dict(found.channels) == {"coll": 16, "collnet": 0, "nvls": 16, "p2p": 16, "p2p per peer": 2}
    assert (found.n_ranks, found.n_nodes, found.local_ranks, found.mnnvl) == (16, 2, 8, False)
    assert (found.nvls_available, found.nvls_used) == (True, False)
    assert (found.sharp_available, found.sharp_used) == (True, False)


def test_the_algorithm_of_each_size_has_the_sizes_of_nccl_tests() -> None:
    found = nccl_log.algorithms(LOG)

    assert found == {
        ("all_reduce", 1 << 30): Choice(algorithm="NVLSTree", protocol="Simple", channels=16),
        ("all_gather", 16 * 1024): Choice(algorithm="ring", protocol="LL", channels=2),
        ("broadcast", 4096): Choice(algorithm="ring", protocol="Simple", channels=None),
    }


def test_the_size_of_a_group_may_be_passed() -> None:
    assert ("all_gather", 4 * 1024) in nccl_log.algorithms(LOG, n_ranks=4)


def test_a_log_gives_gpus_by_address_and_nics_with_their_rates() -> None:
    (node,) = nccl_log.parse(LOG)

    assert node.host == "node-a"
    assert [(gpu.index, gpu.bus_id) for gpu in node.gpus or ()] == [(3, "0000:8d:00.0")]
    assert [(nic.name, nic.rate_gbit, nic.link_layer, nic.sharp) for nic in node.nics or ()] == [
        ("mlx5_0", 400, "InfiniBand", True),
        ("mlx5_1", None, "RoCE", None),
    ]
    assert node.nvls is True


def test_the_rate_that_nccl_reckons_with_of_a_gpu_gives_its_links() -> None:
    (node,) = nccl_log.parse(DUMP)

    assert node.gpus is not None
    assert [gpu.bus_id for gpu in node.gpus] == ["0000:00:06.0", "0000:00:07.0"]
    assert [(gpu.nvlink.links, gpu.nvlink.generation, gpu.nvlink.per_direction_GBps) for gpu in node.gpus if gpu.nvlink] == [(18, 4, 450)] * 2
    assert node.switch is True
    assert nccl_log.network(DUMP).ring_GBps == 360


@pytest.mark.parametrize(
    "tag", ["", "[1,0]<stdout>:", "0: ", " 3: ", "[0m ", "[2026-01-01 00:00:00] "], ids=["plain", "mpirun", "srun", "srun wide", "colour", "date"]
)
def test_launchers_tags_do_not_hide_the_host(tag: str) -> None:
    text = "".join(tag + line + "\n" for line in LOG.splitlines())

    assert [node.host for node in nccl_log.parse(text)] == ["node-a"]
    assert nccl_log.network(text).name == "IB"


def test_tcp_between_nodes_and_container_interfaces_are_said() -> None:
    text = "h:1:1 [0] NCCL INFO NET/Socket : Using [0]ens5:10.0.0.1<0> [1]veth7:fe80::1<0>\nh:1:1 [0] NCCL INFO Using network Socket\n"

    found = nccl_log.network(text)

    assert found.interfaces == ("ens5", "veth7")
    assert any("Socket (TCP) over ens5, veth7" in warning for warning in found.warnings)
    assert any("container interfaces" in warning and "veth7" in warning for warning in found.warnings)


def test_tcp_inside_one_node_is_no_warning() -> None:
    text = DUMP + "vm:5:5 [0] NCCL INFO Using network Socket\n"

    assert nccl_log.network(text).warnings == ()


def test_tcp_beside_rdma_ports_that_are_up_is_a_loud_warning() -> None:
    text = "h:1:1 [0] NCCL INFO NET/Socket : Using [0]ens5:10.0.0.1<0>\nh:1:1 [0] NCCL INFO Using network Socket\n"
    ports = Node(nics=tuple(Nic(name=f"mlx5_{at}", link_layer="InfiniBand", state="ACTIVE") for at in range(2)))

    warning = nccl_log.socket_warning(nccl_log.network(text), ports)

    assert warning is not None
    assert "Socket over ens5" in warning
    assert "2 RDMA ports are up (mlx5_0, mlx5_1)" in warning
    assert nccl_log.socket_warning(nccl_log.network(LOG), ports) is None
    assert nccl_log.socket_warning(nccl_log.network(text), Node(nics=())) is None


def test_connections_without_gpudirect_are_said() -> None:
    found = nccl_log.network(LOG.replace("/GDRDMA", ""))

    assert found.gdr is False
    assert any("without GPUDirect RDMA" in warning for warning in found.warnings)


@settings(max_examples=150, deadline=None)
@given(st.one_of(spoiled(LOG), spoiled(DUMP), st.text(max_size=300)))
def test_a_spoiled_log_is_read(text: str) -> None:
    for node in nccl_log.parse(text):
        assert node.host
    for (collective, nbytes), choice in nccl_log.algorithms(text).items():
        assert collective
        assert nbytes >= 0
        assert choice.algorithm
    nccl_log.network(text)
