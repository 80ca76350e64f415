"""Options that name a file to write: its folder is there, or the command ends 2 before it works."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_samples import point, write_run

from nccl_bench.cli.files import check_writable, write_text
from nccl_bench.cli.main import run
from nccl_bench.errors import UsageError

PLAN = ("--preset", "llama3-8b", "--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--nodes", "1", "--seq", "4096", "--gbs", "64")


def commands(base: str, file: str) -> list[list[str]]:
    """Every command with an option that names a file, and one way to name it."""
    accept = ["accept", "-g", "2", "--backend", "gloo", "--dry-run"]
    return [
        [*accept, "--junit", file], [*accept, "--html", file], [*accept, "--prometheus", file], ["compare", base, base, "--html", file],
        ["export", base, "-O", file], ["export", base, "--format", "nccl-tests", "-O", file], ["plan", *PLAN, "--tp", "8", "--emit", file],
        ["search", *PLAN, "--chart", f"{file}.svg"],
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(8))
def test_no_command_makes_the_folder_of_a_file(number, tmp_path, capsys):
    base = write_run(tmp_path / "b", [point()])
    assert run(commands(str(base), str(tmp_path / "nosuch" / "x"))[number]) == 2
    assert f"folder {tmp_path / 'nosuch'} does not exist" in capsys.readouterr().err
    assert not (tmp_path / "nosuch").exists()


def test_a_directory_that_holds_a_run_is_refused_by_pairs_before_it_measures(tmp_path, capsys):
    base = write_run(tmp_path / "b", [point()])
    assert run(["pairs", "-g", "2", "--backend", "gloo", "-O", str(base)]) == 2
    shown = capsys.readouterr().err
    assert "holds a run already (run.json)" in shown
    assert "rank" not in shown.splitlines()[0]


def test_a_file_in_the_folder_that_the_run_makes_itself_is_written(tmp_path):
    out = tmp_path / "run"
    check_writable(out / "junit.xml", "--junit", made=out)
    with pytest.raises(UsageError, match=r"folder .*/run/deep does not exist"):
        check_writable(out / "deep" / "junit.xml", "--junit", made=out)


def test_a_parent_that_is_a_file_and_a_path_that_is_a_folder_are_told_apart(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is no directory"):
        check_writable(tmp_path / "file" / "x", "--html")
    with pytest.raises(UsageError, match="it is a directory"):
        check_writable(tmp_path, "--html")


def test_a_device_and_a_link_stay_what_they_are(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_text("old")
    write_text(Path("/dev/null"), "text", "--html")
    write_text(tmp_path / "link", "new", "--html")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
