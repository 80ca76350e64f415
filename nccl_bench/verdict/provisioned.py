"""Rows about what the nodes have: against what was bought, or the plain word that nobody said; and which hosts share an NVLink domain. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_bench.fabric import bought
from nccl_bench.fabric.domain import rules_of
from nccl_bench.fabric.health import examine
from nccl_bench.records import Json
from nccl_bench.verdict.criteria import DEFAULT, Criteria
from nccl_bench.verdict.rows import AS_FOUND, Row

SAY = "[hardware] in --criteria says what was bought (nccl-bench explain criteria)"


def checks_of(hosts: Sequence[Json], asked: bought.Hardware | None) -> list[Json]:
    """Doctor's checks of what was bought, over what it read."""
    return [] if asked is None else [result.to_json() for result in examine(hosts, bought.checks(asked))]


def rows(hosts: Sequence[Json], criteria: Criteria) -> list[Row]:
    """What was asked for and cannot be seen is open; what nobody asked for was taken from the nodes themselves, and that is said."""
    asked = criteria.hardware
    if asked is not None and not hosts:
        return [Row(criterion="hardware as bought", stage="doctor", status="inconclusive", required=asked.words(), source=asked.source,
                    reason="what the nodes have was not read: stage doctor did not run, or kept nothing")]  # fmt: skip
    unsaid = asked.unsaid() if asked is not None else ("GPUs", "NVLinks", "NICs")
    if not unsaid:
        return []
    there = bought.found(hosts, unsaid)
    what = "held against what was found" if there else f"what a node has ({', '.join(unsaid)}) was not read"
    return [Row(criterion=AS_FOUND, stage="doctor", status="warn", measured=there or None, source=asked.source if asked is not None else DEFAULT,
                reason=f"{what}; what is missing on every node alike is not seen: {SAY}")]  # fmt: skip


def domains(hosts: Sequence[Json], environ: Mapping[str, str]) -> dict[str, str]:
    """[host] the NVLink domain that all its GPUs share with other hosts, where NCCL uses it."""
    rules = rules_of(environ)
    if rules.nic_only or not (rules.mnnvl and rules.p2p):
        return {}
    found = {}
    for host in hosts:
        cliques = {gpu.get("clique") for gpu in (host.get("node") or {}).get("gpus") or ()}
        if len(cliques) == 1 and (clique := cliques.pop()):
            found[str(host["host"])] = str(clique)
    return found
