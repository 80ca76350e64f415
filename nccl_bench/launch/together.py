"""An error that a rank meets before it begins, such as a bad option: told by one rank for all, and every rank ends with its code.

Otherwise thousands of ranks would print it, and a launcher that ends a job at the first bad exit would replace the
others' code by that of its SIGTERM.
"""

from __future__ import annotations

from collections.abc import Mapping

from nccl_bench.errors import LaunchError, NcclBenchError
from nccl_bench.launch.launchers import from_environ
from nccl_bench.launch.supervisor import supervise
from nccl_bench.launch.values import Finished, Plan

MEET_S = 5.0
"""Seconds that ranks with an error look for each other: processes of one job start about as far apart. Who comes later speaks for itself."""


def end_together(error: NcclBenchError, environ: Mapping[str, str]) -> Finished | None:
    """How this rank of several ends for an error of its own; None where nobody else takes part. Lines are empty where another rank has the word."""
    try:
        launch = from_environ(environ)
    except LaunchError:
        return None
    if launch.world_size == 1:
        return None
    finished = None
    for event in supervise(launch, Plan(argv=(), error=error, meet_s=MEET_S), environ):
        if isinstance(event, Finished):
            finished = event
    return finished
