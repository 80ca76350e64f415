"""sweep's options as one value, filled from the command line and a TOML file, and the spec they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from nccl_bench.errors import DataError, UsageError
from nccl_bench.inputs import read_json, read_toml
from nccl_bench.measure.spec import (
    SweepSpec,
    parse_clocks,
    parse_collectives,
    parse_dtypes,
    parse_ops,
    parse_pair,
    parse_register,
    parse_roots,
    parse_sizes,
)
from nccl_bench.records import Want
from nccl_bench.units import parse_seconds, parse_size

MAX_CONFIG_NBYTES = 1 << 20
MAX_WANT_NBYTES = 16 << 20
_LONG = {"output_format": "format", "as_json": "json", "check_level": "c", "with_": "with"}
"""Parameters whose long option has another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was typed, or written in --config; see cli/sweep.py for the meanings."""

    collectives: list[str] | None
    minbytes: str | None
    maxbytes: str | None
    stepfactor: float | None
    stepbytes: str | None
    sizes: str | None
    dtype: str
    op: str
    root: str
    placement: Literal["in", "out", "both"] | None
    shift: Literal["ring", "node", "both"] | None
    pair: str | None
    mesh: str | None
    axis: str | None
    solo: bool
    with_: str | None
    skew: float | None
    want: Path | None
    check_level: int | None
    check: bool
    clock: str
    regime: Literal["streaming", "isolated"]
    register: str
    variant: list[str]
    iters: int | None
    warmup_iters: int | None
    precision: float | None
    budget: float | None
    timeout: float
    duration: str | None
    nproc_per_node: int | None
    backend: Literal["auto", "nccl", "gloo"]
    out: Path | None
    name: str | None
    keep_ranks: bool
    keep_batches: bool
    output_format: Literal["table", "nccl-tests"]
    wide: bool
    as_json: bool
    dry_run: bool
    progress: bool

    def __post_init__(self) -> None:
        if self.as_json and self.output_format != "table":
            raise UsageError("--json and --format exclude each other", "--json prints points, one a line")
        if self.iters is not None and (self.precision is not None or self.budget is not None):
            rule = "--precision" if self.precision is not None else "--budget"
            raise UsageError(f"-n and {rule} exclude each other", f"-n fixes the number of operations, {rule} lets the stopping rule find it")
        if self.out is not None and self.name is not None:
            raise UsageError("-O and --name exclude each other", "-O is the run directory itself, --name the last part of the default one")

    def spec(self) -> SweepSpec:
        """The sweep these options ask for. Raises UsageError naming the option."""
        return SweepSpec(
            collectives=parse_collectives(self.collectives or []),
            sizes=parse_sizes(self.sizes) if self.sizes is not None else None,
            min_nbytes=_size("-b/--minbytes", self.minbytes),
            max_nbytes=_size("-e/--maxbytes", self.maxbytes),
            step_factor=self.stepfactor,
            step_nbytes=_size("-i/--stepbytes", self.stepbytes),
            dtypes=parse_dtypes(self.dtype),
            ops=parse_ops(self.op),
            roots=parse_roots(self.root),
            placement=self.placement,
            shift=self.shift,
            clocks=parse_clocks(self.clock),
            regime=self.regime,
            pair=parse_pair(self.pair) if self.pair is not None else None,
            mesh=self.mesh,
            axes=tuple(dict.fromkeys(word.strip() for word in (self.axis or "").split(",") if word.strip())),
            solo=self.solo,
            beside=self.with_,
            skew=self.skew,
            want=None if self.want is None else read_want(self.want).to_json(),
            iters=self.iters,
            warmup_iters=self.warmup_iters,
            precision=self.precision,
            budget_s=self.budget,
            check=self.check if self.check_level is None else self.check_level > 0,
            register=parse_register(self.register),
            backend=self.backend,
            timeout_s=self.timeout,
            duration_s=parse_seconds(self.duration, "--duration") if self.duration is not None else None,
            keep_ranks=self.keep_ranks,
            keep_batches=self.keep_batches,
        )


def read_want(path: Path) -> Want:
    """What a `plan --emit` file asks for. Raises DataError."""
    record = read_json(path, "--want", "file of plan --emit", MAX_WANT_NBYTES, "nccl-bench plan ... --emit FILE writes it")
    try:
        return Want.from_json(record)
    except DataError as err:
        raise DataError(f"{path}: {err.why}", *err.hints) from err


def _size(what: str, text: str | None) -> int | None:
    return None if text is None else parse_size(text, what)


def with_config(given: dict[str, Any], context: typer.Context, config: Path | None) -> dict[str, Any]:
    """The options given, and for those left out the file's. Raises UsageError with path and key."""
    if config is None:
        return given
    names = {_LONG.get(param, param).replace("_", "-"): param for param in given}
    merged = dict(given)
    for key, value in read_toml(config, "--config", "list of options", MAX_CONFIG_NBYTES, error=UsageError).items():
        param = names.get(key.replace("_", "-"))
        if param is None:
            raise UsageError(f"{config}: no option is called {key!r}", f"keys are long options without dashes in front: {', '.join(sorted(names))}")
        if str(getattr(context.get_parameter_source(param), "name", "DEFAULT")) == "DEFAULT":
            merged[param] = _convert(config, key, value, param, given[param])
    return merged


_LISTS = {"collectives", "variant"}
_NUMBERS = {
    "skew": float,
    "stepfactor": float,
    "precision": float,
    "budget": float,
    "timeout": float,
    "iters": int,
    "warmup_iters": int,
    "nproc_per_node": int,
}
_CHOICES = {
    "placement": ("in", "out", "both"),
    "shift": ("ring", "node", "both"),
    "regime": ("streaming", "isolated"),
    "backend": ("auto", "nccl", "gloo"),
    "output_format": ("table", "nccl-tests"),
}


def _convert(path: Path, key: str, value: Any, param: str, default: Any) -> Any:
    """A TOML value as the option's own type."""
    if param in _LISTS:
        return [str(item) for item in (value if isinstance(value, list) else [value])]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{path}: {key} is true or false, not {value!r}")
        return value
    if param in _NUMBERS or param == "check_level":
        kind = _NUMBERS.get(param, int)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and value != int(value)):
            raise UsageError(f"{path}: {key} is a number, not {value!r}")
        return kind(value)
    if isinstance(value, (bool, dict)):
        raise UsageError(f"{path}: {key} is text, not {value!r}")
    text = ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
    if param in _CHOICES and text not in _CHOICES[param]:
        raise UsageError(f"{path}: {key} is one of {' '.join(_CHOICES[param])}, not {text!r}")
    return Path(text) if param in ("out", "want") else text
