"""The table of commands: the question each answers, and where it lives. A command is offered once its module exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

Ranks = Literal["all", "node", "one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One row: a command's name, its place, and the words that lists of commands use."""

    name: str
    question: str
    """The question that it answers, as the bare page groups commands (CONTRACT.md section 1)."""
    module: str
    function: str
    help: str
    """One line."""
    example: str
    """What to type first; it runs as it stands where its files are there."""
    ranks: Ranks = "one"
    """Who runs it where a launcher started several: all together, one a node, or rank 0 for all."""


def _row(
    name: str, question: str, help: str, example: str, *, module: str | None = None, function: str | None = None, ranks: Ranks = "one"
) -> Command:
    return Command(
        name=name, question=question, module=f"nccl_bench.cli.{module or name}", function=function or name, help=help,
        example=f"nccl-bench {example}", ranks=ranks,
    )  # fmt: skip


_FAST, _COULD, _HEALTHY, _CHANGED = "How fast is it?", "How fast could it be?", "Is it healthy?", "What changed?"
_SHOW, _TRAINING, _SLURM, _WORDS = "Show it", "What does training pay?", "Slurm script", "What does it mean?"

COMMANDS = (
    _row("sweep", _FAST, "measure collectives over all sizes", "sweep            srun -N 2 nccl-bench sweep", ranks="all"),
    _row("topo", _COULD, "the fabric as it is here: GPUs, NVLink, PCIe, NICs", "topo", ranks="node"),
    _row("ideal", _COULD, "what this or any other fabric should reach, and what limits it", "ideal --gpus 8xH100-SXM --nics 8x400-IB --nodes 4"),
    _row("doctor", _HEALTHY, "check every node without measuring: driver, GPUs, links, NICs, settings", "doctor", ranks="all"),
    _row("pairs", _HEALTHY, "measure every pair of nodes or GPUs and name the suspects", "pairs", ranks="all"),
    _row("accept", _HEALTHY, "accept or reject a cluster: checks, measurements, suspects, a verdict", "accept -g 8", ranks="all"),
    _row("compare", _CHANGED, "two runs case by case: regressions beyond noise, and what else changed", "compare last-week/ latest"),
    _row("report", _SHOW, "a run as a page: charts, HTML, Markdown", "report latest"),
    _row("import", _SHOW, "read logs of nccl-tests and others as runs", "import all_reduce.log", module="import_", function="import_"),
    _row("export", _SHOW, "write a run as CSV, Parquet, JSON Lines or an nccl-tests log", "export latest --format csv"),
    _row("plan", _TRAINING, "what a training step sends and what that costs on this fabric", "plan --preset llama3-8b --gpus 8xH200 --tp 8"),
    _row("search", _TRAINING, "which parallel layout wastes least", "search --preset llama3-8b --gpus 8xH200 \\\n--gbs 128 --gemm-eff 0.7"),
    _row("slurm", _SLURM, "print a ready sbatch script", "slurm --nodes 32 > sweep.sbatch"),
    _row("explain", _WORDS, "the words of the tables, in short", "explain busbw"),
)


def available() -> tuple[Command, ...]:
    """The commands whose module exists; nothing is imported but the package that holds them."""
    return tuple(row for row in COMMANDS if find_spec(row.module) is not None)


def by_question(rows: Sequence[Command]) -> dict[str, list[Command]]:
    """Rows grouped by question, in the order of the table."""
    groups: dict[str, list[Command]] = {}
    for row in rows:
        groups.setdefault(row.question, []).append(row)
    return groups
