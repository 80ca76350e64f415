"""doctor's table over hosts made of files and a scripted NVML: the healthy one is ok, each fault is found where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from field_cases import FILES, needs_cases
from host_samples import Nvml, config, healthy, roce, write

from nccl_bench.fabric import counters
from nccl_bench.fabric.health import examine, inventory, serials, verdict
from nccl_bench.fabric.health_host import CHECKS
from nccl_bench.fabric.host_read import Roots, acs_enabled, cpu_list, max_read_request, read_host


def facts(root: Path, nvml: Any = None, host: str = "h1", environ: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    found = read_host(environ or {}, Roots.under(root), nvml=nvml or Nvml(), host=host)
    found["limits"] = {"memlock": None, "nofile": 1 << 20, "shm": 64 << 30}
    found["ranks"] = [
        {"rank": at, "local_rank": at, "cpus": list(range(8 * at, 8 * at + 8)), "visible": None, "multi_rank": False} for at in range(8)
    ]
    return {**found, **more}


def by_id(*hosts: dict[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in examine(hosts, CHECKS):
        found.setdefault(row.id, []).append(row)
    return found


def test_a_healthy_host_is_ok_in_everything_that_can_be_read(tmp_path):
    results = examine([facts(healthy(tmp_path))], CHECKS)
    assert {row.id for row in results if row.status in ("fail", "warn")} == set()
    assert {row.id for row in results if row.status == "unknown"} == set()
    assert verdict(results) == (0, "all required checks are ok")
    ok = {row.id for row in results if row.status == "ok"}
    assert {"gpu.count", "gpu.nvlink", "gpu.pcie", "nic.state", "nic.rate", "nic.read_request", "nic.acs", "nic.gdr", "rank.cores", "rank.gpu"} <= ok


def test_every_check_says_what_it_asks_how_it_reads_why_it_matters_and_how_to_mend_it():
    assert len({check.id for check in CHECKS}) == len(CHECKS) >= 40
    assert all(check.what and check.how and check.why and check.fix for check in CHECKS)


def gpu(index: int, **answers: Any):
    def broken(root: Path, nvml: Nvml) -> None:
        nvml.gpus[index].update(answers)

    return broken


def file(name: str, text: str):
    return lambda root, nvml: write(root, {name: text})


def lost(root: Path, nvml: Nvml) -> None:
    nvml.gpus.pop()


def alone(root: Path, nvml: Nvml) -> None:
    """One GPU of a board, handed on without its links."""
    gpu(0, links=[])(root, nvml)
    del nvml.gpus[1:]


MLX = "sys/class/infiniband/mlx5_3"
FAULTS = [
    ("gpu.count", "fail", None, lost),
    ("gpu.nvlink", "fail", "GPU 5", gpu(5, links=[1] * 17 + [0])),
    ("gpu.nvlink", "warn", "GPU 5", gpu(5, links=[1] * 12)),
    ("gpu.nvlink", "fail", "GPU 5", gpu(5, links=[])),
    ("gpu.nvlink", "warn", "GPU 0", alone),
    ("gpu.pcie", "fail", "GPU 2", gpu(2, width=8)),
    ("gpu.pcie", "warn", "GPU 2", gpu(2, slot=4)),
    ("gpu.ecc", "fail", "GPU 1", gpu(1, wrong=3)),
    ("gpu.ecc", "warn", "GPU 1", gpu(1, ecc=(0, 0))),
    ("gpu.ecc", "unknown", "GPU 1", gpu(1, wrong=None)),
    ("gpu.remap", "fail", "GPU 1", gpu(1, rows=(0, 1, 1, 0))),
    ("gpu.remap", "fail", "GPU 1", gpu(1, rows=(0, 9, 0, 1))),
    ("gpu.xid", "fail", "GPU 1", file("dev/kmsg", "3,9,9;NVRM: Xid (PCI:0000:11:00): 79, pid=1, GPU has fallen off the bus.")),
    ("gpu.xid", "warn", "GPU 1", file("dev/kmsg", "3,9,9;NVRM: Xid (PCI:0000:11:00): 31, pid=1, MMU Fault")),
    ("gpu.throttle", "fail", "GPU 6", gpu(6, throttle=0x40)),
    ("gpu.throttle", "warn", "GPU 6", gpu(6, throttle=0x4)),
    ("gpu.power", "warn", "GPU 6", gpu(6, limit=500_000)),
    ("gpu.persistence", "warn", "GPU 6", gpu(6, persistence=0)),
    ("gpu.mig", "fail", "GPU 6", gpu(6, mig=(1, 1))),
    ("gpu.processes", "fail", "GPU 6", gpu(6, pids=[4711])),
    ("nic.state", "warn", "mlx5_3", file(f"{MLX}/ports/1/state", "1: DOWN")),
    ("nic.rate", "fail", "mlx5_3", file(f"{MLX}/ports/1/rate", "100 Gb/sec (4X EDR)")),
    ("nic.downed", "warn", "mlx5_3", file(f"{MLX}/ports/1/counters/link_downed", "255")),
    ("nic.pcie", "fail", "mlx5_3", file("sys/devices/pci0000:03/0000:03:01.0/current_link_width", "8")),
    ("nic.pcie", "fail", "mlx5_3", file("sys/devices/pci0000:03/0000:03:01.0/current_link_speed", "16.0 GT/s PCIe")),
    ("nic.read_request", "warn", "mlx5_3", lambda root, _: (root / "sys/devices/pci0000:03/0000:03:01.0/config").write_bytes(config(512))),
    ("nic.read_request", "unknown", "mlx5_3", lambda root, _: (root / "sys/devices/pci0000:03/0000:03:01.0/config").write_bytes(b"x" * 64)),
    ("nic.acs", "fail", None, lambda root, _: (root / "sys/bus/pci/devices/0000:aa:00.0/config").write_bytes(config(512, acs=0x1D))),
    ("nic.acs", "unknown", None, lambda root, _: (root / "sys/bus/pci/devices/0000:aa:00.0/config").write_bytes(b"x" * 64)),
    ("nic.gdr", "fail", None, file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07")),
    ("nic.iommu", "warn", None, file("proc/cmdline", "quiet")),
    ("host.governor", "warn", None, file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")),
    ("host.numa_balancing", "warn", None, file("proc/sys/kernel/numa_balancing", "1")),
]


@pytest.mark.parametrize("check, status, device, fault", FAULTS, ids=[f"{row[0]}-{row[1]}-{at}" for at, row in enumerate(FAULTS)])
def test_each_fault_is_found_at_its_device(tmp_path, check, status, device, fault):
    nvml = Nvml()
    fault(healthy(tmp_path), nvml)
    found = [row for row in examine([facts(tmp_path, nvml)], CHECKS) if row.id == check and row.status == status]
    assert [(row.device, row.hosts) for row in found] == [(device, ("h1",))]
    assert status != "fail" or (found[0].fix and found[0].why)


@pytest.mark.parametrize(
    "check, status, change",
    [
        ("limit.memlock", "fail", {"limits": {"memlock": 65536, "nofile": 1 << 20, "shm": 64 << 30}}),
        ("limit.shm", "fail", {"limits": {"memlock": None, "nofile": 1 << 20, "shm": 64 << 20}}),
        ("limit.files", "warn", {"limits": {"memlock": None, "nofile": 1024, "shm": 64 << 30}}),
        ("rank.cores", "warn", {"ranks": [{"rank": at, "local_rank": at, "cpus": [0, 1], "visible": None} for at in range(8)]}),
        ("rank.numa", "ok", {}),
        ("rank.numa", "warn", {"ranks": [{"rank": at, "local_rank": at, "cpus": [64 + at], "visible": None} for at in range(8)]}),
        ("rank.numa", "unknown", {"ranks": [{"rank": at, "local_rank": at, "cpus": None, "visible": None} for at in range(8)]}),
        ("rank.cores", "unknown", {"ranks": [{"rank": at, "local_rank": at, "cpus": None, "visible": None} for at in range(8)]}),
        ("rank.gpu", "unknown", {"gpus": None}),
        ("rank.gpu", "fail", {"ranks": [{"rank": at, "local_rank": at, "cpus": [at], "visible": None} for at in range(16)]}),
        ("limit.memlock", "unknown", {"limits": {}}),
        ("limit.files", "unknown", {"limits": {}}),
        ("limit.shm", "unknown", {"limits": {"shm": None}}),
        ("rank.gpu", "warn", {"ranks": [{"rank": 0, "local_rank": 0, "cpus": list(range(64)), "visible": None}]}),
        ("host.clock", "warn", {"clock_offset_s": 3.5, "n_hosts": 2}),
        ("host.clock", "unknown", {"n_hosts": 2}),
    ],
)
def test_limits_ranks_and_clocks(tmp_path, check, status, change):
    (row,) = by_id(facts(healthy(tmp_path), **change))[check]
    assert row.status == status


@pytest.mark.parametrize(
    "environ, check, status",
    [
        ({"NCCL_IB_HCA": "mlx5"}, "nic.ib_hca", "ok"),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, "nic.ib_hca", "warn"),
        ({"NCCL_IB_HCA": "mlx5_0,mlx5_3"}, "nic.ib_hca", "fail"),
        ({"NCCL_IB_HCA": "mlx4"}, "nic.ib_hca", "fail"),
        ({}, "nic.ib_hca", "skipped"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "nic.ifname", "ok"),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "nic.ifname", "fail"),
    ],
)
def test_names_in_the_environment_against_what_is_up(tmp_path, environ, check, status):
    root = healthy(tmp_path)
    if "mlx5_3" in environ.get("NCCL_IB_HCA", ""):
        write(root, {f"{MLX}/ports/1/state": "1: DOWN"})
    (row,) = by_id(facts(root, environ=environ))[check]
    assert row.status == status


def test_an_odd_host_is_named_against_the_majority(tmp_path):
    hosts = [facts(healthy(tmp_path / name), host=name) for name in ("h1", "h2", "h3")]
    write(tmp_path / "h2", {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.51.03"})
    hosts[1] = facts(tmp_path / "h2", Nvml(7), host="h2")
    found = by_id(*hosts)
    driver, count = found["version.driver"][0], found["gpu.count"][0]
    assert (driver.status, driver.hosts, driver.measured) == ("fail", ("h2",), "575.51.03")
    assert (count.status, count.hosts, count.measured) == ("fail", ("h2",), "7")
    assert found["version.driver"][1].hosts == ("h1", "h3")


def test_a_port_that_turned_ethernet_is_seen_against_the_same_port_elsewhere(tmp_path):
    for name in ("h1", "h2", "h3"):
        healthy(tmp_path / name)
    write(tmp_path / "h2", {f"{MLX}/ports/1/link_layer": "Ethernet"})
    found = by_id(*(facts(tmp_path / name, host=name) for name in ("h1", "h2", "h3")))
    row = found["nic.rate"][0]
    assert (row.status, row.hosts, row.device, row.measured) == ("fail", ("h2",), "mlx5_3", "RoCE 400 Gb/sec (4X NDR)")


def without(*names: str):
    """A fault: these files of a healthy host cannot be read."""

    def broken(root: Path, _: Nvml) -> None:
        for name in names:
            (root / name).rename((root / name).with_name("gone")) if (root / name).is_dir() else (root / name).unlink()

    return broken


def silent(**answers: Any):
    return gpu(3, **answers)


UNREADABLE = [
    ("gpu.ecc", silent(ecc=None)), ("gpu.pcie", silent(width=None)), ("gpu.remap", silent(rows=None)),
    ("gpu.throttle", silent(throttle=None)), ("gpu.power", silent(limit=None)), ("gpu.persistence", silent(persistence=None)),
    ("gpu.mig", silent(mig=None)), ("gpu.xid", without("dev/kmsg")),
    ("gpu.xid", file("dev/kmsg", "6,5000,9;eth0: link up")),
    ("nic.state", without(f"{MLX}/ports/1/state")), ("nic.rate", without(f"{MLX}/ports/1/rate")),
    ("nic.downed", without(f"{MLX}/ports/1/counters/link_downed")), ("nic.firmware", without(f"{MLX}/fw_ver")),
    ("nic.pcie", without("sys/devices/pci0000:03/0000:03:01.0/max_link_width")), ("nic.acs", without("sys/bus/pci/devices")),
    ("nic.acs", lambda root, _: (root / "sys/bus/pci/devices/0000:aa:00.0/config").write_bytes(b"\0" * 256)),
    ("nic.iommu", without("sys/class/iommu")), ("host.numa_balancing", without("proc/sys/kernel/numa_balancing")),
]  # fmt: skip


@pytest.mark.parametrize("check, fault", UNREADABLE, ids=[f"{row[0]}-{at}" for at, row in enumerate(UNREADABLE)])
def test_what_cannot_be_read_is_unknown_and_never_ok(tmp_path, check, fault):
    nvml = Nvml()
    fault(healthy(tmp_path), nvml)
    rows = [row for row in examine([facts(tmp_path, nvml)], CHECKS) if row.id == check]
    assert rows[0].status == "unknown", rows
    assert rows[0].hosts == ("h1",)


def test_a_log_that_goes_back_to_the_loading_of_the_driver_is_enough(tmp_path):
    write(healthy(tmp_path), {"dev/kmsg": "6,5000,9;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.82.07"})
    assert [row.status for row in by_id(facts(tmp_path))["gpu.xid"]] == ["ok"]


def test_an_interface_list_and_peer_memory_that_cannot_be_read_are_unknown(tmp_path):
    root = healthy(tmp_path)
    write(root, {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07"})
    for name in ("sys/module", "sys/class/net"):
        (root / name).rename((root / name).with_name("gone"))
    found = by_id(facts(root, environ={"NCCL_SOCKET_IFNAME": "eth"}))
    assert [found[name][0].status for name in ("nic.gdr", "nic.ifname")] == ["unknown", "unknown"]


def three(tmp_path: Path, make: Any, **odd: str) -> list[dict[str, Any]]:
    """Three hosts; some files of the second are others."""
    for name in ("h1", "h2", "h3"):
        make(tmp_path / name)
    write(tmp_path / "h2", {name.replace("__", "/"): text for name, text in odd.items()})
    return [facts(tmp_path / name, host=name) for name in ("h1", "h2", "h3")]


ODD = [
    ("version.ofed", healthy, {"sys/module/mlx5_core/version": "5.8"}, "fail"),
    ("version.efa", healthy, {"sys/module/efa/version": "2.1"}, "fail"),
    ("version.kernel", healthy, {"proc/sys/kernel/osrelease": "5.15"}, "fail"),
    ("nccl.conf", healthy, {"etc/nccl.conf": "NCCL_IB_DISABLE=1"}, "fail"),
    ("nic.firmware", healthy, {f"{MLX}/fw_ver": "28.30.1000"}, "warn"),
    ("nic.count", healthy, {f"{MLX}/ports/1/state": "1: DOWN"}, "fail"),
    ("nic.state", healthy, {f"{MLX}/ports/1/state": "1: DOWN"}, "fail"),
    ("nic.mtu", roce, {"sys/class/net/ens3/mtu": "1500"}, "fail"),
    ("nic.gid", roce, {f"{MLX}/ports/1/gid_attrs/types/0": "IB/RoCE v1"}, "fail"),
    ("nic.traffic_class", roce, {f"sys/class/infiniband/mlx5_{at}/tc/1/traffic_class": "0" for at in range(8)}, "warn"),
    ("nic.pfc", roce, {"sys/class/net/ens3/qos/pfc": "0,0,0,0,0,0,0,0"}, "warn"),
]


@pytest.mark.parametrize("check, make, files, status", ODD, ids=[row[0] for row in ODD])
def test_the_host_that_is_unlike_the_others_is_named(tmp_path, check, make, files, status):
    three(tmp_path, make)
    write(tmp_path / "h2", files)
    if check == "version.efa":
        for name in ("h1", "h3"):
            write(tmp_path / name, {"sys/module/efa/version": "2.10"})
    found = by_id(*(facts(tmp_path / name, host=name) for name in ("h1", "h2", "h3")))[check]
    assert [(row.status, row.hosts) for row in found if row.status not in ("ok", "skipped")] == [(status, ("h2",))], found


def test_roce_that_is_as_it_should_be_is_ok_and_what_it_does_not_tell_is_unknown(tmp_path):
    found = by_id(*three(tmp_path, roce))
    names = ("nic.mtu", "nic.gid", "nic.traffic_class", "nic.pfc")
    assert [{row.status for row in found[name]} for name in names] == [{"ok"}] * 4
    for name in ("ens3/mtu", "ens3/qos/pfc"):
        (tmp_path / "h2/sys/class/net" / name).unlink()
    (tmp_path / "h2" / MLX / "tc/1/traffic_class").unlink()
    (tmp_path / "h2" / MLX / "ports/1/gid_attrs/types/0").unlink()
    found = by_id(*(facts(tmp_path / name, host=name) for name in ("h1", "h2", "h3")))
    assert [(found[name][0].status, found[name][0].hosts) for name in names] == [("unknown", ("h2",))] * 4


@pytest.mark.parametrize("check, value", [("version.torch", "2.6.0"), ("version.cuda", "11.8"), ("version.nccl", "2.18.3")])
def test_packages_unlike_the_others_are_named(tmp_path, check, value):
    hosts = three(tmp_path, healthy)
    name = check.split(".")[1]
    for host in hosts:
        host["versions"][name] = value if host["host"] == "h2" else "9.9"
    assert [(row.status, row.hosts) for row in by_id(*hosts)[check] if row.status == "fail"] == [("fail", ("h2",))]


def test_another_model_of_gpu_and_uneven_ranks_are_named(tmp_path):
    hosts = three(tmp_path, healthy)
    hosts[1] = facts(tmp_path / "h2", Nvml(name="NVIDIA H200"), host="h2")
    hosts[1]["ranks"] = hosts[1]["ranks"][:4]
    found = by_id(*hosts)
    assert [(found[name][0].status, found[name][0].hosts) for name in ("gpu.model", "rank.equal")] == [("fail", ("h2",))] * 2


def test_every_check_of_the_table_is_broken_or_unreadable_in_some_test_here():
    text = Path(__file__).read_text()
    assert [check.id for check in CHECKS if f'"{check.id}"' not in text] == []


def test_the_cuda_of_torch_is_read_without_loading_it():
    from importlib.metadata import version

    from nccl_bench.fabric.host_read import cuda_of_torch

    assert (cuda_of_torch() is None) == version("torch").endswith("+cpu")


def test_two_hosts_that_differ_are_both_at_fault(tmp_path):
    hosts = [facts(healthy(tmp_path / name), host=name) for name in ("h1", "h2")]
    hosts[1]["versions"]["torch"] = "2.6.0"
    assert [row.status for row in by_id(*hosts)["version.torch"]] == ["fail", "fail"]


def test_a_driver_that_does_not_start_where_devices_are_is_a_fault_and_no_gpu_at_all_is_unknown(tmp_path):
    broken = by_id(facts(healthy(tmp_path), Nvml(starts=False)))["gpu.count"][0]
    assert (broken.status, "Driver Not Loaded" in str(broken.measured)) == ("fail", True)
    (tmp_path / "empty").mkdir()
    results = examine([facts(tmp_path / "empty", Nvml(0))], CHECKS)
    assert verdict(results)[0] == 8
    assert next(row for row in results if row.id == "gpu.count").status == "unknown"


def test_a_silent_host_fails_the_whole():
    assert verdict([], ["h7"]) == (1, "silent: h7")


def test_the_inventory_has_serials_and_firmware(tmp_path):
    host = facts(healthy(tmp_path))
    (entry,) = inventory([host])
    assert entry["gpus"][3] == {
        "index": 3,
        "name": "NVIDIA H100 80GB HBM3",
        "serial": "1322523000003",
        "uuid": "GPU-3",
        "vbios": "96.00.74",
        "pci": "0000:13:00.0",
    }
    assert entry["nics"][2]["guid"] == "a088:c203:0000:0002"
    assert entry["chassis"]["product_serial"] == "SN123"
    assert serials([host])["h1", "gpu 3"] == "1322523000003"
    assert serials([host])["h1", "mlx5_2"] == "a088:c203:0000:0002"


@needs_cases
def test_real_ports_of_an_h100_host_and_of_old_cards(tmp_path):
    (tmp_path / "sys").symlink_to(FILES / "sysfs_h100_8ib_1bond")
    found = by_id(facts(tmp_path, Nvml()))
    downed = found["nic.downed"][0]
    assert (downed.status, downed.device) == ("warn", "mlx5_1")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sys").symlink_to(FILES / "sysfs_mixed_hfi_mlx4_mlx5")
    assert by_id(facts(tmp_path / "old", Nvml()))["nic.state"]


def test_configuration_spaces():
    assert [max_read_request(config(n)) for n in (128, 512, 4096)] == [128, 512, 4096]
    assert (max_read_request(b"\0" * 256), acs_enabled(b"\0" * 256)) == (None, None)
    assert (acs_enabled(config(512, acs=0)), acs_enabled(config(512, acs=4)), acs_enabled(config(512))) == (False, True, None)
    assert cpu_list("0-3,8") == [0, 1, 2, 3, 8]


# ---- counters


def test_what_moved_between_two_readings_and_what_speaks_against_a_port(tmp_path):
    root, nvml = healthy(tmp_path), Nvml()
    before = counters.read(Roots.under(root), nvml=nvml)
    write(
        root,
        {
            f"{MLX}/ports/1/counters/link_downed": "2",
            f"{MLX}/ports/1/counters/port_xmit_data": "251000",
            f"{MLX}/ports/1/counters/port_xmit_wait": "99",
        },
    )
    write(root, {"sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error": "3", "sys/class/infiniband/mlx5_2/ports/1/counters/symbol_error": "40"})
    nvml.gpus[4].update(wrong=1, replays=2, errors=[0, 0, 500, 0])
    write(root, {"dev/kmsg": "6,1,1;boot\n3,9,9;NVRM: Xid (PCI:0000:11:00): 79, x"})
    moves = counters.moved("h1", before, counters.read(Roots.under(root), nvml=nvml))
    judged = {(move.device, move.counter): text for move, text in counters.judge(moves, {"symbol_error": 8, "pcie_replays": 8, "nvlink_crc_flit": 8})}
    assert set(judged) == {
        ("mlx5_3", "link_downed"),
        ("mlx5_2", "symbol_error"),
        ("gpu 4", "ecc_uncorrected"),
        ("gpu 4", "nvlink_crc_flit"),
        ("kernel", "xids"),
    }
    assert judged["mlx5_2", "symbol_error"] == "symbol_error +40 (median of 7 others: 0)"
    assert counters.sent(moves) == {("h1", "mlx5_3"): 1_000_000}


def test_a_counter_at_its_end_says_that_it_cannot_tell():
    moves = counters.moved("h1", {"mlx5_0": {"link_downed": 255}}, {"mlx5_0": {"link_downed": 255}})
    assert [(move.saturated, move.delta) for move in moves] == [(True, 0)]
    assert "end of its counter" in counters.judge(moves, {})[0][1]


def test_a_reset_counter_counts_from_its_new_value():
    (move,) = counters.moved("h1", {"mlx5_0": {"symbol_error": 900}}, {"mlx5_0": {"symbol_error": 4}})
    assert move.delta == 4


def test_a_device_that_no_longer_answers_is_a_fault_and_a_log_that_forgets_is_none():
    before = {"gpu 3": {"pcie_replays": 0}, "mlx5_0": {"symbol_error": 0}, "kernel": {"xids": 3}}
    moves = counters.moved("h1", before, {"mlx5_0": {"symbol_error": 0}, "kernel": {"xids": 1}})
    assert [(move.device, text) for move, text in counters.judge(moves, {})] == [("gpu 3", "answered before, and can no longer be read")]
    assert counters.moved("h1", before, {}) == []


def test_each_kind_of_counter_of_a_port_and_a_gpu_is_read_and_meant(tmp_path):
    root, nvml, port = healthy(tmp_path), Nvml(), f"{MLX}/ports/1"
    names = ("port_xmit_discards", "port_xmit_wait", "local_link_integrity_errors", "port_rcv_errors", "port_rcv_data")
    retransmitted = ("out_of_sequence", "local_ack_timeout_err", "packet_seq_err", "roce_adp_retrans", "duplicate_request")
    files = {f"{port}/counters/{name}": "0" for name in names} | {f"{port}/hw_counters/{name}": "0" for name in retransmitted}
    write(root, files)
    before = counters.read(Roots.under(root), nvml=nvml)
    write(root, {name: "5" if "integrity" in name else "5000" for name in files})
    nvml.gpus[4].update(corrected=900, replays=900, errors=[900, 1, 900, 900])
    moves = counters.moved("h1", before, counters.read(Roots.under(root), nvml=nvml))
    assert {move.counter for move in moves if move.device == "mlx5_3"} == {*names, *retransmitted}
    judged = {move.counter for move, _ in counters.judge(moves, {})}
    assert judged == {"port_xmit_discards", "port_rcv_errors", *retransmitted, "ecc_corrected", "pcie_replays", "nvlink_replay", "nvlink_recovery",
                      "nvlink_crc_flit", "nvlink_crc_data"}  # fmt: skip


def test_a_rail_is_proven_by_the_bytes_of_its_nic_and_by_nothing_less():
    serves = {("h1", local): f"mlx5_{local}" for local in range(4)}

    def moves(*words: int) -> list[counters.Moved]:
        return [counters.Moved(host="h1", device=f"mlx5_{at}", counter="port_xmit_data", meaning="bytes", delta=n) for at, n in enumerate(words)]

    assert counters.proven(moves(100, 100, 101, 99), serves) == serves
    assert counters.proven(moves(400, 0, 0, 0), serves) == {}
    assert counters.proven([], serves) == {}
    assert counters.proven(moves(100, 100), {("h1", 0): "mlx5_0", ("h1", 1): "mlx5_0"}) == {}
