"""report/terminal.py and report/sentence.py: the table, its sentences, banners and errors."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import LaunchError, UsageError
from nccl_bench.records import Group, Point, Times, with_bandwidth
from nccl_bench.report.sentence import about_size, half_bandwidth_nbytes, short_size
from nccl_bench.report.terminal import (
    LEGEND,
    MOST_ALIKE,
    NOT_NCCL,
    ONE_RANK,
    SHARED_GPU,
    WIDTH,
    Ceiling,
    Look,
    SweepTable,
    banner,
    last_line,
    wants_color,
    write_error,
    write_warning,
    write_warnings,
)


def point(nbytes: int = 1 << 20, median: float = 61.0, **changes: object) -> Point:
    times = Times(
        median=median, mean=median * 1.01, min=median * 0.99, max=median * 2, p95=median * 1.03, ci_low=median * 0.997, ci_high=median * 1.003
    )
    base = Point(
        collective="all_reduce", dtype="float32", op="sum", root=None, nbytes=nbytes, requested_nbytes=nbytes, count=nbytes // 4, n_ranks=16,
        placement="in", clock="queued", regime="streaming", registered="none", time_us=times, iters=1920, mean_over_ranks_us=median * 0.98, n_wrong=0,
    )  # fmt: skip
    return replace(with_bandwidth(base, median), **changes)  # type: ignore[arg-type]


LOOK = Look(n_nodes=2, clocks=("queued",), regime="streaming")


def shown(*points: Point | tuple[Point, Ceiling], look: Look = LOOK) -> str:
    stream = io.StringIO()
    table = SweepTable(stream, look)
    for item in points:
        one, ceiling = item if isinstance(item, tuple) else (item, None)
        table.add(one, ceiling)
    table.end()
    return stream.getvalue()


def rows(text: str) -> list[str]:
    """Lines between the column titles and the sentence."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.split()[:2] == ["size", "time"]) + 1
    return [line for line in lines[start:] if re.fullmatch(r" *<?[\d.]+ ([KMGT]i)?B", line[:9])]


# ---- the table ----


def test_the_columns_are_those_of_the_contract() -> None:
    titles = next(line for line in shown(point()).splitlines() if line.split()[:1] == ["size"])

    assert re.split(r" {2,}", titles.strip()) == ["size", "time", "±", "busbw", "expected", "%", "limited by", "algo", "p95/p50", "wrong"]


def test_a_row_says_what_how_sure_how_good_and_why_not_better() -> None:
    ceiling = Ceiling(expected_low_GBps=452, expected_high_GBps=487, share_frac=0.98, limited_by="8x 400G NICs", line_GBps=700)
    (row,) = rows(shown((point(8 << 30, 34400.0, algorithm="NVLSTree", protocol="SIMPLE"), ceiling)))

    assert row.split() == ["8", "GiB", "34.4", "ms", "0.3%", "468.2", "452-487", "98", "8x", "400G", "NICs", "NVLSTree", "1.03", "0"]


def test_what_is_not_known_is_a_dash_and_never_a_number() -> None:
    bare = point(n_wrong=None, busbw_GBps=None, time_us=Times(median=61.0, mean=61.0, min=61.0, max=61.0))
    (row,) = rows(shown(bare))

    assert row.split() == ["1", "MiB", "61.0", "µs", "-", "-", "-", "-", "-", "-", "-", "-"]


def test_protocols_other_than_simple_are_named() -> None:
    assert " tree LL128 " in shown(point(algorithm="tree", protocol="LL128"))
    assert " ring " in shown(point(algorithm="ring", protocol="Simple"))


def test_a_floor_without_an_upper_end_is_written_as_one() -> None:
    assert " >32.0 " in shown((point(), Ceiling(expected_low_GBps=32.0)))


def test_the_heading_says_what_is_true_of_all_rows() -> None:
    text = shown(point())

    assert text.splitlines()[0] == LEGEND
    assert "all_reduce · 16 ranks, 2 nodes · sum float32 · in place · queued clock, streaming" in text


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"collective": "broadcast", "op": None, "root": 3}, "broadcast · 16 ranks, 2 nodes · float32 · in place · root 3 · "),
        ({"collective": "sendrecv", "op": None, "placement": "out", "shift": "node"}, "out of place · to the next node, all rails · "),
        ({"variant": "ring"}, "variant ring"),
        ({"registered": "symmetric"}, "registered: symmetric"),
        ({"group": Group(axis="tp", size=8, n_groups=2)}, "axis tp: 2 groups of 8 ranks"),
        ({"pass_": 4}, "pass 5"),
        ({"n_ranks": 1}, "1 rank, 2 nodes"),
    ],
)
def test_the_heading_names_what_is_special(changes: dict[str, object], says: str) -> None:
    assert says in " ".join(shown(point(**changes)).split())


def test_points_of_another_section_begin_a_table_of_their_own() -> None:
    text = shown(point(8), point(16), point(8, collective="all_gather", op=None), point(8, dtype="bfloat16"))

    assert text.count("busbw  expected") == 3
    assert text.count("GB/s = 1e9") == 1
    assert text.count(" reaches ") == 3


def test_rows_come_as_the_points_do() -> None:
    stream = io.StringIO()
    table = SweepTable(stream, LOOK)
    table.begin(point(8))
    table.row(point(8))
    assert rows(stream.getvalue()) != []
    table.row(point(16))
    assert len(rows(stream.getvalue())) == 2
    sentence = table.end()

    assert sentence in " ".join(stream.getvalue().split())
    assert table.end() == ""


@pytest.mark.parametrize("status", ["skipped", "failed"])
def test_a_case_that_did_not_run_says_why_in_its_row(status: str) -> None:
    gone = point(0, requested_nbytes=8, status=status, reason="8 B cannot be shared by 16 ranks", time_us=None, busbw_GBps=None, algbw_GBps=None)
    text = shown(gone, point())

    assert f"      8 B  {status}: 8 B cannot be shared by 16 ranks\n" in text
    assert f"1 {status}." in " ".join(text.split())


def test_a_table_without_a_measurement_says_so() -> None:
    gone = point(0, requested_nbytes=8, status="skipped", reason="no", time_us=None, busbw_GBps=None, algbw_GBps=None)

    assert "all_reduce: nothing was measured. 1 skipped." in shown(gone)


def test_wide_adds_bytes_asked_operations_and_the_mean_over_ranks() -> None:
    text = shown(point(1048560, requested_nbytes=1 << 20), look=replace(LOOK, wide=True))
    titles, (row,) = next(line for line in text.splitlines() if "asked" in line), rows(text)

    assert titles.split()[-6:] == ["overhead", "algbw", "bytes", "asked", "iters", "mean/ranks"]
    assert row.split()[-8:] == ["-", "17.2", "1048560", "1", "MiB", "1920", "59.8", "µs"]


def test_two_clocks_show_what_an_eager_call_costs_more() -> None:
    text = shown(point(8, 6.0, clock="graph"), point(8, 38.5, clock="eager"), look=replace(LOOK, clocks=("graph", "eager")))
    graph, eager = rows(text)

    assert re.search(r" graph +- ", graph)
    assert re.search(r" eager +32\.5 µs", eager)
    assert "an eager call costs 32.5 µs more at 8 B" in " ".join(text.split())
    assert "graph, eager clocks" in text


def test_sizes_that_ranks_cannot_share_evenly_stay_short() -> None:
    assert short_size(1048560, 1 << 20) == "<1 MiB"
    assert short_size(1 << 20, 1 << 20) == "1 MiB"
    assert short_size(96, 100) == "96 B"
    assert short_size(123456789, 123456789) == "118 MiB"


# ---- the sentence ----


def test_the_sentence_tells_peak_share_limit_latency_and_half_size() -> None:
    ceiling = Ceiling(share_frac=0.98, limited_by="the 8x 400G NICs of a node", line_GBps=700)
    text = " ".join(shown(point(8, 25.2), point(1 << 30, 8000.0), (point(8 << 30, 34400.0), ceiling)).split())

    assert "all_reduce reaches 468.2 GB/s at 8 GiB, 98 % of what healthy systems like this reach (limited by the 8x 400G NICs of a node)" in text
    assert "25.2 µs at 8 B" in text
    assert "half of its speed at 922 MiB" in text


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    """The sentence is pushed along so that every one of its numbers comes to a line's end once."""
    units = (["B"], ["MiB"], ["KiB"], ["µs"], ["ms"], ["s"], ["GB/s"], ["%"])
    for length in range(1, 80):
        ceiling = Ceiling(share_frac=0.5, limited_by="x" * length)
        lines = shown(point(8, 12.5), (point(1 << 26, 700.0), ceiling)).splitlines()[1:]

        assert not [line for line in lines if re.split(r"[ ;.,]", line)[:1] in units]


def test_a_one_way_operation_back_to_back_is_called_a_rate() -> None:
    assert "a rate, not a latency" in " ".join(shown(point(8, 5.0, collective="broadcast", op=None, root=0)).split())
    assert "a rate, not a latency" not in " ".join(shown(point(8, 5.0)).split())


def test_the_isolated_series_of_a_streaming_sweep_is_told_and_is_no_row() -> None:
    text = shown(point(8, 5.1), point(8, 12.9, regime="isolated"))

    assert len(rows(text)) == 1
    assert "one call alone 12.9 µs at 8 B" in " ".join(text.split())


def test_an_isolated_sweep_shows_its_rows() -> None:
    assert len(rows(shown(point(8, 12.9, regime="isolated"), look=replace(LOOK, regime="isolated")))) == 1


def test_wrong_data_is_told_in_the_sentence() -> None:
    assert "WRONG DATA at 1 MiB." in shown(point(n_wrong=12))


def test_a_value_above_the_physical_limit_is_called_an_error_and_not_clipped() -> None:
    text = " ".join(shown((point(8 << 30, 34400.0), Ceiling(line_GBps=450.0))).split())

    assert "Above the physical limit (450.0 GB/s) at 8 GiB: the limit or the measurement is wrong." in text
    assert "468.2" in text


def test_a_value_above_the_limit_by_less_than_its_interval_is_none() -> None:
    assert "Above" not in shown((point(8 << 30, 34400.0), Ceiling(line_GBps=467.5)))


def test_one_rank_has_no_bandwidth_and_no_verdict() -> None:
    text = " ".join(shown((point(n_ranks=1, busbw_GBps=0.0), Ceiling())).split())

    assert ONE_RANK in text
    assert "reaches" not in text


@pytest.mark.parametrize("look, says", [(replace(LOOK, not_nccl=True), "gloo, not NCCL"), (replace(LOOK, shared_gpu=True), "not a measurement")])
def test_a_run_that_measures_nothing_gives_no_share(look: Look, says: str) -> None:
    text = " ".join(shown((point(), Ceiling(share_frac=0.98, limited_by="NICs")), look=look).split())

    assert says in text
    assert "healthy" not in text


def test_half_the_bandwidth_is_where_latency_and_transfer_are_equal() -> None:
    """With time = latency + size / rate, half the rate is reached at latency x rate; a long sweep finds it."""
    latency_us, rate = 20.0, 0.4e6  # bytes/µs
    points = [point(1 << power, latency_us + (1 << power) / rate) for power in range(3, 37)]
    half = half_bandwidth_nbytes(points)

    assert half is not None
    assert half == pytest.approx(latency_us * rate, rel=0.03)


def test_a_size_that_is_fast_by_chance_is_not_where_half_is_reached() -> None:
    rates = {1: 1.0, 2: 6.0, 4: 2.0, 8: 4.0, 16: 8.0, 32: 10.0, 64: 3.0}
    points = [replace(point(mib << 20, 100.0), busbw_GBps=rate) for mib, rate in rates.items()]
    half = half_bandwidth_nbytes(points)

    assert half is not None
    assert 8 << 20 < half < 16 << 20


def test_one_size_has_no_half_size() -> None:
    assert half_bandwidth_nbytes([point()]) is None
    assert half_bandwidth_nbytes([]) is None


# ---- every line fits ----

number = st.floats(min_value=1e-3, max_value=1e10)
word = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(
    nbytes=st.integers(1, 1 << 50),
    less=st.integers(0, 4096),
    median=number,
    wide_ci=st.floats(0, 0.999),
    p95=st.floats(1, 1e4),
    n_wrong=st.none() | st.integers(0, 1 << 40),
    algorithm=st.none() | word,
    protocol=st.none() | word,
    ceiling=st.builds(
        Ceiling,
        expected_low_GBps=st.none() | st.floats(0.01, 9999),
        expected_high_GBps=st.none() | st.floats(0.01, 9999),
        share_frac=st.none() | st.floats(0, 99),
        limited_by=st.none() | word,
        line_GBps=st.none() | number,
    ),
)
def test_every_row_has_its_columns_where_the_titles_are(
    nbytes: int,
    less: int,
    median: float,
    wide_ci: float,
    p95: float,
    n_wrong: int | None,
    algorithm: str | None,
    protocol: str | None,
    ceiling: Ceiling,
) -> None:
    slow, fast, tail = median * (1 + wide_ci), median * (1 - wide_ci), median * p95
    times = Times(median=median, mean=median, min=median, max=tail, p95=tail, ci_low=fast, ci_high=slow)
    one = point(max(1, nbytes - less), median, requested_nbytes=nbytes, n_wrong=n_wrong, algorithm=algorithm, protocol=protocol)
    text = shown((replace(one, time_us=times), ceiling))
    titles = next(line for line in text.splitlines() if line.split()[:2] == ["size", "time"])
    row = text.splitlines()[text.splitlines().index(titles) + 1]

    assert len(titles) <= WIDTH
    assert len(row) <= WIDTH
    for title in ("size", "time", "±", "busbw", "expected", "%", "p95/p50", "wrong"):
        end = titles.index(title) + len(title)
        assert row[end - 1] != " "
        assert row[end : end + 1] in ("", " ")
    for title in ("limited by", "algo"):
        start = titles.index(title)
        assert row[start - 1] == " "
        assert row[start] != " "
    assert all(len(line) <= WIDTH for line in text.splitlines())


@pytest.mark.parametrize("line", [LEGEND, NOT_NCCL, SHARED_GPU, ONE_RANK, "# " + NOT_NCCL, "# " + SHARED_GPU])
def test_fixed_lines_fit(line: str) -> None:
    assert len(line) <= WIDTH


@given(st.floats(min_value=1, max_value=2**50))
def test_an_approximate_size_is_within_five_percent(nbytes: float) -> None:
    value, unit = about_size(nbytes).split()
    scale = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}[unit]

    assert math.isclose(float(value) * 1024**scale, nbytes, rel_tol=0.5 if unit == "B" and nbytes < 10 else 0.051)


# ---- colour ----


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it() -> None:
    assert wants_color(Terminal(), {"TERM": "xterm"})
    assert not wants_color(io.StringIO(), {"TERM": "xterm"})
    assert not wants_color(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not wants_color(Terminal(), {"TERM": "dumb"})


def test_colour_changes_no_text() -> None:
    items = (point(8), point(16, n_wrong=3), point(0, requested_nbytes=8, status="failed", reason="no", time_us=None))
    plain, painted = shown(*items), shown(*items, look=replace(LOOK, color=True))

    assert "\x1b" not in plain
    assert "\x1b[31;1m" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain


# ---- banners and errors ----


def test_a_run_that_measures_nothing_has_a_banner() -> None:
    assert "NOT NCCL" in (banner(not_nccl=True, shared_gpu=False) or "")
    assert "shared GPU, not a measurement" in (banner(not_nccl=False, shared_gpu=True) or "")
    assert banner(not_nccl=False, shared_gpu=False) is None


def test_as_a_comment_a_banner_is_one_line_of_nccl_tests_kind() -> None:
    text = banner(not_nccl=True, shared_gpu=False, comment=True)

    assert text == f"# {NOT_NCCL}"
    assert banner(not_nccl=False, shared_gpu=False, comment=True) is None


def test_an_error_says_why_and_below_it_what_to_do() -> None:
    stream = io.StringIO()
    err = LaunchError(
        "8 ranks on gpu-003 see 2 GPUs (CUDA_VISIBLE_DEVICES=0,1 on rank 5)",
        "give every rank its own GPU: srun --gpus-per-node=8 --ntasks-per-node=8",
    )
    write_error(err, stream)

    assert stream.getvalue() == (
        "error: 8 ranks on gpu-003 see 2 GPUs (CUDA_VISIBLE_DEVICES=0,1 on rank 5)\n"
        "       give every rank its own GPU: srun --gpus-per-node=8 --ntasks-per-node=8\n"
    )
    assert last_line(3, "launch: more ranks than GPUs (x8 ranks)") == "nccl-bench: exit 3: launch: more ranks than GPUs (x8 ranks)"


def test_an_error_of_several_lines_stays_one_block_and_its_last_line_one_line() -> None:
    stream = io.StringIO()
    write_error(UsageError("first\nsecond", "third\nfourth"), stream)

    assert stream.getvalue() == "error: first\n       second\n       third\n       fourth\n"
    assert last_line(2, "first\nsecond") == "nccl-bench: exit 2: first second"


def test_a_warning_is_marked_as_one() -> None:
    stream = io.StringIO()
    write_warning("two\nlines", stream)

    assert stream.getvalue() == "warning: two\n         lines\n"


def test_warnings_that_differ_in_numbers_alone_are_told_a_few_times_and_counted() -> None:
    stream = io.StringIO()
    write_warnings([*(f"a.log:{at}: {at / 8} GB/s is no rate" for at in range(100)), "b.log:3: torn"], stream)

    lines = stream.getvalue().splitlines()
    assert lines[0] == "warning: a.log:0: 0.0 GB/s is no rate"
    assert lines[MOST_ALIKE:] == [f"warning: ... and {100 - MOST_ALIKE} more that differ in their numbers alone", "warning: b.log:3: torn"]
