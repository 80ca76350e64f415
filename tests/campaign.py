"""The fault campaign: real faults through real runs of `nccl-bench sweep`, and a table of what each came to.

    python tests/campaign.py [WORD]...      all faults, or those whose name holds a word

Three ranks on gloo, each on a host of its own (network namespaces: root, iproute2, nftables; cc for the clock that jumps).
For every fault: what was printed last, the exit codes by rank, the seconds from the fault to the last exit, the points
on disk at the fault and at the end. Checked: nobody hangs, no point is lost, nobody ends 0 but where the run can finish,
who is to blame is named, no process is left, nothing new is in /dev/shm. Exit 1 where one of these fails.
docs/faults.md holds a table of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from testbed import Hosts, hosts, why_no_hosts, workers_of

from nccl_bench.launch.launchers import from_environ
from nccl_bench.launch.meeting import address_of

T = 8
"""-T of every run, seconds."""
GRACE_S = 10
"""Everybody has left so many seconds after the time-out."""
MEET_S = 60
"""The least time that ranks have to meet."""
ENDLESS = ("-b", "1K", "-e", "1K", "--budget", "0.05", "--duration", "10m")
SHORT = ("-b", "1K", "-e", "64K", "--budget", "0.2")
WALL_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long jump(void) {
  long seconds = 0;
  FILE *file = fopen(getenv("WALL_CLOCK"), "r");
  if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
  return seconds;
}
int clock_gettime(clockid_t id, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, at);
  if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += jump();
  return code;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  int code = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec; at->tv_usec = now.tv_nsec / 1000;
  return code;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""
"""A wall clock that jumps by the seconds in a file, for the processes that load it; the machine's own is left alone."""


@dataclass
class Run:
    """One run under way: a rank a host."""

    made: Hosts
    folder: Path
    port: int
    ranks: list[subprocess.Popen[str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    n_before: int = 0
    fault_s: float = 0.0

    def environ(self, rank: int) -> dict[str, str]:
        n = len(self.made.names)
        place = {"RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        return {**place, "MASTER_ADDR": self.made.names[0], "MASTER_PORT": str(self.port)}

    def start(self, *args: str, only: tuple[int, ...] | None = None, env: Mapping[str, str] | None = None, limit: str = "") -> None:
        """Start the sweep on all hosts, or on some; `limit`: shell words before it."""
        command = ("nccl-bench", "sweep", "all_reduce", "--backend", "gloo", "--no-progress", "-T", str(T), "-O", str(self.folder / "run"), *args)
        if limit:
            command = ("sh", "-c", f'{limit}; exec "$@"', "sh", *command)
        for rank in range(len(self.made.names)) if only is None else only:
            self.ranks.append(self.made.start(self.made.names[rank], *command, env={**self.environ(rank), **(env or {})}, cwd=self.folder))

    def records(self) -> list[dict[str, Any]]:
        """The whole lines of points.jsonl."""
        try:
            lines = (self.folder / "run/points.jsonl").read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def points(self) -> int:
        """How many there are."""
        return len(self.records())

    def measure(self, n_points: int = 2) -> None:
        """Wait until so many points are on disk; the fault comes next."""
        end = time.monotonic() + 90
        while self.points() < n_points:
            assert time.monotonic() < end, "no point came"
            assert all(rank.poll() is None for rank in self.ranks), [rank.communicate() for rank in self.ranks]
            time.sleep(0.02)
        self.mark()

    def mark(self) -> None:
        """The fault comes now."""
        self.n_before, self.fault_s = self.points(), time.monotonic()

    def header(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "run/run.json").read_text()))

    def worker(self, rank: int) -> int:
        """Process id of a rank's worker."""
        return int(next(one["pid"] for one in self.header()["ranks"] if one["rank"] == rank))

    def supervisor(self, rank: int) -> int:
        """Process id of its parent."""
        return int((Path("/proc") / str(self.worker(rank)) / "stat").read_text().rsplit(")", 1)[1].split()[1])

    def end(self, patience_s: float) -> list[int]:
        """Exit codes by rank; a rank that stays is killed and counts as 999."""
        end, codes = time.monotonic() + patience_s, []
        for rank in self.ranks:
            try:
                _, stderr = rank.communicate(timeout=max(0.1, end - time.monotonic()))
                codes.append(rank.returncode if rank.returncode >= 0 else 128 - rank.returncode)  # as a shell has it
            except subprocess.TimeoutExpired:
                rank.kill()
                _, stderr = rank.communicate()
                codes.append(999)
            self.said.append(stderr)
        return codes


@dataclass(frozen=True)
class Fault:
    """One fault: how it is done, and what must be said."""

    name: str
    do: Callable[[Run], None]
    says: str
    """What some rank must print; "" for a run that can finish."""
    within_s: float = T + GRACE_S
    code: int = 4
    kept: bool = True
    """Whether points were measured before."""


def killing(rank: int, number: signal.Signals, parent: bool = False) -> Callable[[Run], None]:
    def do(run: Run) -> None:
        run.start(*ENDLESS)
        run.measure()
        os.kill(run.supervisor(rank) if parent else run.worker(rank), number)

    return do


def local_parent(run: Run) -> None:
    """Three ranks that one process started on one host: that process is killed. Nobody is left to say it; the workers must not stay."""
    command = ("nccl-bench", "sweep", "all_reduce", "--backend", "gloo", "-g", "3", "--no-progress", "-T", str(T), "-O", str(run.folder / "run"))
    run.ranks.append(run.made.start("h1", *command, *ENDLESS, cwd=run.folder))
    run.measure()
    os.kill(run.supervisor(0), signal.SIGKILL)


def freeze(victim: int) -> Callable[[Run], None]:
    """Everything of a rank is stopped, its supervisor too; it goes on once the others have left, and must find that out."""

    def do(run: Run) -> None:
        run.start(*ENDLESS)
        run.measure()
        frozen = (run.supervisor(victim), run.worker(victim))
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            for rank in {0, 1, 2} - {victim}:
                run.ranks[rank].wait(timeout=T + GRACE_S + 20)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)

    return do


def linking(host: str, *what: str) -> Callable[[Run], None]:
    def do(run: Run) -> None:
        run.start(*ENDLESS)
        run.measure()
        run.made.link(host, *what)

    return do


def block_ports(run: Run, *, board_too: bool) -> None:
    """Nothing reaches the ports of torch's store on the first host; `board_too`: nor those of the board."""
    address = address_of(from_environ(run.environ(0), "h1"), 0)
    but = "" if board_too else "tcp dport != {" + ", ".join(map(str, address.ports)) + "}"
    rule = f"table inet blocked {{ chain in {{ type filter hook input priority 0; iifname eth0 tcp dport 20000-32767 {but} drop; }}; }}"
    run.made.run("h1", "nft", rule, check=True)
    run.mark()
    run.start(*SHORT)


def store_blocked(run: Run) -> None:
    block_ports(run, board_too=False)


def all_blocked(run: Run) -> None:
    block_ports(run, board_too=True)


def disk_full(run: Run) -> None:
    (run.folder / "run").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(run.folder / "run")], check=True)
    run.start(*ENDLESS)
    run.measure()


def read_only(run: Run) -> None:
    (run.folder / "run").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(run.folder / "run")], check=True)
    run.mark()
    run.start(*ENDLESS)


def terminated(run: Run) -> None:
    run.start(*ENDLESS)
    run.measure()
    for rank in range(3):
        os.kill(run.supervisor(rank), signal.SIGTERM)


def interrupted_twice(run: Run) -> None:
    run.start(*ENDLESS)
    run.measure()
    supervisors = [run.supervisor(rank) for rank in range(3)]
    for _ in range(2):
        for pid in supervisors:
            try:
                os.kill(pid, signal.SIGINT)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def out_of_memory(run: Run) -> None:
    """A limit on address space that the largest size does not fit into; torch and its libraries take some 3 GiB of it."""
    run.mark()
    run.start("--sizes", "1K,64K,4G", "--budget", "0.05", limit="ulimit -v 6000000")


def clock_jump(run: Run) -> None:
    """The wall clock jumps an hour ahead and then two back, for all processes of the run."""
    clock, library = run.folder / "clock", run.folder / "clock.so"
    clock.write_text("0\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"], input=WALL_CLOCK, text=True, check=True)
    run.start("-b", "1K", "-e", "64K", "--budget", "1", env={"LD_PRELOAD": str(library), "WALL_CLOCK": str(clock)})
    run.measure(1)
    for jump in ("3600\n", "-3600\n"):
        clock.write_text(jump)
        time.sleep(0.5)


def port_taken(run: Run) -> None:
    """Strangers listen on MASTER_PORT and on the first three ports where the board would be."""
    address = address_of(from_environ(run.environ(0), "h1"), 0)
    listen = "import socket,time\nkept = [socket.create_server(('', int(port))) for port in {!r}]\nprint('ready', flush=True)\ntime.sleep(120)"
    stranger = run.made.start("h1", sys.executable, "-c", listen.format([run.port, *address.ports[:3]]))
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == "ready\n"
    run.mark()
    run.start(*SHORT)
    for rank in run.ranks:
        rank.wait()
    stranger.kill()
    stranger.communicate()


def late(run: Run) -> None:
    run.mark()
    run.start(*SHORT, only=(0, 1))
    time.sleep(30)
    run.start(*SHORT, only=(2,))


def two_at_once(run: Run) -> None:
    """Another job of two ranks on the first host, at the same time."""
    other = run.made.start("h1", "nccl-bench", "sweep", "all_reduce", "--backend", "gloo", "-g", "2", "--no-progress", *SHORT, cwd=run.folder)
    run.mark()
    run.start(*SHORT)
    run.ranks.append(other)


FAULTS = (
    Fault("kill -9 of rank 0's worker", killing(0, signal.SIGKILL), "rank 0 died (signal 9)"),
    Fault("kill -9 of rank 1's worker", killing(1, signal.SIGKILL), "rank 1 died (signal 9)"),
    Fault("kill -9 of rank 0's supervisor", killing(0, signal.SIGKILL, parent=True), "rank 0 (h1:"),
    Fault("kill -9 of rank 1's supervisor", killing(1, signal.SIGKILL, parent=True), "rank 1"),
    Fault("kill -9 of the local parent of 3 ranks", local_parent, "", GRACE_S, code=137),
    Fault("SIGSTOP of rank 1's worker", killing(1, signal.SIGSTOP), "rank 1 did not arrive"),
    Fault("SIGSTOP of all of rank 0", freeze(0), "rank 0 did not arrive", T + 2 * GRACE_S),
    Fault("SIGSTOP of all of rank 1", freeze(1), "rank 1 did not arrive", T + 2 * GRACE_S),
    Fault("link of h3 down", linking("h3", "down"), "rank 2 did not arrive"),
    Fault("link of rank 0's host down", linking("h1", "down"), "no answer from rank 0 (h1:"),
    Fault("100 % loss at h2", linking("h2", "loss", "100"), "rank 1 did not arrive"),
    Fault("ports of torch's store blocked", store_blocked, "ranks 1, 2 did not arrive", MEET_S + T + GRACE_S, kept=False),
    Fault("ports of board and store blocked", all_blocked, "missing: ranks 1, 2", MEET_S + GRACE_S, kept=False),
    Fault("disk full", disk_full, "No space left on device", 60, code=2),
    Fault("read-only output", read_only, "Read-only file system", 30, code=2, kept=False),
    Fault("SIGTERM to all", terminated, "interrupted by SIGTERM", GRACE_S, code=143),
    Fault("Ctrl-C twice", interrupted_twice, "interrupted by SIGINT", GRACE_S, code=130),
    Fault("out of memory at one size", out_of_memory, "", 60, code=0, kept=False),
    Fault("clock jumps", clock_jump, "", 60, code=0),
    Fault("MASTER_PORT and board ports taken", port_taken, "", 60, code=0, kept=False),
    Fault("rank 2 starts 30 s late", late, "", 90, code=0, kept=False),
    Fault("two runs at once", two_at_once, "", 60, code=0, kept=False),
)


def check(fault: Fault, run: Run, codes: list[int], seconds: float, left: list[str]) -> list[str]:
    """What is wrong with how a fault ended."""
    wrong = []
    killed = {128 + signal.SIGKILL} if "supervisor" in fault.name else set()
    if 999 in codes:
        wrong.append("somebody hangs")
    if any(code != fault.code for code in codes if code not in killed):
        wrong.append(f"exit codes {codes}, not {fault.code}")
    if seconds > fault.within_s:
        wrong.append(f"took {seconds:.1f} s, not {fault.within_s:.0f}")
    if run.points() < run.n_before or (fault.kept and run.points() == 0):
        wrong.append("points were lost")
    if fault.says and not any(fault.says in text for text in run.said):
        wrong.append(f"nobody says {fault.says!r}")
    if fault.do is out_of_memory and not any("does not fit" in str(point["reason"]) for point in run.records() if point["status"] == "skipped"):
        wrong.append("no point says that it was skipped for want of memory")
    if left:
        wrong.append(f"left behind: {left}")
    return wrong


def left_behind(made: Hosts, shared_before: set[str]) -> list[str]:
    """Workers and shared memory that are still there; what was just killed gets a moment to be gone."""
    left: list[str] = []
    for _ in range(20):
        left = [f"process {pid}" for pid in workers_of(made.pids())] + sorted(shared() - shared_before)
        if not left:
            break
        time.sleep(0.1)
    return left


def shared() -> set[str]:
    """What torch, NCCL or gloo have in shared memory under a name."""
    return {str(path) for path in Path("/dev/shm").glob("*") if re.fullmatch(r"torch_.*|nccl-\w{6}|gloo.*", path.name)}


def last_lines(run: Run) -> str:
    """The last line of each rank that has the word; what several say alike once."""
    ranks: dict[str, list[str]] = {}
    for rank, text in enumerate(run.said):
        if "nccl-bench: exit" in text:
            line = text.strip().splitlines()[-1].removeprefix("nccl-bench: ").replace(str(run.folder), "")
            ranks.setdefault(line, []).append(str(rank))
    return "; ".join(f"{line} (said by {', '.join(who)})" for line, who in ranks.items())


def run_one(fault: Fault, port: int) -> list[str]:
    """Run one fault and print its row."""
    folder, shared_before = Path(tempfile.mkdtemp(prefix="nb-fault-")), shared()
    try:
        with hosts("h1", "h2", "h3") as made:
            run = Run(made, folder, port)
            fault.do(run)
            codes = run.end(fault.within_s + 20)
            seconds = time.monotonic() - run.fault_s
            left = left_behind(made, shared_before)
            wrong = check(fault, run, codes, seconds, left)
            shown = last_lines(run) or ("(finished)" if not any(codes) else "(nothing)")
            ended = f"{' '.join(map(str, codes))} | {seconds:.1f} | {run.n_before} -> {run.points()}"
            print(f"| {fault.name} | {shown} | {ended} | {'; '.join(wrong) or 'ok'} |")
            if wrong:
                print("\n".join(f"    {rank}: {text}" for rank, text in enumerate(run.said)))
            sys.stdout.flush()
            return wrong
    finally:
        subprocess.run(["umount", str(folder / "run")], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main(words: list[str]) -> int:
    """Run the faults, print the table."""
    reason = why_no_hosts()
    if reason is not None:
        print(reason)
        return 2
    print(f"-T {T}\n\n| fault | last line | exit codes | seconds | points | verdict |\n|---|---|---|---|---|---|")
    wrong = 0
    for number, fault in enumerate(FAULTS):
        if words and not any(word in fault.name for word in words):
            continue
        if fault.do is clock_jump and shutil.which("cc") is None:
            print(f"| {fault.name} | skipped: no C compiler for the clock that jumps |")
            continue
        wrong += bool(run_one(fault, 21000 + number))
    print(f"\n{wrong or 'no'} fault{'' if wrong == 1 else 's'} came to a wrong end")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
