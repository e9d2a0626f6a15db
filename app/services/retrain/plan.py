"""The plan that ``dry_run`` answers: what a retraining would do with its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wattcast.app.services.retrain import candidates
from wattcast.app.services.retrain.messages import LeftOutRow, Plan, PlannedKernel
from wattcast.models.power import PHYSICAL
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.power.physical import POOLED

if TYPE_CHECKING:
    from numpy.typing import NDArray


def planned(prepared: candidates.Prepared) -> Plan:
    """The plan of a target. Raises DataError where no row counts."""
    from wattcast.training.evaluation.scores import FOLDS, fold_assignment
    from wattcast.training.folds import SEED

    rows, asked = prepared.rows, prepared.asked
    if not prepared.decision.boosted:
        rows.drop(asked.launches.refused(rows.measured))
    measured, policy = rows.measured, asked.policy
    uploads = rows.uploads(np.zeros((len(measured), 1)))  # no fold looks at the inputs
    silent, notes = _silent(prepared)
    unopposed = candidates.NOT_ASKED in notes
    answering = prepared.answering
    start = prepared.champion or prepared.physical
    ancestor = frozenset() if start is None else start.card.marks
    rivals = [] if answering is None or unopposed else [answering.card.marks]
    known = uploads.known_to(ancestor)
    footing = uploads.footing(ancestor, rivals, policy)
    groups = uploads.rows.groups
    count = min(FOLDS, len(np.unique(groups)))
    folds = fold_assignment(uploads.rows, "grouped", SEED, count) if count > 1 else None
    kernels: dict[str, dict[str, Any]] = {}
    for at, row in enumerate(measured):
        own = kernels.setdefault(row.kernel_group, {"rows": 0, "earlier_rows": 0})
        own["rows" if uploads.new[at] else "earlier_rows"] += 1
        fold = None if folds is None else int(folds[at]) + 1
        own.update(kernel=row.kernel_group, known=bool(known[at]), fold=fold)
    judged, least = len(np.unique(groups[footing.rows])), policy.least_groups
    unasked = 0 if unopposed else int(silent[footing.rows].sum())
    obstacles = []
    if judged < least:
        obstacles.append(
            f"{judged} kernel groups to judge on: measure at least {least} that the model has not "
            "learned from"
        )
    if unasked:
        obstacles.append(
            f"the {_now(prepared)} cannot be asked about {unasked} of {int(footing.rows.sum())} "
            "rows: upload rows that name their PTX, at the default clocks"
        )
    return Plan(
        target=prepared.target,
        mode=prepared.decision.mode,
        why=prepared.decision.why,
        answers_now=_now(prepared),
        starts_from=None if start is None else start.card.place,
        rows=len(measured),
        kernels=[PlannedKernel(**kernels[name]) for name in sorted(kernels)],
        folds=0 if folds is None else count,
        judged_kernels=judged,
        left_out=rows.left_out,
        left_out_rows=[
            LeftOutRow(batch=batch, row=row, reason=why) for batch, row, why in rows.left_out_rows
        ],
        obstacles=obstacles,
        notes=[*notes, *footing.notes],
    )


def _now(prepared: candidates.Prepared) -> str:
    """The model to beat."""
    if prepared.answering is not None:
        return f"{prepared.answering.card.family} model"
    corrected = prepared.correction is not None
    return "promoted correction of times" if corrected else "default time model"


def _silent(prepared: candidates.Prepared) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Rows ``[n]`` about which the model that answers now cannot be asked, and notes;
    ``NOT_ASKED`` where it is a guess, and then no opponent."""
    answering, measured = prepared.answering, prepared.rows.measured
    if answering is None:
        return np.zeros(len(measured), dtype=np.bool_), ()
    if answering.card.family != PHYSICAL:
        model = BoostedPowerModel(answering)
        watts, guessed = candidates.boosted_watts(model, measured, prepared.asked.gpu)
        note = candidates.GRID_GUESSED.format(model=_now(prepared), guessed=guessed)
        return np.isnan(watts), (note,) if guessed else ()
    refused = prepared.asked.launches.refused(measured)
    silent = np.array([why is not None for why in refused])
    return silent, (candidates.NOT_ASKED,) if silent.any() and answering.card.gpu == POOLED else ()
