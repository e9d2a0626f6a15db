"""How time, power and energy of a kernel change with both clocks, from counters at one pair."""

from typing import Literal

CodeModel = Literal["sequence", "tokens"]
"""Families that need no counters but code (``code.py``)."""
