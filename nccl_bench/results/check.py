"""Whether what a file said has the types its record declares: files come from other hands.

`Point.from_json` and `RunHeader.from_json` take values as they are; a reader calls `check` on the result, so that
"nbytes": "8" is an error with its place and not a crash in some later room.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nccl_bench.errors import DataError

Test = Callable[[object], bool]


def check(value: Any) -> None:
    """Raise DataError naming the first field of a record whose value is not of the declared type."""
    cls: Any = type(value)
    for key, fits, hint in _tests(cls):
        found = getattr(value, key)
        if not fits(found):
            raise DataError(f"{key.rstrip('_')} is {_short(found)}, not {hint}")


@cache
def _tests(cls: Any) -> tuple[tuple[str, Test, str], ...]:
    hints = get_type_hints(cls)
    return tuple((item.name, _test(hints[item.name]), str(item.type)) for item in fields(cls))


def _test(hint: Any) -> Test:
    """A test of one declared type; the shapes that records.py uses, and no other."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda _: True
    if origin is Literal:
        return lambda value: value in args
    if origin in (Union, types.UnionType):
        options = tuple(_test(arg) for arg in args)
        return lambda value: any(fits(value) for fits in options)
    if origin is tuple:
        item = _test(args[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin in (dict, Mapping):
        return lambda value: isinstance(value, dict)
    return _plain(hint)


def _plain(hint: type) -> Test:
    if is_dataclass(hint):
        return lambda value: isinstance(value, hint) and all(fits(getattr(value, key)) for key, fits, _ in _tests(hint))
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    return lambda value: isinstance(value, hint)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
