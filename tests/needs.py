"""Marks of tests that skip where this machine lacks something, each with what would bring it."""

from __future__ import annotations

import pytest

from wattcast.features.cuda.isolation import find_nvrtc, find_ptxas
from wattcast.training.data.datasets import find_data

needs_data = pytest.mark.skipif(
    find_data() is None, reason="no data sets: set WATTCAST_DATA or lay ../shared/data beside"
)
needs_nvrtc = pytest.mark.skipif(
    find_nvrtc() is None, reason="the extra cuda (NVRTC) is not installed"
)
needs_ptxas = pytest.mark.skipif(
    find_ptxas() is None, reason="the extra cuda (ptxas) is not installed"
)
