"""The frequency reader: names, defects with file, row and column, and what cleaning drops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from studies.data.frequency import GPU_IDS, kernel_group, read_frequency
from studies.fitting.scaling.rows import scaling_rows
from tests.fixtures.tables import rows
from tests.needs import needs_data
from wattcast.features.errors import DataError
from wattcast.models.clocks import ClockPair
from wattcast.training.data.datasets import data_root

HEADER = (
    "gpu,source,benchmark,args,kind,core_mhz,mem_mhz,ref_core_mhz,ref_mem_mhz,power_w,idle_w,"
    "time_ms,u_sp,u_dp,u_dram,u_fp16,u_smact,u_smocc,u_tensor,kernel"
)


def row(benchmark: str, core: int, **cells: object) -> list[object]:
    values: list[object] = ["tesla_v100", "wang", benchmark, "input0", "real", core, 877, 1380,
                            877, 100, "", 2.0, 0.5, 0, 0.4, 0, 0.9, 0.8, 0, "k"]  # fmt: skip
    names = HEADER.split(",")
    for name, value in cells.items():
        values[names.index(name)] = value
    return values


def campaign(root: Path, rows: Sequence[Sequence[object]], name: str = "wang_dcgm_new") -> Path:
    folder = root / "dvfs"
    folder.mkdir(exist_ok=True)
    lines = [HEADER, *(",".join(str(cell) for cell in cells) for cells in rows)]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", "utf-8")
    return root


def two(benchmark: str = "bfs", **slow: object) -> list[list[object]]:
    return [row(benchmark, 1380), row(benchmark, 945, **slow)]


def test_rows_come_in_si_units_sorted_with_their_group(tmp_path: Path) -> None:
    read = read_frequency("wang_dcgm_new", campaign(tmp_path, two(time_ms=2.5, power_w=80)))
    assert (read.gpu, read.source, read.counters) == ("tesla-v100", "wang", "dcgm")
    assert read.reference == ClockPair(1380.0, 877.0)
    assert read.frame["core_mhz"].tolist() == [945.0, 1380.0]
    assert read.frame["time_seconds"].tolist() == pytest.approx([2.5e-3, 2e-3])
    assert read.frame["group"].tolist() == ["bfs", "bfs"]
    assert (dict(read.dropped), read.has_time, read.has_power) == ({}, True, True)


@pytest.mark.parametrize(
    ("cells", "where", "column"),
    rows("mistakes", "frequency"),
)
def test_a_defect_names_file_row_and_column(
    tmp_path: Path, cells: dict[str, object], where: int, column: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_frequency("wang_dcgm_new", campaign(tmp_path, two(**cells)))
    assert caught.value.context["file"] == "wang_dcgm_new.csv"
    assert caught.value.context["column"] == column
    assert caught.value.context["row"] == where


def test_v100_rows_below_705_mhz_are_dropped_with_a_count(tmp_path: Path) -> None:
    rows = [*two(), row("bfs", 600, time_ms=9), row("bfs", 705, time_ms=3.5)]
    read = read_frequency("wang_dcgm_tesla_v100", campaign(tmp_path, rows, "wang_dcgm_tesla_v100"))
    assert read.dropped == {"core_below_705_mhz": 1}
    assert read.frame["core_mhz"].min() == 705.0


def test_kernels_without_reference_or_counters_are_dropped_with_counts(tmp_path: Path) -> None:
    rows = [
        *two(),
        row("no_reference", 945),
        row("blank", 1380, u_dram=""),
        row("blank", 945),
        row("overflowed", 1380, u_sp=-8.0e8),
        row("overflowed", 945),
    ]
    read = read_frequency("wang_dcgm_new", campaign(tmp_path, rows))
    assert read.dropped == {"no_reference_row": 1, "no_counters": 2, "impossible_counters": 2}
    assert set(read.frame["benchmark"]) == {"bfs"}
    kept = read_frequency("wang_dcgm_new", tmp_path, keep_impossible=True)
    assert set(kept.frame["benchmark"]) == {"bfs", "overflowed"}


def test_impossible_measurements_are_noted_and_kept(tmp_path: Path) -> None:
    # 945 MHz allows 1.46 times the time; a reading at the reference 6 % below that at 945 MHz.
    rows = [*two("slow", time_ms=3.2), *two("odd", power_w=106), *two("fine", time_ms=2.9)]
    read = read_frequency("wang_dcgm_new", campaign(tmp_path, rows))
    assert read.noted == {"slower_than_clock_ratio": 1, "reference_power_too_low": 1}
    assert len(read.frame) == 6
    assert (~read.sound_power).tolist() == (read.frame["benchmark"] == "odd").tolist()


@pytest.mark.parametrize(
    ("names", "group"),
    rows("names", "programs_of_a_group"),
)
def test_variants_of_a_program_share_a_group(names: Sequence[str], group: str) -> None:
    assert {kernel_group(name) for name in names} == {group}


def test_scales_are_against_the_reference_asked_for(tmp_path: Path) -> None:
    rows = [*two(time_ms=3.0, power_w=60), row("bfs", 802, time_ms=3.4, power_w=50)]
    campaign(tmp_path, rows)
    file = scaling_rows("wang_dcgm_new", tmp_path)
    assert file.time_scale.tolist() == pytest.approx([1.7, 1.5, 1.0])
    other = scaling_rows("wang_dcgm_new", tmp_path, reference=ClockPair(945.0, 877.0))
    assert other.power_scale.tolist() == pytest.approx([5 / 6, 1.0, 10 / 6])
    assert other.nominal == ClockPair(1380.0, 877.0)
    with pytest.raises(DataError, match="not measured at"):
        scaling_rows("wang_dcgm_new", tmp_path, reference=ClockPair(900.0, 877.0))


@pytest.mark.slow
@needs_data
def test_every_file_at_hand_reads() -> None:
    names = [path.stem for one in ("lisboa", "wang") for path in data_root().glob(f"dvfs/{one}_*")]
    names.remove("wang_ptx_opcode_counts")
    assert len(names) >= 17
    for name in names:
        read = read_frequency(name)
        assert read.gpu in GPU_IDS.values()
        assert read.has_time or read.has_power
        rows = scaling_rows(name)
        reference = rows.is_reference
        for scale in (rows.time_scale, rows.power_scale):
            assert np.all((scale[reference] == 1.0) | np.isnan(scale[reference])), name


@needs_data
def test_known_defects_are_found() -> None:
    v100 = read_frequency("wang_dcgm_tesla_v100")
    assert v100.dropped["core_below_705_mhz"] >= 3 * 138
    assert read_frequency("lisboa_tesla_k40c").dropped["impossible_counters"] == 8
    assert read_frequency("wang_dcgm_quadro_rtx_8000").noted["reference_power_too_low"] >= 4
