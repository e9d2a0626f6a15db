"""Values of registers as a shared expression graph, and their affine normal form.

A ``Node`` is an operation on other nodes or a leaf: a constant, a special register
(``tid.x``), a kernel parameter, the iteration number of a loop. Equal nodes are one object
(hash-consing), so the graph of a kernel has at most a few nodes per instruction, however
often a value is used. What cannot be followed is an ``unknown`` leaf with reason and line.

Integers are kept in two's complement of their width, read as signed: the 32-bit pattern
0xFFFFFFFF is -1. Operations that differ by sign say so in their name (``lt.u``, ``shr.s``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_NODES_PER_INSTRUCTION = 40
"""Bound on the graph: more (hostile merges) and new values are unknown. nvcc's code has 1-2."""

AFFINE_TERMS = 12
"""Longest affine form kept. Indices of real kernels have up to 9 (three thread and block
coordinates, loop counters)."""

AFFINE_DEPTH = 400
"""Deepest expression brought to affine form; beyond, the form is not sought."""


class Node:
    """One value. ``loops`` and ``varies`` are bit sets over loop indices.

    ``loops``: loops in whose iterations it must be evaluated; ``varies``: those with whose
    iteration it may change. ``index`` numbers nodes in the order made (operands first, but
    for the latch of a ``phi``). ``value`` is the leaf's content, or what else tells nodes
    apart (a block, a loop).
    """

    __slots__ = ("__weakref__", "args", "bits", "index", "loops", "op", "value", "varies")

    def __init__(
        self, op: str, bits: int, args: tuple[Node, ...], value: Any, index: int, loops: int
    ) -> None:
        self.op = op
        self.bits = bits
        self.args = args
        self.value = value
        self.index = index
        self.loops = loops
        self.varies = loops

    def __repr__(self) -> str:
        return f"<{describe(self)}>"

    @property
    def unknown(self) -> bool:
        """Whether it is a leaf nothing is known of."""
        return self.op == "unknown"


def wrap(value: int, bits: int) -> int:
    """The integer of ``bits`` bits with the same pattern, read as signed."""
    if bits == 1:
        return value & 1
    half = 1 << (bits - 1)
    return ((value + half) & ((half << 1) - 1)) - half


def _unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def _quotient(a: int, b: int) -> int:
    """Division that rounds towards zero; by zero, all bits set (as GPUs do; PTX leaves it open)."""
    if b == 0:
        return -1
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


def _shift(by: int, bits: int) -> int:
    """Shift amounts are unsigned and clamp at the width (PTX ISA, shl and shr)."""
    return min(_unsigned(by, 32), bits)


Scalar = Callable[..., int]


def _u(compute: Callable[[int, int], int]) -> Scalar:
    return lambda n, a, b: compute(_unsigned(a, n), _unsigned(b, n))


def _udiv(a: int, b: int) -> int:
    return a // b if b else -1


def _urem(a: int, b: int) -> int:
    return a % b if b else a


def _field(n: int, a: int, start: int, length: int) -> int:
    """bfe.u: ``length`` bits of ``a`` from ``start`` on (both of 8 bits)."""
    start, length = start & 255, length & 255
    return (_unsigned(a, n) >> start) & ((1 << length) - 1)


def _signed_field(n: int, a: int, start: int, length: int) -> int:
    """bfe.s: bits beyond the field or the word repeat the top bit found."""
    start, length = start & 255, length & 255
    if length == 0:
        return 0
    top = min(start + length - 1, n - 1)
    sign = (_unsigned(a, n) >> top) & 1
    taken = _field(n, a, start, min(length, max(0, n - start)))
    kept = min(length, max(0, n - start))
    return taken - (1 << kept) if sign and kept else (-1 if sign else taken)


def _insert(n: int, a: int, b: int, start: int, length: int) -> int:
    """bfi: the low ``length`` bits of ``a`` put into ``b`` from ``start`` on."""
    start, length = start & 255, length & 255
    if start >= n or length == 0:
        return b
    mask = (((1 << length) - 1) << start) & ((1 << n) - 1)
    return (_unsigned(b, n) & ~mask) | ((_unsigned(a, n) << start) & mask)


SCALAR: Mapping[str, Scalar] = {
    "add": lambda n, a, b: a + b,
    "sub": lambda n, a, b: a - b,
    "mul": lambda n, a, b: a * b,
    "mulhi.s": lambda n, a, b: (a * b) >> n,
    "mulhi.u": lambda n, a, b: (_unsigned(a, n) * _unsigned(b, n)) >> n,
    "shl": lambda n, a, b: a << _shift(b, n),
    "shr.s": lambda n, a, b: a >> _shift(b, n),
    "shr.u": lambda n, a, b: _unsigned(a, n) >> _shift(b, n),
    "and": lambda n, a, b: a & b,
    "or": lambda n, a, b: a | b,
    "xor": lambda n, a, b: a ^ b,
    "not": lambda n, a: ~a,
    "neg": lambda n, a: -a,
    "abs": lambda n, a: abs(a),
    "min.s": lambda n, a, b: min(a, b),
    "max.s": lambda n, a, b: max(a, b),
    "min.u": _u(min),
    "max.u": _u(max),
    "div.s": lambda n, a, b: _quotient(a, b),
    "rem.s": lambda n, a, b: a - b * _quotient(a, b) if b else a,
    "div.u": _u(_udiv),
    "rem.u": _u(_urem),
    "bfe.u": _field,
    "bfe.s": _signed_field,
    "bfi": _insert,
    "brev": lambda n, a: int(f"{_unsigned(a, n):0{n}b}"[::-1], 2),
    "popc": lambda n, a: _unsigned(a, n).bit_count(),
    "clz": lambda n, a: n - _unsigned(a, n).bit_length(),
    "trunc": lambda n, a: a,
    "sext": lambda n, a: a,
    "eq.s": lambda n, a, b: int(a == b),
    "ne.s": lambda n, a, b: int(a != b),
    "lt.s": lambda n, a, b: int(a < b),
    "le.s": lambda n, a, b: int(a <= b),
    "lt.u": _u(lambda a, b: int(a < b)),
    "le.u": _u(lambda a, b: int(a <= b)),
    "select": lambda n, p, a, b: a if p else b,
}
"""What an operation does to plain integers; the width is that of the operands."""

COMPARISONS = frozenset({"eq.s", "ne.s", "lt.s", "le.s", "lt.u", "le.u"})


def fold(op: str, bits: int, operand_bits: int, values: tuple[int, ...]) -> int:
    """The result of an operation on constants, wrapped to ``bits``."""
    if op == "zext":
        return wrap(_unsigned(values[0], operand_bits), bits)
    return wrap(SCALAR[op](operand_bits, *values), bits)


class Graph:
    """Makes nodes; equal ones once. ``limit`` bounds their number."""

    def __init__(self, limit: int) -> None:
        self.nodes: list[Node] = []
        self.limit = limit
        self._known: dict[tuple[Any, ...], Node] = {}

    def _add(self, key: tuple[Any, ...] | None, node: Node) -> Node:
        self.nodes.append(node)
        if key is not None:
            self._known[key] = node
        return node

    def leaf(self, op: str, bits: int, value: Any) -> Node:
        """A leaf; equal leaves are one node."""
        key = (op, bits, value)
        known = self._known.get(key)
        return known or self._add(key, Node(op, bits, (), value, len(self.nodes), 0))

    def constant(self, value: int, bits: int) -> Node:
        """A constant, wrapped to its width."""
        return self.leaf("const", bits, wrap(value, bits))

    def unknown(self, reason: str, line: int, bits: int = 32) -> Node:
        """A value nothing is known of, and why; ``line`` of the PTX."""
        return self.leaf("unknown", bits, (reason, line))

    def fresh(self, op: str, bits: int, args: tuple[Node, ...], value: Any, loops: int) -> Node:
        """A node that equals no other (``phi``) or whose operands come later."""
        return self._add(None, Node(op, bits, args, value, len(self.nodes), loops))

    def make(self, op: str, bits: int, args: tuple[Node, ...], value: Any = None) -> Node:
        """An operation, simplified where a cheap rule fits. Unknown operands make it unknown."""
        for arg in args:
            if arg.op == "unknown" and op not in ("select", "join", "exit", "and", "or"):
                return arg
        if op not in ("join", "exit"):
            simple = self._simplified(op, bits, args)
            if simple is not None:
                return simple
        key = (op, bits, value, *[arg.index for arg in args])
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self.nodes) >= self.limit:
            return self.unknown("the expression graph grew too large", 0, bits)
        loops = 0
        for arg in args:
            loops |= arg.loops
        return self._add(key, Node(op, bits, args, value, len(self.nodes), loops))

    def _simplified(self, op: str, bits: int, args: tuple[Node, ...]) -> Node | None:
        if op == "select":
            chooser, yes, no = args
            if yes is no or (chooser.op == "const" and chooser.value):
                return yes
            if chooser.op == "const":
                return no
            return chooser if chooser.op == "unknown" else None
        if all(arg.op == "const" for arg in args):
            value = fold(op, bits, args[0].bits, tuple(arg.value for arg in args))
            return self.constant(value, bits)
        if len(args) != 2:
            if op in ("trunc", "sext", "zext") and args[0].bits == bits:
                return args[0]
            return None
        left, right = args
        if op in ("and", "or") and (left.op == "unknown" or right.op == "unknown"):
            known = right if left.op == "unknown" else left
            absorbing = (0 if op == "and" else 1) if bits == 1 else (0 if op == "and" else -1)
            if known.op == "const" and known.value == absorbing:
                return known
            return left if left.op == "unknown" else right
        if left.op == "const" and op in ("add", "mul", "and", "or", "xor"):
            return self.make(op, bits, (right, left))
        if right.op == "const":
            value = right.value
            if value == 0 and op in ("add", "sub", "shl", "shr.s", "shr.u", "or", "xor"):
                return left
            if (value == 0 and op in ("mul", "and")) or (value == 1 and op in ("mul", "div.s")):
                return right if value == 0 else left
            if op == "sub":
                return self.make("add", bits, (left, self.constant(-value, bits)))
            if op == "add" and left.op == "add" and left.args[1].op == "const":
                total = self.constant(left.args[1].value + value, bits)
                return self.make("add", bits, (left.args[0], total))
        if left is right and op in ("sub", "xor"):
            return self.constant(0, bits)
        return None


# --- affine forms -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum(coefficient * leaf)``: exact as long as nothing wraps on the way.

    ``terms`` are (node, coefficient) pairs, no coefficient zero, sorted by node number. A leaf
    may also be a quasi-affine node (``tid.x & 31``), which is not taken apart.
    """

    constant: int
    terms: tuple[tuple[Node, int], ...]

    def coefficient(self, leaf: Node) -> int:
        """The factor of a leaf, 0 if it does not occur."""
        return next((factor for node, factor in self.terms if node is leaf), 0)

    def __str__(self) -> str:
        parts = [
            describe(node) if factor == 1 else f"{factor}*{describe(node)}"
            for node, factor in self.terms
        ]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


def _combined(left: Affine, right: Affine, sign: int) -> Affine | None:
    terms = dict(left.terms)
    for node, factor in right.terms:
        terms[node] = terms.get(node, 0) + sign * factor
    kept = sorted(((n, f) for n, f in terms.items() if f), key=lambda term: term[0].index)
    if len(kept) > AFFINE_TERMS:
        return None
    return Affine(left.constant + sign * right.constant, tuple(kept))


def affine(
    node: Node,
    constants: Callable[[Node], int | None] = lambda _: None,
    memo: dict[Node, Affine | None] | None = None,
) -> Affine | None:
    """The affine form of a node, ``None`` if it has too many terms or lies too deep.

    ``constants`` gives the value of leaves known by now (arguments, launch size). Widths are
    left out of account: whoever relies on the form must know that nothing wraps.
    """
    found: dict[Node, Affine | None] = {} if memo is None else memo
    stack = [node]
    while stack:
        if len(stack) > AFFINE_DEPTH:
            return None
        top = stack[-1]
        if top in found:
            stack.pop()
            continue
        value = top.value if top.op == "const" else constants(top)
        if value is not None:
            found[top] = Affine(value, ())
        elif top.op in ("add", "sub", "mul", "shl", "sext", "zext", "trunc", "neg"):
            waiting = [arg for arg in top.args if arg not in found]
            if waiting:
                stack.extend(waiting)
                continue
            found[top] = _operation(top, [found[arg] for arg in top.args])
        else:
            found[top] = Affine(0, ((top, 1),))
        stack.pop()
    return found[node]


def _operation(node: Node, args: list[Affine | None]) -> Affine | None:
    first = args[0]
    if first is None:
        return None
    if node.op in ("sext", "zext", "trunc"):
        return first
    if node.op == "neg":
        return _scaled(first, -1)
    second = args[1]
    if second is None:
        return None
    if node.op in ("add", "sub"):
        return _combined(first, second, 1 if node.op == "add" else -1)
    if node.op == "shl":
        if second.terms or not 0 <= second.constant < 64:
            return Affine(0, ((node, 1),))
        return _scaled(first, 1 << second.constant)
    if not second.terms:
        return _scaled(first, second.constant)
    if not first.terms:
        return _scaled(second, first.constant)
    return Affine(0, ((node, 1),))


def _scaled(form: Affine, factor: int) -> Affine:
    if factor == 0:
        return Affine(0, ())
    return Affine(form.constant * factor, tuple((n, f * factor) for n, f in form.terms))


# --- text for people ----------------------------------------------------------------------------

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "shl": "<<", "shr.s": ">>", "shr.u": ">>", "and": "&",
    "or": "|", "xor": "^", "div.s": "/", "div.u": "/", "rem.s": "%", "rem.u": "%", "eq.s": "==",
    "ne.s": "!=", "lt.s": "<", "le.s": "<=", "lt.u": "<", "le.u": "<=",
}  # fmt: skip


def describe(node: Node, depth: int = 6) -> str:
    """The expression as people write it; deeper parts are ``...``."""
    if node.op in ("const", "special"):
        return str(node.value)
    if node.op in ("param", "symbol"):
        name, offset = node.value
        return f"{name}+{offset}" if offset else str(name)
    if node.op == "unknown":
        return "?"
    if node.op == "phi":
        return f"{node.value[1]}@loop{node.value[0]}"
    if node.op in ("join", "exit") or depth == 0:
        return "..." if depth == 0 or node.op == "join" else describe(node.args[0], depth - 1)
    if node.op in ("sext", "zext", "trunc"):
        return describe(node.args[0], depth)
    parts = [describe(arg, depth - 1) for arg in node.args]
    sign = _SIGNS.get(node.op)
    if sign is not None and len(parts) == 2:
        return f"({parts[0]} {sign} {parts[1]})"
    return f"{node.op.partition('.')[0]}({', '.join(parts)})"
