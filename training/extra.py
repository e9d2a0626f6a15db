"""What reports need beyond serving: the packages of the extra ``train``."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from wattcast.features.errors import WattcastError

NEEDED = ("markdown_it", "matplotlib", "pandera", "scipy")
"""Packages of the extra that reports import."""


class ExtraMissingError(WattcastError):
    """A package of an extra is not installed; ``packages`` names all that are missing."""

    slug = "extra-missing"


def require_train_extra(packages: Iterable[str] = NEEDED) -> None:
    """Raises ExtraMissingError naming the extra and the packages where one is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ExtraMissingError(
            "reports need the extra train: pip install 'wattcast[train]' "
            f"(not installed: {', '.join(missing)})",
            packages=missing,
        )
