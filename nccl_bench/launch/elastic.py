"""What torchrun prints last: it reads a rank's error file, so the verdict goes there.

Without one its table says "To enable traceback see ..." and calls a victim the root cause. The format is that of
torch/distributed/elastic/multiprocessing/errors (torch 2.6 to 2.13): the first in time is the root cause.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "TORCHELASTIC_ERROR_FILE"


HEAD_START_S = 0.5
"""torchrun lists only ranks that have ended when it sees the first one that failed, looking ten times a second."""


def tell_torchrun(environ: Mapping[str, str], exit_code: int, why: str, lines: Sequence[str], *, guilty: bool, now: float | None = None) -> float:
    """Leave the verdict for torchrun's agent, if one started this process; `guilty` ranks come first in time.

    Returns the seconds by which this rank should end later than the guilty one.
    """
    path = environ.get(VARIABLE)
    if not path or exit_code == 0:
        return 0.0
    text = "\n".join((f"nccl-bench: exit {exit_code}: {why}", *lines))
    at = int(time.time() if now is None else now) - guilty
    record = {"message": {"message": text, "extraInfo": {"py_callstack": text, "timestamp": str(at)}}}
    with contextlib.suppress(OSError):  # torchrun then says less
        Path(path).write_text(json.dumps(record))
    return 0.0 if guilty else HEAD_START_S
