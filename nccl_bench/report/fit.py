"""The two numbers of a curve: time = alpha + size / beta, and how well they describe it. No pandas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MIN_SIZES = 4
"""Fewer points than this are described by two numbers whatever they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """T(S) = alpha + S / beta (Hockney, The communication challenge for MPP, Parallel Computing 20, 1994)."""

    alpha_us: float
    """Time of an empty message, µs."""
    beta_GBps: float
    """Bytes of the larger buffer a second once alpha is paid: an algorithm bandwidth, GB/s."""
    error_frac: float
    """Root mean square over sizes of (fitted - measured) / measured."""


def fit_line(points: Iterable[tuple[int, float]]) -> Line | None:
    """The line through (bytes, µs) that is nearest in relative terms, so that small sizes count as much as large ones.

    Least squares of (alpha + S / beta - T) / T. None for fewer than four sizes, or where no rising line with alpha >= 0 fits.
    """
    known = sorted({nbytes: time_us for nbytes, time_us in points if time_us > 0}.items())
    if len(known) < MIN_SIZES:
        return None
    # Unknowns x = alpha, y = 1 / beta; rows (1 / T, S / T) . (x, y) = 1.
    rows = [(1 / time_us, nbytes / time_us) for nbytes, time_us in known]
    aa, ab, bb = sum(a * a for a, _ in rows), sum(a * b for a, b in rows), sum(b * b for _, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 0:
        return None
    alpha, slope = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if slope <= 0 or alpha < 0:
        return None
    mean_square = sum(((alpha + slope * nbytes) / time_us - 1) ** 2 for nbytes, time_us in known) / len(known)
    return Line(alpha_us=alpha, beta_GBps=1e-3 / slope, error_frac=math.sqrt(mean_square))
