"""The frequency reader: names, defects with file, row and column, and what cleaning drops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from studies.data.activity_tables import SERVED_FOLDER, ServedProgram, read_served_table
from studies.data.frequency import GPU_IDS, kernel_group, read_frequency
from studies.data.launches import groups_of, read_launches
from studies.end_to_end import manifest, programs
from studies.fitting.physical.rows import all_rows, served_rows
from studies.fitting.physical.served_activity import DCGM, _cells, readings, served
from studies.fitting.scaling.rows import scaling_rows
from tests.app.conftest import settings_at
from tests.fixtures.tables import rows
from tests.needs import needs_data
from wattcast.features.activity import Activity
from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import predicted_power
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
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


# --- The table of measured launches: what it gives, and what a defect is called

LAUNCHES_HEADER = (
    "gpu,program,kernel,signature,arguments,grid,block,time_ns,dram_bytes,flops_sp,flops_dp,int_ops"
)

GOOD = {
    "gpu": "geforce-rtx-3080",
    "program": "heat-cuda",
    "kernel": "step",
    "signature": '"step(int, double *)"',
    "arguments": "",
    "grid": "64x2x1",
    "block": "256x1x1",
    "time_ns": "2500",
    "dram_bytes": "4096",
    "flops_sp": "0",
    "flops_dp": "1e6",
    "int_ops": "7.5",
}


def write(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "launches.csv"
    lines = [",".join((GOOD | row).values()) for row in rows]
    path.write_text("\n".join([LAUNCHES_HEADER, *lines]) + "\n")
    return path


def test_a_row(tmp_path: Path) -> None:
    (found,) = read_launches(write(tmp_path, {}))
    assert found.same_kernel == ("heat-cuda", "step", "step(int, double *)")
    assert found.arguments == ""
    assert found.seconds == pytest.approx(2.5e-6)
    assert found.work.launch == Launch.of((64, 2), 256)
    assert (found.work.dram_bytes, found.work.flops_dp, found.work.int_ops) == (4096, 1e6, 7.5)
    assert found.work.runtime == "cuda"


def test_openmp_kernels_are_known_by_their_name(tmp_path: Path) -> None:
    (found,) = read_launches(write(tmp_path, {"kernel": "__omp_offloading_10309_main_l4"}))
    assert found.work.runtime == "openmp"


def test_ports_of_a_program_are_one_group(tmp_path: Path) -> None:
    names = ["heat-cuda", "heat-omp", "heat-sycl", "heat-hip", "heat2d-cuda", "omp"]
    launches = read_launches(write(tmp_path, *({"program": name} for name in names)))
    assert [one.port_group for one in launches] == ["heat"] * 4 + ["heat2d", "omp"]
    assert groups_of(launches, lambda one: one.port_group).tolist() == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("column", "value"),
    rows("mistakes", "launches"),
)
def test_a_defect_names_file_row_and_column_launches(
    tmp_path: Path, column: str, value: str
) -> None:
    path = write(tmp_path, {}, {}, {column: value})
    with pytest.raises(DataError, match=column) as caught:
        read_launches(path)
    assert caught.value.context == {"file": "launches.csv", "row": 4, "column": column}
    assert "row 4" in caught.value.detail


# --- Activity tables made anew hold what the service answers, and the models are fitted to them

UNITS = UnitActivities(*np.linspace(0.05, 0.5, len(UnitActivities._fields)))

COUNTS = Activity(**dict.fromkeys(Activity.__dataclass_fields__, 3.0))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of every reading, with made-up activities."""
    names = {one["name"] for one in manifest()["program"]}
    for gpu in ("tesla-v100", "gtx-1080-ti", "tesla-p100", "quadro-rtx-8000"):
        rows = [
            _cells(ServedProgram(gpu, campaign, name, pair, watts, seconds, 2e-3, UNITS, COUNTS))
            for name, each in readings(gpu).items()
            if name in names
            for campaign, pair, watts, seconds in each
        ]
        pd.DataFrame(rows).to_csv(tmp_path / f"{gpu}.csv", index=False)
    monkeypatch.setenv(SERVED_FOLDER, str(tmp_path))
    return tmp_path


@needs_data
def test_what_is_written_is_read(folder: Path) -> None:
    rows = read_served_table("tesla-v100")
    assert {row.campaign for row in rows} == {"wang_tesla_v100", DCGM}
    assert len({row.program for row in rows}) == 13
    assert rows[0].units == UNITS
    assert rows[0].activity == COUNTS
    assert rows[0].predicted_seconds == 2e-3
    assert "histogram" not in {row.program for row in rows if row.campaign == DCGM}  # two kernels


@pytest.mark.slow
@needs_data
def test_models_are_fitted_to_served_rows_and_scored_on_no_others(folder: Path) -> None:
    tables = all_rows()
    for gpu in ("tesla-v100", "gtx-1080-ti", "tesla-p100", "quadro-rtx-8000"):
        rows = tables[gpu]
        mine = served_rows(gpu)
        assert rows.scored.sum() == len(mine.watts)
        assert np.allclose(rows.activities[rows.scored], UNITS)
        prototype = np.char.startswith(rows.labels, "served") & ~rows.scored
        assert (rows.counted | ~rows.real)[prototype].all()
        assert not set(rows.programs[prototype & rows.real]) & set(mine.programs)
    everything = served_rows("tesla-p100", other_builds=True)
    assert set(everything.programs) - set(served_rows("tesla-p100").programs) == {"cfd"}


def test_without_tables_the_reason_says_how_to_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVED_FOLDER, raising=False)
    with pytest.raises(DataError, match="python -m studies activity"):
        read_served_table("tesla-v100")


@pytest.mark.slow
@needs_data
def test_a_row_is_what_the_service_answers(tmp_path: Path) -> None:
    try:
        (chosen,) = [one for one in programs() if one.name == "transpose"]
    except DataError as reason:
        pytest.skip(str(reason))
    predictor, gpu = Predictor(settings_at(tmp_path)), load_gpu("tesla-p100")
    measured = readings("tesla-p100")["transpose"]
    rows = list(served(predictor, gpu, chosen, measured))
    assert len(rows) == len(measured) == 5
    parameters = predictor.power.physical(gpu).parameters
    for row in rows:
        body = chosen.request(gpu.id, row.clocks)
        answer = predict(predictor, PredictRequest.model_validate(body))
        assert row.predicted_seconds == answer["time"]["seconds"]
        watts = predicted_power(parameters, row.units, row.clocks).watts
        assert watts == pytest.approx(answer["power"]["watts"])
        assert row.activity.warp_instructions_sass == answer["features"]["warp_instructions_sass"]
