"""The examples that the page opens with: what is shipped is what the service answers today."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from studies.pages.examples import solve
from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.test_application import TRAINING
from wattcast.app.demo import SOLVED, examples, request_of

NAMES = tuple(name for name, example in examples().items() if "file" in example)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """As ``wattcast serve`` starts it: ptxas counts registers."""
    home = tmp_path_factory.mktemp("home")
    with running(settings_at(home, job_workers=0, ptxas="auto")) as client:
        if "none" in str(client.get("/readyz").json().get("compilers", "")):
            pytest.skip("CUDA source is not compiled here: compilers are not isolated")
        yield client


def shipped(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SOLVED.joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return found


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """Where two answers differ: numbers by more than another machine's rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            if name not in old or name not in new:
                yield f"{at}.{name}: only in {'the fresh' if name in new else 'the shipped'} answer"
            else:
                yield from differences(old[name], new[name], f"{at}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif isinstance(old, float) and isinstance(new, (int, float)):
        if new != pytest.approx(old, rel=1e-9, abs=1e-30):
            yield f"{at}: {old} shipped, {new} fresh"
    elif old != new:
        yield f"{at}: {old!r} shipped, {new!r} fresh"


def test_every_example_is_shipped_and_nothing_else() -> None:
    assert {file.name for file in SOLVED.iterdir()} == {f"{name}.json" for name in examples()}


@pytest.mark.parametrize("name", examples())
def test_the_shipped_answer_is_the_fresh_one(service: httpx.Client, name: str) -> None:
    """Else: ``python -m studies examples``."""
    fresh = json.loads(json.dumps(solve(service, examples()[name])))
    found = list(differences(shipped(name), fresh))
    assert not found, found[:5]


def test_a_stale_answer_would_be_noticed() -> None:
    told = shipped("transpose")
    stale = json.loads(json.dumps(told))
    stale["prediction"]["energy"]["joules"] *= 1.000001
    stale["hotspots"]["lines"]["rows"].pop()
    assert len(list(differences(told, stale))) == 2


def test_the_first_example_tells_of_the_tile() -> None:
    first = shipped("transpose")["advice"]["advice"][0]
    assert first["code"] == "bank_conflicts"
    assert first["gain"]["energy_percent"] > 25


@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name in NAMES for code in examples()[name].get("mend", {})]
)
def test_following_advice_gives_what_was_promised(
    service: httpx.Client, name: str, code: str
) -> None:
    told = shipped(name)
    (advice,) = [one for one in told["advice"]["advice"] if one["code"] == code]
    old, new = told["mend"][code]
    request = request_of(examples()[name])
    assert old in request["cuda"]
    mended = service.post("/predict", json={**request, "cuda": request["cuda"].replace(old, new)})
    before, after = told["prediction"]["energy"]["joules"], mended.json()["energy"]["joules"]
    assert 100 * (1 - after / before) == pytest.approx(advice["gain"]["energy_percent"], rel=0.15)


def test_the_page_loads_them_as_data(client: httpx.Client) -> None:
    answer = client.get("/static/x/transpose.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == shipped("transpose")
    trace = client.get("/static/x/training_step.pt.trace.json.gz")  # arrives as it was chosen
    assert trace.content == TRAINING.read_bytes()
    page = client.get("/").text
    assert all(f'data-example="{name}"' in page for name in NAMES)
