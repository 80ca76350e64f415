"""report/nccl_tests.py: what existing parsers of nccl-tests' text read out of our log.

The parsers below do what those of superbench, the Azure health checks, Google's cluster-health-scanner, gcm, OCI's ncclscout, sichek, cvs,
cloudai, aicr and ai-cloud-validation do; they are written anew.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.collectives import COLLECTIVES, Placement
from nccl_bench.records import Group, Point, RunHeader, Times, with_bandwidth
from nccl_bench.report.nccl_tests import NcclTestsLog, write_log
from nccl_bench.report.terminal import NOT_NCCL

FIELD = Path(os.environ.get("NCCL_BENCH_FIELD_CASES", Path(__file__).parents[2] / "shared"))

GPU = {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "pci": "00000000:00:06.0", "memory_nbytes": 1}
HEADER = RunHeader(
    tool="nccl-bench 0.1.0", argv=(), started_at="2026-12-01T10:15:02Z", launcher=None, backend="nccl", n_ranks=2, n_nodes=1,
    ranks=({"rank": 0, "host": "vm", "local_rank": 0, "pid": 1390, "gpu": GPU, "nics": []},
           {"rank": 1, "host": "vm", "local_rank": 1, "pid": 1391, "gpu": {**GPU, "index": 1, "pci": "0000:00:07.0"}, "nics": []}),
    versions={"nccl": "2.28.9"}, spec={"min_nbytes": 8, "max_nbytes": 1 << 31, "step_factor": 4.0, "iters": 20, "warmup_iters": 5, "check": True},
)  # fmt: skip


def point(nbytes: int = 1 << 20, median: float = 25.27, name: str = "all_reduce", placement: Placement = "in", **changes: object) -> Point:
    row = COLLECTIVES[name]
    base = Point(
        collective=name, dtype="float32", op="sum" if row.reducing else None, root=0 if row.rooted else None, nbytes=nbytes, requested_nbytes=nbytes,
        count=nbytes // 4, n_ranks=2, placement=placement, clock="graph", regime="streaming", registered="none",
        time_us=Times(median=median, mean=median, min=median, max=median), n_wrong=0,
    )  # fmt: skip
    return replace(with_bandwidth(base, median), **changes)  # type: ignore[arg-type]


SWEEP = [point(8, 9.55), point(1 << 20, 25.27), point(1 << 31, 6363.5)]


def log(points: list[Point], header: RunHeader = HEADER) -> str:
    stream = io.StringIO()
    write_log(stream, header, points)
    return stream.getvalue()


def data_rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


# ---- what the parsers do ----


def superbench(text: str, in_place: bool = False) -> dict[int, float]:
    """Between the last line with "out-of-place" and the last with "Out of bounds values"; columns by the titles, counted from the end."""
    lines = text.splitlines()
    start = max(index for index, line in enumerate(lines) if "out-of-place" in line)
    end = max(index for index, line in enumerate(lines) if "Out of bounds values" in line)
    titles: list[str] = []
    rates: dict[int, float] = {}
    for line in lines[start + 1 : end]:
        if not titles and "time" in line and "busbw" in line:
            titles = line[1:].split()
        elif titles and re.match(r"\s*\d", line):
            column = [index for index, title in enumerate(titles) if title == "busbw"][1 if in_place else 0] - len(titles)
            rates[int(line.split()[titles.index("size")])] = float(line.split()[column])
    return rates


def azure(text: str) -> float:
    """No line may say FAILED; the sixth word of the first line with "bandwidth"."""
    for line in text.splitlines():
        assert "FAILED" not in line
        if "bandwidth" in line:
            return float(line.split()[5])
    raise AssertionError("no summary")


def health_scanner(text: str) -> int:
    match = re.search(r"# Avg bus bandwidth\s*:\s*(\d+)", text)
    assert match is not None
    return int(match[1])


def gcm(text: str) -> float:
    line = next(line for line in text.split("\n") if "Avg bus bandwidth" in line)
    match = re.search(r"[-+]?(\d*\.*\d+)", line)
    assert match is not None
    return float(match.group())


def by_pattern(text: str) -> float:
    """ai-cloud-validation, sichek and kin: a number with an optional fraction after the colon."""
    match = re.search(r"Avg bus bandwidth\s*:\s*([0-9]+(?:\.[0-9]+)?)", text)
    assert match is not None
    return float(match[1])


def cloudai(text: str) -> tuple[list[list[str]], int, str, int]:
    """Rows of exactly 13 words beginning with a number; ranks, GPU type and devices a node from the device lines."""
    rows = [line.split() for line in text.splitlines() if re.match(r"^\s*\d", line) and len(line.split()) == 13]
    devices: dict[str, int] = {}
    gpu, ranks = "Unknown", 0
    for line in text.splitlines():
        if "Rank" in line and "device" in line and "NVIDIA" in line:
            ranks += 1
            place, name = re.search(r"on\s+([\w\d\-.]+)\s+device\s+(\d+)", line), re.search(r"NVIDIA\s+(.+?)(?=\s*$|\s+\[|\s+device)", line)
            assert place is not None
            assert name is not None
            devices[place[1]] = max(devices.get(place[1], -1), int(place[2]))
            gpu = name[1]
    return rows, ranks, gpu, max(devices.values(), default=-1) + 1


def oci(text: str) -> float:
    """In-place busbw of the first data row."""
    return float(data_rows(text)[0][11])


def aicr(text: str) -> float:
    """Out-of-place busbw of the last data row; the check must be clean."""
    match = re.search(r"# Out of bounds values\s*:\s*(\d+)\s*(OK|FAILED)", text)
    assert match is not None
    assert match[2] == "OK"
    return float(data_rows(text)[-1][7])


def cvs(text: str) -> list[dict[str, object]]:
    """Every row by one pattern of 13 groups."""
    number = r"([\d.]+(?:e[+-]?\d+)?)"
    pattern = rf"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+{number}\s+{number}\s+{number}\s+(\S+)\s+{number}\s+{number}\s+{number}\s+(\S+)\s*$"
    return [{"size": int(m[1]), "type": m[3], "redop": m[4], "busbw": float(m[8])} for m in re.finditer(pattern, text, re.MULTILINE)]


AVERAGE = sum(p.busbw_GBps or 0 for p in SWEEP) / len(SWEEP)
PARSERS: list[Callable[[str], float]] = [azure, health_scanner, gcm, by_pattern]


@pytest.mark.parametrize("parser", PARSERS)
def test_parsers_of_the_summary_read_the_mean_over_all_rows(parser: Callable[[str], float]) -> None:
    assert parser(log(SWEEP)) == pytest.approx(AVERAGE, abs=1 if parser is health_scanner else 1e-3)


@pytest.mark.parametrize("parser", [gcm, by_pattern, azure])
def test_a_mean_far_below_one_is_not_read_as_a_large_number(parser: Callable[[str], float]) -> None:
    """%g would print 5.9e-05, which the patterns read as 5.9 GB/s."""
    tiny = [point(8, 1.4e5)]

    assert tiny[0].busbw_GBps == pytest.approx(5.7e-8, rel=0.01)
    assert parser(log(tiny)) < 1e-6


def test_parsers_of_rows_read_every_row() -> None:
    text = log(SWEEP)
    rows, ranks, gpu, per_node = cloudai(text)

    assert superbench(text) == superbench(text, in_place=True) == {p.nbytes: pytest.approx(p.busbw_GBps, abs=0.005) for p in SWEEP}
    assert len(rows) == 3
    assert (ranks, gpu, per_node) == (2, "H200", 2)
    assert oci(text) == pytest.approx(SWEEP[0].busbw_GBps, abs=0.005)
    assert aicr(text) == pytest.approx(SWEEP[-1].busbw_GBps, abs=0.005)
    assert [row["size"] for row in cvs(text)] == [p.nbytes for p in SWEEP]


def test_wrong_data_fails_where_parsers_look_for_it() -> None:
    text = log([point(n_wrong=3), point(1 << 21)])

    assert "# Out of bounds values : 2 FAILED\n" in text
    assert data_rows(text)[0][8] == data_rows(text)[0][12] == "3"
    with pytest.raises(AssertionError):
        azure(text)
    with pytest.raises(AssertionError):
        aicr(text)


def test_both_placements_share_a_row_however_they_come() -> None:
    out = [point(size, 10.0, "all_gather", "out") for size in (1024, 4096)]
    into = [point(size, 8.0, "all_gather", "in") for size in (1024, 4096)]
    text = log([*out, *into])

    assert text == log([out[0], into[0], out[1], into[1]]) == log([into[0], out[0], out[1], into[1]])
    assert [(row[0], row[5], row[9]) for row in data_rows(text)] == [("1024", "10.00", "8.00"), ("4096", "10.00", "8.00")]
    assert gcm(text) == pytest.approx(sum(p.busbw_GBps or 0 for p in (*out, *into)) / 4, rel=1e-4)


def test_a_live_run_of_both_placements_knows_it_from_its_header() -> None:
    stream = io.StringIO()
    table = NcclTestsLog(stream, replace(HEADER, spec={**HEADER.spec, "placement": "both"}))
    table.add(point(1024, 10.0, "all_gather", "out"))
    assert data_rows(stream.getvalue()) == []
    table.add(point(1024, 8.0, "all_gather", "in"))

    assert [(row[5], row[9]) for row in data_rows(stream.getvalue())] == [("10.00", "8.00")]


def test_one_measured_placement_fills_both_halves_and_a_comment_says_so() -> None:
    text = log(SWEEP)

    for row in data_rows(text):
        assert row[5:9] == row[9:13]
    assert "# one form was measured (in place): both halves of a row show it\n" in text
    assert "(out of place)" in log([point(name="all_gather", placement="out")])


def test_a_row_whose_other_half_never_came_is_not_lost() -> None:
    text = log([point(1024, 10.0, "all_gather", "out"), point(4096, 10.0, "all_gather", "out"), point(1024, 8.0, "all_gather", "in")])

    assert [row[0] for row in data_rows(text)] == ["1024", "4096"]
    assert "# measured in one form only" in text


def test_a_case_that_did_not_run_is_a_comment_that_no_parser_takes_for_something() -> None:
    reasons = ["torch.distributed has no out-of-place all_reduce", "FAILED: bandwidth of time and busbw", "two\nlines"]
    gone = [point(8, status="failed", reason=reason, time_us=None) for reason in reasons]
    text = log([SWEEP[0], *gone, SWEEP[1]])

    assert len(superbench(text)) == len(data_rows(text)) == 2
    assert azure(text) == pytest.approx(((SWEEP[0].busbw_GBps or 0) + (SWEEP[1].busbw_GBps or 0)) / 2, rel=1e-4)
    assert "torch.distributed has no out of place all_reduce" in text


def test_roots_types_and_operations_have_nccl_tests_names() -> None:
    words = {
        "all_reduce": ("float", "sum", "-1"),
        "all_gather": ("float", "none", "-1"),
        "broadcast": ("float", "none", "0"),
        "reduce": ("float", "sum", "0"),
        "all_to_all": ("float", "none", "-1"),
    }
    for name, expected in words.items():
        assert tuple(data_rows(log([point(name=name, placement=COLLECTIVES[name].placements[0])]))[0][2:5]) == expected
    assert data_rows(log([point(dtype="float8_e4m3fn", op="product")]))[0][2:5] == ["f8e4m3", "prod", "-1"]
    assert data_rows(log([point(dtype="float16", op="premul_sum")]))[0][2:5] == ["half", "mulsum", "-1"]


def test_each_collective_is_a_program_of_its_own_with_header_and_closing_lines() -> None:
    text = log([point(), point(name="all_to_all", placement="out"), point(name="sendrecv", placement="out", shift="ring")])

    assert re.findall(r"# Collective test starting: (\S+)", text) == ["all_reduce_perf", "alltoall_perf", "sendrecv_perf"]
    assert re.findall(r"# Collective test concluded: (\S+)", text) == ["all_reduce_perf", "alltoall_perf", "sendrecv_perf"]
    assert text.count("Avg bus bandwidth") == text.count("Out of bounds values") == 3


def test_other_clocks_and_series_stay_out_of_the_table_and_it_says_so() -> None:
    header = replace(HEADER, spec={**HEADER.spec, "regime": "streaming"})
    text = log([SWEEP[0], replace(SWEEP[0], clock="eager"), replace(SWEEP[0], regime="isolated"), SWEEP[1]], header)

    assert len(data_rows(text)) == 2
    assert "# in points.jsonl, not here: eager streaming, graph isolated\n" in text


def test_what_the_columns_cannot_say_is_in_comments() -> None:
    special = point(variant="ring", registered="user", group=Group(axis="tp", size=8, n_groups=2))
    text = log([special])

    for words in ("variant ring", "axis tp: 2 groups of 8 ranks", "registered user", "median of the maximum over ranks", "# nccl-bench 0.1.0"):
        assert words in text
    assert "# nccl-tests version" not in text


def test_unchecked_data_is_not_called_correct() -> None:
    assert data_rows(log([point(n_wrong=None)]))[0][8] == "N/A"


def test_ranks_without_a_gpu_name_no_device() -> None:
    text = log([point()], replace(HEADER, ranks=({"rank": 0, "host": "vm", "pid": 7, "gpu": None},)))

    assert "#  Rank  0 Group  0 Pid      7 on         vm CPU\n" in text


def test_the_log_grows_row_by_row() -> None:
    stream = io.StringIO()
    table = NcclTestsLog(stream, HEADER)
    for number, item in enumerate(SWEEP, start=1):
        table.add(item)
        assert len(data_rows(stream.getvalue())) == number
    table.end()
    table.end()

    assert stream.getvalue() == log(SWEEP)


def test_a_banner_in_front_disturbs_no_parser() -> None:
    text = f"# {NOT_NCCL}\n{log(SWEEP)}# {NOT_NCCL}\n"

    assert superbench(text) == superbench(log(SWEEP))
    for parser in PARSERS:
        assert parser(text) == parser(log(SWEEP))


number = st.floats(min_value=1e-3, max_value=1e13)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1 << 45), number, st.none() | st.integers(0, 1 << 40)), min_size=1, unique_by=lambda item: item[0]))
def test_every_row_has_13_words_of_which_every_parser_reads_its_own(items: list[tuple[int, float, int | None]]) -> None:
    points = [point(size, median, n_wrong=wrong) for size, median, wrong in items]
    text = log(points)

    assert len(cloudai(text)[0]) == len(cvs(text)) == len(superbench(text)) == len(points)
    for row, one in zip(data_rows(text), points, strict=True):
        assert one.time_us is not None
        assert int(row[0]) == one.nbytes
        assert float(row[5]) == pytest.approx(one.time_us.median, rel=0.06, abs=0.006)
        assert float(row[7]) == pytest.approx(one.busbw_GBps, rel=0.6 if "e" in row[7] else 0.06, abs=0.006)


# ---- held against nccl-tests itself ----


LEFT = 85
"""Characters of a row up to the end of its out-of-place half."""


def captured(program: str) -> list[str]:
    """The lines of one table of a captured log, from its first `#` line to the closing one."""
    path = FIELD / "reference" / "h200x2" / "nccl-tests-threads.log"
    if not path.exists():
        pytest.skip(f"the captured logs are not here ({path}): set NCCL_BENCH_FIELD_CASES")
    lines = path.read_text().splitlines()
    start = lines.index(f"# Collective test starting: {program}") - 1
    end = lines.index(f"# Collective test concluded: {program}", start)
    return lines[start : end + 2]


def halves(line: str, name: str) -> list[Point]:
    """The points of a row: out of place and in place."""
    size, count, _, redop, root, *words = line.split()
    op, rank = None if redop == "none" else redop, None if root == "-1" else int(root)
    points = []
    for placement, (time, algbw, busbw, wrong) in (("out", words[:4]), ("in", words[4:])):
        one = point(int(size), float(time), name, "out" if placement == "out" else "in", algbw_GBps=float(algbw), busbw_GBps=float(busbw))
        points.append(replace(one, count=int(count), op=op, root=rank, n_wrong=int(wrong)))
    return points


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_the_layout_is_that_of_a_captured_log(name: str) -> None:
    """Points made of the rows of a real log give the same text again, character for character."""
    theirs = captured(f"{name}_perf")
    rows = [line for line in theirs if not line.startswith("#")]
    two_forms = len(COLLECTIVES[name].placements) == 2
    points = [one for line in rows for one in halves(line, name) if two_forms or one.placement == "out"]
    ours = log(points).splitlines()
    mine = [line for line in ours if not line.startswith("#")]

    assert len(rows) == 15
    if two_forms:
        assert mine == rows
        averages = [float(next(line for line in text if "Avg bus" in line).split()[5]) for text in (ours, theirs)]
        assert averages[0] == pytest.approx(averages[1], rel=1e-3)
    else:
        assert [line[:LEFT] for line in mine] == [line[:LEFT] for line in rows]
        assert [line[LEFT:] for line in mine] == [line[LEFT - 33 : LEFT] for line in rows]
    titles = [line for line in theirs if "out-of-place" in line or "busbw" in line or "(GB/s)" in line]
    assert [line for line in ours if line in titles] == titles
    assert len(titles) == 3
    without_pid = [re.sub(r"Pid +\d+", "Pid", line) for line in ours]
    fixed = [line for line in theirs if line.startswith(("#  Rank", "# Using", "# Collective test", "# Out of bounds"))]
    assert len(fixed) == 6
    for line in fixed:
        assert re.sub(r"Pid +\d+", "Pid", line) in without_pid


def test_an_imported_all_reduce_with_both_halves_keeps_them_in_one_row_and_says_whose_times_they_are() -> None:
    halves = [
        point(1 << 20, median, placement=form, over_ranks="mean (assumed)", source="a.log:7", clock=None, regime=None)
        for form, median in (("out", 25.0), ("in", 30.0))
    ]

    text = log(halves)

    assert [(row[5], row[9]) for row in data_rows(text)] == [("25.00", "30.00")]
    assert "maximum over ranks" not in text
    assert "mean (assumed) over ranks, from a.log:7" in text
