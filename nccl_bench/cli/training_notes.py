"""What plan and search must say of the options themselves: those that change nothing here, and GPUs that were named and stand idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nccl_bench.training.document import HOURS_A_DAY
from nccl_bench.training.memory import HEADROOM

if TYPE_CHECKING:
    from nccl_bench.cli.training_inputs import Inputs
    from nccl_bench.cli.training_options import Given


def said_of(given: Given, inputs: Inputs, *, timed: bool, sized: bool) -> list[str]:
    """The sentences; `timed`: whether a step has a time; `sized`: whether the layout is one (plan), and no search's beginning."""
    alone = _of_one_layout(given, inputs) if sized else []
    return [*_idle(inputs), *_without_effect(given, inputs, timed=timed), *alone]


def _idle(inputs: Inputs) -> list[str]:
    idle, price = inputs.money.idle_gpus, inputs.money.gpu_hour_price
    if not idle:
        return []
    cost = f", {idle * HOURS_A_DAY * price:.0f} in money" if price is not None else ""
    return [f"{idle} of the {inputs.world + idle} GPUs of these nodes stand idle: {idle * HOURS_A_DAY:.0f} GPU-hours a day{cost}"]


def _without_effect(given: Given, inputs: Inputs, *, timed: bool) -> list[str]:
    said = []
    if not timed:
        values = (given.tokens, given.observed_step, given.peak, given.hbm)
        idle = [name for name, value in zip(("--tokens", "--observed-step", "--peak", "--hbm"), values, strict=True) if value is not None]
        idle += ["--gpu-hour-price"] if given.gpu_hour_price is not None and not inputs.money.idle_gpus else []
        said += [f"no effect without a step time: {' '.join(idle)}"] if idle else []
    elif given.hbm is not None and given.gemm_eff is None:
        said.append("no effect: --hbm (compute was measured)")
    if inputs.fabric.memory_nbytes is None and given.mem_headroom != HEADROOM:
        said.append("no effect: --mem-headroom (the GPU's memory is not known: --gpu-mem)")
    if given.etp is not None and not inputs.model.experts:
        said.append(f"no effect: --etp {given.etp} (the model has no experts)")
    return said


def _of_one_layout(given: Given, inputs: Inputs) -> list[str]:
    """Megatron switches sequence parallelism off where there is no TP (arguments.py:1439), and says so; so do we."""
    at, said = inputs.layout, []
    if given.sp and at.tp == 1:
        said.append("no effect: --sp (there is no TP; Megatron switches it off)")
    if at.dp * at.cp == 1 and not inputs.model.experts:
        idle = ["--dist-opt"] if given.dist_opt else []
        idle += ["--overlap grad"] if given.overlap is not None and "grad" in at.overlap else []
        said += [f"no effect: {' '.join(idle)} (DP x CP is 1: nothing is shared or reduced)"] if idle else []
    return said
