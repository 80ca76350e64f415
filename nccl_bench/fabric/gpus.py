"""What is known of each GPU model (gpus.json): links, rates, PCIe, and how its names are recognised.

Rates are GB/s = 1e9 bytes/s, one way. `link_GBps` is the marketed rate of one link; `effective_link_GBps` is the figure that
NCCL itself reckons with (NVIDIA/nccl 2.30.7 src/graph/topo.h: *_NVLINK_BW), or what ROCm's documents call usable for xGMI.
PCI device numbers come from the PCI ID repository (pci-ids.ucw.cz, 2026-08-22). A model that is not here is unknown: nothing
in this package puts a default in its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from nccl_bench.errors import DetectError, UsageError
from nccl_bench.fabric.data import table

Joined = Literal["switch", "mesh", "bridge", "none"]
"""How the GPUs of one board are joined: through NVSwitch, each with each, by bridges in small groups, or by PCIe alone."""
LinkKind = Literal["NVLink", "xGMI"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One row of the table."""

    name: str
    """The name on the command line and in JSON: "H100-SXM"."""
    label: str
    """The name in sentences: "H100 SXM"."""
    family: str
    """What behaves alike: "Hopper". Shares of attainable are kept by family."""
    pattern: str
    """Matches the name that NVML or the driver gives, vendor removed, whole and in any case."""
    pci: tuple[str, ...] = ()
    """"vendor:device" numbers that mean this model and no other."""
    cc: int | None
    """CUDA compute capability times ten (90 is Hopper); None for AMD."""
    kind: LinkKind = "NVLink"
    generation: int | None = None
    """NVLink generation; None where there is none, and for xGMI."""
    links: int = 0
    """Links a GPU has in full; 0 for none."""
    link_GBps: float | None = None
    effective_link_GBps: float | None = None
    joined: tuple[Joined, ...] = ("none",)
    """The ways this model is sold in; the first is assumed where only the name is known, and said so."""
    domain: int | None = None
    """GPUs of the largest group joined by these links; None where boards differ."""
    nvls: bool = False
    """Whether NVSwitch can add up in flight (compute capability 9.0 and NVSwitch)."""
    p2p: bool = True
    """Whether GPUs without links may write to each other over PCIe with the stock driver."""
    pcie_gen: int
    pcie_width: int = 16
    c2c: bool = False
    """Whether the GPU hangs on a Grace CPU: NICs are then reached over the chip-to-chip link."""
    aliases: tuple[str, ...] = ()
    source: str
    """Where the figures come from; "unconfirmed" where a page, but no device, says so."""

    @property
    def line_GBps(self) -> float | None:
        """All links together, marketed rate."""
        return None if self.link_GBps is None else self.links * self.link_GBps


def _load() -> tuple[GpuModel, ...]:
    return tuple(_model(row) for row in table("gpus.json"))


def _model(row: dict[str, Any]) -> GpuModel:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return GpuModel(**values)


MODELS: tuple[GpuModel, ...] = _load()
BY_NAME = {model.name: model for model in MODELS}
_BY_PCI = {number: model for model in MODELS for number in model.pci}
_GCN = {"906": "MI50", "908": "MI100", "gfx908": "MI100", "gfx950": "MI355X"}
"""RCCL's gcn attribute where it means one model; 910 is MI210 or MI250X, gfx942 any MI300."""
GENERATION_OF_CC = ((100, 5), (90, 4), (80, 3), (70, 2), (60, 1))
"""NVLink generation by least compute capability (NVIDIA architecture white papers)."""
LINK_GBPS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
"""Marketed rate of one link by generation; boards of compute capability 8.6 have 14.0625 (NVIDIA GA102 white paper)."""
EFFECTIVE_OF_CC = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (80, 20.0), (70, 20.0), (60, 18.0))
"""NCCL's rate of one link by least compute capability (src/graph/topo.h, ncclTopoNVLinkBw)."""
MAX_MESH_LINKS = 18
"""No GPU sold for direct meshes has more links than this."""


def bare(name: str) -> str:
    """The driver's name without the vendor and doubled blanks: "NVIDIA H100 PCIe" -> "H100 PCIe"."""
    return re.sub(r"^NVIDIA\s+|^Graphics Device$", "", " ".join(name.split()), flags=re.IGNORECASE)


@cache
def by_driver_name(name: str) -> GpuModel | None:
    """The model of a name that a driver, a log or a table gives; None where it is not in the table."""
    text = re.sub(r"\s+MIG\b.*$", "", bare(name), flags=re.IGNORECASE)
    text = re.sub(r" OAM.*$", "", text)
    for model in MODELS:
        if re.fullmatch(model.pattern, text, re.IGNORECASE):
            return model
    return None


def by_pci(vendor: str | None, device: str | None) -> GpuModel | None:
    """The model of PCI numbers such as "0x10de", "0x2330"; None where they are not in the table."""
    if not vendor or not device:
        return None
    return _BY_PCI.get(f"{vendor.lower().removeprefix('0x')}:{device.lower().removeprefix('0x')}")


def by_gcn(gcn: str | None) -> GpuModel | None:
    """The model of RCCL's gcn attribute where it means one model only."""
    return BY_NAME.get(_GCN.get(gcn or "", ""))


def find(text: str) -> GpuModel:
    """The model a user names: "H100-SXM", "h100-sxm5", "A100-PCIE", "H200", "NVIDIA H100 80GB HBM3".

    Raises UsageError where the name fits several, DetectError where it fits none.
    """
    key = re.sub(r"-SXM\d$", "-SXM", re.sub(r"[\s_]+", "-", text.strip().upper()))
    for model in MODELS:
        if key in {name.upper() for name in (model.name, *model.aliases)}:
            return model
    forms = [model.name for model in MODELS if re.fullmatch(re.escape(key) + r"-(SXM|PCIE|NVL)", model.name.upper())]
    if len(forms) > 1:
        raise UsageError(f"{text!r} is sold in several forms", f"say which: {' or '.join(forms)}")
    if forms:
        return BY_NAME[forms[0]]
    named = by_driver_name(text)
    if named is None:
        raise DetectError(f"the GPU {text!r} is not in the table of known models", f"known: {' '.join(BY_NAME)}")
    return named


def effective_link(cc: int | None) -> float | None:
    """NCCL's rate of one NVLink at this compute capability, GB/s; None where unknown."""
    return next((rate for least, rate in EFFECTIVE_OF_CC if cc is not None and cc >= least), None)


def generation_of(cc: int | None) -> int | None:
    """The NVLink generation at this compute capability; None where unknown."""
    return next((generation for least, generation in GENERATION_OF_CC if cc is not None and cc >= least), None)


def link_rate(cc: int | None) -> float | None:
    """Marketed rate of one NVLink at this compute capability, GB/s; None where unknown."""
    if cc == 86:
        return 14.0625
    return LINK_GBPS.get(generation_of(cc) or 0)


def rate_of_count(links: int) -> float | None:
    """The rate of one link where every known model with just this many has the same; None where they differ, or for few links.

    Twelve links have 25 GB/s each on every model; eighteen may be Hopper's or Blackwell's. Fewer than eight may be a part
    of a larger set (one bridge of three, one side of a mesh), and tell nothing.
    """
    rates = {model.link_GBps for model in MODELS if model.links == links and model.kind == "NVLink"}
    return rates.pop() if links >= 8 and len(rates) == 1 else None


def marketed(signal_GBps: float, generation: int | None) -> float:
    """The marketed rate of a signalling rate as nvidia-smi prints it: 25.781 -> 25, 26.562 -> 25, 53.125 -> 50.

    Factor 16/17 from generation 4 on, 0.97 (64b/66b) for generation 2 (stas00/ml-engineering@744d01e1 network/README.md).
    Without a generation the nearest marketed rate within 7 % below is taken, if any.
    """
    if generation is not None and generation >= 4:
        return round(signal_GBps * 16 / 17, 2)
    for rate in (50.0, 25.0, 20.0, 14.0625):
        if rate <= signal_GBps <= rate * 1.07:
            return rate
    return signal_GBps
