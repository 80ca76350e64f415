"""What NCCL chose, read from its own log while the sweep runs: rank 0's worker writes it, rank 0's supervisor reads on."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nccl_bench.fabric import nccl_log
from nccl_bench.fabric.nccl_log import Choice, Network
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Json, Point

MAX_NBYTES = 64 << 20
"""A log beyond 64 MiB is not read on: its choices are long known."""


class TuningLog:
    """The log of one pass; empty where NCCL writes none."""

    def __init__(self, path: Path | None, n_ranks: int = 0) -> None:
        self.path, self.n_ranks = path, n_ranks
        self._read = 0
        self._head = ""
        self._choices: dict[tuple[str, int], Choice] = {}

    def tell(self, point: Point) -> Point:
        """The point with algorithm, protocol and channels, where the log says them."""
        if self.path is None or point.algorithm is not None or point.status == "skipped":
            return point
        self._read_on()
        choice = self._choices.get((point.collective, point.nbytes))
        if choice is None:
            return point
        return replace(point, algorithm=choice.algorithm, protocol=choice.protocol, channels=choice.channels)

    def choices(self) -> tuple[Json, ...]:
        """All that the log says, as run.json keeps it."""
        self._read_on()
        return tuple(
            {"collective": name, "nbytes": nbytes, "algorithm": choice.algorithm, "protocol": choice.protocol, "channels": choice.channels}
            for (name, nbytes), choice in sorted(self._choices.items())
        )

    def network(self) -> Network | None:
        """How the ranks talk, from the lines of the start."""
        self._read_on()
        return nccl_log.network(self._head) if self._head else None

    def _read_on(self) -> None:
        if self.path is None or self._read > MAX_NBYTES:
            return
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]  # a line still being written is read next time
        self._read += len(whole)
        text = whole.decode("utf-8", "replace")
        if len(self._head) < 1 << 20:
            self._head += text[: 1 << 20]
        self._choices.update(nccl_log.algorithms(text, self.n_ranks or None))

    def remove(self) -> None:
        """Delete the file."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


def log_path(spec: SweepSpec, environ: Mapping[str, str], *, probe: bool = False) -> Path | None:
    """Where the log of a pass goes, None where there is to be none.

    Not where the user has NCCL's debug output for himself, nor beside clocks that time the host: each call writes a line
    (graph medians with and without it agreed within 2 % on an H200, DESIGN.md section 2).
    """
    users_own = any(environ.get(name) for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"))
    if spec.backend == "gloo" or (not probe and (users_own or {"eager", "host"} & set(spec.clocks))):
        return None
    folder = environ.get("TMPDIR") or tempfile.gettempdir()
    return Path(folder) / f"nccl-bench-{os.getpid()}-{'probe' if probe else spec.variant or 'sweep'}.log"
