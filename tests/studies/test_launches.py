"""The table of measured launches: what it gives, and what a defect is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.data.launches import groups_of, read_launches
from tests.fixtures.tables import rows
from wattcast.features.errors import DataError
from wattcast.features.launch import Launch

HEADER = (
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
    path.write_text("\n".join([HEADER, *lines]) + "\n")
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
def test_a_defect_names_file_row_and_column(tmp_path: Path, column: str, value: str) -> None:
    path = write(tmp_path, {}, {}, {column: value})
    with pytest.raises(DataError, match=column) as caught:
        read_launches(path)
    assert caught.value.context == {"file": "launches.csv", "row": 4, "column": column}
    assert "row 4" in caught.value.detail
