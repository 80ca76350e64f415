"""accept.sbatch on a real Slurm: it ends 8 on gloo, and a task that is killed takes its host out and nobody else."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import ROOT, Slurm, hosts, needs_slurm, slurm, workers_of

SCRIPT = ROOT / "slurm" / "accept.sbatch"
NAMES = ("h1", "h2", "h3", "h4")
OPTIONS = ("--backend", "gloo", "--case-budget", "0.05", "--silent", "15", "-T", "20", "--stages", "doctor,pairs,cluster", "-O", "run")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with hosts(*NAMES) as made, slurm(made) as running:
        yield running


@needs_slurm
def test_a_killed_task_is_left_out_with_its_host_and_the_rest_of_the_job_finishes(cluster: Slurm, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=1", str(SCRIPT), *OPTIONS)
    end = time.monotonic() + 120
    victim: list[int] = []
    while time.monotonic() < end and not victim:
        time.sleep(0.3)
        for pid in workers_of(cluster.hosts.pids()) or _pair_workers(cluster.hosts.pids()):
            if b"\0RANK=2\0" in b"\0" + (Path("/proc") / str(pid) / "environ").read_bytes():
                victim = [pid, int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])]
    for pid in victim:  # the worker and its supervisor, as when a host dies
        os.kill(pid, signal.SIGKILL)
    state = job.wait(240)
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert [one["host"] for one in verdict["excluded"]] == ["h3"], (verdict["excluded"], job.output()[-2000:])
    assert verdict["exit_code"] == 8
    assert state["ExitCode"] in ("8:0", "137:0", "0:9"), state
    points = [json.loads(line) for line in (tmp_path / "run" / "points.jsonl").read_text().splitlines()]
    assert {point["n_ranks"] for point in points if point["stage"] == "cluster"} == {3}


def _pair_workers(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            line = (Path("/proc") / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"nccl_bench.measure.pairs" in line:
            found.append(pid)
    return found
