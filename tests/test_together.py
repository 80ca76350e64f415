"""An error before a run begins, on ranks that were launched together: one says it for all, and every rank ends with its code."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nccl_bench.errors import UsageError
from nccl_bench.launch.together import end_together

BAD = ("sweep", "--bogus")
IMPOSSIBLE = ("sweep", "--backend", "gloo", "--clock", "graph")
FINE = ("sweep", "all_reduce", "--backend", "gloo", "-b", "1K", "-e", "1K", "--no-progress")


def ended(commands: Sequence[Sequence[str]], late: int | None = None, cwd: Path | None = None) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of one rank a command; `late` starts half a second after the others."""
    port = str(random.randrange(20000, 32000))
    started = []
    for rank, command in enumerate(commands):
        place = {"RANK": rank, "WORLD_SIZE": len(commands), "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": len(commands)}
        env = {**os.environ, **{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if rank == late:
            time.sleep(0.5)
        argv = [sys.executable, "-m", "nccl_bench", *command]
        started.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd))
    texts = [process.communicate(timeout=60) for process in started]
    return [(process.returncode, *text) for process, text in zip(started, texts, strict=True)]


@pytest.mark.parametrize("command, said", [(BAD, "no such option: --bogus"), (IMPOSSIBLE, "--clock graph")])
@pytest.mark.parametrize("late", [None, 0, 2])
def test_what_all_ranks_were_given_wrong_is_said_once_and_all_end_2(command: Sequence[str], said: str, late: int | None) -> None:
    found = ended([command] * 3, late)
    assert [code for code, _, _ in found] == [2, 2, 2]
    words = [text for _, _, text in found if text]
    assert len(words) == 1, words
    assert said in words[0]
    assert "x3 ranks" in words[0]
    assert words[0].splitlines()[-1].startswith("nccl-bench: exit 2: ranks 0-2: ")
    assert all(stdout == "" for _, stdout, _ in found)


def test_one_rank_with_an_error_ends_the_others_too_and_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = ended([FINE, BAD, FINE], cwd=tmp_path)
    assert [code for code, _, _ in found] == [2, 2, 2]
    assert "no such option: --bogus" in found[0][2]
    assert found[0][2].splitlines()[-1].startswith("nccl-bench: exit 2: rank 1: ")
    assert not list(tmp_path.iterdir())


def test_a_rank_that_finds_nobody_speaks_for_itself() -> None:
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.randrange(20000, 32000))}
    finished = end_together(UsageError("no such size", "see --help"), place)
    assert finished is not None
    assert finished.exit_code == 2
    assert finished.lines[0].startswith("no such size")


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h1"}, {"RANK": "3"}])
def test_alone_or_in_a_contradictory_launch_there_is_nobody_to_meet(environ: dict[str, str]) -> None:
    assert end_together(UsageError("no such size"), environ) is None
