"""The study of clocks chosen with few measurements, on kernels made up."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from studies.clocks.clock_cases import Case, Told
from studies.clocks.tuning_clocks import (
    FIRST,
    MOST,
    OBJECTIVES,
    _drawn,
    learnt,
    losses,
    residuals,
    searched,
    usual,
)

CLOCKS_MHZ = np.array(list(product((600.0, 900.0, 1200.0, 1500.0), (2000.0, 4000.0))))
REFERENCE = 7


def kernel(name: str, share: float, *, off: float = 0.0) -> Case:
    """A kernel of which ``share`` goes with the memory clock; predictions off along the core's."""
    core, memory = CLOCKS_MHZ.T
    seconds = (1 - share) * 1500 / core + share * 4000 / memory
    watts = 50 + 100 * (core / 1500) ** 3 + 30 * memory / 4000
    told = Told(seconds, watts * (core / 1500) ** off)
    return Case("made up", name, name, CLOCKS_MHZ, Told(seconds, watts), REFERENCE, {"code": told})


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_exact_predictions_need_one_measurement(share: float) -> None:
    case, energy = kernel("k", share), OBJECTIVES["energy"]
    named = searched(case, "code", energy, FIRST)
    assert len(named) == MOST
    assert losses(case, energy)[named[0]] == 0


def test_a_bound_starts_at_the_default_and_is_kept() -> None:
    case, bounded = kernel("k", 0.3), OBJECTIVES["energy, at most 5 % slower"]
    named = searched(case, "code", bounded, FIRST)
    assert named[0] == REFERENCE
    assert np.isfinite(losses(case, bounded)[named]).all()
    assert np.isinf(losses(case, bounded)).any()


def test_predictions_wrong_along_a_clock_are_mended_by_three_measurements() -> None:
    case, energy = kernel("k", 0.6, off=0.8), OBJECTIVES["energy"]
    lost = losses(case, energy)[searched(case, "code", energy, FIRST)]
    assert lost[-1] <= 0.02 < lost[0]


def test_errors_are_learnt_by_their_size() -> None:
    slopes = [
        learnt(
            [
                each
                for number, share in enumerate((0.2, 0.4, 0.6, 0.8))
                for each in residuals(kernel("k", share, off=off * (-1) ** number), "code")
            ],
            FIRST,
        ).slope
        for off in (0.05, 0.6)
    ]
    assert slopes[0] < 0.15 < 0.25 < slopes[1] < 1.2


def test_three_at_random_are_all_choices_of_three() -> None:
    lost = np.array([0.0, 0.01, 0.03, 0.2, 0.5])
    expected = np.mean([min(each) for each in combinations(lost, 3)])
    assert _drawn(list(lost)) @ lost == pytest.approx(expected)
    assert _drawn(list(lost)).sum() == pytest.approx(1)


def test_what_needs_no_search_leaves_the_kernel_out() -> None:
    energy = OBJECTIVES["energy"]
    others = [kernel(name, 0.95) for name in ("alpha", "beta")]
    case = kernel("gamma", 0.05)
    found = usual([*others, case], case, energy)
    best_of_others = int(np.argmin(losses(others[0], energy)))
    assert found["one pair for all"] == [losses(case, energy)[best_of_others]]
    assert found["one pair for all"][0] > 0
    assert found["default clocks"] == [losses(case, energy)[REFERENCE]]
