"""The commands topo and ideal: pages, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fabric_samples import IBSTATUS, LINKS, MATRIX, XML

from nccl_bench.cli.main import run
from nccl_bench.errors import DetectError


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    path = tmp_path / "topo.xml"
    path.write_text(XML)
    return path


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert run(list(argv)) == 0
    out, _err = capsys.readouterr()
    return json.loads(out)


def test_topo_shows_gpus_nics_and_their_map(xml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topo", "--from", str(xml)]) == 0

    out, _err = capsys.readouterr()
    assert out.splitlines()[0] == "topo: 2x H100 SXM, 18 NVLink4 each through NVSwitch (450 GB/s), 1x 400G InfiniBand"
    assert "GPUs joined by links: {0,1}" in out
    assert "18 NVLink4" in out
    assert "PIX" in out
    assert f"sources: NCCL dump: {xml}" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("sources")) <= 100


def test_topo_json_is_one_document(xml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = document(capsys, "topo", "--from", str(xml), "--json")

    assert record["nodes"][0]["gpus"][1]["nvlink"]["links"] == 18
    assert record["nvlink_domains"] == [["topo:0", "topo:1"]]
    assert record["sources"] == [f"NCCL dump: {xml}"]


def test_warnings_of_topo_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ib.txt"
    path.write_text(IBSTATUS)

    assert run(["topo", "--from", str(path)]) == 0

    out, err = capsys.readouterr()
    assert "warning: mlx5_1 left out: port is DOWN" in err
    assert "warning:" not in out


@pytest.mark.parametrize(("argv", "code", "words"), [
    (["topo", "--from", "/no/such/file"], 5, "/no/such/file"),
    (["topo", "--from", "{matrix}", "--gpu", "X9"], 6, "'X9'"),
    (["topo", "--from", "{strange}"], 6, "'Q9000'"),
    (["ideal", "--from", "{matrix}"], 6, "which model GPU 0 is"),
    (["ideal", "--gpus", "8xQ9000"], 6, "Q9000"),
    (["ideal", "--gpus", "8xH100"], 2, "several forms"),
    (["ideal", "--gpus", "H100"], 2, "COUNTxMODEL"),
    (["ideal", "--gpus", "8xH100-SXM", "--nodes", "2"], 2, "--nodes 2"),
    (["ideal", "--gpus", "8xH100-SXM", "--nics", "none", "--nodes", "2"], 2, "--nodes 2"),
    (["ideal", "--gpus", "8xH100-SXM", "--system", "p5"], 2, "one of them"),
    (["ideal", "--gpus", "8xH100-SXM", "--gpu", "H100-SXM"], 2, "a source that is read"),
    (["ideal", "--gpus", "8xH100-SXM", "--nics", "8x400"], 2, "COUNTxGBIT-KIND"),
    (["ideal", "--gpus", "8xH100-SXM", "-d", "int3"], 2, "int3"),
    (["ideal", "--system", "cray-1"], 6, "cray-1"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)  # fmt: skip
def test_errors_say_what_and_end_with_their_code(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, words: str) -> None:
    (tmp_path / "m.txt").write_text(MATRIX)
    (tmp_path / "l.txt").write_text(LINKS.replace("H100 80GB HBM3", "Q9000"))
    paths = {"{matrix}": str(tmp_path / "m.txt"), "{strange}": str(tmp_path / "l.txt")}

    assert run([paths.get(word, word) for word in argv]) == code

    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.splitlines()[-1].startswith(f"nccl-bench: exit {code}: ")
    assert "Traceback" not in err


def test_ideal_json_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    record = document(capsys, "ideal", "--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--nodes", "2", "--json")

    assert record["n_ranks"] == 16
    row = record["collectives"]["all_reduce"]
    keys = {"bus_factor", "line_busbw_GBps", "attainable_busbw_GBps", "expected_busbw_GBps", "limited_by", "latency_expected_us", "by_algorithm"}
    assert keys <= set(row)
    assert set(row["by_algorithm"]) == {"ring", "tree", "nvls"}
    assert {"line_busbw_GBps", "attainable_busbw_GBps", "limited_by"} <= set(row["by_algorithm"]["ring"])
    assert row["line_busbw_GBps"] == 750
    assert row["expected_busbw_GBps"]["n_sources"] >= 2
    assert record["collectives"]["broadcast"]["expected_busbw_GBps"] is None
    assert set(record["collectives"]["sendrecv"]["by_shift"]) == {"ring", "node"}


def test_collnet_is_there_only_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["ideal", "--gpus", "8xB200", "--nics", "8x400-IB", "--nodes", "4", "--json"]

    assert "collnet" not in document(capsys, *argv)["collectives"]["all_reduce"]["by_algorithm"]
    assert "collnet" in document(capsys, *argv, "--sharp")["collectives"]["all_reduce"]["by_algorithm"]


@pytest.mark.parametrize(
    ("options", "words"),
    [((), "one node alone"), (("--nics", "8x400-RoCE", "--nodes", "4"), "these NICs are RoCE"), (("--nics", "8x400-EFA", "--nodes", "4"), "EFA")],
)
def test_sharp_needs_infiniband_switches(options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ideal", "--gpus", "8xH100-SXM", *options, "--sharp"]) == 2
    assert words in capsys.readouterr().err


def test_ideal_of_a_file_may_be_given_nics_and_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.txt"
    path.write_text(MATRIX)

    record = document(capsys, "ideal", "--from", str(path), "--gpu", "A100-SXM", "--nics", "4x200-IB", "--nodes", "4", "--json")

    assert record["n_ranks"] == 16
    assert record["collectives"]["all_gather"]["line_busbw_GBps"] == 100
    assert any("NICs as given" in text for text in record["assumptions"])


def test_ideal_shows_limits_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ideal", "--system", "DGX-H100", "--nodes", "4"]) == 0

    out, _err = capsys.readouterr()
    assert out.splitlines()[0] == "4 nodes of 8x H100 SXM, 18 NVLink4 each through NVSwitch (450 GB/s), 8x 400G InfiniBand"
    assert "physical limit" in out
    assert "node's 8x 400G InfiniBand" in out
    assert "all_reduce by algorithm" in out
    assert "it is a convention" in out


def test_racks_and_groups_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["ideal", "--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--nodes", "8", "--json"]
    free = document(capsys, *argv)["collectives"]["all_to_all"]
    bound = document(capsys, *argv, "--racks", "2x4", "--oversubscription", "4:1")["collectives"]["all_to_all"]

    assert bound["line_busbw_GBps"] < free["line_busbw_GBps"]
    assert bound["limited_by"] == "rack's uplinks (4:1)"
    # All 32 GPUs of a rack send to the other: its uplinks carry 4 nodes x 400 GB/s / 4.
    crossing = document(capsys, *argv, "--racks", "2x4", "--oversubscription", "4:1")["collectives"]["pingpong"]
    assert crossing["line_busbw_GBps"] == pytest.approx(4 * 400 / 4 / 32)
    assert document(capsys, *argv, "--racks", "2x4")["collectives"]["pingpong"]["line_busbw_GBps"] == 50.0


def test_the_header_of_ideal_tells_racks_and_their_uplinks(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["ideal", "--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--nodes", "8"]
    assert run([*argv, "--racks", "2x4", "--oversubscription", "2:1"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("8x 400G InfiniBand, in 2 racks of 4 nodes, uplinks 2:1")
    assert run([*argv, "--racks", "4x2"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("in 4 racks of 2 nodes, uplinks as wide as the NICs")


def test_nics_or_nodes_without_gpus_ask_whose(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_args: object) -> None:
        raise DetectError("vm: no GPU is known here")

    monkeypatch.setattr("nccl_bench.cli.topo.read_topology", nothing)
    for argv, words in ((["--nics", "8x400-IB"], "--nics without --gpus"), (["--nodes", "4"], "--nodes without --gpus")):
        assert run(["ideal", *argv]) == 2
        err = capsys.readouterr().err
        assert f"{words}: whose?" in err
        assert "add --gpus" in err
    assert run(["ideal"]) == 6


def test_neither_command_loads_torch_or_pandas(xml: Path) -> None:
    code = (
        "import sys; from nccl_bench.cli.main import run; "
        f"assert run(['topo', '--from', {str(xml)!r}, '--json']) == 0; "
        "assert run(['ideal', '--gpus', '8xH100-SXM', '--nics', '8x400-IB', '--nodes', '2048']) == 0; "
        "assert not {'torch', 'pandas', 'matplotlib', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "16384 ranks" in done.stdout
