"""Acceptance criteria: what is required, by whom it was said, and the file that may say otherwise (TOML, checked). Pure.

[bandwidth]                     # shares of what healthy systems of this kind reach (`nccl-bench explain expected`)
share = 0.95                    # of the low end: below fails; between it and 1.0 warns
[bandwidth.shares]              # by collective
all_to_all = 0.9
[[bandwidth.ranges]]            # other shares for a range of sizes, which is measured at both ends and judged too
collective = "all_reduce"
from = "64M"
to = "512M"
share = 0.8
source = "contract 4711, annex B"
[[require]]                     # a vendor's number, with the statistic it was measured by
stage = "cluster"               # node, nic, rails, scale, cluster
collective = "all_reduce"
min_busbw_GBps = 360.0
statistic = "largest"           # largest size, max over sizes, or average over sizes (which hides a slow size: said in the row)
from = "2G"                     # of these sizes alone, which are measured: both ends, of an average the doublings between
to = "8G"
source = "contract 4711, annex B"
[[require]]
stage = "cluster"
collective = "all_reduce"
max_latency_us = 40.0           # of the smallest size
[hardware]                      # of each node, as bought; without it a run is held against what is found on the nodes, which the verdict says
gpu = "H100-SXM"
gpus_per_node = 8
nvlinks = 18                    # up, of each GPU
nics_per_node = 8               # with nic_gbps: ports that are up and as fast
nic_gbps = 400
source = "contract 4711, annex A"
[spread]                        # between like nodes
max = 0.05
[tail]
p95_over_median = 1.2
[doctor]
fail = ["fail"]                 # statuses of doctor's checks that fail a row
warn = ["warn", "unknown"]      # a status in neither list makes its row inconclusive
[counters]
errors = "fail"                 # fail, warn or ignore
[transport]
rdma = "fail"                   # what it means where RDMA ports are up and did not carry the traffic
required = false                # whether RDMA must have carried it even where no port is up
[repeats]
agree = 0.05                    # repeats further apart than this make a row inconclusive
[baseline]
threshold = 0.03                # slower than a signed run by more than this, and beyond noise, fails
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nccl_bench.collectives import find
from nccl_bench.errors import NcclBenchError, UsageError
from nccl_bench.fabric.bought import Hardware
from nccl_bench.fabric.gpus import find as gpu_model
from nccl_bench.inputs import read_toml
from nccl_bench.units import format_size, parse_size

Level = Literal["fail", "warn", "ignore"]
Statistic = Literal["largest", "max", "average"]
STAGES = ("node", "nic", "rails", "scale", "cluster", "soak")
DEFAULT = "nccl-bench's default"
MAX_FILE_BYTES = 1 << 20
KEYS: Mapping[str, tuple[str, ...]] = {
    "bandwidth": ("share", "shares", "ranges", "source"), "spread": ("max", "source"), "tail": ("p95_over_median", "source"),
    "doctor": ("fail", "warn", "source"), "counters": ("errors", "source"), "transport": ("rdma", "required", "source"),
    "repeats": ("agree", "source"), "baseline": ("threshold", "source"), "require": (),
    "hardware": ("gpu", "gpus_per_node", "nvlinks", "nics_per_node", "nic_gbps", "source"),
}  # fmt: skip
RANGE = ("collective", "from", "to", "share", "source")
REQUIRE = ("stage", "collective", "min_busbw_GBps", "max_latency_us", "statistic", "from", "to", "source")
BY_PAIRS = "pingpong"
"""What no stage of collectives measures: the pairs stage has every pair's latency, and holds pairs against one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number and who said it."""

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A share of what is expected for sizes from `low` to `high` bytes."""

    collective: str
    low: int
    high: int
    share: Threshold

    def sizes(self) -> str:
        """ "64 MiB to 512 MiB"."""
        return _from_to_words((self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    """A number that somebody asks for."""

    stage: str
    collective: str
    min_busbw_GBps: float | None = None
    max_latency_us: float | None = None
    statistic: Statistic = "largest"
    sizes: tuple[int, int] | None = None
    """From and to, bytes; None: all that the stage measures."""
    source: str

    def of_sizes(self) -> str:
        """ " of 2 GiB to 8 GiB"; "" where it is of all."""
        return f" of {_from_to_words(self.sizes)}" if self.sizes is not None else ""


def _from_to_words(sizes: tuple[int, int]) -> str:
    low, high = map(format_size, sizes)
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """All that a run is judged by."""

    share: Threshold = Threshold(
        value=0.95, source=f"{DEFAULT}: of the lower quartile of what healthy systems of this kind were seen to reach (fabric/expected.json)"
    )
    shares: Mapping[str, Threshold] = field(default_factory=dict)
    spread: Threshold = Threshold(
        value=0.05, source=f"{DEFAULT}: like nodes of healthy clusters agree within 1-3 % (azurehpc-health-checks, together-nccl-tests)"
    )
    tail: Threshold = Threshold(value=1.5, source=f"{DEFAULT}: healthy large messages stay below 1.1; 1.5 is a fault in the path")
    agree: Threshold = Threshold(value=0.05, source=f"{DEFAULT}: repeats of one large message differ by 1-2 %")
    baseline: Threshold = Threshold(value=0.03, source=f"{DEFAULT}, as compare's")
    ranges: tuple[Range, ...] = ()
    require: tuple[Require, ...] = ()
    hardware: Hardware | None = None
    """What each node must have; None: nobody says."""
    doctor_fail: tuple[str, ...] = ("fail",)
    doctor_warn: tuple[str, ...] = ("warn", "unknown")
    counters: Level = "fail"
    transport: Level = "fail"
    rdma_required: bool = False
    path: str | None = None

    def share_of(self, collective: str) -> Threshold:
        """The share that a collective must reach."""
        return self.shares.get(collective, self.share)

    def thresholds(self) -> list[tuple[str, str, str]]:
        """(what, value, source) of everything, for the certificate and the screen."""
        rows = [("bandwidth, share of expected", f"{self.share.value:g}", self.share.source)]
        rows += [(f"bandwidth, share of expected, {name}", f"{one.value:g}", one.source) for name, one in self.shares.items()]
        rows += [(f"share of expected, {one.collective} of {one.sizes()}", f"{one.share.value:g}", one.share.source) for one in self.ranges]
        rows += [(f"{one.collective}{one.of_sizes()} in stage {one.stage}", _asked(one), one.source) for one in self.require]
        rows += [] if self.hardware is None else [("hardware of each node", self.hardware.words(), self.hardware.source)]
        said = self.path or DEFAULT
        return [
            *rows, ("spread between like nodes", f"{self.spread.value:g}", self.spread.source), ("p95 over median", f"{self.tail.value:g}",
                self.tail.source),
            ("repeats agree within", f"{self.agree.value:g}", self.agree.source),
            ("slower than the baseline (where one is given)", f"{self.baseline.value:g}", self.baseline.source),
            ("doctor: fails on", ", ".join(self.doctor_fail) or "nothing", said),
            ("doctor: warns on", ", ".join(self.doctor_warn) or "nothing", said), ("counters of errors", self.counters, said),
            ("RDMA there and not used", self.transport, said), ("RDMA needed", "yes" if self.rdma_required else "where ports are up", said),
        ]  # fmt: skip


def _asked(one: Require) -> str:
    parts = [f">= {one.min_busbw_GBps:g} GB/s ({one.statistic})"] if one.min_busbw_GBps is not None else []
    parts += [f"<= {one.max_latency_us:g} µs"] if one.max_latency_us is not None else []
    return ", ".join(parts)


def read(path: Path) -> Criteria:
    """The criteria of a file. Raises UsageError naming the key."""
    return parse(read_toml(path, "--criteria", "file of criteria", MAX_FILE_BYTES, error=UsageError), str(path))


def parse(record: Mapping[str, Any], path: str) -> Criteria:
    """The criteria of a parsed file; what it leaves out keeps its default."""
    for name, value in record.items():
        _known(path, name, KEYS, "")
        if name != "require":
            for key in _table(path, f"[{name}]", value):
                _known(path, key, KEYS[name], f"[{name}] ")
    base = Criteria()
    bandwidth, said = record.get("bandwidth", {}), f"{path}"
    shares = {
        _collective(path, "[bandwidth.shares]", name): _threshold(path, "bandwidth.shares", {name: value}, name, base.share, 0.01, 2)
        for name, value in _table(path, "[bandwidth] shares", bandwidth.get("shares", {})).items()
    }
    return Criteria(
        share=_threshold(path, "bandwidth", bandwidth, "share", base.share, 0.01, 2), shares=shares,
        spread=_threshold(path, "spread", record.get("spread", {}), "max", base.spread, 0.001, 1),
        tail=_threshold(path, "tail", record.get("tail", {}), "p95_over_median", base.tail, 1, 100),
        agree=_threshold(path, "repeats", record.get("repeats", {}), "agree", base.agree, 0.001, 1),
        baseline=_threshold(path, "baseline", record.get("baseline", {}), "threshold", base.baseline, 0.001, 1),
        ranges=tuple(_range(path, at, one) for at, one in enumerate(_tables(path, "[[bandwidth.ranges]]", bandwidth.get("ranges", [])), 1)),
        rdma_required=_flag(path, record.get("transport", {}).get("required", base.rdma_required)),
        require=tuple(_require(path, at, one) for at, one in enumerate(_tables(path, "[[require]]", record.get("require", [])), 1)),
        doctor_fail=_words(path, record.get("doctor", {}), "fail", base.doctor_fail), doctor_warn=_words(path, record.get("doctor", {}), "warn",
            base.doctor_warn),
        counters=_level(path, record.get("counters", {}), "errors", base.counters), transport=_level(path, record.get("transport", {}), "rdma",
            base.transport),
        hardware=_hardware(path, record["hardware"]) if "hardware" in record else None, path=said,
    )  # fmt: skip


def _table(path: str, what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path}: {what} is a table of keys")
    return value


def _tables(path: str, what: str, value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise UsageError(f"{path}: {what} is a list of tables")
    return [_table(path, what, one) for one in value]


def _known(path: str, name: str, names: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
    if name not in names:
        close = difflib.get_close_matches(name, list(names), n=1)
        raise UsageError(f"{path}: {where}{name!r} is no key", f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}")


def _threshold(path: str, table: str, record: Mapping[str, Any], key: str, default: Threshold, low: float, high: float) -> Threshold:
    if key not in record:
        return default
    return Threshold(value=_number(path, f"[{table}] {key}", record[key], low, high), source=str(record.get("source", path)))


def _number(path: str, what: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise UsageError(f"{path}: {what} = {value!r}: a number between {low:g} and {high:g}")
    return float(value)


def _require(path: str, number: int, record: Mapping[str, Any]) -> Require:
    what = f"[[require]] number {number}"
    where = f"{path}: {what}"
    for key in record:
        _known(path, key, REQUIRE, f"{what}: ")
    stage, statistic = record.get("stage", "cluster"), record.get("statistic", "largest")
    if stage not in STAGES or statistic not in ("largest", "max", "average"):
        raise UsageError(f"{where}: stage is one of {', '.join(STAGES)}; statistic is largest, max or average")
    if "collective" not in record or not {"min_busbw_GBps", "max_latency_us"} & set(record):
        raise UsageError(f"{where}: names no collective, or neither min_busbw_GBps nor max_latency_us")
    rate, late = record.get("min_busbw_GBps"), record.get("max_latency_us")
    collective = _collective(path, f"{what}: collective", record["collective"])
    return Require(
        stage=stage, collective=collective, statistic=statistic, sizes=_from_to(where, record), source=str(record.get("source", path)),
        min_busbw_GBps=None if rate is None else _number(path, f"{what}: min_busbw_GBps", rate, 0.001, 1e6),
        max_latency_us=None if late is None else _number(path, f"{what}: max_latency_us", late, 0.001, 1e9),
    )  # fmt: skip


def _range(path: str, number: int, record: Mapping[str, Any]) -> Range:
    what = f"[[bandwidth.ranges]] number {number}"
    where = f"{path}: {what}"
    for key in record:
        _known(path, key, RANGE, f"{what}: ")
    missing = [key for key in ("collective", "from", "to", "share") if key not in record]
    if missing:
        raise UsageError(f"{where}: {missing[0]} is missing")
    low, high = _from_to(where, record) or (0, 0)
    share = Threshold(value=_number(path, f"{what}: share", record["share"], 0.01, 2), source=str(record.get("source", path)))
    return Range(collective=_collective(path, f"{what}: collective", record["collective"]), low=low, high=high, share=share)


def _from_to(where: str, record: Mapping[str, Any]) -> tuple[int, int] | None:
    """The sizes that a table names; None where it names none."""
    given = [key for key in ("from", "to") if key in record]
    if not given:
        return None
    if len(given) == 1:
        raise UsageError(f"{where}: {'to' if given == ['from'] else 'from'} is missing", "from and to go together; both may be the same size")
    low, high = (_size(f"{where}: {key}", record[key]) for key in ("from", "to"))
    if not 1 <= low <= high:
        raise UsageError(f"{where}: from {record['from']} to {record['to']} is no range")
    return low, high


def _hardware(path: str, record: Mapping[str, Any]) -> Hardware:
    if not set(record) - {"source"}:
        raise UsageError(f"{path}: [hardware] names nothing", "gpus_per_node = 8")
    if ("nics_per_node" in record and record["nics_per_node"] != 0) != ("nic_gbps" in record):
        raise UsageError(f"{path}: [hardware]: nics_per_node and nic_gbps go together", "ports that are slower, such as storage's, do not count")
    whole = {key: record[key] for key in ("gpus_per_node", "nvlinks", "nics_per_node") if key in record}
    for key, value in whole.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1024:
            raise UsageError(f"{path}: [hardware] {key} = {value!r}: a whole number, 0 to 1024")
    try:
        gpu = gpu_model(str(record["gpu"])).name if "gpu" in record else None
    except NcclBenchError as err:
        raise UsageError(f"{path}: [hardware] gpu: {err.why}", *err.hints) from err
    gbps = _number(path, "[hardware] nic_gbps", record["nic_gbps"], 1, 1e5) if "nic_gbps" in record else None
    return Hardware(gpu=gpu, nic_gbps=gbps, source=str(record.get("source", path)), **whole)


def _collective(path: str, where: str, value: Any) -> str:
    try:
        name = find(str(value)).name
    except UsageError as err:
        raise UsageError(f"{path}: {where}: {err.why}", *err.hints) from err
    if name == BY_PAIRS:
        raise UsageError(
            f"{path}: {where}: {name} is measured in stage pairs, where pairs are held against one another: it has no threshold", "ask for sendrecv"
        )
    return name


def _size(where: str, value: Any) -> int:
    """A size in bytes, or text with a suffix."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"{where} = {value!r} is not a size", "write bytes, or text with K, M, G or T: \"64M\"")
    return parse_size(str(value), where)


def _flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{path}: [transport] required = {value!r}: true or false")
    return value


def _words(path: str, record: Mapping[str, Any], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    if key not in record:
        return default
    words = record[key]
    if not isinstance(words, list) or any(word not in ("fail", "warn", "unknown") for word in words):
        raise UsageError(f"{path}: [doctor] {key}: a list of fail, warn, unknown")
    return tuple(words)


def _level(path: str, record: Mapping[str, Any], key: str, default: Level) -> Level:
    value = record.get(key, default)
    if value not in ("fail", "warn", "ignore"):
        raise UsageError(f"{path}: [{'counters' if key == 'errors' else 'transport'}] {key} = {value!r}: fail, warn or ignore")
    level: Level = value
    return level
