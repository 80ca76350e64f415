"""The page: self-contained, with every table sortable, small with many runs; opened in a browser where there is one."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
import report_samples as samples

from nccl_bench.report import charts
from nccl_bench.report.document import build, read
from nccl_bench.report.html import html as render
from nccl_bench.results.runs import open_runs

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (found := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page in")
MAX_NBYTES = 3_000_000


def page(paths, **options):
    views, warnings = read(open_runs([str(path) for path in paths]), **options)
    document = build(views, warnings)
    return render(document, {picture.name: charts.inline(charts.svg(picture), picture) for picture in document.pictures()})


class Checked(HTMLParser):
    """Every tag closed in its turn, every id once, and what the page would load."""

    VOID = frozenset(("meta", "input", "br", "img", "link"))

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.loads, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "srcset", "data", "action") or (name in ("href", "xlink:href") and not str(value).startswith("#") and tag != "a"):
                self.loads.append((tag, name, value))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(text):
    parser = Checked()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    text = page([samples.write_fast(folder / "good", samples.header(), samples.sweep())])
    (folder / "report.html").write_text(text)
    return folder / "report.html", text


@pytest.mark.pure
def test_the_page_needs_nothing_else(good):
    found = checked(good[1])

    assert found.loads == []
    assert len(found.ids) == len(set(found.ids))
    assert "@import" not in good[1]
    assert "url(http" not in good[1]
    assert "default-src 'none'" in good[1]


@pytest.mark.pure
def test_the_first_fold_comes_before_everything_else(good):
    order = [good[1].index(text) for text in ('class="verdict', 'class="numbers"', 'id="picture-busbw"', "Not tested", "<nav", "<section")]

    assert order == sorted(order)


@pytest.mark.pure
def test_a_colour_never_comes_without_its_symbol(good):
    assert re.search(r'<p class="verdict unknown"><span class="symbol"[^>]*>\?</span>', good[1])


@pytest.mark.pure
def test_what_a_run_holds_is_text_and_never_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    head = samples.header(1, host="gpu-{}<b>", warnings=(evil,), why=evil, exit_code=4, argv=("nccl-bench", evil), env={"NCCL_ALGO": evil})
    points = [*samples.sweep(8, hosts=("<i>",)), samples.point(nbytes=1 << 20, n=8, variant=evil)]

    text = page([samples.write_fast(tmp_path / "evil", head, points)])

    assert evil not in text
    assert html.escape(evil) in text
    assert checked(text).tags.count("script") == 1


@pytest.mark.pure
def test_a_rehearsal_says_so_on_the_page_first_and_last_and_on_every_sheet(tmp_path):
    text = page([samples.write_fast(tmp_path / "gloo", samples.header(not_nccl=True, backend="gloo"), samples.sweep())])

    told = "NOT NCCL: gloo on CPUs, a rehearsal"
    assert text.index(told) < text.index("<h1")
    assert text.rindex(told) > text.index("<footer")
    assert 'class="everypage"' in text
    assert "verdict pass" not in text


@pytest.mark.pure
def test_fifty_runs_are_a_page_below_three_megabytes(tmp_path):
    paths = [
        samples.write_fast(tmp_path / f"n{at:02d}", samples.header(1, host=f"gpu-{at:03d}"), samples.sweep(8, sizes=tuple(8 << s for s in range(31))))
        for at in range(50)
    ]

    text = page(paths)

    assert len(text.encode()) < MAX_NBYTES
    assert text.count("n49") > 1
    assert "rows more are left out: nccl-bench export has every point" in text


def browse(path, *options):
    """(stdout, stderr) of a headless browser that can reach no network."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", "--log-level=0"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    command += [f"--user-data-dir={path.parent / 'profile'}"]
    done = subprocess.run([*command, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


HOOK = """<script>
addEventListener("load", () => {
  const table = document.querySelector("#cases table"), column = Array.from(table.tHead.rows[0].cells, (c) => c.textContent).indexOf("time");
  const title = table.tHead.rows[0].cells[column].querySelector("button");
  const values = () => Array.from(table.tBodies[0].rows, (row) => Number(row.cells[column].dataset.v)).join(" ");
  const told = { before: values() };
  title.click(); told.up = values(); told.sort = title.parentNode.getAttribute("aria-sort");
  title.click(); told.down = values();
  const filter = document.querySelector("#cases input.filter");
  filter.value = "sendrecv eager"; filter.dispatchEvent(new Event("input"));
  told.shown = Array.from(table.tBodies[0].rows).filter((row) => !row.hidden).length;
  told.requests = performance.getEntriesByType("resource").length;
  told.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const pre = document.createElement("pre"); pre.id = "told"; pre.textContent = JSON.stringify(told); document.body.append(pre);
});
</script></body>"""


@needs_chromium
def test_in_a_browser_tables_sort_and_filter_nothing_is_loaded_and_nothing_complains(good, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(good[1].replace("</body>", HOOK))

    out, err = browse(path, "--window-size=400,900", "--dump-dom", "--virtual-time-budget=5000")

    told = json.loads(html.unescape(re.search(r'<pre id="told">(.*?)</pre>', out, re.DOTALL)[1]))
    numbers = {key: [float(word) for word in told[key].split()] for key in ("before", "up", "down")}
    assert numbers["up"] == sorted(numbers["before"])
    assert numbers["down"] == sorted(numbers["before"], reverse=True)
    assert numbers["before"] != numbers["up"]
    assert told["sort"] == "ascending"
    assert told["shown"] == len(samples.SIZES)
    assert told["requests"] == 0
    assert told["wide"] == 0
    assert [line for line in err.splitlines() if "CONSOLE" in line] == []


@needs_chromium
def test_printed_every_sheet_of_a_rehearsal_says_so(tmp_path):
    text = page([samples.write_fast(tmp_path / "gloo", samples.header(not_nccl=True, backend="gloo"), samples.sweep())])
    (tmp_path / "report.html").write_text(text)

    browse(tmp_path / "report.html", "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'report.pdf'}")

    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext here to read the sheets with")
    sheets = subprocess.run(["pdftotext", tmp_path / "report.pdf", "-"], capture_output=True, text=True, check=True).stdout.split("\f")[:-1]
    assert len(sheets) > 2
    assert all("NOT NCCL: gloo on CPUs, a rehearsal" in " ".join(sheet.split()) for sheet in sheets)
