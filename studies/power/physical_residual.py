"""Whether boosted trees on what the physical model leaves over help on programs left out.

For each program: the physical model predicts every other program without both, trees learn the
logarithm of what it missed from activities and clocks, and correct the program left out.
"""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

from wattcast.training.physical.fit import Fits, SettingsOf, predict, scored_programs
from wattcast.training.physical.rows import Floats

TREES, DEPTH, RATE = 60, 2, 0.1
"""Few and shallow: there are some fifteen programs to learn from."""


def with_residual(fits: Fits, gpu_id: str, settings: SettingsOf) -> Floats:
    """Watts of every scored row, physical times boosted residual, program left out; else NaN."""
    table = fits.tables[gpu_id].take(fits.tables[gpu_id].scored)
    relative = table.clocks_mhz / table.reference
    inputs = np.column_stack([table.activities, relative])
    names = scored_programs(table)
    watts = np.full(len(table.watts), np.nan)
    for program in names:
        mine = table.programs == program
        seen = np.full(len(table.watts), np.nan)
        for other in names:
            weights, voltage = fits.fit(gpu_id, settings(program), frozenset({program, other}))
            rows = table.programs == other
            seen[rows] = predict(table, weights, voltage)[rows]
        missed = np.log(table.watts / seen)
        trees = GradientBoostingRegressor(
            n_estimators=TREES, max_depth=DEPTH, learning_rate=RATE, random_state=0
        )
        trees.fit(inputs[~mine], missed[~mine])
        watts[mine] = seen[mine] * np.exp(trees.predict(inputs[mine]))
    found = np.full(len(fits.tables[gpu_id].watts), np.nan)
    found[fits.tables[gpu_id].scored] = watts
    return found
