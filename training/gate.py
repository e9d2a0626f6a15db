"""Whether a retrained model may take the champion's place.

A candidate is promoted only if all of this holds; otherwise it stays a candidate, and the verdict
says why:

1.  on kernels left out of its training (grouped folds over the uploaded rows that the champion was
    not trained on either) it errs less than the champion, beyond noise;
2.  on the same rows it errs less than the uploads' own no-information baseline (the median power
    of each fold's training rows), beyond noise. Without this, measurements whose watts were
    shuffled would be promoted: any model that learned their median beats the champion on them;
3.  on old data of the same board it is not worse than the champion by more than a set margin.
    Both were trained on those rows, so the comparison is fair although it is within sample.

The error of a row is |ln(predicted / measured)|, the scale of the intervals; that of a kernel group
is the mean over its rows. **Beyond noise** is Wilcoxon's signed-rank test (F. Wilcoxon, "Individual
comparisons by ranking methods", 1945) of the paired differences by kernel group, since rows of one
kernel err alike and are no independent evidence; and the mean over groups must be better, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattcast.features.checked import Frozen
from wattcast.models.cards import Marks
from wattcast.training.evaluation.scores import Floats, Indices, group_means

WORST_ERROR = float(np.log(1e6))
"""A row's error counts at most this much, a factor of a million: a convention of ours that keeps
means finite where a prediction is not positive. Such a candidate is never better, whatever its
mean."""

ALPHA = 0.025
"""Level of the one-sided test; with all groups better, six suffice. A convention of ours."""

OLD_MARGIN = 0.02
"""Most by which the error on old data may grow, in ln(watts): about 2 percent of the power."""

LEAST_GROUPS = 6
"""Kernel groups from which a gain can be told from noise, at that level."""

BASELINE = "no-information baseline"
CHAMPION = "champion"


class Comparison(Frozen):
    """Candidate against one opponent on the hold-out, in |ln(predicted / measured)| by group;
    ``not_positive``: rows for which the candidate predicts zero, less or no number."""

    opponent: str
    kernel_groups: int
    candidate_error: float
    opponent_error: float
    p_value: float
    better: bool
    not_positive: int = 0


class OldData(Frozen):
    """Candidate against champion on rows that both were trained on."""

    rows: int
    candidate_error: float
    champion_error: float
    worse: bool
    not_positive: int = 0


class Verdict(Frozen):
    """``reasons`` are empty for a promotion, else one sentence for each condition not met."""

    promoted: bool
    reasons: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()
    old: OldData | None = None
    notes: tuple[str, ...] = ()


class Opponent(NamedTuple):
    """A model that a candidate must beat: its predictions ``[n]`` of the uploaded rows, NaN where
    it cannot be asked, and the marks of the kernels it learned from (``None``: not known)."""

    name: str
    predicted: Floats
    marks: Marks | None = frozenset()


@dataclass(frozen=True)
class HoldOut:
    """Rows that neither candidate nor champion was trained on: arrays ``[n]`` of one positive
    quantity, watts or seconds.

    ``opponents`` holds the predictions of the champion (and of whatever else serves) by name, NaN
    where a model cannot be asked about a row; empty where the GPU has no model yet; the last one is
    who answers now. ``at`` are the numbers of the rows among all uploaded ones, ``notes`` go into
    the verdict.
    """

    measured: Floats
    groups: Indices
    candidate: Floats
    baseline: Floats
    opponents: Mapping[str, Floats]
    at: Indices
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OldRows:
    """Rows that both were trained on, each in the watts of its own board (or seconds): ``[n]``."""

    measured: Floats
    groups: Indices
    candidate: Floats
    champion: Floats


def log_error(measured: Floats, predicted: Floats) -> Floats:
    """|ln(predicted / measured)| of every row; infinite where a prediction is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(np.log(predicted / measured))
    return np.where(predicted > 0, error, np.inf)


def judge(holdout: HoldOut, old: OldRows | None) -> Verdict:
    """The verdict on a candidate. Raises ValueError where what was measured is not positive."""
    if not np.all(holdout.measured > 0):
        raise ValueError("what was measured must be positive")
    count = len(np.unique(holdout.groups))
    if count < LEAST_GROUPS:
        reason = (
            f"{count} kernel groups the champion does not know: at least {LEAST_GROUPS} "
            "are needed to tell a gain from noise"
        )
        return Verdict(promoted=False, reasons=(reason,))
    silent = {name: int(np.isnan(watts).sum()) for name, watts in holdout.opponents.items()}
    if any(silent.values()):
        unasked = tuple(
            f"the {name} cannot be asked about {missing} of {len(holdout.groups)} rows: they lack "
            "inputs of it, or ran at other clocks than it answers for"
            for name, missing in silent.items()
            if missing
        )
        return Verdict(promoted=False, reasons=unasked)
    against = {**holdout.opponents, BASELINE: holdout.baseline}
    comparisons = tuple(compare(holdout, name, predicted) for name, predicted in against.items())
    reasons = [_not_better(each) for each in comparisons if not each.better]
    notes = [*holdout.notes, *([] if holdout.opponents else ["there is no champion to beat"])]
    old_data = None
    if old is None or not len(old.measured):
        notes.append("no old data of this board is at hand")
    else:
        old_data = _old_data(old)
        if old_data.worse and old_data.not_positive:
            reasons.append(f"on old data the candidate {_missing(old_data.not_positive)}")
        elif old_data.worse:
            reasons.append(
                f"on {old_data.rows} old rows the error grows from {old_data.champion_error:.3f} "
                f"to {old_data.candidate_error:.3f}, by more than {OLD_MARGIN:g}"
            )
    return Verdict(
        promoted=not reasons,
        reasons=tuple(reasons),
        comparisons=comparisons,
        old=old_data,
        notes=tuple(notes),
    )


def compare(holdout: HoldOut, name: str, predicted: Floats) -> Comparison:
    """Candidate against one opponent's predictions ``[n]`` on the hold-out."""
    measured, groups = holdout.measured, holdout.groups
    own, not_positive = _errors(measured, holdout.candidate, groups)
    other, _ = _errors(measured, predicted, groups)
    p_value = _p_value(own, other)
    return Comparison(
        opponent=name,
        kernel_groups=len(own),
        candidate_error=float(own.mean()),
        opponent_error=float(other.mean()),
        p_value=p_value,
        better=bool(not not_positive and p_value <= ALPHA and own.mean() < other.mean()),
        not_positive=not_positive,
    )


def _errors(measured: Floats, predicted: Floats, groups: Indices) -> tuple[Floats, int]:
    """Error of each group, each row's at most ``WORST_ERROR``, and the rows without any."""
    errors = log_error(measured, predicted)
    by_group = group_means(np.minimum(errors, WORST_ERROR), groups)
    return by_group, int(np.count_nonzero(~np.isfinite(errors)))


def _p_value(own: Floats, other: Floats) -> float:
    """Of Wilcoxon's one-sided signed-rank test that ``own`` errors are smaller; 1 if all tie."""
    from scipy.stats import wilcoxon

    difference = own - other
    if not np.any(difference):
        return 1.0
    return float(wilcoxon(difference, alternative="less", zero_method="wilcox").pvalue)


def _old_data(old: OldRows) -> OldData:
    own, own_missing = _errors(old.measured, old.candidate, old.groups)
    champion, champion_missing = _errors(old.measured, old.champion, old.groups)
    return OldData(
        rows=len(old.measured),
        candidate_error=float(own.mean()),
        champion_error=float(champion.mean()),
        worse=bool(own_missing > champion_missing or own.mean() > champion.mean() + OLD_MARGIN),
        not_positive=own_missing,
    )


def _not_better(comparison: Comparison) -> str:
    if comparison.not_positive:
        return (
            f"on {comparison.kernel_groups} kernel groups left out, the candidate "
            f"{_missing(comparison.not_positive)}"
        )
    if comparison.candidate_error >= comparison.opponent_error:
        how = "is no better than"
    else:
        how = f"is not better beyond noise (p = {comparison.p_value:.3f}, at most {ALPHA:g}) than"
    return (
        f"on {comparison.kernel_groups} kernel groups left out, the candidate "
        f"(error {comparison.candidate_error:.3f}) {how} the {comparison.opponent} "
        f"({comparison.opponent_error:.3f})"
    )


def _missing(rows: int) -> str:
    return f"predicts zero, less or no number for {rows} row{'s' if rows > 1 else ''}"
