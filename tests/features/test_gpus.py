"""GPU profiles: what they say, that every number names its source, and that mistakes are named."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattcast.features.errors import GpuError
from wattcast.features.gpus import check_profile, list_gpus, load_gpu
from wattcast.features.gpus.loader import (
    CAPABILITY_FILE,
    FOLDER,
    capabilities,
    check_capability_rows,
    overlay_folder,
)

THESIS_GPUS = ("gtx-1050", "quadro-k4200", "tesla-k20", "tesla-m60", "tesla-v100")

MINIMAL = """
id = "test-gpu"
name = "A GPU with datasheet facts only"
aliases = ["test"]
architecture = "Ampere"
compute_capability = "8.0"

[sources]
sheet = "A datasheet"

[chip]
sm_count = { value = 108, unit = "count", source = "sheet" }
l2_bytes = { value = 41943040, unit = "byte", source = "sheet" }

[clocks]
core_mhz = { value = 1410, unit = "MHz", source = "sheet" }
memory_mhz = { value = 1215, unit = "MHz", source = "sheet" }

[memory]
bus_bits = { value = 5120, unit = "bit", source = "sheet" }
transfers_per_clock = { value = 2, unit = "count", source = "sheet" }
bandwidth_bytes_per_second = { value = 1555e9, unit = "byte/s", source = "sheet" }

[power]
tdp_watts = { value = 400, unit = "W", source = "sheet" }
"""


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


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('id = "test-gpu"', 'id = "other"', "id: 'other' must equal the file name 'test-gpu'"),
        ('id = "test-gpu"', 'id = "Test GPU"', "id: String should match pattern"),
        ('name = "A GPU', 'nmae = "A GPU', "nmae: unknown key"),
        ('name = "A GPU', 'nmae = "A GPU', "name: missing"),
        ('"8.0"', '"4.2"', "compute_capability: '4.2' is unknown; known: 3.0"),
        ('"8.0"', "8.0", "compute_capability: 8.0 is unknown"),
        ("value = 108", "value = 0", "chip.sm_count.value: Input should be greater than 0"),
        ("value = 108", 'value = "108"', "chip.sm_count.value: Input should be a valid integer"),
        ("value = 400", "value = inf", "power.tdp_watts.value: Input should be a finite number"),
        ('unit = "W"', 'unit = "kW"', "power.tdp_watts: unit is 'kW', must be 'W'"),
        ('unit = "W", ', "", "power.tdp_watts.unit: missing"),
        (', source = "sheet" }\n\n[clocks]', " }\n\n[clocks]", "chip.l2_bytes.source: missing"),
        ('"W", source = "sheet"', '"W", source = "wiki"', "power.tdp_watts.source: 'wiki' is not"),
        ("[chip]", 'unused = "A book"\n[chip]', "sources.unused: nothing refers to it"),
        ('"A datasheet"', '" "', "sources.sheet: empty"),
        ("1555e9", "1000e9", "bandwidth_bytes_per_second: 1e+12, but bus, transfers and memory"),
        ('["test"]', '["test", "test"]', "aliases: an alias repeats"),
        ('["test"]', '["Test"]', "aliases.0: String should match pattern"),
        ("[power]", "[[power]]", "power: Input should be a valid dictionary"),
        ("[power]", "[capability]\nx = 1\n[power]", "capability: unknown key"),
        ("[power]", "[power", "is not TOML"),
        (
            "[power]",
            '[sm]\nmax_warps_per_sm = { value = 32, unit = "warp", source = "sheet" }\n[power]',
            "sm: max_warps_per_sm x 32 = 1024 but max_threads_per_sm is 2048",
        ),
        (
            "[power]",
            '[sm]\nfp8_lanes = { value = 32, unit = "lane", source = "sheet" }\n[power]',
            "sm.fp8_lanes: unknown row",
        ),
        (
            "[power]",
            '[sm]\nfp64_lanes = { value = 2, unit = "count", source = "sheet" }\n[power]',
            "sm.fp64_lanes: unit is 'count', must be 'lane'",
        ),
        (
            "[power]",
            '[power]\nmin_limit_watts = { value = 401, unit = "W", source = "sheet" }',
            "power.min_limit_watts: 401 exceeds tdp_watts 400",
        ),
        (
            "[power]",
            '[power]\nmax_limit_watts = { value = 399, unit = "W", source = "sheet" }',
            "power.max_limit_watts: 399 is below tdp_watts 400",
        ),
        (
            "[power]",
            '[printed]\nfp32 = { value = 20.1, unit = "TFLOP/s", source = "sheet" }\n[power]',
            "printed.fp32: 20.1 TFLOP/s, but the facts give 19.49",
        ),
        (
            "[power]",
            '[printed]\ntensor_fp16 = { value = 312, unit = "TFLOP/s", source = "sheet", '
            "at_mhz = 1200 }\n[power]",
            "printed.tensor_fp16: 312 TFLOP/s, but the facts give 265.4",
        ),
        (
            "[power]",
            '[printed]\nmemory = { value = 2039, unit = "GB/s", source = "sheet" }\n[power]',
            "printed.memory: 2039 GB/s, but the facts give 1555",
        ),
        (
            "[power]",
            '[printed]\ntensor_int8 = { value = 624, unit = "TFLOP/s", source = "sheet" }\n[power]',
            "printed.tensor_int8: unit is 'TFLOP/s', must be 'TOP/s'",
        ),
        ("value = 108", "value = 132", "chip.sm_count: 132 is more than any board of capability"),
        ("41943040", "83886080", "chip.l2_bytes: 8.38861e+07 is more than any board of"),
        ("value = 1410", "value = 1980", "clocks.max_core_mhz: 1980 is more than any board of"),
        ("value = 400", "value = 700", "power.tdp_watts: 700 is more than any board of"),
        (
            "[memory]",
            '[memory]\nkind = { value = "GDDR6", unit = "type", source = "sheet" }',
            "clocks.memory_mhz: 2.43 Gbit/s a pin is no rate of GDDR6",
        ),
        (
            "[memory]",
            '[memory]\nkind = { value = "DDR4", unit = "type", source = "sheet" }',
            "memory.kind.value: Input should be 'GDDR5', 'GDDR5X'",
        ),
        (
            '"8.0"',
            '"8.0"\ndriver = { pci_ids = ["0x20B0"], source = "sheet" }',
            "driver.pci_ids.0: String should match pattern",
        ),
        (
            "[power]",
            '[power]\nidle_watts = { value = 400, unit = "W", source = "sheet" }',
            "power.idle_watts: 400.0 is not below tdp_watts 400.0",
        ),
        (
            "[memory]",
            'base_core_mhz = { value = 2000, unit = "MHz", source = "sheet" }\n[memory]',
            "clocks.base_core_mhz: 2000.0 exceeds the highest core clock 1410.0",
        ),
        (
            "[power]",
            '[global_memory_latency]\nunit = "cycle"\nsource = "sheet"\n'
            "pieces = [{ below_threads = 9, slope = 0.0, constant = 1.0 }]\n[power]",
            "global_memory_latency.pieces: below_threads must rise",
        ),
        (
            "[power]",
            '[global_memory_latency]\nunit = "cycle"\nsource = "sheet"\npieces = ['
            "{ below_threads = 9, slope = -1.0, constant = 5.0 }, { slope = 0, constant = 1.0 }]"
            "\n[power]",
            "global_memory_latency.pieces: not positive from 1 threads on",
        ),
    ],
)
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


def rows() -> dict[str, Any]:
    return tomllib.loads(CAPABILITY_FILE.read_text(encoding="utf-8"))


def test_capabilities_from_kepler_to_blackwell() -> None:
    expected = "3.0 3.5 3.7 5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.7 8.9 9.0 10.0 11.0 12.0 12.1"
    assert " ".join(capabilities()) == expected


def test_a_broken_capability_table_names_row_and_capability() -> None:
    broken = rows()
    broken["max_warps_per_sm"]["values"]["7.5"] = 64
    assert check_capability_rows(broken) == [
        "7.5: max_warps_per_sm x 32 = 2048 but max_threads_per_sm is 1024"
    ]
    broken = rows()
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
    broken = rows()
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
