"""POST /compare, ``wattcast diff`` and ``wattcast.compare``: old and new code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.conftest import Run
from tests.app.test_problems import json_of, problem
from tests.fixtures.ptx_text import stored_ptx
from wattcast.app.cli.exits import Exit
from wattcast.app.services import Services
from wattcast.features.errors import KernelError, LaunchError
from wattcast.predictor.compare import compare, markdown
from wattcast.predictor.messages import KernelName
from wattcast.predictor.messages.compare import CompareAnswer, CompareRequest, Limits
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.tunings import RankRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.rank import rank_variants

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"
LAUNCH = {"grid": [4096], "block": [256]}
UNITS = (("time", "seconds"), ("power", "watts"), ("energy", "joules"))


def compared(services: Services, old: str, new: str, **more: Any) -> dict[str, Any]:
    body = {"old": {"ptx": old}, "new": {"ptx": new}, "launch": LAUNCH, "gpu": "v100", **more}
    if "gpus" in more:
        del body["gpu"]
    found = compare(services, CompareRequest.model_validate(body))
    CompareAnswer.model_validate(found)
    return found


def test_each_side_is_what_predict_answers(
    services: Services, vector_add: str, heavier: str
) -> None:
    found = compared(services, vector_add, heavier, gpus=["tesla-v100", "gtx-1080-ti"])
    assert [each["gpu"] for each in found["comparisons"]] == ["tesla-v100", "gtx-1080-ti"]
    for each in found["comparisons"]:
        for side, ptx in (("old", vector_add), ("new", heavier)):
            body = {"ptx": ptx, "gpu": each["gpu"], "launch": LAUNCH, "model": "physical"}
            alone = predict(services, PredictRequest.model_validate(body))
            for name, _ in UNITS:
                assert each[side][name] == alone[name]
        for name, unit in UNITS:
            ratio = each["new"][name][unit] / each["old"][name][unit]
            assert each["change"][f"{name}_percent"] == pytest.approx(100 * (ratio - 1))
        assert each["change"]["energy_percent"] > 10
        more = each["new"]["energy"]["joules"] - each["old"]["energy"]["joules"]
        assert sum(each["components"].values()) == pytest.approx(more)
        assert each["components"]["dram"] > 0.1 * more


def test_the_same_code_changes_nothing(services: Services, vector_add: str) -> None:
    (each,) = compared(services, vector_add, vector_add)["comparisons"]
    assert set(each["change"].data().values()) == {0.0}


def test_no_guessed_trips_decide_between_launches(services: Services) -> None:
    """Trips that nobody gave are those of the launch that another is compared with."""
    few, many = ({"grid": [blocks], "block": [256]} for blocks in (1 << 14, 1 << 16))
    sides = [{"ptx": stored_ptx("nested_sums"), "launch": one} for one in (few, many)]
    body = {"old": sides[0], "new": sides[1], "gpu": "v100"}
    (found,) = compare(services, CompareRequest.model_validate(body)).comparisons
    assert found.new.time.seconds == pytest.approx(4 * found.old.time.seconds, rel=0.02)
    alone = (PredictRequest(gpu="v100", model="physical", **one) for one in sides)
    told = [predict(services, one)["time"]["seconds"] for one in alone]
    assert told[1] < 2.5 * told[0] == 2.5 * found.old.time.seconds
    ranked = rank_variants(services, RankRequest(variants=sides, gpu="v100", by="time"))
    best, last = (one.seconds / told[1] for one in ranked.configurations)
    assert (best, last) == (pytest.approx(1 / 4, rel=0.02), 1)


def test_limits(services: Services, vector_add: str, heavier: str) -> None:
    free = compared(services, vector_add, heavier)
    assert free["passed"]
    percent = free["comparisons"][0]["change"]["energy_percent"]
    for bound, passes in ((percent - 1, False), (percent + 1, True)):
        found = compared(services, vector_add, heavier, limits={"max_energy_percent": bound})
        assert found["passed"] == passes
        exceeded = [] if passes else ["max_energy_percent"]
        assert found["comparisons"][0]["exceeded"] == exceeded
    back = compared(services, heavier, vector_add, limits={"max_energy_percent": -5})
    assert back["passed"]  # a limit below 0 demands that it takes less
    still = compared(services, vector_add, vector_add, limits={"max_energy_percent": -5})
    assert not still["passed"]


def test_kernels_are_matched_by_name(services: Services, vector_add: str) -> None:
    text = (FIXTURES / "vector4.sm_70.ptx").read_text(encoding="utf-8")
    found = compared(services, text, text.replace("vector2d", "other"))
    assert [each["new"]["kernel"]["mangled"] for each in found["comparisons"]] == ["vector4"]
    assert [kernel["mangled"] for kernel in found["added"]] == ["other"]
    assert [kernel["mangled"] for kernel in found["removed"]] == ["vector2d"]
    assert "Added" in found["markdown"]
    one = compared(services, vector_add, vector_add.replace("vector_add", "renamed"))
    assert one["comparisons"][0]["new"]["kernel"]["mangled"] == "renamed"
    with pytest.raises(KernelError, match="no kernel of the same name"):
        compared(services, text, vector_add)


def test_members_of_one_side_win_over_common_ones(services: Services, vector_add: str) -> None:
    new = {"ptx": vector_add, "launch": {"grid": [8192], "block": [256]}}
    body = {"old": {"ptx": vector_add}, "new": new, "launch": LAUNCH, "gpu": "v100"}
    found = compare(services, CompareRequest.model_validate(body))
    assert found["comparisons"][0]["change"]["energy_percent"] > 50
    broken = {**body, "new": {"ptx": vector_add, "launch": {"grid": [1], "block": [4096]}}}
    with pytest.raises(LaunchError, match="new: "):
        compare(services, CompareRequest.model_validate(broken))


def test_markdown_holds_no_markup_of_a_name(services: Services, vector_add: str) -> None:
    name = "$a|b`<script>"
    first = compared(services, vector_add, vector_add).comparisons[0]
    named = first.new.model_copy(update={"kernel": KernelName(mangled="f", demangled=name)})
    table = markdown([first.model_copy(update={"new": named})], Limits(max_energy_percent=5))
    row = next(line for line in table.splitlines() if "tesla-v100" in line)
    assert row.count("|") == 10
    for character in "`|":
        assert character not in row.replace("|", "", 10)
    assert "<script" not in table
    assert "Limit: energy +5 %. Within it." in table


def test_over_http(client: httpx.Client, vector_add: str, heavier: str) -> None:
    body = {
        "old": {"ptx": vector_add},
        "new": {"ptx": heavier},
        "launch": LAUNCH,
        "gpu": "v100",
        "limits": {"max_energy_percent": 5},
    }
    answer = json_of(client.post("/compare", json=body), CompareAnswer)
    assert not answer["passed"]
    refused = problem(client.post("/compare", json={**body, "gpus": ["v100"]}), 422, "validation")
    assert "either gpu or gpus" in refused["detail"]
    broken = {**body, "new": {"ptx": "this is no PTX"}}
    assert problem(client.post("/compare", json=broken), 422, "ptx-syntax")["line"] == 1


def test_on_the_command_line(run: Run, tmp_path: Path, vector_add: str, heavier: str) -> None:
    for name, text in (("old.ptx", vector_add), ("new.ptx", heavier)):
        (tmp_path / name).write_text(text)
    files = (str(tmp_path / "old.ptx"), str(tmp_path / "new.ptx"))
    launch = ("--gpu", "v100", "--grid", "4096", "--block", "256")
    out, _ = run("diff", *files, *launch)
    for word in ("energy", "→", "%", "dram"):
        assert word in out
    out, _ = run("diff", *files, *launch, "--max-energy", "+5%", status=Exit.EXCEEDED)
    assert "breaks max energy percent" in out
    out, _ = run("diff", *files, *launch, "--max-energy", "5", "--markdown", status=Exit.EXCEEDED)
    assert out.startswith("### Predicted energy")
    assert "| beyond the limit |" in out
    out, _ = run("diff", *reversed(files), *launch, "--max-energy", "-5%", "--json")
    assert json.loads(out)["passed"]
    _, err = run("diff", *files, *launch, "--max-energy", "little", status=2)
    assert "--max-energy" in err
    _, err = run("diff", "-", "-", *launch, status=2)
    assert "only one" in err


def test_in_python(vector_add: str, heavier: str) -> None:
    found = wattcast.compare(vector_add, heavier, gpus=["v100"], grid=4096, block=256)
    assert found.comparisons[0].change.energy_percent > 10
    triton = SimpleNamespace(asm={"ptx": vector_add})
    same = wattcast.compare(triton, vector_add, gpus=["v100"], grid=4096, block=256)
    assert same.comparisons[0].change.energy_percent == 0
    direct = wattcast.predict(triton, gpu="v100", grid=4096, block=256)
    assert direct == wattcast.predict(vector_add, gpu="v100", grid=4096, block=256).model_copy(
        update={"id": direct.id}
    )
