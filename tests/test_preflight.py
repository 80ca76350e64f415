"""Before NCCL is touched: seats, likeness, backend and GPUs of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.errors import LaunchError
from nccl_bench.launch.facts import expects_gpu, host_facts
from nccl_bench.launch.placement import absent, seats, unlike, whom
from nccl_bench.launch.preflight import check
from nccl_bench.launch.values import Go

Json = dict[str, Any]
H100 = "NVIDIA H100 80GB HBM3"


def join(rank: int, host: str = "h1", local_rank: int | None = None, **more: Any) -> Json:
    return {"rank": rank, "host": host, "node": f"boot-{host}", "local_rank": local_rank, "offer": {}, **more}


def gpu(rank: int, per_node: int = 8, **changes: Any) -> Json:
    """A rank of a healthy node of 8 H100; changes go one level deep (hello={...})."""
    node, local = divmod(rank, per_node)
    fact: Json = {
        "rank": rank, "host": f"gpu-{node + 1:03}", "node_index": node, "local_rank": local, "local_size": per_node, "backend": "auto", "env": {},
        "gpu": {"driver": "580.95.05", "devices": 8, "slurm": None},
        "hello": {
            "versions": {"torch": "2.11.0+cu130", "nccl": "2.28.9"}, "visible_gpus": 8, "has_nccl": True,
            "device": {"index": local, "name": H100, "uuid": f"GPU-{rank}", "pci_bus_id": f"00000000:{local:02x}:00.0"},
        },
    }  # fmt: skip
    for key, value in changes.items():
        fact[key] = {**fact[key], **value} if isinstance(value, dict) else value
    return fact


def cpu(rank: int, **changes: Any) -> Json:
    hello = {"visible_gpus": 0, "device": None, "has_nccl": False, "versions": {"torch": "2.13.0+cpu", "nccl": None}}
    return gpu(rank, **{"gpu": {"driver": None, "devices": 0}, "hello": hello, **changes})


def refusal(facts: list[Json]) -> LaunchError:
    result = check(facts)
    assert isinstance(result, LaunchError)
    assert result.hints
    return result


def agreed(facts: list[Json]) -> Go:
    result = check(facts)
    assert isinstance(result, Go), result
    return result


# ---- seats


def test_ranks_are_seated_by_host_in_the_order_of_their_ranks() -> None:
    found = seats([join(2, "h2"), join(0, "h2"), join(1, "h1"), join(3, "h1")])

    places = [(seat.rank, seat.node_index, seat.local_rank, seat.local_size) for seat in found]
    assert places == [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 2), (3, 1, 1, 2)]


def test_the_launchers_local_ranks_count_where_they_are_all_different() -> None:
    assert [seat.local_rank for seat in seats([join(0, local_rank=1), join(1, local_rank=0)])] == [1, 0]
    assert [seat.local_rank for seat in seats([join(0, local_rank=0), join(1, local_rank=0)])] == [0, 1]
    assert [seat.local_rank for seat in seats([join(0, local_rank=0), join(1, local_rank=None)])] == [0, 1]


def test_machines_of_one_name_are_two_nodes() -> None:
    found = seats([join(0, "localhost", node="a"), join(1, "localhost", node="b")])

    assert [seat.node_index for seat in found] == [0, 1]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([None, 0, 1, 2])), min_size=1, max_size=24))
def test_every_rank_has_one_seat_and_local_ranks_fill_each_node(places: list[tuple[str, int | None]]) -> None:
    found = seats([join(rank, host, local) for rank, (host, local) in enumerate(places)])

    assert [seat.rank for seat in found] == list(range(len(places)))
    for node in {seat.node_index for seat in found}:
        members = [seat for seat in found if seat.node_index == node]
        assert sorted(seat.local_rank for seat in members) == list(range(len(members)))
        assert {seat.local_size for seat in members} == {len(members)}
        assert len({places[seat.rank][0] for seat in members}) == 1


# ---- likeness


def test_like_offers_are_fine() -> None:
    assert unlike([join(rank, offer={"torch": "2.11.0", "options": {"b": 8}}) for rank in range(4)]) is None


def test_unlike_versions_name_the_few_and_the_many() -> None:
    joins = [join(rank, f"h{rank // 8:03}", offer={"torch": "2.10.0" if 40 <= rank < 48 else "2.11.0"}) for rank in range(1024)]

    error = unlike(joins)

    assert error is not None
    assert error.exit_code == 3
    assert error.why == "unlike versions of torch: 2.11.0 on 127 hosts (x1016 ranks, first h000), 2.10.0 on ranks 40-47 (h005)"


def test_options_that_one_rank_lacks_are_named() -> None:
    error = unlike([join(0, offer={"options": {"minbytes": 8, "check": True}}), join(1, "h2", offer={"options": {"minbytes": 8}})])

    assert error is not None
    assert error.why == "unlike options: check: True on rank 0 (h1), none on rank 1 (h2)"


def test_whom_is_short_for_any_number_of_ranks() -> None:
    assert whom([join(3, "h2")]) == "rank 3 (h2)"
    assert whom([join(rank, "h2") for rank in range(8)]) == "ranks 0-7 (h2)"
    assert whom([join(rank, f"h{rank}") for rank in range(3)]) == "h0, h1, h2 (x3 ranks)"
    assert whom([join(rank, f"h{rank // 8:03}") for rank in range(1016)]) == "127 hosts (x1016 ranks, first h000)"


def test_absent_ranks_are_counted_and_named_with_their_hosts() -> None:
    hosts = [f"h{rank // 8}" for rank in range(16)]

    assert absent({0}, 2, 60.06, ["h1", "h2"]).why == "1 of 2 ranks joined in 60 s; missing: rank 1 (host h2)"
    assert absent(set(range(8)), 16, 60, hosts).why == "8 of 16 ranks joined in 60 s; missing: ranks 8-15 (host h1)"
    assert absent({0}, 2, 60, []).why == "1 of 2 ranks joined in 60 s; missing: rank 1"
    assert len(absent(set(range(0, 2000, 2)), 2000, 60, [f"h{rank}" for rank in range(2000)]).why) < 200


# ---- backend


def test_ranks_with_gpus_run_nccl() -> None:
    go = agreed([gpu(rank) for rank in range(16)])

    assert (go.backend, go.world_size, go.n_nodes, go.ranks_per_node, go.one_host, go.shared_gpu, go.warnings) == ("nccl", 16, 2, 8, False, False, ())


def test_ranks_without_any_sign_of_a_gpu_run_gloo() -> None:
    go = agreed([cpu(rank) for rank in range(8)])

    assert (go.backend, go.one_host, go.warnings) == ("gloo", True, ())


def test_gloo_on_request_asks_nothing_of_gpus() -> None:
    assert agreed([gpu(0, backend="gloo", hello={"visible_gpus": 2}), cpu(1, backend="gloo")]).backend == "gloo"


@pytest.mark.parametrize(
    "sign", [{"gpu": {"driver": "580.95.05"}}, {"gpu": {"devices": 8}}, {"gpu": {"slurm": "0,1"}}], ids=["driver", "device files", "slurm"]
)
def test_a_sign_of_a_gpu_on_any_rank_is_never_measured_with_gloo(sign: Json) -> None:
    caught = refusal([cpu(0), cpu(1, gpu={"driver": None, "devices": 0, **sign["gpu"]})])

    assert "no rank sees a GPU" in caught.why
    assert "2.13.0+cpu there is built without CUDA" in caught.why
    assert any("--backend gloo" in hint for hint in caught.hints)


def test_ranks_without_a_gpu_among_others_are_named() -> None:
    blind = [gpu(rank, hello={"visible_gpus": 0, "device": None}) for rank in range(8, 16)]

    caught = refusal([gpu(rank) for rank in range(8)] + blind)

    assert caught.why == "ranks without a GPU among ranks that have one: ranks 8-15 (gpu-002)"


def test_a_variable_that_hides_the_gpus_is_named() -> None:
    caught = refusal([gpu(0), gpu(1, env={"CUDA_VISIBLE_DEVICES": ""}, hello={"visible_gpus": 0, "device": None})])

    assert "CUDA_VISIBLE_DEVICES='' on rank 1" in caught.why


def test_nccl_on_request_without_a_gpu_is_refused() -> None:
    assert "no rank sees a GPU" in refusal([cpu(rank, backend="nccl") for rank in range(2)]).why


def test_a_torch_without_nccl_is_refused() -> None:
    assert "torch 2.11.0+cu130 has no NCCL: ranks 0, 1 (gpu-001)" in refusal([gpu(rank, hello={"has_nccl": False}) for rank in range(2)]).why


# ---- GPUs


def test_more_ranks_than_gpus_are_refused_with_the_variable() -> None:
    few = [gpu(rank, hello={"visible_gpus": 2}, env={"CUDA_VISIBLE_DEVICES": "0,1"}) for rank in range(8)]

    caught = refusal(few)

    assert caught.why == "8 ranks on gpu-001 see 2 GPUs (CUDA_VISIBLE_DEVICES=0,1 on rank 0)"
    assert "srun --gpus-per-node=8 --ntasks-per-node=8" in caught.hints[0]


def test_two_ranks_on_one_gpu_are_refused_unless_it_is_wished() -> None:
    same = {"device": {"index": 0, "name": H100, "uuid": "GPU-1", "pci_bus_id": "00000000:1b:00.0"}, "visible_gpus": 1}
    facts = [gpu(rank, per_node=2, hello=same) for rank in range(2)]

    assert refusal(facts).why == "ranks 0, 1 (gpu-001) share GPU 00000000:1b:00.0 (GPU-1)"
    wished = agreed([{**fact, "env": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}} for fact in facts])
    assert wished.shared_gpu
    assert isinstance(check([facts[0], {**facts[1], "env": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}}]), LaunchError), "all must wish it"


def test_the_same_uuid_on_two_nodes_is_no_sharing() -> None:
    facts = [gpu(rank, per_node=1, hello={"device": {"index": 0, "name": H100, "uuid": None, "pci_bus_id": "00000000:1b:00.0"}}) for rank in range(2)]

    assert not agreed(facts).shared_gpu


def test_one_visible_gpu_a_task_is_fine_with_a_warning() -> None:
    facts = [gpu(rank, hello={"visible_gpus": 1}) for rank in range(8)]
    for fact in facts:
        fact["hello"]["device"] = {**fact["hello"]["device"], "index": 0}

    (warning,) = agreed(facts).warnings
    assert "peer access may be off" in warning


def test_slices_of_gpus_are_refused() -> None:
    by_variable = [gpu(0, env={"CUDA_VISIBLE_DEVICES": "MIG-5f4e0f4d"}, per_node=1)]
    by_name = [gpu(0, per_node=1, hello={"device": {"index": 0, "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "uuid": "x"}})]

    for facts in (by_variable, by_name):
        assert refusal(facts).why.startswith("MIG is not supported by NCCL for multi-GPU")


def test_unlike_nccl_versions_are_refused() -> None:
    facts = [gpu(rank, hello={"versions": {"torch": "2.11.0", "nccl": "2.27.3" if rank > 7 else "2.28.9"}}) for rank in range(24)]

    assert refusal(facts).why == "unlike versions of NCCL: 2.27.3 on gpu-002, gpu-003 (x16 ranks), 2.28.9 on ranks 0-7 (gpu-001)"


def test_what_is_odd_but_runs_is_a_warning() -> None:
    other_model = [gpu(rank) for rank in range(16)]
    for fact in other_model[8:]:
        fact["hello"]["device"]["name"] = "NVIDIA H20"
    other_driver = [gpu(rank, gpu={"driver": "580.82" if rank > 7 else "580.95"}) for rank in range(16)]
    uneven = [gpu(rank) for rank in range(8)] + [gpu(8, local_size=1)]

    assert "unlike GPU model" in agreed(other_model).warnings[0]
    assert "unlike driver: 580.95 on ranks 0-7 (gpu-001), 580.82 on ranks 8-15 (gpu-002)" in agreed(other_driver).warnings
    assert agreed(uneven).ranks_per_node is None
    assert "different numbers of ranks" in agreed(uneven).warnings[0]
    assert "GPUs stay idle: 1 of 8" in agreed(uneven).warnings[1]


def test_16384_ranks_are_checked() -> None:
    assert agreed([gpu(rank) for rank in range(16384)]).n_nodes == 2048


# ---- the host's facts


def test_a_host_with_gpus_is_seen_without_cuda(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.3.0\n"
    )
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("0b6c\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()

    facts = host_facts({"CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "secret"}, tmp_path)

    assert facts == {
        "node": "0b6c", "gpu": {"driver": "535.183.01", "devices": 2, "slurm": None}, "env": {"CUDA_VISIBLE_DEVICES": "0,1"},
    }  # fmt: skip
    assert expects_gpu(facts["gpu"])


def test_an_open_kernel_module_is_a_driver_too(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")

    assert host_facts({}, tmp_path)["gpu"]["driver"] == "580.95.05"


def test_a_host_without_gpus_expects_none(tmp_path: Path) -> None:
    facts = host_facts({"SLURM_GPUS_ON_NODE": "0"}, tmp_path)

    assert facts["gpu"] == {"driver": None, "devices": 0, "slurm": None}
    assert not expects_gpu(facts["gpu"])


@pytest.mark.parametrize("name, value", [("SLURM_STEP_GPUS", "0,1"), ("SLURM_JOB_GPUS", "3"), ("SLURM_GPUS_ON_NODE", "2")])
def test_slurms_gpus_are_expected(name: str, value: str, tmp_path: Path) -> None:
    assert host_facts({name: value}, tmp_path)["gpu"]["slurm"] == value
