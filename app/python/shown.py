"""What every answer can do: become a table, and show itself in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wattcast.app.python import cards
from wattcast.features.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


class Shown:
    """An answer that is a table, and shows itself as a card in a notebook."""

    def rows(self) -> Iterable[Row]:
        """Its rows as nested data."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each part of the answer. Quantities carry their units:
        ``time_seconds``, ``time_low_seconds``. Raises MissingExtraError without pandas (the extra
        ``notebook``)."""
        return frame(self.rows())


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("pandas", "notebook") from error
    return pd.DataFrame([_flat(row) for row in rows])


def _flat(row: Row) -> dict[str, Any]:
    """Nested members as columns: a quantity with its unit, a kernel by name, a shape as text."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            unit = next((unit for unit in cards.UNITS if unit in value), None)
            if unit is not None and "low" in value:
                columns[f"{name}_{unit}"] = value[unit]
                columns |= {f"{name}_{end}_{unit}": value[end] for end in ("low", "high")}
                columns |= {f"{name}_{told}": value[told] for told in ("level", "basis")}
            elif "demangled" in value:
                columns[name] = value["demangled"]
            else:
                columns |= {f"{name}_{key}": part for key, part in _flat(value).items()}
        elif name in ("grid", "block") and isinstance(value, Sequence):
            columns[name] = cards.dims(value)
        else:
            columns[name] = value
    return columns


def figures(of: Mapping[str, Any]) -> list[str]:
    return [cards.value_of(of[name]) for name in ("time", "power", "energy")]
