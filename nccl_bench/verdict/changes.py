"""What changed between two sides besides the numbers: versions, environment, hosts, GPUs, options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nccl_bench.records import Json, RunHeader
from nccl_bench.results.runs import Run

MAX_SHOWN = 60
"""Differences listed at most; a warning says how many more there are."""
_ABSENT = None


def changes_of(base: Sequence[Run], new: Sequence[Run]) -> list[Json]:
    """[{what, base, new}]: each fact of the headers whose values differ between the sides, None where a side has none."""
    old, now = _facts(base), _facts(new)
    changed = [{"what": what, "base": old.get(what), "new": now.get(what)} for what in dict.fromkeys((*old, *now)) if old.get(what) != now.get(what)]
    return changed[:MAX_SHOWN] + ([{"what": f"and {len(changed) - MAX_SHOWN} more", "base": None, "new": None}] if len(changed) > MAX_SHOWN else [])


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """Each fact in words; where the runs of one side differ, all their values."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for what, value in _of(run.header).items():
            if value not in (None, "", (), {}):
                found.setdefault(what, {})[str(value)] = None
    return {what: " / ".join(values) for what, values in found.items()}


_FACTS: dict[str, Callable[[RunHeader], Any]] = {
    "program": lambda header: header.tool,
    "backend": lambda header: header.backend,
    "launcher": lambda header: header.launcher,
    "ranks": lambda header: header.n_ranks,
    "nodes": lambda header: header.n_nodes,
    "hosts": lambda header: _hosts(header),
    "GPUs": lambda header: _gpus(header),
    "plug-ins": lambda header: ", ".join(header.plugins),
    "nccl.conf": lambda header: "; ".join(header.nccl_conf),
    "shared GPU": lambda header: "yes" if header.shared_gpu else "no",
}


def _of(header: RunHeader) -> dict[str, Any]:
    facts = {what: read(header) for what, read in _FACTS.items()}
    facts |= {f"version of {name}": value for name, value in header.versions.items() if not isinstance(value, Mapping)}
    facts |= {f"env {name}": value for name, value in header.env.items() if not _of_one_job(name)}
    facts |= {f"option {name}": _word(value) for name, value in header.spec.items() if name != "imported"}
    for run in _imported(header):
        facts |= {f"nccl-tests {key}": value for key, value in run.get("config", {}).items()}
        facts["network"] = ", ".join(run.get("networks", ())) or facts.get("network")
    return facts


def _of_one_job(name: str) -> bool:
    """Whether a variable differs from job to job by nature."""
    return name.startswith("SLURM_") and any(word in name for word in ("JOB_ID", "JOBID", "STEP", "NODELIST", "TOPOLOGY_ADDR", "GTIDS"))


def _imported(header: RunHeader) -> list[Mapping[str, Any]]:
    files = header.spec.get("imported")
    return [run for file in files if isinstance(file, Mapping) for run in file.get("runs", ())] if isinstance(files, list | tuple) else []


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_word, value))
    return "" if value is None else str(value)


def _hosts(header: RunHeader) -> str:
    hosts = list(dict.fromkeys(str(rank.get("host")) for rank in header.ranks if rank.get("host")))
    return ", ".join(hosts) if len(hosts) <= 16 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"


def _gpus(header: RunHeader) -> str:
    names = [gpu["name"] for rank in header.ranks if isinstance(gpu := rank.get("gpu"), Mapping) and gpu.get("name")]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def warnings_of(base: Sequence[Run], new: Sequence[Run]) -> list[str]:
    """What a reader must know of the runs themselves before the numbers."""
    warnings = [warning for run in (*base, *new) for warning in run.warnings]
    for side, runs in (("BASE", base), ("NEW", new)):
        for run in runs:
            if run.header.not_nccl:
                warnings.append(f"{side} {run.label}: NOT NCCL: gloo on CPUs, a rehearsal")
            if run.header.shared_gpu and not run.imported:
                warnings.append(f"{side} {run.label}: ranks share a GPU: behaviour, not a measurement")
    return list(dict.fromkeys(warnings))
