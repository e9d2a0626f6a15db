"""What ptxas 12.9 allocates for the fixture kernels: the table the estimate is held against.

``python -m tests.features.ptxas_registers`` writes ``ptxas_registers.csv`` anew (extra ``cuda``).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import NamedTuple

from wattcast.features.cuda.ptxas import PtxasReport, measure_resources
from wattcast.features.ptx import read_module

PTX_FOLDER = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"
TABLE = Path(__file__).with_name("ptxas_registers.csv")


class Row(NamedTuple):
    """One kernel of the file ``<source>.<target>.ptx``; bytes of shared memory per block."""

    source: str
    target: str
    kernel: str
    registers: int
    static_shared_bytes: int

    @property
    def path(self) -> Path:
        """The kernel's PTX file."""
        return PTX_FOLDER / f"{self.source}.{self.target}.ptx"


def table() -> list[Row]:
    """The committed table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Row(row[0], row[1], row[2], int(row[3]), int(row[4]))
            for row in list(csv.reader(file))[1:]
        ]


def measure(path: Path, kernel: str) -> PtxasReport | None:
    """Ask ptxas, for the target the file was compiled for; ``None`` without ptxas."""
    number = path.stem.partition(".sm_")[2]
    return measure_resources(path.read_text(encoding="utf-8"), kernel, divmod(int(number), 10))


def main() -> None:
    """Write the table. PTX of nvcc 13 is too new for this ptxas and left out."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for path in sorted(PTX_FOLDER.glob("*.ptx")):
            source, _, target = path.stem.partition(".")
            if not target.removeprefix("sm_").isdigit():
                continue
            for kernel in read_module(path.read_text(encoding="utf-8")).kernels:
                report = measure(path, kernel.name)
                if report is None:
                    sys.exit(f"ptxas is missing or refuses {path.name}")
                writer.writerow(
                    Row(
                        source,
                        target,
                        kernel.name,
                        report.registers_per_thread,
                        report.static_shared_bytes,
                    )
                )


if __name__ == "__main__":
    main()
