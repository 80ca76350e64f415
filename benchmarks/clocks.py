#!/usr/bin/env python3
"""The clocks against each other and against themselves, as ratios taken in one run.

    benchmarks/clocks.py -g 2 [-b 8 -e 64M -f 4] [--collectives all_reduce ...] [--keep FOLDER]

Runs `--clock graph,queued`, `--clock graph,eager`, `--clock eager` twice and `--clock graph` again, and prints, size by size:
queued / graph (within 5 %), eager beside graph / eager alone (within 5 %), graph / graph of another run (within 1 %),
and what eager differs by from itself in another run.
Below 1 MiB queued stays about 1 µs an operation above graph: kernels launched one by one leave a gap that a graph does not.
Exit code 0 where the medians of the first three hold, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from nccl_bench.units import format_size

Key = tuple[str, int]


def sweep(options: argparse.Namespace, folder: Path, clocks: str) -> dict[str, dict[Key, float]]:
    """Medians in µs by clock and (collective, bytes)."""
    out = folder / f"{clocks.replace(',', '-')}-{len(list(folder.iterdir()))}"
    command = [sys.executable, "-m", "nccl_bench", "sweep", *options.collectives, "-g", str(options.g), "--clock", clocks]
    command += ["-b", options.b, "-e", options.e, "-f", str(options.f), "-O", str(out), "--no-progress", "--no-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, dict[Key, float]] = {}
    for line in (out / "points.jsonl").read_text().splitlines():
        point = json.loads(line)
        if point["regime"] == "streaming" and point["time_us"]:
            found.setdefault(point["clock"], {})[point["collective"], point["nbytes"]] = point["time_us"]["median"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-g", type=int, default=2)
    parser.add_argument("-b", default="8")
    parser.add_argument("-e", default="64M")
    parser.add_argument("-f", type=int, default=4)
    parser.add_argument("--collectives", nargs="+", default=["all_reduce", "all_gather", "sendrecv"])
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        both, mixed, alone, twice, again = (sweep(options, folder, clocks) for clocks in ("graph,queued", "graph,eager", "eager", "eager", "graph"))
    rows = [
        ("queued / graph", 0.05, both.get("queued", {}), both["graph"]),
        ("eager beside graph / eager alone", 0.05, mixed["eager"], alone["eager"]),
        ("graph / graph of another run", 0.01, again["graph"], both["graph"]),
        ("eager / eager of another run (no bar)", 1.0, twice["eager"], alone["eager"]),
    ]
    good = True
    for name, limit, upper, lower in rows:
        ratios = {key: upper[key] / lower[key] for key in upper if key in lower}
        off = statistics.median(abs(ratio - 1) for ratio in ratios.values())
        worst = max(ratios, key=lambda key: abs(ratios[key] - 1))
        ok = off <= limit
        good &= ok
        print(f"{'reached' if ok else 'MISSED '}  {name}: median off {off:.2%}, worst {worst[0]} {format_size(worst[1])} {ratios[worst]:.3f}")
        print("   " + "  ".join(f"{key[0]} {format_size(key[1])} {lower[key]:.2f} µs x{ratio:.3f}" for key, ratio in ratios.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
