"""What --reference means: hosts of this allocation that are known to be good, or an earlier acceptance whose sound hosts are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from nccl_bench.errors import DataError, LaunchError, UsageError
from nccl_bench.flows.judged import evidence_in
from nccl_bench.launch.hostlist import expand
from nccl_bench.results.store import LATEST, VERDICT_FILE, find_run, read_header
from nccl_bench.verdict.reference import Reference, levels, node_levels, node_rates


def reference_of(text: str, here: Sequence[str]) -> Reference:
    """The reference that an argument names. Raises UsageError where it is neither a run nor hosts of this allocation."""
    if text == LATEST or Path(text).exists():
        return _of_run(find_run(text, first="accept").resolve())
    try:
        hosts = expand(text)
    except LaunchError as err:
        raise UsageError(f"--reference {text}: neither a run nor a list of hosts: {err.why}") from err
    unknown = [host for host in hosts if host not in here]
    if unknown:
        raise UsageError(f"--reference: {unknown[0]} is neither a run nor a host of this allocation", f"there are: {', '.join(here[:16])}")
    return Reference(hosts=tuple(hosts), source=f"--reference {text}")


def _of_run(path: Path) -> Reference:
    try:
        verdict = json.loads((path / VERDICT_FILE).read_text())
        bad = {str(one["host"]) for one in verdict["excluded"]} | {str(host) for host in verdict["drain"]}
        bad |= {str(host) for one in verdict["suspects"] for host in (one["host"], one["peer"]) if host}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(f"{path}: no acceptance that came to its end: {VERDICT_FILE} is missing or broken", "--reference takes one that did") from err
    evidence, points, rank_hosts, facts = evidence_in(path)
    good = [str(host) for host in facts["hosts"] if host not in bad]
    if len(good) < 2:
        raise UsageError(f"--reference {path}: fewer than two of its hosts were sound", "name a run, or hosts, known to be good")
    return Reference(
        hosts=tuple(good), source=f"{len(good)} sound hosts of run {path.name}", backend=read_header(path / "run.json").backend,
        pairs=levels(evidence.exchanges, evidence.hosts, good), nodes=node_levels(node_rates(points, rank_hosts), good),
    )  # fmt: skip
