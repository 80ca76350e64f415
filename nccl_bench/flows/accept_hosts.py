"""Who takes part in an acceptance: --hosts, --exclude, --spares and --min-nodes against the hosts that there are. Pure.

A dry run and a real one ask here, so that both refuse the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nccl_bench.errors import LaunchError, UsageError
from nccl_bench.flows.accept_spec import AcceptSpec
from nccl_bench.launch.hostlist import expand
from nccl_bench.units import counted


def hosts_of(text: str | None, option: str) -> tuple[str, ...]:
    """The hosts that an option names; () where it was not given. Raises UsageError."""
    if text is None:
        return ()
    try:
        hosts = expand(text)
    except LaunchError as err:
        raise UsageError(f"{option}: {err.why}", *err.hints) from err
    if not hosts:
        raise UsageError(f"{option} {text!r} names no host", f"{option} gpu[001-016],gpu-101")
    return hosts


def chosen(spec: AcceptSpec, here: Sequence[str], absent: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """(all of `here` that take part, the last of them that are spares). Raises UsageError for a host that is not there, or where none is left.

    `absent`: hosts of the allocation that never came.
    """
    if unknown := [host for host in spec.hosts if host not in here and host not in absent]:
        raise UsageError(f"--hosts: {unknown[0]} is not in this allocation", f"there are: {', '.join(here[:16])}")
    taking_part = [host for host in here if (not spec.hosts or host in spec.hosts) and host not in spec.exclude]
    if not taking_part:
        raise UsageError("--hosts and --exclude leave no host", f"there are: {', '.join(here[:16])}")
    if spec.spares >= len(taking_part):
        of = counted(len(taking_part), "host")
        raise UsageError(f"--spares {spec.spares} of {of} leaves none to accept", "hold fewer back, or take more hosts")
    return taking_part, taking_part[len(taking_part) - spec.spares :]


def not_there(spec: AcceptSpec, here: Sequence[str]) -> list[str]:
    """Hosts to leave out that are not there: a slip, or a list that is kept for several allocations."""
    return [host for host in spec.exclude if host not in here]


def least(text: str) -> float:
    """What --min-nodes says: a whole number of hosts, or a share below 1. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    whole = text.strip().isdecimal() and 1 <= value < 1e6
    if not whole and not 0 < value < 1:
        raise UsageError(f"--min-nodes {text!r}: a whole number of hosts, or a share below 1", "--min-nodes 30, --min-nodes 0.95")
    return value


def min_hosts(value: float, spec: AcceptSpec, asked: Sequence[str], *, whole: bool = True) -> int:
    """--min-nodes as a number of the hosts that were to come, without spares. Raises UsageError where there are fewer.

    `whole`: whether `asked` are all of the allocation; else there may be more whose names nobody knows.
    """
    n_hosts = len(chosen(spec, asked)[0]) - spec.spares
    wanted = math.ceil(value * n_hosts - 1e-9) if value < 1 else int(value)
    if whole and wanted > n_hosts:
        beside = " beside the spares" if spec.spares else ""
        raise UsageError(f"--min-nodes {wanted} is more than there are: {counted(n_hosts, 'host')}{beside}", "ask for fewer, or take more hosts")
    return max(1, wanted)
