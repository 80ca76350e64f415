"""From the runs of an nccl-tests log to points: each half of a row is one, with the numbers as printed; what does not fit is a warning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from nccl_bench.dtypes import find_dtype, find_op
from nccl_bench.errors import DataError, UsageError
from nccl_bench.records import Group, Json, Point, Times
from nccl_bench.results.env import redact
from nccl_bench.results.failures import Failure, duplicates, first_cause, reporters
from nccl_bench.results.imported import Imported
from nccl_bench.results.nccl_tests import BANNERS, Log, TestRun, read_log
from nccl_bench.results.nccl_tests_checks import (
    Sizes,
    average_of,
    completeness,
    dips,
    mean_of,
    milliseconds,
    shared_gpus,
    sizes_of,
)
from nccl_bench.results.nccl_tests_infer import UNKNOWN, Ranks, collective_of, hosts_of, ranks_of
from nccl_bench.results.nccl_tests_json import is_json, read_json
from nccl_bench.results.nccl_tests_rates import mended
from nccl_bench.results.table import Half, Row
from nccl_bench.results.text import Text

ASSUMED = "mean (assumed)"
"""nccl-tests averages times over ranks unless -a says otherwise (common.cu average), and does not print which."""
MIN_FOR_P99 = 100
"""Below 100 operations i_p99 is the largest (nccl-tests' own help for -I)."""


def import_log(text: Text, name: str, only: int | None = None) -> Imported:
    """The points of a log; `name` is how its lines are cited, `only` the number of one run in it, from 1.

    Raises DataError where it holds no row and no failed run. A run that failed before any row is Imported.failure.
    """
    if is_json(text):
        log, warnings, times = read_json(text, name)
        imported = _import(log, name, only)
        return replace(imported, warnings=(*warnings, *imported.warnings), **times)
    return _import(read_log(text), name, only)


def _import(log: Log, name: str, only: int | None) -> Imported:
    runs = log.runs
    if only is not None:
        if not 1 <= only <= len(runs):
            raise DataError(f"{name}: there is no run {only} in it: it holds {len(runs)}")
        runs = [runs[only - 1]]
    if not any(run.rows for run in runs):
        return _without_rows(log, runs, name)
    parts = [_import_run(run, name) for run in runs]
    points = _number_passes([part.points for part in parts])
    warnings = [*(warning for part in parts for warning in part.warnings), *_file_warnings(log, runs, name)]
    first = max(parts, key=lambda part: len(part.points))
    return Imported(
        path=name,
        kind=next((part.kind for part in parts if part.kind != "nccl-tests"), "nccl-tests"),
        points=points,
        warnings=tuple(warnings),
        tool=first.tool,
        argv=first.argv,
        n_ranks=max((part.n_ranks for part in parts if part.n_ranks), default=None),
        n_nodes=first.n_nodes if len({part.n_nodes for part in parts}) == 1 else None,
        ranks=first.ranks,
        shared_gpu=any(part.shared_gpu for part in parts) or BANNERS[1] in log.banners,
        not_nccl=BANNERS[0] in log.banners,
        versions=first.versions,
        env={key: value for part in parts for key, value in part.env.items()},
        runs=tuple(facts for part in parts for facts in part.runs),
    )


def _without_rows(log: Log, runs: Sequence[TestRun], name: str) -> Imported:
    """A log without a row: a failed run, quoted, or an error that says what it is."""
    failures = [*log.failures, *(failure for run in runs for failure in run.failures)]
    if log.commented_rows:
        n = len(log.commented_rows)
        hint = "uncomment them if they are results: sed -i 's/^# *//' LOG"
        raise DataError(f"{name}:{log.commented_rows[0]}: no result rows: {n} commented line{'s' * (n > 1)} look{'s' * (n == 1)} like rows", hint)
    cause = first_cause(failures)
    if log.unreadable_rows and cause is None:
        line, what = log.unreadable_rows[0]
        raise DataError(f"{name}:{line}: no numeric rows: {len(log.unreadable_rows)} lines look like rows, and none holds numbers ({what})")
    if cause is not None and (runs or cause.of_a_run):
        return _failed(name, cause, failures, runs)
    if runs:
        what = "the table has no rows" if any(run.has_header for run in runs) else "no nccl-tests table"
        raise DataError(f"{name}:{runs[-1].first_line}: {what}, and nothing says why: the log ends there", "look at the job's stderr")
    hint = "import reads logs of nccl-tests and rccl-tests (text, -J), DeepSpeed comms_logger dumps, torch watchdog text, and pair tables"
    raise DataError(f"{name}: no nccl-tests table in it, nor anything else that import reads", hint)


def _failed(name: str, cause: Failure, failures: Sequence[Failure], runs: Sequence[TestRun]) -> Imported:
    who = reporters(failures)
    table = "no row" if any(run.has_header for run in runs) else f"no nccl-tests table in {name}"
    advice = cause.hint or next((failure.hint for failure in failures if failure.hint), None)
    hints = [hint for hint in (duplicates(failures), f"reported by {who}" if who else None, advice) if hint]
    facts = [_facts(run, name, *collective_of(run, name)) for run in runs]
    return Imported(
        path=name,
        kind="nccl-tests",
        failure=f"{name}:{cause.line}: the run failed, {table}: {cause.text}",
        hints=tuple(hints),
        runs=tuple({**fact, "failed": cause.text} for fact in facts),
        n_ranks=next((n for run in runs if (n := ranks_of(run, UNKNOWN).n)), None),
        ranks=next((_ranks(run) for run in runs if run.devices), ()),
    )


def _import_run(run: TestRun, name: str) -> Imported:
    collective, known_by = collective_of(run, name)
    ranks = ranks_of(run, collective)
    sizes = sizes_of(run, collective, ranks.n)
    mean = mean_of(run)
    complete, warnings = completeness(run, sizes, mean)
    rows, disputed = mended(run, collective, ranks.n)
    warnings += [*_about_ranks(collective, known_by, ranks), *_about_rows(run, sizes), *disputed, *_about_data(run)]
    run = replace(run, rows=list(rows))
    warnings += [*shared_gpus(run), *dips(run)]
    if run.failures and run.rows and (cause := first_cause(run.failures)) is not None:
        warnings.append(f"something failed after these rows: line {cause.line}: {cause.text}")
    points = _points(run, name, collective, ranks, sizes)
    facts = _facts(run, name, collective, known_by) | _judged(run, ranks, mean, complete, sizes) | {"points": len(points)}
    label = f"{name}:{run.first_line}: {collective}: "
    flavour = run.flavour or "nccl-tests"
    return Imported(
        path=name,
        kind=flavour,
        points=points,
        warnings=tuple(label + warning for warning in warnings),
        tool=f"{flavour} {run.version}" if run.version else flavour,
        argv=tuple(redact(list(run.command))),
        n_ranks=ranks.n * ranks.n_groups if ranks.n else None,
        n_nodes=facts["n_nodes"],
        ranks=_ranks(run),
        shared_gpu=bool(shared_gpus(run)),
        versions=_versions(run),
        env=run.env,
        runs=(facts,),
    )


# ---- points ----


def _points(run: TestRun, name: str, collective: str, ranks: Ranks, sizes: Sizes) -> tuple[Point, ...]:
    scale = 1000.0 if milliseconds(run) else 1.0
    shared = _shared(run, collective, ranks)
    points = []
    for row, requested, pass_ in zip(run.rows, sizes.requested, sizes.passes, strict=True):
        case = {
            **shared,
            "dtype": _dtype(row.dtype),
            "op": _op(row.redop),
            "root": row.root,
            "nbytes": row.size,
            "requested_nbytes": requested,
            "count": row.count,
            "pass_": pass_,
            "algorithm": row.algo.lower() if row.algo else None,
            "protocol": row.proto.lower() if row.proto else None,
            "channels": row.channels,
            "source": f"{name}:{row.line}",
        }
        halves = [half for half in row.halves if run.only_form in (None, half.placement)] or list(row.halves[:1])
        for half in halves:
            placement = run.only_form or half.placement
            points.append(Point(**case, placement=placement, **_measured(run, row, half, scale, shared["over_ranks"])))
    return tuple(points)


def _shared(run: TestRun, collective: str, ranks: Ranks) -> Json:
    """The fields that all points of a run share."""
    config = run.config
    iters, aggregated, graph = (config.get(key) for key in ("iters", "agg", "graph"))
    per_batch = iters * (aggregated if isinstance(aggregated, int) else 1) if isinstance(iters, int) else None
    clock, reason = None, f"nccl-tests: {per_batch or 'its'} calls one after the other, timed by the host"
    if run.layout is not None and run.layout.cpu_time:
        clock, reason = "cpu", "-C 1: how long the calls kept the CPU, not how long the operations took"
    elif isinstance(graph, int) and graph > 0:
        clock, reason = "graph", f"-G {graph}: replays of a CUDA graph of {per_batch or 'its'} calls"
    if run.clock is not None:
        clock, reason = run.clock, "as nccl-bench printed it: median of the maximum over ranks"
    blocking = config.get("blocking")
    if blocking:
        reason += f"; {blocking}"
    return {
        "collective": collective,
        "n_ranks": ranks.n,
        "group": Group(size=ranks.n, n_groups=ranks.n_groups) if ranks.n_groups > 1 and ranks.n else None,
        "shift": "ring" if collective == "sendrecv" else None,
        "clock": clock,
        "clock_reason": reason,
        "regime": None if blocking else run.regime or "streaming",
        "over_ranks": run.over_ranks or ASSUMED,
        "iters": per_batch,
        "ops_per_batch": per_batch * graph if clock == "graph" and per_batch and isinstance(graph, int) else per_batch,
        "batches": 1 if run.clock is None else None,
        "stop": "iters",
    }


def _measured(run: TestRun, row: Row, half: Half, scale: float, over_ranks: str) -> Json:
    """The fields of one half."""
    time = None if half.time is None else half.time * scale
    enough = isinstance(run.config.get("iters"), int) and int(run.config["iters"]) >= MIN_FOR_P99
    status, reason = ("failed", f"printed without a number: {half.problem}") if half.problem else ("ok", None)
    if row.size == 0:
        status, reason = "skipped", "0 bytes: the size rounds down to nothing for this many ranks"
    times = None
    if time is not None:
        times = Times(
            median=time if half.i_p50 is None else half.i_p50,
            mean=time,
            min=time if half.i_min is None else half.i_min,
            max=time if half.i_max is None else half.i_max,
            p95=half.i_p95,
            p99=half.i_p99 if enough else None,
        )
    return {
        "sample": "batch" if half.i_min is None else "op",
        "time_us": times,
        "mean_over_ranks_us": time if over_ranks in (ASSUMED, "mean") else None,
        "algbw_GBps": half.algbw,
        "busbw_GBps": half.busbw,
        "n_wrong": half.wrong,
        "status": status,
        "reason": reason,
    }


def _dtype(word: str) -> str:
    try:
        return find_dtype(word).name
    except UsageError:
        return word


def _op(word: str | None) -> str | None:
    if word is None:
        return None
    try:
        return find_op(word)
    except UsageError:
        return word


def _number_passes(parts: Sequence[tuple[Point, ...]]) -> tuple[Point, ...]:
    """All points; a later run of the same cases counts its passes on, so that no repeat is taken for another's."""
    used: dict[tuple[object, ...], int] = {}
    numbered: list[Point] = []
    for points in parts:
        keys = {(p.collective, p.n_ranks, p.dtype, p.op, p.root, p.placement, p.requested_nbytes) for p in points}
        start = max((used[key] for key in keys if key in used), default=0)
        numbered += [replace(point, pass_=point.pass_ + start) if start else point for point in points]
        last = start + max((point.pass_ for point in points), default=0) + 1
        used.update(dict.fromkeys(keys, last))
    return tuple(numbered)


# ---- the header ----


def _ranks(run: TestRun) -> tuple[Json, ...]:
    counted: dict[str, int] = {}
    rows = []
    for device in sorted(run.devices, key=lambda device: device.rank):
        local = counted.get(device.host, 0)
        counted[device.host] = local + 1
        gpu = {"index": device.device, "name": device.name, "uuid": None, "pci": device.bus_id, "memory_nbytes": None} if device.bus_id else None
        rows.append({"rank": device.rank, "host": device.host, "local_rank": local, "pid": device.pid, "gpu": gpu, "nics": None})
    return tuple(rows)


def _versions(run: TestRun) -> Json:
    """{nccl, cuda} of "22809", "2.28.9", "2.12.12+cuda11.6"."""
    if run.nccl is None:
        return {}
    version, _, cuda = run.nccl.partition("+cuda")
    if version.isdigit() and len(version) >= 4:
        # NCCL_VERSION_CODE (nccl.h): two digits a part since 2.9, one for the minor version before.
        code = int(version)
        version = f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 10000 else f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    return {("rccl" if run.flavour == "rccl-tests" else "nccl"): version, **({"cuda": cuda} if cuda else {})}


def _facts(run: TestRun, name: str, collective: str, known_by: str) -> Json:
    hosts = hosts_of(run)
    return {
        "source": f"{name}:{run.first_line}",
        "collective": collective,
        "collective_from": known_by,
        "program": run.program,
        "version": run.version,
        "flavour": run.flavour,
        "n_ranks": ranks_of(run, collective).n,
        "n_nodes": len(set(hosts)) if hosts else None,
        "hosts": list(dict.fromkeys(hosts)) if hosts else None,
        "config": dict(run.config),
        "networks": list(run.networks),
    }


def _judged(run: TestRun, ranks: Ranks, mean: float | None, complete: bool | None, sizes: Sizes) -> Json:
    bounds = run.out_of_bounds.split() if run.out_of_bounds else []
    halves = [half for row in run.rows for half in row.halves]
    return {
        "n_ranks_from": ranks.said_by,
        "n_ranks_range": None if ranks.low is None else [ranks.low, ranks.high],
        "rows": len(run.rows),
        "avg_busbw_GBps": average_of(run),
        "mean_of_rows_GBps": mean,
        "out_of_bounds": {"count": int(bounds[0]) if bounds[0].isdigit() else None, "ok": "OK" in bounds} if bounds else None,
        "checked": any(half.wrong is not None for half in halves),
        "n_wrong": sum(half.wrong for half in halves if half.wrong) if any(half.wrong is not None for half in halves) else None,
        "concluded": run.concluded,
        "complete": complete,
        "missing_nbytes": list(sizes.missing[:64]),
    }


# ---- warnings ----


def _about_ranks(collective: str, known_by: str, ranks: Ranks) -> list[str]:
    warnings = []
    if collective == UNKNOWN:
        warnings.append(f"no line names the collective, and {known_by}: give the file its name, as in all_gather.log")
    elif known_by == "file name":
        warnings.append(f"no line names the collective: the file's name says {collective}")
    if ranks.disagrees:
        span = f"{ranks.low}" if ranks.low == ranks.high else f"{ranks.low} to {ranks.high}"
        warnings.append(f"the {ranks.said_by} says {ranks.n} ranks, busbw/algbw says {span}")
    elif ranks.n is None:
        span = f": busbw/algbw allows {ranks.low} to {ranks.high}" if ranks.low is not None else ""
        warnings.append(f"nothing tells how many ranks took part{span}")
    elif ranks.said_by not in ("device list", "NCCL INFO"):
        warnings.append(f"no device list: {ranks.n} ranks by its {ranks.said_by}")
    if ranks.n == 1:
        warnings.append("single rank: no communication was measured")
    return warnings


def _about_rows(run: TestRun, sizes: Sizes) -> list[str]:
    warnings = [f"line {row.line}: {row.problem}" for row in run.rows if row.problem]
    failed = [(row, half) for row in run.rows for half in row.halves if half.problem]
    warnings += [f"line {row.line}: {row.size} B: {half.problem}" for row, half in failed]
    if empty := sum(row.size == 0 for row in run.rows):
        warnings.append(f"{empty} row{'s' * (empty > 1)} of 0 bytes: kept as skipped points; the printed average counts them")
    if cycles := max(sizes.passes, default=0):
        warnings.append(f"sizes were measured up to {cycles + 1} times: kept as passes")
    if milliseconds(run):
        warnings.append("times are milliseconds, as NCCL 1's tests print them: converted")
    if run.layout is not None and run.layout.cpu_time:
        warnings.append("times are CPU times (-C 1): how long the calls took to return")
    return warnings


def _about_data(run: TestRun) -> list[str]:
    warnings = []
    bad = [(row, half) for row in run.rows for half in row.halves if half.wrong]
    for row, half in bad[:8]:
        warnings.append(f"WRONG DATA: line {row.line}: {row.size} B: {half.wrong} wrong elements {half.placement} of place")
    if len(bad) > 8:
        warnings.append(f"WRONG DATA in {len(bad) - 8} halves more")
    if run.out_of_bounds and "FAILED" in run.out_of_bounds:
        warnings.append(f"WRONG DATA: out of bounds values: {run.out_of_bounds} (it counts failed checks, not elements)")
    halves = [half for row in run.rows for half in row.halves]
    deviations = [half.error for half in halves if half.error is not None]
    if deviations:
        warnings.append(f"the error column ({max(deviations):g} at most) is a deviation, not a count of wrong elements")
    elif not any(half.wrong is not None for half in halves):
        warnings.append("the data was not checked (N/A)")
    return [warning.replace("in of place", "in place") for warning in warnings]


def _file_warnings(log: Log, runs: Sequence[TestRun], name: str) -> list[str]:
    warnings = [f"{name}:{line}: looks like a row and was left out: {what}" for line, what in log.unreadable_rows[:16]]
    if len(log.unreadable_rows) > 16:
        warnings.append(f"{name}: {len(log.unreadable_rows) - 16} lines more look like rows and were left out")
    if log.commented_rows:
        warnings.append(f"{name}:{log.commented_rows[0]}: {len(log.commented_rows)} commented lines look like rows and were left out")
    for before, after in itertools.pairwise(runs):
        if before.rows and after.first_line < before.rows[-1].line and before.label == after.label:
            why = "each process is rank 0 of its own job: was nccl-tests built without MPI?"
            warnings.append(f"{name}:{after.first_line}: a second run begins inside the first: {why}")
    empty = [cause for run in runs if not run.rows and (cause := first_cause(run.failures)) is not None]
    warnings += [f"{name}:{cause.line}: a run failed before any row: {cause.text}" for cause in empty]
    if log.failures and (cause := first_cause(log.failures)) is not None:
        warnings.append(f"{name}:{cause.line}: something failed before the first run: {cause.text}")
    return warnings
