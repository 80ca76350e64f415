"""The live view of an acceptance: plain lines without a terminal, a table that is redrawn with one."""

from __future__ import annotations

import io

from nccl_bench.report.stages import StageView


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def play(view: StageView) -> None:
    view.begin({"doctor": 5.0, "pairs": 30.0}, {"scale": "needs about 2 min"})
    view.stage("doctor", 4, 0)
    view.end("doctor", 3.0, "")
    view.stage("pairs", 4, 0)
    view.stage("pairs", 4, 1)
    view.message({"type": "pairs", "round": 0, "nbytes": 1 << 20})
    view.note("h3 is left out")
    view.end("pairs", 31.0, "lost h3")
    view.end("scale", 0.0, "left out: needs about 2 min")


def test_plain_lines_say_hosts_worlds_times_and_what_was_lost():
    out = io.StringIO()
    with StageView(out, live=False, now=lambda: 0.0) as view:
        play(view)
    assert out.getvalue().splitlines() == [
        "stage doctor: 4 hosts, about 5 s", "stage doctor: done in 3 s", "stage pairs: 4 hosts, about 30 s", "stage pairs: 4 hosts, 1 world",
        "note: h3 is left out", "stage pairs: done in 31 s (lost h3)", "stage scale: left out: needs about 2 min",
    ]  # fmt: skip


def test_a_long_stage_says_where_it_is_once_a_minute_in_a_log():
    out, clock = io.StringIO(), [0.0]
    with StageView(out, live=False, now=lambda: clock[0]) as view:
        view.begin({"cluster": 600.0}, {})
        view.stage("cluster", 2, 1)
        view.message({"type": "cases", "n": 16})
        for at in range(300):
            clock[0] += 1.0
            view.message({"type": "case", "index": at % 16, "collective": "all_reduce", "nbytes": 1 << 30})
    lines = [line for line in out.getvalue().splitlines() if "/16 all_reduce 1 GiB" in line]
    assert len(lines) == 4


def test_a_terminal_gets_one_table_and_what_is_said_meanwhile_stands_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with StageView(out) as view:
        play(view)
    text = out.getvalue()
    assert "\x1b[" in text
    last = text[text.rindex("stage") :]
    assert all(word in last for word in ("doctor", "done", "pairs", "31 s", "lost h3", "scale", "left out"))
    assert text.index("note: h3 is left out") < text.rindex("stage")
    assert text.rstrip("\n").endswith("\x1b[?25h") or "\x1b[?25h" in text, "the cursor is shown again"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with StageView(out) as view:
        play(view)
    assert "\x1b" not in out.getvalue()
