"""What was asked for: the frozen SweepSpec, its checks, its sizes; no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from nccl_bench.collectives import COLLECTIVES, DEFAULT_COLLECTIVES, Placement, Shift, find
from nccl_bench.dtypes import DTYPES, OPS, find_dtype, find_op
from nccl_bench.errors import UsageError
from nccl_bench.groups import axis_groups, parse_mesh
from nccl_bench.records import Clock, Register, Spec
from nccl_bench.units import MAX_NBYTES, format_size, parse_size

Backend = Literal["nccl", "gloo"]
ClockChoice = Literal["auto", "graph", "queued", "eager", "host"]
ALL_ROOTS = -1
"""As nccl-tests' `-r -1`: every rank in turn."""

MAX_SIZES = 100_000
DEFAULT_SIZES: dict[str, tuple[int, int, float]] = {"nccl": (8, 8 << 30, 2.0), "gloo": (1 << 10, 16 << 20, 4.0)}
"""(smallest, largest, factor): what users of nccl-tests explore; gloo's range takes seconds on a laptop (CONTRACT.md)."""
DEFAULT_PRECISION: dict[str, float] = {"nccl": 0.01, "gloo": 0.05}
DEFAULT_BUDGET_S: dict[str, float] = {"nccl": 2.0, "gloo": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec(Spec):
    """One sweep as asked for; None means the default, which depends on the backend and the world."""

    collectives: tuple[str, ...] = DEFAULT_COLLECTIVES
    sizes: tuple[int, ...] | None = None
    """An explicit list, bytes; excludes the range below."""
    each: tuple[tuple[str, int], ...] = ()
    """(collective, bytes): of a collective that is named here these sizes, in place of those of all."""
    min_nbytes: int | None = None
    max_nbytes: int | None = None
    step_factor: float | None = None
    step_nbytes: int | None = None
    dtypes: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] = (0,)
    placement: Literal["in", "out", "both"] | None = None
    shift: Literal["ring", "node", "both"] | None = None
    clocks: tuple[ClockChoice, ...] = ("auto",)
    regime: Literal["streaming", "isolated"] = "streaming"
    pair: tuple[int, int] | None = None
    """pingpong: the one pair of ranks."""
    iters: int | None = None
    """Operations a case; None: the stopping rule."""
    warmup_iters: int | None = None
    precision: float | None = None
    """Half-width of the 95 % interval over the median to stop at."""
    budget_s: float | None = None
    """Seconds a case."""
    check: bool = True
    register: Register = "none"
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    timeout_s: float = 60.0
    duration_s: float | None = None
    keep_ranks: bool = False
    keep_batches: bool = False
    variant: str | None = None
    """Name of the variant that this pass runs; its environment is the workers'."""
    load: Literal["gemm"] | None = None
    """What else runs on every GPU meanwhile (accept's soak)."""
    mesh: str | None = None
    """All ranks as a mesh (groups.parse_mesh): each axis is measured, all its groups at once."""
    axes: tuple[str, ...] = ()
    """Of the mesh; empty: all that have more than one rank."""
    solo: bool = False
    """Also with one group of each axis alone."""
    beside: str | None = None
    """ "dp:reduce_scatter": this kind at the same time, on another axis."""
    skew: float | None = None
    """all_to_all: the largest share over the mean."""
    want: dict[str, Any] | None = None
    """What `plan --emit` asks for (records.Want as JSON), in place of collectives and sizes."""

    def __post_init__(self) -> None:
        check_mesh(self)
        _check_sizes(self)
        _check_numbers(self)
        _check_combinations(self)

    def digest(self) -> str:
        """Short hash by which ranks see that they were given the same options."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def check_mesh(spec: SweepSpec) -> None:
    """Raise UsageError where mesh options do not go together, or name what is not there."""
    if spec.want is not None:
        if spec.mesh is not None or spec.beside is not None or spec.skew is not None or spec.sizes is not None:
            raise UsageError("--want says itself what is measured", "leave out --mesh, --axis, --with, --skew and --sizes")
        parse_mesh(str(spec.want.get("mesh")), "--want")
        return
    if spec.mesh is None:
        given = [name for name, on in (("--axis", spec.axes), ("--solo", spec.solo), ("--with", spec.beside)) if on]
        if given:
            raise UsageError(f"{given[0]} needs --mesh", "for example --mesh pp=2,dp=4,tp=8 --axis tp")
    else:
        mesh = parse_mesh(spec.mesh)
        for axis in spec.axes:
            axis_groups(mesh, axis)
        if spec.pair is not None:
            raise UsageError("--pair names two ranks of all; it does not go with --mesh")
    if spec.beside is not None:
        axis, name = parse_beside(spec.beside)
        axis_groups(parse_mesh(spec.mesh or ""), axis)
        find(name)
        if axis in spec.axes:
            raise UsageError(f"--with {spec.beside}: a kind is not measured beside itself", "name another axis")
    if spec.skew is not None and (spec.collectives != ("all_to_all",) or not 1.0 < spec.skew < 1e6):
        raise UsageError("--skew belongs to all_to_all, and is more than 1", "nccl-bench sweep all_to_all --skew 2: one rank gets twice the mean")


def parse_beside(text: str) -> tuple[str, str]:
    """(axis, collective) of "dp:reduce_scatter". Raises UsageError."""
    axis, colon, name = text.rpartition(":")
    if not colon or not axis:
        raise UsageError(f"--with {text!r} is not AXIS:COLLECTIVE", "for example --with dp:reduce_scatter")
    return axis, find(name).name


def _check_sizes(spec: SweepSpec) -> None:
    ranged = (spec.min_nbytes, spec.max_nbytes, spec.step_factor, spec.step_nbytes)
    if spec.sizes is not None and any(value is not None for value in ranged):
        raise UsageError("--sizes and a range (-b -e -f -i) exclude each other", "give one of them")
    if spec.sizes is not None and not spec.sizes:
        raise UsageError("--sizes: the list is empty", "for example --sizes 8,64K,1M")
    if spec.step_factor is not None and spec.step_nbytes is not None:
        raise UsageError("-f (factor) and -i (step in bytes) exclude each other", "give one of them")
    if spec.step_factor is not None and not 1.0 < spec.step_factor <= MAX_NBYTES:
        raise UsageError(f"-f {spec.step_factor:g}: the factor between sizes is more than 1", "-f 2 doubles")
    if spec.step_nbytes is not None and spec.step_nbytes < 1:
        raise UsageError("-i: the step between sizes is at least 1 byte", "-i 1M")
    if spec.min_nbytes is not None and spec.max_nbytes is not None and spec.min_nbytes > spec.max_nbytes:
        raise UsageError(f"-b {format_size(spec.min_nbytes)} is more than -e {format_size(spec.max_nbytes)}", "-b is the smallest size")
    for name, value in (("-b", spec.min_nbytes), ("-e", spec.max_nbytes), *(("--sizes", size) for size in spec.sizes or ())):
        if value is not None and value < 1:
            raise UsageError(f"{name}: a size is at least 1 byte", "the smallest useful one is one element, 4 bytes of float32")


def _check_numbers(spec: SweepSpec) -> None:
    for name, value, low in (
        ("-n/--iters", spec.iters, 1),
        ("-w/--warmup-iters", spec.warmup_iters, 0),
        ("--budget", spec.budget_s, 1e-3),
        ("-T/--timeout", spec.timeout_s, 0.1),
        ("--duration", spec.duration_s, 1e-3),
    ):
        if value is not None and not low <= value < 1e9:
            raise UsageError(f"{name} {value:g} is out of range", f"it is at least {low:g}")
    if spec.precision is not None and not 0 < spec.precision < 1:
        raise UsageError(f"--precision {spec.precision:g} is not between 0 and 1", "0.01 stops at an interval of ±1 %")
    if any(root < ALL_ROOTS for root in spec.roots):
        raise UsageError(f"-r {min(spec.roots)}: a root is a rank, or -1 (or all) for every rank in turn")


def _check_combinations(spec: SweepSpec) -> None:
    if not spec.collectives:
        raise UsageError("no collective was named", f"there are: {' '.join(COLLECTIVES)}")
    if "auto" in spec.clocks and len(spec.clocks) > 1:
        raise UsageError("--clock auto stands alone", "name the clocks you want: --clock graph,eager")
    if spec.pair is not None:
        if spec.collectives != ("pingpong",):
            raise UsageError("--pair belongs to pingpong", "nccl-bench sweep pingpong --pair 0,8")
        if spec.pair[0] == spec.pair[1] or min(spec.pair) < 0:
            raise UsageError(f"--pair {spec.pair[0]},{spec.pair[1]}: a pair is two different ranks")
    if spec.register == "graph" and not set(spec.clocks) <= {"auto", "graph"}:
        raise UsageError(
            f"--register graph goes with --clock graph, not {','.join(spec.clocks)}", "graph registration happens when a graph is captured"
        )
    if spec.backend == "gloo":
        check_backend(spec, "gloo")


def check_backend(spec: SweepSpec, backend: Backend) -> None:
    """Raise UsageError where the spec asks for what `backend` cannot do."""
    if backend == "nccl":
        return
    cuda = [clock for clock in spec.clocks if clock in ("graph", "queued", "eager")]
    if cuda:
        raise UsageError(
            f"--clock {','.join(cuda)} needs CUDA and NCCL; this run is on gloo (CPU)",
            "leave --clock out, or --clock host; on a GPU node it works as asked",
        )
    if spec.register != "none":
        raise UsageError(f"--register {spec.register} needs CUDA and NCCL; this run is on gloo (CPU)", "leave --register out")


def clocks_of(spec: SweepSpec, backend: Backend, one_domain: bool) -> tuple[Clock, ...]:
    """The clocks to run: auto is graph where all ranks share a host or an NVLink domain, else queued; host on gloo (DESIGN.md section 2)."""
    if spec.clocks != ("auto",):
        return tuple(clock for clock in spec.clocks if clock != "auto")
    if backend == "gloo":
        return ("host",)
    return ("graph",) if one_domain or spec.register == "graph" else ("queued",)


def sizes_of(spec: SweepSpec, backend: Backend, largest_nbytes: int | None = None, collective: str | None = None) -> tuple[int, ...]:
    """The requested sizes in bytes, ascending as given; a default end is brought down to `largest_nbytes` (what memory holds)."""
    if own := tuple(nbytes for name, nbytes in spec.each if name == collective):
        return own
    if spec.sizes is not None:
        return spec.sizes
    low, high, factor = DEFAULT_SIZES[backend]
    first = spec.min_nbytes if spec.min_nbytes is not None else min(low, spec.max_nbytes or low)
    last = spec.max_nbytes if spec.max_nbytes is not None else max(high, first)
    if spec.max_nbytes is None and largest_nbytes is not None:
        last = max(first, min(last, largest_nbytes))
    return tuple(_steps(first, last, spec.step_factor or factor, spec.step_nbytes))


def _steps(first: int, last: int, factor: float, step: int | None) -> Iterable[int]:
    size, count = first, 0
    while size <= last:
        yield size
        count += 1
        if count > MAX_SIZES:
            raise UsageError(f"more than {MAX_SIZES} sizes between {format_size(first)} and {format_size(last)}", "take a larger -i or -f")
        size = size + step if step is not None else max(size + 1, int(size * factor))


def placements_of(spec: SweepSpec, collective: str) -> tuple[Placement, ...]:
    """The placements asked for; the default is out of place where the API has it."""
    if spec.placement is None:
        return COLLECTIVES[collective].placements[:1]
    return ("out", "in") if spec.placement == "both" else (spec.placement,)


def shifts_of(spec: SweepSpec, collective: str, n_nodes: int) -> tuple[Shift | None, ...]:
    """sendrecv's shifts: ring on one node, both across nodes; None for all else."""
    if collective != "sendrecv":
        return (None,)
    if spec.shift is None:
        return ("ring",) if n_nodes == 1 else ("ring", "node")
    return ("ring", "node") if spec.shift == "both" else (spec.shift,)


def parse_collectives(words: Iterable[str]) -> tuple[str, ...]:
    """Names in any spelling, "all" for every one; repeats are dropped."""
    names: list[str] = []
    for word in _split(words):
        names.extend(COLLECTIVES if word.lower() == "all" else (find(word).name,))
    return tuple(dict.fromkeys(names)) or DEFAULT_COLLECTIVES


def parse_dtypes(text: str) -> tuple[str, ...]:
    """A list of dtypes, or all."""
    if text.strip().lower() == "all":
        return tuple(DTYPES)
    return _some("-d/--dtype", tuple(dict.fromkeys(find_dtype(word).name for word in _split((text,)))))


def parse_ops(text: str) -> tuple[str, ...]:
    """A list of reductions, or all."""
    if text.strip().lower() == "all":
        return tuple(OPS)
    return _some("-o/--op", tuple(dict.fromkeys(find_op(word) for word in _split((text,)))))


def parse_sizes(text: str) -> tuple[int, ...]:
    """A list of sizes: "8,64K,1M"."""
    return _some("--sizes", tuple(dict.fromkeys(parse_size(word, "--sizes") for word in _split((text,)))))


def parse_roots(text: str) -> tuple[int, ...]:
    """A list of ranks, or "all" (-1, as in nccl-tests)."""
    if text.strip().lower() == "all":
        return (ALL_ROOTS,)
    return _some("-r/--root", tuple(dict.fromkeys(_int("-r/--root", word) for word in _split((text,)))))


def parse_clocks(text: str) -> tuple[ClockChoice, ...]:
    """A list of clocks."""
    words = _some("--clock", tuple(dict.fromkeys(word.lower() for word in _split((text,)))))
    for word in words:
        if word not in get_args(ClockChoice):
            raise UsageError(f"no clock is called {word!r}", f"there are: {' '.join(get_args(ClockChoice))} (nccl-bench explain clock)")
    return words


def parse_register(text: str) -> Register:
    """A word, or the number that nccl-tests' -R takes: 0 none, 1 local (user) buffers, 2 symmetric."""
    word = {"0": "none", "1": "user", "2": "symmetric"}.get(text, text.lower())
    if word not in get_args(Register):
        raise UsageError(f"-R/--register {text!r}: it is one of {' '.join(get_args(Register))}", "or nccl-tests' 0, 1, 2: none, user, symmetric")
    return word  # type: ignore[return-value]


def parse_pair(text: str) -> tuple[int, int]:
    """ "A,B": two ranks."""
    ranks = [_int("--pair", word) for word in _split((text,))]
    if len(ranks) != 2:
        raise UsageError(f"--pair {text!r}: a pair is two ranks", "--pair 0,8")
    return ranks[0], ranks[1]


def with_defaults(spec: SweepSpec, backend: Backend) -> SweepSpec:
    """The spec with precision and budget filled in for the backend."""
    return replace(
        spec,
        precision=spec.precision if spec.precision is not None else DEFAULT_PRECISION[backend],
        budget_s=spec.budget_s if spec.budget_s is not None else DEFAULT_BUDGET_S[backend],
    )


def _split(words: Iterable[str]) -> list[str]:
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _some(what: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise UsageError(f"{what}: the list is empty")
    return values


def _int(what: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not a rank") from None
