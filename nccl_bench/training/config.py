"""A model's sizes from Hugging Face's config.json, or a preset. What would be counted wrongly is refused by its key, never guessed.

Defaults are those of transformers' configuration classes (models/*/configuration_*.py), for the families that leave a key out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccl_bench.errors import DataError, UsageError
from nccl_bench.inputs import read_json
from nccl_bench.training.model import Biases, Mla, Model

MAX_CONFIG_NBYTES = 4 << 20
_PLAIN_ACTIVATIONS = ("gelu", "relu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu2")
_PLAIN_TYPES = ("gpt2", "gpt_neox", "opt", "bloom", "gpt_bigcode", "gptj", "mpt", "falcon", "starcoder2", "phi", "codegen", "gpt_neo")
"""model_type of configs whose MLP has two matrices. Other families gate theirs (three), but for plain activations."""
_GATED_TYPES = ("gemma", "gemma2", "gemma3", "gemma3_text", "gpt_oss")
"""Families that gate an activation which elsewhere is plain."""
_TIED_TYPES = ("gpt2", "opt", "bloom", "gpt_bigcode", "mpt", "falcon", "starcoder2", "gpt_neo", "gemma", "gemma2", "gemma3", "gemma3_text", "cohere")
"""Families whose class leaves transformers' default of tie_word_embeddings (true); the others set it to false."""
_FOUR_TIMES = ("gpt2", "gpt_neo", "gptj", "codegen", "bloom", "mpt", "falcon", "gpt_bigcode")
"""Families whose MLP is 4 h wide where the config says nothing."""
_LAYER_NORMS = ("gpt2", "gpt_neox", "opt", "bloom", "gpt_bigcode", "gptj", "falcon", "starcoder2", "phi", "codegen", "gpt_neo", "stablelm")
"""Families whose norms are LayerNorms with a bias."""
_BIASED = ("gpt2", "opt", "bloom", "gpt_bigcode", "phi")
"""Families with a bias on every projection."""
_SWITCHED = {"starcoder2": ("use_bias", True), "falcon": ("bias", False), "opt": ("enable_bias", True), "gpt_neox": ("attention_bias", True)}
"""Families where one key says so for all, and its default."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k", "experts_per_token", "moe_top_k")
_NOT_DENSE = ("expert", "moe")
_OTHER_LAYERS = ("mamba_d_state", "ssm_cfg", "attn_layer_period", "state_size", "linear_num_value_heads", "hybrid_override_pattern", "rwkv_version")
"""Keys of models whose layers are not all attention and MLP."""


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model of a Hugging Face config.json. Raises DataError naming the key that is missing, or that is beyond this arithmetic."""
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        config = {**config, **nested}
    _refuse(config, name)
    read = _Reader(config, name)
    hidden, heads = read.need("hidden_size", "n_embd", "d_model"), read.need("num_attention_heads", "n_head", "n_heads")
    kind = str(config.get("model_type", ""))
    layers = read.need("num_hidden_layers", "n_layer", "n_layers")
    experts = read.get(*_EXPERTS) or 0
    ffn = _ffn(config, read, kind, hidden)
    moe_ffn = (read.get("moe_intermediate_size") or (read.need("intermediate_size") if kind == "llama4_text" else ffn)) if experts else 0
    return Model(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(config, read, kind, heads),
        head_dim=read.get("head_dim") or hidden // heads,
        ffn=ffn,
        vocab=read.need("vocab_size"),
        gated=_gated(config, kind),
        tied=bool(config.get("tie_word_embeddings", kind in _TIED_TYPES)),
        positions=_positions(read, kind),
        experts=experts,
        top_k=read.need(*_TOP_K) if experts else 0,
        moe_ffn=moe_ffn,
        shared_ffn=_shared(read, kind, moe_ffn) if experts else 0,
        dense_at=_dense_at(config, read, layers) if experts else frozenset(),
        mla=_mla(config, read),
        biases=_biases(config, kind),
        notes=_notes(config, read),
    )


def _refuse(config: Mapping[str, Any], name: str) -> None:
    """Whatever has other layers than this arithmetic knows, or experts under keys that it does not read."""
    if config.get("is_encoder_decoder"):
        raise DataError(f"{name}: an encoder with a decoder (is_encoder_decoder)", "only decoders are counted")
    kinds = {str(kind) for kind in config.get("layer_types") or () if "attention" not in str(kind) or "linear" in str(kind)}
    other = next((key for key in _OTHER_LAYERS if config.get(key)), None) or (f"layer_types {' '.join(sorted(kinds))}" if kinds else None)
    if other is not None:
        raise DataError(f"{name}: {other}: layers that are no attention", "only transformers are counted")
    if not any(config.get(key) for key in _EXPERTS):
        many = [
            key for key, value in config.items()
            if any(word in key.lower() for word in _NOT_DENSE) and isinstance(value, (int, Mapping)) and not isinstance(value, bool) and value
            and key not in _TOP_K and "aux" not in key and "moe_intermediate_size" not in key
        ]  # fmt: skip
        if many or isinstance(config.get("ffn_config"), Mapping):
            raise DataError(f"{name}: experts under keys that are not read: {' '.join(many) or 'ffn_config'}", f"read are: {' '.join(_EXPERTS)}")


def _ffn(config: Mapping[str, Any], read: _Reader, kind: str, hidden: int) -> int:
    own = ("intermediate_size_mlp",) if kind == "llama4_text" else ()
    found = read.get(*own, "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
    if found:
        return found
    if kind in _FOUR_TIMES or not kind:
        return hidden * (read.get("expansion_ratio") or 4)
    return read.need("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")


def _gated(config: Mapping[str, Any], kind: str) -> bool:
    act = str(config.get("hidden_act", config.get("activation_function", config.get("hidden_activation", "silu"))))
    return kind in _GATED_TYPES or (kind not in _PLAIN_TYPES and act not in _PLAIN_ACTIVATIONS)


def _positions(read: _Reader, kind: str) -> int:
    """Learned positions; elsewhere they are rotated in, and have no weights."""
    keys = ("n_positions", "max_position_embeddings") if kind in ("gpt2", "opt", "gpt_neo", "gpt_bigcode") else ("learned_positions",)
    return read.get(*keys) or 0


def _biases(config: Mapping[str, Any], kind: str) -> Biases:
    """Biases by family, and by the keys that switch them (transformers models/*/modeling_*.py)."""
    norms = kind in _LAYER_NORMS or bool(config.get("layer_norm"))
    if kind in _BIASED or (kind in _SWITCHED and config.get(_SWITCHED[kind][0], _SWITCHED[kind][1])):
        return Biases(qkv=True, out=True, mlp=True, norms=norms)
    if kind in ("gptj", "codegen"):
        return Biases(mlp=True, norms=norms)
    if kind == "gpt_neo":
        return Biases(out=True, mlp=True, norms=norms)
    attention = bool(config.get("attention_bias", kind == "gpt_oss"))
    return Biases(qkv=attention or bool(config.get("qkv_bias")) or kind in ("qwen2", "qwen2_moe"), out=attention and kind != "glm",
                  mlp=bool(config.get("mlp_bias")), norms=norms)  # fmt: skip


def _kv_heads(config: Mapping[str, Any], read: _Reader, kind: str, heads: int) -> int:
    """Key-value heads; multi_query of Falcon's first generation and of GPT-BigCode is one (their classes' default is true)."""
    if kind in ("falcon", "gpt_bigcode") and not config.get("new_decoder_architecture") and config.get("multi_query", True):
        return 1
    grouped = config.get("attn_config")
    if isinstance(grouped, Mapping) and grouped.get("kv_n_heads"):
        return int(grouped["kv_n_heads"])
    return read.get("num_key_value_heads", "n_head_kv", "num_kv_heads") or heads


def _shared(read: _Reader, kind: str, moe_ffn: int) -> int:
    """Width of all shared experts together; Llama 4 has one of a routed expert's width."""
    own = read.get("shared_expert_intermediate_size")
    return own if own is not None else (read.get("n_shared_experts", "moe_num_shared_experts") or (1 if kind == "llama4_text" else 0)) * moe_ffn


def _dense_at(config: Mapping[str, Any], read: _Reader, layers: int) -> frozenset[int]:
    """Layers without experts: the first ones, those listed, and all but every n-th (DeepSeek, Qwen, Llama 4)."""
    dense = set(range(min(layers, read.get("first_k_dense_replace", "moe_layer_start_index") or 0)))
    only = config.get("mlp_only_layers")
    dense |= {int(at) for at in only if isinstance(at, int)} if isinstance(only, list) else set()
    freq = config.get("moe_layer_freq")
    if isinstance(freq, list):
        dense |= {at for at, routed in enumerate(freq[:layers]) if not routed}
    elif (read.get("moe_layer_freq") or 1) > 1:
        dense |= {at for at in range(layers) if at % int(config["moe_layer_freq"])}
    step = read.get("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    return frozenset(dense | {at for at in range(layers) if (at + 1) % step})


def _notes(config: Mapping[str, Any], read: _Reader) -> tuple[str, ...]:
    notes = []
    windowed = [kind for kind in config.get("layer_types") or () if "sliding" in str(kind) or "chunked" in str(kind)]
    if windowed or (config.get("sliding_window") and config.get("use_sliding_window", True)):
        notes.append("attention windows: attention is counted over the whole sequence")
    if read.get("num_nextn_predict_layers"):
        notes.append("layers for multi-token prediction are not counted")
    if config.get("num_experts", config.get("num_local_experts")) and (config.get("mlp_bias") or config.get("model_type") == "gpt_oss"):
        notes.append("biases of experts are not counted")
    if config.get("vision_config"):
        notes.append("the vision part is not counted")
    return tuple(notes)


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
    record = read_json(file, "--model", "config.json", MAX_CONFIG_NBYTES, "a config.json of Hugging Face, or --preset NAME")
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
