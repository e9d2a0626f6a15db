"""Rows as every protocol takes them: vectors, watts, and what says which rows belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Names = NDArray[np.str_]


@dataclass(frozen=True)
class Rows:
    """What a model is fitted on and scored by: vectors ``[n, k]``, watts and groups ``[n]``.

    ``groups`` numbers the kernel groups (near-twin kernels are one). The others, each ``[n]``,
    are there where a protocol needs them: ``kernels`` (numbers; the groups where nothing tells
    kernels of a group apart), ``families`` (numbers), ``gpus`` (names), ``clocks`` (numbers of
    the clock settings).
    """

    vectors: Floats
    watts: Floats
    groups: Indices
    kernels: Indices | None = None
    families: Indices | None = None
    gpus: Names | None = None
    clocks: Indices | None = None

    @classmethod
    def of(
        cls,
        vectors: ArrayLike,
        watts: ArrayLike,
        group_names: ArrayLike,
        *,
        kernels: ArrayLike | None = None,
        families: ArrayLike | None = None,
        gpus: ArrayLike | None = None,
        clocks: ArrayLike | None = None,
    ) -> Rows:
        """Rows with groups, kernels and families numbered in the order of their sorted names.

        ``clocks`` are numbers ``[n]`` or ``[n, 2]`` (core and memory), in any unit.
        """
        return cls(
            np.asarray(vectors, dtype=np.float64),
            np.asarray(watts, dtype=np.float64),
            _numbered(group_names),
            kernels=None if kernels is None else _numbered(kernels),
            families=None if families is None else _numbered(families),
            gpus=None if gpus is None else np.asarray(gpus, dtype=str),
            clocks=None if clocks is None else _distinct(np.asarray(clocks, dtype=np.float64)),
        )

    def __len__(self) -> int:
        return len(self.watts)

    @property
    def units(self) -> Indices:
        """What "a kernel" is to protocols that measure some of its launches, ``[n]``."""
        return self.groups if self.kernels is None else self.kernels

    def take(self, rows: Indices) -> Rows:
        """The chosen rows; group numbers stay as they are."""

        def chosen(labels: Indices | None) -> Indices | None:
            return None if labels is None else labels[rows]

        return Rows(
            self.vectors[rows],
            self.watts[rows],
            self.groups[rows],
            kernels=chosen(self.kernels),
            families=chosen(self.families),
            gpus=None if self.gpus is None else self.gpus[rows],
            clocks=chosen(self.clocks),
        )

    def hidden(self) -> Rows:
        """The same rows without their power (NaN): all that a model may know of test rows."""
        return replace(self, watts=np.full(len(self), np.nan))


Predict = Callable[[Rows, Rows], Floats]
"""(known rows, test rows without power) -> test watts ``[m]``. The known rows are measured
launches of the test kernel, or of the new GPU; most protocols know none."""
Fit = Callable[[Rows], Predict]
"""Training rows -> what predicts others."""
FitPredict = Callable[[Floats, Floats, Floats], Floats]
"""(training vectors [n, k], training watts [n], test vectors [m, k]) -> test watts [m]."""


def plain(fit_predict: FitPredict) -> Fit:
    """A model of vectors and watts alone; known rows are further training rows to it."""

    def fit(train: Rows) -> Predict:
        def predict(known: Rows, test: Rows) -> Floats:
            vectors = np.concatenate([train.vectors, known.vectors])
            watts = np.concatenate([train.watts, known.watts])
            return fit_predict(vectors, watts, test.vectors)

        return predict

    return fit


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of several tables as one, numbered alike (``take`` of one ``Rows`` gives such parts).

    A label is kept where every part has it.
    """

    def label(name: str) -> Indices | None:
        values = [getattr(part, name) for part in parts]
        return None if any(each is None for each in values) else np.concatenate(values)

    gpus = [part.gpus for part in parts if part.gpus is not None]
    return Rows(
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.watts for part in parts]),
        np.concatenate([part.groups for part in parts]),
        kernels=label("kernels"),
        families=label("families"),
        gpus=np.concatenate(gpus) if len(gpus) == len(parts) else None,
        clocks=label("clocks"),
    )


def _numbered(names: ArrayLike) -> Indices:
    return np.unique(np.asarray(names, dtype=str), return_inverse=True)[1].astype(np.int64)


def _distinct(values: Floats) -> Indices:
    return np.unique(values, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
