"""A run directory: made exclusively, one point a line, each on disk before it is shown; and read again (CONTRACT.md section 3).

    run.json       the header, written whole and renamed into place, again whenever it changes
    points.jsonl   one point a line, appended and fsynced

Nothing is ever rewritten in points.jsonl: a crash can tear its last line and no other.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import orjson

from nccl_bench.errors import DataError, UsageError
from nccl_bench.records import Point, RunHeader
from nccl_bench.results.check import check
from nccl_bench.results.env import allowed_env, redact
from nccl_bench.results.files import dumps, reason, sync_directory, write_all
from nccl_bench.results.files import write_json as write_json

HEADER_FILE = "run.json"
POINTS_FILE = "points.jsonl"
VERDICT_FILE = "verdict.json"
RESULTS = "results"
CHOICE = ("algorithm", "protocol", "channels")
"""What NCCL chooses for a case."""
LATEST = "latest"
AT_ONCE = 4096
"""Points that are written in one go, a few MB of them."""


# ---- where a run goes ----


def default_path(
    root: Path, now: datetime, host: str, n_ranks: int, *, gloo: bool = False, job: str | None = None, name: str | None = None
) -> Path:
    """`root/<UTC time>-<host>-<n>r[-gloo][-<job>]`, the first such name that is free; `name` replaces it all.

    Raises UsageError where `name` is not one plain part of a path.
    """
    if name is not None:
        if name in ("", ".", "..", LATEST) or "/" in name or "\0" in name:
            raise UsageError(f"--name: {name!r} is not a name for a directory", "one word without slashes; -O names a whole path")
        return root / name
    parts = [utc_text(now).translate({ord(":"): None, ord("-"): None, ord("Z"): None}).replace("T", "-"), host.split(".")[0], f"{n_ranks}r"]
    parts += ["gloo"] if gloo else []
    parts += [job] if job else []
    stem = "-".join(part.replace("/", "_") for part in parts)
    path, attempt = root / stem, 1
    while _exists(path):
        attempt += 1
        path = root / f"{stem}-{attempt}"
    return path


def utc_text(now: datetime) -> str:
    """UTC in ISO 8601 to the second, "2026-12-01T10:15:02Z": what the records hold."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def find_run(text: str, root: Path | None = None, first: str = "sweep") -> Path:
    """The path a RUN argument means: "latest" is the newest run under results/, anything else itself.

    `first`: the command that makes such runs, for the error.
    Raises DataError where nothing is there. Whether it holds a run of ours is `is_run`'s question.
    """
    path = Path(text)
    if text == LATEST and not _exists(path):
        path = (Path(RESULTS) if root is None else root) / LATEST
        if not _exists(path):
            raise DataError(f"no run is the latest: {path} does not exist", f"run nccl-bench {first} here first, or name a run directory")
    if not _exists(path):
        kinds = "its points.jsonl, an nccl-tests log, or: latest" if first == "sweep" else f"as nccl-bench {first} writes it, or: latest"
        raise DataError(f"{path}: no such file or directory", f"a run is a directory with run.json, {kinds}")
    return path


def is_run(path: Path) -> bool:
    """Whether a path is a run directory of ours, or one of its two files."""
    return (_directory(path) / HEADER_FILE).is_file() and (path.is_dir() or path.name in (HEADER_FILE, POINTS_FILE))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _directory(path: Path) -> Path:
    return path if path.is_dir() else path.parent


# ---- writing ----


class RunWriter:
    """The one writer of a run. Every write is on disk when the call returns, or the run ends with an error that says what was kept."""

    def __init__(self, path: Path, header: RunHeader, points_fd: int, n_points: int = 0) -> None:
        self.path = path
        """The run directory."""
        self.header = header
        self.n_points = n_points
        """Points on disk."""
        self._fds: dict[str, int] = {POINTS_FILE: points_fd}
        self._broken = False

    def append(self, point: Point) -> None:
        """Keep a point: one line, flushed and fsynced. Raises UsageError where it cannot be written; earlier points stay whole."""
        self._append_lines(POINTS_FILE, [point.to_json()])
        self.n_points += 1

    def extend(self, points: Iterable[Point]) -> None:
        """Keep points that are all there already: flushed and fsynced once for many. Raises UsageError as `append` does."""
        left = iter(points)
        while some := list(itertools.islice(left, AT_ONCE)):
            self._append_lines(POINTS_FILE, [point.to_json() for point in some])
            self.n_points += len(some)

    def append_record(self, file: str, record: Mapping[str, Any]) -> None:
        """Keep one line of another JSON Lines file of the run (batches.jsonl), as `append` does."""
        self._append_lines(file, [record])

    def update_header(self, **changes: Any) -> RunHeader:
        """Rewrite run.json with these fields changed. Raises UsageError where it cannot be written."""
        self.header = replace(self.header, **changes)
        try:
            write_json(self.path / HEADER_FILE, _header_json(self.header))
        except OSError as err:
            self._fail(HEADER_FILE, err)
        return self.header

    def write_file(self, file: str, document: Mapping[str, Any]) -> Path:
        """Write another JSON file of the run whole (verdict.json). Raises UsageError where it cannot be written."""
        try:
            write_json(self.path / file, document)
        except OSError as err:
            self._fail(file, err)
        return self.path / file

    def finish(self, ended_at: datetime, exit_code: int, why: str | None = None, **changes: Any) -> str | None:
        """Write how the run ended and close it; calling it again changes nothing.

        A header that cannot be written raises UsageError after a good run; after a bad one the first error counts, and this is
        returned as a warning (None where the user knows already).
        """
        if not self._fds:
            return None
        known = self._broken
        try:
            self.update_header(ended_at=utc_text(ended_at), exit_code=exit_code, why=why, **changes)
        except UsageError as err:
            if exit_code == 0:
                raise
            return None if known else err.why
        finally:
            self.close()
        return None

    def close(self) -> None:
        """Close the files; everything is on disk already."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _append_lines(self, file: str, records: Sequence[Mapping[str, Any]]) -> None:
        lines = "".join(dumps(record) + "\n" for record in records).encode()
        end: int | None = None
        try:
            if file not in self._fds:
                self._fds[file] = os.open(self.path / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            end = os.fstat(self._fds[file]).st_size
            write_all(self._fds[file], lines)
            os.fsync(self._fds[file])
        except OSError as err:
            if end is not None:
                _cut(self._fds[file], end)
            self._fail(file, err)

    def _fail(self, file: str, err: OSError) -> NoReturn:
        self._broken = True
        kept = f"{self.n_points} point{'' if self.n_points == 1 else 's'} kept in {self.path}"
        raise UsageError(f"{self.path / file} cannot be written: {reason(err)}", kept, _advice(err)) from err


def create_run(path: Path, header: RunHeader, *, latest: bool = False) -> RunWriter:
    """Make the run directory and write its header, before anything is measured.

    `latest`: `path` is a default one, so point `latest` beside it here. Raises UsageError where the path holds a run or cannot be written.
    """
    made = not _exists(path)
    try:
        path.mkdir(parents=True, exist_ok=not latest)
        if held := next((file for file in (HEADER_FILE, VERDICT_FILE) if (path / file).exists()), None):
            raise UsageError(f"{path} holds a run already ({held})", "a run is never overwritten: name another directory with -O")
        # O_EXCL on the points: of two processes that chose one directory, one gets it.
        points_fd = os.open(path / POINTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except FileExistsError as err:
        what = "is no directory" if not path.is_dir() else "holds a run already"
        raise UsageError(f"{path} {what}", "a run is never overwritten: name another directory with -O, or another --name") from err
    except OSError as err:
        _remove(path, made)
        raise UsageError(f"{path} cannot be written: {reason(err)}", _advice(err)) from err
    writer = RunWriter(path, header, points_fd)
    try:
        writer.update_header()
        sync_directory(path)
    except UsageError as err:
        writer.close()
        (path / POINTS_FILE).unlink(missing_ok=True)
        _remove(path, made)
        raise UsageError(err.why, _advice(err.__cause__)) from err
    if latest:
        _point_latest(path)
    return writer


def resume_run(path: Path) -> RunWriter:
    """The writer of a run that was cut off, after its whole lines. Raises what `read_run` raises, UsageError where it cannot be written."""
    header, points, _ = read_run(path)
    directory = _directory(path)
    try:
        fd = os.open(directory / POINTS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        _mend_tail(fd)
    except OSError as err:
        raise UsageError(f"{directory / POINTS_FILE} cannot be written: {reason(err)}", _advice(err)) from err
    return RunWriter(directory, header, fd, n_points=len(points))


def _header_json(header: RunHeader) -> Mapping[str, Any]:
    """The header as it may be kept: whoever filled it, no variable outside the allow-list and no secret reaches the disk."""
    record = header.to_json()
    kept = {key: redact(record[key]) for key in ("argv", "spec", "nccl_conf")}
    return {**record, **kept, "env": allowed_env({key: str(value) for key, value in record["env"].items()})}


def _cut(fd: int, nbytes: int) -> None:
    """Take a half-written line back, where the file system lets us; a reader would pass over it anyway."""
    try:
        os.ftruncate(fd, nbytes)
    except OSError:
        return


def _mend_tail(fd: int) -> None:
    """End a file at its last whole line: cut a torn one, end a whole one that lacks its newline."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    if data and not data.endswith(b"\n"):
        start = data.rfind(b"\n") + 1
        if _loads(data[start:]) is None:
            os.ftruncate(fd, start)
        else:
            write_all(fd, b"\n")
        os.fsync(fd)


def _point_latest(path: Path) -> None:
    """Turn `latest` to a run in one step. Where links cannot be made, or a directory has that name, it stays as it is."""
    temporary = path.with_name(f".{LATEST}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.name, target_is_directory=True)
        temporary.replace(path.with_name(LATEST))
    except OSError:
        temporary.unlink(missing_ok=True)


def _remove(path: Path, made: bool) -> None:
    if made and path.is_dir() and not any(path.iterdir()):
        path.rmdir()


def _advice(err: BaseException | None) -> str:
    if isinstance(err, OSError) and err.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there (df -h, quota), or write elsewhere with -O"
    return "name a directory that you may write with -O"


# ---- reading ----


def read_run(path: Path) -> tuple[RunHeader, list[Point], list[str]]:
    """A run's header, its points in the order they were measured, and warnings.

    `path` is the directory or one of its two files. A torn last line is a warning; any other bad line raises DataError with path:line.
    """
    directory = _directory(path)
    header = read_header(directory / HEADER_FILE)
    points_path, warnings = directory / POINTS_FILE, list[str]()
    if not points_path.exists():
        return header, [], [f"{points_path} is missing: no points"]
    try:
        found = probed(header)
        points = [_told(point, found) for point in _points(points_path, warnings)]
    except OSError as err:
        raise DataError(f"{points_path} cannot be read: {reason(err)}") from err
    return header, points, warnings


def probed(header: RunHeader) -> Mapping[tuple[object, object], Mapping[str, Any]]:
    """{(collective, nbytes): {algorithm, protocol, channels}} that a probe found after the points were written."""
    return {(row.get("collective"), row.get("nbytes")): row for row in header.algorithms if isinstance(row, dict)}


def _told(point: Point, found: Mapping[tuple[object, object], Mapping[str, Any]]) -> Point:
    row = found.get((point.collective, point.nbytes)) if point.algorithm is None and point.kind == "collective" else None
    if row is None:
        return point
    return replace(point, algorithm=row.get("algorithm"), protocol=row.get("protocol"), channels=row.get("channels"))


def read_header(path: Path) -> RunHeader:
    """The header of a run.json. Raises DataError naming the file."""
    try:
        record = _loads(path.read_bytes())
    except FileNotFoundError as err:
        raise DataError(f"{path}: no such file", "a run directory has a run.json beside its points.jsonl: it says what machine this was") from err
    except OSError as err:
        raise DataError(f"{path} cannot be read: {reason(err)}") from err
    if not isinstance(record, dict):
        raise DataError(f"{path}:1: not a header of nccl-bench: no JSON object")
    try:
        header = RunHeader.from_json(record)
        check(header)
    except DataError as err:
        raise DataError(f"{path}:1: {err.why}", *err.hints) from err
    return header


def _points(path: Path, warnings: list[str]) -> Iterator[Point]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record = _loads(line)
            if record is None and not line.endswith(b"\n"):
                warnings.append(f"{path}:{number}: the last line is torn and was left out: the run was cut off while writing it")
                return
            yield _point(record, f"{path}:{number}")


def _point(record: object, place: str) -> Point:
    if not isinstance(record, dict):
        raise DataError(f"{place}: not a point of nccl-bench: {'no JSON' if record is None else 'no JSON object'}")
    try:
        point = Point.from_json(record)
        check(point)
    except DataError as err:
        raise DataError(f"{place}: {err.why}", *err.hints) from err
    return point


def _loads(text: bytes) -> object:
    """The JSON value, None where it is none (a null alone is no record either)."""
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value
