"""Two answers about traces, beside each other: what uses more energy now, and what less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wattcast.predictor.messages.application import (
    ApplicationAnswer,
    ApplicationChanges,
    ChangeRow,
    ChangeSums,
    KernelRow,
    Row,
)

MOST_CHANGES = 50


def changes(old: ApplicationAnswer, new: ApplicationAnswer) -> ApplicationChanges:
    """Sums, and kernels and operators by how much their joules changed.

    Kernels are the same where their names are. Errors of the models largely cancel in a
    difference: the same kernel is mistaken in the same way twice.
    """
    return ApplicationChanges(
        old=_sums(old),
        new=_sums(new),
        joules=new.energy.joules - old.energy.joules,
        seconds=new.span_seconds - old.span_seconds,
        kernels=_by_name(old.kernels, new.kernels),
        operators=_by_name(old.operators, new.operators),
    )


def _sums(answer: ApplicationAnswer) -> ChangeSums:
    return ChangeSums(
        joules=answer.energy.joules,
        seconds=answer.span_seconds,
        launches=answer.launches,
        gap_joules=sum(device.gaps.joules for device in answer.devices),
    )


def _by_name(old: Sequence[KernelRow | Row], new: Sequence[KernelRow | Row]) -> list[ChangeRow]:
    sums: dict[str | None, dict[str, list[Any]]] = {}
    for side, rows in enumerate((old, new)):
        for row in rows:
            mine = sums.setdefault(
                row.name, {"launches": [0, 0], "seconds": [0.0, 0.0], "joules": [0.0, 0.0]}
            )
            for name, pair in mine.items():
                pair[side] += getattr(row, name)
    changed = [
        ChangeRow(
            name=name,
            **{f"old_{key}": pair[0] for key, pair in mine.items()},
            **{f"new_{key}": pair[1] for key, pair in mine.items()},
            joules=mine["joules"][1] - mine["joules"][0],
        )
        for name, mine in sums.items()
    ]
    changed.sort(key=lambda row: -abs(row.joules))
    return changed[:MOST_CHANGES]
