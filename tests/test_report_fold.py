"""The first fold: what is said of a run in one sentence, and never a green one for a rehearsal or where data is missing."""

import json
from dataclasses import replace

import pytest
import report_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.report import fold
from nccl_bench.report.document import build, read
from nccl_bench.results.runs import open_runs

pytestmark = pytest.mark.pure

LARGE = (8, 1 << 20, 1 << 33)


def document(tmp_path, points, head=None, *, verdict=None):
    path = samples.write_fast(tmp_path / "run", head or samples.header(), points)
    if verdict is not None:
        (path / "verdict.json").write_text(json.dumps(verdict))
    views, warnings = read(open_runs([str(path)]))
    return build(views, warnings)


def documents(tmp_path, *runs):
    paths = [samples.write_fast(tmp_path / f"run-{at}", head, points) for at, (head, points) in enumerate(runs)]
    views, warnings = read(open_runs([str(path) for path in paths]))
    return build(views, warnings)


def all_reduce(**changes):
    return samples.sweep(collectives=("all_reduce",), sizes=LARGE, eager=False, **changes)


def test_a_run_that_reaches_what_healthy_systems_reach_is_green(tmp_path):
    found = document(tmp_path, all_reduce())

    assert found.status == "pass"
    assert found.sentence.startswith("all_reduce reaches 469.7 GB/s at 8 GiB, 100 % of what healthy systems like this reach")


def test_a_slow_run_is_red_and_says_how_slow(tmp_path):
    found = document(tmp_path, all_reduce(share=0.6))

    assert found.status == "fail"
    assert "that is 60 % of what healthy systems like this reach (463 to 469 GB/s)" in found.sentence


def test_a_slow_second_collective_is_named(tmp_path):
    found = document(tmp_path, [*all_reduce(), samples.point("all_gather", 1 << 33, share=0.5)])

    assert found.status == "fail"
    assert "; all_gather is " in found.sentence


def test_a_collective_of_which_too_little_is_known_is_neither_green_nor_red(tmp_path):
    found = document(tmp_path, [*all_reduce(), samples.point("all_gather", 1 << 33)])

    assert found.status == "unknown"
    assert "all_gather is 94 % of what is attainable; whether that is healthy cannot be said" in found.sentence


@pytest.mark.parametrize("head", [{"not_nccl": True, "backend": "gloo"}, {"shared_gpu": True}])
def test_a_rehearsal_is_never_green_and_says_so_first_and_in_every_caption(tmp_path, head):
    found = document(tmp_path, samples.sweep(), samples.header(**head))

    word = "NOT NCCL" if "not_nccl" in head else "shared GPU, not a measurement"
    assert found.status == "unknown"
    assert found.banner is not None
    assert word in found.banner
    assert all(word in picture.caption for picture in found.pictures() if picture.name != "fabric")


@pytest.mark.parametrize(
    ("points", "head", "said"),
    [
        ([*all_reduce(), samples.point(nbytes=1 << 25, n_wrong=None)], {}, "the data of all_reduce was not checked"),
        (all_reduce(), {"exit_code": None}, "how the run ended is not recorded"),
        (
            [*all_reduce(), replace(samples.point(nbytes=1 << 34), status="skipped", reason="out of memory")],
            {},
            "all_reduce at 16 GiB skipped: out of memory",
        ),
        ([*all_reduce(), samples.point(nbytes=1 << 25, throttle=("power cap",))], {}, "clocks were lowered in 1 case: power cap"),
    ],
)
def test_missing_data_is_said_and_takes_the_green_away(tmp_path, points, head, said):
    found = document(tmp_path, points, samples.header(**head))

    assert found.status == "look"
    assert any(said in item for item in found.missing)
    assert said in found.sentence


def test_sizes_too_small_to_share_out_are_not_missing(tmp_path):
    found = document(tmp_path, samples.sweep(collectives=("all_gather",), sizes=LARGE, eager=False))

    assert found.missing == ()
    assert any(section.name == "not-run" for section in found.sections)


def test_wrong_data_is_red_whatever_the_speed(tmp_path):
    found = document(tmp_path, [*all_reduce(), samples.point(nbytes=1 << 25, n_wrong=12)])

    assert found.status == "fail"
    assert found.sentence.startswith("WRONG DATA: 12 elements of all_reduce at 32 MiB")


def test_a_run_that_hung_is_red_and_its_culprit_a_suspect(tmp_path):
    hang = {"culprits": [{"rank": 11, "host": "gpu-002", "what": "stopped by a signal"}], "lines": ["all_gather 64 MiB did not finish"]}
    found = document(tmp_path, all_reduce(), samples.header(exit_code=4, why="rank 11 did not arrive", hang=hang))

    assert found.status == "fail"
    assert found.sentence.startswith("The run did not finish: rank 11 did not arrive.")
    assert [(one.who, one.evidence) for one in found.suspects] == [("rank 11 on gpu-002", "stopped by a signal")]
    assert found.sections[0].commands == ("all_gather 64 MiB did not finish",)


def test_a_value_above_the_physical_limit_is_no_success(tmp_path):
    found = document(tmp_path, all_reduce(share=2.0))

    assert found.status == "unknown"
    assert "above the physical limit" in found.sentence
    assert "the limit or the measurement is wrong" in found.sentence


def test_bandwidth_below_a_gibibyte_is_not_judged(tmp_path):
    found = document(tmp_path, samples.sweep(collectives=("all_reduce",), sizes=(8, 1 << 28), eager=False))

    assert found.status == "unknown"
    assert "measured up to 256 MiB only" in found.sentence
    assert "sizes above 256 MiB" in found.not_tested


def test_a_run_of_unknown_hardware_is_not_judged_and_says_why(tmp_path):
    head = samples.header(topology=False, gpu="NVIDIA Z999")
    found = document(tmp_path, all_reduce(), head)

    assert found.status == "unknown"
    assert "Z999" in found.sentence


def test_one_rank_is_not_judged(tmp_path):
    found = document(tmp_path, [samples.point(nbytes=1 << 33, n=1)], samples.header(1, 1))

    assert found.status == "unknown"
    assert "one rank" in found.sentence


def test_nothing_measured_is_said(tmp_path):
    found = document(tmp_path, [])

    assert found.status == "unknown"
    assert found.sentence == "Nothing was measured."
    assert found.picture is None


def test_what_accept_said_counts_and_its_suspects_are_shown(tmp_path):
    verdict = {
        "status": "fail",
        "rows": [{"criterion": "pairs.busbw", "stage": "pairs", "status": "fail", "measured": 24.4, "required": 45, "reason": "half speed"}],
        "suspects": [{"kind": "nic", "host": "gpu-002", "nic": "mlx5_3", "evidence": ["24.4 of 49 GB/s in 31 pairs"]}],
        "drain": ["gpu-002"],
    }
    found = document(tmp_path, all_reduce(), verdict=verdict)

    assert found.status == "fail"
    assert "acceptance: fail, 1 row, first pairs.busbw: half speed" in found.sentence.lower()
    assert [(one.who, one.evidence) for one in found.suspects] == [("nic gpu-002 mlx5_3", "24.4 of 49 GB/s in 31 pairs")]
    assert "hosts to drain: gpu-002" in next(section for section in found.sections if section.title == "Acceptance").words


def test_a_verdict_that_passes_does_not_make_missing_data_green(tmp_path):
    found = document(tmp_path, all_reduce(), samples.header(exit_code=None), verdict={"status": "pass", "rows": []})

    assert found.status == "look"


def test_like_nodes_that_agree_pass_by_the_floor(tmp_path):
    def node(host, **changes):
        return samples.header(1, 2, host=host), samples.sweep(2, collectives=("sendrecv",), sizes=(8, 1 << 33), eager=False, hosts=(host,), **changes)

    alone = documents(tmp_path / "alone", node("gpu-1", share=7.0))
    agreed = documents(tmp_path / "agreed", node("gpu-1", share=7.0), node("gpu-2", share=6.9))
    apart = documents(tmp_path / "apart", node("gpu-1", share=7.0), node("gpu-2", share=6.0))

    assert (alone.status, agreed.status, apart.status) == ("unknown", "pass", "unknown")


def test_the_same_node_twice_is_no_like_node(tmp_path):
    run = samples.header(1, 2), samples.sweep(2, collectives=("sendrecv",), sizes=(8, 1 << 33), eager=False, share=7.0)

    assert documents(tmp_path, run, run).status == "unknown"


def test_of_several_runs_the_worst_speaks_and_is_named(tmp_path):
    runs = [(samples.header(), all_reduce(share=share)) for share in (1.0, 0.99, 0.5, 0.7)]
    found = documents(tmp_path, *runs)

    assert found.status == "fail"
    assert "2 of 4 runs fail, worst run-2: all_reduce is 50 % of what healthy systems like this reach" in found.sentence
    assert found.numbers[2].label.startswith("slowest against median of 4 runs")
    assert found.numbers[2].expected.startswith("run-2;")


def test_one_rehearsal_among_runs_is_said_and_none_of_them_is_green(tmp_path):
    found = documents(tmp_path, (samples.header(), all_reduce()), (samples.header(not_nccl=True), all_reduce()))

    assert found.status == "unknown"
    assert found.banner.startswith("of 2 runs 1 NOT NCCL")


def test_the_three_numbers_have_what_was_expected_beside_them(tmp_path):
    peak, latency, worst = document(tmp_path, all_reduce()).numbers

    assert (peak.value, latency.value, worst.value) == ("469.7 GB/s", "20.0 µs", "-")
    assert "expected 463 to 469 (3 healthy systems)" in peak.expected
    assert "expected about 25.2 µs" in latency.expected
    assert "nothing to hold it against" in worst.expected


def test_a_slow_host_of_pairs_is_the_worst_and_a_suspect(tmp_path):
    names = [f"gpu-{at:03d}" for at in range(1, 9)]
    found = document(tmp_path, samples.pairs(names, ("gpu-005",)), samples.header(8))

    assert found.status == "look"
    assert found.sentence == "28 pairs of 8: median 49 GB/s, worst 24 (gpu-001 to gpu-005); gpu-005 is 51 % below the median host."
    assert (found.numbers[2].value, found.numbers[2].expected.split(";")[0]) == ("-51.0 %", "gpu-005")
    assert [one.who for one in found.suspects] == ["gpu-005"]


def test_a_host_that_comes_late_to_every_collective_is_a_suspect(tmp_path):
    hosts = [f"gpu-{at:03d}" for at in range(1, 9)]
    late = {"nodes": {host: 3000.0 if host == "gpu-004" else 2.0 for host in hosts}, "worst": []}
    record = {**samples.point(n=64, regime="isolated").to_json(), "lateness_us": late}
    found = document(tmp_path, [*all_reduce(), record], samples.header(8))

    assert [one.who for one in found.suspects] == ["gpu-004"]
    assert found.numbers[2].label == "latest against median host"


def test_hosts_that_are_a_little_late_are_no_suspects(tmp_path):
    late = {"nodes": {f"gpu-{at:03d}": 1.0 + at / 10 for at in range(1, 9)}, "worst": []}
    record = {**samples.point(n=64, regime="isolated").to_json(), "lateness_us": late}

    assert document(tmp_path, [*all_reduce(), record], samples.header(8)).suspects == ()


def test_what_was_not_tested_names_collectives_network_and_clocks(tmp_path):
    found = document(tmp_path, samples.sweep(8, collectives=("all_reduce",), eager=False, isolated=False), samples.header(1))

    text = " | ".join(found.not_tested)
    assert "all_gather, reduce_scatter, sendrecv" in text
    assert "the network: every run was on one node" in text
    assert "lateness of ranks" in text
    assert "dispatch overhead" in text


@settings(max_examples=40, deadline=None)
@given(
    shares=st.lists(st.floats(0.05, 3.0), min_size=1, max_size=4),
    rehearsal=st.booleans(),
    exit_code=st.sampled_from([0, None, 4, 7, 130]),
    n_wrong=st.sampled_from([0, None, 5]),
)
def test_green_means_that_nothing_is_wrong_missing_or_rehearsed(tmp_path_factory, shares, rehearsal, exit_code, n_wrong):
    folder = tmp_path_factory.mktemp("green")
    head = samples.header(not_nccl=rehearsal, exit_code=exit_code)
    points = [samples.point(name, 1 << 33, share=share, n_wrong=n_wrong) for name, share in zip(samples.COLLECTIVES_RUN, shares, strict=False)]
    views, _ = read(open_runs([str(samples.write_fast(folder / "run", head, points))]))
    found = build(views)

    if rehearsal or exit_code != 0 or n_wrong != 0:
        assert found.status != "pass"
    if n_wrong or exit_code in (4, 7, 130):
        assert found.status == "fail"
    assert found.sentence.endswith(".")


def test_each_collective_has_its_sentence_in_the_words_of_the_sweep(tmp_path):
    section = next(section for section in document(tmp_path, samples.sweep()).sections if section.name == "collectives")

    assert section.words[0].startswith("all_reduce reaches 469.7 GB/s at 8 GiB, 100 % of what healthy systems like this reach (limited by ")
    assert "one call alone 40.0 µs at 8 B" in section.words[0]
    assert "an eager call costs 60.0 µs more at 8 B" in section.words[0]
    assert section.words[1].startswith("all_gather reaches 369.7 GB/s at 8 GiB, 94 % of what is attainable here")


def test_the_order_of_statuses_puts_a_failure_last():
    assert sorted(fold.RANK, key=lambda status: fold.RANK[status]) == ["pass", "look", "unknown", "fail"]
