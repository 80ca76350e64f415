"""Pages that leave the house name no host: not in tables, charts, warnings, paths or variables."""

import pytest
import report_samples as samples

from nccl_bench.report import charts
from nccl_bench.report.document import build, read
from nccl_bench.report.files import contents
from nccl_bench.results.runs import open_runs

pytestmark = pytest.mark.pure

HOSTS = ("gpu-001", "gpu-002")


def head(**changes):
    values = {
        "argv": ("/usr/bin/nccl-bench", "sweep", "--nodelist=gpu-[001-002]", "gpu-001.example.org"),
        "warnings": ("gpu-002: 7 active NICs, the others 8", "x1016 ranks on gpu-[001-002], first 10.1.2.3"),
        "env": {"SLURM_JOB_NODELIST": "gpu-[001-002]", "SLURM_TOPOLOGY_ADDR": "s0.s1.gpu-001", "NCCL_SOCKET_IFNAME": "eth0"},
        "hang": {"culprits": [{"rank": 9, "host": "gpu-002", "what": "died on gpu-002"}], "lines": ["rank 9 (gpu-002, GPU 1)"]},
        "exit_code": 4,
        "why": "rank 9 on gpu-002 died",
    }
    return samples.header(**{**values, **changes})


def written(folder, head, points, **options):
    path = samples.write_fast(folder / "20261201-100000-gpu-001-16r", head, points)
    views, warnings = read(open_runs([str(path)]), **options)
    made = build(views, warnings)
    return made, b"".join(data for name, data in contents(made, ("html", "md", "svg")))


def test_without_the_option_hosts_are_named(tmp_path):
    _, data = written(tmp_path, head(), samples.sweep())

    assert b"gpu-002" in data


def test_no_host_address_or_serial_is_left_anywhere(tmp_path):
    made, data = written(tmp_path, head(), [*samples.sweep(), *samples.pairs(list(HOSTS), ("gpu-002",))], redact_hosts=True)

    text = data.decode()
    for word in (*HOSTS, "gpu-[001-002]", "example.org", "10.1.2.3", "s0.s1"):
        assert word not in text, word
    assert "host-1" in text
    assert "host-2" in text
    assert made.title == "20261201-100000-host-1-16r"
    assert "eth0" in text


def test_the_same_host_has_the_same_number_in_every_run(tmp_path):
    paths = []
    for at, hosts in enumerate((("gpu-001", "gpu-002"), ("gpu-002", "gpu-003"))):
        ranks = samples.header().ranks
        renamed = tuple({**rank, "host": hosts[HOSTS.index(rank["host"])]} for rank in ranks)
        paths.append(samples.write_fast(tmp_path / f"run-{at}", samples.header(ranks=renamed, topology=False), samples.sweep(hosts=hosts)))
    views, _ = read(open_runs([str(path) for path in paths]), redact_hosts=True)

    assert [sorted({rank["host"] for rank in view.header.ranks}) for view in views] == [["host-1", "host-2"], ["host-2", "host-3"]]


def test_numbers_and_judgement_stay_the_same(tmp_path):
    plain, _ = written(tmp_path / "a", samples.header(), samples.sweep())
    hidden, _ = written(tmp_path / "b", samples.header(), samples.sweep(), redact_hosts=True)

    assert (plain.status, plain.sentence, plain.numbers) == (hidden.status, hidden.sentence, hidden.numbers)
    assert charts.svg(plain.picture) == charts.svg(hidden.picture)


def test_words_that_only_contain_a_host_are_left_alone(tmp_path):
    ranks = tuple({**rank, "host": "vm"} for rank in samples.header(1, 2).ranks)
    path = samples.write_fast(tmp_path / "run", samples.header(1, 2, ranks=ranks, topology=False, warnings=("the vmlinux of vm",)), samples.sweep(2))
    views, _ = read(open_runs([str(path)]), redact_hosts=True)

    assert views[0].header.warnings == ("the vmlinux of host-1",)
