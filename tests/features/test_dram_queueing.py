"""The optional section of a profile with Wang and Chu's memory parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.loader import FOLDER, check_profile


def test_a_gpu_nobody_measured_has_no_such_section() -> None:
    assert load_gpu("tesla-k20").dram_queueing is None


@pytest.mark.parametrize(
    ("line", "instead", "problem"),
    [
        ("cycles = [10.06, ", "cycles = [", "7 clocks but 6 cycles"),
        ("9.06, 9.0]", "9.06, 9.1]", "must not rise"),
        ('value = 8.281, unit = "cycle"', 'value = 8.281, unit = "ns"', "must be 'cycle'"),
        ("latency_memory_cycles", "latency_memory", "latency_memory_cycles: missing"),
    ],
)
def test_a_section_that_cannot_be_says_why(
    tmp_path: Path, line: str, instead: str, problem: str
) -> None:
    text = (FOLDER / "gtx-980.toml").read_text(encoding="utf-8")
    assert line in text
    changed = tmp_path / "gtx-980.toml"
    changed.write_text(text.replace(line, instead), encoding="utf-8")
    assert any(problem in each for each in check_profile(changed))
