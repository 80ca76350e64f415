"""Our stdout and stderr: there even where the caller closed them, and readable where only ASCII can be shown."""

from __future__ import annotations

import codecs
import os
import sys

PLAIN = "nccl-bench-plain"
"""Name of the error handler below."""
_IN_ASCII = {
    "µ": "u", "·": "-", "±": "+-", "≤": "<=", "≥": ">=", "×": "x", "→": "->", "…": "...", "✓": "+", "✗": "x", "▲": "^", "▼": "v",
}  # fmt: skip


def prepare_streams() -> None:
    """Make stdout and stderr take all that is written to them."""
    codecs.register_error(PLAIN, in_ascii)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Closed by whoever started us (>&-): what is written goes nowhere.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            # A terminal that cannot show µs shows us, instead of a traceback.
            stream.reconfigure(errors=PLAIN)


def in_ascii(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding lacks; ? where nothing is like them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end
