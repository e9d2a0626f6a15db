"""What a retraining will do with its rows, before it does it: the mode that ``auto`` comes to, and
the plan that ``dry_run`` tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattcast.app.services.models.champions import TIME
from wattcast.app.services.retrain.attempt import (
    GRID_GUESSED,
    NOT_ASKED,
    Attempt,
    boosted_watts,
    serving,
)
from wattcast.app.services.retrain.candidate_rows import (
    PREFERRED_SCHEMA,
    Rest,
    Wanted,
    has_base,
    nothing_left,
    one_board,
    usable,
)
from wattcast.app.services.retrain.candidates import (
    boosted_rows,
    champion_for,
    correction_of,
    launch_rows,
    trained_on,
)
from wattcast.app.store.measurements import Measurement
from wattcast.app.store.registry import Place
from wattcast.models.cards import BoardFacts, ModelCard
from wattcast.models.power import PHYSICAL
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.power.physical import POOLED
from wattcast.models.store import Artifact
from wattcast.models.time.calibration import TimeBoard
from wattcast.predictor.parts.power_models import PHYSICAL_SCHEMA, TARGET

if TYPE_CHECKING:
    from wattcast.training.retrain.inputs import Mode, Uploads


def chosen(attempt: Attempt) -> tuple[Mode, str]:
    """How to retrain the power of a board, and why: as asked, or what ``auto`` comes to.

    ``auto`` starts from what answers for the board now. Raises DataError where no row counts, or
    where rows are of several boards.
    """
    request, gpu = attempt.request, attempt.gpu
    if request.mode != "auto":
        return request.mode, "asked for"
    rest = Rest()
    wanted = Wanted(gpu, request.board, any_clocks=True)
    rows = usable(attempt.rows(request.batches), wanted, request.schema_id, rest)
    place = Place(gpu.id, one_board(rows, gpu, rest), TARGET)
    answering = serving(attempt.services.power, attempt.artifacts, attempt.snapshot, place)
    family, found = answering.card.family, {schema for _, row in rows for schema in row.vectors}
    now = f"the {family} model answers for this board now"
    launches = PHYSICAL_SCHEMA in found and request.schema_id in (None, PHYSICAL_SCHEMA)
    if family == PHYSICAL and launches:
        which = "pooled over other GPUs" if answering.card.gpu == POOLED else "of this GPU"
        return "new_gpu", f"{now}, {which}: it is calibrated, by launches at any clocks"
    own = PREFERRED_SCHEMA if family == PHYSICAL else answering.card.feature_schema.id
    schema = request.schema_id or own
    if schema not in found or schema == PHYSICAL_SCHEMA:
        if launches:
            return "new_gpu", f"no row has features of {own}, which trees take"
        schema = min(found)
    champion = champion_for(attempt, answering, schema)
    if champion is not None and champion.card == answering.card:
        return "continue", f"{now}: trees are added to it"
    lacks = f"no row has features of {PHYSICAL_SCHEMA}, by which it is calibrated"
    now += f", and {lacks}" if family == PHYSICAL else ", and no trees can be added to it"
    if champion is None:
        return "full", f"{now}: trees are fitted to these rows alone"
    if has_base(gpu.id, champion):
        return "full", f"{now}: trees are fitted to these rows and those of the packaged models"
    return (
        "continue",
        f"{now}: trees are added to the packaged {champion.card.family} model, whose own rows are "
        "not at hand (WATTCAST_DATA)",
    )


class _Given(NamedTuple):
    """Rows that would train, the model that answers now (by name, and unless it tells times), and
    the card of the one started from."""

    board: str
    uploads: Uploads
    measured: Sequence[Measurement]
    now: str
    answering: Artifact[ModelCard] | None
    start: ModelCard | None


def planned(attempt: Attempt, target: str) -> tuple[str, dict[str, Any]]:
    """The board, and ``Plan`` of a target. Raises DataError where no row counts."""
    from wattcast.training.evaluation.splits import FOLDS, fold_assignment
    from wattcast.training.retrain.upload_folds import SEED

    given = _given(attempt, target)
    rows, measured, start = given.uploads.rows, given.measured, given.start
    silent, notes = _silent(attempt, given)
    rivals = [] if given.answering is None or NOT_ASKED in notes else [given.answering.card.marks]
    ancestor = frozenset() if start is None else start.marks
    known = given.uploads.known_to(ancestor)
    footing = given.uploads.footing(ancestor, rivals, attempt.policy)
    count = min(FOLDS, len(np.unique(rows.groups)))
    folds = fold_assignment(rows, "grouped", SEED, count) if count > 1 else None
    kernels: dict[str, dict[str, Any]] = {}
    for at, row in enumerate(measured):
        own = kernels.setdefault(row.kernel_group, {"rows": 0, "earlier_rows": 0})
        own["rows" if given.uploads.new[at] else "earlier_rows"] += 1
        fold = None if folds is None else int(folds[at]) + 1
        own.update(kernel=row.kernel_group, known=bool(known[at]), fold=fold)
    judged, least = len(np.unique(rows.groups[footing.rows])), attempt.policy.least_groups
    unasked = 0 if NOT_ASKED in notes else int(silent[footing.rows].sum())
    obstacles = []
    if judged < least:
        obstacles.append(
            f"{judged} kernel groups to judge on: measure at least {least} that the model has not "
            "learned from"
        )
    if unasked:
        obstacles.append(
            f"the {given.now} cannot be asked about {unasked} of {int(footing.rows.sum())} rows: "
            "upload rows that name their PTX, at the default clocks"
        )
    return given.board, {
        "target": target,
        "mode": attempt.mode if target == TARGET else None,
        "why": attempt.why,
        "answers_now": given.now,
        "starts_from": None if start is None else start.folder.as_posix(),
        "rows": len(rows),
        "kernels": [kernels[name] for name in sorted(kernels)],
        "folds": 0 if folds is None else count,
        "judged_kernels": judged,
        "left_out": attempt.rest.counts,
        "left_out_rows": [
            {"batch": str(batch), "row": row, "reason": why}
            for batch, row, why in attempt.rest.rows
        ],
        "obstacles": obstacles,
        "notes": [*notes, *footing.notes],
    }


def _given(attempt: Attempt, target: str) -> _Given:
    if target == TARGET and attempt.mode != "new_gpu":
        trees = boosted_rows(attempt)
        start = None if trees.champion is None else trees.champion.card
        now = f"{trees.answering.card.family} model"
        board = trees.place.board
        return _Given(board, trees.uploads, trees.measured, now, trees.answering, start)
    found = launch_rows(attempt, target)
    place = Place(attempt.gpu.id, found.board, target)
    answering = start = None
    before: BoardFacts | TimeBoard | None
    if target == TIME:
        correction = correction_of(attempt, place)
        before = None if correction is None else correction.card.board
        now = "default time model" if correction is None else "promoted correction of times"
    else:
        power = attempt.services.power
        answering = serving(power, attempt.artifacts, attempt.snapshot, place)
        start, before = power.physical_artifact(place.gpu).card, answering.card.board
        now = f"{answering.card.family} model"
    rest, measurements = attempt.rest, attempt.data.measurements
    together = found.with_earlier(trained_on(before, place), measurements, attempt.rows, rest)
    together = together.where(attempt.launches.refused(together.measured), rest)
    if not together.rows:
        raise nothing_left(attempt.gpu, rest)
    uploads = together.uploads(np.zeros((len(together.rows), 1)))  # no fold looks at the inputs
    return _Given(place.board, uploads, together.measured, now, answering, start)


def _silent(attempt: Attempt, given: _Given) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Rows ``[n]`` about which the model that answers now cannot be asked, and what to note;
    ``NOT_ASKED`` where it is a guess, and then no opponent."""
    if given.answering is None:
        return np.zeros(len(given.measured), dtype=np.bool_), ()
    card = given.answering.card
    if card.family != PHYSICAL:
        model = BoostedPowerModel(given.answering)
        watts, grids = boosted_watts(model, given.measured, attempt.gpu)
        note = GRID_GUESSED.format(model=given.now, guessed=grids)
        return np.isnan(watts), (note,) if grids else ()
    silent = np.array([why is not None for why in attempt.launches.refused(given.measured)])
    return silent, (NOT_ASKED,) if silent.any() and card.gpu == POOLED else ()
