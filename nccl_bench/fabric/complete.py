"""What follows from facts: switch or mesh, links from bonds, generation and rates from the model; nothing where they leave a choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nccl_bench.errors import DetectError
from nccl_bench.fabric import gpus as models
from nccl_bench.fabric.gpus import GpuModel
from nccl_bench.fabric.select import choose
from nccl_bench.fabric.serve import nearest
from nccl_bench.fabric.topology import Gpu, Node, NvLink, with_warnings


def complete(node: Node, environ: Mapping[str, str], gpu_name: str | None = None) -> Node:
    """The node with everything that follows. `gpu_name` (--gpu) names the model where the source does not.

    Raises what gpus.find raises for a `gpu_name` that is not in the table.
    """
    if node.gpus is not None:
        node = _named(node, gpu_name)
        node = _linked(node)
        gpus = tuple(_rated(gpu) for gpu in node.gpus or ())
        node = with_warnings(replace(node, gpus=gpus), *_gpu_warnings(gpus))
    return choose(nearest(node), environ)


def _named(node: Node, gpu_name: str | None) -> Node:
    given = None if gpu_name is None else models.find(gpu_name)
    warnings = []
    gpus = []
    for gpu in node.gpus or ():
        if given is not None and gpu.name is None:
            gpu = replace(gpu, name=given.name)
        elif given is not None and gpu.model != given:
            warnings.append(f"GPU {gpu.index} is {gpu.name} by its source: --gpu {given.name} is not used for it")
        gpus.append(replace(gpu, cc=gpu.model.cc) if gpu.cc is None and gpu.model is not None else gpu)
    facts = node.facts
    if given is not None and any(gpu.name is None for gpu in node.gpus or ()):
        facts = tuple(sorted({**dict(facts), "gpus.name": "--gpu"}.items()))
    return with_warnings(replace(node, gpus=tuple(gpus), facts=facts), *warnings)


def _linked(node: Node) -> Node:
    """Whether bonds go through a switch, and how many links each GPU then has."""
    switch = node.switch if node.switch is not None else _through_switch(node.gpus or ())
    gpus = tuple(replace(gpu, nvlink=_counted(gpu, switch)) for gpu in node.gpus or ())
    return replace(node, gpus=gpus, switch=switch)


def _through_switch(gpus: tuple[Gpu, ...]) -> bool | None:
    """A switch shows one equal count to every other GPU, and that count is all links of a GPU. None where both fit."""
    links = [gpu.nvlink for gpu in gpus if gpu.nvlink is not None]
    if len(links) != len(gpus) or any(link.bonds is None and link.links != 0 for link in links):
        return _by_model(gpus) if len(links) == len(gpus) and all(link.links for link in links) else None
    if all(not link.bonds and not link.links for link in links):
        return False
    counts = {count for link in links for _peer, count in link.bonds or ()}
    peers = {len(link.bonds or ()) for link in links}
    if len(counts) != 1 or peers != {len(gpus) - 1}:
        return False
    count, others = counts.pop(), len(gpus) - 1
    known = {link.links for link in links if link.links is not None}
    if known:
        return known == {count} if others > 1 else _by_model(gpus)
    if count * others > models.MAX_MESH_LINKS:
        return True
    # One that has just so many links in full, behind a switch or not, or one whose pairs add up to all it has.
    candidates = {gpu.model for gpu in gpus} if all(gpu.model for gpu in gpus) else set(models.MODELS)
    ways = {way for model in candidates if model is not None and model.kind == links[0].kind for way in _ways(model, count, others)}
    return ways.pop() if len(ways) == 1 else None


def _ways(model: GpuModel, count: int, others: int) -> set[bool]:
    """True where this model could show these bonds behind a switch, False where it could directly."""
    ways = set()
    if "switch" in model.joined and model.links == count:
        ways.add(True)
    if ("mesh" in model.joined or "bridge" in model.joined) and count * others <= model.links:
        ways.add(False)
    return ways


def _by_model(gpus: tuple[Gpu, ...]) -> bool | None:
    """What the model allows, where it allows one thing only."""
    ways = {way for gpu in gpus for way in (gpu.model.joined if gpu.model else ("switch", "mesh"))}
    return None if len({way == "switch" for way in ways}) != 1 else "switch" in ways


def _counted(gpu: Gpu, switch: bool | None) -> NvLink | None:
    link = gpu.nvlink
    if link is None or link.links is not None or not link.bonds:
        return link
    if link.kind == "xGMI":
        model = gpu.model
        whole = model is not None and model.links == len(link.bonds)
        return replace(link, links=model.links) if whole and model is not None else link
    counts = [count for _peer, count in link.bonds]
    if switch:
        return replace(link, links=max(counts))
    if switch is False or len(counts) == 1:
        return replace(link, links=sum(counts))
    return link


def _rated(gpu: Gpu) -> Gpu:
    """Generation and rate of the links, from the model, else from the compute capability, else where the count leaves no choice."""
    link, model = gpu.nvlink, gpu.model
    if link is None or not link.links or link.per_direction_GBps is not None:
        return gpu
    rate = model.link_GBps if model is not None and model.links else None
    generation = link.generation
    if rate is None and model is None and link.kind == "NVLink":
        rate = models.link_rate(gpu.cc) if gpu.cc else models.rate_of_count(link.links)
        generation = generation or models.generation_of(gpu.cc)
    elif model is not None and model.links:
        generation = model.generation
    speed = None if rate is None else round(link.links * rate, 3)
    return replace(gpu, nvlink=replace(link, generation=generation, per_direction_GBps=speed))


def _gpu_warnings(gpus: tuple[Gpu, ...]) -> list[str]:
    warnings = []
    nameless = [gpu for gpu in gpus if gpu.name is None]
    if nameless:
        which = "the GPUs are" if len(nameless) == len(gpus) > 1 else f"GPU {', '.join(str(gpu.index) for gpu in nameless)} is"
        warnings.append(f"the source does not say which model {which}: name it with --gpu")
    for gpu in gpus:
        link, model = gpu.nvlink, gpu.model
        if gpu.mig:
            warnings.append(f"GPU {gpu.index} is in MIG mode: NCCL does not run slices of a GPU as ranks")
        if link is None or model is None or link.kind != "NVLink" or not link.links or link.inactive or link.links >= model.links:
            continue
        warnings.append(f"GPU {gpu.index} has {link.links} active links; {model.label} has {model.links} in full")
    return warnings


def unknown_models(node: Node) -> tuple[str, ...]:
    """Names that the source gives and the table of models lacks."""
    return tuple(dict.fromkeys(gpu.name for gpu in node.gpus or () if gpu.name is not None and gpu.model is None))


def refuse_unknown(node: Node) -> None:
    """Raises DetectError naming a GPU model that its source names and the table lacks."""
    names = unknown_models(node)
    if names:
        raise DetectError(f"{node.label}: the GPU {names[0]!r} is not in the table of known models", f"known: {' '.join(models.BY_NAME)}")
