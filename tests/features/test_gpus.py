"""GPU profiles: what they say, that every number names its source, and that mistakes are named."""

from __future__ import annotations

import csv
import os
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tables import rows, table
from wattcast.features.errors import GpuError
from wattcast.features.gpus import GpuProfile, check_profile, list_gpus, load_gpu
from wattcast.features.gpus.loader import (
    CAPABILITY_FILE,
    FOLDER,
    capabilities,
    check_capability_rows,
    overlay_folder,
)
from wattcast.models.clocks import SHARES_OF_KIND, TYPICAL_STREAMING_SHARE
from wattcast.training.data.datasets import find_data

THESIS_GPUS = ("gtx-1050", "quadro-k4200", "tesla-k20", "tesla-m60", "tesla-v100")

MINIMAL = (Path(__file__).parents[1] / "fixtures" / "tables" / "test-gpu.toml").read_text("utf-8")


def write(folder: Path, text: str, name: str = "test-gpu.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- the profiles that come with it ----------------------------------------------------
def test_the_thesis_gpus_are_there_sorted() -> None:
    ids = [profile.id for profile in list_gpus()]
    assert set(THESIS_GPUS) <= set(ids)
    assert ids == sorted(ids)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_profile_in_the_package_is_valid(path: Path) -> None:
    if path == CAPABILITY_FILE:
        assert not check_capability_rows(tomllib.loads(path.read_text(encoding="utf-8")))
    else:
        assert check_profile(path) == []


@pytest.mark.parametrize("name", ["", "h9000", "../tesla-k20", "compute_capability", "*"])
def test_an_unknown_gpu_lists_the_known(name: str) -> None:
    with pytest.raises(GpuError, match="unknown GPU") as caught:
        load_gpu(name)
    known = caught.value.context["known"]
    assert isinstance(known, list)
    assert set(THESIS_GPUS) <= set(known)


def test_latencies_are_the_thesis_own_not_those_of_its_data() -> None:
    """Table 3.2; the data use the K4200's column for K20, and 15 for all of M60's arithmetic."""
    k20, k4200 = load_gpu("k20").latency_cycles, load_gpu("k4200").latency_cycles
    assert (k20["sqrt.f32"], k20["div.s32"], k20["cvt"]) == (359, 424, 10)
    assert (k4200["sqrt.f32"], k4200["div.s32"], k4200["cvt"]) == (440, 418, 33)
    assert load_gpu("m60").latency_cycles["fma.f32"] == 188
    keys = [set(load_gpu(gpu).latency_cycles) for gpu in THESIS_GPUS]
    assert len(keys[0]) == 17
    assert all(other == keys[0] for other in keys)


def test_throughput_curves_are_table_4_5_with_the_exponent_of_m60_corrected() -> None:
    m60 = load_gpu("m60").shared_memory_throughput
    assert m60 is not None
    assert (m60.a, m60.b, m60.c) == (1618990.0, 1.0, 5.5295e-5)
    k20 = load_gpu("k20")
    assert k20.global_throughput(0) == pytest.approx(76363.8 * 0.04)
    assert k20.global_throughput(1e9) == pytest.approx(76363.8 * 1.04)
    assert k20.shared_throughput(1000) == pytest.approx(11314.2, rel=1e-3)
    assert load_gpu("v100").global_throughput(1) is None
    assert load_gpu("v100").shared_throughput(1) is None


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_throughput_never_falls_with_more_instructions(one: int, other: int) -> None:
    few, many = sorted((one, other))
    for gpu in THESIS_GPUS:
        profile = load_gpu(gpu)
        for curve in (profile.global_memory_throughput, profile.shared_memory_throughput):
            assert curve is None or 0 <= curve.at(few) <= curve.at(many)


def test_supported_clocks_ascend_and_hold_the_default() -> None:
    for profile in list_gpus():
        clocks = profile.supported_core_mhz
        assert list(clocks) == sorted(set(clocks))
    assert 1380 in load_gpu("v100").supported_core_mhz
    assert load_gpu("gtx-1050").supported_core_mhz == ()


# --- every number has its source ------------------------------------------------------------
def numbers_without_source(node: Any, path: str = "", sourced: bool = False) -> list[str]:
    """Places of numbers in a parsed profile that no ``source`` stands beside or above."""
    if isinstance(node, dict):
        here = sourced or "source" in node
        return [
            found
            for key, value in node.items()
            for found in numbers_without_source(value, f"{path}.{key}", here)
        ]
    if isinstance(node, list):
        return [found for value in node for found in numbers_without_source(value, path, sourced)]
    is_number = isinstance(node, (int, float)) and not isinstance(node, bool)
    return [path] if is_number and not sourced else []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_no_number_is_without_source(path: Path) -> None:
    assert numbers_without_source(tomllib.loads(path.read_text(encoding="utf-8"))) == []


# --- a user's own profile ------------------------------------------------------------------------
def test_datasheet_facts_alone_make_a_valid_profile(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    assert check_profile(path) == []
    gpu = load_gpu("TEST", overlay=tmp_path)
    assert gpu.latency_cycles == {}
    assert gpu.launch_overhead_seconds(1) is None
    assert gpu.idle_watts is gpu.memory_bytes is gpu.base_core_mhz is None
    assert gpu.l2_latency_cycles is gpu.l1_bytes_per_clock is None
    assert gpu.supported_pairs == gpu.supported_core_mhz == gpu.supported_memory_mhz == ()
    assert gpu.max_core_mhz == 1410
    assert gpu.fp32_lanes == 64


def test_overlay_comes_from_wattcast_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATTCAST_HOME", raising=False)
    assert overlay_folder() is None
    monkeypatch.setenv("WATTCAST_HOME", str(tmp_path))
    assert "test-gpu" not in [gpu.id for gpu in list_gpus()]  # the folder need not exist
    (tmp_path / "gpus").mkdir()
    write(tmp_path / "gpus", MINIMAL)
    assert "test-gpu" in [gpu.id for gpu in list_gpus()]
    assert load_gpu("test").sm_count == 108


def test_overlay_replaces_a_profile_of_the_package(tmp_path: Path) -> None:
    text = (FOLDER / "tesla-k20.toml").read_text(encoding="utf-8")
    write(tmp_path, text.replace("value = 225", "value = 200"), "tesla-k20.toml")
    assert load_gpu("k20", overlay=tmp_path).tdp_watts == 200
    assert load_gpu("k20").tdp_watts == 225


def test_an_edited_overlay_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    assert load_gpu("test-gpu", overlay=tmp_path).sm_count == 108
    changed = path.stat().st_mtime_ns + 1_000_000
    write(tmp_path, MINIMAL.replace("value = 108", "value = 56"))
    os.utime(path, ns=(changed, changed))
    assert load_gpu("test-gpu", overlay=tmp_path).sm_count == 56


def test_an_alias_of_another_gpu_is_refused(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL.replace('"test"', '"k20"'))
    with pytest.raises(GpuError, match=r"'k20' already names") as caught:
        list_gpus(overlay=tmp_path)
    assert caught.value.context["file"] in ("test-gpu.toml", "tesla-k20.toml")


def test_a_row_of_the_capability_can_be_overridden(tmp_path: Path) -> None:
    sm = '[sm]\nfp64_lanes = { value = 8, unit = "lane", source = "sheet" }\n'
    write(tmp_path, MINIMAL + sm)
    assert load_gpu("test", overlay=tmp_path).resources["DPU"] == 8
    assert capabilities()["8.0"].fp64_lanes == 32


# --- mistakes -------------------------------------------------------------------------
MISTAKES = table("gpu_mistakes", "mistakes")


@pytest.mark.parametrize(("old", "new", "problem"), [tuple(each.values()) for each in MISTAKES])
def test_a_mistake_is_named_by_file_and_key(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in MINIMAL
    path = write(tmp_path, MINIMAL.replace(old, new, 1))
    assert any(problem in found for found in check_profile(path)), check_profile(path)
    with pytest.raises(GpuError, match=r"test-gpu\.toml") as caught:
        load_gpu("test-gpu", overlay=tmp_path)
    assert caught.value.context["file"] == "test-gpu.toml"


def test_all_mistakes_are_found_at_once(tmp_path: Path) -> None:
    text = MINIMAL.replace("value = 108", "value = 0").replace('"W"', '"kW"')
    found = check_profile(write(tmp_path, text + "\n[extra]\nx = 1\n"))
    assert [problem.partition(":")[0] for problem in found] == [
        "chip.sm_count.value",
        "power.tdp_watts",
        "extra",
    ]


@pytest.mark.parametrize(
    ("content", "says"), [(None, "cannot be read"), (b"\xff\xfe\x00", "UTF-8"), (b"", "missing")]
)
def test_a_file_that_is_no_profile(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "test-gpu.toml"
    if content is not None:
        path.write_bytes(content)
    assert says in " ".join(check_profile(path))


# --- the table of capabilities ---------------------------------------------------------------
def capability_rows() -> dict[str, Any]:
    return tomllib.loads(CAPABILITY_FILE.read_text(encoding="utf-8"))


def test_capabilities_from_kepler_to_blackwell() -> None:
    expected = "3.0 3.5 3.7 5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.7 8.9 9.0 10.0 11.0 12.0 12.1"
    assert " ".join(capabilities()) == expected


def test_a_broken_capability_table_names_row_and_capability() -> None:
    broken = capability_rows()
    broken["max_warps_per_sm"]["values"]["7.5"] = 64
    assert check_capability_rows(broken) == [
        "7.5: max_warps_per_sm x 32 = 2048 but max_threads_per_sm is 1024"
    ]
    broken = capability_rows()
    del broken["lsu_lanes"]["values"]["9.0"]
    broken["sfu_lanes"]["source"] = "hearsay"
    broken["fp32_lanes"]["values"]["8.0"] = 0
    del broken["int_lanes"]["unit"]
    assert check_capability_rows(broken) == [
        "fp32_lanes.values.8.0: 0 is not a whole number >= 1",
        "int_lanes.unit: missing",
        "sfu_lanes.source: 'hearsay' is not in [sources]",
        "lsu_lanes.values: capabilities differ from the first row's",
    ]
    broken = capability_rows()
    broken["fp8_lanes"] = broken.pop("fp64_lanes")
    assert check_capability_rows(broken) == [
        "fp64_lanes: row is missing",
        "fp8_lanes: unknown row",
    ]


def test_a_copy_of_a_profile_tells_its_own_facts_not_those_found_before() -> None:
    gpu = load_gpu("tesla-v100")
    before = gpu.sm_count
    less = gpu.chip.sm_count.model_copy(update={"value": 8})
    chip = gpu.chip.model_copy(update={"sm_count": less})
    assert gpu.model_copy(update={"chip": chip}).sm_count == 8
    assert (gpu.sm_count, gpu) == (before, load_gpu("tesla-v100"))


# --- Facts of the profiles against what vendors print, measured frequencies, and each other

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


# --- Sections of a profile with lists: clock grids, ranges, memory timing; what is wrong is named

TEMPLATE = (FOLDER / "gtx-1050.toml").read_text(encoding="utf-8")
"""A profile without supported clocks, to which the tests add."""


def profile_with(folder: Path, clocks: str = "", timing: str = "") -> Path:
    text = TEMPLATE.replace('id = "gtx-1050"', 'id = "test-gpu"').replace('"1050", ', "")
    text = text.replace('aliases = ["geforce-gtx-1050"]', 'aliases = ["test"]')
    head, _, tail = text.partition("[memory_timing]\n")
    if timing:
        text = f"{head}[memory_timing]\n{timing}\n\n[latencies]{tail.partition('[latencies]')[2]}"
        text = "\n".join(line for line in text.splitlines() if not line.startswith("jia18 ="))
    path = folder / "test-gpu.toml"
    path.write_text(text.replace("\n[memory]\n", f"{clocks}\n[memory]\n"), encoding="utf-8")
    return path


def grid(body: str) -> str:
    return f"supported_grids = [{{ {body} }}]"


ONE_GRID = grid('core_mhz = [300], memory_mhz = [3504], source = "product-page"')


def test_lists_and_ranges_may_be_mixed(tmp_path: Path) -> None:
    body = (
        "core_mhz = { from = 300, to = 900, step = 300 }, memory_mhz = [405, 3504], "
        'reference_mhz = [900, 3504], source = "product-page", note = "why"'
    )
    path = profile_with(tmp_path, grid(body))
    assert check_profile(path) == []
    gpu = load_gpu("test", overlay=tmp_path)
    expected = ((300, 405), (300, 3504), (600, 405), (600, 3504), (900, 405), (900, 3504))
    assert gpu.supported_pairs == expected
    assert gpu.supported_core_mhz == (300, 600, 900)
    assert gpu.supported_memory_mhz == (405, 3504)


def test_a_range_may_have_one_clock_and_a_fractional_step(tmp_path: Path) -> None:
    body = (
        "core_mhz = { from = 180, to = 195, step = 7.5 }, "
        "memory_mhz = { from = 405, to = 405, step = 1 }, source = 'product-page'"
    )
    profile_with(tmp_path, grid(body))
    pairs = load_gpu("test", overlay=tmp_path).supported_pairs
    assert pairs == ((180, 405), (187.5, 405), (195, 405))


def test_core_clocks_alone_make_no_pairs(tmp_path: Path) -> None:
    profile_with(
        tmp_path,
        'supported_core_mhz = { value = [300, 600], unit = "MHz", source = "product-page" }',
    )
    gpu = load_gpu("test", overlay=tmp_path)
    assert gpu.supported_core_mhz == (300, 600)
    assert gpu.supported_memory_mhz == gpu.supported_pairs == ()


@pytest.mark.parametrize(
    ("clocks", "problem"),
    [
        (
            "supported_core_mhz = { value = { from = 300, to = 1000, step = 150 }, "
            'unit = "MHz", source = "product-page" }',
            "supported_core_mhz.value: from 300 to 1000 must be at most 1000 whole steps of 150",
        ),
        (
            grid("core_mhz = { from = 900, to = 300, step = 100 }, memory_mhz = [1]"),
            "supported_grids.0.core_mhz: from 900 to 300 must be at most 1000 whole steps of 100",
        ),
        (
            grid("core_mhz = { from = 1, to = 1000, step = 0.5 }, memory_mhz = [1]"),
            "supported_grids.0.core_mhz: from 1 to 1000 must be at most 1000 whole steps of 0.5",
        ),
        (
            grid("core_mhz = [900, 300], memory_mhz = [1]"),
            "supported_grids.0.core_mhz: clocks must ascend without repeating",
        ),
        (
            grid("core_mhz = [3], memory_mhz = [1], reference_mhz = [1, 3], source = 'thesis-4-6'"),
            "supported_grids.0.reference_mhz: (1.0, 3.0) is not a pair of the grid",
        ),
        (
            ONE_GRID
            + '\nsupported_core_mhz = { value = [3], unit = "MHz", source = "thesis-4-6" }',
            "supported_grids: takes the place of supported_core_mhz and supported_memory_mhz",
        ),
    ],
)
def test_a_mistake_in_clocks_is_named_by_its_key(tmp_path: Path, clocks: str, problem: str) -> None:
    found = check_profile(profile_with(tmp_path, clocks))
    assert any(line.startswith("clocks.") and problem in line for line in found), found


def test_a_mistake_in_memory_timing_is_named_by_its_key(tmp_path: Path) -> None:
    cycles = 'latency = { value = 300, unit = "cycle", source = "product-page" }\n'
    found = check_profile(profile_with(tmp_path, timing=f"l1_{cycles}dram_{cycles}"))
    problem = "memory_timing.l1_latency: 300 is not below dram_latency 300"
    assert any(problem in line for line in found)


# --- Measured issue rates in a profile: thesis Table 3.1, and what a profile file may hold

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
