#!/usr/bin/env python3
"""Every claim of README beside what a user would pick instead, interleaved in one run, as ratios.

    benchmarks/claims.py [-g 2] [--rounds 5] [--osu /path/to/osu_allreduce] [--nccl-tests /path/to/build] [--markdown FILE]

Peers (benchmarks/loop.py: our own equals of the methods): the single-file torch script, PARAM-style host timing, a bare loop and one with
rotated buffers; where they are
installed, OSU's osu_allreduce on the same ranks and nccl-tests (benchmarks/parity.py does that comparison and is run for it).
On gloo here, on NCCL where there are GPUs. Exit code 0; a claim that does not hold says so in its row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SIZES = (1024, 65536, 1048576)
METHODS = ("script", "param", "bare", "rotated")
Row = tuple[str, str, str]
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def run(*command: str | Path, cwd: Path | None = None) -> tuple[str, float]:
    """(stdout, seconds) of a process that must end 0."""
    began = time.monotonic()
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd, env=ENVIRON
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout, time.monotonic() - began


def ours(folder: Path, options: argparse.Namespace, *more: str) -> tuple[dict[int, dict[str, Any]], float, dict[str, Any]]:
    """(points by size, seconds, header) of one sweep."""
    out = folder / f"run{len(list(folder.iterdir()))}"
    sizes = ",".join(map(str, SIZES))
    command = (sys.executable, "-m", "nccl_bench", "sweep", "all_reduce", "-g", options.g, "--sizes", sizes, "--no-progress", "-O", out, *more)
    _, seconds = run(*command)
    points = [json.loads(line) for line in (out / "points.jsonl").read_text().splitlines()]
    return {one["nbytes"]: one for one in points if one["regime"] == "streaming"}, seconds, json.loads((out / "run.json").read_text())


def peer(method: str, options: argparse.Namespace, *more: str) -> tuple[dict[int, dict[str, float]], float]:
    """(values by size, seconds) of one of the methods, started as its users start it."""
    torchrun = Path(sys.executable).with_name("torchrun")
    text, seconds = run(
        torchrun, "--nproc-per-node", options.g, ROOT / "benchmarks/loop.py", "--method", method, "--sizes", ",".join(map(str, SIZES)), *more
    )
    return {one["nbytes"]: one for one in map(json.loads, (line for line in text.splitlines() if line.startswith("{")))}, seconds


def spread(values: list[float]) -> float:
    """Largest over smallest of the same number in several runs, less 1."""
    return max(values) / min(values) - 1


def measure(options: argparse.Namespace, folder: Path) -> tuple[list[Row], str]:
    """Rounds of ours and each peer, one after the other, so that all meet the same machine."""
    mine: dict[int, list[float]] = {size: [] for size in SIZES}
    theirs: dict[str, dict[int, list[float]]] = {method: {size: [] for size in SIZES} for method in METHODS}
    inside: list[bool] = []
    walls, backend = {"ours": [], **{method: [] for method in METHODS}}, ""  # type: dict[str, list[float]], str
    for _ in range(options.rounds):
        points, seconds, header = ours(folder, options)
        backend = header["backend"]
        walls["ours"].append(seconds)
        for size, point in points.items():
            mine[size].append(point["time_us"]["median"])
        for method in METHODS:
            values, seconds = peer(method, options)
            walls[method].append(seconds)
            for size, value in values.items():
                theirs[method][size].append(value["us"])
    for size in SIZES:
        overall = statistics.median(mine[size])
        inside += [abs(value / overall - 1) < 0.10 for value in mine[size]]
    rows: list[Row] = []
    for method in METHODS:
        ratios = [f"{statistics.median(mine[size]) / statistics.median(theirs[method][size]):.2f}" for size in SIZES]
        rows.append(
            (
                f"agreement: our median over `{method}`, at 1 KiB, 64 KiB, 1 MiB",
                f"{' '.join(ratios)}",
                f"medians of {options.rounds} interleaved rounds",
            )
        )
    for name, values in (("ours", mine), *theirs.items()):
        words = " ".join(f"{spread(values[size]):.0%}" for size in SIZES)
        rows.append((f"run-to-run spread, {name}: largest over smallest of {options.rounds} runs", words, "at 1 KiB, 64 KiB, 1 MiB"))
    rows.append(("our runs within 10 % of their common median", f"{sum(inside)} of {len(inside)}", ""))
    rows.append(
        (
            "wall time of a whole run, three sizes",
            " ".join(f"{name} {statistics.median(values):.1f} s" for name, values in walls.items()),
            "with start and meeting",
        )
    )
    return rows, backend


def trustworthy(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Seconds until the 95 % interval is narrow: 1 % on NCCL, 5 % on gloo."""
    precision, found = (0.05, []) if options.backend == "gloo" else (0.01, [])
    points, _, _ = ours(folder, options, "--precision", str(precision), "--budget", "10")
    values, _ = peer("script", options, "--until", str(precision))
    for size in SIZES:
        point = points[size]
        reached = "" if point["stop"] == "precision" else f" (stopped by {point['stop']})"
        found.append(f"{point['window_us'] / 1e6:.2f}{reached} / {values[size]['seconds']:.2f}")
    return [(f"seconds to a ± {precision:.0%} interval, ours / the script repeated", "; ".join(found), "at 1 KiB, 64 KiB, 1 MiB; 10 s at most")]


def start_up(folder: Path) -> list[Row]:
    """What a user waits for before anything happens."""

    def best(*command: str | Path) -> float:
        return min(run(*command, cwd=folder)[1] for _ in range(3))

    python = sys.executable
    sample = ROOT / "results/samples/h200x2-nccl-tests-1"
    ours = (python, "-m", "nccl_bench")
    waits = (best(*ours, "--help"), best(*ours), best(python, "-c", "import torch"))
    report = best(*ours, "report", sample, "-O", folder / "page")
    return [
        ("start-up: `--help`, the bare page, `import torch`", ", ".join(f"{seconds:.2f} s" for seconds in waits), "best of 3"),
        ("a report with HTML, Markdown, SVG and PNG of 116 points", f"{report:.1f} s", "best of 3"),
    ]


def memory(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Peak memory of rank 0's supervisor and worker, against ranks."""
    found = []
    for n in (2, 4):
        out = folder / f"memory{n}"
        command = [
            sys.executable,
            "-m",
            "nccl_bench",
            "sweep",
            "all_reduce",
            "--backend",
            "gloo",
            "-g",
            str(n),
            "--sizes",
            "1K",
            "--budget",
            "2",
            "--precision",
            "1e-6",
            "-O",
            str(out),
            "--no-progress",
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRON) as process:
            peaks: dict[int, float] = {}
            while process.poll() is None:
                for pid in family(process.pid):
                    peaks[pid] = max(peaks.get(pid, 0), high_water(pid))
                time.sleep(0.1)
        workers = [peak for peak in peaks.values() if peak > 120]
        others = [peak for peak in peaks.values() if 0 < peak <= 120]
        found.append(f"{n} ranks: supervisors {max(others, default=0):.0f} MiB at most, workers {max(workers, default=0):.0f} MiB at most")
    return [("peak memory a process, against ranks (gloo, 1 KiB)", "; ".join(found), "VmHWM")]


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(below for child in children for below in family(child))]


def high_water(pid: int) -> float:
    """MiB; 0 where it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0.0)


def osu(options: argparse.Namespace) -> list[Row]:
    """OSU's all-reduce over MPI on the same cores; another library, so that only the order of size can be compared."""
    text, _ = run("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", options.g, options.osu, "-m", f"{SIZES[0]}:{SIZES[-1]}")
    at = {int(words[0]): float(words[1]) for line in text.splitlines() if len(words := line.split()) >= 2 and words[0].isdigit()}
    return [("osu_allreduce (MPI) µs", " ".join(f"{at[size]:.1f}" for size in SIZES if size in at), "at 1 KiB, 64 KiB, 1 MiB")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-g", type=str, default="2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--osu", type=Path)
    parser.add_argument("--nccl-tests", type=Path, help="build folder of nccl-tests; benchmarks/parity.py is run against it")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows, options.backend = measure(options, folder)
        rows += trustworthy(options, folder) + start_up(folder) + memory(options, folder)
        rows += osu(options) if options.osu else []
    lines = [f"{options.backend}, {options.g} ranks", *(f"| {name} | {value} | {note} |" for name, value, note in rows)]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    if options.nccl_tests:
        beside = [sys.executable, str(ROOT / "benchmarks/parity.py"), str(options.nccl_tests), "--ranks", options.g]
        return subprocess.run(beside, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
