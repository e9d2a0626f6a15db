"""Facts of the profiles against what vendors print, measured frequencies, and each other."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest

from wattcast.features.gpus import GpuProfile, list_gpus, load_gpu
from wattcast.features.gpus.loader import capabilities
from wattcast.models.clocks import TYPICAL_STREAMING_SHARE
from wattcast.training.data.datasets import find_data

GPUS = list_gpus()
FREQUENCY_DATA = (find_data() or Path("absent")) / "dvfs"
NOT_CUDA = "amd_rx580x"


def each_gpu(gpu: GpuProfile) -> str:
    return gpu.id


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("a100", "a100-sxm4-80gb"),
        ("h100", "h100-sxm5"),
        ("H200", "h200-sxm5"),
        ("l4", "l4"),
        ("L40S", "l40s"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("RTX-5090", "rtx-5090"),
        ("tesla-t4", "t4"),
        ("geforce-rtx-3080", "rtx-3080"),
        ("1080ti", "gtx-1080-ti"),
        ("gtx980", "gtx-980"),
        ("k40c", "tesla-k40c"),
        ("k80", "tesla-k80"),
        ("p100", "tesla-p100"),
        ("titan-xp", "titan-xp"),
    ],
)
def test_names_that_people_type(name: str, gpu_id: str) -> None:
    assert load_gpu(name).id == gpu_id


def test_the_two_boards_named_titan_x_are_told_apart() -> None:
    """NVIDIA sold a GTX TITAN X (Maxwell) and a TITAN X (Pascal): the bare name means neither."""
    assert load_gpu("geforce-gtx-titan-x").architecture == "Maxwell"
    assert load_gpu("titan-x-pascal").architecture == "Pascal"
    assert "titan-x" not in {alias for gpu in GPUS for alias in gpu.aliases}


# --- peaks that vendors print ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu_id", "tflops"),
    [
        ("tesla-k80", 8.74 / 2),
        ("tesla-v100", 14.0),
        ("titan-xp", 12.1),
        ("titan-x-pascal", 11.0),
        ("gtx-1080-ti", 11.3),
        ("rtx-2070-super", 9.1),
        ("quadro-rtx-8000", 16.3),
        ("t4", 8.1),
        ("rtx-3080", 29.8),
        ("ampere-84sm", 38.7),
        ("a100-sxm4-80gb", 19.5),
        ("h100-sxm5", 67.0),
        ("h200-sxm5", 67.0),
        ("l4", 30.3),
        ("l40s", 91.6),
        ("rtx-4090", 82.6),
        ("rtx-5090", 104.8),
    ],
)
def test_fp32_peak_is_the_printed_one(gpu_id: str, tflops: float) -> None:
    gpu = load_gpu(gpu_id)
    peak = 2 * gpu.sm_count * gpu.fp32_lanes * gpu.max_core_mhz * 1e6
    assert peak == pytest.approx(tflops * 1e12, rel=0.02)


@pytest.mark.parametrize(
    ("gpu_id", "tflops"),
    [("gtx-980", 4.612), ("tesla-k40c", 4.29)],
)
def test_fp32_peak_printed_at_the_base_clock(gpu_id: str, tflops: float) -> None:
    gpu = load_gpu(gpu_id)
    assert gpu.base_core_mhz is not None
    peak = 2 * gpu.sm_count * gpu.fp32_lanes * gpu.base_core_mhz * 1e6
    assert peak == pytest.approx(tflops * 1e12, rel=0.02)


@pytest.mark.parametrize(
    ("gpu_id", "tflops"),
    [
        ("tesla-k40c", 1.43 * 875 / 745),
        ("tesla-k80", 2.91 / 2),
        ("titan-v", 14.9 / 2),
        ("tesla-v100", 7.0),
        ("tesla-p100", 4.7),
        ("gtx-1080-ti", 11.3 / 32),
        ("a100-sxm4-80gb", 9.7),
        ("h100-sxm5", 34.0),
        ("l4", 30.3 / 64),
    ],
)
def test_fp64_peak_is_the_printed_one(gpu_id: str, tflops: float) -> None:
    """K40's printed 1.43 are those of its base clock; GP102 has 1/32, Ada 1/64 of FP32."""
    gpu = load_gpu(gpu_id)
    peak = 2 * gpu.sm_count * gpu.fp64_lanes * gpu.max_core_mhz * 1e6
    assert peak == pytest.approx(tflops * 1e12, rel=0.02)


@pytest.mark.parametrize(
    ("gpu_id", "tflops"),
    [("tesla-v100", 28.0), ("gtx-1080-ti", 0.177), ("a100-sxm4-80gb", 78.0), ("h100-sxm5", 134.0)],
)
def test_fp16_peak_without_tensor_cores_is_the_printed_one(gpu_id: str, tflops: float) -> None:
    gpu = load_gpu(gpu_id)
    peak = 2 * gpu.sm_count * gpu.fp16_lanes * gpu.max_core_mhz * 1e6
    assert peak == pytest.approx(tflops * 1e12, rel=0.02)


@pytest.mark.parametrize(
    ("gpu_id", "clock_mhz", "tflops"),
    [
        ("tesla-v100", 1380, 112.0),
        ("titan-v", 1335, 110.0),
        ("t4", 1590, 65.0),
        ("quadro-rtx-8000", 1770, 130.5),
        ("ampere-84sm", 1800, 154.8),
        ("rtx-3080", 1710, 59.5),
        ("a100-sxm4-80gb", 1410, 312.0),
        ("h100-sxm5", 1830, 989.4),
        ("l4", 2040, 121.0),
        ("l40s", 2520, 362.05),
        ("rtx-4090", 2520, 165.2),
        ("rtx-5090", 2407, 209.5),
    ],
)
def test_tensor_peak_is_the_printed_one(gpu_id: str, clock_mhz: int, tflops: float) -> None:
    """Dense FP16 with FP32 accumulation, at the clock the vendor's number is of."""
    gpu = load_gpu(gpu_id)
    peak = 2 * gpu.sm_count * gpu.tensor_fma_per_clock * clock_mhz * 1e6
    assert peak == pytest.approx(tflops * 1e12, rel=0.02)


def test_no_tensor_rate_without_tensor_cores() -> None:
    for facts in capabilities().values():
        assert (facts.tensor_fma_per_clock > 0) == (facts.tensor_cores > 0)


@pytest.mark.parametrize(
    ("gpu_id", "gigatexels"),
    [
        ("gtx-980", 144.1),
        ("tesla-k40c", 178.8),
        ("gtx-1080-ti", 331.5),
        ("rtx-2070-super", 256.8),
        ("rtx-3080", 391.7),
        ("rtx-4090", 1144.3),
    ],
)
def test_texture_fill_rate_is_the_printed_one(gpu_id: str, gigatexels: float) -> None:
    gpu = load_gpu(gpu_id)
    assert gpu.base_core_mhz is not None
    rate = gpu.sm_count * gpu.texture_lanes * gpu.base_core_mhz * 1e6
    assert rate == pytest.approx(gigatexels * 1e9, rel=0.001)


@pytest.mark.parametrize(
    ("gpu_id", "gigabytes"),
    [
        ("gtx-980", 224),
        ("gtx-titan-x", 336.5),
        ("titan-xp", 547.7),
        ("titan-x-pascal", 480),
        ("gtx-1080-ti", 484),
        ("tesla-k40c", 288),
        ("tesla-k80", 480 / 2),
        ("titan-v", 652.8),
        ("tesla-p100", 732),
        ("rtx-2070-super", 448),
        ("t4", 320),
        ("rtx-3080", 760),
        ("ampere-84sm", 768),
        ("a100-sxm4-80gb", 2039),
        ("h100-sxm5", 3350),
        ("l4", 300),
        ("l40s", 864),
        ("rtx-4090", 1008),
        ("rtx-5090", 1792),
    ],
)
def test_bandwidth_of_bus_and_clock_is_the_printed_one(gpu_id: str, gigabytes: float) -> None:
    gpu = load_gpu(gpu_id)
    peak = gpu.bytes_per_memory_clock * gpu.memory_mhz * 1e6
    assert peak == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_where_the_bandwidth_is_not_the_printed_one_the_file_says_so() -> None:
    h200, rtx_8000 = load_gpu("h200").memory, load_gpu("rtx-8000")
    assert "4.8 TB/s" in (h200.bandwidth_bytes_per_second.note or "")
    assert "672 GB/s" in (rtx_8000.clocks.memory_mhz.note or "")


# --- what streaming kernels reach ------------------------------------------------------------


def test_streaming_shares_are_plausible_and_most_gpus_have_one() -> None:
    """Published streams reach two thirds of the peak or more: less is not a stream's rate."""
    shares = {gpu.id: gpu.streaming_share for gpu in GPUS if gpu.streaming_share is not None}
    assert len(shares) >= 12
    assert {gpu_id: share for gpu_id, share in shares.items() if not 0.6 < share <= 1.0} == {}


@pytest.mark.parametrize(
    ("gpu_id", "gigabytes"),
    [
        ("tesla-k20", 150.36),
        ("tesla-k40c", 191.56),
        ("tesla-k80", 176.95),
        ("tesla-m60", 133.0945 * 1.024),
        ("tesla-p100", 551.87),
        ("tesla-v100", 814),
        ("a100-sxm4-80gb", 1759),
        ("t4", 239.6),
        ("gtx-980", 171.66),
        ("gtx-titan-x", 268.71),
        ("titan-xp", 436.49),
        ("rtx-3080", 699.36),
        ("h100-sxm5", 2959.19),
    ],
)
def test_streaming_bandwidth_is_the_measured_one(gpu_id: str, gigabytes: float) -> None:
    gpu = load_gpu(gpu_id)
    assert gpu.streaming_share is not None
    reached = gpu.streaming_share * gpu.bandwidth_bytes_per_second
    assert reached == pytest.approx(gigabytes * 1e9, rel=0.001)


def test_where_no_share_is_published_the_median_of_those_that_are_is_taken() -> None:
    shares = [gpu.streaming_share for gpu in GPUS if gpu.streaming_share is not None]
    assert pytest.approx(median(shares), abs=0.005) == TYPICAL_STREAMING_SHARE


# --- clocks that can be set ------------------------------------------------------------------


def test_pairs_of_several_grids_are_their_union() -> None:
    """GTX 980: 9 + 49 + 25 pairs; the fourth grid lies within the second."""
    pairs = load_gpu("gtx-980").supported_pairs
    assert len(pairs) == 9 + 49 + 25
    assert list(pairs) == sorted(set(pairs))
    assert {(595, 3300), (400, 1000), (500, 500), (1500, 3900)} <= set(pairs)
    assert (1500, 3505) not in pairs
    assert load_gpu("gtx-980").supported_core_mhz[:3] == (400, 500, 595)
    assert load_gpu("gtx-980").supported_memory_mhz[-2:] == (3900, 4005)


def test_pairs_of_one_grid_are_the_product_of_its_lists() -> None:
    k20 = load_gpu("k20")
    assert k20.supported_pairs == tuple((core, 2600) for core in (614, 640, 666, 705, 758))


def test_a_range_of_clocks_is_every_step_of_it() -> None:
    a100 = load_gpu("a100")
    assert a100.supported_core_mhz == tuple(range(210, 1411, 15))
    assert a100.supported_pairs[0] == (210, 1593)
    assert len(a100.supported_pairs) == 81


def test_slow_memory_comes_with_fewer_core_clocks() -> None:
    t4 = load_gpu("t4").supported_pairs
    assert max(core for core, memory in t4 if memory == 405) == 645
    assert max(core for core, memory in t4 if memory == 5001) == 1590


@pytest.mark.skipif(
    not FREQUENCY_DATA.is_dir(), reason="no data sets: set WATTCAST_DATA or lay ../shared/data"
)
def test_pairs_and_references_are_those_of_the_frequency_data() -> None:
    measured: dict[str, set[tuple[float, float]]] = {}
    references: dict[str, set[tuple[float, float]]] = {}
    for path in sorted(FREQUENCY_DATA.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if "core_mhz" not in row or row["gpu"] == NOT_CUDA:
                    break
                gpu_id = row["gpu"].replace("_", "-")
                pair = (float(row["core_mhz"]), float(row["mem_mhz"]))
                measured.setdefault(gpu_id, set()).add(pair)
                reference = (float(row["ref_core_mhz"]), float(row["ref_mem_mhz"]))
                references.setdefault(gpu_id, set()).add(reference)
    assert len(measured) == 11
    for gpu_id, pairs in measured.items():
        gpu = load_gpu(gpu_id)
        assert set(gpu.supported_pairs) == pairs, gpu_id
        stated = {grid.reference_mhz for grid in gpu.clocks.supported_grids or ()}
        assert (stated or {(gpu.core_mhz, gpu.memory_mhz)}) == references[gpu_id], gpu_id


@pytest.mark.skipif(
    not FREQUENCY_DATA.is_dir(), reason="no data sets: set WATTCAST_DATA or lay ../shared/data"
)
@pytest.mark.parametrize(
    ("gpu_id", "pair"),
    [
        ("gtx-titan-x", ("975", "3505")),
        ("titan-xp", ("1404", "5705")),
        ("tesla-k40c", ("745", "3004")),
        ("titan-v", ("1200", "850")),
    ],
)
def test_idle_power_is_that_of_the_frequency_data(gpu_id: str, pair: tuple[str, str]) -> None:
    path = FREQUENCY_DATA / f"lisboa_{gpu_id.replace('-', '_')}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        watts = {
            float(row["idle_w"])
            for row in csv.DictReader(file)
            if (row["core_mhz"], row["mem_mhz"]) == pair
        }
    idle = load_gpu(gpu_id).power.idle_watts
    assert idle is not None
    assert [idle.value] == pytest.approx(sorted(watts), abs=0.06)
    assert " / ".join(pair) in (idle.note or "")


# --- memory timing ---------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", GPUS, ids=each_gpu)
def test_what_is_nearer_is_faster(gpu: GpuProfile) -> None:
    levels = (
        gpu.shared_latency_cycles,
        gpu.l2_latency_cycles,
        gpu.dram_latency_cycles,
    )
    known = [cycles for cycles in levels if cycles is not None]
    assert known == sorted(known)
    if gpu.l2_bytes_per_clock is not None:
        cache = gpu.l2_bytes_per_clock * gpu.core_mhz * 1e6
        assert cache > gpu.bandwidth_bytes_per_second
        if gpu.l1_bytes_per_clock is not None:
            assert gpu.l2_bytes_per_clock < gpu.l1_bytes_per_clock * gpu.sm_count


def test_dram_latency_of_the_gtx_980_is_the_published_line_at_its_clocks() -> None:
    """Wang and Chu 2018, Eq. 4: 222.78 core / memory clock + 277.32 cycles."""
    gpu = load_gpu("gtx-980")
    line = 222.78 * gpu.core_mhz / gpu.memory_mhz + 277.32
    assert gpu.dram_latency_cycles == pytest.approx(line, abs=0.05)


@pytest.mark.parametrize(
    ("gpu_id", "gigabytes", "clock_mhz"),
    [
        ("tesla-m60", 446, 1177),
        ("tesla-p100", 1624, 1328),
        ("tesla-k80", 339, 875),
        ("t4", 1270, 1590),
        ("tesla-v100", 2544, 1380),
        ("a100-sxm4-80gb", 5430, 1410),
        ("l40s", 5230, 2490),
        ("rtx-4090", 4903, 2520),
    ],
)
def test_l2_bandwidth_is_the_measured_one(gpu_id: str, gigabytes: float, clock_mhz: float) -> None:
    width = load_gpu(gpu_id).l2_bytes_per_clock
    assert width is not None
    assert width * clock_mhz * 1e6 == pytest.approx(gigabytes * 1e9, rel=0.005)


def test_a_gpu_nobody_measured_has_no_timing() -> None:
    k4200 = load_gpu("k4200")
    assert k4200.l1_latency_cycles is k4200.l2_latency_cycles is k4200.dram_latency_cycles is None
    assert k4200.shared_latency_cycles is k4200.l2_bytes_per_clock is None
