"""Verdicts by size in words: which range of sizes changed, by how much, and what of the rest."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from nccl_bench.units import format_size

MAX_RANGES = 3
"""Ranges named one by one; more of them are counted."""

Sized = tuple[int, str, float]
"""(bytes, verdict, change of speed as a fraction)."""


def size_range(first: int, last: int) -> str:
    """ "4-64 MiB", "512 KiB-64 MiB", "1 GiB"."""
    low, high = format_size(first), format_size(last)
    if first == last:
        return low
    return f"{low.split()[0]}-{high}" if low.split()[1:] == high.split()[1:] else f"{low}-{high}"


def sentence(name: str, cases: Sequence[Sized]) -> str:
    """One sentence of one collective. Sizes with several cases (placements, types) changed where any of them did."""
    at: dict[int, list[Sized]] = {}
    for case in cases:
        at.setdefault(case[0], []).append(case)
    sizes = sorted(at)
    marks = {nbytes: _mark(at[nbytes]) for nbytes in sizes}
    runs = [(mark, list(found)) for mark, found in itertools.groupby(sizes, key=lambda nbytes: marks[nbytes])]
    changed = [(mark, found) for mark, found in runs if mark is not None]
    if not changed:
        return f"{name} {size_range(sizes[0], sizes[-1])}: no difference shown"
    if len(changed) > MAX_RANGES:
        parts = [_scattered(mark, sizes, marks, cases) for mark in ("regression", "improvement") if mark in marks.values()]
        return f"{name} {', '.join(parts)}; the others unchanged"
    parts = [f"{size_range(found[0], found[-1])} is {_amount(mark, found, cases)}" for mark, found in changed]
    rest = _rest([mark for mark, _ in runs])
    return f"{name} {', '.join(parts)}" + (f"; {rest} unchanged" if rest else "")


def sizes_in_words(found: Sequence[int]) -> str:
    """ "64 KiB", "64 KiB, 1 MiB and 4 MiB", "12 sizes in 64 KiB-1 GiB"."""
    sizes = sorted(set(found))
    if len(sizes) > MAX_RANGES:
        return f"{len(sizes)} sizes in {size_range(sizes[0], sizes[-1])}"
    words = [format_size(nbytes) for nbytes in sizes]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _scattered(mark: str, sizes: Sequence[int], marks: dict[int, str | None], cases: Sequence[Sized]) -> str:
    found = [nbytes for nbytes in sizes if marks[nbytes] == mark]
    return f"at {len(found)} of {len(sizes)} sizes in {size_range(found[0], found[-1])} is {_amount(mark, found, cases)}"


def _mark(cases: Sequence[Sized]) -> str | None:
    """ "regression" where any case is one, else "improvement" where any is, else None."""
    verdicts = {verdict for _, verdict, _ in cases}
    return next((word for word in ("regression", "improvement") if word in verdicts), None)


def _amount(mark: str | None, sizes: Sequence[int], cases: Sequence[Sized]) -> str:
    """ "12 % slower", "12 to 15 % faster": of the cases that changed."""
    wanted = set(sizes)
    found = sorted(abs(100 * change) for nbytes, verdict, change in cases if nbytes in wanted and verdict == mark)
    low, high, middle = found[0], found[-1], statistics.median(found)
    spread = f"{low:.0f} to {high:.0f}" if round(low) != round(high) and high - low > 0.1 * high else f"{middle:.0f}"
    n_cases = sum(nbytes in wanted for nbytes, _, _ in cases)
    share = f" in {len(found)} of {n_cases} cases" if len(found) < n_cases else ""
    return f"{spread} % {'slower' if mark == 'regression' else 'faster'}{share}"


def _rest(marks: Sequence[str | None]) -> str:
    """Where the unchanged sizes lie: "small and large", "small", "large", "the sizes between"."""
    small, large = marks[0] is None, marks[-1] is None
    between = any(mark is None for mark in marks[1:-1])
    words = [word for word, there in (("small", small), ("large", large)) if there]
    if between and not words:
        return "the sizes between"
    return " and ".join(words) + (" and some between" if between and words else "")
