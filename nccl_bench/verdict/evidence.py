"""What localise judges: exchanges between nodes, inside nodes, single devices, and marks (counters, doctor, hangs, wrong data). Columns, not rows.

A speed is larger when better: GB/s, or 1/µs of a time. NaN is an exchange that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Kind = Literal["node", "gpu", "nic", "rail", "link", "boundary", "rank"]

LARGE_BOTH, LARGE_ONE, SMALL_BOTH, SMALL_ONE = range(4)
"""Strata: like is compared with like. Large or small messages, both directions at once or one alone."""


def stratum(*, small: bool, both: bool) -> int:
    """The stratum of an exchange."""
    return (SMALL_BOTH if both else SMALL_ONE) if small else (LARGE_BOTH if both else LARGE_ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Exchanges between two nodes, one a row; one-way rows run from src to dst."""

    src: Ints
    dst: Ints
    rail: Ints
    """Local rank on both sides; 0 everywhere where nodes have one or only the whole node was measured."""
    speed: Floats
    stratum: Ints
    n_rails: int = 1
    mean: Floats | None = None
    """[row] the same speed by the mean of the exchange's batches, which a stall now and then spoils, where `speed` is by their median."""
    round: Ints | None = None
    """[row] when it was measured, where that is known: what disturbs several exchanges at once does so in one round."""

    @classmethod
    def of(
        cls, rows: Iterable[tuple[int, int, int, float, int]], n_rails: int = 1, means: Sequence[float] | None = None,
        rounds: Sequence[int] | None = None,
    ) -> Exchanges:  # fmt: skip
        """From (src, dst, rail, speed, stratum), the speeds by mean, and the rounds."""
        table = list(rows)
        columns = list(zip(*table, strict=True)) if table else [(), (), (), (), ()]
        src, dst, rail, stratum_of = (np.asarray(columns[at], dtype=np.int64) for at in (0, 1, 2, 4))
        return cls(src=src, dst=dst, rail=rail, speed=np.asarray(columns[3], dtype=np.float64), stratum=stratum_of, n_rails=n_rails,
                   mean=None if means is None else np.asarray(means, dtype=np.float64),
                   round=None if rounds is None else np.asarray(rounds, dtype=np.int64))  # fmt: skip

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Exchanges between two GPUs of one node, one a row."""

    node: Ints
    a: Ints
    b: Ints
    speed: Floats
    stratum: Ints

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, float, int]]) -> Inside:
        """From (node, GPU, GPU, speed, stratum)."""
        table = list(rows)
        columns = list(zip(*table, strict=True)) if table else [(), (), (), (), ()]
        node, a, b, stratum_of = (np.asarray(columns[at], dtype=np.int64) for at in (0, 1, 2, 4))
        return cls(node=node, a=a, b=b, speed=np.asarray(columns[3], dtype=np.float64), stratum=stratum_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """One kind of measurement of single devices or nodes: several repeats of each."""

    what: str
    """"bf16 GEMM", "all_reduce inside the node, 1 GiB"."""
    node: Ints
    gpu: Ints
    """-1: the whole node."""
    speed: Floats

    @classmethod
    def of(cls, what: str, rows: Iterable[tuple[int, int, float]]) -> Alone:
        """From (node, GPU or -1, speed)."""
        table = list(rows)
        return cls(
            what=what,
            node=np.asarray([row[0] for row in table], dtype=np.int64),
            gpu=np.asarray([row[1] for row in table], dtype=np.int64),
            speed=np.asarray([row[2] for row in table], dtype=np.float64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something seen directly, not inferred: a counter that moved, a check that failed, wrong data, a rank that hung or came late."""

    kind: Kind
    host: str
    gpu: int | None = None
    nic: str | None = None
    peer: str | None = None
    text: str
    blames: bool = True
    """Whether this alone makes a suspect; else it only adds to one that measurements name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Which nodes share a leaf switch, a rack, a block."""

    of: tuple[str | None, ...]
    """[node] name of its group; None where not known."""
    source: str
    """"--groups racks.csv", "Slurm's topology"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one run."""

    hosts: tuple[str, ...]
    """[node] name."""
    exchanges: Exchanges | None = None
    inside: Inside | None = None
    alone: tuple[Alone, ...] = ()
    marks: tuple[Mark, ...] = ()
    groups: Groups | None = None
    oversubscription: float | None = None
    """How much slower than inside a group exchanges between groups may be, 2.0 for 2:1; None where nobody said."""
    nic_of: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(host, local rank) -> NIC, where transport lines or port counters prove that its traffic went there."""
    serials: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(host, "gpu 3" or NIC name) -> serial number or GUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Something to send back, or to look at first."""

    kind: Kind
    host: str | None = None
    gpu: int | None = None
    nic: str | None = None
    peer: str | None = None
    """The other end of a link, the other side of a boundary."""
    serial: str | None = None
    score: float
    """How much is lost, 0-1; 1 where something is dead."""
    chance: float | None = None
    """How likely this is by luck alone, over everything that was looked at; None where it was seen directly."""
    evidence: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Every key of the contract."""
        names = ("kind", "host", "gpu", "nic", "peer", "serial", "score", "chance")
        return {**{name: getattr(self, name) for name in names}, "evidence": list(self.evidence)}

    def name(self) -> str:
        """In words: "NIC mlx5_3 of gpu-017", "node h3", "boundary r1 | r2"."""
        match self.kind:
            case "node":
                return f"node {self.host}"
            case "gpu":
                return f"GPU {self.gpu} of {self.host}"
            case "nic":
                return f"NIC {self.nic or '?'} of {self.host}"
            case "rail":
                return f"rail {self.nic if self.nic is not None else self.gpu}"
            case "rank":
                return f"local rank {self.gpu} of {self.host}" if self.host else f"local rank {self.gpu} on every node"
            case "link":
                return f"link {self.host} - {self.peer}"
            case _:
                return f"boundary {self.host} | {self.peer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What localise came to."""

    suspects: tuple[Suspect, ...] = ()
    """The likeliest and worst first."""
    undetermined: tuple[Suspect, ...] = ()
    """Something is slow, and this data cannot say what."""
    failed: tuple[str, ...] = ()
    """Pairs without a value, in words."""
    next_pairs: tuple[tuple[str, str], ...] = ()
    """Pairs that would decide."""
    notes: tuple[str, ...] = ()
    unseen_frac: float = 0.0
    """Losses of large messages below this drown in their scatter."""
    reference: Mapping[str, float] = field(default_factory=dict)
    """What most exchanges reach, by stratum, in the unit of `speed`."""

    def to_json(self) -> dict[str, object]:
        """For --json."""
        return {
            "suspects": [suspect.to_json() for suspect in self.suspects],
            "undetermined": [suspect.to_json() for suspect in self.undetermined],
            "failed": list(self.failed),
            "next_pairs": [list(pair) for pair in self.next_pairs],
            "notes": list(self.notes),
        }


def named(names: Sequence[str], most: int = 6) -> str:
    """Names in few words: "a, b, c and 4 more"."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
