"""Several hosts, each with its own address and link: which interfaces are used, and what is said when one of them is wrong or gone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from testbed import Hosts, header, hosts, needs, needs_hosts, points, workers_of

pytestmark = needs_hosts
pytest.importorskip("torch")

SHORT = ("all_reduce", "--backend", "gloo", "-b", "1K", "-e", "4K", "--budget", "0.05", "--no-progress")
LONG = ("all_reduce", "--backend", "gloo", "-b", "1K", "-e", "1K", "--budget", "0.05", "--no-progress", "--duration", "10m")
PORT = 21000
NOT_HUNG_S = 90
"""Far below the ten minutes of a long sweep, far above -T + 10 s on a busy machine; tests/campaign.py holds ends to the second."""


@dataclass
class Ended:
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def last_line(self) -> str:
        return self.stderr.splitlines()[-1] if self.stderr else ""


@pytest.fixture
def three() -> Iterator[Hosts]:
    with hosts("h1", "h2", "h3") as made:
        yield made


@pytest.fixture
def two() -> Iterator[Hosts]:
    with hosts("h1", "h2") as made:
        yield made


def start(
    made: Hosts, folder: Path, *args: str, env: Mapping[str, str] | None = None, ranks: tuple[int, ...] | None = None
) -> list[subprocess.Popen[str]]:
    """A rank a host, as torchrun would place them."""
    n = len(made.names)
    place = {"WORLD_SIZE": str(n), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": made.names[0], "MASTER_PORT": str(PORT)}
    return [
        made.start(made.names[rank], "nccl-bench", "sweep", *args, env={**place, "RANK": str(rank), **(env or {})}, cwd=folder)
        for rank in (ranks or range(n))
    ]


def finish(processes: list[subprocess.Popen[str]], timeout: float = 120) -> list[Ended]:
    """What each rank said, and how long it took from now."""
    begun = time.monotonic()
    ended = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=timeout)
        ended.append(Ended(process.returncode, stdout, stderr, time.monotonic() - begun))
    return ended


def measuring(folder: Path) -> None:
    """Wait for a point on disk."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (folder / "points.jsonl").exists() and (folder / "points.jsonl").stat().st_size:
            return
        time.sleep(0.05)
    raise AssertionError("no point was measured")


# ---- which interface


def test_hosts_talk_over_the_interface_by_which_they_met_and_that_is_said_and_kept(two: Hosts, tmp_path: Path) -> None:
    first, second = finish(start(two, tmp_path, *SHORT, "-O", "run"))
    assert (first.code, second.code) == (0, 0), first.stderr
    assert "note: sockets of gloo: eth0 on every host, by which the ranks met" in first.stderr
    sockets = [rank["socket"] for rank in header(tmp_path / "run")["ranks"]]
    assert sockets == [{"address": "10.77.0.1", "interface": "eth0"}, {"address": "10.77.0.2", "interface": "eth0"}]
    assert second.stdout + second.stderr == ""


def test_what_the_user_chose_is_used_and_said(two: Hosts, tmp_path: Path) -> None:
    first, _ = finish(start(two, tmp_path, *SHORT, env={"GLOO_SOCKET_IFNAME": "eth0"}))
    assert first.code == 0, first.stderr
    assert "note: sockets of gloo: GLOO_SOCKET_IFNAME=eth0, as set" in first.stderr


def test_interfaces_of_unlike_names_are_found_on_each_host(two: Hosts, tmp_path: Path) -> None:
    for words in (("link", "set", "eth0", "down"), ("link", "set", "eth0", "name", "eno1"), ("link", "set", "eno1", "up")):
        two.run("h2", "ip", *words, check=True)
    first, _ = finish(start(two, tmp_path, *SHORT))
    assert first.code == 0, first.stderr
    assert "note: sockets of gloo: eth0 on rank 0 (h1), eno1 on rank 1 (h2)" in first.stderr
    ended = finish(start(two, tmp_path, *SHORT, env={"GLOO_SOCKET_IFNAME": "eth0", "MASTER_PORT": str(PORT + 1)}))
    assert [one.code for one in ended] == [3, 3]
    assert "GLOO_SOCKET_IFNAME=eth0: no such interface on rank 1 (h2); h2 has: lo, eno1" in ended[0].stderr


def test_a_host_whose_name_is_its_own_loopback_is_reached_all_the_same(two: Hosts, tmp_path: Path) -> None:
    table = Path("/etc/netns") / f"{two.set_name}-h1" / "hosts"
    table.write_text("".join(line for line in table.read_text().splitlines(keepends=True) if "h1" not in line) + "127.0.1.1 h1\n")
    assert two.run("h1", "getent", "ahostsv4", "h1").stdout.startswith("127.0.1.1")
    first, second = finish(start(two, tmp_path, *SHORT, "-O", "run"))
    assert (first.code, second.code) == (0, 0), first.stderr
    assert [rank["socket"]["address"] for rank in header(tmp_path / "run")["ranks"]] == ["10.77.0.1", "10.77.0.2"]


@pytest.mark.parametrize("name, said", [("eth9", "no such interface"), ("lo", "leads nowhere but to the host itself")])
def test_an_interface_that_cannot_work_ends_3_before_anything_waits_for_it(two: Hosts, tmp_path: Path, name: str, said: str) -> None:
    ended = finish(start(two, tmp_path, *SHORT, env={"GLOO_SOCKET_IFNAME": name}))
    assert [one.code for one in ended] == [3, 3]
    assert f"GLOO_SOCKET_IFNAME={name}: {said} on h1, h2 (x2 ranks); h1 has: lo, eth0" in ended[0].last_line
    assert not (tmp_path / "results").exists()


def test_an_interface_that_leads_elsewhere_ends_4_within_the_timeout_and_is_named(two: Hosts, tmp_path: Path) -> None:
    for number, host in enumerate(two.names):
        two.run(host, "ip", "link", "add", "dead0", "type", "veth", "peer", "name", "dead1", check=True)
        two.run(host, "ip", "addr", "add", f"10.99.{number}.1/24", "dev", "dead0", check=True)
        for name in ("dead0", "dead1"):
            two.run(host, "ip", "link", "set", name, "up", check=True)
    ended = finish(start(two, tmp_path, *SHORT, "-T", "5", env={"GLOO_SOCKET_IFNAME": "dead0"}))
    assert [one.code for one in ended] == [4, 4], ended
    assert "GLOO_SOCKET_IFNAME=dead0 on h1, h2" in ended[0].stderr
    assert max(one.seconds for one in ended) < NOT_HUNG_S


# ---- a host that is gone


@pytest.mark.parametrize(
    "host, what, culprit",
    [
        ("h3", ("down",), "rank 2"),
        ("h1", ("down",), "ranks 1, 2"),
        pytest.param("h2", ("loss", "100"), "rank 1", marks=needs("nft", package="nftables")),
    ],
)
def test_a_host_cut_off_in_a_run_is_named_and_nobody_hangs(three: Hosts, tmp_path: Path, host: str, what: tuple[str, ...], culprit: str) -> None:
    processes = start(three, tmp_path, *LONG, "-T", "5", "-O", "run")
    measuring(tmp_path / "run")
    three.link(host, *what)
    ended = finish(processes)
    assert [one.code for one in ended] == [4, 4, 4], ended
    assert max(one.seconds for one in ended) < NOT_HUNG_S
    assert ended[0].last_line == f"nccl-bench: exit 4: {culprit} did not arrive"
    assert "does not answer: its host or its supervisor is down, stopped or cut off" in ended[0].stderr
    cut_off = three.names.index(host)
    alone = [one for rank, one in enumerate(ended) if rank != 0 and (rank == cut_off or cut_off == 0)]
    assert all("no answer from rank 0 (h1:" in one.last_line for one in alone), alone
    assert points(tmp_path / "run")
    assert header(tmp_path / "run")["hang"]["situation"] == "rank"
    assert not workers_of(three.pids())


@pytest.mark.slow
def test_where_the_ranks_should_meet_but_cannot_each_says_so_within_the_timeout(two: Hosts, tmp_path: Path) -> None:
    """A minute: no shorter -T shortens the meeting, since names and hosts may come up late."""
    nowhere = start(two, tmp_path, *SHORT, env={"MASTER_ADDR": "no-such-host"}, ranks=(0,))
    empty = start(two, tmp_path, *SHORT, env={"MASTER_ADDR": "head"}, ranks=(1,))
    unresolved, unheld = finish(nowhere + empty)
    assert (unresolved.code, unheld.code) == (4, 4)
    assert "rank 0 reached nobody at no-such-host in 60 s: the name cannot be resolved" in unresolved.last_line
    assert "rank 1 reached nobody at head in 60 s" in unheld.last_line
    assert "is rank 0 running, and is TCP to these ports allowed between the nodes?" in unheld.stderr
