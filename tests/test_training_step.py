"""The collectives of a training step: golden counts of Megatron and DeepSpeed, FSDP2 counted in torch itself, parameters, FLOPs."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_bench.errors import DataError, UsageError
from nccl_bench.training.config import from_config, preset, presets, read_config
from nccl_bench.training.layout import Layout, split_layers, stages_of
from nccl_bench.training.model import step_flops
from nccl_bench.training.rules import checked, why_not
from nccl_bench.training.step import step_calls
from nccl_bench.training.step_data import buckets
from nccl_bench.training.weights import weights_of

FIELD = Path(os.environ.get("NCCL_BENCH_FIELD_CASES", Path(__file__).parent.parent.parent / "shared"))
GPT = from_config(
    {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 51200, "hidden_act": "gelu", "tie_word_embeddings": False},
    "gpt",
)
MIB = 1 << 20


def counted(model, layout, stage=0):
    """Calls a step on a stage: {(kind, collective, axis): (calls, bytes of one)}."""
    checked(layout, model)
    found = step_calls(model, layout, stages_of(layout, model)[stage])
    return {(call.kind, call.collective, call.axis): (call.count, call.nbytes) for call in found}


def totals(model, layout, axis, stage=0):
    """{collective: calls} of an axis."""
    found = Counter()
    for (_kind, collective, where), (count, _nbytes) in counted(model, layout, stage).items():
        found[collective] += count if where == axis else 0
    return {name: count for name, count in found.items() if count}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [("llama3-8b", 8.03, 8.03), ("llama3-70b", 70.55, 70.55), ("llama3-405b", 405.85, 405.85), ("mixtral-8x7b", 46.70, 12.88),
     ("qwen3-30b-a3b", 30.53, 3.35), ("deepseek-v3", 671.0, 37.5), ("gpt3-175b", 174.6, 174.6)],
)  # fmt: skip
def test_known_models_have_the_parameters_that_their_makers_state(name, billions, active):
    model = preset(name)

    assert model.params / 1e9 == pytest.approx(billions, rel=2e-3)
    idle = sum(model.layer_params(at) - model.active_layer_params(at) for at in range(model.layers))
    assert (model.params - idle) / 1e9 == pytest.approx(active, rel=5e-3)


@pytest.mark.pure
def test_every_preset_says_where_it_is_from():
    assert all(row["source"] for row in presets().values())
    with pytest.raises(UsageError, match="no preset"):
        preset("llama9")


@pytest.mark.pure
def test_the_same_run_is_800_or_711_teraflops_by_the_basis():
    rate = 13812 / 1e12 / 8192
    model = preset("llama3-8b")

    assert step_flops(model, 8192, 1) * rate == pytest.approx(800, rel=0.01)
    assert step_flops(model, 8192, 1, "megatron-head") * rate == pytest.approx(711, rel=0.01)
    with pytest.raises(UsageError, match="basis"):
        step_flops(model, 8192, 1, "mfu")


@pytest.mark.pure
def test_published_rows_that_state_a_basis_are_reproduced_within_1_percent():
    path = FIELD / "reference" / "training-validation.json"
    if not path.exists():
        pytest.skip(f"no published rows at {path}")
    rows = [row for row in json.loads(path.read_text())["rows"] if {"recomputed_tflops", "mfu_from_72form"} & row.get("check", {}).keys()]
    assert len(rows) > 8
    for row in rows:
        at, world = row["model"], row["hardware"]["gpus"]
        model = gpt_like(at["hidden"], at["layers"], at["vocab"])
        gbs = row["layout"]["gbs"]
        if "recomputed_tflops" in row["check"]:
            rate = step_flops(model, at["seq"], gbs, "96-form") / row["measured"]["iter_s"] / world / 1e12
            assert rate == pytest.approx(row["measured"]["tflops_per_gpu"], rel=0.01), row["id"]
        else:
            mfu = step_flops(model, at["seq"], gbs, "72-form") / row["measured"]["iter_s"] / world / 312e12
            assert mfu == pytest.approx(row["check"]["mfu_from_72form"], rel=0.01), row["id"]


def gpt_like(hidden, layers, vocab):
    config = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 128, "vocab_size": vocab, "hidden_act": "gelu"}
    return from_config(config, "gpt")


@pytest.mark.pure
@pytest.mark.parametrize(
    ("sp", "recompute", "expected"),
    [
        (False, "none", {"all_reduce": 4}),
        (False, "full", {"all_reduce": 6}),
        (True, "none", {"all_gather": 6, "reduce_scatter": 4}),
        (True, "full", {"all_gather": 8, "reduce_scatter": 6}),
        (True, "selective", {"all_gather": 6, "reduce_scatter": 4}),
    ],
)
def test_tensor_parallel_calls_of_a_layer_are_megatrons_own_counts(sp, recompute, expected):
    layout = Layout(tp=4, pp=4, dp=1, sp=sp, recompute=recompute, gbs=8, seq=512)
    middle = totals(GPT, layout, "tp", stage=1)  # neither embedding nor head

    per_layer = {name: count / (8 * 2) for name, count in middle.items()}
    if sp:
        per_layer["all_reduce"] = per_layer.get("all_reduce", 0) - 1 / 16  # the norms' gradients, once a step
        assert per_layer.pop("all_reduce") == 0
    assert per_layer == expected
    assert {nbytes for (_k, name, axis), (_n, nbytes) in counted(GPT, layout, 1).items() if axis == "tp" and name != "all_reduce"} <= {MIB}


@pytest.mark.pure
def test_embedding_head_and_loss_add_theirs_at_the_ends():
    first, last = (counted(GPT, Layout(tp=4, pp=2, sp=True, gbs=8, seq=512), stage) for stage in (0, 1))

    assert first["embedding", "reduce_scatter", "tp"] == (8, MIB)
    assert first["embedding backward", "all_gather", "tp"] == (8, MIB)
    assert last["head", "all_gather", "tp"] == (8, MIB)
    assert last["head backward", "reduce_scatter", "tp"] == (8, MIB)
    assert last["loss", "all_reduce", "tp"] == (24, 4 * 512)
    assert last["norm gradients", "all_reduce", "tp"] == (1, (2 * 4 + 1) * 1024 * 4)
    assert ("loss", "all_reduce", "tp") not in first


@pytest.mark.pure
def test_torchtitans_head_is_not_gathered_again_for_its_backward():
    layout = Layout(framework="fsdp2", tp=4, gbs=8, seq=512)
    backward = [call for call in step_calls(GPT, layout, stages_of(layout, GPT)[0]) if call.kind == "head backward"]

    assert [(call.collective, call.count, call.nbytes, call.window) for call in backward] == [("reduce_scatter", 8, MIB, "exposed")]


@pytest.mark.pure
@pytest.mark.parametrize("sp", [False, True])
def test_no_call_that_runs_beside_a_gemm_is_called_synchronous(sp):
    layout = Layout(tp=4, pp=2, sp=sp, gbs=8, seq=512)
    calls = [call for stage in stages_of(layout, GPT) for call in step_calls(GPT, layout, stage) if call.window == "gemm"]

    assert "head backward" in {call.kind for call in calls}
    assert not [call for call in calls if "synchronous" in call.why.replace("asynchronous", "")]


@pytest.mark.pure
def test_without_sequence_parallelism_every_tensor_rank_sends_the_whole_activation():
    plain = counted(GPT, Layout(tp=4, pp=2, gbs=8, seq=512))["PP", "sendrecv", "pp"]
    shared = counted(GPT, Layout(tp=4, pp=2, sp=True, gbs=8, seq=512))["PP", "sendrecv", "pp"]

    assert plain == (16, MIB)
    assert shared == (16, MIB // 4)
    assert counted(GPT, Layout(tp=1, pp=2, vpp=2, gbs=8, seq=512))["PP", "sendrecv", "pp"] == (32, MIB)


@pytest.mark.pure
def test_megatrons_gradients_are_fp32_and_its_buckets_only_on_the_first_stage_with_overlap():
    psi = weights_of(GPT, Layout(dp=8), stages_of(Layout(dp=8), GPT)[0]).total

    assert counted(GPT, Layout(dp=8, gbs=8))["DP gradients", "all_reduce", "dp"] == (1, 4 * psi)
    sharded = counted(GPT, Layout(dp=8, dist_opt=True, gbs=8))
    assert sharded["DP gradients", "reduce_scatter", "dp"] == (1, 4 * psi)
    assert sharded["DP parameters", "all_gather", "dp"] == (1, 2 * psi)
    assert buckets(400_000_000, 8, split=True) == 10
    assert buckets(400_000_000, 100, split=True) == 4
    assert buckets(400_000_000, 8, split=False) == 1
    overlapped = Layout(dp=8, dist_opt=True, gbs=8, overlap=frozenset({"grad", "param"}))
    calls = {call.kind: call for call in step_calls(GPT, overlapped, stages_of(overlapped, GPT)[0])}
    assert (calls["DP gradients"].window, calls["DP parameters"].window) == ("last_backward", "first_forward")


@pytest.mark.pure
def test_zero_2_reduces_every_micro_batch_and_zero_3_gathers_twice():
    psi = weights_of(GPT, Layout(dp=4), stages_of(Layout(dp=4), GPT)[0]).total
    one, two, three = (counted(GPT, Layout(framework="deepspeed", zero=zero, dp=4, gbs=12)) for zero in (1, 2, 3))

    assert one["DP gradients", "all_reduce", "dp"] == (1, 2 * psi)
    assert one["DP parameters", "all_gather", "dp"] == (1, 2 * psi)
    assert two["DP gradients", "all_reduce", "dp"] == (3, 2 * psi)
    sums = dict.fromkeys(("ZeRO-3 forward", "ZeRO-3 backward", "ZeRO-3 gradients"), 0)
    for call in step_calls(GPT, Layout(framework="deepspeed", zero=3, dp=4, gbs=12), stages_of(Layout(dp=4), GPT)[0]):
        sums[call.kind] = sums.get(call.kind, 0) + call.nbytes * call.count
    for kind in ("ZeRO-3 forward", "ZeRO-3 backward", "ZeRO-3 gradients"):
        assert sums[kind] == pytest.approx(3 * 2 * psi, rel=0.01), kind
    assert ("DP gradients", "all_reduce", "dp") not in three


@pytest.mark.pure
def test_zero_plus_plus_changes_bytes_and_groups():
    plain = Layout(framework="deepspeed", zero=3, dp=16, gbs=16)
    better = Layout(framework="deepspeed", zero=3, dp=16, gbs=16, qwz=True, hpz=8, qgz=True)
    before, after = counted(GPT, plain), step_calls(GPT, better, stages_of(better, GPT)[0])
    axes = {call.kind: call.axis for call in after}

    assert axes["ZeRO-3 backward"] == "neighbours=8"
    assert (axes["qgZ in node"], axes["qgZ across"]) == ("neighbours=8", "strided=8")
    assert "ZeRO-3 gradients" not in axes
    assert max(c.nbytes for c in after if c.kind == "ZeRO-3 forward") * 2 == before["ZeRO-3 forward", "all_gather", "dp"][1]


@pytest.mark.pure
def test_context_parallel_rings_send_keys_and_values():
    llama = preset("llama3-8b")
    layout = Layout(tp=8, cp=2, dp=1, sp=True, gbs=1, seq=8192)
    ring = counted(llama, layout)
    four = counted(llama, Layout(tp=8, cp=4, dp=1, sp=True, gbs=1, seq=8192))

    assert ring["CP ring forward", "sendrecv", "cp"] == (32, 2 * MIB)
    assert four["CP ring forward", "sendrecv", "cp"][0] == 3 * 32
    gathered = counted(llama, Layout(tp=8, cp=2, cp_comm="all_gather", sp=True, gbs=1, seq=8192))
    assert gathered["CP forward", "all_gather", "cp"] == (64, 2 * MIB)


@pytest.mark.pure
def test_latent_attention_sends_its_expanded_keys_and_values():
    """DeepSeek-V3: 128 heads with keys of 128 + 64 and values of 128, not head_dim = h / n = 56."""
    deepseek = preset("deepseek-v3")
    layout = Layout(tp=8, pp=4, cp=2, sp=True, gbs=1, seq=4096, pp_layout=(15, 15, 15, 16))
    ring, gathered, switched = (counted(deepseek, replace(layout, cp_comm=how)) for how in ("p2p", "all_gather", "a2a"))
    tokens, heads = 2048, 16

    assert ring["CP ring forward", "sendrecv", "cp"] == (15, tokens * heads * (192 + 128) * 2)
    for table, whole in ((gathered, 2), (switched, 1)):
        sizes = {(kind, name): nbytes for (kind, name, axis), (_n, nbytes) in table.items() if axis == "cp"}
        assert max(sizes.values()) in (whole * tokens * heads * 192 * 2, whole * tokens * heads * 128 * 2)


@pytest.mark.pure
def test_ulysses_sends_queries_keys_values_out_and_the_output_back():
    llama = preset("llama3-8b")
    rows = [call for call in step_calls(llama, Layout(cp=2, cp_comm="a2a", gbs=1, seq=8192), stages_of(Layout(cp=2), llama)[0]) if call.axis == "cp"]
    wide, narrow = 4096 * 4096 * 2, 4096 * 1024 * 2

    assert Counter({(call.kind, call.nbytes): call.count for call in rows}) == {
        ("CP forward", wide): 64, ("CP forward", narrow): 64, ("CP backward", wide): 64, ("CP backward", narrow): 64,
    }  # fmt: skip


@pytest.mark.pure
def test_gradients_are_reduced_in_what_each_framework_reduces_them():
    assert Layout().grad_type == "float32"
    assert Layout(param_dtype="float16").grad_type == "float16"  # arguments.py:1215-1217: fp32 is for bf16
    assert Layout(framework="deepspeed").grad_type == "bfloat16"
    assert Layout(framework="fsdp2", dp=4).grad_type == "float32"
    assert Layout(framework="fsdp2", dp=4, shard=1).grad_type == "bfloat16"
    norms = [call for call in step_calls(GPT, Layout(tp=2, sp=True), stages_of(Layout(tp=2), GPT)[0]) if call.kind == "norm gradients"]
    assert [call.dtype for call in norms] == ["float32"]


@pytest.mark.pure
def test_eight_bit_gathers_of_fsdp_are_half_and_spare_the_root():
    plain, narrow = (counted(GPT, Layout(framework="fsdp2", dp=4, gbs=4, fp8=fp8)) for fp8 in (False, True))

    assert narrow["FSDP forward", "all_gather", "fsdp"][1] * 2 == plain["FSDP forward", "all_gather", "fsdp"][1]
    assert narrow["FSDP root forward", "all_gather", "fsdp"] == plain["FSDP root forward", "all_gather", "fsdp"]
    assert narrow["FSDP gradients", "reduce_scatter", "fsdp"] == plain["FSDP gradients", "reduce_scatter", "fsdp"]


@pytest.mark.pure
def test_quantised_gradients_go_through_the_nodes_that_there_are():
    layout = Layout(framework="deepspeed", zero=3, dp=16, gbs=16, qgz=True, qwz=True, hpz=2, node_ranks=4)
    rows = step_calls(GPT, layout, stages_of(layout, GPT)[0])

    assert {call.axis for call in rows if call.kind.startswith("qgZ")} == {"neighbours=4", "strided=4"}
    assert {call.axis for call in rows if call.kind == "qwZ scales"} == {"dp", "neighbours=2"}
    forward = next(call for call in rows if call.kind == "ZeRO-3 forward" and call.nbytes == 1024 * 4096)
    scales = {call.nbytes for call in rows if call.kind == "qwZ scales"}
    # 1024 x 4096 weights on 16 ranks: 33 groups of at most 8000 each.
    assert forward.dtype == "int8"
    assert 4 * 16 * 33 in scales


@pytest.mark.pure
def test_zero_3_fetches_embedding_and_head_apart():
    rows = step_calls(GPT, Layout(framework="deepspeed", zero=3, dp=4, gbs=4), stages_of(Layout(dp=4), GPT)[0])
    sizes = {call.nbytes: call.count for call in rows if call.kind == "ZeRO-3 forward"}

    assert sizes[51200 * 1024 * 2] == 2
    assert sum(nbytes * n for nbytes, n in sizes.items()) == pytest.approx(2 * GPT.params, rel=1e-3)


@pytest.mark.pure
def test_expert_tokens_of_qwen3_are_256_mib_a_rank():
    layout = Layout(ep=8, dp=8, gbs=16, mbs=2, seq=4096)
    found = counted(preset("qwen3-30b-a3b"), layout)

    assert found["EP dispatch", "all_to_all", "ep"] == (48, 256 * MIB)
    assert found["EP combine backward", "all_to_all", "ep"] == (48, 256 * MIB)


@pytest.mark.pure
def test_message_sizes_of_real_models():
    eight, seventy = preset("llama3-8b"), preset("llama3-70b")
    fsdp = counted(eight, Layout(framework="fsdp2", dp=8, gbs=8, seq=8192))

    assert fsdp["FSDP forward", "all_gather", "fsdp"][1] / MIB == pytest.approx(416, abs=1)
    assert fsdp["FSDP gradients", "reduce_scatter", "fsdp"][1] / MIB == pytest.approx(832, abs=1)
    assert counted(seventy, Layout(tp=8, pp=4, sp=True, gbs=4, seq=8192))["TP forward", "all_gather", "tp"][1] == 128 * MIB
    assert counted(seventy, Layout(tp=8, pp=4, sp=True, gbs=4, seq=8192))["PP", "sendrecv", "pp"][1] == 16 * MIB


@pytest.mark.pure
@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Layout(tp=3), "heads"),
        (Layout(pp=3, gbs=3), "--pp-layout"),
        (Layout(dp=4, gbs=6), "micro-batches"),
        (Layout(vpp=2), "VPP without PP"),
        (Layout(framework="deepspeed", zero=3, pp=2, gbs=2), "stage < 2"),
        (Layout(framework="fsdp2", dist_opt=True), "Megatron"),
        (Layout(tp=2, overlap=frozenset({"tp"})), "--sp"),
        (Layout(ep=2, dp=2, gbs=2), "without experts"),
        (Layout(pp=2, pp_layout=(4, 3), gbs=2), "together 7"),
        (Layout(param_dtype="int3"), "dtype"),
        (Layout(pp=2, gbs=2, overlap=frozenset({"p2p"})), "--vpp"),
        (Layout(overlap=frozenset({"moe"})), "--ep"),
        (Layout(framework="deepspeed", overlap=frozenset({"param"})), "no switch to overlap param"),
        (Layout(framework="fsdp2", overlap=frozenset({"grad"})), "no switch to overlap grad"),
        (Layout(framework="fsdp2", dp=8, gbs=8, shard=4, copies=4), "HSDP 4x4 is not DP 8"),
        (Layout(framework="deepspeed", zero=3, dp=8, gbs=8, qgz=True), "several nodes"),
        (Layout(framework="deepspeed", order="tp-cp-ep-pp-dp"), "--order"),
        (Layout(framework="deepspeed", fp8=True), "qwz"),
        (Layout(fp8=True), "--dist-opt"),
        (Layout(no_sync=True), "--no-sync"),
        (Layout(qwz=True), "ZeRO++"),
        (Layout(framework="fsdp2", sp=True, tp=2), "--sp"),
        (Layout(framework="fsdp2", etp=1), "--etp"),
    ],
)
def test_what_a_framework_refuses_is_refused_with_its_reason(layout, reason):
    assert reason in (why_not(layout, GPT) or "")
    with pytest.raises(UsageError, match="refuses"):
        checked(layout, GPT)


@pytest.mark.pure
def test_uneven_stages_spare_the_ends():
    assert split_layers(10, 4) == (2, 3, 3, 2)
    assert sum(split_layers(126, 16)) == 126
    layout = Layout(pp=4, vpp=2, gbs=8)
    assert [stage.layers for stage in stages_of(layout, GPT)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.pure
@pytest.mark.parametrize("text", ["[]", "{", '{"hidden_size": 8}', '{"hidden_size": "x", "num_attention_heads": 1}', "null"])
def test_what_is_no_config_is_an_error_with_its_path(tmp_path, text):
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(DataError, match="config|" + tmp_path.name):
        read_config(tmp_path)


def fsdp_calls(reshard, micro_batches, shard, replicate):
    """What torch's FSDP2 really calls on a fake process group: {collective: [bytes of the larger buffer, ...]}."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = {"all_gather": [], "reduce_scatter": [], "all_reduce": []}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = str(function)
            tensors = [t for item in args for t in (item if isinstance(item, (list, tuple)) else [item]) if isinstance(t, torch.Tensor)]
            for key, word in (("all_gather", "allgather"), ("reduce_scatter", "reduce_scatter"), ("all_reduce", "allreduce")):
                if "c10d" in name and word in name:
                    seen[key].append(max(t.numel() * t.element_size() for t in tensors))
            return function(*args, **(kwargs or {}))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=shard * replicate)
    try:
        names = ("replicate", "shard") if replicate > 1 else ("shard",)
        mesh = init_device_mesh("cpu", (replicate, shard) if replicate > 1 else (shard,), mesh_dim_names=names)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        blocks = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(4)))
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(blocks, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        with Watch():
            for _ in range(micro_batches):
                blocks(torch.zeros(8, 64)).sum().backward()
    finally:
        dist.destroy_process_group()
    return seen


@pytest.mark.parametrize(("micro_batches", "shard", "replicate"), [(1, 4, 1), (3, 4, 1), (2, 4, 2)])
@pytest.mark.filterwarnings("ignore")
def test_fsdp2_calls_what_torch_calls_on_a_fake_process_group(micro_batches, shard, replicate):
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    seen = fsdp_calls(True, micro_batches, shard, replicate)

    from nccl_bench.training.step_fsdp import _block

    layout = Layout(framework="fsdp2", dp=shard * replicate, shard=shard, gbs=shard * replicate * micro_batches)
    rows = [(call.collective, call.nbytes, call.count) for call in _block(layout, "FSDP", "fsdp", 64 * 64, 4)]
    ours = Counter()
    for collective, nbytes, count in rows:
        ours[collective, nbytes] += count
    theirs = Counter((name, nbytes) for name, sizes in seen.items() for nbytes in sizes)
    assert theirs == ours


@pytest.mark.pure
@pytest.mark.parametrize(
    ("layout", "own"),
    [
        (Layout(framework="megatron", tp=2, pp=2, cp=2, dp=2, ep=2, sp=True, gbs=8, seq=512), ("megatron", "TE")),
        (Layout(framework="fsdp2", tp=2, pp=2, cp=2, dp=2, ep=2, gbs=8, seq=512), ("torchtitan", "torch")),
        (Layout(framework="deepspeed", zero=1, pp=2, dp=4, ep=2, gbs=8, seq=512), ("deepspeed",)),
    ],
)
def test_every_row_cites_its_own_frameworks_source(layout, own):
    """DeepSpeed's tensor parallelism is Megatron-DeepSpeed's, and is left out here."""
    model = preset("mixtral-8x7b")
    checked(layout, model)
    for stage in stages_of(layout, model):
        for call in step_calls(model, layout, stage):
            assert call.source.split()[0] in own, (call.kind, call.source)


@pytest.mark.pure
def test_each_framework_exchanges_experts_tokens_in_its_own_way():
    """Megatron gathers counts and sends probabilities; torchtitan exchanges counts on the EP group; DeepSpeed's capacity is fixed."""
    model = preset("mixtral-8x7b")
    sizes = {"dp": 4, "ep": 4, "gbs": 4, "seq": 512}
    found = {}
    for framework in ("megatron", "fsdp2", "deepspeed"):
        rows = counted(model, Layout(framework=framework, **sizes))
        found[framework] = {(kind, name): row for (kind, name, axis), row in rows.items() if kind.startswith("EP ")}
    token = 512 * 2 * 4096 * 2

    assert {name for kind, name in found["megatron"] if kind == "EP counts"} == {"all_gather"}
    assert found["fsdp2"]["EP counts", "all_to_all"] == (32, 8 * 8)
    assert not any("counts" in kind or "probabilities" in kind for kind, _name in found["deepspeed"])
    assert not any("probabilities" in kind for kind, _name in found["fsdp2"])
    assert {rows["EP dispatch", "all_to_all"] for rows in found.values()} == {(32, token)}


@pytest.mark.pure
def test_torchtitan_gathers_keys_and_values_and_ties_nothing_over_a_pipeline():
    llama = preset("llama3-8b")
    rows = counted(llama, Layout(framework="fsdp2", cp=2, dp=1, gbs=1, seq=8192))
    local = 4096 * 8 * 128 * 2

    context = {(kind, name): row for (kind, name, axis), row in rows.items() if axis == "cp"}
    assert context == {("CP forward", "all_gather"): (64, 2 * local), ("CP backward", "reduce_scatter"): (64, 2 * local)}
    assert "ties no embeddings" in why_not(Layout(framework="fsdp2", pp=2, gbs=2), replace(llama, tied=True))


@pytest.mark.pure
def test_a_layout_says_the_experts_tensor_parallelism_where_it_is_given_and_no_sequence_parallelism_without_tp():
    assert "ETP1" in Layout(tp=8, etp=1, sp=True).text()
    assert "ETP" not in Layout(tp=8, sp=True).text()
    assert "SP" not in Layout(tp=1, sp=True).text().split()
