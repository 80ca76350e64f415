"""Tables of pairs and of ranks."""

from pathlib import Path

import pytest
from field_cases import FILES, needs_cases
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import DataError
from nccl_bench.results.importers import import_file
from nccl_bench.results.pair_table import import_pairs, is_pair_table, parse_pairs
from nccl_bench.results.text import from_bytes


def text(body):
    return from_bytes(Path("p.txt"), body.encode())


@needs_cases
def test_plain_pairs_keep_their_values_and_notes():
    table = parse_pairs(from_bytes(Path("p"), (FILES / "pairs_a100_5pairs.txt").read_bytes()), "p")

    assert [(row.a[-3:], row.b[-3:], row.value) for row in table.rows] == [
        ("644", "699", 49.36),
        ("632", "641", 88.36),
        ("284", "678", 49.28),
        ("641", "644", 49.3),
        ("404", "699", 86.81),
    ]
    assert [row.note for row in table.rows] == [None, None, "crossing TOR", None, "crossing TOR"]


@needs_cases
def test_a_csv_with_node_lists_gives_every_pair_and_names_the_failed():
    file = import_file(FILES / "pairs_c00_G8_alltoall.csv")
    failed = [point for point in file.points if point.status == "failed"]

    assert (len(file.points), file.n_nodes, len(failed)) == (136, 17, 5)
    assert all(point.busbw_GBps is None for point in failed)
    assert any("cnode2-002-cnode2-008" in warning and "5 of 136" in warning for warning in file.warnings)
    assert {point.collective for point in file.points} == {"all_to_all"}
    assert {point.n_ranks for point in file.points} == {16}
    first = file.points[0]
    assert (file.ranks[first.pair.src]["host"], file.ranks[first.pair.dst]["host"], first.busbw_GBps) == ("cnode2-001", "cnode2-002", 23.4963)


@needs_cases
def test_the_healthy_control_is_read_whole():
    values = [point.busbw_GBps for point in import_file(FILES / "pairs_c01_G8_alltoall.csv").points]

    assert (len(values), min(values), max(values)) == (45, pytest.approx(91.25, abs=0.01), pytest.approx(91.93, abs=0.01))


@pytest.mark.parametrize(
    "body",
    ["h1,h2,92.1\nh2,h3,91.0\n", "h1 h2 92.1\nh2 h3 91.0\n", "h1\th2\t92.1\nh2\th3\t91.0\n", "a,b,value\nh1,h2,92.1\nh2,h3,91.0\n",
     "src,dst,busbw_GBps\nh1,h2,92.1\nh2,h3,91.0\n", "h1 -> h2: 92.1 GB/s\nh2 -> h3: 91.0 GB/s\n", "# my table\nh1 h2 736.8Gb/s\nh2 h3 728Gb/s\n",
     "nodes,bandwidth\n\"h1,h2\",92.1\n\"h[2-3]\",91.0\n"],
)  # fmt: skip
def test_pairs_are_read_in_every_common_spelling(body):
    table = parse_pairs(text(body), "p.txt")

    assert is_pair_table(text(body))
    assert [(row.a, row.b) for row in table.rows] == [("h1", "h2"), ("h2", "h3")]
    assert [row.value for row in table.rows] == pytest.approx([92.1, 91.0])
    assert not table.is_time


def test_tables_of_times_are_times():
    table = parse_pairs(text("a,b,time_us\nh1,h2,12.5\n"), "p.txt")

    assert table.is_time
    assert import_pairs(text("h1 h2 1.5 ms\nh1 h3 900us\n"), "p.txt").points[0].time_us.median == 1500.0


@pytest.mark.parametrize(
    "body, place",
    [
        ("h1,h2,92\nh1,h3\n", "p.txt:2"),
        ("a,b,value\nh1,h2,92\nh1,h3,fast\n", "p.txt:3"),
        ("a,b,value\nh1,h1,92\n", "p.txt:2"),
        ("h1 h2 1\nnot a pair at all\n", "p.txt:2"),
        ("h1 h2 1\nh1 h3 5 ms\n", "p.txt"),
        ("h1 h2 92\nh1 h3 -5\n", r"p.txt:2: -5 is no rate"),
        ("a,b,value\nh1,h2,92\nh1,h3,-0.5\n", r"p.txt:3: -0.5 is no rate"),
        ("a,b,value\nh1,h2,92\nh1,h3,1e999\n", r"p.txt:3: 1e999 is no rate"),
    ],
)
def test_a_line_that_is_no_pair_is_an_error_with_its_place(body, place):
    with pytest.raises(DataError, match=place):
        parse_pairs(text(body), "p.txt")


def test_pairs_without_a_value_and_with_0_are_said_with_their_lines():
    table = parse_pairs(text("a,b,value\nh1,h2,92\nh1,h3,nan\nh2,h3,0\n"), "p.txt")
    (said,) = table.warnings
    assert said == "p.txt: 2 of 3 pairs without a value, or with 0, taken as failed: h1-h3 (line 3), h2-h3 (line 4)"


def test_a_table_without_any_value_is_an_error():
    with pytest.raises(DataError, match="no pair has a value"):
        parse_pairs(text("a,b,value\nh1,h2,\n"), "p.txt")


names = st.from_regex(r"h[a-z]{1,6}-?[0-9]{1,3}", fullmatch=True)
pairs = st.tuples(names, names, st.floats(0.01, 900)).filter(lambda row: row[0] != row[1])


@settings(max_examples=80, deadline=None)
@given(st.lists(pairs, min_size=1, max_size=20), st.sampled_from([",", " ", "\t"]))
def test_a_table_that_is_written_comes_back(rows, separator):
    body = "".join(f"{a}{separator}{b}{separator}{value:.3f}\n" for a, b, value in rows)
    table = parse_pairs(text(body), "p.txt")

    assert [(row.a, row.b, row.value) for row in table.rows] == [(a, b, float(f"{value:.3f}")) for a, b, value in rows]


@needs_cases
def test_local_ranks_that_are_slow_on_every_node_are_named_as_a_rail():
    file = import_file(FILES / "perrank_2node_8groups_time.txt")

    assert (file.n_nodes, file.n_ranks, len(file.points)) == (2, 16, 12)
    said = [warning for warning in file.warnings if "local ranks 0, 1" in warning]
    assert "0.63" in said[0]
    assert "not at a node" in said[0]
    assert any("4 of 16 ranks have no line" in warning for warning in file.warnings)


@needs_cases
def test_listings_of_links_are_no_pairs():
    for name in ("nvlink_status_a100.txt", "nvlink_v100_two_inactive.txt", "topo_h100_nv18_8gpu.txt"):
        assert not is_pair_table(from_bytes(Path(name), (FILES / name).read_bytes()))
