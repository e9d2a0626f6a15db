"""Applications of the Titan X from code: launches, scales of a kernel, what must hold of all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.data.frequency import COUNTED_TOO
from studies.papers.guerreiro import applications
from studies.papers.guerreiro.applications import HERE, REFERENCE, asked, launches
from tests.app.conftest import settings_at
from tests.needs import needs_data, needs_nvrtc
from wattcast.predictor import Predictor


def test_every_launch_names_a_kernel_of_its_source() -> None:
    found = launches()
    assert len(found) == 14
    assert set(COUNTED_TOO.values()) < set(found)
    for one in found.values():
        text = (HERE / one.get("file", "applications.cu")).read_text(encoding="utf-8")
        for kernel in one["kernel"]:
            assert f" {kernel['entry']}(" in text


@needs_nvrtc
def test_a_hash_follows_the_core_and_option_prices_the_memory_clock(tmp_path: Path) -> None:
    """Measured: MD5 takes 1.90 and 1.00 times as long at 595/3505 and 1164/810 MHz, option prices
    1.68 and 4.06 times."""
    predictor = Predictor(settings_at(tmp_path))
    pairs = [(REFERENCE.core_mhz, REFERENCE.memory_mhz), (595.0, 3505.0), (1164.0, 810.0)]
    for name, slower in (("md5hash", (1.90, 1.00)), ("blackscholes", (1.68, 4.06))):
        seconds, watts = asked(predictor, name, pairs)
        assert seconds[1:] / seconds[0] == pytest.approx(slower, rel=0.08)
        assert np.all(watts[1:] < watts[0])


@pytest.mark.slow
@needs_nvrtc
@needs_data
def test_from_code_beats_the_mean_curve_and_the_best_fixed_pair() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in applications.code_table().splitlines()[2:]
    ]
    ours, mean, _, fixed = rows
    assert ours[1] == mean[1] == "14"
    for column in (2, 3, 4):
        assert float(ours[column]) < float(mean[column])
    assert float(ours[5].split()[0]) > 1.5 * float(fixed[5].split()[0])
