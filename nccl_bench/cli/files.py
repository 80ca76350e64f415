"""Writing a file that an option names: an error that says what to change, or the file."""

from __future__ import annotations

from pathlib import Path

from nccl_bench.errors import UsageError


def write_text(path: Path, text: str, option: str) -> None:
    """Write a text file, its directory made where it is missing. Raises UsageError naming the option."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as err:
        raise UsageError(f"{option} {path} cannot be written: {err.strerror or type(err).__name__}", "name a file that you may write") from err
