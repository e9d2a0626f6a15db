"""How each time model makes a time of its parts, and what each part adds to it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError
from wattcast.models.explain_terms import Combine
from wattcast.models.time.calibration import PART as CALIBRATION
from wattcast.models.time.registry import TIME_MODELS, get_time_model

Floats = NDArray[np.float64]

ON_TOP = ("launch", CALIBRATION, "known")
"""Parts that every model adds to what the others come to: starting the launch, and corrections by
launches measured on the board and by ones of the very kernel."""

TOLERANCE = 1e-6
"""How far the parts may come from the prediction, relative: rounding of sums."""


def combine_of(family: str, parts: Mapping[str, float], seconds: float) -> Combine:
    """How ``parts`` make ``seconds``, as a function of any of them left out.

    Raises ModelError for a model whose form is not known here, or whose parts do not make up the
    prediction.
    """
    if family not in TIME_MODELS:
        raise ModelError(f"how {family} makes its time of its parts is not known")
    form = get_time_model(family).combined

    def combine(given: Mapping[str, Floats]) -> Floats:
        own = {name: part for name, part in given.items() if name not in ON_TOP}
        return form(own) + sum(given[name] for name in ON_TOP if name in given)

    made = float(combine({name: np.array([part]) for name, part in parts.items()})[0])
    if abs(made - seconds) > TOLERANCE * seconds:
        raise ModelError(f"the parts of {family} make {made:g} s, not the predicted {seconds:g} s")
    return combine
