"""A transformer's sizes, from Hugging Face's config.json or a preset: parameters and FLOPs. Pure arithmetic.

Notation: s sequence, h hidden, L layers, n heads, k kv heads, d head dimension, f ffn, V vocabulary, E experts, K experts a token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from nccl_bench.errors import DataError, UsageError

FlopBasis = Literal["full-attention", "megatron-head", "96-form", "72-form"]
BASES: dict[str, str] = {
    "full-attention": "6 x parameters that multiply + full attention (torchtitan, llm-foundry)",
    "megatron-head": "as full-attention, attention halved for the causal mask (Megatron-LM training.py)",
    "96-form": "96BsLh2(1 + s/6h + V/16Lh), full recompute counted (Narayanan et al. SC21)",
    "72-form": "72BsLh2(1 + s/6h + V/12Lh), model FLOPs (Korthikanti et al. 2022)",
}
MAX_CONFIG_NBYTES = 4 << 20
_PLAIN_ACTIVATIONS = ("gelu", "relu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu2")
_PLAIN_TYPES = ("gpt2", "gpt_neox", "opt", "bloom", "gpt_bigcode", "gptj", "mpt", "falcon", "starcoder2")
"""model_type of configs whose MLP has two matrices; all later families gate it (three)."""


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
    dense_layers: int = 0
    """First layers without experts."""
    mla: Mla | None = None

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
        return self.experts > 0 and layer >= self.dense_layers

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

    def dense_mlp_params(self) -> int:
        """g h f."""
        return self.mlp_matrices * self.hidden * self.ffn

    def expert_params(self) -> int:
        """One routed expert."""
        return self.mlp_matrices * self.hidden * self.moe_ffn

    def n_moe(self, layers: tuple[int, ...]) -> int:
        """How many of these layers route to experts."""
        return _count_from(layers, self.dense_layers) if self.experts else 0

    def resident_params(self, layer: int) -> int:
        """Weights of a layer without its routed experts: attention, two norms, dense MLP or router and shared experts."""
        return self.resident_of(self.is_moe(layer))

    def resident_of(self, moe: bool) -> int:
        """The same, for any layer of that kind."""
        base = self.attention_params() + 2 * self.hidden
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
        return sum(self.layer_params(i) for i in range(self.layers)) + self.embedding_params + head + self.hidden

    @property
    def active_params(self) -> int:
        """Weights that one token meets, both embeddings counted."""
        return self.params - sum(self.layer_params(i) - self.active_layer_params(i) for i in range(self.layers))

    @property
    def multiplying_params(self) -> int:
        """Weights that multiply each token: active ones and the head, not the input embedding (a look-up)."""
        return sum(self.active_layer_params(i) for i in range(self.layers)) + self.vocab * self.hidden

    def attention_flops(self, seq: int) -> int:
        """Forward FLOPs a token and layer of scores and values over a full sequence: 4 n d s (MLA: 2 n s (qk + v))."""
        if self.mla is not None:
            return 2 * self.heads * seq * (self.mla.qk_nope + self.mla.qk_rope + self.mla.v_dim)
        return 4 * self.heads * self.head_dim * seq


@cache
def _count_from(layers: tuple[int, ...], first: int) -> int:
    return sum(layer >= first for layer in layers)


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


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model of a Hugging Face config.json. Raises DataError naming the missing key."""
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        config = {**config, **nested}
    read = _Reader(config, name)
    hidden, heads = read.need("hidden_size", "n_embd", "d_model"), read.need("num_attention_heads", "n_head", "n_heads")
    kind, act = str(config.get("model_type", "")), str(config.get("hidden_act", config.get("activation_function", "silu")))
    experts = read.get("num_experts", "num_local_experts", "n_routed_experts") or 0
    ffn = read.get("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim") or 4 * hidden
    moe_ffn = (read.get("moe_intermediate_size") or ffn) if experts else 0
    shared = read.get("shared_expert_intermediate_size") or (read.get("n_shared_experts") or 0) * moe_ffn
    return Model(
        name=name,
        hidden=hidden,
        layers=read.need("num_hidden_layers", "n_layer", "n_layers"),
        heads=heads,
        kv_heads=read.get("num_key_value_heads", "n_head_kv") or heads,
        head_dim=read.get("head_dim") or hidden // heads,
        ffn=ffn,
        vocab=read.need("vocab_size"),
        gated=kind not in _PLAIN_TYPES and act not in _PLAIN_ACTIVATIONS,
        # Left out of config.json means transformers' default: tied for its old families, untied where each sets it.
        tied=bool(config.get("tie_word_embeddings", kind in _PLAIN_TYPES)),
        positions=(read.get("n_positions", "max_position_embeddings") or 0) if kind in ("gpt2", "opt") else 0,
        experts=experts,
        top_k=read.need("num_experts_per_tok", "moe_topk", "num_experts_per_token") if experts else 0,
        moe_ffn=moe_ffn,
        shared_ffn=shared if experts else 0,
        dense_layers=(read.get("first_k_dense_replace") or 0) if experts else 0,
        mla=_mla(config, read),
    )


class _Reader:
    """Whole numbers of a config by one of several keys."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config, self.name = config, name

    def get(self, *keys: str) -> int | None:
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or not 0 <= value < 1 << 40:
                raise DataError(f"{self.name}: {key} is {value!r}, and no whole number")
            return int(value)
        return None

    def need(self, *keys: str) -> int:
        value = self.get(*keys)
        if value is None:
            raise DataError(f"{self.name}: no {' nor '.join(keys)}", "is it a config.json of Hugging Face?")
        return value


def _mla(config: Mapping[str, Any], read: _Reader) -> Mla | None:
    if not config.get("kv_lora_rank"):
        return None
    return Mla(
        q_lora=read.get("q_lora_rank") or 0,
        kv_lora=read.need("kv_lora_rank"),
        qk_nope=read.need("qk_nope_head_dim"),
        qk_rope=read.need("qk_rope_head_dim"),
        v_dim=read.need("v_head_dim"),
    )


def read_config(path: Path) -> Model:
    """The model of a config.json, or of the directory that holds it. Raises DataError with the path."""
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > MAX_CONFIG_NBYTES:
            raise DataError(f"{file}: more than 4 MiB is no config.json")
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as err:
        raise DataError(f"--model {file}: {err.strerror or err}", "a config.json of Hugging Face, or --preset NAME") from err
    except (ValueError, RecursionError) as err:
        raise DataError(f"{file}: not JSON: {str(err).splitlines()[0]}") from err
    if not isinstance(record, dict):
        raise DataError(f"{file}: no JSON object")
    name = str(record.get("_name_or_path") or (file.parent.name if file.name == "config.json" else file.stem) or file.stem)
    return from_config(record, name)


def presets() -> dict[str, dict[str, Any]]:
    """The known models by name, as config.json has them, each with its source."""
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))
    return found


def preset(name: str) -> Model:
    """A known model. Raises UsageError listing them."""
    known = presets()
    key = name.strip().lower().replace("_", "-")
    if key not in known:
        raise UsageError(f"no preset is called {name!r}", f"there are: {' '.join(known)}", "or give --model config.json")
    return from_config(known[key], key)
