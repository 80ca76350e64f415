#!/usr/bin/env python3
"""All pairs in rounds, timed against the number of ranks: how many rounds, messages and connections, and how many seconds they take.

    benchmarks/rounds.py                        8, 16, 32 and 64 ranks of this machine, on gloo; 64 want about 16 GiB
    benchmarks/rounds.py --ranks 8,16 --budget 0.05

Each row is one real `nccl-bench pairs --level gpu --mode full --no-confirm`. A case is a round in one size and one way; in it a rank exchanges with
one partner, and afterwards one message of it is gathered. Counted from what the run kept (pairs.jsonl): rounds, cases, pairs, the partners that
a rank had (its connections at most). Seconds: from the first case that was kept to the last one, and of the whole command with start and meeting.
Exit code 1 where a pair is missing or came twice, or a rank was in two pairs of a round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,16,32,64")
    parser.add_argument("--budget", default="0.05", help="seconds a case")
    parser.add_argument("--sizes", default="8,64K")
    options = parser.parse_args()
    print(f"{'ranks':>6}{'rounds':>8}{'pairs':>7}{'cases':>7}{'connections':>13}{'s a case':>10}{'s, rounds':>11}{'s, command':>12}   load")
    wrong = False
    for n in map(int, options.ranks.split(",")):
        row, right = one(n, options)
        print(row, flush=True)
        wrong |= not right
    return int(wrong)


def one(n: int, options: argparse.Namespace) -> tuple[str, bool]:
    """A row of the table, and whether the rounds are what they should be."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "run"
        command = [sys.executable, "-m", "nccl_bench", "pairs", "-g", n, "--backend", "gloo", "--level", "gpu", "--mode", "full", "--no-confirm"]
        more = ["--budget", options.budget, "--sizes", options.sizes, "-T", "300", "--json", "-O", out]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        began, kept = time.monotonic(), out / "pairs.jsonl"
        first = last = 0.0
        with subprocess.Popen(list(map(str, [*command, *more])), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ) as process:
            size = 0
            while process.poll() is None:
                now = kept.stat().st_size if kept.exists() else 0
                if now > size:
                    size, last = now, time.monotonic()
                    first = first or last
                time.sleep(0.02)
            error = process.stderr.read().decode() if process.stderr else ""
        if process.returncode not in (0, 1, 8):
            sys.exit(f"pairs with {n} ranks ended {process.returncode}:\n{error[-1500:]}")
        whole = time.monotonic() - began
        cases = [json.loads(line) for line in kept.read_text().splitlines()]
    rounds = {case["round"]: [tuple(pair) for pair in case["pairs"]] for case in cases}
    pairs = list(itertools.chain(*rounds.values()))
    partners = max(len({other for pair in pairs for other in pair if rank in pair and other != rank}) for rank in range(n))
    spent = last - first
    counted = f"{n:>6}{len(rounds):>8}{len(pairs):>7}{len(cases):>7}{partners:>13}"
    timed = f"{spent / max(1, len(cases) - 1):>10.3f}{spent:>11.1f}{whole:>12.1f}   {os.getloadavg()[0]:.1f}"
    return counted + timed, proper(n, rounds, pairs)


def proper(n: int, rounds: dict[int, list[tuple[Any, ...]]], pairs: list[tuple[Any, ...]]) -> bool:
    """Every pair once, and every rank at most once in a round."""
    every = sorted(tuple(sorted(pair)) for pair in pairs) == list(itertools.combinations(range(n), 2))
    return every and all(len(set(itertools.chain(*members))) == 2 * len(members) for members in rounds.values())


if __name__ == "__main__":
    sys.exit(main())
