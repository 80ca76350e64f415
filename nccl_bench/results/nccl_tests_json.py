"""nccl-tests' -J files: the same run as its table, in JSON whose booleans are strings, whose NaN is "nan", and which a kill can cut anywhere.

Format of nccl-tests 2.19.6 src/util.cu (version 3). The file holds the whole environment: of it only the allow-list is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nccl_bench.errors import DataError
from nccl_bench.results.env import allowed_env
from nccl_bench.results.failures import Failure
from nccl_bench.results.nccl_tests import Device, Log, TestRun
from nccl_bench.results.table import Half, Layout, Row
from nccl_bench.results.text import Text

_RESULTS = re.compile(r'(?<!\\)"results"\s*:\s*\[')
_BLOCK = ("time", "algbw", "busbw", "wrong")
_CONFIG = {"minimum_bytes": "min", "maximum_bytes": "max", "warmup_iters": "warmup", "iterations": "iters", "aggregated_iterations": "agg"} | {
    word: word for word in ("nthreads", "ngpus", "validation", "graph")
}
_OVER_RANKS = {"0": "rank 0", "1": "mean", "2": "min", "3": "max"}

Json = dict[str, Any]


def is_json(text: Text) -> bool:
    """Whether a file is nccl-tests' JSON, whole or cut."""
    head = text.text.lstrip()[:1]
    return head == "{" and _RESULTS.search(text.text) is not None and '"config"' in text.text


def read_json(text: Text, name: str) -> tuple[Log, list[str], Json]:
    """(the run as a log's, warnings, {started_at, ended_at}). Raises DataError naming the file where it holds no result."""
    start = _RESULTS.search(text.text)
    if start is None:
        raise DataError(f"{name}:1: no results in this JSON", "nccl-tests -J writes them; a file cut before them holds none")
    head = _head(text.text[: start.start()], name)
    results, end = _results(text.text, start.end())
    tail = _tail(text.text[end:])
    run = _run(head, results)
    warnings = []
    if tail is None:
        plural = "" if len(results) == 1 else "s"
        warnings.append(f"{name}: truncated JSON after {len(results)} complete result{plural}: the program was killed while writing")
    else:
        _summary(run, tail)
    log = Log([run], [], [], [(line, "a result without its numbers") for line, result in results if not _halves(result, 1e-6)])
    times = {"started_at": _stamp(head.get("start_time")), "ended_at": _stamp((tail or {}).get("end_time"))}
    return log, warnings, times


def _head(text: str, name: str) -> Json:
    """Everything before the results."""
    try:
        head = orjson.loads(text.rstrip().rstrip(",") + "}")
    except orjson.JSONDecodeError as err:
        raise DataError(f"{name}:1: no JSON of nccl-tests: {str(err).splitlines()[0]}") from err
    if not isinstance(head, dict):
        raise DataError(f"{name}:1: no JSON of nccl-tests: {type(head).__name__} instead of an object")
    return head


def _results(text: str, at: int) -> tuple[list[tuple[int, Json]], int]:
    """[(line, result)] up to the first that is cut, and where the list ends."""
    decoder, results = json.JSONDecoder(), list[tuple[int, Json]]()
    line, counted = 1 + text.count("\n", 0, at), at
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] != "{":
            return results, at
        try:
            value, after = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            return results, len(text)
        line, counted = line + text.count("\n", counted, at), at
        results.append((line, value))
        at = after


def _tail(text: str) -> Json | None:
    """What follows the list of results; None where the file is cut."""
    if not text.startswith("]"):
        return None
    rest = text[1:].strip().lstrip(",")
    try:
        value = orjson.loads(rest if rest == "}" else "{" + rest) if rest != "}" else {}
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _run(head: Json, results: Sequence[tuple[int, Json]]) -> TestRun:
    config, args = _object(head.get("config")), [str(arg) for arg in _list(head.get("args"))]
    run = TestRun(first_line=1, label="", flavour="nccl-tests", program=args[0].rpartition("/")[2] if args else None, command=tuple(args))
    run.nccl = str(head["nccl_version"]) if isinstance(head.get("nccl_version"), int) else None
    run.config = {ours: config[theirs] for theirs, ours in _CONFIG.items() if isinstance(config.get(theirs), int)}
    for theirs, kind in (("step_factor", "factor"), ("step_bytes", "bytes")):
        if isinstance(config.get(theirs), int):
            run.config.update(step=config[theirs], step_kind=kind)
    if _true(config.get("blocking_collectives")):
        run.config["blocking"] = "blocking_collectives"
    run.devices = [device for entry in _list(config.get("devices")) if (device := _device(_object(entry))) is not None]
    _mend_devices(run)
    run.env = allowed_env(dict(entry.split("=", 1) for entry in map(str, _list(head.get("env"))) if "=" in entry))
    run.over_ranks = next((_OVER_RANKS.get(args[i + 1]) for i, arg in enumerate(args[:-1]) if arg in ("-a", "--average")), None)
    cpu = any("cpu_time" in _object(result.get(key)) for _, result in results for key in ("out_of_place", "in_place"))
    run.layout, run.has_header = Layout(("redop", "root"), (_BLOCK, _BLOCK), ("out", "in"), cpu_time=cpu), True
    step = _step(results)
    run.rows = [row for line, result in results if (row := _row(line, result, step)) is not None]
    if any(isinstance(result.get("actual_iterations"), int) for _, result in results) and "iters" not in run.config:
        run.config["iters"] = next(result["actual_iterations"] for _, result in results if isinstance(result.get("actual_iterations"), int))
    return run


def _mend_devices(run: TestRun) -> None:
    """A build without MPI lists the first rank alone (util.cu writeDeviceReport): its threads times its GPUs are the ranks."""
    n = int(run.config.get("nthreads", 1)) * int(run.config.get("ngpus", 1))
    if len(run.devices) == 1 and n > 1:
        run.devices, run.n_ranks_said = [], n


def _device(entry: Json) -> Device | None:
    rank, host = entry.get("rank"), entry.get("hostname")
    if not isinstance(rank, int) or not isinstance(host, str):
        return None
    numbers = {key: entry[key] if isinstance(entry.get(key), int) else None for key in ("device", "pid", "group")}
    bus_id, gpu = str(entry.get("device_hex", "")), entry.get("device_info")
    return Device(rank, host, numbers["device"] or 0, bus_id, gpu if isinstance(gpu, str) and gpu else None, numbers["pid"], numbers["group"])


def _row(line: int, result: Json, step: float) -> Row | None:
    size, count, dtype = result.get("size"), result.get("count"), result.get("type")
    halves = _halves(result, step)
    if not (isinstance(size, int) and isinstance(count, int) and isinstance(dtype, str) and halves):
        return None
    root, redop = str(result.get("root", "")).strip(), result.get("redop")
    return Row(
        line=line,
        size=size,
        count=count,
        dtype=dtype,
        redop=redop if isinstance(redop, str) and redop != "none" else None,
        root=int(root) if root.isdigit() else None,
        halves=halves,
    )


def _halves(result: Json, step: float) -> tuple[Half, ...]:
    halves = []
    for key, placement in (("out_of_place", "out"), ("in_place", "in")):
        body = _object(result.get(key))
        if body:
            halves.append(_half(body, _object(result.get(f"{key}_per_iter")), placement, step))
    return tuple(halves)


def _half(body: Json, per_iter: Json, placement: Any, step: float) -> Half:
    names = {"time": "cpu_time" if "cpu_time" in body else "time", "algbw": "alg_bw", "busbw": "bus_bw"}
    numbers = {ours: _number(body.get(theirs)) for ours, theirs in names.items()}
    wrong = _number(body.get("nwrong"))
    return Half(
        placement=placement,
        **numbers,
        bw_step=step,
        algbw_step=step,
        wrong=int(wrong) if wrong is not None and wrong >= 0 else None,
        i_min=_number(per_iter.get("min_us")),
        i_max=_number(per_iter.get("max_us")),
        i_p50=_number(per_iter.get("p50_us")),
        i_p95=_number(per_iter.get("p95_us")),
        i_p99=_number(per_iter.get("p99_us")),
        problem=", ".join(f"{name} is {body.get(names[name])}" for name, value in numbers.items() if value is None) or None,
    )


def _step(results: Sequence[tuple[int, Json]]) -> float:
    """What the last digit is worth: %lf prints six decimals, of which a file made from a table fills two."""
    bodies = [_object(result.get(key)) for _, result in results for key in ("out_of_place", "in_place")]
    values = [_number(body.get(name)) for body in bodies for name in ("alg_bw", "bus_bw")]
    rounded = all(value is None or abs(value * 100 - round(value * 100)) < 1e-6 * max(1.0, abs(value)) for value in values)
    return 0.01 if rounded else 1e-6


def _summary(run: TestRun, tail: Json) -> None:
    average, bounds = _object(tail.get("average_bus_bandwidth")), _object(tail.get("out_of_bounds"))
    if (value := _number(average.get("bandwidth"))) is not None:
        run.averages.append(f"{value:g}")
    if isinstance(bounds.get("count"), int):
        run.out_of_bounds = f"{bounds['count']} {'OK' if _true(bounds.get('okay')) else 'FAILED'}"
    run.concluded = "end_time" in tail
    for text in _list(tail.get("errors")):
        run.failures.append(Failure(line=1, text=str(text)[:300], rank=1, hint=None))


def _true(value: object) -> bool:
    """nccl-tests writes booleans as the strings "true" and "false"."""
    return value is True or value == "true"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _object(value: object) -> Json:
    return dict(value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _stamp(value: object) -> str | None:
    """Local time of the machine, as ISO 8601 without a zone: the file names none."""
    return value.replace(" ", "T") if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", value) else None
