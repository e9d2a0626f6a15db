"""What a start must not do, and what every entry point must."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.conftest import settings_at
from wattcast.app.store.database import open_database

HEAVY = ("xgboost", "catboost", "shap", "lime", "sklearn", "pandas", "onnx", "matplotlib")


PREDICTED = """
import wattcast
size = {"3": 1 << 20}
wattcast.predict("app/demo/vector_add.ptx", gpu="v100", grid=4096, block=256, arguments=size)
"""
SCALED = """
class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "torch", "torch was asked for"
sys.meta_path.insert(0, Refuse())
import wattcast.predictor.dvfs, numpy as np
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.card import named, scaling_store
from wattcast.models.papers.scaling.code import Stream, code_scaling
at = ClockPair(1164.0, 3505.0)
model = code_scaling(scaling_store(), "gtx-titan-x", "sequence").scaling
model.scales([Stream([named("fma.f32", 4)], np.ones(1))], [at], at)
"""
TREES = """
from wattcast.models.store import ArtifactStore
from wattcast.models.power.boosted import BoostedPowerModel
model = BoostedPowerModel(ArtifactStore().find("tesla-k20", "power", "average", "alavani2023"))
assert "onnxruntime" not in sys.modules
model.estimate(model.background.matrix()[0])
"""
# The requests are not among them: signatures are made of them.
LATE = ("wattcast.features.execution", "wattcast.predictor.explain", "itanium_demangler")
APART = ("wattcast.models.papers", "wattcast.measure", "wattcast.training")


@pytest.mark.parametrize(
    ("does", "without"),
    [
        ("import wattcast.app.cli", (*HEAVY, "numpy", "rich", "pydantic", "structlog")),
        ("import wattcast.app.server", HEAVY),
        ("import wattcast; wattcast.predict", (*HEAVY, *LATE)),
        (PREDICTED, APART),
        ("import wattcast.models.time.base as each; list(each.TIME_MODELS)", APART),
        (SCALED, ("torch",)),
        (TREES, ("xgboost", "catboost", "shap", "lime", "sklearn", "pandas")),
    ],
    ids=["command", "service", "python", "prediction", "time models", "scaling", "trees"],
)
def test_what_is_heavy_is_loaded_by_who_needs_it(does: str, without: tuple[str, ...]) -> None:
    code = f"""import os, sys
{does}
beginnings = {tuple(f"{each}." for each in without)}
print(os.environ["OMP_WAIT_POLICY"], [m for m in sys.modules if f"{{m}}.".startswith(beginnings)])
"""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "PASSIVE []\n"


EXTRAS = (
    *("fastapi", "starlette", "sqlalchemy", "alembic", "uvicorn", "httpx", "jinja2", "plotly"),
    *("prometheus_client", "pyarrow", "multipart", "threadpoolctl", "scipy", "networkx"),
    *("dask", "distributed", "fsspec", "psycopg", *HEAVY),
)
"""Modules that come with extras: the core does without."""


LAUNCH = ("--gpu", "v100", "--grid", "64", "--block", "256")


def core(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command, where nothing but the core is installed and no service has ever run."""
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({EXTRAS!r}))\n"
        "from wattcast.app.cli import main\nmain()"
    )
    environment = {**os.environ, "WATTCAST_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment
    )


@pytest.mark.parametrize(
    "command",
    ["predict", "analyze", "features", "dvfs", "sweep", "hotspots", "advise", "explain"],
)
def test_the_core_answers_without_extras(command: str, tmp_path: Path) -> None:
    done = core(command, "app/demo/vector_add.ptx", *LAUNCH, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "vector_add" in done.stdout or "grid_size" in done.stdout


def test_the_core_calls_nothing_broken_that_an_extra_brings(tmp_path: Path) -> None:
    """A service ran in this home and promoted something; then only the core was installed."""
    started = open_database(settings_at(tmp_path).sqlalchemy_url)
    with started.begin() as changing:
        changing.exec_driver_sql("UPDATE registry SET generation = 1")
    done = core("doctor", "--json", home=tmp_path)
    assert done.returncode == 0, done.stdout
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert not [name for name, check in found.items() if check["state"] == "broken"]
    assert "[train]'" in found["data"]["fix"]
    assert "[serve]'" in found["database"]["fix"]
    done = core("predict", "app/demo/vector_add.ptx", *LAUNCH, home=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "promoted there are left out" in line
    assert "pip install 'wattcast[serve]'" in line
    assert "power" in done.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("serve",), "serve"),
        (("keys", "list"), "serve"),
        (
            ("explain", "app/demo/vector_add.ptx", "--model", "xgboost", *LAUNCH),
            "explain",
        ),
    ],
)
def test_a_missing_extra_is_named_with_its_command(
    words: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    done = core(*words, home=tmp_path)
    assert done.returncode == 1
    assert f"pip install 'wattcast[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_explanations_are_shaps_own() -> None:
    import shap

    import wattcast

    code = Path("app/demo/vector_add.ptx")
    found = wattcast.explain(code, gpu="v100", model="xgboost", grid=4096, block=256)
    answer = wattcast.predict(code, gpu="v100", model="xgboost", grid=4096, block=256)
    assert isinstance(found, shap.Explanation)
    assert answer.power is not None
    total = found.base_values + found.values.sum()
    assert total == pytest.approx(answer.power.watts, rel=1e-5)
    assert len(found.feature_names) == len(found.values) == len(found.data)
