"""A space predicted by one process, by several and on a cluster; interrupted and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.app.conftest import Run, settings_at
from tests.fixtures.ptx_text import stored_cuda
from tests.needs import needs_nvrtc
from wattcast.app.cli import app
from wattcast.app.python.predictors import crew, predictor
from wattcast.features.errors import DataError, GivenUpError, GpuError, LaunchError
from wattcast.features.launch import dim3
from wattcast.predictor import Predictor, forecasts
from wattcast.predictor.forecasts import Crew, Forecast, failures
from wattcast.predictor.forecasts import forecasts as predicted
from wattcast.predictor.parts.sources import Sources
from wattcast.predictor.rank import TuningProblem, rank
from wattcast.predictor.tuning_files import Configuration, TuningRun, read_tuning
from wattcast.training.engine import ClusterError, InProcess, open_processes

pytestmark = needs_nvrtc

SIZE = 1 << 22
KERNEL = stored_cuda("scaled")
PARAMETERS = {
    "nvml_gr_clock": [1410, 1005],
    "block_size_x": [64, 256, 2048],
    "work": [1, 4, 16],
    "unused": [0, 1],
}
SPACE = {"tune_params": PARAMETERS, "problem_size": [SIZE], "kernel_name": "scale"}
"""36 configurations. 2,048 threads cannot be launched (8 configurations), work of 16 is not
compiled (12), and nothing depends on ``unused``."""


def space() -> tuple[Configuration, ...]:
    return read_tuning(json.dumps(SPACE)).configurations


def problem(**more: Any) -> TuningProblem:
    request = {"cuda": KERNEL, "kernel": "scale", "gpu": "a100", **more}
    return TuningProblem((SIZE,), (("block_size_x", "work"),), request=request)


@pytest.fixture
def alone(tmp_path: Path) -> Predictor:
    return Predictor(settings_at(tmp_path), own=True)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Forecast]:
    here = Predictor(settings_at(tmp_path_factory.mktemp("alone")), own=True)
    return list(predicted(here, problem(), space()))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start for a small space, too, and look at the results often."""
    monkeypatch.setattr(forecasts, "WORTH", 1)
    monkeypatch.setattr(forecasts, "AHEAD", 3)


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Second arguments of every call of a function."""
    calls: list[Any] = []
    real = getattr(owner, name)

    def noting(*given: Any, **more: Any) -> Any:
        calls.append(given[1])
        return real(*given, **more)

    monkeypatch.setattr(owner, name, noting)
    return calls


def test_rows_are_in_order_and_failures_have_a_kind(expected: list[Forecast]) -> None:
    assert [row.parameters for row in expected] == [one.parameters for one in space()]
    for row in expected:
        if row.parameters["work"] == 16:
            assert row.kind == "cuda-compile"
        elif row.parameters["block_size_x"] == 2048:
            assert row.kind == "launch"
        else:
            assert (row.kind, row.problem) == (None, None)
            assert min(row.seconds, row.joules) > 0
    told = failures(asdict(row) for row in expected if row.problem is not None)
    assert [(each["kind"], each["count"]) for each in told] == [("cuda-compile", 12), ("launch", 8)]
    assert told[0]["first"]["parameters"] == {**space()[0].parameters, "work": 16}
    assert "too much work" in told[0]["first"]["problem"]


def test_equal_code_and_launch_are_predicted_once_and_a_source_is_compiled_once(
    alone: Predictor, monkeypatch: pytest.MonkeyPatch, expected: list[Forecast]
) -> None:
    compiled = counted(monkeypatch, Sources, "compile_all")
    answered = counted(monkeypatch, forecasts, "predict")
    assert list(predicted(alone, problem(), space())) == expected
    texts = [text for each in compiled for text in each]
    # One source, the first, is compiled by itself before all others.
    assert len(texts) == 1 + len(set(texts)) == 1 + 3 * 3 * 2
    # Two clocks for each of three blocks and two amounts of work, whatever ``unused`` is.
    assert len(answered) == 2 * 3 * 2


@pytest.mark.usefixtures("eager")
def test_processes_predict_the_same_in_the_same_order(
    alone: Predictor, expected: list[Forecast]
) -> None:
    with crew(2, registry=False) as two:
        assert two is not None
        assert list(predicted(alone, problem(), space(), crew=two)) == expected
        ranked = [rank(alone, TuningRun(space()), problem(), crew=who) for who in (two, None)]
        assert ranked[0] == ranked[1]
        ptx = {"cuda": None, "ptx": PTX, "kernel": None}
        alike = [list(predicted(alone, problem(**ptx), space(), crew=who)) for who in (two, None)]
        assert alike[0] == alike[1]


PTX = (Path(__file__).parents[2] / "app" / "demo" / "vector_add.ptx").read_text(encoding="utf-8")


@pytest.mark.usefixtures("eager")
def test_what_was_predicted_before_an_interruption_is_not_predicted_again(
    alone: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: list[Forecast],
) -> None:
    keep = tmp_path / "keep.jsonl"
    here = Crew(InProcess(1).map, lambda: alone, 1)
    going = predicted(alone, problem(), space(), keep, here)
    assert [next(going) for _ in range(5)] == expected[:5]
    going.close()
    lines = keep.read_text().splitlines(keepends=True)
    assert 5 <= len(lines) < len(expected)
    keep.write_text("".join(lines[:-1]) + lines[-1][:20])  # killed within a line
    answered = counted(monkeypatch, forecasts, "predict")
    assert list(predicted(alone, problem(), space(), keep, here)) == expected
    assert len(answered) < 12
    answered.clear()
    assert list(predicted(alone, problem(), space(), keep)) == expected
    assert len(answered) == 1  # to see whether the others still hold
    known = [json.loads(line) for line in keep.read_text().splitlines() if line.endswith("}")]
    assert {row["key"] for row in known} == {row["key"] for row in known[: len(expected) + 1]}
    # Another prediction of the first: none of the others is used.
    first = {**json.loads(lines[0]), "joules": 1.0}
    keep.write_text(json.dumps(first) + "\n" + "".join(lines[1:]))
    answered.clear()
    assert list(predicted(alone, problem(), space(), keep)) == expected
    assert len(answered) == 12


def test_what_the_next_try_may_not_meet_is_not_remembered(
    alone: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = forecasts.predict

    def busy(predictor: Predictor, request: Any) -> Mapping[str, Any]:
        if request.launch.block == [64, 1, 1] and request.clocks.core_mhz == 1005:
            raise GivenUpError("it took too long")
        return real(predictor, request)

    keep = tmp_path / "keep.jsonl"
    monkeypatch.setattr(forecasts, "predict", busy)
    rows = list(predicted(alone, problem(), space(), keep))
    late = [row for row in rows if row.kind == "time-limit"]
    assert len(late) == 4
    assert len(keep.read_text().splitlines()) == len(rows) - len(late)


def test_what_concerns_all_configurations_is_told_at_once(
    alone: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = counted(monkeypatch, forecasts, "predict")
    with pytest.raises(GpuError):
        list(predicted(alone, problem(gpu="no-such-gpu"), space()))
    with pytest.raises(DataError, match="is not a tunable parameter"):
        list(predicted(alone, TuningProblem((SIZE,), (("tile",),)), space()))
    assert not answered


def test_workers_that_predict_something_else_are_refused(
    alone: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "WORTH", 1)
    other = SimpleNamespace(gpus=alone.gpus, sources=alone.sources)
    real = forecasts.predict

    def doubled(who: Any, request: Any) -> Any:
        answer = real(alone, request)
        if who is not other:
            return answer
        energy = answer.energy.model_copy(update={"joules": 2 * answer.energy.joules})
        return answer.model_copy(update={"energy": energy})

    monkeypatch.setattr(forecasts, "predict", doubled)
    there = Crew(InProcess(1).map, lambda: other, 1, elsewhere=True)  # type: ignore[arg-type, return-value]
    with pytest.raises(DataError, match="another version"):
        list(predicted(alone, problem(), space(), crew=there))


def test_errors_of_workers_come_back_and_one_that_is_ended_from_outside_is_told() -> None:
    with pytest.raises(LaunchError, match="grid"), open_processes(1) as processes:
        list(processes.map(partial(dim3, "grid"), [[]] * 99))
    with pytest.raises(ClusterError, match="ended from outside"), open_processes(1) as processes:
        list(processes.map(signal.raise_signal, [signal.SIGKILL] * 3))


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "space.json").write_text(json.dumps(SPACE), encoding="utf-8")
    (tmp_path / "scale.cu").write_text(KERNEL, encoding="utf-8")
    files = [str(tmp_path / "space.json"), str(tmp_path / "scale.cu")]
    return ["tune", *files, "--gpu", "a100", "--grid-div-x", "block_size_x,work", "--by", "time"]


def test_the_report_counts_failures_by_kind_with_the_first_of_each(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--workers", "1"])
    assert result.exit_code == 0, result.output
    first = "nvml_gr_clock=1410, block_size_x=64, work=16, unused=0"
    assert f"12 refused (cuda-compile), the first: {first}: " in result.stdout
    assert "8 refused (launch), the first: nvml_gr_clock=1410, block_size_x=2048" in result.stdout


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on(words: list[str], tmp_path: Path) -> None:
    """Killed within a row, with its workers; the second run ends as one that nobody killed."""
    keep = tmp_path / "keep.jsonl"
    asked = [*words, "--json", "--workers", "2"]
    command = [sys.executable, "-m", "wattcast.app.cli", *asked, "--keep", str(keep)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            if keep.is_file() and len(keep.read_text().splitlines()) > 3:
                break
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    keep.write_text(keep.read_text()[:-10])
    again = CliRunner().invoke(app, [*asked, "--keep", str(keep)])
    fresh = CliRunner().invoke(app, asked)
    assert json.loads(again.stdout) == json.loads(fresh.stdout)


# --- a cluster -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made.scheduler_address


quiet = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"
)


@quiet
@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_dask_cluster_predicts_the_same(
    scheduler: str, words: list[str], expected: list[Forecast]
) -> None:
    with crew(dask=scheduler, registry=False) as many:
        assert many is not None
        assert many.workers == 2
        rows = list(predicted(predictor(False), problem(), space(), crew=many))
    assert rows == expected
    there = CliRunner().invoke(app, [*words, "--json", "--dask", scheduler])
    here = CliRunner().invoke(app, [*words, "--json", "--workers", "1"])
    assert json.loads(there.stdout) == json.loads(here.stdout)


@quiet
def test_a_scheduler_that_does_not_answer_is_told(
    words: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    monkeypatch.setattr("wattcast.training.engine.WORKERS_SECONDS", 0.5)
    _, err = run(*words, "--dask", "tcp://127.0.0.1:9", status=1)
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in err
