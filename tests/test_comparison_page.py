"""How a comparison is shown: text and page."""

from html.parser import HTMLParser

from run_samples import SIZES, point, truth, write_run

from nccl_bench.report.comparison import MAX_ROWS, html, lines
from nccl_bench.results.runs import open_runs
from nccl_bench.verdict.compare import compare_runs


def compared(tmp_path, base, new, **headers):
    old, now = write_run(tmp_path / "old<b>", base, not_nccl=headers.get("not_nccl", False)), write_run(tmp_path / "new", new, **headers)
    return compare_runs(open_runs([str(old)]), open_runs([str(now)]))


def test_text_says_the_verdict_first_and_every_case_after_it(tmp_path):
    points, slower = ([point(nbytes, truth(nbytes) * scale) for nbytes in SIZES] for scale in (1.0, 1.1))
    shown = lines(compared(tmp_path, points, slower, versions={"nccl": "2.29.2"}))

    assert shown[:4] == ["BASE old<b>", "NEW  new", "", "all_reduce 8 B-1 GiB is 9 % slower"]
    assert "  version of nccl: not known -> 2.29.2" in shown
    assert sum("▼ regression" in line for line in shown) == len(SIZES)
    assert "28 cases: 28 regressions (a change counts where it is more than 3 % and beyond noise)" in shown
    assert max(map(len, shown)) <= 100


def test_text_of_very_many_cases_keeps_what_tells(tmp_path):
    base = [point(8 * k, 10.0) for k in range(1, MAX_ROWS + 50)]
    new = [point(8 * k, 13.0 if k == 7 else 10.0) for k in range(1, MAX_ROWS + 50)]
    shown = lines(compared(tmp_path, base, new))

    assert sum("regression" in line and "▼" in line for line in shown) == 1
    assert f"{MAX_ROWS + 48} cases more" in shown[-1]


class _Page(HTMLParser):
    """What a browser would fetch or run, and the rows it would show."""

    def __init__(self):
        super().__init__()
        self.foreign, self.rows, self.text = [], 0, []

    def handle_starttag(self, tag, attrs):
        self.foreign += [tag] if tag in ("script", "link", "img", "iframe") else [name for name, _ in attrs if name in ("src", "href")]
        self.rows += tag == "tr"

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_needs_nothing_else_and_shows_every_case(tmp_path):
    points, slower = ([point(nbytes, truth(nbytes) * scale) for nbytes in SIZES] for scale in (1.0, 1.1))
    found = html(compared(tmp_path, points, slower, not_nccl=True))
    page = _Page()
    page.feed(found)

    assert page.foreign == []
    assert page.rows >= len(SIZES)
    assert "all_reduce 8 B-1 GiB is 9 % slower" in page.text
    assert "old<b>" not in found
    assert "old&lt;b&gt;" in found
    assert any("NOT NCCL" in text for text in page.text)
    assert "prefers-color-scheme: dark" in found
