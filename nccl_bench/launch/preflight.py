"""The check before NCCL is touched: the backend, a GPU for every rank, versions alike; a pure function of all ranks' facts.

What is wrong here would otherwise be a hang, or an "invalid usage" deep inside a library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nccl_bench.errors import LaunchError, NcclBenchError
from nccl_bench.launch.facts import expects_gpu
from nccl_bench.launch.interfaces import NCCL, VARIABLES, in_use
from nccl_bench.launch.launchers import refuse_mig
from nccl_bench.launch.placement import whom
from nccl_bench.launch.values import Backend, Go

Json = dict[str, Any]
Check = Callable[[Sequence[Json]], Go | NcclBenchError]

_TO_GLOO = "or measure CPUs: --backend gloo"


def check(facts: Sequence[Json]) -> Go | NcclBenchError:
    """What all ranks do, or the error that stops them; one object a rank in rank order, as in values.Joined.facts."""
    n_nodes = len({fact["node_index"] for fact in facts})
    try:
        backend = _backend(facts)
        shared = backend == "nccl" and _check_gpus(facts)
        if backend == "nccl":
            _check_versions(facts)
        _check_sockets(facts, backend, n_nodes == 1)
    except NcclBenchError as err:
        return err
    sizes = {int(fact["local_size"]) for fact in facts}
    return Go(
        world_size=len(facts), n_nodes=n_nodes, ranks_per_node=sizes.pop() if len(sizes) == 1 else None, one_host=n_nodes == 1, backend=backend,
        shared_gpu=shared, warnings=tuple(_warnings(facts, backend)), notes=_socket_notes(facts, backend, n_nodes == 1),
    )  # fmt: skip


def _backend(facts: Sequence[Json]) -> Backend:
    """nccl if any rank sees a GPU, a driver or Slurm's GPUs (then all must see one); gloo where none does, or on request."""
    request = facts[0].get("backend", "auto")
    if request == "gloo":
        return "gloo"
    if request == "auto" and not any(_visible(fact) or expects_gpu(fact.get("gpu") or {}) for fact in facts):
        return "gloo"
    blind = [fact for fact in facts if not _visible(fact)]
    if blind:
        _refuse_blind(blind, len(blind) == len(facts))
    without = [fact for fact in facts if not _hello(fact).get("has_nccl")]
    if without:
        raise LaunchError(f"torch {_torch(without[0])} has no NCCL: {whom(without)}", "install torch built for CUDA there", _TO_GLOO)
    return "nccl"


def _refuse_blind(blind: Sequence[Json], all_of_them: bool) -> None:
    """Raise the error for ranks that see no GPU, with the likeliest reason."""
    first = blind[0]
    who = f"no rank sees a GPU: {whom(blind)}" if all_of_them else f"ranks without a GPU among ranks that have one: {whom(blind)}"
    cpu_build = [fact for fact in blind if not _hello(fact).get("has_nccl")]
    if cpu_build:
        raise LaunchError(f"{who}; torch {_torch(cpu_build[0])} there is built without CUDA", "install torch built for CUDA", _TO_GLOO)
    devices = _env(first).get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        raise LaunchError(f"{who}; CUDA_VISIBLE_DEVICES={devices!r} on rank {first['rank']}", "give every rank a GPU", _TO_GLOO)
    raise LaunchError(
        who, "ask for GPUs: srun --gpus-per-node=8 --ntasks-per-node=8; where they are there, see nvidia-smi and nccl-bench doctor", _TO_GLOO
    )


def _check_gpus(facts: Sequence[Json]) -> bool:
    """Whether ranks share a GPU as the user wished. Raises LaunchError where they do so by mistake, or too few are visible."""
    for fact in facts:
        where = f"rank {fact['rank']} ({fact['host']})"
        refuse_mig(_env(fact).get("CUDA_VISIBLE_DEVICES"), where)
        if " MIG " in str(_device(fact).get("name", "")):
            raise LaunchError(f"MIG is not supported by NCCL for multi-GPU ({_device(fact)['name']} on {where})", "leave MIG mode: nvidia-smi -mig 0")
    sharing = all(_env(fact).get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" for fact in facts)
    if not sharing:
        _refuse_too_few(facts)
    users: defaultdict[tuple[int, str], list[Json]] = defaultdict(list)
    for fact in facts:
        device = _device(fact)
        name = device.get("uuid") or device.get("pci_bus_id")
        if name:
            users[fact["node_index"], str(name)].append(fact)
    doubled = [members for members in users.values() if len(members) > 1]
    if doubled and not sharing:
        members = doubled[0]
        device = _device(members[0])
        more = f", and {len(doubled) - 1} more GPUs like this" if len(doubled) > 1 else ""
        raise LaunchError(
            f"{whom(members)} share GPU {device.get('pci_bus_id') or device.get('index')} ({device.get('uuid') or 'no UUID'}){more}",
            "give every rank its own GPU: srun --gpus-per-node=8 --ntasks-per-node=8, or set LOCAL_RANK",
        )
    return bool(doubled)


def _refuse_too_few(facts: Sequence[Json]) -> None:
    for fact in facts:
        visible, local_size = _visible(fact), int(fact["local_size"])
        if 1 < visible < local_size:
            devices = _env(fact).get("CUDA_VISIBLE_DEVICES")
            shown = f"CUDA_VISIBLE_DEVICES={devices} on rank {fact['rank']}" if devices is not None else f"rank {fact['rank']}"
            raise LaunchError(
                f"{local_size} ranks on {fact['host']} see {visible} GPUs ({shown})",
                f"give every rank its own GPU: srun --gpus-per-node={local_size} --ntasks-per-node={local_size}",
            )


def _check_versions(facts: Sequence[Json]) -> None:
    groups = _grouped(facts, lambda fact: (_hello(fact).get("versions") or {}).get("nccl"))
    if len(groups) > 1:
        parts = ", ".join(f"{version} on {whom(members)}" for version, members in groups[:4])
        raise LaunchError(f"unlike versions of NCCL: {parts}", "give all nodes the same NCCL: see LD_LIBRARY_PATH, LD_PRELOAD and torch's own copy")


def _check_sockets(facts: Sequence[Json], backend: Backend, one_host: bool) -> None:
    """Raise LaunchError where a user's choice of interface is none on some host, or leads nowhere: else it is a hang much later."""
    variable = VARIABLES[backend]
    wished = [(fact, fact["sockets"]["wishes"][variable]) for fact in facts if variable in fact.get("sockets", {}).get("wishes", {})]
    for what, bad in (
        ("no such interface", [fact for fact, wish in wished if wish["lacks"]]),
        ("leads nowhere but to the host itself", [fact for fact, wish in wished if not (wish["outward"] or one_host)]),
    ):
        if bad:
            value, there = bad[0]["sockets"]["wishes"][variable]["value"], ", ".join(bad[0]["sockets"]["there"])
            several = f", or list the names of all hosts: {NCCL}=eno,eth" if backend == "nccl" and len(bad) < len(facts) else ""
            raise LaunchError(
                f"{variable}={value}: {what} on {whom(bad)}; {bad[0]['host']} has: {there}",
                f"unset it, and the interface by which the ranks met is taken on each host{several}",
            )


def _socket_notes(facts: Sequence[Json], backend: Backend, one_host: bool) -> tuple[str, ...]:
    """Which interfaces the backend's sockets use, where that matters: across hosts, or as the user chose."""
    known = [fact for fact in facts if "sockets" in fact]
    if not known or (one_host and not any(VARIABLES[backend] in fact["sockets"]["wishes"] for fact in known)):
        return ()
    groups = _grouped(known, lambda fact: in_use(fact["sockets"], backend, one_host))
    name = "NCCL" if backend == "nccl" else backend
    if len(groups) == 1:
        chosen = VARIABLES[backend] in known[0]["sockets"]["wishes"]
        return (f"sockets of {name}: {groups[0][0]}{', as set' if chosen else ' on every host, by which the ranks met'}",)
    return (f"sockets of {name}: " + ", ".join(f"{text} on {whom(members)}" for text, members in groups[:4]),)


def _warnings(facts: Sequence[Json], backend: Backend) -> list[str]:
    found: list[str] = []
    if len({fact["local_size"] for fact in facts}) > 1:
        groups = _grouped(facts, lambda fact: fact["local_size"])
        found.append("nodes hold different numbers of ranks: " + ", ".join(f"{size} on {whom(members)}" for size, members in groups[:4]))
    if backend == "gloo":
        return found
    for name, key in (("GPU model", lambda fact: _device(fact).get("name")), ("driver", lambda fact: (fact.get("gpu") or {}).get("driver"))):
        groups = _grouped(facts, key)
        if len(groups) > 1:
            found.append(f"unlike {name}: " + ", ".join(f"{value} on {whom(members)}" for value, members in groups[:4]))
    single = [fact for fact in facts if _visible(fact) == 1 and int(fact["local_size"]) > 1]
    if single:
        found.append(f"each rank sees one GPU alone, as device 0 ({whom(single)}): NVLink peer access may be off; --gpus-per-node shows all of them")
    idle = [fact for fact in facts if _visible(fact) > int(fact["local_size"])]
    if idle:
        found.append(f"GPUs stay idle: {idle[0]['local_size']} of {_visible(idle[0])} visible ones have a rank on {whom(idle)}")
    return found


def _grouped(facts: Sequence[Json], key: Callable[[Json], Any]) -> list[tuple[Any, list[Json]]]:
    """Ranks by a value, the largest group first."""
    groups: defaultdict[Any, list[Json]] = defaultdict(list)
    for fact in facts:
        groups[key(fact)].append(fact)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def _hello(fact: Mapping[str, Any]) -> Mapping[str, Any]:
    return fact.get("hello") or {}


def _device(fact: Mapping[str, Any]) -> Mapping[str, Any]:
    return _hello(fact).get("device") or {}


def _env(fact: Mapping[str, Any]) -> Mapping[str, str]:
    return fact.get("env") or {}


def _visible(fact: Mapping[str, Any]) -> int:
    return int(_hello(fact).get("visible_gpus") or 0)


def _torch(fact: Mapping[str, Any]) -> str:
    return str((_hello(fact).get("versions") or {}).get("torch", "?"))
