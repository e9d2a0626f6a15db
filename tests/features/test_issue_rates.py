"""Measured issue rates in a profile: thesis Table 3.1, and what a profile file may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.tables import rows
from wattcast.features.gpus import check_profile, load_gpu

K20_FILE = Path(__file__).parents[2] / "features" / "gpus" / "tesla-k20.toml"


def test_peak_warps_are_latency_times_throughput() -> None:
    """Little's law: 9 cycles x 122 threads a cycle / 32 = 34.3 warps, 36 measured. All rows but
    mov (9.4 against 32) agree within a quarter: what stands in where nobody measured."""
    gpu = load_gpu("tesla-k20")
    for key, rate in gpu.issue_rates.items():
        law = gpu.latency_cycles[key] * rate.throughput[0] / 32
        assert (rate.peak_warps[0] == pytest.approx(law, rel=0.25)) == (key != "mov"), key


@pytest.mark.parametrize(
    ("was", "now", "problem"),
    rows("mistakes", "issue_rates"),
)
def test_a_broken_row_is_named(tmp_path: Path, was: str, now: str, problem: str) -> None:
    text = K20_FILE.read_text(encoding="utf-8")
    assert was in text
    broken = tmp_path / K20_FILE.name
    broken.write_text(text.replace(was, now), encoding="utf-8")
    found = check_profile(broken)
    assert any("issue_rates" in line and problem in line for line in found), found
