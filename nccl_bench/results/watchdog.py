"""torch's watchdog text as a hang report: all ranks in one call, ranks in different calls, or one behind.

Wordings of torch 1.10 to 2.13 (ProcessGroupNCCL.cpp checkTimeout, watchdogHandler, heartbeatMonitor; TraceUtils.h
retrieveDesyncReport; ProcessGroupWrapper.cpp; monitoredBarrier of ProcessGroupGloo.cpp).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from nccl_bench.errors import DataError
from nccl_bench.records import NOBODY_BEHIND, PROGRAM_ERROR, HangReport, Json
from nccl_bench.results.imported import Imported
from nccl_bench.results.text import Line, Text

MAX_LISTED = 64
"""As HangReport.waiting: at most so many ranks are listed."""

IN_FLIGHT = 100
"""Calls that ranks of one group can be apart when a watchdog gives up: our guess at a queue's depth, for lines that name no group."""

_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: Work\w*\((?:SeqNum=(?P<seq>\d+))?(?:, )?(?:OpType=(?P<op>\w+))?"
    r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?(?:[^)]*?Timeout\(ms\)=(?P<timeout>\d+))?.*?ran for (?P<ran>\d+) milliseconds"
)
_STATUS = re.compile(
    r"(?:detected by watchdog at work(?: sequence id)?: (?P<at>\d+)|Timeout at NCCL work: (?P<at2>\d+)|Received a dump signal)"
    r".*?[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_GLOBAL_RANK = re.compile(r"\[rank(\d{1,9})\]")
_RANK = re.compile(r"\bRank (\d{1,9})\]")
_GROUP = re.compile(r"\[PG (?:ID )?(\d{1,9})")
_PRINT = re.compile(
    r"Rank (\d{1,9}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(\d+), )?OpType=(\w+)(?:, TensorShape=\[([\d, ]*)\])?"
)
_LAGGING = re.compile(r"ranks \[([\d, ]+)\] are the lagging ranks that caused this timeout")
_NOT_FINISHED = re.compile(r"\[([\d, ]+)\] joined but didn't finish collective #(\d+)")
_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_WORDS = ("Watchdog caught", "detected by watchdog", "at NCCL work", "dump signal")
_VERDICTS = ("CollectiveFingerPrint(", "are the lagging ranks", "joined but didn't finish", "failed to pass monitoredBarrier")
_SAME_SIZE = ("ALLREDUCE", "ALLREDUCE_COALESCED", "REDUCE", "BROADCAST", "_ALLGATHER_BASE", "ALLGATHER", "_REDUCE_SCATTER_BASE", "REDUCE_SCATTER")
"""Collectives whose every rank passes the same number of elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What is known of one rank of one process group."""

    rank: int
    line: int
    group: str | None = None
    seq: int | None = None
    """The call it waited in."""
    op: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    ran_ms: int | None = None
    enqueued: int | None = None
    completed: int | None = None

    def call(self) -> str:
        """The call it waited in, in words: "ALLREDUCE #1580 (466119168 elements)"."""
        words = [self.op or "a collective"]
        words += [f"#{self.seq}"] if self.seq is not None else []
        words += [f"({self.numel_in} elements)"] if self.numel_in is not None else []
        return " ".join(words)


def is_watchdog(text: Text) -> bool:
    """Whether a file tells of a collective that a watchdog gave up on."""
    return any(word in text.text for word in ("Watchdog caught collective", "detected by watchdog at work", *_VERDICTS))


def import_watchdog(text: Text, name: str) -> Imported:
    """The hang reports of a file: one for each process group in trouble. Raises DataError where there is none."""
    reports: list[HangReport] = []
    ranks: list[_Rank] = []
    first = 0
    for line in text.lines():
        if not any(word in line.text for word in (*_WORDS, *_VERDICTS)):
            continue
        found = [_of_line(line), *_said(line, name)]
        first = first or (line.number if any(item is not None for item in found) else 0)
        ranks += [item for item in found if isinstance(item, _Rank)]
        reports += [item for item in found if isinstance(item, HangReport)]
    groups = _groups(ranks)
    reports += [_report(group, name) for group in groups]
    if not reports:
        raise DataError(f"{name}: no watchdog line in it that can be read", "keep the lines with 'Watchdog caught collective operation timeout'")
    return Imported(
        path=name,
        kind="watchdog",
        hangs=tuple(reports),
        n_ranks=None,
        failure=f"{name}:{first}: {reports[0].lines[0]}: {reports[0].lines[1]}",
        hints=tuple(line.strip() for line in reports[0].lines[2:6]),
    )


# ---- reading ----


def _of_line(line: Line) -> _Rank | None:
    timeout, status = _TIMEOUT.search(line.text), _STATUS.search(line.text)
    said, own, group = _GLOBAL_RANK.search(line.text), _RANK.search(line.text), _GROUP.search(line.text)
    rank = said or own
    if rank is None or not (timeout or status):
        return None
    known = _Rank(rank=int(rank[1]), line=line.number, group=group[1] if group else None)
    if timeout:
        seq, elements_in, elements_out, limit, ran = (_int(timeout[key]) for key in ("seq", "numel_in", "numel_out", "timeout", "ran"))
        return replace(known, seq=seq, op=timeout["op"], numel_in=elements_in, numel_out=elements_out, timeout_ms=limit, ran_ms=ran)
    if status is None:
        return None
    return replace(known, seq=_int(status["at"] or status["at2"]), enqueued=_int(status["enqueued"]), completed=_int(status["completed"]))


def _int(word: str | None) -> int | None:
    return int(word[:18]) if word else None


def _groups(ranks: Iterable[_Rank]) -> list[list[_Rank]]:
    """One entry a rank, by process group. A line that names no group is of the group where its rank, or another, waited in that call."""
    ranks = list(ranks)
    by_call = {(item.rank, item.seq): item.group for item in ranks if item.group is not None and item.seq is not None}
    merged: dict[tuple[str | None, int], _Rank] = {}
    for item in ranks:
        group = item.group
        if group is None and item.seq is not None:
            group = by_call.get((item.rank, item.seq)) or _nearest(item.seq, by_call)
        known = merged.get((group, item.rank))
        merged[group, item.rank] = replace(item, group=group) if known is None else _merge(known, item)
    groups: dict[str | None, list[_Rank]] = {}
    for (group, _), item in sorted(merged.items(), key=lambda pair: pair[0][1]):
        groups.setdefault(group, []).append(item)
    # A group that only answered another's signal is not in trouble itself.
    stuck = [found for found in groups.values() if any(item.seq is not None for item in found)]
    return stuck or list(groups.values())


def _nearest(seq: int, by_call: dict[tuple[int, int], str]) -> str | None:
    """The group whose ranks wait near this call; None where all are far: another group's count."""
    near = [(abs(other - seq), group) for (_, other), group in by_call.items() if abs(other - seq) <= IN_FLIGHT]
    return min(near, key=lambda pair: pair[0])[1] if near else None


def _merge(known: _Rank, item: _Rank) -> _Rank:
    """Both lines of one rank; of two calls the first it gave up on counts."""
    if known.seq is not None and item.seq is not None and item.seq != known.seq:
        return known if known.seq < item.seq else replace(item, group=known.group)
    fields = ("seq", "op", "numel_in", "numel_out", "timeout_ms", "ran_ms", "enqueued", "completed")
    return replace(known, **{name: getattr(item, name) for name in fields if getattr(known, name) is None})


def _said(line: Line, name: str) -> list[HangReport]:
    """What torch itself concluded: mismatched collectives, lagging ranks, a barrier that some did not pass."""
    prints = [(int(match[1]), match[2], match[3], match[4]) for match in _PRINT.finditer(line.text)]
    where = f"{name}:{line.number}"
    if len(prints) > 1:
        number = f" #{prints[0][1]}" if prints[0][1] else ""
        calls = {rank: f"{op} [{shape}]" if shape is not None else op for rank, _, op, shape in prints}
        words = ", ".join(f"rank {rank} {call}" for rank, call in calls.items())
        head = f"ranks disagree on collective{number}: {words}"
        return [_hang("program", head, _PROGRAM, [], [_who(rank, call, where) for rank, call in calls.items()], [])]
    found = _LAGGING.search(line.text) or _BARRIER.search(line.text)
    if found is None and (found := _NOT_FINISHED.search(line.text)) is None:
        return []
    ranks = [int(word[:9]) for word in re.findall(r"\d+", found[1])][:MAX_LISTED]
    head = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} did not arrive, says torch"
    return [_hang("rank", head, line.text.strip()[:200], [], [_who(rank, None, where) for rank in ranks], [])]


# ---- judging ----

_PROGRAM = f"{PROGRAM_ERROR}: the ranks do not call the same collectives in the same order"
_FABRIC = f"{NOBODY_BEHIND}: suspect the network or a GPU, or a rank that printed nothing"


def _report(ranks: list[_Rank], name: str) -> HangReport:
    """What the ranks of one group say together."""
    last = max((item.seq for item in ranks if item.seq is not None), default=None)
    at_last = [item for item in ranks if item.seq is not None and item.seq == last]
    extra = _about(ranks, name)
    calls = {(item.op, item.numel_in if item.op in _SAME_SIZE else None) for item in at_last if item.op is not None}
    if len(calls) > 1:
        told = sorted((item for item in at_last if item.op is not None), key=lambda item: item.line)
        head = f"ranks disagree on collective #{last}: {', '.join(f'rank {item.rank} {item.op}' for item in told)}"
        extra.insert(0, "; ".join(f"rank {item.rank}: {item.call()}" for item in told))
        return _hang("program", head, _PROGRAM, extra, [_of(item, name) for item in told], [], _case(told), _timeout(ranks))
    behind = [item for item in ranks if last is not None and _is_behind(item, last)]
    if behind:
        words = "; ".join(_where(item) for item in behind[:8])
        head = f"{_ranks(behind)} behind: the others wait in {_case(at_last)}"
        rest = [item for item in ranks if item not in behind]
        culprits, waiting = [_of(item, name) for item in behind], [_of(item, name) for item in rest]
        verdict = f"{words}: look at what that rank did instead of joining"
        return _hang("rank", head, verdict, extra, culprits, waiting, _case(at_last), _timeout(ranks))
    seen = ", ".join(str(item.rank) for item in ranks[:MAX_LISTED])
    head = f"{_case(at_last or ranks)}: all ranks that report (seen: {seen}) are at the same call"
    return _hang("fabric", head, _FABRIC, extra, [], [_of(item, name) for item in ranks], _case(at_last or ranks), _timeout(ranks))


def _is_behind(item: _Rank, last: int) -> bool:
    """Whether a rank has not called the collective that the last of them wait in, or waits in an earlier one."""
    if item.seq is not None:
        return item.seq < last
    return item.enqueued is not None and item.enqueued < last


def _where(item: _Rank) -> str:
    if item.seq is not None:
        return f"rank {item.rank} waits in {item.call()}"
    return f"rank {item.rank} has called no more than #{item.enqueued}"


def _ranks(items: list[_Rank]) -> str:
    names = ", ".join(str(item.rank) for item in items[:MAX_LISTED])
    return f"rank {names} is" if len(items) == 1 else f"ranks {names} are"


def _case(ranks: list[_Rank]) -> str:
    told = Counter(item.call() for item in ranks if item.op is not None) or Counter(item.call() for item in ranks)
    return told.most_common(1)[0][0]


def _timeout(ranks: list[_Rank]) -> float | None:
    found = next((item.timeout_ms for item in ranks if item.timeout_ms is not None), None)
    return None if found is None else found / 1000


def _about(ranks: list[_Rank], name: str) -> list[str]:
    """The other facts: time-out, how far the ranks were, the group's size, where it stands."""
    lines = []
    waited = [item.ran_ms for item in ranks if item.ran_ms is not None]
    if waited:
        timeout = _timeout(ranks)
        lines.append(f"waited {max(waited) / 1000:.0f} s" + (f", the time-out is {timeout:.0f} s" if timeout is not None else ""))
    sizes = {size for item in ranks if (size := _group_size(item)) is not None}
    if len(sizes) == 1:
        size = sizes.pop()
        lines.append(f"a group of {size} ranks, by the elements in and out; {max(0, size - len(ranks))} of them printed nothing here")
    done = sorted({item.completed for item in ranks if item.completed is not None})
    if done:
        lines.append(f"last completed: {', '.join(f'#{number}' for number in done[:8])}")
    if any(item.numel_in is not None for item in ranks):
        lines.append("bytes are not known: the text does not say the type of the elements")
    lines.append(f"read from {name}, line {', '.join(str(item.line) for item in ranks[:8])}")
    return lines


def _group_size(item: _Rank) -> int | None:
    """Ranks of the group: an all-gather gives out its ranks' parts, a reduce-scatter takes them."""
    if not item.numel_in or not item.numel_out or item.op is None:
        return None
    if "GATHER" in item.op and item.numel_out % item.numel_in == 0:
        return item.numel_out // item.numel_in
    if "REDUCE_SCATTER" in item.op and item.numel_in % item.numel_out == 0:
        return item.numel_in // item.numel_out
    return None


def _of(item: _Rank, name: str) -> Json:
    return _who(item.rank, item.call() if item.seq is not None else None, f"{name}:{item.line}")


def _who(rank: int, call: str | None, what: str) -> Json:
    return {"rank": rank, "host": None, "device": None, "pid": None, "state": "waits" if call else "not there", "case": call, "what": what}


def _hang(
    situation: Literal["fabric", "program", "rank"],
    head: str,
    verdict: str,
    extra: list[str],
    culprits: list[Json],
    waiting: list[Json],
    case: str | None = None,
    timeout_s: float | None = None,
) -> HangReport:
    return HangReport(
        case=case,
        case_index=None,
        n_cases=None,
        timeout_s=timeout_s,
        situation=situation,
        culprits=tuple(culprits[:MAX_LISTED]),
        waiting=tuple(waiting[:MAX_LISTED]),
        lines=(head, verdict, *extra),
    )
