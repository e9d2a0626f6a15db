"""Energy of a language model: sums of operators, over HTTP, the command line and Python alike."""

from __future__ import annotations

import json
import tomllib
from math import sqrt
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattcast
from tests.app.conftest import Run
from tests.app.test_problems import problem
from wattcast.features.errors import LaunchError, ModelConfigError
from wattcast.models.intervals import Basis
from wattcast.predictor.decoder import UNLIKE, Decoder, decoder_of
from wattcast.predictor.language_model import SHARED, _ends, _Sum, _weights
from wattcast.predictor.messages.language_model import LanguageModelAnswer

FILE = Path(__file__).parents[1] / "fixtures" / "language_models.toml"

CONFIGS: dict[str, dict[str, Any]] = {
    name: each["config"] for name, each in tomllib.loads(FILE.read_text()).items()
}

LLAMA = CONFIGS["llama-3-8b"]


def ask(config: dict[str, Any] = LLAMA, **options: Any) -> LanguageModelAnswer:
    options = {"gpu": "h200-sxm5", "batch": 8, "prompt": 512, "generate": 64, **options}
    return wattcast.language_model(config, registry=False, **options)


def test_the_parts_sum_up_to_the_whole() -> None:
    answer = ask()
    for value in ("seconds", "joules"):
        whole = answer.time.seconds if value == "seconds" else answer.energy.joules
        parts = sum(getattr(row, value) for row in answer.operators)
        assert parts == pytest.approx(whole, rel=1e-9)
        phases = [each.time.seconds if value == "seconds" else each.energy.joules
                  for each in answer.phases]  # fmt: skip
        assert sum(phases) == pytest.approx(whole, rel=1e-9)
    assert sum(row.energy_share for row in answer.operators) == pytest.approx(1, rel=1e-9)
    for each in (answer.time, answer.power, answer.energy):
        assert each.low < each.high
    assert answer.power.watts * answer.time.seconds == pytest.approx(answer.energy.joules)
    assert answer == ask()
    launches = {(row.phase, row.role): row.launches for row in answer.operators}
    assert launches["decode", "vocabulary"] == 63  # the first token comes of the prompt
    assert launches["decode", "attention"] == 63 * 32


def test_few_answered_steps_stand_for_all() -> None:
    few = ask(prompt=100, generate=400).phases[1]
    total = [0.0, 0.0]
    for step in range(0, 399, 7):  # every seventh step, alone
        (point,) = ask(prompt=100 + step, generate=2).steps
        total[0] += point.seconds * 7
        total[1] += point.joules * 7
    assert few.time.seconds == pytest.approx(total[0], rel=0.01)
    assert few.energy.joules == pytest.approx(total[1], rel=0.01)


def test_half_widths_are_joined_as_worked_out_by_hand() -> None:
    def part(kind: str, role: str, joules: float, basis: Basis = "unseen_kernel") -> _Sum:
        width = (0.8, 1.3)
        return _Sum("decode", role, kind, kind, 1, 1.0, joules, joules, width, width, width, basis)

    shared = SHARED[False]
    apart = [part("gemm", "up", 100.0), part("decode", "attention", 100.0)]
    low, high = _ends(apart, "joules", "energy_width")
    assert 200 - low == pytest.approx(sqrt(shared * 40**2 + (1 - shared) * 2 * 20**2))
    assert high - 200 == pytest.approx(sqrt(shared * 60**2 + (1 - shared) * 2 * 30**2))
    alike = [part("gemm", "up", 100.0), part("gemm", "up", 100.0)]
    assert _ends(alike, "joules", "energy_width") == pytest.approx((160.0, 260.0))
    guess = [*apart[:1], part("decode", "attention", 100.0, "uncalibrated")]
    assert SHARED[True] > shared
    assert _ends(guess, "joules", "energy_width")[1] > high


@given(st.integers(1, 5000), st.integers(1, 3000), st.integers(1, 12))
def test_weights_of_answered_steps_count_every_step(first: int, steps: int, nodes: int) -> None:
    last = first + steps - 1
    lengths = sorted({round(first + (last - first) * at / max(nodes - 1, 1)) for at in range(nodes)}
                     | {first, last})  # fmt: skip
    weights = _weights(lengths, steps)
    assert sum(weights.values()) == pytest.approx(steps)
    exact = sum(range(first, last + 1))
    assert sum(at * weight for at, weight in weights.items()) == pytest.approx(exact)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_public_config_is_forecast(name: str) -> None:
    large = {"deepseek-v3": 16, "kimi-k2": 16, "gpt-oss-120b": 2, "glm-4-5-air": 2,
             "qwen3-235b-a22b": 4, "deepseek-v2": 4, "dbrx": 4}  # fmt: skip
    parallel = large.get(name, 1)
    answer = ask(CONFIGS[name], generate=8, tensor_parallel=parallel)
    assert answer.gpus == parallel
    assert answer.joules_per_token > 0
    # No decoding step is faster than its weights can be read: of experts, those that are hit.
    decode = answer.phases[1]
    if not any("expert" in row.role for row in answer.operators):
        least = answer.model.weight_bytes / 4.8e12
        assert decode.time.seconds / 7 > 0.95 * least


def test_more_work_takes_longer_and_more_per_token_at_small_batches() -> None:
    curve = ask(batches=[1, 2, 4, 8, 16, 32, 64]).curve
    rates = [point.tokens_per_second for point in curve]
    joules = [point.joules_per_token for point in curve]
    assert rates == sorted(rates)  # type: ignore[type-var]
    assert joules == sorted(joules, reverse=True)  # type: ignore[type-var]
    assert [point.batch for point in curve if point.pareto] == [64]


def test_a_lower_power_limit_is_slower_and_never_draws_more() -> None:
    curve = ask(prompt=4096, generate=0, power_limits_watts=[300, 500, 700]).curve
    rates = [point.tokens_per_second for point in curve]
    assert rates == sorted(rates)  # type: ignore[type-var]
    assert rates[0] < rates[-1]  # type: ignore[operator]
    for point, limit in zip(curve, (300, 500, 700), strict=True):
        assert point.watts is not None
        assert point.watts <= 1.05 * limit


def test_short_calls_are_told_without_pauses_too() -> None:
    """Readings of experts' short calls on H200 follow pauses: 180 W at 4 TB/s, where long calls
    that stream as fast read over 600 W. The interval holds both and the limit binds the latter."""
    answer = ask(CONFIGS["mixtral-8x7b"], generate=512)
    assert answer.sustained_watts > 1.5 * answer.power.watts
    assert answer.power.high >= answer.sustained_watts > 550
    assert answer.energy.high >= answer.sustained_watts * answer.time.seconds * (1 - 1e-9)
    assert [each.code for each in answer.warnings].count("short_calls") == 1
    held = ask(CONFIGS["mixtral-8x7b"], generate=512, power_limit_watts=300)
    assert held.time.seconds > answer.time.seconds
    assert held.sustained_watts <= 300
    steady = ask(prompt=4096, generate=0)
    assert steady.sustained_watts == pytest.approx(steady.power.watts, rel=0.1)
    assert "short_calls" not in [each.code for each in steady.warnings]


def test_a_training_step_is_forward_backward_and_optimizer() -> None:
    answer = ask(CONFIGS["qwen2-5-0-5b"], train=True, batch=4, prompt=2048)
    assert [each.phase for each in answer.phases] == ["forward", "backward", "optimizer"]
    forward, backward, _ = answer.phases
    assert backward.time.seconds / forward.time.seconds == pytest.approx(2.05, abs=0.1)
    assert answer.tokens == 4 * 2048


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block", "nvfp4"])
def test_every_format_of_products_is_answered(dtype: str) -> None:
    """Attention has no blocks with scales: it stays in 16 bits beside such products."""
    for config in (LLAMA, CONFIGS["qwen3-30b-a3b"]):
        few, plain = ask(config, gpu="b200", dtype=dtype), ask(config, gpu="b200")
        assert few.model.weight_bytes < 0.6 * plain.model.weight_bytes
        attention = [
            {row.phase: row.joules for row in answer.operators if row.role == "attention"}
            for answer in (few, plain)
        ]
        assert (attention[0] == attention[1]) == (dtype != "fp8")


def test_overheads_are_added_where_they_are_given() -> None:
    plain, more = ask(), ask(overhead_share=0.25)
    assert more.energy.joules == pytest.approx(1.25 * plain.energy.joules)
    assert more.time.seconds == pytest.approx(1.25 * plain.time.seconds)
    assert plain.not_included
    assert not more.not_included


def test_what_does_not_fit_in_memory_says_so() -> None:
    with pytest.raises(LaunchError, match="do not fit into") as caught:
        ask(CONFIGS["llama-3-70b"], gpu="h100-sxm5")
    assert caught.value.context["field"] == "tensor_parallel"
    with pytest.raises(LaunchError, match="cache of") as caught:
        ask(batch=4096, prompt=8192)
    assert caught.value.context["field"] == "batch"
    with pytest.raises(LaunchError, match="does not divide"):
        ask(tensor_parallel=3)


HOSTILE = st.sampled_from([
    None, True, 0, 1, -1, 3, 2**24, 2**63, 10**30, 1.5, float("nan"), "", "32", "a" * 70, "\ud800",
    [], [0], [10**30], ["full_attention"] * 32, {}, {"hidden_size": -1},
])  # fmt: skip

NAMES = sorted({name for config in CONFIGS.values() for name in config} | {
    "text_config", "layer_types", "sliding_window_pattern", "mlp_only_layers", "moe_layers",
    "n_inner", "multi_query", "max_window_layers",
})  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    damage=st.dictionaries(st.sampled_from(NAMES), HOSTILE, max_size=3),
    gone=st.sets(st.sampled_from(NAMES), max_size=1),
    options=st.fixed_dictionaries({
        "batch": st.sampled_from([1, 8, 4096]), "prompt": st.sampled_from([1, 512, 2**20]),
        "generate": st.sampled_from([0, 1, 2, 64, 2**20]), "train": st.booleans(),
        "dtype": st.sampled_from(["bfloat16", "fp8", "fp8_block"]), "batches": st.just([1, 64]),
        "tensor_parallel": st.sampled_from([1, 2, 3, 8, 64]),
    }),
)  # fmt: skip
def test_damaged_configs_are_forecast_or_refused(
    name: str, damage: dict[str, Any], gone: set[str], options: dict[str, Any]
) -> None:
    config = {key: value for key, value in CONFIGS[name].items() if key not in gone}
    try:
        answer = ask({**config, **damage}, **options)
    except (ModelConfigError, LaunchError) as error:
        assert error.context["field"]  # noqa: PT017
        assert len(str(error)) < 400  # noqa: PT017
        return
    assert answer.json_bytes()
    for each in (answer.time.seconds, answer.energy.joules):
        assert 0 < each < 1e12
    assert 0 < answer.energy.low <= answer.energy.joules <= answer.energy.high
    assert answer.power.watts < 1.06 * 700 * options["tensor_parallel"]
    assert sum(row.joules for row in answer.operators) == pytest.approx(answer.energy.joules)


def test_a_curve_is_the_answers_at_its_points() -> None:
    """Operators are answered together and once; alone they are the same."""
    for point in ask(batches=[4, 1]).curve:
        alone = ask(batch=point.batch)
        assert point.joules_per_token == pytest.approx(alone.joules_per_token, rel=1e-12)
        assert point.tokens_per_second == pytest.approx(alone.tokens_per_second, rel=1e-12)
    for point in ask(power_limits_watts=[700.0, 400.0]).curve:
        alone = ask(power_limit_watts=point.power_limit_watts)
        assert point.joules_per_token == pytest.approx(alone.joules_per_token, rel=1e-12)
    held = ask(power_limit_watts=500.0, power_limits_watts=[300.0])
    assert held.joules_per_token == ask(power_limit_watts=500.0).joules_per_token


def test_http_answers_the_same_and_names_the_field(client: httpx.Client) -> None:
    body = {"config": LLAMA, "gpu": "h200", "batch": 8, "prompt": 512, "generate": 64}
    answer = client.post("/language-models", json=body).json()
    assert answer["energy"]["joules"] == ask().energy.joules
    bad = {**body, "config": {**LLAMA, "num_hidden_layers": "32"}}
    found = problem(client.post("/language-models", json=bad), 422, "model-config")
    assert found["field"] == "num_hidden_layers"
    problem(client.post("/language-models", json={**body, "batch": 0}), 422, "validation")
    problem(client.post("/language-models", json={**body, "gpu": "nope"}), 422, "gpu")


def test_the_command_reads_a_file_or_its_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    asked = ("--gpu", "h200", "--batch", "8", "--prompt", "512", "--generate", "64")
    told, _ = run("model", str(tmp_path), *asked, "--power-limits", "400..700", "--batches", "1",
                  status=2)  # fmt: skip
    told, _ = run("model", str(tmp_path), *asked, "--power-limits", "400..700")
    assert "8.03 billion parameters" in told
    assert "Pareto" in told
    answer, _ = run("model", str(tmp_path / "config.json"), *asked, "--dtype", "bf16", "--json")
    assert json.loads(answer)["energy"]["joules"] == ask().energy.joules
    (tmp_path / "config.json").write_text("{}")
    _, told = run("model", str(tmp_path), *asked, status=2)
    assert told.count("\n") == 1
    assert "hidden_size is missing" in told


# --- Configs of language models: their weights, their layers, and what is refused by field name

MODELS: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text())

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
        *[({name: 1}, name) for name in UNLIKE],
        ({"num_moe_experts": 8}, "num_experts"),
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
