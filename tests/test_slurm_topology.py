"""Slurm's topology: topology.conf, scontrol's answer and SLURM_TOPOLOGY_ADDR give the leaf of each host; a flat one gives none."""

from __future__ import annotations

from pathlib import Path

from nccl_bench.cli.places import groups_of
from nccl_bench.launch.slurm_topology import leaves, parse

CONF = """
# topology.conf
SwitchName=s0 Nodes=dev[0-3]    # first rack
SwitchName=s1 Nodes=dev[4-7],big1
SwitchName=root Switches=s[0-1]
"""
SCONTROL = """SwitchName=s0 Level=0 LinkSpeed=1 Nodes=dev[0-3]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=dev[4-7],big1
SwitchName=root Level=1 LinkSpeed=1 Nodes=big1,dev[0-7] Switches=s[0-1]
"""


def test_the_lowest_switch_counts_in_the_file_and_in_scontrols_answer():
    expected = {f"dev{n}": "s0" if n < 4 else "s1" for n in range(8)} | {"big1": "s1"}
    assert parse(CONF) == expected
    assert parse(SCONTROL) == expected
    assert parse("BlockName=b1 Nodes=n[1-2]\nBlockSizes=2\n") == {"n1": "b1", "n2": "b1"}
    assert parse("nonsense\nSwitchName=x Nodes=a[3-1]\nSwitchName=y Nodes=(null)\n") == {}


def test_addresses_of_the_job_come_first_then_the_file_then_scontrol(tmp_path: Path):
    asked: list[object] = []

    def scontrol(argv: object) -> str | None:
        asked.append(argv)
        return SCONTROL

    environ = {"SLURM_JOB_ID": "1", "SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
    found = leaves(environ, {"a": "root.s0.a", "b": "root.s1.b"}, scontrol)
    assert found is not None
    assert (dict(found.of), asked) == ({"a": "s0", "b": "s1"}, [])
    by_scontrol = leaves(environ, {}, scontrol)
    assert by_scontrol is not None
    assert by_scontrol.of["dev5"] == "s1"
    assert "scontrol" in by_scontrol.source
    (tmp_path / "topology.conf").write_text(CONF)
    by_file = leaves(environ, {}, scontrol)
    assert by_file is not None
    assert (by_file.of["big1"], "topology.conf" in by_file.source) == ("s1", True)
    assert len(asked) == 1


def test_a_flat_topology_or_no_slurm_is_no_group(tmp_path: Path):
    flat = {"SLURM_JOB_ID": "1", "SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}
    assert leaves(flat, {"a": "a"}, lambda _: None) is None
    assert leaves({}, {"a": "s0.a"}, lambda _: SCONTROL) is None


def test_groups_come_from_the_file_before_slurm_and_one_leaf_for_all_says_nothing(tmp_path: Path):
    (tmp_path / "topology.conf").write_text(CONF)
    environ = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    of = groups_of(None, environ)
    known = of(("dev1.cluster", "dev6"))
    assert known is not None
    assert (known.of, known.source) == (("s0", "s1"), "Slurm's topology (topology.conf)")
    assert of(("dev1", "dev2")) is None
    (tmp_path / "g.csv").write_text("host,rack\ndev1,r1\ndev2,r2\n")
    named = groups_of(tmp_path / "g.csv", environ)(("dev1", "dev2"))
    assert named is not None
    assert named.of == ("r1", "r2")
