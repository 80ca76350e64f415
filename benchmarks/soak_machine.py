"""What a soak sees of the machine: processes, sockets and open files of its namespace, and the sweep that lives long (benchmarks/soak.py)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTLE_S = 5.0
"""Within so many seconds the kernel has put away what a killed process held."""
SAMPLE_S = 5.0
FLAT_FRAC_PER_H, FLAT_MIB = 0.04, 2.0
"""Growth of memory that is called flat, an hour and in all; benchmarks/soak.py says why."""


def processes() -> set[int]:
    """All of this namespace but its first; those that are dead and not yet waited for do not count."""
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if state_of(int(path.name)) not in ("", "Z", "X")} - {1}


def state_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0]
    return ""


def children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def environ_of(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        pairs = (Path("/proc") / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {}


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
    return ""


def files_of(pid: int) -> list[str]:
    """What each open file of a process is."""
    found = []
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            found.append(str(path.readlink()))
    return found


def sockets(spared: set[int]) -> list[str]:
    """Sockets of this namespace that none of these processes holds, but TCP's own wait after the end (state 06)."""
    held = {name for pid in spared for name in files_of(pid)}
    found = []
    for kind, state, inode in (("tcp", 3, 9), ("tcp6", 3, 9), ("udp", 3, 9), ("unix", 5, 6)):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            cells = line.split()
            if not (kind.startswith("tcp") and cells[state] == "06") and f"socket:[{cells[inode]}]" not in held:
                found.append(f"{kind} {line.strip()[:60]}")
    return found


def left_behind(temporary: Path | None, spared: set[int]) -> list[str]:
    """Processes, sockets and files that are still there."""
    end = time.monotonic() + SETTLE_S
    while True:
        left = [f"process {pid} ({command_of(pid)})" for pid in processes() - spared - {os.getpid()}]
        left += [f"socket {line}" for line in sockets(spared | {os.getpid()})]
        left += [str(path) for path in Path("/dev/shm").iterdir()]
        left += [str(path) for path in temporary.iterdir()] if temporary else []
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def started(words: list[str], folder: Path, name: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process of Python with its output in files."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "NCCL_BENCH"))}
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    with (folder / f"stdout-{name}").open("wb") as out, (folder / f"stderr-{name}").open("wb") as err:
        where = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        env = {**clean, **where, **environ}
        return subprocess.Popen([sys.executable, *words], env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err)


# ---- the sweep that lives long ----


class Long:
    """A sweep of `n` ranks that repeats its cases for `seconds`, sampled by a thread."""

    def __init__(self, folder: Path, n: int, seconds: float) -> None:
        folder.mkdir()
        self.folder = folder
        words = ["sweep", "-b", "1K", "-e", "16K", "--budget", "0.05", "--backend", "gloo", "-g", str(n), "-T", "120", "--no-progress"]
        words += ["--duration", str(int(seconds)), "-O", str(folder / "run")]
        self.process = started(["-m", "nccl_bench", *words], folder, "0", {})
        self.began = time.monotonic()
        self.samples: dict[str, list[tuple[float, float, float, int]]] = defaultdict(list)
        """[process] (seconds, MiB now, MiB at most, open files)."""
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def pids(self) -> set[int]:
        """The process and all below it."""
        found, new = set(), {self.process.pid}
        while new:
            found |= new
            new = {child for pid in new for child in children(pid)} - found
        return found

    def _sample(self) -> None:
        while self.process.poll() is None:
            for pid in self.pids():
                rank = environ_of(pid).get("RANK")
                name = "supervisor" if pid == self.process.pid else f"worker {rank}" if rank is not None else ""
                with contextlib.suppress(OSError):
                    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                    if name and "VmRSS" in status:
                        now, most = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
                        self.samples[name].append((time.monotonic() - self.began, now, most, len(files_of(pid))))
            time.sleep(SAMPLE_S)

    def end(self) -> list[str]:
        """Wait for it, print what it grew by, and say what is wrong."""
        try:
            code = self.process.wait(timeout=180)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return ["the sweep that lives long does not end"]
        self.thread.join()
        lines = (self.folder / "run/points.jsonl").read_text().splitlines()
        passes = json.loads(lines[-1])["pass"]
        print(f"\nThe sweep that lives long ended {code}: {len(lines)} points in {passes} passes\n")
        print("| process | MiB after 1 min | MiB at the end | peak | growth an hour | open files | verdict |\n|---|---|---|---|---|---|---|")
        wrong = [f"the sweep that lives long ended {code}: {(self.folder / 'stderr-0').read_text()[-400:]}"] if code else []
        for name, samples in sorted(self.samples.items()):
            wrong += flat(name, [sample for sample in samples if sample[0] >= 60])
        return wrong


def flat(name: str, samples: list[tuple[float, float, float, int]]) -> list[str]:
    """Print a row of a process; what is not flat."""
    if len(samples) < 20:
        print(f"| {name} | too few samples: {len(samples)} |")
        return []
    last = samples[len(samples) // 4 :]
    middle = statistics.median(sample[1] for sample in last)
    slopes = [sen([(sample[0], sample[at]) for sample in last]) * 3600 / middle for at in (1, 2)]
    quarter = len(last) // 3
    first, end = [sample[3] for sample in last[:quarter]], [sample[3] for sample in last[-quarter:]]
    hours = (last[-1][0] - last[0][0]) / 3600
    grown = [(what, slope) for what, slope in zip(("memory", "its peak"), slopes, strict=True) if slope * hours * middle > FLAT_MIB]
    wrong = [f"{name}: {what} grows by {slope:.1%} an hour" for what, slope in grown if slope > FLAT_FRAC_PER_H]
    wrong += [f"{name}: open files grow: at most {max(first)} at first, at least {min(end)} at the end"] if min(end) > max(first) else []
    files = f"{min(end)}-{max(end)} ({min(first)}-{max(first)} before)"
    sizes = f"{samples[0][1]:.1f} | {samples[-1][1]:.1f} | {samples[-1][2]:.1f}"
    print(f"| {name} | {sizes} | {slopes[0]:+.2%} | {files} | {'; '.join(wrong) or 'flat'} |")
    return wrong


def sen(points: list[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs."""
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if b[0] > a[0])
