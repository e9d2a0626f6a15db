"""How each time model makes a time of its parts, and what each part adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError
from wattcast.models.explain_terms import Combine
from wattcast.models.time.bottleneck import CONSTANTS
from wattcast.models.time.calibration import PART as CALIBRATION

Floats = NDArray[np.float64]

ON_TOP = ("launch", CALIBRATION, "known")
"""Parts that every model adds to what the others come to: starting the launch, and corrections by
launches measured on the board and by ones of the very kernel."""

TOLERANCE = 1e-6
"""How far the parts may come from the prediction, relative: rounding of sums."""

_SERVERS = ("sm", "texture", "l2", "dram")


def _sum(parts: Mapping[str, Floats]) -> Floats:
    found: Floats = np.sum(list(parts.values()), axis=0)
    return found


def _largest(parts: Mapping[str, Floats]) -> Floats:
    found: Floats = np.max(list(parts.values()), axis=0)
    return found


def _norm(parts: Mapping[str, Floats]) -> Floats:
    """``wattcast.models.time.bottleneck.combined_seconds`` for arrays."""
    latency = parts.get("latency", np.zeros(1))
    busy = np.array([part for name, part in parts.items() if name != "latency"] or [0 * latency])
    largest = busy.max(axis=0)
    scaled = busy / np.where(largest > 0, largest, 1.0)
    norm = largest * (scaled**CONSTANTS.overlap_norm).sum(axis=0) ** (1 / CONSTANTS.overlap_norm)
    found: Floats = np.maximum(norm, latency)
    return found


def _network(parts: Mapping[str, Floats]) -> Floats:
    """``models.time.queueing.network_form``: the busiest server, waiting, latency; or the chain."""
    busiest = np.max([parts[name] for name in _SERVERS], axis=0)
    found: Floats = np.maximum(busiest + parts["overlap"] + parts["latency"], parts["chain"])
    return found


_FORMS: Mapping[str, Callable[[Mapping[str, Floats]], Floats]] = {
    "bottleneck": _norm,
    "queueing": _network,
    "roofline": _largest,
    "volkov": _largest,
    "scheduling": _sum,
    "delay": _sum,
    "queueing-cases": _sum,
}


def combine_of(family: str, parts: Mapping[str, float], seconds: float) -> Combine:
    """How ``parts`` make ``seconds``, as a function of any of them left out.

    Raises ModelError for a model whose form is not known here, or whose parts do not make up the
    prediction.
    """
    form = _FORMS.get(family)
    if form is None:
        raise ModelError(f"how {family} makes its time of its parts is not known")

    def combine(given: Mapping[str, Floats]) -> Floats:
        own = {name: part for name, part in given.items() if name not in ON_TOP}
        return form(own) + sum(given[name] for name in ON_TOP if name in given)

    made = float(combine({name: np.array([part]) for name, part in parts.items()})[0])
    if abs(made - seconds) > TOLERANCE * seconds:
        raise ModelError(f"the parts of {family} make {made:g} s, not the predicted {seconds:g} s")
    return combine
