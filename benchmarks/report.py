"""Seconds and memory of a report: an ordinary run, fifty runs, 200,000 points. Usage: python benchmarks/report.py"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import report_samples as samples  # noqa: E402

CHILD = (
    "import resource, sys\n"
    "from nccl_bench.cli.main import run\n"
    "code = run(['report', '-O', sys.argv[1], *sys.argv[2:]])\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)\n"
    "sys.exit(code)\n"
)


def measured(name, folder, paths):
    """Print seconds (wall, a fresh interpreter) and GiB of one report."""
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder / f"out-{name}"), *map(str, paths)], capture_output=True, text=True, cwd=ROOT)
    seconds = time.monotonic() - before
    if done.returncode:
        raise SystemExit(done.stderr)
    page = (folder / f"out-{name}" / "report.html").stat().st_size
    print(f"{name:>16}  {seconds:5.1f} s  {float(done.stdout.split()[-1]):5.2f} GiB  page {page / 1e6:.2f} MB")


def main():
    """Make the runs and report them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = tuple(8 << shift for shift in range(31))
        measured("ordinary", folder, [samples.write_fast(folder / "ordinary", samples.header(), samples.sweep(sizes=sizes))])
        fifty = [samples.write_fast(folder / f"n{at}", samples.header(1, host=f"gpu-{at}"), samples.sweep(8, sizes=sizes)) for at in range(50)]
        measured("fifty", folder, fifty)
        measured("200,000 points", folder, [samples.write_fast(folder / "soak", samples.header(), samples.soak(200_000, sizes=sizes))])


if __name__ == "__main__":
    main()
