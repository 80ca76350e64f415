"""The tables that are kept beside the code as JSON, and the reading of others' text files under a size limit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nccl_bench.errors import DataError

MAX_TEXT_BYTES = 64 << 20
"""Largest text file read as a topology source; a longer one is no topology, and is refused."""
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def table(name: str) -> Any:
    """The JSON table `name` of this room: gpus.json, expected.json, systems.json."""
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a file from somebody else: any bytes, CRLF and colour codes removed.

    Raises DataError naming the path where it cannot be read or is larger than `limit` bytes.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(limit + 1)
    except OSError as err:
        raise DataError(f"{path}: {err.strerror or err}") from err
    if len(raw) > limit:
        raise DataError(f"{path}: larger than {limit >> 20} MiB, which no topology file is", "give the part with the topology")
    return clean(raw.decode("utf-8", errors="replace"))


def clean(text: str) -> str:
    """The text without colour codes, byte-order mark and carriage returns."""
    return _ANSI.sub("", text.removeprefix("\ufeff")).replace("\r\n", "\n").replace("\r", "\n")


def small_int(text: str | None, limit: int = 1 << 31) -> int | None:
    """The whole number of a short text, decimal or 0x hexadecimal; None where it is none, or absurd."""
    if text is None or not re.fullmatch(r"\s*[+-]?(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})\s*", text):
        return None
    stripped = text.strip()
    value = int(stripped, 16) if "x" in stripped.lower() else int(stripped)
    return value if -limit < value < limit else None
