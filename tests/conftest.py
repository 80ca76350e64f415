"""A clean environment for every test, and GPU tests where there are GPUs."""

import functools
import os
import re

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a test: no example is timed.
settings.register_profile("project", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
# The same commit gives the same result there; new examples are looked for at every desk, and by make fuzz.
settings.register_profile("ci", settings.get_profile("project"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "project")

_TIMES = int(os.environ.get("NCCL_BENCH_EXAMPLES_TIMES", "1"))
"""How many times its usual number of examples each property is tried with; make fuzz sets it."""

_LAUNCH = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|(SLURM|OMPI|PMI|PMIX|MV2|MPI)_\w+)"
)
_KEPT = {"NCCL_NVLS_ENABLE", "NCCL_MULTI_RANK_GPU_ENABLE", "OMPI_MCA_btl_vader_single_copy_mechanism"}
"""Settings of the machine that tests must leave as they are."""


@pytest.fixture(autouse=True)
def clean_env(monkeypatch):
    """No launcher's variables and no NCCL settings reach a test, but for those that keep the machine safe."""
    for name in list(os.environ):
        if name not in _KEPT and (_LAUNCH.fullmatch(name) or name.startswith("NCCL_")):
            monkeypatch.delenv(name)


@functools.cache
def n_gpus() -> int:
    """GPUs that torch sees; 0 without torch or with one that has no NCCL."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() and dist.is_nccl_available() else 0


_NOT_PURE = ("subprocess", "multiprocessing", "importorskip", "torch", "Popen", "fake_worker", "fake_run", "testbed")
"""Words of a test module that needs torch or other processes."""


_MINUTES = {"test_accept_hosts.py", "test_pairs_hosts.py"}
"""Whole acceptances and all pairs between hosts with shaped links: many minutes together, so only with -m slow."""
_HELPER = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)


@functools.cache
def is_pure(path) -> bool:
    """Whether a test module, and the helpers beside it that it imports, need neither torch nor other processes: it also runs on other Pythons."""
    text = path.read_text()
    if any(word in text for word in _NOT_PURE):
        return False
    helpers = (path.parent / f"{name}.py" for name in _HELPER.findall(text))
    return all(is_pure(helper) for helper in helpers if helper.exists())


_MORE = set()


def _with_more_examples(item):
    """Multiply the examples of a property, once for all its parameters."""
    function = getattr(item, "obj", None)
    function = getattr(function, "__func__", function)
    if hasattr(function, "hypothesis") and function not in _MORE:
        _MORE.add(function)
        usual = getattr(function, "_hypothesis_internal_use_settings", None) or settings()
        function._hypothesis_internal_use_settings = settings(usual, max_examples=usual.max_examples * _TIMES)
    item.add_marker(pytest.mark.timeout(0))


def pytest_collection_modifyitems(items):
    """Mark what is pure; skip GPU tests, with the reason, where there are fewer GPUs than they need."""
    for item in items:
        if _TIMES > 1:
            _with_more_examples(item)
        if item.path.name in _MINUTES:
            item.add_marker(pytest.mark.slow)
        if is_pure(item.path):
            item.add_marker(pytest.mark.pure)
        marker = item.get_closest_marker("gpu")
        if marker is not None:
            needed = marker.args[0] if marker.args else 1
            if n_gpus() < needed:
                item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA GPU{'s' if needed > 1 else ''} and a torch with NCCL; here {n_gpus()}"))
