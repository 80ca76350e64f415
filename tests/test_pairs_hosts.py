"""pairs and accept between hosts that are network namespaces with shaped links."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from testbed import Hosts, hosts, needs_hosts

NAMES = ("h1", "h2", "h3", "h4")


def together(made: Hosts, folder: Path, *argv: str, names: tuple[str, ...] = NAMES, port: int = 23456) -> list[subprocess.CompletedProcess[str]]:
    """The same command on each host, a rank each, by torchrun's variables."""
    running = []
    for rank, name in enumerate(names):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(names)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": names[0],
            "MASTER_PORT": str(port),
        }
        running.append(made.start(name, "nccl-bench", *argv, env=place, cwd=folder))
    done = []
    for process in running:
        out, err = process.communicate(timeout=240)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def answer(done: list[subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    assert done[0].stdout, done[0].stderr
    return dict(json.loads(done[0].stdout))


PAIRS = ("pairs", "--backend", "gloo", "--level", "node", "--budget", "0.05", "--json", "-T", "30")


@needs_hosts
@pytest.mark.parametrize("fault, suspects", [((), []), (("h3", "rate", "200mbit"), [("node", "h3")])], ids=["clean", "rate"])
def test_the_slow_host_is_named_and_a_clean_set_of_hosts_is_not_blamed(tmp_path, fault, suspects):
    with hosts(*NAMES) as made:
        if fault:
            made.link(*fault)
        done = together(made, tmp_path, *PAIRS)
    found = answer(done)
    named = [(one["kind"], one["host"]) for one in found["suspects"]]
    assert named == suspects, json.dumps(found["suspects"], indent=1)
    assert done[0].returncode == (1 if suspects else 8)
    assert [one.returncode for one in done[1:]] == [0, 0, 0]
