"""Results of finished fits and predictions, kept so that a training that died goes on there."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import numpy as np

from wattcast.training.evaluation.splits import Floats


class Checkpoints:
    """Arrays by key in a folder; without one, nothing is kept.

    A key names all that a result follows from, so a kept result is the result. A file appears
    under its name at once; one that cannot be read is as if it were not there.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Floats | None:
        """The array kept under ``key``."""
        if self._folder is None:
            return None
        try:
            return np.asarray(np.load(self._path(key), allow_pickle=False), dtype=np.float64)
        except (OSError, ValueError, EOFError):
            return None

    def put(self, key: str, array: Floats) -> None:
        """Keep an array. A full disk costs the checkpoint, not the retraining."""
        if self._folder is None:
            return
        written = self._folder / f".{uuid4().hex}.npy"
        try:
            np.save(written, array, allow_pickle=False)
            written.rename(self._path(key))
        except OSError:
            written.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{key}.npy"
