"""What the stages of an acceptance measure: the sizes of all, and what the criteria judge beside them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_bench.collectives import COLLECTIVES, NCCL_TESTS_ALIGN
from nccl_bench.flows.accept_spec import AcceptSpec, More, collectives_of
from nccl_bench.measure.spec import Backend
from nccl_bench.units import format_size
from nccl_bench.verdict.criteria import Criteria, Range, Require

SIZES: dict[Backend, tuple[int, int]] = {"nccl": (8, 1 << 30), "gloo": (1024, 1 << 20)}
"""Small for latency, large for bandwidth: bandwidth is judged at 1 GiB (DESIGN.md section 2)."""
MOST_NBYTES = 8 << 30
"""The largest size that is measured of a range that goes beyond it, where sweep ends, too; of one that begins beyond it, its low end."""
SHARED = ("node", "rails", "scale", "cluster", "soak")
"""Stages whose bandwidth is held against what is expected."""
WHERE = ("node", "cluster", "soak")
"""Where a collective is measured that no stage measures by itself, and of which a share is asked for."""


def added(criteria: Criteria, stages: Sequence[str], load: str | None = None) -> More:
    """What these criteria judge and the stages would not measure: a size in each range, and collectives that are none of theirs."""
    judged = [stage for stage in SHARED if stage in stages and not (stage == "soak" and load)]
    found: list[tuple[str, str, int | None]] = []
    for asked in criteria.require:
        if asked.stage in stages:
            if asked.collective not in collectives_of(asked.stage):
                found.append((asked.stage, asked.collective, None))
            found += [(asked.stage, asked.collective, nbytes) for nbytes in _required_sizes(asked)]
    for name in criteria.shares:
        found += [(stage, name, None) for stage in _stages_of(name, judged, found) if name not in collectives_of(stage)]
    for one in criteria.ranges:
        for stage in _stages_of(one.collective, judged, found):
            found += [(stage, one.collective, nbytes) for nbytes in _ends(one)]
    return tuple(dict.fromkeys(found))


def _stages_of(name: str, judged: Sequence[str], found: Sequence[tuple[str, str, int | None]]) -> list[str]:
    """The stages that measure a collective; where none does, those that are to."""
    own = [stage for stage in judged if name in collectives_of(stage, tuple(found))]
    return own or [stage for stage in judged if stage in WHERE] or list(judged[:1])


def _ends(one: Range) -> tuple[int, ...]:
    """Both ends of a range: the low one shows what calls cost, the high one what the links carry."""
    return tuple(dict.fromkeys((one.low, max(one.low, min(one.high, MOST_NBYTES)))))


def _required_sizes(one: Require) -> tuple[int, ...]:
    """Both ends; of an average the sizes between too, each twice the one before as in nccl-tests' sweeps."""
    if one.sizes is None:
        return ()
    low, high = one.sizes[0], max(one.sizes[0], min(one.sizes[1], MOST_NBYTES))
    between = [low << k for k in range(1, 64) if low << k < high] if one.statistic == "average" else []
    return tuple(dict.fromkeys((low, *between, high)))


def each(stage: str, more: More, backend: Backend, n_ranks: int) -> tuple[tuple[str, int], ...]:
    """(collective, bytes) of a stage whose largest world has so many ranks; what ranks must share is at least a part for each."""
    return tuple((name, nbytes) for name in collectives_of(stage, more) for nbytes in _sizes(stage, name, more, backend, n_ranks))


def _sizes(stage: str, name: str, more: More, backend: Backend, n_ranks: int) -> list[int]:
    own = {nbytes for at, what, nbytes in more if (at, what) == (stage, name) and nbytes is not None}
    least = NCCL_TESTS_ALIGN * n_ranks if COLLECTIVES[name].split else 1
    return sorted({max(least, nbytes) for nbytes in (*SIZES[backend], *own)})


def n_cases(stage: str, more: More, backend: Backend, n_hosts: int) -> int:
    """Cases of a world: each size streaming, and the smallest and largest isolated, for lateness; sendrecv across hosts by its two shifts."""
    found = 0
    for name in collectives_of(stage, more):
        tables = 2 if name == "sendrecv" and n_hosts > 1 and stage not in ("node", "nic") else 1
        found += tables * (len(_sizes(stage, name, more, backend, 1)) + 2)
    return found


def more_nbytes(stage: str, more: More) -> int:
    """Bytes of the sizes that the criteria add, all together."""
    return sum(nbytes or 0 for at, _, nbytes in more if at == stage)


def lines(more: More) -> list[str]:
    """What the criteria add, in words, before the start: stages that add the same together."""
    found: dict[str, list[str]] = {}
    for stage in dict.fromkeys(at for at, _, _ in more):
        words = []
        for name in dict.fromkeys(name for at, name, _ in more if at == stage):
            sizes = sorted(nbytes for at, what, nbytes in more if (at, what) == (stage, name) and nbytes is not None)
            words.append(" ".join([name, *([", ".join(map(format_size, sizes))] if sizes else [])]))
        found.setdefault("; ".join(words), []).append(stage)
    return [f"measured for the criteria in {', '.join(stages)}: {words}" for words, stages in found.items()]


def not_measured(spec: AcceptSpec, criteria: Criteria) -> Iterator[str]:
    """What these criteria judge and a run that was begun without them does not measure."""
    gone = [one for one in added(criteria, spec.stages, spec.load) if one not in spec.more]
    for line in lines(tuple(gone)):
        yield f"{line.replace('measured', 'not measured', 1)}: the run was begun without them, so those rows stay open"
