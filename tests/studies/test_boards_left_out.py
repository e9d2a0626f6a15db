"""Corrections of time on real measurements: none is promoted for a board as it is, one is for a
board that differs as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies import boards_left_out as study
from studies.data.activity_tables import MeasuredProgram, read_activity_table
from tests.needs import needs_data
from wattcast.models.store import ArtifactStore

GPU = "tesla-v100"
CARD = ArtifactStore().find("pooled", "power", "physical", "activity1").card

pytestmark = needs_data


def test_a_board_as_measured_keeps_the_default_times() -> None:
    found = study.time_line(CARD, GPU, 8)
    assert (found.programs, found.launches, found.promoted) == (14, 98, False)
    assert found.error <= 1.05 * found.default_error < 0.22 < found.median_error


def test_a_board_that_is_slower_as_a_whole_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(gpu: str) -> list[MeasuredProgram]:
        return [
            replace(row, time_seconds=1.6 * row.time_seconds) for row in read_activity_table(gpu)
        ]

    monkeypatch.setattr(study, "read_activity_table", slower)
    found = study.time_line(CARD, GPU, 8)
    assert found.promoted
    assert found.way in ("one factor", "factor by regime")
    assert found.error < 0.25 < 0.35 < found.default_error
