"""What a terminal shows of a plan and of a search: the answer first, then the bill. No pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from nccl_bench.training.cost import Priced
from nccl_bench.training.document import Assumption, Money, cost_json, extrapolated, groups_json, observed_json
from nccl_bench.training.memory import Memory
from nccl_bench.training.notes import HINT, TITLE, notes_of, prices_unbacked, tensor_nodes
from nccl_bench.training.plan import Answer, Fabric
from nccl_bench.training.search import Found
from nccl_bench.units import format_percent, format_us, short_or_exact, three_digits

WIDTH = 100
NO_MONEY = Money()
TIGHT = "tight: may run out of memory, for what CUDA, NCCL and fragmentation take is not reckoned"
"""docs/training.md: measured peaks lie 6 to 12 GB above the sum."""
NOT_GIVEN = "was not given"
"""Of an assumption whose option nobody gave: the page says it, for it changes every figure."""


def lines_of(answer: Answer, fabric: Fabric, money: Money, assumptions: Sequence[Assumption], *, wide: bool) -> list[str]:
    """The whole page."""
    lines = [*headline(answer, fabric), *_taken(assumptions), f"prices: {TITLE[fabric.priced_by]}", *notes_of(answer, fabric)]
    lines += [*_memory(answer, fabric, wide), "", *_groups(answer, fabric), ""]
    lines += [*_calls(answer, wide), ""]
    lines += _whats(answer)
    lines += _money(answer, money)
    far = extrapolated(answer)
    if far and not wide:
        lines.append(f"{len(far)} price{'s' if len(far) > 1 else ''} extrapolated (marked ~), {len(assumptions)} assumptions: --wide lists them")
    elif not wide:
        lines.append(f"{len(assumptions)} assumptions: --wide lists them")
    if wide:
        lines += [f"extrapolated: {text}" for text in far]
        lines += [f"assumed: {a.name}: {a.value} ({a.source})" for a in assumptions]
    return lines


def headline(answer: Answer, fabric: Fabric) -> list[str]:
    """The first line: layout, seconds a step, share that waits, tokens, MFU; the second: the best change."""
    cost, at = answer.cost, answer.layout
    start = f"{answer.model.name} on {at.world} GPUs: {at.text()}"
    if cost.step_s is None or cost.shares is None:
        why = "no step time: " + (
            "; ".join(cost.unpriced[:3]) + " not priced" if cost.unpriced else "compute was not measured, and --gemm-eff not given"
        )
        total = sum(row.price.mid_us * row.call.count for row in cost.calls if row.price is not None) * 1e-6
        alone = f"communication alone: {_seconds(total)} a step, one call after the other; what compute hides of it is not known"
        return [f"{start} · {why}", *([alone] if total else [])]
    step = cost.step_s
    first = f"{start} · {_seconds(step['mid'])} a step ({_seconds(step['low'])} to {_seconds(step['high'])})"
    first += f" · {format_percent(cost.shares.exposed)} % of it waiting for communication"
    tokens = answer.tokens_per_s_per_gpu
    first += f" · {tokens:.0f} tokens/s/GPU" if tokens is not None and tokens >= 10 else f" · {three_digits(tokens or 0.0)} tokens/s/GPU"
    first += f" · MFU {format_percent(answer.mfu_frac)} % ({answer.basis})" if answer.mfu_frac is not None else ""
    return [first, *_change(answer, fabric)]


def _change(answer: Answer, fabric: Fabric) -> list[str]:
    change = answer.change
    if change is None:
        return ["best change: none of the layouts next to it that fit is faster"]
    how = "more than noise" if change.sure else "within noise" if fabric.priced_by == "measured" else HINT
    brings = f"{change.layout.text()}, -{format_percent(change.saves_frac)} % ({how}; memory: {_used(change.memory)})"
    if change.memory.verdict == "tight":
        return [f"best change: none of the layouts next to it that fit is faster; {brings} is {TIGHT}"]
    return [f"best change: {brings}"]


def _used(memory: Memory) -> str:
    """ "tight, 74 of 80 GB"; GB alone where the GPU's memory is not known."""
    used = f"{memory.nbytes / 1e9:.0f}" if memory.nbytes >= 1e10 else f"{memory.nbytes / 1e9:.2f}"
    return f"{used} GB" if memory.of_nbytes is None else f"{memory.verdict}, {used} of {memory.of_nbytes / 1e9:.0f} GB"


def _taken(assumptions: Sequence[Assumption]) -> list[str]:
    """What was assumed because nobody said it: sequence and batch."""
    taken = [f"{a.name} {a.value} ({a.source.removeprefix('default: ')})" for a in assumptions if NOT_GIVEN in a.source]
    return [f"assumed: {'; '.join(taken)}"] if taken else []


def _unexplained(seen: Mapping[str, float]) -> str:
    left = seen["unexplained_frac"]
    if left >= 0:
        return f"{format_percent(left)} % of it unexplained (stragglers, data loading, what is not modelled)"
    return f"{format_percent(-left)} % too much: efficiency or prices are better than assumed"


def _memory(answer: Answer, fabric: Fabric, wide: bool) -> list[str]:
    memory, heaviest = answer.memory, answer.memory.heaviest
    line = f"memory: {_used(memory)} on the heaviest stage ({heaviest.stage})"
    line += "; the GPU's is not known (--gpu-mem)" if memory.of_nbytes is None else ""
    line += f" ({fabric.memory_note})" if fabric.memory_note and memory.of_nbytes is not None else ""
    parts = ", ".join(f"{name} {value / 1e9:.1f}" for name, value in heaviest.parts.items() if value >= 5e7)
    stages = [f"  stage {row.stage}: {row.nbytes / 1e9:.1f} GB" for row in memory.stages] if wide else []
    way_out = []
    if memory.verdict == "impossible":
        way_out = ["  this layout cannot run: nccl-bench search, with these options, --gbs and --gemm-eff, ranks those that fit"]
    if memory.verdict == "tight":
        way_out = [f"  {TIGHT}"]
    units = " GB (1e9 bytes; messages below are in MiB and GiB, powers of 1024)"
    return [line, *way_out, *([f"  {parts}{units}"] if parts else []), *stages]


def _groups(answer: Answer, fabric: Fabric) -> list[str]:
    rows = [f"  {'axis':<14}{'groups':>12}{'nodes':>7}{'at once':>9}{'rails':>7}  aligned"]
    for row in groups_json(answer, fabric):
        crossing = (
            f"{row['crossing']:>9}{row['rails']:>7}  {'yes' if row['rail_aligned'] else 'no'}" if row["nodes"] > 1 else f"{'-':>9}{'-':>7}  in node"
        )
        rows.append(f"  {row['axis']:<14}{row['count']:>5} x {row['size']:<4}{row['nodes']:>7}{crossing}")
    return rows if len(rows) > 1 else ["  one GPU: no groups"]


def _calls(answer: Answer, wide: bool) -> list[str]:
    head = f"  {'kind':<22}{'collective':<15}{'axis':<13}{'bytes':>10}{'calls':>7}{'a call':>10}{'total':>9}{'exposed':>9}  why"
    rows = sorted(answer.cost.calls, key=lambda row: -(row.price.mid_us * row.call.count if row.price else 0.0))
    shown = rows if wide else rows[:12]
    lines = [head, *(_call(row, wide, timed=answer.cost.step_s is not None) for row in shown)]
    return lines + ([f"  and {len(rows) - len(shown)} smaller (--wide)"] if len(rows) > len(shown) else [])


def _call(row: Priced, wide: bool, *, timed: bool) -> str:
    """A row; `timed`: whether the step has a time: without, nobody knows what compute hides."""
    call, price = row.call, row.price
    cost = "-" if price is None else format_us(price.mid_us) + ("~" if price.extrapolated else "")
    total = "-" if price is None else format_us(price.mid_us * call.count)
    exposed = format_us(row.exposed_us.get("mid")) if row.exposed_us and (timed or call.window == "exposed") else "-"
    size = short_or_exact(call.nbytes)
    why = f"{call.why} [{call.source}]" if wide else call.why
    return f"  {call.kind[:21]:<22}{call.collective:<15}{call.axis[:12]:<13}{size:>10}{call.count:>7}{cost:>10}{total:>9}{exposed:>9}  {why}"


def _whats(answer: Answer) -> list[str]:
    cost = answer.cost
    lines = []
    if cost.shares is not None:
        s = cost.shares
        parts = (("compute", s.compute), ("bubble", s.bubble), ("exposed communication", s.exposed), ("other", s.other))
        text = ", ".join(f"{name} {format_percent(value)} %" for name, value in parts)
        lines.append(f"of a step: {text}; hidden beside compute {format_percent(s.hidden)} %")
    if answer.what_if:
        lines.append("what would pay: " + "; ".join(f"{row.what} {_signed(row.saves_frac)} %" for row in answer.what_if))
    return lines


def _signed(saves: float) -> str:
    return f"{'-' if saves >= 0 else '+'}{format_percent(abs(saves))}"


def _money(answer: Answer, money: Money) -> list[str]:
    cost, lines = cost_json(answer, money), []
    if cost is not None:
        text = f"waiting: {cost['gpu_hours_waiting_per_day']:.0f} GPU-hours a day"
        text += f", {cost['money_waiting_per_day']:.0f} in money" if cost["money_waiting_per_day"] is not None else ""
        if cost["training_days"] is not None:
            text += f"; the whole training {cost['training_days']:.1f} days"
            text += f", {cost['training_money']:.0f} in money" if cost["training_money"] is not None else ""
        lines.append(text)
    seen = observed_json(answer, money)
    if seen is not None:
        lines.append(f"observed {_seconds(seen['observed_s'])}, predicted {_seconds(seen['predicted_s'])}: {_unexplained(seen)}")
    return lines


def _seconds(value: float) -> str:
    return format_us(value * 1e6)


def search_lines(found: Found, fabric: Fabric, money: Money = NO_MONEY) -> list[str]:
    """The ranking, tie groups apart, and the answer for the first; what it costs where a price or a number of tokens is given."""
    best = found.answers[0]
    lines = [f"{best.model.name} on {best.layout.world} GPUs: {found.n_tried} layouts, {found.n_impossible} do not fit"]
    lines += [f"prices: {TITLE[fabric.priced_by]}", *prices_unbacked(found.answers)]
    lines += ["of layouts alike but for chunks and rank order the simplest within 1 % is shown", ""]
    lines += [f"  {'':>3}{'step':>9}{'range':>20}{'compute':>9}{'bubble':>8}{'exposed':>9}{'tok/s/GPU':>11}{'memory':>12}  layout"]
    tie, tight = None, False
    for at, row in enumerate(found.answers, start=1):
        if row.memory.verdict == "tight" and not tight:
            tight = True
            lines.append(f"  {TIGHT}:")
        if row.tie_group != tie:
            tie = row.tie_group
            lines.append(f"  tie group {tie}: within 5 % of its first{'' if fabric.priced_by == 'measured' else ', not measured'}")
        lines.append(_rank(at, row))
    hidden = found.faster_tight
    if hidden is not None and hidden.cost.step_s is not None:
        lines.append(f"  faster but {TIGHT}: {hidden.layout.text()}, {_seconds(hidden.cost.step_s['mid'])}, {_used(hidden.memory)}")
    if fabric.priced_by != "measured" and any(tensor_nodes(row, fabric) > 1 for row in found.answers):
        lines.append("  layouts whose tensor parallelism spans nodes are priced least surely: plan --emit, sweep --want")
    lines += ["", f"why the first: {found.why}", *_change(best, fabric), *_whats(best)]
    return [*lines, *(_money(best, money) if money != NO_MONEY else [])]


def _rank(at: int, row: Answer) -> str:
    cost = row.cost
    assert cost.step_s is not None
    assert cost.shares is not None
    s, span = cost.shares, f"{_seconds(cost.step_s['low'])} to {_seconds(cost.step_s['high'])}"
    shares = "".join(f"{format_percent(value) + ' %':>{width}}" for value, width in ((s.compute, 9), (s.bubble, 8), (s.exposed, 9)))
    memory = f"{row.memory.nbytes / 1e9:.0f}" + ("" if row.memory.of_nbytes is None else f" of {row.memory.of_nbytes / 1e9:.0f}") + " GB"
    tokens = row.tokens_per_s_per_gpu or 0.0
    return f"  {at:>2} {_seconds(cost.step_s['mid']):>9}{span:>20}{shares}{tokens:>11.0f}{memory:>12}  {row.layout.text()}"


def write_lines(lines: Sequence[str], stream: TextIO) -> None:
    """Write a page."""
    stream.write("\n".join(lines) + "\n")
