"""`nccl-bench report` as it is typed: files, formats, exit codes, memory; torch is never loaded."""

import json
import subprocess
import sys

import pytest
import report_samples as samples
from field_cases import REFERENCE, needs_reference

ROOT = samples.ROOT
MAX_RSS_KIB = 1.5 * 1024 * 1024
"""1.5 GiB: a report of 200,000 points on a laptop."""


def report(*arguments, cwd, **options):
    command = [sys.executable, "-c", "import sys; from nccl_bench.cli.main import run; sys.exit(run())", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={"PYTHONPATH": str(ROOT), "HOME": str(cwd), "PATH": ""}, **options)


@pytest.fixture
def run(tmp_path):
    return samples.write_fast(tmp_path / "results" / "good", samples.header(), samples.sweep())


def test_without_a_directory_the_story_is_told_and_the_page_lies_in_the_run(run, tmp_path):
    done = report(run, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "? all_reduce reaches 469.7 GB/s at 8 GiB" in done.stdout
    assert done.stdout.splitlines()[-1] == f"report.html, report.md, 16 charts in {run / 'report'}"
    names = {path.name for path in (run / "report").iterdir()}
    assert {"report.html", "report.md", "busbw.svg", "busbw.png", "time.svg", "efficiency.png", "fabric.svg"} <= names


def test_without_a_run_it_is_the_latest(run, tmp_path):
    (tmp_path / "results" / "latest").symlink_to("good")

    done = report(cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "all_reduce reaches 469.7 GB/s" in done.stdout
    assert (run / "report" / "report.html").is_file()


def test_with_a_directory_the_files_are_there_and_stdout_is_short(run, tmp_path):
    done = report(run, "-O", tmp_path / "out" / "deep", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert not (run / "report").exists()
    text = (tmp_path / "out" / "deep" / "report.md").read_text()
    for name in [line.split("](")[1].split(")")[0] for line in text.splitlines() if line.startswith("![")]:
        assert (tmp_path / "out" / "deep" / name).is_file()


@pytest.mark.parametrize(
    ("formats", "endings"), [("html", {"html"}), ("md", {"md"}), ("svg", {"svg"}), ("png", {"png"}), ("pdf", {"pdf"}), ("md, PDF", {"md", "pdf"})]
)
def test_only_the_formats_that_were_asked_for_are_written(run, tmp_path, formats, endings):
    done = report(run, "-O", tmp_path / "out", "--format", formats, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert {path.suffix[1:] for path in (tmp_path / "out").iterdir()} == endings
    if "pdf" in endings:
        assert (tmp_path / "out" / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("formats", ["docx", "html,docx", "", ","])
def test_an_unknown_format_is_a_usage_error(run, tmp_path, formats):
    done = report(run, "--format", formats, cwd=tmp_path)

    assert done.returncode == 2
    assert "one or more of: html,md,png,svg,pdf" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("nccl-bench: exit 2: ")


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda folder: None, 5, "no such file"),
        (lambda folder: folder.mkdir(), 5, "no run of nccl-bench"),
        (lambda folder: folder.write_text("hello\n"), 5, ""),
    ],
)
def test_what_is_no_run_is_an_error_with_its_path(tmp_path, make, code, said):
    make(tmp_path / "thing")

    done = report("thing", cwd=tmp_path)

    assert done.returncode == code
    assert "thing" in done.stderr
    assert "Traceback" not in done.stderr
    assert said in done.stderr


def test_a_bad_line_is_an_error_with_its_number_and_a_torn_one_a_warning(run, tmp_path):
    lines = (run / "points.jsonl").read_text().splitlines()
    (run / "points.jsonl").write_text("\n".join([*lines[:10], lines[10][:40]]))
    torn = report(run, cwd=tmp_path)
    (run / "points.jsonl").write_text("\n".join([*lines[:4], "{broken", *lines[5:]]))
    bad = report(run, cwd=tmp_path)

    assert torn.returncode == 0
    assert f"warning: {run / 'points.jsonl'}:11: the last line is torn" in torn.stderr
    assert "the last line is torn" in " ".join(torn.stdout.split())
    assert bad.returncode == 5
    assert f"{run / 'points.jsonl'}:5" in bad.stderr


def test_an_output_that_cannot_be_written_is_a_usage_error(run, tmp_path):
    (tmp_path / "file").write_text("")

    done = report(run, "-O", tmp_path / "file" / "out", cwd=tmp_path)

    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_a_run_that_cannot_be_written_still_tells_its_story(run, tmp_path):
    (run / "report").write_text("in the way")

    done = report(run, cwd=tmp_path)

    assert done.returncode == 0
    assert "all_reduce reaches" in done.stdout
    assert "no page:" in done.stderr


def test_several_runs_are_laid_over_each_other(tmp_path):
    for name, share in (("monday", 1.0), ("tuesday", 0.7)):
        samples.write_fast(tmp_path / name, samples.header(), samples.sweep(share=share))

    told = report("monday", "tuesday", cwd=tmp_path)
    written = report("monday,tuesday", "-O", "out", cwd=tmp_path)

    assert told.returncode == written.returncode == 0
    assert "tuesday: all_reduce is 70 % of what healthy systems like this reach" in told.stdout.replace("\n  ", " ")
    assert told.stdout.endswith("-O DIR writes charts and a page\n")
    assert "monday" in (tmp_path / "out" / "busbw.svg").read_text()


def test_hosts_are_redacted_on_stdout_and_in_files(run, tmp_path):
    done = report(run, "-O", "out", "--redact-hosts", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "gpu-001" not in done.stdout + (tmp_path / "out" / "report.html").read_text()


def test_a_rehearsal_says_so_in_the_first_and_the_last_line(tmp_path):
    samples.write_fast(tmp_path / "gloo", samples.header(not_nccl=True, backend="gloo"), samples.sweep())

    lines = report("gloo", "-O", "out", cwd=tmp_path).stdout.splitlines()

    assert lines[0] == lines[-1]
    assert lines[0].startswith("NOT NCCL")


def test_a_rehearsals_header_names_gloo_and_torch_and_no_nccl(tmp_path):
    versions = {"torch": "2.13.0", "nccl": "2.30.7"}
    samples.write_fast(tmp_path / "gloo", samples.header(not_nccl=True, backend="gloo", versions=versions), samples.sweep())
    done = report("gloo", "-O", "out", "--format", "md,html", cwd=tmp_path)
    shown = [report("gloo", cwd=tmp_path).stdout, *(path.read_text() for path in (tmp_path / "out").glob("report.*"))]

    assert done.returncode == 0
    assert len(shown) == 3
    assert all("gloo of torch 2.13.0" in text for text in shown)
    assert not any("· NCCL 2.30.7" in text for text in shown)


@needs_reference
def test_a_log_of_nccl_tests_is_a_run_of_its_own(tmp_path):
    done = report(REFERENCE / "h200x2" / "nccl-tests-mpi-1.log", "-O", "out", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "all_reduce reaches 337.5 GB/s at 2 GiB: that is 91 % of what is attainable" in done.stdout
    assert "timed by nccl-tests 2.19.6" in (tmp_path / "out" / "report.md").read_text()


def test_points_without_their_header_are_shown_and_not_judged(tmp_path):
    samples.write_fast(tmp_path / "run", samples.header(), samples.sweep())
    (tmp_path / "run" / "points.jsonl").rename(tmp_path / "alone.jsonl")

    done = report("alone.jsonl", cwd=tmp_path)

    assert done.returncode == 0
    assert "cannot be held against anything" in done.stdout
    assert "no run.json beside it" in done.stderr


def many(folder, n_points):
    """A run of so many points, written fast: pass after pass of one sweep."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(samples.header().to_json()))
    lines = [json.dumps(point.to_json()) for point in samples.sweep(sizes=tuple(8 << shift for shift in range(31)))]
    with (folder / "points.jsonl").open("w") as file:
        for at in range(n_points):
            file.write(lines[at % len(lines)].replace('"pass": 0', f'"pass": {at // len(lines)}') + "\n")
    return folder


def test_two_hundred_thousand_points_fit_a_laptop_and_torch_is_never_loaded(tmp_path):
    code = (
        "import sys, resource\n"
        "from nccl_bench.cli.main import run\n"
        "code = run(['report', 'many', '-O', 'out'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) + '\\n')\n"
        "sys.exit(code)\n"
    )
    many(tmp_path / "many", 200_000)

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < MAX_RSS_KIB
    assert (tmp_path / "out" / "report.html").stat().st_size < 3_000_000


SAMPLES = sorted(path for path in (ROOT / "results" / "samples").glob("*") if path.is_dir())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_that_is_kept_can_be_reported_and_is_described(sample, tmp_path):
    done = report(sample, "-O", "out", "--format", "md", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert f"`{sample.name}`" in (sample.parent / "README.md").read_text()
    plan = {"llama1b.json", "want.json", "plan.json", "plan.txt"}  # what a plan asked for, and its answer
    assert not {path.name for path in sample.iterdir()} - {"run.json", "points.jsonl", "batches.jsonl", "verdict.json", *plan}


def test_pictures_that_are_kept_are_small_and_described():
    folder = ROOT / "docs" / "pictures"
    pictures = list(folder.glob("*.png"))

    assert len(pictures) >= 2
    for picture in pictures:
        assert picture.stat().st_size < 200_000
        assert f"`{picture.name}`" in (folder / "README.md").read_text()
