"""Numbers of many launches at once, so that one walk serves all launches that behave alike.

The lanes of the launches lie side by side; what is one number in a launch is an ``Each`` here, and
calculates as its numbers would. Whatever decides which way the walk goes asks for a truth. Where
launches differ in it, ``ApartError`` tells which of them go together, and they are walked apart:
no launch is looked at in another way than alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import WARP_SIZE

Mask = npt.NDArray[np.bool_]


class ApartError(Exception):
    """Launches differ in what decides: ``kinds``, one for each; equal ones may go on together."""

    def __init__(self, kinds: Sequence[Hashable]) -> None:
        super().__init__("launches that differ")
        self.kinds = tuple(kinds)


class Layout:
    """Where each launch lies along an axis of lanes, or of warps. ``sizes``: lanes of each."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.count = len(self.sizes)
        ends = [0, *accumulate(self.sizes)]
        self.total = ends[-1]
        self.starts = np.array(ends[:-1])
        self.lanes = [slice(ends[n], ends[n + 1]) for n in range(self.count)]
        warps = [end // WARP_SIZE for end in ends]
        self.warps = [slice(warps[n], warps[n + 1]) for n in range(self.count)]
        self.even = self.count > 1 and len(set(self.sizes)) == 1

    def any(self, chosen: Any, lanes_each: int = 1) -> bool:
        """Whether any of ``[..., lanes]`` is set; ``lanes_each``: 32 for an axis of warps."""
        if self.count == 1 or chosen.shape[-1:] in ((), (1,)):
            return bool(chosen.any())
        if chosen.ndim > 1:
            chosen = np.logical_or.reduce(chosen, axis=tuple(range(chosen.ndim - 1)))
        found = np.logical_or.reduceat(chosen, self.starts // lanes_each).tolist()
        return agreed(found)

    def all(self, chosen: Mask) -> bool:
        """Whether all of ``[..., lanes]`` are set."""
        return bool(chosen.all()) if self.count == 1 else not self.any(~chosen)

    def extreme(self, function: np.ufunc, values: Any) -> Any:
        """``np.maximum`` or ``np.minimum`` over a number, or ``[..., lanes]`` of each launch."""
        if isinstance(values, int | Each):
            return values
        found = np.asarray(values)
        if self.count == 1 or found.ndim == 0 or found.shape[-1] == 1:
            return int(function.reduce(found, axis=None))
        if found.ndim > 1:
            found = function.reduce(found, axis=tuple(range(found.ndim - 1)))
        return each(self, function.reduceat(found, self.starts).tolist())

    def parts(self, values: Any) -> list[Any]:
        """What belongs to each launch: of a number, or of an array ``[..., lanes]``."""
        if self.count == 1:
            return [values]
        if isinstance(values, Each):
            return values.values
        if not isinstance(values, np.ndarray) or values.shape[-1:] == (1,) or not values.ndim:
            return [values] * self.count
        return [values[..., part] for part in self.lanes]


def agreed(truths: list[Any]) -> bool:
    """What all say. Raises ApartError where they differ."""
    first = truths[0]
    if truths.count(first) != len(truths):
        raise ApartError(truths)
    return bool(first)


def each(layout: Layout, values: list[Any]) -> Any:
    """A number for each launch, or the number where it is one for all."""
    first = values[0]
    if layout.count == 1 or values.count(first) == len(values):
        return first
    return Each(layout, values)


def _binary(function: Callable[[Any, Any], Any]) -> Any:
    def calculate(self: Each, other: Any) -> Any:
        if type(other) is Each:
            return each(self.layout, list(map(function, self.values, other.values)))
        if isinstance(other, np.ndarray):
            return function(np.asarray(self), other)
        return each(self.layout, [function(value, other) for value in self.values])

    return calculate


def _reflected(function: Callable[[Any, Any], Any]) -> Any:
    return _binary(lambda a, b: function(b, a))


class Each:
    """A number for each launch; among arrays, that of the launch for each of its lanes."""

    __slots__ = ("_lanes", "layout", "values")
    __array_ufunc__ = None

    def __init__(self, layout: Layout, values: list[Any]) -> None:
        self.layout, self.values = layout, values
        self._lanes: npt.NDArray[Any] | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if self._lanes is None:
            try:
                one = np.array(self.values, np.int64)
            except OverflowError:
                agreed([-(2**63) <= value < 2**63 for value in self.values])
                raise
            self._lanes = one.repeat(self.layout.sizes)
        return self._lanes if dtype is None else self._lanes.astype(dtype)

    def __bool__(self) -> bool:
        return agreed([bool(value) for value in self.values])

    def __hash__(self) -> int:
        raise ApartError(self.values)

    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __rshift__, __lshift__ = _binary(operator.rshift), _binary(operator.lshift)
    __rlshift__, __rrshift__ = _reflected(operator.lshift), _reflected(operator.rshift)
    __and__, __rand__ = _binary(operator.and_), _reflected(operator.and_)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
    __eq__, __ne__ = _binary(operator.eq), _binary(operator.ne)

    def __neg__(self) -> Any:
        return each(self.layout, [-value for value in self.values])

    def __abs__(self) -> Any:
        return each(self.layout, [abs(value) for value in self.values])


Number: TypeAlias = int | Each
"""An integer of a launch, or of each of some."""

Amount: TypeAlias = float | Each
"""A total of a launch, or of each of some."""

NUMBER = (int, Each)


def mapped(function: Callable[..., Any], *values: Any) -> Any:
    """A function of numbers, for each launch where they are ``Each``."""
    for value in values:
        if type(value) is Each:
            layout = value.layout
            lists = [v.values if type(v) is Each else repeat(v, layout.count) for v in values]
            return each(layout, list(map(function, *lists)))
    return function(*values)


def least(first: Any, *others: Any) -> Any:
    """``min``, for each launch."""
    for other in others:
        if type(first) is Each or type(other) is Each:
            first = mapped(min, first, other)
        elif other < first:
            first = other
    return first


def most(first: Any, *others: Any) -> Any:
    """``max``, for each launch."""
    for other in others:
        if type(first) is Each or type(other) is Each:
            first = mapped(max, first, other)
        elif other > first:
            first = other
    return first


def ratio(part: Any, whole: Any) -> Any:
    """``part / whole``, 0 where ``whole`` is."""
    if type(part) is Each or type(whole) is Each:
        return mapped(_ratio, part, whole)
    return part / whole if whole else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def listed(value: Any, count: int) -> list[Any]:
    """The number of each of so many launches."""
    return value.values if type(value) is Each else [value] * count


def by_launch(columns: tuple[Any, ...], count: int) -> Iterable[tuple[Any, ...]]:
    """Numbers as one row for each of so many launches."""
    if count == 1:
        return (columns,)
    return zip(*(listed(column, count) for column in columns), strict=True)


def spread(value: Any) -> Any:
    """A number as it is in each lane, where launches differ."""
    return np.asarray(value) if type(value) is Each else value
