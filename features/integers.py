"""Integer and bit instructions of PTX, once for every kind of number.

A ``Kind`` is what numbers are held in: plain Python integers (``Whole``: the expression graph,
one value at a time) or numpy arrays (``Lanes``: the executed analysis, and lanes that the
symbolic one evaluates). ``operations(kind)`` is the table of what instructions do to them. Numbers
of a signed kind are read in two's complement, 0xFFFFFFFF of 32 bits is -1.

Source: NVIDIA, Parallel Thread Execution ISA 8.x, sections 9.7.1 and 9.7.8. What it leaves open is
as GPUs do it: division by zero gives all ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
DType = np.dtype[Any]

UNSIGNED: Mapping[int, DType] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Dtypes of unsigned integers by bytes."""

SIGNED: Mapping[int, DType] = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}
"""Dtypes of signed integers by bytes."""

COMPARISONS = frozenset({"eq.s", "ne.s", "lt.s", "le.s", "lt.u", "le.u"})
"""Operations whose result is a predicate, by the name that ``fold`` takes."""


BY_SIGN = frozenset({"abs", "min", "max", "div", "rem", "shr", "bfe"})
"""Operations that do otherwise to signed numbers; to all others of ``operations`` they are bits."""


def wrap(value: int, bits: int) -> int:
    """The integer of ``bits`` bits with the same pattern, read as signed (1 bit: 0 or 1)."""
    if bits == 1:
        return value & 1
    half = 1 << (bits - 1)
    return ((value + half) & ((half << 1) - 1)) - half


# --- kinds of numbers ---------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """Plain integers of ``bits`` bits; results are exact and left to the caller to ``wrap``."""

    bits: int
    signed: bool

    least = staticmethod(min)
    most = staticmethod(max)

    @staticmethod
    def where(chosen: Any, yes: Any, no: Any) -> Any:
        """``yes`` where ``chosen``, else ``no``."""
        return yes if chosen else no

    def pattern(self, a: int) -> int:
        """The same bits as an unsigned number."""
        return a & ((1 << self.bits) - 1)

    def own(self, a: int) -> int:
        """A number of this kind with the bits of an unsigned one."""
        return a

    def amount(self, by: int) -> int:
        """An unsigned 32-bit count as a shift amount: it clamps at the width."""
        return min(by, self.bits)

    def ones(self, count: int) -> int:
        """``count`` ones from bit 0, the width at most."""
        return (1 << min(count, self.bits)) - 1

    @staticmethod
    def rest(a: int, b: int) -> int:
        """What division by ``b`` (not 0), truncated towards zero, leaves of ``a``."""
        found = abs(a) % abs(b)
        return found if a >= 0 else -found

    def high(self, a: int, b: int) -> int:
        """The upper half of the exact product."""
        return (a * b) >> self.bits

    def length(self, a: int) -> int:
        """Position of the highest set bit plus one, 0 for 0."""
        return self.pattern(a).bit_length()

    def population(self, a: int) -> int:
        """Bits that are set."""
        return self.pattern(a).bit_count()

    def reverse(self, a: int) -> int:
        """The bits in reverse order."""
        return int(f"{self.pattern(a):0{self.bits}b}"[::-1], 2)


@dataclass(frozen=True)
class Lanes:
    """Arrays of an integer ``dtype``, which wrap by themselves; counts are ``uint32``."""

    dtype: DType

    where = staticmethod(np.where)
    least = staticmethod(np.minimum)
    most = staticmethod(np.maximum)
    rest = staticmethod(np.fmod)

    @property
    def bits(self) -> int:
        """Width of the numbers."""
        return 8 * self.dtype.itemsize

    @property
    def signed(self) -> bool:
        """Whether their top bit is the sign."""
        return self.dtype.kind == "i"

    @property
    def raw(self) -> DType:
        """The unsigned dtype of the same width."""
        return UNSIGNED[self.dtype.itemsize]

    def pattern(self, a: Array) -> Array:
        """The same bits as unsigned numbers."""
        return a.view(self.raw)

    def own(self, a: Array) -> Array:
        """Numbers of this kind with the bits of unsigned ones."""
        return a.view(self.dtype)

    def amount(self, by: Array) -> Array:
        """Unsigned 32-bit counts as shift amounts: numpy's shifts clamp at the width too."""
        if self.dtype == np.uint32:
            return by
        # 127 is above every width, and no dtype is too narrow for it.
        found = np.minimum(by, 127)
        return found.view(self.dtype) if self.bits == 32 else found.astype(self.dtype)

    def ones(self, count: Array) -> Array:
        """``count`` ones from bit 0, the width at most; unsigned."""
        missing = (self.bits - np.minimum(count, self.bits)).astype(self.raw)
        found: Array = self.raw.type(np.iinfo(self.raw).max) >> missing
        return found

    def high(self, a: Array, b: Array) -> Array:
        """The upper half of the exact product."""
        size = self.dtype.itemsize
        if size < 8:
            wide = (SIGNED if self.signed else UNSIGNED)[2 * size]
            product: Array = ((a.astype(wide) * b.astype(wide)) >> self.bits).astype(self.dtype)
            return product
        low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        ua, ub = a.view(self.raw), b.view(self.raw)
        a0, a1, b0, b1 = ua & low, ua >> half, ub & low, ub >> half
        middle = a1 * b0 + ((a0 * b0) >> half)
        other = (middle & low) + a0 * b1
        high = a1 * b1 + (middle >> half) + (other >> half)
        if self.signed:
            zero = np.uint64(0)
            high = high - np.where(a < 0, ub, zero) - np.where(b < 0, ua, zero)
        return self.own(high)

    def length(self, a: Array) -> Array:
        """Position of the highest set bit plus one, 0 for 0; uint32."""
        a = a.view(self.raw)
        if self.bits == 64:
            half = Lanes(UNSIGNED[4])
            high, low = (a >> np.uint64(32)).astype(np.uint32), a.astype(np.uint32)
            return np.where(high != 0, half.length(high) + np.uint32(32), half.length(low))
        return np.frexp(a.astype(np.float64))[1].astype(np.uint32)

    def population(self, a: Array) -> Array:
        """Bits that are set; uint32."""
        return np.bitwise_count(a.view(self.raw)).astype(np.uint32)

    def reverse(self, a: Array) -> Array:
        """The bits in reverse order."""
        rows = np.ascontiguousarray(a).view(np.uint8).reshape(-1, self.dtype.itemsize)
        bits = np.unpackbits(rows, axis=1, bitorder="little")[:, ::-1]
        back: Array = np.packbits(bits, axis=1, bitorder="little")
        return np.ascontiguousarray(back).view(self.dtype).reshape(a.shape)


Kind = Whole | Lanes


# --- what instructions do -------------------------------------------------------------------


class Operation(NamedTuple):
    """``function(*numbers, *counts)``: how many operands are of the kind, and how many are
    counts (unsigned and of 32 bits whatever the kind: shift amounts, positions, lengths)."""

    function: Callable[..., Any]
    numbers: int = 2
    counts: int = 0


def _division(kind: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Quotient truncated towards zero, and remainder with the dividend's sign (by 0: it)."""
    where, rest = kind.where, kind.rest
    if not kind.signed:
        ones = kind.ones(kind.bits)

        def quotient(a: Any, b: Any) -> Any:
            return where(b == 0, ones, a // where(b == 0, 1, b))

        return quotient, lambda a, b: a - quotient(a, b) * b

    def divide(a: Any, b: Any) -> Any:
        safe = where((b == 0) | (b == -1), 1, b)
        exact = (a - rest(a, safe)) // safe
        return where(b == 0, -1, where(b == -1, -a, exact))

    def remainder(a: Any, b: Any) -> Any:
        safe = where((b == 0) | (b == -1), 1, b)
        return where(b == 0, a, rest(a, safe))

    return divide, remainder


def _extraction(kind: Any) -> Callable[..., Any]:
    """bfe: counts are of 8 bits; signed, the top bit found fills up, beyond the word too."""
    bits = kind.bits

    def extract(a: Any, start: Any, length: Any) -> Any:
        start, length = start & 255, length & 255
        value = kind.pattern(a)
        field = (value >> shift(start)) & ones(length)
        if kind.signed:
            top = kind.least(start + kind.most(length, 1) - 1, bits - 1)
            negative = (((value >> shift(top)) & 1) != 0) & (length != 0)
            inside = kind.least(length, bits - kind.least(start, bits))
            field = kind.where(negative, field | ~ones(inside), field)
        return kind.own(field)

    plain = Lanes(kind.raw) if isinstance(kind, Lanes) else kind
    shift, ones = plain.amount, plain.ones
    return extract


def _insertion(kind: Any) -> Callable[..., Any]:
    """bfi: the low ``length`` bits of ``a`` put into ``b`` from ``start`` on."""

    def insert(a: Any, b: Any, start: Any, length: Any) -> Any:
        start, length = kind.amount(start & 255), length & 255
        mask = kind.own(kind.ones(length)) << start
        return (b & ~mask) | ((a << start) & mask)

    return insert


@lru_cache(maxsize=64)
def operations(kind: Kind) -> Mapping[str, Operation]:
    """The table: what each operation does to numbers of ``kind``. Those that differ by sign do
    as the kind's sign says; ``popc`` and ``clz`` of arrays give uint32."""
    divide, remainder = _division(kind)
    amount: Callable[[Any], Any] = kind.amount
    return {
        "add": Operation(operator.add),
        "sub": Operation(operator.sub),
        "mul": Operation(operator.mul),
        "mulhi": Operation(kind.high),
        "div": Operation(divide),
        "rem": Operation(remainder),
        "neg": Operation(operator.neg, 1),
        "abs": Operation(abs, 1),
        "min": Operation(kind.least),
        "max": Operation(kind.most),
        "and": Operation(operator.and_),
        "or": Operation(operator.or_),
        "xor": Operation(operator.xor),
        "not": Operation(operator.invert, 1),
        "shl": Operation(lambda a, by: a << amount(by), 1, 1),
        "shr": Operation(lambda a, by: a >> amount(by), 1, 1),
        "bfe": Operation(_extraction(kind), 1, 2),
        "bfi": Operation(_insertion(kind), 2, 2),
        "brev": Operation(kind.reverse, 1),
        "popc": Operation(kind.population, 1),
        "clz": Operation(lambda a: kind.bits - kind.length(a), 1),
        "trunc": Operation(lambda a: a, 1),
        "sext": Operation(lambda a: a, 1),
        "zext": Operation(kind.pattern, 1),
        "eq": Operation(operator.eq),
        "ne": Operation(operator.ne),
        "lt": Operation(operator.lt),
        "le": Operation(operator.le),
    }


@lru_cache(maxsize=1024)
def _scalar(op: str, bits: int) -> Callable[..., int]:
    """An operation on plain integers read as signed."""
    name, _, sign = op.partition(".")
    kind = Whole(bits, sign != "u")
    function, numbers, counts = operations(kind)[name]
    if kind.signed and not counts:
        return function
    number = -1 if kind.signed else (1 << bits) - 1
    masks = (number,) * numbers + (0xFFFFFFFF,) * counts
    return lambda *values: function(*map(operator.and_, values, masks))


def fold(op: str, bits: int, operand_bits: int, values: tuple[int, ...]) -> int:
    """The result of an operation on plain integers, wrapped to ``bits``.

    ``op`` says the sign where it matters (``lt.u``, ``shr.s``); ``operand_bits`` is the width of
    the operands (read as signed). Raises KeyError for an operation that is not in the table.
    """
    return wrap(_scalar(op, operand_bits)(*values), bits)


def fold_lanes(op: str, bits: int, arrays: list[Array]) -> Array:
    """``fold`` for int64 arrays that broadcast, ``bits`` being 8, 16, 32 or 64.

    The result has the width of the operands, read as signed. Raises KeyError as ``fold`` does.
    """
    name, _, sign = op.partition(".")
    dtype = (UNSIGNED if sign == "u" else SIGNED)[bits // 8]
    function, numbers, _ = operations(Lanes(dtype))[name]
    counts = np.dtype(np.uint32)
    found: Array = function(
        *(a.astype(dtype if i < numbers else counts, copy=False) for i, a in enumerate(arrays))
    )
    return found.view(SIGNED[found.dtype.itemsize]).astype(np.int64, copy=False)
