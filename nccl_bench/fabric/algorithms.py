"""Names of NCCL's algorithms: which of them NCCL_ALGO leaves, what NVLS can add up, which ceiling an algorithm that ran has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

KEYS = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls", "collnet": "collnet", "collnetdirect": "collnet", "collnetchain": "collnet",
    "pat": "pat",
}  # fmt: skip
_FUNCTIONS = {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter", "broadcast": "broadcast", "reduce": "reduce"}
_ANY_OP = frozenset({"int32", "uint32", "int64", "uint64", "float16", "bfloat16"})
_SUM_ONLY = frozenset({"float32", "float64"})
T = TypeVar("T")


def ceiling_key(algorithm: str) -> str:
    """The key of by_algorithm for a name as NCCL or a record writes it: "NVLSTree" -> "nvls"."""
    return KEYS.get(re.sub(r"[^a-z]", "", algorithm.split()[0].lower()) if algorithm.strip() else "", algorithm.lower())


def nvls_adds(dtype: str, op: str) -> bool:
    """Whether NVSwitch can add these up (NVIDIA/nccl 2.30.7 src/include/device.h ncclNvlsSupported); avg, int8, fp8 it cannot."""
    if dtype in _ANY_OP:
        return op in ("sum", "min", "max")
    return dtype in _SUM_ONLY and op == "sum"


def allowed(ways: Mapping[str, T], collective: str, environ: Mapping[str, str]) -> tuple[Mapping[str, T], str | None]:
    """The ways that NCCL_ALGO leaves for this collective, and a warning where it leaves none: then all of them.

    Syntax (src/graph/tuning.cc parseList): "ring,tree", "^nvls", "allreduce:ring;allgather:^nvls".
    """
    text = environ.get("NCCL_ALGO", "").strip()
    if not text or not set(ways) & {"ring", "tree", "nvls", "collnet", "pat"}:
        return ways, None
    words = _words_for(text, _FUNCTIONS.get(collective, collective.replace("_", "")))
    if words is None:
        return ways, None
    named = {KEYS.get(word.strip().lower(), "") for word in words.removeprefix("^").split(",")}
    kept = {name: way for name, way in ways.items() if (name in named) != words.startswith("^")}
    if not kept:
        return ways, f"NCCL_ALGO={text} leaves no algorithm for {collective} here: the ceilings of all are given"
    return kept, None


def _words_for(text: str, function: str) -> str | None:
    """The list that counts for a function: its own, or the one without a prefix; None where the text has neither."""
    found = None
    for token in text.split(";"):
        name, colon, words = token.partition(":")
        if not colon:
            found = name.strip()
        elif name.strip().lower() == function:
            found = words.strip()
    return found
