"""What crosses the memory bus beside the layers, and a plan priced on a GPU beside the real step that was timed there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_bench.cli.main import run
from nccl_bench.training.compute import MEMORY_PASSES, PASSES_RANGE, Efficiency, work_of
from nccl_bench.training.config import from_config
from nccl_bench.training.layout import Layout, stages_of
from nccl_bench.training.traffic import copies_nbytes, loss_nbytes
from nccl_bench.training.weights import block_params, root_params

pytestmark = pytest.mark.pure
SAMPLE = Path(__file__).parent.parent / "results/samples/h200-plan"
SHAPE = json.loads((SAMPLE / "llama1b.json").read_text())
LLAMA = from_config(SHAPE, "llama1b")
FSDP = Layout(framework="fsdp2", dp=8, gbs=32, mbs=2, seq=4096, grad_dtype="bfloat16")
REAL_STEP_S = 0.15477
"""Median of 20 steps of benchmarks/step.py --compile on the same H200, minutes later (docs/training.md)."""


def stage(layout):
    return stages_of(layout, LLAMA)[-1]


@pytest.mark.parametrize(("framework", "a_logit"), [("fsdp2", (14, 22)), ("megatron", (38, 14)), ("deepspeed", (38, 14))])
def test_the_loss_crosses_memory_as_often_as_the_frameworks_code_does(framework, a_logit):
    layout = Layout(framework=framework, tp=2, dp=4, gbs=8, mbs=2, seq=4096, cp=1)
    logits = 4096 * 2 * 128256 / 2

    assert loss_nbytes(LLAMA, layout) == (a_logit[0] * logits, a_logit[1] * logits)


def test_fsdp2_copies_what_it_gathers_and_what_it_reduces():
    blocks = sum(sum(block_params(LLAMA, FSDP, layer)) for layer in stage(FSDP).layers)
    root = root_params(LLAMA, FSDP, stage(FSDP))

    assert blocks + root == LLAMA.params
    assert copies_nbytes(LLAMA, FSDP, stage(FSDP)) == (4 * (blocks + root), 4 * blocks + 4 * (blocks + root))
    assert copies_nbytes(LLAMA, replace(FSDP, grad_dtype="float32"), stage(FSDP))[1] == 4 * blocks + 6 * (blocks + root)
    once = replace(FSDP, no_sync=True)
    assert once.microbatches == 2
    assert copies_nbytes(LLAMA, once, stage(once))[1] == 4 * blocks + 2 * (blocks + root)


ALONE = replace(FSDP, shard=1), replace(FSDP, framework="megatron"), Layout(framework="fsdp2", tp=4, gbs=2, mbs=2, seq=512)


@pytest.mark.parametrize("layout", ALONE)
def test_who_shards_nothing_copies_nothing(layout):
    assert copies_nbytes(LLAMA, layout, stage(layout)) == (0.0, 0.0)


def test_only_the_last_stage_pays_for_the_loss():
    layout = Layout(framework="megatron", pp=2, gbs=8, mbs=1, seq=2048)
    first, last = stages_of(layout, LLAMA)
    rates = Efficiency(eff=0.7, peak_tflops=989.4, hbm_GBps=4800)
    without = replace(LLAMA, vocab=1)
    more = work_of(LLAMA, layout, last, rates).total - work_of(without, layout, last, rates).total

    assert work_of(LLAMA, layout, first, rates).total == pytest.approx(work_of(without, layout, first, rates).total)
    assert more > rates.pass_s(52 * 2048 * (LLAMA.vocab - 1))


def test_the_range_of_a_step_is_at_least_that_of_the_passes():
    rates = Efficiency(eff=0.7, peak_tflops=989.4, hbm_GBps=4800)
    work = work_of(LLAMA, FSDP, stage(FSDP), rates)
    again = work_of(LLAMA, FSDP, stage(FSDP), replace(rates, passes=PASSES_RANGE["high"]))

    assert again.total - work.total == pytest.approx((PASSES_RANGE["high"] / MEMORY_PASSES - 1) * work.passing)


def test_a_step_priced_with_what_an_h200_measured_holds_the_real_one(capsys):
    argv = ["plan", "--model", str(SAMPLE / "llama1b.json"), "--gpus", "1xH200-SXM", "--seq", "4096", "--mbs", "2", "--gbs", "2"]
    assert run([*argv, "--framework", "fsdp2", "--measured", str(SAMPLE), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["step_s"]["low"] < REAL_STEP_S < found["step_s"]["high"]
    assert found["step_s"]["mid"] == pytest.approx(REAL_STEP_S, rel=0.08)
    assert found["extrapolated"] == found["unpriced"] == []
    kept = json.loads((SAMPLE / "plan.json").read_text())
    assert [found[key] for key in ("step_s", "memory", "shares")] == [kept[key] for key in ("step_s", "memory", "shares")]
