"""An acceptance that was killed goes on: finished stages are kept, the one that was cut off is measured again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "nccl_bench", "accept", "-g", "2", "--backend", "gloo")
OPTIONS = ("--stages", "pairs,cluster", "--case-budget", "0.02", "-O", "run")


def again(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *argv], capture_output=True, text=True, check=False, cwd=folder, timeout=400)


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """A folder with a run that was killed in its second stage."""
    folder = tmp_path_factory.mktemp("resume")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RANK", "WORLD_SIZE"))}
    with (folder / "err").open("w") as err, subprocess.Popen([*COMMAND, *OPTIONS], stderr=err, stdout=err, cwd=folder, env=environ) as process:
        end = time.monotonic() + 300
        while time.monotonic() < end and process.poll() is None and "stage cluster: 1 host, 1 world" not in (folder / "err").read_text():
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert not (folder / "run" / "verdict.json").exists(), (folder / "err").read_text()
    return folder


def test_what_was_cut_off_is_judged_as_such_and_never_green(killed):
    done = again(killed, "--run", "run", "--json", "--html", "x.html", "--junit", "x.xml")
    rows = json.loads(done.stdout)["rows"]
    assert [row["status"] for row in rows if row["stage"] == "cluster" and row["criterion"] == "was tested"] == ["inconclusive"]
    assert done.returncode == 8


@pytest.mark.parametrize(
    "argv, said",
    [
        (("--resume", "run", "--stages", "node"), "--stages does not go with --resume"),
        (("--resume", "run", "-g", "3"), "had 2 ranks in that run and has 3 now"),
    ],
)
def test_a_resume_that_cannot_be_ends_with_the_reason_and_changes_nothing(killed, argv, said):
    before = {path.name: path.read_bytes() for path in (killed / "run").iterdir() if path.name != "run.json"}
    done = again(killed, *argv)
    assert done.returncode in (2, 5)
    assert said in done.stderr
    assert {path.name: path.read_bytes() for path in (killed / "run").iterdir() if path.name != "run.json"} == before


def test_a_dry_resume_says_what_other_criteria_would_have_measured(killed):
    (killed / "c.toml").write_text('[[require]]\ncollective = "broadcast"\nmin_busbw_GBps = 1\nfrom = "2M"\nto = "2M"\n')
    done = again(killed, "--resume", "run", "--dry-run", "--criteria", "c.toml")
    assert done.returncode == 0, done.stderr
    assert "not measured for the criteria in cluster: broadcast 2 MiB: the run was begun without them" in done.stderr
    assert "\nmeasured for the criteria" not in done.stdout


def test_finished_stages_are_kept_and_the_rest_is_measured_and_judged_over_all(killed):
    pairs = [line for line in (killed / "run" / "points.jsonl").read_text().splitlines() if json.loads(line)["stage"] == "pairs"]
    done = again(killed, "--resume", "run")
    assert done.returncode == 8, done.stderr
    assert "resumed: pairs kept, attempt 2" in done.stderr
    points = [json.loads(line) for line in (killed / "run" / "points.jsonl").read_text().splitlines()]
    found = Counter((point["stage"], point["attempt"]) for point in points)
    assert found["pairs", 1] == len(pairs)
    assert found["pairs", 2] == 0
    assert found["cluster", 2] > 0
    verdict = json.loads((killed / "run" / "verdict.json").read_text())
    assert not [row for row in verdict["rows"] if row["criterion"] == "was tested" and row["status"] == "inconclusive"]
    assert {row["stage"] for row in verdict["rows"]} >= {"pairs", "cluster"}
    last = again(killed, "--resume", "run")
    assert (last.returncode, "nothing is left to resume" in last.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_stage_ends_the_acceptance_and_leaves_the_stage_open(tmp_path, number):
    options = ("--stages", "node", "--case-budget", "0.5", "-O", "run")
    with (tmp_path / "err").open("w") as err, subprocess.Popen([*COMMAND, *options], stderr=err, stdout=err, cwd=tmp_path) as process:
        end = time.monotonic() + 200
        while time.monotonic() < end and process.poll() is None and not _workers_of(process.pid):
            time.sleep(0.05)
        process.send_signal(number)
        code = process.wait(200)

    said = (tmp_path / "err").read_text()
    assert code == 128 + number, said
    assert said.rstrip().splitlines()[-1].startswith(f"nccl-bench: exit {128 + number}: ")
    assert "--resume run" in said
    assert json.loads((tmp_path / "run" / "accept.json").read_text())["finished"] == {}
    assert again(tmp_path, "--run", "run").returncode == 8


def _workers_of(pid: int) -> list[str]:
    """Measuring processes below a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if "nccl_bench.measure.worker" in words and (parent == pid or f"\0{pid}\0" in words):
            found.append(words)
    return found
