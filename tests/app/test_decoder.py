"""Configs of language models: their weights, their layers, and what is refused by field name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from wattcast.features.errors import ModelConfigError
from wattcast.predictor.decoder import Decoder, decoder_of

FILE = Path(__file__).parents[1] / "fixtures" / "language_models.toml"
MODELS: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text())
LLAMA = MODELS["llama-3-8b"]["config"]
TWO_OF_EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 2}


def products(decoder: Decoder, *, new: int, cached: int = 0, **rest: Any) -> dict[str, int]:
    """Multiply-adds of the products with weights in a pass of one sequence, by role."""
    found: dict[str, int] = {}
    for part in decoder.forward(1, new, cached, dtype="bfloat16", kv_dtype="bfloat16", **rest):
        if part.operator["name"] == "gemm":
            m, n, k = (part.operator[name] for name in "mnk")
            found[part.role] = found.get(part.role, 0) + part.count * m * n * k
    return found


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_as_many_as_the_authors_state(name: str) -> None:
    decoder = decoder_of(MODELS[name]["config"])
    stated = MODELS[name]["parameters_billions"]
    assert decoder.parameters() / 1e9 == pytest.approx(stated, rel=0.01)


@pytest.mark.parametrize(
    "name", [name for name in MODELS if not decoder_of(MODELS[name]["config"]).latent]
)
def test_a_dense_pass_multiplies_each_weight_once_a_token(name: str) -> None:
    decoder = decoder_of(MODELS[name]["config"])
    weights = decoder.parameters() - decoder.vocabulary * decoder.hidden * (not decoder.tied)
    for layer, count in decoder.layers:
        if layer.experts is not None:
            moe = layer.experts
            weights -= count * moe.experts * 3 * decoder.hidden * moe.inner
    assert sum(products(decoder, new=1).values()) == weights


def test_llama_in_numbers_by_hand() -> None:
    decoder = decoder_of(LLAMA)
    assert decoder.cached_numbers * 32 * 2 == 131_072  # bytes of cache a token: 128 KiB
    parts = decoder.forward(8, 1024, 0, dtype="bfloat16", kv_dtype="bfloat16")
    by_role = {part.role: part for part in parts}
    assert by_role["qkv_projection"].operator["n"] == 6144
    assert by_role["qkv_projection"].operator["m"] == 8192
    assert by_role["up_projection"].operator["n"] == 28_672
    assert by_role["vocabulary"].operator["m"] == 8  # the last token of each sequence
    assert by_role["attention"].count == 32
    assert by_role["norms"].count == 65


def test_tensor_parallelism_splits_products_and_heads() -> None:
    whole = products(decoder_of(LLAMA), new=64)
    half = products(decoder_of(LLAMA), new=64, tensor_parallel=2)
    assert {role: 2 * macs for role, macs in half.items()} == whole


def test_windows_shorten_the_cache() -> None:
    gemma = decoder_of(MODELS["gemma-3-12b"]["config"])
    assert {layer.window: count for layer, count in gemma.layers} == {1024: 40, 0: 8}
    assert gemma.cached_tokens(8192) == 40 * 1024 + 8 * 8192


def test_published_configs_leave_out_what_their_class_fills_in() -> None:
    gemma, falcon = (decoder_of(MODELS[name]["config"]) for name in ("gemma-3-27b", "falcon-40b"))
    assert {layer.window: count for layer, count in gemma.layers} == {1024: 52, 0: 10}
    assert gemma.vocabulary == 262_208
    assert falcon.kv_heads == 8  # `multi_query` is of its first architecture alone
    assert decoder_of(MODELS["falcon-7b"]["config"]).kv_heads == 1
    assert decoder_of(MODELS["qwen3-0-6b"]["config"]).query_size == 16 * 128


def test_first_layers_of_deepseek_are_dense() -> None:
    decoder = decoder_of(MODELS["deepseek-v3"]["config"])
    assert [(layer.inner, count) for layer, count in decoder.layers] == [(18432, 3), (0, 58)]
    assert decoder.cached_numbers == 576


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 4096.0}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"vocab_size": True}, "vocab_size"),
        ({"hidden_size": 4100}, "head_dim"),
        ({"head_dim": 2000}, "head_dim"),
        ({"head_dim": 33}, "head_dim"),
        ({"num_attention_heads": 2048}, "num_attention_heads"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"ssm_state_size": 16}, "ssm_state_size"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({"num_local_experts": 8}, "num_experts_per_tok"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({**TWO_OF_EIGHT, "mlp_only_layers": "all"}, "mlp_only_layers"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"model_type": ["llama"]}, "model_type"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        decoder_of({**LLAMA, **change})
    assert caught.value.context["field"] == field
