"""GPU profiles: what they say, that every number names its source, and that mistakes are named."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tables import table
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
