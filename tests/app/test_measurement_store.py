"""Batches of measurements are stored whole, once, and deleted whole; every change is audited."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tests.app.live import at_once
from wattcast.app.store.measurements import (
    Measurement,
    MeasurementStore,
    NewBatch,
    Rejection,
)
from wattcast.app.store.tables import entries

PTX_TEXT = "// a kernel"
PTX_SHA = "ab" * 32
ROW = Measurement(
    row=1,
    gpu="tesla-v100",
    board="GPU-7",
    kernel="_Z3addv",
    kernel_group="add",
    ptx_sha256=PTX_SHA,
    launch={"grid": [4], "block": [32], "dynamic_shared_bytes": 0, "arguments": {"0": 7}},
    core_mhz=1380.0,
    memory_mhz=None,
    power_watts=100.25,
    time_seconds=1.5e-5,
    repeats=3,
    vectors={"activity1": (1.0, float("nan"), 3.5)},
)


def batch(content: str = "c", rows: int = 3) -> NewBatch:
    return NewBatch(
        content_sha256=content.ljust(64, "0"),
        form="ptx",
        schemas={"activity1": "5" * 64},
        rows=[replace(ROW, row=n, board="A" if n % 2 else "B") for n in range(1, rows + 1)],
        rejected=1,
        rejections=[Rejection(4, "grid", "is missing")],
        ptx={PTX_SHA: PTX_TEXT},
    )


def test_a_batch_comes_back_as_it_was_stored(engine: sa.Engine) -> None:
    store = MeasurementStore(engine)
    stored, new = store.add(batch(), "key:1")
    assert new
    assert (stored.accepted, stored.rejected, stored.uploaded_by) == (3, 1, "key:1")
    assert stored.rejections == (Rejection(4, "grid", "is missing"),)
    assert store.get(stored.id) == stored
    rows = [row for _, row in store.rows([stored.id])]
    assert [row.row for row in rows] == [1, 2, 3]
    first, vector = rows[0], rows[0].vectors["activity1"]
    assert replace(first, vectors={}) == replace(ROW, board="A", vectors={})
    assert (vector[0], isnan(vector[1]), vector[2]) == (1.0, True, 3.5)
    assert [row.board for row in rows] == ["A", "B", "A"]
    assert list(store.rows([stored.id], gpu="tesla-k20")) == []
    assert store.ptx([PTX_SHA, "0" * 64]) == {PTX_SHA: PTX_TEXT}
    assert store.get(uuid4()) is None


def test_uploads_of_the_same_content_at_once_make_one_batch(engine: sa.Engine) -> None:
    store = MeasurementStore(engine)
    ids, failures = [], []

    def upload() -> None:
        try:
            ids.append(store.add(batch(rows=50), "key:1")[0].id)
        except Exception as error:
            failures.append(error)

    at_once([upload] * 8)
    assert not failures
    assert len(set(ids)) == 1
    assert len(list(store.rows(ids[:1]))) == 50
    assert [entry.action for entry in entries(engine)] == ["measurements.upload"]


def test_a_batch_is_stored_whole_or_not_at_all(engine: sa.Engine) -> None:
    store = MeasurementStore(engine)
    twice = replace(batch(), rows=[ROW, ROW])
    with pytest.raises(IntegrityError):
        store.add(twice, "key:1")
    assert store.latest() == []
    assert entries(engine) == []
    assert store.ptx([PTX_SHA]) == {}
