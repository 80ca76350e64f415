"""Which NCCL really runs: the version and path of the library whose symbols win; no torch.

torch.cuda.nccl.version() tells what torch was built against, and more than one libnccl can be mapped: a site preloads its
own (LD_PRELOAD) before the one that torch brings.
"""

from __future__ import annotations

import ctypes
from pathlib import Path


class _DlInfo(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (("dli_fname", ctypes.c_char_p), ("dli_fbase", ctypes.c_void_p), ("dli_sname", ctypes.c_char_p), ("dli_saddr", ctypes.c_void_p))


def running_nccl(maps: Path = Path("/proc/self/maps")) -> tuple[str | None, str | None]:
    """(version, path) of the libnccl that calls go to in this process; (None, None) where none is loaded.

    The global scope comes first, as for the dynamic linker: there a preloaded library stands before all others.
    """
    for handle, path in ((_open(None), None), *((_open(path), path) for path in _mapped(maps))):
        try:
            function = handle.ncclGetVersion if handle is not None else None
        except AttributeError:
            continue
        if function is None:
            continue
        code = ctypes.c_int()
        if function(ctypes.byref(code)) == 0:
            return version_text(code.value), path or _path_of(function)
    return None, None


def version_text(code: int) -> str:
    """ "2.28.9" of NCCL_VERSION_CODE 22809; before 2.9 it was 2708 for 2.7.8 (nccl.h, NCCL_VERSION)."""
    major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _open(path: str | None) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def _mapped(maps: Path) -> list[str]:
    """Paths of mapped libnccl files (not of plug-ins, libnccl-net.so)."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    paths = (line.split(maxsplit=5)[5].strip() for line in lines if "/libnccl.so" in line)
    return list(dict.fromkeys(paths))


def _path_of(function: object) -> str | None:
    """The file that a function was loaded from."""
    info = _DlInfo()
    try:
        found = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info))  # type: ignore[arg-type]
    except (AttributeError, OSError):
        return None
    return info.dli_fname.decode(errors="replace") if found and info.dli_fname else None
