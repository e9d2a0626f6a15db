"""The size of the product is counted, and a limit is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import size
from tests import conftest


def test_lines_and_files_are_counted_and_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (*size.PRODUCT, "wattcast", "studies"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("one\n\nthree\n")
    (tmp_path / "app" / "deep").mkdir()
    (tmp_path / "app" / "deep" / "more.py").write_text("one\ntwo\n")
    (tmp_path / "app" / "page.js").write_text("no\n")
    assert size.counted(tmp_path) == {
        **dict.fromkeys((*size.PRODUCT, "wattcast"), (3, 1)),
        "app": (5, 2),
    }
    monkeypatch.setattr(size, "MOST_LINES", 20)
    monkeypatch.setattr(size, "MOST_FILES", 7)
    assert size.main(tmp_path) == 0
    assert "product         20 lines in   7 files" in capsys.readouterr().out
    (tmp_path / "models" / "new.py").touch()
    assert size.main(tmp_path) == 1
    monkeypatch.setattr(size, "MOST_FILES", 8)
    assert size.main(tmp_path) == 0
    monkeypatch.setattr(size, "LONGEST_FILE", 2)
    assert size.main(tmp_path) == 1
    assert "above 2 lines: app/__init__.py, features/" in capsys.readouterr().out
    monkeypatch.setattr(size, "LONGEST_FILE", 3)
    monkeypatch.setattr(size, "MOST_LINES", 19)
    assert size.main(tmp_path) == 1


def test_what_is_installed_is_what_is_counted() -> None:
    links = {path.name for path in (size.ROOT / "wattcast").iterdir() if path.is_symlink()}
    assert links == set(size.PRODUCT)


def test_what_is_called_quick_slow_or_alone_is_there() -> None:
    for start in (*conftest.QUICK, *conftest.NOT_QUICK, *conftest.SLOW, *conftest.ALONE):
        path, _, name = start.partition("::")
        text = (size.ROOT / path).read_text("utf-8") if path.endswith(".py") else ""
        assert (size.ROOT / path).exists(), start
        assert not name or f"def {name.split('[')[0]}" in text, start
