"""Who is to blame: the verdict of many scenes, from 2 to 16,384 ranks."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from field_cases import FILES, needs_cases
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.launch.blame import MAX_WAITING, Verdict, blame, collapse
from nccl_bench.records import NOBODY_BEHIND, PROGRAM_ERROR
from nccl_bench.results.text import read_text
from nccl_bench.results.watchdog import import_watchdog

Json = dict[str, Any]


def fact(rank: int, **changes: Any) -> Json:
    """A rank waiting in case 14 of 60."""
    return {
        "rank": rank, "host": f"gpu-{rank // 8 + 1:03}", "pid": 4112 + rank, "device": rank % 8, "state": "alive", "for_s": 0.0, "exit": None,
        "error": None, "case": 13, "reached": 13, "n_cases": 60, "phase": "time", "batch": 7, "text": "all_gather 64 MiB", "idle_s": 60.2,
        "stack": [], "lines": [], **changes,
    }  # fmt: skip


def scene(n: int, **changed: Json) -> dict[int, Json]:
    """n waiting ranks, some of them changed: r11={...}; r11=None takes one away."""
    facts: dict[int, Json] = {}
    for rank in range(n):
        change = changed.get(f"r{rank}", {})
        if change is not None:
            facts[rank] = fact(rank, **change)
    return facts


def judge(facts: dict[int, Json], n: int | None = None, kind: str = "hang", **reason: Any) -> Verdict:
    hosts = {rank: f"gpu-{rank // 8 + 1:03}" for rank in range(n or len(facts))}
    return blame(facts, world_size=n or len(facts), reason={"kind": kind, **reason}, timeout_s=60.0, hosts=hosts)


def dead(code: int, **more: Any) -> Json:
    return {"state": "dead", "exit": code, "for_s": 0.3, **more}


def error(kind: str, why: str, code: int = 4, **more: Any) -> Json:
    return {"state": "dead", "exit": code, "error": {"kind": kind, "exit_code": code, "why": why, "hints": []}, **more}


def test_a_stopped_rank_did_not_arrive() -> None:
    verdict = judge(scene(16, r11={"state": "stopped", "for_s": 61.0, "case": 12}))

    assert verdict.exit_code == 4
    assert verdict.why == "rank 11 did not arrive"
    assert verdict.lines == (
        "all_gather 64 MiB did not finish in 60 s (case 14 of 60)",
        "not arrived   rank 11 (gpu-002, GPU 3, pid 4123): stopped by a signal 61 s ago, in case 13 of 60",
        "waiting       15 ranks in the same call: the fabric is not the suspect",
    )
    assert verdict.hang is not None
    assert (verdict.hang.situation, verdict.hang.case, verdict.hang.case_index) == ("rank", "all_gather 64 MiB", 13)
    assert [culprit["rank"] for culprit in verdict.hang.culprits] == [11]
    assert len(verdict.hang.waiting) == 15


def test_a_rank_0_that_stood_still_blames_itself_and_not_those_who_left_meanwhile() -> None:
    verdict = judge(scene(4, r0={"state": "stopped", "for_s": 70.0, "still_s": 70.0}, r1=None, r2=None, r3=None), n=4)

    assert verdict.exit_code == 4
    assert verdict.why == "rank 0 did not arrive"
    assert verdict.lines == (
        "all_gather 64 MiB did not finish in 60 s (case 14 of 60)",
        "not arrived   rank 0 (gpu-001, GPU 0, pid 4112): its supervisor stood still for 70 s (stopped, or its host was), in case 14 of 60",
    )


def test_another_rank_that_stood_still_excuses_no_silent_one() -> None:
    verdict = judge(scene(4, r1={"state": "stopped", "for_s": 70.0, "still_s": 70.0}, r3=None), n=4)

    assert verdict.why == "ranks 1, 3 did not arrive"


def test_a_dead_rank_counts_before_everything_else() -> None:
    facts = scene(
        16, r11=dead(-9), r3={"state": "stopped", "for_s": 9.0}, r4=error("own", "no memory"), r5=error("comm", "connection reset", idle_s=0.1)
    )  # fmt: skip

    verdict = judge(facts, kind="comm")

    assert (verdict.exit_code, verdict.why) == (4, "rank 11 died (signal 9)")
    assert verdict.lines[0] == "rank 11 died in case 14 of 60"
    assert verdict.lines[1] == "died          rank 11 (gpu-002, GPU 3, pid 4123): signal 9 (SIGKILL) in all_gather 64 MiB"
    assert "out-of-memory" in verdict.lines[2]


def test_a_rank_that_died_before_the_first_case_ends_3() -> None:
    start = {"case": -1, "reached": -1, "text": "", "phase": "setup"}
    facts = {rank: fact(rank, **start) for rank in range(4)}
    facts[2] = fact(2, **start, **dead(1, lines=["ImportError: libcudart.so.12"]))

    verdict = judge(facts, kind="died")

    assert (verdict.exit_code, verdict.why) == (3, "rank 2 died (exit 1)")
    assert verdict.lines[0] == "rank 2 died before the first case"
    assert verdict.lines[-1] == "  | ImportError: libcudart.so.12"


def test_a_rank_that_died_after_the_last_case_ends_4() -> None:
    leaving = {"case": -1, "text": "leaving", "phase": "done"}
    facts = {0: fact(0, **leaving), 1: fact(1, **leaving, **dead(-11))}

    verdict = judge(facts, kind="died")

    assert verdict.exit_code == 4
    assert verdict.lines[0] == "rank 1 died after the last case"
    assert verdict.lines[1].endswith("signal 11 (SIGSEGV) in leaving")


def test_a_lost_supervisor_is_a_death_and_the_first_case_decides_the_code() -> None:
    lost = {"rank": 5, "state": "lost", "who": "gpu-001:77"}

    assert judge({**scene(8), 5: lost}, kind="lost").exit_code == 4
    assert judge({**{rank: {"rank": rank, "host": "h"} for rank in range(8)}, 5: lost}, kind="lost").exit_code == 3
    assert judge({**scene(8), 5: lost}, kind="lost").why == "rank 5 died (its supervisor is gone)"
    assert judge({**scene(8), 5: lost}, kind="lost").lines[1] == (
        "died          rank 5 (gpu-001:77): its supervisor is gone, the connection ended without a word"
    )


def test_the_rank_that_died_first_gives_the_words() -> None:
    facts = scene(8, r2=dead(-11, for_s=2.0, lines=["the first"]), r3=dead(-6, for_s=0.1, lines=["the second"]))

    verdict = judge(facts, kind="died")

    assert verdict.why == "ranks 2, 3 died (signal 11)"
    assert verdict.lines[-1] == "  | the first"


def test_an_own_error_keeps_its_code_and_hints_and_identical_ones_collapse() -> None:
    why = "torch is not installed"
    facts = scene(16)
    for rank in range(16):
        facts[rank] = fact(rank, **error("own", why, 3), case=-1, reached=-1)
        facts[rank]["error"]["hints"] = ["pip install 'nccl-bench[torch]'"]

    verdict = judge(facts, kind="own")

    assert verdict.exit_code == 3
    assert verdict.why == f"ranks 0-15: {why}"
    assert verdict.lines == (f"{why} (x16 ranks on 2 hosts, first gpu-001)", "pip install 'nccl-bench[torch]'")


def test_a_bug_counts_before_other_errors() -> None:
    facts = scene(4, r1=error("own", "cannot go on", 4, for_s=5.0), r2=error("bug", "KeyError: 'x'", 70))

    verdict = judge(facts, kind="own")

    assert (verdict.exit_code, verdict.why) == (70, "rank 2: KeyError: 'x'")
    assert verdict.lines[-1] == "1 more ranks failed in other ways"


def test_ranks_in_different_calls_are_the_programs_fault() -> None:
    verdict = judge(scene(8, r7={"text": "broadcast 5056 B"}))

    assert verdict.why == "rank 7 in another call than the others"
    assert verdict.lines[1].startswith("other call    rank 7 (gpu-001, GPU 7, pid 4119): in case 14 of 60, broadcast 5056 B")
    assert verdict.lines[2] == "waiting       7 ranks in the same call: a program error, not a bad link"
    assert verdict.hang is not None
    assert verdict.hang.situation == "program"


def test_a_rank_a_case_behind_did_not_arrive_and_its_stack_is_shown() -> None:
    behind = {"case": 12, "text": "all_gather 32 MiB", "phase": "verify", "stack": ["ops.py:88 verify", "sweep.py:20 run"]}

    verdict = judge(scene(8, r3=behind))

    assert verdict.why == "rank 3 did not arrive"
    assert "in case 13 of 60, all_gather 32 MiB, verify (batch 7), 60 s without a step" in verdict.lines[1]
    assert verdict.lines[2] == "                at ops.py:88 verify"
    assert verdict.lines[-1].endswith("the fabric is not the suspect")


def test_a_rank_a_batch_behind_may_be_held_up_by_its_links() -> None:
    verdict = judge(scene(2, r1={"batch": 6}))

    assert verdict.why == "rank 1 did not arrive"
    assert verdict.lines[-1] == "waiting       1 rank in the same call, a batch further: what is behind or its links are the suspect"


def test_one_rank_ahead_of_all_is_no_culprit() -> None:
    """The root of a one-way operation may run ahead."""
    verdict = judge(scene(8, r0={"batch": 9}))

    assert verdict.hang is not None
    assert (verdict.hang.situation, verdict.hang.culprits) == ("fabric", ())


def test_all_ranks_in_one_call_blame_the_fabric() -> None:
    verdict = judge(scene(16))

    assert verdict.why == "all_gather 64 MiB did not finish on any rank"
    assert verdict.lines[-1] == (
        "waiting       16 ranks in the same call, no rank is ahead or behind: the fabric (links, NICs, switch) or NCCL itself is the suspect"
    )
    assert verdict.hang is not None
    assert verdict.hang.situation == "fabric"


def test_a_host_that_does_not_answer_is_named() -> None:
    changed: dict[str, Any] = {f"r{rank}": None for rank in range(8, 16)}

    verdict = judge(scene(24, **changed), n=24)

    assert verdict.why == "ranks 8-15 did not arrive"
    assert verdict.lines[1] == "not arrived   rank 8 (gpu-002): does not answer: its host or its supervisor is down, stopped or cut off"
    assert verdict.lines[-1] == "waiting       16 ranks in the same call: the host that does not answer, or its link, is the suspect"


def test_workers_that_timed_out_themselves_are_waiting_ranks() -> None:
    facts = {rank: fact(rank, **error("comm", "timed out")) for rank in range(4)}
    facts[2] = fact(2, state="stopped", for_s=61.0)

    assert judge(facts, kind="comm").why == "rank 2 did not arrive"
    assert judge({rank: fact(rank, **error("comm", "timed out")) for rank in range(4)}, kind="comm").why.endswith("did not finish on any rank")


def test_a_collective_that_raised_at_once_blames_the_connection_though_others_are_behind() -> None:
    facts = scene(4, r1=error("comm", "connection reset by peer", idle_s=0.4), r2={"batch": 6, "idle_s": 0.5})

    verdict = judge(facts, kind="comm")

    assert verdict.why == "rank 1: connection reset by peer"
    assert verdict.lines[0] == "all_gather 64 MiB failed on rank 1, gpu-001 (case 14 of 60): connection reset by peer"
    assert verdict.hang is not None
    assert verdict.hang.situation == "fabric"


def test_ranks_that_still_step_are_slow() -> None:
    verdict = judge({rank: fact(rank, idle_s=0.05, batch=rank) for rank in range(4)})

    assert verdict.why == "all_gather 64 MiB took longer than 60 s"
    assert "-T" in verdict.lines[1]


def test_signals_are_interruptions_unless_somebody_died_before() -> None:
    assert judge(scene(4), kind="signal", signal=signal.SIGINT).exit_code == 130
    assert judge(scene(4), kind="signal", signal=signal.SIGTERM).why == "interrupted by SIGTERM"
    assert judge(scene(4, r1=dead(-9)), kind="signal", signal=signal.SIGTERM).exit_code == 4
    assert judge(scene(4, r1=dead(-15), r2={"state": "stopped"}), kind="signal", signal=signal.SIGTERM).exit_code == 143
    assert judge(scene(4, r1=dead(-15)), kind="died").exit_code == 143, "somebody ended the worker alone"


def test_a_hang_before_the_first_case_is_a_start_that_ends_4() -> None:
    facts = {rank: fact(rank, case=-1, reached=-1, text="forming the group", phase="meet") for rank in range(4)}

    verdict = judge(facts)

    assert verdict.exit_code == 4
    assert verdict.lines[0] == "forming the group did not finish in 60 s"
    assert verdict.hang is not None
    assert verdict.hang.situation == "start"


def test_who_could_ask_nobody_else_blames_nobody_else() -> None:
    verdict = blame({3: fact(3)}, world_size=16, reason={"kind": "hang"}, timeout_s=60, hosts={}, partial=True)

    assert verdict.exit_code == 4
    assert verdict.hang is not None
    assert (verdict.hang.situation, verdict.hang.culprits) == ("unknown", ())


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "stopped", "for_s": 9.0},
        dead(-9),
        error("own", "no memory"),
        {"case": 12},
        {"text": "broadcast 8 B"},
    ],
)
@pytest.mark.parametrize("n", [1016, 16384])
def test_the_text_is_short_whatever_the_size_of_the_world(n: int, changes: Json) -> None:
    facts = scene(n)
    for rank in range(0, n, 3):
        facts[rank] = fact(rank, **changes)

    verdict = judge(facts)

    assert len(verdict.lines) <= 24
    assert len(verdict.why) <= 120
    assert max(map(len, verdict.lines)) <= 200
    assert verdict.hang is not None
    assert len(verdict.hang.waiting) <= MAX_WAITING
    assert len(verdict.hang.culprits) <= MAX_WAITING


def test_ranks_collapse() -> None:
    assert collapse([fact(3)]) == "rank 3"
    assert collapse([fact(rank) for rank in (0, 1, 2, 9)]) == "ranks 0-2, 9"
    assert collapse([fact(rank) for rank in range(0, 100, 2)]) == "50 ranks"


FACTS = st.builds(
    lambda state, exit_code, kind, case, reached, phase, text, idle, stack: {
        "state": state, "exit": exit_code, "error": None if kind is None else {"kind": kind, "why": "w", "exit_code": 4}, "case": case,
        "reached": max(case, reached), "phase": phase, "text": text, "idle_s": idle, "stack": stack, "n_cases": 6,
    },
    st.sampled_from(["alive", "stopped", "dead", "done", "lost"]), st.sampled_from([None, 0, 1, -9, -15, -64]),
    st.sampled_from([None, None, "own", "bug", "comm"]), st.integers(-1, 5), st.integers(-1, 5),
    st.sampled_from(["start", "meet", "setup", "warmup", "time", "verify", "done"]), st.sampled_from(["", "all_reduce 8 B", "broadcast 8 B"]),
    st.floats(0, 100), st.lists(st.text(max_size=10), max_size=3),
)  # fmt: skip


@given(
    st.dictionaries(st.integers(0, 7), FACTS, max_size=8),
    st.sampled_from([{"kind": "died"}, {"kind": "hang"}, {"kind": "comm"}, {"kind": "own"}, {"kind": "signal", "signal": 2}, {"kind": "unknown"}]),
    st.booleans(),
)
def test_any_facts_give_a_verdict_that_is_no_success(facts: dict[int, Json], reason: Json, partial: bool) -> None:
    known = {rank: {"rank": rank, **content} for rank, content in facts.items()}

    verdict = blame(known, world_size=8, reason=reason, timeout_s=60.0, hosts={}, partial=partial)

    assert verdict.exit_code in (3, 4, 70, 130, 143)
    assert verdict.why
    assert verdict.lines


@pytest.mark.parametrize(
    "name, facts, situation, words",
    [
        ("err_w01_watchdog_same_seq.txt", scene(8), "fabric", NOBODY_BEHIND),
        ("err_w02_watchdog_mismatched_ops.txt", scene(8, r7={"text": "broadcast 5056 B"}), "program", PROGRAM_ERROR),
    ],
)
@needs_cases
def test_torchs_watchdog_text_and_our_own_hang_come_to_the_same_words(name: str, facts: dict[int, Json], situation: str, words: str) -> None:
    ours, (theirs,) = judge(facts).hang, import_watchdog(read_text(FILES / name), name).hangs
    assert ours is not None
    assert (ours.situation, theirs.situation) == (situation, situation)
    assert all(any(words in line for line in hang.lines) for hang in (ours, theirs))


def test_the_sockets_in_use_are_said_where_hosts_hang_together() -> None:
    one_kind = judge(scene(16) | {rank: fact(rank, socket="eth0") for rank in range(16)})
    assert one_kind.lines[-1] == "sockets       eth0 on gpu-001, gpu-002"
    many = judge({rank: fact(rank, socket="eno1" if rank < 8 else "NCCL_SOCKET_IFNAME=eth") for rank in range(800)})
    assert many.lines[-1] == "sockets       eno1 on gpu-001; NCCL_SOCKET_IFNAME=eth on 99 hosts, first gpu-002"
    assert not any("sockets" in line for line in judge({rank: fact(rank, socket="lo") for rank in range(8)}).lines), "one host needs none"


def test_a_rank_that_gets_no_answer_names_who_holds_the_board() -> None:
    verdict = blame({3: fact(3)}, world_size=16, reason={"kind": "hang"}, timeout_s=60, hosts={}, partial=True, board="rank 0 (gpu-001:4112)")
    assert verdict.exit_code == 4
    assert verdict.why == "no answer from rank 0 (gpu-001:4112)"
    assert "its host, its link or the link of this host is the suspect" in verdict.lines[-1]


def test_before_the_first_case_those_who_do_not_reach_the_store_are_named_though_they_are_the_most() -> None:
    early = {"case": -1, "reached": -1, "n_cases": 0, "phase": "meet"}
    reaching = {**early, "text": "reaching torch's store at gpu-001:23456", "batch": 1}
    verdict = judge(scene(3, r0={**early, "text": "forming the group", "batch": 2}, r1=reaching, r2=reaching))
    assert verdict.why == "ranks 1, 2 did not arrive"
    assert "before the first case, reaching torch's store at gpu-001:23456" in verdict.lines[1]
    assert verdict.hang is not None
    assert verdict.hang.situation == "start"


def test_what_ranks_that_noticed_a_hang_have_to_say_is_said_once() -> None:
    noticed = error("comm", "all_gather timed out", idle_s=60.1)
    hint = "torch's flight recorder: /tmp/record_RANK on each host"
    noticed["error"] = {**noticed["error"], "hints": [hint]}
    verdict = judge(scene(8, **{f"r{rank}": noticed for rank in range(8)}))
    assert [line.strip() for line in verdict.lines].count(hint) == 1
