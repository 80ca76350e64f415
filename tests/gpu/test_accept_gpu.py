"""accept, doctor and counters on a real GPU, through NCCL with ranks that share it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nccl_bench", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, env={**os.environ, **env})


def test_accept_through_nccl_on_a_shared_gpu_ends_8_saying_so(tmp_path):
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    done = run("accept", "-g", "2", "--case-budget", "0.2", "-O", str(tmp_path / "run"), "--json", **shared)
    assert done.returncode == 8, done.stderr[-3000:]
    verdict = json.loads(done.stdout)
    assert "share a GPU" in verdict["why"]
    assert any(row["criterion"].startswith("all_reduce bandwidth") for row in verdict["rows"])
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (header["backend"], header["shared_gpu"]) == ("nccl", True)


def test_a_soak_beside_matrix_products_says_what_each_gpu_computes(tmp_path):
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    options = ("--stages", "doctor", "--soak", "10s", "--load", "gemm", "--case-budget", "0.2", "-O", str(tmp_path / "run"), "--json")
    done = run("accept", "-g", "2", *options, **shared)
    assert done.returncode == 8, done.stderr[-3000:]
    facts = json.loads((tmp_path / "run" / "accept.json").read_text())
    assert [one["gpu"] for one in facts["load_rates"]] == [0, 1]
    assert all(one["tflops"] > 1 for one in facts["load_rates"])
    points = [json.loads(line) for line in (tmp_path / "run" / "points.jsonl").read_text().splitlines()]
    assert {(point["variant"], point["clock"]) for point in points} == {("beside gemm", "eager")}
    # Beside a load it is slower by design: no collective's bandwidth is judged, and that nothing else was is open.
    rows = [row for row in json.loads(done.stdout)["rows"] if row["stage"] == "soak" and row["criterion"].endswith("bandwidth")]
    assert [(row["criterion"], row["status"]) for row in rows] == [("bandwidth", "inconclusive")]


def test_doctor_and_its_inventory_read_the_device():
    done = run("doctor", "--json")
    record = json.loads(done.stdout)
    by_id = {check["id"]: check for check in record["checks"]}
    assert by_id["gpu.count"]["status"] == "ok"
    assert by_id["gpu.ecc"]["status"] in ("ok", "warn", "fail")
    assert record["inventory"][0]["gpus"][0]["uuid"].startswith("GPU-")


def test_counters_of_the_device_can_be_read():
    from nccl_bench.fabric import counters
    from nccl_bench.fabric.host_read import Roots

    found = counters.read(Roots())
    assert found["gpu 0"]["uuid"].startswith("GPU-")
