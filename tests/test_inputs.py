"""Files that a user names: what is wrong with one is said with the option, the path and what to do, and never read without end."""

import json

import pytest

from nccl_bench.cli.sweep_options import read_want
from nccl_bench.errors import DataError, UsageError
from nccl_bench.fabric import files as fabric_files
from nccl_bench.inputs import read_json, read_text, read_toml
from nccl_bench.training import files as training_files
from nccl_bench.training.config import read_config
from nccl_bench.verdict import criteria

pytestmark = pytest.mark.pure


def test_an_object_and_a_table_are_read_whole(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"name": "größer", "list": [1, 2]}), encoding="utf-8")
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf[a]\r\nb = 1\r\n")

    assert read_json(tmp_path / "a.json", "--a", "thing", 1 << 20) == {"name": "größer", "list": [1, 2]}
    assert read_toml(tmp_path / "a.toml", "--a", "thing", 1 << 20) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"[1]", "no JSON object"),
        (b"{", "not JSON: "),
        (b"", "not JSON: "),
        (b'{"a": "\xff"}', "not text: byte 8 is no UTF-8"),
        (b'{"a":' * 50000 + b"1" + b"}" * 50000, "not JSON: nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not JSON: "),
    ],
)
def test_what_is_no_object_is_said_with_option_path_and_hint(tmp_path, content, words):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(DataError) as caught:
        read_json(path, "--what", "thing", 1 << 20, "write it so")

    assert caught.value.why.startswith(f"--what {path}")
    assert words in caught.value.why
    assert "\n" not in caught.value.why
    assert caught.value.hints == ("write it so",)


def test_the_limit_is_the_last_size_that_is_read(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * (1 << 20))
    assert len(read_text(path, "--a", "thing", 1 << 20)) == 1 << 20

    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(UsageError, match=r"--a .*a: more than 1 MiB is no thing"):
        read_text(path, "--a", "thing", 1 << 20, error=UsageError)


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (read_config, DataError), (read_want, DataError), (training_files.deepspeed, DataError), (training_files.megatron, DataError),
        (training_files.torchtitan, DataError), (criteria.read, UsageError),
    ],
)  # fmt: skip
def test_no_reader_of_options_follows_a_device_without_end(tmp_path, read, error):
    (tmp_path / "endless.json").symlink_to("/dev/zero")

    with pytest.raises(error, match=r"endless\.json: more than \d+ MiB is no "):
        read(tmp_path / "endless.json")


def test_criteria_beyond_the_limit_are_refused_and_not_cut(tmp_path):
    path = tmp_path / "criteria.toml"
    comments = "# a comment\n" * (criteria.MAX_FILE_BYTES // 12 + 1)
    path.write_text(comments + "[bandwidth]\nshare = 0.5\n")

    with pytest.raises(UsageError, match="more than 1 MiB"):
        criteria.read(path)


def test_a_topology_nested_without_end_is_an_error_with_its_path(tmp_path):
    path = tmp_path / "run.json"
    path.write_text('{"a":' * 50000 + "1" + "}" * 50000)

    with pytest.raises(DataError, match=r"run\.json: not JSON: nested too deeply"):
        fabric_files.read(path)
