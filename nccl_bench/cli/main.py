"""The entry point: argv to a command, and every way it can end to its exit code and last line (CONTRACT.md section 1).

A command's module is imported when the command runs or its own --help is asked for, never before.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from nccl_bench.cli.commands import Command, available, by_question
from nccl_bench.cli.completion import completion_errors, refused_shell
from nccl_bench.cli.foreign import answer, normalise
from nccl_bench.cli.outcome import MEANING, Ended
from nccl_bench.cli.ranks import part_of
from nccl_bench.cli.streams import prepare_streams
from nccl_bench.collectives import find
from nccl_bench.errors import BUG, TOO_MANY_FILES, InterruptedRun, LaunchError, NcclBenchError, UsageError, too_many_files
from nccl_bench.report.terminal import last_line, write_error

PROGRAM = "nccl-bench"
READER_LEFT = 128 + signal.SIGPIPE
"""As a shell reports a program that SIGPIPE ended: what was to be printed did not arrive."""


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_HELP = {"help_option_names": ["-h", "--help"]}


class _ReaderLeft(NcclBenchError):
    """Whoever read our stdout has closed it."""

    exit_code = READER_LEFT


@contextlib.contextmanager
def _ends_of_ours() -> Iterator[None]:
    """What ends a command from outside becomes an error of ours, before click makes its own of it."""
    try:
        yield
    except BrokenPipeError as err:
        raise _ReaderLeft("the reader of the output left") from err
    except SystemExit as err:
        # rich ends the process itself where it meets a broken pipe (Console.on_broken_pipe).
        if isinstance(err.__context__, BrokenPipeError):
            raise _ReaderLeft("the reader of the output left") from err
        raise
    except KeyboardInterrupt as err:
        raise InterruptedRun(signal.SIGINT, "interrupted") from err


class Commands(TyperGroup):
    """The group of commands, each loaded when it is needed."""

    rows: tuple[Command, ...] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of the table."""
        return [row.name for row in self.rows]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, its module imported; None for an unknown name."""
        row = next((row for row in self.rows if row.name == cmd_name), None)
        return None if row is None else _load(row)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As click does, but for an unknown command: an error that says what was meant."""
        if args[0] not in self.list_commands(ctx) and not ctx.resilient_parsing:
            raise _unknown_command(args, self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The commands by question."""
        formatter.write(main_help(self.rows))

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the options before the command (and print --help)."""
        with _ends_of_ours():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _ends_of_ours():
            return super().invoke(ctx)


class _Single(TyperCommand):
    """One command. Its flags take no value, and its help shows none."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, --help too."""
        found = super().get_params(ctx)
        for param in found:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return found


app = typer.Typer(
    name=PROGRAM,
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings=_HELP,
)


@app.callback()
def _main(context: typer.Context, version: Annotated[bool, typer.Option("--version")] = False) -> None:
    from nccl_bench.cli import home

    if version:
        sys.stdout.write(home.versions() + "\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        home.home(sys.stdout, context.command.rows if isinstance(context.command, Commands) else ())


def main_help(rows: Sequence[Command]) -> str:
    """The text of `nccl-bench --help`."""
    lines = [f"usage: {PROGRAM} COMMAND [OPTIONS]", "", "How fast the collectives of a GPU cluster are, how fast they could be, and who is to blame."]
    for question, group in by_question(rows).items():
        lines += ["", question]
        lines += [f"  {row.name:<9} {row.help}" for row in group]
    lines += [
        "",
        f"{PROGRAM} COMMAND --help   its options",
        f"{PROGRAM}                  what it sees here, and where to start",
        f"{PROGRAM} --version        versions of nccl-bench, torch and NCCL",
        f"{PROGRAM} --install-completion, --show-completion   for your shell",
    ]
    return "\n".join(lines) + "\n"


def run(argv: Sequence[str] | None = None, rows: tuple[Command, ...] | None = None) -> int:
    """Run one command line (default: the process's) and return its exit code; the last line of stderr says why it is not 0.

    `rows`: the commands there are; by default those of the table whose module exists.
    """
    prepare_streams()
    argv, rows = sys.argv[1:] if argv is None else argv, available() if rows is None else rows
    part = part_of(argv, rows, os.environ)
    ended = Ended(exit_code=0, why="") if part == "silent" else _guarded(argv, rows, sys.stderr, together=part == "together")
    ended = _flushed(ended, sys.stderr)
    _last(ended)
    return ended.exit_code


def _guarded(argv: Sequence[str], rows: tuple[Command, ...], stderr: TextIO, *, together: bool) -> Ended:
    try:
        return _ended(_invoke(normalise(argv), rows))
    except _ReaderLeft as err:
        return Ended(exit_code=err.exit_code, why=err.why)
    except NcclBenchError as err:
        return _told(err, stderr, together=together)
    except typer.Abort:
        return Ended(exit_code=128 + signal.SIGINT, why="interrupted")
    except SystemExit as err:
        return _ended(err.code)
    except OSError as err:
        return _refused(err, stderr)
    except Exception as err:
        if isinstance(err, ModuleNotFoundError) and not str(err.name).startswith("nccl_bench"):
            return _not_installed(err, stderr, together=together)
        return _click_error(err, stderr, together=together) if hasattr(err, "format_message") else _bug(err, stderr)


def _invoke(argv: list[str], rows: tuple[Command, ...]) -> object:
    group: Any = typer.main.get_command(app)
    group.rows = rows
    try:
        with completion_errors(argv):
            result = group.main(args=argv, prog_name=PROGRAM, standalone_mode=False)
            return refused_shell(argv, result)
    finally:
        # Where both go to one file, what was printed comes before the error. What cannot be written now is told at the end.
        with contextlib.suppress(OSError):
            sys.stdout.flush()


def _ended(result: object) -> Ended:
    """The outcome of what a command returned: nothing, an exit code, or an Ended."""
    match result:
        case Ended():
            return result
        case bool() | None:
            return Ended(exit_code=0, why="done")
        case int():
            return Ended(exit_code=result, why=MEANING.get(result, "failed"))
    return Ended(exit_code=BUG, why=str(result))


def _load(row: Command) -> Any:
    """The click command of a row. The module's own imports run now."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    function = getattr(import_module(row.module), row.function)
    single.command(name=row.name, cls=_Single, context_settings=_HELP)(function)
    return typer.main.get_command(single)


def _unknown_command(args: list[str], names: list[str]) -> UsageError:
    word = args[0]
    try:
        collective = find(word).name
    except UsageError:
        close = difflib.get_close_matches(word, names, n=1)
        hint = f"did you mean {PROGRAM} {close[0]}?" if close else f"there are: {' '.join(names)}"
        return UsageError(f"no command is called {word!r}", hint)
    return UsageError(f"{word!r} is a collective, not a command", f"measure it: {PROGRAM} sweep {' '.join([collective, *args[1:]])}")


def _told(err: NcclBenchError, stderr: TextIO, *, together: bool) -> Ended:
    """An error in its words; of several ranks that were launched, one says it for all."""
    from nccl_bench.launch.together import end_together

    shared = end_together(err, os.environ) if together and not isinstance(err, InterruptedRun) else None
    if shared is None:
        _write(err, stderr)
        return Ended(exit_code=err.exit_code, why=err.why)
    if shared.lines:
        _write(NcclBenchError(*shared.lines), stderr)
    return Ended(exit_code=shared.exit_code, why=shared.why if shared.lines else "")


_VALIDATOR = (
    (r"Input should be a valid integer.*", "a whole number is asked for"),
    (r"Input should be a valid number.*", "a number is asked for"),
    (r"Input should be greater than or equal to ", "at least "),
    (r"Input should be less than or equal to ", "at most "),
    (r"Value error, ", ""),
)
"""Words of the library that reads options, and ours."""


def plainly(message: str) -> str:
    """A message about an option without the words of the library that read it."""
    for theirs, ours in _VALIDATOR:
        message = re.sub(theirs, ours, message)
    return message


def _click_error(err: Any, stderr: TextIO, *, together: bool) -> Ended:
    """A usage error that click found, in our words."""
    option = getattr(err, "option_name", None)
    context = getattr(err, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    if option is not None and (instead := answer(option)):
        why, hints = f"{option}: {instead}", [f"{PROGRAM} has no {option}: it belongs to nccl-tests and rccl-tests"]
    else:
        message = plainly(err.format_message().rstrip("."))
        close = difflib.get_close_matches(option, getattr(err, "possibilities", None) or (), n=1) if option is not None else []
        if close:
            message = f"no such option: {option}"
        why, hints = message[:1].lower() + message[1:], [*(f"did you mean {word}?" for word in close), f"{path} --help lists the options"]
    return _told(UsageError(why, *hints), stderr, together=together)


def _refused(err: OSError, stderr: TextIO) -> Ended:
    """What the system refused, where no room had its own words for it."""
    if err.errno in _NO_SPACE:
        return _no_space(err, stderr)
    if err.errno not in TOO_MANY_FILES:
        return _bug(err, stderr)
    error = too_many_files(err)
    _write(error, stderr)
    return Ended(exit_code=error.exit_code, why=error.why)


def _no_space(err: OSError, stderr: TextIO) -> Ended:
    """A full disk where no room had its own words for it; most often it is under stdout."""
    error = UsageError(f"{err.filename or 'stdout'} cannot be written: {err.strerror}", "free some space there, or write elsewhere")
    _write(error, stderr)
    return Ended(exit_code=error.exit_code, why=error.why)


def _not_installed(err: ModuleNotFoundError, stderr: TextIO, *, together: bool) -> Ended:
    """A package that this Python lacks: an installation without its dependencies, no bug."""
    package = str(err.name).partition(".")[0]
    why = f"the Python package that gives '{package}' is not installed for {sys.executable}"
    hints = "nccl-bench was installed without what it needs", f"{sys.executable} -m pip install nccl-bench   (--no-deps leaves this out)"
    return _told(LaunchError(why, *hints), stderr, together=together)


def _bug(err: Exception, stderr: TextIO) -> Ended:
    """A bug of ours: the traceback goes to a file whose path is said, so that it can be sent."""
    text = "".join(traceback.format_exception(err))
    why = f"internal error: {type(err).__name__}: {err}".splitlines()[0]
    try:
        fd, name = tempfile.mkstemp(prefix="nccl-bench-traceback-", suffix=".txt")
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{PROGRAM} {' '.join(sys.argv[1:])}\n{text}")
        where = f"the traceback is in {name}: please send it with what you typed"
    except OSError:
        stderr.write(text)
        where = "the traceback is above: please send it with what you typed"
    error = NcclBenchError(why, "this is a bug in nccl-bench", where)
    _write(error, stderr)
    return Ended(exit_code=BUG, why=why)


def _last(ended: Ended) -> None:
    """The last line, where somebody still reads stderr; who left does not change how the command ended."""
    try:
        if ended.exit_code and ended.why:
            sys.stderr.write(last_line(ended.exit_code, ended.why) + "\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _write(err: NcclBenchError, stderr: TextIO) -> None:
    """An error in its words, where somebody reads them."""
    with contextlib.suppress(OSError):
        write_error(err, stderr)


def _flushed(ended: Ended, stderr: TextIO) -> Ended:
    """The end, after stdout took everything; a reader who left or a full disk is no traceback at exit."""
    try:
        sys.stdout.flush()
        return ended
    except BrokenPipeError:
        unwritten = Ended(exit_code=READER_LEFT, why="the reader of the output left")
    except OSError as err:
        unwritten = _no_space(err, stderr)
    # What is left in the buffer would be tried, and fail, once more when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ended if ended.exit_code else unwritten
