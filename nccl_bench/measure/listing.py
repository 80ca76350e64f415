"""The list of cases of any sweep: plain ones, those of a mesh's axes, and what a `plan --emit` file wants. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from nccl_bench.collectives import COLLECTIVES, NCCL_TESTS_ALIGN, count_elements, effective_nbytes, find
from nccl_bench.dtypes import DTYPES
from nccl_bench.errors import UsageError
from nccl_bench.groups import Kind, Mesh, kind_of, parse_mesh
from nccl_bench.measure.cases import Planned, WorldFacts, expand, product_nbytes, skewed_shares, why_not
from nccl_bench.measure.points import GEMM
from nccl_bench.measure.spec import SweepSpec, clocks_of, parse_beside
from nccl_bench.records import Case, Clock, Json
from nccl_bench.units import format_size


def list_cases(spec: SweepSpec, facts: WorldFacts) -> tuple[Planned, ...]:
    """Every case in the order it runs. Raises UsageError where the mesh is not this world, or --skew is more than all of it."""
    if spec.want is not None:
        return tuple(_wanted(spec, facts))
    if spec.mesh is not None:
        return tuple(_meshed(spec, facts))
    planned = expand(spec, facts)
    if spec.skew is not None and spec.skew > facts.n_ranks:
        raise UsageError(f"--skew {spec.skew:g}: one of {facts.n_ranks} ranks cannot get {spec.skew:g} times the mean", f"at most {facts.n_ranks}")
    return planned if spec.skew is None else tuple(_skewed(item, spec.skew, facts) for item in planned)


def mesh_of(spec: SweepSpec) -> Mesh | None:
    """The mesh that a sweep runs on; None for the world alone."""
    text = spec.mesh if spec.want is None else str(spec.want["mesh"])
    return None if text is None else parse_mesh(text)


def axes_of(spec: SweepSpec) -> tuple[str, ...]:
    """The axes that a sweep's cases run on, each once, in the order their groups are made."""
    mesh = mesh_of(spec)
    if mesh is None:
        return ()
    if spec.want is not None:
        rows = [*spec.want.get("collectives", ()), *spec.want.get("overlaps", ())]
        return tuple(dict.fromkeys(str(row["axis"]) for row in rows))
    axes = spec.axes or tuple(name for name in mesh.grids[0].names if kind_of(mesh, name).size > 1)
    return tuple(dict.fromkeys([*axes, *([parse_beside(spec.beside)[0]] if spec.beside else [])]))


def fitting_mesh(spec: SweepSpec, n_ranks: int) -> Mesh:
    """The sweep's mesh. Raises UsageError where it has not as many ranks as there are."""
    mesh = mesh_of(spec)
    assert mesh is not None
    if mesh.size != n_ranks:
        option = "--want" if spec.want is not None else "--mesh"
        raise UsageError(f"{option}: {mesh.text} is {mesh.size} ranks, and there are {n_ranks}", f"start {mesh.size} ranks, or change the mesh")
    return mesh


def _meshed(spec: SweepSpec, facts: WorldFacts) -> Iterator[Planned]:
    mesh = fitting_mesh(spec, facts.n_ranks)
    beside = parse_beside(spec.beside) if spec.beside else None
    for axis in spec.axes or tuple(name for name in mesh.grids[0].names if kind_of(mesh, name).size > 1):
        if beside is not None and axis == beside[0]:
            continue
        kind = kind_of(mesh, axis)
        rows = tuple(_of_axis(spec, facts, kind))
        yield from rows if spec.skew is None else (_skewed(item, spec.skew, facts) for item in rows)
        if spec.solo and len(kind.groups) > 1:
            yield from (replace(item, case=replace(item.case, special="solo")) for item in rows)
        if beside is not None:
            yield from (_beside(item, beside, kind_of(mesh, beside[0])) for item in rows)


def _of_axis(spec: SweepSpec, facts: WorldFacts, kind: Kind) -> Iterator[Planned]:
    """The plain cases of one axis: as many ranks as a group has; shifts stay in the group."""
    alone = replace(spec, mesh=None, axes=(), solo=False, beside=None, skew=None, shift="ring")
    for item in expand(alone, replace(facts, n_ranks=kind.size, n_nodes=1)):
        if not item.lateness:
            yield replace(item, case=replace(item.case, axis=kind.axis))


def _skewed(item: Planned, skew: float, facts: WorldFacts) -> Planned:
    case = item.case
    special, n = f"skew {skew:g}", case.n_ranks
    if item.skip is not None or skew > n:
        reason = item.skip or f"one of {n} ranks cannot get {skew:g} times the mean"
        return replace(item, case=replace(case, special=special), skip=reason)
    hot, rest = skewed_shares(case.requested_nbytes, n, skew, DTYPES[case.dtype].itemsize)
    skewed = replace(case, nbytes=hot + (n - 1) * rest, special=special, work=json.dumps({"skew": skew}))
    return replace(item, case=skewed, skip=why_not(skewed, facts) or (None if rest else "the smallest share would be empty"))


def _beside(item: Planned, beside: tuple[str, str], kind: Kind) -> Planned:
    """The case, and at the same time another kind at the same size."""
    axis, name = beside
    row = {"axis": axis, "n_ranks": kind.size, "collective": name, "dtype": item.case.dtype, "op": "sum" if COLLECTIVES[name].reducing else None,
           "nbytes": effective_nbytes(name, item.case.requested_nbytes, kind.size, DTYPES[item.case.dtype].itemsize)}  # fmt: skip
    case = replace(item.case, special=f"beside {axis}:{name}", work=json.dumps({"with": row}))
    return replace(item, case=case, skip=item.skip or (None if row["nbytes"] else f"too small for {name} over {axis}"))


def _wanted(spec: SweepSpec, facts: WorldFacts) -> Iterator[Planned]:
    """Exactly what is wanted, the products first: they need no peer."""
    want = spec.want
    assert want is not None
    mesh = fitting_mesh(spec, facts.n_ranks)
    clock = clocks_of(spec, facts.backend, facts.one_domain)[0]
    for row in want.get("gemms", ()):
        yield _product(row, facts, clock, spec)
    for row in want.get("collectives", ()):
        for nbytes in row["nbytes"]:
            yield _wanted_case(spec, facts, mesh, row, int(nbytes), clock)
    for row in want.get("overlaps", ()):
        item = _wanted_case(spec, facts, mesh, row, int(row["nbytes"]), clock)
        product = dict(row["gemm"])
        case = replace(item.case, special=f"beside {_product_text(product)}", work=json.dumps({"gemm": {**product, "dtype": row["dtype"]}}))
        yield replace(item, case=case)


def _wanted_case(spec: SweepSpec, facts: WorldFacts, mesh: Mesh, row: Json, nbytes: int, clock: Clock) -> Planned:
    name, kind = find(str(row["collective"])).name, kind_of(mesh, str(row["axis"]))
    dtype = DTYPES[row["dtype"]].name
    itemsize = DTYPES[dtype].itemsize
    # A split size is brought up, not down, to what the group can share: the real message is never smaller.
    unit = kind.size * max(NCCL_TESTS_ALIGN, itemsize) if COLLECTIVES[name].split else itemsize
    real = -(-nbytes // unit) * unit
    case = Case(
        collective=name,
        dtype=dtype,
        op=row.get("op") or ("sum" if COLLECTIVES[name].reducing else None),
        root=0 if COLLECTIVES[name].rooted else None,
        nbytes=real,
        requested_nbytes=nbytes,
        count=count_elements(name, real, kind.size, itemsize),
        n_ranks=kind.size,
        axis=kind.axis,
        placement=COLLECTIVES[name].placements[0],
        shift="ring" if name == "sendrecv" else None,
        clock=clock,
        regime="streaming",
        variant=spec.variant,
        registered=spec.register,
    )
    return Planned(case=case, skip=why_not(case, replace(facts, n_ranks=kind.size, n_nodes=1)))


def _product(row: Json, facts: WorldFacts, clock: Clock, spec: SweepSpec) -> Planned:
    dtype = DTYPES[row.get("dtype", "bfloat16")].name
    nbytes = sum(product_nbytes(row, DTYPES[dtype].itemsize))
    case = Case(
        collective=GEMM,
        dtype=dtype,
        op=None,
        root=None,
        nbytes=nbytes,
        requested_nbytes=nbytes,
        count=nbytes // DTYPES[dtype].itemsize,
        n_ranks=facts.n_ranks,
        placement="out",
        clock=clock,
        regime="streaming",
        special=_product_text(row),
        work=json.dumps(row),
        variant=spec.variant,
    )
    fits = facts.memory_nbytes is None or nbytes <= facts.memory_nbytes
    return Planned(case=case, skip=None if fits else f"does not fit: {format_size(nbytes)} a rank")


def _product_text(row: Json) -> str:
    if "attention" in row:
        a = row["attention"]
        return f"attention {a['batch']}x{a['heads']}x{a['seq']}x{a['dim']}"
    if "pass_nbytes" in row:
        return f"memory pass {format_size(int(row['pass_nbytes']))}"
    return f"{row.get('name', GEMM)} {row['m']}x{row['n']}x{row['k']}"
