"""The contract of ``make lint`` against import circles finds one where there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.import_circles import circles, runtime_imports


def test_circles_are_found_round_about_and_a_chain_is_none() -> None:
    assert circles([("a", "b"), ("b", "c"), ("c", "d"), ("a", "a")]) == []
    assert circles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("x", "y"), ("y", "x")]) == [
        ["a", "b", "c"],
        ["x", "y"],
    ]


def test_imports_for_types_alone_are_no_circle_and_imports_in_functions_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "circled"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "low.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circled import top\n"
    )
    (package / "top.py").write_text("from circled import low\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert circles(runtime_imports("circled")) == []
    (package / "low.py").write_text("def late():\n    from circled import top\n")
    assert circles(runtime_imports("circled")) == [["circled.low", "circled.top"]]
    assert "circled" not in sys.modules
