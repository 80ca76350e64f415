"""Files that once broke a reader (tests/data/crashes, found by scripts/fuzz.py), and any bytes, through every reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readers import READERS, refused

CRASHES = sorted(path for path in (Path(__file__).parent / "data/crashes").iterdir() if path.name != "README.md")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("path", CRASHES, ids=lambda path: path.name)
def test_a_file_that_once_broke_a_reader_is_read_or_refused_in_words(path: Path, name: str) -> None:
    refused(READERS[name], path)


_WORDS = (
    "# nccl-tests version 2.17.1\n", "#  Rank  0 Group  0 Pid  1 on  h device  0 [0x00] NVIDIA H100\n",
    "       size         count      type   redop\n", "# Avg bus bandwidth    : 1\n",
    "  1048576        262144     float     sum      -1    100.0   10.49   19.66      0    100.0   10.49   19.66      0\n",
    "[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1)\n",
    "h:1:2 [0] NCCL INFO ", "a,b,value\n", "h1 h2 12.5\n", "{", "}", '"config": ', "[", "]", "<system>", "<gpu ", "\x00", "\xff", "\x1b[4m", "nan",
    "-1", "1e999",
    "GPU0\tGPU1\n", "GPU0\t X \tNV18\n", "CA 'mlx5_0'", "Infiniband device 'mlx5_0' port 1 status:\n", "hca_id:\tmlx5_0\n", "[bandwidth]\n",
    "share = 0.9\n", "[[require]]\n", "9" * 400, "\r\n",
)  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@given(parts=st.lists(st.one_of(st.sampled_from(_WORDS), st.text(max_size=20)), max_size=20))
def test_any_words_are_read_or_refused_in_words(name: str, parts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"any-{name}"
    path.write_bytes("".join(parts).encode("utf-8", "surrogatepass"))

    refused(READERS[name], path)


@pytest.mark.parametrize("name", READERS)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_words(name: str, data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"bytes-{name}"
    path.write_bytes(data)

    refused(READERS[name], path)
