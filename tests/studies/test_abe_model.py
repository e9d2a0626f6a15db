"""Abe et al.'s regression: coefficients and adjusted R2 by hand, selection, and divergence."""

from __future__ import annotations

import numpy as np
import pytest

from studies.papers.abe import (
    AbeRows,
    best_pairs_table,
    counter_rows,
    fit_abe,
    leave_benchmarks_out,
    micro_to_real,
    use_rows,
)
from tests.needs import needs_data
from wattcast.features.errors import ModelError

RNG = np.random.default_rng(5)


def test_one_variable_by_hand() -> None:
    # y over c f (f = 1): slope 1.3, intercept -0.5; residuals 0.2, -0.1, -0.4, 0.3 of total
    # squares 8.75, so that adjusted R2 = 1 - (0.3 / 2) / (8.75 / 3)
    counter = np.array([[1.0], [2.0], [3.0], [4.0]])
    ones, y = np.ones(4), np.array([1.0, 2.0, 3.0, 5.0])
    model = fit_abe("power", counter, ["c"], ["core"], ones, ones, y)
    assert model.terms[0].coefficient == pytest.approx(1.3)
    assert model.intercept == pytest.approx(-0.5)
    assert model.adjusted_r2 == pytest.approx(1 - (0.3 / 2) / (8.75 / 3))


def rows(n: int = 60, k: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return RNG.uniform(1, 9, (n, k)), RNG.uniform(500, 1500, n), RNG.uniform(800, 3500, n)


def test_power_multiplies_by_the_clock_of_the_domain_and_time_divides() -> None:
    counters, core, memory = rows()
    names, domains = ["a", "b", "c", "d"], ["core", "core", "memory", "memory"]
    power = 0.002 * counters[:, 0] * core + 0.001 * counters[:, 2] * memory + 30
    time = 4 * counters[:, 1] / core + 7 * counters[:, 3] / memory + 0.01
    for quantity, target, wanted in (
        ("power", power, {"a": 0.002, "c": 0.001}),
        ("time", time, {"b": 4.0, "d": 7.0}),
    ):
        model = fit_abe(quantity, counters, names, domains, core, memory, target, 2)
        assert {term.counter: term.coefficient for term in model.terms} == pytest.approx(wanted)
        assert model.adjusted_r2 == pytest.approx(1.0)
        assert model.predict(counters, names, core, memory) == pytest.approx(target)


def test_nothing_to_regress_on_is_an_error() -> None:
    ones = np.ones(5)
    with pytest.raises(ModelError, match="varies"):
        fit_abe("power", np.zeros((5, 1)), ["c"], ["core"], ones, ones, ones)


@needs_data
@pytest.mark.parametrize(
    ("rows", "to_real", "most"),
    [
        (lambda: use_rows("lisboa_gtx_titan_x", scaled=False), True, 28.8),
        (lambda: use_rows("lisboa_gtx_titan_x", scaled=True), True, 17.4),
        (lambda: use_rows("lisboa_titan_xp", scaled=False), False, 12.4),
        (lambda: use_rows("lisboa_titan_v", scaled=False), False, 9.6),
        (lambda: use_rows("lisboa_gtx_980", scaled=False), False, 3.5),
        (lambda: counter_rows("wang_gtx_980_low", "power"), False, 9.9),
        (lambda: counter_rows("wang_gtx_980_high", "power"), False, 15.9),
        (lambda: counter_rows("wang_gtx_1080_ti", "power"), False, 21.4),
        (lambda: counter_rows("wang_tesla_p100", "power"), False, 13.7),
        (lambda: counter_rows("wang_tesla_v100", "power"), False, 33.6),
        (lambda: counter_rows("wang_gtx_980_low", "time"), False, 54.0),
        (lambda: counter_rows("wang_gtx_980_high", "time"), False, 66.0),
        (lambda: counter_rows("wang_gtx_1080_ti", "time"), False, 143.0),
    ],
)
def test_the_regression_as_printed_on_published_measurements(
    rows,
    to_real: bool,
    most: float,  # type: ignore[no-untyped-def]
) -> None:
    taken: AbeRows = rows()
    found = (micro_to_real if to_real else leave_benchmarks_out)(taken)
    assert found.left_out_percent <= most + 1.5


@needs_data
def test_overflowed_counters_make_the_print_diverge_and_the_reader_drops_them() -> None:
    kept = use_rows("lisboa_tesla_k40c", scaled=False, keep_impossible=True)
    assert leave_benchmarks_out(kept).left_out_percent > 1000
    assert leave_benchmarks_out(use_rows("lisboa_tesla_k40c", scaled=False)).left_out_percent < 15


@needs_data
def test_what_the_best_pairs_save_is_what_the_oracle_saves_in_the_other_tables() -> None:
    rows = [line.split(" | ") for line in best_pairs_table().splitlines()[2:]]
    assert {row[0].removeprefix("| "): row[4] for row in rows} == {
        "wang_gtx_980_low": "8.8", "wang_gtx_980_high": "29.0", "wang_gtx_1080_ti": "3.8",
        "wang_tesla_p100": "18.1", "wang_tesla_v100": "18.9",
    }  # fmt: skip
