"""`nccl-bench slurm`: the batch scripts of slurm/, filled in and printed.

A template is a script that runs as it is; filling in changes its #SBATCH lines and the parameters below them, nothing else.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

import typer

from nccl_bench.errors import UsageError

_PLAIN = re.compile(r"[\w.,:/+=@%^\[\]-]+")
"""What may stand in a #SBATCH line without quotes."""
_JOB, _HOW = "The job", "How it runs"
SUFFIX = ".sbatch"
_TIME = re.compile(r"(?:\d+(?::\d\d?){0,2}|\d+-\d\d?(?::\d\d?){0,2}|infinite|unlimited)", re.IGNORECASE)
"""The time limits that sbatch(1) lists under --time."""


def slurm(
    kind: Annotated[
        str,
        typer.Option(
            "--kind", metavar="KIND", help="sweep, sweep-torchrun, sweep-container, scaling (1, 2, 4 ... all nodes), accept, nightly or plan"
        ),
    ] = "sweep",
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="nodes of the job", rich_help_panel=_JOB)] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of a node, a rank each (default: 8)", rich_help_panel=_JOB)
    ] = None,
    cpus_per_task: Annotated[
        int | None, typer.Option("--cpus-per-task", min=1, help="CPUs of a task (default: its share of the node's)", rich_help_panel=_JOB)
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="partition", rich_help_panel=_JOB)] = None,
    account: Annotated[str | None, typer.Option("--account", help="account that pays", rich_help_panel=_JOB)] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="LIMIT", help="time limit as sbatch reads it: 02:00:00", rich_help_panel=_JOB)] = None,
    nodelist: Annotated[str | None, typer.Option("--nodelist", help="these nodes: gpu[001-004]", rich_help_panel=_JOB)] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", help="not these nodes", rich_help_panel=_JOB)] = None,
    reservation: Annotated[str | None, typer.Option("--reservation", help="reservation", rich_help_panel=_JOB)] = None,
    container_image: Annotated[
        str | None, typer.Option("--container-image", metavar="IMAGE", help="[REGISTRY#]IMAGE[:TAG] or file, for pyxis", rich_help_panel=_HOW)
    ] = None,
    container_mounts: Annotated[
        str | None, typer.Option("--container-mounts", metavar="SRC:DST,...", help="beside the folder of sbatch", rich_help_panel=_HOW)
    ] = None,
    mpi: Annotated[str | None, typer.Option("--mpi", metavar="TYPE", help="srun --mpi=TYPE: none, pmi2, pmix", rich_help_panel=_HOW)] = None,
    module: Annotated[list[str] | None, typer.Option("--module", help="module to load first; repeatable", rich_help_panel=_HOW)] = None,
    venv: Annotated[str | None, typer.Option("--venv", metavar="DIR", help="virtual environment of nccl-bench", rich_help_panel=_HOW)] = None,
) -> None:
    """Print a ready sbatch script: nccl-bench slurm --nodes 4 > sweep.sbatch; sbatch sweep.sbatch [OPTIONS OF THE COMMAND]."""
    if container_image is None and container_mounts is not None:
        raise UsageError("--container-mounts without --container-image", "name the image too")
    if container_image is not None and kind == "sweep":
        kind = "sweep-container"
    text = template(kind)
    job: dict[str, object] = {
        "nodes": nodes, "gpus-per-node": gpus_per_node, "cpus-per-task": cpus_per_task, "partition": partition, "account": account, "time": time,
        "nodelist": nodelist, "exclude": exclude, "reservation": reservation,
    }  # fmt: skip
    if "#SBATCH --ntasks-per-node=1\n" not in text:
        job["ntasks-per-node"] = gpus_per_node
    for name, value in job.items():
        if value is not None:
            text = with_job_option(text, name, str(value))
    parameters = {"venv": venv, "modules": " ".join(module or ()) or None}
    options = {"mpi": None if mpi is None else _word("mpi", mpi)}
    if kind == "sweep-container":
        parameters |= {"image": container_image, "mounts": container_mounts}
    elif container_image is not None:
        mounts = '"$PWD:$PWD"' if container_mounts is None else '"$PWD:$PWD",' + _word("container-mounts", container_mounts)
        options |= {"container-image": _word("container-image", container_image), "container-mounts": mounts, "container-workdir": '"$PWD"'}
    for name, value in parameters.items():
        if value is not None:
            text = with_parameter(text, name, value, kind)
    sys.stdout.write(with_srun_options(text, {name: value for name, value in options.items() if value is not None}))


def kinds() -> tuple[str, ...]:
    """The scripts there are."""
    names = (path.name for path in _scripts().iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


def _scripts() -> Traversable:
    return files("nccl_bench.cli").joinpath("sbatch")


def template(kind: str) -> str:
    """The script of one kind, as shipped. Raises UsageError naming those there are."""
    if kind not in kinds():
        raise UsageError(f"--kind {kind}: no such script", f"there are: {', '.join(kinds())}")
    return _scripts().joinpath(kind + SUFFIX).read_text(encoding="utf-8")


def with_job_option(text: str, name: str, value: str) -> str:
    """The script with a #SBATCH line changed, switched on, or added below the others. Raises UsageError for what no such line can hold."""
    if _PLAIN.fullmatch(value) is None:
        raise UsageError(f"--{name} {value!r}: not a value for an #SBATCH line", "give it to sbatch itself, on its command line")
    if name == "time" and _TIME.fullmatch(value) is None:
        raise UsageError(f"--time {value}: no time limit of sbatch", "write minutes, HH:MM:SS, D-HH or D-HH:MM:SS: 90, 05:00:00, 1-12")
    line = f"#SBATCH --{name}={value}"
    changed, n_found = re.subn(rf"^#+SBATCH --{name}=.*$", lambda _: line, text, count=1, flags=re.MULTILINE)
    if n_found:
        return changed
    end = [match.end() for match in re.finditer(r"^#SBATCH .*\n", text, flags=re.MULTILINE)][-1]
    return f"{text[:end]}{line}\n{text[end:]}"


def with_parameter(text: str, name: str, value: str, kind: str) -> str:
    """The script with one of its parameters set; what followed the value stays as its comment."""
    found = re.search(rf"^{name}=(\S*)( *)#", text, flags=re.MULTILINE)
    if found is None:
        option = {"modules": "module"}.get(name, name)
        raise UsageError(f"--{option} {value}: not in a {kind} script", "what runs in a container is what its image has")
    word = _word(name, value)
    padding = " " * max(2, len(found[1]) + len(found[2]) - len(word))
    return f"{text[: found.start(1)]}{word}{padding}{text[found.end(2) :]}"


def with_srun_options(text: str, options: Mapping[str, str]) -> str:
    """The script with more options for srun; values are shell words already."""
    words = "".join(f" --{name}={value}" for name, value in options.items())
    return re.sub(r"(srun_options=\(--kill-on-bad-exit=[01])\)", lambda found: f"{found[1]}{words})", text, count=1)


def _word(name: str, value: str) -> str:
    """A value as one word of the shell. Raises UsageError for what is more than a line."""
    if not value.isprintable():
        raise UsageError(f"--{name} {value!r}: not on one line")
    return shlex.quote(value)
