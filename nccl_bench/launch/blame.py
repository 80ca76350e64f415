"""Who is to blame when a run broke: from what each rank was doing, pure; the text is the one people read.

A fact is what a supervisor says of one rank (JSON, `facts/<rank>` on the board):
    {"rank", "host", "pid", "device": index or null, "state": "alive" | "stopped" | "dead" | "done" | "lost",
     "for_s": seconds in that state, "exit": exit code or -signal, "error": {"kind", "exit_code", "why", "hints"} or null,
     "case": index or -1, "reached": highest case so far, "n_cases", "phase", "batch", "text": the call,
     "idle_s": seconds since the last step, "stack": [innermost Python call first], "lines": [last lines it wrote],
     "still_s": seconds for which its supervisor itself stood still just before, "socket": the interface of its sockets, in words}
"lost" is a rank whose supervisor is gone; a rank of the world without a fact did not answer: "silent".
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nccl_bench.errors import BUG, LaunchError, WorldError
from nccl_bench.launch.board import rank_ranges
from nccl_bench.launch.channel import PHASES
from nccl_bench.records import NOBODY_BEHIND, PROGRAM_ERROR, HangReport

Json = dict[str, Any]
Situation = Literal["fabric", "program", "rank", "died", "start", "unknown"]

MAX_NAMED = 8
"""Culprits that are listed one by one, and lines of their output; more are counted."""
MAX_HINTS = 3
"""What ranks that noticed a hang themselves have to say, each thing once."""
MAX_WAITING = 64
"""records.HangReport.waiting."""
STEPPING_S = 1.0
"""A rank whose last step is no longer ago than this is at work, not hung: batches are far shorter (a case has 2 s)."""
ENDING_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)})
"""A rank that ends by one of these was told to, it did not crash."""

_BLANK: Final[Json] = {
    "host": "?", "pid": None, "device": None, "state": "alive", "for_s": 0.0, "exit": None, "error": None, "case": -1, "reached": -1, "n_cases": 0,
    "phase": "start", "batch": 0, "text": "", "idle_s": 0.0, "still_s": 0.0, "stack": [], "lines": [], "socket": "",
}  # fmt: skip


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

    facts: tuple[Json, ...]
    silent: tuple[Json, ...]
    reason: Mapping[str, Any]
    timeout_s: float
    partial: bool
    board: str | None
    reached: int
    """The highest case that any rank began, -1 for none."""
    n_cases: int


def blame(
    facts: Mapping[int, Json], *, world_size: int, reason: Mapping[str, Any], timeout_s: float, hosts: Mapping[int, str], partial: bool = False,
    board: str | None = None,
) -> Verdict:
    """The verdict: died > own error > stopped or silent > different calls > behind > all in one call.

    `facts` by rank; `reason` is the first abort ({"kind": "died" | "lost" | "own" | "bug" | "comm" | "hang" | "signal",
    ...}); `hosts` names those who gave no fact; `partial`: only this process's own ranks could be asked,
    since `board` ("rank 0 (h1:4123)"), which holds the board, does not answer.
    """
    known = tuple({**_BLANK, **fact} for _, fact in sorted(facts.items()))
    partial = partial or bool(facts.get(0, {}).get("still_s"))  # who asks was away for so long that the others have left
    absent = () if partial or len(facts) == world_size else (rank for rank in range(world_size) if rank not in facts)
    scene = _Scene(
        facts=known, silent=tuple({**_BLANK, "rank": rank, "host": hosts.get(rank, "?"), "state": "silent"} for rank in absent), reason=reason,
        timeout_s=timeout_s, partial=partial, board=board, reached=max((int(fact["reached"]) for fact in known), default=-1),
        n_cases=max((int(fact["n_cases"]) for fact in known), default=0),
    )  # fmt: skip
    ended = [fact for fact in known if fact["state"] in ("dead", "lost") and not fact["error"]]
    dead = [fact for fact in ended if -int(fact["exit"] or 0) not in ENDING_SIGNALS]
    failed = [fact for fact in known if fact["error"] and fact["error"].get("kind") in ("own", "bug")]
    if dead:
        return _died(scene, dead)
    if failed:
        return _failed(scene, failed)
    if reason.get("kind") == "signal" or ended:
        return _interrupted(int(reason["signal"]) if reason.get("kind") == "signal" else -int(ended[0]["exit"]))
    return _hung(scene)


def collapse(facts: Sequence[Mapping[str, Any]]) -> str:
    """Ranks in a few words: "rank 3", "ranks 0-7, 9"; a long list as "1016 ranks"."""
    text = rank_ranges(int(fact["rank"]) for fact in facts)
    return f"{len(facts)} ranks" if len(text) > 40 else f"rank{'s' if len(facts) > 1 else ''} {text}"


# ---- a rank died, failed, or was told to end


def _died(scene: _Scene, dead: Sequence[Json]) -> Verdict:
    first = max(dead, key=lambda fact: float(fact["for_s"]))
    exit_code = LaunchError.exit_code if scene.reached < 0 else WorldError.exit_code
    ends = Counter(_end(fact) for fact in dead)
    rows = [_row("died" if index == 0 else "", fact, scene) for index, fact in enumerate(dead[:MAX_NAMED])]
    lines = [f"{collapse(dead)} died {_when(first, scene)}", *rows]
    if len(dead) > MAX_NAMED:
        lines.append(_line("", f"and {len(dead) - MAX_NAMED} more: {collapse(dead[MAX_NAMED:])}"))
    if first["exit"] == -signal.SIGKILL:
        lines.append(_line("", "killed from outside: the kernel's out-of-memory killer (dmesg), the job's memory limit, or somebody"))
    lines += [_line("", f"  at {call}") for call in first["stack"][:4]]
    lines += [f"  | {line}" for line in first["lines"][-MAX_NAMED:]]
    return _verdict(scene, exit_code, f"{collapse(dead)} died ({ends.most_common(1)[0][0]})", lines, "died", dead)


def _when(fact: Json, scene: _Scene) -> str:
    """In which case a rank died; of one that could not say it, in which one the others were."""
    if scene.reached < 0:
        return "before the first case"
    if fact["phase"] == "done":
        return "after the last case"
    return f"in {_case(int(fact['case']) if int(fact['case']) >= 0 else scene.reached, scene)}"


def _failed(scene: _Scene, failed: Sequence[Json]) -> Verdict:
    """A rank's own fault. A bug of ours counts before what may have followed from it."""
    bugs = [fact for fact in failed if fact["error"]["kind"] == "bug"]
    first = max(bugs or failed, key=lambda fact: float(fact["for_s"]))
    error = first["error"]
    alike = [fact for fact in failed if fact["error"]["why"] == error["why"]]
    exit_code = int(error.get("exit_code") or (BUG if bugs else WorldError.exit_code))
    lines = [f"{error['why']} ({_whom(alike)})", *error.get("hints", ()), *(f"  | {line}" for line in error.get("lines", ()))]
    if len(failed) > len(alike):
        lines.append(f"{len(failed) - len(alike)} more ranks failed in other ways")
    situation: Situation = "unknown" if scene.reached >= 0 else "start"
    return _verdict(scene, exit_code, f"{collapse(alike)}: {error['why']}", lines, situation, alike)


def _interrupted(number: int) -> Verdict:
    name = signal.Signals(number).name
    return Verdict(exit_code=128 + number, why=f"interrupted by {name}", lines=(f"interrupted by {name}; what was measured is kept",))


# ---- nobody died


def _hung(scene: _Scene) -> Verdict:
    """Who is stopped, silent, in another call, or behind? Nobody: the fabric, or too little time."""
    there = [fact for fact in scene.facts if fact["state"] not in ("stopped", "lost")]
    raised = [fact for fact in there if fact["error"]]
    if raised and all(float(fact["idle_s"]) < 0.9 * scene.timeout_s for fact in raised):
        return _collective_failed(scene, raised)
    absent = [fact for fact in scene.facts if fact["state"] == "stopped"] + list(scene.silent)
    odd = [] if absent else _different_calls(there)
    if not absent and not odd and there and all(float(fact["idle_s"]) < STEPPING_S for fact in there):
        return _slow(scene, there)
    behind = [] if absent or odd else _not_met(there) if scene.reached < 0 else _behind(there)
    culprits = absent or odd or behind
    situation: Situation = "program" if odd else "rank" if culprits else "fabric"
    if scene.reached < 0 and not odd:
        situation = "start"
    elif scene.partial and situation == "fabric":
        situation = "unknown"
    names = {int(fact["rank"]) for fact in culprits}
    ahead = [fact for fact in there if int(fact["rank"]) not in names]
    text = _call(ahead or there or scene.facts)
    rows = _culprit_rows(scene, culprits, "other call" if odd else "not arrived")
    lines = [f"{text} did not finish in {scene.timeout_s:.0f} s{_of_case(scene)}", *rows]
    if ahead:
        lines.append(_line("waiting", f"{len(ahead)} rank{'s' if len(ahead) > 1 else ''} {_suspect(situation, absent, behind, ahead)}"))
    if scene.partial and scene.board:
        lines.append(_line("no answer", f"{scene.board}, which holds the board: its host, its link or the link of this host is the suspect"))
    if situation != "program":
        lines += _sockets(scene.facts, scene.silent)
    lines += [_line("", hint) for hint in dict.fromkeys(hint for fact in raised for hint in fact["error"].get("hints", ()))][:MAX_HINTS]
    why = f"no answer from {scene.board}" if scene.partial and scene.board else f"{text} did not finish on any rank"
    if culprits:
        why = f"{collapse(culprits)} {'in another call than the others' if odd else 'did not arrive'}"
    return _verdict(scene, WorldError.exit_code, why, lines, situation, culprits)


def _collective_failed(scene: _Scene, raised: Sequence[Json]) -> Verdict:
    """A collective raised at once, and nobody is dead."""
    error = raised[0]["error"]
    head = f"{_call(raised)} failed on {_whom(raised)}{_of_case(scene)}: {error['why']}"
    suspect = _line("", "no rank died or stopped: the connection between them is the suspect")
    lines = [head, *error.get("hints", ()), suspect, *_sockets(scene.facts, scene.silent)]
    return _verdict(scene, WorldError.exit_code, f"{collapse(raised)}: {error['why']}", lines, "fabric", raised)


def _slow(scene: _Scene, facts: Sequence[Json]) -> Verdict:
    """Every rank made a step just now: too slow for its limit, but not hung."""
    text = _call(facts)
    lines = [
        f"{text} was not done after {scene.timeout_s:.0f} s{_of_case(scene)}",
        _line("", "all ranks were still making steps: slow, not hung; give it more time with -T"),
    ]
    return _verdict(scene, WorldError.exit_code, f"{text} took longer than {scene.timeout_s:.0f} s", lines, "unknown", [])


def _different_calls(facts: Sequence[Json]) -> list[Json]:
    """Ranks in another call than the most, at the same number of case: the program's fault."""
    last = max((int(fact["case"]) for fact in facts), default=-1)
    there = [fact for fact in facts if int(fact["case"]) == last and fact["state"] != "done"]
    usual = Counter(str(fact["text"]) for fact in there).most_common(1)
    return [fact for fact in there if fact["text"] != usual[0][0]] if last >= 0 else []


def _not_met(facts: Sequence[Json]) -> list[Json]:
    """Before the first case: the ranks that are not as far as the farthest, which wait for them, be they many or few."""
    farthest = max((_place(fact) for fact in facts), default=None)
    return [fact for fact in facts if _place(fact) != farthest]


def _behind(facts: Sequence[Json]) -> list[Json]:
    """Ranks that are not as far as the most; none where the most are behind (one may run ahead of a one-way operation)."""
    farthest = max((_place(fact) for fact in facts), default=None)
    behind = [fact for fact in facts if _place(fact) != farthest]
    return behind if 2 * len(behind) < len(facts) or len(facts) == 2 else []


def _place(fact: Json) -> tuple[bool, int, int, int]:
    """How far a rank is; the last phase follows the last case."""
    return (fact["state"] == "done" or fact["phase"] == "done", int(fact["case"]), PHASES.index(fact["phase"]), int(fact["batch"]))


def _suspect(situation: Situation, absent: Sequence[Json], behind: Sequence[Json], ahead: Sequence[Json]) -> str:
    """What the others' waiting tells."""
    if situation == "start":
        return "before the first case"
    if situation == "unknown":
        return "here; the other hosts could not be asked"
    if situation == "fabric":
        return f"in the same call, {NOBODY_BEHIND}: the fabric (links, NICs, switch) or NCCL itself is the suspect"
    if situation == "program":
        return f"in the same call: {PROGRAM_ERROR}"
    if any(fact["state"] == "silent" for fact in absent):
        return "in the same call: the host that does not answer, or its link, is the suspect"
    one_batch = not absent and all(_place(fact)[:3] == _place(ahead[0])[:3] for fact in behind)
    if one_batch:
        return "in the same call, a batch further: what is behind or its links are the suspect"
    return "in the same call: the fabric is not the suspect"


# ---- words


def _sockets(facts: Sequence[Json], silent: Sequence[Json]) -> list[str]:
    """The interfaces in use, where more than one host takes part: "sockets       eth0 on h1, h2; eno1 on h3"."""
    hosts: dict[str, list[str]] = {}
    for fact in facts:
        if fact["socket"] and fact["host"] not in hosts.setdefault(fact["socket"], []):
            hosts[fact["socket"]].append(fact["host"])
    if len({fact["host"] for fact in (*facts, *silent)}) < 2 or not hosts:
        return []
    parts = [f"{name} on {', '.join(on) if len(on) <= 4 else f'{len(on)} hosts, first {on[0]}'}" for name, on in list(hosts.items())[:4]]
    return [_line("sockets", "; ".join(parts))]


def _culprit_rows(scene: _Scene, culprits: Sequence[Json], label: str) -> list[str]:
    rows: list[str] = []
    for index, fact in enumerate(culprits[:MAX_NAMED]):
        rows.append(_row("" if index else label, fact, scene))
        if index < 2:
            rows += [_line("", f"  at {call}") for call in fact["stack"][:4]]
    if len(culprits) > MAX_NAMED:
        rows.append(_line("", f"and {len(culprits) - MAX_NAMED} more: {collapse(culprits[MAX_NAMED:])}"))
    return rows


def _verdict(scene: _Scene, exit_code: int, why: str, lines: Sequence[str], situation: Situation, culprits: Sequence[Json]) -> Verdict:
    names = {int(fact["rank"]) for fact in culprits}
    hang = HangReport(
        case=_call([fact for fact in scene.facts if int(fact["case"]) == scene.reached]),
        case_index=scene.reached if scene.reached >= 0 else None,
        n_cases=scene.n_cases or None,
        timeout_s=scene.timeout_s,
        situation=situation,
        culprits=tuple(_kept(fact, scene) for fact in culprits[:MAX_WAITING]),
        waiting=tuple(_kept(fact, scene) for fact in [fact for fact in scene.facts if int(fact["rank"]) not in names][:MAX_WAITING]),
        lines=tuple(lines),
    )
    return Verdict(exit_code=exit_code, why=why, lines=tuple(lines), hang=hang)


def _kept(fact: Json, scene: _Scene) -> Json:
    """A rank in a HangReport."""
    copied = {name: fact[name] for name in ("rank", "host", "device", "pid", "state", "case", "stack")}
    return {**copied, "what": _what(fact, scene)}


def _line(label: str, text: str) -> str:
    return f"{label:<12}  {text}"


def _row(label: str, fact: Json, scene: _Scene) -> str:
    """"not arrived   rank 11 (gpu-002, GPU 3, pid 4123): stopped by a signal 61 s ago, in case 13"."""
    if fact["state"] == "lost":
        return _line(label, f"rank {fact['rank']} ({fact.get('who', '?')}): {_what(fact, scene)}")
    parts = [str(fact["host"])]
    parts += [f"GPU {fact['device']}"] if fact["device"] is not None else []
    parts += [f"pid {fact['pid']}"] if fact["pid"] else []
    return _line(label, f"rank {fact['rank']} ({', '.join(parts)}): {_what(fact, scene)}")


def _what(fact: Json, scene: _Scene) -> str:
    """What a rank was last doing, in words."""
    case = int(fact["case"])
    where = f"in {_case(case, scene)}" if case >= 0 else "after the last case" if fact["phase"] == "done" else "before the first case"
    match fact["state"]:
        case "silent":
            return "does not answer: its host or its supervisor is down, stopped or cut off"
        case "lost":
            return "its supervisor is gone, the connection ended without a word"
        case "stopped" if fact["still_s"]:
            return f"its supervisor stood still for {float(fact['still_s']):.0f} s (stopped, or its host was), {where}"
        case "stopped":
            return f"stopped by a signal {float(fact['for_s']):.0f} s ago, {where}"
        case "dead" if not fact["error"]:
            number = -int(fact["exit"] or 0)
            name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
            return f"{_end(fact)}{name}{' in ' + fact['text'] if fact['text'] else ''}"
        case "done":
            return "had finished"
    call = f", {fact['text']}" if fact["text"] else ""
    error = f"; {fact['error']['why']}" if fact["error"] else ""
    return f"{where}{call}, {fact['phase']} (batch {fact['batch']}), {float(fact['idle_s']):.0f} s without a step{error}"


def _end(fact: Json) -> str:
    """How a rank ended, the same words for the same end."""
    if fact["state"] == "lost":
        return "its supervisor is gone"
    code = int(fact["exit"] or 0)
    return f"exit {code}" if code >= 0 else f"signal {-code}"


def _whom(facts: Sequence[Json]) -> str:
    """"rank 3 (h2)", "x8 ranks on h2", "x1016 ranks on 127 hosts, first h017"."""
    hosts = list(dict.fromkeys(str(fact["host"]) for fact in facts))
    if len(facts) == 1:
        return f"rank {facts[0]['rank']}, {hosts[0]}"
    return f"x{len(facts)} ranks on {hosts[0]}" if len(hosts) == 1 else f"x{len(facts)} ranks on {len(hosts)} hosts, first {hosts[0]}"


def _call(facts: Sequence[Json]) -> str:
    """The call that most ranks are in."""
    texts = Counter(str(fact["text"]) for fact in facts if fact["text"])
    return texts.most_common(1)[0][0] if texts else "the start"


def _case(index: int, scene: _Scene) -> str:
    return f"case {index + 1}" + (f" of {scene.n_cases}" if scene.n_cases else "")


def _of_case(scene: _Scene) -> str:
    return f" ({_case(scene.reached, scene)})" if scene.reached >= 0 else ""
