"""Shell completion: Typer writes the scripts; here are the words for what goes wrong, and what can be completed beside options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from nccl_bench.errors import UsageError

OPTIONS = ("--install-completion", "--show-completion")
_BY_HAND = "by hand: _NCCL_BENCH_COMPLETE=source_bash nccl-bench prints the script (or source_zsh, source_fish)"


def _asked(argv: Sequence[str]) -> str | None:
    """The option of completion that comes first, before any command."""
    return argv[0] if argv and argv[0] in OPTIONS else None


@contextlib.contextmanager
def completion_errors(argv: Sequence[str]) -> Iterator[None]:
    """A start-up file that cannot be written is the user's to mend, not a bug."""
    try:
        yield
    except OSError as err:
        option = _asked(argv)
        if option is None or isinstance(err, BrokenPipeError):
            raise
        raise UsageError(f"{option}: {err.filename or 'the shell'}: {err.strerror or err}", _BY_HAND) from err


def refused_shell(argv: Sequence[str], result: object) -> object:
    """The result of a command line, unless Typer did not know the shell: it ends 1 then, which is a verdict's code."""
    option = _asked(argv)
    if option is not None and result == 1:
        raise UsageError(f"{option}: completion is made for bash, zsh, fish and PowerShell, and none of them runs here", _BY_HAND)
    return result


def collectives(incomplete: str) -> list[str]:
    """Collectives that begin so."""
    from nccl_bench.collectives import COLLECTIVES

    return [name for name in (*COLLECTIVES, "all") if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Models of `plan` and `search` that begin so."""
    from nccl_bench.training.config import presets as known

    return [name for name in known() if name.startswith(incomplete)]


def clocks(incomplete: str) -> list[str]:
    """Clocks, after a comma too."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in ("auto", "graph", "queued", "eager", "host") if name.startswith(last)]
