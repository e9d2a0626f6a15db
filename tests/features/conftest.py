"""Tables that tests record with ``record_property("table", ...)`` are printed after the run."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    tables = sorted(
        value
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "table"
    )
    for table in tables:
        terminalreporter.write_line(str(table))
