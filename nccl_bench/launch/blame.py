"""Who is to blame when a run broke: from what each rank was doing, pure; the text is the one people read.

A fact is what a supervisor says of one rank (JSON, `facts/<rank>` on the board):
    {"rank", "host", "pid", "device": index or null, "state": "alive" | "stopped" | "dead" | "done" | "lost",
     "for_s": seconds in that state, "exit": exit code or -signal, "error": {"kind", "exit_code", "why", "hints"} or null,
     "case": index or -1, "n_cases", "phase", "batch", "text": the call, "idle_s": seconds since the last step,
     "stack": [innermost Python call first], "lines": [last lines it wrote]}
"lost" is a rank whose supervisor is gone; a rank of the world without a fact did not answer.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nccl_bench.errors import BUG, LaunchError, WorldError
from nccl_bench.launch.board import rank_ranges
from nccl_bench.launch.channel import PHASES
from nccl_bench.records import HangReport

Json = dict[str, Any]
Situation = Literal["fabric", "program", "rank", "died", "start", "unknown"]

MAX_NAMED = 8
"""Culprits that are listed one by one; more are counted."""
MAX_WAITING = 64
"""records.HangReport.waiting."""
STEPPING_S = 1.0
"""A rank whose last step is no longer ago than this is at work, not hung: batches are far shorter (a case has 2 s)."""
ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)})
"""A rank that ends by one of these was told to, it did not crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is said and how everybody ends."""

    exit_code: int
    why: str
    lines: tuple[str, ...]
    hang: HangReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """The facts of one broken run, and what is asked of them again and again."""

    facts: Sequence[Json]
    silent: Sequence[Json]
    reason: Mapping[str, Any]
    timeout_s: float
    partial: bool

    @property
    def last_case(self) -> int:
        return max((int(fact.get("case", -1)) for fact in self.facts), default=-1)

    @property
    def n_cases(self) -> int:
        return max((int(fact.get("n_cases", 0)) for fact in self.facts), default=0)


def blame(
    facts: Mapping[int, Json], *, world_size: int, reason: Mapping[str, Any], timeout_s: float, hosts: Mapping[int, str], partial: bool = False
) -> Verdict:
    """The verdict: died > own error > stopped or silent > different calls > one behind > all in one call.

    `facts` by rank; `reason` is the first abort ({"kind": "died" | "lost" | "own" | "bug" | "comm" | "hang" | "signal",
    ...}); `hosts` names those who gave no fact; `partial`: only this process's own ranks could be asked.
    """
    known = [fact for _, fact in sorted(facts.items())]
    silent = [] if partial else [{"rank": rank, "host": hosts.get(rank, "?"), "state": "silent"} for rank in range(world_size) if rank not in facts]
    scene = _Scene(facts=known, silent=silent, reason=reason, timeout_s=timeout_s, partial=partial)
    dead = [fact for fact in known if fact["state"] in ("dead", "lost") and not fact.get("error") and not _was_told_to_end(fact)]
    failed = [fact for fact in known if (fact.get("error") or {}).get("kind") in ("own", "bug")]
    if dead:
        return _died(scene, dead)
    if failed:
        return _failed(scene, failed)
    told = next((fact for fact in known if fact["state"] == "dead" and not fact.get("error")), None)
    if reason.get("kind") == "signal" or told is not None:
        return _interrupted(int(reason["signal"]) if reason.get("kind") == "signal" else -int(told["exit"] if told else -signal.SIGTERM))
    comm = next((fact for fact in known if (fact.get("error") or {}).get("kind") == "comm"), None)
    if comm is not None and not any(fact["state"] == "stopped" for fact in known) and reason.get("kind") == "comm":
        return _collective_failed(scene, comm)
    return _hung(scene)


def collapse(facts: Sequence[Mapping[str, Any]]) -> str:
    """Ranks in a few words: "rank 3", "ranks 0-7, 9"; a long list as "1016 ranks"."""
    text = rank_ranges(int(fact["rank"]) for fact in facts)
    return f"{len(facts)} ranks" if len(text) > 40 else f"rank{'s' if len(facts) > 1 else ''} {text}"


def _died(scene: _Scene, dead: Sequence[Json]) -> Verdict:
    first = max(dead, key=lambda fact: float(fact.get("for_s", 0)))
    case = scene.last_case if first["state"] == "lost" else max(int(first.get("case", -1)), -1)
    exit_code = LaunchError.exit_code if case < 0 else WorldError.exit_code
    ends = Counter(_end(fact) for fact in dead)
    why = f"{collapse(dead)} died ({ends.most_common(1)[0][0]})"
    head = f"{collapse(dead)} died before the first case" if case < 0 else f"{collapse(dead)} died in {_case(case, scene.n_cases)}"
    lines = [head, *(_row("died", _who(fact), _how_it_died(fact)) for fact in dead[:MAX_NAMED])]
    if len(dead) > MAX_NAMED:
        lines.append(_row("", f"and {len(dead) - MAX_NAMED} more", ""))
    if first.get("exit") == -signal.SIGKILL:
        lines.append(_row("", "killed from outside: the kernel's out-of-memory killer (dmesg), a memory limit of the job, or somebody", ""))
    lines += [f"  | {line}" for line in first.get("lines", ())][-MAX_NAMED:]
    return _verdict(scene, exit_code, why, lines, "died", dead)


def _failed(scene: _Scene, failed: Sequence[Json]) -> Verdict:
    """A rank's own fault. A bug of ours counts before what may have followed from it."""
    bugs = [fact for fact in failed if fact["error"]["kind"] == "bug"]
    first = max(bugs or failed, key=lambda fact: float(fact.get("for_s", 0)))
    error = first["error"]
    alike = [fact for fact in failed if fact["error"]["why"] == error["why"]]
    exit_code = int(error.get("exit_code") or (BUG if bugs else WorldError.exit_code))
    hosts = {fact["host"] for fact in alike}
    where = f"rank {first['rank']} ({first['host']})" if len(alike) == 1 else f"x{len(alike)} ranks on {len(hosts)} hosts, first {first['host']}"
    if len(alike) > 1 and len(hosts) == 1:
        where = f"x{len(alike)} ranks on {first['host']}"
    lines = [f"{error['why']} ({where})", *error.get("hints", ()), *(f"  | {line}" for line in error.get("lines", ()))]
    others = len(failed) - len(alike)
    if others:
        lines.append(f"{others} more ranks failed in other ways")
    why = f"{collapse(alike)}: {error['why']}"
    return _verdict(scene, exit_code, why, lines, "unknown" if int(first.get("case", -1)) >= 0 else "start", alike)


def _interrupted(number: int) -> Verdict:
    name = signal.Signals(number).name
    return Verdict(exit_code=128 + number, why=f"interrupted by {name}", lines=(f"interrupted by {name}; what was measured is kept",))


def _collective_failed(scene: _Scene, fact: Json) -> Verdict:
    """A collective raised, and nobody is dead or behind."""
    failed = [other for other in scene.facts if (other.get("error") or {}).get("kind") == "comm"]
    head = f"{fact.get('text') or 'a collective'} failed on {collapse(failed)}{_of_case(fact, scene)}: {fact['error']['why']}"
    lines = [head, *fact["error"].get("hints", ()), _row("", "no rank died or stopped: the connection between them is the suspect", "")]
    return _verdict(scene, WorldError.exit_code, f"rank {fact['rank']}: {fact['error']['why']}", lines, "fabric", failed)


def _hung(scene: _Scene) -> Verdict:
    """Nobody is dead: who is stopped, silent, in another call, or behind?"""
    stopped = [fact for fact in scene.facts if fact["state"] == "stopped"]
    absent = [*stopped, *scene.silent]
    moving = [fact for fact in scene.facts if fact["state"] == "alive"]
    culprits, situation = absent, "rank" if absent else "fabric"
    odd = _different_calls(moving) if not absent else []
    if not absent and not odd and moving and all(float(fact.get("idle_s", 0)) < STEPPING_S for fact in moving):
        return _slow(scene, moving)
    behind = _behind(moving) if not absent and not odd else []
    if odd:
        culprits, situation = odd, "program"
    elif behind:
        culprits, situation = behind, "rank"
    if scene.last_case < 0 and not odd:
        situation = "start"
    if not scene.facts or (scene.partial and situation == "fabric"):
        situation = "unknown"
    ahead = [fact for fact in moving if fact not in culprits]
    text = _call(ahead or moving)
    head = f"{text} did not finish in {scene.timeout_s:.0f} s{_of_case_index(scene.last_case, scene.n_cases)}"
    lines = [head, *_rows_of_culprits(culprits, scene, odd), _waiting_row(ahead, situation)]
    if not ahead:
        lines.pop()
    why = f"{text} did not finish on any rank"
    if odd:
        why = f"{collapse(odd)} in another call than the others"
    elif culprits:
        why = f"{collapse(culprits)} did not arrive"
    return _verdict(scene, WorldError.exit_code, why, lines, situation, culprits)


def _slow(scene: _Scene, facts: Sequence[Json]) -> Verdict:
    """Every rank made a step just now: too slow for its limit, but not hung."""
    text = _call(facts)
    head = f"{text} was not done after {scene.timeout_s:.0f} s{_of_case_index(scene.last_case, scene.n_cases)}"
    lines = [head, _row("", "all ranks were still making steps: slow, not hung; give it more time with -T", "")]
    return _verdict(scene, WorldError.exit_code, f"{text} took longer than {scene.timeout_s:.0f} s", lines, "unknown", [])


def _different_calls(facts: Sequence[Json]) -> list[Json]:
    """Ranks in another call than the most, at the same number of case: the program's fault."""
    last = max((int(fact["case"]) for fact in facts), default=-1)
    there = [fact for fact in facts if int(fact["case"]) == last]
    calls = Counter(str(fact["text"]) for fact in there)
    if len(calls) < 2:
        return []
    usual = calls.most_common(1)[0][0]
    return [fact for fact in there if fact["text"] != usual]


def _behind(facts: Sequence[Json]) -> list[Json]:
    """Ranks that are not as far as the most; none where the most are behind (one may run ahead of a one-way operation)."""
    places = {int(fact["rank"]): (int(fact["case"]), PHASES.index(fact["phase"]), int(fact["batch"])) for fact in facts}
    farthest = max(places.values(), default=None)
    behind = [fact for fact in facts if places[int(fact["rank"])] != farthest]
    return behind if 2 * len(behind) < len(facts) or (len(facts) == 2 and len(behind) == 1) else []


def _rows_of_culprits(culprits: Sequence[Json], scene: _Scene, odd: Sequence[Json]) -> list[str]:
    label = "other call" if odd else "not arrived"
    rows = [_row(label if index == 0 else "", _who(fact), _what(fact, scene)) for index, fact in enumerate(culprits[:MAX_NAMED])]
    if len(culprits) > MAX_NAMED:
        rows.append(_row("", f"and {len(culprits) - MAX_NAMED} more: {collapse(culprits[MAX_NAMED:])}", ""))
    for fact in culprits[:2]:
        rows += [_row("", f"  at {call}", "") for call in fact.get("stack", ())[:4]]
    return rows


def _waiting_row(ahead: Sequence[Json], situation: str) -> str:
    n = f"{len(ahead)} rank{'s' if len(ahead) > 1 else ''}"
    if situation == "fabric":
        verdict = "none is behind: the fabric (links, NICs, switch) or NCCL itself is the suspect"
    elif situation == "program":
        verdict = "the program is the suspect, not the fabric"
    elif situation == "rank":
        verdict = "the fabric is not the suspect"
    else:
        return _row("waiting", f"{n} before the first case", "")
    return _row("waiting", f"{n} in the same call", verdict)


def _verdict(scene: _Scene, exit_code: int, why: str, lines: Sequence[str], situation: str, culprits: Sequence[Json]) -> Verdict:
    chosen: Situation = situation  # type: ignore[assignment]
    names = {int(fact["rank"]) for fact in culprits}
    case = scene.last_case
    hang = HangReport(
        case=_call([fact for fact in scene.facts if int(fact.get("case", -1)) == case]) if scene.facts else None,
        case_index=case if case >= 0 else None,
        n_cases=scene.n_cases or None,
        timeout_s=scene.timeout_s,
        situation=chosen,
        culprits=tuple(_kept(fact, scene) for fact in culprits[:MAX_WAITING]),
        waiting=tuple(_kept(fact, scene) for fact in scene.facts if int(fact["rank"]) not in names)[:MAX_WAITING],
        lines=tuple(lines),
    )
    return Verdict(exit_code=exit_code, why=why, lines=tuple(lines), hang=hang)


def _kept(fact: Json, scene: _Scene) -> Json:
    """A rank in a HangReport."""
    return {
        "rank": int(fact["rank"]), "host": fact.get("host"), "device": fact.get("device"), "pid": fact.get("pid"), "state": fact["state"],
        "case": fact.get("case"), "what": _what(fact, scene), "stack": list(fact.get("stack", ())),
    }  # fmt: skip


def _row(label: str, who: str, what: str) -> str:
    return f"{label:<12}  {who}{': ' if what else ''}{what}".rstrip()


def _who(fact: Mapping[str, Any]) -> str:
    """"rank 11 (gpu-002, GPU 3, pid 4123)"."""
    if fact["state"] == "lost":
        return f"rank {fact['rank']} (its supervisor, {fact.get('who', '?')})"
    parts = [str(fact.get("host", "?"))]
    if fact.get("device") is not None:
        parts.append(f"GPU {fact['device']}")
    if fact.get("pid"):
        parts.append(f"pid {fact['pid']}")
    return f"rank {fact['rank']} ({', '.join(parts)})"


def _what(fact: Mapping[str, Any], scene: _Scene) -> str:
    """What a rank was last doing, in words."""
    if fact["state"] == "silent":
        return "does not answer: its host or its supervisor is down, stopped or cut off"
    if fact["state"] == "lost":
        return "its supervisor is gone"
    case = int(fact.get("case", -1))
    where = f"in {_case(case, scene.n_cases)}" if case >= 0 else "before the first case"
    if fact["state"] == "stopped":
        return f"stopped by a signal {float(fact.get('for_s', 0)):.0f} s ago, {where}"
    if fact["state"] == "dead":
        return _how_it_died(fact)
    if fact["state"] == "done":
        return "had finished"
    error = f", then {fact['error']['why']}" if fact.get("error") else ""
    call = f", {fact['text']}" if fact.get("text") else ""
    return f"{where}{call}, {fact.get('phase')} (batch {fact.get('batch', 0)}), {float(fact.get('idle_s', 0)):.0f} s without a step{error}"


def _how_it_died(fact: Mapping[str, Any]) -> str:
    if fact["state"] == "lost":
        return "the connection to it ended without a word"
    call = f" in {fact['text']}" if fact.get("text") else ""
    code = int(fact.get("exit") or 0)
    name = f" ({signal.Signals(-code).name})" if -code in set(signal.Signals) else ""
    return f"{_end(fact)}{name}{call}"


def _end(fact: Mapping[str, Any]) -> str:
    if fact["state"] == "lost":
        return "its supervisor is gone"
    code = int(fact.get("exit") or 0)
    return f"exit {code}" if code >= 0 else f"signal {-code}"


def _was_told_to_end(fact: Mapping[str, Any]) -> bool:
    return fact["state"] == "dead" and -int(fact.get("exit") or 0) in ENDING_SIGNALS


def _call(facts: Sequence[Mapping[str, Any]]) -> str:
    texts = Counter(str(fact["text"]) for fact in facts if fact.get("text"))
    return texts.most_common(1)[0][0] if texts else "the start"


def _case(index: int, n_cases: int) -> str:
    return f"case {index + 1}" + (f" of {n_cases}" if n_cases else "")


def _of_case_index(index: int, n_cases: int) -> str:
    return f" ({_case(index, n_cases)})" if index >= 0 else ""


def _of_case(fact: Mapping[str, Any], scene: _Scene) -> str:
    return _of_case_index(int(fact.get("case", -1)), scene.n_cases)
