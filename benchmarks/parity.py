#!/usr/bin/env python3
"""nccl-bench beside nccl-tests on the same GPUs: both run in turn A B A B, at the same sizes and placement, and are compared as ratios.

    benchmarks/parity.py PATH-TO-NCCL-TESTS/build --ranks 2 --rounds 5 [-b 8 -e 4G -f 4] [--keep FOLDER]

PATH holds all_reduce_perf and its siblings, built with MPI=1. Both run without graph registration (NCCL_GRAPH_REGISTER=0, our default):
with it NCCL takes another path, which on sends and receives is twice as fast. What is checked (of medians over the rounds; time = ours / theirs):
  (a) from 32 MiB: within 2 % (sendrecv 3 %) plus their own spread over the rounds at that point
  (b) to 1 MiB: our graph clock over theirs with -G 20: median 0.95-1.05, each 0.90-1.12; over theirs without graphs: median <= 0.85, none above 1.05
  (c) wall time of our whole sweep, start-up included, <= 0.6 of theirs, while every 95 % interval is <= 1 % or the point says `time`
  (d) our own runs among themselves: median of |ratio - 1| <= 0.5 %, worst <= 3 %
Exit code 0 where all hold, 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from nccl_bench.collectives import COLLECTIVES, DEFAULT_COLLECTIVES
from nccl_bench.units import format_size, parse_size

ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\S+\s+\S+\s+-?\d+((?:\s+\S+){8})\s*$")
LARGE, SMALL = 32 << 20, 1 << 20
Key = tuple[str, int]


@dataclass
class Side:
    """Times of one program, µs, by (collective, bytes): one value a round."""

    times: dict[Key, list[float]] = field(default_factory=dict)
    wall_s: list[float] = field(default_factory=list)

    def add(self, values: dict[Key, float]) -> None:
        for key, value in values.items():
            self.times.setdefault(key, []).append(value)

    def median(self, key: Key) -> float:
        return statistics.median(self.times[key])

    def spread(self, key: Key) -> float:
        """Half of (largest - smallest) over the median."""
        values = self.times[key]
        return (max(values) - min(values)) / 2 / statistics.median(values)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-b", default="8")
    parser.add_argument("-e", default="4G")
    parser.add_argument("-f", type=int, default=4)
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe")
    parser.add_argument("--collectives", nargs="+", default=list(DEFAULT_COLLECTIVES))
    parser.add_argument("--keep", type=Path, help="folder for logs and run directories")
    return parser.parse_args()


def theirs(options: argparse.Namespace, folder: Path, graph: bool) -> tuple[dict[Key, float], float]:
    """One pass of nccl-tests over all collectives: times of the half that ours measures, and the wall time."""
    values: dict[Key, float] = {}
    started = time.monotonic()
    for name in options.collectives:
        row = COLLECTIVES[name]
        largest = min(parse_size(options.e), SMALL) if graph else parse_size(options.e)
        command = [*shlex.split(options.mpirun), "-n", str(options.ranks), str(options.build / f"{row.nccl_tests}_perf")]
        command += ["-b", options.b, "-e", str(largest), "-f", str(options.f), "-n", "20", "-w", "5", *(["-G", "20"] if graph else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NCCL_GRAPH_REGISTER": "0"})
        with (folder / f"nccl-tests-{name}{'-graph' if graph else ''}.log").open("a") as log:
            log.write(done.stdout + done.stderr)
        if done.returncode:
            sys.exit(f"{shlex.join(command)} ended {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        half = 0 if row.placements[0] == "out" else 4
        for line in done.stdout.splitlines():
            if (match := ROW.match(line)) and int(match[1]) > 0:
                values[name, int(match[1])] = float(match[2].split()[half])
    return values, time.monotonic() - started


def ours(options: argparse.Namespace, folder: Path, number: int) -> tuple[dict[Key, float], dict[Key, float], list[str], float]:
    """One sweep: medians, means over ranks, and the points whose interval is wide without saying `time`; the wall time."""
    out = folder / f"run{number}"
    command = [sys.executable, "-m", "nccl_bench", "sweep", *options.collectives, "-g", str(options.ranks), "-b", options.b, "-e", options.e]
    command += ["-f", str(options.f), "-O", str(out), "--no-progress"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - started
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    medians: dict[Key, float] = {}
    means: dict[Key, float] = {}
    wide: list[str] = []
    for line in (out / "points.jsonl").read_text().splitlines():
        point = json.loads(line)
        if point["status"] != "ok" or point["regime"] != "streaming" or point["shift"] == "node":
            continue
        times, key = point["time_us"], (point["collective"], point["nbytes"])
        medians[key], means[key] = times["median"], point["mean_over_ranks_us"]
        half = None if times["ci_low"] is None else (times["ci_high"] - times["ci_low"]) / 2 / times["median"]
        if point["stop"] != "time" and (half is None or half > 0.01):
            wide.append(f"{key[0]} {format_size(key[1])}: ±{'none' if half is None else f'{half:.1%}'}")
    return medians, means, wide, wall_s


def verdict(what: str, ok: bool, text: str) -> bool:
    print(f"{'reached' if ok else 'MISSED '}  {what}: {text}")
    return ok


def judge(mine: Side, plain: Side, graph: Side, wide: list[str]) -> bool:
    """Print the bars; whether all hold."""
    large = [key for key in mine.times if key in plain.times and key[1] >= LARGE]
    small = [key for key in mine.times if key in plain.times and key[1] <= SMALL]
    good = []
    if large:
        off = {key: abs(mine.median(key) / plain.median(key) - 1) - plain.spread(key) - (0.03 if key[0] == "sendrecv" else 0.02) for key in large}
        worst = max(off, key=lambda key: off[key])
        ratio = mine.median(worst) / plain.median(worst)
        good.append(
            verdict("(a) >= 32 MiB", off[worst] <= 0, f"worst {worst[0]} {format_size(worst[1])} {ratio:.3f}, their spread {plain.spread(worst):.1%}")
        )
    if small:
        for name, side, low, high, each_low, each_high in (
            ("their graphs", graph, 0.95, 1.05, 0.90, 1.12),
            ("their plain", plain, 0.0, 0.85, 0.0, 1.05),
        ):
            ratios = {key: mine.median(key) / side.median(key) for key in small if key in side.times}
            if not ratios:
                continue
            middle, least, most = statistics.median(ratios.values()), min(ratios.values()), max(ratios.values())
            good.append(
                verdict(
                    f"(b) <= 1 MiB over {name}",
                    low <= middle <= high and least >= each_low and most <= each_high,
                    f"median {middle:.3f}, {least:.3f} to {most:.3f}",
                )
            )
    wall, their_wall = statistics.median(mine.wall_s), statistics.median(plain.wall_s)
    share = wall / their_wall
    good.append(
        verdict(
            "(c) wall time",
            share <= 0.6 and not wide,
            f"{wall:.1f} s over {their_wall:.1f} s = {share:.2f}; wide without saying so: {wide or 'none'}",
        )
    )
    apart = [abs(value / mine.median(key) - 1) for key, values in mine.times.items() for value in values if len(values) > 1]
    if apart:
        good.append(
            verdict(
                "(d) our runs among themselves",
                statistics.median(apart) <= 0.005 and max(apart) <= 0.03,
                f"median {statistics.median(apart):.2%}, worst {max(apart):.1%}",
            )
        )
    return all(good)


def table(mine: Side, means: Side, plain: Side, graph: Side) -> None:
    print(
        f"{'collective':<15}{'size':>9}{'ours µs':>11}{'mean µs':>11}{'theirs µs':>11}{'±':>7}{'graph µs':>11}{'ours/theirs':>13}{'ours/graph':>12}"
    )
    for key in mine.times:
        if key not in plain.times:
            continue
        graphed = f"{graph.median(key):>11.2f}" if key in graph.times else f"{'-':>11}"
        ratio = f"{mine.median(key) / graph.median(key):>12.3f}" if key in graph.times else f"{'-':>12}"
        print(
            f"{key[0]:<15}{format_size(key[1]):>9}{mine.median(key):>11.2f}{means.median(key):>11.2f}{plain.median(key):>11.2f}{plain.spread(key):>7.1%}"
            f"{graphed}{mine.median(key) / plain.median(key):>13.3f}{ratio}"
        )


def main() -> int:
    options = arguments()
    mine, means, plain, graph = Side(), Side(), Side(), Side()
    wide: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(options.rounds):
            values, wall_s = theirs(options, folder, graph=False)
            plain.add(values)
            plain.wall_s.append(wall_s)
            medians, averages, bad, wall_s = ours(options, folder, number)
            mine.add(medians)
            means.add(averages)
            mine.wall_s.append(wall_s)
            wide += bad
            graph.add(theirs(options, folder, graph=True)[0])
            print(f"round {number + 1} of {options.rounds}: theirs {plain.wall_s[-1]:.1f} s, ours {wall_s:.1f} s", flush=True)
    print(f"{options.ranks} ranks; NCCL {os.environ.get('LD_PRELOAD', 'as installed')}; medians of {options.rounds} rounds\n")
    table(mine, means, plain, graph)
    print()
    return 0 if judge(mine, plain, graph, wide) else 1


if __name__ == "__main__":
    sys.exit(main())
