"""JSON to disk, whole or not at all; no number that is none, no bytes that are no text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document whole or not at all: a temporary file beside it, fsynced, renamed into place. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, (dumps(document, indent=1) + "\n").encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def dumps(record: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON text of a record: one compact line, or indented."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(_clean(record), ensure_ascii=False, allow_nan=False, separators=separators, indent=indent)


def _clean(value: Any) -> Any:
    """The value as JSON has it: no number that is none is written as one, and bytes of a file name that are no text become "?"."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        case Mapping():
            return {_clean(str(key)): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
    return value


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data. Raises OSError, with a part written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: Path) -> None:
    """Make a new name durable, where the file system can sync a directory (some network ones cannot)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        return
    finally:
        os.close(fd)


def reason(err: OSError) -> str:
    """Why the system refused, in its words."""
    return err.strerror or type(err).__name__
