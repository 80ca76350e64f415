"""Who of several ranks runs a command that takes no part in a launch: one, not each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from nccl_bench.cli.commands import Command
from nccl_bench.errors import LaunchError

_PAGES = frozenset({"-h", "--help", "--version"})
Part = Literal["together", "alone", "silent"]
"""All ranks at once; this process by itself; another rank does it."""


def part_of(argv: Sequence[str], rows: Sequence[Command], environ: Mapping[str, str]) -> Part:
    """What this process does of a command line that a launcher may have started many times (srun nccl-bench explain busbw)."""
    name = next((word for word in argv if not word.startswith("-")), None)
    row = next((row for row in rows if row.name == name), None)
    runs = "one" if _PAGES & set(argv) or name is None else "all" if row is None else row.ranks
    if runs == "all":
        return "together"  # an unknown command, too: all ranks end with the error
    from nccl_bench.launch.launchers import from_environ

    try:
        launch = from_environ(environ, self_launch=True)
    except LaunchError:
        return "alone"
    speaks = launch.local_rank in (0, None) if runs == "node" else launch.rank == 0
    return "alone" if speaks else "silent"
