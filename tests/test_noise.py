"""What libraries write of their own: complaints told from chatter, the same message of many ranks said once, files a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.flows.noise import MAX_FILES, MAX_SAID, complaining, in_few_words, keep_noise
from nccl_bench.launch.workers import is_complaint


@pytest.mark.parametrize(
    "line",
    [
        "h1:4123:4199 [0] misc/ibvwrap.cc:120 NCCL WARN Call to ibv_create_qp failed",
        "h1:4123:4199 [0] NCCL WARN socketProgress: Connection closed by remote peer h2<41234>",
        "[W1201 04:05:06.123456789 socket.cpp:767] [c10d] The client socket cannot be initialized",
        "[rank3]:[E1201 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout",
        "Traceback (most recent call last):",
        "RuntimeError: something failed",
        "/site/torch/functional.py:1: UserWarning: old",
    ],
)
def test_warnings_and_errors_of_libraries_are_complaints(line: str) -> None:
    assert is_complaint(line)


PLUGIN = "h1:4123:4199 [0] NCCL INFO dlsym failed on ncclNetPlugin_v9, ignoring"


@pytest.mark.parametrize("line", ["h1:4123:4199 [0] NCCL INFO Channel 00/16 : 0 1", PLUGIN, "[Gloo] Rank 0 is connected to 3 peers", ""])
def test_chatter_is_none(line: str) -> None:
    assert not is_complaint(line)


def test_one_message_of_many_ranks_is_said_once_whatever_stands_before_it() -> None:
    warn = "NCCL WARN Call to ibv_create_qp failed"
    kept = {rank: (f"h{rank}:41{rank}:42{rank} [{rank}] {warn}",) for rank in range(16)}
    assert in_few_words(kept) == [f"{warn} (x16 ranks)"]
    assert in_few_words({3: (f"[rank3]: {warn}",)}) == [f"{warn} (rank 3)"]
    assert in_few_words({0: ("[W1201 04:05:06.1 a.cpp:1] x",), 1: ("[W1201 09:09:09.9 a.cpp:1] x",)}) == ["a.cpp:1] x (x2 ranks)"]


def test_what_the_verdict_quotes_is_not_said_again() -> None:
    assert in_few_words({1: ("Error: a", "Error: b")}, ["rank 1 died", "  | Error: a"]) == ["Error: b (rank 1)"]


def test_only_ranks_that_complain_count_in_a_good_run() -> None:
    assert complaining({0: ("NCCL INFO fine",), 1: ("NCCL INFO fine", "NCCL WARN not")}) == {1: ("NCCL INFO fine", "NCCL WARN not")}


def test_each_rank_has_a_file_and_nobody_without_words(tmp_path: Path) -> None:
    assert keep_noise(tmp_path, {0: ("a", "b"), 1: (), 12: ("c",)})
    assert {path.name: path.read_text() for path in (tmp_path / "stderr").iterdir()} == {"rank-0.txt": "a\nb\n", "rank-12.txt": "c\n"}
    assert not keep_noise(tmp_path / "other", {0: ()})
    assert not (tmp_path / "other").exists()


def test_thousands_of_ranks_make_few_files_and_few_words(tmp_path: Path) -> None:
    kept = {rank: (f"Error: {rank % 7}",) for rank in range(4096)}
    words = in_few_words(kept)
    assert len(words) == MAX_SAID + 1
    assert words[-1] == "and 4 more messages"
    keep_noise(tmp_path, kept)
    assert len(list((tmp_path / "stderr").iterdir())) == MAX_FILES


@given(st.dictionaries(st.integers(0, 9), st.lists(st.text(max_size=40), max_size=4).map(tuple), max_size=5))
def test_any_lines_are_said_in_few_words(kept: dict[int, tuple[str, ...]]) -> None:
    assert len(in_few_words(kept)) <= MAX_SAID + 1
    assert bool(in_few_words(kept)) == bool(complaining(kept))
