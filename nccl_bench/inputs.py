"""One file that a user names, as a text, a JSON object or a TOML table: never more of it than is allowed, and errors that name option and path."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from nccl_bench.errors import DataError, NcclBenchError


def read_text(path: Path, option: str, what: str, most_nbytes: int, *hints: str, error: type[NcclBenchError] = DataError) -> str:
    """The file's text. Raises `error`: cannot be read (with `hints`), larger than any `what`, or no UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(most_nbytes + 1)
    except OSError as err:
        raise error(f"{option} {path} cannot be read: {err.strerror or err}", *hints) from err
    if len(data) > most_nbytes:
        raise error(f"{option} {path}: more than {most_nbytes >> 20} MiB is no {what}", *hints)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise error(f"{option} {path}: not text: byte {err.start + 1} is no UTF-8", *hints) from err


def read_json(path: Path, option: str, what: str, most_nbytes: int, *hints: str) -> dict[str, Any]:
    """The JSON object that a file holds. Raises DataError."""
    text = read_text(path, option, what, most_nbytes, *hints)
    try:
        record = parse_json(text)
    except ValueError as err:
        raise DataError(f"{option} {path}: not JSON: {str(err).splitlines()[0]}", *hints) from err
    if not isinstance(record, dict):
        raise DataError(f"{option} {path}: no JSON object", *hints)
    return record


def read_toml(path: Path, option: str, what: str, most_nbytes: int, *hints: str, error: type[NcclBenchError] = DataError) -> dict[str, Any]:
    """The table that a TOML file holds. Raises `error`."""
    text = read_text(path, option, what, most_nbytes, *hints, error=error)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as err:
        raise error(f"{option} {path}: not TOML: {err}", *hints) from err


def parse_json(text: str) -> object:
    """A JSON value of any kind. Raises ValueError, also for one that is nested too deeply."""
    try:
        value: object = json.loads(text)
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    return value
