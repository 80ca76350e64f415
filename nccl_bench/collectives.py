"""The table of collectives: bus factor, byte convention, alignment, placements through torch, names elsewhere.

Sizes are nccl-tests' sizes: bytes of the larger of a rank's send and receive buffers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nccl_bench.errors import UsageError

Placement = Literal["in", "out"]
Shift = Literal["ring", "node"]

NCCL_TESTS_ALIGN = 16
"""Bytes a rank's part is aligned to where nccl-tests aligns it (`-(16/eltSize)` in its all_gather.cu and siblings)."""


def _ring_reduce(n: int) -> float:
    return 2 * (n - 1) / n


def _ring_share(n: int) -> float:
    return (n - 1) / n


def _one(n: int) -> float:
    return 1.0 if n > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One row of the table."""

    name: str
    factor: Callable[[int], float]
    """Bus bandwidth over algorithm bandwidth for n ranks (nccl-tests doc/PERFORMANCE.md); 0 for one rank."""
    placements: tuple[Placement, ...]
    """What torch.distributed offers; the first is our default. all_reduce, broadcast and reduce have one buffer only."""
    split: bool = False
    """Whether the size is shared out among ranks: then each part is a multiple of 16 B, as in nccl-tests."""
    rooted: bool = False
    reducing: bool = False
    one_way: bool = False
    """Whether a rank can finish without waiting for all others, so that streaming calls pipeline (a rate, not a latency)."""
    nccl_tests: str
    """The name in nccl-tests' programs, without `_perf`."""
    aliases: tuple[str, ...] = ()


_IN: tuple[Placement, ...] = ("in",)
_OUT: tuple[Placement, ...] = ("out",)
_BOTH: tuple[Placement, ...] = ("out", "in")

COLLECTIVES: dict[str, Collective] = {
    row.name: row
    for row in (
        Collective(name="all_reduce", factor=_ring_reduce, placements=_IN, reducing=True, nccl_tests="all_reduce"),
        Collective(name="all_gather", factor=_ring_share, placements=_BOTH, split=True, nccl_tests="all_gather"),
        Collective(name="reduce_scatter", factor=_ring_share, placements=_BOTH, split=True, reducing=True, nccl_tests="reduce_scatter"),
        Collective(name="sendrecv", factor=_one, placements=_OUT, one_way=True, nccl_tests="sendrecv", aliases=("send_recv",)),
        Collective(name="all_to_all", factor=_ring_share, placements=_OUT, split=True, nccl_tests="alltoall", aliases=("a2a",)),
        Collective(name="broadcast", factor=_one, placements=_IN, rooted=True, one_way=True, nccl_tests="broadcast", aliases=("bcast",)),
        Collective(name="reduce", factor=_one, placements=_IN, rooted=True, reducing=True, one_way=True, nccl_tests="reduce"),
        Collective(name="gather", factor=_ring_share, placements=_OUT, split=True, rooted=True, one_way=True, nccl_tests="gather"),
        Collective(name="scatter", factor=_ring_share, placements=_OUT, split=True, rooted=True, one_way=True, nccl_tests="scatter"),
        Collective(name="pingpong", factor=_one, placements=_OUT, nccl_tests="pingpong", aliases=("ping_pong",)),
    )
}
DEFAULT_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "sendrecv")
"""What training jobs use most; the order of the table."""


def _key(text: str) -> str:
    return text.lower().removesuffix("_perf").replace("-", "").replace("_", "")


_BY_KEY = {_key(word): row.name for row in COLLECTIVES.values() for word in (row.name, row.nccl_tests, *row.aliases)}


def find(text: str) -> Collective:
    """The row for "all_reduce", "allreduce", "all-reduce" or "all_reduce_perf". Raises UsageError listing the names."""
    name = _BY_KEY.get(_key(text))
    if name is None:
        close = difflib.get_close_matches(_key(text), _BY_KEY, n=1)
        meant = [f"did you mean {_BY_KEY[close[0]]}?"] if close else []
        raise UsageError(f"no collective is called {text!r}", *meant, f"there are: {' '.join(COLLECTIVES)} (or all)")
    return COLLECTIVES[name]


def bus_factor(name: str, n: int) -> float:
    """Ratio of bus to algorithm bandwidth for `n` ranks; 0 for one rank (nccl-tests doc/PERFORMANCE.md)."""
    if n < 1:
        raise ValueError(f"a group has at least one rank, not {n}")
    return COLLECTIVES[name].factor(n)


def effective_nbytes(name: str, requested_nbytes: int, n: int, itemsize: int) -> int:
    """Bytes really moved for a requested size: the largest size <= requested that n ranks can share.

    Split collectives give each rank a multiple of 16 B, as nccl-tests does; the others any whole number of elements.
    """
    if COLLECTIVES[name].split:
        part = requested_nbytes // n // max(NCCL_TESTS_ALIGN, itemsize) * max(NCCL_TESTS_ALIGN, itemsize)
        return part * n
    return requested_nbytes // itemsize * itemsize


def buffer_nbytes(name: str, nbytes: int, n: int, placement: Placement) -> tuple[int, int]:
    """Bytes of a rank's (send, receive) buffers for one operation of size `nbytes`; in place they share the larger."""
    part = nbytes // n if COLLECTIVES[name].split else nbytes
    send, receive = {
        "all_gather": (part, nbytes),
        "reduce_scatter": (nbytes, part),
        "gather": (part, nbytes),
        "scatter": (nbytes, part),
    }.get(name, (nbytes, nbytes))
    return (max(send, receive), 0) if placement == "in" else (send, receive)


def count_elements(name: str, nbytes: int, n: int, itemsize: int) -> int:
    """The `count` column of nccl-tests: elements of the smaller buffer's share where the size is shared out, else of the buffer."""
    return nbytes // itemsize // (n if COLLECTIVES[name].split else 1)
