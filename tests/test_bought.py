"""What was bought against what nodes have: what is missing on every node alike is seen by this alone, and where nobody says it, that is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from host_samples import Nvml, healthy, write
from test_cli_accept import run
from test_criteria import EXPECTED, GIB, case, point
from test_health import facts

from nccl_bench.errors import UsageError
from nccl_bench.fabric.bought import checks, found
from nccl_bench.fabric.health import examine
from nccl_bench.fabric.health_host import CHECKS
from nccl_bench.verdict.criteria import Criteria, parse, read
from nccl_bench.verdict.judge import judge
from nccl_bench.verdict.provisioned import checks_of, domains, rows
from nccl_bench.verdict.rows import AS_FOUND

ROOT = Path(__file__).parent.parent
ASKED = {"gpu": "h100-sxm5", "gpus_per_node": 8, "nvlinks": 18, "nics_per_node": 8, "nic_gbps": 400, "source": "annex A"}


def criteria(**changes: Any) -> Criteria:
    return parse({"hardware": {key: value for key, value in {**ASKED, **changes}.items() if value is not None}}, "c.toml")


def cluster(
    tmp_path: Path, *, nics: int = 8, gpus: int = 8, links: int = 18, name: str | None = None, rate: str | None = None
) -> list[dict[str, Any]]:
    """Four hosts that are all alike."""
    hosts = []
    for at in range(4):
        root, nvml = healthy(tmp_path / f"h{at}", nics), Nvml(gpus)
        for gpu in nvml.gpus:
            gpu.update({"links": [1] * links} | ({"name": name} if name else {}))
        if rate is not None:
            write(root, {f"sys/class/infiniband/mlx5_{nic}/ports/1/rate": rate for nic in range(nics)})
        hosts.append(facts(root, nvml, host=f"h{at}"))
    return hosts


def words(hosts: list[dict[str, Any]], asked: Criteria) -> dict[str, set[str]]:
    return {row.id: {row.status} for row in examine(hosts, checks(asked.hardware))}


def test_nodes_as_bought_are_ok(tmp_path):
    assert words(cluster(tmp_path), criteria()) == {f"bought.{name}": {"ok"} for name in ("gpus", "model", "nvlinks", "nics")}


@pytest.mark.parametrize(
    ("missing", "check", "measured"),
    [
        ({"nics": 6}, "bought.nics", "6 of 400 Gbit/s"),
        ({"rate": "200 Gb/sec (4X HDR)"}, "bought.nics", "8 of 200 Gbit/s"),
        ({"gpus": 7}, "bought.gpus", "7"),
        ({"links": 16}, "bought.nvlinks", "16"),
        ({"name": "NVIDIA H200"}, "bought.model", "8x H200-SXM"),
    ],
)
def test_what_is_missing_on_every_node_alike_fails_all_of_them(tmp_path, missing, check, measured):
    hosts = cluster(tmp_path, **missing)
    assert not [row for row in examine(hosts, CHECKS) if row.status == "fail" and row.id in ("nic.count", "nic.rate", "gpu.model", "gpu.nvlink")], (
        "nodes against one another show nothing"
    )
    failed = [row for row in examine(hosts, checks(criteria().hardware)) if row.status == "fail"]
    assert {(row.id, row.measured) for row in failed} == {(check, measured)}
    assert {host for row in failed for host in row.hosts} == {"h0", "h1", "h2", "h3"}
    verdict = judge(case(point(430), doctor=tuple(checks_of(hosts, criteria().hardware))), criteria(), lambda _: EXPECTED)
    assert verdict.exit_code == 1
    assert check in verdict.why
    assert judge(case(point(430)), Criteria(), lambda _: EXPECTED).exit_code == 0, "without it the same run is green"


def test_slower_ports_of_storage_do_not_stand_in_for_missing_ones_and_more_than_was_bought_is_no_fault(tmp_path):
    hosts = cluster(tmp_path)
    for host in hosts:
        write(tmp_path / host["host"], {f"sys/class/infiniband/mlx5_{nic}/ports/1/rate": "200 Gb/sec (4X HDR)" for nic in (6, 7)})
    slow = [facts(tmp_path / host["host"], Nvml(), host=host["host"]) for host in hosts]
    assert words(slow, criteria())["bought.nics"] == {"fail"}
    assert words(slow, criteria(nics_per_node=6))["bought.nics"] == {"ok"}


def test_what_cannot_be_read_is_unknown_and_leaves_the_verdict_open(tmp_path):
    host = facts(healthy(tmp_path), Nvml(starts=False))
    assert words([host], criteria()) == {**{f"bought.{name}": {"unknown"} for name in ("gpus", "model", "nvlinks")}, "bought.nics": {"ok"}}
    verdict = judge(case(point(430), doctor=tuple(checks_of([host], criteria().hardware))), criteria(), lambda _: EXPECTED)
    assert verdict.exit_code == 8
    (row,) = rows([], criteria())
    assert (row.status, row.required) == ("inconclusive", "8x H100-SXM, 18 NVLinks a GPU, 8 NICs of 400 Gbit/s")


def test_without_it_the_verdict_and_its_row_say_what_it_was_held_against(tmp_path):
    hosts = cluster(tmp_path, nics=6)
    (row,) = rows(hosts, Criteria())
    assert (row.criterion, row.status, row.measured) == (AS_FOUND, "warn", "8x H100-SXM, 18 NVLinks a GPU, 6 NICs of 400 Gbit/s")
    verdict = judge(case(point(430), more=(row,)), Criteria(), lambda _: EXPECTED)
    assert verdict.why.endswith("; held against what was found: 8x H100-SXM, 18 NVLinks a GPU, 6 NICs of 400 Gbit/s a node")
    (part,) = rows(hosts, criteria(nics_per_node=None, nic_gbps=None))
    assert part.measured == "6 NICs of 400 Gbit/s"
    assert rows(hosts, criteria()) == []
    assert judge(case(point(430), more=tuple(rows([], Criteria()))), Criteria(), lambda _: EXPECTED).why.endswith(" was not read")
    other = facts(healthy(tmp_path / "other", 4), Nvml(), host="h9")
    assert found([*hosts, other], ("NICs",)) == "6 NICs of 400 Gbit/s on 4 of 5 hosts"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"source": "x"}, "[hardware] names nothing"),
        ({"gpus": 8}, "[hardware] 'gpus' is no key"),
        ({"gpus_per_node": "8"}, "[hardware] gpus_per_node = '8': a whole number"),
        ({"nics_per_node": 8}, "[hardware]: nics_per_node and nic_gbps go together"),
        ({"nic_gbps": 400}, "[hardware]: nics_per_node and nic_gbps go together"),
        ({"gpu": "X9000"}, "[hardware] gpu: the GPU 'X9000' is not in the table"),
        ({"gpu": "A100"}, "[hardware] gpu: 'A100' is sold in several forms"),
    ],
)
def test_what_it_cannot_mean_is_refused_with_its_key(record, said):
    with pytest.raises(UsageError) as caught:
        parse({"hardware": record}, "c.toml")
    assert caught.value.why.startswith(f"c.toml: {said}")


def test_every_example_for_a_system_says_what_it_has_and_who_says_so():
    for path in sorted((ROOT / "criteria").glob("*.toml")):
        asked = read(path).hardware
        assert path.stem == "default" or (asked is not None and asked.unsaid() == () and asked.source != str(path)), path
        assert asked is None or ("hardware of each node", asked.words(), asked.source) in read(path).thresholds()


def test_doctor_holds_a_host_against_it(tmp_path):
    (tmp_path / "c.toml").write_text('[hardware]\nnics_per_node = 8\nnic_gbps = 400\nsource = "annex A"\n')
    for n, expected in ((8, "ok"), (6, "fail")):
        done = run("doctor", "--root", str(healthy(tmp_path / str(n), n)), "--criteria", str(tmp_path / "c.toml"), "--json")
        (check,) = [one for one in json.loads(done.stdout)["checks"] if one["id"] == "bought.nics"]
        assert (check["status"], check["expected"]) == (expected, "8 of 400 Gbit/s")
        assert expected == "ok" or "annex A" in check["why"]
    (tmp_path / "d.toml").write_text("[spread]\nmax = 0.05\n")
    done = run("doctor", "--criteria", str(tmp_path / "d.toml"))
    assert (done.returncode, "no [hardware]" in done.stderr) == (2, True)


# ---- NVLink domains of several hosts


def racks(*cliques: str | None) -> list[dict[str, Any]]:
    return [{"host": f"h{at}", "node": {"gpus": [{"index": n, "clique": name} for n in range(4)]}} for at, name in enumerate(cliques)]


def rdma(sent: list[int], of: dict[str, str], **transport: Any) -> Any:
    carried = {f"h{at}": n for at, n in enumerate(sent)}
    more = {"has_rdma": True, "rdma_bytes": sum(sent), "rdma_of": carried, "domains": of, "n_hosts": len(sent)}
    verdict = judge(case(point(430), **more), parse({"transport": transport}, "c.toml"), lambda _: EXPECTED)
    (row,) = [row for row in verdict.rows if row.criterion.startswith("RDMA")]
    return row


def test_nics_of_hosts_that_share_an_nvlink_domain_may_rest():
    of = domains(racks("x.1", "x.1", "x.1"), {})
    assert of == {"h0": "x.1", "h1": "x.1", "h2": "x.1"}
    row = rdma([0, 0, 4096], of)
    assert row.status == "warn"
    assert "one NVLink domain" in row.reason
    assert rdma([0, 0, 4096], of, required=True).status == "fail", "unless the criteria ask for RDMA"


@pytest.mark.parametrize("environ", [{"NCCL_MNNVL_ENABLE": "0"}, {"NCCL_P2P_DISABLE": "1"}])
def test_where_nccl_does_not_use_the_domain_every_host_must_send(environ):
    assert domains(racks("x.1", "x.1"), environ) == {}
    assert rdma([0, 9 * GIB], domains(racks("x.1", "x.1"), environ)).hosts == ("h0",)


def test_between_racks_each_racks_nics_count_together_and_a_silent_rack_is_named():
    of = domains(racks("x.1", "x.1", "x.2", "x.2"), {})
    assert rdma([0, 9 * GIB, 9 * GIB, 0], of).status == "pass"
    row = rdma([5, 9 * GIB, 3, 4], of)
    assert (row.status, row.hosts) == ("fail", ("h2", "h3"))
    mixed = domains([*racks("x.1", "x.1", None), replace_one(racks("x.1")[0])], {})
    assert mixed == {"h0": "x.1", "h1": "x.1"}, "no domain where GPUs of a host are in none, or in several"
    row = rdma([0, 9 * GIB, 7], mixed)
    assert (row.status, row.hosts) == ("fail", ("h2",))


def replace_one(host: dict[str, Any]) -> dict[str, Any]:
    host["host"] = "h3"
    host["node"]["gpus"][0]["clique"] = "x.2"
    return host


def test_a_run_that_kept_the_sum_alone_is_judged_as_before():
    for sent, expected in ((9 * GIB, "pass"), (5, "fail")):
        whole = replace(case(point(430), has_rdma=True, rdma_bytes=sent), domains={"h0": "x.1", "h1": "x.1"})
        assert [row.status for row in judge(whole, Criteria(), lambda _: EXPECTED).rows if row.criterion.startswith("RDMA")] == [expected]
