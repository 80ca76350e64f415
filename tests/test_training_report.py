"""What is shown of plans and searches: the page, the section of a report, the picture; told from documents, whole or spoilt."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nccl_bench.errors import UsageError
from nccl_bench.fabric import spec
from nccl_bench.groups import even_seats, kind_of, megatron, parse_mesh
from nccl_bench.measure.points import group_of_case
from nccl_bench.records import Group, Point, Times
from nccl_bench.report import tables
from nccl_bench.report.bill import lines_of, search_lines
from nccl_bench.report.contention import Contention, group_lines
from nccl_bench.report.document import read
from nccl_bench.report.pictures_across import axis_times
from nccl_bench.report.pictures_layouts import layouts_picture, write_chart
from nccl_bench.report.training_section import training_section
from nccl_bench.results.runs import open_runs
from nccl_bench.training.compute import Efficiency
from nccl_bench.training.config import preset
from nccl_bench.training.document import Money, assumptions_of, plan_json
from nccl_bench.training.layout import Layout
from nccl_bench.training.plan import Fabric, answer
from nccl_bench.training.price import Places
from nccl_bench.training.price_expected import expected_pricer, seats_of
from nccl_bench.training.search import search

TOPOLOGY = spec.topology_of("8xH100-SXM", "8x400-IB", 4)
FABRIC = Fabric(places=Places(seats_of(TOPOLOGY)), pricer=expected_pricer(TOPOLOGY, {}), rates=Efficiency(eff=0.7, peak_tflops=989.4, hbm_GBps=3350),
                priced_by="expected", peak_tflops=989.4, memory_nbytes=80 * 10**9)  # fmt: skip
MODEL, LAYOUT = preset("llama3-8b"), Layout(tp=4, pp=2, dp=4, sp=True, dist_opt=True, gbs=32, seq=4096)


@pytest.fixture(scope="module")
def found():
    return search(MODEL, Layout(gbs=32, seq=4096, dist_opt=True), 32, FABRIC, "full-attention", top=6, fixed={"mbs": 1}, max_tp=8, per_node=8)


@pytest.fixture(scope="module")
def documents(found):
    return [{**plan_json(row, FABRIC, Money(), ()), "tie_group": row.tie_group} for row in found.answers]


def test_every_line_of_the_bill_has_its_group_price_and_reason():
    whole = answer(MODEL, LAYOUT, FABRIC, "full-attention")
    lines = lines_of(whole, FABRIC, Money(), assumptions_of(LAYOUT, FABRIC, "full-attention"), wide=True)
    text = "\n".join(lines)

    assert lines[0].startswith("llama3-8b on 32 GPUs: TP4 PP2 DP4 SP dist-opt")
    for row in whole.cost.calls:
        assert row.call.kind[:21] in text
        assert row.call.source in text
    assert "assumed: rank order" in text
    narrow = lines_of(whole, FABRIC, Money(), assumptions_of(LAYOUT, FABRIC, "full-attention"), wide=False)
    assert max(map(len, narrow[2:])) <= 300
    assert re.search(r"\d+ assumptions", "\n".join(narrow))


def test_the_page_says_where_prices_come_from_what_was_assumed_and_cuts_nothing():
    """One line for the best change; reasons whole in a pipe; which calls no published system backs."""
    from nccl_bench.training.document import Assumption

    whole = answer(MODEL, LAYOUT, FABRIC, "full-attention")
    taken = (Assumption(name="sequence", value="4096", source="default: --seq was not given"), Assumption(name="x", value="y", source="default"))
    lines = lines_of(whole, FABRIC, Money(), taken, wide=False)
    text = "\n".join(lines)

    assert text.count("best change") == 1
    assert "assumed: sequence 4096 (--seq was not given)" in lines
    assert "prices: not measured: only a hint" in text
    assert "fewer than two such systems are known for" in text
    assert re.search(r"all_gather over tp \(0\.\d+\)", text)
    largest = sorted(whole.cost.calls, key=lambda row: row.price.mid_us * row.call.count)[-10:]
    assert all(any(line.endswith(row.call.why) for line in lines) for row in largest)
    assert "1e9 bytes" in text
    assert any("fewer than two" in note for note in plan_json(whole, FABRIC, Money(), ())["notes"])


def test_a_layout_that_cannot_run_points_to_a_search_and_a_tight_one_says_what_is_not_reckoned():
    used = answer(MODEL, LAYOUT, replace(FABRIC, rates=None), "full-attention").memory.nbytes
    for share, word in ((0.9, "this layout cannot run: nccl-bench search"), (1.05, "tight: may run out of memory")):
        fabric = replace(FABRIC, memory_nbytes=int(share * used), rates=None)
        text = "\n".join(lines_of(answer(MODEL, LAYOUT, fabric, "full-attention"), fabric, Money(), (), wide=False))
        assert word in text


def test_without_a_step_time_nothing_is_said_of_what_compute_hides():
    fabric = replace(FABRIC, rates=None)
    whole = answer(MODEL, LAYOUT, fabric, "full-attention")
    lines = lines_of(whole, fabric, Money(), (), wide=False)
    row = next(line for line in lines if line.startswith("  PP "))

    assert "one call after the other" in lines[1]
    assert re.search(r" - +warm-up and drain", row)


def test_a_ranking_shows_its_ties_and_that_nothing_was_measured(found):
    lines = search_lines(found, FABRIC)

    assert "not measured" in lines[1]
    assert sum(bool(re.search(r"\d+ of 80 GB  TP", line)) for line in lines) == len(found.answers)
    assert sum("tie group" in line for line in lines) == len({row.tie_group for row in found.answers})
    assert sum(bool(re.match(r" +\d+ +[\d.]+ m?s ", line)) for line in lines) == len(found.answers)


def test_the_picture_has_a_bar_a_layout_and_is_the_same_twice(documents, tmp_path):
    for name in ("a.svg", "b.svg", "a.png", "a.pdf"):
        write_chart(documents, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text()
    for document in documents:
        assert document["layout"]["text"][:30] in svg
    assert "not measured" in svg
    picture = layouts_picture(documents)
    for values, document in zip(picture.other.values, documents, strict=True):
        assert sum(values) == pytest.approx(document["step_s"]["mid"], rel=1e-6)
    with pytest.raises(UsageError, match="no picture"):
        write_chart(documents, tmp_path / "a.txt")
    with pytest.raises(UsageError, match="no layout has a step time"):
        write_chart([{**documents[0], "step_s": None}], tmp_path / "c.svg")


def test_a_run_with_a_plan_and_a_search_gets_a_section(documents, tmp_path):
    assert training_section(tmp_path) is None
    (tmp_path / "plan.json").write_text(json.dumps(documents[0]))
    assert (training_section(tmp_path, "a", 1).name, training_section(tmp_path, "a", 1).title) == ("training-2", "What training pays: a")
    (tmp_path / "search.json").write_text(json.dumps(documents))
    section = training_section(tmp_path)

    assert section.title == "What training pays"
    assert "priced by what was expected" in section.words[0]
    assert [table.caption for table in section.tables] == ["The bill of one step", "Layouts, best first, those with tight memory last"]
    assert len(section.tables[1].rows) == len(documents)
    assert [picture.other.names for picture in section.pictures] == [tuple(document["layout"]["text"] for document in documents)]
    assert all(len(row) == len(table.columns) for table in section.tables for row in table.rows)


def test_axes_of_a_mesh_are_not_held_against_each_other_and_a_group_alone_is_told(tmp_path):
    """dp and tp are no like groups: neither is 'slower than the median group'; solo runs are a column, not a group."""
    from report_samples import header, write_fast

    times = (("tp", None, 100.0), ("tp", "solo", 50.0), ("dp", None, 900.0), ("pp", None, 110.0), ("pp", "solo", 110.0))
    rows = [replace(point(us, special=special), group=Group(axis=axis, size=2, n_groups=1 if special else 4, slowest=(0, 1), spread_frac=0.1),
                    time_us=Times(median=us, mean=us, min=us, max=us, ci_low=0.99 * us, ci_high=1.01 * us), busbw_GBps=1.0, algbw_GBps=1.0)
            for axis, special, us in times]  # fmt: skip
    found, _ = read(open_runs([str(write_fast(tmp_path / "run", replace(header(), spec={"mesh": "pp=2,dp=2,tp=2"}), rows))]))
    view = found[0]
    table = tables.groups([view])

    assert axis_times(view) == {}
    assert table.columns[-1] == "at once against one alone"
    assert {row[0].text: row[-1].text for row in table.rows} == {"tp": "2.00 times", "dp": "-", "pp": "within noise"}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"layout": 1}', "[1, 2]", '[{"step_s": 3}]', "null"])
def test_files_that_are_no_documents_give_no_section(tmp_path, text):
    for name in ("plan.json", "search.json"):
        (tmp_path / name).write_text(text)

    assert training_section(tmp_path) is None


def test_a_plan_without_a_step_time_still_lists_what_is_sent(tmp_path):
    silent = Fabric(places=FABRIC.places, pricer=lambda *_: None, rates=None, priced_by="nothing")
    whole = answer(MODEL, LAYOUT, silent, "full-attention")
    (tmp_path / "plan.json").write_text(json.dumps(plan_json(whole, silent, Money(), ())))

    assert "no step time" in lines_of(whole, silent, Money(), (), wide=False)[0]
    assert "no step time" in training_section(tmp_path).words[0]


def test_groups_are_listed_with_nodes_and_rails():
    lines = group_lines(megatron(tp=8, dp=2), ("tp", "dp"), even_seats(16, 8))

    assert lines[0] == "mesh megatron:tp8,cp1,dp2,pp1"
    assert "2 groups of 8" in lines[1]
    assert "in one node" in lines[1]
    assert "8 groups of 2 (first: 0,8): 2 nodes each, 8 at once on a node, 8 of its local ranks, rail-aligned" in lines[2]
    assert "not rail-aligned" in group_lines(parse_mesh("dp=4,pp=2,tp=2"), ("dp",), even_seats(16, 8))[1]


def point(us, **more):
    fields = {"group": Group(axis="dp", size=2, n_groups=8, slowest=(1, 9), spread_frac=0.25), "special": None, "kind": "collective", **more}
    return Point(collective="all_reduce", dtype="float32", op="sum", root=None, nbytes=1 << 20, requested_nbytes=1 << 20, count=None, n_ranks=2,
                 placement="in", clock="graph", regime="streaming", time_us=Times(median=us, mean=us, min=us, max=us), **fields)  # fmt: skip


def test_contention_slowdown_and_products_are_told_at_the_end():
    seen = Contention()
    assert seen.text() == ""
    seen.add(point(200.0))
    seen.add(point(100.0, special="solo"))
    seen.add(point(150.0, kind="overlap", special="beside tp:all_gather",
                   details={"own_us": 100.0, "other_us": 50.0, "own_times": 1, "other_times": 2, "slowdown": 1.5}))  # fmt: skip
    seen.add(point(100.0, kind="gemm", special="qkv 1000x1000x1000", details={"m": 1000, "n": 1000, "k": 1000}))
    text = seen.text()

    assert "all 8 groups at once take 2.00 times one alone (one batch: no interval); slowest ranks 1,9, the fastest group" in text
    assert "the fastest group is done 25 % earlier" in text
    noisy, sure = Contention(), Contention()
    for seen, (low, high) in ((noisy, (50.0, 400.0)), (sure, (190.0, 210.0))):
        seen.add(replace(point(200.0), time_us=Times(median=200.0, mean=200.0, min=1.0, max=1.0, ci_low=low, ci_high=high)))
        seen.add(replace(point(100.0, special="solo"), time_us=Times(median=100.0, mean=100.0, min=1.0, max=1.0, ci_low=95.0, ci_high=105.0)))
    assert "as long as one alone, within noise (0.476 to 4.21 times)" in noisy.text()
    assert "2.00 times one alone (1.81 to 2.21)" in sure.text()
    assert "together 150 µs: 1.50 times the longer one" in text
    assert "qkv 1000x1000x1000 float32: 100 µs, 20 TFLOPS" in text


def test_the_spread_of_groups_is_a_share_of_the_slowest_groups_time():
    kind = kind_of(parse_mesh("dp=2,tp=2"), "tp")
    case = SimpleNamespace(axis="tp", n_ranks=2)
    found = group_of_case(case, kind, [10.0, 8.0, 40.0, 38.0])

    assert (found.slowest, found.n_groups) == ((2, 3), 2)
    assert found.spread_frac == pytest.approx(0.75)  # done in 10 of 40 µs, not "300 % behind"
