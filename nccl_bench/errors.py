"""The tree of exceptions; each class carries the exit code that the command line ends with.

    NcclBenchError 70      never raised itself
      UsageError 2         a bad option or combination, an output that cannot be written
      LaunchError 3        contradictory launcher variables, too few GPUs, a rank that died before the first case
      WorldError 4         a collective failed or timed out, ranks did not meet, a rank died later
      DataError 5          a run, log or file that cannot be read
      DetectError 6        topology asked for and not found, or unknown hardware
      WrongDataError 7     wrong data in a collective's result
      InterruptedRun       128 + the signal's number
"""

from __future__ import annotations

import errno

TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
"""What the system says when a process, or all of them, may open no more files."""

PASS, FAIL, INCONCLUSIVE, BUG = 0, 1, 8, 70
"""Exit codes that no exception carries: the verdicts, and a bug of ours."""


class NcclBenchError(Exception):
    """An error a user can act on: `why` in one line, then what to do."""

    exit_code = BUG

    def __init__(self, why: str, *hints: str) -> None:
        super().__init__(why)
        self.why = why
        """One line: what went wrong, and where (path:line, rank, host)."""
        self.hints = hints
        """Lines that say what to do about it."""


class UsageError(NcclBenchError):
    """A bad option, a bad combination, an unreadable criteria file, an output that cannot be written."""

    exit_code = 2


class LaunchError(NcclBenchError):
    """The ranks cannot start as launched: contradictory variables, unlike versions, GPUs missing or shared, torch missing."""

    exit_code = 3


class WorldError(NcclBenchError):
    """A collective failed or timed out, a rank died after the first case, or ranks did not meet in time."""

    exit_code = 4


class DataError(NcclBenchError):
    """A run, log or file that cannot be read."""

    exit_code = 5


class DetectError(NcclBenchError):
    """Topology was asked for and cannot be found, or a device is unknown."""

    exit_code = 6


class WrongDataError(NcclBenchError):
    """A collective delivered wrong data."""

    exit_code = 7


class InterruptedRun(NcclBenchError):
    """A signal ended the run; what was measured is kept."""

    def __init__(self, signal_number: int, why: str, *hints: str) -> None:
        super().__init__(why, *hints)
        self.exit_code = 128 + signal_number


def too_many_files(err: OSError) -> LaunchError:
    """One of TOO_MANY_FILES as an error a user can act on."""
    if err.errno == errno.ENFILE:
        return LaunchError("this machine may open no more files", "raise fs.file-max, or see who holds them: lsof | wc -l")
    try:
        import resource

        limit = f" than {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    except ImportError:  # not a POSIX system
        limit = ""
    return LaunchError(f"this process may open no more files{limit}", "raise the limit before the start: ulimit -n 65536")
