"""The worker of one rank: says hello, opens the world, measures the cases, reports; never prints, writes files or raises to the shell.

Started by a supervisor as `python -m nccl_bench.measure.worker`; the spec comes in NCCL_BENCH_SPEC.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nccl_bench.errors import BUG, NcclBenchError, UsageError, WrongDataError
from nccl_bench.fabric.detect import node_facts
from nccl_bench.groups import kind_of
from nccl_bench.launch.channel import Phase, WorkerChannel
from nccl_bench.launch.values import meeting_s
from nccl_bench.measure.cases import Planned, slot_nbytes
from nccl_bench.measure.flight import flight_record
from nccl_bench.measure.listing import axes_of, list_cases, mesh_of
from nccl_bench.measure.nccl_library import running_nccl
from nccl_bench.measure.spec import SweepSpec, check_backend, with_defaults
from nccl_bench.records import Json

if TYPE_CHECKING:
    from nccl_bench.measure.points import Measured, Report
    from nccl_bench.measure.sweep import Prepare
    from nccl_bench.measure.world import World

SPEC = "NCCL_BENCH_SPEC"
LOG = "NCCL_BENCH_NCCL_LOG"
"""Where rank 0 lets NCCL write what it chooses; unset where that would be in the way."""
LOG_SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING"}
FABRIC_S = 20.0
"""Patience for NVML and sysfs beyond torch's import."""
POOL_NBYTES = {"nccl": 8 << 30, "gloo": 256 << 20}
"""What slots of smaller cases may take: on a GPU 64 of 64 MiB both ways."""


def main(prepare: Prepare | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one worker; the return value is the process's exit code. `prepare` replaces measure.ops.prepare."""
    channel = WorkerChannel.from_environ(environ)
    warnings.simplefilter("ignore")
    try:
        return _work(channel, environ, prepare)
    except Exception as err:
        channel.send("error", **_describe(err))
        sys.stderr.flush()
        # After a failed collective nothing is destroyed: a hung communicator would hang its destructor too.
        os._exit(err.exit_code if isinstance(err, NcclBenchError) else BUG)


def _describe(err: Exception) -> Json:
    from nccl_bench.measure.world import CollectiveError, OverdueError, first_line

    if isinstance(err, (CollectiveError, OverdueError)):
        return {"kind": "comm", "exit_code": err.exit_code, "why": err.why, "hints": [*err.hints, *flight_record(os.environ)], "lines": []}
    if isinstance(err, NcclBenchError):
        return {"kind": "own", "exit_code": err.exit_code, "why": err.why, "hints": list(err.hints), "lines": []}
    lines = traceback.format_exception(err)
    return {"kind": "bug", "exit_code": BUG, "why": f"{type(err).__name__}: {first_line(err)}", "hints": [], "lines": "".join(lines).splitlines()}


def _work(channel: WorkerChannel, environ: Mapping[str, str], prepare: Prepare | None) -> int:
    spec = SweepSpec.from_json(json.loads(environ[SPEC]))
    if environ.get(LOG) and environ.get("RANK") == "0":
        os.environ.update({**LOG_SETTINGS, "NCCL_DEBUG_FILE": environ[LOG]})
    hello = _hello(environ)
    channel.send("hello", **hello)
    go = channel.receive(None)
    assert go is not None
    channel.enter(-1, 0, "meet", "opening the world")
    os.environ.update(go["env"])
    check_backend(spec, go["backend"])
    from nccl_bench.measure.world import open_world

    meet_s = meeting_s(go["world_size"], spec.timeout_s)
    index = hello["device"]["index"] if hello["device"] else None
    world = open_world(go, spec.timeout_s, meet_s, lambda port: channel.send("store", port=port), index, channel.meeting_step)
    channel.send("ready", setup=world.setup)
    channel.enter(-1, 0, "setup", "allocating buffers", spec.timeout_s)
    code, why = _sweep(channel, with_defaults(spec, go["backend"]), world, prepare, hello["device"], clique_number(hello["fabric"]))
    channel.enter(-1, 0, "done", "leaving", spec.timeout_s)
    world.close()
    channel.send("done", exit_code=code, why=why)
    return code


def _hello(environ: Mapping[str, str]) -> Json:
    """What this worker brings; imports torch. The first worker of a node reads its fabric meanwhile."""
    fabric: list[Json] = []
    reader = threading.Thread(target=lambda: fabric.append(node_facts(environ)), daemon=True)
    if environ.get("LOCAL_RANK", "0") == "0":
        reader.start()
    started = time.monotonic()
    import torch
    import torch.distributed as dist

    import_s = time.monotonic() - started
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if reader.ident is not None:
        reader.join(FABRIC_S)
    return {
        "fabric": fabric[0] if fabric else None,
        "pid": os.getpid(),
        "versions": _versions(),
        "device": _device(environ, visible),
        "visible_gpus": visible,
        "has_nccl": bool(dist.is_nccl_available()),
        "import_s": import_s,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }


def _versions() -> Json:
    """Versions of what runs here; NCCL's from the library itself."""
    import torch

    nccl, path = running_nccl()
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl, "nccl_path": path}
    said = os.environ.get("NCCL_VERSION", "")
    return {**found, "nccl_env": said} if nccl and said and said.split("-")[0] != nccl else found


def _device(environ: Mapping[str, str], visible: int) -> Json | None:
    """The GPU this rank takes: its local rank's, or the only one it sees."""
    import torch

    if not visible:
        return None
    local = int(environ.get("LOCAL_RANK", "0"))
    index = local if local < visible else 0
    one_for_all = environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    if local >= visible and visible > 1:
        if not one_for_all:
            return {"index": None, "name": None, "uuid": None, "pci_bus_id": None, "memory_nbytes": None}
        index = local % visible
    properties: Any = torch.cuda.get_device_properties(index)
    pci = (
        f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0" if hasattr(properties, "pci_bus_id") else None
    )
    uuid = getattr(properties, "uuid", None)
    return {
        "index": index,
        "name": properties.name,
        "uuid": None if uuid is None else str(uuid) if str(uuid).startswith("GPU-") else f"GPU-{uuid}",
        "pci_bus_id": pci,
        "memory_nbytes": properties.total_memory,
    }


def _sweep(
    channel: WorkerChannel, spec: SweepSpec, world: World, prepare: Prepare | None, device: Json | None, clique: float | None
) -> tuple[int, str]:
    from nccl_bench.measure.gpu_state import GpuState
    from nccl_bench.measure.ops import prepare as prepare_op
    from nccl_bench.measure.sweep import Sweeper, passes

    facts = world.facts(spec, clique)
    planned = list_cases(spec, facts)
    mesh = mesh_of(spec)
    if mesh is not None:
        world.make_teams([kind_of(mesh, axis) for axis in axes_of(spec)])
    got = world.reserve(arena_sizes(planned, facts.memory_nbytes or 0, POOL_NBYTES[world.backend]), spec.register)
    channel.send("cases", n=len(planned), facts=asdict(facts), arena_nbytes=got, precision=spec.precision, budget_s=spec.budget_s)
    gpu = GpuState(str(device["uuid"])) if device and world.on_gpu else None
    sweeper = Sweeper(world, spec, prepare or prepare_op, gpu)
    n_wrong = 0
    heater = _heater(spec, world)
    for number, item, measured in passes(sweeper, planned, _reporter(channel, world, len(planned))):
        n_wrong += bool(measured.point.n_wrong)
        if world.rank == 0:
            channel.send("point", **_point_message(spec, number, item, measured))
    if heater is not None:
        rates = world.gather(heater.stop())
        if world.rank == 0:
            channel.send("load", tflops=[rate if rate > 0 else None for rate in rates])
    return (WrongDataError.exit_code, f"wrong data in {n_wrong} of {len(planned)} cases") if n_wrong else (0, "")


def _heater(spec: SweepSpec, world: World) -> Any:
    """What heats this rank's GPU meanwhile, where that was asked for. Raises UsageError where there is none."""
    if spec.load is None:
        return None
    if not world.on_gpu:
        raise UsageError("--load gemm heats GPUs, and these ranks have none", "leave --load out")
    from nccl_bench.measure.gemm import Heater
    from nccl_bench.measure.world import CollectiveError, first_line

    try:
        return Heater()
    except RuntimeError as err:
        raise CollectiveError(f"the load of matrix products did not start: {first_line(err)}") from err


def clique_number(fabric: Json | None) -> float | None:
    """A number for the one multi-node NVLink domain of a node's GPUs (NVML's cluster UUID and clique); 0 for none or several."""
    if fabric is None:
        return None
    cliques = {gpu.get("clique") for gpu in fabric.get("gpus") or ()}
    if len(cliques) != 1 or None in cliques:
        return 0.0
    digest = hashlib.sha256(str(cliques.pop()).encode()).digest()
    return float(1 + int.from_bytes(digest[:6], "big"))  # exact in a float64


def _reporter(channel: WorkerChannel, world: World, n_cases: int) -> Callable[[int, Planned], Report]:
    def of(index: int, item: Planned) -> Report:
        text = item.case.label()

        if world.rank == 0:
            channel.send("case", index=index, collective=item.case.collective, nbytes=item.case.nbytes or item.case.requested_nbytes)

        def report(phase: str, batch: int) -> None:
            step: Phase = phase  # type: ignore[assignment]
            channel.enter(index, n_cases, step, text, world.timeout_s)
            channel.tick(step, batch)
            world.set_deadline()

        return report

    return of


def _point_message(spec: SweepSpec, number: int, item: Planned, measured: Measured) -> Json:
    return {
        "pass": number,
        "lateness_case": item.lateness,
        "point": measured.point.to_json(),
        "lateness_us": list(measured.lateness_us),
        "batches_us": list(measured.batches_us) if spec.keep_batches else [],
        "wrong": measured.wrong,
    }


def arena_sizes(planned: tuple[Planned, ...], memory_nbytes: int, pool_nbytes: int) -> list[int]:
    """Sizes to try for the arena, largest first: for all cases that fit, else for all but the largest, and so on."""
    needs = sorted({slot_nbytes(item.case) for item in planned if item.skip is None}, reverse=True)
    return [min(memory_nbytes, max(need, min(64 * need, pool_nbytes))) for need in needs] if needs else []


if __name__ == "__main__":
    sys.exit(main())
