"""Logs of nccl-tests and rccl-tests, of any age and in any disguise, as test runs: rows, devices, settings, summary.

A file may hold several runs, one after the other, in one another, or each behind its own launcher label. What is read is what
is printed; what it means (ranks, completeness, points) is nccl_tests_points.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from nccl_bench.collectives import Placement
from nccl_bench.results.failures import Failure, failure_of
from nccl_bench.results.table import Layout, Row, find_row, header_layout, looks_like_row, parse_row
from nccl_bench.results.text import Line, Text


@dataclass(frozen=True, slots=True)
class Device:
    """One line of the device list."""

    rank: int
    host: str
    device: int | None
    """None where ranks run on CPUs."""
    bus_id: str | None
    name: str | None
    pid: int | None
    group: int | None


@dataclass(slots=True, kw_only=True)
class TestRun:
    """One run of one program, as far as the file tells."""

    first_line: int = 0
    label: str = ""
    program: str | None = None
    """"all_reduce_perf", as the file names it."""
    command: tuple[str, ...] = ()
    """The command line, where it was echoed before the run."""
    version: str | None = None
    flavour: str | None = None
    """"nccl-tests" or "rccl-tests", where the file says so."""
    nccl: str | None = None
    config: dict[str, int | str] = field(default_factory=dict)
    """The nThread line: min, max, step, step_kind, warmup, iters, agg, validation, graph, unalign, nthreads, ngpus; and blocking, per_iter."""
    devices: list[Device] = field(default_factory=list)
    layout: Layout | None = None
    has_header: bool = False
    table_line: int = 0
    """Where its header stands; 0 where it was cut off."""
    rows: list[Row] = field(default_factory=list)
    averages: list[str] = field(default_factory=list)
    """Printed "Avg bus bandwidth", word by word."""
    out_of_bounds: str | None = None
    """"0 OK", "4 FAILED"."""
    concluded: bool = False
    elided: list[int] = field(default_factory=list)
    """Lines where rows were left out by hand: "...", "<snip>", "# Truncated"."""
    networks: list[str] = field(default_factory=list)
    """What NCCL's INFO lines say it uses: "IB", "Socket", "AWS Libfabric"."""
    env: dict[str, str] = field(default_factory=dict)
    """NCCL_* settings that NCCL's INFO lines report."""
    n_ranks_said: int | None = None
    """"nranks" of NCCL's INFO lines."""
    failures: list[Failure] = field(default_factory=list)
    over_ranks: str | None = None
    """What -a of the command line says the times are over, where it is said."""
    clock: str | None = None
    regime: str | None = None
    """These two of a log that nccl-bench wrote in nccl-tests' layout."""
    only_form: Placement | None = None
    """The one placement that was measured, where both halves of its rows show the same."""

    @property
    def closed(self) -> bool:
        """Whether its summary was seen."""
        return bool(self.averages) or self.concluded or self.out_of_bounds is not None


@dataclass(slots=True)
class Log:
    """A whole file."""

    runs: list[TestRun]
    failures: list[Failure]
    """Those that belong to no run."""
    commented_rows: list[int]
    unreadable_rows: list[tuple[int, str]]
    """(line, what) of lines that look like rows and hold no number."""
    banners: set[str] = field(default_factory=set)
    """Of BANNERS, those that nccl-bench put above its own table."""


BANNERS = ("NOT NCCL: ", "shared GPU, not a measurement")
"""What nccl-bench says of a run that is no measurement of NCCL."""
_CONFIG = re.compile(r"nThreads? (\d+) nGpus (\d+) minBytes (\S+) maxBytes (\S+) step: (\S+?) ?\((factor|bytes)\)(.*)")
_OURS = re.compile(r"([\w-]+) (\S+) in the layout of nccl-tests \S+(?: nccl-library=(\d+))?")
_OUR_CLOCK = re.compile(r"clock (\w+), (\w+), time: median of the maximum over ranks")
_OUR_TIMES = re.compile(r"time: (mean \(assumed\)|mean|min|max|rank 0) over ranks, from ")
"""An nccl-tests log that was imported and exported again: its times stay what they were."""
_OUR_FORM = re.compile(r"one form was measured \((in|out of) place\)")
_SETTING = re.compile(r"(warmup iters|agg iters|iters|validation|graph|unalign): (\d+)")
_SETTING_NAMES = {"warmup iters": "warmup", "agg iters": "agg"}
_DEVICE = re.compile(r"Rank +(\d{1,7}) +(?:Group +(\d{1,7}) +)?(?:Pid +(\d{1,9}) +)?on +(\S+) +(?:device +(\d{1,6}) +\[([^\]]*)\] ?(.*)|CPU$)")
_VERSION = re.compile(r"(nccl-tests|rccl-tests) version (\S+)(?: (?:nccl|rccl)-headers=\d+ (?:nccl|rccl)-library=(\d+))?")
_RCCL = re.compile(r"rccl-tests: Version (\S+)")
_START = re.compile(r"Collective test starting: (\S+)")
_SUMMARY = re.compile(r"(Out of bounds values|Avg bus bandwidth|Collective test concluded) *: *(.*)")
_NCCL = re.compile(r"(?:^|NCCL INFO )(?:NCCL|RCCL) version *:? *([\w.+-]+)")
_NRANKS = re.compile(r"NCCL INFO .*\bnranks (\d+)\b")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
_PROGRAMS = "all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|broadcast|reduce|gather|scatter|sendrecv|hypercube"
_COMMAND = re.compile(rf"(?:^|[\s/])((?:{_PROGRAMS})_perf\w*)(?=\s|$)")
_SET = re.compile(r"NCCL INFO ((?:NCCL|RCCL)_\w+) set by environment to (.*?)\.?$")
_ELIDED = re.compile(r"\s*(?:\.{3,}|…|<snip>|\[\.{3}\]|\[?(?:truncated|snip|output omitted)\]?)\s*", re.IGNORECASE)
_MEMORY = re.compile(r"Reducing maxBytes to (\d+)")
_BLOCKING = re.compile(r"Blocking Enabled: wait for|Blocking Enabled: wait")
_OVER_RANKS = {"0": "rank 0", "1": "mean", "2": "min", "3": "max"}
"""nccl-tests -a (common.cu average)."""
_HINTS = re.compile(
    r"nThread|Rank|ests version|Version|test starting|bounds values|Avg bus|concluded|version|_perf|Reducing|Blocking|Per-Iteration|algbw|NCCL INFO"
    r"|in the layout of|over ranks|form was"
)
"""A line without any of these is looked at for rows and failures only."""


class _Reader:
    """What is known while the lines of one process go by: the run that is open and what was said of the next."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.open = TestRun(label=label)
        self.next = TestRun(label=label)
        self.done: list[TestRun] = []
        self.above = ""

    def fact(self, set_already: Callable[[TestRun], bool], line: int) -> TestRun:
        """The run that a fact said before its table belongs to: the open one, unless it has rows, an end, or such a fact."""
        run = self.next if self.open.rows or self.open.closed or set_already(self.open) else self.open
        run.first_line = run.first_line or line
        return run

    def table(self, line: int) -> TestRun:
        """The run that a header line opens."""
        crashed = bool(self.open.failures) and bool(self.next.devices or self.next.config)
        if self.open.rows or self.open.closed or self.open.has_header or crashed:
            self.rotate()
        self.open.first_line = self.open.first_line or line
        return self.open

    def row(self, line: int) -> TestRun:
        """The run that a row belongs to."""
        if self.open.closed:
            layout = self.open.layout
            self.rotate()
            self.open.layout = layout
        self.open.first_line = self.open.first_line or line
        return self.open

    def rotate(self) -> None:
        """The open run is over; what was said of the next one becomes open."""
        self.done.append(self.open)
        self.open, self.next = self.next, TestRun(label=self.label)

    def finish(self) -> list[TestRun]:
        """All runs; those of which nothing but a version is known are none."""
        return [run for run in (*self.done, self.open, self.next) if run.rows or run.has_header or run.config or run.devices or run.program]


def read_log(text: Text) -> Log:
    """The runs of a file, in the order they begin."""
    readers: dict[str, _Reader] = {}
    log = Log([], [], [], [])
    n_lines = text.text.count("\n") + 1
    pending: list[Failure] = []
    elided: list[int] = []
    for line in text.lines(_is_dull):
        if not line.text:
            continue
        reader = readers.get(line.label) or readers.setdefault(line.label, _Reader(line.label))
        may_be_cut = not text.ends and line.number == n_lines
        if _row(line, reader, log, may_be_cut=may_be_cut):
            continue
        if _ELIDED.fullmatch(line.text.lstrip("# \t")) or line.text.lstrip("# \t").lower().startswith("truncated"):
            elided.append(line.number)
            continue
        log.banners.update(banner for banner in BANNERS if line.text.startswith("#") and banner in line.text)
        _facts(line, reader)
        if "NCCL INFO" not in line.text and (failure := failure_of(line)) is not None:
            pending.append(failure)
            reader.open.failures.append(failure)
        reader.above = line.text
    log.runs = sorted((run for reader in readers.values() for run in reader.finish()), key=lambda run: run.first_line)
    log.failures = _share_out(pending, log.runs)
    for run in log.runs:
        run.elided = [number for number in elided if run.rows and run.table_line < number < run.rows[-1].line]
    return log


def _is_dull(line: str) -> bool:
    """Whether a line is one of the many of NCCL_DEBUG=INFO that say nothing here."""
    return "NCCL INFO" in line and not any(word in line for word in ("nranks", "version", "Using network", "set by environment"))


def _share_out(failures: list[Failure], runs: list[TestRun]) -> list[Failure]:
    """Give each failure to the last run that began before it, whichever process wrote it; return those before any run."""
    for run in runs:
        run.failures = []
    rest: list[Failure] = []
    for failure in failures:
        before = [run for run in runs if run.first_line <= failure.line]
        (before[-1].failures if before else rest).append(failure)
    return rest


def _row(line: Line, reader: _Reader, log: Log, *, may_be_cut: bool) -> bool:
    """Take a line that is a row, or looks like one; False where it does not."""
    if looks_like_row(line.text, commented=True):
        log.commented_rows.append(line.number)
        return True
    # Millions of INFO lines are not searched for a row inside them: NCCL ends its lines.
    found = None if "NCCL INFO" in line.text else find_row(line.text)
    if found is None:
        return False
    run = reader.row(line.number)
    row = parse_row(found, line.number, run.layout, may_be_cut=may_be_cut)
    if not row.halves or all(half.time is None and half.busbw is None and not _is_nan(half.problem) for half in row.halves):
        what = row.problem or "; ".join(half.problem for half in row.halves if half.problem) or "no numbers"
        log.unreadable_rows.append((line.number, what))
        return True
    run.rows.append(row)
    return True


def _is_nan(problem: str | None) -> bool:
    return problem is not None and re.search(r"is [-+]?(?:nan|inf)", problem, re.IGNORECASE) is not None


def _facts(line: Line, reader: _Reader) -> None:
    text = line.text
    if not _HINTS.search(text):
        return
    bare = text.lstrip("# \t")
    for take in (_take_header, _take_config, _take_device, _take_version, _take_summary, _take_info, _take_command):
        if take(bare, line, reader):
            return


def _take_header(bare: str, line: Line, reader: _Reader) -> bool:
    layout = header_layout(bare, reader.above)
    if layout is None:
        return False
    run = reader.table(line.number)
    run.layout, run.has_header, run.table_line = layout, True, line.number
    return True


def _take_config(bare: str, line: Line, reader: _Reader) -> bool:
    if match := _CONFIG.match(bare):
        run = reader.fact(lambda run: "min" in run.config, line.number)
        names = ("nthreads", "ngpus", "min", "max", "step")
        words = zip(names, match.groups(), strict=False)
        run.config.update({name: _int(word) for name, word in words if word.isdigit()}, step_kind=match[6])
        run.config.update({_SETTING_NAMES.get(name, name): _int(word) for name, word in _SETTING.findall(match[7])})
        return True
    target = reader.open if reader.open.config else reader.next
    if match := _MEMORY.match(bare):
        target.config["max"] = _int(match[1])
    elif _BLOCKING.match(bare):
        target.config["blocking"] = bare
    elif bare.startswith("Per-Iteration Report"):
        target.config["per_iter"] = bare
    else:
        return False
    return True


def _take_device(bare: str, line: Line, reader: _Reader) -> bool:
    match = _DEVICE.match(bare)
    if match is None:
        return False
    rank, group, pid, host, device, bus_id, name = match.groups()
    run = reader.fact(lambda run: any(known.rank == int(rank) and known.group == _maybe(group) for known in run.devices), line.number)
    run.devices.append(Device(int(rank), host, _maybe(device), bus_id, name.strip() or None if name else None, _maybe(pid), _maybe(group)))
    return True


def _take_version(bare: str, line: Line, reader: _Reader) -> bool:
    if match := _VERSION.match(bare):
        run = reader.fact(lambda run: run.version is not None, line.number)
        run.flavour, run.version, run.nccl = match[1], match[2], match[3] or run.nccl
    elif match := _RCCL.match(bare):
        # Printed between the settings and the devices, so never the first line of a run.
        run = reader.next if reader.next.config else reader.open
        run.flavour, run.version = "rccl-tests", run.version or match[1]
    elif match := _OURS.match(bare):
        run = reader.fact(lambda run: run.version is not None, line.number)
        run.flavour, run.version, run.nccl, run.over_ranks = match[1], match[2], match[3], "max"
    elif match := _OUR_CLOCK.match(bare):
        target = reader.next if reader.open.rows or reader.open.closed else reader.open
        target.clock, target.regime = match[1], match[2]
    elif match := _OUR_TIMES.match(bare):
        target = reader.next if reader.open.rows or reader.open.closed else reader.open
        target.over_ranks = match[1]
    elif match := _OUR_FORM.match(bare):
        target = reader.next if reader.open.rows or reader.open.closed else reader.open
        target.only_form = "in" if match[1] == "in" else "out"
    elif match := _START.match(bare):
        reader.fact(lambda run: run.program is not None, line.number).program = match[1]
    else:
        return False
    return True


def _take_summary(bare: str, line: Line, reader: _Reader) -> bool:
    match = _SUMMARY.match(bare)
    if match is None:
        return False
    run, value = reader.open, match[2].strip()
    if match[1] == "Avg bus bandwidth":
        run.averages.append(value.split()[0] if value else "")
    elif match[1] == "Out of bounds values":
        run.out_of_bounds = value
    else:
        run.concluded = True
        run.program = run.program or value
    return True


def _take_info(bare: str, line: Line, reader: _Reader) -> bool:
    run = reader.next if reader.open.closed else reader.open
    if match := _NCCL.search(bare):
        run.nccl = run.nccl or match[1]
    elif match := _NETWORK.search(bare):
        if match[1] not in run.networks:
            run.networks.append(match[1])
    elif match := _SET.search(bare):
        run.env[match[1]] = match[2]
    elif match := _NRANKS.search(bare):
        reader.open.n_ranks_said = max(int(match[1][:9]), reader.open.n_ranks_said or 0)
    else:
        return "NCCL INFO" in bare
    return True


def _take_command(bare: str, line: Line, reader: _Reader) -> bool:
    match = _COMMAND.search(bare)
    if match is None or "failure" in bare or line.text.startswith("#"):
        return False
    run = reader.next if reader.open.rows or reader.open.closed else reader.open
    run.command = tuple(bare.lstrip("$+> ").split())
    words = run.command
    over = next((words[i + 1] for i, word in enumerate(words[:-1]) if word in ("-a", "--average")), None)
    run.over_ranks = _OVER_RANKS.get(over or "", run.over_ranks)
    return True


def _maybe(word: str | None) -> int | None:
    return None if word is None else int(word)


def _int(word: str) -> int:
    return int(word[:18])
