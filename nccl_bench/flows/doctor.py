"""doctor from start to answer: every host reads itself, rank 0 judges all; nothing is measured and torch is never loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_bench.fabric import counters
from nccl_bench.fabric.bought import Hardware, checks
from nccl_bench.fabric.health import Result, examine, inventory, serials, verdict
from nccl_bench.fabric.health_host import CHECKS
from nccl_bench.fabric.host_read import Roots, rank_facts, read_host
from nccl_bench.flows.council import SILENT_S, Council, Serve, ask
from nccl_bench.records import Json
from nccl_bench.results.env import redact_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What doctor came to."""

    results: tuple[Result, ...]
    inventory: tuple[Json, ...]
    silent_hosts: tuple[str, ...]
    hosts: tuple[Json, ...]
    """Each host's raw facts, in rank order."""
    exit_code: int
    why: str
    serials: Mapping[tuple[str, str], str]

    def to_json(self) -> Json:
        """The contract's JSON."""
        return {"checks": [row.to_json() for row in self.results], "inventory": list(self.inventory), "silent_hosts": list(self.silent_hosts)}


def server(council: Council, roots: Roots, nvml: Any = None) -> Serve:
    """What this process answers to orders: its host's facts and counters (one process a host), its own CPUs, its clock."""
    first = council.launch.local_rank in (0, None)

    def serve(what: str) -> Json:
        match what:
            case "doctor":
                host = read_host(council.environ, roots, nvml=nvml, host=council.launch.host) if first else None
                if host is not None and host.get("nccl_conf"):
                    host["nccl_conf"] = [_redacted(line) for line in host["nccl_conf"]]
                return {"host": host, "rank": rank_facts(council.environ)}
            case "counters":
                return {"host": council.launch.host, "counters": counters.read(roots, nvml=nvml) if first else None}
            case "clock":
                return {"time": time.time()}
            case _:
                return {}

    return serve


def _redacted(line: str) -> str:
    name, equals, value = line.partition("=")
    return f"{name}={redact_value(name.strip(), value)}" if equals else line


def diagnose(council: Council, serve: Serve, ranks: Sequence[int], wait_s: float = SILENT_S, hardware: Hardware | None = None) -> Diagnosis:
    """Ask all these ranks' processes and judge, against what was bought where somebody says it; rank 0's part."""
    found, silent = ask(council, "doctor", ranks, serve, wait_s)
    clocks, _ = ask(council, "clock", [rank for rank in ranks if rank in found], serve, wait_s)
    host_of = {rank: str(join["host"]) for rank, join in council.joins.items()}
    absent = [
        council.launch.rank_hosts[rank] for rank in range(council.n_ranks) if rank not in council.joins and rank < len(council.launch.rank_hosts)
    ]
    nobody = [f"rank {rank}" for rank in range(council.n_ranks) if rank not in council.joins and rank >= len(council.launch.rank_hosts)]
    silent_hosts = tuple(dict.fromkeys([*absent, *nobody, *(host_of[rank] for rank in silent)]))
    hosts = _hosts(found, clocks, host_of, council)
    results = examine(hosts, (*CHECKS, *(checks(hardware) if hardware is not None else ())))
    code, why = verdict(results, silent_hosts)
    return Diagnosis(
        results=results,
        inventory=tuple(inventory(hosts)),
        silent_hosts=silent_hosts,
        hosts=tuple(hosts),
        exit_code=code,
        why=why,
        serials=serials(hosts),
    )


def _hosts(found: Mapping[int, Json], clocks: Mapping[int, Json], host_of: Mapping[int, str], council: Council) -> list[Json]:
    """Each host's facts with its ranks and how far its clock is from the median of all."""
    alone = council.launch.launcher == "none"
    facts: dict[str, Json] = {}
    for rank in sorted(found):
        if found[rank].get("host") is not None:
            facts.setdefault(host_of[rank], dict(found[rank]["host"]))
    times = sorted(answer["time"] for answer in clocks.values())
    middle = times[len(times) // 2] if times else 0.0
    for name, host in facts.items():
        mine = [rank for rank in sorted(found) if host_of[rank] == name]
        local = {rank: council.joins[rank].get("local_rank") for rank in mine}
        ranks = [{"rank": rank, "local_rank": local[rank] if local[rank] is not None else at, **found[rank]["rank"]} for at, rank in enumerate(mine)]
        # Ranks that this command would start itself are not there yet: one process stands for all.
        host["ranks"] = [] if alone else ranks
        host["n_hosts"] = len(facts)
        if len(facts) > 1 and mine[0] in clocks:
            host["clock_offset_s"] = clocks[mine[0]]["time"] - middle
    return list(facts.values())
