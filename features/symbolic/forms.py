"""Addresses as sums of multiples of lane, block and loop counters."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import NamedTuple

from wattcast.features.integers import fold
from wattcast.features.symbolic.sample import Forms, IrregularError
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.values import Node, affine

_CHOICES = frozenset({"min.s", "max.s", "min.u", "max.u", "select", "join"})
_BLOCK = ("ctaid.x", "ctaid.y", "ctaid.z")


class Dim(NamedTuple):
    """A stride in bytes, taken ``times``: by lanes (-1), or by the loop with this number."""

    stride: int
    times: float
    loop: int = -1


class Form(NamedTuple):
    """An address: pointer, constant bytes, dimensions of a block, bytes from block to block.

    ``exact``: nothing in it was chosen from several values, or comes round again.
    """

    origin: str
    offset: int
    dims: tuple[Dim, ...]
    blocks: tuple[int, int, int]
    exact: bool = True


def form_of(
    address: Node, forms: Forms, trips: Mapping[int, float], loop_of: Mapping[Node, int]
) -> Form | None:
    """The form of an address, ``None`` if it is no sum of multiples."""
    try:
        return _form(address, forms, trips, loop_of)
    except IrregularError:
        return None


def _form(
    address: Node, forms: Forms, trips: Mapping[int, float], loop_of: Mapping[Node, int]
) -> Form:
    offset, origin = 0, ""
    dims: dict[object, Dim] = {}
    blocks, exact = [0, 0, 0], True
    waiting: list[tuple[Node, int]] = [(address, 1)]
    for _ in range(64):
        if not waiting:
            ordered = tuple(sorted(dim for dim in dims.values() if dim.stride))
            return Form(origin, offset, ordered, (blocks[0], blocks[1], blocks[2]), exact)
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
            elif leaf.op in ("or", "bfi"):
                waiting += [(arg, factor * shift) for arg, shift in _put_together(leaf, forms)]
            elif leaf.op in _CHOICES:
                exact = False
                waiting.append((_weightiest(leaf, forms), factor))
            elif (value := _folded(leaf, forms)) is not None:
                offset += factor * value
            elif (steps := _steps(leaf, forms)) is not None:
                _more(dims, leaf, Dim(factor * steps.step, len(steps)))
                offset += factor * steps.start
            elif leaf.op in ("rem.u", "rem.s"):  # where it comes round again is not looked at
                exact = False
                waiting.append((leaf.args[0], factor))
            else:
                raise IrregularError
    raise IrregularError


def _steps(node: Node, forms: Forms) -> range | None:
    """The values that a leaf takes over the threads of a block, if they are evenly spaced."""
    if node.op == "special":
        bounds = forms.bounds(node)
        return None if bounds is None else range(bounds[0], bounds[1] + 1)
    if node.op not in ("shr.u", "shr.s", "and", "div.u", "div.s", "rem.u", "rem.s"):
        return None
    number = _constant(node.args[1], forms)
    around = affine(node.args[0], forms.leaf, forms.memo)
    if number is None or around is None or not around.terms:
        return None
    low = high = around.constant
    grain = 0
    for leaf, times in around.terms:
        inner = _steps(leaf, forms)
        if inner is None:
            return None
        ends = sorted((inner[0] * times, inner[-1] * times))
        low, high = low + ends[0], high + ends[1]
        grain = gcd(grain, times * inner.step)
    if low < 0:
        return None
    grain = max(1, grain)
    if node.op == "and" and number < 0:
        return range(low & number, (high & number) + 1, max(grain, -number))
    if node.op == "and" or node.op[:3] == "rem":
        most = number if node.op == "and" else number - 1
        return range(low, high + 1, grain) if high <= most else range(0, max(most, 0) + 1, grain)
    by = 1 << number if node.op[:3] == "shr" and 0 <= number < 64 else number
    return range(low // by, high // by + 1, max(1, grain // by)) if by > 0 else None


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


def _weightiest(node: Node, forms: Forms) -> Node:
    """Of what a value is chosen from (clamped coordinates), the one with the most terms."""
    candidates = node.args[1:] if node.op == "select" else node.args

    def weight(one: Node) -> int:
        found = affine(one, forms.leaf, forms.memo)
        return -1 if found is None else len(found.terms)

    if not candidates:
        raise IrregularError
    return max(candidates, key=weight)


def pointer_of(address: Node, made: Scheme) -> str:
    """The parameter that an address is counted from, "" if none is found."""
    waiting, seen = [address], 0
    while waiting and seen < 64:
        node, seen = waiting.pop(), seen + 1
        if node.op == "param" and node.bits == 64:
            return str(node.value[0])
        if node.op in ("add", "join", "exit", "sub", "select"):
            waiting.extend(node.args)
        elif node.op == "phi":
            waiting.append(made.phis[node].start)
    return ""
