"""NCCL_DEBUG logs (subsystems INIT, NET, GRAPH, TUNING) as text: network, transports, channels, algorithm per size.

Line formats: NVIDIA/nccl 2.30.7 src/init.cc, transport/*.cc, enqueue.cc and older releases' of the logs in the tests. Lines may
carry a launcher's tag, be cut, or be mixed with others; what does not match is passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

from nccl_bench.fabric import gpus as models
from nccl_bench.fabric.topology import Gpu, Json, LinkLayer, Nic, Node, NvLink

MAX_LINE = 4000
"""Characters of a line that are looked at; NCCL's own are shorter but for lists of trees."""
_PREFIX = re.compile(
    r"(?<![A-Za-z0-9_.-])([A-Za-z0-9][A-Za-z0-9_.-]{0,252}):(\d{1,8}):(\d{1,8}) \[(\d{1,3})\] (?:\S{1,80}:\d{1,6} )?NCCL (?:INFO|WARN) "
)
_ALGORITHMS = ("tree", "ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "pat")
"""In NCCL's order (src/init.cc ncclAlgoStr): older logs give the number."""
_PROTOCOLS = ("LL", "LL128", "Simple")
_WORDS = {"ring": "ring", "tree": "tree", "nvls": "NVLS", "nvlstree": "NVLSTree", "collnetdirect": "CollNetDirect", "collnetchain": "CollNetChain",
          "collnet": "CollNetDirect", "pat": "pat"}  # fmt: skip
_COLLECTIVES = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast", "Reduce": "reduce",
                "AlltoAll": "all_to_all", "AllToAll": "all_to_all", "Gather": "gather", "Scatter": "scatter"}  # fmt: skip
_PER_RANK = ("all_gather", "reduce_scatter")
"""Collectives whose logged count is one rank's part; nccl-tests' size is n times it (src/enqueue.cc: task->count)."""
_CHOICE = re.compile(
    r"([A-Z][A-Za-z]{3,20}): (\d{1,18}) Bytes -> Algo (\w{1,20}) proto (\w{1,10})(?: channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}| time)?"
)
_RANKS = re.compile(r"comm 0x[0-9a-f]+ rank (\d{1,7}) n[Rr]anks (\d{1,7})")
_VIA = re.compile(r"\d{1,7}\[[0-9a-f]+\] -> \d{1,7}\[[0-9a-f]+\](?: \[(?:send|receive)\])? via (.{3,120})")
_NET = re.compile(r"(NET|COLLNET)/(.{1,60}?)/(\d{1,4})(?:\((\d{1,7})\))?((?:/[A-Za-z]{1,20})*)")
_NETWORK = re.compile(r"Using network (.{1,60}?)\s*$")
_IB_PORT = re.compile(r"\[\d{1,3}\]([A-Za-z0-9_-]{1,64}):(\d{1,3})/(IB|RoCE)(/SHARP)?")
_IB_SPEED = re.compile(r"NET/IB: \[\d{1,3}\] ([A-Za-z0-9_-]{1,64}):[A-Za-z0-9]{1,32}:(\d{1,3})/(IB|RoCE)\b.{0,80}? speed=(\d{1,7})\b")
_SOCKET = re.compile(r"\[\d{1,3}\]([A-Za-z0-9_.@-]{1,32}):")
_CHANNELS = re.compile(r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels, (\d+) p2p channels per peer")
_DEVICE = re.compile(r"cudaDev (\d{1,4})(?: nvmlDev (\d{1,4}))? busId ([0-9a-f]{1,12})\b")
_SHAPE = re.compile(r"nRanks (\d{1,7}) nNodes (\d{1,6}) localRanks (\d{1,4}) localRank (\d{1,4}) MNNVL (\d)")
_CLIQUE = re.compile(r"MNNVL busId 0x([0-9a-f]{1,12}) fabric UUID ([0-9a-f]{1,16})\.([0-9a-f]{1,16}) cliqueId 0x([0-9a-f]{1,8}) state (\d)")
_PATTERN = re.compile(r"Pattern (\d), crossNic \d+, nChannels (\d+), bw ([0-9.]{1,12})/([0-9.]{1,12}), type (\w+)/(\w+), sameChannels (\d)")
_TABLE_GPU = re.compile(r"#?\s*Rank\s+\d+.{0,60}? on\s+([A-Za-z0-9_.-]{1,253}) device\s+(\d{1,4}) \[([0-9a-fx:]{2,16})\] (\S[^\n]{0,80}?)\s*$")
_BUS_GPU = re.compile(r"GPU/(?:(\d{1,3})-)?([0-9a-f]{1,12}) \((\d{1,7})\)")
_NVL = re.compile(r"\+ NVL\[([0-9.]{1,8})\] - (NVS|GPU)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What NCCL ran for one size."""

    algorithm: str
    """ring, tree, NVLS, NVLSTree, CollNetDirect, CollNetChain, pat."""
    protocol: str
    """LL, LL128, Simple."""
    channels: int | None
    """None in logs of before 2.24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a log says of how ranks talk."""

    version: str | None = None
    name: str | None = None
    """"IB", "Socket", "AWS Libfabric", "FasTrak" ... ; the first where ranks differ."""
    names: tuple[str, ...] = ()
    transports: tuple[tuple[str, int], ...] = ()
    """(what, connections), most first: "P2P/CUMEM", "SHM", "NET/IB"."""
    gdr: bool | None = None
    """Whether every network connection uses GPUDirect RDMA; None without one."""
    pxn: bool | None = None
    """Whether a network connection goes through another GPU's NIC."""
    interfaces: tuple[str, ...] = ()
    """Socket interfaces in use."""
    nvls_available: bool | None = None
    nvls_used: bool = False
    sharp_available: bool | None = None
    sharp_used: bool = False
    channels: tuple[tuple[str, int], ...] = ()
    """(coll, collnet, nvls, p2p; channels)."""
    n_ranks: int | None = None
    n_nodes: int | None = None
    local_ranks: int | None = None
    mnnvl: bool | None = None
    ring_GBps: float | None = None
    """NCCL's own plan for the ring: channels times GB/s a channel, inside a node."""
    warnings: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """What is known."""
        return {key: dict(value) if key in ("transports", "channels") else value for key, value in asdict(self).items() if value not in ((), None)}


def is_log(text: str) -> bool:
    """Whether a text holds lines of NCCL_DEBUG."""
    return "NCCL INFO " in text or "NCCL WARN " in text


def lines(text: str) -> Iterator[tuple[str | None, str]]:
    """(host, message) of NCCL's lines, and (None, line) of the others; long lines cut."""
    for raw in text.splitlines():
        line = raw[:MAX_LINE]
        match = _PREFIX.search(line) if "NCCL " in line else None
        yield (match[1], line[match.end() :]) if match else (None, line)


def algorithms(text: str, n_ranks: int | None = None) -> dict[tuple[str, int], Choice]:
    """(collective, nbytes) to what ran, from lines "AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}".

    Sizes are nccl-tests': for all_gather and reduce_scatter the log gives one rank's part, so it is taken `n_ranks` times; without
    it the size of the communicator last seen in the log counts. A later line for the same size replaces an earlier one.
    """
    found: dict[tuple[str, int], Choice] = {}
    seen_ranks: int | None = None
    for _host, message in lines(text):
        ranks = _RANKS.search(message) if "anks" in message else None
        if ranks:
            seen_ranks = int(ranks[2])
        match = _CHOICE.search(message) if "-> Algo" in message else None
        if match is None or match[1] not in _COLLECTIVES:
            continue
        collective = _COLLECTIVES[match[1]]
        algorithm, protocol = _algorithm(match[3]), _protocol(match[4])
        times = (n_ranks or seen_ranks) if collective in _PER_RANK else 1
        if algorithm is None or protocol is None or times is None:
            continue
        channels = None if match[5] is None else int(match[6]) - int(match[5]) + 1
        found[collective, int(match[2]) * times] = Choice(algorithm=algorithm, protocol=protocol, channels=channels)
    return found


def _algorithm(word: str) -> str | None:
    if word.isdecimal():
        return _ALGORITHMS[int(word)] if int(word) < len(_ALGORITHMS) else None
    return _WORDS.get(word.lower().replace("_", ""))


def _protocol(word: str) -> str | None:
    if word.isdecimal():
        return _PROTOCOLS[int(word)] if int(word) < len(_PROTOCOLS) else None
    return {"ll": "LL", "ll128": "LL128", "simple": "Simple"}.get(word.lower())


@dataclass
class _Reading:
    """What has been seen so far; the only mutable value here."""

    version: str | None = None
    names: dict[str, None] = field(default_factory=dict)
    transports: Counter[str] = field(default_factory=Counter)
    net: list[tuple[bool, bool]] = field(default_factory=list)
    interfaces: dict[str, None] = field(default_factory=dict)
    nvls: set[bool] = field(default_factory=set)
    nvls_used: bool = False
    sharp_used: bool = False
    channels: tuple[tuple[str, int], ...] = ()
    shape: tuple[int, ...] = ()
    n_ranks: int | None = None
    ring: float | None = None
    ports: dict[str, dict[tuple[str, int], Nic]] = field(default_factory=dict)
    gpus: dict[str, dict[int, Gpu]] = field(default_factory=dict)
    bus_now: str | None = None
    links: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)


def network(text: str) -> Network:
    """The network, transports, channels and in-network reduction of a log."""
    return _network(_read(text))


def parse(text: str) -> tuple[Node, ...]:
    """The hosts of a log with what it says of their GPUs and NICs; none where no NCCL line has a host."""
    seen = _read(text)
    facts = _network(seen)
    hosts = list(dict.fromkeys([*seen.ports, *seen.gpus]))
    return tuple(_node(host, seen, facts) for host in hosts)


def _read(text: str) -> _Reading:
    seen = _Reading()
    for host, message in lines(text):
        if host is not None:
            seen.gpus.setdefault(host, {})
            _setup_line(seen, host, message)
            _graph_line(seen, host, message)
        elif (match := _TABLE_GPU.search(message)) is not None:
            index = int(match[2])
            gpus = seen.gpus.setdefault(match[1], {})
            gpus[index] = replace(gpus.get(index, Gpu(index=index)), name=models.bare(match[4]))
        if seen.version is None and (version := re.search(r"NCCL version (\d[\w.+]{2,40})", message)):
            seen.version = version[1]
    return seen


def _setup_line(seen: _Reading, host: str, message: str) -> None:
    if "Using network " in message and (match := _NETWORK.search(message)):
        seen.names[match[1]] = None
    elif "NET/IB" in message:
        _ib_line(seen, host, message)
    elif "NET/Socket : Using" in message:
        seen.interfaces.update(dict.fromkeys(_SOCKET.findall(message)))
    elif "cudaDev " in message:
        _comm_line(seen, host, message)
    elif "MNNVL" in message:
        _mnnvl_line(seen, host, message)
    elif "Duplicate GPU detected" in message:
        seen.warnings[message.strip()[:200]] = None
    elif "Failed to open libibverbs" in message:
        seen.warnings["libibverbs is missing: NCCL cannot use InfiniBand or RoCE"] = None


def _ib_line(seen: _Reading, host: str, message: str) -> None:
    ports = seen.ports.setdefault(host, {})
    speed = _IB_SPEED.search(message)
    if speed is not None:
        key = (speed[1], int(speed[2]))
        ports[key] = replace(ports.get(key, _port(speed[1], speed[2], speed[3])), rate_gbit=int(speed[4]) / 1000 or None)
    elif "Using" in message:
        for name, number, layer, sharp in _IB_PORT.findall(message):
            old = ports.get((name, int(number)), _port(name, number, layer))
            ports[name, int(number)] = replace(old, sharp=bool(sharp) or old.sharp)


def _port(name: str, number: str, layer: str) -> Nic:
    word: LinkLayer = "InfiniBand" if layer == "IB" else "RoCE"
    return Nic(name=name, port=int(number), link_layer=word, state="ACTIVE", used=True)


def _comm_line(seen: _Reading, host: str, message: str) -> None:
    ranks, device = _RANKS.search(message), _DEVICE.search(message)
    if ranks:
        seen.n_ranks = int(ranks[2])
    if device is None:
        return
    index, bus = int(device[2] or device[1]), _bus(device[3])
    gpus = seen.gpus.setdefault(host, {})
    if all(gpu.bus_id != bus for gpu in gpus.values()):
        gpus[index] = replace(gpus.get(index, Gpu(index=index)), bus_id=bus)


def _bus(text: str) -> str:
    """The address of NCCL's number: domain, bus, device, function in 20, 12, 4, 0 bits up (src/misc/utils.cc int64ToBusId)."""
    value = int(text, 16)
    return f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}.{value & 0xF:x}"


def _mnnvl_line(seen: _Reading, host: str, message: str) -> None:
    shape = _SHAPE.search(message)
    if shape is not None:
        seen.shape = tuple(int(number) for number in shape.groups())
    clique = _CLIQUE.search(message)
    if clique is not None and (int(clique[2], 16) or int(clique[3], 16)) and clique[5] == "3":
        name = f"{clique[2]}.{clique[3]}.{int(clique[4], 16):x}"
        for index, gpu in seen.gpus.get(host, {}).items():
            if gpu.bus_id == _bus(clique[1]):
                seen.gpus[host][index] = replace(gpu, clique=name)


def _graph_line(seen: _Reading, host: str, message: str) -> None:
    if " via " in message and (match := _VIA.search(message)):
        _via(seen, match[1].strip())
    elif "NVLS" in message:
        _nvls_line(seen, message)
    elif "Connected collnet" in message:
        seen.sharp_used = True
    elif "coll channels" in message and (match := _CHANNELS.search(message)):
        names = ("coll", "collnet", "nvls", "p2p", "p2p per peer")
        seen.channels = tuple((name, int(number)) for name, number in zip(names, match.groups(), strict=True) if number is not None)
    elif "Pattern 4," in message and (match := _PATTERN.search(message)):
        seen.ring = round(int(match[2]) * float(match[3]), 3)
    elif "GPU/" in message and (match := _BUS_GPU.search(message)) and "PCI[" in message:
        seen.bus_now = _bus(match[2])
        _dumped_gpu(seen, host, match[1] or "0", int(match[3]))
    elif "+ NVL[" in message and seen.bus_now is not None and (match := _NVL.search(message)):
        total, _end = seen.links.get((host, seen.bus_now), (0.0, ""))
        seen.links[host, seen.bus_now] = (total + float(match[1]), match[2])


def _dumped_gpu(seen: _Reading, host: str, system: str, rank: int) -> None:
    """A GPU of NCCL's dump that no line of its own rank named: on one host its rank is its number."""
    gpus = seen.gpus.setdefault(host, {})
    one_host = system == "0" and (not seen.shape or seen.shape[1] == 1)
    if one_host and rank not in gpus and all(gpu.bus_id != seen.bus_now for gpu in gpus.values()):
        gpus[rank] = Gpu(index=rank, bus_id=seen.bus_now)


def _via(seen: _Reading, how: str) -> None:
    net = _NET.match(how)
    if net is None:
        parts = how.split("/")
        seen.transports["SHM" if parts[0] == "SHM" else "/".join(parts[:2])] += 1
        return
    seen.transports[f"{net[1]}/{net[2]}"] += 1
    seen.net.append(("GDRDMA" in net[5], net[4] is not None))
    seen.sharp_used |= net[1] == "COLLNET"


def _nvls_line(seen: _Reading, message: str) -> None:
    available = re.search(r"NVLS multicast support is (not )?available", message)
    if available is not None:
        seen.nvls.add(available[1] is None)
    if re.search(r"Connected NVLS tree|NVLS comm 0x[0-9a-f]+ headRank", message):
        seen.nvls_used = True


def _network(seen: _Reading) -> Network:
    sharp = [nic.sharp for ports in seen.ports.values() for nic in ports.values()]
    names = tuple(seen.names)
    return Network(
        version=seen.version,
        name=names[0] if names else None,
        names=names,
        transports=tuple(seen.transports.most_common()),
        gdr=all(gdr for gdr, _pxn in seen.net) if seen.net else None,
        pxn=any(pxn for _gdr, pxn in seen.net) if seen.net else None,
        interfaces=tuple(seen.interfaces),
        nvls_available=all(seen.nvls) if seen.nvls else None,
        nvls_used=seen.nvls_used,
        sharp_available=any(sharp) if sharp else None,
        sharp_used=seen.sharp_used,
        channels=seen.channels,
        n_ranks=seen.shape[0] if seen.shape else seen.n_ranks,
        n_nodes=seen.shape[1] if seen.shape else None,
        local_ranks=seen.shape[2] if seen.shape else None,
        mnnvl=bool(seen.shape[4]) if seen.shape else None,
        ring_GBps=seen.ring,
        warnings=(*seen.warnings, *_network_warnings(seen)),
    )


def socket_warning(found: Network, node: Node) -> str | None:
    """The loud one: NCCL talks TCP between nodes of a machine whose RDMA ports are up. None where it does not."""
    ports = [nic.label for nic in node.nics or () if nic.link_layer not in (None, "Ethernet") and nic.state in ("ACTIVE", None)]
    if found.name != "Socket" or found.n_nodes == 1 or not ports:
        return None
    where = ", ".join(found.interfaces) or "an interface that it does not name"
    up = f"{len(ports)} RDMA ports are up ({', '.join(ports[:8])})"
    return f"NCCL uses TCP (Socket over {where}) although {up}: is libibverbs or the plug-in missing?"


def _network_warnings(seen: _Reading) -> list[str]:
    warnings = []
    if set(seen.names) == {"Socket"} and not (seen.shape and seen.shape[1] == 1):
        where = ", ".join(seen.interfaces) or "an interface it does not name"
        warnings.append(f"NCCL's network is Socket (TCP) over {where}")
    virtual = [name for name in seen.interfaces if re.match(r"veth|docker|cali|flannel|cni|br-|virbr", name)]
    if virtual:
        warnings.append(f"NCCL takes container interfaces for its network: {', '.join(virtual)} (NCCL_SOCKET_IFNAME says which to use)")
    if seen.net and not all(gdr for gdr, _pxn in seen.net):
        warnings.append("some network connections are without GPUDirect RDMA: they bounce through host memory")
    return warnings


def _node(host: str, seen: _Reading, facts: Network) -> Node:
    gpus = tuple(_with_links(gpu, seen.links.get((host, gpu.bus_id or ""))) for _index, gpu in sorted(seen.gpus.get(host, {}).items()))
    ends = {end for (name, _bus_id), (_total, end) in seen.links.items() if name == host}
    nics = tuple(nic for _key, nic in sorted(seen.ports.get(host, {}).items()))
    return Node(
        host=host,
        gpus=gpus or None,
        nics=nics or None,
        switch=ends == {"NVS"} if len(ends) == 1 else None,
        nvls=facts.nvls_available,
        nccl=facts.to_json(),
        warnings=facts.warnings,
    )


def _with_links(gpu: Gpu, found: tuple[float, str] | None) -> Gpu:
    """The GPU with the links that NCCL's rate of them means: 370.8 is 18 of 20.6 on Hopper, 240 is 12 of 20 on Ampere."""
    if found is None:
        return gpu
    total, _end = found
    fits = {(count, model.generation, model.link_GBps) for model in models.MODELS if gpu.model in (None, model) for count in _fitting(model, total)}
    if len(fits) != 1:
        return gpu
    links, generation, rate = fits.pop()
    return replace(gpu, nvlink=NvLink(generation=generation, links=links, per_direction_GBps=links * (rate or 0.0)))


def _fitting(model: models.GpuModel, total: float) -> tuple[int, ...]:
    """The number of this model's links that makes this rate in NCCL's reckoning, if any."""
    rate = models.effective_link(model.cc) if model.kind == "NVLink" and model.links else None
    count = round(total / rate) if rate else 0
    return (count,) if rate and 0 < count <= model.links and abs(total - count * rate) < 0.06 else ()
