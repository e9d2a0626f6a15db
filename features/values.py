"""Values of registers as a shared expression graph, and their affine normal form.

A ``Node`` is an operation on other nodes or a leaf: a constant, a special register
(``tid.x``), a kernel parameter, the iteration number of a loop. Equal nodes are one object
(hash-consing), so the graph of a kernel has at most a few nodes per instruction, however
often a value is used. What cannot be followed is an ``unknown`` leaf with reason and line.

Integers are kept in two's complement of their width, read as signed: the 32-bit pattern
0xFFFFFFFF is -1. Operations that differ by sign say so in their name (``lt.u``, ``shr.s``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wattcast.features.integers import fold, wrap

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


class Affine(NamedTuple):
    """``constant + sum(coefficient * leaf)``: exact as long as nothing wraps on the way.

    ``terms`` are (node, coefficient) pairs, no coefficient zero, sorted by node number. A leaf
    may also be a quasi-affine node (``tid.x & 31``), which is not taken apart.
    """

    constant: int
    terms: tuple[tuple[Node, int], ...]

    def __str__(self) -> str:
        parts = [
            describe(node) if factor == 1 else f"{factor}*{describe(node)}"
            for node, factor in self.terms
        ]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


def _combined(left: Affine, right: Affine, sign: int) -> Affine | None:
    if not right.terms:
        return Affine(left.constant + sign * right.constant, left.terms)
    if not left.terms and sign == 1:
        return Affine(left.constant + right.constant, right.terms)
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
    if factor == 1:
        return form
    return Affine(form.constant * factor, tuple([(n, f * factor) for n, f in form.terms]))


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
