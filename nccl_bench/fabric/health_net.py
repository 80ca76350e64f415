"""The checks of doctor's table that concern NICs, their ports and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nccl_bench.fabric import ib, pcie
from nccl_bench.fabric.health import Check, Finding, Judge, Status, alike, each, finding, has_gpu_driver, mapping, of_host
from nccl_bench.fabric.select import wanted
from nccl_bench.fabric.sysfs import SATURATED
from nccl_bench.fabric.topology import Json

MIN_READ_REQUEST = 4096
"""Bytes; NVIDIA's performance guides for ConnectX set MaxReadReq to 4096 (mlnx_tune does)."""


def _layer(port: Json) -> str | None:
    return ib.layer_of(str(port.get("layer") or ""), str(port["name"]), str(port.get("driver") or ""))


def _label(port: Json) -> str:
    return str(port["name"]) if str(port.get("port")) in ("1", "None") else f"{port['name']}:{port['port']}"


def _active(port: Json) -> bool:
    return ib.state_word(port.get("state")) == "ACTIVE"


def _chosen(host: Json) -> list[Json]:
    """Ports that NCCL would take: those of the selection where NVML and sysfs showed it, by name; else all RDMA ports.

    A port of the same board (PSID) as one that is taken belongs to them: it is passed over because it is slower, and that is the fault.
    """
    used = {(nic.get("name"), str(nic.get("port"))): nic.get("used") for nic in mapping(host.get("node")).get("nics") or ()}
    ports = list(host.get("ports") or ())
    taken = [port for port in ports if used.get((port["name"], str(port["port"]))) is not False or not _active(port)]
    boards = {port.get("psid") for port in taken} - {None}
    return [port for port in ports if port in taken or port.get("psid") in boards]


def live(host: Json) -> list[Json]:
    """Of the ports that NCCL would take those that are up; EFA does not say."""
    return [port for port in _chosen(host) if _active(port) or _layer(port) == "EFA"]


def rate_of(port: Json) -> float | None:
    """A port's line rate, Gbit/s."""
    return ib.parse_rate(str(port.get("rate") or "")).rate_gbit


def _like_others(hosts: Sequence[Json]) -> dict[str, Counter[str]]:
    """By port name: what layers and rates it has over the hosts."""
    found: dict[str, Counter[str]] = {}
    for host in hosts:
        for port in host.get("ports") or ():
            found.setdefault(_label(port), Counter())[f"{_layer(port)} {port.get('rate')}"] += _active(port)
    return found


def _state(hosts: Sequence[Json]) -> Iterable[Finding]:
    """A port that is down is a fault where the same port is up on most other hosts, or where nothing else could carry the traffic."""
    up = Counter(_label(port) for host in hosts for port in host.get("ports") or () if _active(port))
    found: list[Finding] = []
    for host in hosts:
        ports = host.get("ports") or ()
        if not ports:
            found.append(finding(host, "skipped", "no RDMA port"))
        for port in ports:
            if _layer(port) == "EFA":
                found.append(finding(host, "skipped", ib.NOT_REPORTED, device=_label(port)))
            elif port.get("state") is None:
                found.append(finding(host, "unknown", expected="4: ACTIVE", device=_label(port)))
            elif _active(port):
                found.append(finding(host, "ok", "ACTIVE", device=_label(port)))
            else:
                usual = up[_label(port)] * 2 > len(hosts) or not any(map(_active, ports))
                said = f"{port.get('state') or 'no state'} ({port.get('phys_state') or '?'})"
                found.append(finding(host, "fail" if usual else "warn", said, "4: ACTIVE", device=_label(port)))
    return found


def _present(hosts: Sequence[Json]) -> Iterable[Finding]:
    counts = {str(host["host"]): len(live(host)) for host in hosts}
    usual = Counter(counts.values()).most_common(1)[0][0]
    found = []
    for host in hosts:
        n = counts[str(host["host"])]
        status: Status = "ok" if n == usual and n else "skipped" if n == usual and len(hosts) == 1 else "ok" if n >= usual else "fail"
        found.append(finding(host, "skipped" if usual == 0 else status, n, usual))
    return found


def _rates(hosts: Sequence[Json]) -> Iterable[Finding]:
    """Rate and link layer against the same port elsewhere, else against the host's own ports of its kind."""
    others = _like_others(hosts)
    found: list[Finding] = []
    for host in hosts:
        # A storage port is unlike the others by design: alone, only ports that NCCL takes are held against one another.
        mine = [port for port in (host.get("ports") or () if len(hosts) > 2 else _chosen(host)) if _active(port)]
        own = Counter(f"{_layer(port)} {port.get('rate')}" for port in mine)
        for port in mine:
            said = f"{_layer(port)} {port.get('rate')}"
            usual = others[_label(port)].most_common(1)[0][0] if len(hosts) > 2 else own.most_common(1)[0][0]
            status: Status = "unknown" if port.get("rate") is None or _layer(port) is None else "ok" if said == usual else "fail"
            found.append(finding(host, status, None if status == "unknown" else said, usual, device=_label(port)))
        if not mine:
            found.append(finding(host, "skipped"))
    return found


def _downed(host: Json, port: Json) -> Finding | None:
    """A port's count of link downs: it cannot tell once it stands at its end; EFA has none."""
    if _layer(port) == "EFA":
        return finding(host, "skipped", ib.NOT_REPORTED, device=_label(port))
    word = str(port.get("link_downed") or "")
    if not word.isdecimal():
        return finding(host, "unknown", device=_label(port))
    said = f"{word}, the end of its 8-bit counter" if int(word) >= SATURATED else f"{word} since the counter was cleared"
    return finding(host, "warn" if int(word) >= SATURATED else "ok", said, f"below {SATURATED}", device=_label(port))


def _slot(host: Json, port: Json) -> Finding | None:
    width, most = pcie.width(port.get("width")), pcie.width(port.get("max_width"))
    now, best = pcie.generation(port.get("speed")), pcie.generation(port.get("max_speed"))
    if width is None or most is None:
        return finding(host, "unknown", device=_label(port))
    if width < most or (now is not None and best is not None and now < best):
        return finding(host, "fail", f"Gen{now} x{width}", f"Gen{best} x{most}", device=_label(port))
    return finding(host, "ok", f"Gen{now} x{width}", device=_label(port))


def _firmware(host: Json) -> str | None:
    words = {f"{port.get('psid') or '?'} {port.get('firmware')}" for port in host.get("ports") or ()}
    if any(port.get("firmware") is None for port in host.get("ports") or ()):
        return None
    return ", ".join(sorted(words)) or None


def _hca(host: Json) -> Finding:
    text = mapping(host.get("env")).get("NCCL_IB_HCA")
    ports = list(host.get("ports") or ())
    if not text:
        return finding(host, "skipped", "not set")
    taken = [port for port in ports if wanted(str(port["name"]), int(port["port"]) if str(port["port"]).isdigit() else None, text)]
    live = [_label(port) for port in taken if _active(port) or _layer(port) == "EFA"]
    names = [word.split(":")[0] for word in text.lstrip("^=").split(",") if word]
    unmatched = [word for word in names if not text.startswith("^") and not any(str(port["name"]).startswith(word) for port in ports)]
    dead = [_label(port) for port in taken if _label(port) not in live]
    if unmatched or dead or not live:
        said = f"{', '.join([*unmatched, *dead]) or text}: {'down' if dead else 'no such port'}"
        return finding(host, "fail", said, "ports that are up", fix="take it out of NCCL_IB_HCA, or unset it: NCCL finds the ports by itself")
    kinds = {(_layer(port), port.get("rate")) for port in taken if _active(port)}
    left = [_label(port) for port in ports if _active(port) and port not in taken and (_layer(port), port.get("rate")) in kinds]
    return finding(host, "warn" if left else "ok", f"{len(live)} ports" + (f", without {', '.join(left[:4])}" if left else ""))


def _ifname(host: Json) -> Finding:
    text = mapping(host.get("env")).get("NCCL_SOCKET_IFNAME")
    if not text:
        return finding(host, "skipped", "not set")
    interfaces = mapping(host.get("interfaces"))
    if not interfaces:
        return finding(host, "unknown", expected=text)
    taken = [name for name in interfaces if wanted(name, None, text)]
    live = [name for name in taken if mapping(interfaces[name]).get("state") in ("up", "unknown")]
    return finding(host, "ok" if live else "fail", ", ".join(live) or f"{text}: no interface of this name is up", text)


def _gdr(host: Json) -> Finding:
    if not host.get("ports") or not has_gpu_driver(host):
        return finding(host, "skipped", "no RDMA port or no NVIDIA driver")
    settings = mapping(host.get("settings"))
    if settings.get("peermem"):
        return finding(host, "ok", "nvidia_peermem is loaded")
    if settings.get("open_driver"):
        return finding(host, "ok", "dma-buf: open kernel modules")
    if settings.get("peermem") is None:
        return finding(host, "unknown")
    return finding(host, "fail", "neither nvidia_peermem nor the open kernel modules", "one of them", fix="modprobe nvidia_peermem")


def _acs(host: Json) -> Finding:
    found = host.get("acs_on")
    if found is None:
        return finding(host, "unknown")
    return finding(host, "fail" if found else "ok", f"{len(found)} bridges redirect" + (f": {', '.join(found[:3])}" if found else ""), 0)


def _iommu(host: Json) -> Finding:
    settings = mapping(host.get("settings"))
    units = settings.get("iommu")
    if units is None:
        return finding(host, "unknown")
    if not units or settings.get("iommu_passthrough"):
        return finding(host, "ok", "off" if not units else "pass-through")
    return finding(host, "warn", "on, translating", "off or pass-through")


def _read_request(host: Json, port: Json) -> Finding | None:
    value = port.get("read_request")
    if value is None:
        return finding(host, "unknown", device=_label(port))
    return finding(host, "ok" if value >= MIN_READ_REQUEST else "warn", f"{value} B", f"{MIN_READ_REQUEST} B", device=_label(port))


def _roce(host: Json) -> list[Json]:
    return [port for port in _chosen(host) if _layer(port) == "RoCE" and _active(port)]


def _gid(host: Json, port: Json) -> Finding | None:
    nics = mapping(host.get("node")).get("nics") or ()
    kind = next((nic.get("gid_type") for nic in nics if nic.get("name") == port["name"]), None)
    return finding(host, "unknown" if kind is None else "ok" if kind == "RoCE v2" else "fail", kind, "RoCE v2", device=_label(port))


def _pfc(host: Json, port: Json) -> Finding | None:
    if port.get("pfc") is None:
        return finding(host, "unknown", device=_label(port), fix="mlnx_qos -i INTERFACE shows it")
    on = "1" in str(port["pfc"])
    return finding(host, "ok" if on else "warn", port["pfc"], "on for the class of the traffic", device=_label(port))


def _traffic(host: Json) -> str | None:
    """NCCL's own setting wins over the ports'; None where neither can be read of every port."""
    words = {str(port.get("traffic_class")) for port in _roce(host)}
    own = mapping(host.get("env")).get("NCCL_IB_TC")
    return own or (None if "None" in words else ", ".join(sorted(words)) or None)


def _mtu(host: Json) -> str | None:
    words = {f"{port.get('mtu')}" for port in _roce(host)}
    if "None" in words:
        return None
    return ", ".join(sorted(words)) or None


def _where_roce(judge: Judge) -> Judge:
    """Only where some host has RoCE ports that are up."""
    return lambda hosts: judge(hosts) if any(_roce(host) for host in hosts) else [finding(host, "skipped", "no RoCE") for host in hosts]


def _where_ports(judge: Judge) -> Judge:
    return lambda hosts: judge(hosts) if any(host.get("ports") for host in hosts) else [finding(host, "skipped", "no RDMA port") for host in hosts]


SYSFS = "/sys/class/infiniband"
CHECKS = (
    Check(id="nic.count", what="as many live NICs as the other hosts", how=SYSFS, judge=_present,
          why="a host with fewer rails holds back every ring through it", fix="see which port is missing: nccl-bench topo"),
    Check(id="nic.state", what="ports up", how=SYSFS, judge=_state,
          why="NCCL passes over a port that is down, and its GPUs share another",
          fix="cable, transceiver, switch port; for InfiniBand the subnet manager"),
    Check(id="nic.rate", what="rate and link layer as on most", how=SYSFS, judge=_rates,
          why="a port trained down, or turned Ethernet, slows its rail to its speed",
          fix="reseat the cable; mlxlink -d DEVICE; check the port's configured speed and type"),
    Check(id="nic.downed", what="links that did not go down so often that their counter ended", how=SYSFS,
          judge=each(lambda host: host.get("ports"), _downed),
          why="a link that comes and goes stalls collectives for seconds", fix="replace the cable or transceiver; clear the counter and watch"),
    Check(id="nic.pcie", what="PCIe speed and width of each NIC", how="/sys/bus/pci", judge=each(_chosen, _slot),
          why="a 400G port needs Gen5 x16: in half a slot it moves half", fix="reseat the card or its riser; BIOS bifurcation"),
    Check(id="nic.firmware", what="the same firmware and boards on all hosts", how=SYSFS, judge=_where_ports(alike(_firmware, status="warn")),
          why="unlike firmware is what differs when one host behaves otherwise", fix="mlxfwmanager --online -u"),
    Check(id="nic.ib_hca", what="NCCL_IB_HCA names live ports", how=f"environment against {SYSFS}", judge=of_host(_hca),
          why="a list that no longer fits halves bandwidth without a word", fix="unset NCCL_IB_HCA, or name the ports that are up"),
    Check(id="nic.ifname", what="NCCL_SOCKET_IFNAME names a live interface", how="environment against /sys/class/net", judge=of_host(_ifname),
          why="ranks cannot meet over an interface that is not there", fix="unset it, or name one that is up on all hosts"),
    Check(id="nic.gdr", what="GPUDirect RDMA", how="/sys/module, /proc/driver/nvidia/version", judge=of_host(_gdr),
          why="without it all traffic goes through host memory, at half speed or less",
          fix="modprobe nvidia_peermem, or install the open kernel modules"),
    Check(id="nic.acs", what="no ACS redirection", how="PCI configuration space", judge=of_host(_acs), needs_root=True,
          why="ACS sends GPU-NIC traffic through the CPU", fix="turn ACS off in the BIOS, or with setpci (NCCL user guide, troubleshooting)"),
    Check(id="nic.iommu", what="IOMMU off or pass-through", how="/sys/class/iommu, /proc/cmdline", judge=of_host(_iommu),
          why="translation slows peer-to-peer transfers", fix="kernel command line: iommu=pt"),
    Check(id="nic.read_request", what="PCIe MaxReadReq of NICs", how="PCI configuration space", judge=each(_chosen, _read_request), needs_root=True,
          why="small reads cost bandwidth of 200G ports and faster", fix="setpci -s ADDRESS CAP_EXP+8.w=5000:7000"),
    Check(id="nic.mtu", what="the same MTU on all hosts (RoCE)", how="/sys/class/net", judge=_where_roce(alike(_mtu)),
          why="unlike MTUs fail or crawl, small ones lose bandwidth to headers", fix="ip link set INTERFACE mtu 9000 on hosts, and on switches"),
    Check(id="nic.gid", what="GIDs of RoCE v2", how=SYSFS, judge=each(_roce, _gid),
          why="RoCE v1 is not routed", fix="cma_roce_mode -d DEVICE -m 2; NCCL_IB_GID_INDEX"),
    Check(id="nic.traffic_class", what="the same traffic class on all hosts (RoCE)", how=f"{SYSFS}/*/tc, NCCL_IB_TC",
          judge=_where_roce(alike(_traffic, status="warn")), why="traffic outside the lossless class is dropped under load",
          fix="NCCL_IB_TC, as the fabric's administrators say"),
    Check(id="nic.pfc", what="priority flow control on (RoCE)", how="/sys/class/net/*/qos/pfc", judge=each(_roce, _pfc),
          why="without it RoCE loses packets and retransmits", fix="mlnx_qos -i INTERFACE --pfc ..., as the fabric's administrators say"),
)  # fmt: skip
