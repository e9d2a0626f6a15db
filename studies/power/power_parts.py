"""The parts of the thesis' power study by name, in the order of the thesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from studies.pages.page import Section
from studies.power.power_features import (
    cost_section,
    dependence_section,
    dynamic_section,
    ranking_section,
    selection_section,
)
from studies.power.power_fitted import (
    autoencoder_section,
    compared_section,
    pictures_section,
    regressions_section,
    tuning_section,
)
from studies.power.power_study import (
    dwarfs_section,
    initial_section,
    networks_section,
    outliers_section,
    regressors_section,
    repeated_section,
)
from studies.thesis.study import Study

PARTS: Mapping[str, Callable[[Study], Section]] = MappingProxyType(
    {
        "initial": initial_section,
        "selection": selection_section,
        "regressors": regressors_section,
        "networks": networks_section,
        "repeated": repeated_section,
        "ranking": ranking_section,
        "dependence": dependence_section,
        "outliers": outliers_section,
        "dwarfs": dwarfs_section,
        "dynamic": dynamic_section,
        "cost": cost_section,
        "regressions": regressions_section,
        "compared": compared_section,
        "pictures": pictures_section,
        "tuning": tuning_section,
        "autoencoder": autoencoder_section,
    }
)
"""Name of a part -> its section of the page."""

ON_REQUEST = ("tuning", "autoencoder")
"""Parts that only run where they are named: half an hour of a core, and PyTorch."""

USUAL = tuple(name for name in PARTS if name not in ON_REQUEST)
