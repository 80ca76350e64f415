"""fabric/smi.py: nvidia-smi topo -m and nvlink -s."""

from __future__ import annotations

import re

import pytest
from fabric_samples import LINKS, MATRIX, read_or_none, spoiled
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.errors import DataError
from nccl_bench.fabric import smi

PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-7\tN/A\nGPU1\tNV4\t X \t0-7\tN/A\n"


def test_bonds_distances_and_affinities_are_read() -> None:
    node = smi.parse_matrix(MATRIX)

    assert node.gpus is not None
    assert [gpu.numa for gpu in node.gpus] == [0, 0, 1, 1]
    assert node.gpus[0].cpus == "0-15"
    assert node.gpus[0].nvlink is not None
    assert node.gpus[0].nvlink.bonds == ((1, 12), (2, 12), (3, 12))
    assert [(nic.name, nic.gpus) for nic in node.nics or ()] == [("mlx5_0", (0, 1)), ("mlx5_1", (2, 3))]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: re.sub(r"\t+", "   ", text),
        lambda text: text.replace("PXB\tSYS", "PXBSYS"),
        lambda text: "\x1b[4m" + text.replace("\tGPU1", "\x1b[0m\tGPU1", 1),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "$ nvidia-smi topo -m\n" + text,
        lambda text: text.lstrip("\t"),
    ],
    ids=["blanks", "lost tabs", "colours", "CRLF", "prompt", "header lost its tab"],
)
def test_the_same_table_however_it_is_spoiled(spoil) -> None:
    node = smi.parse_matrix(spoil(MATRIX))

    assert [gpu.nvlink for gpu in node.gpus or ()] == [gpu.nvlink for gpu in smi.parse_matrix(MATRIX).gpus or ()]
    assert [(nic.name, nic.gpus) for nic in node.nics or ()] == [("mlx5_0", (0, 1)), ("mlx5_1", (2, 3))]
    assert [gpu.numa for gpu in node.gpus or ()] == [0, 0, 1, 1]


def test_a_blank_affinity_cell_does_not_move_the_next_column() -> None:
    text = (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18                    0               N/A\n"
        "GPU1    NV18     X      56              1               N/A\n"
    )

    node = smi.parse_matrix(text)

    assert [(gpu.cpus, gpu.numa) for gpu in node.gpus or ()] == [(None, 0), ("56", 1)]


def test_numa_that_the_table_does_not_give_is_unknown() -> None:
    node = smi.parse_matrix(PAIR)

    assert [gpu.numa for gpu in node.gpus or ()] == [None, None]


def test_the_word_of_old_drivers_means_across_sockets() -> None:
    text = "\tGPU0\tmlx4_0\tCPU Affinity\nGPU0\t X \tSOC\t0-7\nmlx4_0\tSOC\t X \t\n"

    node = smi.parse_matrix(text)

    assert node.nics is not None
    assert node.nics[0].distance == ((0, "SYS"),)


def test_no_bonds_between_several_gpus_means_no_nvlink() -> None:
    node = smi.parse_matrix(PAIR.replace("NV4", "PHB"))

    assert [gpu.nvlink.links for gpu in node.gpus or () if gpu.nvlink] == [0, 0]


def test_all_distances_sys_do_not_say_which_nic_serves_whom() -> None:
    node = smi.parse_matrix(MATRIX.replace("PXB", "SYS"))

    assert [nic.gpus for nic in node.nics or ()] == [None, None]
    assert any("SYS" in warning for warning in node.warnings)


@pytest.mark.parametrize("text", ["", "GPU0\n", "\tGPU0\tGPU1\nGPU0\t X \n", "\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "hello"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        smi.parse_matrix(text)


def test_link_status_is_turned_into_marketed_rates_and_says_what_is_down() -> None:
    node = smi.parse_link_status(LINKS)

    assert node.gpus is not None
    first, second = (gpu.nvlink for gpu in node.gpus)
    assert first is not None
    assert second is not None
    assert (first.links, first.generation, first.per_direction_GBps) == (18, 4, 450)
    assert (second.links, second.inactive, second.per_direction_GBps) == (17, 1, 425)
    assert first.signal_GBps == pytest.approx(478.116)
    assert node.warnings == ("GPU 1: 1 of 18 NVLinks are inactive (link 4): 451.6 GB/s of signalling rate are left",)


def test_an_empty_link_status_means_no_nvlink() -> None:
    node = smi.parse_link_status("")

    assert node.switch is False
    assert node.gpus is None


@settings(max_examples=150, deadline=None)
@given(st.one_of(spoiled(MATRIX), st.text(max_size=300)))
def test_a_spoiled_table_is_read_or_refused(text: str) -> None:
    smi.is_matrix(text)
    node = read_or_none(smi.parse_matrix, text)

    assert node is None or node.gpus


@settings(max_examples=80, deadline=None)
@given(st.one_of(spoiled(LINKS), st.text(max_size=300)))
def test_a_spoiled_status_is_read_or_refused(text: str) -> None:
    smi.is_link_status(text)
    node = read_or_none(smi.parse_link_status, text)

    assert node is None or all((gpu.nvlink.links or 0) >= 0 for gpu in node.gpus or () if gpu.nvlink)
