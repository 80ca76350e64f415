"""Text from other hands: bounded, decoded, without colours and carriage returns, each line with its number and the label a launcher put before it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nccl_bench.errors import DataError

MAX_NBYTES = 256 << 20
"""A guard of ours: a log with NCCL_DEBUG=INFO of a thousand ranks is some 100 MiB."""
MAX_LINE = 1 << 16
"""A guard of ours: no line of a table is longer; what lies beyond is not looked at."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Escape sequences of terminals (ECMA-48 section 5.4: CSI, and OSC with its terminator)."""

_STAMP = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"  # ISO 8601: docker, kubectl, CI runners
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})[ \t]*"  # ctime: mpirun --timestamp-output
)
_LABEL = re.compile(
    r"[ \t]*(?:"
    r"\[(?:[\w.-]+@)?(?P<mpi>\d+,\d+)\](?:<std(?:out|err|diag)>)?[ ]?:[ ]?"  # Open MPI --tag-output and --output tag
    r"|(?P<srun>\d+):[ ]?"  # srun --label
    r"|\[(?P<bracket>(?:default|rank)?\d+|pod/[^\]\s]+)\]:?[ ]?(?=[#\d\s])"  # torchrun --tee, Intel MPI -prepend-rank, kubectl logs --prefix
    r"|(?P<host>[A-Za-z][\w.-]*):[ ]+(?=\#|\d+[ ]+\d+[ ]+[a-z])"  # pdsh, clush: only before what looks like a table
    r")"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, without the launcher's label."""

    number: int
    label: str
    """Which process wrote it, by the launcher's label ("1,0", "3", "h017"); "" where there is none."""
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A file as text."""

    path: Path
    text: str
    """Decoded; lines end in one newline each."""
    ends: bool
    """Whether the last line is ended by a newline: where not, its last word may be cut."""

    def lines(self, dull: Callable[[str], bool] = lambda _: False) -> Iterator[Line]:
        """The lines with their numbers from 1, but for those that are `dull`; what a lone carriage return overwrote is a line of the same number."""
        for number, raw in enumerate(self.text.split("\n"), start=1):
            if dull(raw):
                continue
            for part in raw.split("\r") if "\r" in raw else (raw,):
                label, rest = split_label(part[:MAX_LINE])
                yield Line(number, label, rest.rstrip())


def read_text(path: Path) -> Text:
    """A file as text. Raises DataError naming it where it cannot be read, is a directory or is larger than 256 MiB."""
    try:
        if not path.is_file():
            what = "is a directory" if path.is_dir() else "is no regular file" if path.exists() else "no such file"
            raise DataError(f"{path}: {what}", "name a log, or a run directory of nccl-bench")
        if (nbytes := path.stat().st_size) > MAX_NBYTES:
            hint = "keep the lines of the table: grep -v 'NCCL INFO' LOG > table.log"
            raise DataError(f"{path}: {nbytes >> 20} MiB, more than {MAX_NBYTES >> 20}", hint)
        data = path.read_bytes()
    except OSError as err:
        raise DataError(f"{path} cannot be read: {err.strerror or type(err).__name__}") from err
    return from_bytes(path, data)


def from_bytes(path: Path, data: bytes) -> Text:
    """Bytes as text: UTF-16 by its mark (what PowerShell writes), else UTF-8; what is no text becomes "\ufffd"."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = data.decode("utf-16" if wide else "utf-8-sig", "replace").replace("\0", "")
    text = re.sub(r"\r+\n", "\n", _ANSI.sub("", text) if "\x1b" in text else text)
    return Text(path, text, text.endswith("\n"))


def split_label(text: str) -> tuple[str, str]:
    """(label, the rest): "0: # size" of srun --label, "[1,0]<stdout>:# size" of mpirun, and time stamps before them."""
    rest, label = text, ""
    for _ in range(4):  # a time stamp, a pod's name and two launchers are the most that was seen
        if stamp := _STAMP.match(rest):
            rest = rest[stamp.end() :]
        elif found := _LABEL.match(rest):
            label = label or next(part for part in found.groups() if part is not None)
            rest = rest[found.end() :]
        else:
            break
    return label, rest
