"""Any file of somebody else's measurements to points: what it is, is found by looking at it; several files become one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from nccl_bench.errors import DataError
from nccl_bench.records import Json, Point, RunHeader
from nccl_bench.results.deepspeed import import_deepspeed, is_deepspeed
from nccl_bench.results.env import allowed_env, redact
from nccl_bench.results.imported import Imported
from nccl_bench.results.nccl_tests_json import is_json
from nccl_bench.results.nccl_tests_points import import_log
from nccl_bench.results.pair_table import import_pairs, is_pair_table
from nccl_bench.results.rank_table import import_ranks, is_rank_table
from nccl_bench.results.table import has_rows
from nccl_bench.results.text import Text, read_text
from nccl_bench.results.watchdog import import_watchdog, is_watchdog

TOOL = "nccl-bench import"


def import_file(path: Path, *, only: int | None = None, group_size: int | None = None) -> Imported:
    """Read a file of any kind that `import` knows. `only`: the number of one run of a log that holds several, from 1.

    `group_size`: ranks a group of a DeepSpeed dump. Raises DataError, naming the file, where it is none of them or cannot be read.
    """
    text = read_text(path)
    name = str(path)
    if is_json(text) or has_rows(text.text):
        return import_log(text, name, only)
    if only is not None:
        raise DataError(f"{name}#{only}: only logs of nccl-tests hold several runs, and this is none")
    if is_deepspeed(text):
        return import_deepspeed(text, name, group_size)
    return _other(text, name)


def _other(text: Text, name: str) -> Imported:
    if is_watchdog(text):
        return import_watchdog(text, name)
    if is_rank_table(text):
        return import_ranks(text, name)
    if is_pair_table(text):
        return import_pairs(text, name)
    return import_log(text, name)


def header_of(files: Sequence[Imported], *, argv: Iterable[str] = ()) -> RunHeader:
    """One header for what several files hold. What they do not tell is None."""
    first = max(files, key=lambda file: len(file.points))
    complete = [run.get("complete") for file in files for run in file.runs]
    failures = [file.failure for file in files if file.failure is not None]
    tools = dict.fromkeys(file.tool for file in files if file.tool is not None)
    nodes = {file.n_nodes for file in files}
    nccl = all(file.kind in ("nccl-tests", "rccl-tests") for file in files)
    why = failures[0] if failures else "incomplete, see the warnings" if False in complete else None
    return RunHeader(
        tool=", ".join(tools) or TOOL,
        argv=tuple(redact(list(argv))) or first.argv,
        started_at=min((file.started_at for file in files if file.started_at), default=None),
        ended_at=max((file.ended_at for file in files if file.ended_at), default=None),
        exit_code=4 if failures else 0 if why is None else None,
        why=why,
        launcher=None,
        backend="nccl" if nccl else None,
        not_nccl=any(file.not_nccl for file in files),
        shared_gpu=any(file.shared_gpu for file in files),
        n_ranks=max((file.n_ranks for file in files if file.n_ranks), default=None),
        n_nodes=first.n_nodes if len(nodes) == 1 else max((n for n in nodes if n), default=None),
        ranks=first.ranks,
        versions=first.versions,
        spec={"imported": [_facts(file) for file in files]},
        env=allowed_env({key: value for file in files for key, value in file.env.items()}),
        warnings=tuple(warning for file in files for warning in file.warnings),
        hang=next((asdict(hang) for file in files for hang in file.hangs), None),
    )


def _facts(file: Imported) -> Json:
    return {"path": file.path, "kind": file.kind, "command": list(file.argv), "runs": [dict(run) for run in file.runs], "failed": file.failure}


def points_of(files: Sequence[Imported]) -> tuple[Point, ...]:
    """The points of several files; the same case in a later file is another pass, so that repeats stay apart."""
    used: dict[tuple[object, ...], int] = {}
    points: list[Point] = []
    for file in files:
        start = max((used.get(_case(point), 0) for point in file.points), default=0)
        points += [replace(point, pass_=point.pass_ + start) if start else point for point in file.points]
        for point in file.points:
            used[_case(point)] = max(used.get(_case(point), 0), point.pass_ + start + 1)
    return tuple(points)


def _case(point: Point) -> tuple[object, ...]:
    return (point.collective, point.dtype, point.op, point.root, point.requested_nbytes, point.n_ranks, point.placement, point.group, point.pair)
