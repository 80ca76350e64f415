"""Text to numbers and back: sizes ("64M", MiB), times (µs), rates (GB/s); nowhere else.

Sizes use powers of 1024 as nccl-tests does; GB/s is 1e9 bytes/s.
"""

from __future__ import annotations

import math
import re

from nccl_bench.errors import UsageError

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(us|ms|s|m|min|h|d)?\s*", re.IGNORECASE)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_IEC = ("B", "KiB", "MiB", "GiB", "TiB")
MAX_NBYTES = 1 << 50
"""No buffer is larger than 1 PiB; a larger number in a size option is a slip."""


def parse_size(text: str, what: str = "size") -> int:
    """Bytes of "8", "1.5G", "64 MiB", "4K" (powers of 1024, any case, fractions allowed).

    Raises UsageError naming `what` where the text is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{what}: {text!r} is not a size", "write bytes, or a number with K, M, G or T: 8, 64K, 1.5G")
    value = float(match[1]) * 1024.0 ** _POWER[match[2].lower()]
    if value > MAX_NBYTES:
        raise UsageError(f"{what}: {text!r} is more than 1 PiB", "sizes are bytes of one rank's buffer: 8G, 512M")
    return math.floor(value)


def format_size(nbytes: int) -> str:
    """"1 MiB", "1.5 GiB", "8 B", "1,000 B"-free text that `parse_size` reads back to the same number of bytes."""
    if nbytes < 0:
        raise ValueError(f"a size is not negative: {nbytes}")
    for power in range(len(_IEC) - 1, 0, -1):
        unit = 1 << (10 * power)
        # Only quarters are written as fractions: they are short and exact in binary.
        if nbytes >= unit and nbytes * 4 % unit == 0:
            return f"{nbytes / unit:g} {_IEC[power]}" if nbytes // unit < 10000 else f"{nbytes // unit} {_IEC[power]}"
    return f"{nbytes} B"


def parse_seconds(text: str, what: str = "duration") -> float:
    """Seconds of "90", "90s", "5m", "1.5h", "2d". Raises UsageError naming `what`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{what}: {text!r} is not a duration", "write seconds, or a number with s, m, h or d: 90, 5m, 4h")
    return float(match[1]) * _SECONDS[(match[2] or "s").lower()]


def short_or_exact(nbytes: int) -> str:
    """A size of three digits in a unit that it fills, for columns: "416 MiB", "8.46 GiB"; below 1 KiB exact."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{three_digits(nbytes / (1 << power))} {unit}"
    return format_size(nbytes)


def format_us(time_us: float | None) -> str:
    """A time in µs, as text with three significant digits: "5.87 µs", "34.4 ms", "1.20 s"; "-" for None."""
    if time_us is None or not math.isfinite(time_us):
        return "-"
    for limit, scale, unit in ((999.5, 1.0, "µs"), (999.5e3, 1e3, "ms"), (math.inf, 1e6, "s")):
        if abs(time_us) < limit:
            return f"{three_digits(time_us / scale)} {unit}"
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """"45 s", "1 min 20 s", "2 h 5 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def counted(n: int, one: str, many: str | None = None) -> str:
    """ "1 host", "3 hosts", "2 matches" with the plural that is none by "s"."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def three_digits(value: float) -> str:
    """Three significant digits without an exponent: 0.0123, 1.23, 12.3, 123, 1234."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{rounded:.{min(digits, 9)}f}"


def format_GBps(rate: float | None) -> str:
    """A rate in GB/s (1e9 bytes/s) with what digits mean something: "468.3", "32.2", "0.35"; "-" for None."""
    if rate is None or not math.isfinite(rate):
        return "-"
    return f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}" if rate >= 0.995 else f"{rate:.3f}"


def format_percent(frac: float | None) -> str:
    """A ratio 0-1 as percent: "98", "0.3" below 10; "-" for None."""
    if frac is None or not math.isfinite(frac):
        return "-"
    percent = 100 * frac
    return f"{percent:.0f}" if abs(percent) >= 9.95 else f"{percent:.1f}"
