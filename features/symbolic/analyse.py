"""``analyse_symbolically``: the entrance.

build.py (scheme, per function) -> plan.py (shape) -> walk.py and rounds.py, with
evaluate.py for values and accesses.py for memory -> journal.py -> report.py
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wattcast.features.attached import attached
from wattcast.features.dataflow import argument_name, arguments_of
from wattcast.features.errors import NONSENSE, LaunchError, checkpoint
from wattcast.features.execution.arguments import given, pointers
from wattcast.features.integers import wrap
from wattcast.features.launch import WARP_SIZE, Launch, PointerHint
from wattcast.features.loops import calls_in
from wattcast.features.ptx.ir import (
    Function,
    Module,
    filled_by_host,
)
from wattcast.features.symbolic.arith import ApartError, Missing, Val, Value
from wattcast.features.symbolic.build import scheme
from wattcast.features.symbolic.evaluate import Context, Evaluator, Lanes, State, joined
from wattcast.features.symbolic.plan import shape_of
from wattcast.features.symbolic.report import summarise
from wattcast.features.symbolic.results import SampledBlocks, SymbolicResult
from wattcast.features.symbolic.rounds import LoopWalker
from wattcast.features.symbolic.sample import choose_blocks
from wattcast.features.symbolic.scheme import UNADDRESSED, Scheme


def analyse_symbolically(
    module: Module,
    function: Function,
    launch: Launch,
    *,
    accesses: bool = True,
) -> SymbolicResult:
    """Counts, trip counts and accesses of one launch without running it.

    Arguments may be missing: what depends on them is unknown and says so, except that pointers
    are taken to be aligned to 256 bytes. Without ``accesses`` sectors, transactions and requests
    stay 0, and half of the time is spared. Raises PtxError for a body that is not PTX, LaunchError
    for an argument that the kernel does not have.
    """
    made = scheme(module, function)
    arguments = Arguments(made, launch, module)
    known = shape_of(made).knowable
    blocks = choose_blocks(made, launch, arguments.constant, knowable=known)
    asked = _Asked(launch, arguments, blocks)
    (found,) = _walked(module, [asked], accesses)
    return found


MOST_LANES_TOGETHER = 1 << 16
"""Lanes walked together: numpy's time per operation is then a small part, and a kernel's values in
them (some hundred, of 8 bytes) take 100 MB."""


def analyse_together(
    module: Module,
    function: Function,
    launches: Sequence[Launch],
    *,
    accesses: bool = True,
) -> Iterator[tuple[Launch, SymbolicResult]]:
    """Launches with what ``analyse_symbolically`` tells of each, to the last bit.

    Those that behave alike are walked as one. What cannot be analysed is left out: alone it tells
    why. Raises PtxError and LaunchError where ``analyse_symbolically`` would for any launch.
    """
    made = scheme(module, function)
    known = shape_of(made).knowable
    groups: dict[Hashable, list[_Asked]] = {}
    for launch in launches:
        try:
            arguments = Arguments(made, launch, module)
        except LaunchError:
            continue
        sampling = choose_blocks(made, launch, arguments.constant, knowable=known)
        one = len(sampling.blocks) == 1, *(size == 1 for size in (*launch.grid, *launch.block))
        groups.setdefault((sampling.exact, one), []).append(_Asked(launch, arguments, sampling))
    waiting = [part for group in groups.values() for part in _chunks(group)]
    while waiting:
        checkpoint()
        group = waiting.pop()
        try:
            found = _walked(module, group, accesses)
        except ApartError as error:
            parts: dict[Hashable, list[_Asked]] = {}
            for asked, kind in zip(group, error.kinds, strict=True):
                parts.setdefault(kind, []).append(asked)
            waiting += parts.values() if len(parts) > 1 else ([asked] for asked in group)
            continue
        except NONSENSE:
            if len(group) > 1:
                waiting += ([asked] for asked in group)
            continue
        yield from zip((asked.launch for asked in group), found, strict=True)


def _chunks(group: list[_Asked]) -> Iterator[list[_Asked]]:
    part: list[_Asked] = []
    lanes = 0
    for asked in group:
        own = len(asked.sampling.blocks) * asked.launch.warps_per_block * WARP_SIZE
        if part and lanes + own > MOST_LANES_TOGETHER:
            yield part
            part, lanes = [], 0
        part.append(asked)
        lanes += own
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class _Asked:
    """A launch with its arguments and the blocks to look at."""

    launch: Launch
    arguments: Arguments
    sampling: SampledBlocks


def _walked(module: Module, group: Sequence[_Asked], accesses: bool) -> list[SymbolicResult]:
    """Walk the launches of a group as one. Raises ApartError where they do not behave alike."""
    made = group[0].arguments.scheme
    function, shape = made.function, shape_of(made)
    blocks = [np.array(asked.sampling.blocks, dtype=np.int64) for asked in group]
    lanes = Lanes([asked.launch for asked in group], blocks)

    def argument(name: str, offset: int, bits: int) -> Value:
        values = [asked.arguments.value(name, offset, bits) for asked in group]
        return joined(lanes.layout, values)

    if len(group) == 1:
        argument = group[0].arguments.value
    evaluator = Evaluator(made, lanes, argument, _symbols(function, module))
    weights = np.concatenate(
        [
            np.repeat(np.array(asked.sampling.weights), asked.launch.warps_per_block)
            for asked in group
        ]
    )
    walker = LoopWalker(evaluator, shape, weights, accesses=accesses)
    called = (one for one in module.functions if calls_in(function) and not one.is_entry)
    walker.ends = any(o.base in ("exit", "trap") for f in called for o in f.body.instructions)
    root = Context(-1, None, "root", 1, np.ones(1), 0)
    if made.cfg.body.instructions:
        known = not made.forest.irreducible and not walker.ends
        if not known:  # cycles that are no loops are walked once
            walker.watch.doubtful_from = 0
        try:
            walker.region(-1, root, State(lanes.living, known))
        finally:
            root.end()
    return summarise(walker, [asked.sampling for asked in group])


def knowable(module: Module, function: Function) -> bool:
    """Whether no decision and no address of a kernel rests on what it reads from memory, and no
    instruction moves bytes that only its execution counts.

    Raises PtxError for a body that is not PTX.
    """
    if any(one.opcode.startswith(UNADDRESSED) for one in function.body.instructions):
        return False
    return shape_of(scheme(module, function)).knowable


class Arguments:
    """Values of kernel parameters."""

    def __init__(self, made: Scheme, launch: Launch, module: Module) -> None:
        self.scheme = made
        self.arguments = arguments_of(made.function)
        self.given = given(made.function, [v.name for v in filled_by_host(module)], launch)

    def constant(self, name: str, offset: int, bits: int) -> int | None:
        """A parameter's value if it is a given integer."""
        told = argument_name(name, offset)
        value = self.given.get(told)
        if isinstance(value, int) and bits == 8 * self.arguments[told].bytes:
            return wrap(value, bits)
        return None

    def value(self, name: str, offset: int, bits: int) -> Value:
        """A parameter's value; a pointer's address is unknown but aligned."""
        known = self.constant(name, offset, bits)
        if known is not None:
            return known
        told = argument_name(name, offset)
        value = self.given.get(told)
        pointing = value is None and (name, offset) in pointers(self.scheme.function)
        if (pointing or isinstance(value, PointerHint)) and bits == 64:
            return Val(0, 0, 0, None, told)
        if value is None:
            return Missing(f"argument {told} is not given", self.scheme.function.line)
        return Missing(f"argument {told} is no integer", self.scheme.function.line)


@attached
def _symbols(function: Function, module: Module) -> dict[str, int]:
    """Addresses of variables. Only their alignment matters, so each space is filled in order."""
    found: dict[str, int] = {}
    place: dict[str, int] = {}
    for variable in (*module.variables, *function.body.variables):
        least = 16 if variable.space == "shared" and variable.elements == 0 else 1
        least = 256 if variable.space in ("global", "const") else least
        align = max(variable.align, least)
        start = -(-place.get(variable.space, 0) // align) * align
        found[variable.name] = start
        place[variable.space] = start + variable.bytes
    return found
