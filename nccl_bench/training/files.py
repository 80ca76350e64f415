"""A framework's own configuration as a layout: DeepSpeed's JSON, Megatron's arguments, torchtitan's TOML; unknown keys are listed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nccl_bench.errors import DataError
from nccl_bench.inputs import read_json, read_text, read_toml

MAX_NBYTES = 1 << 20
Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFile:
    """What a file says."""

    layout: Values
    """Fields of a Layout."""
    unknown: tuple[str, ...]
    """Keys that have no part in a price, or that this reader does not know."""
    model: Values = field(default_factory=dict)
    """Sizes of the model as config.json names them; Megatron's arguments hold them."""
    notes: tuple[str, ...] = ()
    """What of it is priced otherwise than it runs, in words."""


def deepspeed(path: Path) -> FromFile:
    """A ds_config.json. Raises DataError with the path."""
    record = read_json(path, "--ds-config", "configuration", MAX_NBYTES)
    zero = record.get("zero_optimization") if isinstance(record.get("zero_optimization"), dict) else {}
    assert isinstance(zero, dict)
    at: Values = {"framework": "deepspeed", "zero": _int(path, "zero_optimization.stage", zero.get("stage", 0))}
    simple = {"train_batch_size": "gbs", "train_micro_batch_size_per_gpu": "mbs"}
    for key, name in simple.items():
        if record.get(key) not in (None, "auto"):
            at[name] = _int(path, key, record[key])
    steps = record.get("gradient_accumulation_steps")
    if steps not in (None, "auto"):
        at["gradient_accumulation_steps"] = _int(path, "gradient_accumulation_steps", steps)
    on = [name for name in ("bf16", "fp16") if isinstance(record.get(name), dict) and record[name].get("enabled")]
    at["param_dtype"] = {"bf16": "bfloat16", "fp16": "float16"}[on[0]] if on else "float32"
    wide = {"fp32": "float32", "fp16": "float16", "bfp16": "bfloat16", "bf16": "bfloat16"}.get(str(record.get("communication_data_type")))
    at |= {"grad_dtype": wide} if wide else {}
    at["overlap"] = frozenset({"grad"}) if zero.get("overlap_comm") else frozenset()
    at["overlap_off"] = zero.get("overlap_comm") is False
    for key, name in (("reduce_bucket_size", "reduce_bucket"), ("stage3_param_persistence_threshold", "persistent")):
        if zero.get(key) not in (None, "auto"):
            at[name] = max(1, _int(path, f"zero_optimization.{key}", zero[key]))
    at["qwz"], at["qgz"] = bool(zero.get("zero_quantized_weights")), bool(zero.get("zero_quantized_gradients"))
    at["hpz"] = _int(path, "zero_hpz_partition_size", zero.get("zero_hpz_partition_size", 1))
    at["hpz"] = at["hpz"] if at["hpz"] > 1 else 0
    parallel = record.get("tensor_parallel")
    if isinstance(parallel, dict) and parallel.get("autotp_size"):
        at["tp"] = _int(path, "tensor_parallel.autotp_size", parallel["autotp_size"])
    known = {*simple, "gradient_accumulation_steps", "bf16", "fp16", "communication_data_type", "zero_optimization", "tensor_parallel"}
    known_zero = {"stage", "overlap_comm", "reduce_bucket_size", "stage3_param_persistence_threshold", "zero_quantized_weights",
                  "zero_quantized_gradients", "zero_hpz_partition_size"}  # fmt: skip
    unknown = [key for key in record if key not in known] + [f"zero_optimization.{key}" for key in zero if key not in known_zero]
    return FromFile(layout=at, unknown=tuple(unknown))


_SIZES = {
    "tensor-model-parallel-size": "tp", "pipeline-model-parallel-size": "pp", "context-parallel-size": "cp", "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp", "micro-batch-size": "mbs", "global-batch-size": "gbs", "seq-length": "seq",
}  # fmt: skip
_MODEL = {
    "num-layers": "num_hidden_layers", "hidden-size": "hidden_size", "num-attention-heads": "num_attention_heads",
    "num-query-groups": "num_key_value_heads", "ffn-hidden-size": "intermediate_size", "kv-channels": "head_dim", "vocab-size": "vocab_size",
    "padded-vocab-size": "vocab_size", "num-experts": "num_experts", "moe-router-topk": "num_experts_per_tok",
    "moe-ffn-hidden-size": "moe_intermediate_size", "moe-shared-expert-intermediate-size": "shared_expert_intermediate_size",
    "q-lora-rank": "q_lora_rank", "kv-lora-rank": "kv_lora_rank", "qk-head-dim": "qk_nope_head_dim", "qk-pos-emb-head-dim": "qk_rope_head_dim",
    "v-head-dim": "v_head_dim", "max-position-embeddings": "max_position_embeddings",
}  # fmt: skip
_MODEL_FLAGS: dict[str, Values] = {
    "swiglu": {"hidden_act": "silu"},
    "disable-bias-linear": {"add_bias_linear": False},
    "add-qkv-bias": {"qkv_bias": True},
    "use-rotary-position-embeddings": {"position_embedding_type": "rope"},
    "untie-embeddings-and-output-weights": {"tie_word_embeddings": False},
}
_FLAGS: dict[str, Values] = {
    "sequence-parallel": {"sp": True},
    "use-distributed-optimizer": {"dist_opt": True},
    "use-tp-pp-dp-mapping": {"order": "tp-cp-ep-pp-dp"},
    "overlap-grad-reduce": {"overlap": "grad"},
    "overlap-param-gather": {"overlap": "param"},
    "tp-comm-overlap": {"overlap": "tp"},
    "overlap-p2p-communication-warmup-flush": {"overlap": "p2p"},
    "overlap-moe-expert-parallel-comm": {"overlap": "moe"},
    "grad-reduce-in-bf16": {"grad_dtype": "bfloat16"},
    "accumulate-allreduce-grads-in-fp32": {"grad_dtype": "float32"},
    "bf16": {"param_dtype": "bfloat16"},
    "fp16": {"param_dtype": "float16"},
    "recompute-activations": {"recompute": "selective"},
    "fp8-param-gather": {"fp8": True},
}


def megatron(path: Path) -> FromFile:
    """Megatron's arguments as a shell script or a list holds them. Raises DataError with the path."""
    text = read_text(path, "--megatron-args", "list of arguments", MAX_NBYTES).replace("\\\n", " ")
    try:
        words = shlex.split(_expanded(text), comments=True)
    except ValueError as err:
        raise DataError(f"{path}: cannot be split into words as a shell does: {err}") from err
    at: Values = {"framework": "megatron"}
    model: Values = {"hidden_act": "gelu", "tie_word_embeddings": True}
    overlap: set[str] = set()
    unknown: list[str] = []
    given = list(_arguments(words))
    for name, value in given:
        if name in _FLAGS:
            more = _FLAGS[name]
            overlap |= {more["overlap"]} if "overlap" in more else set()
            at |= {key: item for key, item in more.items() if key != "overlap"}
        elif name in _SIZES:
            at[_SIZES[name]] = _int(path, name, value)
        elif name in _MODEL:
            model[_MODEL[name]] = _int(path, name, value)
        elif name in _MODEL_FLAGS:
            model |= _MODEL_FLAGS[name]
        elif not _special(path, name, value, at, model):
            unknown.append(f"--{name}")
    _refuse_strangers(path, len(given), len(unknown), "--megatron-args", "arguments of Megatron-LM, as --tensor-model-parallel-size 8")
    at["overlap"] = frozenset(overlap)
    precise = at.pop("fp8_gemms", None)
    notes = (f"GEMMs run in fp8 ({precise}): priced as bf16 unless measured; --peak says the fp8 rate",) if precise else ()
    if re.search(r"^\s*(if|case)\b", text, re.MULTILINE):
        notes = (*notes, "conditions of the script are not evaluated: each of its arguments counts")
    return FromFile(layout=at, unknown=tuple(dict.fromkeys(unknown)), model=_megatron_model(model), notes=notes)


_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


def _expanded(text: str) -> str:
    """The script with its variables replaced by the numbers and words that it sets itself, or that it falls back to; others stay."""
    known: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return known.get(name, default if default is not None else match[0])

    for name, raw in re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;(]+)", text, re.MULTILINE):
        known.setdefault(name, _VARIABLE.sub(value, raw.strip("\"'")))
    return _VARIABLE.sub(value, text)


def _megatron_model(model: Values) -> Values:
    """With Megatron's own defaults (arguments.py:1319-1329; --moe-router-topk 2; biases, LayerNorm and learned positions unless told
    otherwise, transformer_config.py:212-256, gpt.py:175); empty where the arguments hold no model."""
    if "hidden_size" not in model:
        return {}
    model["attention_bias"] = model["mlp_bias"] = model.pop("add_bias_linear", True)
    model.setdefault("layer_norm", True)
    if model.pop("position_embedding_type", "learned_absolute") == "learned_absolute":
        model["learned_positions"] = model.get("max_position_embeddings", 0)
    wide = int(4 * model["hidden_size"] * 2 / 3 / 64) * 64 if model["hidden_act"] == "silu" else 4 * model["hidden_size"]
    model.setdefault("intermediate_size", wide)
    if model.get("num_experts"):
        model.setdefault("num_experts_per_tok", 2)
        model.setdefault("moe_intermediate_size", model["intermediate_size"])
    return model


def _arguments(words: list[str]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    words = [part for word in words for part in (word.split() if word.startswith("--") else [word])]
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else None
        found.append((name.replace("_", "-"), value if equals else following))
    return found


def _special(path: Path, name: str, value: str | None, at: Values, model: Values) -> bool:
    match name:
        case "normalization":
            model["layer_norm"] = value != "RMSNorm"
        case "position-embedding-type":
            model["position_embedding_type"] = value
        case "group-query-attention" | "multi-latent-attention" | "distributed-backend" | "transformer-impl":
            pass  # the sizes say it, or it has no price
        case "recompute-granularity":
            at["recompute"] = _one_of(path, name, value, ("full", "selective"))
        case "num-layers-per-virtual-pipeline-stage" | "num-virtual-stages-per-pipeline-rank":
            at["vpp_layers" if name.startswith("num-layers") else "vpp"] = _int(path, name, value)
        case "cp-comm-type":
            at["cp_comm"] = _one_of(path, name, value, ("p2p", "all_gather", "a2a"))
        case "moe-layer-freq":
            model["moe_layer_freq"] = _pattern(path, name, value)
        case "fp8-format":
            at["fp8_gemms"] = value
        case _:
            return False
    return True


def _one_of(path: Path, key: str, value: str | None, known: tuple[str, ...]) -> str:
    if value not in known:
        raise DataError(f"{path}: --{key} {value} has no price here", f"{', '.join(known)} have")
    return value


def _pattern(path: Path, key: str, value: str | None) -> int | list[int]:
    """Megatron's --moe-layer-freq: every n-th layer, or "([0]*3+[1]*58)"."""
    text = (value or "").replace(" ", "")
    if text.isdecimal():
        return _int(path, key, text)
    parts = re.fullmatch(r"\(?((?:\[[01](?:,[01])*\](?:\*\d{1,4})?\+?)+)\)?(?:\*(\d{1,4}))?", text)
    if parts is None:
        raise DataError(f"{path}: --{key} {value!r} is no number and no list of 0 and 1", "for example 2, or ([0]*3+[1]*58)")
    found = [int(bit) for part, n in re.findall(r"\[([01,]+)\](?:\*(\d+))?", parts[1]) for bit in part.split(",") * int(n or 1)]
    return found * int(parts[2] or 1)


_TITAN = {
    "parallelism.tensor_parallel_degree": "tp", "parallelism.pipeline_parallel_degree": "pp", "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep", "training.seq_len": "seq", "training.local_batch_size": "mbs", "training.global_batch_size": "gbs",
    "parallelism.data_parallel_shard_degree": "shard", "parallelism.data_parallel_replicate_degree": "replicate",
}  # fmt: skip
_TITAN_WORDS = {"activation_checkpoint.mode": "recompute", "training.mixed_precision_param": "param_dtype",
                "training.mixed_precision_reduce": "grad_dtype"}  # fmt: skip


def torchtitan(path: Path) -> FromFile:
    """A torchtitan TOML; -1 there means what is left over. Raises DataError with the path."""
    record = read_toml(path, "--torchtitan", "configuration", MAX_NBYTES)
    at: Values = {"framework": "fsdp2"}
    unknown: list[str] = []
    for key, value in _flat(record):
        if key in _TITAN:
            if value != -1:
                at[_TITAN[key]] = _int(path, key, value)
        elif key in _TITAN_WORDS:
            at[_TITAN_WORDS[key]] = str(value)
        else:
            unknown.append(key)
    _refuse_strangers(path, len(_flat(record)), len(unknown), "--torchtitan", "keys of torchtitan, as [parallelism] tensor_parallel_degree = 8")
    at["recompute"] = at["recompute"] if at.get("recompute") in ("full", "selective") else "none"
    return FromFile(layout=at, unknown=tuple(unknown))


def _refuse_strangers(path: Path, n: int, n_unknown: int, option: str, wanted: str) -> None:
    """A file of which nothing is known is another file: its defaults would be made up."""
    if n == n_unknown:
        raise DataError(f"{path}: {'nothing in it' if n == 0 else f'none of its {n} settings'} is known", f"{option} takes {wanted}")


def _flat(record: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in record.items():
        name = f"{before}{key}"
        found += _flat(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return found


def _int(path: Path, key: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        hint = "a variable that the file does not set: write the number" if str(value).startswith("$") else "write a number"
        raise DataError(f"{path}: {key} is {value!r}, and no whole number", hint) from None
    if isinstance(value, bool) or not 0 <= number < 1 << 40:
        raise DataError(f"{path}: {key} is {value!r}, and no size")
    return number
