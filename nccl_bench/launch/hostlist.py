"""Slurm's short forms in full: node lists ("h[1-3,7],gpu[01-02]") and counts ("2(x2),1"), without asking scontrol.

scontrol waits for a minute where the controller or its configuration is out of reach; a rank has no time for that.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from nccl_bench.errors import LaunchError

MAX_HOSTS = 65536
"""A guard of ours: a list that names more hosts is a slip or a bomb, not a cluster."""

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_PLAIN = re.compile(r"[^\s\[\],]*")


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a node list, in its order: "a-[0-1],b-3", "r[1-2]n[01-03]", "gpu[08-11]-ib".

    Numbers keep the zeros of the first of a range. Raises LaunchError with the text where it is no node list, or
    names more than 65,536 hosts.
    """
    hosts: list[str] = []
    for word in _words(text):
        parts = tuple(_parts(word, text))
        size = 1
        for part in parts:
            size *= len(part)
        if len(hosts) + size > MAX_HOSTS:
            raise _bad(text, f"more than {MAX_HOSTS} hosts")
        hosts.extend("".join(piece) for piece in itertools.product(*parts))
    return tuple(hosts)


def tasks_per_node(text: str) -> tuple[int, ...]:
    """The counts of "2(x2),1": (2, 2, 1). Raises LaunchError with the text."""
    counts: list[int] = []
    for word in text.strip().split(","):
        match = _COUNT.fullmatch(word.strip())
        if match is None:
            raise LaunchError(f"{text[:200]!r} is no list of tasks a node", "Slurm writes it as 2(x2),1")
        times = int(match[2] or 1)
        if len(counts) + times > MAX_HOSTS:
            raise LaunchError(f"{text[:200]!r} counts the tasks of more than {MAX_HOSTS} nodes")
        counts.extend([int(match[1])] * times)
    return tuple(counts)


def _words(text: str) -> Iterator[str]:
    """The comma-separated words; commas within brackets do not separate."""
    word, inside = "", False
    for char in text.strip():
        if char == "," and not inside:
            yield word
            word = ""
            continue
        if char in "[]":
            if inside == (char == "["):
                raise _bad(text, "brackets do not match")
            inside = not inside
        word += char
    if inside:
        raise _bad(text, "a bracket is not closed")
    if word or not text.strip():
        yield word


def _parts(word: str, text: str) -> Iterator[tuple[str, ...]]:
    """The pieces of one word, each with its alternatives: "r[1-2]n" -> ("r",), ("1", "2"), ("n",)."""
    if not word:
        raise _bad(text, "an empty name")
    for index, piece in enumerate(re.split(r"[\[\]]", word)):
        if index % 2:
            yield tuple(_numbers(piece, text))
        elif _PLAIN.fullmatch(piece) is None:
            raise _bad(text, f"{piece[:60]!r} is no host name")
        elif piece:
            yield (piece,)


def _numbers(piece: str, text: str) -> list[str]:
    numbers: list[str] = []
    for word in piece.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise _bad(text, f"{word[:60]!r} is no number or range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _bad(text, f"{word} counts down")
        if len(numbers) + last - first + 1 > MAX_HOSTS:
            raise _bad(text, f"more than {MAX_HOSTS} hosts")
        width = len(match[1])
        numbers.extend(f"{number:0{width}d}" for number in range(first, last + 1))
    return numbers


def _bad(text: str, why: str) -> LaunchError:
    return LaunchError(f"{text[:200]!r} is no Slurm node list: {why}", "see SLURM_STEP_NODELIST and SLURM_JOB_NODELIST: gpu[001-004]")
