"""report/progress.py: a live line that never lands in the table."""

from __future__ import annotations

import io
import os
import pty
import re
import sys

import pytest

from nccl_bench.report.progress import LIVE_EVERY_S, PLAIN_EVERY_S, Progress


class Clock:
    """A clock that is set by hand, seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def screen(text: str) -> list[str]:
    """What a terminal shows after `text`: a carriage return and erase take the line away."""
    lines = [""]
    for part in re.split(r"(\r\x1b\[K|\n)", text):
        if part == "\n":
            lines.append("")
        elif part == "\r\x1b[K":
            lines[-1] = ""
        else:
            lines[-1] += part
    return lines


def test_the_live_line_says_what_runs_how_far_and_how_long() -> None:
    stream = io.StringIO()
    progress = Progress(stream, live=True)
    progress.update(36, 60, "all_gather", "64 MiB", left_s=80)

    assert screen(stream.getvalue()) == ["[all_gather  36/60  64 MiB  ######....  1 min 20 s left]"]


def test_the_time_left_is_reckoned_from_the_cases_so_far() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, live=True, now=clock)
    for done in range(4):
        progress.update(done, 10, "all_reduce", "8 B")
        clock.now += 2.0

    assert screen(stream.getvalue()) == ["[all_reduce  3/10  8 B  ###.......  14 s left]"]


def test_before_two_cases_are_done_no_time_is_made_up() -> None:
    stream = io.StringIO()
    Progress(stream, live=True).update(0, 10, "all_reduce", "8 B")

    assert "left" not in stream.getvalue()


def test_what_is_written_while_paused_is_whole_and_the_line_comes_back() -> None:
    stream = io.StringIO()
    progress = Progress(stream, live=True)
    progress.update(1, 2, "all_reduce", "8 B")
    with progress.paused():
        stream.write("a row of the table\n")
    progress.close()

    assert screen(stream.getvalue()[: stream.getvalue().index("table\n") + 6]) == ["a row of the table", ""]
    assert screen(stream.getvalue()) == ["a row of the table", ""]


def test_the_line_comes_back_where_writing_fails() -> None:
    stream = io.StringIO()
    progress = Progress(stream, live=True)
    progress.update(1, 2, "all_reduce", "8 B")
    with pytest.raises(BrokenPipeError), progress.paused():
        raise BrokenPipeError

    assert screen(stream.getvalue())[-1].startswith("[all_reduce")


def test_the_live_line_is_not_redrawn_faster_than_an_eye_follows() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, live=True, now=clock)
    for done in range(1000):
        progress.update(done, 2000, "all_reduce", "8 B")
        clock.now += LIVE_EVERY_S / 100

    assert stream.getvalue().count("[all_reduce") <= 11


def test_where_there_is_no_terminal_a_line_comes_now_and_then_without_control_characters() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, now=clock)
    for done in range(100):
        progress.update(done, 200, "all_reduce", "8 B")
        with progress.paused():
            clock.now += PLAIN_EVERY_S / 10
    progress.close()
    lines = stream.getvalue().splitlines()

    assert 9 <= len(lines) <= 10
    assert lines[0] == "nccl-bench: 10 of 200 cases done, now all_reduce 8 B, 19 min left"
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_short_run_without_a_terminal_says_nothing() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for done in range(7):
        progress.update(done, 6, "all_reduce", "8 B")
    progress.close()

    assert stream.getvalue() == ""


def test_no_progress_says_nothing_anywhere() -> None:
    stream = io.StringIO()
    progress = Progress(stream, enabled=False, live=True)
    progress.update(1, 2, "all_reduce", "8 B")
    with progress.paused():
        pass
    progress.close()

    assert stream.getvalue() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo terminal")
def test_a_narrow_terminal_gets_one_line_that_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl
    import struct
    import termios

    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    with os.fdopen(slave, "w") as stream:
        Progress(stream).update(1, 2, "reduce_scatter", "64 MiB", left_s=80)
        seen = os.read(master, 1000).decode()
    os.close(master)

    assert screen(seen) == ["[reduce_scatter  1/2  64 MiB "[:29]]
