"""results/store.py: what is kept of a run, and that nothing measured is lost."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import DataError, UsageError
from nccl_bench.records import SCHEMA, Group, Pair, Point, RunHeader, Times
from nccl_bench.results.store import (
    AT_ONCE,
    POINTS_FILE,
    RunWriter,
    create_run,
    default_path,
    find_run,
    is_run,
    read_run,
    resume_run,
    write_json,
)

NOW = datetime(2026, 12, 1, 10, 15, 2, tzinfo=UTC)
DATA = Path(__file__).parent / "data"


def header(**changes: object) -> RunHeader:
    base = RunHeader(
        tool="nccl-bench 0.1.0", argv=("nccl-bench", "sweep"), started_at="2026-12-01T10:15:02Z", launcher=None, backend="gloo", n_ranks=2, n_nodes=1
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def point(nbytes: int = 1024, **changes: object) -> Point:
    base = Point(
        collective="all_reduce", dtype="float32", op="sum", root=None, nbytes=nbytes, requested_nbytes=nbytes, count=nbytes // 4,
        n_ranks=2, placement="in", clock="host", regime="streaming", time_us=Times(median=5.0, mean=5.5, min=4.0, max=9.0),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


# ---- where a run goes ----


def test_the_default_directory_says_when_where_and_how_many() -> None:
    assert default_path(Path("results"), NOW, "gpu-001.cluster.example", 16) == Path("results/20261201-101502-gpu-001-16r")
    assert default_path(Path("results"), NOW, "vm", 2, gloo=True) == Path("results/20261201-101502-vm-2r-gloo")
    assert default_path(Path("results"), NOW, "gpu-001", 16, job="4711").name == "20261201-101502-gpu-001-16r-4711"


def test_a_name_replaces_the_last_part_of_the_default() -> None:
    assert default_path(Path("results"), NOW, "vm", 2, gloo=True, job="1", name="after-repair") == Path("results/after-repair")


@pytest.mark.parametrize("name", ["", "..", "a/b", "/abs", "latest"])
def test_a_name_that_is_no_plain_directory_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        default_path(Path("results"), NOW, "vm", 2, name=name)


def test_two_runs_of_one_second_get_two_directories(tmp_path: Path) -> None:
    first = default_path(tmp_path, NOW, "vm", 2)
    create_run(first, header(), latest=True).close()
    second = default_path(tmp_path, NOW, "vm", 2)
    create_run(second, header(), latest=True).close()

    assert second != first
    assert is_run(first)
    assert is_run(second)


def test_latest_points_to_the_newest_run_by_a_relative_link(tmp_path: Path) -> None:
    for name in ("one", "two"):
        create_run(tmp_path / name, header(name=name), latest=True).close()

    assert (tmp_path / "latest").readlink() == Path("two")
    assert find_run("latest", tmp_path) == tmp_path / "latest"
    assert read_run(tmp_path / "latest")[0].name == "two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_a_run_at_a_chosen_place_leaves_latest_alone(tmp_path: Path) -> None:
    create_run(tmp_path / "mine", header()).close()

    assert not (tmp_path / "latest").exists()


def test_a_directory_called_latest_is_left_alone_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "file").touch()
    create_run(tmp_path / "one", header(), latest=True).close()

    assert (tmp_path / "latest" / "file").exists()
    assert is_run(tmp_path / "one")


def test_asking_for_the_latest_of_no_run_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="latest") as caught:
        find_run("latest", tmp_path)

    assert "sweep" in " ".join(caught.value.hints)


def test_asking_for_the_latest_acceptance_says_what_makes_one(tmp_path: Path) -> None:
    for text in ("latest", str(tmp_path / "absent")):
        with pytest.raises(DataError) as caught:
            find_run(text, tmp_path, first="accept")
        assert "nccl-bench accept" in " ".join(caught.value.hints)
        assert "sweep" not in " ".join(caught.value.hints)


def test_a_run_is_known_by_its_directory_and_by_either_of_its_files(tmp_path: Path) -> None:
    create_run(tmp_path / "r", header()).close()
    (tmp_path / "r" / "stdout.log").touch()

    assert is_run(tmp_path / "r")
    assert is_run(tmp_path / "r" / "points.jsonl")
    assert not is_run(tmp_path / "r" / "stdout.log")
    assert not is_run(tmp_path)
    assert find_run(str(tmp_path / "r")) == tmp_path / "r"
    with pytest.raises(DataError, match="no such file"):
        find_run(str(tmp_path / "absent"))


# ---- writing ----


def test_a_point_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    writer = create_run(tmp_path / "r", header())
    for nbytes in (8, 16):
        writer.append(point(nbytes))
        # Read by another path while the writer is open, as a reader after a kill -9 would.
        assert [p.nbytes for p in read_run(tmp_path / "r")[1]][-1] == nbytes

    assert writer.n_points == 2
    assert read_run(tmp_path / "r")[0].exit_code is None


def test_many_points_at_once_are_kept_whole_and_in_order(tmp_path: Path) -> None:
    writer = create_run(tmp_path / "r", header())
    writer.append(point(4))
    writer.extend(point(8 * at) for at in range(1, AT_ONCE + 3))

    kept = read_run(tmp_path / "r")[1]
    assert [p.nbytes for p in kept] == [4, *(8 * at for at in range(1, AT_ONCE + 3))]
    assert writer.n_points == len(kept)


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    points = [
        point(8),
        point(16, group=Group(axis="tp", size=2, n_groups=4, slowest=(0, 1), spread_frac=0.5), pass_=3, throttle=(), series_us=(1.0, 2.5)),
        point(32, pair=Pair(level="gpu", round=1, src=0, dst=1, both=False), lateness_us={"nodes": {"vm": 1.5}}, status="failed", reason="ü: kaputt"),
    ]
    writer = create_run(tmp_path / "r", header(job="17", ranks=({"rank": 0, "host": "vm"},)))
    for item in points:
        writer.append(item)
    writer.finish(NOW, 4, "rank 1 did not arrive", warnings=("a warning",))
    kept, read, warnings = read_run(tmp_path / "r")

    assert read == points
    assert warnings == []
    end = {"ended_at": "2026-12-01T10:15:02Z", "exit_code": 4, "why": "rank 1 did not arrive", "warnings": ("a warning",)}
    assert kept == header(job="17", ranks=({"rank": 0, "host": "vm"},), **end)
    assert kept.schema == SCHEMA


def test_what_a_probe_found_later_is_told_of_the_points_that_do_not_say_it(tmp_path: Path) -> None:
    from nccl_bench.results.runs import open_run, records

    writer = create_run(tmp_path / "r", header())
    writer.append(point(1024))
    writer.append(point(4096, algorithm="tree", protocol="LL"))
    rows = tuple({"collective": "all_reduce", "nbytes": size, "algorithm": "ring", "protocol": "Simple", "channels": 4} for size in (1024, 4096))
    writer.update_header(algorithms=rows)
    writer.finish(NOW, 0)

    told = [(p.algorithm, p.protocol, p.channels) for p in read_run(tmp_path / "r")[1]]
    raw = [(r["algorithm"], r["protocol"], r["channels"]) for _, r in records(open_run(str(tmp_path / "r")))]

    assert told == raw == [("ring", "Simple", 4), ("tree", "LL", None)]


def test_finishing_twice_keeps_the_first_end(tmp_path: Path) -> None:
    writer = create_run(tmp_path / "r", header())
    writer.finish(NOW, 0)
    writer.finish(NOW, 70, "a bug while leaving")

    assert read_run(tmp_path / "r")[0].exit_code == 0


def test_updating_the_header_leaves_no_temporary_file(tmp_path: Path) -> None:
    writer = create_run(tmp_path / "r", header())
    writer.update_header(versions={"torch": "2.13.0"})
    writer.close()

    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["points.jsonl", "run.json"]
    assert read_run(tmp_path / "r")[0].versions == {"torch": "2.13.0"}


def test_a_directory_that_holds_a_run_is_refused_and_kept(tmp_path: Path) -> None:
    writer = create_run(tmp_path / "r", header(name="first"))
    writer.append(point())
    writer.close()
    with pytest.raises(UsageError, match="holds a run"):
        create_run(tmp_path / "r", header(name="second"))
    kept, points, _ = read_run(tmp_path / "r")

    assert kept.name == "first"
    assert len(points) == 1


def test_a_directory_that_holds_only_a_verdict_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "verdict.json", {"status": "pass"})
    with pytest.raises(UsageError, match=r"verdict\.json"):
        create_run(tmp_path, header())


def test_an_empty_directory_that_exists_is_taken(tmp_path: Path) -> None:
    create_run(tmp_path, header()).close()

    assert is_run(tmp_path)


def test_of_two_writers_of_one_directory_one_is_refused(tmp_path: Path) -> None:
    first = create_run(tmp_path / "r", header())
    (tmp_path / "r" / "run.json").unlink()  # as if the first had not come to write it yet
    with pytest.raises(UsageError, match="holds a run"):
        create_run(tmp_path / "r", header())
    first.close()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="no directory"):
        create_run(tmp_path / "file", header())
    with pytest.raises(UsageError, match="cannot be written"):
        create_run(tmp_path / "file" / "below", header())


def test_other_files_of_lines_are_appended_beside_the_points(tmp_path: Path) -> None:
    writer = create_run(tmp_path / "r", header())
    writer.append_record("batches.jsonl", {"case": 0, "us": [1.5, 2.0]})
    writer.append_record("batches.jsonl", {"case": 1, "us": [math.inf]})
    writer.close()
    lines = (tmp_path / "r" / "batches.jsonl").read_text().splitlines()

    assert [json.loads(line) for line in lines] == [{"case": 0, "us": [1.5, 2.0]}, {"case": 1, "us": [None]}]
    assert writer.n_points == 0


def test_a_number_that_is_none_is_written_as_null(tmp_path: Path) -> None:
    writer = create_run(tmp_path / "r", header())
    writer.append(point(busbw_GBps=math.nan, window_us=math.inf))
    writer.close()
    (read,) = read_run(tmp_path / "r")[1]

    assert read.busbw_GBps is None
    assert read.window_us is None


def test_an_argument_that_is_no_text_does_not_break_the_header(tmp_path: Path) -> None:
    create_run(tmp_path / "r", header(argv=("nccl-bench", os.fsdecode(b"-O\xff"), "\ud800"))).close()

    assert read_run(tmp_path / "r")[0].argv == ("nccl-bench", "-O?", "?")


# ---- a full disk ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a small tmpfs needs root: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    def write_forever() -> None:
        while True:
            ballast.write(bytes(4096))

    with (path / "ballast").open("ab", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
        write_forever()


def test_a_disk_that_fills_up_keeps_every_point_that_was_whole(small_disk: Path) -> None:
    writer = create_run(small_disk / "r", header())

    def append_many() -> None:
        for nbytes in range(1, 1000):
            writer.append(point(nbytes))

    with pytest.raises(UsageError) as caught:
        append_many()
    n_kept = writer.n_points
    warning = writer.finish(NOW, caught.value.exit_code, caught.value.why)
    kept, points, warnings = read_run(small_disk / "r")

    assert 10 < n_kept < 1000
    assert [p.nbytes for p in points] == list(range(1, n_kept + 1))
    assert warnings == []
    assert kept.tool == "nccl-bench 0.1.0"
    assert warning is None  # the user has been told once
    assert str(small_disk / "r" / POINTS_FILE) in caught.value.why
    assert "No space left on device" in caught.value.why
    assert any(f"{n_kept} points kept in {small_disk / 'r'}" in hint for hint in caught.value.hints)


def test_a_full_disk_is_found_before_anything_is_measured_and_nothing_stays(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(UsageError, match="No space left") as caught:
        create_run(small_disk / "r", header())

    assert not (small_disk / "r").exists()
    assert any("-O" in hint for hint in caught.value.hints)


def test_a_disk_full_at_the_end_of_a_good_run_is_an_error_and_of_a_bad_one_a_warning(small_disk: Path) -> None:
    good, bad = create_run(small_disk / "good", header()), create_run(small_disk / "bad", header())
    fill(small_disk)

    assert "No space left" in (bad.finish(NOW, 4, "rank 1 did not arrive") or "")
    with pytest.raises(UsageError, match="No space left"):
        good.finish(NOW, 0)
    assert read_run(small_disk / "good")[0].exit_code is None


# ---- a writer that dies ----


def test_a_writer_killed_at_any_moment_leaves_whole_points(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from test_store import create_run, header, point\n"
        "writer = create_run(Path(sys.argv[1]), header())\n"
        "for nbytes in range(1, 10**9):\n"
        "    writer.append(point(nbytes)); sys.stdout.write('.'); sys.stdout.flush()\n"
    )
    args = [sys.executable, "-c", script, str(tmp_path / "r"), str(Path(__file__).parent)]
    with subprocess.Popen(args, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        seen = len(writer.stdout.read(20))
        writer.kill()
    points = read_run(tmp_path / "r")[1]

    assert len(points) >= seen
    assert [p.nbytes for p in points] == list(range(1, len(points) + 1))


# ---- reading what others left ----


def run_with_lines(path: Path, *lines: bytes) -> Path:
    create_run(path, header()).close()
    (path / POINTS_FILE).write_bytes(b"".join(lines))
    return path


def line(item: Point) -> bytes:
    return json.dumps(item.to_json()).encode() + b"\n"


@pytest.mark.parametrize("torn", [b'{"collective": "all_', b"{", b"\0\0\0\0", b'{"a": 1}'[:-1]])
def test_reading_a_torn_last_line_keeps_the_earlier_points_and_warns(tmp_path: Path, torn: bytes) -> None:
    path = run_with_lines(tmp_path / "r", line(point(8)), line(point(16)), torn)
    _, points, warnings = read_run(path)

    assert [p.nbytes for p in points] == [8, 16]
    assert len(warnings) == 1
    assert f"{path / POINTS_FILE}:3" in warnings[0]


def test_a_last_line_that_only_lacks_its_newline_is_a_point(tmp_path: Path) -> None:
    path = run_with_lines(tmp_path / "r", line(point(8)), line(point(16))[:-1])

    assert [p.nbytes for p in read_run(path)[1]] == [8, 16]


@pytest.mark.parametrize(
    "bad",
    [
        b"garbage\n",
        b'{"collective": "all_\n',
        b"[]\n",
        b"null\n",
        b"{}\n",
        line(point()).replace(b'"nbytes": 1024,', b'"nbytes": "1024",', 1),
        line(point()).replace(b'"median": 5.0', b'"median": null'),
        line(point()).replace(b'"status": "ok"', b'"status": "fine"'),
        line(point()).replace(b'"time_us": {', b'"time_us": 5, "x": {'),
        line(point()).replace(b'"group": null', b'"group": {"axis": null}'),
        line(point()).replace(b'"n_ranks": 2', b'"n_ranks": true'),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_any_other_bad_line_is_an_error_with_its_place(tmp_path: Path, bad: bytes, last: bool) -> None:
    path = run_with_lines(tmp_path / "r", line(point(8)), bad, *([] if last else [line(point(16))]))
    with pytest.raises(DataError) as caught:
        read_run(path)

    assert str(caught.value).startswith(f"{path / POINTS_FILE}:2: ")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"schema": 1}', '{"schema": "1"}', '{"schema": true}', '{"schema": 99}', '{"schema": 1, "tool": 5}']
)
def test_a_bad_header_is_an_error_with_its_file(tmp_path: Path, text: str) -> None:
    path = run_with_lines(tmp_path / "r")
    (path / "run.json").write_text(text)
    with pytest.raises(DataError) as caught:
        read_run(path)

    assert str(path / "run.json") in str(caught.value)


def test_a_header_field_of_the_wrong_type_is_named(tmp_path: Path) -> None:
    path = run_with_lines(tmp_path / "r")
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**record, "n_ranks": "sixteen"}))
    with pytest.raises(DataError, match=r"run\.json:1: n_ranks is 'sixteen'"):
        read_run(path)


def test_points_without_their_header_are_refused_since_nobody_knows_whose_they_are(tmp_path: Path) -> None:
    (tmp_path / POINTS_FILE).write_bytes(line(point()))
    with pytest.raises(DataError, match=r"run\.json"):
        read_run(tmp_path / POINTS_FILE)


def test_a_header_without_points_reads_with_a_warning(tmp_path: Path) -> None:
    path = run_with_lines(tmp_path / "r")
    (path / POINTS_FILE).unlink()
    _, points, warnings = read_run(path)

    assert points == []
    assert "missing" in warnings[0]


def test_a_run_is_read_by_its_directory_and_by_its_points_alike(tmp_path: Path) -> None:
    path = run_with_lines(tmp_path / "r", line(point(8)))

    assert read_run(path) == read_run(path / POINTS_FILE) == read_run(path / "run.json")


def test_keys_of_a_newer_minor_version_are_passed_over(tmp_path: Path) -> None:
    path = run_with_lines(tmp_path / "r", line(point(8)).replace(b"{", b'{"of_tomorrow": 1, ', 1))

    assert [p.nbytes for p in read_run(path)[1]] == [8]


def test_schema_version_1_is_read_whole() -> None:
    kept, points, warnings = read_run(DATA / "run_v1")
    raw_header = json.loads((DATA / "run_v1" / "run.json").read_text())
    raw_points = [json.loads(text) for text in (DATA / "run_v1" / "points.jsonl").read_text().splitlines()]

    assert warnings == []
    assert len(points) == len(raw_points) == 4
    # Nothing that version 1 held is lost: every key and value of the files comes back.
    assert {key: json.loads(json.dumps(kept.to_json()))[key] for key in raw_header} == raw_header
    for read, raw in zip(points, raw_points, strict=True):
        back = json.loads(json.dumps(read.to_json()))
        assert {key: back[key] for key in raw} == raw
    assert points[1].group is not None
    assert points[1].group.slowest == (0, 2, 4, 6, 8, 10, 12, 14)
    assert points[2].pair == Pair(level="node", round=3, src=0, dst=8, both=True)
    assert points[3].status == "skipped"


# ---- going on ----


@pytest.mark.parametrize("tail", [b'{"collective": "all_', line(point(16))[:-1], b""])
def test_a_run_that_was_cut_off_goes_on_after_its_whole_lines(tmp_path: Path, tail: bytes) -> None:
    path = run_with_lines(tmp_path / "r", line(point(8)), tail)
    before = [p.nbytes for p in read_run(path)[1]]
    writer = resume_run(path)
    assert writer.n_points == len(before)
    writer.append(point(32))
    writer.finish(NOW, 0)
    kept, points, warnings = read_run(path)

    assert [p.nbytes for p in points] == [*before, 32]
    assert warnings == []
    assert kept.exit_code == 0


def test_resuming_what_is_no_run_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run\.json"):
        resume_run(tmp_path)


finite = st.floats(min_value=0, max_value=1e12, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            point,
            st.integers(min_value=0, max_value=1 << 50),
            reason=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            busbw_GBps=st.none() | finite,
            series_us=st.lists(finite, max_size=6).map(tuple),
            pass_=st.integers(min_value=0, max_value=1000),
            group=st.none() | st.builds(Group, axis=st.none() | st.just("tp"), size=st.integers(1, 9), slowest=st.none() | st.just((0, 1))),
        ),
        max_size=5,
    ),
    st.integers(min_value=0, max_value=200),
)
def test_points_cut_anywhere_give_a_prefix_of_what_was_written(tmp_path_factory: pytest.TempPathFactory, items: list[Point], cut: int) -> None:
    path = tmp_path_factory.mktemp("run") / "r"
    writer: RunWriter = create_run(path, header())
    for item in items:
        writer.append(item)
    writer.close()
    assert read_run(path) == (header(), items, [])

    data = (path / POINTS_FILE).read_bytes()
    (path / POINTS_FILE).write_bytes(data[: max(0, len(data) - cut)])
    points = read_run(path)[1]

    assert points == items[: len(points)]
