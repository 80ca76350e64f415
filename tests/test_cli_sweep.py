"""`nccl-bench sweep` as a user runs it: real processes, real records, real faults."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
QUICK = ("-b", "1K", "-e", "16K", "--budget", "0.03", "--no-progress")


def command(*args):
    return [sys.executable, "-m", "nccl_bench", "sweep", *map(str, args)]


def run(tmp_path, *args, env=None, timeout=120, **more):
    """The finished process of one sweep in an empty folder."""
    return subprocess.run(
        command(*args), capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **(env or {})}, timeout=timeout, check=False, **more
    )


def points_of(path):
    return [json.loads(line) for line in (path / "points.jsonl").read_text().splitlines()]


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


def workers_of(parent):
    """Process ids of the workers that a supervisor started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, ppid = path.parent.name, path.read_text().rsplit(")", 1)[1].split()[1]
            line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(ppid) == parent and b"nccl_bench.measure.worker" in line:
            found.append(int(pid))
    return sorted(found)


def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    pytest.fail("it did not happen in time")


class Running:
    """A sweep under way, to be broken."""

    def __init__(self, tmp_path, *args, env=None):
        self.out = tmp_path / "run"
        self.process = subprocess.Popen(
            command("all_reduce", "-O", self.out, "-b", "1K", "-e", "1K", "--duration", "10m", "--budget", "0.05", "--no-progress", *args),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, **(env or {})},
        )  # fmt: skip

    def measuring(self, n_points=2):
        """Wait for points on disk; the workers' process ids."""
        wait_for(lambda: self.process.poll() is not None or ((self.out / "points.jsonl").exists() and len(points_of(self.out)) >= n_points))
        assert self.process.poll() is None, self.process.communicate()[1]
        return workers_of(self.process.pid)

    def finish(self, timeout=40):
        stdout, stderr = self.process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, stdout, stderr)


@pytest.fixture
def running(tmp_path):
    started = []

    def start(*args, **more):
        started.append(Running(tmp_path, *args, **more))
        return started[-1]

    yield start
    for sweep in started:
        if sweep.process.poll() is None:
            for pid in workers_of(sweep.process.pid):
                os.kill(pid, signal.SIGCONT)
            sweep.process.kill()
        if not sweep.process.stdout.closed:
            sweep.process.communicate()


# ---- what a good run leaves ----

KEYS = """
    collective dtype op root nbytes requested_nbytes count n_ranks group placement shift clock clock_reason regime variant registered
    over_ranks kind stage pass pair iters batches series series_us ops_per_batch sample time_us mean_over_ranks_us window_us lateness_us
    algbw_GBps busbw_GBps n_wrong stop status reason attempt algorithm protocol channels sm_mhz_min throttle started_at
"""
"""CONTRACT.md section 3."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of the default collectives in an empty folder, with a secret in the environment."""
    folder = tmp_path_factory.mktemp("first")
    secrets = {"HF_TOKEN": "hf_verysecretvalue", "AWS_SECRET_ACCESS_KEY": "aws-verysecretvalue", "NCCL_DEBUG_TOKEN": "verysecretvalue"}
    return folder, run(folder, *QUICK, "--keep-batches", "--keep-ranks", env=secrets)


def test_a_first_run_needs_no_option_and_says_that_it_is_not_nccl(finished):
    _, done = finished
    lines = done.stdout.strip().splitlines()

    assert done.returncode == 0, done.stderr
    assert "NOT NCCL" in lines[0]
    assert "NOT NCCL" in lines[-1]
    for name in ("all_reduce", "all_gather", "reduce_scatter", "sendrecv"):
        assert any(line.startswith(f"{name} · 2 ranks, 1 node") for line in lines)
        assert any(line.startswith(f"{name} reaches") for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_the_run_directory_holds_header_points_and_batches(finished):
    folder, _ = finished
    latest = folder / "results" / "latest"
    header = json.loads((latest / "run.json").read_text())
    points = points_of(latest)

    assert latest.is_symlink()
    assert re.fullmatch(r"\d{8}-\d{6}-.+-2r-gloo", latest.readlink().name)
    assert (header["schema"], header["backend"], header["not_nccl"], header["exit_code"], header["n_ranks"]) == (1, "gloo", True, 0, 2)
    assert {rank["rank"] for rank in header["ranks"]} == {0, 1}
    assert header["setup"].keys() >= {"meet_s", "torch_import_s", "communicator_s", "first_collective_s"}
    assert header["versions"]["torch"]
    assert {p["collective"] for p in points} == {"all_reduce", "all_gather", "reduce_scatter", "sendrecv"}
    assert all(p["status"] == "ok" and p["n_wrong"] == 0 and p["over_ranks"] == "max" for p in points)
    batches = [json.loads(line) for line in (latest / "batches.jsonl").read_text().splitlines()]
    assert [len(row["batches_us"]) for row in batches] == [p["batches"] for p in points]


def test_points_carry_the_keys_of_the_contract(finished):
    folder, _ = finished
    keys = set(KEYS.split())

    for point in points_of(folder / "results" / "latest"):
        assert keys <= point.keys()
        assert point["time_us"].keys() == {"median", "mean", "min", "max", "p95", "p99", "ci_low", "ci_high"}
        assert point["group"].keys() == {"axis", "size", "n_groups", "slowest", "spread_frac"}


def test_isolated_points_say_who_was_late(finished):
    folder, _ = finished
    late = [p["lateness_us"] for p in points_of(folder / "results" / "latest") if p["regime"] == "isolated"]

    assert late
    for row in late:
        assert len(row["ranks"]) == len(row["worst"]) == 2
        assert len(row["nodes"]) == 1
        assert min(row["ranks"]) == 0


def test_no_secret_reaches_a_file_or_the_screen(finished):
    folder, done = finished
    written = "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())

    assert "verysecretvalue" not in written + done.stdout + done.stderr


def test_json_is_one_point_a_line_and_nothing_else(tmp_path):
    done = run(tmp_path, "broadcast", *QUICK, "--json")

    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert points == points_of(tmp_path / "results" / "latest")
    assert "NOT NCCL" in done.stderr


def test_nccl_tests_format_prints_its_tables(tmp_path):
    done = run(tmp_path, "all_reduce", "all_gather", *QUICK, "--format", "nccl-tests")
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#") and line.strip()]

    assert done.returncode == 0
    assert all(line.startswith("#") for line in (done.stdout.splitlines()[0], done.stdout.strip().splitlines()[-1]))
    assert [row[0] for row in rows] == ["1024", "4096", "16384"] * 2
    assert {len(row) for row in rows} == {13}
    assert done.stdout.count("# Out of bounds values : 0 OK") == 2
    assert done.stdout.count("# Avg bus bandwidth") == 2


def test_options_come_from_a_toml_file_and_the_command_line_wins(tmp_path):
    config = tmp_path / "sweep.toml"
    config.write_text('sizes = ["1K", 4096]\nbudget = 0.02\ncollectives = "broadcast"\nkeep-batches = true\ndtype = "half"\nprogress = false\n')

    done = run(tmp_path, "--config", config, "--dtype", "bfloat16", "-O", tmp_path / "r")

    assert done.returncode == 0, done.stderr
    streaming = [p for p in points_of(tmp_path / "r") if p["regime"] == "streaming"]
    assert [(p["collective"], p["dtype"], p["nbytes"]) for p in streaming] == [("broadcast", "bfloat16", 1024), ("broadcast", "bfloat16", 4096)]
    assert (tmp_path / "r" / "batches.jsonl").exists()


def test_a_dry_run_lists_cases_time_and_memory_and_starts_nothing(tmp_path):
    done = run(tmp_path, "all", "-g", "4", "--dry-run", "--backend", "gloo")

    assert done.returncode == 0
    assert "4 ranks on 1 node, gloo, host clock" in done.stdout
    assert re.search(r"pingpong\s+8 cases, 1 KiB to 16 MiB", done.stdout)
    assert "measuring: at most" in done.stdout
    assert "not counted: starting and connecting ranks" in done.stdout
    assert ("ranks take turns" in done.stdout) is ((os.cpu_count() or 1) < 4)
    assert "buffers of 32 MiB a rank" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-b", "1K", "-e", "1GB"), "note: 1GB is 1 GiB: sizes are powers of 1024"),
        (("-b", "1K", "-e", "1.5M"), "note: -e 1.5M is not measured: the steps from the smallest size end at 1 MiB"),
        (("-b", "1K", "-e", "1GiB"), ""),
        (("--sizes", "1K,1.5M"), ""),
    ],
)
def test_sizes_that_are_other_than_they_read_are_said(tmp_path, args, said):
    done = run(tmp_path, "--dry-run", "--backend", "gloo", *args)

    assert done.returncode == 0
    assert said in done.stderr if said else done.stderr == ""


# ---- what is refused ----


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--clock", "graph"), "--clock host"),
        (("--clock", "wall"), "no clock"),
        (("-R", "user"), "CUDA and NCCL"),
        (("all_foo",), "all_reduce"),
        (("-b", "8", "--sizes", "8"), "exclude"),
        (("-d", "float33"), "bfloat16"),
        (("-e", "lots"), "not a size"),
        (("broadcast", "-r", "2", "-b", "64"), "ranks are 0 to 1"),
        (("-t", "2"), "one process a GPU"),
        (("--json", "--format", "nccl-tests"), "exclude"),
        (("-n", "10", "--precision", "0.01"), "-n and --precision exclude each other"),
        (("-n", "10", "--budget", "1"), "-n and --budget exclude each other"),
        (("--check", "-c", "0"), "--check and -c 0 contradict each other"),
        (("--no-check", "-c", "1"), "--no-check and -c 1 contradict each other"),
        (("-O", "x", "--name", "y"), "exclude"),
        (("--config", "missing.toml"), "missing.toml"),
    ],
)
def test_a_usage_error_says_what_and_what_to_do_and_exits_2(tmp_path, args, word):
    done = run(tmp_path, *args)

    assert done.returncode == 2
    assert word in done.stderr
    assert last_line(done).startswith("nccl-bench: exit 2: ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("points.jsonl")) or points_of(next(tmp_path.rglob("points.jsonl")).parent) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [("bad = 1\n", "bad"), ("iters = 'many'\n", "iters"), ("wide = 1\n", "true or false"), ("regime = 'both'\n", "streaming"), ("x = [", "not TOML")],
)
def test_a_bad_config_names_file_and_key(tmp_path, text, word):
    (tmp_path / "c.toml").write_text(text)

    done = run(tmp_path, "--config", "c.toml")

    assert done.returncode == 2
    assert "c.toml" in done.stderr
    assert word in done.stderr


def test_a_folder_that_holds_a_run_is_never_overwritten(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text("{}")

    done = run(tmp_path, *QUICK, "-O", "r")

    assert done.returncode == 2
    assert "holds a run already" in done.stderr
    assert (tmp_path / "r" / "run.json").read_text() == "{}"


def test_an_output_that_cannot_be_written_ends_2_before_measuring(tmp_path):
    (tmp_path / "file").write_text("")

    done = run(tmp_path, *QUICK, "-O", "file/run")

    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "reaches" not in done.stdout


def test_a_gpu_run_without_a_gpu_is_a_launch_error(tmp_path):
    done = run(tmp_path, *QUICK, "--backend", "nccl")

    assert done.returncode == 3
    assert last_line(done).startswith("nccl-bench: exit 3: ")


def test_a_size_that_does_not_fit_is_skipped_and_the_sweep_goes_on(tmp_path):
    limit = 9 << 30

    done = run(
        tmp_path, "all_reduce", "--sizes", "4K,20G,8K", "--budget", "0.03", "-O", "r", "--no-progress",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    by_size = {p["requested_nbytes"]: p for p in points_of(tmp_path / "r") if p["regime"] == "streaming"}
    assert {size: p["status"] for size, p in by_size.items()} == {4096: "ok", 20 << 30: "skipped", 8192: "ok"}
    assert "does not fit" in by_size[20 << 30]["reason"]


# ---- what breaks ----


def test_wrong_data_ends_7_and_names_rank_host_element_and_values(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from ranks import damaged\n"
        "from nccl_bench.measure.ops import prepare\n"
        "from nccl_bench.measure.worker import main\n"
        "sys.exit(main(damaged(prepare, {'rank': 1, 'slot': 0, 'element': 3})))\n"
    )
    program = (
        "import sys, nccl_bench.flows.sweep as flow\n"
        f"flow.sweep.__kwdefaults__['worker'] = (sys.executable, {str(worker)!r})\n"
        "from nccl_bench.cli.main import run\n"
        "sys.exit(run(['sweep', 'all_gather', '-b', '1K', '-e', '4K', '--budget', '0.03', '-O', 'r', '--no-progress']))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)

    assert done.returncode == 7, done.stderr
    point = points_of(tmp_path / "r")[0]
    assert (point["status"], point["n_wrong"]) == ("failed", 1)
    assert re.search(r"rank 1 \(host \S+\), slot 0, part of rank \d, element 3: expected \d+, got \d+", point["reason"])
    assert "wrong data" in last_line(done)
    assert json.loads((tmp_path / "r" / "run.json").read_text())["exit_code"] == 7


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named_and_points_are_kept(running, victim):
    sweep = running()
    workers = sweep.measuring()
    os.kill(workers[victim], signal.SIGKILL)

    done = sweep.finish()

    assert done.returncode == 4
    assert re.search(rf"exit 4: .*rank {victim}\b", last_line(done))
    assert "signal 9" in done.stderr
    assert re.search(r"kept\s+\d+ cases in ", done.stderr)
    header = json.loads((sweep.out / "run.json").read_text())
    assert (header["exit_code"], header["hang"]["culprits"][0]["rank"]) == (4, victim)
    assert len(points_of(sweep.out)) >= 2
    assert not any(map(alive, workers))


def test_a_stopped_worker_is_named_within_the_timeout(running):
    sweep = running("-T", "3")
    workers = sweep.measuring()
    os.kill(workers[1], signal.SIGSTOP)

    done = sweep.finish()  # a hang would be one: the sweep has no end of its own

    assert done.returncode == 4
    assert "rank 1" in last_line(done)
    assert "stopped" in done.stderr
    assert not any(map(alive, workers))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_what_was_measured(running, number, code):
    sweep = running()
    workers = sweep.measuring()
    sweep.process.send_signal(number)

    done = sweep.finish()

    assert done.returncode == code
    assert last_line(done).startswith(f"nccl-bench: exit {code}: ")
    assert len(points_of(sweep.out)) >= 2
    assert json.loads((sweep.out / "run.json").read_text())["exit_code"] == code
    assert not any(map(alive, workers))


def test_no_worker_outlives_a_killed_supervisor(running):
    sweep = running()
    workers = sweep.measuring()
    sweep.process.kill()

    wait_for(lambda: not any(map(alive, workers)), 15)

    assert len(points_of(sweep.out)) >= 2


def test_a_worker_dead_before_the_first_case_is_a_launch_error(tmp_path):
    program = (
        "import sys, nccl_bench.flows.sweep as flow\n"
        "flow.sweep.__kwdefaults__['worker'] = (sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)')\n"
        "from nccl_bench.cli.main import run\n"
        "sys.exit(run(['sweep', '-O', 'r']))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)

    assert done.returncode == 3
    assert "rank" in last_line(done)


def test_an_uncaught_bug_in_a_worker_ends_70(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys\nfrom nccl_bench.measure.worker import main\n"
        "def broken(case, world, n_slots, pair):\n    raise ZeroDivisionError('a bug of ours')\n"
        "sys.exit(main(broken))\n"
    )
    program = (
        "import sys, nccl_bench.flows.sweep as flow\n"
        f"flow.sweep.__kwdefaults__['worker'] = (sys.executable, {str(worker)!r})\n"
        "from nccl_bench.cli.main import run\n"
        "sys.exit(run(['sweep', '-O', 'r']))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)

    assert done.returncode == 70
    assert "ZeroDivisionError: a bug of ours" in done.stderr


def test_what_a_broken_worker_wrote_last_is_kept_beside_the_points(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys\nfrom nccl_bench.measure.worker import main\n"
        "def broken(case, world, n_slots, pair):\n    print('a last word of a library', flush=True)\n    raise ZeroDivisionError('a bug of ours')\n"
        "sys.exit(main(broken))\n"
    )
    program = (
        "import sys, nccl_bench.flows.sweep as flow\n"
        f"flow.sweep.__kwdefaults__['worker'] = (sys.executable, {str(worker)!r})\n"
        "from nccl_bench.cli.main import run\n"
        "sys.exit(run(['sweep', '-O', 'r']))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)

    assert done.returncode == 70
    assert "a last word of a library" not in done.stdout
    assert "a last word of a library" in (tmp_path / "r" / "stderr" / "rank-0.txt").read_text()
