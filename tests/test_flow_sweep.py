"""What a sweep's flow adds to points: ceilings, NCCL's choices, variants."""

import json
import os
import subprocess
import sys

import pytest

from nccl_bench.errors import UsageError
from nccl_bench.fabric import spec as fabric_spec
from nccl_bench.flows.ceilings import Fabric
from nccl_bench.flows.keeper import condense
from nccl_bench.flows.tuning import TuningLog, log_path
from nccl_bench.flows.variants import parse_variants
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import Group, Point, with_bandwidth
from nccl_bench.report.beside import Beside, algorithms_text

LOG = """\
vm:1563:1574 [0] NCCL INFO comm 0x55c9f1e4f460 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
vm:1:1 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
vm:1:1 [0] NCCL INFO AllGather: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
"""


def point(collective="all_reduce", nbytes=8192, median_us=7.0, **more):
    values = {
        "dtype": "float32",
        "op": "sum",
        "root": None,
        "count": 1,
        "n_ranks": 2,
        "placement": "in",
        "clock": "graph",
        "regime": "streaming",
        **more,
    }
    bare = Point(collective=collective, nbytes=nbytes, requested_nbytes=nbytes, **values)
    from nccl_bench.records import Times

    return with_bandwidth(
        Point(**{**{n: getattr(bare, n) for n in Point.__slots__}, "time_us": Times(median=median_us, mean=median_us, min=1.0, max=9.0)}), median_us
    )


@pytest.mark.pure
def test_variants_are_built_in_or_said():
    ring, own = parse_variants(["ring", "few:NCCL_MAX_NCHANNELS=4,NCCL_PROTO=Simple"])

    assert (ring.name, ring.env) == ("ring", {"NCCL_ALGO": "Ring"})
    assert (own.name, own.env) == ("few", {"NCCL_MAX_NCHANNELS": "4", "NCCL_PROTO": "Simple"})


@pytest.mark.pure
@pytest.mark.parametrize(("text", "word"), [("rign", "built in"), ("x:y", "NAME=VALUE"), ("a b:X=1", "letters"), ("", "letters")])
def test_an_unknown_variant_says_what_there_is(text, word):
    with pytest.raises(UsageError) as caught:
        parse_variants([text])

    assert word in " ".join((caught.value.why, *caught.value.hints))


@pytest.mark.pure
def test_a_variant_given_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        parse_variants(["ring", "ring"])


@pytest.mark.pure
def test_the_log_tells_points_what_ran_and_grows_while_it_is_read(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text(LOG)
    log = TuningLog(path, n_ranks=2)

    told = log.tell(point())
    assert (told.algorithm.lower(), told.protocol, told.channels) == ("ring", "LL", 1)
    assert log.tell(point(nbytes=64)).algorithm is None
    assert log.tell(point("all_gather", 2097152)).channels == 16
    with path.open("a") as file:
        file.write("vm:1:1 [0] NCCL INFO AllReduce: 64 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..")
    assert log.tell(point(nbytes=64)).algorithm is None
    with path.open("a") as file:
        file.write("0}\n")
    assert log.tell(point(nbytes=64)).algorithm.lower() == "tree"
    assert len(log.choices()) == 3

    log.remove()
    assert not path.exists()


@pytest.mark.pure
@pytest.mark.parametrize(
    ("spec", "environ", "probe", "wanted"),
    [
        ({}, {}, False, True),
        ({"clocks": ("graph", "eager")}, {}, False, False),
        ({"clocks": ("graph", "eager")}, {}, True, True),
        ({}, {"NCCL_DEBUG": "WARN"}, False, False),
        ({"backend": "gloo"}, {}, False, False),
    ],
)
def test_nccl_logs_only_where_it_is_in_nobodys_way(spec, environ, probe, wanted):
    assert (log_path(SweepSpec(**spec), environ, probe=probe) is not None) == wanted


@pytest.fixture
def h100_pair():
    return fabric_spec.topology_of("8xH100-SXM", "8x400-IB", 2)


PLACES = tuple(range(16))


@pytest.mark.pure
def test_large_points_stand_beside_what_is_attainable_and_small_ones_beside_latency(h100_pair):
    fabric = Fabric(h100_pair, PLACES, {})

    large = fabric.of(point(nbytes=8 << 30, median_us=34_400.0, n_ranks=16, algorithm="ring", placement="in"))
    small = fabric.of(point(nbytes=8, median_us=25.0, n_ranks=16))

    assert large.attainable_GBps == pytest.approx(392.0, rel=0.01)
    assert large.line_GBps >= large.attainable_GBps
    assert "8x 400G" in large.limited_by
    assert small.limited_by == "latency"
    assert 10 < small.latency_us < 60


@pytest.mark.pure
def test_points_of_an_axis_stand_beside_the_share_that_their_groups_have_of_the_nics(h100_pair):
    fabric = Fabric(h100_pair, PLACES, {}, {"mesh": "dp=2,tp=8"})
    group = Group(axis="dp", size=2, n_groups=8)

    found = fabric.of(point(collective="all_gather", nbytes=8 << 30, median_us=90_000.0, n_ranks=2, group=group))

    assert found.line_GBps == pytest.approx(50.0)
    assert "shared by 8 groups" in found.limited_by


@pytest.mark.pure
def test_without_a_known_fabric_nothing_is_expected(h100_pair):
    assert Fabric(None, None, {}).of(point()).attainable_GBps is None
    assert Fabric(h100_pair, None, {}).of(point()).attainable_GBps is None


@pytest.mark.pure
def test_lateness_keeps_each_nodes_median_and_the_worst_ranks():
    hosts = [f"h{rank // 8}" for rank in range(64)]
    lateness = [float(rank) for rank in range(64)]

    kept = condense(lateness, hosts, keep_all=False)

    assert set(kept["nodes"]) == {f"h{i}" for i in range(8)}
    assert [row["rank"] for row in kept["worst"]] == list(range(63, 47, -1))
    assert "ranks" not in kept
    assert condense(lateness, hosts, keep_all=True)["ranks"] == lateness


@pytest.mark.pure
def test_variants_stand_side_by_side_and_one_alone_makes_no_table():
    alone, both = Beside(), Beside()
    alone.add(point())
    for variant, median in ((None, 7.0), ("ring", 9.0)):
        for nbytes, factor in ((8192, 1), (1 << 30, 1000)):
            for clock, more in (("graph", 1), ("eager", 2)):
                both.add(point(nbytes=nbytes, median_us=factor * more * median, variant=variant, clock=clock))

    lines = both.text().splitlines()
    assert [line.split(":")[0] for line in lines if "side by side" in line] == [
        f"all_reduce · sum · float32 · {clock} streaming" for clock in ("graph", "eager")
    ]
    assert alone.text() == ""
    assert lines[2].split() == ["size", "as", "is", "ring"]
    assert lines[3].split() == ["8", "KiB", "7.00", "µs", "9.00", "µs"]
    assert lines[4].split() == ["1", "GiB", "153.4", "119.3"]


@pytest.mark.pure
def test_what_a_probe_found_is_one_line_a_collective():
    rows = [
        {"collective": "all_reduce", "nbytes": 1 << power, "algorithm": "tree" if power < 16 else "ring", "protocol": "LL"} for power in range(3, 20)
    ]

    assert "all_reduce: tree LL to 32 KiB, ring LL to 512 KiB" in algorithms_text(rows)
    assert algorithms_text([]) == ""


def test_variants_run_in_workers_of_their_own_and_are_recorded(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "nccl_bench", "sweep", "broadcast", "--sizes", "4K", "--budget", "0.02", "--variant", "one:GLOO_LOG_LEVEL=ERROR"]

    done = subprocess.run(
        [*command, "-O", "r", "--no-progress"], capture_output=True, text=True, cwd=tmp_path, env=os.environ, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    points = [json.loads(line) for line in (tmp_path / "r" / "points.jsonl").read_text().splitlines()]
    assert [p["variant"] for p in points] == [None] * 3 + ["one"] * 3 or [p["variant"] for p in points] == [None] * 2 + ["one"] * 2
    assert "variants side by side" in done.stdout
