"""accept, pairs and doctor from the front door, on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import junitparser
import pytest
from field_cases import FILES, needs_cases
from host_samples import healthy


def run(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nccl_bench", *argv], capture_output=True, text=True, check=False, cwd=cwd, timeout=240)


@pytest.fixture(scope="module")
def accepted(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("accept")
    options = ("--stages", "doctor,pairs,cluster", "--case-budget", "0.02", "--prometheus", str(folder / "x.prom"), "--drain", "scontrol")
    return folder / "run", run("accept", "-g", "3", "--backend", "gloo", "-O", str(folder / "run"), *options)


def test_a_rehearsal_on_gloo_ends_8_says_so_first_and_last_and_keeps_everything(accepted):
    path, done = accepted
    assert done.returncode == 8, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("NOT NCCL")
    assert lines[-1].startswith("NOT NCCL")
    assert lines[2].startswith("  a rehearsal (not NCCL): "), "the verdict's sentence stands on the page, also where it ends 0"
    assert done.stderr.splitlines()[-1].startswith("nccl-bench: exit 8: a rehearsal (not NCCL)")
    assert "thresholds:" in done.stderr
    verdict = json.loads((path / "verdict.json").read_text())
    assert set(verdict) >= {"status", "exit_code", "rows", "suspects", "excluded", "drain"}
    assert set(verdict["rows"][0]) == {"criterion", "stage", "status", "measured", "required", "unit", "reason", "source", "hosts"}
    assert all(row["source"] for row in verdict["rows"])
    assert junitparser.JUnitXml.fromfile(str(path / "junit.xml")).tests == len(verdict["rows"])
    page = (path / "certificate.html").read_text()
    assert "INCONCLUSIVE: not accepted" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "nccl_bench_accept_exit_code 8" in (path.parent / "x.prom").read_text()


def test_a_recorded_run_is_judged_again_to_the_same_rows_and_by_other_criteria_to_others(accepted, tmp_path):
    path, _ = accepted
    again = run("accept", "--run", str(path), "--json", "--junit", str(tmp_path / "j.xml"), "--html", str(tmp_path / "c.html"))
    assert again.returncode == 8
    assert json.loads(again.stdout)["rows"] == json.loads((path / "verdict.json").read_text())["rows"]
    (tmp_path / "c.toml").write_text('[[require]]\ncollective = "all_reduce"\nmin_busbw_GBps = 9e5\nsource = "annex B"\n')
    other = run(
        "accept",
        "--run",
        str(path),
        "--json",
        "--criteria",
        str(tmp_path / "c.toml"),
        "--junit",
        str(tmp_path / "j.xml"),
        "--html",
        str(tmp_path / "c.html"),
    )
    row = next(row for row in json.loads(other.stdout)["rows"] if row["source"] == "annex B")
    assert (row["status"], row["required"]) == ("fail", 9e5)
    assert other.returncode == 8


def test_what_the_criteria_judge_is_said_before_the_start_measured_and_held_against_them(tmp_path):
    (tmp_path / "c.toml").write_text(
        '[bandwidth.shares]\nbroadcast = 0.9\n[[require]]\ncollective = "all_reduce"\nmin_busbw_GBps = 0.001\nfrom = "2M"\nto = "4M"\n'
        '[[require]]\ncollective = "sendrecv"\nmin_busbw_GBps = 9e5\nsource = "annex B"\n'
    )
    options = ("-g", "2", "--backend", "gloo", "--stages", "cluster", "--case-budget", "0.02", "--criteria", "c.toml")
    dry = run("accept", *options, "--dry-run", cwd=tmp_path)
    words = "measured for the criteria in cluster: all_reduce 2 MiB, 4 MiB; sendrecv; broadcast"
    assert words in dry.stdout, dry.stdout + dry.stderr
    done = run("accept", *options, "-O", "run", "--json", cwd=tmp_path)
    assert done.returncode == 8, done.stderr
    assert words in done.stderr
    points = [json.loads(line) for line in (tmp_path / "run" / "points.jsonl").read_text().splitlines()]
    sizes = {name: {one["requested_nbytes"] for one in points if one["collective"] == name} for name in ("all_reduce", "broadcast", "all_gather")}
    assert sizes == {"all_reduce": {1024, 1 << 20, 2 << 20, 4 << 20}, "broadcast": {1024, 1 << 20}, "all_gather": {1024, 1 << 20}}
    rows = {row["criterion"]: row for row in json.loads(done.stdout)["rows"]}
    ranged = rows["all_reduce as required of 2 MiB to 4 MiB (largest)"]
    assert (ranged["status"], ranged["measured"] > 0, ranged["required"]) == ("pass", True, 0.001)
    assert (rows["sendrecv as required (largest)"]["status"], rows["sendrecv as required (largest)"]["source"]) == ("fail", "annex B")
    assert "broadcast bandwidth" in rows
    assert not [name for name in rows if name.endswith("recorded")]
    files = ("--html", "x.html", "--junit", "x.xml")
    assert f"the run was begun with --criteria {tmp_path / 'c.toml'}" in run("accept", "--run", "run", *files, cwd=tmp_path).stderr
    assert "was begun with" not in run("accept", "--run", "run", *files, "--criteria", "c.toml", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    "argv, said",
    [
        (("--stages", "moon"), "'moon' is no stage"),
        (("--criteria", "none.toml"), "cannot be read"),
        (("--oversubscription", "1:4"), "not a ratio"),
        (("--stages", "soak"), "needs --soak"),
        (("--soak", "1m", "--load", "gemm"), "--backend gloo uses none"),
        (("--hosts", "moon"), "--hosts: moon is not in this allocation"),
        (("--spares", "1"), "leaves none to accept"),
        (("--reference", "moon"), "neither a run nor a host of this allocation"),
        (("--html", "/proc/x/y.html"), "cannot be written"),
        (("--mode", "some"), "full, screen or a number"),
        (("--hosts", "a["), "--hosts: 'a[' is no Slurm node list"),
        (("--min-nodes", "2.5"), "a whole number of hosts, or a share below 1"),
        (("--min-nodes", "2"), "--min-nodes 2 is more than there are: 1 host"),
        (("--silent", "nan"), "--silent: nan seconds are out of range"),
        (("-T", "-1"), "-T/--timeout: -1 seconds are out of range"),
        (("--soak", "0"), "--soak: 0 seconds are out of range"),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["real", "dry"])
def test_what_cannot_be_ends_2_with_the_same_words_in_a_dry_run(argv, said, dry, tmp_path):
    done = run("accept", "-g", "2", "--backend", "gloo", *(dry or ("-O", str(tmp_path / "run"))), *argv)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left of a run that was not begun"


def test_dry_run_says_stages_and_thresholds_and_starts_nothing(tmp_path):
    done = run("accept", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert "stages: doctor, node, nic, pairs, rails, scale, cluster" in done.stdout
    gloo = run("accept", "--dry-run", "-g", "2", "--backend", "gloo", cwd=tmp_path).stdout
    assert "backend: gloo, as asked for: a rehearsal, which says nothing of NCCL and always ends 8" in gloo
    assert [line for line in gloo.splitlines() if line.startswith("nothing to measure in stage rails: one host")]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_no_acceptance_ends_5(tmp_path):
    assert run("accept", "--run", str(tmp_path)).returncode == 5


def test_a_table_of_pairs_is_handed_on_as_a_matrix(tmp_path):
    (tmp_path / "pairs.csv").write_text("a,b,value\nn1,n2,40\nn1,n3,41\nn2,n3,39.5\n")
    record = json.loads(run("pairs", "--from", str(tmp_path / "pairs.csv"), "--json").stdout)
    assert record["hosts"] == ["n1", "n2", "n3"]
    assert record["values"] == [[None, 40.0, 41.0], [40.0, None, 39.5], [41.0, 39.5, None]]
    assert (record["direction"], record["unit"]) == ("both", "GB/s")


@needs_cases
def test_pairs_judges_somebody_elses_table():
    done = run("pairs", "--from", str(FILES / "pairs_c01_G8_alltoall.csv"), "--json")
    assert (done.returncode, json.loads(done.stdout)["suspects"]) == (0, [])
    bad = run("pairs", "--from", str(FILES / "pairs_a100_5pairs.txt"))
    assert bad.returncode == 1
    assert "node nodegn644" in bad.stdout
    ranks = run("pairs", "--from", str(FILES / "perrank_2node_8groups_time.txt"), "--json")
    assert [one["gpu"] for one in json.loads(ranks.stdout)["suspects"]] == [0, 1]


def test_doctor_reads_a_tree_and_never_calls_the_unknown_ok(tmp_path):
    done = run("doctor", "--root", str(healthy(tmp_path)), "--json")
    record = json.loads(done.stdout)
    assert set(record) == {"checks", "inventory", "silent_hosts"}
    assert {"id", "status", "hosts", "device", "measured", "expected", "why", "fix", "needs_root"} <= set(record["checks"][0])
    by_id = {check["id"]: check for check in record["checks"]}
    assert by_id["nic.count"]["status"] == "ok"
    assert by_id["gpu.count"]["status"] == "fail", "device files are there and NVML shows nothing"
    assert done.returncode == 1
