"""A wire between two TAP devices in two network namespaces, with delay, jitter, loss and rate.

Stands in for the kernel's netem where that is not built in. Standard library only, root, Linux.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import sys
import time
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
"""linux/if_tun.h"""
CLONE_NEWNET = 0x40000000
"""linux/sched.h"""
FRAMES_A_TURN = 64
QUEUE_FRAMES = 4000
"""What does not fit is dropped, as a switch does."""


def main() -> None:
    """Join the two ends until SIGTERM."""
    options = parsed()
    ends = (tap(options.host_ns, options.host_if), tap(options.switch_ns, options.switch_if))
    Path(options.pid_file).write_text(str(os.getpid()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    chance = random.Random(options.seed)
    directions = [Direction(ends[0], ends[1], options, chance), Direction(ends[1], ends[0], options, chance)]
    poll = select.epoll()
    for end in ends:
        poll.register(end, select.EPOLLIN)
    while True:
        wait_s = min(direction.send_due(time.monotonic()) for direction in directions)
        ready = waited(poll, ends, wait_s)
        for direction in directions:
            if direction.source in ready:
                direction.take()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--host-ns", "--host-if", "--switch-ns", "--switch-if", "--pid-file"):
        parser.add_argument(name, required=True)
    for name in ("--delay-ms", "--jitter-ms", "--rate-mbit"):
        parser.add_argument(name, type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0, help="percent of frames")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def tap(namespace: str, name: str) -> int:
    """Open a TAP inside a namespace; its descriptor keeps working from outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    back = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(there, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    if libc.setns(back, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns back")
    os.close(there)
    os.close(back)
    return device


def waited(poll: select.epoll, ends: tuple[int, int], wait_s: float) -> set[int]:
    """The ends with frames; epoll counts whole milliseconds, so select does the short waits."""
    if 0 <= wait_s < 1e-3:
        return set(select.select(ends, [], [], wait_s)[0])
    return {end for end, _ in poll.poll(-1 if wait_s == float("inf") else wait_s - 5e-4)}


class Direction:
    """One way of the wire."""

    def __init__(self, source: int, target: int, options: argparse.Namespace, chance: random.Random) -> None:
        self.source, self.target, self.chance = source, target, chance
        self.delay_s, self.jitter_s, self.loss_frac = options.delay_ms / 1e3, options.jitter_ms / 1e3, options.loss / 100
        self.s_per_byte = 8 / (options.rate_mbit * 1e6) if options.rate_mbit else 0.0
        self.frames: collections.deque[tuple[float, bytes]] = collections.deque()
        self.free_s = self.last_s = 0.0

    def send_due(self, now: float) -> float:
        """Send what is due; seconds until the next frame is."""
        while self.frames and self.frames[0][0] <= now:
            with contextlib.suppress(OSError):  # the other end is not up yet
                os.write(self.target, self.frames.popleft()[1])
        return max(0.0, self.frames[0][0] - now) if self.frames else float("inf")

    def take(self) -> None:
        """Take the frames that came, each with the time when it is due."""
        now = time.monotonic()
        for _ in range(FRAMES_A_TURN):
            try:
                frame = os.read(self.source, 65536)
            except BlockingIOError:
                return
            except OSError:
                time.sleep(0.01)
                return
            if len(self.frames) < QUEUE_FRAMES and not (self.loss_frac and self.chance.random() < self.loss_frac):
                self.free_s = max(now, self.free_s) + len(frame) * self.s_per_byte
                jitter_s = self.chance.uniform(0, self.jitter_s) if self.jitter_s else 0.0
                self.last_s = max(self.last_s, self.free_s + self.delay_s + jitter_s)  # frames keep their order
                self.frames.append((self.last_s, frame))


if __name__ == "__main__":
    main()
