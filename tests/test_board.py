"""The board and its clients: real sockets, and the pure part with 16,384 ranks."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.errors import LaunchError, WorldError
from nccl_bench.launch.board import ABORT, Board, BoardServer, rank_ranges
from nccl_bench.launch.launchers import Launch, candidate_ports
from nccl_bench.launch.lines import LineReader, decode, encode
from nccl_bench.launch.meeting import Address, Meeting, address_of, meet, meet_alone


def address(token: str, rank: int, world: int = 2, **changes: object) -> Address:
    values: dict[str, object] = {
        "host": "127.0.0.1", "ports": candidate_ports(token), "token": token, "ranks": (rank,), "world_size": world, "who": f"h{rank}:{100 + rank}",
        "may_hold": rank == 0, **changes,
    }  # fmt: skip
    return Address(**values)  # type: ignore[arg-type]


@pytest.fixture
def token(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}:{time.monotonic_ns()}"


@contextlib.contextmanager
def meeting(where: Address, timeout_s: float = 10) -> Iterator[Meeting]:
    found = meet(where, timeout_s)
    try:
        yield found
    finally:
        found.client.bye()
        if found.server is not None:
            found.server.close()


def launched(rank: int, local_rank: int | None, board_host: str) -> Launch:
    return Launch(launcher="torchrun", rank=rank, world_size=4, local_rank=local_rank, host="h", board_host=board_host, token="t")


def test_the_board_is_held_on_its_host_which_need_not_be_rank_0s() -> None:
    """torchrun's c10d rendezvous may put rank 0 elsewhere than MASTER_ADDR; a loopback address is each host's own."""
    assert [address_of(launched(rank, rank % 2, "h2"), 0).may_hold for rank in range(4)] == [True, False, True, False]
    assert [address_of(launched(rank, None, "h2"), 0).may_hold for rank in range(4)] == [True] * 4
    assert [address_of(launched(rank, rank % 2, "127.0.0.1"), 0).may_hold for rank in range(4)] == [True, False, False, False]
    assert [address_of(launched(rank, rank % 2, "localhost"), 0).may_hold for rank in range(4)] == [True, False, False, False]


def test_each_run_of_a_job_has_a_board_of_its_own() -> None:
    first, second = (address_of(launched(0, 0, "h2"), index) for index in range(2))

    assert first.token != second.token
    assert first.ports != second.ports


def test_any_rank_of_the_boards_host_may_hold_it_and_only_one_does(token: str) -> None:
    """Where no rank knows its local rank, all of the host try at once."""
    addresses = [address(token, rank, world=4, may_hold=True) for rank in range(4)]
    with ThreadPoolExecutor(4) as pool:
        meetings = list(pool.map(lambda where: meet(where, 20), addresses))

    holders = [one for one in meetings if one.server is not None]
    assert len(holders) == 1
    assert holders[0].server is not None
    assert holders[0].server.n_connected == 4
    for one in (*[one for one in meetings if one.server is None], *holders):
        one.leave()


def test_a_value_reaches_who_waits_for_it_before_and_after_it_is_set(token: str) -> None:
    with meeting(address(token, 0)) as zero, meeting(address(token, 1)) as one:
        seen: list[object] = []
        one.client.wait("go", seen.append)
        zero.client.set({"go": {"backend": "gloo"}})

        assert one.client.get("go", 5) == {"backend": "gloo"}
        assert seen == [{"backend": "gloo"}]
        assert zero.client.get("go", 5) == {"backend": "gloo"}
        assert zero.client.get("never", 0.05) is None


def test_the_first_claim_stays(token: str) -> None:
    with meeting(address(token, 0)) as zero, meeting(address(token, 1)) as one:
        zero.client.claim("verdict", "first")
        assert zero.client.get("verdict", 5) == "first"
        one.client.claim("verdict", "second")

        assert one.client.get("verdict", 5) == "first"


def test_all_values_come_in_one_answer_or_the_missing_ranks_are_named(token: str) -> None:
    with meeting(address(token, 0, world=5)) as zero, meeting(address(token, 3, world=5)) as three:
        zero.client.set({"join/0": "a"})
        three.client.set({"join/3": "d"})

        values, missing = zero.client.gather("join", 5, 0.3)
        assert (values, missing) == ({0: "a", 3: "d"}, "1, 2, 4")
        three.client.set({f"join/{rank}": "x" for rank in (1, 2, 4)})
        values, missing = zero.client.gather("join", 5, 5)
        assert (sorted(values), missing) == ([0, 1, 2, 3, 4], "")


def test_a_client_that_goes_without_a_bye_is_published_and_one_that_says_bye_is_not(token: str) -> None:
    with meeting(address(token, 0, world=3)) as zero:
        with meeting(address(token, 1, world=3)):
            pass
        assert zero.client.get(ABORT, 0.2) is None

        meet(address(token, 2, world=3), 5).client.drop()

        assert zero.client.get(ABORT, 5) == {"kind": "lost", "ranks": [2], "who": "h2:102"}
        assert zero.client.get("facts/2", 5) == {"rank": 2, "state": "lost", "who": "h2:102"}


def hello(rank: int, me: str, who: str = "h1:7") -> dict[str, object]:
    return {"op": "hello", "id": 0, "token": "t", "ranks": [rank], "world": 4, "who": who, "me": me}


@pytest.mark.parametrize(
    "order", [("hello", "bye", "again", "end"), ("hello", "again", "bye", "end"), ("hello", "again", "end"), ("again", "hello", "bye", "end")]
)
def test_a_process_that_was_greeted_too_late_comes_again_and_is_neither_lost_nor_there_twice(order: tuple[str, ...]) -> None:
    """A busy board reads what a client sent only after the client has given up on it, and perhaps after it has come once more."""
    board = Board("t", "rank 0 (h0:1)")
    for step in order:
        match step:
            case "hello":
                board.handle(1, hello(3, "abc"), 0.0)
            case "bye":
                board.handle(1, {"op": "bye"}, 0.0)
            case "again":
                board.handle(2, hello(3, "abc"), 0.0)
            case "end":
                board.leave(1, 0.0)
    assert board.handle(2, {"op": "wait", "id": 1, "key": ABORT}, 0.0) == [], "nothing is wrong"
    board.leave(2, 0.0)
    board.handle(9, hello(0, "xyz"), 0.0)
    ((_, answer),) = board.handle(9, {"op": "wait", "id": 5, "key": ABORT}, 0.0)
    assert answer["value"] == {"kind": "lost", "ranks": [3], "who": "h1:7"}, "now it is"


def test_two_processes_of_one_name_are_two_all_the_same() -> None:
    """Containers of one host may share its name and number their processes alike."""
    board = Board("t", "rank 0 (h0:1)")
    board.handle(1, hello(3, "abc"), 0.0)
    board.handle(2, hello(3, "def"), 0.0)
    ((_, answer),) = board.handle(1, {"op": "wait", "id": 1, "key": ABORT}, 0.0)
    assert answer["value"]["kind"] == "clash"


def test_a_board_that_greets_too_late_is_found_all_the_same(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real server, held up while it should greet; the first connection is given up, a later one counts."""
    monkeypatch.setattr("nccl_bench.launch.meeting.ANSWER_S", 0.2)
    with meeting(address(token, 0)) as zero:
        assert zero.server is not None
        handle, held_up = zero.server.board.handle, threading.Event()

        def late(client: int, message: dict[str, object], now: float) -> object:
            if message["op"] == "hello" and not held_up.is_set():
                held_up.set()
                time.sleep(1.0)
            return handle(client, message, now)

        monkeypatch.setattr(Board, "handle", lambda self, client, message, now: late(client, message, now))
        with meeting(address(token, 1), 20) as one:
            assert held_up.is_set()
            one.client.set({"k": 1})
            assert zero.client.get("k", 5) == 1
            assert zero.client.get(ABORT, 0.3) is None


def test_a_rank_that_two_processes_claim_is_told_to_both(token: str) -> None:
    with meeting(address(token, 0, who="h1:1")) as first, meeting(address(token, 0, who="h1:2")) as second:
        expected = {"kind": "clash", "why": "rank 0 claimed by 2 processes: h1:1 and h1:2", "ranks": [0]}

        assert first.client.get(ABORT, 5) == second.client.get(ABORT, 5) == expected
        assert second.server is None, "a taken port that is ours is joined, not passed over"


def test_processes_that_disagree_on_the_world_are_told_so(token: str) -> None:
    with meeting(address(token, 0, world=2)) as zero, meeting(address(token, 1, world=4)):
        assert zero.client.get(ABORT, 5)["why"] == "rank 1 (h1:101) says there are 4 ranks, rank 0 (h0:100) says 2"


def test_another_jobs_board_on_our_port_is_passed_over(token: str) -> None:
    ports = candidate_ports(token)
    with meeting(address("other" + token, 0, ports=ports)) as other, meeting(address(token, 0)) as ours, meeting(address(token, 1)) as one:
        assert other.server is not None
        assert other.server.port == ports[0]
        assert ours.server is not None
        assert ours.server.port == ports[1]
        one.client.set({"k": 1})
        assert ours.client.get("k", 5) == 1
        assert other.client.get("k", 0.1) is None


def test_a_port_taken_by_a_stranger_is_passed_over(token: str) -> None:
    with socket.create_server(("127.0.0.1", candidate_ports(token)[0])), meeting(address(token, 0)) as zero:
        assert zero.server is not None
        assert zero.server.port == candidate_ports(token)[1]


def test_the_wrong_token_is_refused(token: str) -> None:
    with meeting(address(token, 0)) as zero, pytest.raises(WorldError) as caught:
        meet(address(token + "x", 1, ports=candidate_ports(token)), 0.5)

    assert zero.server is not None
    assert caught.value.why.startswith("rank 1 reached nobody at 127.0.0.1 in ")
    assert "loopback" in caught.value.hints[1]


def test_nobody_there_is_said_with_address_and_ports(token: str) -> None:
    with pytest.raises(WorldError) as caught:
        meet(address(token, 1), 0.2)

    assert caught.value.exit_code == 4
    assert str(candidate_ports(token)[0]) in caught.value.hints[0]


def test_a_name_that_cannot_be_resolved_is_said(token: str) -> None:
    with pytest.raises(WorldError, match=r"nowhere\.invalid.*cannot be resolved"):
        meet(address(token, 1, host="nowhere.invalid"), 0.2)


def test_a_meeting_that_is_called_off_ends_at_once(token: str) -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(WorldError):
        meet(address(token, 1), 3600, stop)


def test_a_board_that_goes_away_raises_and_names_its_holder(token: str) -> None:
    zero = meet(address(token, 0), 5)
    one = meet(address(token, 1), 5)
    assert zero.server is not None
    zero.server.close()

    with pytest.raises(WorldError, match=r"rank 0 \(h0:100\) is gone"):
        one.client.get("k", 5)
    assert one.client.lost
    one.client.bye()
    zero.client.drop()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\n",
        b"[]\n",
        b"{}\n",
        b'{"op":"set","values":{"join/1":1}}\n',
        b'{"op":"hello","id":0}\n',
        b'{"op":"hello","id":"x","token":1,"ranks":3,"world":2,"who":"y"}\n',
        b"x" * 200_000,
    ],
)
def test_strangers_do_no_harm(token: str, garbage: bytes) -> None:
    with meeting(address(token, 0)) as zero:
        assert zero.server is not None
        with socket.create_connection(("127.0.0.1", zero.server.port), timeout=5) as stranger:
            stranger.sendall(garbage)
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(1) in (b"", b"{")
        zero.client.set({"k": 1})
        assert zero.client.get("k", 5) == 1
        assert zero.client.get(ABORT, 0.05) is None


def test_many_clients_join_and_one_answer_holds_them_all(token: str) -> None:
    n = 300
    with meeting(address(token, 0, world=n)) as zero, contextlib.ExitStack() as stack:
        others = [stack.enter_context(meeting(address(token, rank, world=n))) for rank in range(1, n)]
        zero.client.set({"join/0": 0})
        for rank, one in enumerate(others, start=1):
            one.client.set({f"join/{rank}": rank})

        values, missing = zero.client.gather("join", n, 30)

        assert values == {rank: rank for rank in range(n)}
        assert missing == ""
        assert zero.server is not None
        assert zero.server.n_connected == n


def test_a_board_for_one_process_needs_no_port() -> None:
    alone = meet_alone("t", "h:1", (0, 1))
    alone.client.set({"join/0": "a"})

    assert alone.server is None
    assert alone.client.gather("join", 2, 0.05) == ({0: "a"}, "1")
    alone.client.set({"join/1": "b"})
    assert alone.client.gather("join", 2, 5) == ({0: "a", 1: "b"}, "")
    alone.client.bye()


def test_too_few_descriptors_are_said_before_anybody_waits() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("open files are not limited here")

    with pytest.raises(LaunchError, match="open files"):
        BoardServer(0, Board("t", "h:1"), loopback=True, n_clients=hard)


def test_the_descriptor_limit_is_raised_for_a_large_world() -> None:
    code = (
        "import resource; from nccl_bench.launch.board import *\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "BoardServer(0, Board('t', 'h:1'), loopback=True, n_clients=700).close(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )

    assert int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) == 956


def test_16384_ranks_cost_one_short_message_each() -> None:
    n, board = 16384, Board("t", "rank 0 (h0:1)")
    for rank in range(n):
        hello = {"op": "hello", "id": 0, "token": "t", "ranks": [rank], "world": n, "who": f"h{rank // 8}:{rank}"}
        assert board.handle(rank, hello, 0.0) == [(rank, {"id": 0, "board": "rank 0 (h0:1)"})]
        assert board.handle(rank, {"op": "wait", "id": 1, "key": "go"}, 0.0) == []
    board.handle(0, {"op": "collect", "id": 2, "prefix": "join", "n": n, "timeout_s": 60}, 0.0)
    answers = [reply for rank in range(n) for reply in board.handle(rank, {"op": "set", "values": {f"join/{rank}": {"host": "h"}}}, 1.0)]

    assert [client for client, _ in answers] == [0]
    assert len(answers[0][1]["values"]) == n
    assert len(board.handle(0, {"op": "set", "values": {"go": 1}}, 2.0)) == n


@given(st.sets(st.integers(0, 60)))
def test_ranges_of_ranks_hold_exactly_the_ranks(ranks: set[int]) -> None:
    read: set[int] = set()
    for word in rank_ranges(ranks).split(", ") if ranks else []:
        first, _, last = word.partition("-")
        read |= set(range(int(first), int(last or first) + 1))

    assert read == ranks


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20)), max_size=8), st.integers(1, 40))
def test_lines_come_out_whole_however_they_are_cut(messages: list[dict[str, str]], size: int) -> None:
    data = b"".join(encode(message) for message in messages)
    reader = LineReader(1 << 16)

    out = [decode(line) for start in range(0, len(data), size) for line in reader.feed(data[start : start + size])]

    assert out == messages


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_a_value_error(data: bytes) -> None:
    try:
        messages = [decode(line) for line in LineReader(100).feed(data)]
    except ValueError:
        return
    assert all(isinstance(message, dict) for message in messages)


def test_a_line_that_is_too_long_is_refused_before_its_end() -> None:
    reader = LineReader(100)
    reader.feed(b"x" * 60)

    with pytest.raises(ValueError, match="more than 100 bytes"):
        reader.feed(b"x" * 60)
