"""Facts of the profiles against what vendors print, measured frequencies, and each other."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tables import rows
from wattcast.features.errors import GpuError
from wattcast.features.gpus import GpuProfile, list_gpus, load_gpu
from wattcast.features.gpus.loader import capabilities
from wattcast.models.clocks import SHARES_OF_KIND, TYPICAL_STREAMING_SHARE
from wattcast.training.data.datasets import find_data

GPUS = list_gpus()
FREQUENCY_DATA = (find_data() or Path("absent")) / "dvfs"
NOT_CUDA = "amd_rx580x"


def each_gpu(gpu: GpuProfile) -> str:
    return gpu.id


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    rows("names", "boards"),
)
def test_names_that_people_type(name: str, gpu_id: str) -> None:
    assert load_gpu(name).id == gpu_id


def test_the_two_boards_named_titan_x_are_told_apart() -> None:
    """NVIDIA sold a GTX TITAN X (Maxwell) and a TITAN X (Pascal): the bare name means neither."""
    assert load_gpu("geforce-gtx-titan-x").architecture == "Maxwell"
    assert load_gpu("titan-x-pascal").architecture == "Pascal"
    with pytest.raises(GpuError, match="did you mean gtx-titan-x, titan-x-pascal"):
        load_gpu("titan x")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A100-40GB", ["a100-pcie-40gb", "a100-sxm4-40gb"]),
        ("rtx-5090-ti", ["rtx-5090"]),
        ("gtx-1085", ["gtx-1080"]),
        ("Orin", ["jetson-agx-orin-64gb", "jetson-orin-nx-16gb"]),
        ("10de:ffff", []),
    ],
)
def test_an_unknown_or_ambiguous_name_is_told_what_is_near(name: str, near: list[str]) -> None:
    with pytest.raises(GpuError) as caught:
        load_gpu(name)
    told = caught.value.context["near"]
    assert isinstance(told, list)
    assert set(near) <= set(told)
    assert all(one in caught.value.detail for one in near)


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(st.sampled_from(GPUS), st.data())
def test_every_board_is_found_by_each_of_its_names_in_any_spelling(
    gpu: GpuProfile, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(spellings(gpu))))
    change = data.draw(st.sampled_from([str.upper, str.lower, str.title, "  {} ".format]))
    owners = [one.id for one in GPUS if name in spellings(one)]
    if len(owners) == 1:
        assert load_gpu(change(name)).id == gpu.id
    else:  # Jetson Orin modules share a name, A2 and A16 a PCI device id
        with pytest.raises(GpuError, match="may be") as caught:
            load_gpu(change(name))
        assert caught.value.context["near"] == owners


def spellings(gpu: GpuProfile) -> set[str]:
    """Every name a profile states."""
    driver = gpu.driver
    told = () if driver is None else (*driver.names, *(f"10de:{one}" for one in driver.pci_ids))
    return {gpu.id, gpu.name, *gpu.aliases, *told}


# --- peaks that vendors print ----------------------------------------------------------------


def test_nearly_every_profile_has_a_printed_peak_to_hold_it_to() -> None:
    without = {gpu.id for gpu in GPUS if not gpu.printed}
    assert without <= {"ada-24sm", "gb10", "gtx-1050", "quadro-k4200", "tesla-k20", "tesla-m60"}


def test_no_tensor_rate_without_tensor_cores() -> None:
    for facts in capabilities().values():
        assert (facts.tensor_fma_per_clock > 0) == (facts.tensor_cores > 0)


# --- what streaming kernels reach ------------------------------------------------------------


def test_streaming_shares_are_plausible_and_most_gpus_have_one() -> None:
    """Published streams reach two thirds of the peak or more: less is not a stream's rate."""
    shares = {gpu.id: gpu.streaming_share for gpu in GPUS if gpu.streaming_share is not None}
    assert len(shares) >= 12
    assert {gpu_id: share for gpu_id, share in shares.items() if not 0.6 < share <= 1.0} == {}


def test_where_no_share_is_published_the_median_of_those_that_are_is_taken() -> None:
    shares = {gpu.streaming_share for gpu in GPUS if gpu.streaming_share is not None}
    assert pytest.approx(median(shares), abs=0.005) == TYPICAL_STREAMING_SHARE


def test_shares_by_kind_of_memory_are_those_of_the_profiles() -> None:
    for kind, told in SHARES_OF_KIND.items():
        shares = {gpu.streaming_share for gpu in GPUS if gpu.memory_kind == kind} - {None}
        known = sorted(share for share in shares if share is not None)
        assert told == pytest.approx((known[0], median(known), known[-1]), abs=6e-4), kind


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
