"""Features of uploads: the same in the service as in a process of their own, which may die."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.app.conftest import settings_at
from wattcast.app.services import Services
from wattcast.app.services.measurements import extraction
from wattcast.app.services.measurements.extraction import Extracted, Launch, extract_all
from wattcast.app.services.measurements.rows import group_of
from wattcast.app.store.measurements import Rejection
from wattcast.features.errors import ServiceError
from wattcast.predictor.messages.analyze import AnalyzeRequest


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    opened = Services(settings_at(tmp_path_factory.mktemp("home")))
    yield opened
    opened.close()


def launches(vector_add: str, looping: str) -> list[Launch]:
    def launch(number: int, ptx: str, **change: object) -> Launch:
        body = {"ptx": ptx, "gpu": "v100", "launch": {"grid": [64], "block": [128]}, **change}
        return Launch(number, ptx[-9:], AnalyzeRequest.model_validate(body))

    return [
        launch(1, vector_add),
        launch(2, looping, loops={"default": 9}),
        launch(3, looping, launch={"grid": [4], "block": [32], "arguments": {"1": 100}}),
        launch(4, vector_add, gpu="h200", kernel="vector_add"),
        launch(5, vector_add, kernel="another"),
        launch(6, vector_add, launch={"grid": [1], "block": [4096]}),
        launch(7, "this is no PTX"),
    ]


def test_a_process_of_its_own_extracts_the_same(
    services: Services, vector_add: str, looping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTCAST_DATABASE_URL", "nonsense://which nobody may open")
    asked = launches(vector_add, looping)
    until = time.monotonic() + 60
    here = list(extract_all(services, asked, until))
    monkeypatch.setattr(extraction, "ROWS_HERE", 0)
    there = list(extract_all(services, asked, until))
    assert len(here) == len(there) == len(asked)
    for one, other in zip(here, there, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Rejection):
            assert one == other
            continue
        assert isinstance(other, Extracted)
        assert (one.kernel, one.demangled) == (other.kernel, other.demangled)
        assert list(one.vectors) == list(other.vectors)
        for schema, vector in one.vectors.items():
            np.testing.assert_array_equal(vector, other.vectors[schema])
    assert [one.column for one in here if isinstance(one, Rejection)] == ["kernel", "block", "ptx"]
    assert [len(one.vectors) for one in here if isinstance(one, Extracted)] == [4, 4, 4, 1]


@pytest.mark.parametrize("rows_here", [0, 100])
def test_an_upload_that_takes_too_long_is_given_up(
    services: Services,
    vector_add: str,
    looping: str,
    rows_here: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extraction, "ROWS_HERE", rows_here)
    with pytest.raises(ServiceError, match="WATTCAST_UPLOAD_SECONDS"):
        list(extract_all(services, launches(vector_add, looping), time.monotonic()))


def test_a_process_that_dies_is_our_fault(
    services: Services, vector_add: str, looping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "ROWS_HERE", 0)
    monkeypatch.setattr(extraction.sys, "executable", "/bin/false")
    with pytest.raises(ServiceError) as caught:
        list(extract_all(services, launches(vector_add, looping), time.monotonic() + 60))
    assert caught.value.kind == "internal"


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("void ns::matmul<float, 16>(float*, int)", "matmul"),
        ("vector_add", "vector_add"),
        ("void (anonymous namespace)::scan<(int)3, Op<float> >(T*)", "scan"),
        ("k(float*)", "k"),
        ("", ""),
        ("<>", "<>"),
    ],
)
def test_instances_of_a_template_are_one_group(kernel: str, group: str) -> None:
    assert group_of(kernel) == group
