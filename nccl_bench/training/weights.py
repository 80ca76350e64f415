"""How many weights a rank holds: of a stage, its tensor-parallel shard, dense and of experts."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_bench.training.layout import Layout, Stage
from nccl_bench.training.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Parameters on one rank of a stage before data parallelism shards them."""

    dense: int
    """All but routed experts: reduced over dp x cp."""
    experts: int
    """Of its routed experts: reduced over the expert data-parallel group."""

    @property
    def total(self) -> int:
        """Both."""
        return self.dense + self.experts


def weights_of(model: Model, layout: Layout, stage: Stage) -> Weights:
    """The weights of a rank of this stage (Psi). Norms, which tensor parallelism does not shard, are counted in full."""
    norms = model.norm_params * (2 * len(stage.layers) + (1 if stage.last else 0))
    moe_layers = model.n_moe(stage.layers)
    dense_layers = len(stage.layers) - moe_layers
    shared = dense_layers * model.resident_of(False) + moe_layers * model.resident_of(True) - 2 * model.norm_params * len(stage.layers)
    shared += model.embedding_params if stage.first else 0
    # A tied head is the embedding itself where one rank has both, and a second copy elsewhere.
    shared += model.vocab * model.hidden if stage.last and not (model.tied and stage.first) else 0
    experts = moe_layers * model.experts * model.expert_params() // (layout.ep * layout.expert_tp)
    return Weights(dense=shared // layout.tp + norms, experts=experts)


def block_params(model: Model, layout: Layout, layer: int) -> tuple[int, int]:
    """(dense, routed experts) parameters of one block on a rank before FSDP shards it."""
    norms = 2 * model.norm_params
    dense = (model.resident_params(layer) - norms) // layout.tp + norms
    experts = model.experts * model.expert_params() // (layout.ep * layout.expert_tp) if model.is_moe(layer) else 0
    return dense, experts


def root_parts(model: Model, layout: Layout, stage: Stage) -> tuple[int, ...]:
    """Parameters of embedding and of head, where this stage has them apart."""
    embedding = (model.embedding_params // layout.tp,) if stage.first else ()
    return (*embedding, model.vocab * model.hidden // layout.tp) if stage.last and not (model.tied and stage.first) else embedding


def root_params(model: Model, layout: Layout, stage: Stage) -> int:
    """Parameters outside blocks, the FSDP root's: embedding, head and last norm."""
    return sum(root_parts(model, layout, stage)) + (model.norm_params if stage.last else 0)
