"""``python -m studies language-models``: sums of operators beside the rows of their very calls."""

from __future__ import annotations

import numpy as np

from studies.fitting.operators import Rows, widths
from studies.language_models import Measured, errors, rows_of
from tests.app.test_language_model import CONFIGS
from tests.needs import needs_data
from wattcast.app.settings import Settings
from wattcast.predictor import Predictor
from wattcast.predictor.decoder import decoder_of

pytestmark = needs_data


def test_a_row_is_found_by_its_call_and_smoothed_along_its_tokens() -> None:
    rows = rows_of("quantize", "h200-sxm5")
    measured = Measured(rows)
    for at in (0, 7, len(rows) - 1):
        one = rows.taken(np.array([at]))
        found = measured.find(one.call)
        assert found is not None
        assert found[:2].tolist() == [one.seconds[0], one.watts[0]]
        curve = rows.watts[rows.call["columns"] == one.call["columns"]]
        assert curve.min() <= found[2] <= curve.max()
    one.call["rows"] += 0.5
    assert measured.find(one.call) is None


def test_sums_are_of_measured_calls_alone() -> None:
    predictor, decoder = Predictor(Settings()), decoder_of(CONFIGS["phi-3-mini"])
    parts = decoder.forward(8, 1024, 0, dtype="bfloat16", kv_dtype="bfloat16")
    assert errors(predictor, "h200-sxm5", parts, {}) is None
    tables = {"gemm": Measured(rows_of("gemm", "h200-sxm5"))}
    found = errors(predictor, "h200-sxm5", parts, tables)
    assert found is not None
    assert found[:2].max() < 0.1


def test_an_interval_of_few_shape_groups_holds_groups_it_was_not_made_of() -> None:
    """Four groups, each off by its own factor: quantiles of three of them alone hold little of the
    fourth."""
    chance = np.random.default_rng(0)
    offs = np.repeat([-0.3, -0.1, 0.1, 0.3], 200) + chance.normal(0, 0.02, 800)
    one = np.ones(800)
    groups = np.repeat(["a", "b", "c", "d"], 200)
    rows = Rows("gdn", "b200", {}, groups, (), one, one, 1000.0, one)
    low, high, held = widths(rows, np.arange(800), one, np.exp(offs))
    assert low < -0.33
    assert high > 0.33
    assert held >= 0.7
    assert np.mean((offs > low) & (offs < high)) >= 0.9
