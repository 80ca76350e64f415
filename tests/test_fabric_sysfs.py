"""fabric/sysfs.py: NICs, slots and paths from a /sys made in a temporary directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_bench.errors import DataError
from nccl_bench.fabric import sysfs
from nccl_bench.fabric.pcie import link
from nccl_bench.fabric.topology import Gpu


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def pci(root: Path, *names: str, **files: str) -> Path:
    """A PCI device below /sys/devices with its attributes."""
    path = root.joinpath("devices", *names)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write(path / name, text)
    return path


def port(root: Path, name: str, device: Path, *, rate: str, layer: str, state: str = "4: ACTIVE", driver: str = "mlx5_core") -> Path:
    """An InfiniBand device whose `device` link leads to a PCI device."""
    base = root / "class" / "infiniband" / name
    base.mkdir(parents=True)
    (base / "device").symlink_to(device)
    drivers = root / "bus" / "pci" / "drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    if not (device / "driver").exists():
        (device / "driver").symlink_to(drivers)
    for key, text in (("rate", rate), ("link_layer", layer), ("state", state), ("phys_state", "5: LinkUp")):
        write(base / "ports" / "1" / key, text)
    write(base / "hca_type", "MT4129")
    return base


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    slot = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
    switch = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    first = pci(tmp_path, *switch, "0000:12:00.0", "0000:13:00.0", numa_node="0", **slot)
    port(tmp_path, "mlx5_10", first, rate="400 Gb/sec (4X NDR)", layer="InfiniBand")
    slow = {**slot, "current_link_width": "8"}
    second = pci(tmp_path, "pci0000:80", "0000:80:01.0", "0000:81:00.0", numa_node="1", **slow)
    port(tmp_path, "mlx5_2", second, rate="400 Gb/sec (4X NDR)", layer="Ethernet")
    (second / "net").mkdir()
    (second / "net" / "eth9").mkdir()
    write(tmp_path / "class" / "net" / "eth9" / "mtu", "1500")
    write(tmp_path / "class" / "infiniband" / "mlx5_2" / "ports" / "1" / "gid_attrs" / "types" / "3", "RoCE v2")
    write(tmp_path / "class" / "infiniband" / "mlx5_2" / "ports" / "1" / "counters" / "link_downed", "255")
    gpu = pci(tmp_path, *switch, "0000:12:01.0", "0000:14:00.0", numa_node="0")
    (tmp_path / "bus" / "pci" / "devices").mkdir(parents=True)
    (tmp_path / "bus" / "pci" / "devices" / "0000:14:00.0").symlink_to(gpu)
    return tmp_path


def test_ports_come_in_natural_order_with_rate_slot_and_numa(tree: Path) -> None:
    node = sysfs.read(tree)

    assert [(nic.name, nic.rate_gbit, nic.link_layer, nic.state, nic.numa) for nic in node.nics or ()] == [
        ("mlx5_2", 400, "RoCE", "ACTIVE", 1),
        ("mlx5_10", 400, "InfiniBand", "ACTIVE", 0),
    ]


def test_roce_has_its_gid_type_and_the_mtu_that_the_kernel_reckons(tree: Path) -> None:
    nic = next(nic for nic in sysfs.read(tree).nics or () if nic.name == "mlx5_2")

    assert (nic.gid_type, nic.mtu) == ("RoCE v2", 1024)
    assert [sysfs.roce_mtu(mtu) for mtu in (1500, 4200, 9000, 200)] == [1024, 4096, 4096, None]


def test_a_slot_below_the_card_and_a_full_counter_are_said(tree: Path) -> None:
    warnings = sysfs.read(tree).warnings

    assert any("mlx5_2: its slot runs at Gen5 x8, the card can Gen5 x16" in text for text in warnings)
    assert any("mlx5_2: link_downed stands at 255" in text for text in warnings)


def test_gpus_get_their_bridges_from_the_pci_path(tree: Path) -> None:
    (gpu,) = sysfs.with_paths([Gpu(index=0, bus_id="0000:14:00.0", pcie=link(5, 16))], tree)
    nic = next(nic for nic in sysfs.read(tree).nics or () if nic.name == "mlx5_10")

    assert gpu.bridges is not None
    assert [name for name, _rate in gpu.bridges][:3] == ["pci0000:10", "0000:10:01.0", "0000:11:00.0"]
    assert nic.bridges is not None
    assert [name for name, _rate in nic.bridges][:3] == ["pci0000:10", "0000:10:01.0", "0000:11:00.0"]
    assert gpu.numa == 0


def test_efa_is_known_by_its_driver(tree: Path) -> None:
    device = pci(tree, "pci0000:a0", "0000:a0:01.0", "0000:a1:00.0")
    port(tree, "rdmap1s0", device, rate="100 Gb/sec (4X EDR)", layer="Unspecified", driver="efa")

    nic = next(nic for nic in sysfs.read(tree).nics or () if nic.name == "rdmap1s0")

    assert (nic.link_layer, nic.rate_gbit, nic.state) == ("EFA", 100, None)


def test_a_port_without_its_device_file_is_not_visible(tree: Path, tmp_path: Path) -> None:
    (tree / "class" / "infiniband" / "mlx5_10" / "device" / "infiniband_verbs" / "uverbs0").mkdir(parents=True)
    dev = tmp_path / "dev"
    (dev / "infiniband").mkdir(parents=True)

    states = {nic.name: nic.state for nic in sysfs.read(tree, dev).nics or ()}

    assert states == {"mlx5_2": "ACTIVE", "mlx5_10": "NOT VISIBLE"}


def test_network_interfaces_that_are_up_are_listed_and_virtual_ones_are_not(tree: Path) -> None:
    device = pci(tree, "pci0000:00", "0000:00:03.0")
    net = tree / "class" / "net"
    for name, state in (("eth0", "up"), ("eth1", "down")):
        (net / name).mkdir(parents=True)
        (net / name / "device").symlink_to(device)
        write(net / name / "operstate", state)
        write(net / name / "speed", "25000")
    write(net / "docker0" / "operstate", "up")

    found = {nic.name: (nic.rate_gbit, nic.state) for nic in sysfs.read(tree).nics or () if nic.link_layer == "Ethernet"}

    assert found == {"eth0": (25, "ACTIVE"), "eth1": (25, "DOWN")}


def test_a_directory_that_is_no_sysfs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no copy of /sys"):
        sysfs.read(tmp_path)


def test_missing_and_odd_files_leave_facts_unknown(tmp_path: Path) -> None:
    write(tmp_path / "class" / "infiniband" / "hfi1_0" / "ports" / "1" / "rate", "100 Gb/sec (4X EDR)")
    (tmp_path / "class" / "infiniband" / "broken" / "ports" / "x").mkdir(parents=True)
    write(tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "rate", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"))

    nics = {nic.name: nic for nic in sysfs.read(tmp_path).nics or ()}

    assert set(nics) == {"hfi1_0", "mlx5_0"}
    assert (nics["hfi1_0"].link_layer, nics["hfi1_0"].rate_gbit, nics["hfi1_0"].state) == ("Omni-Path", 100, None)
    assert nics["mlx5_0"].rate_gbit is None
