"""From a plan to a price that a real training loop confirms, on gloo: emit, measure on local ranks, price, train a tiny model, compare."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from mesh_ranks import TINY, trained
from ranks import on_ranks

ROOT = Path(__file__).parent.parent
RANKS = 4
SHAPE = ("--seq", "64", "--mbs", "4", "--gbs", str(4 * RANKS), "--world", str(RANKS), "--gpus-per-node", str(RANKS))
HOW = {"ddp": ("--framework", "fsdp2", "--hsdp", "1"), "fsdp": ("--framework", "fsdp2")}


def command(*args, cwd):
    done = subprocess.run([sys.executable, "-m", "nccl_bench", *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=list(HOW))
def priced(request, tmp_path_factory):
    """(how, plan before, plan priced by a sweep of exactly what it wanted, steps of the real loop)."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "config.json").write_text(json.dumps(TINY))
    plan = ("plan", "--model", "config.json", *SHAPE, *HOW[request.param], "--param-dtype", "float32", "--no-flash")
    before = json.loads(command(*plan, "--emit", "want.json", "--json", cwd=folder))
    command("sweep", "--want", "want.json", "-O", "run", "--budget", "0.3", "--no-progress", cwd=folder)
    after = json.loads(command(*plan, "--measured", "run", "--json", cwd=folder))
    steps = on_ranks(RANKS, trained, request.param, 8, 4, 64)[0]
    return request.param, before, after, steps[2:]


def of_weights(plan):
    """The calls that move weights and gradients."""
    return [call for call in plan["calls"] if call["kind"].startswith(("DDP", "FSDP"))]


def test_before_a_measurement_nothing_is_priced_and_after_it_everything(priced):
    _how, before, after, _steps = priced

    assert before["step_s"] is None
    assert all(call["priced_by"] == "measured" for call in after["calls"])
    assert after["extrapolated"] == []
    assert after["unpriced"] == []
    assert after["step_s"]["low"] <= after["step_s"]["mid"] <= after["step_s"]["high"]
    assert after["not_nccl"] is True


def test_the_plan_counts_the_parameters_of_the_model_that_is_trained(priced):
    _how, _before, after, steps = priced

    assert after["params"] == steps[0]["params"]


def test_the_real_loop_sends_the_bytes_that_the_plan_lists(priced):
    how, _before, after, steps = priced
    planned, real = {}, {}
    for call in of_weights(after):
        planned[call["collective"]] = planned.get(call["collective"], 0) + call["nbytes"] * call["count"]
    for name, nbytes in zip(steps[-1]["names"], steps[-1]["nbytes"], strict=True):
        kind = next(kind for kind in ("reduce_scatter", "all_gather", "all_reduce") if kind.replace("_", "") in name.replace("_", ""))
        real[kind] = real.get(kind, 0) + nbytes

    assert planned.keys() == real.keys() == ({"all_reduce"} if how == "ddp" else {"all_gather", "reduce_scatter"})
    for kind, nbytes in planned.items():
        assert real[kind] == pytest.approx(nbytes, rel=0.01), kind


def test_the_price_of_communication_is_of_the_size_that_the_real_loop_pays(priced):
    """Against the fastest step, and wide: both sides share few cores with whatever else runs. A wrong unit is far outside."""
    _how, _before, after, steps = priced
    planned_us = sum(call["price_us"] * call["count"] for call in of_weights(after))
    fastest_us = min(sum(step["us"]) for step in steps)

    assert 1 / 30 < planned_us / fastest_us < 30
