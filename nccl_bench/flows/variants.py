"""Variants of a sweep: a name and what it adds to the workers' environment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from nccl_bench.errors import UsageError

BUILT_IN: dict[str, dict[str, str]] = {
    "ring": {"NCCL_ALGO": "Ring"},
    "tree": {"NCCL_ALGO": "Tree"},
    "nvls-off": {"NCCL_NVLS_ENABLE": "0"},
    "sharp": {"NCCL_COLLNET_ENABLE": "1"},
    "nic-only": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
"""Settings of NCCL (user guide, environment variables): one algorithm, no in-switch reduction, network reduction, all traffic over NICs."""
_LAUNCH = re.compile(r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_\w+|NCCL_BENCH_\w+|PYTHON\w*|LD_\w+|PATH|CUDA_VISIBLE_DEVICES")
"""Variables by which ranks find themselves and each other: a variant that changes them is another run."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,31}")
_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One pass of a sweep in workers of its own; without a name, things as they are."""

    name: str | None = None
    env: dict[str, str] = field(default_factory=dict)


def parse_variants(texts: Iterable[str]) -> tuple[Variant, ...]:
    """Variants from "ring", "NAME:ENV=VAL,ENV=VAL". Raises UsageError naming what is wrong."""
    found: dict[str, Variant] = {}
    for text in texts:
        name, colon, settings = text.partition(":")
        if not _NAME.fullmatch(name):
            raise UsageError(f"--variant {text!r}: a name is letters, digits, - _ . +", f"built in: {' '.join(BUILT_IN)}; or NAME:ENV=VALUE,...")
        if not colon and name not in BUILT_IN:
            raise UsageError(f"no variant is called {name!r}", f"built in: {' '.join(BUILT_IN)}; or say what it sets: {name}:NCCL_ALGO=Ring")
        if name in found:
            raise UsageError(f"--variant {name} was given twice")
        found[name] = Variant(name=name, env={**BUILT_IN.get(name, {}), **(_settings(text, settings) if colon else {})})
    return tuple(found.values())


def _settings(text: str, settings: str) -> dict[str, str]:
    env: dict[str, str] = {}
    for part in settings.split(","):
        match = _SETTING.fullmatch(part)
        if match is None:
            raise UsageError(f"--variant {text!r}: {part!r} is not NAME=VALUE", "for example --variant 4ch:NCCL_MAX_NCHANNELS=4,NCCL_PROTO=Simple")
        if _LAUNCH.fullmatch(match[1]):
            raise UsageError(f"--variant {text!r}: {match[1]} is no setting of NCCL: it says where ranks are", "set it for the whole run instead")
        env[match[1]] = match[2]
    return env
