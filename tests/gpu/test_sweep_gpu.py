"""`nccl-bench sweep` through NCCL on real GPUs: every clock, regime, collective, dtype, placement; the check; the hang path.

Ranks: one a visible GPU. On one GPU, NCCL_BENCH_GPU_RANKS=2 with NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 or later) runs the same
tests with ranks that share it: behaviour, not a measurement.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nccl_bench.collectives import COLLECTIVES
from nccl_bench.dtypes import DTYPES, OPS

pytestmark = pytest.mark.gpu
SHARED = os.environ.get("NCCL_BENCH_GPU_RANKS")
TESTS = Path(__file__).parent.parent
QUICK = ("--budget", "0.2", "--no-progress", *(("-g", SHARED) if SHARED else ()))


def sweep(folder, *args, timeout=280):
    """(finished process, header, points) of one sweep."""
    command = [sys.executable, "-m", "nccl_bench", "sweep", *map(str, args), *QUICK, "-O", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=folder)
    points = (
        [json.loads(line) for line in (folder / "run" / "points.jsonl").read_text().splitlines()]
        if (folder / "run" / "points.jsonl").exists()
        else []
    )
    header = json.loads((folder / "run" / "run.json").read_text()) if points else {}
    return done, header, points


def bad(points):
    """Points that are not right, in few words."""
    return [(p["collective"], p["dtype"], p["op"], p["clock"], p["nbytes"], p["reason"]) for p in points if p["status"] == "failed" or p["n_wrong"]]


def n_ranks(header):
    return header["n_ranks"]


def test_every_collective_on_every_clock_is_right(tmp_path):
    done, header, points = sweep(tmp_path, "all", "--clock", "graph,queued,eager,host", "--sizes", "64K,4M")

    assert done.returncode == 0, done.stderr
    assert bad(points) == []
    ran = {(p["collective"], p["clock"]) for p in points if p["status"] == "ok"}
    names = set(COLLECTIVES) - (set() if n_ranks(header) > 1 else {"pingpong"})
    assert ran >= {(name, clock) for name in names for clock in ("graph", "queued", "eager", "host")}
    assert header["backend"] == "nccl"
    assert header["versions"]["nccl_path"]
    assert all(rank["gpu"]["uuid"].startswith("GPU-") for rank in header["ranks"])


def test_k_is_by_rule_and_one_event_step_is_the_narrowest_interval(tmp_path):
    _, _, points = sweep(tmp_path, "all_gather", "--clock", "graph", "--sizes", "64K,256M")

    for point in (p for p in points if p["regime"] == "streaming" and p["status"] == "ok"):
        expected = 64 if point["time_us"]["median"] < 100 else 4 if point["time_us"]["median"] < 1000 else 1
        assert point["ops_per_batch"] == expected or 0.8 < point["time_us"]["median"] / (100 if expected >= 4 else 1000) < 1.25
        assert point["time_us"]["ci_high"] - point["time_us"]["ci_low"] > 0


@pytest.mark.parametrize("clock", ["graph", "queued", "eager"])
def test_isolated_series_on_every_clock(tmp_path, clock):
    done, _, points = sweep(tmp_path, "all_gather", "broadcast", "sendrecv", "--clock", clock, "--regime", "isolated", "--sizes", "64K")

    assert done.returncode == 0, done.stderr
    assert bad(points) == []
    assert {(p["clock"], p["regime"], p["sample"]) for p in points if p["status"] == "ok"} == {(clock, "isolated", "op")}
    assert all(p["lateness_us"]["worst"] for p in points if p["status"] == "ok")


def test_every_dtype_and_reduction_is_right_or_skipped_with_the_reason(tmp_path):
    done, _, points = sweep(
        tmp_path, "all_reduce", "reduce_scatter", "-d", "all", "-o", "all", "--sizes", "64K", "--clock", "graph", "-n", "64", "-w", "8"
    )

    assert bad(points) == []
    assert done.returncode == 0, done.stderr
    ran = {(p["dtype"], p["op"]) for p in points if p["status"] == "ok"}
    assert ran >= {(dtype, op) for dtype in ("float32", "bfloat16", "float16", "int8", "int64") for op in ("sum", "product", "max", "min", "avg")}
    assert all(p["reason"] for p in points if p["status"] == "skipped")
    assert {p["op"] for p in points} == set(OPS)
    assert {p["dtype"] for p in points} == set(DTYPES)


def test_both_placements(tmp_path):
    done, _, points = sweep(tmp_path, "all_gather", "reduce_scatter", "--placement", "both", "--sizes", "1M", "--clock", "graph,eager")

    assert done.returncode == 0, done.stderr
    assert bad(points) == []
    assert {(p["collective"], p["placement"]) for p in points if p["status"] == "ok"} == {
        (name, form) for name in ("all_gather", "reduce_scatter") for form in ("in", "out")
    }


@pytest.mark.parametrize("register", ["graph", "user"])
def test_registration_is_recorded(tmp_path, register):
    done, _, points = sweep(tmp_path, "all_gather", "-R", register, "--sizes", "1M", "--clock", "graph")

    assert done.returncode == 0, done.stderr
    assert bad(points) == []
    assert {p["registered"] for p in points} == {register}


def test_a_size_beyond_memory_is_skipped(tmp_path):
    done, _, points = sweep(tmp_path, "broadcast", "--sizes", "64K,4T", "--clock", "graph")

    assert done.returncode == 0, done.stderr
    assert [p["status"] for p in points if p["regime"] == "streaming"] == ["ok", "skipped"]


@pytest.mark.parametrize("clock", ["graph", "eager", "queued"])
def test_one_changed_element_in_one_rotated_slot_is_found(tmp_path, clock):
    worker = tmp_path / "worker.py"
    worker.write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom ranks import damaged\nfrom nccl_bench.measure.ops import prepare\n"
        "from nccl_bench.measure.worker import main\nsys.exit(main(damaged(prepare, {'rank': 0, 'slot': 3, 'element': 9})))\n"
    )
    arguments = ["sweep", "all_gather", "--sizes", "64K", "--clock", clock, *QUICK, "-O", "run"]
    program = (
        "import sys, nccl_bench.flows.sweep as flow\n"
        f"flow.sweep.__kwdefaults__['worker'] = (sys.executable, {str(worker)!r})\n"
        f"from nccl_bench.cli.main import run\nsys.exit(run({arguments!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False)
    point = json.loads((tmp_path / "run" / "points.jsonl").read_text().splitlines()[0])

    assert done.returncode == 7, done.stderr
    assert point["clock"] == clock
    assert re.search(r"rank 0 \(host \S+, GPU \d+\), slot 3, .*element 9: expected \d+, got \d+", point["reason"])


def workers_of(parent):
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True, check=False).stdout
    return sorted(int(line.split()[0]) for line in found.splitlines() if "nccl_bench.measure.worker" in line)


def memory_in_use():
    import pynvml

    pynvml.nvmlInit()
    return sum(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i)).used for i in range(pynvml.nvmlDeviceGetCount()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("clock", ["graph", "eager"])
def test_a_broken_rank_is_named_and_its_memory_freed(tmp_path, clock, number):
    before = memory_in_use()
    command = [
        sys.executable,
        "-m",
        "nccl_bench",
        "sweep",
        "all_gather",
        "--sizes",
        "1M",
        "--clock",
        clock,
        "--duration",
        "10m",
        "-T",
        "5",
        *QUICK,
        "-O",
        "run",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    points = tmp_path / "run" / "points.jsonl"
    end = time.monotonic() + 90
    while time.monotonic() < end and not (points.exists() and points.read_text().count("\n") >= 3):
        time.sleep(0.1)
    victim = workers_of(process.pid)[-1]
    rank = len(workers_of(process.pid)) - 1
    os.kill(victim, number)
    broken = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    spent = time.monotonic() - broken

    assert process.returncode == 4, stderr
    assert re.search(rf"exit 4: .*rank {rank}\b", stderr.strip().splitlines()[-1]), stderr
    assert spent < 5 + 10
    assert points.read_text().count("\n") >= 3
    end = time.monotonic() + 10
    while memory_in_use() > before + (256 << 20) and time.monotonic() < end:
        time.sleep(0.2)
    assert memory_in_use() <= before + (256 << 20)


def test_a_sweep_with_a_graph_alive_leaves_at_once_on_an_interrupt(tmp_path):
    command = [
        sys.executable,
        "-m",
        "nccl_bench",
        "sweep",
        "all_gather",
        "--sizes",
        "1M",
        "--clock",
        "graph",
        "--duration",
        "10m",
        *QUICK,
        "-O",
        "run",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    points = tmp_path / "run" / "points.jsonl"
    end = time.monotonic() + 90
    while time.monotonic() < end and not (points.exists() and points.read_text().count("\n") >= 3):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130, stderr
    assert time.monotonic() - asked < 5
