"""Measured launches of a kernel correct its others: exactly where alike, less where not."""

from __future__ import annotations

import numpy as np
import pytest

from wattcast.features.errors import LaunchError
from wattcast.models.intervals import Estimate
from wattcast.models.power.anchoring import (
    NOISE,
    AnchoredWidth,
    anchored,
    corrected,
    launch_coordinates,
    width_of,
)

WIDTH = AnchoredWidth("any", "any", 2.3, 0.8, 7)


def test_a_repeated_launch_answers_what_was_measured() -> None:
    place = launch_coordinates([64], [256], [80.0])
    found = anchored([80.0], [120.0], place, place, [80.0])
    assert found.watts[0] == pytest.approx(120.0, rel=0.01)
    assert found.log_deviation[0] < 2 * NOISE


def test_nothing_known_changes_nothing() -> None:
    nothing = np.empty((0, 3))
    found = anchored([], [], nothing, launch_coordinates([64], [256], [80.0]), [80.0])
    assert found.watts.tolist() == [80.0]
    assert found.log_deviation[0] > 0.2


def test_the_correction_fades_with_distance_and_doubt_grows() -> None:
    known = launch_coordinates([64], [256], [80.0])
    predicted = np.array([80.0, 100.0, 160.0, 320.0])
    new = launch_coordinates([64, 128, 1024, 10**6], [256] * 4, predicted)
    found = anchored([80.0], [120.0], known, new, predicted)
    gain = found.watts / predicted
    assert (np.diff(gain) < 0).all()
    assert (gain > 1).all()
    assert (np.diff(found.log_deviation) > 0).all()


def test_several_known_launches_beat_one() -> None:
    # A kernel whose power falls behind its prediction as launches grow.
    predicted = np.array([60.0, 80.0, 120.0])
    measured = predicted * [1.0, 0.9, 0.8]
    places = launch_coordinates([16, 64, 256], [256] * 3, predicted)
    new = launch_coordinates([128], [256], [100.0])
    all_three = anchored(predicted, measured, places, new, [100.0])
    only_one = anchored(predicted[:1], measured[:1], places[:1], new, [100.0])
    assert 80 < all_three.watts[0] < 90
    assert only_one.watts[0] == pytest.approx(100.0, rel=0.02)
    assert all_three.log_deviation[0] < only_one.log_deviation[0]


def test_a_kernel_that_is_known_to_be_odd_is_promised_less() -> None:
    # A Gaussian process would promise the same of both: on K20 it held .83 of the rows of kernels
    # whose known launches lie far from their predictions, .92 of the others.
    places = launch_coordinates([16, 64, 256], [256] * 3, [80.0] * 3)
    new = launch_coordinates([128], [256], [80.0])
    usual = anchored([80.0] * 3, [79.0, 81.0, 80.0], places, new, [80.0])
    odd = anchored([80.0] * 3, [60.0, 110.0, 70.0], places, new, [80.0])
    assert odd.log_deviation[0] > 1.3 * usual.log_deviation[0]
    nothing = anchored([], [], np.empty((0, 3)), new, [80.0])
    assert usual.log_deviation[0] < nothing.log_deviation[0]


def test_repetitions_that_disagree_are_averaged() -> None:
    place = launch_coordinates([64], [256], [80.0])
    found = anchored([80.0, 80.0], [100.0, 104.0], np.vstack([place, place]), place, [80.0])
    assert found.watts[0] == pytest.approx(102.0, rel=0.005)


def test_the_interval_narrows_and_never_widens() -> None:
    estimate = Estimate(80.0, 60.0, 110.0, 0.9, "unseen_kernel")
    place = launch_coordinates([64], [256], [80.0])
    near = corrected(estimate, anchored([80.0], [120.0], place, place, [80.0]), WIDTH)
    assert near.basis == "seen_kernel"
    assert near.high / near.low < 1.2
    far = launch_coordinates([10**6], [1024], [300.0])
    wide = corrected(estimate, anchored([300.0], [310.0], far, place, [80.0]), WIDTH)
    assert wide.level == near.level == 0.8
    assert wide.high / wide.value <= 110 / 80 * (1 + 1e-9)
    assert wide.value / wide.low <= 80 / 60 * (1 + 1e-9)


def test_widths_are_those_of_the_board_or_of_any() -> None:
    assert (
        width_of("tesla-k20", "thesis").deviations < width_of("ada-24sm", "powerquant").deviations
    )
    assert width_of("tesla-k20", "uploads") == width_of("h100-sxm5", "dvfs")
    assert width_of("h100-sxm5", "dvfs").level == 0.8


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_impossible_watts_are_refused(bad: float) -> None:
    place = launch_coordinates([64], [256], [80.0])
    with pytest.raises(LaunchError, match="power_watts"):
        anchored([80.0], [bad], place, place, [80.0])
    with pytest.raises(LaunchError, match="predicted_watts"):
        launch_coordinates([64], [256], [bad])
