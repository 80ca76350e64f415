"""A sweep from launch to last line: supervisors meet, workers measure, rank 0 keeps every point before it is shown.

Yields events; prints nothing. On ranks other than 0 only Ended comes.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TextIO

from nccl_bench import __version__
from nccl_bench.errors import LaunchError, NcclBenchError
from nccl_bench.flows.events import Ended, Event, Warned, Where
from nccl_bench.flows.keeper import Keeper
from nccl_bench.flows.tuning import TuningLog, log_path
from nccl_bench.flows.variants import Variant
from nccl_bench.launch.launchers import Launch
from nccl_bench.launch.supervisor import supervise
from nccl_bench.launch.values import Finished, Plan
from nccl_bench.measure.spec import SweepSpec

WORKER = (sys.executable, "-m", "nccl_bench.measure.worker")
SPEC_VARIABLE, LOG_VARIABLE = "NCCL_BENCH_SPEC", "NCCL_BENCH_NCCL_LOG"


def sweep(
    spec: SweepSpec,
    launch: Launch,
    where: Where,
    *,
    n_local: int,
    environ: Mapping[str, str],
    argv: Sequence[str],
    variants: Sequence[Variant] = (),
    worker: tuple[str, ...] = WORKER,
    stderr: TextIO | None = None,
) -> Iterator[Event]:
    """Run a sweep on the ranks of `launch` (n_local of them here where nobody launched us), then once more for each variant.

    `stderr`: where the libraries' own lines go at once when the user asked for them (NCCL_DEBUG).

    Raises UsageError, LaunchError and what else ends a run before it begins.
    """
    keeper = Keeper(spec, launch, where, environ, tuple(argv), {str(variant.name): variant.env for variant in variants})
    offer = {"nccl_bench": __version__, "torch": torch_version(), "options": {**spec.to_json(), "variants": str(keeper.variants)}}
    ended = Ended(exit_code=0, why="")
    for number, variant in enumerate((Variant(), *variants)):
        asked = replace(spec, variant=variant.name)
        log = TuningLog(log_path(asked, {**environ, **variant.env}))
        plan = _plan(asked, offer, environ, variant.env, log, n_local, worker, number)
        ended = yield from _one_pass(keeper.begin(asked, log), launch, plan, environ, stderr)
        if ended.exit_code:
            break
    if not ended.exit_code and keeper.wants_probe(spec):
        yield from _probe(keeper, spec, launch, offer, environ, n_local, worker, 1 + len(variants), stderr)
    yield keeper.close(ended)


def _one_pass(keeper: Keeper, launch: Launch, plan: Plan, environ: Mapping[str, str], stderr: TextIO | None) -> Generator[Event, None, Ended]:
    """One supervised run; everything but its end is yielded."""
    ended = Ended(exit_code=0, why="")
    # Closing it, should this flow itself break, ends the other ranks too.
    with contextlib.closing(supervise(launch, plan, environ, stderr=stderr)) as events:
        for event in events:
            try:
                shown = list(keeper.take(event))
            except NcclBenchError as err:
                shown = [_stopped(err, events.throw(err))]
            for item in shown:
                if isinstance(item, Ended):
                    ended = item
                else:
                    yield item
    keeper.end_pass()
    return ended


def _stopped(err: NcclBenchError, last: object) -> Ended:
    """The end that an error of the flow makes: the others were told, and every rank ends with its code."""
    why = last.why if isinstance(last, Finished) and last.why else err.why
    return Ended(exit_code=err.exit_code, why=why, lines=(err.why, *err.hints))


def _probe(
    keeper: Keeper,
    spec: SweepSpec,
    launch: Launch,
    offer: Mapping[str, object],
    environ: Mapping[str, str],
    n_local: int,
    worker: tuple[str, ...],
    index: int,
    stderr: TextIO | None,
) -> Iterator[Event]:
    """Fresh workers that call everything once with NCCL's log on, where the clocks of the table forbade it."""
    asked = replace(spec, clocks=("host",), iters=1, warmup_iters=0, check=False, duration_s=None, keep_batches=False)
    log = TuningLog(log_path(asked, environ, probe=True))
    plan = _plan(asked, dict(offer), environ, {}, log, n_local, worker, index)
    ended = yield from _one_pass(keeper.begin(asked, log, probe=True), launch, plan, environ, stderr)
    if ended.exit_code:
        yield Warned(text=f"the algorithms that ran are not known: the probe after the table ended {ended.exit_code}: {ended.why}")


def _plan(
    spec: SweepSpec,
    offer: Mapping[str, object],
    environ: Mapping[str, str],
    more: Mapping[str, str],
    log: TuningLog,
    n_local: int,
    worker: tuple[str, ...],
    index: int,
) -> Plan:
    env = {**worker_env(spec, environ), **more, **({LOG_VARIABLE: str(log.path)} if log.path else {})}
    return Plan(argv=worker, offer=dict(offer), timeout_s=spec.timeout_s, n_local=n_local, backend=spec.backend, extra_env=env, run_index=index)


def torch_version() -> str:
    """The installed torch, without importing it. Raises LaunchError with the pip line where there is none."""
    try:
        found = version("torch") if find_spec("torch") else None
    except PackageNotFoundError:
        found = "unknown"
    if found is None:
        raise LaunchError(
            "torch is not installed here: nothing can be measured", "pip install 'nccl-bench[torch]'   (or your site's own build of torch)"
        )
    return found


def worker_env(spec: SweepSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker's environment gets beyond the user's: the spec, and registration off unless it was asked for."""
    env = {SPEC_VARIABLE: json.dumps(spec.to_json())}
    if spec.register == "graph":
        env["NCCL_GRAPH_REGISTER"] = "1"
    elif "NCCL_GRAPH_REGISTER" not in environ:
        env["NCCL_GRAPH_REGISTER"] = "0"
    if "OMP_NUM_THREADS" not in environ:
        env["OMP_NUM_THREADS"] = "1"  # as torchrun does: gloo ranks would fight over the cores
    return env
