"""Lines that say a run failed: quoted with their place, and what to look at first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_bench.results.text import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One line that says something failed."""

    line: int
    text: str
    rank: int
    """How close to the cause: 0 a cause, 1 a call that failed, 2 a launcher that noticed."""
    hint: str | None
    host: str | None = None
    pid: int | None = None

    @property
    def of_a_run(self) -> bool:
        """Whether the line stands as a program, a launcher or NCCL writes it, and not in the middle of a text about one."""
        return _WRITTEN.search(self.text) is not None


_MAX_QUOTE = 300
_NCCL_DEBUG = "run it again with NCCL_DEBUG=INFO and look at the lines before the failure"

_FEWER = "more ranks on a node than GPUs: fewer ranks a node, or a smaller -g"
_LEFT = "who reports it is the one that was left, not always the one at fault: look at the other node too"
_BUSY = "compute mode is Exclusive_Process, or another job holds the GPUs: nvidia-smi -q -d COMPUTE; nvidia-smi -c DEFAULT"
_FABRIC = "the fabric manager does not run, or its version is not the driver's: systemctl status nvidia-fabricmanager"
_LIBRARY = "a library is missing on the node: LD_LIBRARY_PATH, module load, or the container's mounts"
_DUPLICATE = "choose the GPU by the local rank: LOCAL_RANK, SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK"

_KINDS: tuple[tuple[str, int, str | None], ...] = (
    (r"busy or unavailable", 0, _BUSY),
    (r"system not yet initialized", 0, _FABRIC),
    (r"remote process exited or there was a network error", 0, _LEFT),
    (r"Duplicate GPU detected", 0, _DUPLICATE),
    (r"not enough slots available", 0, "mpirun: more ranks than slots: give a host file, -H host:8, or ask the scheduler for more"),
    (r"Invalid number of GPUs", 0, _FEWER),
    (r"number of requested GPUs .* is greater", 0, _FEWER),
    (r"unhandled (?:cuda|hip) error", 0, _NCCL_DEBUG),
    (r"unhandled system error", 0, f"often the network interface: check NCCL_SOCKET_IFNAME; {_NCCL_DEBUG}"),
    (r"internal error.*NCCL|invalid usage.*NCCL", 0, _NCCL_DEBUG),
    (r"Test timeout \(", 0, "a rank did not arrive in time: halve the ranks until it passes, or nccl-bench doctor"),
    (r"out of memory", 0, "the largest size needs about three buffers of it on each GPU: a smaller -e"),
    (r"error while loading shared libraries|cannot open shared object", 0, _LIBRARY),
    (r"invalid sizes for 'minbytes'|invalid size specified|invalid option '", 0, "the command line was refused"),
    (r"Test (?:CUDA|NCCL|HIP) failure", 0, None),
    (r"NCCL WARN ", 1, None),
    (r"CUDA error|CUDA driver version is insufficient|no CUDA-capable device|HIP error", 1, None),
    (r"Test failure ", 1, None),
    (r"Segmentation fault|Bus error|core dumped|oom-kill|Out Of Memory|SIGKILL|signal 9", 1, "a process was killed: dmesg, the job's memory limit"),
    (r"command not found|No such file or directory.*_perf|_perf.*No such file or directory|execve\(\)", 1, "the program is not there on that node"),
    (r"srun: error:|slurmstepd: error:|CANCELLED AT|DUE TO TIME LIMIT", 2, None),
    (r"mpirun (?:detected|noticed)|MPI_ABORT was invoked|ORTE|PMIX ERROR", 2, None),
)
_PATTERNS = tuple((re.compile(pattern), rank, hint) for pattern, rank, hint in _KINDS)
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern, _, _ in _KINDS))
_HOST = re.compile(r"^(?: \.\. )?([A-Za-z0-9][\w.-]*)(?: pid (\d{1,9}))?: Test ")
_WRITTEN = re.compile(
    r"^(?:\.\. )?[\w.-]+(?: pid \d+)?: Test |^\S+:\d+:\d+ \[\d+\].*NCCL WARN|^There are not enough slots|^\S+: error while loading shared"
    r"|^(?:srun|slurmstepd)\S*: |^mpirun |^MPI_ABORT|^Invalid number of GPUs|^\[ERROR\]|^invalid (?:size|option)|^(?:bash|sh): "
)
_NOT_FATAL = re.compile(r"NCCL INFO|NET/Plugin|Failed to (?:find|dlopen|open libibverbs)|LOG_CAT")
"""Words of healthy runs: a plug-in that is not there, a version that is not found."""


def failure_of(line: Line) -> Failure | None:
    """The failure that a line tells, None where it tells none."""
    text = line.text
    if not _ANY.search(text) or (_NOT_FATAL.search(text) and "Test " not in text):
        return None
    rank, hint = next((rank, hint) for pattern, rank, hint in _PATTERNS if pattern.search(text))
    found = _HOST.match(text)
    host, pid = found.groups() if found else (None, None)
    return Failure(line=line.number, text=text.strip()[:_MAX_QUOTE], rank=rank, hint=hint, host=host, pid=int(pid) if pid else None)


def first_cause(failures: Sequence[Failure]) -> Failure | None:
    """The failure to quote: the first of those closest to a cause."""
    return min(failures, key=lambda failure: (failure.rank, failure.line), default=None)


def reporters(failures: Iterable[Failure]) -> str | None:
    """Who wrote the failures: "node-01 (pid 3617715, 3617718), node-07 (pid 3230358)"; None where no line says."""
    pids: dict[str, list[int]] = {}
    for failure in failures:
        if failure.host:
            known = pids.setdefault(failure.host, [])
            if failure.pid is not None and failure.pid not in known:
                known.append(failure.pid)
    words = [f"{host} (pid {', '.join(map(str, sorted(found)[:16]))})" if found else host for host, found in pids.items()]
    return ", ".join(words[:16]) or None


_DUPLICATE_RANKS = re.compile(r"(?:^|\s)(\S+?):\d+:\d+ .*Duplicate GPU detected : rank (\d{1,9}) and rank (\d{1,9}) both on CUDA device (\w+)")


def duplicates(failures: Iterable[Failure]) -> str | None:
    """Who shares a GPU, from all of NCCL's warnings together: "ranks 0, 1, 2 of h017 share CUDA device 1000"; None where no line says."""
    shared: dict[tuple[str, str], set[int]] = {}
    for failure in failures:
        if match := _DUPLICATE_RANKS.search(failure.text):
            shared.setdefault((match[1], match[4]), set()).update((int(match[2]), int(match[3])))
    words = [f"ranks {', '.join(map(str, sorted(ranks)))} of {host} share CUDA device {device}" for (host, device), ranks in shared.items()]
    return "; ".join(words[:16]) or None
