"""Hosts and a real Slurm on this machine, for tests: hosts.sh and slurm.sh as context managers; why they cannot be had, if so."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HOSTS, SLURM = str(HERE / "hosts.sh"), str(HERE / "slurm.sh")
_COUNT = itertools.count()
_SLURM_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")


@functools.cache
def why_no_hosts() -> str | None:
    """Why there can be no hosts here, None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts are network namespaces: needs Linux and root"
    missing = [name for name in ("ip", "tc", "unshare", "awk") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: apt-get install iproute2 util-linux)"
    name = f"nbtry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@functools.cache
def why_no_slurm() -> str | None:
    """Why there can be no Slurm here, None where there can."""
    missing = [name for name in _SLURM_PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)"
    return why_no_hosts()


needs_hosts = pytest.mark.skipif(why_no_hosts() is not None, reason=str(why_no_hosts()))
needs_slurm = pytest.mark.skipif(why_no_slurm() is not None, reason=str(why_no_slurm()))


def needs(*programs: str, package: str) -> pytest.MarkDecorator:
    """Skip where a program is missing."""
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)} (Debian: apt-get install {package})")


def environment(**more: str) -> dict[str, str]:
    """What a user's shell has, with this project's nccl-bench first on PATH, and nothing of a launcher."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "USER", "NCCL_NVLS_ENABLE") if name in os.environ}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **more}


@dataclass
class Hosts:
    """Some hosts by name, and one called head."""

    names: tuple[str, ...]
    set_name: str
    environ: dict[str, str] = field(default_factory=environment)

    def command(self, host: str, *argv: str) -> list[str]:
        """The command line that runs argv on a host."""
        return [HOSTS, "on", host, *map(str, argv)]

    def start(self, host: str, *argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start a command on a host."""
        return subprocess.Popen(
            self.command(host, *argv), env={**self.environ, **(env or {})}, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(
        self, host: str, *argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 120, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        return subprocess.run(
            self.command(host, *argv), env={**self.environ, **(env or {})}, cwd=cwd, text=True, capture_output=True, timeout=timeout, check=check
        )

    def link(self, host: str, *what: str) -> None:
        """Change a host's link: rate, send-rate, receive-rate, loss, relay, down, up, clear (hosts.sh)."""
        subprocess.run([HOSTS, "link", host, *what], env=self.environ, check=True, capture_output=True)

    def pids(self) -> list[int]:
        """Processes on any of the hosts."""
        found: list[int] = []
        for name in (*self.names, "head"):
            listed = subprocess.run(["ip", "netns", "pids", f"{self.set_name}-{name}"], capture_output=True, text=True, check=False).stdout
            found += [int(word) for word in listed.split()]
        return found


def remove_abandoned() -> None:
    """Remove what test sessions that were killed have left: sets of hosts are called after the process that made them."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for set_name, pid in set(re.findall(r"^(nb(\d+)x\d+)-", spaces, re.MULTILINE)):
        if not (Path("/proc") / pid).exists():
            environ = environment(TESTBED=set_name)
            for folder in Path(tempfile.gettempdir()).glob(f"{set_name}?*"):
                subprocess.run([SLURM, "down", str(folder)], env=environ, check=False)
            subprocess.run([HOSTS, "down"], env=environ, check=False)


@contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Hosts that exist for the time of a with block; any number of sets side by side."""
    set_name = f"nb{os.getpid()}x{next(_COUNT)}"
    made = Hosts(names, set_name, environment(TESTBED=set_name))
    remove_abandoned()
    try:
        subprocess.run([HOSTS, "up", *names], env=made.environ, check=True)
        yield made
    finally:
        subprocess.run([HOSTS, "down"], env=made.environ, check=True)


@dataclass
class Job:
    """A submitted job: its id, where it runs, what it wrote."""

    number: str
    folder: Path
    slurm: Slurm

    def state(self) -> dict[str, str]:
        """What scontrol says of it."""
        words = self.slurm.run("scontrol", "--oneliner", "show", "job", self.number).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, seconds: float = 120) -> dict[str, str]:
        """Its state once it has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.slurm.run("squeue", "-h", "-j", self.number).stdout.strip():
                return self.state()
            time.sleep(0.3)
        raise AssertionError(f"job {self.number} did not end: {self.state()} {self.output()[-3000:]}")

    def output(self) -> str:
        """What it wrote."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"*-{self.number}.out")))

    def runs(self) -> list[Path]:
        """Run directories below the folder, in the order of their names."""
        return sorted(path.parent for path in self.folder.glob("results/**/run.json") if "latest" not in path.parts)

    def until(self, what: str, seconds: float = 60) -> None:
        """Wait until its output holds a text, or a file of that name below the folder is not empty."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what in self.output() or any(path.stat().st_size for path in self.folder.glob(f"results/*/{what}")):
                return
            time.sleep(0.1)
        raise AssertionError(f"{what!r} did not come: {self.state()} {self.output()[-3000:]}")


@dataclass
class Slurm:
    """A real Slurm whose nodes are hosts."""

    hosts: Hosts
    conf: Path

    def run(self, *argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on the head."""
        return self.hosts.run("head", *argv, env={"SLURM_CONF": str(self.conf), **(env or {})}, cwd=cwd)

    def submit(self, folder: Path, *argv: str, env: Mapping[str, str] | None = None) -> Job:
        """sbatch with these arguments, in a folder."""
        done = self.run("sbatch", "--parsable", *argv, cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        return Job(done.stdout.strip(), folder, self)


@contextmanager
def slurm(on: Hosts, *, tree: bool = False) -> Iterator[Slurm]:
    """A Slurm on these hosts, stopped at the end; `tree`: under two leaf switches. Munge wants folders that are open to all, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix=on.set_name))
    try:
        environ = {**on.environ, **({"TESTBED_TREE": "1"} if tree else {})}
        subprocess.run([SLURM, "up", str(folder), *on.names], env=environ, check=True, stdout=subprocess.DEVNULL)
        yield Slurm(on, folder / "slurm.conf")
    finally:
        subprocess.run([SLURM, "down", str(folder)], env=on.environ, check=True)


def points(run: Path) -> list[dict[str, object]]:
    """The points of a run directory."""
    return [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]


def header(run: Path) -> dict[str, object]:
    """The header of a run directory."""
    return dict(json.loads((run / "run.json").read_text()))


def workers_of(pids: Sequence[int]) -> list[int]:
    """Those of these processes that are workers of a sweep."""
    found = []
    for pid in pids:
        try:
            line = (Path("/proc") / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"nccl_bench.measure.worker" in line:
            found.append(pid)
    return found
