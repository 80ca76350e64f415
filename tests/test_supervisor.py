"""Supervisors and workers as real processes: every way a run ends, the code it ends with, and nobody left behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nccl_bench.launch.launchers import candidate_ports, from_environ

ROOT = Path(__file__).parent.parent
RUN = str(Path(__file__).with_name("fake_run.py"))
Json = dict[str, Any]


@dataclass
class Rank:
    """One supervisor's process and what it wrote."""

    process: subprocess.Popen[str]
    out: Path
    err: Path
    code: int | None = None

    @property
    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.endswith("}")]

    def named(self, name: str) -> list[Json]:
        return [event for event in self.events if event["event"] == name]

    @property
    def finished(self) -> Json:
        (last,) = self.named("Finished")
        return last

    def points(self) -> list[int]:
        return [event["content"]["point"]["case"] for event in self.named("Message") if event["content"]["type"] == "point"]

    def worker_pids(self) -> list[int]:
        pids = [fact["hello"]["pid"] for event in self.named("Joined") for fact in event["facts"]]
        return pids + [event["content"]["pid"] for event in self.named("Message") if "pid" in event["content"]]

    def until(self, name: str, timeout_s: float = 60.0, content: str | None = None) -> Json:
        """The first event of a kind, waited for."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for event in self.named(name):
                if content is None or event["content"]["type"] == content:
                    return event
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"no {name} came: {self.out.read_text()[-2000:]} {self.err.read_text()[-2000:]}")


@dataclass
class Job:
    """Some ranks of one job on this machine."""

    folder: Path
    ranks: list[Rank] = field(default_factory=list)

    def start(self, environ: Mapping[str, str]) -> Rank:
        name = f"{len(self.ranks)}"
        out, err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        base = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, RUN], env={**base, **environ}, stdout=stdout, stderr=stderr, text=True, start_new_session=True
            )
        rank = Rank(process, out, err)
        self.ranks.append(rank)
        return rank

    def end(self, timeout_s: float = 120.0) -> list[int | None]:
        """Wait for all; their exit codes. A process that does not end is killed and fails the test."""
        limit = time.monotonic() + timeout_s
        while any(rank.process.poll() is None for rank in self.ranks) and time.monotonic() < limit:
            time.sleep(0.01)
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGCONT)
                rank.process.kill()
                rank.process.wait()
                raise AssertionError(f"did not end: {rank.out.read_text()[-1500:]} {rank.err.read_text()[-1500:]}")
            rank.code = rank.process.returncode
            print(rank.code, rank.out.read_text()[-600:], rank.err.read_text()[-600:])  # shown where a test fails
        return [rank.code for rank in self.ranks]


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """A job whose processes are all gone when the test ends: checked, not only made so."""
    found = Job(tmp_path)
    yield found
    with contextlib.ExitStack() as stack:
        for rank in found.ranks:
            if rank.process.poll() is None:
                stack.callback(rank.process.wait)
                rank.process.send_signal(signal.SIGCONT)
                rank.process.kill()
    pids = {pid for rank in found.ranks for pid in rank.worker_pids()}
    deadline = time.monotonic() + 3
    while [pid for pid in pids if alive(pid)] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if alive(pid)] == [], "workers were left behind"
    for rank in found.ranks:
        assert "Traceback" not in rank.err.read_text() or "the flow itself broke" in rank.err.read_text(), rank.err.read_text()


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie (a bare pid 1 reaps late)."""
    try:
        return not re.search(r"^State:\s+[ZX]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False


def heeds(pid: int, number: signal.Signals) -> None:
    """Wait until a process catches a signal: on a busy machine Python takes seconds to start."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        caught = re.search(r"^SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        if caught is not None and int(caught[1], 16) >> (number - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} catches no {number.name}")


def place(rank: int, world: int, **more: str) -> dict[str, str]:
    """Variables as torchrun sets them; a job of its own for every call site's port."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", **more,
    }  # fmt: skip


def _ports() -> Iterator[str]:
    """Values of MASTER_PORT that hardly any other test session on this machine uses: here they only name the job."""
    for number in itertools.count():
        yield str(5000 + (61 * os.getpid() + number) % 60000)


_PORT = _ports()


def launch(
    job: Job, world: int, per_rank: Callable[[int], Mapping[str, str]] | None = None, missing: tuple[int, ...] = (), **common: str
) -> list[Rank]:
    """Start the ranks of a world, but for the missing ones."""
    port = next(_PORT)
    options = json.loads(common.pop("FAKE_RUN", "{}"))
    run = json.dumps({**options, "plan": {"meet_s": 60.0, **options.get("plan", {})}})
    return [
        job.start({**place(rank, world), "MASTER_PORT": port, "FAKE_RUN": run, **common, **(per_rank(rank) if per_rank else {})})
        for rank in range(world)
        if rank not in missing
    ]


def test_a_run_that_goes_well_ends_0_on_every_rank_and_all_points_came(job: Job) -> None:
    ranks = launch(job, 3)

    assert job.end() == [0, 0, 0]
    assert [event["event"] for event in ranks[0].events if event["event"] != "Message"] == ["Joined", "Started", "Finished"]
    assert [event["event"] for event in ranks[2].events if event["event"] != "Message"] == ["Started", "Finished"]
    assert ranks[0].points() == [0, 1, 2]
    assert ranks[0].finished["why"] == ""


def test_the_worker_gets_its_place_in_the_environment_and_the_go(job: Job) -> None:
    ranks = launch(job, 2)
    job.end()

    for number, rank in enumerate(ranks):
        message = rank.until("Message", content="env")["content"]
        assert (message["rank"], message["local_rank"], message["world_size"]) == (str(number), str(number), "2")
        go = message["go"]
        assert (go["rank"], go["local_rank"], go["local_size"], go["node_index"]) == (number, number, 2, 0)
        assert (go["world_size"], go["n_nodes"], go["ranks_per_node"], go["one_host"], go["backend"]) == (2, 1, 2, True, "gloo")
        assert go["store"] == (None if number == 0 else ["127.0.0.1", 23456])


def test_a_self_launch_is_one_supervisor_with_all_ranks(job: Job) -> None:
    rank = job.start({"FAKE_RUN": '{"plan": {"n_local": 3}}'})

    assert job.end() == [0]
    assert [fact["rank"] for fact in rank.named("Joined")[0]["facts"]] == [0, 1, 2]
    assert sorted({event["rank"] for event in rank.named("Message")}) == [0, 1, 2]


def test_runs_of_one_job_follow_one_another(job: Job) -> None:
    ranks = launch(job, 2, FAKE_RUN='{"runs": 3}')

    assert job.end() == [0, 0]
    for rank in ranks:
        assert [event["exit_code"] for event in rank.named("Finished")] == [0, 0, 0]


def test_ranks_without_a_local_rank_are_numbered_on_the_board(job: Job) -> None:
    port = next(_PORT)
    for rank in (1, 0):
        job.start({"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})

    assert job.end() == [0, 0]
    assert job.ranks[0].until("Message", content="env")["content"]["local_rank"] == "1"
    assert job.ranks[1].until("Message", content="env")["content"]["local_rank"] == "0"


def test_wrong_data_on_one_rank_ends_7_on_all(job: Job) -> None:
    ranks = launch(job, 2, FAKE_1="wrong")

    assert job.end() == [7, 7]
    assert ranks[0].finished["why"] == "wrong data in 1 of 3 cases"


def test_a_worker_killed_in_a_case_ends_4_everywhere_and_is_named(job: Job) -> None:
    ranks = launch(job, 3, FAKE_1="1 kill", FAKE="1 wait", FAKE_TIMEOUT="30")

    assert job.end() == [4, 4, 4]
    assert {rank.finished["why"] for rank in ranks} == {"rank 1 died (signal 9)"}
    assert [bool(rank.finished["lines"]) for rank in ranks] == [True, False, False], "one rank speaks for all"
    assert ranks[0].finished["hang"]["situation"] == "died"
    assert ranks[0].points() == [0], "what was measured before is kept"


def test_a_worker_that_dies_before_the_first_case_ends_3_and_its_last_words_are_shown(job: Job) -> None:
    ranks = launch(job, 2, FAKE_1="early exit 9", FAKE_TIMEOUT="30")

    assert job.end() == [3, 3]
    assert ranks[0].finished["why"] == "rank 1 died (exit 9)"
    assert "  | last words of 1" in ranks[0].finished["lines"]


def test_a_crash_shows_what_the_worker_wrote(job: Job) -> None:
    ranks = launch(job, 2, FAKE_1="2 crash", FAKE="2 wait", FAKE_TIMEOUT="30")

    assert job.end() == [4, 4]
    assert ranks[0].finished["why"] == "rank 1 died (signal 6)"
    lines = ranks[0].finished["lines"]
    assert lines[-2:] == ["  | terminate called without an active exception", "  | Fatal Python error: Aborted"]
    assert any("at fake_worker.py:" in line for line in lines)


def test_a_stopped_worker_is_named_when_the_others_time_out(job: Job) -> None:
    ranks = launch(job, 3, FAKE_2="1 stop", FAKE="1 wait")

    assert job.end() == [4, 4, 4]
    assert ranks[0].finished["why"] == "rank 2 did not arrive"
    assert any(line.startswith("not arrived   rank 2 (") and "stopped by a signal" in line for line in ranks[0].finished["lines"])
    assert ranks[0].finished["hang"]["situation"] == "rank"


def test_workers_that_notice_the_time_out_themselves_do_not_hide_the_stopped_one(job: Job) -> None:
    ranks = launch(job, 2, FAKE_1="1 stop", FAKE_0="1 late")

    assert job.end() == [4, 4]
    assert ranks[0].finished["why"] == "rank 1 did not arrive"


def test_a_worker_that_hangs_is_named_with_its_stack(job: Job) -> None:
    ranks = launch(job, 3, FAKE_1="1 hang", FAKE="1 wait")

    assert job.end() == [4, 4, 4]
    (culprit,) = ranks[0].finished["hang"]["culprits"]
    assert (culprit["rank"], culprit["state"]) == (1, "alive")
    assert any("fake_worker.py" in call and "obey" in call for call in culprit["stack"])


def test_a_hang_of_all_blames_the_fabric(job: Job) -> None:
    ranks = launch(job, 3, FAKE="1 wait")

    assert job.end() == [4, 4, 4]
    assert ranks[0].finished["hang"]["situation"] == "fabric"
    assert ranks[0].finished["lines"][0] == "all_gather 2 MiB did not finish in 1 s (case 2 of 3)"


def test_ranks_in_different_calls_blame_the_program(job: Job) -> None:
    ranks = launch(job, 3, FAKE="1 wait", FAKE_1="1 other")

    assert job.end() == [4, 4, 4]
    assert ranks[0].finished["hang"]["situation"] == "program"
    assert ranks[0].finished["why"] == "rank 1 in another call than the others"


def test_ranks_that_still_make_steps_are_slow_and_not_blamed(job: Job) -> None:
    ranks = launch(job, 2, FAKE="1 slow")

    assert job.end() == [4, 4]
    assert ranks[0].finished["why"] == "all_gather 2 MiB took longer than 1 s"


def test_a_workers_own_error_ends_all_with_its_code(job: Job) -> None:
    ranks = launch(job, 2, FAKE_1="0 raise own 2 no such dtype here", FAKE_0="0 wait", FAKE_TIMEOUT="30")

    assert job.end() == [2, 2]
    assert ranks[0].finished["why"] == "rank 1: no such dtype here"
    assert ranks[0].finished["lines"][1] == "do this"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_bug_ends_70_on_all_ranks(job: Job, rank: int) -> None:
    launch(job, 2, **{f"FAKE_{rank}": "1 raise bug 70 KeyError: 'x'", f"FAKE_{1 - rank}": "1 wait"}, FAKE_TIMEOUT="30")

    assert job.end() == [70, 70]


def test_a_broken_collective_is_a_symptom_where_another_rank_died(job: Job) -> None:
    """As gloo does it: the others' collective raises at once, before anybody has told them why."""
    ranks = launch(job, 3, FAKE_1="1 kill", FAKE="1 sleep 0.01;1 raise comm 4 connection reset by peer", FAKE_TIMEOUT="30")

    assert job.end() == [4, 4, 4]
    assert ranks[0].finished["why"] == "rank 1 died (signal 9)"


def test_a_broken_collective_alone_blames_the_connection(job: Job) -> None:
    ranks = launch(job, 2, FAKE="1 raise comm 4 connection reset by peer", FAKE_TIMEOUT="30")

    assert job.end() == [4, 4]
    assert "connection reset by peer" in ranks[0].finished["why"]
    assert ranks[0].finished["hang"]["situation"] == "fabric"


def test_a_worker_that_talks_nonsense_is_a_bug(job: Job) -> None:
    launch(job, 2, FAKE_1="1 garble", FAKE_0="1 wait", FAKE_TIMEOUT="30")

    assert job.end() == [70, 70]


def test_a_worker_that_lingers_after_its_last_word_is_ended_and_the_run_is_good(job: Job) -> None:
    launch(job, 2, FAKE_1="linger")

    assert job.end() == [0, 0]


def test_what_a_worker_started_goes_with_it(job: Job) -> None:
    ranks = launch(job, 2, FAKE_1="1 child;1 kill", FAKE_0="1 wait", FAKE_TIMEOUT="30")

    assert job.end() == [4, 4]
    assert len(ranks[1].worker_pids()) == 2, "the fixture checks that both are gone"


def test_a_supervisor_killed_takes_its_worker_along_and_is_named(job: Job) -> None:
    ranks = launch(job, 3, FAKE="1 wait", FAKE_TIMEOUT="30")
    ranks[2].until("Message", content="point")
    ranks[2].process.kill()

    assert job.end() == [4, 4, -9]
    assert ranks[0].finished["why"] == "rank 2 died (its supervisor is gone)"
    assert f":{ranks[2].process.pid})" in ranks[0].finished["lines"][1]


def test_rank_0s_supervisor_killed_is_named_by_everybody_else(job: Job) -> None:
    ranks = launch(job, 3, FAKE="1 wait", FAKE_TIMEOUT="30")
    for rank in ranks:
        rank.until("Message", content="point")
    ranks[0].process.kill()

    assert job.end() == [-9, 4, 4]
    for rank in ranks[1:]:
        assert rank.finished["why"].startswith("rank 0 (")
        assert "is gone" in rank.finished["why"]
        assert rank.finished["lines"], "rank 0 cannot say it"


def test_a_stopped_supervisor_does_not_hang_the_others(job: Job) -> None:
    ranks = launch(job, 3, FAKE="2 wait")
    ranks[1].until("Message", content="point")
    ranks[1].process.send_signal(signal.SIGSTOP)
    for rank in (ranks[0], ranks[2]):
        rank.process.wait(60)

    ranks[1].process.kill()
    assert job.end() == [4, -9, 4]
    assert ranks[0].finished["why"] == "rank 1 did not arrive"
    assert any("does not answer" in line for line in ranks[0].finished["lines"])


def test_rank_0s_supervisor_stopped_does_not_hang_the_others(job: Job) -> None:
    ranks = launch(job, 3, FAKE="2 wait")
    for rank in ranks:
        rank.until("Message", content="point")
    ranks[0].process.send_signal(signal.SIGSTOP)
    for rank in ranks[1:]:
        rank.process.wait(60)
        assert rank.process.returncode == 4

    ranks[0].process.kill()
    job.end()


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_to_one_supervisor_ends_all_with_its_code(job: Job, number: int, code: int) -> None:
    ranks = launch(job, 2, FAKE="1 wait", FAKE_TIMEOUT="30")
    ranks[1].until("Message", content="point")
    ranks[1].process.send_signal(number)

    assert job.end() == [code, code]
    assert ranks[0].finished["why"] == f"interrupted by {signal.Signals(number).name}"
    assert ranks[0].points() == [0]


def test_a_signal_to_all_processes_of_a_job_is_no_death_of_a_worker(job: Job) -> None:
    """As Slurm cancels a job: every process of the step gets the signal, workers too."""
    ranks = launch(job, 2, FAKE="1 wait", FAKE_TIMEOUT="30")
    for rank in ranks:
        rank.until("Message", content="point")
    for pid in [pid for rank in ranks for pid in rank.worker_pids()] + [rank.process.pid for rank in ranks]:
        os.kill(pid, signal.SIGTERM)

    assert job.end() == [143, 143]


def test_a_sigterm_after_the_verdict_does_not_change_the_code(job: Job) -> None:
    """srun --kill-on-bad-exit: rank 0 leaves last, and is sent SIGTERM while it does."""
    ranks = launch(job, 2, FAKE_1="1 kill", FAKE_0="1 wait", FAKE_TIMEOUT="30", FAKE_RUN='{"idle_at_end": 0.5}')
    for rank in ranks:
        rank.until("Finished")
        time.sleep(0.2)
        rank.process.send_signal(signal.SIGTERM)

    assert job.end() == [4, 4]


def test_torchruns_sigterm_to_the_others_does_not_hide_who_died(job: Job) -> None:
    """torchrun answers the first death with SIGTERM to all ranks."""
    ranks = launch(job, 3, FAKE="1 wait", FAKE_TIMEOUT="30")
    for rank in ranks:
        rank.until("Message", content="point")
    ranks[1].process.kill()
    for rank in (ranks[0], ranks[2]):
        rank.process.send_signal(signal.SIGTERM)

    assert job.end() == [4, -9, 4]
    assert ranks[0].finished["why"] == "rank 1 died (its supervisor is gone)"


def test_ctrl_c_twice_ends_at_once_even_where_the_board_is_silent(job: Job) -> None:
    ranks = launch(job, 2, FAKE="1 wait", FAKE_TIMEOUT="60")
    ranks[1].until("Message", content="point")
    ranks[0].process.send_signal(signal.SIGSTOP)
    ranks[1].process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    ranks[1].process.send_signal(signal.SIGINT)
    ranks[1].process.wait(60)

    assert ranks[1].process.returncode == 130
    ranks[0].process.kill()
    job.end()


def test_ctrl_c_reaches_ranks_that_a_script_put_into_the_background(job: Job) -> None:
    """A shell without job control lets its background jobs ignore SIGINT."""
    rank = job.start({**place(0, 1), "FAKE": "1 wait", "FAKE_TIMEOUT": "30", "IGNORE": "SIGINT"})
    rank.until("Message", content="point")
    rank.process.send_signal(signal.SIGINT)

    assert job.end() == [130]


def test_nohup_is_heeded(job: Job) -> None:
    rank = job.start({**place(0, 1), "FAKE": "1 sleep 1", "FAKE_TIMEOUT": "30", "IGNORE": "SIGHUP"})
    rank.until("Message", content="point")
    rank.process.send_signal(signal.SIGHUP)

    assert job.end() == [0]


def test_a_signal_while_the_ranks_meet_ends_at_once(job: Job) -> None:
    rank = launch(job, 2, missing=(1,), FAKE_RUN='{"plan": {"meet_s": 60.0}}')[0]
    heeds(rank.process.pid, signal.SIGTERM)
    rank.process.send_signal(signal.SIGTERM)

    assert job.end() == [143]


def test_a_missing_rank_ends_the_meeting_with_how_many_came(job: Job) -> None:
    rank = launch(job, 2, missing=(1,), FAKE_RUN='{"plan": {"meet_s": 1.0}}')[0]

    assert job.end() == [4]
    assert rank.finished["why"] == "1 of 2 ranks joined in 1 s; missing: rank 1"


def test_a_missing_rank_0_ends_the_meeting_of_the_others(job: Job) -> None:
    ranks = launch(job, 3, missing=(0,), FAKE_RUN='{"plan": {"meet_s": 1.0}}')

    assert job.end() == [4, 4]
    assert ranks[0].finished["why"].startswith("rank 1 reached nobody at 127.0.0.1 in 1 s")


def test_slurms_placement_names_the_host_of_a_missing_rank(job: Job) -> None:
    step = {
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": str(os.getpid()), "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "h[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURMD_NODENAME": "h1", "MASTER_ADDR": "127.0.0.1", "FAKE_RUN": '{"plan": {"meet_s": 4.0}}',
    }  # fmt: skip
    for rank in (0, 1):
        job.start({**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"})

    assert job.end() == [4, 4]
    assert job.ranks[0].finished["why"] == job.ranks[1].finished["why"] == "2 of 4 ranks joined in 4 s; missing: ranks 2, 3 (host h2)"


def test_a_rank_claimed_twice_ends_3_on_both_within_seconds(job: Job) -> None:
    environ = {**place(0, 2), "MASTER_PORT": next(_PORT), "FAKE_RUN": '{"plan": {"meet_s": 30.0}}'}
    job.start(environ)
    job.start(environ)

    assert job.end() == [3, 3]
    for rank in job.ranks:
        assert rank.finished["lines"][0].startswith("rank 0 claimed by 2 processes: ")
        assert all(f":{one.process.pid}" in rank.finished["why"] for one in job.ranks)


def test_unlike_options_end_3_with_both_values_and_hosts(job: Job) -> None:
    def options(rank: int) -> dict[str, str]:
        offer = {"torch": "2.13.0", "options": {"minbytes": 8 if rank < 2 else 1024}}
        return {"FAKE_RUN": json.dumps({"plan": {"offer": offer, "meet_s": 60.0}})}

    ranks = launch(job, 3, options)

    assert job.end() == [3, 3, 3]
    assert re.fullmatch(r"unlike options: minbytes: 8 on ranks 0, 1 \(.*\), 1024 on rank 2 \(.*\)", ranks[2].finished["why"])


def test_unlike_versions_end_3(job: Job) -> None:
    ranks = launch(job, 2, lambda rank: {"FAKE_RUN": json.dumps({"plan": {"offer": {"torch": f"2.{rank}"}, "meet_s": 60.0}})})

    assert job.end() == [3, 3]
    assert ranks[0].finished["why"].startswith("unlike versions of torch: 2.0 on rank 0")


def test_worlds_of_unlike_size_end_3(job: Job) -> None:
    port = next(_PORT)
    for rank, world in ((0, 2), (1, 4)):
        job.start({**place(rank, world), "MASTER_PORT": port})

    assert job.end() == [3, 3]


def test_a_gpu_shared_by_mistake_ends_3_before_anything_starts(job: Job) -> None:
    device = json.dumps({"index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1", "pci_bus_id": "00000000:1b:00.0"})
    ranks = launch(job, 2, FAKE_DEVICE=device, FAKE_VISIBLE="1")

    assert job.end() == [3, 3]
    assert "share GPU 00000000:1b:00.0" in ranks[1].finished["why"]
    assert ranks[0].named("Started") == []


def test_a_worker_that_never_says_hello_ends_4(job: Job) -> None:
    ranks = launch(job, 2, FAKE_1="mute", FAKE_RUN='{"plan": {"meet_s": 4.0}}')

    assert job.end() == [4, 4]
    assert re.match(r"rank 1 \(.*\): the worker said nothing for 4 s", ranks[0].finished["why"])


def test_a_worker_stopped_before_the_first_case_is_named_without_waiting_for_the_meeting(job: Job) -> None:
    """The meeting has minutes here, more than the test has: what is known of the worker counts."""
    ranks = launch(job, 2, FAKE_1="early stop", FAKE_RUN='{"plan": {"meet_s": 300.0}}')

    assert job.end() == [4, 4]
    assert ranks[0].finished["why"] == "rank 1 did not arrive"
    assert any("rank 1 (" in line and "stopped by a signal" in line for line in ranks[0].finished["lines"])
    assert ranks[0].finished["hang"]["situation"] == "start"


def test_a_working_directory_that_is_gone_is_said_and_ends_3(job: Job, tmp_path: Path) -> None:
    command = 'mkdir "$1/gone" && cd "$1/gone" && rmdir "$1/gone" && exec "$0" "$2"'
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(["sh", "-c", command, sys.executable, str(tmp_path), RUN], env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 3
    (finished,) = [json.loads(line) for line in done.stdout.splitlines() if '"Finished"' in line]
    assert "the working directory of this process is gone" in finished["why"]


@pytest.mark.parametrize("limit", [12, 20])
def test_a_limit_of_open_files_that_is_too_low_is_said_and_ends_3(tmp_path: Path, limit: int) -> None:
    command = f'ulimit -n {limit} && exec "$0" -m nccl_bench sweep all_reduce --backend gloo -b 1K -e 1K -O "$1/run"'
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command, sys.executable, str(tmp_path)], env=env, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 3, done.stderr
    assert "may open no more files" in done.stderr
    assert "ulimit -n" in done.stderr


def test_a_worker_that_cannot_be_started_ends_3(job: Job) -> None:
    ranks = launch(job, 2, lambda rank: {"FAKE_RUN": json.dumps({"plan": {"argv": ["/nonexistent/python"], "meet_s": 60.0}})} if rank else {})

    assert job.end() == [3, 3]
    assert "cannot be started" in ranks[0].finished["why"]


def test_a_taken_port_is_passed_over(job: Job) -> None:
    import socket

    environ = {**place(0, 2), "MASTER_PORT": next(_PORT)}
    first = candidate_ports(f"{from_environ(environ).token}#0")[0]
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", first))
        for rank in (0, 1):
            job.start({**environ, **place(rank, 2), "FAKE_RUN": '{"plan": {"meet_s": 60.0}}'})
        assert job.end() == [0, 0]


def test_an_error_of_rank_0s_flow_ends_all_with_its_code(job: Job) -> None:
    ranks = launch(job, 2, FAKE="1 wait", FAKE_TIMEOUT="30", FAKE_RUN='{"throw": "Started"}')

    assert job.end() == [2, 2]
    assert [event["event"] for event in ranks[0].events][-1] == "Finished"
    assert ranks[1].finished["why"] == "the directory holds a run"


def test_a_flow_that_breaks_on_rank_0_leaves_nobody_waiting(job: Job) -> None:
    ranks = launch(job, 2, FAKE="1 wait", FAKE_TIMEOUT="30", FAKE_RUN='{"break": 2}')

    codes = job.end()
    assert codes[0] not in (0, None)
    # Rank 0's last word, or, where its process was faster than that, the end of the connection.
    assert (codes[1], "rank 0 stopped listening" in ranks[1].finished["why"]) in ((70, True), (4, False))
    assert "rank 0" in ranks[1].finished["why"]


def test_the_others_leave_after_rank_0_has_shown_what_happened(job: Job) -> None:
    """srun --kill-on-bad-exit kills all at the first exit code: rank 0 must have spoken by then."""
    ranks = launch(job, 3, FAKE_1="1 kill", FAKE="1 wait", FAKE_TIMEOUT="30")
    job.end()

    shown = ranks[0].finished["at"]
    assert all(rank.finished["at"] >= shown for rank in ranks[1:])


def test_noise_is_kept_and_goes_to_stderr_at_once_only_on_request(job: Job) -> None:
    quiet = launch(job, 2, FAKE="0 say NCCL INFO hello")
    assert job.end() == [0, 0]
    assert quiet[0].finished["kept"] == {"0": ["NCCL INFO hello"]}
    assert quiet[0].named("Noise")[0]["line"] == "NCCL INFO hello"
    assert quiet[0].err.read_text() == ""

    loud = launch(job, 2, FAKE="0 say NCCL INFO hello", NCCL_DEBUG="INFO")
    job.end()
    assert loud[1].err.read_text() == "[rank 1] NCCL INFO hello\n"


def test_a_flow_that_cannot_keep_the_last_point_still_ends_all_with_its_code(job: Job) -> None:
    ranks = launch(job, 2, FAKE_RUN='{"throw_at_case": 2}')

    assert job.end() == [2, 2]
    assert ranks[1].finished["why"] == "the directory holds a run"


def test_complaints_of_other_ranks_reach_rank_0_in_a_good_run_and_a_bad_one(job: Job) -> None:
    warn = "NCCL WARN Call to ibv_create_qp failed"
    good = launch(job, 2, FAKE_1=f"0 say {warn};1 say NCCL INFO chatter")
    assert job.end() == [0, 0]
    assert good[0].finished["kept"] == {"1": [warn]}
    job.ranks.clear()
    bad = launch(job, 2, FAKE="1 wait", FAKE_1=f"0 say {warn};1 hang")
    assert job.end() == [4, 4]
    assert bad[0].finished["kept"]["1"] == [warn]
