"""Slurm's short forms in full."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import LaunchError
from nccl_bench.launch.hostlist import MAX_HOSTS, expand, tasks_per_node

LISTS = {
    "h1": ("h1",),
    "h[1-3,7],gpu[01-02]": ("h1", "h2", "h3", "h7", "gpu01", "gpu02"),
    "a-[0-1],b-3": ("a-0", "a-1", "b-3"),
    "r[1-2]n[01-03]": ("r1n01", "r1n02", "r1n03", "r2n01", "r2n02", "r2n03"),
    "node[01-02,07]": ("node01", "node02", "node07"),
    "x[9-11]": ("x9", "x10", "x11"),
    "ip-10-0-0-1.ec2.internal,ip-10-0-0-2.ec2.internal": ("ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal"),
    "h[5],h[5]": ("h5", "h5"),
}
SUFFIXED = {
    "gpu[08-11]-ib": ("gpu08-ib", "gpu09-ib", "gpu10-ib", "gpu11-ib"),
    "r[1-2]-n[3,5].local,x": ("r1-n3.local", "r1-n5.local", "r2-n3.local", "r2-n5.local", "x"),
}
"""Slurm 22.05 does not read a suffix after a bracket, so it is not asked about these."""


@pytest.mark.parametrize("text", [*LISTS, *SUFFIXED])
def test_node_lists_are_expanded_in_their_order(text: str) -> None:
    assert expand(text) == {**LISTS, **SUFFIXED}[text]


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol of Slurm is not installed")
@pytest.mark.parametrize("text", LISTS)
def test_node_lists_are_expanded_as_scontrol_does(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An own slurm.conf: without one scontrol refuses, with one that is missing it waits for a minute."""
    assert _scontrol(text, tmp_path_factory) == expand(text)


def _scontrol(text: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    conf = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=t\nSlurmctldHost=localhost\nAuthType=auth/none\nNodeName=h1\nPartitionName=p Nodes=ALL\n")
    run = subprocess.run(
        ["scontrol", "show", "hostnames", text], env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=20
    )
    if run.returncode:
        pytest.skip(f"scontrol does not run here: {run.stderr.strip()[:200]}")
    return tuple(run.stdout.split())


@pytest.mark.parametrize(
    "text", ["h[1-", "h]1[", "h[[1]]", "h[3-1]", "h[a-b]", "h[]", "h[1,,2]", "h1,,h2", "", "h 1", "h[1-99999999]", "r[1-300]n[1-300]", "h[1-9,]"]
)
def test_what_is_no_node_list_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(LaunchError) as caught:
        expand(text)

    assert repr(text) in caught.value.why


def test_a_list_may_name_as_many_hosts_as_the_limit_and_not_one_more() -> None:
    assert len(expand(f"h[1-{MAX_HOSTS}]")) == MAX_HOSTS
    with pytest.raises(LaunchError, match="more than 65536 hosts"):
        expand(f"h[1-{MAX_HOSTS}],x1")


def test_tasks_per_node_are_counted_out() -> None:
    assert tasks_per_node("2(x2),1") == (2, 2, 1)
    assert tasks_per_node("8(x128)") == (8,) * 128
    assert tasks_per_node("3,1") == (3, 1)


@pytest.mark.parametrize("text", ["", "2(x", "x2", "2(x2)1", "1(x99999999)", "-1"])
def test_what_is_no_list_of_counts_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(LaunchError) as caught:
        tasks_per_node(text)

    assert repr(text) in caught.value.why


@st.composite
def node_lists(draw: st.DrawFn) -> tuple[str, tuple[str, ...]]:
    """A node list and what it stands for, built together."""
    texts, hosts = [], []
    for _ in range(draw(st.integers(1, 4))):
        prefix = draw(st.from_regex(r"[a-z][a-z0-9-]{0,5}[a-z-]", fullmatch=True))
        suffix = draw(st.sampled_from(["", "-ib", ".local"]))
        width = draw(st.integers(1, 4))
        items, numbers = [], []
        for _ in range(draw(st.integers(1, 3))):
            first = draw(st.integers(0, 10**width - 1))
            last = draw(st.integers(first, first + 20))
            items.append(f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}")
            numbers.extend(f"{number:0{width}d}" for number in range(first, last + 1))
        texts.append(f"{prefix}[{','.join(items)}]{suffix}")
        hosts.extend(prefix + number + suffix for number in numbers)
    return ",".join(texts), tuple(hosts)


@given(node_lists())
def test_any_list_expands_to_the_hosts_it_was_made_of(case: tuple[str, tuple[str, ...]]) -> None:
    text, hosts = case

    assert expand(text) == hosts


@settings(max_examples=300)
@given(st.text(alphabet="ab1290[],-( x)", max_size=30))
def test_any_text_is_expanded_or_refused_and_never_crashes(text: str) -> None:
    for parse in (expand, tasks_per_node):
        try:
            items = parse(text)
        except LaunchError:
            continue
        assert len(items) <= MAX_HOSTS


@given(st.lists(st.tuples(st.integers(0, 128), st.integers(1, 5)), min_size=1, max_size=30))
def test_counts_are_the_ones_that_were_written(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in runs)

    assert tasks_per_node(text) == tuple(count for count, times in runs for _ in range(times))
