"""Which interface the sockets of gloo and NCCL take: as the user said, else the way by which the ranks met."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.launch.interfaces import (
    GLOO,
    NCCL,
    Interface,
    in_use,
    interfaces,
    is_loopback,
    matching,
    named,
    own_address,
    socket_facts,
    worker_sockets,
)  # fmt: skip

ADDRESSES = {"lo": "127.0.0.1", "eno1": "10.0.0.7", "eno2": "10.1.0.7", "ib0": "10.2.0.7"}
HOST = tuple(Interface(name=name, address=address) for name, address in ADDRESSES.items())
ROUTE = """Iface Destination Gateway Flags RefCnt Use Metric Mask
ib0 0000020A 0 1 0 0 0 00FFFFFF
eno2 00000000 0100010A 3 0 0 0 00000000
"""


@pytest.mark.skipif(not Path("/proc/net").exists(), reason="needs Linux")
def test_this_host_has_loopback_and_each_address_can_be_bound() -> None:
    found = interfaces()
    assert ("lo", "127.0.0.1") in [(one.name, one.address) for one in found]
    for one in found:
        with socket.socket(socket.AF_INET6 if ":" in one.address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((one.address, 0))


def test_the_way_to_the_board_is_the_address() -> None:
    assert own_address("10.2.0.7", HOST) == "10.2.0.7"
    assert own_address("::ffff:10.2.0.7", HOST) == "10.2.0.7"
    assert named("10.2.0.7", HOST) == "ib0"


def test_a_host_whose_name_is_its_own_loopback_is_known_by_its_default_route(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTE)
    assert own_address("127.0.1.1", HOST, tmp_path) == "10.1.0.7"


def test_without_a_default_route_only_a_single_interface_is_sure(tmp_path: Path) -> None:
    assert own_address("127.0.1.1", HOST[:2], tmp_path) == "10.0.0.7"
    assert own_address("127.0.1.1", HOST, tmp_path) == "127.0.1.1"


@pytest.mark.parametrize(
    "variable, wish, names",
    [
        (GLOO, "eno1", ["eno1"]),
        (GLOO, "eno", []),
        (GLOO, "eno1,ib0", ["eno1", "ib0"]),
        (NCCL, "eno", ["eno1", "eno2"]),
        (NCCL, "=eno1", ["eno1"]),
        (NCCL, "=eno", []),
        (NCCL, "^lo,eno", ["ib0"]),
        (NCCL, "^=eno1,lo", ["eno2", "ib0"]),
        (NCCL, "eno,eth", ["eno1", "eno2"]),
    ],
)
def test_a_users_setting_means_what_its_library_makes_of_it(variable: str, wish: str, names: list[str]) -> None:
    assert matching(variable, wish, HOST) == names


def test_what_the_user_set_is_left_alone_and_a_missing_name_is_told() -> None:
    facts = socket_facts("10.0.0.7", {GLOO: "eth9", NCCL: "lo"}, HOST)
    assert facts["wishes"] == {GLOO: {"value": "eth9", "lacks": True, "outward": False}, NCCL: {"value": "lo", "lacks": False, "outward": False}}
    assert worker_sockets(facts, "gloo", one_host=False) == {}
    assert in_use(facts, "gloo", one_host=False) == "GLOO_SOCKET_IFNAME=eth9"
    assert socket_facts("10.0.0.7", {GLOO: "eno1,eth9"}, HOST)["wishes"][GLOO]["lacks"]


@pytest.mark.parametrize(
    "backend, one_host, variables, words",
    [
        ("gloo", True, {GLOO: "lo"}, "lo"),
        ("nccl", True, {NCCL: "=lo"}, "lo"),
        ("gloo", False, {GLOO: "eno1"}, "eno1"),
        ("nccl", False, {NCCL: "=eno1"}, "eno1"),
    ],
)
def test_one_host_talks_over_loopback_and_several_over_the_way_they_met(backend: str, one_host: bool, variables: dict[str, str], words: str) -> None:
    facts = socket_facts("10.0.0.7", {}, HOST)
    assert worker_sockets(facts, backend, one_host) == variables
    assert in_use(facts, backend, one_host) == words


def test_an_address_of_no_known_interface_leaves_the_choice_to_the_library() -> None:
    facts = socket_facts("10.9.0.7", {}, HOST)
    assert worker_sockets(facts, "nccl", one_host=False) == {}
    assert in_use(facts, "nccl", one_host=False) == "chosen by nccl"


@given(st.ip_addresses(v=4))
def test_loopback_is_127_and_nothing_else(address: object) -> None:
    assert is_loopback(str(address)) == str(address).startswith("127.")


@given(st.text(), st.sampled_from([GLOO, NCCL]))
def test_any_setting_means_some_of_the_interfaces(wish: str, variable: str) -> None:
    assert set(matching(variable, wish, HOST)) <= {"lo", "eno1", "eno2", "ib0"}
