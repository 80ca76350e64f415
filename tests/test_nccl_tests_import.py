"""Reading nccl-tests' tables of every age and disguise; nothing that looks like data is lost, and nothing crashes."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_tests_samples import COLUMNS, Measured, log, row

from nccl_bench.errors import DataError, NcclBenchError
from nccl_bench.results.importers import header_of, import_file
from nccl_bench.results.nccl_tests_points import import_log
from nccl_bench.results.text import from_bytes, split_label

ROWS = [Measured(nbytes, 10 + nbytes / 1e5, 9.5 + nbytes / 1e5) for nbytes in (8 << k for k in range(20))]
BIG = [Measured(nbytes, nbytes / 1e5, nbytes / 1.02e5) for nbytes in (1 << k for k in range(20, 31))]


def read(lines, name="x.log", **options):
    text = lines if isinstance(lines, str | bytes) else "\n".join(lines) + "\n"
    return import_log(from_bytes(Path(name), text if isinstance(text, bytes) else text.encode()), name, **options)


def said(file, *words):
    return [warning for warning in file.warnings if all(word in warning for word in words)]


def numbers(file):
    return [(p.collective, p.nbytes, p.placement, p.time_us.median, p.busbw_GBps, p.n_wrong) for p in file.points]


# ---- disguises ----


@pytest.mark.parametrize(
    "prefix",
    ["0: ", " 0: ", "[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-node1-17@1,0]<stdout>: ", "[0] ", "[default0]:", "[rank0]:", "h017: ",
     "2026-12-01T02:03:04.123456789Z ", "2026-12-01 02:03:04 ", "[pod/nccl-0/nccl] ", "2026-12-01T02:03:04Z [1,0]<stdout>:", "\x1b[32m0: \x1b[0m",
     "Tue Dec  1 02:03:04 2026[1,0]<stdout>:", "INFO:root: "],
)  # fmt: skip
def test_what_a_launcher_puts_before_each_line_is_taken_off(prefix):
    plain = log("all_reduce", ROWS, 8)

    assert numbers(read([prefix + line for line in plain])) == numbers(read(plain))


ENCODINGS = {
    "with a byte-order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "CRCRLF": lambda text: text.replace("\n", "\r\r\n").encode(),
    "colours": lambda text: text.replace("#", "\x1b[1m#\x1b[0m").encode(),
}


@pytest.mark.parametrize("encoded", ENCODINGS.values(), ids=ENCODINGS)
def test_how_a_log_is_encoded_changes_no_number(encoded):
    plain = log("all_reduce", ROWS, 8)

    assert numbers(read(encoded("\n".join(plain) + "\n"))) == numbers(read(plain))


def test_lines_of_nccl_between_rows_are_passed_over():
    lines = log("all_reduce", ROWS, 8)
    noisy = [part for line in lines for part in (line, "h1:21:21 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA")]

    assert numbers(read(noisy)) == numbers(read(lines))


def test_two_processes_that_are_told_apart_by_label_are_two_runs():
    first, second = log("all_reduce", ROWS, 8, hosts=("a",)), log("all_reduce", ROWS, 8, hosts=("b",))
    woven = [line for pair in zip(first, second, strict=True) for line in (f"0: {pair[0]}", f"1: {pair[1]}")]
    file = read(woven)

    assert [(run["rows"], run["hosts"]) for run in file.runs] == [(20, ["a"]), (20, ["b"])]
    assert len(file.points) == 80


def test_two_unlabelled_jobs_woven_row_by_row_lose_no_row():
    first, second = log("all_reduce", ROWS, 8), log("all_reduce", ROWS, 8)
    woven = [line for pair in zip(first, second, strict=True) for line in pair]
    file = read(woven)

    assert len(file.points) == 80
    assert {point.pass_ for point in file.points} == {0, 1}


def test_several_runs_in_a_row_keep_their_own_facts():
    lines = log("all_reduce", ROWS, 8) + log("all_gather", BIG, 16, first=1 << 20) + log("all_reduce", ROWS, 8)
    file = read(lines)

    assert [(run["collective"], run["n_ranks"], run["rows"], run["complete"]) for run in file.runs] == [
        ("all_reduce", 8, 20, True),
        ("all_gather", 16, 11, True),
        ("all_reduce", 8, 20, True),
    ]
    assert {point.pass_ for point in file.points if point.collective == "all_reduce"} == {0, 1}
    assert {point.pass_ for point in file.points if point.collective == "all_gather"} == {0}


def test_a_run_that_crashed_before_another_is_a_warning():
    crashed = [*log("all_reduce", [], 8, summary=False), "h1: Test NCCL failure common.cu:392 'unhandled cuda error'"]
    file = read([*crashed, *log("all_gather", BIG, 8, first=1 << 20)])

    assert {point.collective for point in file.points} == {"all_gather"}
    assert said(file, "a run failed before any row", "common.cu:392")


def test_rows_before_a_failure_are_kept():
    lines = [*log("all_reduce", ROWS[:5], 8, last=1 << 20, summary=False), "h1: Test CUDA failure common.cu:294 'an illegal memory access'"]
    file = read(lines)

    assert len(file.points) == 10
    assert said(file, "something failed after these rows", "illegal memory access")
    assert said(file, "stopped after 128 of 1048576 B")


# ---- ages and options ----


def test_the_oldest_tables_in_milliseconds_are_converted():
    file = read(
        [
            "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 ",
            "#                                                 out-of-place                    in-place",
            "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res",
            "     1048576        262144   float     sum    0.152   6.90  12.07    1e-06    0.150   6.99  12.23    1e-06",
            "     4194304       1048576   float     sum    0.300  13.98  24.47    1e-06    0.300  13.98  24.47    1e-06",
        ]
    )

    assert [point.time_us.median for point in file.points] == [152.0, 150.0, 300.0, 300.0]
    assert {point.n_wrong for point in file.points} == {None}
    assert said(file, "milliseconds")
    assert file.n_ranks == 8


def test_per_iteration_columns_are_statistics_and_not_other_rows():
    half = "time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%"
    head = f"#       size         count      type   redop    root     {half}     {half}"
    out = "25.27   41.49   41.49       0    20.10    40.20    40.20     3.10"
    into = "19.90   52.69   52.69       0    18.00    30.00    29.00     2.00"
    file = read([head, f"     1048576        262144     float     sum      -1    {out}    {into}"])
    times = file.points[0].time_us

    assert (times.median, times.min, times.max, times.p99) == (25.27, 20.10, 40.20, None)
    assert [point.busbw_GBps for point in file.points] == [41.49, 52.69]
    assert {point.sample for point in file.points} == {"op"}


def test_columns_of_rccl_tests_are_told_by_their_header():
    head = "#       size         count      type   redop    root     time   hipevt   algbw   busbw  #wrong     time   hipevt   algbw   busbw  #wrong"
    numbers_of = "25.27    24.10   41.49   41.49       0    19.90    18.80   52.69   52.69       0    RING    SIMPLE    32  2026-12-01 02:03:04"
    file = read([f"{head}  algo      proto      nchannels  timestamp", f"     1048576        262144     float     sum      -1    {numbers_of}"])
    point = file.points[1]

    assert (point.time_us.median, point.busbw_GBps, point.algorithm, point.protocol, point.channels) == (19.90, 52.69, "ring", "simple", 32)
    assert not said(file, "words more")


def test_a_timestamp_is_no_number():
    plain = log("all_reduce", ROWS, 8)
    stamped = [line + "  2026-12-01 02:03:04" if line.startswith("  ") else line.replace("#wrong \n", "#wrong  timestamp") for line in plain]

    assert numbers(read(stamped)) == numbers(read(plain))


def test_cpu_times_are_no_times_of_operations():
    lines = [line.replace("   time ", "cputime ") if line == COLUMNS else line for line in log("all_reduce", ROWS, 8)]
    file = read(lines)

    assert {point.clock for point in file.points} == {"cpu"}
    assert said(file, "CPU times")


def test_the_memory_line_and_other_comments_are_passed_over():
    lines = log("all_reduce", ROWS, 8)
    asterisks = "# Errors with asterisks indicate errors that have exceeded the maximum threshold."
    lines[-3:-3] = ["# GPU memory usage     : NCCL 1.20 GB | Total  3.1 GB", asterisks]

    assert numbers(read(lines)) == numbers(read(log("all_reduce", ROWS, 8)))


def test_graph_runs_and_blocking_runs_are_not_taken_for_plain_ones():
    graph = read([line.replace("graph: 0", "graph: 10") for line in log("all_reduce", ROWS, 8)])
    says_so = "# Blocking Enabled: wait for completion and barrier after each collective"
    blocking = read([part for line in log("all_reduce", ROWS, 8) for part in ([line, says_so] if "nThread" in line else [line])])

    assert {(point.clock, point.ops_per_batch) for point in graph.points} == {("graph", 200)}
    assert {point.regime for point in blocking.points} == {None}


def test_what_a_says_of_ranks_is_taken_from_the_command_line():
    command = "$ mpirun -np 8 ./build/all_reduce_perf -b 8 -e 4M -f 2 -a 3"
    file = read([command, *log("all_reduce", ROWS, 8, named=False)])

    assert {(point.over_ranks, point.mean_over_ranks_us) for point in file.points} == {("max", None)}


def test_rows_that_printed_no_number_are_failed_points():
    lines = log("all_reduce", ROWS, 8)
    at = next(i for i, line in enumerate(lines) if line.startswith("  "))
    words = lines[at].split()
    lines[at] = "  ".join([*words[:6], "-nan", "-nan", *words[8:]])
    file = read(lines)
    bad = [point for point in file.points if point.status == "failed"]

    assert len(file.points) == 40
    assert [(point.nbytes, point.placement, point.busbw_GBps) for point in bad] == [(8, "out", None)]
    assert said(file, "busbw is -nan")


def test_cycles_are_passes_and_other_types_are_not():
    lines = log("all_reduce", ROWS, 8)
    rows = [line for line in lines if line.startswith("  ")]
    at = lines.index(rows[-1]) + 1
    half = [line.replace("   float", "    half") for line in rows]
    file = read([*lines[:at], "# Testing 2 cycle.", *rows, "# Testing 3 cycle.", *rows, *half, *lines[at:]])
    float_points = [point for point in file.points if point.dtype == "float32"]

    assert [sum(point.pass_ == k for point in float_points) for k in range(3)] == [40, 40, 40]
    assert {point.pass_ for point in file.points if point.dtype == "float16"} == {0}
    assert len(file.runs) == 1
    assert said(file, "up to 3 times")


def test_requests_that_round_down_to_one_size_stay_different_requests():
    rows = [Measured(0, 0.5, 0.5)] * 4 + [Measured(128 << k, 10.0, 10.0) for k in range(4)]
    file = read(log("all_gather", rows, 8, first=8, last=1024))
    out = [point for point in file.points if point.placement == "out"]

    assert [point.requested_nbytes for point in out] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert {point.pass_ for point in out} == {0}
    assert [point.status for point in out[:5]] == ["skipped"] * 4 + ["ok"]
    assert file.runs[0]["complete"] is True


def test_a_maximum_lowered_for_memory_is_the_maximum():
    lines = log("all_reduce", ROWS, 8, last=1 << 30)
    at = next(i for i, line in enumerate(lines) if line.startswith("# Using"))
    lines[at:at] = ["#", f"# Reducing maxBytes to {ROWS[-1].nbytes} due to memory limitation"]

    assert read(lines).runs[0]["complete"] is True


def test_groups_of_ranks_that_ran_at_once_are_counted_by_group():
    lines = log("all_reduce", BIG, 4, first=1 << 20)
    devices = [line for line in lines if "Rank " in line]
    at = lines.index(devices[-1]) + 1
    lines[at:at] = [line.replace("Rank  ", "Rank  1", 1).replace("Group  0", "Group  1").replace("node1", "node2") for line in devices]
    file = read(lines)

    assert {(point.n_ranks, point.group.n_groups) for point in file.points} == {(4, 2)}
    assert file.n_ranks == 8
    assert not said(file, "busbw/algbw says")


# ---- ranks and collectives that are not printed ----


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "sendrecv", "all_to_all", "broadcast", "reduce"])
def test_a_collective_that_no_line_names_is_told_by_its_columns(collective):
    rows = [Measured(m.nbytes, m.out_us, m.in_us) for m in BIG]
    lines = log(collective, rows, 8, first=1 << 20, named=False)
    if collective in ("broadcast", "reduce"):
        lines = [line.replace("      -1", "       0") for line in lines]

    assert {point.collective for point in read(lines).points} == {collective}


def test_a_table_that_fits_two_collectives_is_named_by_its_file_or_not_at_all():
    plain = log("all_gather", BIG, 8, first=1 << 20, named=False)
    lines = [line.replace("       0  ", "     N/A  ").replace("       0", "     N/A") for line in plain]

    assert {point.collective for point in read(lines, "all-gather-8.log").points} == {"all_gather"}
    assert {point.collective for point in read(lines, "table.log").points} == {"unknown"}
    assert said(read(lines, "table.log"), "no line names the collective")


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 4096), collective=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]), seed=st.integers(0, 99))
def test_the_number_of_ranks_lies_in_the_range_that_rounding_leaves(n, collective, seed):
    rng = random.Random(seed)
    rows = [Measured(n * 16 << k, n * 16 / 1e5 * 2**k * rng.uniform(0.9, 1.1), n * 16 / 1e5 * 2**k) for k in range(10, 16)]
    file = read(log(collective, rows, n, first=n * 16 << 10))
    low, high = file.runs[0]["n_ranks_range"]

    assert low <= n <= high
    assert not said(file, "busbw/algbw says")


def test_ranks_that_contradict_the_bandwidths_are_a_warning():
    lines = [line for line in log("all_reduce", BIG, 8, first=1 << 20) if "Rank  7" not in line and "Rank  6" not in line]

    assert said(read(lines), "the device list says 6 ranks, busbw/algbw says 8")


def test_numbers_that_contradict_each_other_are_a_warning():
    lines = log("all_reduce", BIG, 8, first=1 << 20)
    at = next(i for i, line in enumerate(lines) if line.startswith("  "))
    words = lines[at].split()
    words[5] = "999.99"
    lines[at] = "  ".join(words)

    assert said(read(lines), f"line {at + 1}: ", "size and time give")


@pytest.mark.parametrize("column, word", [(6, "269.00"), (7, "469.00"), (6, "0.00"), (7, "9.99")])
@pytest.mark.parametrize("first", [32, 1 << 24])
def test_bandwidths_that_size_and_time_do_not_give_are_told_and_those_of_the_time_used(column, word, first):
    lines = log("all_reduce", [Measured(first << k, 10.0 * 2**k, 10.0 * 2**k) for k in range(5)], 2, first=first)
    whole = read(lines)
    at = next(i for i, line in enumerate(lines) if line.startswith("  "))
    words = lines[at].split()
    spoilt = words[column] != word and abs(float(words[column]) - float(word)) > 0.01
    words[column] = word
    lines[at] = "  ".join(words)
    file = read(lines)

    assert bool(said(file, f"line {at + 1}: ", "size and time give")) is spoilt
    for point, right in zip(file.points, whole.points, strict=True):
        assert abs(point.algbw_GBps - right.algbw_GBps) <= 0.1
        assert abs(point.busbw_GBps - right.busbw_GBps) <= 0.1


def test_ranks_in_doubt_spoil_no_row():
    lines = [line for line in log("all_reduce", BIG, 8, first=1 << 20) if "Rank  7" not in line and "Rank  6" not in line]
    file = read(lines)

    assert not said(file, "size and time give")
    assert [point.busbw_GBps for point in file.points] == [point.busbw_GBps for point in read(log("all_reduce", BIG, 8, first=1 << 20)).points]


# ---- nothing is lost, nothing crashes ----

measured = st.builds(
    Measured,
    st.integers(2, 33).map(lambda k: 1 << k),
    st.floats(0.5, 9e6, allow_nan=False),
    st.floats(0.5, 9e6, allow_nan=False),
    st.sampled_from([0, 0, 0, 1, 96, 237858, 12345678]),
)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(measured, min_size=1, max_size=30), collective=st.sampled_from(["all_reduce", "sendrecv", "broadcast"]), n=st.integers(2, 128))
def test_every_row_that_is_printed_comes_back_as_two_points(rows, collective, n):
    lines = log(collective, rows, n, first=4)
    file = read(lines)

    assert len(file.points) == 2 * len(rows)
    for line, out, into in zip([line for line in lines if line.startswith("  ")], file.points[::2], file.points[1::2], strict=True):
        words = line.split()
        assert (out.placement, into.placement) == ("out", "in")
        assert [out.nbytes, into.nbytes] == [int(words[0])] * 2
        printed = [float(words[i]) for i in (5, 6, 7, 9, 10, 11)]
        assert [*_three(out), *_three(into)] == printed
        assert out.n_wrong == int(float(words[8]))


def _three(point):
    return point.time_us.median, point.algbw_GBps, point.busbw_GBps


def test_wrong_counts_are_whole_numbers_also_with_an_exponent():
    assert read(log("all_reduce", [Measured(1 << 20, 10.0, 10.0, 12345678)], 8, first=1 << 20)).points[0].n_wrong == 12345700


SAMPLE = "\n".join(log("all_reduce", ROWS, 8) + log("sendrecv", BIG, 8, first=1 << 20)) + "\n"


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_spoilt_log_never_crashes(data):
    text = SAMPLE
    for _ in range(data.draw(st.integers(1, 4))):
        at, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        how = data.draw(st.sampled_from(["cut", "drop", "repeat", "insert", "swap"]))
        if how == "cut":
            text = text[:end]
        elif how == "drop":
            text = text[:at] + text[min(end, at + 200) :]
        elif how == "repeat":
            text = text[:end] + text[at:]
        elif how == "insert":
            text = text[:at] + data.draw(st.text(max_size=20)) + text[at:]
        else:
            text = text[:at].replace(" ", "\t", 3) + text[at:].replace("0", "-nan", 2)
    file, err = outcome(text[:100_000])

    if err is not None:
        assert (err.exit_code, err.why[:5]) == (5, "x.log")
        return
    header_of([file])
    assert file.points or file.failure
    for point in file.points:
        assert point.source.startswith("x.log:")
        assert point.time_us is None or math.isfinite(point.time_us.median)


def outcome(text):
    """(what was read, None) or (None, the error of ours)."""
    try:
        return read(text), None
    except NcclBenchError as err:
        return None, err


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(SAMPLE)))
def test_a_log_cut_anywhere_keeps_every_whole_row_before_the_cut(cut):
    whole = sum(line.startswith("  ") for line in SAMPLE[:cut].split("\n")[:-1])
    try:
        n_points = len(read(SAMPLE[:cut]).points)
    except DataError:
        n_points = 0

    assert 2 * whole <= n_points <= 2 * whole + 2


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=120))
def test_taking_a_label_off_leaves_the_end_of_the_line(text):
    label, rest = split_label(text)

    assert text.endswith(rest)
    assert label in text


def test_files_that_cannot_be_read_are_errors_with_their_path(tmp_path):
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 40)

    for path in (tmp_path / "empty.log", tmp_path / "binary.log", tmp_path, tmp_path / "missing.log"):
        with pytest.raises(DataError, match=str(path)):
            import_file(path)


def test_a_file_too_large_to_read_is_refused_before_it_is_read(tmp_path):
    huge = tmp_path / "huge.log"
    with huge.open("wb") as file:
        file.truncate(300 << 20)

    with pytest.raises(DataError, match="300 MiB, more than 256"):
        import_file(huge)


def test_one_row_is_read_with_or_without_its_header():
    line = row("all_reduce", Measured(1 << 20, 25.27, 19.9), 2)

    assert numbers(read([line])) == numbers(read([COLUMNS, line]))
