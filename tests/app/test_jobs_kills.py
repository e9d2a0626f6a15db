"""Kills at random moments: a few, or ``WATTCAST_TEST_KILLS`` of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.app import kills
from tests.app.databases import KINDS

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("WATTCAST_TEST_KILLS", "4"))
"""Kills on each database: at least one of each kind of process."""


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_whatever_is_killed(kind: str, tmp_path: Path) -> None:
    counts = kills.run(kind, tmp_path, ROUNDS, seed=1)
    print(counts.told())
    assert sum(counts.kills.values()) == ROUNDS
    assert counts.wrong == {}


def test_nothing_is_lost_where_workers_of_a_cluster_are_killed_too(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    counts = kills.run("sqlite", tmp_path, ROUNDS, seed=2, dask=True)
    print(counts.told())
    assert set(counts.kills) == set(kills.WITH_DASK[:ROUNDS])
    assert counts.wrong == {}


@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
def test_no_acknowledged_prediction_is_lost(kind: str, tmp_path: Path) -> None:
    counts = kills.run_predictions(kind, tmp_path, ROUNDS, per_second=100, seed=3)
    print(counts)
    assert counts.kills == ROUNDS
    assert counts.acknowledged >= ROUNDS * kills.WARM
    assert counts.missing == 0
