"""Intervals of boards never calibrated: from the errors of answers, each kernel counted once."""

from __future__ import annotations

from math import exp, log

import pytest

from studies.widths import errors, left_out, width
from wattcast.models.time.calibration import (
    ERRORS_SERVED,
    ProgramError,
    interval_width,
    program_errors,
)


def test_a_kernel_asked_a_thousand_times_counts_as_one() -> None:
    few = [ProgramError("a40", f"kernel {number}", 0.1) for number in range(19)]
    many = [ProgramError("a40", "often", 0.5)] * 1000
    assert width(few) == pytest.approx(0.1)
    # 20 kernels and one to come: 19 of 21 masses are enough for 90 %.
    assert width([*few, *many]) == pytest.approx(0.1)


def test_what_is_left_out_does_not_widen_its_own_interval() -> None:
    found = [ProgramError("a40", f"kernel {number}", 0.1) for number in range(19)]
    found += [ProgramError("l40", "odd", 2.0), ProgramError("l40", "odd", 0.05)]
    by_name = {name: (share, half) for name, share, half in left_out(found, lambda e: e.program)}
    assert by_name["odd"] == (0.5, pytest.approx(0.1))
    assert by_name["kernel 0"][0] == 1.0


def test_the_intervals_rest_on_what_the_studies_found() -> None:
    found = [(e.gpu, e.program, e.log_ratio) for e in errors()]
    assert [(e.gpu, e.program, e.log_ratio) for e in program_errors(ERRORS_SERVED)] == found
    assert len({program for _, program, _ in found}) >= 18


def test_a_board_without_calibration_has_the_width_of_all_kernels() -> None:
    found, basis = interval_width("a40")
    assert basis == "uncalibrated"
    assert log(found.high_factor) == pytest.approx(width(program_errors(ERRORS_SERVED)))
    assert found.low_factor == pytest.approx(1 / found.high_factor)
    assert exp(2 * width(program_errors(ERRORS_SERVED))) <= 3.0
    shares = [share for _, share, _ in left_out(list(errors()), lambda error: error.program)]
    assert sum(shares) / len(shares) >= 0.9
