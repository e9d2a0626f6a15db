"""Measurements in, better models out: over HTTP, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.measured import FAMILY, GPU, SCHEMA, ended, result_of, table, upload
from tests.app.test_problems import json_of

OPTIONS: dict[str, Any] = {"gpu": GPU, "mode": "continue", "families": [FAMILY]}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service on SQLite, for what the other database would not do otherwise."""
    with running(settings_at(tmp_path_factory.mktemp("embedded"))) as client:
        yield client


def retrain(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/retrain", json={**OPTIONS, **more})


def watts(client: httpx.Client, vector_add: str, board: str | None = None) -> dict[str, Any]:
    """What answers by default, and what its family answers."""
    body = {"ptx": vector_add, "gpu": GPU, "launch": {"grid": [4096], "block": [256]}}
    found: dict[str, Any] = {}
    for choice in ("auto", FAMILY):
        answer = json_of(client.post("/predict", json={**body, "model": choice, "board": board}))
        found[choice] = {name: answer[name] for name in ("power", "energy", "model")}
    return found


@pytest.mark.slow
def test_a_shift_is_learned_promoted_served_and_rolled_back(
    service: httpx.Client, home: dict[str, Any], vector_add: str
) -> None:
    before = watts(service, vector_add)
    batch = upload(service, table(2000))
    accepted = retrain(service, batches=[batch])
    assert accepted.status_code == 202, accepted.text
    location = accepted.headers["Location"]
    assert location == f"/jobs/{accepted.json()['id']}"
    job = ended(service, location)
    assert job["state"] == "done", job["error"]
    result: Any = job["result"]
    assert result["promoted"], result["verdict"]["reasons"]
    assert result["watts_factor"] == pytest.approx(1.15, abs=0.01)
    assert {score["protocol"] for score in result["scores"]} == {"grouped", "random"}
    after = watts(service, vector_add)
    assert after["auto"] == after[FAMILY]
    served, packaged = (each[FAMILY]["power"]["watts"] for each in (after, before))
    assert served / packaged == pytest.approx(1.15, abs=0.06)
    model = after["auto"]["model"]
    assert model["source"] == "uploads"
    card = service.get(model["card"])
    assert card.json()["board"]["batches"] == [batch]
    # Another service on the same database serves the same, from its start and after a change.
    with running(settings_at(**home, job_workers=0)) as replica:
        assert watts(replica, vector_add) == after
        undone = service.post(f"/models/{GPU}/power/rollback", json={"why": "a test"})
        assert undone.status_code == 200, undone.text
        assert watts(service, vector_add) == before
        until = time.monotonic() + 2
        while watts(replica, vector_add) != before:
            assert time.monotonic() < until, "the replica did not follow within two seconds"
            time.sleep(0.05)
    registry = service.get(f"/models/{GPU}/power/registry").json()
    (place,) = registry["places"]
    assert place["champion"] is None
    assert place["candidate"]["version"] == model["version"]
    name = {key: model[key] for key in ("family", "schema", "source", "version")}
    again = service.post(f"/models/{GPU}/power/promote", json={**name, "why": "I know better"})
    assert again.status_code == 200, again.text
    assert watts(service, vector_add) == after
    service.post(f"/models/{GPU}/power/rollback", json={})
    assert watts(service, vector_add) == before
    refused = service.post(f"/models/{GPU}/power/rollback", json={})
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/no-rollback")


@pytest.mark.slow
def test_garbage_is_not_promoted_and_the_reason_is_told(
    service: httpx.Client, vector_add: str
) -> None:
    before = watts(service, vector_add)
    batch = upload(service, table(2000, shift=1.5, shuffled=True))
    result = result_of(service, retrain(service, batches=[batch]))
    assert not result["promoted"]
    assert any("no-information baseline" in reason for reason in result["verdict"]["reasons"])
    assert watts(service, vector_add) == before
    registry = service.get(f"/models/{GPU}/power/registry").json()
    told = {one["version"]: one for one in registry["versions"]}
    assert told[result["candidate"]["version"]]["reasons"] == result["verdict"]["reasons"]


@pytest.mark.slow
def test_measurements_may_come_with_the_request_and_boards_have_their_own_champion(
    embedded: httpx.Client, vector_add: str
) -> None:
    before = watts(embedded, vector_add)
    accepted = embedded.post(
        "/retrain",
        files={"file": ("rows.csv", table(400, kernels=20, shift=1.3, board="left"))},
        data={**OPTIONS, "schema": SCHEMA},
    )
    assert accepted.status_code == 202, accepted.text
    with embedded.stream("GET", accepted.headers["Location"] + "/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = list(stream.iter_lines())
    states = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert (states[0], states[-1]) == ("queued", "done")
    stages = [json.loads(line[6:])["stage"] for line in lines if line.startswith("data: ")]
    assert stages[:2] == ["queued", "starting"]
    assert {"rows", "folds", "final fit", "gate", "storing", "done"} <= set(stages)
    job = ended(embedded, accepted.headers["Location"])
    assert job["result"]["promoted"], job["result"]["verdict"]  # type: ignore[index]
    assert job["result"]["board"] == "left"  # type: ignore[index]
    left = watts(embedded, vector_add, "left")
    served, packaged = (each[FAMILY]["power"]["watts"] for each in (left, before))
    assert served / packaged == pytest.approx(1.3, abs=0.08)
    assert watts(embedded, vector_add) == before
    assert watts(embedded, vector_add, "right") == before


def test_a_request_sent_twice_under_a_key_is_one_job(embedded: httpx.Client) -> None:
    batch = upload(embedded, table(40, kernels=8, seed=5))
    key = {"Idempotency-Key": uuid4().hex}
    body = {**OPTIONS, "batches": [batch]}
    first = embedded.post("/retrain", json=body, headers=key)
    second = embedded.post("/retrain", json=body, headers=key)
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["id"] == second.json()["id"]
    other = embedded.post("/retrain", json={**body, "promote": False}, headers=key)
    assert (other.status_code, other.json()["type"]) == (409, "/problems/idempotency-key")
    cancelled = embedded.delete(first.headers["Location"])
    assert cancelled.status_code == 202
    assert ended(embedded, first.headers["Location"])["state"] in ("cancelled", "done")
    assert embedded.get("/jobs", params={"limit": 1}).json()[0]["id"] == first.json()["id"]


@pytest.mark.slow
def test_what_the_rows_do_not_give_fails_the_job_with_the_reason(embedded: httpx.Client) -> None:
    two_boards = table(20, kernels=5, board="a") + b"\n".join(
        table(20, kernels=5, board="b", seed=1).splitlines()[1:]
    )
    batch = upload(embedded, two_boards)
    job = ended(embedded, retrain(embedded, batches=[batch]).headers["Location"])
    error: Any = job["error"]
    assert (job["state"], job["attempts"], error["kind"]) == ("failed", 1, "data")
    assert error["known"] == ["a", "b"]
    none = ended(embedded, retrain(embedded, batches=[batch], board="c").headers["Location"])
    assert "of another board" in none["error"]["detail"]  # type: ignore[index]
    other = ended(embedded, retrain(embedded, batches=[batch], gpu="tesla-m60").headers["Location"])
    assert "no measurement of tesla-m60" in other["error"]["detail"]  # type: ignore[index]


def test_wrong_requests_are_refused_at_once(embedded: httpx.Client) -> None:
    unknown = retrain(embedded, batches=[str(uuid4())])
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/unknown-batch")
    assert retrain(embedded, batches=[]).status_code == 422
    assert retrain(embedded, batches=["x"]).status_code == 422
    assert retrain(embedded, batches=[str(uuid4())], gpu="gtx-1").status_code == 422
    assert retrain(embedded, batches=[str(uuid4())], mode="guess").status_code == 422
    assert embedded.post("/retrain", data=OPTIONS, files={"x": b""}).status_code == 422
    for path in (f"/jobs/{uuid4()}", f"/jobs/{uuid4()}/events"):
        assert embedded.get(path).json()["type"] == "/problems/unknown-job"
    assert embedded.delete(f"/jobs/{uuid4()}").status_code == 404
    nowhere = embedded.post(
        f"/models/{GPU}/power/promote",
        json={"family": "catboost", "schema": SCHEMA, "source": "uploads", "version": 99},
    )
    assert (nowhere.status_code, nowhere.json()["type"]) == (422, "/problems/model")
    time_target = embedded.post(
        f"/models/{GPU}/time/promote",
        json={"family": "catboost", "schema": SCHEMA, "source": "thesis", "version": 1},
    )
    assert time_target.status_code == 422
