"""`nccl-bench accept --dry-run`: what would be done, by whom, and held against what; what a real run would refuse is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nccl_bench.cli.accept_options import estimate_of, with_hosts

_OF_HOSTS = ("hosts", "exclude", "spares", "min_nodes", "reference")
REHEARSAL = "a rehearsal, which says nothing of NCCL and always ends 8"
_UNCHECKED = "not checked: the launcher does not say the hosts before they meet, so {} may still be refused at the start"


def dry_lines(spec: Any, facts: Any, criteria: Any, given: Mapping[str, Any], launch: Any, n_local: int) -> list[str]:
    """The page. Raises UsageError as the real run would."""
    from nccl_bench.report.acceptance import threshold_lines
    from nccl_bench.units import counted

    alone = launch.launcher == "none"
    n_ranks, per_host = (n_local, n_local) if alone else (launch.world_size, launch.local_size or 1)
    n_hosts, said = max(1, n_ranks // per_host), list[str]()
    hosts = hosts_before_the_start(launch)
    if given["resume"] is None and hosts is not None:
        n_hosts, said = _who(with_hosts(spec, given, hosts), hosts)
        n_ranks = n_hosts * per_host
    elif given["resume"] is None and (asked := [f"--{name.replace('_', '-')}" for name in _OF_HOSTS if given[name]]):
        said = [_UNCHECKED.format(", ".join(asked))]
    plan = estimate_of(spec, max(1, n_hosts - spec.spares), per_host, os.environ, facts)
    who = f"{counted(n_hosts, 'host')}, {counted(n_ranks, 'rank')}"
    said = [*said, *_backend(spec)]
    return [f"stages: {', '.join(spec.stages)} on {who}", *said, *plan.lines(), *threshold_lines(criteria.thresholds())]


def _backend(spec: Any) -> list[str]:
    """What the ranks would talk with, as far as this host tells, and what follows of it."""
    from nccl_bench.launch.local import visible_gpus

    if visible_gpus(os.environ):
        return [f"backend: {'gloo, as asked for: ' + REHEARSAL if spec.backend == 'gloo' else 'nccl'}"]
    if spec.backend == "nccl":
        return ["backend: nccl, but no GPU is seen here: ranks without one end 3"]
    return [f"backend: gloo{', as asked for' if spec.backend == 'gloo' else ': no GPU is seen here'}: {REHEARSAL}"]


def _who(spec: Any, hosts: tuple[str, ...]) -> tuple[int, list[str]]:
    """(how many take part, who, in words)."""
    from nccl_bench.flows.accept_hosts import chosen, not_there

    taking_part, spares = chosen(spec, hosts)
    names = ", ".join(taking_part) if len(taking_part) <= 16 else f"{', '.join(taking_part[:4])} ... {taking_part[-1]}"
    said = [f"hosts: {names}"]
    said += [f"spares, held back from stages across hosts: {', '.join(spares)}"] if spares else []
    said += [f"of them must be left: {spec.min_hosts}"] if spec.min_hosts else []
    return len(taking_part), said + [f"--exclude: {host} is not in this allocation" for host in not_there(spec, hosts)]


def hosts_before_the_start(launch: Any) -> tuple[str, ...] | None:
    """The hosts of the allocation as far as the launcher says them; None where nobody knows them before all have met."""
    if launch.rank_hosts:
        return tuple(dict.fromkeys(launch.rank_hosts))
    return (launch.host,) if launch.launcher == "none" or launch.local_size == launch.world_size else None
