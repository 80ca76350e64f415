#!/usr/bin/env python3
"""Hundreds of short sweeps broken at random, beside one that lives long: does each end as it should, and does anything stay behind or grow?

    benchmarks/soak.py                                   15 minutes, sweeps of 2 ranks, one of 1 rank beside them
    benchmarks/soak.py --minutes 60 --ranks 2-4 --beside 2
    benchmarks/soak.py --first 17 --runs 1 --beside 0    run 17 of the same seed again

Linux and root (`unshare`): all of it runs in namespaces of its own, with the loopback alone, its own process table and an empty /dev/shm, so that
whatever is found there was left by a sweep. gloo on CPUs.

Runs: `nccl-bench sweep` as one command (-g N) or as ranks that a launcher started, each with its supervisor; every third is left alone, the others
are struck at a random moment (seeded, `--seed`; each run draws from the seed and its own number).
Checked after each: exit codes of all ranks, the culprit's name where it is known, the last line, no traceback; every point readable, none lost,
the same exit code in run.json; no process, no socket, nothing in /dev/shm or TMPDIR left (of ranks killed -9 their files under TMPDIR may stay).

The sweep that lives long repeats its cases all the while (--duration). Every 5 s resident memory (VmRSS), its peak (VmHWM) and open files of its
supervisor and its workers are read. After the first minute, and over the last three quarters of the rest:
- memory is flat where the Theil-Sen slope (P. K. Sen, JASA 63, 1968; half of all pairs may be outliers) is below 4 % of the median an hour: what
  grows more slowly than 100 % in 24 h does not double in a day, and a soak of acceptance is hours (`accept --soak 4h`); or where that slope over
  the time looked at makes less than two arenas of Python (1 MiB each, Objects/obmalloc.c), which come and go whole; so 15 minutes
  tell a leak of 12 MiB an hour, an hour tells one of 3;
- open files are flat where the fewest of the last quarter are no more than the most of the first.
Exit 1 where something broke.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from soak_machine import Long, children, environ_of, left_behind, started  # noqa: E402

INSIDE = "NCCL_BENCH_SOAK"
ENTER = 'ip link set lo up && mount -t tmpfs tmpfs /dev/shm && "$@"; exit $?'
"""sh stays the first process of the namespace and takes the status of orphans."""
T = 10
"""-T of every run, seconds."""
PATIENCE_S = 75
"""After the fault; ranks that never meet take 60 s and -T."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "sendrecv", "all_to_all", "broadcast", "pingpong")
DAMAGED = """
import sys, nccl_bench.flows.sweep as flow
flow.sweep.__kwdefaults__['worker'] = (sys.executable, '-c', {worker!r})
from nccl_bench.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
WORKER = """
import sys
sys.path.insert(0, {tests!r})
from ranks import damaged
from nccl_bench.measure.ops import prepare
from nccl_bench.measure.worker import main
sys.exit(main(damaged(prepare, {damage!r})))
"""


# ---- one run ----


@dataclass
class Run:
    """A sweep under way."""

    folder: Path
    n: int
    launched: bool
    """Whether each rank has a supervisor of its own."""
    rng: random.Random
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    n_before: int = 0
    struck_s: float = 0.0
    early: bool = False
    victim: int = 0

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def start(self, *args: str, program: tuple[str, ...] = ("-m", "nccl_bench"), endless: bool = True) -> None:
        """Start it; `endless`: until something ends it."""
        names = self.rng.sample(COLLECTIVES, 2)
        sizes = ("-b", "1K", "-e", "16K", "--budget", "0.05", *(("--duration", "10m") if endless else ()))
        words = ["sweep", *names, "--backend", "gloo", "--no-progress", "-T", str(T), "-O", str(self.out), *sizes, *args]
        port = str(self.rng.randrange(20000, 30000))
        for rank in range(self.n) if self.launched else [None]:
            place = {"RANK": str(rank), "WORLD_SIZE": str(self.n), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.n)}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            more = words if self.launched else [*words, "-g", str(self.n)]
            self.processes.append(started([*program, *more], self.folder, f"{rank or 0}", place if self.launched else {}))

    def records(self) -> list[str]:
        """The whole lines of points.jsonl."""
        with contextlib.suppress(OSError):
            return (self.out / "points.jsonl").read_text().splitlines(keepends=True)
        return []

    def n_points(self) -> int:
        return sum(line.endswith("}\n") for line in self.records())

    def wait_for(self, n_points: int) -> None:
        """Wait for points, or for the end of a process."""
        end = time.monotonic() + 120
        while self.n_points() < n_points and time.monotonic() < end and all(one.poll() is None for one in self.processes):
            time.sleep(0.02)

    def mark(self) -> None:
        """The fault comes now."""
        self.n_before, self.struck_s = self.n_points(), time.monotonic()

    def moment(self, early: bool = False) -> None:
        """A random moment of the run: while it starts (where that may be), or a while after its first points."""
        self.early = early and self.rng.random() < 0.3
        if self.early:
            time.sleep(self.rng.uniform(0.0, 4.0))
        else:
            self.wait_for(self.rng.randint(1, 12))
            time.sleep(self.rng.uniform(0.0, 0.2))
        self.mark()

    def supervisor(self, rank: int) -> int:
        return self.processes[rank if self.launched else 0].pid

    def worker(self, rank: int) -> int:
        """Process id of a rank's worker, as soon as there is one."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for pid in children(self.supervisor(rank)):
                if environ_of(pid).get("RANK") == str(rank) and "NCCL_BENCH_SPEC" in environ_of(pid):
                    return pid
            time.sleep(0.02)
        raise RuntimeError(f"rank {rank} has no worker")

    def end(self) -> list[int]:
        """Exit codes as a shell has them; who stays is killed and counts as 999."""
        end, codes = time.monotonic() + PATIENCE_S, []
        for process in self.processes:
            try:
                code = process.wait(timeout=max(0.1, end - time.monotonic()))
                codes.append(code if code >= 0 else 128 - code)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                codes.append(999)
        return codes

    def said(self) -> list[str]:
        """stderr by process."""
        return [path.read_text(errors="replace") for path in sorted(self.folder.glob("stderr-*"))]


# ---- what is done to it ----


def left_alone(run: Run) -> None:
    run.start(endless=False)
    run.mark()


def signalled(who: str, *numbers: signal.Signals, early: bool = False) -> Callable[[Run], None]:
    """Signals to a worker, a supervisor, or the supervisors of all, 50 ms apart."""

    def do(run: Run) -> None:
        run.start()
        run.moment(early)
        pids = [one.pid for one in run.processes]
        if who != "all":
            pids = [run.worker(run.victim) if who == "worker" else run.supervisor(run.victim)]
        run.mark()
        for number in numbers:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.05)

    return do


def paused(run: Run) -> None:
    """A worker stands still for a second and goes on: the run ends well."""
    unharmed(run, signal.SIGSTOP, signal.SIGCONT)


def told_to_end(run: Run) -> None:
    """A worker hears SIGTERM, which is its supervisor's to answer (schedulers send it to both): the run ends well."""
    unharmed(run, signal.SIGTERM)


def unharmed(run: Run, *numbers: signal.Signals) -> None:
    """Signals to a worker, a second apart, in a run of a few seconds."""
    run.start("--duration", "5", endless=False)
    run.moment()
    pid = run.worker(run.victim)
    for number in numbers:
        os.kill(pid, number)
        time.sleep(1)


def frozen(run: Run) -> None:
    """All of a rank stands still until the others have left."""
    run.start()
    run.moment()
    pids = (run.supervisor(run.victim), run.worker(run.victim))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and any(one.poll() is None for rank, one in enumerate(run.processes) if rank != run.victim):
        time.sleep(0.1)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def wrong_element(run: Run) -> None:
    """One element of one rank's output is changed after each call."""
    worker = WORKER.format(tests=str(ROOT / "tests"), damage={"rank": run.victim, "slot": 0, "element": run.rng.randrange(8)})
    run.start(program=("-c", DAMAGED.format(worker=worker)), endless=False)
    run.mark()


@dataclass(frozen=True)
class Kind:
    """A way to strike, and what must come of it."""

    name: str
    do: Callable[[Run], None]
    code: int
    says: str = ""
    """What is said of the culprit: a pattern, with {rank}."""
    launched: bool | None = None
    """Only with supervisors of their own, or only without."""
    killed: bool = False
    """Whether the victim's supervisor is killed -9: it ends 137, and says nothing."""


DIED, ABSENT = r"ranks? {rank} died \(signal 9\)", "rank {rank} did not arrive"
KINDS = (
    Kind("kill -9 of a worker", signalled("worker", signal.SIGKILL, early=True), 4, DIED),
    Kind("kill -9 of a rank's supervisor", signalled("supervisor", signal.SIGKILL), 4, r"rank {rank}\b", launched=True, killed=True),
    Kind("kill -9 of all ranks' one parent", signalled("supervisor", signal.SIGKILL, early=True), 137, launched=False, killed=True),
    Kind("SIGSTOP of a worker", signalled("worker", signal.SIGSTOP), 4, ABSENT),
    Kind("SIGSTOP of a worker for 1 s", paused, 0),
    Kind("SIGSTOP of all of a rank", frozen, 4, rf"{ABSENT}|no answer from rank {{rank}}\b", launched=True),
    Kind("SIGTERM to a worker alone", told_to_end, 0),
    Kind("SIGTERM to one supervisor", signalled("supervisor", signal.SIGTERM), 143, "interrupted by SIGTERM"),
    Kind("SIGTERM to all", signalled("all", signal.SIGTERM, early=True), 143, "interrupted by SIGTERM"),
    Kind("SIGINT to all", signalled("all", signal.SIGINT, early=True), 130, "interrupted by SIGINT"),
    Kind("SIGINT to all, twice", signalled("all", signal.SIGINT, signal.SIGINT, early=True), 130, "interrupted by SIGINT"),
    Kind("a wrong element", wrong_element, 7, r"rank {rank} \(host"),
)
CLEAN = Kind("left alone", left_alone, 0)


# ---- what came of it ----


def checked(kind: Kind, run: Run, codes: list[int]) -> Iterator[str]:
    """What is wrong with the end of a run."""
    said = run.said()
    if 999 in codes:
        yield "somebody hangs"
    may = {kind.code} | ({3} if kind.code == 4 and run.n_before == 0 else set())
    for rank, code in enumerate(codes):
        dead = kind.killed and (rank == run.victim or not run.launched)
        if code not in ({137} if dead else may):
            yield f"rank {rank} ended {code}"
        heard = rank == 0 and code and not dead and not (run.early and code > 128)
        if heard and not (said[0].splitlines() or [""])[-1].startswith(f"nccl-bench: exit {code}: "):
            yield f"the last line is {said[0][-200:]!r}"
    text = "\n".join([*said, *run.records()])
    if "Traceback" in text and "nccl_bench" in text.split("Traceback", 1)[1]:  # Python's own start is its own
        yield "a traceback"
    if kind.says and not run.early and not re.search(kind.says.format(rank=run.victim), text):
        yield f"nobody says {kind.says.format(rank=run.victim)!r}"
    yield from unreadable(kind, run, codes)


def unreadable(kind: Kind, run: Run, codes: list[int]) -> Iterator[str]:
    """What is wrong with the run as its readers see it."""
    from nccl_bench.errors import NcclBenchError
    from nccl_bench.results.runs import open_runs, points_of

    if not (run.out / "run.json").exists():
        if run.n_before or not run.early:
            yield "no run.json"
        return
    try:
        opened = open_runs([str(run.out)])[0]
        points = points_of(opened)
    except NcclBenchError as err:
        yield f"unreadable: {err.why}"
        return
    torn = kind.killed and (run.victim == 0 or not run.launched)
    if len(points) < run.n_before or (not points and not run.early):
        yield f"points were lost: {run.n_before} before, {len(points)} after"
    if not torn and opened.header.exit_code != codes[0]:
        yield f"run.json says exit {opened.header.exit_code}, the process {codes[0]}"
    if not torn and opened.warnings:
        yield f"read with {opened.warnings}"


# ---- the soak ----


def kind_of(number: int, seed: str) -> Kind:
    """Every third run is left alone; the others take all kinds in turn, each round in an order of its own."""
    at, rest = divmod(number, 3)
    if rest == 0:
        return CLEAN
    turn, place = divmod(2 * at + rest - 1, len(KINDS))
    return random.Random(f"{seed}/order/{turn}").sample(KINDS, len(KINDS))[place]


def one(number: int, options: argparse.Namespace, folder: Path, spared: Callable[[], set[int]]) -> tuple[Kind, float, list[int], list[str]]:
    """Run number `number`: how it was struck, seconds from there to the end, exit codes, what is wrong."""
    rng = random.Random(f"{options.seed}/{number}")
    low, high = options.ranks
    kind = kind_of(number, options.seed)
    launched = rng.random() < 0.5 if kind.launched is None else kind.launched
    n = rng.randint(low, high)
    folder.mkdir()
    run = Run(folder, n, launched, rng, victim=rng.randrange(n))
    try:
        kind.do(run)
    except (RuntimeError, OSError) as err:
        wrong = [f"could not be struck: {err}"]
    else:
        wrong = []
    codes = run.end()
    seconds = time.monotonic() - run.struck_s
    wrong += checked(kind, run, codes)
    wrong += [f"left behind: {what}" for what in left_behind(None if kind.killed else folder / "tmp", spared())]
    how = f"{n} ranks {'launched' if launched else 'of one command'}, victim {run.victim}{', early' if run.early else ''}"
    came = f"{' '.join(map(str, codes))}, {seconds:.1f} s, {run.n_points()} points"
    print(f"{number:>4}  {kind.name}, {how}: {came}  {'; '.join(wrong) or 'ok'}", flush=True)
    if wrong and options.keep:
        shutil.copytree(folder, Path(options.keep) / f"run-{number}", dirs_exist_ok=True)
    if wrong:
        print("\n".join(f"      | {line}" for text in run.said() for line in text.splitlines()[-12:]), flush=True)
    return kind, seconds, codes, wrong


def soak(options: argparse.Namespace) -> int:
    """The whole of it; the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and what they start does too
    end = time.monotonic() + options.minutes * 60
    rows: dict[str, list[tuple[float, list[int], bool]]] = defaultdict(list)
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="nb-soak-") as name:
        long = Long(Path(name) / "long", options.beside, options.minutes * 60) if options.beside else None
        for number in itertools.count(options.first):
            if time.monotonic() > end - 20 or (options.runs and number >= options.first + options.runs):
                break
            folder = Path(name) / f"run-{number}"
            kind, seconds, codes, wrong = one(number, options, folder, lambda: long.pids() if long else set())
            rows[kind.name].append((seconds, codes, not wrong))
            broken += [f"run {number} ({kind.name}): {what}" for what in wrong]
            shutil.rmtree(folder)
        print("\n| what was done | runs | as it should be | exit codes | s to the last exit: median, most |\n|---|---|---|---|---|")
        for what, ended in sorted(rows.items()):
            codes = ", ".join(map(str, sorted({code for _, some, _ in ended for code in some})))
            seconds = [row[0] for row in ended]
            print(f"| {what} | {len(ended)} | {sum(row[2] for row in ended)} | {codes} | {statistics.median(seconds):.1f}, {max(seconds):.1f} |")
        if long is not None:
            broken += long.end()
            if options.keep:
                Path(options.keep).mkdir(parents=True, exist_ok=True)
                (Path(options.keep) / "samples.json").write_text(json.dumps(long.samples))
    print(f"\n{sum(map(len, rows.values()))} runs; " + ("nothing broke" if not broken else f"{len(broken)} things broke:"))
    print("\n".join(broken))
    return int(bool(broken))


def main() -> int:
    """Read the options and go into namespaces of our own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    between = lambda text: tuple(map(int, (text.split("-") * 2)[:2]))  # noqa: E731
    parser.add_argument("--ranks", type=between, default=(2, 2), metavar="N|N-M", help="of a short run")
    parser.add_argument("--beside", type=int, default=1, metavar="N", help="ranks of the sweep that lives long; 0: none")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--runs", type=int, default=0, help="at most so many")
    parser.add_argument("--keep", metavar="DIR", help="copy runs that broke here, and the samples of memory")
    options = parser.parse_args()
    if INSIDE in os.environ:
        return soak(options)
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        print("the soak needs Linux, root, unshare (util-linux) and ip (iproute2)", file=sys.stderr)
        return 2
    own = ["unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ENTER, "sh", sys.executable]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    process = subprocess.Popen([*own, *sys.argv], env={**os.environ, INSIDE: "1"})
    try:
        return process.wait()
    finally:
        process.kill()  # it hears nothing else, and takes the namespace with it


if __name__ == "__main__":
    sys.exit(main())
