"""doctor's table: each check with what it asks, how it is read, why it matters, how to mend it, and the function that judges all hosts. Pure.

`unknown` is never ok: a required check that cannot be read leaves the whole answer open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nccl_bench.fabric.topology import Json
from nccl_bench.units import counted

Status = Literal["ok", "warn", "fail", "unknown", "skipped"]
ORDER: tuple[Status, ...] = ("fail", "unknown", "warn", "ok", "skipped")
"""Worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found at one place."""

    status: Status
    host: str
    device: str | None = None
    """"GPU 3", "mlx5_1"; None for the host."""
    measured: str | None = None
    expected: str | None = None
    fix: str | None = None
    """How to mend it, where that differs from the check's own words."""


Judge = Callable[[Sequence[Json]], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row of the table."""

    id: str
    what: str
    how: str
    """Where it is read."""
    why: str
    fix: str
    judge: Judge
    required: bool = False
    """Whether the answer stays open (exit 8) where it is unknown."""
    needs_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What stands in the answer: like findings of many hosts together."""

    id: str
    status: Status
    hosts: tuple[str, ...]
    device: str | None
    measured: str | None
    expected: str | None
    why: str
    fix: str
    needs_root: bool
    required: bool
    what: str = ""

    def to_json(self) -> Json:
        """The keys of the contract, and what the check asks."""
        names = ("id", "status", "device", "measured", "expected", "why", "fix", "needs_root", "required", "what")
        return {**{name: getattr(self, name) for name in names}, "hosts": list(self.hosts)}


def examine(hosts: Sequence[Json], checks: Sequence[Check]) -> tuple[Result, ...]:
    """All checks over all hosts' facts; per check its worst first. A host's facts are read_host's."""
    results: list[Result] = []
    for check in checks:
        found: dict[tuple[Any, ...], list[str]] = {}
        for finding in check.judge(hosts):
            key = (finding.status, finding.device, finding.measured, finding.expected, finding.fix)
            found.setdefault(key, []).append(finding.host)
        rows = [_result(check, key, names) for key, names in found.items()]
        if any(row.status not in ("ok", "skipped") for row in rows):
            rows = [replace(row, device=None, measured=None) if row.status in ("ok", "skipped") else row for row in rows]
        results += sorted(_same_rows(rows), key=lambda row: ORDER.index(row.status))
    return tuple(results)


def _result(check: Check, key: tuple[Any, ...], names: Sequence[str]) -> Result:
    status, device, measured, expected, fix = key
    return Result(
        id=check.id, status=status, hosts=tuple(dict.fromkeys(name for name in names if name)), device=device, measured=measured, expected=expected,
        why=check.why, fix="" if status in ("ok", "skipped") else fix or check.fix, needs_root=check.needs_root and status == "unknown",
        required=check.required, what=check.what,
    )  # fmt: skip


def _same_rows(rows: Sequence[Result]) -> list[Result]:
    """Rows that say the same of several devices as one."""
    merged: dict[tuple[Any, ...], Result] = {}
    for row in rows:
        key = (row.status, row.device, row.measured, row.expected)
        known = merged.get(key)
        merged[key] = row if known is None else replace(known, hosts=tuple(dict.fromkeys((*known.hosts, *row.hosts))))
    return list(merged.values())


def verdict(results: Sequence[Result], silent: Sequence[str] = ()) -> tuple[int, str]:
    """(exit code, why): 1 where a check fails or a host is silent, 8 where a required one is unknown."""
    failed = list(dict.fromkeys(row.id for row in results if row.status == "fail"))
    if failed or silent:
        parts = [f"{counted(len(failed), 'check')} failed: {', '.join(failed[:4])}"] if failed else []
        parts += [f"silent: {', '.join(silent[:4])}"] if silent else []
        return 1, "; ".join(parts)
    unknown = list(dict.fromkeys(row.id for row in results if row.status == "unknown" and row.required))
    if unknown:
        return 8, f"required checks are unknown: {', '.join(unknown[:4])}"
    return 0, "all required checks are ok"


# ---- ways to judge


def alike(value: Callable[[Json], Any], *, status: Status = "fail", missing: Status = "unknown") -> Judge:
    """Every host against the majority; None is `missing`. Lists count as sets of values."""

    def judge(hosts: Sequence[Json]) -> Iterable[Finding]:
        values = {str(host["host"]): value(host) for host in hosts}
        known = Counter(str(one) for one in values.values() if one is not None)
        if not known:
            return [Finding(status=missing, host=name) for name in values]
        usual, times = known.most_common(1)[0]
        split = times * 2 <= sum(known.values()) and len(known) > 1
        found = []
        for name, one in values.items():
            if one is None:
                found.append(Finding(status="unknown" if missing == "unknown" else status, host=name, measured="not there", expected=usual))
            elif str(one) != usual or split:
                others = f"{usual} on most" if not split else "alike on all: " + ", ".join(f"{times}x {text}" for text, times in known.most_common(4))
                found.append(Finding(status=status, host=name, measured=str(one), expected=others))
            else:
                found.append(Finding(status="ok", host=name, measured=usual))
        return found

    return judge


def each(items: Callable[[Json], Sequence[Json] | None], judge_one: Callable[[Json, Json], Finding | None], *, none: Status = "skipped") -> Judge:
    """Every device of every host; `none` where a host has no such device."""

    def judge(hosts: Sequence[Json]) -> Iterable[Finding]:
        found: list[Finding] = []
        for host in hosts:
            devices = items(host)
            judged = [one for device in devices or () if (one := judge_one(host, device)) is not None]
            found += judged or [Finding(status=none, host=str(host["host"]))]
        return found

    return judge


def of_host(judge_one: Callable[[Json], Finding]) -> Judge:
    """Every host by itself."""
    return lambda hosts: [judge_one(host) for host in hosts]


def finding(
    host: Json, status: Status, measured: object = None, expected: object = None, *, device: str | None = None, fix: str | None = None
) -> Finding:
    """A finding, its values as text."""
    said = [None if value is None else str(value) for value in (measured, expected)]
    return Finding(status=status, host=str(host["host"]), device=device, measured=said[0], expected=said[1], fix=fix)


def has_gpu_driver(host: Json) -> bool:
    """Whether a host should have working GPUs: a driver or device files."""
    return bool(host.get("n_device_files") or (host.get("versions") or {}).get("driver"))


def inventory(hosts: Sequence[Json]) -> list[Json]:
    """Serial numbers and firmware of each host, for the certificate and for the vendor."""
    return [_inventory(host) for host in hosts]


def _inventory(host: Json) -> Json:
    gpus = [{name: gpu.get(name) for name in ("index", "name", "serial", "uuid", "vbios", "pci")} for gpu in host.get("gpus") or ()]
    nics = [{name: port.get(name) for name in ("name", "port", "firmware", "psid", "guid", "rate")} for port in host.get("ports") or ()]
    return {"host": host["host"], "chassis": host.get("chassis"), "versions": host.get("versions"), "gpus": gpus, "nics": nics}


def serials(hosts: Sequence[Json]) -> dict[tuple[str, str], str]:
    """(host, "gpu 3" or NIC name) -> serial number or GUID."""
    found: dict[tuple[str, str], str] = {}
    for host in hosts:
        name = str(host["host"])
        found |= {
            (name, f"gpu {gpu['index']}"): str(gpu.get("serial") or gpu.get("uuid"))
            for gpu in host.get("gpus") or ()
            if gpu.get("serial") or gpu.get("uuid")
        }
        found |= {(name, str(port["name"])): str(port["guid"]) for port in host.get("ports") or () if port.get("guid")}
    return found


def mapping(value: Any) -> Mapping[str, Any]:
    """A dict, or an empty one."""
    return value if isinstance(value, Mapping) else {}
