"""Which NCCL runs: tried on libraries built here, loaded as torch and a site load theirs."""

import os
import shutil
import subprocess
import sys

import pytest

from nccl_bench.measure.nccl_library import running_nccl, version_text


@pytest.mark.pure
@pytest.mark.parametrize(("code", "text"), [(22809, "2.28.9"), (23203, "2.32.3"), (2708, "2.7.8"), (21005, "2.10.5")])
def test_version_codes_read_as_nccl_h_writes_them(code, text):
    assert version_text(code) == text


@pytest.mark.pure
def test_without_the_library_nothing_is_claimed(tmp_path):
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 00000000 fe:00 1 /lib/libc.so.6\n")

    assert running_nccl(tmp_path / "maps") == (None, None)
    assert running_nccl(tmp_path / "missing") == (None, None)


@pytest.fixture
def libraries(tmp_path):
    """Two libnccl.so.2 that differ in version."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed here")
    for name, code in (("torch", 22809), ("site", 23203)):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.c").write_text(f"int ncclGetVersion(int *code) {{ *code = {code}; return 0; }}\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / name / "libnccl.so.2", tmp_path / f"{name}.c"], check=True)
    return tmp_path


@pytest.mark.parametrize(("preload", "version", "folder"), [(None, "2.28.9", "torch"), ("site", "2.32.3", "site")])
def test_a_preloaded_library_is_the_one_that_runs(libraries, preload, version, folder):
    code = f"import ctypes; ctypes.CDLL({str(libraries / 'torch' / 'libnccl.so.2')!r})\n"
    code += "from nccl_bench.measure.nccl_library import running_nccl\nprint(running_nccl())"
    env = {**os.environ, **({"LD_PRELOAD": str(libraries / preload / "libnccl.so.2")} if preload else {})}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)

    assert done.stdout.strip() == repr((version, str(libraries / folder / "libnccl.so.2")))
