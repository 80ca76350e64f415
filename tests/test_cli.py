"""cli/main.py: every way a command can end, and what --help costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from nccl_bench import __version__
from nccl_bench.cli.commands import COMMANDS, Command, available
from nccl_bench.cli.foreign import answer, normalise
from nccl_bench.cli.main import run
from nccl_bench.cli.outcome import MEANING

CONTRACT_COMMANDS = [
    *("sweep", "topo", "ideal", "doctor", "pairs", "accept", "compare"),
    *("report", "import", "export", "plan", "search", "slurm", "explain"),
]

TRIAL = textwrap.dedent(
    '''
    """Commands for the tests: each ends in one way."""
    import os, signal, sys, time
    from typing import Annotated, Literal
    import typer
    from nccl_bench.cli.outcome import Ended
    from nccl_bench.errors import DataError, InterruptedRun, WorldError


    def ends(how: str, warmup_iters: Annotated[int, typer.Option()] = 5, nproc_per_node: Annotated[int, typer.Option("-g", "--nproc-per-node")] = 1,
             dtype: Annotated[Literal["float32", "int8"], typer.Option("-d", "--dtype")] = "float32",
             extra: Annotated[list[str], typer.Argument()] = []):
        """End in a chosen way."""
        if how.startswith("print-"):
            print("a table")
            how = how.removeprefix("print-")
        if how == "well":
            print(f"warmup {warmup_iters} g {nproc_per_node} {dtype} {extra}")
        elif how == "data":
            raise DataError("points.jsonl:7: not a point", "look at line 7", "or measure again")
        elif how == "world":
            raise WorldError("rank 11 did not arrive\\nin 60 s")
        elif how == "signal":
            raise InterruptedRun(signal.SIGTERM, "terminated, 3 points kept")
        elif how == "bug":
            return {}["no such key"]
        elif how == "verdict":
            return Ended(exit_code=1, why="fail: 33 rows")
        elif how == "silent":
            return Ended(exit_code=4, why="")
        elif how == "eight":
            raise typer.Exit(8)
        elif how == "sleep":
            print("ready", flush=True)
            time.sleep(60)
        elif how == "talk":
            while True:
                print("x" * 1000)
        elif how == "whisper":
            print("x")
            time.sleep(0.5)
        elif how == "exits":
            sys.exit(3)
        elif how == "modules":
            print("\\n".join(sys.modules))
    '''
)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Command, ...]:
    (tmp_path / "nccl_bench_trial.py").write_text(TRIAL)
    monkeypatch.syspath_prepend(str(tmp_path))
    return (Command(name="ends", question="How?", module="nccl_bench_trial", function="ends", help="end somehow", example="nccl-bench ends well"),)


def run_apart(tmp_path: Path, *args: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """The trial command in a process of its own."""
    return subprocess.run(command_apart(tmp_path, *args), capture_output=True, text=True, check=False, **kwargs)  # type: ignore[call-overload,no-any-return]


def command_apart(tmp_path: Path, *args: str) -> list[str]:
    (tmp_path / "nccl_bench_trial.py").write_text(TRIAL)
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from nccl_bench.cli.main import run\n"
        "from nccl_bench.cli.commands import Command\n"
        "sys.exit(run(rows=(Command(name='ends', question='How?', module='nccl_bench_trial', function='ends', help='h', example='e'),)))\n"
    )
    return [sys.executable, "-c", code, str(tmp_path), *args]


def program(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The real program."""
    return subprocess.run(
        [sys.executable, "-m", "nccl_bench", *args], capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100", **environ}
    )


# ---- the table of commands ----


def test_the_table_holds_the_commands_of_the_contract_in_its_order() -> None:
    assert [row.name for row in COMMANDS] == CONTRACT_COMMANDS


def test_only_commands_that_exist_are_offered() -> None:
    names = [row.name for row in available()]
    text = program("--help").stdout

    assert "explain" in names
    for row in COMMANDS:
        assert (row.name in names) == (Path("nccl_bench", "cli", row.module.rpartition(".")[2] + ".py").exists() or row.name not in CONTRACT_COMMANDS)
        assert (f"\n  {row.name} " in text) == (row.name in names)


@pytest.mark.parametrize("row", available(), ids=lambda row: row.name)
def test_every_command_that_is_offered_shows_its_help(row: Command) -> None:
    done = program(row.name, "--help")

    assert done.returncode == 0
    assert done.stderr == ""
    assert f"nccl-bench {row.name}" in done.stdout


def test_help_and_the_bare_page_load_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from nccl_bench.cli.main import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        "sys.stderr.write(' '.join(m for m in ('torch', 'pandas', 'matplotlib', 'numpy', 'jinja2', 'rich') if m in sys.modules))\n"
    )
    for args in ([], ["--help"], ["--version"], ["explain", "busbw"]):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)

        assert done.stdout
        assert done.stderr == "", args


@pytest.mark.parametrize("row", available(), ids=lambda row: row.name)
def test_the_help_of_a_command_loads_nothing_heavy(row: Command) -> None:
    code = (
        "import sys\n"
        "from nccl_bench.cli.main import run\n"
        "assert run([sys.argv[1], '--help']) == 0\n"
        "sys.stderr.write(' '.join(m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, row.name], capture_output=True, text=True, check=True)

    assert done.stderr == ""


# ---- how it ends ----


def test_a_command_that_is_done_ends_0_and_says_nothing_on_stderr(trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ends", "well"], trial) == 0
    out, err = capsys.readouterr()

    assert out == "warmup 5 g 1 float32 []\n"
    assert err == ""


@pytest.mark.parametrize(
    "how, code, last, first",
    [
        ("data", 5, "nccl-bench: exit 5: points.jsonl:7: not a point", "error: points.jsonl:7: not a point\n       look at line 7\n"),
        ("world", 4, "nccl-bench: exit 4: rank 11 did not arrive in 60 s", "error: rank 11 did not arrive\n       in 60 s\n"),
        ("signal", 143, "nccl-bench: exit 143: terminated, 3 points kept", "error: terminated"),
        ("verdict", 1, "nccl-bench: exit 1: fail: 33 rows", "nccl-bench: exit 1"),
        ("eight", 8, f"nccl-bench: exit 8: {MEANING[8]}", "nccl-bench: exit 8"),
        ("exits", 3, f"nccl-bench: exit 3: {MEANING[3]}", "nccl-bench: exit 3"),
    ],
)
def test_every_error_ends_with_its_code_and_one_last_line(
    trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], how: str, code: int, last: str, first: str
) -> None:
    assert run(["ends", how], trial) == code
    out, err = capsys.readouterr()

    assert out == ""
    assert err.startswith(first)
    assert err.splitlines()[-1] == last
    assert "Traceback" not in err


@pytest.mark.parametrize("how", ["verdict", "data"])
def test_what_was_printed_comes_before_the_error_and_the_last_line(tmp_path: Path, how: str) -> None:
    """As a batch job has it: both into one file."""
    (tmp_path / "out").touch()
    with (tmp_path / "out").open("w") as file:
        done = subprocess.run(command_apart(tmp_path, "ends", f"print-{how}"), stdout=file, stderr=file, check=False)
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[0] == "a table"
    assert lines[-1].startswith(f"nccl-bench: exit {done.returncode}: ")
    assert done.returncode in (1, 5)


def test_a_rank_that_leaves_the_word_to_rank_0_ends_silently(trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ends", "silent"], trial) == 4
    assert capsys.readouterr() == ("", "")


def test_a_bug_ends_70_and_its_traceback_is_in_a_file(
    trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(["ends", "bug"], trial) == 70
    err = capsys.readouterr().err
    (kept,) = tmp_path.glob("nccl-bench-traceback-*.txt")

    assert "Traceback" not in err
    assert str(kept) in err
    assert err.splitlines()[-1] == "nccl-bench: exit 70: internal error: KeyError: 'no such key'"
    assert "KeyError: 'no such key'" in kept.read_text()
    assert "nccl_bench_trial.py" in kept.read_text()


def test_a_bug_with_no_place_for_its_traceback_shows_it(
    trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert run(["ends", "bug"], trial) == 70
    err = capsys.readouterr().err

    assert "KeyError" in err
    assert "above" in err


def test_ctrl_c_ends_130(tmp_path: Path) -> None:
    with subprocess.Popen(command_apart(tmp_path, "ends", "sleep"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert err.splitlines()[-1] == "nccl-bench: exit 130: interrupted"
    assert "Traceback" not in err


def test_ctrl_c_during_the_first_imports_is_no_traceback(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, nccl_bench.__main__ as front\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'nccl_bench.cli.commands': os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "sys.exit(front.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "nccl-bench: exit 130: interrupted\n")


@pytest.mark.parametrize("how", ["talk", "whisper", "--help"])
def test_a_reader_who_leaves_is_no_traceback(tmp_path: Path, how: str) -> None:
    with subprocess.Popen(command_apart(tmp_path, "ends", how), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        time.sleep(0.1)
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(timeout=30)

    assert process.returncode == 141
    assert err == "nccl-bench: exit 141: the reader of the output left\n"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["sweep", "allredcue"], "did you mean all_reduce?"),
        (["sweep", "all_gahter"], "did you mean all_gather?"),
        (["sweep", "--precison", "1"], "did you mean --precision?"),
        (["sweep", "-g", "two"], "'--nproc-per-node': a whole number is asked for"),
        (["sweep", "-g", "0"], "'--nproc-per-node': at least 1"),
        (["export", "run", "--format", "xlsx"], "'xlsx' is not one of"),
        (["sweep", "--zzz"], "no such option: --zzz"),
    ],
)
def test_a_slip_is_told_in_our_words_with_what_was_meant(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Input should" not in err
    assert "Value error" not in err


@pytest.mark.parametrize("arguments, code", [(["ends", "talk"], 141), (["nosuch"], 2), (["ends", "--nonsense"], 2)])
def test_a_reader_of_both_who_leaves_does_not_change_how_it_ended(tmp_path: Path, arguments: list[str], code: int) -> None:
    """As with 2>&1 | head -1: the last line has nobody to read it."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command_apart(tmp_path, *arguments), stdout=writer, stderr=writer, timeout=30, check=False)
    os.close(writer)

    assert done.returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("how", ["talk", "whisper", "--help"])
def test_a_full_disk_under_stdout_is_told_and_is_no_traceback(tmp_path: Path, how: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command_apart(tmp_path, "ends", how), stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("error: stdout cannot be written: No space left on device\n")
    assert done.stderr.splitlines()[-1] == "nccl-bench: exit 2: stdout cannot be written: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [[], ["--help"], ["explain", "busbw"]])
def test_a_closed_stdout_is_no_crash(args: list[str]) -> None:
    command = f"exec {sys.executable} -m nccl_bench {' '.join(args)} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


# ---- usage ----


@pytest.mark.parametrize(
    "argv, says",
    [
        (["ends", "well", "--bogus"], "no such option: --bogus"),
        (["ends", "well", "-d", "float31"], "float31"),
        (["ends", "well", "--warmup-iters", "many"], "--warmup-iters"),
        (["ends", "well", "-g"], "requires an argument"),
        (["ends"], "missing argument"),
        (["--bogus"], "no such option: --bogus"),
    ],
)
def test_a_wrong_option_ends_2_with_the_words_of_the_mistake(
    trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    assert run(argv, trial) == 2
    out, err = capsys.readouterr()

    assert out == ""
    assert err.startswith("error: ")
    assert says in err.splitlines()[0]
    assert "--help lists the options" in err
    assert err.splitlines()[-1].startswith("nccl-bench: exit 2: ")


def test_an_unknown_command_is_told_what_was_meant(trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["end"], trial) == 2
    assert "did you mean nccl-bench ends?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["all_reduce", "allreduce", "all-gather", "all_reduce_perf"])
def test_a_collective_as_command_is_told_how_to_measure_it(trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert run([word, "-b", "8"], trial) == 2
    err = capsys.readouterr().err

    assert "nccl-bench sweep all_" in err
    assert "-b 8" in err



@pytest.mark.parametrize("letter", list("tmzGaNpCJSMIKxDVyu"))
@pytest.mark.parametrize("form", ["-{} 2", "-{}2"])
def test_letters_of_nccl_tests_that_we_lack_are_answered(
    trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], letter: str, form: str
) -> None:
    assert run(["ends", "well", *form.format(letter).split()], trial) == 2
    err = capsys.readouterr().err

    assert err.startswith(f"error: -{letter}: ")
    assert "no such option" not in err.lower()
    assert err.splitlines()[-1].startswith(f"nccl-bench: exit 2: -{letter}: ")


def test_the_answer_to_threads_names_g(trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str]) -> None:
    run(["ends", "well", "-t", "2"], trial)
    assert "one process a GPU here, use -g 8" in capsys.readouterr().err


@pytest.mark.parametrize("long", ["nthreads", "agg_iters", "cudagraph", "run-cycles", "output_file", "average"])
def test_long_names_of_nccl_tests_that_we_lack_are_answered_too(trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], long: str) -> None:
    assert run(["ends", "well", f"--{long}=2"], trial) == 2
    assert "no such option" not in capsys.readouterr().err.lower()


def test_an_option_of_nobody_has_no_answer() -> None:
    assert answer("--bogus") is None


@pytest.mark.parametrize(
    "argv",
    [
        ["--warmup_iters", "7"],
        ["--warmup-iters", "7"],
        ["--warmup_iters=7"],
        ["--warmup_iters=7", "--ngpus", "1"],
        ["--warmup_iters=7", "--datatype", "float32"],
    ],
)
def test_underscores_and_nccl_tests_long_names_are_taken(trial: tuple[Command, ...], capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert run(["ends", "well", *argv], trial) == 0
    assert capsys.readouterr().out == "warmup 7 g 1 float32 []\n"


def test_values_and_what_follows_two_dashes_keep_their_underscores() -> None:
    argv = ["all_reduce", "--out_dir=a_b", "-O", "a_b", "--", "--a_b"]
    assert normalise(argv) == ["all_reduce", "--out-dir=a_b", "-O", "a_b", "--", "--a_b"]


# ---- the program itself ----


def test_version_names_nccl_bench_and_torch_without_importing_it() -> None:
    done = program("--version")

    assert done.returncode == 0
    assert done.stdout.startswith(f"nccl-bench {__version__}")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_main_help_lists_the_commands_by_question(option: str) -> None:
    done = program(option)

    assert done.returncode == 0
    assert "What does it mean?\n  explain" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_output_goes_through_a_terminal_that_has_no_greek() -> None:
    done = program("explain", "units", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert "GB/s is 1e9" in done.stdout


def test_a_shell_can_complete_commands() -> None:
    done = program(_NCCL_BENCH_COMPLETE="complete_bash", COMP_WORDS="nccl-bench exp", COMP_CWORD="1")

    assert "explain" in done.stdout.split()
    assert done.returncode == 0


def test_nothing_of_the_environment_makes_help_fail() -> None:
    done = program("--help", RANK="x", WORLD_SIZE="", SLURM_PROCID="-1", NO_COLOR="1", TERM="dumb")

    assert done.returncode == 0


def test_modules_of_other_commands_are_not_imported(tmp_path: Path) -> None:
    modules = run_apart(tmp_path, "ends", "modules").stdout.split()

    assert "nccl_bench_trial" in modules
    assert not [name for name in modules if name.startswith("nccl_bench.cli.") and name.rpartition(".")[2] in CONTRACT_COMMANDS]


def test_json_of_explain_is_one_document() -> None:
    done = program("explain", "busbw", "--json")

    assert json.loads(done.stdout)["word"] == "busbw"


def test_a_package_that_is_not_installed_is_no_bug(tmp_path: Path) -> None:
    program = "import sys; sys.modules['orjson'] = None; from nccl_bench.cli.main import run; sys.exit(run(['doctor']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)

    assert done.returncode == 3, done.stderr
    assert "'orjson' is not installed" in done.stderr
    assert f"{sys.executable} -m pip install" in done.stderr
    assert "bug" not in done.stderr
