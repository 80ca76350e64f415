"""How a comparison is shown: lines for the terminal, and one page of HTML that needs nothing else. No pandas."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from nccl_bench.units import counted, format_GBps, format_size, format_us
from nccl_bench.verdict.arms import LAUNCH_BOUND_US
from nccl_bench.verdict.noise import PRINTED_RUN_TO_RUN

if TYPE_CHECKING:
    from nccl_bench.verdict.compare import CaseResult, Comparison

MAX_ROWS = 150
"""Cases in the terminal, three pages of it; with more of them, those within noise are counted instead. --json and the page have all."""
MARKS = {"regression": "▼", "improvement": "▲", "within noise": "=", "missing": "-", "not comparable": "?"}
"""A symbol beside each verdict, so that nothing is told by colour alone."""


def lines(comparison: Comparison) -> list[str]:
    """The comparison as text: the sentences, what changed besides, the cases."""
    shown = [f"BASE {', '.join(comparison.base)}", f"NEW  {', '.join(comparison.new)}", ""]
    shown += comparison.summary or ["nothing is comparable"]
    shown += ["", _counted(comparison)]
    if comparison.changed:
        shown += ["", "what else changed:"]
        shown += [f"  {item['what']}: {_known(item['base'])} -> {_known(item['new'])}" for item in comparison.changed]
    said = [line for note in notes(comparison) for line in textwrap.wrap(note, 110, initial_indent="note: ", subsequent_indent="      ")]
    shown += ["", *said] if said else []
    return [*shown, "", *_table(comparison)]


def _counted(comparison: Comparison) -> str:
    counts = [f"{n} {verdict}{'s' if n > 1 and verdict in ('regression', 'improvement') else ''}" for verdict, n in comparison.counts().items() if n]
    counts_from = f"a change counts where it is more than {100 * comparison.threshold_frac:g} % and beyond noise"
    return f"{counted(len(comparison.cases), 'case')}: {', '.join(counts) or 'none'} ({counts_from})"


def notes(comparison: Comparison) -> list[str]:
    """What the numbers of the table are, where that is not what a sweep's table shows."""
    means = any(case.over_ranks == "mean" for case in comparison.cases)
    found = ["mean over ranks: the statistic of nccl-tests, not the slowest rank that a sweep's own table shows"] if means else []
    froms = {case.noise_from for case in comparison.cases}
    if froms & {"assumed", "neighbours"}:
        apart = ", ".join(f"{100 * frac:.2g} % {'below' if limit < math.inf else 'above'}" for limit, frac in PRINTED_RUN_TO_RUN)
        found.append(
            f"a table with one number a size has no interval of its own: the one shown is assumed, from what two runs of one machine were seen to "
            f"differ by (standard deviation {apart} {LAUNCH_BOUND_US:.0f} µs), or from how neighbouring sizes of these two scatter where that is more"
        )
    return found


def _known(value: object) -> str:
    return "not known" if value is None else str(value)


def _table(comparison: Comparison) -> list[str]:
    cases = list(comparison.cases)
    left_out = 0
    if len(cases) > MAX_ROWS:
        telling = [case for case in cases if case.verdict != "within noise"]
        left_out, cases = len(cases) - len(telling), telling
        if len(cases) > MAX_ROWS:
            left_out, cases = left_out + len(cases) - MAX_ROWS, cases[:MAX_ROWS]
    rows = [_HEAD, *(_cells(case) for case in cases)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    found: list[str] = []
    title = None
    for row, case in zip(rows[1:], cases, strict=True):
        if (name := what(case)) != title:
            found += ["", name, _line(_HEAD, widths)] if found else [name, _line(_HEAD, widths)]
            title = name
        found.append(_line(row, widths))
    if left_out:
        found.append(f"{left_out} cases more, most of them within noise: --json and --html have them")
    return found


_HEAD = ("size", "form", "base", "new", "change", "95 % interval", "verdict", "why")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.rjust(width) if i < 6 else cell.ljust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))).rstrip()


def what(case: CaseResult) -> str:
    """What a case is of, but for its size and form: "all_reduce · 8 ranks · sum float32 · graph, streaming"."""
    words = [case.collective, f"{case.n_ranks} ranks" if case.n_ranks else "", f"axis {case.axis}" if case.axis else ""]
    words += [" ".join(word for word in (case.op, case.dtype) if word), f"root {case.root}" if case.root is not None else ""]
    words += [", ".join(word for word in (case.clock, case.regime) if word), f"variant {case.variant}" if case.variant else ""]
    words += [f"shift {case.shift}" if case.shift else "", "mean over ranks" if case.over_ranks == "mean" else ""]
    return " · ".join(word for word in words if word)


def _cells(case: CaseResult) -> tuple[str, ...]:
    form = {"in": "in", "out": "out"}.get(case.placement or "", "-")
    change = "-" if case.change_frac is None else f"{100 * case.change_frac:+.1f} %"
    verdict = f"{MARKS[case.verdict]} {case.verdict}"
    return (format_size(case.nbytes), form, _value(case, "base"), _value(case, "new"), change, interval(case), verdict, case.reason or "")


def interval(case: CaseResult) -> str:
    """The 95 % interval of the change of speed, in percent; "-" where there is none."""
    if case.ratio_low is None or case.ratio_high is None:
        return "-"
    return f"{100 * (1 / case.ratio_high - 1):+.1f} .. {100 * (1 / case.ratio_low - 1):+.1f}"


def _value(case: CaseResult, side: str) -> str:
    """One side's number, of the kind the change was worked out from."""
    time = case.base_time_us if side == "base" else case.new_time_us
    rate = case.base_busbw_GBps if side == "base" else case.new_busbw_GBps
    if case.by == "busbw" and rate is not None:
        return f"{format_GBps(rate)} GB/s"
    return format_us(time)


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --slow: #a40e26; --fast: #0a5a9c; --soft: #57606a }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --slow: #ff8182; --fast: #79c0ff; --soft: #8b949e } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem } .said { font-size: 1.15rem; font-weight: 600 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:nth-child(n+7), td:nth-child(n+7) { text-align: left } td:last-child { white-space: normal; color: var(--soft) }
.left th, .left td { text-align: left; white-space: normal; color: inherit }
.regression { color: var(--slow); font-weight: 600 } .improvement { color: var(--fast); font-weight: 600 }
@media print { body { margin: 0; max-width: none; font-size: 11px } h2 { break-after: avoid } tr { break-inside: avoid } }
"""


def html(comparison: Comparison) -> str:
    """One self-contained page: no script, no file besides, printable, light and dark."""
    said = "".join(f"<p class=said>{escape(sentence)}</p>" for sentence in comparison.summary) or "<p class=said>nothing is comparable</p>"
    groups: dict[str, list[CaseResult]] = {}
    for case in comparison.cases:
        groups.setdefault(what(case), []).append(case)
    tables = "".join(f"<h2>{escape(name)}</h2>{_html_table(cases)}" for name, cases in groups.items())
    changed = [(str(item["what"]), _known(item["base"]), _known(item["new"])) for item in comparison.changed]
    parts = [
        f"<h1>{escape(', '.join(comparison.new))} against {escape(', '.join(comparison.base))}</h1>",
        said,
        f"<p>{escape(_counted(comparison))}</p>",
        *(f"<p>{escape(note)}</p>" for note in notes(comparison)),
        _html_rows("What else changed", ("what", "base", "new"), changed),
        tables,
        _html_rows("Warnings", ("warning",), [(warning,) for warning in comparison.warnings]),
    ]
    title = escape(f"{', '.join(comparison.new)} against {', '.join(comparison.base)}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _html_table(cases: Iterable[CaseResult]) -> str:
    rows = [_html_row(_cells(case), case.verdict.replace(" ", "-")) for case in cases]
    return _html_frame(_HEAD, rows, "cases")


def _html_row(cells: Sequence[str], kind: str = "") -> str:
    return f'<tr class="{kind}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'


def _html_frame(head: Sequence[str], rows: Sequence[str], kind: str) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{names}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _html_rows(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    return f"<h2>{escape(title)}</h2>{_html_frame(head, [_html_row(row) for row in rows], 'left')}"
