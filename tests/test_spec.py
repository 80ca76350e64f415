"""What can be asked for, and what it expands to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.collectives import COLLECTIVES, effective_nbytes
from nccl_bench.errors import UsageError
from nccl_bench.measure import spec as specs
from nccl_bench.measure.cases import WorldFacts, expand, slot_nbytes
from nccl_bench.measure.spec import SweepSpec, check_backend, clocks_of, sizes_of, with_defaults

pytestmark = pytest.mark.pure


def facts(**changes):
    values = {"n_ranks": 4, "n_nodes": 1, "ranks_per_node": 4, "backend": "nccl", "one_domain": True, "fp8": True, **changes}
    return WorldFacts(**values)


def test_default_sizes_are_those_of_the_contract():
    assert sizes_of(SweepSpec(), "gloo") == tuple(1024 * 4**i for i in range(8))
    assert sizes_of(SweepSpec(), "nccl") == tuple(8 * 2**i for i in range(31))
    assert sizes_of(SweepSpec(), "nccl", largest_nbytes=1 << 20)[-1] == 1 << 20


@pytest.mark.parametrize(
    ("given_", "sizes"),
    [
        ({"min_nbytes": 8, "max_nbytes": 100, "step_factor": 3}, (8, 24, 72)),
        ({"min_nbytes": 100, "max_nbytes": 400, "step_nbytes": 100}, (100, 200, 300, 400)),
        ({"sizes": (7, 3)}, (7, 3)),
        ({"min_nbytes": 64 << 20}, (64 << 20,)),
        ({"max_nbytes": 512}, (512,)),
        ({"min_nbytes": 1, "max_nbytes": 4, "step_factor": 1.1}, (1, 2, 3, 4)),
    ],
)
def test_ranges_and_lists_of_sizes(given_, sizes):
    assert sizes_of(SweepSpec(**given_), "gloo") == sizes


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"sizes": (8,), "min_nbytes": 8}, "exclude"),
        ({"step_factor": 2.0, "step_nbytes": 8}, "exclude"),
        ({"step_factor": 1.0}, "more than 1"),
        ({"min_nbytes": 16, "max_nbytes": 8}, "more than -e"),
        ({"sizes": (0,)}, "at least 1 byte"),
        ({"iters": 0}, "--iters"),
        ({"timeout_s": 0}, "--timeout"),
        ({"precision": 1.0}, "--precision"),
        ({"budget_s": 0}, "--budget"),
        ({"clocks": ("auto", "graph")}, "stands alone"),
        ({"pair": (0, 1)}, "pingpong"),
        ({"pair": (1, 1), "collectives": ("pingpong",)}, "two different"),
        ({"register": "graph", "clocks": ("eager",)}, "--clock graph"),
        ({"backend": "gloo", "clocks": ("graph",)}, "--clock host"),
        ({"backend": "gloo", "clocks": ("queued", "eager")}, "needs CUDA"),
        ({"backend": "gloo", "register": "user"}, "--register user"),
        ({"roots": (-2,)}, "root"),
        ({"collectives": ()}, "no collective"),
    ],
)
def test_a_bad_combination_says_what_to_change(bad, word):
    with pytest.raises(UsageError) as caught:
        SweepSpec(**bad)

    assert word in " ".join((caught.value.why, *caught.value.hints))


def test_a_range_without_end_is_refused():
    with pytest.raises(UsageError, match="more than 100000 sizes"):
        sizes_of(SweepSpec(min_nbytes=1, max_nbytes=1 << 30, step_nbytes=1), "nccl")


def test_gloo_found_at_run_time_refuses_what_gloo_asked_for_would():
    with pytest.raises(UsageError, match="needs CUDA"):
        check_backend(SweepSpec(clocks=("graph",)), "gloo")

    check_backend(SweepSpec(clocks=("graph",)), "nccl")


def test_the_automatic_clock_is_graph_in_one_domain_queued_across_hosts_and_host_on_gloo():
    assert clocks_of(SweepSpec(), "nccl", one_domain=True) == ("graph",)
    assert clocks_of(SweepSpec(), "nccl", one_domain=False) == ("queued",)
    assert clocks_of(SweepSpec(), "gloo", one_domain=True) == ("host",)
    assert clocks_of(SweepSpec(clocks=("eager", "graph")), "nccl", one_domain=False) == ("eager", "graph")


def test_a_spec_survives_json_and_its_digest_tells_options_apart():
    spec = SweepSpec(collectives=("pingpong",), pair=(0, 3), sizes=(8, 64), clocks=("graph", "eager"), timeout_s=5.0)

    assert SweepSpec.from_json(spec.to_json()) == spec
    assert spec.digest() == SweepSpec.from_json(spec.to_json()).digest()
    assert spec.digest() != SweepSpec().digest()
    assert with_defaults(SweepSpec(), "gloo").budget_s == 0.5


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (specs.parse_sizes, "8,64K, 1.5M", (8, 65536, 1572864)),
        (specs.parse_dtypes, "float,half,bfloat16", ("float32", "float16", "bfloat16")),
        (specs.parse_ops, "sum,prod,mulsum", ("sum", "product", "premul_sum")),
        (specs.parse_roots, "0,3", (0, 3)),
        (specs.parse_roots, "all", (-1,)),
        (specs.parse_clocks, "graph,eager", ("graph", "eager")),
        (specs.parse_pair, "0,8", (0, 8)),
    ],
)
def test_lists_are_read_in_torch_and_nccl_tests_words(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (specs.parse_sizes, "8,x"),
        (specs.parse_dtypes, "float33"),
        (specs.parse_dtypes, "uint32"),
        (specs.parse_ops, "xor"),
        (specs.parse_roots, "a"),
        (specs.parse_clocks, "wall"),
        (specs.parse_pair, "1"),
        (specs.parse_sizes, ","),
    ],
)
def test_an_unknown_word_is_a_usage_error(parse, text):
    with pytest.raises(UsageError):
        parse(text)


@given(st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 1 << 24), st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_the_effective_size_is_what_all_ranks_can_share_and_never_more(name, requested, n, itemsize):
    nbytes = effective_nbytes(name, requested, n, itemsize)

    assert 0 <= nbytes <= requested
    assert nbytes % itemsize == 0
    if COLLECTIVES[name].split:
        assert nbytes % (16 * n) == 0
        assert requested - nbytes < 16 * n
    else:
        assert requested - nbytes < itemsize


def test_what_cannot_run_is_listed_with_the_reason():
    spec = SweepSpec(collectives=("all_reduce", "all_gather"), sizes=(2, 64), placement="out", dtypes=("float32", "float8_e4m3fn"))
    reasons = {(item.case.collective, item.case.dtype, item.case.requested_nbytes): item.skip for item in expand(spec, facts(fp8=False))}

    assert "no out-of-place all_reduce" in reasons["all_reduce", "float32", 64]
    assert "parts of 16 B" in reasons["all_gather", "float32", 2]
    assert "compute capability 9.0" in reasons["all_gather", "float8_e4m3fn", 64]
    assert reasons["all_gather", "float32", 64] is None


@pytest.mark.parametrize(
    ("changes", "world", "word"),
    [
        ({"collectives": ("sendrecv",), "shift": "node"}, {}, "two nodes"),
        ({"collectives": ("sendrecv",), "shift": "node"}, {"n_nodes": 2, "ranks_per_node": None}, "every node"),
        ({"collectives": ("sendrecv",)}, {"n_ranks": 1, "backend": "gloo"}, "itself"),
        ({"collectives": ("pingpong",)}, {"n_ranks": 1}, "two ranks"),
        ({"ops": ("avg",), "dtypes": ("int8",)}, {"backend": "gloo"}, "no avg"),
        ({"ops": ("premul_sum",)}, {"backend": "gloo"}, "premul_sum"),
        ({"dtypes": ("float8_e5m2",)}, {"backend": "gloo"}, "cannot reduce"),
        ({"ops": ("premul_sum",), "dtypes": ("int32",)}, {}, "premul_sum for"),
        ({"sizes": (1 << 30,)}, {"memory_nbytes": 1 << 20}, "does not fit"),
    ],
)
def test_reasons_for_skipping(changes, world, word):
    spec = SweepSpec(**{"sizes": (1024,), "collectives": ("all_reduce",), **changes})

    assert any(word in (item.skip or "") for item in expand(spec, facts(**world)))


def test_a_root_or_pair_beyond_the_world_is_a_usage_error():
    with pytest.raises(UsageError, match="4 ranks"):
        expand(SweepSpec(collectives=("broadcast",), roots=(4,)), facts())


def test_the_one_pair_that_was_asked_for_is_on_its_points_alone():
    one = expand(SweepSpec(collectives=("pingpong",), pair=(0, 3), sizes=(64,)), facts())
    all_pairs = expand(SweepSpec(collectives=("pingpong",), sizes=(64,)), facts())

    assert {item.case.special for item in one} == {"pair 0,3"}
    assert {item.case.special for item in all_pairs} == {None}


def test_all_roots_are_every_rank_and_unrooted_collectives_have_none():
    planned = expand(SweepSpec(collectives=("broadcast", "all_reduce"), roots=(-1,), sizes=(64,)), facts())

    assert [item.case.root for item in planned if item.case.collective == "broadcast" and not item.lateness] == [0, 1, 2, 3]
    assert {item.case.root for item in planned if item.case.collective == "all_reduce"} == {None}


def test_streaming_sweeps_add_an_isolated_series_at_the_smallest_and_largest_size():
    planned = expand(SweepSpec(collectives=("all_reduce",), sizes=(8, 64, 1024)), facts())

    assert [(item.case.nbytes, item.case.regime) for item in planned if item.lateness] == [(8, "isolated"), (1024, "isolated")]
    assert not any(item.lateness for item in expand(SweepSpec(regime="isolated"), facts()))
    assert not any(item.lateness for item in expand(SweepSpec(), facts(n_ranks=1)))


def test_across_nodes_sendrecv_runs_both_shifts_and_clocks_stand_beside_each_other():
    planned = expand(SweepSpec(collectives=("sendrecv",), sizes=(64,), clocks=("graph", "eager")), facts(n_nodes=2, ranks_per_node=2))

    assert [(item.case.shift, item.case.clock) for item in planned if not item.lateness] == [
        ("ring", "graph"), ("ring", "eager"), ("node", "graph"), ("node", "eager"),
    ]  # fmt: skip


@given(st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 1 << 20), st.integers(1, 16))
def test_buffers_are_at_least_what_the_case_moves(name, size, n):
    item = expand(SweepSpec(collectives=(name,), sizes=(size,)), facts(n_ranks=n, ranks_per_node=n))[0]

    assert slot_nbytes(item.case) >= item.case.nbytes
