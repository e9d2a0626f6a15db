"""``analyse_symbolically``: the entrance.

build.py (scheme, per function) -> plan.py (shape) -> walk.py and rounds.py, with
evaluate.py for values and accesses.py for memory -> journal.py -> report.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wattcast.features.attached import Attached
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.effort import checkpoint
from wattcast.features.errors import LaunchError, PtxError
from wattcast.features.integers import wrap
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx.ir import Function, Instruction, Module, Symbol, Variable
from wattcast.features.symbolic.arith import Missing, Val, Value
from wattcast.features.symbolic.build import scheme
from wattcast.features.symbolic.calls import Calls
from wattcast.features.symbolic.evaluate import Context, Evaluator, Lanes, State
from wattcast.features.symbolic.plan import shape_of
from wattcast.features.symbolic.report import summarise
from wattcast.features.symbolic.results import SymbolicResult
from wattcast.features.symbolic.rounds import Rounder
from wattcast.features.symbolic.sample import choose_blocks
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.symbolic.walk import Walker
from wattcast.features.trips import resolve_trips


def analyse_symbolically(
    module: Module,
    function: Function,
    launch: Launch,
    *,
    loops: Mapping[str, float] | None = None,
    accesses: bool = True,
) -> SymbolicResult:
    """Counts, trip counts and accesses of one launch without running it.

    Arguments may be missing: what depends on them is unknown and says so, except that pointers
    are taken to be aligned to 256 bytes. ``loops`` gives trip counts for loops whose own cannot
    be worked out (keys: label, source line, ``default``; see ``wattcast.features.trips``). Without
    ``accesses`` sectors, transactions and requests stay 0, and half of the time is spared.
    Raises PtxError for a body that is not PTX, LaunchError for an argument or a loop that the
    kernel does not have.
    """
    made = scheme(module, function)
    shape = shape_of(made)
    trips, _ = resolve_trips(made.cfg, made.forest, loops or {})
    arguments = Arguments(made, launch)
    sampling = choose_blocks(made, launch, arguments.constant, knowable=shape.knowable)
    lanes = Lanes(launch, np.array(sampling.blocks, dtype=np.int64))
    evaluator = Evaluator(made, lanes, arguments.value, _symbols(module, function))
    weights = np.repeat(np.array(sampling.weights), launch.warps_per_block)
    walker = Walker(evaluator, shape, weights, accesses=accesses, by_warp=not sampling.exact)
    calls = Calls(module, lanes, weights, evaluator.symbols, loops or {}, accesses)
    walker.calls = calls
    calls.stack.append(function.name)
    walker.loops = Rounder(walker, {trip.loop: trip for trip in trips})
    root = Context(-1, None, "root", 1, np.ones(1), 0)
    if made.cfg.body.instructions:
        if made.forest.irreducible:  # cycles that are no loops are walked once
            walker.watch.doubtful_from = 0
        walker.region(-1, root, State(lanes.living, 1.0, not made.forest.irreducible))
        root.end()
    diagnostics = [
        *made.cfg.diagnostics,
        *made.forest.diagnostics,
        *arguments.diagnostics(),
        *calls.diagnostics,
    ]
    return summarise(walker, calls.walkers, trips, sampling, diagnostics, calls.complete)


def knowable(module: Module, function: Function) -> bool:
    """Whether no decision and no address of a kernel rests on what it reads from memory.

    Raises PtxError for a body that is not PTX.
    """
    return shape_of(scheme(module, function)).knowable


class Arguments:
    """Values of kernel parameters; remembers which ones were asked for and are not given."""

    def __init__(self, made: Scheme, launch: Launch) -> None:
        self.scheme = made
        parameters = made.function.parameters
        names = {p.name: index for index, p in enumerate(parameters)}
        self.given: dict[str, int | float | PointerHint] = {}
        self.bytes = {p.name: p.bytes for p in parameters}
        self.missing: dict[str, None] = {}
        for key, value in launch.arguments.items():
            name = key
            if key not in names and key.isdecimal() and int(key) < len(parameters):
                name = parameters[int(key)].name
            if name not in names:
                raise LaunchError(
                    f"no parameter {key!r}; {made.function.demangled} has {len(parameters)}: "
                    f"{', '.join(names) or 'none'}",
                    field="arguments",
                )
            self.given[name] = value

    def constant(self, name: str, offset: int, bits: int) -> int | None:
        """A parameter's value if it is a given integer."""
        value = self.given.get(name)
        if isinstance(value, int) and offset == 0 and bits == 8 * self.bytes.get(name, 0):
            return wrap(value, bits)
        return None

    def value(self, name: str, offset: int, bits: int) -> Value:
        """A parameter's value; a pointer's address is unknown but aligned."""
        known = self.constant(name, offset, bits)
        if known is not None:
            return known
        value = self.given.get(name)
        pointer = isinstance(value, PointerHint) or (value is None and name in self.scheme.pointers)
        if pointer and bits == 64:
            label = f"{name}+{offset}" if offset else name
            return Val(0, 0, 0, None, label)
        self.missing[name] = None
        if value is None:
            return Missing(f"argument {name} is not given", self.scheme.function.line)
        return Missing(f"argument {name} is no integer", self.scheme.function.line)

    def diagnostics(self) -> list[Diagnostic]:
        """One for every argument that was needed and not given."""
        return [
            Diagnostic(
                "argument_missing",
                f"{name} is not given; what depends on it is unknown",
                self.scheme.function.line,
            )
            for name in self.missing
            if name not in self.given
        ]


_placed: Attached[Function, dict[str, int]] = Attached("placed")


def _symbols(module: Module, function: Function) -> dict[str, int]:
    """Addresses of variables. Only their alignment matters, so each space is filled in order."""
    known = _placed.get(function)
    return _placed.set(function, _place(module, function)) if known is None else known


def _place(module: Module, function: Function) -> dict[str, int]:
    found: dict[str, int] = {}
    place: dict[str, int] = {}
    inner = [v for one in _called(module, function) for v in _variables(one)]
    for variable in (*module.variables, *inner):
        least = 16 if variable.space == "shared" and variable.elements == 0 else 1
        least = 256 if variable.space in ("global", "const") else least
        align = max(variable.align, least)
        start = -(-place.get(variable.space, 0) // align) * align
        found[variable.name] = start
        place[variable.space] = start + variable.bytes
    return found


def _called(module: Module, function: Function) -> list[Function]:
    """The kernel and what it may call by name. Other kernels of the module stay unread: parsed
    they take ten times the memory of their text."""
    found, waiting = {function.name: function}, [function]
    while waiting:
        for instruction in _instructions(waiting.pop()):
            if instruction.base != "call":
                continue
            checkpoint()
            for operand in instruction.operands:
                callee = module.function(operand.name) if isinstance(operand, Symbol) else None
                if callee is not None and not callee.declaration and callee.name not in found:
                    found[callee.name] = callee
                    waiting.append(callee)
    return list(found.values())


def _instructions(function: Function) -> tuple[Instruction, ...]:
    try:
        return function.body.instructions
    except PtxError:
        return ()


def _variables(function: Function) -> tuple[Variable, ...]:
    """Variables declared in a function, unless its body is not PTX: then it is not called."""
    try:
        return function.body.variables
    except PtxError:
        return ()
