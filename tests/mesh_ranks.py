"""Meshes on real gloo ranks, and a tiny model really trained on them, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TINY = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 1024,
    "hidden_act": "gelu",
    "tie_word_embeddings": False,
}


def meshed(world: Any, spec_fields: dict[str, Any], damage: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Measure the cases of a mesh, or of a want, in this world; the points as JSON."""
    from ranks import damaged

    from nccl_bench.groups import kind_of
    from nccl_bench.measure.listing import axes_of, list_cases, mesh_of
    from nccl_bench.measure.ops import prepare
    from nccl_bench.measure.spec import SweepSpec, with_defaults
    from nccl_bench.measure.sweep import Sweeper, passes
    from nccl_bench.measure.worker import POOL_NBYTES, arena_sizes

    spec = with_defaults(SweepSpec(**spec_fields), "gloo")
    facts = world.facts(spec)
    planned = list_cases(spec, facts)
    mesh = mesh_of(spec)
    world.make_teams([kind_of(mesh, axis) for axis in axes_of(spec)] if mesh else [])
    world.reserve(arena_sizes(planned, facts.memory_nbytes, POOL_NBYTES["gloo"]), "none")
    sweeper = Sweeper(world, spec, damaged(prepare, damage) if damage else prepare)

    def report(_index: int, _item: Any) -> Callable[[str, int], None]:
        return lambda _phase, _batch: world.set_deadline()

    return [{**measured.point.to_json(), "wrong": measured.wrong} for _, _, measured in passes(sweeper, planned, report)]


def tiny_model() -> Any:
    """TINY in torch, without biases: its parameters are those that the planner counts."""
    import torch
    from torch import nn

    hidden, ffn, heads = TINY["hidden_size"], TINY["intermediate_size"], TINY["num_attention_heads"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
            self.up, self.down = nn.Linear(hidden, ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

        def forward(self, x: Any) -> Any:
            b, s, _h = x.shape
            q, k, v = (t.view(b, s, heads, -1).transpose(1, 2) for t in self.qkv(self.one(x)).chunk(3, dim=-1))
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(b, s, -1))
            return x + self.down(torch.nn.functional.gelu(self.up(self.two(x))))

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(TINY["vocab_size"], hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(TINY["num_hidden_layers"]))
            self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, TINY["vocab_size"], bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Tiny()


def trained(world: Any, how: str, steps: int, batch: int, seq: int) -> list[dict[str, Any]]:
    """Really train TINY by DDP or FSDP2; by step: bytes and µs of every collective that torch called, and the step's µs.

    µs of a collective are the least over ranks: who comes last waits for nobody.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[tuple[str, int, float]] = []

    class Watch(TorchDispatchMode):
        """Waits for each collective at once, so that its own time is seen."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "c10d" not in str(function) or "wait" in str(function):
                return function(*args, **(kwargs or {}))
            tensors = [t for item in args for t in (item if isinstance(item, (list, tuple)) else [item]) if isinstance(t, torch.Tensor)]
            started = time.perf_counter()
            found = function(*args, **(kwargs or {}))
            work = found[-1] if isinstance(found, tuple) else found
            if hasattr(work, "wait"):
                work.wait()
            nbytes = max((t.numel() * t.element_size() for t in tensors), default=0)
            seen.append((str(function), nbytes, (time.perf_counter() - started) * 1e6))
            return found

    torch.manual_seed(0)
    model: Any = tiny_model()
    counted = sum(p.numel() for p in model.parameters())
    timed: list[float] = []
    if how == "ddp":
        import torch.distributed as dist

        model = DistributedDataParallel(model)

        def hook(_state, bucket):  # torch refuses annotations of another spelling than its own
            started = time.perf_counter()
            dist.all_reduce(bucket.buffer())
            seen.append(("allreduce", bucket.buffer().numel() * bucket.buffer().element_size(), (time.perf_counter() - started) * 1e6))
            done = torch.futures.Future()
            done.set_result(bucket.buffer().div_(world.size))
            return done

        model.register_comm_hook(None, hook)
    else:
        mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("shard",))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    tokens = torch.randint(0, TINY["vocab_size"], (batch, seq))
    rows = []
    for _ in range(steps):
        seen.clear()
        world.meet()
        started = time.perf_counter()
        if how == "ddp":
            loss = model(tokens).float().logsumexp(-1).mean()
            loss.backward()
        else:
            with Watch():
                model(tokens).float().logsumexp(-1).mean().backward()
        timed.append((time.perf_counter() - started) * 1e6)
        own = [us for _name, _nbytes, us in seen]
        world.set_deadline()
        rows.append(
            {"names": [name for name, _n, _us in seen], "nbytes": [nbytes for _name, nbytes, _us in seen],
             "us": [-us for us in world.max_reduce([-us for us in own])], "step_us": world.max_reduce((timed[-1],))[0], "params": counted}
        )  # fmt: skip
    return rows
