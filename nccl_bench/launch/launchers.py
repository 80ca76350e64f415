"""Who am I: rank, world and meeting place, read from the launcher's variables; pure, no process and no network.

Order: torchrun's variables (or the same set by hand), Open MPI, MVAPICH, PMI (MPICH, Intel, srun --mpi=pmi2), PMIx, a
step of Slurm, else nobody launched us. Several may be set at once, as under torchrun inside srun: what agrees is fine,
what contradicts is an error that names both.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from nccl_bench.errors import LaunchError
from nccl_bench.launch.hostlist import expand, tasks_per_node

Launcher = Literal["torchrun", "openmpi", "mvapich", "pmi", "pmix", "slurm", "none"]

PORTS = range(20000, 32768)
"""Ports for the board: below Linux's ephemeral range (ip_local_port_range starts at 32768), where any socket may sit."""
N_PORTS = 8
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the launcher says of this process."""

    launcher: Launcher
    rank: int
    world_size: int
    local_rank: int | None = None
    """None where the launcher does not say: it is then the order among the ranks of the host."""
    local_size: int | None = None
    node_rank: int | None = None
    host: str
    """This host's name."""
    board_host: str = LOOPBACK
    """Name or address where the ranks meet."""
    ports: tuple[int, ...] = ()
    """Where the board may listen there, in the order it is tried; the same on all ranks."""
    token: str = ""
    """Identity of the job: the same on all ranks of it, on no other job's."""
    job: str | None = None
    """Slurm's job id, for names."""
    rank_hosts: tuple[str, ...] = ()
    """Where Slurm put each rank, () where that is not known; for the names of ranks that never came."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One launcher's variables; `names` are those of rank and size, for messages."""

    launcher: Launcher
    names: tuple[str, str]
    rank: int | None
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None
    node_rank: int | None = None

    @property
    def complete(self) -> bool:
        return self.rank is not None and self.size is not None

    def text(self) -> str:
        values = zip(self.names, (self.rank, self.size), strict=True)
        return " and ".join(f"{name}={value}" for name, value in values if value is not None)


def from_environ(environ: Mapping[str, str], hostname: str | None = None, *, self_launch: bool = False) -> Launch:
    """This process's place in the job. Raises LaunchError naming the variables that contradict or are missing.

    `self_launch`: the user asked for local ranks (-g N), so a batch script of several tasks is no mistake.
    """
    host = hostname or socket.gethostname()
    outer = _outer(environ)
    slurm = outer[-1] if outer and outer[-1].launcher == "slurm" else None
    chosen = _choose(environ, _torchrun(environ), outer)
    if chosen is None:
        return _alone(environ, host, self_launch)
    chosen = _with_local_rank(chosen, outer)
    _check_numbers(chosen)
    board_host = _board_host(environ, chosen, slurm)
    token = _token(environ, chosen)
    launch = Launch(
        launcher=chosen.launcher, rank=chosen.rank or 0, world_size=chosen.size or 1, local_rank=chosen.local_rank, local_size=chosen.local_size,
        node_rank=chosen.node_rank, host=host, board_host=board_host, ports=candidate_ports(token), token=token,
        job=environ.get("SLURM_JOB_ID") or None,
    )  # fmt: skip
    return replace(launch, rank_hosts=_rank_hosts(environ, launch) if slurm and slurm.size == chosen.size else ())


def candidate_ports(token: str) -> tuple[int, ...]:
    """Eight different ports in 20000..32767 for one job, from a hash of its identity."""
    ports: list[int] = []
    counter = 0
    while len(ports) < N_PORTS:
        digest = hashlib.sha256(f"{counter}:{token}".encode()).digest()
        port = PORTS[int.from_bytes(digest[:8], "big") % len(PORTS)]
        counter += 1
        if port not in ports:
            ports.append(port)
    return tuple(ports)


def refuse_mig(visible_devices: str | None, where: str) -> None:
    """Raise LaunchError where CUDA_VISIBLE_DEVICES names a slice of a GPU; `where` is the rank and host for the message."""
    if visible_devices and any(word.strip().startswith("MIG-") for word in visible_devices.split(",")):
        raise LaunchError(
            f"MIG is not supported by NCCL for multi-GPU (CUDA_VISIBLE_DEVICES={visible_devices[:80]} on {where})",
            "ask for whole GPUs, or leave MIG mode: nvidia-smi -mig 0",
        )


# ---- the launchers' variables


def _outer(environ: Mapping[str, str]) -> list[_Source]:
    """What is set besides torchrun's variables, in the order that counts; the step of Slurm comes last."""
    slurm = _slurm(environ)
    if _in_step(environ) and slurm is None:
        # A step of one task is a shell: what srun's PMI plug-ins add to it says no more than that.
        found = [_openmpi(environ), _mvapich(environ), _pmi(environ)]
        return [source for source in found if source is not None and source.size != 1]
    found = [_openmpi(environ), _mvapich(environ), _pmi(environ), _pmix(environ, slurm), slurm]
    return [source for source in found if source is not None]


def _in_step(environ: Mapping[str, str]) -> bool:
    """The batch script has SLURM_PROCID too, but no SLURM_STEP_*."""
    return any(environ.get(name) for name in ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"))


def _torchrun(environ: Mapping[str, str]) -> _Source | None:
    source = _Source(
        launcher="torchrun", names=("RANK", "WORLD_SIZE"), rank=_number(environ, "RANK"), size=_number(environ, "WORLD_SIZE"),
        local_rank=_number(environ, "LOCAL_RANK"), local_size=_number(environ, "LOCAL_WORLD_SIZE"), node_rank=_number(environ, "GROUP_RANK"),
    )  # fmt: skip
    return None if source.rank is None and source.size is None and source.local_rank is None else source


def _openmpi(environ: Mapping[str, str]) -> _Source | None:
    prefix = "OMPI_COMM_WORLD_"
    return _mpi(environ, "openmpi", (prefix + "RANK", prefix + "SIZE"), (prefix + "LOCAL_RANK",), (prefix + "LOCAL_SIZE",))


def _mvapich(environ: Mapping[str, str]) -> _Source | None:
    prefix = "MV2_COMM_WORLD_"
    return _mpi(environ, "mvapich", (prefix + "RANK", prefix + "SIZE"), (prefix + "LOCAL_RANK",), (prefix + "LOCAL_SIZE",))


def _pmi(environ: Mapping[str, str]) -> _Source | None:
    """MPICH's hydra and Intel MPI set MPI_LOCAL*, Cray's PALS PMI_LOCAL_*; srun --mpi=pmi2 neither."""
    return _mpi(environ, "pmi", ("PMI_RANK", "PMI_SIZE"), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"))


def _mpi(
    environ: Mapping[str, str], launcher: Launcher, names: tuple[str, str], local_ranks: tuple[str, ...], local_sizes: tuple[str, ...]
) -> _Source | None:
    rank, size = (_number(environ, name) for name in names)
    if rank is None and size is None:
        return None
    if (rank is None or size is None) and _in_step(environ):
        return None  # Cray's srun sets some of PMI's variables; its step says the rest
    if rank is None or size is None:
        missing, present = (names[0], names[1]) if rank is None else (names[1], names[0])
        raise LaunchError(f"{present} is set but {missing} is not", f"start all ranks with one launcher, or unset {present}")
    return _Source(
        launcher=launcher, names=names, rank=rank, size=size, local_rank=_first_number(environ, local_ranks),
        local_size=_first_number(environ, local_sizes),
    )  # fmt: skip


def _pmix(environ: Mapping[str, str], slurm: _Source | None) -> _Source | None:
    """PMIx puts the rank into the environment but no size: Slurm says that, or whoever set OMPI_COMM_WORLD_SIZE."""
    rank = _number(environ, "PMIX_RANK")
    if rank is None or "OMPI_COMM_WORLD_RANK" in environ:
        return None
    if slurm is None or slurm.rank != rank:
        if "RANK" in environ or "PMI_RANK" in environ:
            return None
        raise LaunchError(
            f"PMIX_RANK={rank} is set, but no variable says how many ranks there are",
            "start the ranks with mpirun or srun, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in a wrapper",
        )
    return replace(slurm, launcher="pmix", names=("PMIX_RANK", slurm.names[1]))


def _slurm(environ: Mapping[str, str]) -> _Source | None:
    """A step of several tasks; a step of one task (srun --pty, or -n 1 with all GPUs) is a shell in which we start the ranks."""
    if not _in_step(environ):
        return None
    rank = _number(environ, "SLURM_PROCID")
    size_name = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    size = _number(environ, size_name)
    if rank is None or size is None:
        missing = "SLURM_PROCID" if rank is None else "SLURM_STEP_NUM_TASKS"
        raise LaunchError(f"this is a step of Slurm, but {missing} is not set", "start it with srun, and keep its SLURM_* variables in wrappers")
    if size == 1:
        return None
    node = _number(environ, "SLURM_NODEID")
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE")
    per_node = tasks_per_node(counts) if counts else ()
    return _Source(
        launcher="slurm", names=("SLURM_PROCID", size_name), rank=rank, size=size, local_rank=_number(environ, "SLURM_LOCALID"),
        local_size=per_node[node] if node is not None and node < len(per_node) else None, node_rank=node,
    )  # fmt: skip


# ---- which of them counts


def _choose(environ: Mapping[str, str], torchrun: _Source | None, outer: list[_Source]) -> _Source | None:
    first = outer[0] if outer else None
    if torchrun is not None and torchrun.complete:
        for source in outer:
            _check_nested(torchrun, source, by_hand="TORCHELASTIC_RUN_ID" not in environ)
        _refuse_missing_address(environ, torchrun, first)
        return torchrun
    if torchrun is not None:
        _check_partial(torchrun, first)
    if first is not None:
        for source in outer[1:]:
            _check_size(first, source)
    return first


def _check_partial(torchrun: _Source, other: _Source | None) -> None:
    """Some of torchrun's variables: fine where another launcher says the same, else an error that names the missing ones."""
    if other is None:
        present = [name for name, value in (("RANK", torchrun.rank), ("WORLD_SIZE", torchrun.size)) if value is not None] or ["LOCAL_RANK"]
        missing = [name for name, value in (("RANK", torchrun.rank), ("WORLD_SIZE", torchrun.size)) if value is None]
        raise LaunchError(
            f"{' and '.join(present)} set but {' and '.join(missing)} not",
            f"set all of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun does), or unset {' '.join(present)}",
        )
    for mine, theirs in ((torchrun.rank, other.rank), (torchrun.size, other.size)):
        if mine is not None and mine != theirs:
            raise _contradiction(torchrun, other)


def _check_nested(inner: _Source, outer: _Source, *, by_hand: bool) -> None:
    """torchrun inside srun or mpirun has more ranks than those tasks; fewer are several jobs, and equal ones must be equal."""
    _check_size(inner, outer)
    if not by_hand:
        return
    same_rank = inner.rank == outer.rank
    if (inner.size == outer.size and not same_rank) or (inner.size != outer.size and inner.local_rank is None):
        raise _contradiction(inner, outer)


def _check_size(inner: _Source, outer: _Source) -> None:
    if (inner.size or 0) < (outer.size or 0):
        raise LaunchError(
            f"{inner.names[1]}={inner.size} but {outer.names[1]}={outer.size}: each task would be a job of its own",
            f"let one launcher start all {outer.size} ranks: srun nccl-bench ..., mpirun nccl-bench ..., torchrun --nnodes N --rdzv-endpoint H:P ...",
            f"where {inner.names[1]} is left over from elsewhere: unset {inner.names[0]} {inner.names[1]}",
        )


def _contradiction(first: _Source, second: _Source) -> LaunchError:
    return LaunchError(
        f"{first.text()} but {second.text()}",
        f"unset {' '.join(first.names)} where they are left over (exported in the batch script?), or start with one launcher",
    )


def _refuse_missing_address(environ: Mapping[str, str], torchrun: _Source, other: _Source | None) -> None:
    if other is None and "MASTER_ADDR" not in environ and (torchrun.size or 1) > 1 and torchrun.local_size != torchrun.size:
        raise LaunchError("RANK and WORLD_SIZE set but MASTER_ADDR not", "set MASTER_ADDR to the host of rank 0, the same on all ranks")


def _with_local_rank(source: _Source, outer: list[_Source]) -> _Source:
    """The local rank, where only another launcher of the same ranks says it (srun --mpi=pmi2)."""
    if source.local_rank is not None:
        return source
    for other in outer:
        if other.local_rank is not None and (other.rank, other.size) == (source.rank, source.size):
            return replace(source, local_rank=other.local_rank, local_size=other.local_size, node_rank=other.node_rank)
    return source


def _check_numbers(source: _Source) -> None:
    rank, size = source.rank or 0, source.size or 0
    if size < 1 or rank >= size:
        raise LaunchError(f"{source.text()}: ranks go from 0 to {source.names[1]} - 1", "correct what sets them")
    if source.local_size is not None and source.local_rank is not None and source.local_rank >= source.local_size:
        raise LaunchError(
            f"local rank {source.local_rank} of {source.local_size} on this host, from {source.launcher}'s variables", "correct what sets them"
        )
    if source.local_size is not None and source.local_size > size:
        raise LaunchError(f"{source.local_size} ranks on this host but {source.names[1]}={size}", "correct what sets them")


def _alone(environ: Mapping[str, str], host: str, self_launch: bool) -> Launch:
    """Nobody launched us: fine, but not beside the tasks of a batch script that were meant."""
    n_tasks = _number(environ, "SLURM_NTASKS") or 1
    n_nodes = _number(environ, "SLURM_JOB_NUM_NODES") or _number(environ, "SLURM_NNODES") or 1
    job = environ.get("SLURM_JOB_ID") or None
    warnings: tuple[str, ...] = ()
    # An interactive step (salloc's shell) keeps the allocation's SLURM_NTASKS; srun -n 1 sets it to 1.
    one_task = _in_step(environ) and environ.get("SLURM_NTASKS") == "1"
    if job and not one_task and max(n_tasks, n_nodes) > 1:
        what = f"SLURM_NTASKS={n_tasks}" if n_tasks > 1 else f"{n_nodes} nodes"
        if not self_launch:
            raise LaunchError(
                f"inside the batch script or shell of a Slurm job ({what}), not in a step of it: this would be one process",
                "start it with srun: srun nccl-bench ...",
                f"to run on {host} alone: nccl-bench sweep -g N, or srun -N 1 -n 1 nccl-bench ...",
            )
        warnings = (f"runs on {host} alone, though the Slurm job has {what}: srun starts it on all",)
    return Launch(launcher="none", rank=0, world_size=1, local_rank=0, local_size=1, node_rank=0, host=host, job=job, warnings=warnings)


# ---- where they meet


def _board_host(environ: Mapping[str, str], chosen: _Source, slurm: _Source | None) -> str:
    given = environ.get("MASTER_ADDR", "").strip()
    if given:
        return given
    if chosen.size == 1 or (chosen.local_size is not None and chosen.local_size == chosen.size):
        return LOOPBACK
    by_srun = slurm is not None and slurm.size == chosen.size and chosen.launcher != "openmpi"
    # mpirun under Slurm starts its daemons with srun: their step's node list lacks the first node, the job's does not.
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if by_srun or chosen.launcher == "torchrun" else ("SLURM_JOB_NODELIST",)
    for name in names:
        if environ.get(name):
            return expand(environ[name])[0]
    raise LaunchError(
        f"{chosen.size} ranks on several hosts, and no variable says where they meet",
        "set MASTER_ADDR to a host that has ranks, the same on all",
        "Open MPI: mpirun -x MASTER_ADDR=$(hostname) ...    MPICH: mpirun -genv MASTER_ADDR $(hostname) ...",
    )


def _check_port(text: str | None) -> None:
    """Raise LaunchError where MASTER_PORT is no port: ranks that read it differently would wait for each other in vain."""
    if text is not None and not (text.isdigit() and 0 < int(text) < 1 << 16):
        raise LaunchError(f"MASTER_PORT={text!r} is no port", "set the same number below 32768 on all ranks, or leave it out under srun and mpirun")


def _token(environ: Mapping[str, str], chosen: _Source) -> str:
    """The job's identity, from values that are the same on all ranks and differ between jobs and their restarts."""
    _check_port(environ.get("MASTER_PORT"))
    address = f"{environ.get('MASTER_ADDR', '-')}:{environ.get('MASTER_PORT', '-')}"
    if chosen.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in environ:
        return f"torchrun:{environ['TORCHELASTIC_RUN_ID']}:{address}:{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    by_launcher = {
        "openmpi": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        "mvapich": ("MPIRUN_ID",),
        "pmi": ("PMI_JOBID",),
        "pmix": ("PMIX_NAMESPACE",),
    }
    for name in by_launcher.get(chosen.launcher, ()):
        if environ.get(name):
            return f"{chosen.launcher}:{environ.get('SLURM_JOB_ID', '-')}:{environ[name]}"
    if chosen.launcher in ("slurm", "torchrun", "pmi") and environ.get("SLURM_STEP_ID"):
        again = environ.get("SLURM_RESTART_COUNT", "0")  # a requeued job has its old id, and steps from 0 on
        return f"slurm:{environ.get('SLURM_JOB_ID', '-')}.{environ['SLURM_STEP_ID']}.{again}:{address}"
    return f"{chosen.launcher}:{environ.get('SLURM_JOB_ID', '-')}:{address}"


def _rank_hosts(environ: Mapping[str, str], launch: Launch) -> tuple[str, ...]:
    """Where each rank is, from the step's nodes and counts; () where tasks were not dealt out in blocks, or this rank is elsewhere."""
    nodes, counts = environ.get("SLURM_STEP_NODELIST"), environ.get("SLURM_STEP_TASKS_PER_NODE")
    if not nodes or not counts or not environ.get("SLURM_DISTRIBUTION", "block").startswith("block"):
        return ()
    hosts = tuple(host for host, count in zip(expand(nodes), tasks_per_node(counts), strict=False) for _ in range(count))
    mine = {environ.get("SLURMD_NODENAME", launch.host), launch.host, launch.host.split(".")[0]}
    return hosts if len(hosts) == launch.world_size and hosts[launch.rank] in mine else ()


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise LaunchError(f"{name}={text[:60]!r} is not a whole number", f"correct it, or unset {name}")
    return int(text)


def _first_number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((number for name in names if (number := _number(environ, name)) is not None), None)
