"""torch's flight recorder: the last collectives of a rank, written where the user asked for it when one of them hangs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Who sets one of them to more than 0 wants the record (torch, "Flight Recorder"; the second name is that before torch 2.9)."""
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Beginning of the files' names; the rank follows."""


def flight_record(environ: Mapping[str, str]) -> list[str]:
    """Write the record of this rank, if the user asked for one; a line that says where, the same on all ranks.

    torch's watchdog would write it at its own time-out, which is later than ours.
    """
    if not any(environ.get(name, "").strip() not in ("", "0") for name in SIZES):
        return []
    prefix = next((environ[name] for name in FILES if environ.get(name)), f"{tempfile.gettempdir()}/nccl_trace_rank_")
    try:
        Path(f"{prefix}{environ.get('RANK', '0')}").write_bytes(_record())
    except (ImportError, RuntimeError, OSError) as err:
        return [f"torch's flight recorder could not be written to {prefix}RANK: {err}"]
    return [f"torch's flight recorder: {prefix}RANK on each host"]


def _record() -> bytes:
    """The record as torch pickles it. Raises ImportError where this torch has none."""
    from torch._C import _distributed_c10d as c10d

    module: Any = c10d
    dump = getattr(module, "_dump_fr_trace", None) or getattr(module, "_dump_nccl_trace", None)
    if dump is None:
        raise ImportError("this torch has no flight recorder")
    return bytes(dump())
