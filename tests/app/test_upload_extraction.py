"""Features of uploads, and which kernels are evaluated together."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import numpy as np
import pytest

from tests.app.conftest import settings_at
from tests.app.measured import zipped
from wattcast.app.services import Services
from wattcast.app.services.measurements.rows import group_of, request_of
from wattcast.app.services.measurements.upload import (
    UploadOptions,
    check_upload,
    extracted,
    read_upload,
)
from wattcast.features.errors import ServiceError


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    opened = Services.open(settings_at(tmp_path_factory.mktemp("home"), job_workers=0))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def upload(kernels: dict[str, str]) -> io.BytesIO:
    def row(ptx: str = "add.ptx", **change: object) -> str:
        body = {"ptx": ptx, "gpu": "v100", "grid": 64, "block": 128, "power_watts": 100, **change}
        return json.dumps(body)

    rows = [
        row(),
        row("loop.ptx", loops={"default": 9}, registers_per_thread=20),
        row("loop.ptx", grid=[4], block="32", arguments={"1": 100}),
        row(gpu="h200", kernel="vector_add"),
        row(kernel="another"),
        row(grid=1, block=4096),
        row("text.ptx"),
    ]
    files = {"rows.jsonl": "\n".join(rows), **kernels, "text.ptx": "this is no PTX"}
    return io.BytesIO(zipped(files))


def test_rows_have_the_features_that_a_prediction_sees(
    services: Services, upload: io.BytesIO
) -> None:
    batch = read_upload(services, upload, UploadOptions())
    columns = [(rejection.row, rejection.column) for rejection in batch.rejections]
    assert columns == [(5, "kernel"), (6, "block"), (7, "ptx")]
    assert [len(row.vectors) for row in batch.rows] == [4, 4, 4, 1]
    for row in batch.rows:
        assert row.ptx_sha256 is not None
        # What is stored of the launch is all that its analysis took.
        again = extracted(services, request_of(row, batch.ptx[row.ptx_sha256]))
        assert again[0] == row.kernel
        for schema, vector in row.vectors.items():
            np.testing.assert_array_equal(again[2][schema], vector)


def test_an_upload_that_takes_too_long_is_given_up(
    services: Services, upload: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = services.settings.model_copy(update={"upload_seconds": 0})
    monkeypatch.setattr(services, "settings", hurried)
    with pytest.raises(ServiceError, match="WATTCAST_UPLOAD_SECONDS"):
        check_upload(services, upload, UploadOptions())


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
