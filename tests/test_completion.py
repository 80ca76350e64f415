"""Shell completion: the scripts, what they offer, and how a shell that Typer does not know is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("nccl-bench")


def completed(line: str) -> list[str]:
    """What bash would offer at the end of a line."""
    words = line.split(" ")
    env = {**os.environ, "_NCCL_BENCH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([sys.executable, "-m", "nccl_bench"], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    "line, offered",
    [
        ("nccl-bench sw", ["sweep"]),
        ("nccl-bench sweep --prec", ["--precision"]),
        ("nccl-bench sweep all_", ["all_reduce", "all_gather", "all_to_all"]),
        ("nccl-bench sweep --clock gr", ["graph"]),
        ("nccl-bench sweep --clock graph,q", ["graph,queued"]),
        ("nccl-bench sweep --regime i", ["isolated"]),
        ("nccl-bench plan --framework m", ["megatron"]),
        ("nccl-bench plan --preset llama3-7", ["llama3-70b"]),
        ("nccl-bench explain half", ["half-bandwidth"]),
    ],
)
def test_a_shell_completes_commands_options_and_values(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def in_shell(shell: str, home: Path, option: str) -> subprocess.CompletedProcess[str]:
    """The option asked for from a shell; the colon keeps the shell from handing its process over."""
    env = {**os.environ, "HOME": str(home)}
    return subprocess.run(
        [shell, "-c", f"'{sys.executable}' -m nccl_bench {option}; code=$?; :; exit $code"], env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_its_shell_reads(shell: str, tmp_path: Path) -> None:
    env = {**os.environ, "_NCCL_BENCH_COMPLETE": f"source_{shell}"}
    script = subprocess.run([sys.executable, "-m", "nccl_bench"], env=env, capture_output=True, text=True, check=True).stdout
    assert "nccl-bench" in script
    assert f"_NCCL_BENCH_COMPLETE=complete_{shell}" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here to read it")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_install_completion_writes_what_bash_reads(tmp_path: Path) -> None:
    done = in_shell("bash", tmp_path, "--install-completion")

    assert done.returncode == 0, done.stderr
    assert ".bash_completions/nccl-bench.sh" in (tmp_path / ".bashrc").read_text()
    assert "complete" in (tmp_path / ".bash_completions/nccl-bench.sh").read_text()
    assert (tmp_path / ".bash_completions/nccl-bench.sh").read_text() in in_shell("bash", tmp_path, "--show-completion").stdout


@pytest.mark.skipif(not Path("/bin/dash").exists(), reason="no dash")
@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_a_shell_without_completion_is_a_usage_error_and_no_verdict(tmp_path: Path, option: str) -> None:
    done = in_shell("/bin/dash", tmp_path, option)

    assert done.returncode == 2
    assert "bash, zsh, fish" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"nccl-bench: exit 2: {option}: ")


@pytest.mark.skipif(shutil.which("bash") is None or not Path("/proc/self").exists(), reason="no bash, or no folder that nobody can write")
def test_a_home_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    done = in_shell("bash", Path("/proc"), "--install-completion")

    assert done.returncode == 2
    assert "/proc" in done.stderr.splitlines()[0]
    assert "internal error" not in done.stderr
