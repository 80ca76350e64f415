"""Running a sweep from the front door: who takes part, the flow, and what is shown of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from nccl_bench.cli.outcome import Ended
from nccl_bench.cli.sweep_options import Options
from nccl_bench.errors import UsageError
from nccl_bench.flows import events as flow
from nccl_bench.flows.sweep import sweep as run_sweep
from nccl_bench.flows.sweep import torch_version
from nccl_bench.flows.variants import parse_variants
from nccl_bench.launch.launchers import Launch, from_environ
from nccl_bench.launch.local import visible_gpus
from nccl_bench.measure.cases import WorldFacts, slot_nbytes
from nccl_bench.measure.listing import axes_of, fitting_mesh, list_cases, mesh_of
from nccl_bench.measure.spec import Backend, SweepSpec, check_backend, clocks_of, sizes_of, with_defaults
from nccl_bench.records import RunHeader
from nccl_bench.report.beside import Beside, algorithms_text
from nccl_bench.report.contention import Contention, group_lines
from nccl_bench.report.nccl_tests import NcclTestsLog
from nccl_bench.report.progress import Progress
from nccl_bench.report.sentence import Look
from nccl_bench.report.terminal import SweepTable, banner, wants_color, write_warning
from nccl_bench.units import counted, format_seconds, format_size, parse_size

CPU_RANKS = 2
"""Ranks of a self-launch without a GPU: the fewest that talk."""
MOST_CPU_RANKS = 64
"""A mesh larger than this is not started on one host's CPUs unasked."""
CASE_EXTRA_S = 0.3
"""Seconds a case takes beyond its budget at most, for setting up, warming up and checking; for the estimate of --dry-run."""

_NOT_COUNTED = "not counted: starting and connecting ranks, and single operations longer than their budget"


def run(options: Options, environ: Mapping[str, str], argv: Sequence[str], stdout: TextIO, stderr: TextIO) -> Ended:
    """Run the sweep, show it, and say how it ended."""
    spec, variants = options.spec(), parse_variants(options.variant)
    launch = from_environ(environ, self_launch=options.nproc_per_node is not None)
    n_local = _n_local(options, launch, spec, environ)
    if mesh_of(spec) is not None:
        fitting_mesh(spec, n_local if launch.launcher == "none" else launch.world_size)
    if launch.rank == 0:
        for note in size_notes(options, spec, _backend(spec, environ)):
            stderr.write(f"note: {note}\n")
    if options.dry_run:
        return _dry_run(options, spec, launch, n_local, environ, stdout)
    torch_version()
    where = flow.Where(out=options.out, name=options.name)
    screen = _Screen(options, spec, stdout, stderr)
    ended = Ended(exit_code=0, why="")
    try:
        for event in run_sweep(spec, launch, where, n_local=n_local, environ=environ, argv=argv, variants=variants, stderr=stderr):
            if isinstance(event, flow.Ended):
                ended = screen.end(event, speak=launch.rank == 0 or bool(event.lines))
            else:
                screen.show(event)
    finally:
        screen.close()
    return ended


def _backend(spec: SweepSpec, environ: Mapping[str, str]) -> Backend:
    """The backend as far as this host tells."""
    return "nccl" if spec.backend == "nccl" or (spec.backend == "auto" and visible_gpus(environ)) else "gloo"


def size_notes(options: Options, spec: SweepSpec, backend: Backend) -> Iterator[str]:
    """Where sizes are other than they may read: powers of 1024 under GB, and a last one that the steps do not reach."""
    for text in (options.minbytes, options.maxbytes, options.stepbytes, options.sizes):
        if text is not None and (found := re.search(r"[\d.]+\s*([KMGT])B", text, re.IGNORECASE)):
            letter = found[1].upper()
            size = format_size(parse_size(found[0]))
            yield f"{found[0]} is {size}: sizes are powers of 1024, rates in GB/s are 1e9 bytes/s ({letter}iB says the same)"
            break
    if options.maxbytes is not None and options.sizes is None and spec.max_nbytes is not None:
        last = max(sizes_of(spec, backend), default=spec.max_nbytes)
        if last < spec.max_nbytes:
            yield f"-e {options.maxbytes} is not measured: the steps from the smallest size end at {format_size(last)} (-f, -i and --sizes set them)"


def _n_local(options: Options, launch: Launch, spec: SweepSpec, environ: Mapping[str, str]) -> int:
    """Workers to start here: one where a launcher started us, else as many as asked for, or as there are GPUs."""
    if launch.launcher != "none":
        if options.nproc_per_node not in (None, 1):
            raise UsageError(
                f"-g {options.nproc_per_node} starts ranks here, but {launch.launcher} has started {launch.world_size} already",
                "leave -g out and ask the launcher for a task a GPU (srun --ntasks-per-node=8 --gpus-per-node=8), or run nccl-bench without it",
            )
        return 1
    if options.nproc_per_node is not None:
        return options.nproc_per_node
    mesh = mesh_of(spec)
    cpu_ranks = CPU_RANKS if mesh is None else min(mesh.size, MOST_CPU_RANKS)
    return (visible_gpus(environ) if spec.backend != "gloo" else 0) or cpu_ranks


def _dry_run(options: Options, spec: SweepSpec, launch: Launch, n_local: int, environ: Mapping[str, str], stdout: TextIO) -> Ended:
    """The cases, an upper bound of the minutes, and the memory; nothing is started."""
    alone = launch.launcher == "none"
    n_ranks, per_node = (n_local, n_local) if alone else (launch.world_size, launch.local_size)
    n_nodes = -(-n_ranks // per_node) if per_node else 1
    backend = _backend(spec, environ)
    check_backend(spec, backend)
    spec = with_defaults(spec, backend)
    facts = WorldFacts(n_ranks=n_ranks, n_nodes=n_nodes, ranks_per_node=per_node, backend=backend, one_domain=n_nodes == 1, fp8=True)
    planned = list_cases(spec, facts)
    runnable = [item for item in planned if item.skip is None]
    largest = max((slot_nbytes(item.case) for item in runnable), default=0)
    passes = 1 + len(options.variant)
    upper_s = passes * (len(runnable) * ((spec.budget_s or 0.0) * 1.25 + CASE_EXTRA_S) + 10)
    upper_s = max(upper_s, passes * (spec.duration_s or 0.0))
    if launch.rank != 0:
        return Ended(exit_code=0, why="")
    if options.as_json:
        rows = [{"case": item.case.label(), "clock": item.case.clock, "regime": item.case.regime, "skip": item.skip} for item in planned]
        stdout.write(json.dumps({"n_ranks": n_ranks, "backend": backend, "cases": rows, "at_most_s": upper_s, "buffers_nbytes": largest}) + "\n")
        return Ended(exit_code=0, why="")
    lines = [f"{counted(n_ranks, 'rank')} on {counted(n_nodes, 'node')}, {backend}, {', '.join(clocks_of(spec, backend, n_nodes == 1))} clock"]
    for name in dict.fromkeys(item.case.collective for item in planned):
        mine = [item.case.requested_nbytes for item in runnable if item.case.collective == name and not item.lateness]
        skipped = sum(item.skip is not None for item in planned if item.case.collective == name)
        span = f"{format_size(min(mine))} to {format_size(max(mine))}" if mine else "none can run"
        lines.append(f"  {name:<15} {len(mine):>5} {'case' if len(mine) == 1 else 'cases'}, {span}" + (f", {skipped} skipped" if skipped else ""))
    lines += [
        f"measuring: at most {format_seconds(upper_s)} ({spec.budget_s:g} s a case), usually a third of that; {_NOT_COUNTED}"
        if spec.iters is None
        else f"how long {spec.iters} operations a case take is not known beforehand",
        f"buffers of {format_size(largest)} a rank for the largest case",
    ]
    n_here, cpus = per_node or n_ranks, os.cpu_count() or 1
    if backend == "gloo" and n_here > cpus:
        lines.append(f"{n_here} ranks take turns on {counted(cpus, 'CPU')} here: start-up and operations take many times longer")
    lines += [f"  skipped: {reason}" for reason in dict.fromkeys(item.skip for item in planned if item.skip)]
    stdout.write("\n".join(lines) + "\n")
    return Ended(exit_code=0, why="")


class _Screen:
    """stdout and stderr of a sweep on rank 0."""

    def __init__(self, options: Options, spec: SweepSpec, stdout: TextIO, stderr: TextIO) -> None:
        self.options, self.spec, self.stdout, self.stderr = options, spec, stdout, stderr
        self.progress = Progress(stderr, enabled=options.progress)
        self.table: SweepTable | NcclTestsLog | None = None
        self.beside, self.contention = Beside(), Contention()
        self.header: RunHeader | None = None
        self.n_done = self.n_before = self.n_ok = self.n_alone = 0
        self.probing = False

    def show(self, event: flow.Event) -> None:
        """Show one event that is not the last."""
        match event:
            case flow.Opened():
                self.header = event.header
                self._banner()
            case flow.Listed():
                self.n_before, self.probing = self.n_done, event.probe
                if self.table is None and self.header is not None and not self.options.as_json:
                    self.table = self._table(self.header, event.one_domain)
            case flow.CaseBegun():
                done = event.index if self.probing else self.n_done - self.n_before
                self.progress.update(done % max(1, event.n_cases), event.n_cases, event.collective, format_size(event.nbytes))
            case flow.Kept():
                self.n_done += 1
                self.n_ok += event.point.status == "ok"
                self.n_alone += event.point.regime == "isolated" and self.spec.regime != "isolated"
                with self.progress.paused():
                    if self.options.as_json:
                        self.stdout.write(json.dumps(event.point.to_json()) + "\n")
                        self.stdout.flush()
                    elif self.table is not None:
                        self._row(event)
            case flow.Warned():
                with self.progress.paused():
                    write_warning(event.text, self.stderr)
            case flow.Noted():
                with self.progress.paused():
                    self.stderr.write(f"note: {event.text}\n")
            case _:
                pass

    def _row(self, event: flow.Kept) -> None:
        """One row; of variants, also what the last table lays side by side."""
        self.contention.add(event.point)
        if isinstance(self.table, SweepTable):
            if self.contention.special(event.point) and event.point.status == "ok":
                return  # told at the end: no row of a table of collectives
            self.table.add(event.point, event.ceiling)
            self.beside.add(event.point)
        elif self.table is not None:
            self.table.add(event.point)

    def _table(self, header: RunHeader, one_domain: bool) -> SweepTable | NcclTestsLog:
        """What the rows go to; which clocks there are is known once the ranks have met."""
        if self.options.output_format == "nccl-tests":
            return NcclTestsLog(self.stdout, header, both=self.spec.placement == "both")
        backend: Backend = "nccl" if header.backend == "nccl" else "gloo"
        look = Look(
            n_nodes=header.n_nodes,
            clocks=clocks_of(self.spec, backend, one_domain),
            regime=self.spec.regime,
            not_nccl=header.not_nccl,
            shared_gpu=header.shared_gpu,
            wide=self.options.wide,
            color=wants_color(self.stdout),
        )
        mesh = mesh_of(self.spec)
        if mesh is not None:
            from nccl_bench.training.price_measured import run_seats

            self.stdout.write("\n".join(group_lines(mesh, axes_of(self.spec), run_seats(header))) + "\n")
        return SweepTable(self.stdout, look)

    def _banner(self) -> None:
        """Say in the first and last line that this is no measurement of NCCL, or of GPUs of one's own."""
        if self.header is None:
            return
        text = banner(not_nccl=self.header.not_nccl, shared_gpu=self.header.shared_gpu, comment=self.options.output_format == "nccl-tests")
        if text is not None:
            stream = self.stderr if self.options.as_json else self.stdout
            stream.write(text + "\n")
            stream.flush()

    def end(self, event: flow.Ended, speak: bool) -> Ended:
        """Close the table, say what went wrong and where the run is kept."""
        self.progress.close()
        if self.table is not None:
            self.table.end()
        if isinstance(self.table, SweepTable):
            self.stdout.write(self.contention.text() + self.beside.text() + algorithms_text(event.algorithms))
        if self.header is not None and event.path is not None and not self.options.as_json and self.options.output_format == "table":
            alone = f"{self.n_alone} of them are calls alone, for lateness and latency: in the report\n" if self.n_alone else ""
            self.stdout.write(f"\n{counted(event.n_points, 'point')} in {event.path}\n{alone}")
        elif event.path is not None and not event.exit_code:
            self.stderr.write(f"note: {counted(event.n_points, 'point')} in {event.path}\n")
        if self.header is not None and self.n_done and not self.n_ok and not event.exit_code:
            write_warning("nothing was measured: every case was skipped", self.stderr)
        self._banner()
        self.stdout.flush()
        if event.exit_code and speak:
            first, *rest = event.lines or (event.why,)
            self.stderr.write("".join([f"error: {first}\n", *(f"       {line}\n" for line in rest)]))
        return Ended(exit_code=event.exit_code, why=event.why if speak else "")

    def close(self) -> None:
        """Take the progress line away."""
        self.progress.close()
