"""Canonical names for spellings that ``kernel_names.csv`` does not hold.

The complete upstream files hold kernels that the copies at hand do not, and the table of names goes
with the copies. Such a kernel is named by rule: spelling, sizes and counters are taken off; a
benchmark or kernel that some source of the table spells alike has its name. What is left over of
one benchmark is ONE kernel group: near-twins cannot be told without looking, and a group too
large makes a score worse, never better than it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from wattcast.training.data.datasets import KernelName

_SIZE = re.compile(r"_\d+(k|mw|m|w)?(?=kernel|$|_|\s)|\d{2,}$", re.IGNORECASE)
"""Sizes and counters: ``_1024``, ``_1MW``, ``_193K``, and the 10 of a dragged ``vecAdd10``."""


def plain_name(spelling: str) -> str:
    """Lower-case letters and digits alone, sizes and counters taken off: ``BFSv1_4096`` -> bfsv1.

    A name that is nothing but digits and signs stays what it is.
    """
    bare = re.sub(r"[^a-z0-9]", "", _SIZE.sub("", spelling.strip()).lower())
    return bare or re.sub(r"[^a-z0-9]", "", spelling.lower()) or "unnamed"


class NamingRules:
    """Names by rule, learned from the spellings that have one."""

    def __init__(self, names: Mapping[tuple[str, str, str], KernelName]) -> None:
        families: dict[str, set[str]] = {}
        kernels: dict[tuple[str, str], set[KernelName]] = {}
        for (_, benchmark, kernel), name in names.items():
            families.setdefault(plain_name(benchmark), set()).add(name.family)
            kernels.setdefault((name.family, plain_name(kernel)), set()).add(name)
        # A spelling that stands for two things tells neither.
        self._families = {key: min(each) for key, each in families.items() if len(each) == 1}
        self._kernels = {key: next(iter(each)) for key, each in kernels.items() if len(each) == 1}

    def name(self, benchmark: str, kernel: str) -> KernelName:
        """The canonical name of any spelling."""
        bare = plain_name(benchmark)
        family = self._families.get(bare, bare)
        own = plain_name(kernel)
        known = self._kernels.get((family, own))
        return known or KernelName(f"{family}/{own}", f"{family}/*", family)
