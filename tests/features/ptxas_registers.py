"""What ptxas 12.9 allocates for the fixture kernels: the table the estimate is held against.

``python -m tests.features.ptxas_registers`` writes ``ptxas_registers.csv`` anew (extra ``cuda``).
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import NamedTuple

from tests.fixtures.kernels.data import path_for
from wattcast.features.cuda.isolation import PtxasReport, measure_resources

TABLE = Path(__file__).with_name("ptxas_registers.csv")


class Row(NamedTuple):
    """One kernel of a source compiled for a target; bytes of shared memory per block."""

    source: str
    target: str
    kernel: str
    registers: int
    static_shared_bytes: int

    def text(self) -> str:
        """The kernel's PTX, for the row's target."""
        ptx = path_for(self.source, self.target).read_text(encoding="utf-8")
        return re.sub(r"(?m)^\.target sm_\d+$", f".target {self.target}", ptx, count=1)

    def measured(self) -> PtxasReport | None:
        """What ptxas says; ``None`` without ptxas."""
        capability = divmod(int(self.target.removeprefix("sm_")), 10)
        return measure_resources(self.text(), self.kernel, capability)


def table() -> list[Row]:
    """The committed table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Row(row[0], row[1], row[2], int(row[3]), int(row[4]))
            for row in list(csv.reader(file))[1:]
        ]


def main() -> None:
    """Measure every row of the table anew; a new kernel needs rows first."""
    rows = []
    for row in table():
        report = row.measured()
        if report is None:
            sys.exit(f"ptxas is missing or refuses {row.source}")
        found = report.registers_per_thread, report.static_shared_bytes
        rows.append((*row[:3], *found))
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *rows])


if __name__ == "__main__":
    main()
