"""The tables of element types and reductions: torch's names, nccl-tests' names, sizes, and which integers each holds exactly."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_bench.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtype:
    """One element type."""

    name: str
    """torch's name."""
    nccl_tests: str
    """nccl-tests' name (its common.cu test_typenames)."""
    itemsize: int
    exact_int: int
    """Every integer from 0 to this one is exact: 2**(mantissa bits + 1) for floats (IEEE 754; OCP 8-bit formats), the maximum for integers."""
    is_float: bool
    signed: bool = True
    aliases: tuple[str, ...] = ()


DTYPES: dict[str, Dtype] = {
    row.name: row
    for row in (
        Dtype(name="float32", nccl_tests="float", itemsize=4, exact_int=1 << 24, is_float=True, aliases=("fp32", "f32")),
        Dtype(name="bfloat16", nccl_tests="bfloat16", itemsize=2, exact_int=1 << 8, is_float=True, aliases=("bf16",)),
        Dtype(name="float16", nccl_tests="half", itemsize=2, exact_int=1 << 11, is_float=True, aliases=("fp16", "f16")),
        Dtype(name="float64", nccl_tests="double", itemsize=8, exact_int=1 << 53, is_float=True, aliases=("fp64", "f64")),
        Dtype(name="int8", nccl_tests="int8", itemsize=1, exact_int=(1 << 7) - 1, is_float=False, aliases=("char", "i8")),
        Dtype(name="uint8", nccl_tests="uint8", itemsize=1, exact_int=(1 << 8) - 1, is_float=False, signed=False, aliases=("byte", "u8")),
        Dtype(name="int32", nccl_tests="int32", itemsize=4, exact_int=(1 << 31) - 1, is_float=False, aliases=("int", "i32")),
        Dtype(name="int64", nccl_tests="int64", itemsize=8, exact_int=(1 << 63) - 1, is_float=False, aliases=("long", "i64")),
        Dtype(name="float8_e4m3fn", nccl_tests="f8e4m3", itemsize=1, exact_int=1 << 4, is_float=True, aliases=("fp8", "fp8_e4m3", "float8_e4m3")),
        Dtype(name="float8_e5m2", nccl_tests="f8e5m2", itemsize=1, exact_int=1 << 3, is_float=True, aliases=("fp8_e5m2",)),
    )
}

OPS: dict[str, str] = {"sum": "sum", "product": "prod", "max": "max", "min": "min", "avg": "avg", "premul_sum": "mulsum"}
"""Reductions: torch's ReduceOp name in lower case -> nccl-tests' name."""

NOT_IN_TORCH = ("uint32", "uint64")
"""nccl-tests has them; torch's NCCL backend does not map them (ProcessGroupNCCL's ncclDataType table)."""

_DTYPE_WORDS = {word: row.name for row in DTYPES.values() for word in (row.name, row.nccl_tests, *row.aliases)}
_OP_WORDS = {word: name for name, theirs in OPS.items() for word in (name, theirs, "average" if name == "avg" else name)}


def find_dtype(text: str) -> Dtype:
    """The row for torch's or nccl-tests' name. Raises UsageError listing the names."""
    word = text.strip().lower().removeprefix("torch.")
    if word in NOT_IN_TORCH:
        raise UsageError(f"dtype {text}: torch.distributed cannot send it", "int32 and int64 move the same bytes")
    name = _DTYPE_WORDS.get(word)
    if name is None:
        raise UsageError(f"no dtype is called {text!r}", f"there are: {' '.join(DTYPES)} (or all); nccl-tests' names work too")
    return DTYPES[name]


def find_op(text: str) -> str:
    """torch's lower-case name of a reduction ("sum", "product"). Raises UsageError listing the names."""
    name = _OP_WORDS.get(text.strip().lower())
    if name is None:
        raise UsageError(f"no reduction is called {text!r}", f"there are: {' '.join(OPS)} (or all); prod and mulsum work too")
    return name
