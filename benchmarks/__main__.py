"""Run every benchmark and print one table: ``make bench``."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import (
    analysis,
    application,
    cli,
    execution,
    explain,
    install,
    launches,
    load,
    page,
    path,
    service,
    symbolic,
    timeline,
    tuning,
)
from benchmarks.measure import Row

PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "path": path.rows,
    "install": install.rows,
    "cli": cli.rows,
    "analysis": analysis.rows,
    "execution": execution.rows,
    "symbolic": symbolic.rows,
    "application": application.rows,
    "explain": explain.rows,
    "launches": launches.rows,
    "tuning": tuning.rows,
    "service": service.rows,
    "page": page.rows,
    "timeline": timeline.rows,
    "load": load.rows,
}


def main() -> int:
    """Print the table; the exit code is 1 if a figure misses its budget and --strict is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="parts to run (all)")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a budget is missed")
    arguments = parser.parse_args()
    table = Table(title=f"{platform.machine()}, {psutil.cpu_count()} cores, load {_load()}")
    for heading, justify in (("what", "left"), ("figure", "right"), ("unit", "left"),
                             ("budget", "right"), ("", "left")):  # fmt: skip
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    missed = 0
    for name in arguments.part or PARTS:
        for row in PARTS[name]():
            missed += not row.ok
            verdict = "" if not row.budget else "ok" if row.ok else "MISSED"
            table.add_row(row.name, f"{row.value:.4g}", row.unit, row.budget, verdict)
            print(f"{row.name}: {row.value:.4g} {row.unit}", file=sys.stderr)
    Console(width=110).print(table)
    return 1 if missed and arguments.strict else 0


def _load() -> str:
    return f"{psutil.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
