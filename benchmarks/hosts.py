"""How often `nccl-bench pairs` names the right one of real hosts: network namespaces of this machine with one link made worse.

python benchmarks/hosts.py --runs 20 --log hosts.jsonl      needs root, as tests/testbed does; each run takes 10 to 60 s
python benchmarks/hosts.py --summary hosts.jsonl            the table of runs that were kept

Every run is the real command on every host, with processes, sockets and gloo. The host at fault changes from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from testbed import Hosts, hosts

FAULTS: dict[str, tuple[str, ...]] = {
    "clean": (), "slow": ("rate", "200mbit"), "sending": ("send-rate", "200mbit"), "receiving": ("receive-rate", "200mbit"),
    "delayed": ("relay", "--delay-ms", "2"), "lossy": ("loss", "5"),
}  # fmt: skip
"""hosts.sh link's words. A relay also costs rate (about 0.5 of 6 Gbit/s); a loss is of 5 % of the segments, each way."""


def main() -> None:
    """Run the faults in turn, a line a run in the log; print the table; exit 1 where a run named anybody but the one at fault."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=20, help="of each fault")
    options.add_argument("--hosts", type=int, default=4)
    options.add_argument("--faults", default=",".join(FAULTS))
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--log", type=Path, default=Path("hosts.jsonl"))
    options.add_argument("--summary", type=Path, help="only print the table of this log")
    options.add_argument("pairs", nargs="*", help="more options of nccl-bench pairs, after --")
    args = options.parse_args()
    if args.summary is None:
        chance = random.Random(args.seed)
        for _ in range(args.runs):
            for fault in args.faults.split(","):
                _run(fault, args.hosts, chance, args.log, args.pairs)
    sys.exit(_table(args.summary or args.log))


def _run(fault: str, n: int, chance: random.Random, log: Path, more: Sequence[str]) -> None:
    names = tuple(f"h{at}" for at in range(1, n + 1))
    bad, port = chance.choice(names), chance.randrange(21000, 29000)
    folder, started = Path(tempfile.mkdtemp(prefix="hosts")), time.monotonic()
    load = os.getloadavg()[0]
    with hosts(*names) as made:
        if FAULTS[fault]:
            made.link(bad, *FAULTS[fault])
        out, err, code = _together(made, names, folder, port, more)
    kept = [path for path in folder.glob("results/*/pairs.jsonl") if "latest" not in path.parts]
    records = [json.loads(line) for path in kept for line in path.read_text().splitlines()]
    shutil.rmtree(folder)
    seconds = round(time.monotonic() - started, 1)
    line: dict[str, Any] = {"fault": fault, "bad": bad if FAULTS[fault] else None, "n": n, "load": load, "seconds": seconds}
    try:
        found = json.loads(out)
        line |= {"suspects": found["suspects"], "undetermined": found["undetermined"], "exit_code": code}
    except (ValueError, KeyError):
        line |= {"error": f"{out[-500:]}{err[-1500:]}"}
    line["right"] = _right(line)
    with log.open("a") as file:
        file.write(json.dumps({**line, "records": records}) + "\n")
    named = [f"{one['kind']} {one['host']}" for one in line.get("suspects", ())]
    said = "right" if line["right"] else "WRONG"
    print(f"{fault:<10} {line['bad'] or '-':<4} named {named} {seconds} s, load {load:.1f}: {said}", flush=True)


def _together(made: Hosts, names: Sequence[str], folder: Path, port: int, more: Sequence[str]) -> tuple[str, str, int]:
    """pairs on every host, by torchrun's variables; (stdout, stderr, exit code) of the first."""
    argv = ("nccl-bench", "pairs", "--backend", "gloo", "--level", "node", "--budget", "0.05", "--json", "-T", "60", *more)
    running: list[subprocess.Popen[str]] = []
    for rank, name in enumerate(names):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(names)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": names[0]}
        running.append(made.start(name, *argv, env={**place, "MASTER_PORT": str(port)}, cwd=folder))
    ended = [process.communicate(timeout=600) for process in running]
    return ended[0][0], ended[0][1], running[0].returncode


def _right(line: dict[str, Any]) -> bool:
    """Whether exactly the host at fault is named (and its direction), nobody where nothing is."""
    if "error" in line:
        return False
    suspects = line["suspects"]
    if line["fault"] == "clean":
        return not suspects
    if [(one["kind"], one["host"]) for one in suspects] != [("node", line["bad"])]:
        return False
    said = " ".join(suspects[0]["evidence"])
    other = {"sending": "receiving", "receiving": "sending"}.get(line["fault"])
    return other is None or (line["fault"] in said and other not in said)


def _table(log: Path) -> int:
    n, right, seconds = Counter[str](), Counter[str](), Counter[str]()
    for text in log.read_text().splitlines():
        line = json.loads(text)
        n[line["fault"]] += 1
        right[line["fault"]] += line["right"]
        seconds[line["fault"]] += line["seconds"]
    print(f"{'link':<12}{'runs':>6}{'right':>7}{'s a run':>9}")
    for fault in n:
        print(f"{fault:<12}{n[fault]:>6}{right[fault]:>7}{seconds[fault] / n[fault]:>9.0f}")
    return int(right != n)


if __name__ == "__main__":
    main()
