"""accept between hosts that are network namespaces: one slow, one killed, one that never comes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from test_pairs_hosts import NAMES
from testbed import Hosts, hosts, needs_hosts

ACCEPT = ("accept", "--backend", "gloo", "--case-budget", "0.05", "-T", "20", "--silent", "15", "--json", "-O", "run")
FAST = (*ACCEPT, "--stages", "doctor,pairs,cluster")


def start(made: Hosts, folder: Path, *argv: str, names: tuple[str, ...] = NAMES, missing: tuple[str, ...] = ()) -> dict[str, Any]:
    running = {}
    for rank, name in enumerate(names):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(names)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": names[0],
            "MASTER_PORT": "24567",
        }
        if name not in missing:
            running[name] = made.start(name, "nccl-bench", *argv, env=place, cwd=folder)
    return running


def finish(running: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int], str]:
    out, err = running["h1"].communicate(timeout=280)
    codes = {name: process.wait(timeout=60) for name, process in running.items()}
    for process in running.values():
        for stream in (process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
    assert out, err
    return json.loads(out), codes, err


@needs_hosts
def test_a_slow_host_is_the_suspect_and_is_to_be_drained_and_gloo_ends_8(tmp_path):
    with hosts(*NAMES) as made:
        made.link("h3", "rate", "200mbit")
        verdict, codes, _ = finish(start(made, tmp_path, *FAST))
    assert [(one["kind"], one["host"]) for one in verdict["suspects"]] == [("node", "h3")]
    assert verdict["drain"] == ["h3"]
    worlds = [json.loads(line) for line in (tmp_path / "run" / "pairs-seats.jsonl").read_text().splitlines()]
    assert [one["n_records"] for one in worlds] == [worlds[0]["n_records"]] * 2, "of few hosts all pairs are measured once more, as pairs does"
    assert (verdict["status"], verdict["exit_code"]) == ("inconclusive", 8)
    assert codes == {"h1": 8, "h2": 0, "h3": 0, "h4": 0}
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "verdict.json",
        "certificate.html",
        "junit.xml",
        "points.jsonl",
        "pairs.jsonl",
        "accept.json",
    }


@needs_hosts
def test_a_host_that_never_comes_is_left_out_and_the_rest_go_on(tmp_path):
    with hosts(*NAMES) as made:
        verdict, codes, err = finish(start(made, tmp_path, *FAST, missing=("h4",)))
    assert [(one["host"], one["stage"]) for one in verdict["excluded"]] == [("rank 3", "meeting")]
    assert codes == {"h1": 8, "h2": 0, "h3": 0}
    assert "never came: the others go on" in err
    points = [json.loads(line) for line in (tmp_path / "run" / "points.jsonl").read_text().splitlines()]
    assert {point["n_ranks"] for point in points if point["stage"] == "cluster"} == {3}


@needs_hosts
def test_a_host_that_dies_in_a_stage_is_left_out_with_the_stage_and_the_rest_finish(tmp_path):
    with hosts(*NAMES) as made:
        running = start(made, tmp_path, *FAST)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (tmp_path / "run" / "pairs.jsonl").exists():
            time.sleep(0.2) if running["h1"].poll() is None else None
            listed = made.run("h2", "ip", "netns", "pids", f"{made.set_name}-h2").stdout.split()
            if (tmp_path / "run" / "counters.jsonl").exists() and len(listed) > 3:
                break
        time.sleep(4)
        for pid in made.run("h1", "ip", "netns", "pids", f"{made.set_name}-h2").stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        verdict, codes, _ = finish(running)
    assert [one["host"] for one in verdict["excluded"]] == ["h2"], verdict["excluded"]
    assert verdict["excluded"][0]["stage"] in ("pairs", "cluster")
    assert (codes["h1"], codes["h3"], codes["h4"]) == (8, 0, 0)
