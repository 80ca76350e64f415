"""Writing a file that an option names: an error that says what to change, or the file."""

from __future__ import annotations

import os
from pathlib import Path

from nccl_bench.errors import UsageError
from nccl_bench.results.store import HEADER_FILE, VERDICT_FILE


def write_text(path: Path, text: str, option: str) -> None:
    """Write a text file whole, into a folder that is there. Raises UsageError naming the option.

    It is renamed into place, so that nobody reads half of it: node_exporter reads a textfile at any time.
    """
    check_writable(path, option)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if _stays(path):
            path.write_text(text, encoding="utf-8")
            return
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        raise _cannot(path, option, err.strerror or type(err).__name__) from err


def check_writable(path: Path | None, option: str, made: Path | None = None) -> None:
    """Raise UsageError before hours of measuring where a file could not be written after them.

    The folder of a file is never made: a slip in its path would be a folder that nobody looks into. `made`: the folder that
    -O names, which this run makes itself.
    """
    if path is None:
        return
    if path.is_dir():
        raise _cannot(path, option, "it is a directory")
    if made is not None and path.parent.resolve() == made.resolve() and not made.exists():
        return
    if not path.parent.is_dir():
        why = "is no directory" if path.parent.exists() else "does not exist"
        raise UsageError(f"{option} {path} cannot be written: folder {path.parent} {why}", "make it first, or name a file in a folder that exists")
    needed = path if _stays(path) else path.parent  # any other file is renamed into place
    if not os.access(needed, os.W_OK):
        raise _cannot(path, option, f"you may not write {needed}")


def check_free(out: Path | None) -> None:
    """Raise UsageError before anything is measured where the run directory that -O names holds a run."""
    held = None if out is None else next((name for name in (HEADER_FILE, VERDICT_FILE) if (out / name).exists()), None)
    if held is not None:
        raise UsageError(f"{out} holds a run already ({held})", "a run is never overwritten: name another directory with -O")


def _stays(path: Path) -> bool:
    """Whether a path is a device, a pipe or a link, which stays what it is."""
    return path.exists() and (path.is_symlink() or not path.is_file())


def _cannot(path: Path, option: str, why: str) -> UsageError:
    return UsageError(f"{option} {path} cannot be written: {why}", "name a file that you may write")
