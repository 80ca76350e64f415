"""How long an acceptance takes, what fits into a budget of minutes, and options that do not go together."""

from __future__ import annotations

import inspect

import pytest

from nccl_bench.cli.accept_options import MEASURES, check_together, spec_of
from nccl_bench.errors import UsageError
from nccl_bench.flows.accept_plan import DROP, LEAST_CASE_S, estimate, stage_s
from nccl_bench.flows.accept_run import meeting_s
from nccl_bench.flows.accept_spec import DEFAULT_STAGES, AcceptSpec
from nccl_bench.flows.council import SILENT_S, run_worlds
from nccl_bench.flows.worlds import pairs_plan
from nccl_bench.measure.pairs_spec import PairSpec


def test_without_a_budget_every_stage_runs_at_the_default():
    found = estimate(AcceptSpec(), 32, 8, "nccl")
    assert tuple(found.seconds) == DEFAULT_STAGES
    assert (found.case_s, found.left_out) == (1.0, {})
    assert all(seconds > 0 for seconds in found.seconds.values())


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("n_local", [1, 2, 8])
@pytest.mark.parametrize("n_hosts", [1, 2, 3, 16])
def test_a_stage_without_anything_to_measure_says_why_and_every_other_has_its_seconds(n_hosts, n_local, backend):
    found = estimate(AcceptSpec(), n_hosts, n_local, backend)
    assert set(found.idle) == {stage for stage, seconds in found.seconds.items() if not seconds}
    assert all(f"nothing to measure in stage {stage}: {reason}" in found.lines() for stage, reason in found.idle.items())


def test_more_hosts_take_no_less_and_a_soak_takes_what_was_asked():
    small, large = (estimate(AcceptSpec(), n, 8, "nccl").total_s for n in (4, 64))
    assert large >= small
    assert stage_s("soak", AcceptSpec(stages=("soak",), soak_s=3600), 1.0, None, 4, 8, "nccl") >= 3600


@pytest.mark.parametrize("n_hosts", [2, 8, 32, 256])
@pytest.mark.parametrize("minutes", [2, 4, 8, 15, 60])
def test_a_budget_is_kept_by_the_estimate_or_stages_are_left_out_and_said(n_hosts, minutes):
    spec = AcceptSpec(budget_s=60.0 * minutes)
    found = estimate(spec, n_hosts, 8, "nccl")
    assert found.total_s <= spec.budget_s
    assert set(found.seconds) | set(found.left_out) == set(DEFAULT_STAGES)
    assert set(found.seconds).isdisjoint(found.left_out)
    assert list(found.left_out) == [stage for stage in DROP if stage in found.left_out]
    assert LEAST_CASE_S <= found.case_s <= 1.0
    for stage in found.left_out:
        assert any(line.startswith(f"not tested: {stage}: needs about") for line in found.lines())


def test_a_short_budget_shortens_cases_before_it_drops_stages():
    whole = estimate(AcceptSpec(), 8, 8, "nccl").total_s
    found = estimate(AcceptSpec(budget_s=0.9 * whole), 8, 8, "nccl")
    assert found.left_out == {}
    assert found.case_s < 1.0


def test_a_screen_of_pairs_is_taken_before_a_stage_is_dropped_unless_the_mode_was_asked_for():
    stages = ("doctor", "pairs", "cluster")
    shortest = estimate(AcceptSpec(stages=stages, case_s=LEAST_CASE_S, mode="full"), 32, 8, "nccl").total_s
    fitted = estimate(AcceptSpec(stages=stages, budget_s=shortest - 1), 32, 8, "nccl")
    assert (fitted.mode, fitted.left_out) == ("screen", {})
    asked = estimate(AcceptSpec(stages=stages, budget_s=shortest - 1, mode="full"), 32, 8, "nccl")
    assert list(asked.left_out) == ["pairs"]


@pytest.mark.parametrize(
    "values, said",
    [
        ({"load": "gemm"}, "add --soak"),
        ({"stages": ("soak",), "soak_s": 7200.0, "budget_s": 3600.0}, "does not fit into --budget 60"),
        ({"budget_s": 0.1}, "out of range"),
        ({"case_s": 0.0}, "out of range"),
    ],
)
def test_what_cannot_be_is_refused(values, said):
    with pytest.raises(UsageError) as err:
        AcceptSpec(**values)
    assert said in " ".join((err.value.why, *err.value.hints))


def test_a_spec_is_kept_and_read_again():
    spec = AcceptSpec(stages=("node", "soak"), soak_s=60.0, hosts=("a", "b"), spares=1, baseline=("/x",), reference={"hosts": ["a"]})
    assert AcceptSpec.from_json(spec.to_json() | {"later": 1}) == spec


GIVEN = dict.fromkeys((*MEASURES, "out", "dry_run", "baseline", "run", "resume"))


@pytest.mark.parametrize(
    "given, said",
    [
        ({"run": "a", "resume": "b"}, "give one of them"),
        ({"run": "a", "stages": "node"}, "--stages does not go with --run"),
        ({"run": "a", "spares": 1}, "--spares does not go with --run"),
        ({"resume": "a", "case_budget": 1.0}, "--case-budget does not go with --resume"),
        ({"resume": "a", "baseline": ["b"]}, "--baseline does not go with --resume"),
        ({"run": "a", "baseline": ["b"]}, None),
        ({"stages": "node"}, None),
    ],
)
def test_options_that_do_not_go_together_are_told_apart(given, said):
    if said is None:
        check_together({**GIVEN, **given})
        return
    with pytest.raises(UsageError) as err:
        check_together({**GIVEN, **given})
    assert said in err.value.why


@pytest.mark.parametrize("backend", ["gloo", "auto"])
def test_a_load_of_products_without_gpus_is_refused_with_what_to_change(backend):
    given = {**GIVEN, "backend": backend, "load": "gemm", "soak": "10m", "stages": None, "mode": None}
    with pytest.raises(UsageError) as err:
        spec_of(given, {"CUDA_VISIBLE_DEVICES": ""})
    assert "heats GPUs" in err.value.why
    assert "leave --load out" in err.value.hints[0]


def test_fresh_workers_have_a_minute_to_import_torch_and_more_where_there_are_many():
    """64 ranks of two busy cores took more than the 30 s that they once had, whatever -T said."""
    assert meeting_s(SILENT_S, 64) == pytest.approx(2 * 30 + 64 * 0.03)
    assert meeting_s(5.0, 4) == pytest.approx(20 + 4 * 0.03)
    patient = pairs_plan(PairSpec(timeout_s=300.0), 64, {}, 0, inspect.signature(run_worlds).parameters["meet_s"].default)
    assert patient.meeting_s(64) == pytest.approx(300 + 64 * 0.03)
