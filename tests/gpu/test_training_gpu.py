"""plan, sweep --want and --mesh through NCCL on real GPUs: products, attention, memory passes, overlaps, groups, and a step that is priced.

Ranks: as test_sweep_gpu. One GPU is enough for the products; groups need two ranks.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
SHARED = os.environ.get("NCCL_BENCH_GPU_RANKS")
SMALL = {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "intermediate_size": 8192, "vocab_size": 32000, "hidden_act": "silu"}
BF16_PEAK_TFLOPS = 5000.0
"""Dense bf16 of no GPU sold is above this; a rate beyond it is a clock that did not wait."""


def command(*args, cwd, timeout=280):
    line = [sys.executable, "-m", "nccl_bench", *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, timeout=timeout, check=False)


def ranks():
    import torch

    return int(SHARED) if SHARED else torch.cuda.device_count()


def points_of(folder):
    return [json.loads(line) for line in (Path(folder) / "run" / "points.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("n", [1, None], ids=["one rank", "all ranks"])
def test_a_plan_is_emitted_measured_and_priced(tmp_path, n):
    n = n or ranks()
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    plan = ("plan", "--model", "config.json", "--seq", "2048", "--mbs", "1", "--gbs", n, "--world", n, "--gpus-per-node", n, "--framework", "fsdp2")
    emitted = command(*plan, "--emit", "want.json", cwd=tmp_path)
    assert emitted.returncode == 0, emitted.stderr

    measured = command("sweep", "--want", "want.json", "-O", "run", "-g", n, "--budget", "0.3", "--no-progress", cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    points = points_of(tmp_path)
    assert [(p["special"], p["reason"]) for p in points if p["status"] != "ok"] == []
    products = [p for p in points if p["kind"] == "gemm" and "m" in p["details"]]
    assert len(products) >= 12
    for p in products:
        d = p["details"]
        assert 0.1 < 2.0 * d["m"] * d["n"] * d["k"] / p["time_us"]["mean"] * 1e-6 < BF16_PEAK_TFLOPS, d
    overlaps = [p for p in points if p["kind"] == "overlap"]
    assert bool(overlaps) == (n > 1)
    # Both together can not be much faster than the longer one, nor slower than one after the other by much.
    assert all(0.8 < p["details"]["slowdown"] < 2.6 for p in overlaps), [p["details"] for p in overlaps]

    priced = command(*plan, "--measured", "run", "--json", cwd=tmp_path)
    assert priced.returncode == 0, priced.stderr
    found = json.loads(priced.stdout)
    assert 0 < found["step_s"]["low"] <= found["step_s"]["mid"] <= found["step_s"]["high"]
    assert found["unpriced"] == []
    assert 0 < (found["mfu_frac"] or 0.5) < 1


def test_groups_run_at_once_alone_and_beside_each_other(tmp_path):
    n = ranks()
    if n < 2:
        pytest.skip("groups need two ranks (NCCL_BENCH_GPU_RANKS=2 lets two share a GPU)")
    half = n // 2
    mesh = f"dp={half},tp=2"
    args = ("all_reduce", "all_gather", "--mesh", mesh, "--axis", "tp", "--solo", *(("--with", "dp:reduce_scatter") if half > 1 else ()))
    done = command("sweep", *args, "--sizes", "1M,16M", "-g", 2 * half, "-O", "run", "--budget", "0.3", "--no-progress", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    points = points_of(tmp_path)
    assert [(p["collective"], p["special"], p["reason"]) for p in points if p["status"] != "ok" or p["n_wrong"]] == []
    assert {p["special"] for p in points} == {None, *(("solo", "beside dp:reduce_scatter") if half > 1 else ())}
    assert all(p["group"]["size"] == 2 for p in points)


def test_uneven_shares_are_right_on_gpus(tmp_path):
    n = ranks()
    if n < 2:
        pytest.skip("an exchange needs two ranks")
    done = command("sweep", "all_to_all", "--skew", "1.5", "--sizes", "1M", "-g", n, "-O", "run", "--budget", "0.3", "--no-progress", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert all((p["status"], p["n_wrong"]) == ("ok", 0) for p in points_of(tmp_path))
