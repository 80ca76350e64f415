"""From a spec and a world to the list of cases, in the order they run; what cannot run says why. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nccl_bench.collectives import COLLECTIVES, NCCL_TESTS_ALIGN, Placement, Shift, buffer_nbytes, count_elements, effective_nbytes
from nccl_bench.dtypes import DTYPES
from nccl_bench.errors import UsageError
from nccl_bench.measure.spec import ALL_ROOTS, Backend, SweepSpec, clocks_of, placements_of, shifts_of, sizes_of
from nccl_bench.records import Case, Clock, Json

SLOT_ALIGN = 512
"""Buffers start at multiples of 512 B, as cudaMalloc'd ones do at least at 256 B (CUDA C programming guide, device memory accesses)."""
PREMUL_DTYPES = ("float16", "float32", "float64")
"""What torch's NCCL backend takes for PREMUL_SUM (ProcessGroupNCCL's getNcclReduceOp), but for bfloat16: torch 2.11 hands NCCL
the factor's float32 bits there, and every result is 0 (seen on an H200 with NCCL 2.28.9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldFacts:
    """What the expansion needs to know of the world; the same on every rank."""

    n_ranks: int
    n_nodes: int
    ranks_per_node: int | None
    """None where nodes have unlike numbers of ranks."""
    backend: Backend
    one_domain: bool
    """All ranks share a host or an NVLink domain."""
    memory_nbytes: int | None = None
    """Bytes a rank may take for buffers: the least over ranks."""
    fp8: bool = False
    """GPUs of compute capability 9.0 or later and NCCL 2.24 or later (NCCL 2.24 release notes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A case in the list: to be run, or skipped with the reason."""

    case: Case
    skip: str | None = None
    lateness: bool = False
    """An isolated series that a streaming sweep adds to see who is late."""


def expand(spec: SweepSpec, facts: WorldFacts) -> tuple[Planned, ...]:
    """Every case of the sweep in the order it runs. Raises UsageError where a root or pair is no rank of this world."""
    for rank in (*spec.roots, *(spec.pair or ())):
        if rank >= facts.n_ranks:
            raise UsageError(f"rank {rank} was asked for (-r or --pair), but there are {facts.n_ranks} ranks", f"ranks are 0 to {facts.n_ranks - 1}")
    planned: list[Planned] = []
    for name in spec.collectives:
        for dtype in spec.dtypes:
            for op in spec.ops if COLLECTIVES[name].reducing else (None,):
                for placement in placements_of(spec, name):
                    for shift in shifts_of(spec, name, facts.n_nodes):
                        for root in _roots(spec, name, facts.n_ranks):
                            planned.extend(_table(spec, facts, (name, dtype, op, placement, shift, root)))
    return tuple(planned)


def _roots(spec: SweepSpec, name: str, n_ranks: int) -> tuple[int | None, ...]:
    if not COLLECTIVES[name].rooted:
        return (None,)
    return tuple(range(n_ranks)) if ALL_ROOTS in spec.roots else spec.roots


_Row = tuple[str, str, str | None, Placement, Shift | None, int | None]


def _table(spec: SweepSpec, facts: WorldFacts, row: _Row) -> Iterator[Planned]:
    """The cases of one table: sizes by clocks, and the isolated series that show lateness."""
    name, _dtype, _op, placement, _shift, _root = row
    clocks = clocks_of(spec, facts.backend, facts.one_domain)
    sizes = sizes_of(spec, facts.backend, largest_nbytes(name, facts, placement), name)
    rows = [_planned(spec, facts, row, size, clock) for size in sizes for clock in clocks]
    yield from rows
    runnable = [item for item in rows if item.skip is None]
    if runnable and facts.n_ranks > 1 and spec.regime == "streaming" and name != "pingpong":
        for item in dict.fromkeys((runnable[0].case.requested_nbytes, runnable[-1].case.requested_nbytes)):
            extra = _planned(spec, facts, row, item, clocks[0], isolated=True)
            yield Planned(case=extra.case, skip=extra.skip, lateness=True)


def _planned(spec: SweepSpec, facts: WorldFacts, row: _Row, size: int, clock: Clock, isolated: bool = False) -> Planned:
    name, dtype, op, placement, shift, root = row
    itemsize = DTYPES[dtype].itemsize
    nbytes = effective_nbytes(name, size, facts.n_ranks, itemsize)
    case = Case(
        collective=name,
        dtype=dtype,
        op=op,
        root=root,
        nbytes=nbytes,
        requested_nbytes=size,
        count=count_elements(name, nbytes, facts.n_ranks, itemsize),
        n_ranks=facts.n_ranks,
        placement=placement,
        shift=shift,
        special=f"pair {spec.pair[0]},{spec.pair[1]}" if spec.pair is not None and name == "pingpong" else None,
        clock=clock,
        regime="isolated" if isolated or name == "pingpong" else spec.regime,
        variant=spec.variant,
        registered=spec.register,
    )
    return Planned(case=case, skip=why_not(case, facts, spec.pair))


def why_not(case: Case, facts: WorldFacts, pair: tuple[int, int] | None = None) -> str | None:
    """Why this case cannot run here, in words; None where it can."""
    reasons = (_no_form(case), _no_type(case, facts), _no_peer(case, facts), _no_bytes(case), _no_memory(case, facts))
    return next((reason for reason in reasons if reason is not None), None)


def _no_form(case: Case) -> str | None:
    if case.placement in COLLECTIVES[case.collective].placements:
        return None
    form = "in-place" if case.placement == "in" else "out-of-place"
    return f"torch.distributed has no {form} {case.collective}"


def _no_type(case: Case, facts: WorldFacts) -> str | None:
    fp8 = case.dtype.startswith("float8")
    if facts.backend == "gloo":
        if fp8 and case.op is not None:
            return f"gloo cannot reduce {case.dtype}"
        if case.op == "premul_sum":
            return "gloo has no premul_sum"
        if case.op == "avg" and not DTYPES[case.dtype].is_float:
            return f"gloo has no avg of {case.dtype}"
        return None
    if fp8 and not facts.fp8:
        return f"{case.dtype} needs GPUs of compute capability 9.0 and NCCL 2.24 or later"
    if case.op == "premul_sum" and facts.n_ranks == 1:
        return "one rank: NCCL's reduce_scatter copies and leaves the factor out (seen with 2.28.9)"
    if case.op == "premul_sum" and case.dtype not in PREMUL_DTYPES:
        return f"torch has premul_sum for {', '.join(PREMUL_DTYPES)} only"
    return None


def _no_peer(case: Case, facts: WorldFacts) -> str | None:
    if case.collective == "pingpong" and facts.n_ranks < 2:
        return "pingpong needs two ranks"
    if case.collective == "sendrecv" and facts.n_ranks < 2 and facts.backend == "gloo":
        return "gloo cannot send to itself: sendrecv needs two ranks"
    if case.shift == "node" and facts.n_nodes < 2:
        return "a shift by a node needs two nodes"
    if case.shift == "node" and facts.ranks_per_node is None:
        return "a shift by a node needs as many ranks on every node"
    return None


def _no_bytes(case: Case) -> str | None:
    if case.nbytes > 0:
        return None
    if COLLECTIVES[case.collective].split:
        return f"{case.requested_nbytes} B cannot be shared by {case.n_ranks} ranks in parts of 16 B"
    return f"{case.requested_nbytes} B is less than one element of {case.dtype}"


def _no_memory(case: Case, facts: WorldFacts) -> str | None:
    need = slot_nbytes(case)
    if facts.memory_nbytes is None or need <= facts.memory_nbytes:
        return None
    from nccl_bench.units import format_size

    return f"does not fit: {format_size(need)} of buffers a rank, {format_size(facts.memory_nbytes >> 20 << 20)} free on the fullest rank"


def slot_nbytes(case: Case) -> int:
    """Bytes of one set of buffers of a case, each aligned to SLOT_ALIGN; of two things at once, of both."""
    if case.work is None:
        return plain_nbytes(case)
    work = json.loads(case.work)
    if "skew" in work:
        return aligned(case.nbytes) + aligned(math.ceil(case.nbytes * work["skew"]))
    if "with" in work:
        return plain_nbytes(case) + plain_nbytes(other_case(case, work["with"]))
    if "gemm" in work:
        return plain_nbytes(case) + sum(map(aligned, product_nbytes(work["gemm"], DTYPES[case.dtype].itemsize)))
    return sum(map(aligned, product_nbytes(work, DTYPES[case.dtype].itemsize)))


def plain_nbytes(case: Case) -> int:
    """Bytes of the buffers of a case's collective alone."""
    return sum(map(aligned, buffer_nbytes(case.collective, case.nbytes, case.n_ranks, case.placement)))


def aligned(nbytes: int) -> int:
    """The next multiple of SLOT_ALIGN."""
    return -(-nbytes // SLOT_ALIGN) * SLOT_ALIGN


def skewed_shares(nbytes: int, n: int, skew: float, itemsize: int) -> tuple[int, int]:
    """(bytes each rank sends to the hot one, and to each other): one rank of n gets `skew` times the mean, the rest share what is left."""
    align = max(NCCL_TESTS_ALIGN, itemsize)
    hot = int(nbytes / n * skew) // align * align
    return hot, (nbytes - hot) // max(1, n - 1) // align * align


def product_nbytes(row: Json, itemsize: int) -> tuple[int, ...]:
    """Bytes of each tensor of a product (A, B, C), an attention (q, k, v, out) or a memory pass (source, target)."""
    if "attention" in row:
        a = row["attention"]
        query, key = (int(a["batch"] * a["heads"] * a["dim"] * a[name]) * itemsize for name in ("seq", "full_seq"))
        return query, key, key, query
    if "pass_nbytes" in row:
        half = int(row["pass_nbytes"]) // 2
        return half, half
    m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
    return m * k * itemsize, k * n * itemsize, m * n * itemsize


def other_case(case: Case, row: Json) -> Case:
    """What runs beside a case, as a case of its own; `row` says axis, size of its groups, collective, dtype and bytes."""
    name, itemsize = str(row["collective"]), DTYPES[row["dtype"]].itemsize
    return replace(
        case, collective=name, dtype=row["dtype"], op=row["op"], root=0 if COLLECTIVES[name].rooted else None, nbytes=row["nbytes"],
        requested_nbytes=row["nbytes"], count=count_elements(name, row["nbytes"], row["n_ranks"], itemsize), n_ranks=row["n_ranks"],
        axis=row["axis"], placement=COLLECTIVES[name].placements[0], shift="ring" if name == "sendrecv" else None, special=None, work=None,
    )  # fmt: skip


def largest_nbytes(name: str, facts: WorldFacts, placement: Placement) -> int | None:
    """The largest power-of-two size whose buffers fit into memory; None where memory is not known."""
    if facts.memory_nbytes is None:
        return None
    size = 1 << 50
    while size > 1 and sum(buffer_nbytes(name, size, facts.n_ranks, placement)) + 2 * SLOT_ALIGN > facts.memory_nbytes:
        size >>= 1
    return size
