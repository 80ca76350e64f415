#!/usr/bin/env python3
"""A plan, priced with a measurement of what it asks for, beside the real step of the same model: torch FSDP2 on the GPUs that are here.

    benchmarks/step.py --model config.json --seq 4096 --mbs 2 [-g 1] [--compile] [--keep FOLDER]

Emits what must be measured (plan --emit), measures it (sweep --want), prices (plan --measured), then trains a plain Llama of that
config.json with random tokens: weights in 32 bits, computed and reduced in bfloat16 (FSDP2's default), AdamW, flash attention.
Prints one JSON line: seconds a step of the plan (low, mid, high) and of the real loop (median, smallest, largest of 20 steps),
and the peak memory of both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WARM, TIMED = 5, 20


def nccl_bench(*args: object, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-m", "nccl_bench", *map(str, args)], capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        sys.exit(f"nccl-bench {' '.join(map(str, args))} ended {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def hardware(options: argparse.Namespace) -> tuple[object, ...]:
    """Options of plan: the named GPUs, or only how many."""
    return ("--gpus", options.gpus) if options.gpus else ("--world", options.g, "--gpus-per-node", options.g)


def planned(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The priced plan, as plan --json prints it; the run, the want and the page of text stay in folder."""
    (folder / "config.json").write_text(options.model.read_text())
    shape = ("--seq", options.seq, "--mbs", options.mbs, "--gbs", options.mbs * options.g, *hardware(options))
    plan = ("plan", "--model", "config.json", *shape, "--framework", "fsdp2")
    nccl_bench(*plan, "--emit", "want.json", cwd=folder)
    nccl_bench("sweep", "--want", "want.json", "-g", options.g, "-O", "run", "--no-progress", cwd=folder)
    (folder / "plan.txt").write_text(nccl_bench(*plan, "--measured", "run", "--wide", cwd=folder))
    text = nccl_bench(*plan, "--measured", "run", "--json", cwd=folder)
    (folder / "plan.json").write_text(text)
    return dict(json.loads(text))


def trained(options: argparse.Namespace) -> dict[str, Any]:
    """The real loop, a process a GPU."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.g), __file__, "--loop"]
    words = ["--model", options.model, "--seq", options.seq, "--mbs", options.mbs, *(["--compile"] if options.compile else [])]
    done = subprocess.run([*torchrun, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the real loop ended {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))


def build(shape: dict[str, Any], seq: int) -> Any:
    """A Llama of Hugging Face's config.json: RMS norms, grouped queries, rotary positions, SwiGLU, one table for both ends where tied."""
    import torch
    from torch import nn
    from torch.nn import functional

    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    kv_heads, width = shape.get("num_key_value_heads", heads), shape["intermediate_size"]
    dim = hidden // heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * dim, bias=False)
            self.out = nn.Linear(hidden, hidden, bias=False)
            self.up, self.down = nn.Linear(hidden, 2 * width, bias=False), nn.Linear(width, hidden, bias=False)

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            batch = x.shape[0]
            q, k, v = self.qkv(self.norm1(x)).view(batch, seq, -1, dim).transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
            q, k = (one * cos + torch.cat((-one[..., dim // 2 :], one[..., : dim // 2]), dim=-1) * sin for one in (q, k))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads != heads)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))
            gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(shape["vocab_size"], hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(shape["num_hidden_layers"]))
            self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, shape["vocab_size"], bias=False)
            if shape.get("tie_word_embeddings"):
                self.head.weight = self.table.weight
            angles = torch.outer(torch.arange(seq), 1e4 ** (-torch.arange(0, dim, 2) / dim)).repeat(1, 2)
            self.register_buffer("cos", angles.cos().bfloat16())
            self.register_buffer("sin", angles.sin().bfloat16())

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.table(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1)[:-1], tokens.flatten()[1:])

    return Model()


def loop(options: argparse.Namespace) -> None:
    """One rank of the real loop; rank 0 prints."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = build(json.loads(options.model.read_text()), options.seq).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        if options.compile:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, model.table.num_embeddings, (options.mbs, options.seq), device="cuda")
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED + 1)]
    for at in range(-WARM, TIMED):
        if at >= 0:
            marks[at].record()
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    marks[-1].record()
    torch.cuda.synchronize()
    steps = [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]
    if dist.get_rank() == 0:
        found = {"median": statistics.median(steps), "low": min(steps), "high": max(steps)}
        print(json.dumps({"real_s": found, "real_peak_gb": torch.cuda.max_memory_allocated() / 1e9, "compiled": options.compile}))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="config.json of a Llama")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--mbs", type=int, default=2)
    parser.add_argument("-g", type=int, default=1, help="ranks, one a GPU")
    parser.add_argument("--gpus", help="as plan's: 1xH200-SXM, for MFU and memory")
    parser.add_argument("--compile", action="store_true", help="torch.compile for each block of the real loop")
    parser.add_argument("--keep", type=Path, help="folder for the want, the run and the plan")
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.model = options.model.resolve()
    if options.loop:
        loop(options)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        plan = planned(options, folder)
    real = trained(options)
    print(json.dumps({"layout": plan["layout"], "plan_s": plan["step_s"], "plan_memory": plan["memory"], **real}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
