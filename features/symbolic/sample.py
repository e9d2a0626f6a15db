"""Which blocks are looked at, and how many blocks of the launch each stands for.

Where every comparison that tells blocks apart is affine in one coordinate of ``ctaid``, the
grid falls into intervals along each axis within which all blocks behave alike; one block of
each (several, where addresses of neighbouring blocks are aligned differently) says it all.
Otherwise the strata of the executed analysis are sampled.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Any, NamedTuple

from wattcast.features.attached import attached
from wattcast.features.execution.sampling import plan_blocks
from wattcast.features.integers import COMPARISONS
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.symbolic.forms import Constant, Forms, IrregularError, Sum
from wattcast.features.symbolic.results import SampledBlocks
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.values import Node

# What tells the blocks of a grid apart: comparisons and addresses made of their numbers.

_TRANSPARENT = frozenset({
    "add", "sub", "mul", "shl", "sext", "zext", "trunc", "neg", "select", "join", "exit", "phi",
    "const", "special", "param", "symbol", "unknown",
})  # fmt: skip
_LOGIC = frozenset({"and", "or", "xor"})


@dataclass(frozen=True, slots=True)
class Relevant:
    """Nodes that tell blocks apart: compared ones, and addresses. ``irregular``: others do."""

    compared: tuple[Node, ...]
    addresses: tuple[Node, ...]
    irregular: bool


@attached
def relevant_nodes(scheme: Scheme) -> Relevant:
    """Found once for each kernel."""
    depends = _depending(scheme)
    decisions: list[Node] = [e.condition for e in scheme.endings if e.condition is not None]
    decisions += [guard for guards in scheme.guards for _, guard, _ in guards]
    addresses = [access.address for found in scheme.accesses for access in found]
    compared: list[Node] = []
    irregular = False
    seen: set[Node] = set()
    stack = [*decisions, *addresses]
    while stack:
        node = stack.pop()
        if node in seen or node not in depends:
            continue
        seen.add(node)
        stack.extend(node.args)
        if node.op == "phi":
            phi = scheme.phis[node]
            stack.append(phi.start)
            if phi.step is None or phi.step in depends:
                irregular = True
        elif node.op in COMPARISONS or node.op in ("min.s", "max.s", "min.u", "max.u"):
            compared.append(node)
        elif node.op == "mul":
            irregular |= all(arg in depends for arg in node.args)
        elif node.op not in _TRANSPARENT and not (node.bits == 1 and node.op in _LOGIC):
            irregular = True
    return Relevant(
        tuple(compared),
        tuple(dict.fromkeys(address for address in addresses if address in depends)),
        irregular,
    )


def _depending(scheme: Scheme) -> set[Node]:
    """Nodes made of ``ctaid``."""
    found: set[Node] = set()
    for _ in range(4):  # phis depend on nodes made later
        before = len(found)
        for node in scheme.graph.nodes:
            if node in found:
                continue
            if node.op == "special":
                if str(node.value).startswith("ctaid"):
                    found.add(node)
            elif any(arg in found for arg in node.args):
                found.add(node)
            elif node.op == "phi":
                phi = scheme.phis[node]
                if phi.start in found or (phi.latch is not None and phi.latch in found):
                    found.add(node)
        if len(found) == before:
            break
    return found


ALL_LANES = 1024
"""Launches of up to this many lanes are looked at whole: numpy's time per operation is still
near its minimum."""

MOST_LANES = 16_384
"""Most lanes looked at where the grid falls into intervals; beyond, it is sampled."""

FEWEST_BLOCKS, MOST_BLOCKS = 6, 24
SAMPLED_CELLS = 1 << 18
"""Instructions times lanes looked at where blocks are sampled: some 2 ms of numpy's time."""
DRAWN_CELLS = 1 << 23
"""The same where that spares an execution of these blocks, which takes several times as long."""

MOST_STEPS = 16
"""Most iterations of a loop whose end may fall into different blocks (a grid-stride loop: 1)."""

MOST_BETWEEN = 4
"""Most blocks across which one comparison changes its outcome (a guard ``i < n``: 1)."""

_AXES = ("ctaid.x", "ctaid.y", "ctaid.z")


def choose_blocks(
    scheme: Scheme, launch: Launch, constant: Constant, *, knowable: bool
) -> SampledBlocks:
    """Every block if the launch is small, one of each kind of block, or a sample: that of an
    execution where the rest of the kernel is ``knowable``."""
    lanes = launch.warps_per_block * WARP_SIZE
    if launch.blocks * lanes <= ALL_LANES:
        every = tuple(range(launch.blocks))
        cuts = tuple(tuple(range(1, size)) for size in launch.grid)
        return SampledBlocks(every, (1.0,) * launch.blocks, launch.blocks, True, cuts)
    forms = Forms(scheme, launch, constant)
    try:
        axes = _intervals(forms, launch)
        if prod(len(axis.blocks) for axis in axes) * lanes > MOST_LANES:
            raise IrregularError
    except IrregularError:
        count = max(1, len(scheme.cfg.body.instructions))
        cuts = turns(forms, launch)
        plan = plan_blocks(launch, cuts=cuts, balanced=True)
        drawn = knowable and count * lanes * len(plan.blocks) <= DRAWN_CELLS
        if not drawn:
            few = min(MOST_BLOCKS, SAMPLED_CELLS // (count * lanes))
            plan = plan_blocks(
                launch, most=max(FEWEST_BLOCKS, few), cuts=cuts, balanced=not any(cuts)
            )
        weights = tuple(float(w) for w in plan.weights())
        return SampledBlocks(plan.blocks, weights, launch.blocks, plan.complete, cuts, drawn)
    found: dict[int, float] = {}
    wide, high, _ = launch.grid
    for z, deep in axes[2].blocks:
        for y, tall in axes[1].blocks:
            for x, long in axes[0].blocks:
                found[(z * high + y) * wide + x] = deep * tall * long
    ordered = sorted(found)
    return SampledBlocks(
        tuple(ordered), tuple(found[block] for block in ordered), launch.blocks, True,
        tuple(axis.cuts for axis in axes),
    )  # fmt: skip


def _intervals(forms: Forms, launch: Launch) -> list[_Axis]:
    """What tells blocks apart, along each axis. Raises IrregularError."""
    relevant = relevant_nodes(forms.scheme)
    if relevant.irregular:
        raise IrregularError
    compared = [part for node in relevant.compared for part in _compared(forms, node)]
    addresses = [forms.form(node) for node in relevant.addresses]
    singles: list[set[int]] = [set(), set(), set()]
    cuts: list[set[int]] = [set(), set(), set()]
    for part in compared:
        _turn(forms, launch, part, singles, cuts)
    periods = [1, 1, 1]
    for _, terms, _ in addresses:
        for leaf, factor in terms.items():
            if leaf.op == "special" and leaf.value in _AXES:
                axis = _AXES.index(leaf.value)
                period = SECTOR_BYTES // gcd(SECTOR_BYTES, factor)
                periods[axis] = max(periods[axis], period)
    return [_axis(launch.grid[axis], singles[axis], cuts[axis], periods[axis]) for axis in range(3)]


def turns(forms: Forms, launch: Launch) -> tuple[tuple[int, ...], ...]:
    """Along each axis, blocks from which on some comparison has another outcome for some lane, or
    for all, whatever else is unknown.

    So guards that few blocks pass are found where the grid does not fall into intervals. A loop of
    smaller steps than from block to block is taken to go up to where the next block begins.
    """
    cuts: list[set[int]] = [set(), set(), set()]
    for node in relevant_nodes(forms.scheme).compared:
        with suppress(IrregularError):
            for part in _compared(forms, node):
                found = _along(forms, part)
                if found is None:
                    continue
                # 0 is on the side of what is less in `<=`, unless the sides are exchanged.
                slope, zero = found.slope, node.op.startswith("le") != found.turned
                looped = any(0 < abs(step) < slope for step in part[2])
                high = max(found.high, found.low + slope - 1) if looped else found.high
                cuts[found.axis].update(-((end - zero) // slope) for end in (found.low, high))
    sizes = zip(cuts, launch.grid, strict=True)
    return tuple(tuple(sorted(cut for cut in found if 0 < cut < size)) for found, size in sizes)


def _compared(forms: Forms, node: Node) -> list[Sum]:
    """What a comparison turns at, where it is zero. Raises IrregularError."""
    for arg in node.args:
        _must_not_wrap(forms, arg)
    (first, terms, steps), (second, others, more) = map(forms.form, node.args)
    total = dict(terms)
    for leaf, factor in others.items():
        total[leaf] = total.get(leaf, 0) - factor
    parts: list[Sum] = [(first - second, {n: f for n, f in total.items() if f}, [*steps, *more])]
    if node.op.endswith(".u"):  # unsigned: the order also turns where a side changes sign
        parts += [forms.form(node.args[0]), forms.form(node.args[1])]
    return parts


def _must_not_wrap(forms: Forms, node: Node) -> None:
    """The affine form of a compared value holds in the whole launch."""
    low, terms, _ = forms.form(node)
    high = low
    if not any(leaf.value in _AXES for leaf in terms if leaf.op == "special"):
        return
    for leaf, factor in terms.items():
        if leaf.op == "special" and leaf.value in _AXES:
            bounds: tuple[Any, Any] | None = (0, forms.launch.grid[_AXES.index(leaf.value)])
        else:
            bounds = forms.bounds(leaf)
        if bounds is not None:
            ends = sorted((factor * bounds[0], factor * bounds[1]))
            low, high = low + ends[0], high + ends[1]
    room = 1 << (node.bits - 1)
    if low < -room or high >= room:
        raise IrregularError


class _Along(NamedTuple):
    """A value that grows by ``slope`` from block to block of one axis: its bounds in block 0 over
    lanes. ``turned``: it is the negative of what was asked for."""

    axis: int
    slope: int
    low: int
    high: int
    turned: bool


def _along(forms: Forms, form: Sum) -> _Along | None:
    """Loop counters are left out; ``None``: it is the same in all blocks, or not known at all."""
    constant, terms, _ = form
    axis, slope = -1, 0
    low = high = constant
    for leaf, factor in terms.items():
        if leaf.op == "special" and leaf.value in _AXES:
            if axis >= 0:
                raise IrregularError
            axis, slope = _AXES.index(leaf.value), factor
            continue
        bounds = forms.bounds(leaf)
        if bounds is None:
            if leaf.op == "unknown" or (leaf.op == "param" and forms.leaf(leaf) is None):
                return None  # a decision on what is not known splits no blocks
            raise IrregularError
        ends = sorted((factor * bounds[0], factor * bounds[1]))
        low, high = low + ends[0], high + ends[1]
    if axis < 0:
        return None
    return _Along(axis, *((slope, low, high, False) if slope > 0 else (-slope, -high, -low, True)))


def _turn(
    forms: Forms,
    launch: Launch,
    form: Sum,
    singles: list[set[int]],
    cuts: list[set[int]],
) -> None:
    """Note the blocks in which ``form`` is zero or changes its sign for some lane."""
    found = _along(forms, form)
    if found is None:
        return
    axis, slope, low, high, _ = found
    steps = form[2]
    size = launch.grid[axis]
    step = 0
    for one in steps:
        step = gcd(step, one)
    # low + slope * b <= j * step <= high + slope * b, with a neighbour's room on either side
    if step:
        first = (low - slope) // step
        last = -(-(high + slope * size) // step)
        if last - first > MOST_STEPS:
            raise IrregularError
        shifts = [number * step for number in range(first, last + 1)]
    else:
        shifts = [0]
    for shift in shifts:
        begin = (shift - high) // slope  # before: all lanes below zero
        end = -(-(shift - low) // slope)  # behind: all above
        if begin >= size or end < 0:
            continue
        begin, end = max(begin, 0), min(end, size - 1)
        if end - begin > MOST_BETWEEN:
            raise IrregularError
        singles[axis].update(range(begin, end + 1))
        cuts[axis].update((begin, end + 1))


class _Axis(NamedTuple):
    """Blocks to look at along an axis, and how many each stands for; where other ones begin."""

    blocks: list[tuple[int, float]]
    cuts: tuple[int, ...]


def _axis(size: int, singles: set[int], cuts: set[int], period: int) -> _Axis:
    found = [(block, 1.0) for block in sorted(singles)]
    edges = sorted({0, size, *cuts, *(b + 1 for b in singles)})
    apart = set(edges)
    for start, stop in pairwise(edges):
        length = stop - start
        if length == 1 and start in singles:
            continue
        taken = min(length, period)
        middle = start + (length - taken) // 2
        found += [(middle + number, length / taken) for number in range(taken)]
        apart.update(range(start, stop) if taken == length else ())
    return _Axis(sorted(found), tuple(sorted(apart - {0, size})))
