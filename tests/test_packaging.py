"""What a stranger installs: wheel and sdist, an empty virtual environment, a wheelhouse without a network, a vendor's torch that stays."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nccl_bench import __version__

ROOT = Path(__file__).parent.parent
VENDOR = "2.10.0a0+vendor"
DATA = re.compile(r"\.(json|toml|sbatch|j2|css|js|typed)$")


def ran(*args: str | Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """A process that must end 0; its words where it does not."""
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done  # type: ignore[no-any-return]


def clean(home: Path) -> dict[str, str]:
    """The environment of somebody else: an empty HOME, nothing of ours on the path of imports."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}, "HOME": str(home)}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the files that git has, and the wheel made of that sdist."""
    if absent := [name for name in ("build", "setuptools") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{sys.executable} has no {' and no '.join(absent)} to make a wheel with: pip install -c constraints.txt {' '.join(absent)}")
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    names = ran("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    ran(sys.executable, "-m", "build", "--no-isolation", "-o", folder, tree, env=clean(folder))
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def environment(folder: Path, *, packages: bool) -> Path:
    """The python of an empty virtual environment; `packages`: it sees what this one has installed, but for nccl-bench."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    if packages:
        site = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
        ours = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
        # Plain paths: .pth files that lie there, such as that of an editable nccl-bench, are not read.
        (site / "theirs.pth").write_text("".join(f"{path}\n" for path in ours))
    return python


def pip(python: Path, *args: str | Path, home: Path) -> str:
    """The pip of this environment, acting on another."""
    return ran(sys.executable, "-m", "pip", "--isolated", "--python", python, *args, env=clean(home)).stdout


# ---- what is in them


def test_the_wheel_holds_the_package_with_its_data_and_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "nccl_bench").rglob("*") if path.suffix == ".py" or DATA.search(path.name)}

    assert ours <= set(names)
    assert "nccl_bench/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {"nccl_bench", f"nccl_bench-{__version__}.dist-info"}
    assert wheel.name == f"nccl_bench-{__version__}-py3-none-any.whl"


def test_the_sdist_holds_what_its_own_tests_need(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [name for name in ran("git", "ls-files", cwd=ROOT).stdout.splitlines() if (ROOT / name).exists() and not name.startswith(".")]

    assert [name for name in wanted if name not in names] == []
    assert not [name for name in names if "__pycache__" in name or name.startswith((".git/", ".venv"))]


def test_what_the_wheel_asks_for_can_be_a_vendors_torch(wheel: Path) -> None:
    text = zipfile.ZipFile(wheel).read(f"nccl_bench-{__version__}.dist-info/METADATA").decode()
    asked = [Requirement(line.partition(": ")[2]) for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    (torch,) = [one for one in asked if one.name == "torch"]

    for version in (VENDOR, "2.6.0a0+ecf3bae40a.nv25.01", "2.13.0", "2.11.0+cu130"):
        assert torch.specifier.contains(version), version
    assert not torch.specifier.contains("2.5.1")
    assert str(torch.marker) == 'extra == "torch"'


# ---- installed and run from another folder


def test_the_wheel_alone_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", packages=True)
    pip(python, "install", "--no-index", "--no-deps", wheel, home=tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    program = python.parent / "nccl-bench"
    where = ran(python, "-c", "import nccl_bench; print(nccl_bench.__file__)", cwd=away, env=clean(away)).stdout.strip()

    assert where.startswith(str(tmp_path / "venv")), "the wheel is what runs, not the checkout"
    assert (
        ran(program, "--version", cwd=away, env=clean(away)).stdout == ran(python, "-m", "nccl_bench", "--version", cwd=away, env=clean(away)).stdout
    )
    hardware = ["--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--nodes", "4"]
    sample = ROOT / "results/samples/h200x2-nccl-tests-1"
    for args in (
        ["explain", "busbw"],
        ["slurm", "--kind", "accept"],
        ["ideal", *hardware],
        ["report", sample, "-O", "page", "--format", "html,md"],
        ["plan", "--preset", "llama3-8b", *hardware, "--tp", "2", "--dp", "16", "--gbs", "16"],
    ):
        assert ran(program, *args, cwd=away, env=clean(away)).stdout
    assert (away / "page/report.html").exists()


def test_a_package_without_torch_says_how_to_get_it(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", packages=False)
    pip(python, "install", "--no-index", "--no-deps", wheel, home=tmp_path)
    site = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    for path in (path for folder in sys.path if folder.endswith("site-packages") for path in Path(folder).iterdir()):
        if not path.name.startswith(("torch", "nccl_bench", "__")) and path.suffix not in (".pth", ".egg-link") and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    version = ran(python, "-m", "nccl_bench", "--version", env=clean(tmp_path), cwd=tmp_path).stdout
    done = subprocess.run([python, "-m", "nccl_bench", "sweep"], env=clean(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False)

    assert version == f"nccl-bench {__version__} · no torch: pip install 'nccl-bench[torch]' to measure\n"
    assert done.returncode == 3
    assert "pip install 'nccl-bench[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


def stub(folder: Path, name: str, version: str, *requires: str, code: str = "") -> Path:
    """A wheel of that name and version with nothing in it but `code`."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {f"{module}/__init__.py": code, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    record = "".join(f"{path},sha256={digest(text)},{len(text.encode())}\n" for path, text in files.items()) + f"{info}/RECORD,,\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for member, text in {**files, f"{info}/RECORD": record}.items():
            made.writestr(member, text)
    return path


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels, empty but for their names, of everything that nccl-bench asks for, and a newer torch than the vendor's."""
    folder = tmp_path_factory.mktemp("index")
    for line in metadata.requires("nccl-bench") or ():
        name = Requirement(line).name
        if name != "torch":
            stub(folder, name, metadata.version(name))
    stub(folder, "torch", "2.13.0")
    return folder


@pytest.mark.parametrize(
    "before, after", [(VENDOR, VENDOR), ("2.6.0a0+ecf3bae40a.nv25.1", "2.6.0a0+ecf3bae40a.nv25.1"), ("2.5.1", "2.13.0"), (None, "2.13.0")]
)
def test_a_vendors_torch_is_not_replaced(wheel: Path, index: Path, tmp_path: Path, before: str | None, after: str) -> None:
    """pip decides, with its own resolver and our own metadata; a torch that is too old is replaced, so the test can fail."""
    python = environment(tmp_path / "venv", packages=False)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    if before is not None:
        pip(python, "install", "--no-index", stub(theirs, "torch", before, code=f"__version__ = {before!r}\n"), home=tmp_path)
    pip(python, "install", "--no-index", "--find-links", index, f"nccl-bench[torch] @ {wheel.as_uri()}", home=tmp_path)

    assert f"torch=={after}\n" in pip(python, "list", "--format", "freeze", home=tmp_path)


def test_version_names_the_nccl_that_torch_came_with(wheel: Path, index: Path, tmp_path: Path) -> None:
    """Distribution metadata as pip leaves it: a torch of CUDA asks for a package nvidia-nccl-cu13."""
    python = environment(tmp_path / "venv", packages=True)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    torch = stub(theirs, "torch", "2.11.0+cu130", "nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'")
    pip(python, "install", "--no-index", "--no-deps", wheel, torch, stub(theirs, "nvidia-nccl-cu13", "2.28.9"), home=tmp_path)

    assert (
        ran(python, "-m", "nccl_bench", "--version", env=clean(tmp_path)).stdout == f"nccl-bench {__version__} · torch 2.11.0+cu130 · NCCL 2.28.9\n"
    )


# ---- the same with the real packages


@pytest.mark.slow
def test_a_wheelhouse_installs_without_a_network(wheel: Path, tmp_path: Path) -> None:
    """`pip download` on one machine, `--no-index` on another, beside the torch that is there; then from an empty folder with an empty HOME."""
    house = tmp_path / "wheelhouse"
    ran(sys.executable, "-m", "pip", "download", "-q", "-c", ROOT / "constraints.txt", "-d", house, wheel)
    python = environment(tmp_path / "venv", packages=False)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    pip(python, "install", "--no-index", stub(theirs, "torch", VENDOR, code=f"__version__ = {VENDOR!r}\n"), home=tmp_path)
    pip(python, "install", "--no-index", "--find-links", house, "nccl-bench[torch]", home=tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    program = python.parent / "nccl-bench"

    assert f"torch=={VENDOR}\n" in pip(python, "list", "--format", "freeze", home=tmp_path)
    assert ran(program, "--version", cwd=away, env=clean(away)).stdout == f"nccl-bench {__version__} · torch {VENDOR}\n"
    ran(program, "report", ROOT / "results/samples/h200x2-nccl-tests-1", "-O", "page", cwd=away, env=clean(away))
    assert (away / "page/report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_first_sweep_from_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """What README's first lines say, with the real torch."""
    python = environment(tmp_path / "venv", packages=False)
    ran(sys.executable, "-m", "pip", "--python", python, "install", "-q", "-c", ROOT / "constraints.txt", f"nccl-bench[torch] @ {wheel.as_uri()}")
    away = tmp_path / "away"
    away.mkdir()
    ran(
        python.parent / "nccl-bench",
        "sweep",
        "all_reduce",
        "--backend",
        "gloo",
        "-g",
        "2",
        "--sizes",
        "1K,64K",
        "--budget",
        "0.1",
        cwd=away,
        env=clean(away),
    )
    done = ran(python.parent / "nccl-bench", "report", "latest", cwd=away, env=clean(away))

    assert "NOT NCCL" in done.stdout
