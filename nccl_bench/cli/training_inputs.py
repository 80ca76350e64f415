"""From plan's and search's options to a model, a layout and a priced fabric; every default that was taken is an assumption."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nccl_bench.cli.training_options import Given
from nccl_bench.errors import DataError, DetectError, UsageError
from nccl_bench.groups import even_seats
from nccl_bench.training import files
from nccl_bench.training.compute import Efficiency, Rates, accelerators
from nccl_bench.training.config import from_config, preset, read_config
from nccl_bench.training.document import Assumption, Money, traffic_assumptions
from nccl_bench.training.layout import Layout, with_world
from nccl_bench.training.model import BASES, Model
from nccl_bench.training.plan import Fabric
from nccl_bench.training.price import Places, Pricer, first_of, nothing
from nccl_bench.training.rules import OVERLAPS

if TYPE_CHECKING:
    from nccl_bench.fabric.topology import Topology
    from nccl_bench.records import Point, RunHeader

DEFAULT_SEQ = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a plan needs."""

    model: Model
    layout: Layout
    fabric: Fabric
    basis: str
    money: Money
    assumptions: tuple[Assumption, ...]
    world: int
    per_node: int
    unknown: tuple[str, ...]
    """Keys of a framework's file that have no part in it."""
    not_nccl: bool
    """Whether the prices come from a gloo run."""


@dataclass(frozen=True, slots=True)
class _Hardware:
    seats: tuple[tuple[int, int], ...]
    topology: Topology | None
    header: RunHeader | None
    points: tuple[Point, ...]
    gpu: str | None
    n_named: int
    """GPUs of the nodes that --gpus names; 0 without it."""


def inputs_of(given: Given, *, sized: bool = True) -> Inputs:
    """Everything from the options. `sized`: the layout must fill the world (plan); a search sizes it itself. Raises UsageError and others."""
    for option, value in (("--gpu-mem", given.gpu_mem), ("--peak", given.peak), ("--hbm", given.hbm)):
        _positive(option, value)
    source = _file(given)
    model = _model(given, source)
    if given.flop_basis not in BASES:
        raise UsageError(f"--flop-basis {given.flop_basis!r}", f"there are: {' '.join(BASES)}")
    assumptions: list[Assumption] = []
    layout = _layout(given, source, assumptions)
    hardware = _hardware(given, layout)
    world = len(hardware.seats)
    if sized:
        layout = _sized(given, source, layout, world)
    per_node = max(local for _node, local in hardware.seats) + 1
    layout = replace(_batch(given, source, layout, world, assumptions, sized), node_ranks=per_node)
    fabric = _fabric(given, hardware, layout, assumptions)
    assumptions += [Assumption(name="left out", value=text, source=f"{model.name}") for text in model.notes]
    assumptions += [Assumption(name="of the file", value=text, source="its keys") for text in (source.notes if source else ())]
    money = Money(
        gpu_hour_price=_checked_price(given.gpu_hour_price),
        tokens=_positive("--tokens", _tokens(given.tokens), 1e18),
        observed_step_s=_positive("--observed-step", given.observed_step),
        idle_gpus=max(0, hardware.n_named - world),
    )
    not_nccl = hardware.header is not None and (hardware.header.not_nccl or hardware.header.shared_gpu)
    return Inputs(model=model, layout=layout, fabric=fabric, basis=given.flop_basis, money=money, assumptions=tuple(assumptions), world=world,
                  per_node=per_node, unknown=source.unknown if source else (), not_nccl=not_nccl)  # fmt: skip


def _file(given: Given) -> files.FromFile | None:
    named = [(given.ds_config, files.deepspeed), (given.megatron_args, files.megatron), (given.torchtitan, files.torchtitan)]
    found = [(path, reader) for path, reader in named if path is not None]
    if len(found) > 1:
        raise UsageError("--ds-config, --megatron-args and --torchtitan exclude each other", "one job has one framework")
    return found[0][1](found[0][0]) if found else None


def _model(given: Given, source: files.FromFile | None) -> Model:
    if given.model is not None and given.preset is not None:
        raise UsageError("--model and --preset exclude each other", "give one of them")
    if given.model is not None:
        return read_config(given.model)
    if given.preset is not None:
        return preset(given.preset)
    if source is not None and source.model:
        if "vocab_size" not in source.model:
            hint = "add --vocab-size N to it, or give --model config.json, whose sizes go first"
            raise DataError(f"{given.megatron_args}: no --vocab-size: the tokenizer has it, and is not read", hint)
        return from_config(source.model, "the arguments' model")
    raise UsageError("no model was given", "--preset llama3-70b, or --model config.json")


def _layout(given: Given, source: files.FromFile | None, assumptions: list[Assumption]) -> Layout:
    values: dict[str, Any] = dict(source.layout) if source else {}
    for name in ("gradient_accumulation_steps", "replicate", "vpp_layers"):
        values.pop(name, None)
    options = (
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "etp",
        "dp",
        "order",
        "framework",
        "zero",
        "recompute",
        "param_dtype",
        "grad_dtype",
        "seq",
        "mbs",
        "gbs",
    )
    values |= {name: value for name in options if (value := getattr(given, name)) is not None}
    values |= {name: True for name in ("sp", "dist_opt", "fp8", "no_sync") if getattr(given, name)}
    values |= {"cp_comm": given.cp_comm} if given.cp_comm is not None else {}
    if given.cp_comm is None and values.get("cp", 1) == 1:
        values.pop("cp_comm", None)  # of a file: how it would talk
    values["flash"] = given.flash
    if given.overlap is not None:
        values["overlap"] = _overlaps(given.overlap)
    if given.pp_layout is not None:
        values["pp_layout"] = _numbers("--pp-layout", given.pp_layout)
    if given.zeropp is not None:
        values |= _zeropp(given.zeropp)
    if given.hsdp is not None:
        values["copies"], values["shard"] = _hsdp(given.hsdp)
    if "seq" not in values:
        values["seq"] = DEFAULT_SEQ
        assumptions.append(Assumption(name="sequence", value=str(DEFAULT_SEQ), source="default: --seq was not given"))
    values.setdefault("gbs", 1)
    layout = Layout(**values)
    if source is not None and "vpp_layers" in source.layout and source.model:
        chunks = source.model.get("num_hidden_layers", 0) // max(1, source.layout["vpp_layers"] * layout.pp)
        layout = replace(layout, vpp=max(1, chunks))
    return layout


def _overlaps(text: str) -> frozenset[str]:
    words = [word for word in re.split(r"[,\s]+", text.lower()) if word and word != "none"]
    wrong = [word for word in words if word not in OVERLAPS]
    if wrong:
        raise UsageError(f"--overlap {text!r}: {wrong[0]!r} is none", f"there are: {' '.join(OVERLAPS)}")
    return frozenset(words)


def _zeropp(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in filter(None, re.split(r"[,\s]+", text.lower())):
        name, _colon, size = word.partition(":")
        if name in ("qwz", "qgz") and not size:
            values[name] = True
        elif name == "hpz" and size.isdecimal():
            values["hpz"] = int(size)
        else:
            raise UsageError(f"--zeropp {text!r}: {word!r} is none of qwz, hpz:N, qgz", "for example --zeropp qwz,hpz:8,qgz")
    return values


def _numbers(option: str, text: str) -> tuple[int, ...]:
    words = [word for word in re.split(r"[,\s]+", text) if word]
    if not words or not all(word.isdecimal() for word in words):
        raise UsageError(f"{option} {text!r} is no list of numbers", f"for example {option} 20,21,21,18")
    return tuple(int(word) for word in words)


def _hsdp(text: str) -> tuple[int | None, int]:
    """(copies where they were said, ranks that share one)."""
    match = re.fullmatch(r"(?:(\d+)\s*[xX]\s*)?(\d+)", text.strip())
    if match is None or int(match[2]) < 1:
        raise UsageError(f"--hsdp {text!r}", "the ranks that share one copy: --hsdp 8, or copies x ranks: --hsdp 4x8")
    return None if match[1] is None else int(match[1]), int(match[2])


def _hardware(given: Given, layout: Layout) -> _Hardware:
    header: RunHeader | None = None
    points: tuple[Point, ...] = ()
    topology: Topology | None = None
    if given.measured is not None:
        from nccl_bench.results.runs import open_run, points_of
        from nccl_bench.verdict.ceilings import ceilings_of

        run = open_run(given.measured)
        header, points, topology = run.header, points_of(run), ceilings_of(run).topology
    if given.gpus is not None:
        topology = _topology(given)
    elif given.nics is not None or (given.nodes is not None and given.world is None and given.gpus_per_node is None):
        raise UsageError("--nics and --nodes go with --gpus", "for example --gpus 8xH100-SXM --nics 8x400-IB --nodes 8")
    seats = _seats(given, layout, topology, header)
    n_named = sum(len(node.gpus or ()) for node in topology.nodes) if topology is not None and given.gpus is not None else 0
    return _Hardware(seats, topology, header, points, _gpu_name(topology), n_named)


def _topology(given: Given) -> Topology:
    from nccl_bench.fabric import spec

    nodes = given.nodes
    if nodes is None:
        count, _model_found = spec.parse_gpus(given.gpus or "")
        nodes = 1 if given.world is None else -(-given.world // count)
    if nodes > 1 and (given.nics is None or given.nics.strip().lower() == "none"):
        raise UsageError(f"{nodes} nodes talk through NICs, and none are given", "for example --nics 8x400-IB")
    return spec.topology_of(given.gpus or "", given.nics, nodes)


def _seats(given: Given, layout: Layout, topology: Topology | None, header: RunHeader | None) -> tuple[tuple[int, int], ...]:
    """[rank] (node, local rank): of the named hardware, else of the run, else of --world and --gpus-per-node."""
    from nccl_bench.training.price_expected import seats_of
    from nccl_bench.training.price_measured import run_seats

    asked = given.world or (layout.world if given.dp is not None else None)
    if given.gpus is not None and topology is not None:
        seats = seats_of(topology)
        _agreeing(given, len(seats), max(local for _node, local in seats) + 1)
    elif header is not None and header.n_ranks:
        seats = run_seats(header)
    elif asked is not None:
        per_node = given.gpus_per_node or (asked if asked <= 8 else None)
        if per_node is None:
            raise UsageError(
                f"--world {asked}: how many GPUs has a node?", "--gpus-per-node 8, or name the hardware: --gpus 8xH100-SXM --nics 8x400-IB"
            )
        return even_seats(asked, per_node)
    else:
        raise UsageError("how many GPUs?", "--gpus 8xH100-SXM --nics 8x400-IB --nodes 8, or --world 64 --gpus-per-node 8, or --measured RUN")
    if given.world is None or given.world == len(seats):
        return seats
    if given.world < len(seats):
        return seats[: given.world]
    per_node = given.gpus_per_node or max(local for _node, local in seats) + 1
    return even_seats(given.world, per_node)


def _agreeing(given: Given, n_gpus: int, per_node: int) -> None:
    """Raises UsageError where --world or --gpus-per-node contradicts the hardware that is named."""
    if given.world is not None and given.world > n_gpus:
        raise UsageError(f"--world {given.world}: the hardware named has {n_gpus} GPUs", "leave --world or --nodes out")
    if given.gpus_per_node is not None and given.gpus_per_node != per_node:
        raise UsageError(f"--gpus-per-node {given.gpus_per_node}: --gpus {given.gpus} has {per_node}", "leave one of the two out")


def _gpu_name(topology: Topology | None) -> str | None:
    """The model of the fabric's GPUs by its table's name; None where it is not known, or they differ."""
    if topology is None:
        return None
    names = {gpu.model.name if gpu.model is not None else None for node in topology.nodes for gpu in node.gpus or ()}
    return names.pop() if len(names) == 1 else None


def _sized(given: Given, source: files.FromFile | None, layout: Layout, world: int) -> Layout:
    said = given.dp is not None or (source is not None and "dp" in source.layout)
    layout = layout if said else with_world(layout, world)
    replicate = source.layout.get("replicate") if source is not None else None
    if replicate and layout.shard is None and given.hsdp is None:
        layout = replace(layout, shard=max(1, layout.dp // int(replicate)))
    if layout.world != world:
        what = f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp} x DP {layout.dp} = {layout.world}"
        raise UsageError(f"{what} ranks, and there are {world} GPUs", "change a size, or leave --dp out")
    return layout


def _batch(given: Given, source: files.FromFile | None, layout: Layout, world: int, assumptions: list[Assumption], sized: bool) -> Layout:
    if given.gbs is not None or (source is not None and "gbs" in source.layout):
        return layout
    steps = int(source.layout.get("gradient_accumulation_steps", 1)) if source is not None else 1
    if not sized:
        raise UsageError("how many sequences has a step?", "--gbs 512")
    gbs = layout.dp * layout.mbs * steps * (layout.pp if layout.pp > 1 and steps == 1 else 1)
    text = "one micro-batch a rank" if layout.pp == 1 else "as many micro-batches as stages"
    assumptions.append(Assumption(name="global batch", value=str(gbs), source=f"--gbs was not given: {text}"))
    return replace(layout, gbs=gbs)


def _fabric(given: Given, hardware: _Hardware, layout: Layout, assumptions: list[Assumption]) -> Fabric:
    from nccl_bench.training.rates import sigma_of

    datasheet = accelerators().get(hardware.gpu or "")
    pricer, by = _pricer(given, hardware)
    rates = _rates(given, hardware, datasheet, layout, assumptions)
    peak = given.peak if given.peak is not None else datasheet.tflops if datasheet else None
    memory = given.gpu_mem * 1e9 if given.gpu_mem is not None else datasheet.memory_GB * 1e9 if datasheet else None
    if datasheet is not None and given.gpu_mem is None:
        assumptions.append(Assumption(name="memory of a GPU", value=f"{datasheet.memory_GB:g} GB", source=datasheet.source))
    if hardware.topology is not None:
        assumptions += [Assumption(name="fabric", value=text, source="topology") for text in hardware.topology.assumptions]
    others = datasheet.other_GB if datasheet is not None and given.gpu_mem is None else ()
    note = f"boards with {' and '.join(f'{size:g}' for size in others)} GB exist: --gpu-mem" if others else None
    return Fabric(places=Places(hardware.seats), pricer=pricer, rates=rates, priced_by=by, peak_tflops=peak, memory_note=note,
                  memory_nbytes=None if memory is None else int(memory), headroom=given.mem_headroom, sigma=sigma_of(hardware.points))  # fmt: skip


def _pricer(given: Given, hardware: _Hardware) -> tuple[Pricer, str]:
    from nccl_bench.training.price_expected import expected_pricer
    from nccl_bench.training.price_measured import measured_pricer

    expected: Pricer | None = None
    whole = hardware.topology is not None and len(hardware.seats) <= sum(len(node.gpus or ()) for node in hardware.topology.nodes)
    known = hardware.header is None or not (hardware.header.not_nccl or hardware.header.shared_gpu)
    if hardware.topology is not None and whole and known:
        expected = _guarded(expected_pricer(hardware.topology, given.environ))
    if hardware.header is not None:
        measured = measured_pricer(hardware.header, hardware.points, expected)
        return (measured if expected is None else first_of(measured, _marked(expected))), "measured"
    return (expected, "expected") if expected is not None else (nothing, "nothing")


def _guarded(pricer: Pricer) -> Pricer:
    """Hardware that the fabric's tables do not know has no price, rather than ending the plan."""

    def price(collective: str, nbytes: int, place: Any) -> Any:
        try:
            return pricer(collective, nbytes, place)
        except DetectError:
            return None

    return price


def _marked(pricer: Pricer) -> Pricer:
    """Prices that fill what a run did not measure."""

    def price(collective: str, nbytes: int, place: Any) -> Any:
        found = pricer(collective, nbytes, place)
        return None if found is None else replace(found, extrapolated=f"not measured: {found.by}")

    return price


def _rates(given: Given, hardware: _Hardware, datasheet: Any, layout: Layout, assumptions: list[Assumption]) -> Rates | None:
    from nccl_bench.training.rates import MeasuredRates

    measured = MeasuredRates(hardware.points)
    if given.gemm_eff is None:
        if not measured.complete:
            return None
        assumptions += traffic_assumptions(layout, "the measured rate")
        return measured
    if not 0 < given.gemm_eff <= 1:
        raise UsageError(f"--gemm-eff {given.gemm_eff:g} is not between 0 and 1", "what kernels reach of the peak, 0.7 say; MFU is something else")
    peak = given.peak if given.peak is not None else datasheet.tflops if datasheet else None
    hbm = given.hbm if given.hbm is not None else datasheet.hbm_GBps if datasheet else None
    for option, value, unit in (("--peak", peak, "TFLOPS"), ("--hbm", hbm, "GB/s")):
        if value is None:
            raise UsageError(f"--gemm-eff needs {option} {unit}: this GPU's is not known", "or name the GPU: --gpus 8xH100-SXM")
    assert peak is not None
    assert hbm is not None
    where = "given" if given.peak is not None or datasheet is None else datasheet.source
    assumptions.append(Assumption(name="GEMM efficiency", value=f"{given.gemm_eff:g} of {peak:g} TFLOPS", source=f"given; peak: {where}"))
    rates = Efficiency(eff=given.gemm_eff, peak_tflops=peak, hbm_GBps=hbm)
    assumptions += traffic_assumptions(layout, f"{hbm:g} GB/s")
    return rates


def _tokens(text: str | None) -> float | None:
    """ "15T", "300e9", "300B": powers of ten."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmbt]?)\s*", text.lower())
    try:
        return float(match[1]) * {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[match[2]] if match else float("x")
    except ValueError:
        raise UsageError(f"--tokens {text!r} is no number", "for example --tokens 15T") from None


def _checked_price(value: float | None) -> float | None:
    return value if value == 0 else _positive("--gpu-hour-price", value)


def _positive(option: str, value: float | None, most: float = 1e9) -> float | None:
    if value is not None and not 0 < value < most:
        raise UsageError(f"{option} {value:g} is out of range", f"a number above 0 and below {most:g}")
    return value


