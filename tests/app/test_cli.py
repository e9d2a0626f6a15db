"""The command line: same answers as HTTP; one line and a status for what fails."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import wattcast
from app.cli import main
from app.settings import Settings

LAUNCH = ("--gpu", "tesla-v100", "--grid", "4096", "--block", "256")


Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``wattcast`` as its entry point does, over an empty home."""
    monkeypatch.setenv("WATTCAST_HOME", str(tmp_path / "home"))

    def command(*words: str, status: int = 0, stdin: str = "") -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["wattcast", *words])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == status, printed
        return printed.out, printed.err

    return command


@pytest.fixture
def file(tmp_path: Path, vector_add: str) -> str:
    path = tmp_path / "vector_add.ptx"
    path.write_text(vector_add)
    return str(path)


def test_a_prediction_as_json_and_for_people(run: Run, file: str) -> None:
    out, _ = run("predict", file, *LAUNCH, "--registers", "12", "--json")
    answer = json.loads(out)
    assert answer["power"]["watts"] > 0
    python = wattcast.predict(
        Path(file), gpu="tesla-v100", grid=4096, block=256, registers_per_thread=12
    )
    assert python.power is not None
    assert python.power.watts == answer["power"]["watts"]
    out, _ = run("predict", file, *LAUNCH, "--explain")
    for word in ("vector_add", "tesla-v100", "power", "W", "energy", "occupancy", "base"):
        assert word in out


def test_features_and_lists(run: Run, file: str, looping: str) -> None:
    out, _ = run("features", "-", *LAUNCH, "--loops", "$LOOP=9", "--json", stdin=looping)
    assert json.loads(out)["trip_counts"][0]["trips"] == 9
    out, _ = run("gpus")
    assert "tesla-k20" in out
    assert json.loads(run("gpus", "list", "--json")[0])[0]["id"]
    assert json.loads(run("gpus", "show", "k20")[0])["id"] == "tesla-k20"
    assert "alavani2023" in run("schemas")[0]
    assert "holds" in run("gpus", "check")[0] or "hold" in run("gpus", "check")[0]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("predict", "/nonexistent.ptx", *LAUNCH), 2, "No such file"),
        (("predict", "FILE", "--gpu", "nope", "--grid", "1", "--block", "1"), 1, "tesla-k20"),
        (("predict", "FILE", "--gpu", "k20", "--grid", "1", "--block", "2000"), 1, "block"),
        (("predict", "FILE", "--gpu", "k20", "--grid", "a", "--block", "1"), 2, "--grid"),
        (("predict", "FILE", *LAUNCH, "--loops", "x"), 2, "--loops"),
        (("predict", "FILE", *LAUNCH, "--kernel", "nope"), 1, "nope"),
        (("predict", "FILE", *LAUNCH, "--model", "magic"), 1, "model"),
        (("features", "FILE", *LAUNCH, "--schema", "nope"), 1, "nope"),
        (("gpus", "show", "nope"), 1, "unknown GPU"),
    ],
)
def test_errors_are_one_line(
    run, file: str, words: tuple[str, ...], status: int, says: str
) -> None:
    out, err = run(*(file if word == "FILE" else word for word in words), status=status)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("wattcast: ")
    assert says in err


def test_wrong_use_is_status_two(run: Run) -> None:
    run("nonsense", status=2)
    run("predict", status=2)


def test_ptx_errors_name_the_place(run: Run) -> None:
    _, err = run("predict", "-", *LAUNCH, status=1, stdin="\n\nhello")
    assert "line 3, column 1" in err


def test_version_and_settings(run: Run) -> None:
    assert run("--version")[0].startswith("wattcast 0.")
    out, _ = run("settings")
    for name, field in Settings.model_fields.items():
        assert f"WATTCAST_{name.upper()}" in out
        assert field.description


def test_settings_that_do_not_fit_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTCAST_PORT", "ninety")
    _, err = run("serve", status=1)
    assert "port" in err
    assert err.count("\n") == 1


def test_the_python_face(vector_add: str, looping: str) -> None:
    both = wattcast.compare(vector_add, gpus=["v100", "gtx-1050"], grid=64, block=(16, 16))
    assert [one.gpu for one in both] == ["tesla-v100", "gtx-1050"]
    assert both[1].power is None
    vector = wattcast.features(looping, gpu="k20", grid=4, block=32, loops=5)
    assert vector.trip_counts[0].trips == 5
    analysis = wattcast.analyze(looping, gpu="k20", grid=4, block=32, loops={"$LOOP": 5})
    assert analysis.trips() == (5,)
