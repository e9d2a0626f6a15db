"""One prediction enters no more of our functions and files than it did."""

from __future__ import annotations

from benchmarks import path


def test_the_way_of_a_prediction_does_not_grow() -> None:
    functions, files = path.rows()
    assert functions.ok, f"{functions.value:g} functions, {functions.budget}"
    assert files.ok, f"{files.value:g} files, {files.budget}"
    assert functions.value > 100  # what is counted is entered at all
