"""fabric/files.py, placement.py, data.py: topology from files, racks from a groups file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fabric_samples import DEVINFO, GRAPH, IBSTATUS, LINKS, LOG, MATRIX, ROCM, XML
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.errors import DataError, DetectError
from nccl_bench.fabric import placement
from nccl_bench.fabric.data import clean, read_text, small_int
from nccl_bench.fabric.files import kind_of, topology_from
from nccl_bench.fabric.spec import topology_of
from nccl_bench.fabric.topology import topology_json


def file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (XML, "NCCL dump"),
        (GRAPH, "NCCL graph"),
        (XML.replace("<gpu ", "<other "), "NCCL topology file"),
        (LOG, "NCCL log"),
        (MATRIX, "nvidia-smi topo -m"),
        (LINKS, "nvidia-smi nvlink -s"),
        (ROCM, "rocm-smi"),
        (IBSTATUS, "ibstatus"),
        (DEVINFO, "ibv_devinfo"),
        ('{"nodes": []}', "run"),
    ],
)
def test_a_file_is_known_by_its_content(text: str, kind: str) -> None:
    assert kind_of(text, "x") == kind


def test_files_of_one_node_are_merged(tmp_path: Path) -> None:
    paths = [file(tmp_path, "m.txt", MATRIX), file(tmp_path, "ib.txt", IBSTATUS)]

    topology = topology_from(paths, {}, gpu_name="A100-SXM")

    (node,) = topology.nodes
    assert [(nic.name, nic.rate_gbit, nic.gpus, nic.used) for nic in node.nics or ()] == [
        ("mlx5_0", 400, (0, 1), True),
        ("mlx5_1", None, (2, 3), False),
    ]
    assert {gpu.nvlink.per_direction_GBps for gpu in node.gpus or () if gpu.nvlink} == {300}
    assert topology.sources == (f"nvidia-smi topo -m: {paths[0]}", f"ibstatus: {paths[1]}")


def test_two_files_of_one_kind_are_two_nodes(tmp_path: Path) -> None:
    topology = topology_from([file(tmp_path, "a.xml", XML), file(tmp_path, "b.xml", XML)], {})

    assert [node.label for node in topology.nodes] == ["a", "b"]


def test_a_log_and_a_dump_of_its_host_are_one_node(tmp_path: Path) -> None:
    topology = topology_from([file(tmp_path, "a.xml", XML), file(tmp_path, "b.log", LOG)], {})

    assert [node.host for node in topology.nodes] == ["node-a"]


def test_a_run_and_the_output_of_topo_are_read(tmp_path: Path) -> None:
    record = topology_json(topology_of("8xH100-SXM", "8x400-IB", 2))
    run = tmp_path / "run"
    run.mkdir()
    file(run, "run.json", json.dumps({"schema": 1, "topology": record}))
    file(run, "points.jsonl", "")

    for path in (run, run / "run.json", run / "points.jsonl", file(tmp_path, "topo.json", json.dumps(record))):
        assert len(topology_from([path], {}).nodes) == 2


def test_an_empty_file_means_no_nvlink_only_by_its_name(tmp_path: Path) -> None:
    topology = topology_from([file(tmp_path, "nvlink.txt", "")], {})

    assert topology.nodes[0].switch is False
    with pytest.raises(DataError, match="empty"):
        topology_from([file(tmp_path, "other.txt", "")], {})


@pytest.mark.parametrize("text", ["hello\n", "{", '{"a": 1}', '{"topology": null}', "<html></html>", "GPU0\n"])
def test_what_is_no_topology_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = file(tmp_path, "x", text)

    with pytest.raises(DataError) as caught:
        topology_from([path], {})

    assert caught.value.why.startswith(str(path))


def test_missing_and_large_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        topology_from([tmp_path / "none"], {})
    with pytest.raises(DataError, match="larger than"):
        read_text(file(tmp_path, "big", "x" * 2000), limit=1000)
    with pytest.raises(DataError, match="more than 4 MiB"):
        topology_from([file(tmp_path, "wide", "x" * (5 << 20))], {})


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a run directory nor a copy of /sys"):
        topology_from([tmp_path], {})


def test_a_gpu_that_a_file_names_and_we_do_not_know_ends_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(DetectError, match="'Q9000'"):
        topology_from([file(tmp_path, "l.txt", LINKS.replace("H100 80GB HBM3", "Q9000"))], {})


@given(st.text(max_size=40))
def test_cleaned_text_has_no_colours_and_one_kind_of_line_end(text: str) -> None:
    assert "\r" not in clean(text)


@given(st.text(max_size=25))
def test_a_short_text_is_a_number_or_none(text: str) -> None:
    value = small_int(text)

    assert value is None or abs(value) < 1 << 31


def test_a_groups_file_gives_racks_and_leaves(tmp_path: Path) -> None:
    text = "# floor plan\nhost,rack,leaf,rail switch\nh0.example,r1,l1,s1\nh1,r1,l1,s1\nh2,r2,,\n"

    places = placement.read(file(tmp_path, "g.csv", text))

    assert places["h0.example"].rack == "r1"
    assert (places["h2"].rack, places["h2"].leaf, places["h2"].rail) == ("r2", None, None)


@pytest.mark.parametrize("text", ["", "host,shelf\nh,1\n", "h0,r1\nh0,r2\n", ",r1\n", "a,b,c,d,e\n"])
def test_a_wrong_groups_file_says_where(text: str) -> None:
    with pytest.raises(DataError, match="groups"):
        placement.parse(text)


def test_hosts_that_the_groups_file_lacks_are_said() -> None:
    from dataclasses import replace

    base = topology_of("8xH100-SXM", "8x400-IB", 1)
    topology = replace(base, nodes=tuple(replace(base.nodes[0], host=f"h{at}.example") for at in range(3)))

    placed = placement.apply(topology, placement.parse("h0,r1\nh1,r2\n"))

    assert [node.rack for node in placed.nodes] == ["r1", "r2", None]
    assert placed.warnings == ("not in the groups file: h2.example",)
