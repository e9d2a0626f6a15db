"""Left out means left out: kernels that taught a model before are no evidence of unseen ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies.fitting.trees.tables import TrainingTable, training_table
from tests.needs import needs_data
from tests.training.uploaded import (
    GPU,
    coverage_by_group,
    fewer_trees,
    measured,
    order,
    packaged,
    parted,
    train_without,
)
from tests.training.uploaded import uploads as given_rows
from wattcast.models.cards import Marks, code_marks, group_mark, marks_of, ptx_mark, stored
from wattcast.models.intervals import supported_level
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import ArtifactStore
from wattcast.training.boosted import retrain
from wattcast.training.evaluation.scores import Rows
from wattcast.training.gate import CHAMPION
from wattcast.training.uploads import Candidate, Champion, Uploads


@pytest.fixture(scope="module", autouse=True)
def small_fits() -> Iterator[None]:
    """Fewer trees: what is tested here does not hang on how many there are."""
    with fewer_trees():
        yield


# --- marks --------------------------------------------------------------------------------------


def test_a_kernel_is_known_again_by_its_code_at_any_launch() -> None:
    names = ("comp_inst_kernel", "glob_inst_kernel", "misc_inst_kernel", "block_size")
    first, other, blank, missing = code_marks(
        "alavani2023",
        names,
        np.array([[30, 4, 11, 64], [30, 4, 11, 256], [0, 0, 0, 64], [30, np.nan, 11, 64]]),
    )
    assert first is not None
    assert first == other
    assert blank is None
    assert missing is None
    (changed,) = code_marks("alavani2023", names, np.array([[31.0, 4, 11, 64]]))
    assert changed not in (None, first)
    assert code_marks("alavani2023", names[1:], np.ones((2, 3))) == [None, None]


def test_marks_are_kept_and_read() -> None:
    marks = frozenset({group_mark("bfs"), ptx_mark("0" * 64)})
    assert group_mark(" BFS ") in marks
    assert marks_of(stored(marks)) == marks
    assert marks_of("") is None


def test_packaged_models_tell_what_they_learned_from() -> None:
    for card in ArtifactStore().list():
        assert card.marks, card.folder


@needs_data
def test_packaged_marks_are_those_of_their_rows() -> None:
    table = training_table(GPU)
    for family in ("xgboost", "catboost", "average"):
        card = ArtifactStore().find(GPU, "power", family, "alavani2023").card
        assert card.marks == table.marks
    trees = ArtifactStore().find(GPU, "power", "extratrees", "alavani2023").card
    assert trees.marks is not None
    assert trees.marks > table.marks


# --- what a card says ---------------------------------------------------------------------------

KERNELS, LAUNCHES = 24, 6


@pytest.fixture(scope="module")
def champion() -> Champion:
    return packaged()


def uploads(champion: Champion, known: int, *, kernels: int = KERNELS) -> Uploads:
    """Launches near the champion's own points, the first ``known`` kernels marked as learned."""
    rows = measured(champion, kernels=kernels, launches=LAUNCHES, spread=0.03)
    assert champion.card.marks is not None
    mark = min(champion.card.marks)
    # One launch of a kernel that is known makes all of them known.
    marks = [
        frozenset(
            {mark if row % LAUNCHES == 0 and rows.groups[row] < known else group_mark(f"row {row}")}
        )
        for row in range(len(rows))
    ]
    return given_rows(rows, marks=marks)


def test_groups_are_known_as_a_whole(champion: Champion) -> None:
    given = uploads(champion, 5)
    known = given.known_to(champion.card.marks)
    assert known.sum() == 5 * LAUNCHES
    assert given.known_to(None).all()
    assert not given.known_to(frozenset()).any()


def test_enough_unseen_kernels_are_measured_alone(champion: Champion, tmp_path: Path) -> None:
    made = retrain(order(champion), uploads(champion, 10), champion, tmp_path)
    board = made.card.board
    assert board is not None
    assert (board.unseen_groups, board.unseen_kernel, board.widths_from) == (14, "measured", "")
    assert made.card.intervals.kernel_groups == 14
    assert made.verdict.comparisons[0].kernel_groups == 14
    assert "10 of 24 kernel groups" in made.verdict.notes[0]
    # What comes after knows all of this: the champion's kernels and the uploads'.
    assert made.card.marks is not None
    assert champion.card.marks is not None
    assert made.card.marks > champion.card.marks


@pytest.mark.parametrize("known", [KERNELS, KERNELS - 5])
def test_too_few_unseen_kernels_leave_the_width_of_the_model_before(
    champion: Champion, tmp_path: Path, known: int
) -> None:
    made = retrain(order(champion), uploads(champion, known), champion, tmp_path)
    card, before = made.card, champion.card
    assert card.board is not None
    assert card.board.unseen_kernel == "not measured"
    assert card.board.unseen_groups == KERNELS - known
    assert card.board.widths_from == before.folder.as_posix()
    for watts in (50.0, 90.0, 200.0):
        for basis in ("unseen_kernel", "extrapolated"):
            then = before.intervals.estimate(watts, basis)  # type: ignore[arg-type]
            now = card.intervals.estimate(watts, basis)  # type: ignore[arg-type]
            assert now.low <= then.low
            assert now.high >= then.high
            assert now.level == then.level
    protocols = {score.protocol for score in card.scores}
    assert protocols == ({"random"} if known == KERNELS else {"random", "grouped"})
    assert any("not measured" in note for note in made.verdict.notes)


def test_a_champion_that_does_not_tell_what_it_learned_from_knows_everything(
    champion: Champion, tmp_path: Path
) -> None:
    silent = replace(champion.artifact, card=champion.card.model_copy(update={"learned": ""}))
    made = retrain(order(champion), uploads(champion, 0), Champion(silent), tmp_path)
    assert made.card.board is not None
    assert made.card.board.unseen_kernel == "not measured"
    assert made.card.marks is None


def test_few_kernels_support_a_lower_level(champion: Champion, tmp_path: Path) -> None:
    assert [supported_level(groups) for groups in (1, 4, 8, 9, 40)] == [0.5, 0.8, 0.88, 0.9, 0.9]
    few = uploads(champion, 0, kernels=4)
    asked = order(champion, gpu="gtx-980", continued=False)
    made = retrain(asked, few, None, tmp_path)
    assert made.card.intervals.level == 0.8


def test_rivals_are_met_on_the_same_footing(champion: Champion) -> None:
    given = uploads(champion, KERNELS - 3)
    marks = champion.card.marks
    both = given.footing(marks, [marks])
    assert both.rows.all()
    # A rival that does not know what the candidate's ancestor knows is met on the others alone.
    nobody: Marks = frozenset()
    assert given.footing(marks, [marks, nobody]).rows.sum() == 3 * LAUNCHES


# --- the leak -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingTable, Rows, Champion]:
    """K20 without every seventh kernel group, those groups, and a champion trained without them."""
    known, others = parted()
    root = tmp_path_factory.mktemp("champion")
    train_without(known, root)
    artifact = ArtifactStore((root,)).find(GPU, "power", "catboost", "alavani2023")
    return known, others, Champion(artifact)


@pytest.mark.slow
@needs_data
def test_known_kernels_measured_again_promise_nothing_of_others(
    split: tuple[TrainingTable, Rows, Champion], tmp_path: Path
) -> None:
    """Known kernels on a board that draws 15 % more. The folds of the uploads cannot leave them out
    of what the champion learned from, and once promised x0.97 to x1.03 for kernels never seen."""
    table, others, champion = split
    rows, frame = table.rows[table.served], table.frames[table.served]
    generator = np.random.default_rng(1)
    again = replace(rows, watts=rows.watts * 1.15 * np.exp(generator.normal(0, 0.01, len(rows))))
    names = champion.card.feature_names
    code = code_marks("alavani2023", names, rows.vectors)
    # Under other names: the code alone tells that these are known.
    marks = tuple(frozenset({mark} - {None}) for mark in code)
    assert frame["kernel_group"].nunique() > 70
    given = given_rows(again, marks=marks)
    made: Candidate = retrain(order(champion), given, champion, tmp_path)
    card = made.card
    assert card.board is not None
    assert card.board.unseen_kernel == "not measured"
    assert card.board.watts_factor == pytest.approx(1.15, abs=0.02)
    model = BoostedPowerModel(
        ArtifactStore((tmp_path,)).find(GPU, "power", "catboost", "alavani2023", version=7)
    )
    by_group = coverage_by_group(model, others, 1.15)
    assert len(by_group) == 13
    assert np.mean(by_group) >= 0.85
    # It is better than the champion on what both know, so that it may serve this board.
    (against,) = [one for one in made.verdict.comparisons if one.opponent == CHAMPION]
    assert against.better
