"""What NCCL, torch and the workers wrote of their own: kept under stderr/ of the run, and said in few words."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from nccl_bench.launch.workers import is_complaint

STDERR = "stderr"
MAX_FILES = 64
"""Ranks that get a file."""
MAX_SAID = 3
"""Different lines that are said."""
WIDTH = 160
"""A longer line is said in part."""

_PREFIXES = (
    re.compile(r"^\[rank\s?\d+\]:?\s*"),
    re.compile(r"^\S+:\d+:\d+ (\[\d+\] )?"),
    re.compile(r"^\[[IWEF]\d{4} [\d:.]+ "),
)
"""What differs between ranks in one message: torch's "[rank3]: ", NCCL's "host:pid:thread [gpu] ", torch's logger's time."""


def keep_noise(path: Path, kept: Mapping[int, Sequence[str]], ras: Sequence[str] = ()) -> bool:
    """Write what workers wrote last, a file a rank, and the report of NCCL's RAS threads; True where anything was kept."""
    files = {f"rank-{rank}.txt": lines for rank, lines in sorted(kept.items())[:MAX_FILES]} | {"nccl-ras.txt": ras}
    written = False
    for name, lines in files.items():
        if lines:
            with contextlib.suppress(OSError):  # the run's own error counts, not this
                (path / STDERR).mkdir(exist_ok=True)
                (path / STDERR / name).write_text("\n".join(lines) + "\n")
                written = True
    return written


def complaining(kept: Mapping[int, Sequence[str]]) -> dict[int, Sequence[str]]:
    """The ranks of which a line warns or tells of an error."""
    return {rank: lines for rank, lines in kept.items() if any(is_complaint(line) for line in lines)}


def in_few_words(kept: Mapping[int, Sequence[str]], said: Sequence[str] = ()) -> list[str]:
    """The complaints of all ranks, the same message once: "NCCL WARN ... (x16 ranks)"; without what was `said` already."""
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for rank, lines in sorted(kept.items()):
        for line in lines:
            if is_complaint(line) and not any(line in other for other in said):
                ranks[_bare(line)].add(rank)
    messages = sorted(ranks.items(), key=lambda item: -len(item[1]))
    words = [f"{text} ({f'x{len(who)} ranks' if len(who) > 1 else f'rank {min(who)}'})" for text, who in messages[:MAX_SAID]]
    return [*words, *([f"and {len(messages) - MAX_SAID} more messages"] if len(messages) > MAX_SAID else [])]


def _bare(line: str) -> str:
    for prefix in _PREFIXES:
        line = prefix.sub("", line, count=1)
    return line.strip()[:WIDTH]
