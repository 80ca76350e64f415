"""Messages as lines: a JSON object each, over pipes and sockets alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


class LineReader:
    """Puts the bytes of one stream together to lines."""

    def __init__(self, limit_nbytes: int | None = None) -> None:
        self.limit_nbytes = limit_nbytes
        """Longest line that is accepted; None for any."""
        self._chunks: list[bytes] = []
        self._nbytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises ValueError where one is too long, finished or not."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._chunks, lines[0]))
            self._chunks, self._nbytes = [], 0
        self._chunks.append(rest)
        self._nbytes += len(rest)
        if self.limit_nbytes is not None and max(self._nbytes, *map(len, lines), 0) > self.limit_nbytes:
            raise ValueError(f"a line of more than {self.limit_nbytes} bytes")
        return lines


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Json:
    """The message of a line. Raises ValueError where it is no JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message
