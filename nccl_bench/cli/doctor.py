"""`nccl-bench doctor`: every host checked without measuring."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from nccl_bench.cli.outcome import Ended
from nccl_bench.units import counted

PATIENCE_S = 30.0
"""For the hosts to come: one that is silent so long is listed (DESIGN.md section 5)."""
MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "unknown", "skipped": "-"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document with every check")] = False,
    every: Annotated[bool, typer.Option("--all", help="show what is ok, too")] = False,
    timeout: Annotated[float, typer.Option("-T", "--timeout", min=1.0, max=1e7, help="seconds until a host counts as silent")] = PATIENCE_S,
    criteria: Annotated[
        Path | None, typer.Option("--criteria", metavar="FILE.toml", help="accept's file: its [hardware] says what each node must have")
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="a folder with copies of sys, proc, dev and etc, instead of this machine's")
    ] = None,
) -> Ended:
    """Check every node read-only: driver, GPUs, links, NICs, settings; also where torch, CUDA or NCCL is broken.

    Ends 1 where a check fails or a host is silent, 8 where a required one is unknown.
    """
    from nccl_bench.errors import UsageError
    from nccl_bench.fabric.host_read import Roots
    from nccl_bench.flows.council import convene, dismiss, follow
    from nccl_bench.flows.doctor import diagnose, server
    from nccl_bench.launch.launchers import from_environ

    if root is not None and not root.is_dir():
        raise UsageError(f"--root {root}: no such directory")
    hardware = None if criteria is None else _hardware(criteria)
    launch = from_environ(os.environ, self_launch=True)
    council = convene(launch, os.environ, 1, patience_s=timeout)
    try:
        serve = server(council, Roots() if root is None else Roots.under(root))
        if not council.leads:
            follow(council, serve)
            return Ended(exit_code=0, why="")
        found = diagnose(council, serve, sorted(council.joins), timeout, hardware)
        dismiss(council, found.exit_code, found.why)
        if as_json:
            sys.stdout.write(json.dumps(found.to_json(), indent=1) + "\n")
        else:
            show(found, sys.stdout, every=every)
        return Ended(exit_code=found.exit_code, why=found.why)
    finally:
        council.close()


def _hardware(path: Path) -> Any:
    from nccl_bench.errors import UsageError
    from nccl_bench.verdict.criteria import read

    found = read(path).hardware
    if found is None:
        raise UsageError(f"{path}: no [hardware]: nothing in it concerns doctor", "nccl-bench explain criteria")
    return found


def show(found: Any, stream: TextIO, *, every: bool) -> None:
    """A line a result that is not ok, what it should be and how to mend it; then how many are ok."""
    counts = {status: sum(row.status == status for row in found.results) for status in MARKS}
    for row in found.results:
        if row.status in ("ok", "skipped") and not every:
            continue
        hosts = ", ".join(row.hosts[:4]) + (f" and {len(row.hosts) - 4} more" if len(row.hosts) > 4 else "")
        where = f"{hosts}{' ' + row.device if row.device else ''}"
        said = f"{row.measured}" if row.measured is not None else "could not be read"
        expected = f" (expected {row.expected})" if row.expected is not None and row.status not in ("ok", "skipped") else ""
        stream.write(f"  {MARKS[row.status]:<8} {row.id:<20} {where}: {said if row.status != 'skipped' or row.measured else 'not here'}{expected}\n")
        if row.status in ("fail", "warn") and row.fix:
            stream.write(f"{'':<30} {row.why}; {row.fix}\n")
        elif row.status == "unknown":
            stream.write(f"{'':<30} {'needs root; ' if row.needs_root else ''}{row.what}\n")
    for host in found.silent_hosts:
        stream.write(f"  FAIL     silent               {host}: said nothing\n")
    total = counted(len(found.hosts), "host")
    parts = f"{counts['ok']} ok, {counted(counts['warn'], 'warning')}, {counts['fail']} failed, {counts['unknown']} unknown"
    stream.write(f"{total}: {parts}, {counts['skipped']} not here\n")
