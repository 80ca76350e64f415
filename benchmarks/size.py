#!/usr/bin/env python3
"""A run of 200,000 points through every command that reads runs: seconds, memory, exit code, lines on the screen.

    benchmarks/size.py                     everything; about ten minutes of CPU and 1 GiB of disk
    benchmarks/size.py export compare      the rows whose name holds one of these words
    benchmarks/size.py --points 2000       a rehearsal

Three runs: `passes`, 248 cases repeated (--duration for a night), and a second one of it to compare with; `cases`, that many different sizes;
`accepted`, a small acceptance made here on gloo whose points are repeated. Times and peak memory are the kernel's (wait4: user and system time,
ru_maxrss), so that other work on the machine does not count; the wall clock stands beside them.
A row is wrong where it takes more than 60 s of CPU or 2 GiB, ends with another code than it should, or says more than 200 lines on a screen.
Exit 1 where a row is wrong. Needs torch for the acceptance and pyarrow for Parquet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import report_samples as samples  # noqa: E402

MOST_CPU_S, MOST_GIB, MOST_LINES = 60.0, 2.0, 200
PLAN = "--preset llama3-8b --gpus 8xH100-SXM --nics 8x400-IB --nodes 2 --seq 8192 --gbs 128 --mbs 1 --gemm-eff 0.6"


@dataclass(frozen=True)
class Row:
    """A command line, the code it should end with, and whether what it prints is for a screen."""

    words: str
    code: int = 0
    screen: bool = True


ROWS = (
    Row("report passes"),
    Row("report passes -O page --format html,md,png,svg,pdf"),
    Row("report passes --redact-hosts -O redacted --format html"),
    Row("report cases -O page-cases --format html,md,png,svg,pdf"),
    Row("report cases"),
    Row("report passes passes-2 -O both --format html"),
    Row("compare passes passes-2"),
    Row("compare passes passes-2 --html compared.html"),
    Row("compare passes passes-2 --json", screen=False),
    Row("compare cases cases-2", 1),
    Row("compare cases cases-2 --html compared-cases.html", 1),
    Row("export passes --format csv -O passes.csv"),
    Row("export passes --format csv", screen=False),
    Row("export passes --format jsonl -O passes.jsonl"),
    Row("export passes --format parquet -O passes.parquet"),
    Row("export passes --format nccl-tests -O passes.log"),
    Row("export cases --format nccl-tests -O cases.log"),
    Row("import passes.log -O imported"),
    Row("import passes.log --json", screen=False),
    Row("import cases.log -O imported-cases"),
    Row("export imported --format nccl-tests -O again.log"),
    Row("import again.log -O imported-again"),
    Row("report imported -O page-imported --format html"),
    Row("report imported"),
    Row("compare imported imported-again"),
    Row("topo --from passes"),
    Row("ideal --from passes"),
    Row(f"plan {PLAN} --measured passes --tp 8"),
    Row(f"plan {PLAN} --measured cases --tp 8"),
    Row(f"search {PLAN.replace(' --mbs 1', '')} --measured passes"),
    Row("accept --run accepted --html certificate.html --junit junit.xml", 8),
    Row("accept --run accepted --baseline accepted --json", 8, screen=False),
    Row("report accepted"),
    Row("sweep -g 2 --backend gloo -O passes", 2),
)


def made(folder: Path, n: int) -> None:
    """The runs."""
    sizes = tuple(8 << shift for shift in range(31))
    for seed, name in enumerate(("passes", "passes-2"), 1):
        samples.write_fast(folder / name, samples.header(), samples.soak(n, sizes=sizes, seed=seed))
    many = tuple(65536 * at for at in range(1, n // 8 + 1))
    for name, share in (("cases", 1.0), ("cases-2", 0.9)):  # every other one is slower, so that there is something to tell
        points = samples.sweep(sizes=many, isolated=False, share=share)
        samples.write_fast(folder / name, samples.header(), points)
    run(["accept", "-g", "2", "--backend", "gloo", "--stages", "cluster", "--case-budget", "0.02", "-O", "accepted"], folder)
    path = folder / "accepted/points.jsonl"
    once = [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("a") as file:
        for number in range(n - len(once)):
            at, record = divmod(number, len(once))
            file.write(json.dumps({**once[record], "pass": at + 1}) + "\n")


def run(words: list[str], folder: Path) -> tuple[int, float, float, float, int, int]:
    """Exit code, wall seconds, CPU seconds, GiB, lines of stdout and of stderr."""
    before = time.monotonic()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "nccl_bench", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - before
    lines = [sum(1 for _ in (folder / name).open("rb")) for name in ("stdout", "stderr")]
    return process.returncode, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20, lines[0], lines[1]


def wrong(row: Row, code: int, cpu_s: float, gib: float, lines: int, errors: int) -> Iterator[str]:
    """What is wrong with how a row went."""
    if code != row.code:
        yield f"exit {code}, not {row.code}"
    if cpu_s > MOST_CPU_S:
        yield "too slow"
    if gib > MOST_GIB:
        yield "too much memory"
    if errors + (lines if row.screen else 0) > MOST_LINES:
        yield "too many lines"


def main() -> int:
    """Make the runs, go through the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--points", type=int, default=200_000)
    options = parser.parse_args()
    n_wrong = 0
    with tempfile.TemporaryDirectory(prefix="nb-size-") as name:
        folder = Path(name)
        # In a process of its own: a child's ru_maxrss begins with what its parent held when it was forked.
        making = multiprocessing.get_context("spawn").Process(target=made, args=(folder, options.points))
        making.start()
        making.join()
        if making.exitcode:
            return 2
        print("| command | s | s of CPU | GiB | exit | lines, of them on stderr | |\n|---|---|---|---|---|---|---|", flush=True)
        for row in ROWS:
            if options.words and not any(word in row.words for word in options.words):
                continue
            code, seconds, cpu_s, gib, lines, errors = run(row.words.split(), folder)
            found = list(wrong(row, code, cpu_s, gib, lines, errors))
            n_wrong += bool(found)
            shown = f"{seconds:.1f} | {cpu_s:.1f} | {gib:.2f} | {code} | {lines + errors}, {errors}"
            print(f"| `{row.words}` | {shown} | {'; '.join(found) or 'ok'} |", flush=True)
            if code != row.code:
                print("\n".join(f"    | {line}" for line in itertools.islice((folder / "stderr").read_text().splitlines(), 8)), flush=True)
    print(f"\n{n_wrong or 'no'} row{'' if n_wrong == 1 else 's'} went wrong")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
