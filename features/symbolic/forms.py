"""Addresses as sums of multiples of lane, block and loop counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil, gcd
from typing import Any, NamedTuple

from wattcast.features.attached import attached
from wattcast.features.integers import fold
from wattcast.features.isa import TILES, tile_lines
from wattcast.features.launch import Launch
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.symbolic.scheme import Access, Scheme
from wattcast.features.values import Affine, Node, affine

_QUOTIENTS = ("shr.u", "shr.s", "div.u", "div.s")
_RESTS = ("rem.u", "rem.s", "and")
_BLOCK = ("ctaid.x", "ctaid.y", "ctaid.z")


Constant = Callable[[str, int, int], Any]
"""The value of a parameter: an integer, ``Each``, or ``None`` where nobody gave one."""
Sum = tuple[Any, dict[Node, Any], list[Any]]
"""Constant, factors of leaves and steps of loop counters; each a ``Number``."""


class IrregularError(Exception):
    """The grid does not fall into intervals, or an address is no sum of multiples."""


class Forms:
    """Affine forms with the launch's constants filled in and loop counters taken apart."""

    def __init__(self, scheme: Scheme, launch: Launch, constant: Constant) -> None:
        self.scheme = scheme
        self.launch = launch
        self.constant = constant
        self.row = 0  # see row_of
        self.memo: dict[Node, Affine | None] = {}

    def leaf(self, node: Node) -> Any:
        """The value of a leaf that is the same in the whole launch, ``None`` if it is not."""
        if node.op == "param":
            name, offset = node.value
            return self.constant(name, offset, node.bits)
        if node.op == "special":
            head, _, axis = node.value.partition(".")
            shape = {"ntid": self.launch.block, "nctaid": self.launch.grid}.get(head)
            if shape is not None and axis:
                return shape["xyz".index(axis)]
            shape = {"tid": self.launch.block, "ctaid": self.launch.grid}.get(head)
            if shape is not None and axis and shape["xyz".index(axis)] == 1:
                return 0
        return None

    def form(self, node: Node) -> Sum:
        """Constant, terms and the steps of loop counters in a value. Raises IrregularError."""
        constant = 0
        terms: dict[Node, int] = {}
        steps: list[int] = []
        waiting: list[tuple[Node, int]] = [(node, 1)]
        for _ in range(64):
            if not waiting:
                return constant, {n: f for n, f in terms.items() if f}, steps
            top, factor = waiting.pop()
            found = affine(top, self.leaf, self.memo)
            if found is None:
                raise IrregularError
            constant += factor * found.constant
            for leaf, times in found.terms:
                if leaf.op == "exit":
                    waiting.append((leaf.args[0], factor * times))
                elif leaf.op == "phi":
                    phi = self.scheme.phis[leaf]
                    step = affine(phi.step, self.leaf, self.memo) if phi.step else None
                    if step is None or step.terms:
                        raise IrregularError
                    steps.append(factor * times * step.constant)
                    waiting.append((phi.start, factor * times))
                else:
                    terms[leaf] = terms.get(leaf, 0) + factor * times
        raise IrregularError

    def bounds(self, node: Node) -> tuple[int, int] | None:
        """Least and greatest value of a leaf over the threads of a block."""
        found = _steps(node, self)
        return None if found is None else (found[0], found[-1])


class Dim(NamedTuple):
    """A stride in bytes, taken ``times``: by lanes (-1), or by the loop with this number."""

    stride: int
    times: float
    loop: int = -1


class Form(NamedTuple):
    """An address: pointer, constant bytes, dimensions of a block, bytes from block to block."""

    origin: str
    offset: int
    dims: tuple[Dim, ...]
    blocks: tuple[int, int, int]


def form_of(
    address: Node, forms: Forms, trips: Mapping[int, float], loop_of: Mapping[Node, int]
) -> Form:
    """The form of an address. Raises IrregularError if it is no sum of multiples."""
    offset, origin = 0, ""
    dims: dict[object, Dim] = {}
    blocks = [0, 0, 0]
    waiting: list[tuple[Node, int]] = [(address, 1)]
    for _ in range(64):
        if not waiting:
            ordered = tuple(sorted(dim for dim in dims.values() if dim.stride))
            return Form(origin, offset, ordered, (blocks[0], blocks[1], blocks[2]))
        node, times = waiting.pop()
        sums = affine(node, forms.leaf, forms.memo)
        if sums is None:
            raise IrregularError
        offset += times * sums.constant
        for leaf, each in sums.terms:
            factor = times * each
            if leaf.op == "param":
                if factor != 1 or origin:
                    raise IrregularError
                origin = str(leaf.value[0])
            elif leaf.op == "exit":
                waiting.append((leaf.args[0], factor))
            elif leaf.op == "phi":
                phi = forms.scheme.phis[leaf]
                step = affine(phi.step, forms.leaf, forms.memo) if phi.step else None
                loop = loop_of.get(leaf)
                if step is None or step.terms or loop is None:
                    raise IrregularError
                _more(dims, loop, Dim(factor * step.constant, trips.get(loop, 1.0), loop))
                waiting.append((phi.start, factor))
            elif leaf.op == "special" and leaf.value in _BLOCK:
                blocks[_BLOCK.index(leaf.value)] += factor
                blocks[1] += forms.row * factor
            elif forms.row and _row(leaf, forms) == forms.row:
                if leaf.op in _QUOTIENTS:
                    blocks[1] += factor
                else:  # the rest: less so many for each row before
                    blocks[1] -= factor * _by(leaf, forms)
                    waiting.append((leaf.args[0], factor))
            elif leaf.op in ("or", "bfi"):
                waiting += [(arg, factor * shift) for arg, shift in _put_together(leaf, forms)]
            elif (value := _folded(leaf, forms)) is not None:
                offset += factor * value
            elif (scaled := _scaled(leaf, forms)) is not None:
                waiting.append((scaled[0], factor * scaled[1]))
            elif (steps := _steps(leaf, forms)) is not None:
                _more(dims, leaf, Dim(factor * steps.step, len(steps)))
                offset += factor * steps.start
            elif (parts := _quotient(leaf, forms)) is not None:
                waiting += [(part, factor * share) for part, share in parts.whole]
                _more(dims, leaf, Dim(factor * parts.rest.step, len(parts.rest)))
                offset += factor * parts.rest.start
            else:
                raise IrregularError
    raise IrregularError


def row_of(forms: Forms) -> int:
    """Blocks in a row where the kernel makes rows and columns of the number of a block in a line,
    0 where it does not, or in several ways.

    ``row = number / n; column = number % n``, or the same of the number of a warp or thread.
    """
    if forms.launch.grid[1:] != (1, 1):
        return 0
    found = {_row(node, forms) for node in _divisions(forms.scheme)} - {0}
    return found.pop() if len(found) == 1 else 0


@attached
def _divisions(made: Scheme) -> tuple[Node, ...]:
    return tuple(node for node in made.graph.nodes if node.op in (*_QUOTIENTS, *_RESTS))


def _row(node: Node, forms: Forms) -> int:
    """Blocks after which a quotient is one more, or a rest comes round again; 0 if it is none of
    block numbers, or not for whole rows of the grid."""
    by = _by(node, forms) if node.op in (*_QUOTIENTS, *_RESTS) else 0
    step = _of_block(node.args[0], forms) if by > 0 else 0
    if not step or by % step:
        return 0
    row, grid = by // step, forms.launch.grid[0]
    return row if 1 < row < grid and grid % row == 0 else 0


def _by(node: Node, forms: Forms) -> int:
    """What a quotient or rest is divided by; 0 if that is no number, or no power of 2 less 1 in
    ``and``."""
    number = _constant(node.args[1], forms)
    if number is None:
        return 0
    if node.op == "and":
        return number + 1 if number > 0 and not number & number + 1 else 0
    return _divisor(node, number)


def _of_block(node: Node, forms: Forms) -> int:
    """By how much a value grows from block to block along x, if all else in it is less; else 0."""
    sums = affine(node, forms.leaf, forms.memo)
    if sums is None:
        return 0
    times, others, low, high = 0, [], sums.constant, sums.constant
    for leaf, each in sums.terms:
        parts = _quotient(leaf, forms) if leaf.op in _QUOTIENTS else None
        if parts is None:
            others.append((leaf, each))
            continue
        low, high = low + each * parts.rest[0], high + each * parts.rest[-1]
        others += [(part, each * share) for part, share in parts.whole]
    for leaf, each in others:
        if leaf.op == "special" and leaf.value == _BLOCK[0]:
            times += each
            continue
        steps = _steps(leaf, forms)
        if steps is None:
            return 0
        ends = sorted((each * steps[0], each * steps[-1]))
        low, high = low + ends[0], high + ends[1]
    return times if low >= 0 and high < times else 0


def in_lines(form: Form, access: Access, forms: Forms) -> tuple[Form, int]:
    """The form of an access, and the bytes side by side in it: what a lane moves, or a line of a
    matrix tile. Raises IrregularError."""
    if access.facts.entry not in TILES:
        return form, access.width
    (lines, long), size = tile_lines(access.facts), access.facts.bits // 8
    lead = long if access.stride is None else _constant(access.stride, forms)
    if lead is None:
        raise IrregularError
    return form._replace(dims=(*form.dims, Dim(lead * size, lines))), long * size


def _steps(node: Node, forms: Forms, everywhere: bool = False) -> range | None:
    """The values that a leaf takes over the threads of a block (of the launch: ``everywhere``), if
    they are evenly spaced."""
    if node.op == "special":
        head, _, axis = node.value.partition(".")
        shape = {"tid": forms.launch.block, "ctaid": everywhere and forms.launch.grid}.get(head)
        if shape and axis:
            return range(shape["xyz".index(axis)])
        return {"laneid": range(32), "warpid": range(forms.launch.warps_per_block)}.get(head)
    if node.op not in (*_QUOTIENTS, *_RESTS):
        return None
    number = _constant(node.args[1], forms)
    around = affine(node.args[0], forms.leaf, forms.memo)
    if number is None or around is None or not around.terms:
        return None
    found = _sum(around.constant, around.terms, forms, everywhere)
    if found is None or found.low < 0:
        return None
    low, high, grain = found
    if node.op == "and" and number < 0:
        return range(low & number, (high & number) + 1, max(grain, -number))
    if node.op == "and" or node.op[:3] == "rem":
        most = number if node.op == "and" else number - 1
        return range(low, high + 1, grain) if high <= most else range(0, max(most, 0) + 1, grain)
    by = _divisor(node, number)
    return range(low // by, high // by + 1, max(1, grain // by)) if by > 0 else None


class _Sum(NamedTuple):
    """Ends of what a sum can be, and what it is a multiple of but for its start."""

    low: int
    high: int
    grain: int


def _sum(
    constant: int, terms: Iterable[tuple[Node, int]], forms: Forms, everywhere: bool
) -> _Sum | None:
    low = high = constant
    grain = 0
    for leaf, times in terms:
        inner = _steps(leaf, forms, everywhere)
        if inner is None:
            # What differs between blocks is none of a block's steps, but for what is one number:
            # the correction of a negative dividend, say, where none is negative.
            inner = _steps(leaf, forms, everywhere=True)
            if inner is None or len(inner) != 1:
                return None
        ends = sorted((inner[0] * times, inner[-1] * times))
        low, high = low + ends[0], high + ends[1]
        grain = gcd(grain, times * inner.step)
    return _Sum(low, high, max(1, grain))


def _divisor(node: Node, number: int) -> int:
    """What a quotient is divided by, 0 if that is no positive number."""
    if node.op[:3] == "shr":
        return 1 << number if 0 <= number < 64 else 0
    return max(number, 0)


class _Parts(NamedTuple):
    """A quotient: what the divisor divides, each with its share, and the steps of the rest."""

    whole: list[tuple[Node, int]]
    rest: range


def _quotient(node: Node, forms: Forms) -> _Parts | None:
    """``(256 * ctaid + tid) / 32`` is ``8 * ctaid + tid / 32``."""
    number = _constant(node.args[1], forms) if node.op in _QUOTIENTS else None
    by = _divisor(node, number) if number is not None else 0
    around = affine(node.args[0], forms.leaf, forms.memo) if by else None
    if around is None:
        return None
    whole = [(leaf, times // by) for leaf, times in around.terms if times % by == 0]
    others = [term for term in around.terms if term[1] % by]
    rest = _sum(around.constant, others, forms, everywhere=False)
    if not whole or rest is None or rest.low < 0:
        return None
    steps = range(rest.low // by, rest.high // by + 1, max(1, rest.grain // by))
    return _Parts(whole, steps)


def _constant(node: Node, forms: Forms) -> int | None:
    found = affine(node, forms.leaf, forms.memo)
    if found is not None and not found.terms:
        return found.constant
    return _folded(node, forms)


def _put_together(node: Node, forms: Forms) -> list[tuple[Node, int]]:
    """Numbers in different bits of one are a sum: compilers write ``or`` and ``bfi`` for it."""
    if node.op == "or":
        return [(arg, 1) for arg in node.args]
    place = _constant(node.args[2], forms)
    if place is None or not 0 <= place < 64:
        raise IrregularError
    return [(node.args[0], 1 << place), (node.args[1], 1)]


def _scaled(node: Node, forms: Forms) -> tuple[Node, int] | None:
    """What a product multiplies by a number that is itself worked out, and that number."""
    for this, other in (node.args, node.args[::-1]) if node.op == "mul" else ():
        number = _constant(other, forms)
        if number is not None:
            return this, number
    return None


def _folded(node: Node, forms: Forms) -> int | None:
    """The value of an operation on constants."""
    values = []
    for arg in node.args:
        sums = affine(arg, forms.leaf, forms.memo)
        if sums is None:
            return None
        inner = [(_folded(leaf, forms), times) for leaf, times in sums.terms]
        if any(value is None for value, _ in inner):
            return None
        values.append(sums.constant + sum(value * times for value, times in inner if value))
    if not values:
        return None
    try:
        return fold(node.op, node.bits, node.args[0].bits, tuple(values))
    except (KeyError, ArithmeticError, TypeError, ValueError):
        return None


def _more(dims: dict[object, Dim], key: object, dim: Dim) -> None:
    """Add a dimension; two of the same counter are one."""
    before = dims.get(key)
    dims[key] = dim if before is None else dim._replace(stride=dim.stride + before.stride)


# What an address touches that is a sum of multiples: pieces of memory, repeated by strides.


class Box:
    """Pieces of ``extent`` adjacent bytes from ``start`` on, repeated by strides."""

    def __init__(self, start: int, width: float, dims: Iterable[tuple[int, float]]) -> None:
        self.start, self.extent = start, max(1.0, width)
        self.repeats: list[tuple[int, float]] = []
        for stride, count in sorted((abs(s), c) for s, c in dims if s and c > 1):
            inner = self.repeats[-1] if self.repeats else None
            if inner is None and stride <= max(self.extent, SECTOR_BYTES):
                self.extent += stride * (count - 1)
            elif inner is not None and stride % inner[0] == 0 and stride < inner[0] * inner[1]:
                self.repeats[-1] = inner[0], inner[1] + stride // inner[0] * (count - 1)
            else:
                self.repeats.append((stride, count))

    def units(self, unit: int, grain: int = 0) -> float:
        """Distinct units of so many bytes; ``grain``: by what boxes like it are moved."""
        pieces, extent = 1.0, self.extent
        for stride, count in self.repeats:
            if stride < unit and pieces == 1.0:
                extent += stride * (count - 1)
            else:
                pieces *= count
                grain = gcd(grain, stride)
        # On average over starts so many bytes apart.
        first, last = self.start % unit, ceil(extent) - 1
        starts = range(first, first + unit, gcd(grain, unit) or unit)
        touched = sum((at + last) // unit - at // unit + 1 for at in starts)
        return pieces * (touched / len(starts))

    def common(self, shift: float, unit: int) -> float:
        """The share of its units that it touches too when moved by some bytes, again and again."""
        share = 1.0
        if not shift:
            return share
        for stride, count in reversed(self.repeats):
            steps = round(shift / stride)
            share *= max(0.0, 1.0 - abs(steps) / count)
            shift -= steps * stride
        if not share or abs(shift) >= self.extent + unit:
            return 0.0
        ours = both = 0.0
        phases = unit // gcd(int(shift), unit) if shift else 1
        for turn in range(phases):
            low = self.start + turn * shift
            first, last = low // unit, (low + self.extent - 1) // unit
            low += shift
            ours += last - first + 1
            both += max(
                0.0, min(last, (low + self.extent - 1) // unit) - max(first, low // unit) + 1
            )
        return share * both / ours
