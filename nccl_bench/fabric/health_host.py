"""The checks of doctor's table that concern hosts and ranks, and the whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nccl_bench.fabric import health_gpu, health_net
from nccl_bench.fabric.health import Check, Finding, Judge, Status, alike, finding, has_gpu_driver, mapping, of_host
from nccl_bench.fabric.topology import Json

MIN_SHM = 1 << 30
"""Bytes of /dev/shm: NCCL takes some tens of MB a rank there, torch's data loaders much more; Docker's default of 64 MB is the usual trap
(NCCL user guide, troubleshooting: --shm-size=1g)."""
MIN_FILES = 65_536
"""Open files: NCCL opens sockets a peer a channel; the NCCL user guide and cloud images set 1048576, the kernel's hard default is 4096-524288."""
CORES_A_RANK = 4
"""A rank needs one core for its launches, others for NCCL's proxy threads and the data loader (CONTRACT.md, doctor)."""
MAX_OFFSET_S = 0.1
"""Clocks further apart make logs of hosts impossible to put in order; the reading itself is good to some 10 ms."""


def _version(name: str) -> Judge:
    judge = alike(lambda host: mapping(host.get("versions")).get(name))

    def judged(hosts: Sequence[Json]) -> Iterable[Finding]:
        if not any(mapping(host.get("versions")).get(name) for host in hosts):
            with_gpus = any(has_gpu_driver(host) for host in hosts)
            return [finding(host, "unknown" if with_gpus and name == "driver" else "skipped", "not there") for host in hosts]
        return judge(hosts)

    return judged


def _conf(hosts: Sequence[Json]) -> Iterable[Finding]:
    values = {str(host["host"]): None if host.get("nccl_conf") is None else "; ".join(host["nccl_conf"]) or "none" for host in hosts}
    usual = Counter(text for text in values.values() if text is not None).most_common(1)
    found = []
    for host in hosts:
        text = values[str(host["host"])]
        status: Status = "unknown" if text is None else "ok" if text == usual[0][0] else "fail"
        found.append(finding(host, status, text and text[:120], usual[0][0][:120] if usual else None))
    return found


def _limit(host: Json, name: str) -> tuple[bool, int | None]:
    """(whether it is known, its value; None for no limit)."""
    limits = mapping(host.get("limits"))
    return name in limits, limits.get(name)


def _memlock(host: Json) -> Finding:
    known, value = _limit(host, "memlock")
    if not host.get("ports"):
        return finding(host, "skipped", "no RDMA port")
    if not known:
        return finding(host, "unknown", expected="unlimited")
    return finding(host, "ok" if value is None else "fail", "unlimited" if value is None else f"{int(value) >> 10} KiB", "unlimited")


def _shm(host: Json) -> Finding:
    value = mapping(host.get("limits")).get("shm")
    if value is None:
        return finding(host, "unknown", expected="1 GiB")
    return finding(host, "ok" if value >= MIN_SHM else "fail", f"{int(value) >> 20} MiB", f"{MIN_SHM >> 20} MiB")


def _files(host: Json) -> Finding:
    known, value = _limit(host, "nofile")
    if not known:
        return finding(host, "unknown", expected=MIN_FILES)
    return finding(host, "ok" if value is None or value >= MIN_FILES else "warn", "unlimited" if value is None else value, MIN_FILES)


def _governor(host: Json) -> Finding:
    words = mapping(host.get("settings")).get("governors") or []
    if not words:
        return finding(host, "skipped", "no frequency scaling here")
    return finding(host, "ok" if words == ["performance"] else "warn", ", ".join(words), "performance")


def _balancing(host: Json) -> Finding:
    value = mapping(host.get("settings")).get("numa_balancing")
    return finding(host, "unknown" if value is None else "ok" if value == "0" else "warn", value, "0")


def _clock(host: Json) -> Finding:
    offset = host.get("clock_offset_s")
    if offset is None:
        return finding(host, "unknown" if host.get("n_hosts", 1) > 1 else "skipped", "one host" if host.get("n_hosts", 1) == 1 else None)
    return finding(
        host,
        "ok" if abs(offset) <= MAX_OFFSET_S else "warn",
        f"{offset:+.2f} s" if abs(offset) > MAX_OFFSET_S else None,
        f"within {MAX_OFFSET_S:g} s",
    )


def _ranks(host: Json) -> list[Json]:
    return list(host.get("ranks") or ())


def _equal(hosts: Sequence[Json]) -> Iterable[Finding]:
    counts = {str(host["host"]): len(_ranks(host)) for host in hosts}
    usual = Counter(counts.values()).most_common(1)[0][0]
    if not usual:
        return [finding(host, "skipped", "no ranks were started") for host in hosts]
    return [finding(host, "ok" if counts[str(host["host"])] == usual else "fail", counts[str(host["host"])], usual) for host in hosts]


def _rank_gpu(host: Json) -> Finding:
    ranks, n_gpus = _ranks(host), len(host.get("gpus") or ())
    if ranks and host.get("gpus") is None and has_gpu_driver(host):
        return finding(host, "unknown", host.get("why_no_gpus"), "a GPU a rank")
    if not ranks or not n_gpus:
        return finding(host, "skipped")
    if all(rank.get("multi_rank") for rank in ranks):
        return finding(host, "fail", "ranks share GPUs (NCCL_MULTI_RANK_GPU_ENABLE=1)", "a GPU a rank")
    seen = {str(rank["visible"]) for rank in ranks if rank.get("visible") is not None}
    alone = len(seen) == len(ranks) and all("," not in one for one in seen)
    status = "ok" if len(ranks) == n_gpus or (alone and len(ranks) <= n_gpus) else "warn" if len(ranks) < n_gpus else "fail"
    return finding(host, "ok" if status == "ok" else "warn" if status == "warn" else "fail", f"{len(ranks)} ranks, {n_gpus} GPUs", "one rank a GPU")


def _cores(hosts: Sequence[Json]) -> Iterable[Finding]:
    found = []
    for host in hosts:
        ranks = [rank for rank in _ranks(host) if rank.get("cpus")]
        if not ranks:
            found.append(finding(host, "skipped" if not _ranks(host) else "unknown"))
            continue
        users = Counter(cpu for rank in ranks for cpu in rank["cpus"])
        share = min(sum(1 / users[cpu] for cpu in rank["cpus"]) for rank in ranks)
        found.append(finding(host, "ok" if share >= CORES_A_RANK else "warn", f"{share:.3g} cores for the rank with fewest", f">= {CORES_A_RANK}"))
    return found


def _numa(host: Json) -> Finding:
    """Each rank's CPUs against the NUMA node of its GPU."""
    cpus = mapping(mapping(host.get("settings")).get("numa_cpus"))
    near = {gpu.get("index"): gpu.get("numa") for gpu in mapping(host.get("node")).get("gpus") or ()}
    ranks = [rank for rank in _ranks(host) if rank.get("local_rank") in near]
    if not ranks or len(cpus) == 1:
        return finding(host, "skipped", "one NUMA node" if ranks else "no rank with a GPU")
    told = [rank for rank in ranks if rank.get("cpus") and near[rank["local_rank"]] is not None]
    far = [rank["rank"] for rank in told if not set(rank["cpus"]) & set(cpus.get(str(near[rank["local_rank"]]), ()))]
    if far and cpus:
        return finding(host, "warn", f"ranks {', '.join(map(str, far[:8]))} are on another node than their GPU", "the GPU's node")
    if len(told) < len(ranks) or not cpus:
        return finding(host, "unknown", "of some ranks the CPUs or their GPU's node cannot be read", "the GPU's node")
    return finding(host, "ok", None, "the GPU's node")


CHECKS: tuple[Check, ...] = (
    *(
        Check(id=f"version.{name}", what=f"the same {label} on all hosts", how=how, judge=_version(name), required=name == "driver",
              why="unlike versions are what breaks or slows a collective on one host", fix=f"give all hosts the same {label}")
        for name, label, how in (
            ("driver", "NVIDIA driver", "/proc/driver/nvidia/version"), ("torch", "torch", "package metadata"),
            ("cuda", "CUDA of torch", "torch/version.py"),
            ("nccl", "NCCL", "package metadata"),
            ("ofed", "OFED (mlx5_core)", "/sys/module"), ("efa", "EFA driver", "/sys/module"), ("kernel", "kernel", "/proc"),
        )
    ),
    *health_gpu.CHECKS,
    *health_net.CHECKS,
    Check(id="nccl.conf", what="the same nccl.conf on all hosts", how="/etc/nccl.conf", judge=_conf,
          why="settings in this file count as if they were exported", fix="make the files alike"),
    Check(id="limit.memlock", what="locked memory unlimited", how="getrlimit", judge=of_host(_memlock),
          why="RDMA registers memory by locking it", fix="LimitMEMLOCK=infinity for slurmd; ulimit -l unlimited"),
    Check(id="limit.shm", what="room in /dev/shm", how="statvfs", judge=of_host(_shm),
          why="NCCL's transport between processes of a host lives there", fix="mount -o remount,size=..., or --shm-size for containers"),
    Check(id="limit.files", what="open files", how="getrlimit", judge=of_host(_files),
          why="many peers need many sockets", fix=f"ulimit -n {MIN_FILES} or more (images of clouds set 1048576)"),
    Check(id="host.clock", what="clocks of the hosts together", how="a message to all at once", judge=of_host(_clock),
          why="logs of hosts cannot be put in order otherwise", fix="chronyc tracking; start chronyd"),
    Check(id="host.governor", what="CPU governor", how="/sys/devices/system/cpu", judge=of_host(_governor),
          why="CPUs that wake up slowly add to small messages", fix="cpupower frequency-set -g performance"),
    Check(id="host.numa_balancing", what="automatic NUMA balancing off", how="/proc/sys/kernel/numa_balancing", judge=of_host(_balancing),
          why="it unmaps pages under NCCL's proxy threads", fix="sysctl kernel.numa_balancing=0"),
    Check(id="rank.equal", what="as many ranks on every host", how="the launcher's variables", judge=_equal,
          why="uneven hosts leave NICs or GPUs idle", fix="--ntasks-per-node"),
    Check(id="rank.gpu", what="one rank a GPU", how="ranks against NVML", judge=of_host(_rank_gpu),
          why="a GPU without a rank is not tested", fix="--ntasks-per-node as many as --gpus-per-node"),
    Check(id="rank.cores", what="cores for each rank", how="sched_getaffinity", judge=_cores,
          why="proxy threads that wait for a core delay every message", fix="--cpus-per-task"),
    Check(id="rank.numa", what="ranks on their GPU's NUMA node", how="sched_getaffinity, /sys", judge=of_host(_numa),
          why="launches and proxies that cross sockets are late", fix="srun --gpu-bind=closest, --cpu-bind; or numactl"),
)  # fmt: skip
