"""What a retrained model must show before it may serve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.training.gate import (
    BASELINE,
    CHAMPION,
    WORST_ERROR,
    HoldOut,
    OldRows,
    judge,
    log_error,
)


def holdout(groups: int = 12, launches: int = 10, *, candidate: float = 0.05) -> HoldOut:
    """Truth, a candidate off by ``candidate`` (ln), a champion 15 percent low, and the median."""
    generator = np.random.default_rng(3)
    number = np.repeat(np.arange(groups), launches)
    measured = 60 * np.exp(generator.normal(0, 0.3, groups))[number]
    measured *= np.exp(generator.normal(0, 0.02, len(number)))
    return HoldOut(
        measured=measured,
        groups=number,
        candidate=measured * np.exp(candidate * generator.standard_normal(len(number))),
        baseline=np.full(len(number), np.median(measured)),
        opponents={CHAMPION: measured / 1.15},
        at=np.arange(len(number)),
    )


def test_a_better_candidate_is_promoted() -> None:
    verdict = judge(holdout(), None)
    assert verdict.promoted
    assert verdict.reasons == ()
    assert [one.opponent for one in verdict.comparisons] == [CHAMPION, BASELINE]
    assert all(one.better and one.p_value < 0.01 for one in verdict.comparisons)
    assert verdict.notes == ("no old data of this board is at hand",)


def test_what_learned_only_the_median_of_shuffled_watts_beats_the_champion_and_is_refused() -> None:
    found = holdout()
    shuffled = np.random.default_rng(0).permutation(found.measured)
    noise = np.exp(0.1 * np.random.default_rng(1).standard_normal(len(shuffled)))
    garbage = replace(
        found,
        measured=shuffled,
        candidate=found.baseline * noise,
        opponents={CHAMPION: found.measured / 1.5},
    )
    verdict = judge(garbage, None)
    champion, baseline = verdict.comparisons
    assert champion.better
    assert not baseline.better
    assert not verdict.promoted
    assert [BASELINE in reason for reason in verdict.reasons] == [True]


def test_a_gain_within_noise_is_refused() -> None:
    found = holdout()
    sign = np.where(found.groups % 2, 1.0, -1.0)
    near = replace(found, opponents={CHAMPION: found.candidate * np.exp(0.001 * sign)})
    verdict = judge(near, None)
    assert not verdict.promoted
    assert CHAMPION in verdict.reasons[0]


def test_many_launches_of_few_kernels_are_no_evidence() -> None:
    verdict = judge(holdout(groups=5, launches=1000), None)
    assert not verdict.promoted
    assert "5 kernel groups" in verdict.reasons[0]
    champion = judge(holdout(groups=6), None).comparisons[0]
    assert champion.better
    assert champion.p_value == pytest.approx(1 / 2**6)


def test_forgetting_old_data_is_refused() -> None:
    measured = np.linspace(40, 120, 30)
    groups = np.arange(30) // 3
    old = OldRows(measured, groups, measured * np.exp(0.05), measured * np.exp(0.02))
    verdict = judge(holdout(), old)
    assert not verdict.promoted
    assert verdict.reasons == (
        "on 30 old rows the error grows from 0.020 to 0.050, by more than 0.02",
    )
    nearer = replace(old, candidate=measured * np.exp(0.035))
    assert judge(holdout(), nearer).promoted


def test_a_gpu_without_a_model_needs_to_beat_the_baseline_alone() -> None:
    verdict = judge(replace(holdout(), opponents={}), None)
    assert verdict.promoted
    assert "there is no champion to beat" in verdict.notes


def test_every_opponent_must_be_beaten() -> None:
    found = holdout()
    both = replace(found, opponents={**found.opponents, "physical model": found.measured})
    verdict = judge(both, None)
    assert not verdict.promoted
    assert ["physical model" in reason for reason in verdict.reasons] == [True]


def test_what_cannot_be_compared_is_not_promoted() -> None:
    found = holdout()
    gaps = np.where(found.groups == 0, np.nan, found.measured / 2)
    verdict = judge(replace(found, opponents={"model that serves": gaps}), None)
    assert not verdict.promoted
    assert "10 of 120 rows" in verdict.reasons[0]


def test_a_prediction_of_no_power_is_the_worst_of_all() -> None:
    assert log_error(np.array([1.0, 2.0]), np.array([-1.0, 2.0])).tolist() == [np.inf, 0.0]
    found = holdout()
    broken = replace(found, candidate=np.where(found.groups == 0, -1, found.measured))
    verdict = judge(broken, None)
    assert not verdict.promoted
    assert all("predicts zero, less or no number for 10 rows" in why for why in verdict.reasons)
    assert all(0 < one.candidate_error <= WORST_ERROR for one in verdict.comparisons)
    # Not even against an opponent that errs more on average.
    far = {CHAMPION: found.measured * 1e-5}
    assert not judge(replace(broken, opponents=far), None).comparisons[0].better
    # An opponent that predicts nothing is beaten, and what is said of it can be read.
    silent = {CHAMPION: found.measured * 0}
    verdict = judge(replace(found, opponents=silent), None)
    assert verdict.promoted
    assert verdict.comparisons[0].opponent_error == pytest.approx(WORST_ERROR)
    old = OldRows(found.measured, found.groups, broken.candidate, found.measured)
    assert "on old data the candidate predicts zero" in judge(found, old).reasons[0]


def test_measured_power_is_positive() -> None:
    found = holdout()
    with pytest.raises(ValueError, match="positive"):
        judge(replace(found, measured=found.measured * 0), None)


@given(st.integers(0, 2**32 - 1))
def test_a_model_is_never_better_than_itself(seed: int) -> None:
    found = holdout()
    noise = np.random.default_rng(seed).normal(0, 0.1, len(found.groups))
    same = found.measured * np.exp(noise)
    verdict = judge(replace(found, candidate=same, opponents={CHAMPION: same}), None)
    assert not verdict.promoted
