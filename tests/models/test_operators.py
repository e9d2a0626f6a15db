"""Operators: what a call computes and moves, and interpolation between measured shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from studies.fitting.operators import BOARDS
from studies.operators import EXTENTS, LENT, lines, physics
from wattcast.app.settings import Settings
from wattcast.features.errors import ClockError
from wattcast.features.gpus import load_gpu
from wattcast.features.operators import (
    FEATURE_NAMES,
    attended,
    board_of,
    cached_seconds,
    expert_load,
    expert_tiles,
    features,
    operator_schema,
    quantities,
    tuned_tiles,
)
from wattcast.models import operators as module
from wattcast.models.operators import Axis, Operators, Trees, corners, held_clock, limited
from wattcast.predictor import Predictor
from wattcast.predictor.messages.operators import OperatorOptions
from wattcast.predictor.messages.predict import PredictAnswer
from wattcast.predictor.operators import predicted as answered
from wattcast.predictor.parts.operators import OPERATOR, Asked, model_of

OPERATORS = Operators()


def columns(**values: float) -> dict[str, np.ndarray]:
    return {name: np.array([value], dtype=float) for name, value in values.items()}


BF16 = {"math_bits": 16.0, "weight_bits": 16.0, "block_scaled": 0.0, "framework": 0.0}


def test_the_schema_names_every_column_with_its_unit() -> None:
    assert tuple(field.name for field in operator_schema().fields) == FEATURE_NAMES


def test_flops_and_bytes_of_a_product() -> None:
    found = quantities("gemm", columns(rows=3, columns=5, depth=7, batch=2, **BF16))
    assert found.flops[0] == 2 * 2 * 3 * 5 * 7
    assert found.bytes[0] == 2 * 2 * (5 * 7 + 3 * 7 + 3 * 5)


@given(new=st.integers(1, 40), cached=st.integers(0, 40), window=st.integers(0, 50))
def test_attended_pairs_are_those_counted_one_by_one(new: int, cached: int, window: int) -> None:
    counted = sum(min(cached + i, window or 10**9) for i in range(1, new + 1))
    told = attended(*(np.array([float(x)]) for x in (new, cached, window, 1)))
    assert told[0] == counted


@given(
    st.integers(1, 4096),
    st.sampled_from([(8, 2, 1), (128, 8, 4), (256, 8, 64)]),
    st.sampled_from([0.0, 1.01, 1.2]),
)
def test_experts_get_every_token_but_no_more(
    tokens: int, layer: tuple[int, int, int], law: float
) -> None:
    experts, topk, ranks = layer
    routed, hit, largest, *tiles = expert_load(tokens, topk, experts, ranks, law)
    assert hit <= experts / ranks
    assert largest <= tokens + 0.5
    if ranks == 1:
        assert routed == pytest.approx(tokens * topk, rel=0.02, abs=experts * 0.6)
    assert tiles[0] >= tiles[1] >= tiles[2] >= hit * 0.99


def test_experts_take_tiles_by_a_rule_where_vllm_ships_no_tuned_ones() -> None:
    """``E=128,N=192`` is shipped for A100 (bfloat16); E and N are a GPU's own."""
    layer = {"experts": 256.0, "expert_parallel": 2.0, "weight_bits": [16.0, 16.0, 16.0, 8.0]}
    layer |= {"inner": 768.0, "tensor_parallel": [4.0, 2, 2, 4], "tokens": [128.0, 128, 129, 1]}
    names, values = zip(*layer.items(), strict=True)
    call = dict(zip(names, np.broadcast_arrays(*values), strict=True))
    call["tuned"] = tuned_tiles("a100-sxm4-80gb", call)
    assert call["tuned"].tolist() == [1, 0, 0, 0]
    assert expert_tiles(call)["row_tile"].tolist() == [0, 16, 64, 16]
    assert not tuned_tiles("pooled", call).any()


def test_an_a100_computes_fp8_at_its_16_bit_rate() -> None:
    board = board_of(load_gpu("a100-sxm4-80gb"))
    assert board.tensor == {16: 312e12, 8: 312e12, 4: 312e12}


def test_operands_in_l2_cost_no_bandwidth_of_memory() -> None:
    board = board_of(load_gpu("l40s"))
    moved = np.array([1.0, 2.0]) * board.l2_bytes / 2
    told = cached_seconds(moved, np.zeros(2), board)
    assert told[0] == pytest.approx(moved[0] / board.l2_bandwidth)
    assert told[1] == pytest.approx(moved[0] / board.bandwidth)
    assert told[1] > 2 * told[0]


def test_limits_hold_products_back_on_boards_nobody_measured() -> None:
    pooled = OPERATORS.of("pooled")
    assert pooled is not None
    held_back = pooled.card.operators["gemm"].time.held_back
    assert held_back is not None
    boards = [board_of(load_gpu(gpu)) for gpu in ("a100-sxm4-80gb", "h100-sxm5", "h100-pcie")]
    a100, sxm, pcie = (held_clock(board, held_back) for board in boards)
    assert a100 > 0.98 > sxm > pcie  # 400 W for 312 TFLOP/s, 700 W for 989, 350 W for 819
    call = columns(rows=8192, columns=8192, depth=8192, batch=1, **BF16)
    seconds = [pooled.predict("gemm", call, board).seconds[0] for board in boards]
    shares = [2 * 8192**3 / s / b.tensor[16] for s, b in zip(seconds, boards, strict=True)]
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] / shares[0] == pytest.approx(pcie / a100, rel=0.15)


def test_experts_whose_inner_size_16_does_not_divide_take_longer(tmp_path: Path) -> None:
    """Measured on an H200: 88 values of inner size in .719 ms, 96 in .264, 4,096 tokens."""
    predictor, gpu = Predictor(Settings(home=tmp_path)), load_gpu("h200")
    layer = {"name": "moe", "tokens": 4096, "hidden": 2048, "topk": 8, "experts": 128,
             "distribution": "balanced"}  # fmt: skip
    told = {}
    for inner in (96, 100, 104, 112, 128):
        operator = {**layer, "inner": inner * 8, "tensor_parallel": 8}
        asked = Asked(OPERATOR.validate_python(operator), gpu, OperatorOptions())
        (answer,) = answered(predictor, [asked])
        assert isinstance(answer, PredictAnswer)
        assert answer.time
        told[inner] = answer.time.seconds
    assert told[96] == pytest.approx(0.264e-3, rel=0.15)
    assert min(told[100], told[104]) > 1.5 * max(told[96], told[112])
    assert told[112] < 1.3 * told[96]
    assert told[128] < 1.5 * told[96]


def test_vectors_are_finite_where_an_operator_has_a_value() -> None:
    board = board_of(load_gpu("h200"))
    vectors, _ = features("gemm", columns(rows=1, columns=32, depth=32, batch=1, **BF16), board)
    missing = {name for name, v in zip(FEATURE_NAMES, vectors[0], strict=True) if np.isnan(v)}
    assert {"tokens", "heads"} <= missing
    assert not missing & {"flops", "rows", "roofline_seconds", "waves_128x128"}


KNOTS: dict[str, tuple[float, ...]] = {
    "rows": (1.0, 16.0, 4096.0),
    "columns": (32.0, 1024.0),
    "depth": (64.0, 128.0, 8192.0),
}
KNOTS_OF = {name: Axis(values) for name, values in KNOTS.items()}


@given(st.floats(1, 4096), st.floats(32, 1024), st.floats(64, 8192))
def test_corners_surround_a_call_with_weights_of_one(m: float, n: float, k: float) -> None:
    found = corners(columns(rows=m, columns=n, depth=k), KNOTS_OF)
    assert found.inside.all()
    assert found.weights.sum() == pytest.approx(1.0)
    assert len(found.weights) <= 4
    for name, value in (("rows", m), ("columns", n), ("depth", k)):
        assert set(found.call[name]) <= set(KNOTS[name])
        mean = np.exp((found.weights * np.log(found.call[name] + 1)).sum()) - 1
        assert mean == pytest.approx(value, rel=1e-6)


def test_a_measured_shape_is_its_own_corner_and_beyond_the_sweep_its_end_stands() -> None:
    at = corners(columns(rows=16, columns=32, depth=64), KNOTS_OF)
    assert at.weights.tolist() == [1.0]
    beyond = corners(columns(rows=9999, columns=32, depth=64), {"rows": KNOTS_OF["rows"]})
    assert not beyond.inside[0]
    assert beyond.call["rows"].tolist() == [4096.0]


def test_a_limit_lengthens_what_the_clock_bounds() -> None:
    compute = limited(1.0, 700.0, 100.0, 1.0, 500.0)
    memory = limited(1.0, 700.0, 100.0, 0.0, 500.0)
    assert compute.seconds > 1.05 > 1.0 == pytest.approx(memory.seconds)
    assert max(compute.watts, memory.watts) <= 500.0 + 1e-6
    assert limited(1.0, 400.0, 100.0, 1.0, 500.0).seconds == 1.0
    with pytest.raises(ClockError, match="draws 100 W idle"):
        limited(1.0, 700.0, 100.0, 0.5, 99.0)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [*BOARDS, *LENT])
@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32))
def test_nothing_is_above_a_peak_or_falls_with_tokens_and_neighbours_are_near(
    gpu: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    predictor = Predictor(Settings(home=tmp_path_factory.mktemp("home")))
    for kind in EXTENTS:
        found = physics(predictor, gpu, kind, 40, seed)
        assert found.answered > 5  # an A40 multiplies few of the formats
        assert found.above == 0
        assert found.falls <= 0.03 * found.raised, kind
        assert found.beyond <= 0.02 * found.near, kind


@pytest.mark.parametrize("gpu", ["h100-sxm5", "l40s", "rtx-pro-6000-server", "h200-sxm5", "b200"])
def test_a_recurrence_that_was_not_measured_is_not_told_by_convolutions(
    gpu: str, tmp_path: Path
) -> None:
    """Mamba 2's recurrence was measured on B200 alone: trees of convolutions took up to 3.5 % of
    steps with more tokens for shorter. H200's trees have learnt from B200's rows."""
    predictor, profile = Predictor(Settings(home=tmp_path)), load_gpu(gpu)
    told = {recurs: model_of(predictor, "mamba2", profile, recurs) for recurs in (False, True)}
    assert told[False].card.gpu == gpu
    assert "stage" in told[True].card.operators["mamba2"].time.inputs
    assert (told[True].pooled) == (gpu not in ("h200-sxm5", "b200"))
    for kind in ("mamba2", "gdn"):
        found = physics(predictor, gpu, kind, 300, 5)
        assert found.falls <= 0.006 * found.raised, kind


def test_a_board_nobody_measured_is_answered_by_one_of_its_compute_capability() -> None:
    gb200, pooled, b200 = load_gpu("gb200"), OPERATORS.of("pooled"), OPERATORS.of("b200")
    lent = OPERATORS.near(gb200, "gemm", "power")
    assert lent is not None
    assert pooled is not None
    assert b200 is not None
    assert (lent.card.gpu, lent.pooled, lent.basis(True)) == ("b200", True, "uncalibrated")
    assert lent.width("gemm", "time", True) == pooled.width("gemm", "time", True)
    call = columns(rows=8192, columns=8192, depth=8192, batch=1, **BF16)
    own = b200.predict("gemm", call, board_of(load_gpu("b200")))
    told = lent.predict("gemm", call, board_of(gb200))
    assert 0.8 < told.seconds[0] / own.seconds[0] < 1.0
    assert told.watts[0] / 1200.0 == pytest.approx(own.watts[0] / 1000.0, rel=0.05)
    # Of two Hoppers that with more formats measured tells times, that with watts the power.
    hopper = load_gpu("h200-nvl")
    found = [OPERATORS.near(hopper, "gemm", quantity) for quantity in ("time", "power")]
    assert [one and one.card.gpu for one in found] == ["h100-sxm5", "h200-sxm5"]
    # An L40S is held back by its limit in products, a GeForce board with its chip is not.
    for other in ("a40", "rtx-4090", "h100-pcie"):
        assert OPERATORS.near(load_gpu(other), "gemm") is None


def test_an_operator_with_watts_of_one_board_alone_has_an_interval_on_others() -> None:
    lent = OPERATORS.near(load_gpu("gb200"), "mamba2", "power")
    pooled = OPERATORS.of("pooled")
    assert lent
    assert pooled
    assert not pooled.has_power("mamba2")
    low, high = lent.width("mamba2", "power", True)
    assert low <= pooled.width("gemm", "power", True)[0] < 1 < high


def test_beyond_the_sweep_a_product_stays_as_far_behind_its_roofline() -> None:
    model, board = OPERATORS.of("h200-sxm5"), board_of(load_gpu("h200"))
    assert model is not None
    shape = {"columns": np.full(3, 8192.0), "depth": np.full(3, 8192.0), "batch": np.ones(3)}
    rows = np.array([32768.0, 33_095.0, 65_536.0])
    call = shape | {name: np.full(3, value) for name, value in BF16.items()} | {"rows": rows}
    told = model.predict("gemm", call, board)
    assert told.inside.tolist() == [True, False, False]
    assert told.seconds / told.seconds[0] == pytest.approx(rows / rows[0], rel=1e-3)


def test_a_product_between_sweep_values_takes_no_less_than_the_least_of_them() -> None:
    model, board, one = OPERATORS.of("h200-sxm5"), board_of(load_gpu("h200")), np.ones(41)
    assert model is not None
    fp8 = {
        "math_bits": 8 * one,
        "weight_bits": 8.25 * one,
        "block_scaled": one,
        "framework": 0 * one,
    }
    shape = {"rows": np.linspace(4353, 8192, 41), "columns": 64 * one, "depth": 512 * one}
    seconds = model.predict("gemm", {**shape, "batch": one, **fp8}, board).seconds
    assert seconds.min() >= 0.9999 * min(seconds[0], seconds[-1])


def test_onnx_tells_what_the_native_trees_tell() -> None:
    board, model = board_of(load_gpu("h200")), Operators().of("h200-sxm5")
    assert model is not None
    trees = model.trees("gemm", "power")
    assert trees is not None
    call = columns(rows=512, columns=4096, depth=2048, batch=1, **BF16)
    vectors, _ = features("gemm", call, board)
    native = trees.native.score(vectors[:, trees.at])
    assert trees.score(vectors) == pytest.approx(native, abs=1e-5)


def test_neighbours_that_calls_share_are_asked_of_the_trees_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, board = OPERATORS.of("h200-sxm5"), board_of(load_gpu("h200"))
    assert model is not None
    rows: list[int] = []
    score = Trees.score_inputs

    def counted(self: Trees, inputs: np.ndarray) -> np.ndarray:
        rows.append(len(inputs))
        return score(self, inputs)

    monkeypatch.setattr(Trees, "score_inputs", counted)
    sizes = np.linspace(100.0, 4000.0, 500)
    many = {name: np.full(500, value) for name, value in {"batch": 1.0, **BF16}.items()}
    call = many | {"rows": sizes, "columns": np.full(500, 5000.0), "depth": np.full(500, 3000.0)}
    told = model.predict("gemm", call, board)
    assert max(rows) <= 4 * 74  # sweep values of rows, two each of columns and depth
    alone = [
        model.predict("gemm", {k: v[at : at + 1] for k, v in call.items()}, board).seconds[0]
        for at in range(0, 500, 50)
    ]
    assert told.seconds[::50] == pytest.approx(alone, rel=1e-5)
    rows.clear()
    again = model.predict("gemm", call | {"rows": sizes + 0.25}, board)
    assert not rows  # all neighbours are known
    assert again.seconds == pytest.approx(told.seconds, rel=0.02)


@pytest.mark.parametrize("kind", ["gemm", "prefill", "decode", "moe", "quantize", "gdn"])
def test_what_is_kept_answers_to_the_last_digit_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    draw, gpu = np.random.default_rng(3), "a40"
    shapes = {
        "rows": 9000, "columns": 9000, "depth": 9000, "new": 4000, "cached": 9000, "heads": 64,
        "kv_heads": 8, "head_size": 256, "window": 128, "tokens": 9000, "hidden": 8000,
        "inner": 9000, "topk": 8, "experts": 128, "key_heads": 16, "key_size": 128,
    }  # fmt: skip
    call = {name: draw.integers(1, most, 600).astype(float) for name, most in shapes.items()}
    ones = {"batch", "causal", "stage", "tensor_parallel", "expert_parallel", "gated"}
    call |= {name: np.ones(600) for name in ones}
    call |= {name: np.full(600, value) for name, value in BF16.items()}
    call |= {"distribution": np.full(600, 1.01)}
    board = board_of(load_gpu(gpu))

    def answers(*parts: slice) -> list[np.ndarray]:
        model = Operators().of("pooled")
        assert model is not None
        for part in parts:
            found = model.predict(kind, {k: v[part] for k, v in call.items()}, board)
        assert sum(map(len, model._kept._of.values())) <= 4000
        return [each[-100:] for each in (found.seconds, found.watts, found.vectors)]

    monkeypatch.setattr(module, "MOST_KEPT", 4000)
    whole = answers(slice(None))
    for parts in ([slice(500, None)], [slice(0, 300), slice(450, None), slice(500, None)]):
        for one, other in zip(whole, answers(*parts), strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_study_names_boards_left_out_and_trees_of_another_family() -> None:
    pooled, a100 = (OPERATORS.of(name) for name in ("pooled", "a100-sxm4-80gb"))
    assert pooled is not None
    assert a100 is not None
    told = [line for line in lines(pooled.card) if line[1:3] == ("gemm", "time")]
    assert [line[3].removeprefix("board ") for line in told] == list(BOARDS)
    power = [line[3] for line in lines(pooled.card) if line[1:3] == ("gemm", "power")]
    assert power == ["board h200-sxm5", "board b200"]
    beside = {line[1:4]: float(line[5]) for line in lines(a100.card)}
    kinds = {kind for kind, _, left in beside if left == "shape groups, catboost"}
    assert kinds == {"gemm", "prefill", "decode", "moe"}
    for kind in kinds:  # what serves is worse by less than a tenth
        own, other = (beside[kind, "time", f"shape groups{of}"] for of in ("", ", catboost"))
        assert own < 1.1 * other
