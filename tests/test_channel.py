"""The wire between a supervisor and its worker, with real processes where that matters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.errors import LaunchError
from nccl_bench.launch.channel import PHASES, Progress, SupervisorChannel, WorkerChannel
from nccl_bench.launch.workers import split_crash, stack

ROOT = Path(__file__).parent.parent


@pytest.fixture
def pair() -> Iterator[tuple[WorkerChannel, SupervisorChannel]]:
    """Both ends in one process."""
    supervisor = SupervisorChannel()
    read_fd, write_fd, page_fd, _ = supervisor.worker_fds
    yield WorkerChannel(read_fd, write_fd, page_fd), supervisor
    supervisor.close()


def test_messages_go_both_ways_in_order(pair: tuple[WorkerChannel, SupervisorChannel]) -> None:
    worker, supervisor = pair
    worker.send("point", nbytes=8, text="µs\n")
    worker.send("done", exit_code=0)
    supervisor.send({"type": "go", "rank": 0})
    supervisor.send({"type": "more"})

    assert supervisor.read() == [{"type": "point", "nbytes": 8, "text": "µs\n"}, {"type": "done", "exit_code": 0}]
    assert supervisor.read() == []
    assert worker.receive(5) == {"type": "go", "rank": 0}
    assert worker.receive(5) == {"type": "more"}
    assert worker.receive(0) is None


def test_a_message_larger_than_a_pipe_arrives_whole(pair: tuple[WorkerChannel, SupervisorChannel]) -> None:
    worker, supervisor = pair
    text = "x" * 300_000
    supervisor.send({"type": "spec", "text": text})
    assert not supervisor.flush()

    message = None
    while message is None:
        message = worker.receive(0)
        supervisor.flush()
    assert message == {"type": "spec", "text": text}
    assert supervisor.flush()


def test_what_is_no_message_becomes_a_bug(pair: tuple[WorkerChannel, SupervisorChannel]) -> None:
    _, supervisor = pair
    os.write(supervisor.worker_fds[1], b"hello\n[1]\n{}\n")

    messages = supervisor.read()

    assert [(message["type"], message["kind"], message["exit_code"]) for message in messages] == [("error", "bug", 70)] * 3
    assert "'hello'" in messages[0]["why"]


def test_the_page_shows_what_the_worker_does(pair: tuple[WorkerChannel, SupervisorChannel]) -> None:
    worker, supervisor = pair
    before = supervisor.progress()
    worker.enter(13, 60, "warmup", "all_gather 64 MiB", 60.0)
    entered = supervisor.progress()
    worker.tick("time", 7)
    ticked = supervisor.progress()
    worker.enter(-1, 0, "done", "leaving")
    last = supervisor.progress()

    assert (before.case_index, before.reached, before.phase, before.deadline_s) == (-1, -1, "start", 0.0)
    assert (entered.case_index, entered.n_cases, entered.phase, entered.batch, entered.text) == (13, 60, "warmup", 0, "all_gather 64 MiB")
    assert (ticked.phase, ticked.batch, ticked.deadline_s) == ("time", 7, entered.deadline_s)
    assert before.changed_s <= entered.changed_s <= ticked.changed_s <= last.changed_s
    assert (last.case_index, last.reached, last.n_cases, last.phase, last.deadline_s) == (-1, 13, 60, "done", 0.0)


@given(st.integers(-1, 2**31 - 1), st.integers(0, 2**31 - 1), st.sampled_from(PHASES), st.text(max_size=400), st.integers(0, 2**40))
def test_any_progress_is_read_as_it_was_written(case: int, n_cases: int, phase: str, text: str, batch: int) -> None:
    supervisor = SupervisorChannel()
    read_fd, write_fd, page_fd, _ = supervisor.worker_fds
    worker = WorkerChannel(read_fd, write_fd, page_fd)
    worker.enter(case, n_cases, phase, text, 5.0)  # type: ignore[arg-type]
    worker.tick(phase, batch)  # type: ignore[arg-type]

    found = supervisor.progress()
    supervisor.close()

    assert (found.case_index, found.n_cases, found.phase, found.batch) == (case, n_cases, phase, batch % 2**32)
    assert text.encode("utf-8", "replace").startswith(found.text.encode())
    assert len(found.text.encode()) <= 256


def test_deadlines() -> None:
    assert not Progress(deadline_s=0.0).overdue(1e9)
    assert not Progress(deadline_s=10.0).overdue(11.9, 2.0)
    assert Progress(deadline_s=10.0).overdue(12.1, 2.0)


@pytest.mark.parametrize("environ", [{}, {"NCCL_BENCH_FDS": "x"}, {"NCCL_BENCH_FDS": "900,901,902,903,1"}, {"NCCL_BENCH_FDS": "1,2"}])
def test_a_worker_that_no_supervisor_started_says_so(environ: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match="not by hand"):
        WorkerChannel.from_environ(environ)


def start(code: str) -> tuple[subprocess.Popen[bytes], SupervisorChannel]:
    channel = SupervisorChannel()
    program = f"import os, sys, time\nfrom nccl_bench.launch.channel import WorkerChannel\nchannel = WorkerChannel.from_environ()\n{code}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **channel.environ()}
    process = subprocess.Popen([sys.executable, "-c", program], env=environ, pass_fds=channel.worker_fds, stderr=subprocess.PIPE)
    channel.started()
    return process, channel


def hear(channel: SupervisorChannel, n: int) -> list[str]:
    found: list[str] = []
    while len(found) < n and not channel.ended:
        found += [message["type"] for message in channel.read()]
        time.sleep(0.01)
    return found


def test_a_worker_ends_when_its_supervisor_lets_go_even_while_it_computes() -> None:
    process, channel = start("channel.send('up')\nwhile True: pass")
    assert hear(channel, 1) == ["up"]
    channel.close()

    assert process.wait(20) == 70
    process.stderr.close()  # type: ignore[union-attr]


def test_a_worker_ends_when_its_supervisor_is_killed_while_it_sleeps_in_c(tmp_path: Path) -> None:
    """The kernel ends it (PR_SET_PDEATHSIG): the thread that watches the pipe could not, with the interpreter's lock held."""
    script = tmp_path / "supervisor.py"
    script.write_text(
        "import os, subprocess, sys, time\nfrom nccl_bench.launch.channel import SupervisorChannel\nchannel = SupervisorChannel()\n"
        "code = 'import ctypes; from nccl_bench.launch.channel import WorkerChannel; channel = WorkerChannel.from_environ(); '\n"
        "code += 'channel.send(\"up\"); ctypes.PyDLL(None).sleep(600)'\n"
        "worker = subprocess.Popen([sys.executable, '-c', code], env={**os.environ, **channel.environ()}, pass_fds=channel.worker_fds)\n"
        "channel.started()\nwhile not channel.read(): time.sleep(0.01)\nprint(worker.pid, flush=True)\ntime.sleep(600)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        worker = int(supervisor.stdout.readline())
        supervisor.kill()
        supervisor.wait()
        end = time.monotonic() + 20
        while gone(worker) is False and time.monotonic() < end:
            time.sleep(0.01)

        assert gone(worker)


def gone(pid: int) -> bool:
    try:
        return any(line.split()[1] in "ZX" for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("State:"))
    except OSError:
        return True


def test_a_stack_is_written_on_request_while_the_worker_sleeps() -> None:
    process, channel = start("def deep():\n    channel.send('up')\n    time.sleep(600)\ndeep()")
    hear(channel, 1)
    calls: list[str] = []
    while not calls:
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.05)
        calls = stack(channel.read_stack())
    process.kill()
    process.wait()
    channel.close()
    process.stderr.close()  # type: ignore[union-attr]

    assert calls[0].endswith(" deep")
    assert calls[1].endswith(" <module>")


def test_a_worker_leaves_signals_to_its_supervisor() -> None:
    process, channel = start("channel.send('up')\nchannel.receive()\nchannel.send('still here')")
    hear(channel, 1)
    process.terminate()
    process.send_signal(signal.SIGINT)
    channel.send({"type": "go"})

    assert hear(channel, 1) == ["still here"]
    assert process.wait(20) == 0
    channel.close()
    process.stderr.close()  # type: ignore[union-attr]


DUMP = """Fatal Python error: Aborted

Thread 0x00007f08fd5be6c0 (most recent call first):
  File "/x/channel.py", line 294 in _watch

Current thread 0x00007f08fe44bb80 (most recent call first):
  File "/a b/ops.py", line 88 in launch
  File "<string>", line 8 in <module>
"""


def test_the_stack_of_the_main_thread_is_read_innermost_first() -> None:
    said, crash = split_crash(["terminate called", *DUMP.splitlines()])

    assert said == ["terminate called", "Fatal Python error: Aborted"]
    assert stack(crash) == ["ops.py:88 launch", "<string>:8 <module>"]
    assert split_crash(["fine"]) == (["fine"], [])


def test_without_a_dump_there_is_no_stack() -> None:
    assert stack([]) == []
    assert stack(["  File"]) == []
