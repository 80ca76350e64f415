"""Student's t and Holm's step-down rule: how sure one can be of a difference, and of many at once. No scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence

_TINY = 1e-300


def two_sided_p(t: float, df: float) -> float:
    """The chance of a |t| so large where there is no difference; `df` may be infinite (the normal distribution).

    P(|T| > t) = I_x(df/2, 1/2) with x = df / (df + t^2) (DLMF 8.17, Abramowitz and Stegun 26.7.1).
    """
    if math.isnan(t):
        return 1.0
    if math.isinf(df):
        return math.erfc(abs(t) / math.sqrt(2))
    return _beta_share(df / (df + t * t), df / 2, 0.5) if math.isfinite(t) else 0.0


def t_quantile(p_two_sided: float, df: float) -> float:
    """The t whose two-sided chance is `p_two_sided`, by false position with the Illinois rule (Dowell and Jarratt, BIT 11, 1971).

    The next point is that of the line through both ends; an end that stays for a second time counts half, so that both ends move.
    """
    low, high, over = 0.0, 2.0, 1.0 - p_two_sided
    while (under := two_sided_p(high, df) - p_two_sided) > 0:
        low, high, over = high, 2 * high, under
    last = 0
    for _ in range(100):
        middle = (low * under - high * over) / (under - over)
        if not low < middle < high:
            return min(max(middle, low), high)
        more = two_sided_p(middle, df) - p_two_sided
        if more > 0:
            low, over, under, last = middle, more, under / 2 if last > 0 else under, 1
        else:
            high, under, over, last = middle, more, over / 2 if last < 0 else over, -1
        if more == 0 or high - low < 1e-13 * high:
            return middle
    return (low + high) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly on one side only (DLMF 8.17.4)
        return 1.0 - _beta_share(1.0 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return min(1.0, front * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method (DLMF 3.10)."""
    c, d = 1.0, 1.0 / _away_from_0(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, 500):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1.0 / _away_from_0(1.0 + term * d)
            c = _away_from_0(1.0 + term / c)
            value *= d * c
        if abs(d * c - 1.0) < 1e-14:
            break
    return value


def _away_from_0(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which differences are sure when so many were looked for: Holm's step-down rule (Scandinavian J. of Statistics 6, 1979).

    The chance that any of those called is none is at most `alpha`, however the comparisons depend on each other.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    called = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > alpha / (len(p_values) - rank):
            break
        called[i] = True
    return called
