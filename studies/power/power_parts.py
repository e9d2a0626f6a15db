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
    }
)
"""Name of a part -> its section of the page."""
