"""What was bought for each node, as somebody says it, against what the nodes have: a part that is missing everywhere alike is seen here alone. Pure.

Comparing nodes with one another, and with a ceiling that is reckoned from what they have, cannot show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_bench.fabric import gpus as models
from nccl_bench.fabric.health import Check, Finding, Judge, Status, finding, mapping
from nccl_bench.fabric.health_net import live, rate_of
from nccl_bench.fabric.topology import Json
from nccl_bench.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What one node must have; None: not said."""

    gpu: str | None = None
    """Model, by its name in the table of GPUs."""
    gpus_per_node: int | None = None
    nvlinks: int | None = None
    """Of each GPU, up."""
    nics_per_node: int | None = None
    nic_gbps: float | None = None
    """Line rate of each at least, Gbit/s: slower ports (storage, management) do not count."""
    source: str = ""

    def words(self) -> str:
        """ "8x H100-SXM, 18 NVLinks a GPU, 8 NICs of 400 Gbit/s"."""
        return _words(self.gpu, self.gpus_per_node, self.nvlinks, None if self.nics_per_node is None else [(self.nic_gbps, self.nics_per_node)])

    def unsaid(self) -> tuple[str, ...]:
        """Parts of a node that it does not speak of."""
        parts = {"GPUs": self.gpus_per_node, "NVLinks": self.nvlinks, "NICs": self.nics_per_node}
        return tuple(name for name, value in parts.items() if value is None)


def _words(gpu: str | None, n_gpus: int | None, links: int | None, nics: Sequence[tuple[float | None, int]] | None) -> str:
    parts = [] if n_gpus is None and gpu is None else [f"{n_gpus}x {gpu or 'GPU'}" if n_gpus else "no GPU" if n_gpus == 0 else str(gpu)]
    parts += [] if links is None else [f"{counted(links, 'NVLink')} a GPU"]
    if nics is not None:
        parts.append(" and ".join(f"{counted(n, 'NIC')}{f' of {rate:g} Gbit/s' if rate else ''}" for rate, n in nics) or "no NIC")
    return ", ".join(parts)


# ---- what is there


def _n_gpus(host: Json) -> int | None:
    found = host.get("gpus")
    return None if found is None else sum(bool(gpu.get("open")) for gpu in found)


def _models(host: Json) -> Counter[str]:
    names = [models.bare(str(gpu["name"])) for gpu in host.get("gpus") or () if gpu.get("open") and gpu.get("name")]
    return Counter(model.name if (model := models.by_driver_name(name)) is not None else name for name in names)


def _links(host: Json) -> dict[int, int | None]:
    """[GPU] its links that are up."""
    return {int(gpu["index"]): mapping(gpu.get("nvlink")).get("links") for gpu in mapping(host.get("node")).get("gpus") or ()}


def _rates(host: Json) -> Counter[float | None]:
    """Line rates of the ports that NCCL would take and that are up."""
    return Counter(rate_of(port) for port in live(host))


def found(hosts: Sequence[Json], parts: Sequence[str] = ("GPUs", "NVLinks", "NICs")) -> str:
    """What a node has, in words: that of most hosts, and of how many."""
    said = Counter(_found(host, parts) for host in hosts)
    if not said:
        return ""
    words, times = said.most_common(1)[0]
    return words if len(said) == 1 else f"{words} on {times} of {counted(len(hosts), 'host')}"


def _found(host: Json, parts: Sequence[str]) -> str:
    names, links = _models(host), sorted({n for n in _links(host).values() if n is not None})
    rates = sorted(_rates(host).items(), key=lambda item: -(item[0] or 0.0))
    return _words(
        " and ".join(sorted(names)) or None if "GPUs" in parts else None, (_n_gpus(host) or 0) if "GPUs" in parts else None,
        links[0] if links and "NVLinks" in parts else None, rates if "NICs" in parts else None,
    )  # fmt: skip


# ---- judged


def checks(asked: Hardware) -> tuple[Check, ...]:
    """The checks of what was bought, for doctor's table."""
    judges: dict[str, tuple[str, Judge | None]] = {
        "gpus": ("as many GPUs as were bought", _gpus_judge(asked.gpus_per_node)), "model": ("the GPUs that were bought", _model_judge(asked.gpu)),
        "nvlinks": ("as many NVLinks a GPU as were bought", _links_judge(asked.nvlinks)),
        "nics": ("as many NICs of this rate as were bought", _nics_judge(asked.nics_per_node, asked.nic_gbps)),
    }  # fmt: skip
    return tuple(
        Check(id=f"bought.{name}", what=what, how=f"NVML, /sys/class/infiniband against {asked.source}", required=True, judge=judge,
              why=f"all runs at the rate of what is there ({asked.source})",
              fix="not delivered, not cabled, not configured or broken: ask who provisioned it")
        for name, (what, judge) in judges.items() if judge is not None
    )  # fmt: skip


def _gpus_judge(asked: int | None) -> Judge | None:
    def judge(hosts: Sequence[Json]) -> Iterable[Finding]:
        for host in hosts:
            n = _n_gpus(host)
            status: Status = "unknown" if n is None else "ok" if n == asked else "fail" if n < (asked or 0) else "warn"
            yield finding(host, status, n, asked)

    return None if asked is None else judge


def _model_judge(asked: str | None) -> Judge | None:
    def judge(hosts: Sequence[Json]) -> Iterable[Finding]:
        for host in hosts:
            names = _models(host)
            said = ", ".join(f"{n}x {name}" for name, n in sorted(names.items())) or None
            yield finding(host, "unknown" if not names else "ok" if set(names) == {asked} else "fail", said, asked)

    return None if asked is None else judge


def _links_judge(asked: int | None) -> Judge | None:
    def judge(hosts: Sequence[Json]) -> Iterable[Finding]:
        for host in hosts:
            links = _links(host)
            for index, n in links.items():
                status: Status = "unknown" if n is None else "ok" if n >= (asked or 0) else "fail"
                yield finding(host, status, n, asked, device=f"GPU {index}")
            if not links:
                yield finding(host, "unknown", None, asked)

    return None if asked is None else judge


def _nics_judge(asked: int | None, gbps: float | None) -> Judge | None:
    def judge(hosts: Sequence[Json]) -> Iterable[Finding]:
        for host in hosts:
            rates = _rates(host)
            n = sum(times for rate, times in rates.items() if rate is not None and rate >= (gbps or 0.0))
            maybe = n + rates[None]
            status: Status = "ok" if n >= (asked or 0) else "unknown" if maybe >= (asked or 0) else "fail"
            there = " and ".join(f"{times} of {f'{rate:g} Gbit/s' if rate else 'unknown rate'}" for rate, times in sorted(
                rates.items(), key=lambda item: -(item[0] or 0.0))) or "none"  # fmt: skip
            yield finding(host, status, there, f"{asked} of {gbps:g} Gbit/s" if gbps else asked)

    return None if asked is None else judge
