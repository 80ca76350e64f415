"""What a RUN argument means: a run directory, its points.jsonl, a log that import reads (LOG#2: its second run), or `latest`. No pandas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from nccl_bench.errors import DataError, WorldError
from nccl_bench.records import Json, Point, RunHeader
from nccl_bench.results.importers import header_of, import_file
from nccl_bench.results.store import CHOICE, HEADER_FILE, POINTS_FILE, find_run, is_run, probed, read_header, read_run

_NUMBERED = re.compile(r"(.+)#(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, whose points are read when they are asked for."""

    label: str
    """Short and, among the runs of one command, its own."""
    path: Path
    """The run directory or file."""
    header: RunHeader
    warnings: tuple[str, ...] = ()
    points: tuple[Point, ...] | None = None
    """Points in memory (a log's); None: they are lines of `points_path`."""
    points_path: Path | None = None

    @property
    def imported(self) -> bool:
        """Whether somebody else's program measured it."""
        return "imported" in self.header.spec


def open_run(text: str, root: Path | None = None) -> Run:
    """The run that an argument names. `root` is where `latest` is looked for (default: results/).

    Raises DataError where there is none, WorldError for the log of a run that failed before any row.
    """
    plain, only = numbered(text)
    path = find_run(str(plain), root)
    if is_run(path):
        directory = path if path.is_dir() else path.parent
        points = directory / POINTS_FILE
        missing = () if points.exists() else (f"{points} is missing: no points",)
        resolved = directory.resolve() if directory.is_symlink() else directory
        header = read_header(directory / HEADER_FILE)
        return Run(label=resolved.name or str(resolved), path=directory, header=header, warnings=missing, points_path=None if missing else points)
    if path.is_dir():
        raise DataError(f"{path}: a directory without {HEADER_FILE}: no run of nccl-bench", "name a run directory, a points.jsonl or a log")
    if path.suffix == ".jsonl":
        warning = f"{path}: no {HEADER_FILE} beside it: what machine this was is not known"
        header = RunHeader(tool="unknown", argv=(), started_at=None, launcher=None, backend=None, n_ranks=None, n_nodes=None, warnings=(warning,))
        return Run(label=path.stem, path=path, header=header, warnings=(warning,), points_path=path)
    return _log(path, only)


def numbered(text: str) -> tuple[Path, int | None]:
    """(path, number) of "LOG#2", where no file has that name itself."""
    match = _NUMBERED.fullmatch(text)
    if match and not Path(text).exists():
        return Path(match[1]), int(match[2])
    return Path(text), None


def _log(path: Path, only: int | None) -> Run:
    file = import_file(path, only=only)
    if file.failure is not None:
        raise WorldError(file.failure, *file.hints)
    label = path.stem if only is None else f"{path.stem}#{only}"
    return Run(label=label, path=path, header=header_of([file]), warnings=file.warnings, points=file.points)


def open_runs(texts: Sequence[str], root: Path | None = None) -> list[Run]:
    """The runs of several arguments, each comma-separated argument several runs; labels that would be equal get a number."""
    words = [word for text in texts for word in _words(text)]
    runs: list[Run] = []
    for word in words:
        run = open_run(word, root)
        taken = {known.label for known in runs}
        label, number = run.label, 2
        while label in taken:
            label, number = f"{run.label} ({number})", number + 1
        runs.append(replace(run, label=label))
    return runs


def _words(text: str) -> list[str]:
    """The parts of "a,b"; a path that has a comma in its name is itself."""
    if Path(text).exists():
        return [text]
    words = [word for word in text.split(",") if word]
    if not words:
        raise DataError("an empty name is no run", "name a run directory, its points.jsonl, a log, or: latest")
    return words


def records(run: Run, warnings: list[str] | None = None) -> Iterator[tuple[int, Json]]:
    """(line, point as a JSON object) of a run, one at a time. A torn last line is a warning.

    Raises DataError with path:line for any other line that is no JSON object.
    """
    if run.points is not None:
        yield from ((number, point.to_json()) for number, point in enumerate(run.points, start=1))
    elif run.points_path is not None:
        found = probed(run.header)
        for number, record in json_lines(run.points_path, [] if warnings is None else warnings, "not a point of nccl-bench"):
            row = found.get((record.get("collective"), record.get("nbytes"))) if found and record.get("algorithm") is None else None
            yield number, record if row is None else {**record, **{name: row.get(name) for name in CHOICE}}


def json_lines(path: Path, warnings: list[str], unlike: str) -> Iterator[tuple[int, Json]]:
    """(number, object) of each line of a run's file; a torn last line is added to `warnings`.

    Raises DataError with path:line, saying what another line is `unlike`.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.isspace():
                    continue
                try:
                    record = orjson.loads(line)
                except orjson.JSONDecodeError as err:
                    if not line.endswith(b"\n"):
                        warnings.append(f"{path}:{number}: the last line is torn and was left out: the run was cut off while writing it")
                        return
                    raise DataError(f"{path}:{number}: {unlike}: {str(err).splitlines()[0]}") from err
                if not isinstance(record, dict):
                    raise DataError(f"{path}:{number}: {unlike}: no JSON object")
                yield number, record
    except OSError as err:
        raise DataError(f"{path} cannot be read: {err.strerror or type(err).__name__}") from err


def points_of(run: Run) -> tuple[Point, ...]:
    """All points of a run as records, for those who need few of them; a frame is faster for many. Raises DataError with path:line."""
    if run.points is not None:
        return run.points
    if (run.path / HEADER_FILE).is_file():
        return tuple(read_run(run.path)[1])
    points = []
    for number, record in records(run):
        try:
            points.append(Point.from_json(record))
        except DataError as err:
            raise DataError(f"{run.points_path}:{number}: {err.why}") from err
    return tuple(points)
