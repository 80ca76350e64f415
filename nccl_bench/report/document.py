"""From runs to a document: read once, judged, laid out in sections. What shows it (HTML, Markdown, PDF, a terminal) adds nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from nccl_bench import __version__
from nccl_bench.report import environment, fold, pictures, pictures_across, tables
from nccl_bench.report.curves import Curve, View
from nccl_bench.report.naming import banner_of, headline
from nccl_bench.report.numbers import numbers, suspects
from nccl_bench.report.page import Cell, Document, Picture, Section, Status, Table
from nccl_bench.report.points import points_of_curve
from nccl_bench.report.redact import redacted
from nccl_bench.report.sentence import Look, summary
from nccl_bench.report.tables import text
from nccl_bench.report.training_section import training_section
from nccl_bench.report.views import views_of
from nccl_bench.results.runs import Run
from nccl_bench.results.store import VERDICT_FILE
from nccl_bench.units import counted
from nccl_bench.verdict.ceilings import ceilings_of

MAX_PER_RUN = 4
"""Runs whose own pictures (lateness, pairs, fabric) are drawn; of more, the first ones."""
MAX_SENTENCES = 12


def read(runs: Sequence[Run], *, redact_hosts: bool = False) -> tuple[tuple[View, ...], tuple[str, ...]]:
    """The views of runs, and warnings of reading them. Raises DataError with path:line where a point cannot be read."""
    from nccl_bench.verdict.frame import frame_of

    warnings: list[str] = [warning for run in runs for warning in run.warnings]
    torn: list[str] = []
    frame = frame_of(runs, torn)
    verdicts = {run.label: found for run in runs if (found := _verdict(run, warnings)) is not None}
    held = [(_with_warnings(run, torn), ceilings_of(run)) for run in runs]
    views = views_of(held, frame, verdicts)
    return (redacted(views) if redact_hosts else views), tuple(dict.fromkeys((*warnings, *torn)))


def _with_warnings(run: Run, torn: Sequence[str]) -> Run:
    mine = tuple(warning for warning in torn if warning.startswith(str(run.points_path)))
    return replace(run, warnings=(*run.warnings, *mine)) if mine else run


def _verdict(run: Run, warnings: list[str]) -> Mapping[str, Any] | None:
    path = Path(run.path) / VERDICT_FILE
    if run.points is not None or not path.is_file():
        return None
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as err:
        warnings.append(f"{path}: not read: {err}")
        return None
    if not isinstance(found, dict):
        warnings.append(f"{path}: not read: no JSON object")
        return None
    return found


def build(views: Sequence[View], warnings: Sequence[str] = ()) -> Document:
    """The document of these runs; those of unlike size in order of size."""
    if len({view.header.n_ranks for view in views}) > 1:
        views = sorted(views, key=lambda view: view.header.n_ranks or 0)
    judgement = fold.overall(views)
    return Document(
        title=_title(views),
        subtitle=_subtitle(views),
        banner=banner_of(views),
        status=judgement.status,
        sentence=fold.sentence(views, judgement),
        numbers=numbers(views),
        picture=pictures.first(views),
        suspects=suspects(views),
        missing=tuple(_missing(views)),
        not_tested=tuple(fold.not_tested(views)),
        sections=tuple(section for section in _sections(views, warnings) if section is not None),
        tool=f"nccl-bench {__version__}",
    )


def _title(views: Sequence[View]) -> str:
    return views[0].label if len(views) == 1 else f"{len(views)} runs: {views[0].label} to {views[-1].label}"


def _library(not_nccl: bool, facts: Mapping[str, str]) -> str:
    """What moved the data, with its version; gloo is part of torch."""
    name, key = ("gloo of torch", "version: torch") if not_nccl else ("NCCL", "version: nccl")
    return f"{name} {facts[key]}" if key in facts else "gloo" if not_nccl else ""


def _subtitle(views: Sequence[View]) -> str:
    """What machine this was, in a line."""
    found: dict[str, None] = {}
    for view in views:
        header = view.header
        facts = environment.facts(header)
        words = [
            f"{header.n_ranks} rank{'' if header.n_ranks == 1 else 's'}" if header.n_ranks else "",
            f"{header.n_nodes} node{'' if header.n_nodes == 1 else 's'}" if header.n_nodes else "",
            facts.get("GPUs", ""),
            _library(header.not_nccl, facts),
            f"measured by {header.tool}" if view.run.imported else header.tool,
            header.started_at or "",
        ]
        found[" · ".join(word for word in words if word)] = None
    lines = list(found)
    return lines[0] if len(lines) == 1 else f"{lines[0]}; and {len(lines) - 1} more kinds of runs" if len(lines) < len(views) else lines[0] + " …"


def _missing(views: Sequence[View]) -> list[str]:
    found: dict[str, list[str]] = {}
    for view in views:
        for item in fold.missing(view):
            found.setdefault(item, []).append(view.label)
    if len(views) == 1:
        return list(found)
    return [f"{item} ({labels[0]}{f' and {len(labels) - 1} more runs' if len(labels) > 1 else ''})" for item, labels in found.items()][:24]


# ---- sections ----


def _sections(views: Sequence[View], warnings: Sequence[str]) -> list[Section | None]:
    several = views[:MAX_PER_RUN]
    return [
        *(_hang(view) for view in views),
        *(_acceptance(view) for view in views),
        _runs(views),
        _collectives(views),
        _simple("time", "Time", pictures.time(views)),
        _efficiency(views),
        _simple("scaling", "Scaling", pictures_across.scaling(views)),
        _simple("passes", "Pass by pass", pictures_across.passes(views)),
        _dispatch(views),
        _simple("spread", "Spread", pictures.spread(views)),
        _each("lateness", "Lateness of ranks", [pictures_across.lateness(view) for view in several], views),
        _pairs(several, views),
        _groups(views),
        *(training_section(Path(view.run.path), view.label if len(several) > 1 else "", at) for at, view in enumerate(several)),
        _cases(views),
        _troubles(views),
        _fabric(several, views),
        _environment(views),
        _repeat(views),
        _warnings(views, warnings),
    ]


def _simple(name: str, title: str, picture: Picture | None) -> Section | None:
    return None if picture is None else Section(name=name, title=title, pictures=(picture,))


def _numbered(found: Sequence[Picture | None], views: Sequence[View]) -> tuple[Picture, ...]:
    """Pictures of single runs, each with a name of its own and its run in the title."""
    kept = [(at, picture) for at, picture in enumerate(found) if picture is not None]
    if len(views) == 1:
        return tuple(picture for _, picture in kept)
    return tuple(replace(picture, name=f"{picture.name}-{at + 1}", title=f"{picture.title}: {views[at].label}") for at, picture in kept)


def _each(name: str, title: str, found: Sequence[Picture | None], views: Sequence[View]) -> Section | None:
    shown = _numbered(found, views)
    note = f"The first {MAX_PER_RUN} of {len(views)} runs." if len(views) > MAX_PER_RUN else ""
    return Section(name=name, title=title, words=(note,) if note else (), pictures=shown) if shown else None


def _hang(view: View) -> Section | None:
    lines = (view.header.hang or {}).get("lines") or ()
    if not view.header.hang:
        return None
    words = tuple(str(line) for line in lines) or (str(view.header.why or "it hung"),)
    return Section(name=f"hang-{_anchor(view)}", title=f"It did not finish: {view.label}", commands=words)


def _anchor(view: View) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in view.label)


def _acceptance(view: View) -> Section | None:
    rows = (view.verdict or {}).get("rows") or ()
    if not view.verdict:
        return None
    statuses: dict[str, Status] = {"pass": "pass", "fail": "fail", "warn": "look", "inconclusive": "unknown"}
    keys = ("criterion", "stage", "status", "measured", "required", "unit", "hosts", "reason", "source")
    ordered = sorted(rows, key=lambda row: row.get("status") == "pass")[: tables.MAX_DIGEST]
    cells = tuple(
        tuple(Cell(text=_plain(row.get(key)), status=statuses.get(str(row.get("status"))) if key == "status" else None) for key in keys)
        for row in ordered
    )
    drain = view.verdict.get("drain") or ()
    words = [f"accept says: {view.verdict.get('status')}", f"hosts to drain: {', '.join(map(str, drain))}" if drain else ""]
    note = f"{counted(len(rows) - len(ordered), 'row')} more in {VERDICT_FILE}." if len(rows) > len(ordered) else ""
    table = Table(columns=keys, numbers=(False,) * len(keys), rows=cells, note=note)
    return Section(name=f"acceptance-{_anchor(view)}", title="Acceptance", words=tuple(word for word in words if word), tables=(table,))


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _runs(views: Sequence[View]) -> Section | None:
    if len(views) < 2:
        return None
    found = [fold.judge(view, views) for view in views]
    told = [(one.status, f"{one.who} {one.why}".strip()) for one in found]
    return Section(name="runs", title="The runs", tables=(tables.per_run(views, headline(views), told),))


def _collectives(views: Sequence[View]) -> Section | None:
    if not any(view.curves for view in views):
        return None
    picture = pictures.by_collective(views)
    words = _sentences(views[0]) if len(views) == 1 else ()
    return Section(
        name="collectives", title="By collective", words=words, pictures=() if picture is None else (picture,), tables=(tables.digest(views),)
    )


def _sentences(view: View) -> tuple[str, ...]:
    """A sentence a collective, in the words that a sweep ends its tables with."""
    found = []
    eager = {id(other): called for called, other in pictures.both_clocks(view)}
    for curve in view.main()[:MAX_SENTENCES]:
        look = Look(
            n_nodes=view.header.n_nodes,
            clocks=(str(curve.clock),),
            regime=str(curve.regime),
            not_nccl=view.header.not_nccl,
            shared_gpu=view.header.shared_gpu,
        )
        alone = [other for other in view.curves if other.regime == "isolated" and curve.regime != "isolated" and _beside(other, curve)]
        isolated = [point for other in alone[:1] for point, _ in points_of_curve(other) if point.nbytes <= curve.samples[0].nbytes]
        shown = [curve, *([eager[id(curve)]] if id(curve) in eager else [])]
        found.append(summary([row for one in shown for row in points_of_curve(_telling(one))], isolated, look))
    return tuple(found)


def _telling(curve: Curve) -> Curve:
    """The curve by what a sentence is made of: of very many sizes some, the peak and those with wrong data always."""
    if len(curve.samples) <= pictures.MAX_POINTS:
        return curve
    kept = {id(sample) for sample in (*pictures.thinned(curve.samples), curve.peak)}
    return replace(curve, samples=tuple(sample for sample in curve.samples if id(sample) in kept or sample.n_wrong))


def _beside(other: Curve, curve: Curve) -> bool:
    return (other.collective, other.dtype, other.op, other.n_ranks) == (curve.collective, curve.dtype, curve.op, curve.n_ranks)


def _efficiency(views: Sequence[View]) -> Section | None:
    picture, table = pictures.efficiency(views), tables.ceilings(views)
    reasons = dict.fromkeys(view.ceilings.why_not for view in views if view.ceilings.why_not and not any(curve.ceiling for curve in view.curves))
    words = [f"Held against nothing: {reason}." for reason in reasons]
    assumed: dict[str, None] = {}
    sources: dict[str, None] = {}
    for view in views:
        assumed |= dict.fromkeys(view.assumptions)
        for one in view.main():
            sources |= dict.fromkeys(one.ceiling.expected.sources if one.ceiling is not None and one.ceiling.expected is not None else ())
    words += [f"Assumed: {'; '.join(assumed)}."] if assumed else []
    words += [f"What healthy systems reach is from: {', '.join(list(sources)[:12])}"] if sources else []
    if picture is None and table is None and not words:
        return None
    shown, held = () if picture is None else (picture,), () if table is None else (table,)
    return Section(name="efficiency", title="Held against what is possible", words=tuple(words), pictures=shown, tables=held)


def _dispatch(views: Sequence[View]) -> Section | None:
    picture = pictures.dispatch(views)
    if picture is None:
        return None
    pairs = next(found for view in views if (found := pictures.both_clocks(view)))
    return Section(name="dispatch", title="Dispatch overhead", pictures=(picture,), tables=(tables.overhead(pairs),))


def _pairs(several: Sequence[View], views: Sequence[View]) -> Section | None:
    shown = _numbered([pictures_across.pairs(view) for view in several], views)
    if not shown:
        return None
    found = tuple(tables.slow_pairs(view) for view in several if view.pairs)
    return Section(name="pairs", title="Pairs", pictures=shown, tables=found)


def _groups(views: Sequence[View]) -> Section | None:
    table = tables.groups(views)
    picture = next((found for view in views if (found := pictures_across.axis_groups(view)) is not None), None)
    if table is None and picture is None:
        return None
    shown = () if picture is None else (picture,)
    return Section(name="groups", title="Groups", pictures=shown, tables=() if table is None else (table,))


def _cases(views: Sequence[View]) -> Section | None:
    if not any(view.curves for view in views):
        return None
    return Section(name="cases", title="Every case", tables=(tables.cases(views),), commands=environment.next_commands(views))


def _troubles(views: Sequence[View]) -> Section | None:
    table = tables.troubles(views)
    return None if table is None else Section(name="not-run", title="What did not run", tables=(table,))


def _fabric(several: Sequence[View], views: Sequence[View]) -> Section | None:
    found: list[Picture | None] = []
    seen: set[object] = set()
    for view in several:
        picture = pictures_across.fabric(view)
        kinds = pictures_across.kinds_of(view)
        found.append(None if kinds in seen else picture)
        seen.add(kinds)
    shown = _numbered(found, views)
    if not shown:
        return Section(name="fabric", title="The fabric", words=("No topology was recorded, and no GPU is named.",))
    notes: dict[str, None] = {}
    for view in several:
        topology = view.ceilings.topology
        notes |= dict.fromkeys((*topology.all_warnings(), *topology.assumptions) if topology is not None else ())
    return Section(name="fabric", title="The fabric", words=tuple(notes)[:16], pictures=shown)


def _environment(views: Sequence[View]) -> Section:
    found = [environment.table(views)]
    hosts = environment.hosts(views[0]) if len(views) == 1 else None
    return Section(name="environment", title="Environment", tables=(*found, hosts) if hosts is not None else tuple(found))


def _repeat(views: Sequence[View]) -> Section | None:
    commands = environment.commands(views)[:24]
    if not commands:
        return Section(name="repeat", title="How to repeat it", words=("What was typed is not recorded.",))
    return Section(name="repeat", title="How to repeat it", words=("What was typed:",), commands=commands)


def _warnings(views: Sequence[View], warnings: Sequence[str]) -> Section | None:
    found: dict[str, None] = {}
    for view in views:
        found |= dict.fromkeys((*view.header.warnings, *view.run.warnings))
    found |= dict.fromkeys(warnings)
    if not found:
        return None
    rows = tuple((text(warning),) for warning in found)[: tables.MAX_DIGEST]
    return Section(name="warnings", title="Warnings", tables=(Table(columns=("warning",), numbers=(False,), rows=rows),))
