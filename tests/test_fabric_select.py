"""fabric/select.py and serve.py: which ports NCCL takes, and which GPU each serves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.fabric.select import choose, wanted
from nccl_bench.fabric.serve import nearest
from nccl_bench.fabric.topology import Gpu, Nic, Node


def ib(name: str, rate: float = 400, **values) -> Nic:
    return Nic(**{"name": name, "port": 1, "rate_gbit": rate, "link_layer": "InfiniBand", "state": "ACTIVE", **values})


EIGHT = tuple(ib(f"mlx5_{at}", gpus=(at,)) for at in range(8))


def used(node: Node, environ: dict[str, str] | None = None) -> list[str]:
    return [nic.label for nic in choose(node, environ or {}).nics or () if nic.used]


@pytest.mark.parametrize(
    ("text", "name", "port", "taken"),
    [
        ("mlx5", "mlx5_3", 1, True),
        ("mlx5_1", "mlx5_10", 1, True),
        ("=mlx5_1", "mlx5_10", 1, False),
        ("=mlx5_1", "mlx5_1", 1, True),
        ("^mlx5_1", "mlx5_10", 1, False),
        ("^=mlx5_1", "mlx5_10", 1, True),
        ("mlx5_0:2", "mlx5_0", 1, False),
        ("mlx5_0:2", "mlx5_0", 2, True),
        ("^mlx5_0:1,mlx5_3", "mlx5_0", 2, True),
        ("=mlx5_0,mlx5_3", "mlx5_3", 1, True),
        ("", "mlx5_0", 1, True),
        ("mlx5_0:", "mlx5_0", 2, True),
        ("mlx5_0:1:2", "mlx5_0", 1, True),
    ],
)
def test_nccl_ib_hca_is_read_as_nccl_reads_it(text: str, name: str, port: int, taken: bool) -> None:
    assert wanted(name, port, text) is taken


@given(st.text(max_size=40), st.text(min_size=1, max_size=10))
def test_any_list_takes_or_leaves_a_device_and_its_opposite_does_not(text: str, name: str) -> None:
    body = text.strip().removeprefix("^").removeprefix("^").strip()
    listed = [entry for entry in body.removeprefix("=").split(",") if entry.strip()]

    if listed and not body.startswith("^"):
        assert wanted(name, 1, body) != wanted(name, 1, "^" + body)


def test_a_storage_bond_is_left_out_and_said() -> None:
    node = Node(nics=(*EIGHT, ib("mlx5_bond_0", 200, link_layer="RoCE", gpus=None)))

    assert used(node) == [f"mlx5_{at}" for at in range(8)]
    assert any("mlx5_bond_0 left out: RoCE among InfiniBand ports" in text for text in choose(node, {}).warnings)


def test_a_port_that_is_down_is_left_out_and_said() -> None:
    node = Node(nics=(*EIGHT[:7], replace(EIGHT[7], state="DOWN", rate_gbit=None)))

    assert len(used(node)) == 7
    assert "mlx5_7 left out: port is DOWN" in choose(node, {}).warnings


def test_a_rail_that_is_trained_down_stays_and_is_said() -> None:
    node = Node(nics=(*EIGHT[:7], replace(EIGHT[7], rate_gbit=100)))

    assert len(used(node)) == 8
    assert any("mlx5_7 slower than the other ports (100G of 400G)" in text for text in choose(node, {}).warnings)


def test_one_faster_port_of_another_card_does_not_make_the_rails_slow() -> None:
    rails = tuple(replace(nic, gpus=None, model="MT4129") for nic in EIGHT)

    assert len(used(Node(nics=(*rails, ib("mlx5_9", 800, model="MT4131"))))) == 9
    assert len(used(Node(nics=(*rails, ib("mlx5_9", 100, model="MT4119"))))) == 8


def test_ports_far_from_every_gpu_are_left_out_where_others_are_near() -> None:
    near = tuple(replace(nic, distance=tuple((gpu, "PIX" if gpu == at else "SYS") for gpu in range(8))) for at, nic in enumerate(EIGHT))
    far = ib("mlx5_9", distance=tuple((gpu, "SYS") for gpu in range(8)), gpus=())

    assert used(Node(nics=(*near, far))) == [f"mlx5_{at}" for at in range(8)]


def test_ports_without_a_near_one_all_count() -> None:
    nics = tuple(ib(f"mlx5_{at}", distance=((0, "NODE"), (1, "SYS")), gpus=(0,)) for at in range(2))

    assert used(Node(nics=nics)) == ["mlx5_0", "mlx5_1"]


def test_a_users_list_wins_over_what_we_would_leave_out() -> None:
    node = Node(nics=(*EIGHT, ib("mlx5_bond_0", 200, link_layer="RoCE")))

    assert used(node, {"NCCL_IB_HCA": "=mlx5_0,mlx5_bond_0"}) == ["mlx5_0", "mlx5_bond_0"]
    assert len(used(node, {"NCCL_IB_HCA": "^mlx5_0"})) == 7


def test_a_list_that_takes_nothing_is_said() -> None:
    warnings = choose(Node(nics=EIGHT), {"NCCL_IB_HCA": "=mlx4_0"}).warnings

    assert "NCCL_IB_HCA==mlx4_0 takes no active port of this node" in warnings


def test_tcp_is_used_only_without_rdma_and_by_the_interfaces_named() -> None:
    eth = tuple(Nic(name=name, link_layer="Ethernet", state="ACTIVE", rate_gbit=25) for name in ("eth0", "eth1", "docker0"))

    assert used(Node(nics=(*EIGHT[:1], *eth))) == ["mlx5_0"]
    assert used(Node(nics=(*EIGHT[:1], *eth)), {"NCCL_IB_DISABLE": "1"}) == ["eth0", "eth1"]
    assert used(Node(nics=eth), {"NCCL_SOCKET_IFNAME": "=eth1"}) == ["eth1"]
    warnings = choose(Node(nics=(*EIGHT, *eth)), {"NCCL_IB_DISABLE": "1"}).warnings
    assert any("8 RDMA ports are active but switched off" in text for text in warnings)


def test_nics_serve_the_gpus_to_which_none_is_nearer() -> None:
    gpus = tuple(Gpu(index=at) for at in range(4))
    far = (("SYS", "SYS", "NODE", "PHB"), ("SYS", "SYS", "NODE", "PHB"))
    nics = tuple(ib(f"mlx5_{at}", distance=tuple(enumerate(words))) for at, words in enumerate(far))

    assert [nic.gpus for nic in nearest(Node(gpus=gpus, nics=nics)).nics or ()] == [(0, 1, 2, 3), (0, 1, 2, 3)]


def test_numa_tells_where_distances_do_not() -> None:
    gpus = tuple(Gpu(index=at, numa=at // 2) for at in range(4))
    nics = tuple(ib(f"mlx5_{at}", numa=at, distance=tuple((gpu, "SYS") for gpu in range(4))) for at in range(2))

    assert [nic.gpus for nic in nearest(Node(gpus=gpus, nics=nics)).nics or ()] == [(0, 1), (2, 3)]
