"""Pictures drawn: what is said on them, equal files for equal pictures, labels apart, no logarithm of zero."""

import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.fabric.spec import topology_of
from nccl_bench.fabric.topology import topology_json
from nccl_bench.report import charts, look, pictures, pictures_across
from nccl_bench.report.document import build, read
from nccl_bench.report.page import Dots, Fabric, FabricNode, Heat, Line, Mark, Picture, Plot
from nccl_bench.results.runs import open_runs

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("charts")
    path = samples.write_fast(folder / "good", samples.header(), samples.sweep())
    views, warnings = read(open_runs([str(path)]))
    return views, build(views, warnings)


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def plot(*lines, **changes):
    return Picture(name="one", title="One", caption="a caption", words="words", parts=(Plot(lines=lines, x_label="x", y_label="y", **changes),))


def test_every_picture_names_clock_and_variant_in_its_caption(good):
    for picture in good[1].pictures():
        if picture.name != "fabric":
            assert "clock" in picture.caption
            assert "variant: as is" in picture.caption
        assert picture.words


def test_the_first_picture_has_the_limits_and_a_label_at_each_line(good):
    found = texts(charts.svg(good[1].picture))

    assert "physical limit 750 GB/s: node's 8x 400G InfiniBand" in found
    assert any(text.startswith("expected 463 to 469 GB/s at large sizes") for text in found)
    assert set(samples.COLLECTIVES_RUN) <= set(found)


def test_equal_pictures_are_equal_files(good):
    assert charts.svg(good[1].picture) == charts.svg(good[1].picture)
    assert charts.png(good[1].picture) == charts.png(good[1].picture)


def test_a_png_is_as_large_as_the_picture(good):
    data = charts.png(good[1].picture)

    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (int(look.WIDTH_IN * look.DPI), int(charts.height_in(good[1].picture) * look.DPI))


def test_an_svg_in_a_page_has_no_fixed_colours_and_no_name_twice(good):
    inside = "".join(charts.inline(charts.svg(picture), picture) for picture in good[1].pictures())

    names = re.findall(r' id="([^"]*)"', inside)
    assert len(names) == len(set(names))
    assert all(color not in inside for color in look.VARIABLES)
    assert "<style" not in inside
    assert set(re.findall(r'(?:url\(#|href="#)([^")]*)', inside)) <= set(names)


def test_a_heat_map_and_a_page_are_well_formed(good):
    for picture in good[1].pictures():
        ElementTree.fromstring(charts.inline(charts.svg(picture), picture))


def test_a_users_matplotlibrc_changes_nothing(good, tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nlines.linewidth: 40\nsvg.fonttype: path\n")
    code = (
        "from nccl_bench.report import charts\n"
        "from nccl_bench.report.page import Line, Picture, Plot\n"
        "line = Line(label='a', x=(1.0, 2.0), y=(1.0, 2.0))\n"
        "part = Plot(lines=(line,), x_label='x', y_label='y')\n"
        "import sys\n"
        "sys.stdout.write(charts.svg(Picture(name='one', title='One', caption='a caption', words='words', parts=(part,))))\n"
    )
    environ = {"MATPLOTLIBRC": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ, cwd=samples.ROOT)

    assert done.stdout == charts.svg(plot(Line(label="a", x=(1.0, 2.0), y=(1.0, 2.0))))


def test_dollars_and_markup_in_names_are_text():
    picture = plot(Line(label="host$1 & <b>$x^2$", x=(8.0, 16.0), y=(1.0, 2.0)))

    assert "host$1 & <b>$x^2$" in texts(charts.svg(picture))
    assert "<b>" not in charts.inline(charts.svg(picture), picture)


def test_zero_on_a_logarithmic_axis_is_left_out_and_nothing_warns():
    svg = charts.svg(plot(Line(label="a", x=(8.0, 16.0, 32.0), y=(0.0, 1.0, 100.0)), y_log=True))

    assert "inf" not in svg
    assert "nan" not in svg.lower().replace("nanum", "")


@pytest.mark.parametrize(
    "picture",
    [
        plot(Line(label="a", x=(8.0,), y=(1.0,))),
        plot(Line(label="a", x=(8.0,), y=(0.0,))),
        plot(Line(label="", x=(8.0, 16.0), y=(2.0, 2.0), low=(None, 1.0), high=(None, 3.0))),
        plot(Line(label="a", x=(1.0, 2.0, 3.0), y=(5.0, 5.0, 5.0)), x_axis="pass", y_from=None),
        plot(Line(label="a", x=(1.0, 2.0, 64.0), y=(5.0, 4.0, 3.0)), x_axis="nodes", marks=(Mark(y=6.0, words="limit"),)),
        plot(),
        Picture(name="h", title="t", caption="c", words="w", other=Heat(rows=("a",), columns=("b",), values=((None,),), low=0, high=1, label="x")),
        Picture(name="d", title="t", caption="c", words="w", other=Dots(names=("a", "b"), values=(0.0, 0.0), label="µs")),
        Picture(name="f", title="t", caption="c", words="w", other=Fabric(nodes=(FabricNode(heading="n", gpus=(), nics=(), joined=""),))),
    ],
)
def test_pictures_at_their_edges_are_drawn(picture):
    assert charts.svg(picture)
    assert charts.png(picture)


@given(st.lists(st.floats(-0.5, 1.5), max_size=12), st.floats(0.01, 0.08))
def test_labels_are_moved_apart_and_keep_their_order(places, gap):
    spots = charts.apart(sorted(places), gap)

    assert spots == sorted(spots)
    assert all(later - earlier >= gap - 1e-3 for earlier, later in itertools.pairwise(spots))
    if places and min(places) >= 0:
        assert min(spots) >= -1e-9


def test_more_runs_than_colours_are_grey_but_for_the_ends(tmp_path):
    paths = [
        samples.write_fast(tmp_path / f"n{at:02d}", samples.header(1, host=f"gpu-{at}"), samples.sweep(8, share=1 - at / 100, eager=False))
        for at in range(12)
    ]
    views, _ = read(open_runs([str(path) for path in paths]))
    lines = pictures.first(views).parts[0].lines

    assert [line.label for line in lines if line.tone != "faint"] == ["n00", "n10", "n11"]
    assert sum(line.tone == "faint" for line in lines) == 9
    assert "grey: the other 9." in pictures.first(views).note


def test_lines_of_very_many_sizes_are_thinned_with_their_ends(tmp_path):
    points = [samples.point(nbytes=1024 * at).to_json() for at in range(1, 3001)]
    views, _ = read(open_runs([str(samples.write_fast(tmp_path / "dense", samples.header(), points))]))
    line = pictures.first(views).parts[0].lines[0]

    assert len(line.x) == pictures.MAX_POINTS
    assert (line.x[0], line.x[-1]) == (1024.0, 1024.0 * 3000)


def test_in_place_is_dashed_beside_out_of_place(tmp_path):
    points = [samples.point("all_gather", 1 << shift, placement=form) for form in ("out", "in") for shift in (20, 30)]
    views, _ = read(open_runs([str(samples.write_fast(tmp_path / "both", samples.header(), points))]))
    lines = pictures.by_collective(views).parts[0].lines

    assert [(line.label, line.dashed) for line in lines] == [("out of place", False), ("in place", True)]


def test_variants_are_laid_over_each_other_below_the_limits_of_things_as_they_are(tmp_path):
    points = [samples.point(nbytes=1 << shift, variant=name, share=share) for name, share in ((None, 1.0), ("ring", 0.7)) for shift in (20, 33)]
    views, _ = read(open_runs([str(samples.write_fast(tmp_path / "variants", samples.header(), points))]))
    part = pictures.by_collective(views).parts[0]

    assert [line.label for line in part.lines] == ["as is", "ring"]
    assert part.marks[0].y == 750.0


def test_dispatch_overhead_is_eager_beside_the_other_clock(good):
    picture = pictures.dispatch(good[0])

    assert [line.label for line in picture.parts[0].lines] == ["eager", "queued"]
    assert "all_reduce 60.0 µs at 8 B" in picture.note


def test_efficiency_is_linear_from_zero_and_says_what_is_not_known(good):
    heat = pictures.efficiency(good[0]).other

    assert (heat.low, heat.percent) == (0.0, True)
    assert heat.rows == samples.COLLECTIVES_RUN
    assert heat.values[1][0] is None
    assert heat.values[0][-1] == pytest.approx(0.96, abs=0.01)


def scaled(tmp_path, shares):
    paths = [
        samples.write_fast(tmp_path / f"n{nodes:02d}", samples.header(nodes), samples.sweep(8 * nodes, collectives=("all_reduce",), share=share))
        for nodes, share in shares.items()
    ]
    views, _ = read(open_runs([str(path) for path in paths]))
    return views


def test_runs_of_different_sizes_are_a_scaling_chart_that_says_where_it_bends(tmp_path):
    picture = pictures_across.scaling(scaled(tmp_path, {1: 1.0, 2: 1.0, 4: 0.8, 8: 0.5}))

    assert picture.parts[0].x_axis == "nodes"
    assert picture.parts[0].lines[0].x == (1.0, 2.0, 4.0, 8.0)
    assert {line.label for line in picture.parts[0].lines} == {"measured", "attainable", "expected"}
    assert picture.note.startswith("It bends between 4 and 8 nodes: 96 to 60 %")


def test_even_scaling_has_no_bend(tmp_path):
    picture = pictures_across.scaling(scaled(tmp_path, {4: 0.8, 8: 0.8, 16: 0.8}))

    assert picture.note.startswith("Efficiency stays between")


def test_one_number_of_ranks_is_no_scaling(good):
    assert pictures_across.scaling(good[0]) is None


def test_passes_show_the_slowest_even_where_many_are_one_point(tmp_path):
    records = list(samples.soak(1200, sizes=(8, 1 << 30)))
    for record in records:
        if record["collective"] == "all_reduce" and record["pass"] == 40 and record["clock"] == "queued" and record["nbytes"] == 1 << 30:
            record["busbw_GBps"] = 100.0
    views, _ = read(open_runs([str(samples.write_fast(tmp_path / "soak", samples.header(), records))]))
    picture = pictures_across.passes(views)

    assert min(picture.parts[0].lines[0].low) == 100.0
    assert "Slowest pass 100.0 GB/s" in picture.note


def test_the_fabric_is_drawn_once_for_like_nodes(good):
    nodes = pictures_across.fabric(good[0][0]).other.nodes

    assert len(nodes) == 1
    assert nodes[0].heading.startswith("gpu-001 and 1 more like it: 8x H100 SXM")
    assert (len(nodes[0].gpus), len(nodes[0].nics), nodes[0].switch) == (8, 8, True)
    assert nodes[0].nics[3][1] == (3,)


def test_a_mesh_is_drawn_by_its_links(tmp_path):
    record = topology_json(topology_of("8xMI300X", "none", 1))
    head = replace(samples.header(1, gpu="AMD Instinct MI300X"), topology=record)
    views, _ = read(open_runs([str(samples.write_fast(tmp_path / "mesh", head, []))]))
    node = pictures_across.fabric(views[0]).other.nodes[0]

    assert not node.switch
    assert len(node.bonds) == 28
