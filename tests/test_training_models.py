"""Sizes of public models from their config.json, as their makers print them; what would be counted wrongly is refused."""

import pytest

from nccl_bench.errors import DataError
from nccl_bench.training.config import from_config

pytestmark = pytest.mark.pure


def config(kind, h, layers, heads, vocab, **more):
    return {"model_type": kind, "hidden_size": h, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocab, **more}


LLAMA4 = {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1,
          "hidden_act": "silu", "tie_word_embeddings": False}  # fmt: skip
# Printed totals: the model cards, or the sum of the checkpoint's tensors.
KNOWN = {
    "gpt2 124M": ({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
                   "activation_function": "gelu_new"}, 124.44e6),
    "llama-3.2-1b": (config("llama", 2048, 16, 32, 128256, num_key_value_heads=8, head_dim=64, intermediate_size=8192, hidden_act="silu",
                            tie_word_embeddings=True), 1.2358e9),
    "mistral-7b": (config("mistral", 4096, 32, 32, 32000, num_key_value_heads=8, intermediate_size=14336, hidden_act="silu",
                          tie_word_embeddings=False), 7.2417e9),
    "qwen2.5-7b": (config("qwen2", 3584, 28, 28, 152064, num_key_value_heads=4, intermediate_size=18944, hidden_act="silu",
                          tie_word_embeddings=False), 7.6156e9),
    "gemma-2b": (config("gemma", 2048, 18, 8, 256000, num_key_value_heads=1, head_dim=256, intermediate_size=16384, hidden_act="gelu"), 2.5062e9),
    "gemma-7b": (config("gemma", 3072, 28, 16, 256000, num_key_value_heads=16, head_dim=256, intermediate_size=24576,
                        hidden_activation="gelu_pytorch_tanh"), 8.5377e9),
    "falcon-7b": (config("falcon", 4544, 32, 71, 65024, multi_query=True, new_decoder_architecture=False), 6.9217e9),
    "phi-2": (config("phi", 2560, 32, 32, 51200, intermediate_size=10240, hidden_act="gelu_new", tie_word_embeddings=False), 2.7797e9),
    "gpt-neox-20b": (config("gpt_neox", 6144, 44, 64, 50432, intermediate_size=24576, hidden_act="gelu_fast", tie_word_embeddings=False), 20.5546e9),
    "bloom-176b": ({"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880}, 176.247e9),
    "qwen1.5-moe": (config("qwen2_moe", 2048, 24, 16, 151936, num_key_value_heads=16, intermediate_size=5632, moe_intermediate_size=1408,
                           shared_expert_intermediate_size=5632, num_experts=60, num_experts_per_tok=4, decoder_sparse_step=1, hidden_act="silu",
                           tie_word_embeddings=False), 14.3158e9),
    "deepseek-v2-lite": (config("deepseek_v2", 2048, 27, 16, 102400, intermediate_size=10944, moe_intermediate_size=1408, n_routed_experts=64,
                                n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1, moe_layer_freq=1, q_lora_rank=None,
                                kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, tie_word_embeddings=False), 15.7065e9),
    "gpt-oss-20b": (config("gpt_oss", 2880, 24, 64, 201088, num_key_value_heads=8, head_dim=64, intermediate_size=2880, num_local_experts=32,
                           num_experts_per_tok=4, layer_types=["sliding_attention", "full_attention"] * 12, tie_word_embeddings=False), 20.9148e9),
    "llama-4-scout": ({"model_type": "llama4", "vision_config": {}, "text_config": config("llama4_text", 5120, 48, 40, 202048, num_local_experts=16,
                                                                                         interleave_moe_layer_step=1, **LLAMA4)}, 107.77e9),
    "llama-4-maverick": (config("llama4_text", 5120, 48, 40, 202048, num_local_experts=128, interleave_moe_layer_step=2, **LLAMA4), 400.7e9),
}  # fmt: skip


@pytest.mark.parametrize("name", list(KNOWN))
def test_a_public_config_gives_the_parameters_that_are_printed(name):
    record, printed = KNOWN[name]

    # gpt-oss' experts have biases that are not counted.
    assert from_config(record, name).params == pytest.approx(printed, rel=4e-4 if name.startswith("gpt-oss") else 6e-5)


@pytest.mark.parametrize(
    ("record", "params"),
    [
        (KNOWN["gpt2 124M"][0], 124_439_808),
        (KNOWN["gpt-neox-20b"][0], 20_554_567_680),
        (KNOWN["qwen2.5-7b"][0], 7_615_616_512),
        (config("starcoder2", 3072, 30, 24, 49152, num_key_value_heads=2, intermediate_size=12288, hidden_act="gelu_pytorch_tanh"), 3_030_371_328),
    ],
)
def test_biases_are_counted_where_the_family_has_them(record, params):
    """The sums of the checkpoints' tensors, to the last one."""
    assert from_config(record, "model").params == params


def test_biases_do_not_multiply_and_follow_their_keys():
    plain = from_config(config("llama", 64, 2, 4, 100, intermediate_size=128), "m")
    biased = from_config(config("llama", 64, 2, 4, 100, intermediate_size=128, attention_bias=True, mlp_bias=True), "m")

    assert biased.params - plain.params == 2 * (4 * 64 + 2 * 128 + 64)
    assert biased.multiplying_params == plain.multiplying_params


def test_layers_without_experts_are_where_the_config_puts_them():
    moe = {"num_experts": 4, "num_experts_per_tok": 1, "intermediate_size": 64, "moe_intermediate_size": 16, "hidden_act": "silu"}
    every = from_config(config("qwen3_moe", 64, 6, 4, 100, **moe, decoder_sparse_step=2, mlp_only_layers=[5]), "m")
    first = from_config(config("deepseek_v3", 64, 6, 4, 100, **moe, first_k_dense_replace=1, moe_layer_freq=2), "m")
    listed = from_config(config("x", 64, 3, 4, 100, **moe, moe_layer_freq=[0, 1, 0]), "m")

    assert [at for at in range(6) if every.is_moe(at)] == [1, 3]
    assert [at for at in range(6) if first.is_moe(at)] == [2, 4]
    assert listed.n_moe((0, 1, 2)) == 1
    assert every.params == sum(every.layer_params(at) for at in range(6)) + 2 * 100 * 64 + 64


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (config("t5", 64, 2, 4, 100, is_encoder_decoder=True), "is_encoder_decoder"),
        (config("jamba", 64, 2, 4, 100, intermediate_size=64, attn_layer_period=8), "attn_layer_period"),
        (config("qwen3_next", 64, 2, 4, 100, intermediate_size=64, layer_types=["linear_attention", "full_attention"]), "linear_attention"),
        ({"model_type": "dbrx", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 9, "ffn_config": {"moe_num_experts": 16}}, "ffn_config"),
        (config("new", 64, 2, 4, 100, intermediate_size=64, n_experts_of_mine=8), "n_experts_of_mine"),
        (config("new", 64, 2, 4, 100), "intermediate_size"),
        (config("new", 64, 2, 4, 100, intermediate_size=64, num_experts=8), "num_experts_per_tok"),
    ],
)
def test_what_would_be_counted_wrongly_is_refused_by_its_key(record, word):
    with pytest.raises(DataError, match=word):
        from_config(record, "m")


def test_what_is_left_out_is_said():
    assert any("window" in note for note in from_config(KNOWN["gpt-oss-20b"][0], "m").notes)
    assert any("vision" in note for note in from_config({**KNOWN["mistral-7b"][0], "vision_config": {"a": 1}}, "m").notes)
    assert from_config(KNOWN["mistral-7b"][0], "m").notes == ()


def test_every_accelerator_has_a_source_and_a_name_of_the_fabric_tables():
    from nccl_bench.fabric.gpus import find
    from nccl_bench.training.compute import accelerators

    for name, row in accelerators().items():
        assert find(name).name == name
        assert len(row.source) > 20
        assert row.memory_GB not in row.other_GB
    # One die of two is a rank there, as in the fabric's table.
    assert accelerators()["MI250X"].memory_GB == 64
