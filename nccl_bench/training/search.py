"""All layouts of N ranks that a framework accepts, those that memory rules out left out, ranked, ties said so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_bench.errors import UsageError
from nccl_bench.groups import MEGATRON_ORDER, MEGATRON_PP_DP_ORDER
from nccl_bench.training.cost import cost_of
from nccl_bench.training.layout import Layout, split_layers
from nccl_bench.training.memory import memory_of
from nccl_bench.training.model import Model
from nccl_bench.training.plan import TIE_FRAC, Answer, Fabric, answer
from nccl_bench.training.rules import why_not

MAX_MICRO_BATCH = 16
SAME_FRAC = 0.01
"""Layouts alike but for chunks and rank order, and closer than this, are shown once: far inside what is told apart (TIE_FRAC)."""
MAX_LAYOUTS = 200_000
Row = tuple[bool, float, Layout]
"""(whether memory is tight, seconds a step, layout)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found."""

    answers: tuple[Answer, ...]
    """Best first, each with its tie group; those whose memory is tight after all that fit."""
    n_tried: int
    """Layouts that the framework accepts."""
    n_impossible: int
    """Of them, those that do not fit into memory."""
    n_unpriced: int
    why: str
    """Why the first is first, in words."""
    faster_tight: Answer | None = None
    """The fastest layout whose memory is tight, where it is faster than the first and none such is shown."""


def candidates(base: Layout, world: int, layers: int, fixed: Mapping[str, int], max_tp: int | None, per_node: int | None) -> Iterator[Layout]:
    """Every layout of the framework's kind on `world` ranks, accepted or not; `fixed` sizes are kept. Micro-batches up to 16 sequences."""
    for tp in _choices("tp", world, fixed):
        if max_tp is not None and tp > max_tp:
            continue
        for pp in _choices("pp", world // tp, fixed):
            for cp in _choices("cp", world // tp // pp, fixed) if "cp" in fixed or (base.cp > 1 and base.framework != "deepspeed") else (1,):
                if world % (tp * pp * cp):
                    continue
                sized = replace(base, tp=tp, pp=pp, cp=cp, dp=world // (tp * pp * cp), sp=base.sp or (tp > 1 and base.framework == "megatron"))
                sized = replace(sized, sp=sized.sp and tp > 1, cp_comm=base.cp_comm if cp > 1 else None)
                shares = base.gbs // sized.dp if base.gbs % sized.dp == 0 else 0
                for mbs in (fixed["mbs"],) if "mbs" in fixed else (n for n in range(1, min(shares, MAX_MICRO_BATCH) + 1) if shares % n == 0):
                    yield from _variants(replace(sized, mbs=mbs), fixed, per_node, layers)


def _choices(name: str, limit: int, fixed: Mapping[str, int]) -> tuple[int, ...]:
    if name in fixed:
        return (fixed[name],) if limit % fixed[name] == 0 else ()
    return tuple(n for n in range(1, limit + 1) if limit % n == 0)


def _variants(layout: Layout, fixed: Mapping[str, int], per_node: int | None, layers: int) -> Iterator[Layout]:
    recomputes = (layout.recompute,) if layout.recompute != "none" else ("none", "full")
    for recompute in recomputes:
        at = replace(layout, recompute=recompute)  # type: ignore[arg-type]
        for ep in _choices("ep", at.tp * at.cp * at.dp, fixed) if "ep" in fixed or at.ep > 1 else (1,):
            expert = replace(at, ep=ep, vpp=fixed.get("vpp", at.vpp), zero=fixed.get("zero", at.zero))
            if at.framework == "megatron":
                for vpp in (fixed["vpp"],) if "vpp" in fixed else _chunks(layers, at.pp):
                    for order in (MEGATRON_ORDER, MEGATRON_PP_DP_ORDER) if at.pp > 1 and at.dp * at.cp > 1 and ep == 1 else (at.order,):
                        yield replace(expert, vpp=vpp, order=order)
            elif at.framework == "deepspeed":
                yield from (replace(expert, zero=zero) for zero in ((fixed["zero"],) if "zero" in fixed else (0, 1, 2, 3)))
            else:
                shards = (at.shard,) if at.shard is not None else (None, per_node) if per_node and per_node < at.dp else (None,)
                yield from (replace(expert, shard=shard) for shard in shards)


def _chunks(layers: int, pp: int) -> tuple[int, ...]:
    """Chunks a stage that share the layers evenly; 1 always, since plain stages may be uneven."""
    return (1, *(v for v in range(2, layers // pp + 1) if layers % (pp * v) == 0)) if pp > 1 else (1,)


def search(
    model: Model,
    base: Layout,
    world: int,
    fabric: Fabric,
    basis: str,
    *,
    top: int,
    fixed: Mapping[str, int],
    max_tp: int | None,
    per_node: int | None,
    recompute: str | None = None,
) -> Found:
    """The best layouts; `recompute`: no other than this one. Raises UsageError where none is accepted, none fits, or no step time can be given."""
    if model.experts and base.ep == 1 and "ep" not in fixed:
        base = replace(base, ep=2)  # any EP: see _variants
    rows: list[Row] = []
    n_tried = n_impossible = n_unpriced = 0
    refusals: Counter[str] = Counter()
    for layout in _accepted(candidates(base, world, model.layers, fixed, max_tp, per_node), model, recompute, refusals):
        n_tried += 1
        if n_tried > MAX_LAYOUTS:
            raise UsageError(f"more than {MAX_LAYOUTS} layouts", "fix some sizes: --fix tp=8,mbs=1")
        verdict = memory_of(model, layout, fabric.memory_nbytes, fabric.headroom).verdict
        if verdict == "impossible":
            n_impossible += 1
            continue
        try:
            step = cost_of(model, layout, fabric.setting).step_s
        except UsageError:
            n_tried -= 1  # grids that the framework refuses
            continue
        if step is None:
            n_unpriced += 1
        else:
            rows.append((verdict == "tight", step["mid"], layout))
    if not n_tried:
        raise _nothing(base, model, world, refusals)
    _complain(base, recompute, n_impossible, n_unpriced, len(rows), knows_memory=fabric.memory_nbytes is not None)
    rows = sorted(_simplest(rows), key=lambda row: (*row[:2], row[2].text()))
    answers = _answers(rows[:top], model, fabric, basis)
    tight = next((row for row in rows[top:] if row[0] and row[1] < rows[0][1] and not rows[top - 1][0]), None)
    hidden = None if tight is None else answer(model, tight[2], fabric, basis, deep=False)
    return Found(answers=answers, n_tried=n_tried, n_impossible=n_impossible, n_unpriced=n_unpriced, why=_why(answers), faster_tight=hidden)


def _answers(rows: list[Row], model: Model, fabric: Fabric, basis: str) -> tuple[Answer, ...]:
    """With tie groups: none has both layouts that fit and those that may run out of memory."""
    answers: list[Answer] = []
    tie, leader, tight_before = 0, 0.0, False
    for tight, step_s, layout in rows:
        if tie == 0 or step_s > leader * (1 + TIE_FRAC) or tight != tight_before:
            tie, leader, tight_before = tie + 1, step_s, tight
        answers.append(replace(answer(model, layout, fabric, basis, deep=not answers), tie_group=tie))
    return tuple(answers)


def _accepted(found: Iterator[Layout], model: Model, recompute: str | None, refusals: Counter[str]) -> Iterator[Layout]:
    """Each layout once that the framework takes; why it refuses the others is counted in `refusals`."""
    seen: set[Layout] = set()
    for even in found:
        layout = _shared_out(even, model)
        if layout in seen or (recompute is not None and layout.recompute != recompute):
            continue
        seen.add(layout)
        refusal = why_not(layout, model)
        if refusal is None:
            yield layout
        else:
            refusals[refusal] += 1


def _simplest(rows: list[Row]) -> list[Row]:
    """Of layouts alike but for chunks and rank order, and as tight, one: of those within 1 % of their fastest the one with the fewest chunks."""
    alike: dict[object, list[Row]] = {}
    for row in rows:
        alike.setdefault((row[0], replace(row[2], vpp=1, order=MEGATRON_ORDER, pp_layout=())), []).append(row)
    kept = []
    for same in alike.values():
        fastest = min(step_s for _tight, step_s, _layout in same)
        near = [row for row in same if row[1] <= fastest * (1 + SAME_FRAC)]
        kept.append(min(near, key=lambda row: (row[2].vpp, row[2].order != MEGATRON_ORDER, row[1])))
    return kept


def _shared_out(layout: Layout, model: Model) -> Layout:
    """With layers that stages cannot share evenly said one by one, as Megatron asks (--pipeline-model-parallel-layout).

    Not where it is interleaved: unlike chunks stall each other in a way that the step's formula does not hold.
    """
    chunks = layout.pp * layout.vpp
    if layout.framework != "megatron" or layout.vpp > 1 or layout.pp_layout or model.layers % chunks == 0 or chunks > model.layers:
        return layout
    return replace(layout, pp_layout=split_layers(model.layers, chunks))


def _nothing(base: Layout, model: Model, world: int, refusals: Counter[str]) -> UsageError:
    """The error where no layout is accepted, with what refuses most of them."""
    if not refusals:
        hint = f"sizes that are fixed must divide {world}, --max-tp must allow them, and DP must divide a --gbs of {base.gbs}"
        return UsageError(f"there is no layout of {world} ranks with these sizes", hint)
    (reason, n), n_all = refusals.most_common(1)[0], refusals.total()
    hint = f"that refuses {n} of {n_all}, other reasons the rest" if n < n_all else "change that, or free a size"
    return UsageError(f"{base.framework} accepts no layout of {world} ranks for {model.name}: {reason}", hint)


def _complain(base: Layout, recompute: str | None, n_impossible: int, n_unpriced: int, n_rows: int, *, knows_memory: bool) -> None:
    if n_rows:
        return
    if n_unpriced:
        raise UsageError(
            f"none of {n_unpriced} layouts{' that fit' if knows_memory else ''} can be priced: compute or communication is not known",
            "name the hardware (--gpus --nics --nodes) and --gemm-eff, or give --measured RUN of a sweep --want",
        )
    others = ["--dist-opt"] if base.framework == "megatron" and not base.dist_opt else []
    others += ["--recompute full"] if recompute in ("none", "selective") else []  # both ends are tried where nothing is said
    raise UsageError(f"none of {n_impossible} layouts fits into the GPUs' memory", " or ".join(["more GPUs", *others]))


def _why(answers: Sequence[Answer]) -> str:
    """What the best layout has that the next tie group, or the last one shown, has not."""
    if not answers or answers[0].cost.shares is None:
        return ""
    best = answers[0]
    other = next((row for row in answers if row.tie_group != best.tie_group), answers[-1])
    if other is best or other.cost.shares is None or other.cost.step_s is None or best.cost.step_s is None:
        return "nothing to compare it with"
    parts = {}
    for name in ("compute", "bubble", "exposed", "other"):
        parts[name] = getattr(other.cost.shares, name) * other.cost.step_s["mid"] - getattr(best.cost.shares, name) * best.cost.step_s["mid"]
    most = max(parts, key=lambda name: parts[name])
    words = {"compute": "arithmetic", "bubble": "pipeline bubble", "exposed": "waiting for communication", "other": "optimizer"}
    return f"against {other.layout.text()}: {parts[most]:.3g} s a step less {words[most]}"
