"""flows/accept_hosts.py, cli/accept_dry.py: who takes part, before anybody is met."""

from __future__ import annotations

import pytest

from nccl_bench.cli.accept_dry import dry_lines
from nccl_bench.errors import UsageError
from nccl_bench.flows.accept_hosts import chosen, hosts_of, least, min_hosts, not_there
from nccl_bench.flows.accept_spec import AcceptSpec
from nccl_bench.launch.launchers import from_environ
from nccl_bench.measure.pairs_spec import PairSpec
from nccl_bench.verdict.criteria import Criteria

HERE = [f"h{at}" for at in range(6)]
NO_OPTION = dict.fromkeys(("resume", "hosts", "exclude", "spares", "min_nodes", "reference"))
STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "h[0-5]", "SLURM_STEP_TASKS_PER_NODE": "1(x6)", "SLURM_STEP_NUM_NODES": "6",
        "SLURM_NNODES": "6"}  # fmt: skip


def test_the_last_of_those_that_were_chosen_are_spares():
    spec = AcceptSpec(hosts=("h0", "h1", "h2", "h4"), exclude=("h1", "moon"), spares=1)
    assert chosen(spec, HERE) == (["h0", "h2", "h4"], ["h4"])
    assert not_there(spec, HERE) == ["moon"]


@pytest.mark.parametrize(
    "spec, said",
    [
        (AcceptSpec(hosts=("h0", "moon")), "--hosts: moon is not in this allocation"),
        (AcceptSpec(hosts=("h0",), exclude=("h0",)), "leave no host"),
        (AcceptSpec(spares=6), "--spares 6 of 6 hosts leaves none"),
        (AcceptSpec(hosts=("h0",), spares=1), "--spares 1 of 1 host leaves none"),
    ],
)
def test_what_leaves_nobody_is_refused(spec, said):
    with pytest.raises(UsageError, match=said):
        chosen(spec, HERE)


def test_a_host_that_was_asked_for_and_never_came_is_no_slip():
    assert chosen(AcceptSpec(hosts=("h0", "h9")), HERE, absent=["h9"]) == (["h0"], [])


@pytest.mark.parametrize("text, expected", [("1", 1), ("6", 6), ("0.5", 3), ("0.95", 6), ("0.7", 5), ("0.1", 1), ("0.001", 1)])
def test_min_nodes_is_a_number_or_a_share_rounded_up(text, expected):
    assert min_hosts(least(text), AcceptSpec(), HERE) == expected


def test_a_share_that_is_a_whole_number_of_hosts_is_not_one_more():
    """0.1 of 30 is 3.0000000000000004 in binary."""
    assert min_hosts(0.1, AcceptSpec(), [f"h{at}" for at in range(30)]) == 3


@pytest.mark.parametrize("text", ["2.5", "1.0", "0", "-1", "nan", "inf", "95%", "1e3", "many", ""])
def test_min_nodes_that_is_neither_is_refused(text):
    with pytest.raises(UsageError, match="a whole number of hosts, or a share below 1"):
        least(text)


def test_more_than_there_are_cannot_be_left_unless_more_may_be_there():
    with pytest.raises(UsageError, match="more than there are: 5 hosts beside the spares"):
        min_hosts(6, AcceptSpec(spares=1), HERE)
    assert min_hosts(8, AcceptSpec(), HERE, whole=False) == 8


@pytest.mark.parametrize("text", ["a[", ",", "a,,b", ""])
def test_a_list_that_is_none_is_a_usage_error_of_its_option(text):
    with pytest.raises(UsageError, match=r"^--exclude"):
        hosts_of(text, "--exclude")


def test_a_dry_run_under_slurm_knows_the_hosts_of_the_step():
    launch = from_environ(STEP, "h0")
    assert launch.rank_hosts == tuple(HERE)
    given = {**NO_OPTION, "min_nodes": "0.5", "spares": 2}
    page = dry_lines(AcceptSpec(exclude=("h1", "moon"), spares=2), {}, Criteria(), given, launch, 1)
    assert page[:5] == [
        "stages: doctor, node, nic, pairs, rails, scale, cluster on 5 hosts, 5 ranks", "hosts: h0, h2, h3, h4, h5",
        "spares, held back from stages across hosts: h4, h5", "of them must be left: 2", "--exclude: moon is not in this allocation",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="h9 is not in this allocation"):
        dry_lines(AcceptSpec(hosts=("h9",)), {}, Criteria(), NO_OPTION, launch, 1)


def test_a_dry_run_whose_launcher_says_no_hosts_says_what_it_could_not_check():
    launch = from_environ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h0"}, "h0")
    page = dry_lines(AcceptSpec(hosts=("h9",)), {}, Criteria(), {**NO_OPTION, "hosts": "h9"}, launch, 1)
    assert page[0].endswith("on 2 hosts, 4 ranks")
    assert page[1].startswith("not checked: ")
    assert "so --hosts may still be refused" in page[1]


@pytest.mark.parametrize(
    "values", [{"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"sizes": (0, 8)}, {"budget_s": float("inf")}, {"mode": "2.5"}, {"mode": "0"}]
)
def test_a_pair_test_refuses_numbers_that_are_none(values):
    with pytest.raises(UsageError):
        PairSpec(**values)
