"""Who is to blame: tables from the field, and a synthetic cluster of which everything is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import synthetic
from field_cases import FILES, needs_cases

from nccl_bench.report.suspects import findings_lines
from nccl_bench.results.importers import import_file
from nccl_bench.results.pair_table import PairTable, parse_pairs
from nccl_bench.results.text import from_bytes, read_text
from nccl_bench.verdict.evidence import LARGE_BOTH, Evidence, Exchanges, Groups, Inside, Mark
from nccl_bench.verdict.localise import localise, rails_of, suggest
from nccl_bench.verdict.table_pairs import evidence_of, verdict


def table(text: str, *, all_may_fail: bool = False) -> PairTable:
    return parse_pairs(from_bytes(Path("pairs.txt"), text.encode()), "pairs.txt", all_may_fail=all_may_fail)


def field(name: str) -> PairTable:
    return parse_pairs(read_text(FILES / name), name)


# ---- the field


@needs_cases
def test_a_node_slow_with_two_partners_that_are_fast_elsewhere_is_named_and_the_lonely_pair_is_not():
    pairs = field("pairs_a100_5pairs.txt")
    found = localise(evidence_of(pairs))
    assert [(one.kind, one.host) for one in found.suspects] == [("node", "nodegn644")]
    assert {(one.host, one.peer) for one in found.undetermined} == {("nodegn284", "nodegn678")}
    assert set(found.next_pairs) == {("nodegn284", "nodegn632"), ("nodegn678", "nodegn632")}
    assert verdict(found, len(pairs.nodes))[0] == 1


@needs_cases
def test_two_groups_of_nodes_are_a_boundary_and_no_node_is_bad():
    pairs = field("pairs_c00_G8_alltoall.csv")
    found = localise(evidence_of(pairs))
    assert [one.kind for one in found.suspects] == ["boundary"]
    sides = [{f"cnode2-{number:03d}" for number in numbers} for numbers in ((1, 2, 3, 4, 6, 9, 12, 16, 17), (5, 7, 8, 10, 11, 13, 14, 15))]
    boundary = found.suspects[0]
    assert [set(str(side).strip("{}").split(", ")) for side in (boundary.host, boundary.peer)] == sides
    assert len(found.failed) == 5
    assert "cnode2-002 - cnode2-008" in found.failed
    assert any("5 pairs failed, 5 of them across" in note for note in found.notes)
    assert any("inferred" in text for text in boundary.evidence)
    assert verdict(found, len(pairs.nodes))[0] == 1


@needs_cases
def test_a_healthy_cluster_has_no_outlier():
    pairs = field("pairs_c01_G8_alltoall.csv")
    found = localise(evidence_of(pairs))
    assert (found.suspects, found.undetermined) == ((), ())
    assert verdict(found, len(pairs.nodes)) == (0, "no outlier")


@needs_cases
def test_local_ranks_that_are_slow_on_every_node_are_named_and_no_node():
    imported = import_file(FILES / "perrank_2node_8groups_time.txt")
    hosts = {rank["rank"]: (rank["host"], rank["local_rank"]) for rank in imported.ranks}
    times = {hosts[at]: point.time_us.median for at, point in enumerate(imported.points)}
    found = rails_of(times)
    assert {(one.kind, one.host, one.gpu) for one in found.suspects} == {("rank", None, 0), ("rank", None, 1)}
    assert all(one.score == pytest.approx(1 - 0.63, abs=0.01) for one in found.suspects)
    assert "0.63 of the others' speed" in found.suspects[0].evidence[0]


def test_a_slow_pair_whose_ends_are_fast_with_others_is_a_link_or_route_and_no_node():
    found = localise(evidence_of(table("n1 n3 98\nn2 n4 97\nn1 n2 41\n")))
    assert found.suspects == ()
    assert [(one.kind, one.host, one.peer) for one in found.undetermined] == [("link", "n1", "n2")]
    assert "fast with others: link or route" in found.undetermined[0].evidence[1]
    assert set(found.next_pairs) == {("n1", "n4"), ("n2", "n3")}, "the pair itself is measured: others would decide"


def test_a_slow_link_whose_ends_have_met_everybody_is_to_be_measured_again():
    evidence = full(6, lambda a, b: 40 if (a, b) == (1, 2) else 90)
    found = localise(evidence)
    assert found.next_pairs == (("h1", "h2"),)
    assert any(line.endswith("measure h1 - h2 again") for line in findings_lines(found))
    assert ("h1", "h2") in suggest(evidence, found)


@pytest.mark.parametrize("body", ["a b 0\na c 0\na d 0\nb c 0\n", "a b nan\na c FAILED\na d -\n"])
def test_where_every_pair_failed_nobody_is_blamed_and_it_fails(body):
    found = localise(evidence_of(table(body, all_may_fail=True)))
    assert found.suspects == ()
    assert {(one.host, one.peer) for one in found.undetermined} >= {("a", "b"), ("a", "c"), ("a", "d")}
    assert not {frozenset(pair) for pair in found.next_pairs} & {frozenset((one.host, one.peer)) for one in found.undetermined}
    code, why = verdict(found, 4)
    assert (code, why.startswith(f"{len(found.failed)} pairs failed: every pair failed")) == (1, True)


def test_where_one_pair_works_the_host_that_fails_with_all_others_is_blamed():
    found = localise(evidence_of(table("a b 0\na c 0\na d 0\nb c 90\nc d 90\nb d 91\n")))
    assert [(one.kind, one.host) for one in found.suspects] == [("node", "a")]


# ---- small tables of every shape


def full(n: int, value, noise: float = 0.005, seed: int = 0) -> Evidence:
    """All pairs of n nodes; value(a, b) in GB/s."""
    rng = np.random.default_rng(seed)
    rows = [(a, b, 0, value(a, b) * np.exp(rng.normal(0, noise)), LARGE_BOTH) for a in range(n) for b in range(a + 1, n)]
    return Evidence(hosts=tuple(f"h{at}" for at in range(n)), exchanges=Exchanges.of(rows))


@pytest.mark.parametrize("n", [3, 4, 8, 16, 33])
def test_one_slow_node_of_many_is_named_alone(n):
    found = localise(full(n, lambda a, b: 40 if 1 in (a, b) else 90))
    assert [(one.kind, one.host) for one in found.suspects] == [("node", "h1")]
    assert found.suspects[0].score == pytest.approx(1 - 40 / 90, abs=0.03)


@pytest.mark.parametrize("n", [2, 3, 8, 16, 33])
def test_nothing_is_named_where_all_are_alike(n):
    found = localise(full(n, lambda a, b: 90))
    assert (found.suspects, found.undetermined) == ((), ())


def test_two_nodes_slow_with_all_but_fast_with_one_another_share_a_place():
    found = localise(full(12, lambda a, b: 40 if (a < 2) != (b < 2) else 90))
    assert [one.kind for one in found.suspects] == ["boundary"]
    assert "h0, h1" in str(found.suspects[0].host)


def test_two_bad_nodes_are_slow_with_one_another_too_and_both_named():
    found = localise(full(12, lambda a, b: 40 if a < 2 or b < 2 else 90))
    assert {(one.kind, one.host) for one in found.suspects} == {("node", "h0"), ("node", "h1")}


def test_a_boundary_is_no_fault_where_so_much_oversubscription_was_stated():
    evidence = full(12, lambda a, b: 45 if (a < 6) != (b < 6) else 90)
    groups = Groups(of=("r1",) * 6 + ("r2",) * 6, source="--groups racks.csv")
    stated = Evidence(hosts=evidence.hosts, exchanges=evidence.exchanges, groups=groups, oversubscription=2.0)
    assert localise(stated).suspects == ()
    less = Evidence(hosts=evidence.hosts, exchanges=evidence.exchanges, groups=groups, oversubscription=1.5)
    assert [(one.kind, one.host, one.peer) for one in localise(less).suspects] == [("boundary", "r1", "r2")]


def test_one_rail_is_named_once_and_not_on_every_node():
    rng = np.random.default_rng(1)
    rows = [
        (a, b, rail, (30 if rail == 2 else 48) * np.exp(rng.normal(0, 0.01)), LARGE_BOTH)
        for a in range(12)
        for b in range(a + 1, 12)
        for rail in range(8)
    ]
    hosts = tuple(f"h{at}" for at in range(12))
    nics = {(host, rail): f"mlx5_{rail}" for host in hosts for rail in range(8)}
    proven = localise(Evidence(hosts=hosts, exchanges=Exchanges.of(rows, n_rails=8), nic_of=nics))
    assert [(one.kind, one.host, one.nic) for one in proven.suspects] == [("rail", None, "mlx5_2")]
    unproven = localise(Evidence(hosts=hosts, exchanges=Exchanges.of(rows, n_rails=8)))
    assert [(one.kind, one.host, one.gpu) for one in unproven.suspects] == [("rank", None, 2)]


def test_a_port_without_proof_is_a_local_rank_and_says_what_is_not_proven():
    rng = np.random.default_rng(2)
    rows = [
        (a, b, rail, (24 if rail == 3 and 5 in (a, b) else 48) * np.exp(rng.normal(0, 0.01)), LARGE_BOTH)
        for a in range(8) for b in range(a + 1, 8) for rail in range(8)
    ]  # fmt: skip
    hosts = tuple(f"h{at}" for at in range(8))
    found = localise(Evidence(hosts=hosts, exchanges=Exchanges.of(rows, n_rails=8)))
    assert [(one.kind, one.host, one.gpu, one.nic) for one in found.suspects] == [("rank", "h5", 3, None)]
    assert any("not proven" in text for text in found.suspects[0].evidence)
    serials = {("h5", "mlx5_3"): "MT2251X01234"}
    known = localise(Evidence(hosts=hosts, exchanges=Exchanges.of(rows, n_rails=8), nic_of={("h5", 3): "mlx5_3"}, serials=serials))
    assert [(one.kind, one.host, one.nic, one.serial) for one in known.suspects] == [("nic", "h5", "mlx5_3", "MT2251X01234")]


def test_a_gpu_slow_with_the_others_of_its_node_is_named_and_a_whole_node_is_a_node():
    rng = np.random.default_rng(3)

    def rows(bad):
        return [(node, a, b, (200 if bad(node, a, b) else 380) * np.exp(rng.normal(0, 0.005)), LARGE_BOTH)
                for node in range(6) for a in range(8) for b in range(a + 1, 8)]  # fmt: skip

    hosts = tuple(f"h{at}" for at in range(6))
    one = localise(Evidence(hosts=hosts, inside=Inside.of(rows(lambda node, a, b: node == 2 and 5 in (a, b)))))
    assert [(found.kind, found.host, found.gpu) for found in one.suspects] == [("gpu", "h2", 5)]
    whole = localise(Evidence(hosts=hosts, inside=Inside.of(rows(lambda node, a, b: node == 2))))
    assert [(found.kind, found.host) for found in whole.suspects] == [("node", "h2")]


def test_marks_make_suspects_and_hints_only_join_them():
    counter = Mark(kind="nic", host="h1", nic="mlx5_0", text="link_downed +2")
    hint = Mark(kind="gpu", host="h2", gpu=1, text="throttled under load", blames=False)
    found = localise(Evidence(hosts=("h0", "h1", "h2"), marks=(counter, hint)))
    assert [(one.kind, one.host, one.nic, one.chance) for one in found.suspects] == [("nic", "h1", "mlx5_0", None)]
    assert found.suspects[0].evidence == ("link_downed +2",)


def test_a_suspect_is_to_be_tried_with_partners_that_are_good_and_that_it_has_not_met():
    rng = np.random.default_rng(4)
    rows = [
        (a, (a + step) % 40, 0, (20 if 3 in (a, (a + step) % 40) else 48) * np.exp(rng.normal(0, 0.01)), LARGE_BOTH)
        for a in range(40)
        for step in (1, 2, 5)
    ]
    evidence = Evidence(hosts=tuple(f"h{at}" for at in range(40)), exchanges=Exchanges.of(rows))
    found = localise(evidence)
    assert [one.host for one in found.suspects] == ["h3"]
    pairs = suggest(evidence, found)
    partners = {a if b == "h3" else b for a, b in pairs}
    assert len(partners) == 3
    assert not partners & {"h2", "h1", "h4", "h5", "h8", "h38", "h3"}


def test_failed_pairs_count_against_an_end_like_slow_ones():
    rows = [(a, b, 0, float("nan") if 2 in (a, b) else 48.0, LARGE_BOTH) for a in range(8) for b in range(a + 1, 8)]
    found = localise(Evidence(hosts=tuple(f"h{at}" for at in range(8)), exchanges=Exchanges.of(rows)))
    assert [(one.kind, one.host, one.score) for one in found.suspects] == [("node", "h2", 1.0)]
    assert len(found.failed) == 7


def test_exchanges_that_scatter_too_much_to_show_a_fault_are_no_pass():
    rng = np.random.default_rng(3)
    rows = [(a, b, 0, 90 * np.exp(rng.normal(0, 0.15)), LARGE_BOTH) for a in range(12) for b in range(a + 1, 12)]
    found = localise(Evidence(hosts=tuple(f"h{at}" for at in range(12)), exchanges=Exchanges.of(rows)))
    assert (found.suspects, found.undetermined) == ((), ())
    assert verdict(found, 12)[0] == 8
    assert verdict(localise(full(12, lambda a, b: 90)), 12)[0] == 0


def test_two_nodes_alone_cannot_be_told_apart():
    found = localise(evidence_of(table("a b 50\n")))
    assert verdict(found, 2)[0] == 8


# ---- the synthetic cluster (benchmarks/blame.py has the whole table)


@pytest.mark.parametrize("kind", synthetic.KINDS)
def test_each_kind_of_fault_is_found_where_it_is(kind):
    for seed in range(12):
        cluster = synthetic.make(seed, n=int(2 ** (3 + seed % 5)), kinds=(kind,))
        suspects = cluster.judge().suspects
        assert suspects, (kind, seed)
        assert all(any(synthetic.is_of(one, fault, cluster) for fault in cluster.faults) for one in suspects), (kind, seed, suspects)


def test_clean_clusters_stay_clean():
    for seed in range(40):
        cluster = synthetic.make(1000 + seed, n=int(2 ** (3 + seed % 6)), kinds=())
        assert cluster.judge().suspects == (), seed


def test_several_faults_at_once_are_all_named_and_nobody_else():
    right = wrong = missed = 0
    for seed in range(2000, 2030):
        cluster = synthetic.make(seed, n=32)
        suspects = cluster.judge().suspects
        right += sum(any(synthetic.is_of(one, fault, cluster) for fault in cluster.faults) for one in suspects)
        wrong += sum(not any(synthetic.is_of(one, fault, cluster) for fault in cluster.faults) for one in suspects)
        missed += sum(not any(synthetic.is_of(one, fault, cluster) for one in suspects) for fault in cluster.faults)
    assert right > 40
    assert wrong <= 0.01 * right
    assert missed <= 0.02 * right
