"""Retraining that starts from what serves: its mode, its plan, and what becomes of the board."""

from __future__ import annotations

import csv
import io
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app import lab, measured, new_gpu
from tests.app.measured import result_of, upload
from tests.app.new_gpu import body_of
from tests.app.test_problems import json_of
from wattcast.features.gpus import load_gpu
from wattcast.models.power.boosted import BoostedPowerModel, launch_features
from wattcast.models.store import ArtifactStore

# On SQLite: what PostgreSQL could do otherwise hold test_retrain.py and test_registry_store.py.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("home", ["sqlite"], indirect=True)]

CASE = {"ptx": "add.ptx", "grid": 1000, "block": 256, "loops": {}}


def plan(client: httpx.Client, **body: object) -> dict[str, Any]:
    before = client.get("/jobs").json()
    (told,) = json_of(client.post("/retrain", json={**body, "dry_run": True}))["targets"]
    assert client.get("/jobs").json() == before  # nothing was queued
    return dict(told)


def retrained(client: httpx.Client, **body: object) -> dict[str, Any]:
    return result_of(client, client.post("/retrain", json=body))


# --- a board whose default is physical ------------------------------------------------------------


def test_a_board_whose_default_is_physical_is_calibrated_with_all_its_rows(
    service: httpx.Client, kernels: dict[str, str]
) -> None:
    case = body_of(kernels, CASE, lab.GPU)
    before = lab.power(service, case)
    batch = upload(service, lab.measured(service, kernels), gpu=lab.GPU, board=lab.BOARD)
    asked = {"gpu": lab.GPU, "batches": [batch]}
    # Adding trees takes no rows at other clocks, and was the default once.
    trees = plan(service, **asked, mode="continue")
    assert trees["left_out"] == {"measured at other clocks than the models answer for": 36}
    assert {row["reason"] for row in trees["left_out_rows"]} == set(trees["left_out"])
    assert len({row["row"] for row in trees["left_out_rows"]}) == 36
    found = plan(service, **asked)
    assert (found["mode"], found["rows"], found["left_out"]) == ("new_gpu", 72, {})
    assert "physical model answers for this board now" in found["why"]
    assert (found["obstacles"], found["judged_kernels"]) == ([], 24)
    assert sum(kernel["rows"] for kernel in found["kernels"]) == 72
    assert {kernel["fold"] for kernel in found["kernels"]} == set(range(1, found["folds"] + 1))
    result = retrained(service, **asked)
    assert (result["mode"], result["board"], result["left_out"]) == ("new_gpu", lab.BOARD, {})
    assert result["promoted"], result["verdict"]["reasons"]
    assert len(result["held_out"]) == 72
    for row in result["held_out"]:
        assert row["old"] * lab.DRAWS == pytest.approx(row["measured"], rel=0.06)
        assert abs(row["new"] / row["measured"] - 1) < abs(row["old"] / row["measured"] - 1)
    listed = service.get("/jobs").json()[0]["result"]
    assert "held_out" not in listed
    assert listed["verdict"] == result["verdict"]
    # Wherever a model answers, the board can be named.
    assert lab.power(service, case) == before
    mine = {**case, "board": lab.BOARD, "model": "auto"}
    assert lab.power(service, mine) / before == pytest.approx(lab.DRAWS, rel=0.03)

    def drawn(path: str, body: dict[str, Any]) -> list[float]:
        told = json_of(service.post(path, json=body))
        found = {
            "/sweep": lambda: [told["reference"]["power"]["watts"]],
            "/dvfs": lambda: [told["reference"]["power"]["watts"]],
            "/compare": lambda: [told["comparisons"][0][one]["power"]["watts"] for one in SIDES],
            "/cost": lambda: [told["kernels"][0]["power"]["watts"]],
            "/predict": lambda: [told["power"]["watts"]],
            "/predict/batch": lambda: [told["predictions"][0]["power"]["watts"]],
        }
        return found[path]()

    code = {name: case[name] for name in ("ptx", "launch", "loops")}
    both = {"old": code, "new": code}
    bodies = {
        "/sweep": code,
        "/dvfs": code,
        "/compare": both,
        "/cost": {"kernels": [{**code, "launches": 3}]},
        "/predict/batch": {"ptx": code["ptx"], "launches": [code["launch"]]},
    }
    for path, body in bodies.items():
        general = drawn(path, {**body, "gpu": lab.GPU})
        own = drawn(path, {**body, "gpu": lab.GPU, "board": lab.BOARD})
        assert [a / b for a, b in zip(own, general, strict=True)] == pytest.approx(
            [lab.DRAWS] * len(own), rel=0.03
        ), path
    work = {"work": {"dram_bytes": 1e9, "int_ops": 4e9}, "launch": {"grid": 4096, "block": 256}}
    pair = [drawn("/predict", {**work, "gpu": lab.GPU, **of}) for of in ({}, {"board": lab.BOARD})]
    assert pair[1][0] / pair[0][0] > 1.05
    answered = service.post("/predict", json=mine).json()
    of_it = f"/predictions/{answered['id']}"
    assert service.get(f"{of_it}/hotspots").json()["shares_by"]["source"] == "uploads"
    assert service.get(f"{of_it}/advice").json()["model"]["source"] == "uploads"
    # The same rows once more tell nothing new, and the plan says so.
    again = plan(service, **asked)
    assert again["judged_kernels"] == 0
    assert "at least 6" in again["obstacles"][0]
    assert all(kernel["rows"] == 0 for kernel in again["kernels"])
    undone = service.post(f"/models/{lab.GPU}/power/rollback", json={"board": lab.BOARD})
    assert undone.status_code == 200, undone.text
    assert lab.power(service, mine) == before


SIDES = ("old", "new")


def test_a_gpu_without_a_model_and_times_are_planned_together(
    service: httpx.Client, kernels: dict[str, str]
) -> None:
    batch = upload(service, new_gpu.measured(service, kernels))
    body = {"gpu": new_gpu.GPU, "batches": [batch], "targets": ["power", "time"], "dry_run": True}
    power, time = json_of(service.post("/retrain", json=body))["targets"]
    assert (power["mode"], time["mode"]) == ("new_gpu", None)
    assert "pooled over other GPUs" in power["why"]
    assert [one["target"] for one in (power, time)] == ["power", "time"]
    assert power["obstacles"] == time["obstacles"] == []


# --- a board whose default is trees ---------------------------------------------------------------


def bare(content: bytes) -> bytes:
    """The same table with the columns that the documentation asks for, and no others."""
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [name for name in rows[0] if name != "grid_size"], extrasaction="ignore"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def of_who_answers(content: bytes) -> bytes:
    """The table with what the extra trees that answer for the board say of each launch."""
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    model = BoostedPowerModel(
        ArtifactStore().find(measured.GPU, "power", "extratrees", "alavani2023")
    )

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows]

    launch = launch_features(
        column("grid_size"), column("block_size"), column("occupancy"), load_gpu(measured.GPU)
    )
    vectors = [launch[name] if name in launch else column(name) for name in model.feature_names]
    for row, watts in zip(rows, model.predict_watts(np.column_stack(vectors)), strict=True):
        row["power_watts"] = repr(float(watts))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def test_needed_columns_alone_are_enough_to_be_promoted(service: httpx.Client) -> None:
    """Extra trees answer for the K20, and look at the grid, which no row has to tell."""
    shift, board = 1.3, "bare"
    content = bare(measured.table(60, kernels=20, shift=shift, board=board))
    batch = upload(service, content)
    asked = {"gpu": measured.GPU, "batches": [batch], "families": ["catboost"]}
    found = plan(service, **asked)
    assert found["mode"] in ("full", "continue")  # whether the packaged models' rows are at hand
    assert "the extratrees model answers for this board now" in found["why"]
    assert (found["rows"], found["left_out"], found["obstacles"]) == (60, {}, [])
    assert any("60 rows do not tell their grid" in note for note in found["notes"])
    result = retrained(service, **asked, mode="continue")
    assert result["promoted"], result["verdict"]
    assert any("extratrees" in one["opponent"] for one in result["verdict"]["comparisons"])
    # Now trees answer that can be continued.
    more = bare(measured.table(60, kernels=20, shift=shift, board=board, seed=3))
    later = plan(service, gpu=measured.GPU, batches=[upload(service, more)])
    assert later["mode"] == "continue"
    assert later["rows"] == 120
    assert all(kernel["earlier_rows"] == 3 and kernel["known"] for kernel in later["kernels"])


def test_who_answers_right_keeps_its_place_though_its_grids_are_not_told(
    service: httpx.Client,
) -> None:
    content = bare(of_who_answers(measured.table(60, kernels=20, board="right")))
    batch = upload(service, content)
    asked = {"gpu": measured.GPU, "batches": [batch], "families": ["catboost"]}
    result = retrained(service, **asked, mode="continue")
    assert not result["promoted"]
    assert any("extratrees" in reason for reason in result["verdict"]["reasons"])


def test_what_cannot_be_planned_is_told(service: httpx.Client, kernels: dict[str, str]) -> None:
    few = measured.table(8, kernels=2, board="few")
    batch = upload(service, few)
    found = plan(service, gpu=measured.GPU, batches=[batch])
    assert "2 kernel groups to judge on: measure at least 6" in found["obstacles"][0]

    def refused(**body: object) -> str:
        answer = service.post("/retrain", json={"batches": [batch], **body, "dry_run": True})
        assert answer.status_code == 422, answer.text
        return answer.text

    assert "no measurement of tesla-m60 is left" in refused(gpu="tesla-m60")
    assert "8 of another board" in refused(gpu=measured.GPU, board="other")
    form = {"gpu": measured.GPU, "dry_run": "true"}
    told = service.post("/retrain", files={"file": ("rows.csv", few)}, data=form)
    assert (told.status_code, "measurements/check" in told.text) == (422, True)


def test_published_features_cannot_be_held_against_a_physical_model(
    service: httpx.Client, kernels: dict[str, str]
) -> None:
    """The V100's own physical model answers; rows without its features are planned with why not."""
    content = measured.table(40, kernels=10, board="v").replace(b"tesla-k20", b"tesla-v100")
    batch = upload(service, content)
    found = plan(service, gpu="tesla-v100", batches=[batch])
    assert found["mode"] in ("full", "continue")
    assert "no row has features of activity1" in found["why"]
    assert "physical model cannot be asked about 40 of 40 rows" in found["obstacles"][0]
