"""Network interfaces of this host, and which of them the sockets of gloo and NCCL take; standard library only.

Left to themselves, gloo takes the interface that the host's name resolves to and NCCL the first that is neither docker
nor loopback. Both can be wrong where TCP to the board has just worked, so that way is taken, unless the user chose.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
VARIABLES: Final = {"gloo": GLOO, "nccl": NCCL}
"""The variable by which each backend's interface is chosen (torch.distributed, "Choosing the network interface to use"; NCCL user guide)."""

_SIOCGIFCONF, _SIOCGIFFLAGS, _IFF_UP = 0x8912, 0x8913, 0x1
"""linux/sockios.h, linux/if.h"""
_REQUEST_NBYTES = 40
"""sizeof(struct ifreq) on 64-bit Linux."""
_MAX_INTERFACES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """An interface that is up, by one of its addresses."""

    name: str
    address: str

    @property
    def loopback(self) -> bool:
        """Whether it leads nowhere but to this host."""
        return is_loopback(self.address)


def is_loopback(host: str) -> bool:
    """Whether a name or address means each host itself."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def interfaces(root: Path = Path("/")) -> tuple[Interface, ...]:
    """The interfaces of this host that are up, one entry an address; () where the system does not say."""
    if sys.platform != "linux":
        return ()
    return (*_of_version_4(), *_of_version_6(root / "proc/net/if_inet6"))


def _of_version_4() -> list[Interface]:
    import array
    import fcntl

    found: list[Interface] = []
    buffer = array.array("B", bytes(_REQUEST_NBYTES * _MAX_INTERFACES))
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iL", len(buffer), buffer.buffer_info()[0]))
        for at in range(0, struct.unpack("iL", answer)[0], _REQUEST_NBYTES):
            entry = bytes(buffer[at : at + _REQUEST_NBYTES])
            name = entry[:16].split(b"\0", 1)[0]
            (flags,) = struct.unpack_from("H", fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sH22x", name, 0)), 16)
            if flags & _IFF_UP:
                # An alias is listed as eth0:1; libraries know it as eth0.
                found.append(Interface(name=name.decode("utf-8", "replace").split(":")[0], address=socket.inet_ntoa(entry[20:24])))
    return found


def _of_version_6(path: Path) -> list[Interface]:
    """/proc/net/if_inet6: address, index, prefix length, scope, flags, name; link-local ones (scope 20) reach nobody by address alone."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return []
    return [Interface(name=row[5], address=socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))) for row in rows if row[3] != "20"]


def own_address(reached: str, among: Sequence[Interface], root: Path = Path("/")) -> str:
    """The address by which other hosts reach this one, `reached` being the near end of its way to the board.

    Where /etc/hosts maps the host's own name to loopback (Debian's 127.0.1.1), the board's host reached itself by that:
    then it is the address of the interface of the default route, or the only one there is.
    """
    if not is_loopback(reached):
        return reached.removeprefix("::ffff:")
    outward = [one for one in among if not one.loopback]
    by_default = [one for one in outward if one.name == _default_route(root / "proc/net/route")]
    chosen = by_default or (outward if len({one.name for one in outward}) == 1 else [])
    return chosen[0].address if chosen else reached


def _default_route(path: Path) -> str | None:
    """The interface of the default route: the row of /proc/net/route whose destination and mask are 0."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()[1:]]
    except OSError:
        return None
    return next((row[0] for row in rows if row[1] == "00000000" and row[7] == "00000000"), None)


def named(address: str, among: Sequence[Interface]) -> str | None:
    """The name of the interface that has an address."""
    return next((one.name for one in among if one.address == address), None)


def matching(variable: str, wish: str, among: Sequence[Interface]) -> list[str]:
    """Names of interfaces that a user's setting means.

    GLOO_SOCKET_IFNAME lists whole names; NCCL_SOCKET_IFNAME lists beginnings of names, whole names after "=", and
    with "^" all others (NCCL user guide, environment variables).
    """
    names = list(dict.fromkeys(one.name for one in among))
    words = wish.lstrip("^=").split(",") if variable == NCCL else wish.split(",")
    words = [word.strip() for word in words if word.strip()]
    if variable == GLOO or wish.lstrip("^").startswith("="):
        hit = [name for name in names if name in words]
    else:
        hit = [name for name in names if any(name.startswith(word) for word in words)]
    return [name for name in names if name not in hit] if variable == NCCL and wish.startswith("^") else hit


def socket_facts(reached: str, environ: Mapping[str, str], among: Sequence[Interface] | None = None) -> Json:
    """What a rank brings of its sockets: {"interface", "address", "there": names, "wishes": {variable: {"value", "lacks", "outward"}}}.

    `reached`: its own address on the way to the board. "lacks": a named interface is not there (gloo wants all, NCCL one);
    "outward": one of them leads to other hosts.
    """
    among = interfaces() if among is None else among
    address = own_address(reached, among)
    wishes: Json = {}
    for variable in VARIABLES.values():
        if environ.get(variable):
            matches = matching(variable, environ[variable], among)
            outward = [one.name for one in among if one.name in matches and not one.loopback]
            lacks = not matches or (variable == GLOO and len(matches) < len(set(environ[variable].split(","))))
            wishes[variable] = {"value": environ[variable][:200], "lacks": lacks, "outward": bool(outward)}
    there = list(dict.fromkeys(one.name for one in among))
    return {"interface": named(address, among), "address": address, "there": there[:16], "wishes": wishes}


def worker_sockets(facts: Mapping[str, Any], backend: str, one_host: bool) -> dict[str, str]:
    """What a worker's environment gets for its sockets: its interface, unless the user chose or it is not known."""
    variable = VARIABLES[backend]
    name = "lo" if one_host and "lo" in facts["there"] else None if one_host else facts["interface"]
    if variable in facts["wishes"] or name is None:
        return {}
    return {variable: f"={name}" if variable == NCCL else name}


def in_use(facts: Mapping[str, Any], backend: str, one_host: bool) -> str:
    """The interfaces that a rank's sockets use, in words: "eth0", "eth9 (as set)", "chosen by gloo"."""
    variable = VARIABLES[backend]
    if variable in facts["wishes"]:
        return f"{variable}={facts['wishes'][variable]['value']}"
    chosen = worker_sockets(facts, backend, one_host)
    return chosen[variable].removeprefix("=") if chosen else f"chosen by {backend}"
