"""How many ranks a self-launch starts."""

import pytest

from nccl_bench.launch.local import visible_gpus

pytestmark = pytest.mark.pure


@pytest.fixture
def four_gpus(tmp_path):
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("listed", "count"), [(None, 4), ("0,2", 2), ("", 0), ("-1", 0), ("0,7,1", 1), ("GPU-1234,GPU-5678", 2), ("3", 1)]
)
def test_cuda_visible_devices_picks_among_the_device_files(four_gpus, listed, count):
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}

    assert visible_gpus(environ, four_gpus) == count


def test_a_host_without_device_files_has_no_gpu_whatever_the_variable_says(tmp_path):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == 0
