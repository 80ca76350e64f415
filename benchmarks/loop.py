#!/usr/bin/env python3
"""The methods that users would pick instead, written down once: our own equals of the method, nobody's code.

    torchrun --nproc-per-node 2 benchmarks/loop.py --method script --sizes 1024,65536 [--backend gloo]

script   the single-file torch script that everybody copies: 5 warm-up calls, 20 calls between barriers, perf_counter, the average of rank 0
param    host timing as PARAM does it: a barrier before each call, the mean over calls, the mean over ranks
bare     a bare loop: 200 calls back to back, one clock around them, the maximum over ranks
rotated  the same through buffers of 64 MiB together, so that none is warm in a cache
Prints one JSON line a size: {"nbytes", "us", "seconds"}.
--until 0.05 repeats a size until the 95 % interval of the mean of its repeats is that narrow, 10 s at most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist


def script(tensor: torch.Tensor) -> float:
    for _ in range(5):
        dist.all_reduce(tensor)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(20):
        dist.all_reduce(tensor)
    sync()
    return (time.perf_counter() - began) / 20 * 1e6


def param(tensor: torch.Tensor) -> float:
    for _ in range(5):
        dist.all_reduce(tensor)
    spent = 0.0
    for _ in range(20):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        sync()
        spent += time.perf_counter() - began
    mean = torch.tensor([spent / 20 * 1e6], device=tensor.device, dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def bare(tensor: torch.Tensor, n_buffers: int = 1) -> float:
    buffers = [tensor, *(torch.zeros_like(tensor) for _ in range(n_buffers - 1))]
    for at in range(max(20, n_buffers)):
        dist.all_reduce(buffers[at % n_buffers])
    dist.barrier()
    began = time.perf_counter()
    for at in range(200):
        dist.all_reduce(buffers[at % n_buffers])
    sync()
    worst = torch.tensor([(time.perf_counter() - began) / 200 * 1e6], device=tensor.device, dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return worst.item()


def rotated(tensor: torch.Tensor) -> float:
    return bare(tensor, min(256, max(1, (64 << 20) // (tensor.numel() * 4))))


def sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


METHODS = {"script": script, "param": param, "bare": bare, "rotated": rotated}


def enough(values: list[float], precision: float, began: float) -> bool:
    """All ranks ask rank 0, or they would stop at different repeats."""
    done = 0
    if len(values) >= 6:
        half = 2.57 * statistics.stdev(values) / len(values) ** 0.5  # Student's t, 5 degrees of freedom
        done = int(half <= precision * statistics.mean(values) or time.perf_counter() - began > 10)
    flag = torch.tensor([done], device="cuda" if torch.cuda.is_available() else "cpu")
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--sizes", default="1024,65536,1048576")
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--until", type=float)
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if options.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    method = METHODS[options.method]
    for nbytes in map(int, options.sizes.split(",")):
        tensor = torch.zeros(nbytes // 4, device=device)
        began, values = time.perf_counter(), []
        while not values or (options.until is not None and not enough(values, options.until, began)):
            values.append(method(tensor))
        if dist.get_rank() == 0:
            print(json.dumps({"nbytes": nbytes, "us": statistics.mean(values), "seconds": time.perf_counter() - began}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
