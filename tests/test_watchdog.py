"""torch's watchdog text: all at one call, ranks in different calls, one behind."""

from pathlib import Path

import pytest
from field_cases import FILES, needs_cases
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import DataError, NcclBenchError
from nccl_bench.results.importers import header_of, import_file
from nccl_bench.results.text import from_bytes
from nccl_bench.results.watchdog import import_watchdog, is_watchdog


def timeout(rank, seq, op="ALLREDUCE", elements="NumelIn=1024, NumelOut=1024, "):
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, {elements}Timeout(ms)=600000)"
    return (
        f"[rank{rank}]:[E816 01:45:40.18 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: {work} "
        "ran for 600026 milliseconds before timing out."
    )


def status(rank, seq, enqueued, completed, group="0"):
    return (
        f"[rank{rank}]:[E1118 20:32:23.95 ProcessGroupNCCL.cpp:2168] [PG ID {group} PG GUID {group}(default_pg) Rank {rank}]  "
        f"failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}"
    )


def signal(rank, enqueued, completed):
    return (
        f"[rank{rank}]:[E901 05:20:03.11 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a "
        f"collective timeout from  rank 1 and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {completed}.This is most likely caused by incorrect usages"
    )


def read(*lines):
    return import_watchdog(from_bytes(Path("job.err"), ("\n".join(lines) + "\n").encode()), "job.err")


@needs_cases
def test_all_at_the_same_call_names_no_culprit():
    file = import_file(FILES / "err_w01_watchdog_same_seq.txt")
    hang = file.hangs[0]

    assert (hang.situation, hang.culprits, hang.timeout_s) == ("fabric", (), 600.0)
    assert "ALLREDUCE #1580 (466119168 elements)" in hang.lines[0]
    assert "seen: 0, 3, 4" in hang.lines[0]
    assert hang.lines[1] == "no rank is ahead or behind: suspect the network or a GPU, or a rank that printed nothing"
    assert "last completed: #1579" in hang.lines
    assert {rank["rank"] for rank in hang.waiting} == {0, 3, 4}
    assert header_of([file]).hang["case"] == hang.case


@needs_cases
def test_ranks_in_different_calls_are_a_program_error():
    file = import_file(FILES / "err_w02_watchdog_mismatched_ops.txt")
    hang = file.hangs[0]

    assert hang.situation == "program"
    assert hang.lines[0] == "ranks disagree on collective #80078: rank 7 BROADCAST, rank 3 ALLREDUCE"
    assert "program error, not a bad link" in hang.lines[1]
    assert "rank 7: BROADCAST #80078 (5056 elements); rank 3: ALLREDUCE #80078 (2106881 elements)" in hang.lines
    assert [rank["rank"] for rank in hang.culprits] == [7, 3]
    assert "err_w02_watchdog_mismatched_ops.txt:1: " in file.failure


@needs_cases
def test_the_group_size_follows_from_elements_in_and_out():
    hang = import_file(FILES / "err_w11_fsdp_reduce_scatter_timeout.txt").hangs[0]

    assert "a group of 8 ranks, by the elements in and out; 6 of them printed nothing here" in hang.lines
    assert {rank["rank"] for rank in hang.waiting} == {0, 4}


def test_a_rank_in_an_earlier_call_is_behind():
    hang = read(timeout(0, 41), timeout(1, 41), timeout(2, 40), timeout(3, 41)).hangs[0]

    assert hang.situation == "rank"
    assert [rank["rank"] for rank in hang.culprits] == [2]
    assert {rank["rank"] for rank in hang.waiting} == {0, 1, 3}
    assert hang.lines[0].startswith("rank 2 is behind")


def test_a_rank_that_never_called_it_is_behind():
    hang = read(timeout(1, 2635), status(1, 2635, 2635, 2634), signal(5, 2634, 2634), signal(6, 2635, 2634)).hangs[0]

    assert [rank["rank"] for rank in hang.culprits] == [5]
    assert "rank 5 has called no more than #2634" in hang.lines[1]


def test_the_same_call_with_different_sizes_is_a_program_error():
    hang = read(timeout(0, 7), timeout(1, 7, elements="NumelIn=512, NumelOut=512, ")).hangs[0]

    assert hang.situation == "program"
    assert "rank 0: ALLREDUCE #7 (1024 elements); rank 1: ALLREDUCE #7 (512 elements)" in hang.lines


def test_calls_of_two_process_groups_are_not_held_against_each_other():
    hangs = read(timeout(0, 900), status(0, 900, 901, 899, "1"), timeout(1, 900), status(1, 900, 901, 899, "1"), status(0, 12, 12, 11, "2")).hangs

    assert [hang.situation for hang in hangs] == ["fabric", "fabric"]


def test_text_of_old_torch_without_elements_is_read():
    hang = read(timeout(0, 96120, elements="").replace("[rank0]:", ""), timeout(7, 96117, elements="").replace("[rank7]:", "")).hangs[0]

    assert [rank["rank"] for rank in hang.culprits] == [7]


def test_what_torch_itself_concludes_is_taken_over():
    mismatch = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=485, "
        "OpType=ALLREDUCE, TensorShape=[25], TensorDtypes=Float, ...), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=485, "
        "OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long, ...)"
    )
    lagging = "\t - To our best knowledge, ranks [47, 51] are the lagging ranks that caused this timeout. They never joined any collectives"

    assert read(mismatch).hangs[0].lines[0] == "ranks disagree on collective #485: rank 1 ALLREDUCE [25], rank 0 BROADCAST [1]"
    assert [rank["rank"] for rank in read(lagging).hangs[0].culprits] == [47, 51]
    assert [rank["rank"] for rank in read("Ranks 1, 2 failed to pass monitoredBarrier in 30000 ms").hangs[0].culprits] == [1, 2]


def test_text_without_a_watchdog_line_is_none():
    assert not is_watchdog(from_bytes(Path("x"), b"epoch 3 loss 2.59\n"))
    with pytest.raises(DataError, match="no watchdog line"):
        read("Watchdog caught collective operation timeout: something else")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_spoilt_watchdog_text_never_crashes(data):
    text = "\n".join([timeout(0, 41), status(0, 41, 42, 40), timeout(1, 41, "BROADCAST"), signal(3, 40, 40)])
    for _ in range(data.draw(st.integers(1, 3))):
        at, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        text = text[:at] + data.draw(st.sampled_from(["", "9" * 30, "[PG 1 Rank 3]", "SeqNum=0", "-", "\n"])) + text[end:]
    try:
        file = import_watchdog(from_bytes(Path("x"), text.encode()), "x")
    except NcclBenchError as err:
        spoilt = err.exit_code
    else:
        spoilt = None if file.hangs and file.failure else "no hang and no error"

    assert spoilt in (None, 5)
