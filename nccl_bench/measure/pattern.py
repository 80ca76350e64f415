"""The numbers that are sent, and what must arrive, in exact integer arithmetic; no torch.

Element i of slot s on rank r is `values[(phase(i) + RANK_STEP * r + SLOT_STEP * s) % MODULUS]`. As only the residue
matters, a reduction over any number of ranks is a table of MODULUS entries, computed here in Python integers and not by
the library under test. phase(i) repeats after PERIOD elements, so data of any size is a tile laid again and again, yet a
block that arrives shifted, swapped or from another rank or slot differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nccl_bench.dtypes import DTYPES, Dtype

MODULUS = 61
"""A prime: no power-of-two shift of a buffer, rank or slot is a multiple of it."""
BREAK = 4093
"""The phase advances by one more at each multiple of this prime, so that shifts by multiples of MODULUS show too."""
PERIOD = MODULUS * BREAK
RANK_STEP, SLOT_STEP = 7, 17
PREMUL_FACTOR = 2.0
"""The factor of PREMUL_SUM; a power of two, so exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Values to send and, for each residue, what a reduction over all ranks must give."""

    values: tuple[int, ...]
    """[MODULUS] what a rank sends, by residue."""
    reduced: tuple[float, ...]
    """[MODULUS] what arrives, by the residue of rank 0's element; equal to `values` where nothing is reduced."""
    tolerance: float = 0.0
    """Largest |got - expected| that is right: 0 where the arithmetic is exact in the dtype."""
    why_tolerance: str | None = None


def phase(i: int) -> int:
    """The residue of element i on rank 0, slot 0."""
    return (i + i // BREAK) % MODULUS


def residue(rank: int, slot: int) -> int:
    """What rank and slot add to the phase."""
    return (RANK_STEP * rank + SLOT_STEP * slot) % MODULUS


def pattern_for(dtype_name: str, op: str | None, n: int) -> Pattern:
    """The pattern for a dtype, a reduction (None: data is only moved) and n ranks.

    Values are chosen so that every partial result is exact: sums of n values stay within the integers that the dtype
    holds exactly, products are of 1, -1 and few 2s; integer types may wrap, which is exact modulo 2**bits.
    """
    dtype = DTYPES[dtype_name]
    if op is None or op in ("max", "min"):
        values = _ramp(min(MODULUS - 1, dtype.exact_int))
        if op is None:
            return Pattern(values=values, reduced=tuple(map(float, values)))
        pick = max if op == "max" else min
        return Pattern(values=values, reduced=tuple(float(pick(column)) for column in _columns(values, n)))
    if op == "product":
        values = _factors(dtype, n)
        return Pattern(values=values, reduced=tuple(_wrap(prod(column), dtype) for column in _columns(values, n)))
    return _sum(dtype, op, n)


def _sum(dtype: Dtype, op: str, n: int) -> Pattern:
    scale = 2 if op == "premul_sum" else 1
    values = _addends(dtype, n * scale)
    sums = [sum(column) for column in _columns(values, n)]
    if op == "premul_sum":
        return Pattern(values=values, reduced=tuple(_wrap(2 * total, dtype) for total in sums))
    inexact = dtype.is_float and max(sums) > dtype.exact_int
    if op == "sum":
        tolerance = max(sums) / dtype.exact_int * 2 if inexact else 0.0
        why = f"sums of {n} ranks exceed the integers {dtype.name} holds exactly" if inexact else None
        return Pattern(values=values, reduced=tuple(_wrap(total, dtype) for total in sums), tolerance=tolerance, why_tolerance=why)
    if not dtype.is_float:
        # Integer averages round towards zero or to nearest, by library: one unit is allowed.
        return Pattern(
            values=values, reduced=tuple(float(total // n) for total in sums), tolerance=1.0, why_tolerance="integer averages may round either way"
        )
    exact = n & (n - 1) == 0 and not inexact
    # Each rank's share is rounded once and each addition once: n + 1 roundings of at most 2**-mantissa of the largest result.
    tolerance = 0.0 if exact else (n + 1) * (max(sums) / n + 1) / dtype.exact_int
    why = None if exact else f"x/{n} is rounded on each of {n} ranks"
    return Pattern(values=values, reduced=tuple(total / n for total in sums), tolerance=tolerance, why_tolerance=why)


def _columns(values: tuple[int, ...], n: int) -> list[list[int]]:
    """For each residue of rank 0, the values of all ranks there; MODULUS ranks make a full turn, so counts repeat."""
    return [[values[(j + RANK_STEP * r) % MODULUS] for r in range(n)] for j in range(MODULUS)]


def _ramp(top: int) -> tuple[int, ...]:
    return tuple(j % (top + 1) for j in range(MODULUS))


def _addends(dtype: Dtype, n: int) -> tuple[int, ...]:
    """0..v with n * v exact; past that, ones that are rarer the more ranks there are."""
    if not dtype.is_float:
        return _ramp(min(MODULUS - 1, max(1, dtype.exact_int // n)))
    top = dtype.exact_int // n
    if top >= 1:
        return _ramp(min(MODULUS - 1, top))
    every = min(MODULUS, -(-n // dtype.exact_int) + 1)
    return tuple(int(j % every == 0) for j in range(MODULUS))


def _factors(dtype: Dtype, n: int) -> tuple[int, ...]:
    few = (1, -1, 2) if n <= 8 else (1, -1)
    if not dtype.signed:
        few = (1, 3)
    return tuple(few[j % len(few)] for j in range(MODULUS))


def _wrap(value: int, dtype: Dtype) -> float:
    """The value modulo 2**bits, as two's complement arithmetic leaves it; floats as they are.

    Beyond 2**53 a float cannot say it exactly; int64 results here stay far below that, or wrap to where it does not matter.
    """
    if dtype.is_float:
        return float(value)
    bits = 8 * dtype.itemsize
    value %= 1 << bits
    return float(value - (1 << bits) if dtype.signed and value >= 1 << (bits - 1) else value)
