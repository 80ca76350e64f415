"""What a command may return: an exit code that is no error of ours, with the words of its last line."""

from __future__ import annotations

from dataclasses import dataclass

MEANING = {
    0: "done",
    1: "the verdict is fail",
    2: "usage",
    3: "launch",
    4: "a collective failed or timed out",
    5: "data",
    6: "topology unknown",
    7: "wrong data",
    8: "the verdict is inconclusive",
    70: "internal error",
    129: "hung up",
    130: "interrupted",
    141: "the reader of the output left",
    143: "terminated",
}
"""Exit codes in words (CONTRACT.md section 1), for a code that came without its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: `return Ended(exit_code=1, why="fail: 33 rows, all through gpu-017")`."""

    exit_code: int
    why: str
    """The last line on stderr says this where exit_code is not 0; "" writes none (a rank that leaves the word to rank 0)."""
