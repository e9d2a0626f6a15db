"""Device functions: walked at every call with the caller's lanes and arguments."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.symbolic.arith import Missing, Val, Value
from wattcast.features.symbolic.build import scheme
from wattcast.features.symbolic.each import NUMBER
from wattcast.features.symbolic.evaluate import Context, Evaluator, State
from wattcast.features.symbolic.lanes import Lanes
from wattcast.features.symbolic.plan import shape_of
from wattcast.features.symbolic.rounds import Rounder
from wattcast.features.symbolic.scheme import Call
from wattcast.features.symbolic.walk import Walker
from wattcast.features.trips import resolve_trips

MOST_CALLS = 2000
"""Calls walked in one analysis; a bound on the time of hostile call graphs."""

DEEPEST_CALLS = 16
"""Calls inside each other that are followed; nvcc inlines, so device code has two or three. Each
takes some ten frames of the interpreter's stack, and more for loops."""


class Calls:
    """The functions of a module as far as one kernel calls them."""

    def __init__(
        self,
        module: Module,
        lanes: Lanes,
        weights: npt.NDArray[np.float64],
        symbols: Mapping[str, int],
        loops: Mapping[str, float],
        accesses: bool,
    ) -> None:
        self.accesses = accesses
        self.defined = {f.name: f for f in module.functions if not f.declaration}
        self.module = module
        self.lanes = lanes
        self.weights = weights
        self.symbols = symbols
        self.loops = loops
        self.walkers: dict[str, Walker] = {}
        self.diagnostics: list[Diagnostic] = []
        self.stack: list[str] = []
        self.left = MOST_CALLS
        self.complete = True

    def walker(self, function: Function) -> Walker:
        """The one walker of a device function."""
        known = self.walkers.get(function.name)
        if known is None:
            made = scheme(self.module, function)
            evaluator = Evaluator(made, self.lanes, _nothing, self.symbols)
            known = Walker(evaluator, shape_of(made), self.weights, accesses=self.accesses)
            known.calls = weakref.proxy(self)  # which holds this walker: no cycle
            default = {"default": self.loops["default"]} if "default" in self.loops else {}
            trips, _ = resolve_trips(made.cfg, made.forest, default)
            known.loops = Rounder(known, {trip.loop: trip for trip in trips})
            self.walkers[function.name] = known
        return known

    def run(self, caller: Walker, call: Call, context: Context, state: State) -> None:
        """Walk the function called, for the lanes that call it."""
        line = caller.scheme.cfg.body.instructions[call.position].line
        function = self.defined.get(call.callee or "")
        if function is None:
            what = call.callee or "a function whose address is in a register"
            self._miss("call_unknown", f"{what} is called; what it does is not counted", line)
            return
        deep = len(self.stack) > DEEPEST_CALLS
        if function.name in self.stack or self.left <= 0 or deep:
            self.walker(function).watch.doubtful_from = 0
            self._miss(
                "call_not_followed",
                f"{function.demangled} is called too often, too deep or recursively; "
                "not all is counted",
                line,
            )
            return
        self.left -= 1
        walker = self.walker(function)
        values: dict[tuple[str, int], Value] = {}
        for parameter, stored in zip(function.parameters, call.arguments, strict=False):
            for offset, node in stored.items():
                value = caller.evaluator.evaluate(node, context)
                if isinstance(value, NUMBER) or (isinstance(value, Val) and not value.terms):
                    values[parameter.name, offset] = value

        def argument(name: str, offset: int, bits: int) -> Value:
            found = values.get((name, offset))
            return Missing(f"argument {name} is not known", line) if found is None else found

        walker.evaluator.argument = argument
        root = Context(-1, None, "root", context.rows, context.weight, 0)
        self.stack.append(function.name)
        try:
            walker.region(-1, root, state)
        finally:
            root.end()
        self.stack.pop()

    def _miss(self, code: str, detail: str, line: int) -> None:
        self.complete = False
        found = Diagnostic(code, detail, line)
        if found not in self.diagnostics:
            self.diagnostics.append(found)

    def mark(self) -> dict[str, int]:
        """How long the journals are, to be able to go back."""
        return {name: len(walker.journal) for name, walker in self.walkers.items()}

    def back(self, mark: Mapping[str, int]) -> None:
        """Forget what was written since."""
        for name, walker in self.walkers.items():
            del walker.journal[mark.get(name, 0) :]


def _nothing(name: str, offset: int, bits: int) -> Value:
    return Missing(f"argument {name} is not known", 0)
