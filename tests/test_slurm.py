"""The batch scripts on a real Slurm whose nodes are namespaces, submitted as they are; and the command that fills them in."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import ROOT, Job, Slurm, header, hosts, needs_slurm, points, remove_abandoned, slurm, workers_of

SCRIPTS = ROOT / "slurm"
TEMPLATES = ROOT / "nccl_bench" / "cli" / "sbatch"
KINDS = tuple(sorted(path.stem for path in TEMPLATES.glob("*.sbatch")))
NAMES = ("h1", "h2", "r1n01", "z-gpu-07")
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2")
ONE_TASK = ("--ntasks-per-node=1", "--gpus-per-node=1")
SHORT = ("all_reduce", "--backend", "gloo", "-b", "1K", "-e", "16K", "--budget", "0.05")
LONG = ("all_reduce", "--backend", "gloo", "-b", "1K", "-e", "1K", "--budget", "0.05", "--duration", "10m")


def printed(*options: str) -> subprocess.CompletedProcess[str]:
    """nccl-bench slurm with these options."""
    return subprocess.run([sys.executable, "-m", "nccl_bench", "slurm", *options], capture_output=True, text=True, check=False)


# ---- the command


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_prints_the_shipped_script_and_packages_carry_the_same_one(kind: str) -> None:
    shipped = (SCRIPTS / f"{kind}.sbatch").read_text()
    assert shipped == (TEMPLATES / f"{kind}.sbatch").read_text()
    assert printed("--kind", kind).stdout == shipped


def test_there_are_scripts_for_sweep_and_scaling_for_containers_and_torchrun() -> None:
    assert {"sweep", "scaling", "sweep-container", "sweep-torchrun"} <= set(KINDS)
    assert {path.stem for path in SCRIPTS.glob("*.sbatch")} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_script_is_strict_takes_whole_nodes_gives_a_minute_and_hands_options_on(kind: str) -> None:
    text = (SCRIPTS / f"{kind}.sbatch").read_text()
    head, body = text.split("set -euo pipefail\n")
    assert {"#SBATCH --exclusive", "#SBATCH --signal=TERM@60", "##SBATCH --partition=", "##SBATCH --account="} <= set(head.splitlines())
    assert not re.search(r"^#SBATCH --(partition|account|qos|constraint|nodelist)", head, re.MULTILINE)
    assert "export" not in text
    assert re.search(r'nccl-bench (sweep|plan|accept) "(\$@|\$\{@:3\})"', body)
    for command in re.split(r"\n(?=\S| *srun )", body):
        if command.lstrip().startswith("srun ") and "nccl-bench sweep" in command:
            assert '--cpus-per-task="${SLURM_CPUS_PER_TASK:-' in command


@pytest.mark.parametrize(
    "limit, right",
    [("90", True), ("90:30", True), ("05:00:00", True), ("1-12", True), ("1-12:30:00", True), ("infinite", True), ("5hours", False), ("5h", False)],
)
def test_a_time_limit_that_sbatch_would_not_read_is_refused(limit: str, right: bool) -> None:
    done = printed("--time", limit)
    assert done.returncode == (0 if right else 2)
    assert (f"#SBATCH --time={limit}" in done.stdout) if right else ("no time limit of sbatch" in done.stderr)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_with_every_option_filled_in_is_still_one_that_bash_reads(kind: str) -> None:
    job = ("--nodes", "32", "--gpus-per-node", "4", "--cpus-per-task", "14", "--partition", "gpu", "--account", "a", "--time", "4:00:00")
    where = ("--nodelist", "gpu[001-004]", "--exclude", "gpu003", "--reservation", "r", "--mpi", "pmix")
    how = ("--module", "cuda", "--module", "nccl/2.28", "--venv", "/opt/it's mine")
    container = ("--container-image", "nvcr.io#nvidia/pytorch:25.06-py3", "--container-mounts", "/a b:/a")
    done = printed("--kind", kind, *job, *where, *(container if kind in ("sweep-container", "scaling") else how))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    options = [line for line in lines if line.startswith("#SBATCH ")]
    for line in ("nodes=32", "gpus-per-node=4", "cpus-per-task=14", "partition=gpu", "account=a", "time=4:00:00", "nodelist=gpu[001-004]"):
        assert options.count(f"#SBATCH --{line}") == 1
    assert f"#SBATCH --ntasks-per-node={1 if kind == 'sweep-torchrun' else 4}" in options
    assert len({line.split("=")[0] for line in options}) == len(options), "one line an option"
    assert "--mpi=pmix" in done.stdout
    shown = subprocess.run(
        ["bash", "-c", done.stdout.split("set -euo pipefail")[0] + 'printf "%s|" "${venv:-}" "${modules:-}" "${image:-}" "${srun_options[@]}"'],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    if kind in ("sweep-container", "scaling"):
        assert "nvcr.io#nvidia/pytorch:25.06-py3" in shown
    else:
        assert shown.startswith("/opt/it's mine|cuda nccl/2.28|")


def test_a_container_image_makes_a_sweep_one_in_a_container() -> None:
    done = printed("--container-image", "pytorch.sqsh")
    assert "image=pytorch.sqsh" in done.stdout
    assert '--container-image="$image"' in done.stdout


@pytest.mark.parametrize(
    "options, said",
    [
        (("--kind", "acceptance"), "there are:"),
        (("--partition", "a b"), "--partition 'a b'"),
        (("--account", 'x"; rm -rf /'), "not a value for an #SBATCH line"),
        (("--venv", "a\nb"), "not on one line"),
        (("--container-mounts", "/a:/a"), "--container-image"),
        (("--container-image", "x", "--venv", "/v"), "--venv /v: not in a sweep-container script"),
        (("--nodes", "0"), "--nodes"),
    ],
)
def test_what_cannot_be_filled_in_ends_2(options: tuple[str, ...], said: str) -> None:
    done = printed(*options)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("nccl-bench: exit 2: ")


# ---- a real Slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with hosts(*NAMES) as made, slurm(made) as running:
        yield running
    assert not made.pids()


def submit(cluster: Slurm, folder: Path, kind: str, *options: str, sbatch: tuple[str, ...] = TWO_BY_TWO, env: dict[str, str] | None = None) -> Job:
    """The shipped script as it is, with options of sbatch and of nccl-bench."""
    return cluster.submit(folder, *sbatch, str(SCRIPTS / f"{kind}.sbatch"), *options, env=env)


def ranks_of(run: Path) -> list[tuple[str, int]]:
    """(host, local rank) by rank."""
    return [(rank["host"], rank["local_rank"]) for rank in header(run)["ranks"]]


@needs_slurm
def test_from_sbatch_to_points_on_disk_on_two_nodes_of_two_tasks(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", *SHORT)
    state = job.wait()
    assert state["JobState"] == "COMPLETED", job.output()
    (run,) = job.runs()
    assert run.name.endswith(f"-h1-4r-gloo-{job.number}")
    assert {point["nbytes"] for point in points(run)} == {1024, 4096, 16384}
    head = header(run)
    assert (head["launcher"], head["job"], head["n_ranks"], head["n_nodes"]) == ("slurm", job.number, 4, 2)
    assert ranks_of(run) == [("h1", 0), ("h1", 1), ("h2", 0), ("h2", 1)]
    assert (tmp_path / "results" / "latest").resolve() == run
    assert "all_reduce" in job.output()


@needs_slurm
@pytest.mark.parametrize("form, hosts_of", [("z-gpu-07,r1n01", ["r1n01", "z-gpu-07"]), ("h[1-2],z-gpu-07", ["h1", "h2", "z-gpu-07"])])
def test_a_node_list_of_any_form_meets_at_its_first_host(cluster: Slurm, tmp_path: Path, form: str, hosts_of: list[str]) -> None:
    job = submit(cluster, tmp_path, "sweep", *SHORT, sbatch=(f"--nodes={len(hosts_of)}", *ONE_TASK, f"--nodelist={form}"))
    assert job.wait()["JobState"] == "COMPLETED", job.output()
    (run,) = job.runs()
    assert [host for host, _ in ranks_of(run)] == hosts_of


@needs_slurm
def test_ranks_that_are_dealt_out_in_turn_get_the_right_local_ranks(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", *SHORT, sbatch=(*TWO_BY_TWO, "--distribution=cyclic"))
    assert job.wait()["JobState"] == "COMPLETED", job.output()
    (run,) = job.runs()
    assert ranks_of(run) == [("h1", 0), ("h2", 0), ("h1", 1), ("h2", 1)]


@needs_slurm
def test_scaling_measures_one_two_and_three_nodes_of_one_job_and_reports_them_together(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "scaling", *SHORT, sbatch=("--nodes=3", *ONE_TASK))
    assert job.wait()["JobState"] == "COMPLETED", job.output()
    folder = tmp_path / "results" / f"scaling-{job.number}"
    assert {run.name: header(run)["n_nodes"] for run in job.runs()} == {"1n": 1, "2n": 2, "3n": 3}
    assert {run.parent for run in job.runs()} == {folder}
    has_report = subprocess.run([sys.executable, "-m", "nccl_bench", "report", "--help"], capture_output=True, check=False).returncode == 0
    assert (folder / "report").is_dir() == has_report


@needs_slurm
def test_a_task_a_node_with_torchrun_in_it_is_one_world(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep-torchrun", *SHORT, sbatch=("--nodes=2", "--gpus-per-node=2"))
    assert job.wait()["JobState"] == "COMPLETED", job.output()
    (run,) = job.runs()
    assert (header(run)["launcher"], header(run)["n_ranks"], header(run)["n_nodes"]) == ("torchrun", 4, 2)
    assert ranks_of(run) == [("h1", 0), ("h1", 1), ("h2", 0), ("h2", 1)]


PYXIS = {"--container-image", "--container-name", "--container-mounts", "--container-workdir", "--container-writable"}
"""Options of pyxis that the script may use (its args.c); --container-writable takes no value."""


@needs_slurm
def test_the_container_script_makes_one_container_a_node_and_runs_the_sweep_in_it(cluster: Slurm, tmp_path: Path) -> None:
    """pyxis is a plug-in of srun. Here a srun stands before the real one that keeps pyxis' options and hands the rest on."""
    folder = tmp_path / "bin"
    folder.mkdir()
    real, seen = shutil.which("srun"), tmp_path / "seen.jsonl"
    (folder / "srun").write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "if sys.argv[1:] == ['--help']:\n    sys.exit(print('      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'))\n"
        "kept = [word for word in sys.argv[1:] if word.startswith('--container-')]\n"
        f"open({str(seen)!r}, 'a').write(json.dumps(kept) + '\\n')\n"
        f"os.execv({real!r}, ['srun', *[word for word in sys.argv[1:] if word not in kept]])\n"
    )
    (folder / "srun").chmod(0o755)
    path = f"{folder}:{cluster.hosts.environ['PATH']}"
    image = {"IMAGE": "nvcr.io#nvidia/pytorch:25.06-py3"}
    job = submit(cluster, tmp_path, "sweep-container", *SHORT, sbatch=("--nodes=2", *ONE_TASK), env={"PATH": path, **image})
    assert job.wait()["JobState"] == "COMPLETED", job.output()
    assert len(job.runs()) == 1
    first, second = (json.loads(line) for line in seen.read_text().splitlines())
    options = [{name: value for name, _, value in (word.partition("=") for word in words)} for words in (first, second)]
    assert all(set(found) <= PYXIS for found in options)
    assert options[0]["--container-image"] == image["IMAGE"]
    assert "--container-image" not in options[1], "the second step takes the container that the first one made"
    assert options[0]["--container-name"] == options[1]["--container-name"]
    assert options[1]["--container-mounts"] == f"{tmp_path}:{tmp_path}"
    without = submit(cluster, tmp_path, "sweep-container", *SHORT, env={"PATH": path})
    assert without.wait()["ExitCode"] == "2:0"
    assert "no image is named" in without.output()
    bare = submit(cluster, tmp_path, "sweep-container", *SHORT, env=image)
    assert bare.wait()["ExitCode"] == "2:0"
    assert "has no --container-image: Slurm's plug-in pyxis (with enroot) is not installed here" in bare.output()


@needs_slurm
def test_a_usage_error_of_the_sweep_is_the_jobs_exit_code(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", "all_reduce", "--backend", "gloo", "--clock", "graph")
    assert job.wait()["ExitCode"] == "2:0"
    assert "nccl-bench: exit 2: " in job.output()


@needs_slurm
def test_tasks_without_gpus_end_3_before_anything_is_measured(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", "all_reduce")
    assert job.wait()["ExitCode"] == "3:0"
    assert "no rank sees a GPU" in job.output()
    assert not job.runs()


@needs_slurm
def test_one_rank_killed_is_named_and_its_code_is_the_jobs(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", *LONG)
    job.until("points.jsonl")
    victim = next(pid for pid in workers_of(cluster.hosts.pids()) if b"RANK=3\0" in b"\0" + (Path("/proc") / str(pid) / "environ").read_bytes())
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(victim)], check=True)
    assert job.wait()["ExitCode"] == "4:0"
    assert "rank 3 (h2" in job.output()
    assert "nccl-bench: exit 4: rank 3 died (signal 9)" in job.output()
    (run,) = job.runs()
    assert points(run)
    assert header(run)["exit_code"] == 4


@needs_slurm
def test_scancel_keeps_what_was_measured(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", *LONG)
    job.until("points.jsonl")
    cluster.run("scancel", job.number)
    assert job.wait()["JobState"] == "CANCELLED"
    (run,) = job.runs()
    assert points(run)
    assert (header(run)["exit_code"], header(run)["why"]) == (143, "interrupted by SIGTERM")
    assert not workers_of(cluster.hosts.pids())


@needs_slurm
def test_a_requeued_job_starts_again_beside_what_it_had_measured(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", *LONG)
    job.until("points.jsonl")
    cluster.run("scontrol", "requeue", job.number)
    first = job.runs()[0]
    cluster.run("scontrol", "update", f"JobId={job.number}", "StartTime=now")
    end_of_first = lambda: header(first)["exit_code"]  # noqa: E731
    for _ in range(300):
        if len(job.runs()) == 2 and (job.runs()[1] / "points.jsonl").stat().st_size:
            break
        cluster.run("scontrol", "update", f"JobId={job.number}", "StartTime=now")
        subprocess.run(["sleep", "0.3"], check=True)
    assert len(job.runs()) == 2, (job.state(), job.output())
    assert end_of_first() == 143
    assert points(first)
    cluster.run("scancel", job.number)
    job.wait()
    assert points(job.runs()[1])
    assert job.state()["Restarts"] == "1"


@needs_slurm
def test_a_minute_before_its_time_limit_a_job_ends_by_itself_and_keeps_what_it_has(cluster: Slurm, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, "sweep", *LONG, sbatch=(*TWO_BY_TWO, "--time=2"))  # TERM after one minute: ranks have met by then
    state = job.wait(240)
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "143:0"), job.output()
    (run,) = job.runs()
    assert points(run)
    assert header(run)["exit_code"] == 143


@needs_slurm
def test_in_the_batch_script_without_srun_it_says_so_and_ends_3(cluster: Slurm, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, *TWO_BY_TWO, "--output=wrapped-%j.out", "--wrap=nccl-bench sweep --backend gloo")
    assert job.wait(30)["ExitCode"] == "3:0"
    assert "start it with srun: srun nccl-bench" in job.output()


@needs_slurm
def test_nothing_of_a_cluster_outlives_its_test() -> None:
    with hosts("h1") as made, slurm(made) as running:
        assert running.run("srun", "-N1", "hostname").stdout.strip() == "h1"
        assert made.pids()
    assert not made.pids()
    assert not running.conf.parent.exists()


ABANDON = "import os, sys\nfrom testbed import hosts, slurm\nwith hosts('h1') as made, slurm(made) as up:\n print(up.conf, flush=True)\n os._exit(1)"


@needs_slurm
def test_what_a_killed_session_left_is_removed_by_the_next_one() -> None:
    done = subprocess.run([sys.executable, "-c", ABANDON], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    conf = Path(done.stdout.strip())
    assert conf.exists(), done.stderr
    remove_abandoned()
    assert not conf.parent.exists()
    assert conf.parent.name.split("x")[0] not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
