"""`nccl-bench plan` and `search` as a user types them: the answer, the document, files of frameworks, errors; never torch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_bench.errors import DataError
from nccl_bench.training import files

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.pure
HARDWARE = ("--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--nodes", "8")
LLAMA = ("--preset", "llama3-70b", "--seq", "8192", "--gbs", "64")
LAYOUT = ("--tp", "8", "--pp", "4", "--sp", "--dist-opt", "--recompute", "full")
KEYS = {"layout", "groups", "memory", "step_s", "tokens_per_s_per_gpu", "mfu_frac", "flop_basis", "shares", "calls", "extrapolated", "assumptions",
        "what_if", "cost"}  # fmt: skip


def run(*args, cwd=None):
    """The finished process; it may not have loaded torch."""
    code = "import sys; from nccl_bench.cli.main import run; code = run(); assert 'torch' not in sys.modules; sys.exit(code)"
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, cwd=cwd or ROOT, timeout=120, check=False)


def document(*args, cwd=None):
    done = run(*args, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_first_line_is_the_answer():
    done = run("plan", *LLAMA, *HARDWARE, *LAYOUT, "--gemm-eff", "0.7", "--gpu-hour-price", "2", "--observed-step", "20", "--tokens", "1T")
    first, second = done.stdout.splitlines()[:2]

    assert done.returncode == 0, done.stderr
    assert first.startswith("llama3-70b on 64 GPUs: TP8 PP4 DP2 SP dist-opt")
    for word in ("a step", "waiting for communication", "tokens/s/GPU", "MFU", "full-attention"):
        assert word in first
    assert second.startswith("best change: ")
    assert re.search(r"^memory: fits, \d+ of 80 GB", done.stdout, re.MULTILINE)
    for words in ("what would pay", "GPU-hours a day", "unexplained", "in money"):
        assert words in done.stdout


def test_the_document_has_the_keys_that_were_promised():
    found = document("plan", *LLAMA, *HARDWARE, *LAYOUT, "--gemm-eff", "0.7", "--gpu-hour-price", "2.5")

    assert found.keys() >= KEYS
    assert {row["axis"]: (row["size"], row["count"], row["nodes"], row["rails"]) for row in found["groups"]} == {
        "tp": (8, 8, 1, 0),
        "dp": (2, 32, 2, 8),
        "pp": (4, 16, 4, 8),
    }
    assert found["memory"].keys() >= {"verdict", "nbytes", "of_nbytes", "parts"}
    assert found["memory"]["verdict"] == "fits"
    assert found["memory"]["nbytes"] == pytest.approx(sum(found["memory"]["parts"].values()), abs=10)
    assert found["step_s"].keys() == {"low", "mid", "high"}
    assert found["shares"].keys() == {"compute", "bubble", "exposed", "hidden", "other"}
    for call in found["calls"]:
        assert call.keys() >= {"kind", "collective", "axis", "nbytes", "count", "price_us", "priced_by", "exposed_us", "why"}
        assert call["source"]
    assert all(row.keys() == {"name", "value", "source"} for row in found["assumptions"])
    waiting = found["cost"]["gpu_hours_waiting_per_day"]
    assert waiting == pytest.approx(64 * 24 * found["shares"]["exposed"])
    assert found["cost"]["money_waiting_per_day"] == pytest.approx(2.5 * waiting)
    tokens = 64 * 8192 / found["step_s"]["mid"] / 64
    assert found["tokens_per_s_per_gpu"] == pytest.approx(tokens)


def test_without_hardware_it_tells_what_is_sent_and_no_time():
    found = document("plan", *LLAMA, "--world", "64", "--gpus-per-node", "8", *LAYOUT)

    assert found["step_s"] is None
    assert found["shares"] is None
    assert found["memory"]["verdict"] is None
    assert all(call["price_us"] is None for call in found["calls"])
    assert {(call["collective"], call["axis"]) for call in found["calls"]} >= {("all_gather", "tp"), ("sendrecv", "pp"), ("reduce_scatter", "dp")}
    assert found["unpriced"]


def test_with_hardware_but_no_efficiency_it_prices_communication_alone():
    done = run("plan", *LLAMA, *HARDWARE, *LAYOUT)
    found = document("plan", *LLAMA, *HARDWARE, *LAYOUT)

    assert "no step time: compute was not measured" in done.stdout
    assert found["step_s"] is None
    assert all(call["price_us"] > 0 for call in found["calls"])


def test_emit_writes_exactly_what_the_calls_need(tmp_path):
    want = tmp_path / "want.json"
    found = document("plan", *LLAMA, *HARDWARE, *LAYOUT, "--emit", want)
    record = json.loads(want.read_text())

    assert record["mesh"] == "megatron:tp8,cp1,dp2,pp4"
    asked = {(row["axis"], row["collective"], row["dtype"], nbytes) for row in record["collectives"] for nbytes in row["nbytes"]}
    for call in found["calls"]:
        assert (call["axis"], call["collective"], call["dtype"], call["nbytes"]) in asked
    assert {row["name"] for row in record["gemms"]} >= {"qkv", "qkv dgrad", "qkv wgrad", "mlp up", "head", "attention", "memory pass"}
    assert record["overlaps"][0]["gemm"]["m"] > 0


def test_search_gives_plans_in_order_with_their_tie_groups(tmp_path):
    chart = tmp_path / "layouts.svg"
    common = ("search", *LLAMA, *HARDWARE, "--dist-opt", "--gemm-eff", "0.7")
    found = document(*common, "--top", "6", "--fix", "mbs=1", "--max-tp", "8", "--chart", chart)

    assert len(found) == 6
    assert all(row.keys() >= {*KEYS, "tie_group"} for row in found)
    steps = [row["step_s"]["mid"] for row in found]
    assert steps == sorted(steps)
    assert [row["tie_group"] for row in found] == sorted(row["tie_group"] for row in found)
    assert found[0]["what_if"]
    assert "<svg" in chart.read_text()
    shown = run(*common, "--top", "3", "--fix", "tp=8,mbs=1")
    assert "tie group 1" in shown.stdout
    assert "not measured" in shown.stdout
    assert "why the first" in shown.stdout


@pytest.mark.parametrize(
    ("model", "options", "sizes"),
    [
        ("mixtral-8x7b", ("--ep", "4", "--cp", "2"), {"ep": 4, "cp": 2}),
        ("llama3-8b", ("--framework", "deepspeed", "--zero", "1"), {"zero": 1}),
        ("llama3-8b", ("--recompute", "none"), {"recompute": "none"}),
    ],
)
def test_search_keeps_what_its_options_say(model, options, sizes):
    hardware = ("--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--nodes", "2", "--gpu-mem", "2000")
    found = document("search", "--preset", model, "--gbs", "16", *hardware, "--gemm-eff", "0.6", "--top", "1000", *options)

    assert found
    for name, size in sizes.items():
        assert {row["layout"][name] for row in found} == {size}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("plan",), 2, "no model"),
        (("plan", "--preset", "gpt9", *HARDWARE), 2, "no preset"),
        (("plan", "--preset", "llama3-8b"), 2, "how many GPUs"),
        (("plan", "--preset", "llama3-8b", "--world", "64"), 2, "how many GPUs has a node"),
        (("plan", "--preset", "llama3-8b", "--world", "8", "--gpus-per-node", "8", "--tp", "3"), 2, "does not divide"),
        (("plan", "--preset", "llama3-8b", "--world", "8", "--gpus-per-node", "8", "--tp", "8", "--dp", "2"), 2, "ranks, and there are 8"),
        (("plan", "--preset", "llama3-8b", "--world", "8", "--gpus-per-node", "8", "--gemm-eff", "2"), 2, "not between 0 and 1"),
        (("plan", "--preset", "llama3-8b", "--world", "8", "--gpus-per-node", "8", "--gemm-eff", "0.5"), 2, "--peak"),
        (("plan", "--preset", "llama3-8b", "--world", "8", "--gpus-per-node", "8", "--overlap", "all"), 2, "'all' is none"),
        (("plan", "--preset", "llama3-8b", "--world", "8", "--gpus-per-node", "8", "--zeropp", "xyz"), 2, "qwz, hpz:N, qgz"),
        (("plan", "--preset", "llama3-8b", "--gpus", "8xH300-SXM"), 6, "H300"),
        (("plan", "--preset", "llama3-8b", "--gpus", "8xH100-SXM", "--nodes", "2"), 2, "none are given"),
        (("plan", "--preset", "llama3-8b", "--measured", "nowhere"), 5, "nowhere"),
        (("plan", "--model", "nowhere.json", *HARDWARE), 5, "nowhere.json"),
        (("search", "--preset", "llama3-8b", *HARDWARE), 2, "--gbs"),
        (("search", "--preset", "llama3-8b", *HARDWARE, "--gbs", "64"), 2, "can be priced"),
        (("search", "--preset", "llama3-8b", *HARDWARE, "--gbs", "64", "--fix", "xx=1"), 2, "SIZE=NUMBER"),
        (("plan", "--preset", "llama3-8b", *HARDWARE, "--gpu-mem", "nan"), 2, "--gpu-mem nan is out of range"),
        (("plan", "--preset", "llama3-8b", *HARDWARE, "--gpu-hour-price", "-2"), 2, "--gpu-hour-price -2 is out of range"),
        (("plan", "--preset", "llama3-8b", *HARDWARE, "--gemm-eff", "0.5", "--hbm", "-5"), 2, "--hbm -5 is out of range"),
        (("plan", "--preset", "llama3-8b", *HARDWARE, "--world", "128"), 2, "--world 128: the hardware named has 64 GPUs"),
        (("plan", "--preset", "llama3-8b", *HARDWARE, "--gpus-per-node", "4"), 2, "--gpus 8xH100-SXM has 8"),
        (("plan", "--preset", "llama3-8b", *HARDWARE, "--etp", "4"), 2, "ETP without experts"),
        (("search", *LLAMA, *HARDWARE, "--ep", "4"), 2, "EP without experts"),
        (("search", *LLAMA, *HARDWARE, "--hsdp", "8"), 2, "--hsdp belongs to fsdp2"),
        (("search", *LLAMA, *HARDWARE, "--fix", "zero=2"), 2, "--zero belongs to DeepSpeed"),
        (("search", *LLAMA, *HARDWARE, "--framework", "deepspeed", "--fix", "cp=2"), 2, "no context parallelism"),
        (("search", *LLAMA, *HARDWARE, "--fix", "tp=3"), 2, "no layout of 64 ranks with these sizes"),
        (("search", *LLAMA, *HARDWARE, "--cp", "2", "--fix", "cp=4"), 2, "cp is 2 already"),
    ],
)
def test_what_cannot_be_is_said_in_words(args, code, words):
    done = run(*args)

    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith(f"nccl-bench: exit {code}: ")


# ---- files of frameworks ----

MEGATRON = """
python pretrain_gpt.py \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size=4 --sequence-parallel \\
  --num-layers 80 --hidden-size 8192 --num-attention-heads 64 --group-query-attention --num-query-groups 8 \\
  --ffn-hidden-size 28672 --vocab-size 128256 --swiglu --untie-embeddings-and-output-weights \\
  --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer \\
  --overlap-grad-reduce --overlap-param-gather --num-layers-per-virtual-pipeline-stage 5 --lr 3e-4
"""


def test_megatrons_arguments_hold_model_and_layout(tmp_path):
    (tmp_path / "train.sh").write_text(MEGATRON)
    found = document("plan", "--megatron-args", tmp_path / "train.sh", *HARDWARE)

    assert found["params"] == pytest.approx(70.55e9, rel=1e-3)
    layout = found["layout"]
    assert (layout["tp"], layout["pp"], layout["dp"], layout["vpp"], layout["sp"], layout["dist_opt"]) == (8, 4, 2, 4, True, True)
    assert layout["overlap"] == ["grad", "param"]
    assert "--lr" in found["unknown_keys"]


def test_a_megatron_script_sets_its_own_variables(tmp_path):
    script = MEGATRON.replace("-size=4", "-size=$PP").replace("--micro-batch-size 1", "--micro-batch-size ${MBS:-1}")
    (tmp_path / "train.sh").write_text(f"export PP=4\nEXTRA=(\n    '--fp8-format hybrid'  # a comment\n)\n{script} ${{EXTRA[@]}}\n")
    found = document("plan", "--megatron-args", tmp_path / "train.sh", *HARDWARE)

    assert (found["layout"]["pp"], found["layout"]["mbs"]) == (4, 1)
    assert any("fp8" in row["value"] for row in found["assumptions"])
    (tmp_path / "open.sh").write_text(script)
    done = run("plan", "--megatron-args", tmp_path / "open.sh", *HARDWARE)
    assert done.returncode == 5
    assert "a variable that the file does not set" in done.stderr
    (tmp_path / "tokenizer.sh").write_text(MEGATRON.replace("--vocab-size 128256", ""))
    assert "tokenizer" in run("plan", "--megatron-args", tmp_path / "tokenizer.sh", *HARDWARE).stderr
    assert run("plan", "--megatron-args", tmp_path / "tokenizer.sh", "--preset", "llama3-70b", *HARDWARE).returncode == 0


def test_megatrons_experts_have_its_own_defaults_and_pattern(tmp_path):
    script = "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --vocab-size 1000 --swiglu --num-experts 8 --moe-layer-freq ([0]*1+[1]*3)"
    (tmp_path / "a").write_text(f"{script!s} --expert-model-parallel-size 8".replace("([0]*1+[1]*3)", "'([0]*1+[1]*3)'"))
    found = document("plan", "--megatron-args", tmp_path / "a", "--world", "8", "--gpus-per-node", "8")
    wide = int(4 * 1024 * 2 / 3 / 64) * 64

    attention, dense, router = 4 * 1024 * 1024, 3 * 1024 * wide, 8 * 1024
    norm, biases = 2 * 1024, 4 * 4 * 1024 + 2 * wide + 1024  # LayerNorm, and biases but of experts, are Megatron's default
    assert found["params"] == 1000 * 1024 + norm + 4 * (attention + 2 * norm) + dense + 3 * (8 * dense + router) + biases
    assert any("biases of experts" in row["value"] for row in found["assumptions"])
    (tmp_path / "c").write_text(f"{script.split(' --num-experts')[0]} --disable-bias-linear --normalization RMSNorm --max-position-embeddings 512")
    bare = document("plan", "--megatron-args", tmp_path / "c", "--world", "8", "--gpus-per-node", "8")
    assert bare["params"] == (1000 + 512) * 1024 + 1024 + 4 * (attention + 2048 + dense)
    (tmp_path / "b").write_text("--hidden-size 8 --cp-comm-type a2a+p2p")
    assert "a2a+p2p has no price" in run("plan", "--megatron-args", tmp_path / "b", "--world", "8", "--gpus-per-node", "8").stderr


def test_a_deepspeed_config_sets_stage_dtypes_and_batches(tmp_path):
    config = {
        "train_batch_size": 128, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "steps_per_print": 10,
        "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True, "sub_group_size": 1},
    }  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(config))
    found = document("plan", "--preset", "llama3-8b", "--ds-config", tmp_path / "ds.json", *HARDWARE)

    layout = found["layout"]
    assert (layout["framework"], layout["zero"], layout["hpz"], layout["qwz"], layout["gbs"], layout["mbs"]) == ("deepspeed", 3, 8, True, 128, 2)
    assert found["unknown_keys"] == ["steps_per_print", "zero_optimization.sub_group_size"]
    assert {call["axis"] for call in found["calls"]} >= {"dp", "neighbours=8"}


def test_a_deepspeed_config_sets_buckets_and_switches_its_overlap_off(tmp_path):
    zero = {"stage": 3, "overlap_comm": False, "reduce_bucket_size": 5e7, "stage3_param_persistence_threshold": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    found = document("plan", "--preset", "llama3-8b", "--ds-config", tmp_path / "ds.json", *HARDWARE, "--gemm-eff", "0.6")
    gradients = next(call for call in found["calls"] if call["kind"] == "ZeRO-3 gradients")

    assert gradients["count"] == -(-8_030_261_248 // 50_000_000)
    assert gradients["exposed_us"] == pytest.approx(gradients["price_us"] * gradients["count"])
    assert "overlap_comm is off" in gradients["why"]


def test_a_torchtitan_toml_sets_the_mesh(tmp_path):
    (tmp_path / "t.toml").write_text(
        "[parallelism]\ndata_parallel_replicate_degree = 4\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n"
        '[training]\nseq_len = 8192\nlocal_batch_size = 1\n[activation_checkpoint]\nmode = "full"\n[optimizer]\nlr = 3e-4\n'
    )
    found = document("plan", "--preset", "llama3-8b", "--torchtitan", tmp_path / "t.toml", *HARDWARE)

    layout = found["layout"]
    assert (layout["framework"], layout["tp"], layout["dp"], layout["hsdp"], layout["recompute"]) == ("fsdp2", 2, 32, 8, "full")
    assert found["unknown_keys"] == ["optimizer.lr"]


@pytest.mark.parametrize(
    ("reader", "text"),
    [(files.deepspeed, "[]"), (files.deepspeed, "{"), (files.deepspeed, '{"zero_optimization": {"stage": "x"}}'), (files.torchtitan, "a = ["),
     (files.torchtitan, "[training]\nseq_len = 'x'"), (files.megatron, "--seq-length 'x"), (files.megatron, "--seq-length ten")],
)  # fmt: skip
def test_a_spoilt_file_is_an_error_with_its_path(tmp_path, reader, text):
    (tmp_path / "f").write_text(text)

    with pytest.raises(DataError, match="f: "):
        reader(tmp_path / "f")
    with pytest.raises(DataError, match="nowhere"):
        reader(tmp_path / "nowhere")


@pytest.mark.parametrize(("option", "text"), [("--megatron-args", ""), ("--megatron-args", "[1]"), ("--megatron-args", "echo --hello 3"),
                                              ("--torchtitan", ""), ("--torchtitan", "[server]\nport = 3\n")])  # fmt: skip
def test_a_file_of_which_nothing_is_known_is_refused_and_no_defaults_are_made_up(tmp_path, option, text):
    path = tmp_path / "file"
    path.write_text(text)

    ended = run("plan", "--preset", "llama3-70b", option, str(path), "--world", "64", "--gpus-per-node", "8")

    assert ended.returncode == 5
    assert f"{path}:" in ended.stderr
    assert option in ended.stderr


def test_tensor_parallelism_across_nodes_that_was_not_measured_is_called_uncertain():
    common = ("plan", *LLAMA, "--gpus", "8xA100-SXM", "--nics", "4x200-IB", "--nodes", "2", "--gemm-eff", "0.7")
    shown, wide, narrow = run(*common, "--tp", "16"), document(*common, "--tp", "16"), document(*common, "--tp", "8")

    assert shown.returncode == 0, shown.stderr
    assert "tensor parallelism over 2 nodes was not measured, and its price is uncertain" in shown.stdout
    assert [sum("uncertain" in note for note in found["notes"]) for found in (wide, narrow)] == [1, 0]
    assert any(row["name"] == "TP calls of the backward" for row in wide["assumptions"])


def test_options_without_effect_and_gpus_that_stand_idle_are_said():
    common = ("plan", "--preset", "llama3-8b", *HARDWARE, "--gbs", "64")
    idle = ("--world", "32", "--tp", "8", "--gemm-eff", "0.7", "--gpu-hour-price", "2")
    shown, found = run(*common, *idle).stdout, document(*common, *idle)

    assert "32 of the 64 GPUs of these nodes stand idle: 768 GPU-hours a day, 1536 in money" in shown
    assert found["cost"]["gpu_hours_idle_per_day"] == 768
    assert found["cost"]["money_idle_per_day"] == 1536
    assert any("stand idle" in note for note in found["notes"])
    part = run("plan", "--preset", "llama3-8b", "--gpus", "8xH100-SXM", "--nics", "8x400-IB", "--world", "12", "--gbs", "12").stdout
    assert "4 of the 16 GPUs of these nodes stand idle" in part
    full = document(*common, "--tp", "8", "--gemm-eff", "0.7")
    assert not any("idle" in note or "no effect" in note for note in full["notes"])
    assert full["cost"]["gpu_hours_idle_per_day"] == 0
    said = document(*common, "--sp", "--tp", "1", "--tokens", "1T", "--gpu-hour-price", "2", "--peak", "900", "--hbm", "3000")["notes"]
    assert "no effect without a step time: --tokens --peak --hbm --gpu-hour-price" in said
    assert any("--sp" in note and "no TP" in note for note in said)
    assert "SP" not in run(*common, "--sp", "--tp", "1").stdout.splitlines()[0].split()
    alone = run(*common, "--tp", "8", "--pp", "8", "--dist-opt", "--pp-layout", "4,4,4,4,4,4,4,4").stdout
    assert "no effect: --dist-opt (DP x CP is 1" in alone
    assert "uneven" not in alone


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("plan", "--cp-comm", "a2a"), "--cp-comm a2a without --cp"),
        (("plan", "--cp", "2", "--cp-comm", "a2a+p2p"), "groups of two kinds within CP"),
        (("plan", "--cp", "2", "--framework", "fsdp2", "--cp-comm", "p2p"), "torchtitan gathers keys and values"),
        (("search", "--gemm-eff", "0.7", "--cp-comm", "a2a"), "--cp-comm a2a without CP"),
    ],
)
def test_ways_of_context_parallelism_that_do_not_apply_are_refused(options, word):
    done = run(options[0], "--preset", "llama3-8b", *HARDWARE, "--gbs", "64", *options[1:])

    assert done.returncode == 2
    assert word in done.stderr


def test_search_says_what_the_first_layout_costs():
    money = ("--gpu-hour-price", "2", "--tokens", "1T")
    shown = run("search", *LLAMA, *HARDWARE, "--gemm-eff", "0.7", "--fix", "tp=8,mbs=1", "--top", "2", *money).stdout

    assert "GPU-hours a day" in shown
    assert "the whole training" in shown


def test_a_search_in_which_nothing_fits_names_what_was_not_tried():
    common = ("search", "--preset", "llama3-70b", "--gpus", "1xH100-SXM", "--gbs", "8", "--gemm-eff", "0.7")
    plain, tried, held = (run(*common, *more).stderr for more in ((), ("--dist-opt",), ("--dist-opt", "--recompute", "none")))

    assert "more GPUs or --dist-opt\n" in plain
    assert "more GPUs\n" in tried
    assert "more GPUs or --recompute full\n" in held
