"""Intervals of boards never calibrated: from the errors of answers, each kernel counted once."""

from __future__ import annotations

from itertools import product
from math import log
from typing import get_args

import pytest

from studies.widths import errors, left_out
from wattcast.models.time.base import Regime
from wattcast.models.time.calibration import (
    ERRORS_SERVED,
    OWN_WIDTH,
    ProgramError,
    factor_of,
    interval_width,
    of_kind,
    program_errors,
)


def test_a_kernel_asked_a_thousand_times_counts_as_one() -> None:
    few = [ProgramError("a40", f"kernel {number}", 0.1) for number in range(19)]
    many = [ProgramError("a40", "often", 0.5)] * 1000
    assert log(factor_of(few, None, False)) == pytest.approx(0.1)
    # 20 kernels and one to come: 19 of 21 masses are enough for 90 %.
    assert log(factor_of([*few, *many], None, False)) == pytest.approx(0.1)


def test_what_is_left_out_does_not_widen_its_own_interval() -> None:
    found = [ProgramError("a40", f"kernel {number}", 0.1) for number in range(19)]
    found += [ProgramError("l40", "odd", 2.0), ProgramError("l40", "odd", 0.05)]
    by_name = {name: (share, half) for name, share, half in left_out(found, lambda e: e.program)}
    assert by_name["odd"] == (0.5, pytest.approx(0.1))
    assert by_name["kernel 0"][0] == 1.0


def test_the_intervals_rest_on_what_the_studies_found() -> None:
    found = list(errors())
    assert list(program_errors(ERRORS_SERVED)) == found
    for regime in get_args(Regime):
        # Of nine programs a 90 % interval exists (``supported_level``).
        assert len({error.program for error in found if error.regime == regime}) >= 18


def test_a_board_without_calibration_has_the_width_of_all_kernels_of_a_kind() -> None:
    errors_served = program_errors(ERRORS_SERVED)
    for regime, assumed in product(get_args(Regime), (False, True)):
        found, basis = interval_width("a40", regime, assumed)
        assert basis == "uncalibrated"
        assert found.high_factor == pytest.approx(factor_of(errors_served, regime, assumed))
        assert found.low_factor == pytest.approx(1 / found.high_factor)
    assert interval_width("a40", "memory")[0].high_factor < 2.0
    assert interval_width("a40", "compute")[0].high_factor < 2.0
    shares = [share for _, share, _ in left_out(errors_served, lambda error: error.program)]
    assert 0.87 <= sum(shares) / len(shares) <= 0.97


def test_launches_with_assumed_arguments_have_a_width_of_their_own_from_thirty_programs_on() -> (
    None
):
    def program(number: int, ratio: float, assumed: bool) -> ProgramError:
        return ProgramError("a40", f"{assumed} {number}", ratio, "compute", assumed)

    known = [program(number, 0.1, assumed=False) for number in range(OWN_WIDTH)]
    guessed = [program(number, 1.0, assumed=True) for number in range(OWN_WIDTH)]
    other = ProgramError("a40", "other", 9.0, "memory")
    assert of_kind([*known, *guessed, other], "compute", False) == known
    assert of_kind([*known, *guessed, other], "compute", True) == guessed
    assert of_kind([*known[1:], *guessed], "compute", False) == [*known[1:], *guessed]
    assert of_kind([*known, *guessed, other], None, False) == [*known, *guessed, other]
    surer = [error._replace(log_ratio=0.01) for error in guessed]
    assert log(factor_of([*known, *surer], "compute", True)) == pytest.approx(0.1)
