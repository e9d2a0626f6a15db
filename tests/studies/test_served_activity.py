"""Activity tables made anew hold what the service answers, and the models are fitted to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from studies.data.activity_tables import SERVED_FOLDER, ServedProgram, read_served_table
from studies.end_to_end import manifest, programs
from studies.fitting.physical.rows import all_rows, served_rows
from studies.fitting.physical.served_activity import DCGM, _cells, readings, served
from tests.app.conftest import settings_at
from tests.needs import needs_data
from wattcast.features.activity import Activity
from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import predicted_power
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

UNITS = UnitActivities(*np.linspace(0.05, 0.5, len(UnitActivities._fields)))
COUNTS = Activity(**dict.fromkeys(Activity.__dataclass_fields__, 3.0))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of every reading, with made-up activities."""
    names = {one["name"] for one in manifest()["program"]}
    for gpu in ("tesla-v100", "gtx-1080-ti", "tesla-p100", "quadro-rtx-8000"):
        rows = [
            _cells(ServedProgram(gpu, campaign, name, pair, watts, seconds, 2e-3, UNITS, COUNTS))
            for name, each in readings(gpu).items()
            if name in names
            for campaign, pair, watts, seconds in each
        ]
        pd.DataFrame(rows).to_csv(tmp_path / f"{gpu}.csv", index=False)
    monkeypatch.setenv(SERVED_FOLDER, str(tmp_path))
    return tmp_path


@needs_data
def test_what_is_written_is_read(folder: Path) -> None:
    rows = read_served_table("tesla-v100")
    assert {row.campaign for row in rows} == {"wang_tesla_v100", DCGM}
    assert len({row.program for row in rows}) == 13
    assert rows[0].units == UNITS
    assert rows[0].activity == COUNTS
    assert rows[0].predicted_seconds == 2e-3
    assert "histogram" not in {row.program for row in rows if row.campaign == DCGM}  # two kernels


@pytest.mark.slow
@needs_data
def test_models_are_fitted_to_served_rows_and_scored_on_no_others(folder: Path) -> None:
    tables = all_rows()
    for gpu in ("tesla-v100", "gtx-1080-ti", "tesla-p100", "quadro-rtx-8000"):
        rows = tables[gpu]
        mine = served_rows(gpu)
        assert rows.scored.sum() == len(mine.watts)
        assert np.allclose(rows.activities[rows.scored], UNITS)
        prototype = np.char.startswith(rows.labels, "served") & ~rows.scored
        assert (rows.counted | ~rows.real)[prototype].all()
        assert not set(rows.programs[prototype & rows.real]) & set(mine.programs)
    everything = served_rows("tesla-p100", other_builds=True)
    assert set(everything.programs) - set(served_rows("tesla-p100").programs) == {"cfd"}


def test_without_tables_the_reason_says_how_to_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVED_FOLDER, raising=False)
    with pytest.raises(DataError, match="python -m studies activity"):
        read_served_table("tesla-v100")


@pytest.mark.slow
@needs_data
def test_a_row_is_what_the_service_answers(tmp_path: Path) -> None:
    try:
        (chosen,) = [one for one in programs() if one.name == "transpose"]
    except DataError as reason:
        pytest.skip(str(reason))
    predictor, gpu = Predictor(settings_at(tmp_path)), load_gpu("tesla-p100")
    measured = readings("tesla-p100")["transpose"]
    rows = list(served(predictor, gpu, chosen, measured))
    assert len(rows) == len(measured) == 5
    parameters = predictor.power.physical(gpu).parameters
    for row in rows:
        body = chosen.request(gpu.id, row.clocks)
        answer = predict(predictor, PredictRequest.model_validate(body))
        assert row.predicted_seconds == answer["time"]["seconds"]
        watts = predicted_power(parameters, row.units, row.clocks).watts
        assert watts == pytest.approx(answer["power"]["watts"])
        assert row.activity.warp_instructions_sass == answer["features"]["warp_instructions_sass"]
