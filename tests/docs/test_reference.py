"""docs/reference says what the code is now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from studies.pages.reference import main, pages, write

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture(scope="module")
def made() -> Mapping[str, str]:
    """The pages, made where settings of a user are in the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATTCAST_PORT", "1")
        patch.setenv("WATTCAST_HOME", "/nowhere")
        return pages()


def test_the_committed_pages_are_those_of_the_code(made: Mapping[str, str]):
    assert {path.name for path in FOLDER.iterdir()} == set(made)
    old = [name for name, text in made.items() if (FOLDER / name).read_text("utf-8") != text]
    assert not old, "python -m studies reference docs/reference writes them anew"


def test_pages_are_written_into_a_folder(made: Mapping[str, str], tmp_path: Path):
    written = list(write(tmp_path / "reference", made))
    assert {path.name: path.read_text("utf-8") for path in written} == made
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_nothing_of_this_machine_shows(made: Mapping[str, str]):
    assert "| `WATTCAST_PORT` | `8000` |" in made["settings.md"]
    assert "/nowhere" not in "".join(made.values())


def test_every_command_call_feature_and_gpu_is_there(made: Mapping[str, str]):
    assert "## wattcast models rollback" in made["cli.md"]
    assert "| `--max-energy <str>` |" in made["cli.md"]
    assert "## `POST /predict`" in made["api.md"]
    assert "### PredictRequest" in made["api.md"]
    definition = "| `avg_comp_lat` | Average latency of a compute instruction | cycles | yes |"
    assert definition in made["features.md"]
    assert "| `tesla-v100` |" in made["gpus.md"]
