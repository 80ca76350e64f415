"""The header of a run: what is true of all its points, from the supervisors' facts and this process's environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from nccl_bench import __version__
from nccl_bench.launch.interfaces import in_use
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.values import Go, Joined, Json
from nccl_bench.measure.spec import SweepSpec
from nccl_bench.records import RunHeader
from nccl_bench.results.env import allowed_env, redact_value
from nccl_bench.results.store import utc_text

CONF_FILES = (Path("/etc/nccl.conf"), Path("~/.nccl.conf"))
"""Where NCCL reads settings beside the environment (NCCL user guide, environment variables)."""
SLOW_IMPORT_S = 20.0
"""torch from a local disk is imported in 2 to 5 s (1.8 s warm, 2.9 s cold on two cores); so much more is a file system's doing, or a crowd's."""
PLUGIN_VARIABLES = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_NET")


def header_of(
    joined: Joined, go: Go, spec: SweepSpec, launch: Launch, environ: Mapping[str, str], argv: Sequence[str], started_at: datetime
) -> RunHeader:
    """The header as it stands when the ranks have met and nothing was measured yet."""
    first = joined.facts[0]
    hello = first["hello"]
    return RunHeader(
        tool=f"nccl-bench {__version__}",
        argv=tuple(argv),
        started_at=utc_text(started_at),
        launcher=launch.launcher,
        job=launch.job,
        backend=go.backend,
        not_nccl=go.backend != "nccl",
        shared_gpu=go.shared_gpu,
        n_ranks=go.world_size,
        n_nodes=go.n_nodes,
        ranks=tuple(_rank(facts, go) for facts in joined.facts),
        versions={"nccl_bench": __version__, **hello["versions"], "driver": driver_version()},
        spec=spec.to_json(),
        plugins=tuple(f"{name}={redact_value(name, environ[name])}" for name in PLUGIN_VARIABLES if name in environ),
        nccl_conf=conf_lines(environ),
        affinity={str(facts["rank"]): facts["hello"].get("affinity") for facts in joined.facts if facts["host"] == first["host"]},
        env=allowed_env(environ),
        setup={"meet_s": joined.meet_s, "torch_import_s": max(facts["hello"]["import_s"] for facts in joined.facts)},
        warnings=(*launch.warnings, *go.warnings, *_notes(go)),
    )


def _rank(facts: Json, go: Go) -> Json:
    device = facts["hello"].get("device") if go.backend == "nccl" else None
    gpu = (
        None
        if device is None
        else {
            "index": device["index"],
            "name": device["name"],
            "uuid": device["uuid"],
            "pci": device["pci_bus_id"],
            "memory_nbytes": device["memory_nbytes"],
        }
    )
    sockets = facts["sockets"]
    socket = {"address": sockets["address"], "interface": in_use(sockets, go.backend, go.one_host)}
    place = {"rank": facts["rank"], "host": facts["host"], "local_rank": facts["local_rank"], "pid": facts["hello"]["pid"]}
    return {**place, "gpu": gpu, "socket": socket}


def _notes(go: Go) -> tuple[str, ...]:
    if go.world_size == 1:
        return ("one rank: nothing crosses a link; bus bandwidth is 0 and nothing here is a verdict",)
    return ()


def start_notes(joined: Joined) -> tuple[str, ...]:
    """What of the start took long."""
    times = sorted((float(facts["hello"]["import_s"]), int(facts["rank"])) for facts in joined.facts)
    worst_s, rank = times[-1]
    if worst_s < SLOW_IMPORT_S:
        return ()
    where = f"rank {rank} ({joined.facts[rank]['host']})"
    median = f", {times[len(times) // 2][0]:.0f} s on the median rank" if len(times) > 1 else ""
    return (f"importing torch took {worst_s:.0f} s on {where}{median}: from a shared file system? A local disk or an image is faster",)


def node_names(joined: Joined) -> list[str]:
    """[rank] host."""
    return [str(facts["host"]) for facts in joined.facts]


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The NVIDIA kernel driver, from its own file; None where there is none."""
    try:
        words = path.read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)


def conf_lines(environ: Mapping[str, str], files: Sequence[Path] = CONF_FILES) -> tuple[str, ...]:
    """Settings in nccl.conf files, as "path: NAME=value" without comments; values that look like secrets are redacted."""
    named = (Path(environ["NCCL_CONF_FILE"]),) if environ.get("NCCL_CONF_FILE") else files
    lines: list[str] = []
    for path in named:
        try:
            text = path.expanduser().read_text(errors="replace")
        except (OSError, RuntimeError):
            continue
        for line in text.splitlines()[:1000]:
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith("#"):
                lines.append(f"{path}: {name}={redact_value(name, value)}")
    return tuple(lines)
