#!/usr/bin/env python3
"""Coverage-guided fuzzing of the readers of other people's files, with atheris.

    scripts/fuzz.py import --minutes 10 [--seeds FOLDER]...
    scripts/fuzz.py topology --minutes 10

What breaks a reader is kept in tests/data/crashes/ under the reader's name, one file for each place in the code that it
breaks at; tests/test_readers.py reads them all again. A file that takes more than five seconds of CPU counts as a break.
Seeds: the folders given, the field cases where they are, and the crashes kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["nccl_bench"]):
    import readers

CRASHES = ROOT / "tests/data/crashes"
LONGEST_S = 5.0
MAX_LEN = 1 << 14


def place(err: BaseException) -> str:
    """Where an exception came out of our code: the same for all files that break at the same place."""
    frames = [frame for frame in traceback.extract_tb(err.__traceback__) if "nccl_bench" in frame.filename] or traceback.extract_tb(err.__traceback__)
    return hashlib.sha256(f"{type(err).__name__} {frames[-1].filename} {frames[-1].name} {frames[-1].line}".encode()).hexdigest()[:12]


def main() -> None:  # noqa: C901 - the harness's state lives in one place
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=readers.READERS)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=Path, action="append", default=[])
    options = parser.parse_args()
    reader, seen, counted = readers.READERS[options.reader], set(), [0, 0, time.monotonic()]
    scratch = Path(tempfile.mkdtemp(prefix="nccl-bench-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    seeds = scratch / "seeds"
    seeds.mkdir()
    field = Path(os.environ.get("NCCL_BENCH_FIELD_CASES") or ROOT.parent / "shared") / "cases/files"
    for folder in (*options.seeds, field, CRASHES, ROOT / "criteria"):
        for path in folder.glob("*") if folder.is_dir() else ():
            if path.is_file():
                (seeds / path.name).write_bytes(path.read_bytes()[:MAX_LEN])
    target = scratch / "file"

    def keep(data: bytes, name: str, words: str) -> None:
        if name not in seen:
            seen.add(name)
            CRASHES.mkdir(parents=True, exist_ok=True)
            (CRASHES / f"{options.reader}-{name}").write_bytes(data)
            print(f"BREAKS {options.reader}-{name}: {words}", flush=True)

    def one(data: bytes) -> None:
        counted[0] += 1
        target.write_bytes(data)
        before = time.thread_time()
        try:
            counted[1] += not readers.refused(reader, target)
        except Exception as err:
            keep(data, place(err), "".join(traceback.format_exception(err)[-3:]))
        if time.thread_time() - before > LONGEST_S:
            keep(data, f"slow-{hashlib.sha256(data).hexdigest()[:12]}", f"{time.thread_time() - before:.1f} s")
        if counted[0] % 20000 == 0:
            print(f"{counted[0]} files, {counted[1]} read, {len(seen)} breaks, {time.monotonic() - counted[2]:.0f} s", flush=True)
        if time.monotonic() - counted[2] > options.minutes * 60:
            print(f"{options.reader}: {counted[0]} files, {counted[1]} read, the rest refused in words, {len(seen)} places that break", flush=True)
            shutil.rmtree(scratch, ignore_errors=True)
            os._exit(1 if seen else 0)

    atheris.Setup([sys.argv[0], f"-max_len={MAX_LEN}", "-timeout=120", "-rss_limit_mb=3000", f"-artifact_prefix={scratch}/", str(seeds)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
