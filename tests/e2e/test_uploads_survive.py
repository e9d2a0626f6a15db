"""A service killed at any moment has lost no upload it acknowledged, and holds none by half."""

from __future__ import annotations

import io
import os
import random
import threading
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from tests.app.databases import KINDS, database
from tests.e2e.test_serve import start, url_from
from wattcast.app.store.database import open_database
from wattcast.app.store.measurements import MEASUREMENT_BATCHES, MEASUREMENTS
from wattcast.features.schemas import get_schema

ROWS = 40
KILLS = int(os.environ.get("WATTCAST_TEST_KILLS", "3"))
UPLOADERS = 3
FIELDS = get_schema("alavani2023").model_fields


def table(board: str) -> bytes:
    head = ["gpu", "kernel", "board", "power_watts", *FIELDS]
    rows = [["v100", f"k{n}", board, str(90 + n), *["1"] * len(FIELDS)] for n in range(ROWS)]
    return "\n".join(",".join(row) for row in (head, *rows)).encode()


def upload(url: str, board: str, acknowledged: list[str], ended: threading.Event) -> None:
    """Upload one batch after another until the service is gone."""
    with httpx.Client(timeout=60) as client:
        number = 0
        while not ended.is_set():
            number += 1
            files = {"file": io.BytesIO(table(f"{board}-{number}"))}
            try:
                answer = client.post(
                    f"{url}/measurements", files=files, data={"schema": "alavani2023"}
                )
            except httpx.TransportError:
                return
            assert answer.status_code == 201, answer.text
            acknowledged.append(answer.json()["id"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_uploads_survive_kills(kind: str, tmp_path: Path) -> None:
    rng = random.Random(60)
    acknowledged: list[str] = []
    with database(kind, tmp_path) as address:
        for kill in range(KILLS):
            process = start(
                tmp_path,
                "--port",
                "0",
                WATTCAST_DATABASE_URL=address,
                WATTCAST_API_KEYS="off",
                WATTCAST_LOG_LEVEL="error",
            )
            try:
                _, url = url_from(process)
                ended = threading.Event()
                threads = [
                    threading.Thread(target=upload, args=(url, f"{kill}.{n}", acknowledged, ended))
                    for n in range(UPLOADERS)
                ]
                for thread in threads:
                    thread.start()
                before = len(acknowledged)
                while len(acknowledged) < before + 2:
                    assert any(thread.is_alive() for thread in threads)
                    threads[0].join(0.02)
                threads[0].join(rng.uniform(0, 0.3))  # a random moment
            finally:
                process.kill()
                ended.set()
                for thread in threads:
                    thread.join(60)
                process.communicate()
        engine = open_database(address)
        with engine.connect() as connection:
            batches = connection.execute(
                sa.select(MEASUREMENT_BATCHES.c.id, MEASUREMENT_BATCHES.c.accepted)
            ).all()
            counted = connection.execute(
                sa.select(MEASUREMENTS.c.batch_id, sa.func.count()).group_by(
                    MEASUREMENTS.c.batch_id
                )
            ).all()
        engine.dispose()
    print(f"{kind}: {KILLS} kills, {len(acknowledged)} acknowledged, {len(batches)} stored")
    assert {str(batch.id) for batch in batches} >= set(acknowledged)
    assert {tuple(row) for row in counted} == {(batch.id, ROWS) for batch in batches}
    assert {batch.accepted for batch in batches} == {ROWS}
