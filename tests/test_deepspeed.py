"""DeepSpeed's comms_logger: sizes and times are kept, bandwidths are worked out for the group that ran."""

import json
from pathlib import Path

import pytest

from nccl_bench.errors import DataError
from nccl_bench.results.deepspeed import import_deepspeed, is_deepspeed
from nccl_bench.results.importers import import_file
from nccl_bench.results.text import from_bytes

COLUMNS = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)")
HEAD = "".join(f"{name: <20}" for name in COLUMNS)
GIB, MIB = 1 << 30, 1 << 20


def as_deepspeed_reckons(op, nbytes, ms, world):
    """calc_bw_log of deepspeed/utils/comms_logging.py."""
    if op in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        nbytes *= world
        tput, busbw = nbytes / ms, nbytes / ms * (world - 1) / world
    elif op == "all_reduce":
        tput, busbw = 2 * nbytes / ms, nbytes / ms * 2 * (world - 1) / world
    else:
        tput = busbw = nbytes / ms
    return tput * 8 / 1e6, busbw * 8 / 1e6


def summary(rows, world=16):
    lines = [HEAD]
    for op, size, nbytes, count, ms in rows:
        tput, busbw = as_deepspeed_reckons(op.split(" |")[0], nbytes, ms, world)
        lines += [op, f"{' ': <20}{size: <20}{count: <20}{count * ms: <20.2f}{ms: <20.2f}{tput: <20.2f}{busbw: <20.2f}"]
    return lines


ROWS = [
    ("broadcast", "2.0 KB", 2048, 146, 0.08),
    ("barrier", "0B", 0, 3, 0.1),
    ("all_gather_into_tensor", "6.0 MB", 6 * MIB, 40, 0.11),
    ("reduce_scatter_tensor | [Caller Func: reduce_scatter_fn]", "678.86 MB", 711836303, 40, 9.46),
    ("all_reduce", "1.0 GB", GIB, 10, 12.0),
]


def read(lines, group_size=None):
    text = lines if isinstance(lines, str) else "\n".join(lines) + "\n"
    return import_deepspeed(from_bytes(Path("ds.log"), text.encode()), "ds.log", group_size)


def by_name(file):
    return {point.collective: point for point in file.points}


def test_bandwidths_are_worked_out_from_sizes_and_times():
    points = by_name(read(summary(ROWS)))

    # all_reduce: the logger's throughput counts the bytes twice.
    assert points["all_reduce"].algbw_GBps == pytest.approx(GIB / 12000 * 1e-3)
    assert points["all_reduce"].busbw_GBps == pytest.approx(GIB / 12000 * 1e-3 * 30 / 16)
    # all_gather: it logs a rank's part; nccl-tests' size is the whole.
    assert points["all_gather"].nbytes == 96 * MIB
    assert points["all_gather"].busbw_GBps == pytest.approx(96 * MIB / 110 * 1e-3 * 15 / 16)
    # reduce_scatter: the input is whole already; the logger multiplies it by the world's size once more.
    assert points["reduce_scatter"].nbytes == 711836303
    assert points["reduce_scatter"].algbw_GBps == pytest.approx(711836303 / 9460 * 1e-3)
    assert points["broadcast"].busbw_GBps == pytest.approx(2048 / 80 * 1e-3)


def test_the_worlds_size_is_told_by_the_logger_and_taken_with_a_warning():
    file = read(summary(ROWS, world=16))

    assert (file.n_ranks, {point.n_ranks for point in file.points}) == (16, {16})
    assert any("--group-size" in warning for warning in file.warnings)


@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_a_group_that_is_not_the_world_gets_its_own_bandwidths(group_size):
    file = read(summary(ROWS, world=64), group_size)
    points = by_name(file)

    assert file.n_ranks == 64
    assert points["all_gather"].nbytes == 6 * MIB * group_size
    assert points["all_gather"].busbw_GBps == pytest.approx(6 * MIB * group_size / 110 * 1e-3 * (group_size - 1) / group_size)
    assert points["all_reduce"].busbw_GBps == pytest.approx(GIB / 12000 * 1e-3 * 2 * (group_size - 1) / group_size)
    assert not any("give --group-size" in warning for warning in file.warnings)


def test_without_any_hint_of_the_ranks_bus_bandwidth_is_unknown():
    file = read(summary([("broadcast", "2.0 KB", 2048, 146, 0.08), ("all_reduce", "4.0 B", 4, 1, 30.0)]))

    assert {point.busbw_GBps for point in file.points} == {None}
    assert any("nothing tells how many ranks" in warning for warning in file.warnings)


def test_every_record_cites_its_line_and_what_was_left_out_is_said():
    file = read(summary(ROWS))

    assert [point.source for point in file.points] == ["ds.log:3", "ds.log:7", "ds.log:9", "ds.log:11"]
    assert any("barrier" in warning for warning in file.warnings)
    assert any("two decimals" in warning for warning in file.warnings)


def test_a_summary_printed_twice_is_two_passes():
    file = read(summary(ROWS) + summary(ROWS))

    assert [point.pass_ for point in file.points] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_straggler_table_is_no_second_summary():
    head = "".join(f"{name: <20}" for name in ("Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)"))
    row = "".join(f"{cell: <20}" for cell in (" ", "1.0 GB", 10, 100.0, 20.0, 10.0, 2.0))
    lines = [*summary(ROWS), "_______________________________", head, "all_reduce", row]

    assert len(read(lines).points) == 4


def test_verbose_lines_of_one_operation_are_samples_of_one_point():
    line = (
        "[2026-06-26 01:39:56,470] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: all_reduce | time (ms): {ms} | msg size: 6.0 MB "
        "| algbw (Gbps): {t:.2f}  | busbw (Gbps): {b:.2f} "
    )
    lines = []
    for ms in (0.11, 0.08, 0.09):
        tput, busbw = as_deepspeed_reckons("all_reduce", 6 * MIB, ms, 8)
        lines.append(line.format(ms=ms, t=tput, b=busbw))
    file = read(lines)
    times = file.points[0].time_us

    assert len(file.points) == 1
    assert (times.min, times.median, times.max, file.points[0].iters) == (80.0, 90.0, 110.0, 3)
    assert file.n_ranks == 8


def test_dictionaries_saved_as_json_are_read_exactly():
    row = {"count": 10, "total_latency_ms": 130.0, "avg_latency_ms": 12.0, "tput_avg_gbps": 1.0, "busbw_avg_gbps": 1.0, "msg_size_bytes": GIB}
    metadata = {"world_size": 8, "rank": 0, "timestamp": "2026-12-01T10:00:00"}
    document = {"summary": {"all_reduce": {str(GIB): row}}, "straggler_analysis": None, "metadata": metadata}
    file = read(json.dumps(document))
    raw = read(json.dumps({"all_reduce": {str(GIB): [3, [12.0, 13.0, 11.0], [1.0] * 3, [1.0] * 3]}}), 8)

    assert file.points[0].time_us.mean == 13000.0
    assert file.points[0].busbw_GBps == pytest.approx(GIB / 12000 * 1e-3 * 14 / 8)
    assert file.ended_at == "2026-12-01T10:00:00"
    assert (raw.points[0].time_us.min, raw.points[0].time_us.median) == (11000.0, 12000.0)


def test_dumps_are_told_from_other_files(tmp_path):
    (tmp_path / "train.log").write_text("epoch 1\n" + "\n".join(summary(ROWS)) + "\n")

    assert import_file(tmp_path / "train.log").kind == "deepspeed"
    assert not is_deepspeed(from_bytes(Path("x"), b'{"summary": 3}'))


def test_a_dump_without_bandwidths_is_an_error():
    with pytest.raises(DataError, match=r"ds\.log: only barrier"):
        read(summary([("barrier", "0B", 0, 3, 0.1)]))
