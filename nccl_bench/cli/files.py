"""Writing a file that an option names: an error that says what to change, or the file."""

from __future__ import annotations

import os
from pathlib import Path

from nccl_bench.errors import UsageError


def write_text(path: Path, text: str, option: str) -> None:
    """Write a text file whole, its directory made where it is missing. Raises UsageError naming the option.

    It is renamed into place, so that nobody reads half of it: node_exporter reads a textfile at any time.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (path.is_symlink() or not path.is_file()):
            path.write_text(text, encoding="utf-8")  # a device, a pipe or a link stays what it is
            return
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        raise _cannot(path, option, err.strerror or type(err).__name__) from err


def check_writable(path: Path | None, option: str) -> None:
    """Raise UsageError before hours of measuring where a file could not be written after them."""
    if path is None:
        return
    if path.is_dir():
        raise _cannot(path, option, "it is a directory")
    parent = path.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise _cannot(path, option, f"{parent} cannot be written" if parent.is_dir() else f"{parent} is no directory")


def _cannot(path: Path, option: str, why: str) -> UsageError:
    return UsageError(f"{option} {path} cannot be written: {why}", "name a file that you may write")
