"""accept.sbatch on a real Slurm with two leaf switches: a task that is killed, hangs or never comes takes its host out and nobody else.

Nothing here depends on how long a thing takes: each step waits for what it needs to see, with minutes to spare.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed import ROOT, Job, Slurm, hosts, needs_slurm, slurm

SCRIPT = ROOT / "slurm" / "accept.sbatch"
NAMES = ("h1", "h2", "h3", "h4")
OPTIONS = ("--backend", "gloo", "--case-budget", "0.05", "--silent", "20", "-T", "30", "-O", "run")
PATIENCE_S = 400.0

pytestmark = needs_slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with hosts(*NAMES) as made, slurm(made, tree=True) as running:
        yield running


def submit(cluster: Slurm, folder: Path, *options: str, env: dict[str, str] | None = None) -> Job:
    return cluster.submit(folder, "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=1", str(SCRIPT), *OPTIONS, *options, env=env)


def until(found: Callable[[], Any], job: Job) -> Any:
    """What `found` gives once it is true; the job's output where that takes too long, or the job ended before."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.3)
    raise AssertionError(job.output()[-3000:])


def process_of(cluster: Slurm, rank: int) -> tuple[int, int] | None:
    """(worker, supervisor) of a rank whose worker runs."""
    for pid in cluster.hosts.pids():
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes()
            environ = b"\0" + (Path("/proc") / str(pid) / "environ").read_bytes()
            parent = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"nccl_bench.measure." in words and f"\0RANK={rank}\0".encode() in environ:
            return pid, parent
    return None


def verdict_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run" / "verdict.json").read_text()))


def cluster_sizes(folder: Path) -> set[int]:
    points = [json.loads(line) for line in (folder / "run" / "points.jsonl").read_text().splitlines()]
    return {point["n_ranks"] for point in points if point["stage"] == "cluster"}


def test_a_killed_task_is_left_out_with_its_host_and_the_rest_of_the_job_finishes(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "--stages", "doctor,pairs,cluster")
    for pid in until(lambda: process_of(cluster, 2), job):  # the worker and its supervisor, as when a host dies
        os.kill(pid, signal.SIGKILL)
    state = job.wait(PATIENCE_S)
    verdict = verdict_of(tmp_path)
    assert [one["host"] for one in verdict["excluded"]] == ["h3"], (verdict["excluded"], job.output()[-2000:])
    assert verdict["excluded"][0]["stage"] in ("pairs", "cluster")
    assert verdict["excluded"][0]["reason"]
    assert verdict["drain"] == ["h3"]
    assert verdict["exit_code"] == 8
    assert state["ExitCode"] in ("8:0", "137:0", "0:9"), state
    assert cluster_sizes(tmp_path) == {3}
    assert verdict["groups"] == "Slurm's topology (SLURM_TOPOLOGY_ADDR): 2 groups"


@pytest.mark.slow
def test_a_task_that_hangs_is_left_out_a_spare_takes_its_place_and_the_rest_finish(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "--stages", "doctor,cluster", "--spares", "1")
    worker, supervisor = until(lambda: process_of(cluster, 1), job)
    for pid in (supervisor, worker):
        os.kill(pid, signal.SIGSTOP)
    try:
        until((tmp_path / "run" / "verdict.json").exists, job)
        until(lambda: "scancel" in job.output(), job)
    finally:
        for pid in (worker, supervisor):  # Slurm waits for what hangs
            os.kill(pid, signal.SIGKILL)
    job.wait(PATIENCE_S)
    verdict = verdict_of(tmp_path)
    assert [one["host"] for one in verdict["excluded"]] == ["h2"], verdict["excluded"]
    assert verdict["replaced"] == [{"host": "h2", "by": "h4", "stage": "cluster"}]
    assert cluster_sizes(tmp_path) == {3}, "h1, h3 and the spare"


@pytest.mark.slow
def test_a_host_whose_task_never_comes_is_left_out_by_its_name_and_the_rest_finish(cluster: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    real = f"{cluster.hosts.environ['PATH'].split(':')[0]}/nccl-bench"
    (folder / "nccl-bench").write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" = h4 ] && exit 0\nexec {real} "$@"\n')
    (folder / "nccl-bench").chmod(0o755)
    job = submit(cluster, tmp_path, "--stages", "doctor,cluster", env={"PATH": f"{folder}:{cluster.hosts.environ['PATH']}"})
    job.wait(PATIENCE_S)
    verdict = verdict_of(tmp_path)
    assert [(one["host"], one["stage"]) for one in verdict["excluded"]] == [("h4", "meeting")], (verdict["excluded"], job.output()[-2000:])
    assert cluster_sizes(tmp_path) == {3}
    assert "never came: the others go on" in job.output()
