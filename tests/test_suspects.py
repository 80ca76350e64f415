"""What becomes of suspects: when a link is sure, what is merged, explained, ranked, noted and tried next. Tables whose every number is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nccl_bench.flows.pairs import Seats, confirming, evidence_of
from nccl_bench.verdict.evidence import LARGE_BOTH, SMALL_BOTH, SMALL_ONE, Alone, Evidence, Exchanges, Findings, Groups, Inside, Mark, Suspect
from nccl_bench.verdict.localise import localise, rails_of, suggest

pytestmark = pytest.mark.pure
N = 8


def hosts(n: int = N) -> tuple[str, ...]:
    return tuple(f"h{at}" for at in range(n))


def pairs(n: int = N) -> list[tuple[int, int]]:
    return [(a, b) for a in range(n) for b in range(a + 1, n)]


def repeated(speed, n: int = N, times: int = 6, rounds: int | None = 6, rail: int = 0, n_rails: int = 1) -> Evidence:
    """All pairs `times` times, in so many rounds; speed(a, b, time) in GB/s."""
    rows = [(a, b, rail, speed(a, b, at), LARGE_BOTH) for at in range(times) for a, b in pairs(n)]
    numbers = None if rounds is None else [at % rounds for at in range(times) for _ in pairs(n)]
    return Evidence(hosts=hosts(n), exchanges=Exchanges.of(rows, n_rails=n_rails, rounds=numbers))


def slow(share: float, links=((1, 2),), times=range(99)):
    return lambda a, b, at: 50.0 * (share if (a, b) in links and at in times else 1.0)


# ---- links


def test_a_link_that_is_slow_each_time_in_many_rounds_is_named_with_both_ends():
    found = localise(repeated(slow(0.8)))

    assert [(one.kind, one.host, one.peer, one.chance) for one in found.suspects] == [("link", "h1", "h2", None)]
    assert found.suspects[0].score == pytest.approx(0.2)
    assert found.suspects[0].evidence == ("h1 - h2: -20% in 6 of 6 exchanges", "h1 and h2 fast with others: link or route")
    assert (found.undetermined, found.next_pairs, found.failed) == ((), (), ())
    assert found.reference == {"large, both directions": 50.0}


def test_its_loss_is_the_least_that_it_ever_lost():
    found = localise(repeated(lambda a, b, at: 50.0 * (0.6 + 0.05 * at if (a, b) == (1, 2) else 1.0)))

    assert found.suspects[0].score == pytest.approx(1 - 0.85)


@pytest.mark.parametrize(
    ("evidence", "sure"),
    [
        (repeated(slow(0.8), times=5), False),
        (repeated(slow(0.8, times=range(5))), False),
        (repeated(slow(0.92)), False),
        (repeated(slow(0.89)), True),
        (repeated(slow(0.8), rounds=2), False),
        (repeated(slow(0.8), rounds=3), True),
        (repeated(slow(0.8), rounds=None), True),
    ],
    ids=["five times", "five of six", "8 %", "11 %", "two rounds", "three rounds", "rounds unknown"],
)
def test_fewer_exchanges_fewer_rounds_or_a_smaller_loss_leave_it_undetermined(evidence, sure):
    found = localise(evidence)

    assert [(one.kind, one.host, one.peer) for one in (found.suspects if sure else found.undetermined)] == [("link", "h1", "h2")]
    assert (len(found.suspects), len(found.undetermined)) == ((1, 0) if sure else (0, 1))
    assert found.next_pairs == (() if sure else (("h1", "h2"),))


@pytest.mark.parametrize("n_links", [16, 17])
def test_more_than_sixteen_slow_links_are_something_else(n_links):
    links = tuple((2 * at, 2 * at + 1) for at in range(n_links))
    found = localise(repeated(slow(0.7, links), n=36))
    named = {(f"h{a}", f"h{b}") for a, b in links}

    assert {(one.host, one.peer) for one in found.suspects} == (named if n_links == 16 else set())
    assert len(found.undetermined) == (0 if n_links == 16 else 16)
    assert {(one.host, one.peer) for one in found.undetermined} <= named


def test_three_slow_links_of_one_end_are_no_links_of_their_own():
    found = localise(repeated(slow(0.8, links=((1, 2), (1, 3), (1, 4)))))

    assert [one for one in found.suspects if one.kind == "link"] == []
    assert {(one.host, one.peer) for one in found.undetermined} == {("h1", "h2"), ("h1", "h3"), ("h1", "h4")}


def test_a_link_of_one_local_rank_is_named_with_it():
    rows = [(a, b, rail, 50.0 * (0.8 if (a, b, rail) == (1, 2, 3) else 1.0), LARGE_BOTH) for _ in range(6) for a, b in pairs() for rail in range(4)]
    found = localise(Evidence(hosts=hosts(), exchanges=Exchanges.of(rows, n_rails=4)))

    assert found.suspects[0].evidence[0] == "h1 - h2: -20% in 6 of 6 exchanges (local rank 3)"


# ---- what is noted


def test_failed_pairs_across_a_boundary_are_counted():
    broken = {(0, 1), (0, 7), (1, 6)}
    rows = [(a, b, 0, math.nan if (a, b) in broken else 50.0, LARGE_BOTH) for a, b in pairs()]
    groups = Groups(of=("r1",) * 4 + ("r2",) * 4, source="--groups")
    found = localise(Evidence(hosts=hosts(), exchanges=Exchanges.of(rows), groups=groups))

    assert found.failed == ("h0 - h1", "h0 - h7", "h1 - h6")
    assert "3 pairs failed, 2 of them across the boundary" in found.notes


@pytest.mark.parametrize(("sigma", "noted"), [(0.10, True), (0.03, False)])
def test_noise_that_hides_losses_is_said(sigma, noted):
    rng = np.random.default_rng(5)
    rows = [(a, b, 0, 50.0 * math.exp(rng.normal(0, sigma)), LARGE_BOTH) for _ in range(8) for a, b in pairs()]
    found = localise(Evidence(hosts=hosts(), exchanges=Exchanges.of(rows)))
    notes = [note for note in found.notes if "scatter" in note]

    assert bool(notes) is noted
    if noted:
        spread, hidden = (int(word.rstrip("%,")) for word in notes[0].split() if word.rstrip(",").endswith("%"))
        assert notes[0].startswith("large, both directions: exchanges scatter by ")
        assert spread == pytest.approx(10, abs=2)
        assert hidden == pytest.approx(100 * (1 - math.exp(-4 * spread / 100)), abs=2)


def test_the_reference_is_by_size_and_direction():
    rows = [(a, b, 0, speed, stratum) for a, b in pairs() for speed, stratum in ((50.0, LARGE_BOTH), (0.2, SMALL_ONE))]

    assert localise(Evidence(hosts=hosts(), exchanges=Exchanges.of(rows))).reference == {"large, both directions": 50.0, "small, one direction": 0.2}


# ---- what is merged, explained and ranked


def marks(*found: Mark, **more) -> Findings:
    return localise(Evidence(hosts=hosts(), marks=found, **more))


def test_marks_of_one_place_are_one_suspect_and_other_places_are_others():
    found = marks(
        Mark(kind="nic", host="h1", nic="mlx5_0", text="link_downed +2"),
        Mark(kind="nic", host="h1", nic="mlx5_0", text="symbol_error +9"),
        Mark(kind="nic", host="h1", nic="mlx5_0", text="link_downed +2"),
        Mark(kind="nic", host="h1", nic="mlx5_1", text="link_downed +1"),
        Mark(kind="gpu", host="h1", gpu=0, text="wrong data"),
        serials={("h1", "mlx5_1"): "MT1", ("h1", "gpu 0"): "165", ("h1", "mlx5_7"): "MT7"},
    )

    assert [(one.kind, one.gpu, one.nic, one.score, one.evidence, one.serial) for one in found.suspects] == [
        ("gpu", 0, None, 1.0, ("wrong data",), "165"),
        ("nic", None, "mlx5_0", 1.0, ("link_downed +2", "symbol_error +9"), None),
        ("nic", None, "mlx5_1", 1.0, ("link_downed +1",), "MT1"),
    ]


def slow_node(*more: Mark) -> Suspect:
    """What is said of h1, which all others reach at half their speed, and which carries these marks."""
    rows = [(a, b, 0, 25.0 if 1 in (a, b) else 50.0, LARGE_BOTH) for a, b in pairs()]
    found = localise(Evidence(hosts=hosts(), exchanges=Exchanges.of(rows), marks=more))
    return next(one for one in found.suspects if (one.kind, one.host) == ("node", "h1"))


def test_a_mark_on_a_measured_suspect_joins_it_and_leaves_its_measured_loss():
    alone, marked = slow_node(), slow_node(Mark(kind="node", host="h1", text="fans stopped"))

    assert alone.score == pytest.approx(0.5)
    assert alone.chance is not None
    assert (marked.score, marked.chance) == (alone.score, alone.chance)
    assert set(marked.evidence) == {*alone.evidence, "fans stopped"}


def test_hints_join_their_own_host_and_device_alone():
    hints = (
        Mark(kind="gpu", host="h1", gpu=3, text="throttled", blames=False),
        Mark(kind="nic", host="h2", nic="mlx5_0", text="resets", blames=False),
    )
    node = slow_node(*hints)
    devices = marks(
        *hints,
        Mark(kind="gpu", host="h1", gpu=3, text="a"),
        Mark(kind="gpu", host="h1", gpu=4, text="b"),
        Mark(kind="nic", host="h2", nic="mlx5_0", text="c"),
        Mark(kind="nic", host="h2", nic="mlx5_1", text="d"),
        Mark(kind="gpu", host="h2", gpu=3, text="e"),
    )

    assert "throttled" in node.evidence
    assert "resets" not in node.evidence
    assert sorted(one.evidence for one in devices.suspects) == [("a", "throttled"), ("b",), ("c", "resets"), ("d",), ("e",)]


def test_a_gpu_that_is_named_explains_its_nodes_totals_and_its_local_rank():
    inside = [
        (node, a, b, 200.0 if (node == 2 and 5 in (a, b)) else 380.0, LARGE_BOTH) for node in range(N) for a in range(8) for b in range(a + 1, 8)
    ]
    totals = Alone.of("all_reduce inside the node", [(node, -1, 240.0 if node in (2, 4) else 470.0) for node in range(N) for _ in range(3)])
    rails = [(a, b, rail, 24.0 if rail == 5 and 2 in (a, b) else 48.0, LARGE_BOTH) for a, b in pairs() for rail in range(8)]
    other = Mark(kind="gpu", host="h0", gpu=1, text="remapped rows")
    both = Evidence(hosts=hosts(), inside=Inside.of(inside), alone=(totals,), exchanges=Exchanges.of(rails, n_rails=8), marks=(other,))
    first, gpu, node = sorted(localise(both).suspects, key=lambda one: (one.kind, one.host))

    assert [(one.kind, one.host, one.gpu) for one in (first, gpu, node)] == [("gpu", "h0", 1), ("gpu", "h2", 5), ("node", "h4", None)]
    assert first.evidence == ("remapped rows",)
    assert sum("the node reaches" in text for text in gpu.evidence) == 1
    assert any("local rank 5" in text for text in gpu.evidence)
    assert len(gpu.evidence) >= 3
    without = localise(Evidence(hosts=hosts(), alone=(totals,)))
    assert [(one.kind, one.host) for one in without.suspects] == [("node", "h2"), ("node", "h4")]


def test_a_port_that_is_named_explains_its_local_rank():
    rails = [(a, b, rail, 24.0 if rail == 3 and 5 in (a, b) else 48.0, LARGE_BOTH) for a, b in pairs() for rail in range(8)]
    port = Mark(kind="nic", host="h5", nic="mlx5_3", text="symbol errors")
    unproven = Evidence(hosts=hosts(), exchanges=Exchanges.of(rails, n_rails=8), marks=(port,))
    proven = Evidence(hosts=hosts(), exchanges=Exchanges.of(rails, n_rails=8), marks=(port,), nic_of={("h5", 3): "mlx5_3"})

    assert {(one.kind, one.gpu, one.nic) for one in localise(unproven).suspects} == {("nic", None, "mlx5_3"), ("rank", 3, None)}
    assert [(one.kind, one.gpu, one.nic) for one in localise(proven).suspects] == [("nic", None, "mlx5_3")]


def test_the_worst_is_first_and_equals_are_in_order_of_their_names():
    rows = [(a, b, 0, 50.0 * (0.6 if 6 in (a, b) else 0.3 if 3 in (a, b) else 1.0), LARGE_BOTH) for a, b in pairs(24)]
    found = localise(Evidence(hosts=hosts(24), exchanges=Exchanges.of(rows), marks=(Mark(kind="node", host="h9", text="hangs"),)))
    equals = marks(*(Mark(kind="node", host=host, text="hangs") for host in ("h5", "h2", "h7")))

    assert [one.host for one in found.suspects] == ["h9", "h3", "h6"]
    assert [one.host for one in equals.suspects] == ["h2", "h5", "h7"]


# ---- what to try next, and times by local rank


def test_suspects_are_tried_with_three_partners_each_and_with_one_another():
    rows = [(a, b, 0, 50.0, LARGE_BOTH) for a, b in ((0, 1), (1, 0), (2, 3), (4, 5), (6, 7))]
    evidence = Evidence(hosts=hosts(), exchanges=Exchanges.of(rows))
    bad = Findings(suspects=tuple(Suspect(kind="node", host=host, score=0.5, chance=None, evidence=()) for host in ("h0", "h2")))
    found = suggest(evidence, bad)
    partners = {host: {a if b == host else b for a, b in found if host in (a, b)} for host in ("h0", "h2")}

    assert ("h0", "h2") in found
    assert {host: len(others - {"h0", "h2"}) for host, others in partners.items()} == {"h0": 3, "h2": 3}
    assert not partners["h0"] & {"h0", "h1"}, "met already"
    assert not partners["h2"] & {"h2", "h3"}
    assert suggest(Evidence(hosts=hosts()), bad) == ()
    assert suggest(evidence, Findings(next_pairs=(("h4", "h6"),))) == (("h4", "h6"),)


def test_a_suspect_that_has_met_all_meets_some_again():
    rows = [(a, b, 0, 25.0 if 1 in (a, b) else 50.0, LARGE_BOTH) for a, b in pairs(4)]
    evidence = Evidence(hosts=hosts(4), exchanges=Exchanges.of(rows))

    assert suggest(evidence, localise(evidence)) == (("h0", "h1"), ("h1", "h2"), ("h1", "h3"))


@pytest.mark.parametrize("slow_at", [0, 3])
def test_a_local_rank_that_is_slow_on_every_node_is_a_rail(slow_at):
    found = rails_of({(host, local): (40.0 if local == slow_at else 20.0) for host in hosts() for local in range(4)})

    assert [(one.kind, one.host, one.gpu) for one in found.suspects] == [("rank", None, slow_at)]
    assert found.suspects[0].score == pytest.approx(0.5)
    assert found.notes == ("times by local rank; a node would show in all of its local ranks",)
    assert rails_of(dict.fromkeys([(host, local) for host in hosts() for local in range(4)], 20.0)).suspects == ()


def test_links_of_both_sizes_are_one_link():
    rows = [
        (a, b, 0, (50.0 if stratum == LARGE_BOTH else 0.2) * (0.8 if (a, b) == (1, 2) else 1.0), stratum)
        for _ in range(6) for a, b in pairs() for stratum in (LARGE_BOTH, SMALL_BOTH)
    ]  # fmt: skip
    found = localise(Evidence(hosts=hosts(), exchanges=Exchanges.of(rows)))

    assert [(one.kind, one.host, one.peer) for one in found.suspects] == [("link", "h1", "h2")]
    assert found.suspects[0].evidence == ("h1 - h2: -20% in 6 of 6 exchanges", "h1 and h2 fast with others: link or route")
    assert found.undetermined == ()


def test_links_that_meet_on_one_local_rank_are_no_links_and_those_on_others_are():
    meeting = {(2, 3, 1), (3, 4, 1), (3, 5, 1), (6, 7, 3), (4, 6, 0), (0, 7, 2)}
    rows = [
        (a, b, rail, 50.0 * (0.8 if (a, b, rail) in meeting else 1.0), LARGE_BOTH) for _ in range(6) for a, b in pairs() for rail in range(4)
    ]
    found = localise(Evidence(hosts=hosts(), exchanges=Exchanges.of(rows, n_rails=4)))

    assert {(one.host, one.peer) for one in found.suspects if one.kind == "link"} == {("h4", "h6"), ("h6", "h7"), ("h0", "h7")}
    assert {(one.host, one.peer) for one in found.undetermined} == {("h2", "h3"), ("h3", "h4"), ("h3", "h5")}


def test_marks_of_ranks_are_explained_by_their_gpu_or_port_and_nothing_after_them_is_lost():
    found = marks(
        Mark(kind="nic", host="h1", nic="mlx5_0", text="link_downed"),
        Mark(kind="rank", host="h1", gpu=0, text="late"),
        Mark(kind="gpu", host="h2", gpu=5, text="remapped rows"),
        Mark(kind="rank", host="h2", gpu=5, text="hangs"),
        Mark(kind="rank", host="h2", gpu=6, text="late too"),
        Mark(kind="node", host="h3", text="reboots"),
        nic_of={("h1", 0): "mlx5_0", ("h2", 5): "mlx5_5"},
    )

    assert sorted((one.kind, one.host, one.gpu, one.evidence) for one in found.suspects) == [
        ("gpu", "h2", 5, ("remapped rows", "hangs")),
        ("nic", "h1", None, ("link_downed",)),
        ("node", "h3", None, ("reboots",)),
        ("rank", "h2", 6, ("late too",)),
    ]


@pytest.mark.parametrize(("n", "n_rails", "place"), [(16, 8, (0, 1)), (24, 4, (3, 9, 11)), (48, 1, (3, 9))])
def test_nodes_slow_with_all_but_one_another_share_a_way_out_on_every_rail(n, n_rails, place):
    rows = [
        (a, b, rail, 50.0 * (0.5 if (a in place) != (b in place) else 1.0), LARGE_BOTH) for a, b in pairs(n) for rail in range(n_rails)
    ]
    found = localise(Evidence(hosts=hosts(n), exchanges=Exchanges.of(rows, n_rails=n_rails)))

    assert [(one.kind, one.host, one.peer) for one in found.suspects] == [("boundary", "{" + ", ".join(f"h{at}" for at in place) + "}", "the others")]
    assert found.suspects[0].score == pytest.approx(0.5)
    assert found.suspects[0].evidence[0].startswith(f"{len(place)} nodes are slow with the others (-50% in {n - len(place)} of {n - 1} exchanges")
    assert found.undetermined == ()


def test_a_node_slow_on_one_local_rank_is_not_set_free_with_others():
    rows = [(a, b, rail, 50.0 * (0.5 if a < 2 <= b and rail == 2 else 1.0), LARGE_BOTH) for a, b in pairs(16) for rail in range(8)]
    found = localise(Evidence(hosts=hosts(16), exchanges=Exchanges.of(rows, n_rails=8)))

    assert {(one.kind, one.host, one.gpu) for one in found.suspects} == {("rank", "h0", 2), ("rank", "h1", 2)}


def test_where_nothing_worked_no_host_is_to_be_tried_with_itself_or_with_whom_it_failed():
    for speed in (0.0, math.nan):
        rows = [(a, b, 0, speed, LARGE_BOTH) for a, b in ((0, 1), (2, 1), (3, 0))]
        found = localise(Evidence(hosts=hosts(4), exchanges=Exchanges.of(rows)))

        assert found.suspects == ()
        assert [(one.host, one.peer) for one in found.undetermined] == [("h0", "h1"), ("h0", "h3"), ("h1", "h2")]
        assert found.next_pairs == (("h0", "h2"), ("h1", "h3"), ("h2", "h3"))


def test_few_nodes_are_measured_again_where_exchanges_scatter_too_much_to_name_anybody():
    """Four hosts, one of them sending at a thirtieth, on a machine whose load rose to 16 for the half second of the rounds (benchmarks/hosts.py)."""
    records = [json.loads(line) for line in (Path(__file__).parent / "data/pairs_of_a_busy_moment.jsonl").read_text().splitlines()]
    evidence = evidence_of(records, Seats(hosts=hosts(4), node=(0, 1, 2, 3), local=(0, 0, 0, 0)), None, None)
    findings = localise(evidence)

    assert (findings.suspects, findings.undetermined) == ((), ())
    assert findings.unseen_frac > 0.9
    assert confirming(evidence, findings) == tuple(pairs(4))
    assert confirming(evidence, replace(findings, unseen_frac=0.1)) == ()
