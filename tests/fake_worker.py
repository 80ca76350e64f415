"""A worker without torch that speaks the protocol and does what it is told: FAKE_<rank> or FAKE, commands split by ";".

Commands: hang, exit N, kill, stop, raise KIND CODE, say TEXT, case I, sleep S, wait (for ever, in the call), wrong, loud,
linger, slow (steps past the deadline), other (another call). Without one: three cases, a point each, done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from nccl_bench.launch.channel import WorkerChannel

N_CASES = 3


def main() -> int:
    channel = WorkerChannel.from_environ()
    rank = int(os.environ["RANK"])
    commands = os.environ.get(f"FAKE_{rank}", os.environ.get("FAKE", "")).split(";")
    timeout_s = float(os.environ.get("FAKE_TIMEOUT", "1"))
    if "mute" in commands:
        time.sleep(3600)
    early = [command.removeprefix("early ") for command in commands if command.startswith("early ")]
    for command in early:
        obey(channel, rank, command, timeout_s)
    device = json.loads(os.environ.get(f"FAKE_DEVICE_{rank}", os.environ.get("FAKE_DEVICE", "null")))
    visible = int(os.environ.get("FAKE_VISIBLE", "0"))
    versions = {"torch": "2.13.0", "nccl": "2.28.9"}
    channel.send("hello", pid=os.getpid(), versions=versions, device=device, visible_gpus=visible, has_nccl=device is not None, import_s=0.0)
    go = channel.receive()
    assert go is not None
    channel.send("env", pid=os.getpid(), rank=os.environ["RANK"], local_rank=os.environ["LOCAL_RANK"], world_size=os.environ["WORLD_SIZE"], go=go)
    if rank == 0:
        channel.send("store", port=23456)
    for case in range(N_CASES):
        channel.enter(case, N_CASES, "time", f"all_gather {case + 1} MiB", timeout_s)
        for command in commands:
            if command.startswith(f"{case} "):
                obey(channel, rank, command.split(" ", 1)[1], timeout_s)
        channel.send("point", point={"case": case, "rank": rank})
    for command in commands:
        if command and not command[0].isdigit() and command not in early and not command.startswith("early "):
            obey(channel, rank, command, timeout_s)
    channel.enter(-1, 0, "done", "leaving", timeout_s)
    wrong = "wrong" in commands
    channel.send("done", exit_code=7 if wrong else 0, why="wrong data in 1 of 3 cases" if wrong else "")
    return 0


def obey(channel: WorkerChannel, rank: int, command: str, timeout_s: float) -> None:
    word, *rest = command.split(" ")
    match word:
        case "hang":
            channel.tick("time", 1)
            while True:
                time.sleep(60)
        case "wait":
            channel.tick("time", 2)
            time.sleep(3600)
        case "late":  # as a worker that notices its own time-out
            channel.tick("time", 2)
            time.sleep(timeout_s)
            channel.send("error", kind="comm", exit_code=4, why="all_gather timed out", hints=[], lines=[])
            os._exit(4)
        case "other":
            channel.enter(1, N_CASES, "time", "broadcast 4 KiB", timeout_s)
            time.sleep(3600)
        case "slow":
            for batch in range(10_000):
                channel.tick("time", batch)
                time.sleep(0.02)
        case "exit":
            print("last words of", rank, flush=True)
            os._exit(int(rest[0]))
        case "kill":
            os.kill(os.getpid(), signal.Signals[rest[0]] if rest else signal.SIGKILL)
            time.sleep(60)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            channel.send("error", kind=rest[0], exit_code=int(rest[1]), why=" ".join(rest[2:]), hints=["do this"], lines=[])
            os._exit(int(rest[1]))
        case "sleep":
            time.sleep(float(rest[0]))
        case "say":
            print(*rest, flush=True)
        case "crash":
            print("terminate called without an active exception", file=sys.stderr, flush=True)
            os.abort()
        case "garble":
            os.write(channel._write_fd, b"this is no message\n")
            time.sleep(60)
        case "linger":
            channel.send("done", exit_code=0, why="")
            time.sleep(3600)
        case "child":
            import subprocess

            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            channel.send("child", pid=child.pid)
        case _:
            pass


if __name__ == "__main__":
    sys.exit(main())
