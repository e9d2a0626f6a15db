"""Uses from counters: nvprof's counts by hand, and what is refused."""

from __future__ import annotations

import pytest

from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.use import UNITS, KernelUse, nvprof_use

COUNTS = {
    "dram_read_transactions": 3e6,
    "dram_write_transactions": 1e6,
    "l2_read_transactions": 6e6,
    "l2_write_transactions": 2e6,
    "shared_load_transactions": 1e6,
    "shared_store_transactions": 0.6e6,
    "inst_executed": 6.4e6,
    "inst_fp_32": 204.8e6,
    "inst_integer": 102.4e6,
    "inst_fp_64": 6.4e6,
    "flop_count_sp_special": 51.2e6,
    "tex_cache_transactions": 6.4e6,
}


def test_shares_on_the_gtx_980_by_hand() -> None:
    # 1 ms at 1000 MHz on 16 SMs: 16e6 SM cycles; 64 bytes a memory clock at 3500 MHz: 224 GB/s.
    use = nvprof_use(COUNTS, 1e-3, load_gpu("gtx-980"), ClockPair(1000, 3500))
    assert use.dram == pytest.approx(4e6 * 32 / 224e9 / 1e-3 * 1.0, rel=2e-3)
    expected = {
        "issue": 6.4e6 / (4 * 16e6),
        "sp": 204.8e6 / (128 * 16e6),
        "int": 102.4e6 / (128 * 16e6),
        "dp": 6.4e6 / (4 * 16e6),
        "sfu": 51.2e6 / (32 * 16e6),
        "shared": 1.6e6 / 16e6,
        "l2": 8e6 / 16e6,
        "texture": 6.4e6 / (2 * 16e6),
    }
    assert dict(use.core) == pytest.approx(expected)
    assert tuple(use.core) == UNITS["nvprof"]


def test_a_missing_memory_count_is_named() -> None:
    counts = {name: value for name, value in COUNTS.items() if name != "l2_write_transactions"}
    with pytest.raises(DataError, match="l2_write_transactions"):
        nvprof_use(counts, 1e-3, load_gpu("gtx-980"), ClockPair(1000, 3500))


@pytest.mark.parametrize(
    ("core", "dram", "seconds", "match"),
    [
        ({"sp": 0.1}, 0.2, None, "dcgm counters are of"),
        ({"sp": -0.1, "dp": 0.0, "sm_active": 1.0}, 0.2, None, "sp is -0.1"),
        ({"sp": 0.1, "dp": 0.0, "sm_active": 1.0}, float("nan"), None, "dram is nan"),
        ({"sp": 0.1, "dp": 0.0, "sm_active": 1.0}, 0.2, 0.0, "time_seconds is 0"),
    ],
)
def test_nonsense_is_refused(
    core: dict[str, float], dram: float, seconds: float | None, match: str
) -> None:
    with pytest.raises(DataError, match=match):
        KernelUse("dcgm", core, dram, ClockPair(1000, 877), seconds)
