"""Arithmetic on values of all sampled lanes at once, with loop counters left symbolic.

A value is a plain ``int`` (the same everywhere; ``Each``: in each launch), a ``Val``, a ``Test``
(a comparison that still contains a loop counter) or ``Missing``. Everything computed is exact:
what might wrap with a counter in it is not followed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wattcast.features.integers import COMPARISONS, SIGNED, Lanes, fold, fold_lanes, operations
from wattcast.features.launch import WARP_SIZE

# Numbers of many launches at once, so that one walk serves all launches that behave alike.
#
# The lanes of the launches lie side by side; what is one number in a launch is an ``Each`` here and
# calculates as its numbers would. Whatever decides which way the walk goes asks for a truth. Where
# launches differ in it, ``ApartError`` tells which of them go together, and they are walked apart:
# no launch is looked at in another way than alone.

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


Array = npt.NDArray[Any]

INFINITE = 1 << 200
"""Stands for no bound: larger than any product of machine integers met here."""

_LANES = operations(Lanes(SIGNED[8]))


class Missing(NamedTuple):
    """No value, and why; ``line`` of the PTX (0: none)."""

    reason: str
    line: int


class Val:
    """``base + sum(factor * counter of loop)`` for every lane.

    ``base`` and the factors are ints or int64 arrays that broadcast to (rows, lanes);
    predicates have a bool ``base`` and no terms. ``low`` and ``high`` bound the whole.
    ``origin`` names the pointer parameter it is relative to, whose address is not known.
    """

    __slots__ = ("base", "high", "low", "origin", "terms")

    def __init__(
        self,
        base: Array | Number,
        low: Number,
        high: Number,
        terms: Mapping[int, Array | Number] | None = None,
        origin: str | None = None,
    ) -> None:
        self.base = base
        self.low = low
        self.high = high
        self.terms = terms or {}
        self.origin = origin


class Test(NamedTuple):
    """``value OP 0`` with a loop counter in ``value``; OP is eq, ne, lt or le."""

    how: str
    value: Val


Value = Number | Val | Test | Missing


class Obligation(NamedTuple):
    """``value`` was taken to stay within ``low`` and ``high`` whatever the counter."""

    value: Val
    low: Number
    high: Number


_FLIPPED = {"eq": "ne", "ne": "eq"}


def inverted(value: Value) -> Value:
    """The opposite of a predicate."""
    if isinstance(value, NUMBER):
        return 1 - value
    if isinstance(value, Val):
        return Val(~np.asarray(value.base, dtype=np.bool_), 0, 1)
    if isinstance(value, Test):
        if value.how in _FLIPPED:
            return Test(_FLIPPED[value.how], value.value)
        # not (v < 0) is -v <= 0; not (v <= 0) is -v < 0
        return Test("le" if value.how == "lt" else "lt", _scale(value.value, -1))
    return value


def as_val(value: Number | Val) -> Val:
    """A number as a ``Val``."""
    return value if isinstance(value, Val) else Val(value, value, value)


def _scale(value: Val, factor: int) -> Val:
    low, high = sorted((value.low * factor, value.high * factor))
    return Val(value.base * factor, low, high, {k: f * factor for k, f in value.terms.items()})


def _sum(a: Val, b: Val, sign: int) -> Val | Missing:
    terms = a.terms
    if terms or b.terms:
        added = dict(terms)
        for loop, factor in b.terms.items():
            added[loop] = added.get(loop, 0) + (factor if sign > 0 else -factor)
        terms = {k: f for k, f in added.items() if not (isinstance(f, NUMBER) and f == 0)}
    if sign > 0:
        if a.origin and b.origin:
            return Missing("the sum of two unknown addresses", 0)
        origin = a.origin or b.origin
        return Val(a.base + b.base, a.low + b.low, a.high + b.high, terms, origin)
    if b.origin and a.origin != b.origin:
        return Missing(f"the address {b.origin} points to is not known", 0)
    origin = None if b.origin else a.origin
    return Val(a.base - b.base, a.low - b.high, a.high - b.low, terms, origin)


def _product(a: Val, b: Val) -> Val | Missing:
    if a.origin or b.origin:
        return Missing(f"argument {a.origin or b.origin} is not given", 0)
    if a.terms and b.terms:
        return Missing("a product of loop counters", 0)
    if b.terms:
        a, b = b, a
    corners = a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high
    low: Number
    high: Number
    if Each in (type(a.low), type(a.high), type(b.low), type(b.high)):
        low, high = most(least(*corners), -INFINITE), least(most(*corners), INFINITE)
    else:
        low, high = max(min(corners), -INFINITE), min(max(corners), INFINITE)
    terms = {loop: factor * b.base for loop, factor in a.terms.items()}
    return Val(a.base * b.base, low, high, terms)


def limits(bits: int) -> tuple[int, int]:
    """Least and greatest integer of a width, read as signed."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def narrowed(base: Array | Number, bits: int, own: bool = False) -> Array | Number:
    """Wrapped to a width; arrays are int64 and wrap at 64 bits by themselves. ``own``: the array
    is nobody else's, and may hold the result."""
    if isinstance(base, int):
        return fold("trunc", bits, bits, (base,))
    if isinstance(base, Each):
        found: Number = mapped(lambda one: fold("trunc", bits, bits, (one,)), base)
        return found
    if bits >= 64:
        return base
    wrapped = base.astype(SIGNED[bits // 8])
    if not own or base.dtype != np.int64:
        return wrapped.astype(np.int64)
    base[...] = wrapped
    return base


class Arithmetic:
    """The operations. ``obligations`` is a list while a loop is being solved, else ``None``."""

    def __init__(self) -> None:
        self.obligations: list[Obligation] | None = None

    def _within(self, value: Val, low: Number, high: Number) -> Val | Missing:
        """``value``, on condition that it stays between ``low`` and ``high``."""
        if self.obligations is None:
            return Missing("the arithmetic may wrap within the loop", 0)
        self.obligations.append(Obligation(value, low, high))
        bounded = (most(value.low, low), least(value.high, high))
        return Val(value.base, *bounded, value.terms, value.origin)

    def settle(self, value: Val | Missing, bits: int, own: bool = True) -> Value:
        """Wrap a result to its width, if it can leave it at all. ``own``: it was just made."""
        if isinstance(value, Missing):
            return value
        low, high = limits(bits)
        if value.low < low or value.high > high:
            if value.origin:
                # Addresses of unknown pointers are taken to be far from the ends of memory.
                value = Val(value.base, low, high, value.terms, value.origin)
            elif value.terms:
                return self._within(value, low, high)
            else:
                return Val(narrowed(value.base, bits, own), low, high)
        if not value.terms and isinstance(value.base, NUMBER) and not value.origin:
            return value.base
        return value

    def apply(self, op: str, bits: int, given: int, args: list[Value]) -> Value:
        """One operation; ``given`` is the width of its operands, ``bits`` of its result."""
        kinds = {type(arg) for arg in args}
        if Missing in kinds and not (op in ("and", "or") and bits == 1):
            return next(arg for arg in args if isinstance(arg, Missing))
        if Val not in kinds and all(isinstance(arg, NUMBER) for arg in args):
            if Each in kinds:
                found: Number = mapped(lambda *each: fold(op, bits, given, each), *args)
                return found
            return fold(op, bits, given, tuple(args))  # type: ignore[arg-type]
        if bits == 1 and op in ("and", "or", "xor"):
            return _logic(op, args)
        if Test in kinds:
            return Missing("a condition that changes within the loop", 0)
        values = [as_val(arg) for arg in args]  # type: ignore[arg-type]
        if op in COMPARISONS:
            return self._compare(op, given, values)
        if op in ("add", "sub"):
            return self.settle(_sum(values[0], values[1], 1 if op == "add" else -1), bits)
        if op == "mul":
            return self.settle(_product(values[0], values[1]), bits)
        if op == "neg":
            return self.settle(_product(values[0], as_val(-1)), bits)
        if op == "shl" and isinstance(args[1], Each):
            raise ApartError(args[1].values)
        if op == "shl" and isinstance(args[1], int):
            amount = args[1] & 0xFFFFFFFF
            if amount >= bits:
                return 0
            if amount < 62:
                return self.settle(_product(values[0], as_val(1 << amount)), bits)
        if op in ("sext", "trunc"):
            return self.settle(values[0], bits, own=False)
        if op == "zext":
            return self._unsigned(values[0], given)
        return self._elementwise(op, bits, given, values)

    def _unsigned(self, value: Val, bits: int) -> Value:
        if value.low >= 0 or value.origin or bits == 64:  # lanes hold no more than 64 bits
            return value
        mask = (1 << bits) - 1
        if value.terms:
            return self._within(value, 0, mask)
        return Val(value.base & mask, 0, mask)

    def _compare(self, op: str, bits: int, values: list[Val]) -> Value:
        a, b = values
        how, sign = op.split(".")
        if a.origin != b.origin:
            return Missing(f"argument {a.origin or b.origin} is not given", 0)
        if sign == "u" and (a.low < 0 or b.low < 0):
            if not a.terms and not b.terms:
                for one, other in ((a.base, b.base), (b.base, a.base)):
                    if isinstance(one, Each) and isinstance(other, NUMBER):
                        raise ApartError(one.values)
                left, right = _pattern(a.base, bits), _pattern(b.base, bits)
                return _predicate(left < right if how == "lt" else left <= right)
            first, second = (self._unsigned(v, bits) for v in values)
            if not isinstance(first, Val) or not isinstance(second, Val):
                return first if isinstance(first, Missing) else second
            a, b = first, second
        if not a.terms and not b.terms:
            return _compared(how, a.base, b.base)
        difference = _sum(a, b, -1)
        if isinstance(difference, Missing):
            return difference
        if not difference.terms:
            return _compared(how, difference.base, 0)
        decided = _decided(how, difference)
        return Test(how, difference) if decided is None else decided

    def _elementwise(self, op: str, bits: int, given: int, values: list[Val]) -> Value:
        for value in values:
            if value.origin:
                return Missing(f"argument {value.origin} is not given", 0)
            if value.terms:
                return Missing(f"{op} of a value with a loop counter", 0)
        low: Number
        high: Number
        low, high = limits(bits)
        base: Array | Number
        if op in ("and", "or", "xor"):
            sides = [spread(v.base) for v in values]
            base = _LANES[op].function(sides[0], sides[1])
            if op == "and":
                tops = [v.high for v in values if v.low >= 0]
                if tops:
                    low, high = 0, least(*tops)
            elif all(v.low >= 0 for v in values):
                top = most(*(v.high for v in values))
                low, high = 0, mapped(lambda one: (1 << one.bit_length()) - 1, top)
            return Val(base, low, high)
        if given > 64:
            return Missing(f"{op} is not followed", 0)
        found = fold_lanes(op, given, [np.atleast_1d(np.asarray(v.base, np.int64)) for v in values])
        a = values[0]
        if op in ("shr.s", "shr.u", "div.u", "div.s") and a.low >= 0 and values[1].low >= 0:
            smallest = values[1].low
            if op.startswith("shr"):
                high = a.high >> least(smallest, 64)
            else:
                high = a.high // most(smallest, 1) if smallest else high
            low = 0 if smallest or op.startswith("shr") else low
        elif op in ("rem.u", "rem.s") and a.low >= 0 and values[1].low > 0:
            low, high = 0, least(a.high, values[1].high - 1)
        elif op in ("min.s", "max.s"):
            pick = least if op == "min.s" else most
            low, high = pick(a.low, values[1].low), pick(a.high, values[1].high)
        return Val(narrowed(found, bits) if bits < 64 else found, low, high)


def _compared(how: str, left: Array | Number, right: Array | Number) -> Value:
    function = _LANES[how].function
    if isinstance(left, NUMBER) and isinstance(right, NUMBER):
        found: Number = mapped(lambda a, b: int(function(a, b)), left, right)
        return found
    return _predicate(function(spread(left), spread(right)))


def _pattern(base: Array | Number, bits: int) -> Array:
    """The bits as unsigned integers."""
    found: Array = np.asarray(base, dtype=np.int64).astype(np.uint64) & np.uint64((1 << bits) - 1)
    return found


def _predicate(found: Any) -> Value:
    if isinstance(found, bool | np.bool_):
        return int(found)
    return Val(found, 0, 1)


def _decided(how: str, value: Val) -> int | None:
    """The outcome of ``value OP 0`` where its bounds alone tell."""
    low, high = value.low, value.high
    if how == "lt":
        return 1 if high < 0 else 0 if low >= 0 else None
    if how == "le":
        return 1 if high <= 0 else 0 if low > 0 else None
    if low > 0 or high < 0:
        return int(how == "ne")
    return None


def _logic(op: str, args: list[Value]) -> Value:
    left, right = args
    for first, second in ((left, right), (right, left)):
        if isinstance(first, NUMBER):
            if op == "and":
                return second if first else 0
            if op == "or":
                return 1 if first else second
            return inverted(second) if first else second
    if isinstance(left, Val) and isinstance(right, Val):
        function = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[op]
        return Val(function(left.base, right.base), 0, 1)
    if isinstance(left, Missing):
        return left
    return right if isinstance(right, Missing) else Missing("conditions joined in a loop", 0)
