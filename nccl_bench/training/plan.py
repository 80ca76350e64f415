"""One layout's whole answer: groups, memory, the bill of a step, what would pay, what it costs; and layouts next to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from nccl_bench.errors import UsageError
from nccl_bench.groups import MEGATRON_ORDER, MEGATRON_PP_DP_ORDER
from nccl_bench.training.compute import Rates
from nccl_bench.training.cost import Setting, StepCost, cost_of
from nccl_bench.training.layout import Layout, mesh_of
from nccl_bench.training.memory import HEADROOM, Memory, memory_of
from nccl_bench.training.model import Model, step_flops
from nccl_bench.training.price import Places, Pricer, faster
from nccl_bench.training.rules import why_not

OVERLAP_WORDS = {
    "tp": "overlapping tensor parallelism with its GEMMs",
    "grad": "overlapping gradient reduction",
    "param": "overlapping the parameter gather",
    "moe": "overlapping expert all-to-all",
}
TIE_FRAC = 0.05
"""Layouts closer than this are not told apart: published near-ties of 2.6 % are not resolved by any price (BLOOM, PP 4 to 12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What a job would run on, as far as it is known."""

    places: Places
    pricer: Pricer
    rates: Rates | None
    priced_by: str
    """"measured", "expected" or "nothing"."""
    peak_tflops: float | None = None
    """Dense, of one GPU, for MFU."""
    memory_nbytes: int | None = None
    memory_note: str | None = None
    """Where that memory is only one of several boards' of this name."""
    headroom: float = HEADROOM
    sigma: dict[str, float] | None = None

    @property
    def setting(self) -> Setting:
        """What prices a step."""
        return Setting(pricer=self.pricer, places=self.places, rates=self.rates, sigma=self.sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The step if one thing were otherwise."""

    what: str
    step_s: float
    saves_frac: float
    """Of the step; negative where it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Another layout and what it would bring."""

    layout: Layout
    step_s: float
    saves_frac: float
    sure: bool
    """Whether that is more than layouts that are not told apart differ by, and measured."""
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All of it."""

    model: Model
    layout: Layout
    memory: Memory
    cost: StepCost
    basis: str
    mfu_frac: float | None
    tokens_per_s_per_gpu: float | None
    what_if: tuple[WhatIf, ...] = ()
    change: Change | None = None
    tie_group: int | None = None


def answer(model: Model, layout: Layout, fabric: Fabric, basis: str, *, deep: bool = True) -> Answer:
    """The answer for one layout. `deep`: with what would pay and the best change. Raises UsageError, DetectError."""
    cost = cost_of(model, layout, fabric.setting)
    memory = memory_of(model, layout, fabric.memory_nbytes, fabric.headroom)
    mfu = tokens = None
    if cost.step_s is not None:
        tokens = layout.gbs * layout.seq / cost.step_s["mid"] / layout.world
        if fabric.peak_tflops is not None:
            mfu = step_flops(model, layout.seq, layout.gbs, basis) / (cost.step_s["mid"] * layout.world * fabric.peak_tflops * 1e12)
    found = Answer(model=model, layout=layout, memory=memory, cost=cost, basis=basis, mfu_frac=mfu, tokens_per_s_per_gpu=tokens)
    if not deep or cost.step_s is None:
        return found
    return replace(found, what_if=what_ifs(model, layout, fabric, cost), change=best_change(model, layout, fabric, cost))


def what_ifs(model: Model, layout: Layout, fabric: Fabric, cost: StepCost) -> tuple[WhatIf, ...]:
    """A faster network, faster links, and each overlap that is off and that the framework has."""
    assert cost.step_s is not None
    now = cost.step_s["mid"]
    tries: list[tuple[str, Layout, Pricer]] = [
        ("NICs twice as fast", layout, faster(fabric.pricer, across=2.0)),
        ("links in a node (NVLink) 20 % faster", layout, faster(fabric.pricer, inside=1.2)),
    ]
    for name, text in OVERLAP_WORDS.items():
        other = replace(layout, overlap=layout.overlap | {name})
        if name not in layout.overlap and why_not(other, model) is None:
            tries.append((text, other, fabric.pricer))
    found = []
    for text, other, pricer in tries:
        step = cost_of(model, other, replace(fabric.setting, pricer=pricer)).step_s
        if step is not None and abs(step["mid"] - now) > 1e-4 * now:
            found.append(WhatIf(what=text, step_s=step["mid"], saves_frac=1 - step["mid"] / now))
    return tuple(sorted(found, key=lambda item: -item.saves_frac))


def best_change(model: Model, layout: Layout, fabric: Fabric, cost: StepCost) -> Change | None:
    """The neighbouring layout with the shortest step; one whose memory is tight only where none that fits is shorter. None where none is."""
    assert cost.step_s is not None
    best: Change | None = None
    for other in neighbours(layout):
        if why_not(other, model) is not None:
            continue
        memory = memory_of(model, other, fabric.memory_nbytes, fabric.headroom)
        if memory.verdict == "impossible":
            continue
        try:
            step = cost_of(model, other, fabric.setting).step_s
        except UsageError:
            continue
        if step is None or step["mid"] >= cost.step_s["mid"]:
            continue
        if best is None or (memory.verdict == "tight", step["mid"]) < (best.memory.verdict == "tight", best.step_s):
            saves = 1 - step["mid"] / cost.step_s["mid"]
            sure = saves > TIE_FRAC and fabric.priced_by == "measured"
            best = Change(layout=other, step_s=step["mid"], saves_frac=saves, sure=sure, memory=memory)
    return best


def neighbours(layout: Layout) -> Iterator[Layout]:
    """One change away, the same number of ranks: a factor of two moved between two sizes, another order, schedule or micro-batch."""
    base = replace(layout, pp_layout=())
    sizes = ("tp", "pp", "dp", "cp") if layout.cp > 1 else ("tp", "pp", "dp")
    for less, more in permutations(sizes, 2):
        if getattr(layout, less) % 2 == 0:
            other = replace(base, **{less: getattr(layout, less) // 2, more: getattr(layout, more) * 2})
            yield other if other.cp > 1 else replace(other, cp_comm=None)
    for name in ("mbs", "vpp", "ep"):
        value = getattr(layout, name)
        if name == "mbs" or value > 1 or (name == "vpp" and layout.pp > 1):
            yield replace(base, **{name: value * 2})
            if value % 2 == 0:
                yield replace(base, **{name: value // 2})
    yield from _own(layout, base)


def _own(layout: Layout, base: Layout) -> Iterator[Layout]:
    """What only this framework can change."""
    if layout.framework == "megatron" and layout.pp > 1:
        yield replace(base, order=MEGATRON_ORDER if layout.order == MEGATRON_PP_DP_ORDER else MEGATRON_PP_DP_ORDER)
    if layout.framework == "megatron" and layout.tp > 1 and not layout.sp:
        yield replace(base, sp=True)
    if layout.framework == "fsdp2":
        yield from (replace(base, shard=shard) for shard in (None, 8) if shard != layout.shard)
    if layout.framework == "deepspeed":
        yield from (replace(base, zero=zero) for zero in (0, 1, 2, 3) if zero != layout.zero)


def axes_with_ranks(layout: Layout) -> list[str]:
    """The axes of the framework's mesh that have more than one rank, without the experts' second names."""
    mesh = mesh_of(layout)
    hidden = {"epp", "ereplicate"}
    named = {name: size for grid in mesh.grids for name, size in zip(grid.names, grid.sizes, strict=True) if size > 1 and name not in hidden}
    joined = [name for name, parts in mesh.joined if len([part for part in parts if part in named]) > 1]
    return [*named, *joined]
