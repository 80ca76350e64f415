"""One command under every launcher: mpirun of Open MPI and MPICH, srun with each of its MPI plug-ins, torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from testbed import HOSTS, Hosts, Slurm, environment, header, hosts, needs, needs_hosts, needs_slurm, points, slurm, workers_of

pytest.importorskip("torch")

SWEEP = ("nccl-bench", "sweep", "all_reduce", "--backend", "gloo", "-b", "1K", "-e", "4K", "--budget", "0.05", "--no-progress", "-O", "run")
LONG = (*SWEEP[:6], "1K", "-e", "1K", *SWEEP[9:], "--duration", "10m", "-T", "5")
OPENMPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe")
needs_openmpi = needs("mpirun.openmpi", package="openmpi-bin")
needs_mpich = needs("mpirun.mpich", package="mpich")


def run(folder: Path, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=environment(**(env or {})), cwd=folder, text=True, capture_output=True, timeout=120, check=False)


def world(folder: Path) -> tuple[Any, list[tuple[str, int]]]:
    """The launcher of the run and (host, local rank) by rank."""
    found = header(folder / "run")
    assert points(folder / "run")
    return found["launcher"], [(rank["host"], rank["local_rank"]) for rank in found["ranks"]]


@pytest.fixture
def agent(tmp_path: Path) -> tuple[Hosts, str] | Iterator[tuple[Hosts, str]]:
    """Two hosts, and what mpirun takes for ssh between them: AGENT HOST COMMAND-OF-A-SHELL."""
    path = tmp_path / "agent"
    path.write_text(f'#!/bin/sh\nhost=$1\nshift\nexec {HOSTS} on "$host" /bin/sh -c "$*"\n')
    path.chmod(0o755)
    with hosts("h1", "h2") as made:
        yield made, str(path)


# ---- mpirun


@needs_openmpi
def test_open_mpi_on_one_host_is_one_world(tmp_path: Path) -> None:
    done = run(tmp_path, *OPENMPI, "--mca", "oob_tcp_if_include", "lo", "-np", "3", *SWEEP)
    assert done.returncode == 0, done.stderr
    launcher, ranks = world(tmp_path)
    assert launcher == "openmpi"
    assert [local for _, local in ranks] == [0, 1, 2]


@needs_openmpi
@needs_hosts
def test_open_mpi_dealing_ranks_out_to_two_hosts_in_turn_gets_local_ranks_right(agent: tuple[Hosts, str], tmp_path: Path) -> None:
    made, path = agent
    mpirun = (*OPENMPI, "--mca", "plm_rsh_agent", path, "--host", "h1:2,h2:2", "--map-by", "node")
    done = made.run("head", *mpirun, "-x", "PATH", "-x", "PYTHONPATH", "-x", "MASTER_ADDR=h1", *SWEEP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert world(tmp_path) == ("openmpi", [("h1", 0), ("h2", 0), ("h1", 1), ("h2", 1)])


@needs_openmpi
@needs_hosts
def test_open_mpi_over_hosts_without_a_place_to_meet_is_told_what_to_set(agent: tuple[Hosts, str], tmp_path: Path) -> None:
    made, path = agent
    mpirun = (*OPENMPI, "--mca", "plm_rsh_agent", path, "--host", "h1:1,h2:1", "-x", "PATH", "-x", "PYTHONPATH")
    done = made.run("head", *mpirun, *SWEEP, cwd=tmp_path)
    assert done.returncode == 3
    assert "mpirun -x MASTER_ADDR=" in done.stderr
    assert not (tmp_path / "run").exists()


@needs_mpich
def test_mpich_on_one_host_is_one_world(tmp_path: Path) -> None:
    done = run(tmp_path, "mpirun.mpich", "-np", "3", *SWEEP)
    assert done.returncode == 0, done.stderr
    launcher, ranks = world(tmp_path)
    assert launcher == "pmi"
    assert [local for _, local in ranks] == [0, 1, 2]


@needs_mpich
@needs_hosts
def test_mpich_on_two_hosts_is_one_world(agent: tuple[Hosts, str], tmp_path: Path) -> None:
    made, path = agent
    mpirun = ("mpirun.mpich", "-launcher", "rsh", "-launcher-exec", path, "-hosts", "h1:2,h2:2", "-genvall", "-genv", "MASTER_ADDR", "h1")
    done = made.run("head", *mpirun, "-np", "4", *SWEEP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert world(tmp_path) == ("pmi", [("h1", 0), ("h1", 1), ("h2", 0), ("h2", 1)])


@needs_openmpi
def test_under_mpirun_too_the_verdict_names_the_rank_that_died(tmp_path: Path) -> None:
    code, _, stderr = killed(tmp_path, [*OPENMPI, "--mca", "oob_tcp_if_include", "lo", "-np", "2"], victim=1)
    assert code == 4
    assert "nccl-bench: exit 4: rank 1 died (signal 9)" in stderr


# ---- srun


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with hosts("n1", "n2") as made, slurm(made) as running:
        yield running


@needs_slurm
@pytest.mark.parametrize("mpi, launcher", [("none", "slurm"), ("pmi2", "pmi"), ("pmix", "pmix")])
def test_srun_with_each_of_its_plug_ins_is_one_world(cluster: Slurm, tmp_path: Path, mpi: str, launcher: str) -> None:
    done = cluster.run("srun", "-N2", "-n3", "--distribution=block", f"--mpi={mpi}", *SWEEP, cwd=tmp_path)
    if "can not load PMIx library" in done.stderr:
        pytest.skip("Slurm's PMIx plug-in finds no libpmix.so (Debian: apt-get install libpmix-dev)")
    assert done.returncode == 0, done.stderr
    assert world(tmp_path) == (launcher, [("n1", 0), ("n1", 1), ("n2", 0)])


@needs_slurm
def test_srun_dealing_tasks_out_in_turn_gets_local_ranks_right(cluster: Slurm, tmp_path: Path) -> None:
    done = cluster.run("srun", "-N2", "-n3", "--distribution=cyclic", *SWEEP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert world(tmp_path) == ("slurm", [("n1", 0), ("n2", 0), ("n1", 1)])
    assert "nodes hold different numbers of ranks" in done.stderr


@pytest.mark.slow
@needs_slurm
@needs_openmpi
def test_mpirun_in_a_batch_job_meets_on_the_jobs_first_node(cluster: Slurm, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "-N2", "--ntasks-per-node=1", "--output=mpirun-%j.out", f"--wrap={' '.join((*OPENMPI, *SWEEP))}")
    assert job.wait()["JobState"] == "COMPLETED", job.output()
    assert world(tmp_path) == ("openmpi", [("n1", 0), ("n2", 0)])


# ---- torchrun


def killed(folder: Path, launcher: list[str], victim: int) -> tuple[int, str, str]:
    """A sweep under a launcher of this host, one of whose workers is killed while it measures."""
    process = subprocess.Popen([*launcher, *LONG], env=environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while not ((folder / "run/points.jsonl").exists() and (folder / "run/points.jsonl").stat().st_size):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        (pid,) = [rank["pid"] for rank in header(folder / "run")["ranks"] if rank["rank"] == victim]
        os.kill(pid, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


def test_under_torchrun_the_verdict_is_the_last_thing_printed_and_its_root_cause_names_who_died(tmp_path: Path) -> None:
    launcher = ["torchrun", "--standalone", "--nproc-per-node=2", "--no-python"]
    code, _, stderr = killed(tmp_path, launcher, victim=1)
    assert code == 1, "torchrun makes 1 of every code"
    assert header(tmp_path / "run")["exit_code"] == 4
    ours = stderr.index("nccl-bench: exit 4: rank 1 died (signal 9)\n")
    assert "rank 1 died in case" in stderr[:ours]
    root_cause = stderr[stderr.index("Root Cause (first observed failure)") :]
    assert "nccl-bench: exit 4: rank 1 died (signal 9)" in root_cause
    assert root_cause.rstrip().endswith("=" * 20)


@needs_hosts
@pytest.mark.parametrize("rendezvous", ["static", pytest.param("c10d", marks=pytest.mark.slow)])
def test_torchrun_on_two_hosts_is_one_world(tmp_path: Path, rendezvous: str) -> None:
    with hosts("h1", "h2") as made:
        started = []
        for number, host in enumerate(made.names):
            where = (f"--node-rank={number}", "--master-addr=h1", "--master-port=21500")
            if rendezvous == "c10d":
                where = ("--rdzv-backend=c10d", "--rdzv-endpoint=h1:21500", "--rdzv-id=7")
            argv = ("torchrun", "--nnodes=2", "--nproc-per-node=2", *where, "--no-python", *SWEEP)
            started.append(made.start(host, *argv, cwd=tmp_path))
        texts = [process.communicate(timeout=120) for process in started]
        assert [process.returncode for process in started] == [0, 0], texts
        assert not workers_of(made.pids())
    launcher, ranks = world(tmp_path)
    assert launcher == "torchrun"
    assert sorted(ranks) == [("h1", 0), ("h1", 1), ("h2", 0), ("h2", 1)]
    assert [local for _, local in ranks] == [0, 1, 0, 1], "ranks of a node follow one another; which node is first is the rendezvous's choice"
