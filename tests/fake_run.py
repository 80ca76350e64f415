"""A rank's supervisor as a process: runs tests/fake_worker.py, writes every event as a JSON line, ends with the run's code.

Options as JSON in FAKE_RUN: {"plan": {...}, "limits": {...}, "throw": kind of event, "throw_at_case": n, "break": n, "runs": n}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from nccl_bench.errors import DataError, NcclBenchError, UsageError
from nccl_bench.launch.launchers import from_environ
from nccl_bench.launch.supervisor import supervise
from nccl_bench.launch.values import Finished, Limits, Message, Plan

WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def main() -> int:
    options = json.loads(os.environ.get("FAKE_RUN", "{}"))
    if "IGNORE" in os.environ:
        signal.signal(signal.Signals[os.environ["IGNORE"]], signal.SIG_IGN)
    try:
        launch = from_environ(os.environ)
    except NcclBenchError as err:
        show({"event": "error", "why": err.why, "exit_code": err.exit_code})
        return err.exit_code
    plan = Plan(**{"argv": WORKER, "timeout_s": float(os.environ.get("FAKE_TIMEOUT", "1")), **options.get("plan", {})})
    limits = Limits(**{"overdue_s": 0.5, "settle_s": 0.2, "linger_s": 1.0, **options.get("limits", {})})
    exit_code = None
    for index in range(options.get("runs", 1)):
        events = supervise(launch, Plan(**{**plan_values(plan), "run_index": index}), stderr=sys.stderr, limits=limits)
        with contextlib.closing(events):
            for number, event in enumerate(events):
                show({"event": type(event).__name__, **asdict(event), "at": time.time(), "pid": os.getpid()})
                last_point = isinstance(event, Message) and event.content.get("point", {}).get("case") == options.get("throw_at_case", -1)
                if launch.rank == 0 and (last_point or options.get("throw") == type(event).__name__):
                    event = events.throw(UsageError("the directory holds a run", "give another -O"))
                    show({"event": type(event).__name__, **asdict(event)})
                if options.get("break") == number and launch.rank == 0:
                    raise DataError("the flow itself broke")
                if isinstance(event, Finished):
                    exit_code = event.exit_code
    time.sleep(options.get("idle_at_end", 0))  # as a command that still says good-bye
    return 99 if exit_code is None else exit_code


def plan_values(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def show(value: object) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
