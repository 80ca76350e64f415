"""Markdown for pull requests: the first fold, tables that stay tables, short enough for any forge; and the terminal's story."""

import pytest
import report_samples as samples

from nccl_bench.report import story
from nccl_bench.report.document import build, read
from nccl_bench.report.markdown import MAX_CHARS, markdown
from nccl_bench.results.runs import open_runs

pytestmark = pytest.mark.pure


def document(*paths, **options):
    views, warnings = read(open_runs([str(path) for path in paths]), **options)
    return build(views, warnings), views


def test_the_first_fold_stands_first_and_pictures_are_files_beside_it(tmp_path):
    made, _ = document(samples.write_fast(tmp_path / "good", samples.header(), samples.sweep()))
    text = markdown(made, {picture.name: f"{picture.name}.png" for picture in made.pictures()})

    lines = text.splitlines()
    assert lines[0] == "# good"
    assert lines[2].startswith("⚪ **? all_reduce reaches 469.7 GB/s at 8 GiB")
    assert "](busbw.png)" in text
    assert text.index("](busbw.png)") < text.index("**Not tested**") < text.index("## By collective") < text.index("<details>")


def test_every_table_has_as_many_cells_in_each_row(tmp_path):
    head = samples.header(warnings=("a | b\nc", "`d` *e* <f>"), env={"NCCL_ALGO": "a|b"})
    made, _ = document(samples.write_fast(tmp_path / "odd", head, samples.sweep()))
    rows = [line for line in markdown(made, {}).splitlines() if line.startswith("|")]

    counts = []
    for row in rows:
        cells = row.replace("\\|", "").count("|") - 1
        counts.append(cells)
        if set(row) <= set("|-: "):
            assert counts[-2] == cells
    assert len(rows) > 40
    assert "a \\| b c" in "\n".join(rows)
    assert "\\`d\\` \\*e\\* &lt;f>" in "\n".join(rows)


def test_details_are_closed_and_many_runs_stay_short(tmp_path):
    paths = [samples.write_fast(tmp_path / f"n{at:02d}", samples.header(1, host=f"gpu-{at:03d}"), samples.sweep(8)) for at in range(50)]
    made, _ = document(*paths)

    text = markdown(made, {})

    assert len(text) <= MAX_CHARS + 100
    assert text.count("<details>") == text.count("</details>") > 3


def test_a_rehearsal_says_so_first_and_last(tmp_path):
    made, _ = document(samples.write_fast(tmp_path / "gloo", samples.header(not_nccl=True), samples.sweep()))
    lines = [line for line in markdown(made, {}).splitlines() if line]

    assert lines[1].startswith("> **NOT NCCL")
    assert lines[-2].startswith("> **NOT NCCL")


def test_the_story_fits_a_terminal_and_says_what_the_page_says(tmp_path):
    made, views = document(samples.write_fast(tmp_path / "good", samples.header(), samples.sweep()))
    lines = story.lines(made, views)

    assert all(len(line) <= story.WIDTH for line in lines)
    assert " ".join(" ".join(lines).split()).count(made.sentence) == 1
    assert any("█" in line for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("  ") and "at 8 GiB" in line and "▁" in line] == list(samples.COLLECTIVES_RUN)
    assert not any("\x1b" in line for line in lines)
    assert any("\x1b[1m" in line for line in story.lines(made, views, color=True))


def test_a_terminal_without_blocks_gets_plain_characters(tmp_path):
    made, views = document(samples.write_fast(tmp_path / "good", samples.header(), samples.sweep()))
    text = "\n".join(story.lines(made, views, blocks=False))

    assert not set(text) & set(story.BLOCKS + "✓✗")
    assert "#" in text


def test_the_story_of_many_runs_shows_the_slowest(tmp_path):
    paths = [samples.write_fast(tmp_path / f"n{at:02d}", samples.header(1, host=f"g{at}"), samples.sweep(8, share=1 - at / 100)) for at in range(24)]
    made, views = document(*paths)
    lines = story.lines(made, views)

    shown = [line.split()[0] for line in lines if "▁" in line and " at " in line]
    assert shown == [f"n{at:02d}" for at in range(23, 7, -1)]
    assert "  and 8 more, all faster: the page has them" in lines


def test_the_story_of_an_empty_run_is_short_and_whole(tmp_path):
    made, views = document(samples.write_fast(tmp_path / "empty", samples.header(), []))

    assert "? Nothing was measured." in story.lines(made, views)


def test_the_story_of_a_rehearsal_says_so_first_and_last(tmp_path):
    made, views = document(samples.write_fast(tmp_path / "gloo", samples.header(not_nccl=True), samples.sweep()))
    lines = story.lines(made, views)

    assert lines[0] == lines[-1] == made.banner
