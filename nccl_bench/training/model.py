"""A transformer's sizes, and what follows from them: parameters and FLOPs. Pure arithmetic; where sizes come from is config.py.

Notation: s sequence, h hidden, L layers, n heads, k kv heads, d head dimension, f ffn, V vocabulary, E experts, K experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from nccl_bench.errors import DataError, UsageError

BASES: dict[str, str] = {
    "full-attention": "6 x parameters that multiply + full attention (torchtitan, llm-foundry)",
    "megatron-head": "as full-attention, attention halved for the causal mask (Megatron-LM training.py)",
    "96-form": "96BsLh2(1 + s/6h + V/16Lh), full recompute counted (Narayanan et al. SC21)",
    "72-form": "72BsLh2(1 + s/6h + V/12Lh), model FLOPs (Korthikanti et al. 2022)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention's ranks (DeepSeek-V2, arXiv 2405.04434)."""

    q_lora: int
    """0 where queries are not compressed."""
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """Which parts of a layer add a bias."""

    qkv: bool = False
    out: bool = False
    mlp: bool = False
    """Of dense layers; what experts add is not counted."""
    norms: bool = False
    """LayerNorm has one, RMSNorm has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Of dense layers."""
    vocab: int
    gated: bool = True
    tied: bool = False
    positions: int = 0
    """Learned position embeddings."""
    experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    """Of one routed expert."""
    shared_ffn: int = 0
    """Of all shared experts together."""
    dense_at: frozenset[int] = frozenset()
    """Layers without experts, where the model has experts."""
    mla: Mla | None = None
    biases: Biases = Biases()
    notes: tuple[str, ...] = ()
    """What the arithmetic leaves out of this model, in words."""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, name) < 1:
                raise DataError(f"model {self.name}: {name} is {getattr(self, name)}, and must be at least 1")
        if self.heads % self.kv_heads:
            raise DataError(f"model {self.name}: {self.heads} heads are no multiple of {self.kv_heads} key-value heads")
        if self.experts and not 0 < self.top_k <= self.experts:
            raise DataError(f"model {self.name}: {self.top_k} of {self.experts} experts a token", "num_experts_per_tok in config.json")

    def is_moe(self, layer: int) -> bool:
        """Whether this layer routes to experts."""
        return self.experts > 0 and layer not in self.dense_at

    @property
    def mlp_matrices(self) -> int:
        """g: matrices of an MLP, 3 gated and 2 plain."""
        return 3 if self.gated else 2

    def attention_params(self) -> int:
        """Weights of one attention: h d (n+2k) + n d h; MLA as Megatron counts it (theoretical_memory_usage.py:62-80)."""
        h, n = self.hidden, self.heads
        if self.mla is None:
            return h * self.head_dim * (n + 2 * self.kv_heads) + n * self.head_dim * h
        a = self.mla
        qk = a.qk_nope + a.qk_rope
        query = h * a.q_lora + a.q_lora * n * qk if a.q_lora else h * n * qk
        return query + h * (a.kv_lora + a.qk_rope) + a.kv_lora * n * (a.qk_nope + a.v_dim) + n * a.v_dim * h

    def bias_params(self, moe: bool) -> int:
        """Biases of a layer but for its norms': of the projections, and of the matrices of a dense MLP."""
        has, h = self.biases, self.hidden
        found = (self.heads + 2 * self.kv_heads) * self.head_dim if has.qkv else 0
        found += h if has.out else 0
        return found + ((self.mlp_matrices - 1) * self.ffn + h if has.mlp and not moe else 0)

    @property
    def norm_params(self) -> int:
        """Of one norm: weights, and a LayerNorm's biases."""
        return self.hidden * (2 if self.biases.norms else 1)

    def head_dims(self) -> tuple[int, int]:
        """Dimensions of a head's keys and of its values; MLA's differ, and are expanded for every head in training."""
        return (self.head_dim, self.head_dim) if self.mla is None else (self.mla.qk_nope + self.mla.qk_rope, self.mla.v_dim)

    def dense_mlp_params(self) -> int:
        """g h f."""
        return self.mlp_matrices * self.hidden * self.ffn

    def expert_params(self) -> int:
        """One routed expert."""
        return self.mlp_matrices * self.hidden * self.moe_ffn

    def n_moe(self, layers: tuple[int, ...]) -> int:
        """How many of these layers route to experts."""
        return _count_moe(layers, self.dense_at) if self.experts else 0

    def resident_params(self, layer: int) -> int:
        """Weights of a layer without its routed experts: attention, two norms, dense MLP or router and shared experts, biases."""
        return self.resident_of(self.is_moe(layer))

    def resident_of(self, moe: bool) -> int:
        """The same, for any layer of that kind."""
        base = self.attention_params() + 2 * self.norm_params + self.bias_params(moe)
        if not moe:
            return base + self.dense_mlp_params()
        return base + self.hidden * self.experts + self.mlp_matrices * self.hidden * self.shared_ffn

    def layer_params(self, layer: int) -> int:
        """All weights of a layer."""
        return self.resident_params(layer) + (self.experts * self.expert_params() if self.is_moe(layer) else 0)

    def active_layer_params(self, layer: int) -> int:
        """Weights of a layer that one token meets."""
        return self.resident_params(layer) + (self.top_k * self.expert_params() if self.is_moe(layer) else 0)

    @property
    def embedding_params(self) -> int:
        """V h, and learned positions."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def params(self) -> int:
        """All weights."""
        head = 0 if self.tied else self.vocab * self.hidden
        return sum(self.layer_params(i) for i in range(self.layers)) + self.embedding_params + head + self.norm_params

    @property
    def multiplying_params(self) -> int:
        """Weights that multiply each token: active ones and the head, not the input embedding (a look-up)."""
        return sum(self.active_layer_params(i) - self.bias_params(self.is_moe(i)) for i in range(self.layers)) + self.vocab * self.hidden

    def attention_flops(self, seq: int) -> int:
        """Forward FLOPs a token and layer of scores and values over a full sequence: 4 n d s (MLA: 2 n s (qk + v))."""
        if self.mla is not None:
            return 2 * self.heads * seq * (self.mla.qk_nope + self.mla.qk_rope + self.mla.v_dim)
        return 4 * self.heads * self.head_dim * seq


@cache
def _count_moe(layers: tuple[int, ...], dense_at: frozenset[int]) -> int:
    return sum(layer not in dense_at for layer in layers)


def step_flops(model: Model, seq: int, gbs: int, basis: str = "full-attention") -> float:
    """FLOPs of one step of `gbs` sequences on a named basis. Raises UsageError for an unknown one."""
    h, layers, vocab = model.hidden, model.layers, model.vocab
    match basis:
        case "full-attention" | "megatron-head":
            attention = 3 * layers * model.attention_flops(seq) * (0.5 if basis == "megatron-head" else 1.0)
            return gbs * seq * (6.0 * model.multiplying_params + attention)
        case "96-form":
            return 96.0 * gbs * seq * layers * h * h * (1 + seq / (6 * h) + vocab / (16 * layers * h))
        case "72-form":
            return 72.0 * gbs * seq * layers * h * h * (1 + seq / (6 * h) + vocab / (12 * layers * h))
    raise UsageError(f"no FLOP basis is called {basis!r}", f"there are: {' '.join(BASES)}")
