"""Instructions of a module compiled, when first reached, into steps the machine can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.reference.access import compile_access, opcode_words
from tests.reference.asynchronous import compile_bulk, compile_mbarrier, compile_wait
from tests.reference.collective import compile_collective
from tests.reference.convert import compile_convert
from tests.reference.floats import compile_compare, compile_float
from tests.reference.integers import compile_integer
from tests.reference.memory import (
    CONSTANT_BASE,
    LOCAL_WINDOW,
    MODULE_BASE,
    SHARED_WINDOW,
    WINDOW_BYTES,
    Texture,
)
from tests.reference.parse import (
    Function,
    Instruction,
    InterpreterError,
    Operand,
    Program,
    Variable,
)
from tests.reference.slots import Lane, Plain, Slots

PLAIN, ACCESS, COLLECTIVE, BRANCH, CALL, BARRIER, RETURN, WAIT = range(8)
FUNCTION_BASE = 0x7800_0000_0000  # "addresses" of device functions

# Instructions that change nothing a thread can see here: ordering, hints, and the bookkeeping of
# asynchronous copies, which are done at once.
NOTHING = (
    "membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "discard",
    "applypriority", "pmevent", "cp.async.commit_group", "cp.async.wait_group",
    "cp.async.wait_all", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group",
    "cp.async.bulk.prefetch", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group",
    "setmaxnreg", "createpolicy",
)  # fmt: skip


@dataclass
class Step:
    """``guard`` is a slot or -1; ``flip`` is XORed with it."""

    kind: int
    opcode: str
    line: int
    run: Callable[..., Any]
    guard: int = -1
    flip: int = 0
    members: Callable[[Any], int] | None = None
    barrier_number: Callable[[Any], int] = lambda t: 0
    barrier_count: Callable[[Any], int] = lambda t: 0
    waits: bool = True
    reduction: str = ""
    reduction_slot: int = 0
    vote: Callable[[Any], int] = lambda t: 0


@dataclass
class Layout:
    """Where a function's parameters and local variables lie in its frame."""

    function: Function
    slots: Slots
    base: int
    param_offsets: dict[str, int]
    param_bytes: int
    local_offsets: dict[str, int]
    local_bytes: int


def place(variables: Sequence[Variable], start: int = 0) -> tuple[dict[str, int], int]:
    """Offsets one after the other, each at its alignment, and the end."""
    offsets, at = {}, start
    for variable in variables:
        at = (at + variable.align - 1) // variable.align * variable.align
        offsets[variable.name] = at
        at += variable.size
    return offsets, at


class Code:
    """A module's instructions at fixed positions: functions and bodies in the order of the text."""

    def __init__(
        self,
        program: Program,
        entry: str,
        textures: list[Texture],
        dynamic_shared_bytes: int,
        call: Callable[..., None],
    ) -> None:
        if entry not in program.functions:
            raise InterpreterError(f"no kernel {entry!r} in {sorted(program.functions)}")
        self.program, self.entry, self.textures, self._call = program, entry, textures, call
        self.bases: dict[str, int] = {}
        self._of: list[tuple[Function, Instruction]] = []
        for name, function in program.functions.items():
            self.bases[name] = len(self._of)
            self._of.extend((function, i) for i in function.instructions)
        self.steps: list[Any] = [None] * len(self._of)
        self._layouts: dict[str, Layout] = {}
        self.function_names = list(program.functions)
        self.symbols = {n: FUNCTION_BASE + 16 * i for i, n in enumerate(self.function_names)}
        self._place_shared(dynamic_shared_bytes)
        self._place_module()

    def _place_shared(self, dynamic_bytes: int) -> None:
        """Static variables from 0 in text order (module, kernel, functions), then the dynamic."""
        variables = [v for v in self.program.variables if v.space == "shared"]
        functions = [self.program.functions[self.entry]]
        functions += [f for f in self.program.functions.values() if not f.is_entry]
        variables += [v for f in functions for v in f.variables if v.space == "shared"]
        offsets, end = place([v for v in variables if not v.external])
        dynamic = [v for v in variables if v.external]
        if dynamic or dynamic_bytes:
            align = max([16, *(v.align for v in dynamic)])
            end = (end + align - 1) // align * align
        offsets.update({v.name: end for v in dynamic})
        self.symbols.update(offsets)
        self.shared_bytes = end + dynamic_bytes

    def _place_module(self) -> None:
        self.module_data: list[tuple[int, bytearray]] = []
        variables = list(self.program.variables)
        for function in self.program.functions.values():
            variables += function.variables
        for space, base in (("const", CONSTANT_BASE), ("global", MODULE_BASE)):
            chosen = [v for v in variables if v.space == space]
            offsets, end = place(chosen)
            data = bytearray(end)
            for variable in chosen:
                at = offsets[variable.name]
                data[at : at + variable.size] = variable.data
                self.symbols[variable.name] = base + at
            if data:
                self.module_data.append((base, data))
        self._resolve(variables)

    def _resolve(self, variables: list[Variable]) -> None:
        """Fill in the addresses that initialisers name."""
        for variable in variables:
            for offset, name, added in variable.references:
                for base, data in self.module_data:
                    at = self.symbols[variable.name] - base + offset
                    if 0 <= at < len(data):
                        data[at : at + 8] = (self.symbols[name] + added).to_bytes(8, "little")

    def layout(self, name: str) -> Layout:
        if name not in self._layouts:
            function = self.program.functions[name]
            slots = Slots(function, self.symbols)
            inner = [v for v in function.variables if v.space == "param"]
            offsets, size = place([*function.parameters, *function.returns, *inner])
            local, local_size = place([v for v in function.variables if v.space == "local"])
            self._layouts[name] = Layout(
                function, slots, self.bases[name], offsets, size, local, local_size
            )
            # Compiling adds constants to the slots: do it before any thread copies them.
            base = self.bases[name]
            for i in range(len(function.instructions)):
                self.steps[base + i] = self._compile_or_defer(base + i)
        return self._layouts[name]

    def entry_parameters(self, values: list[bytes]) -> bytes:
        """The kernel's parameter memory for these argument values."""
        layout = self.layout(self.entry)
        wanted = layout.function.parameters
        if len(wanted) != len(values):
            raise TypeError(f"{self.entry} takes {len(wanted)} arguments, got {len(values)}")
        data = bytearray(layout.param_bytes)
        for variable, value in zip(wanted, values, strict=True):
            if variable.size != len(value):
                raise TypeError(f"{variable.name} has {variable.size} bytes, got {len(value)}")
            at = layout.param_offsets[variable.name]
            data[at : at + len(value)] = value
        return bytes(data)

    def place(self, position: int) -> tuple[str, int]:
        """The function's name and the instruction's index within it."""
        function, ins = self._of[position]
        return function.name, ins.index

    def step(self, position: int) -> Step:
        if position >= len(self.steps) or self.steps[position] is None:
            raise InterpreterError("execution runs past the end of a function")
        step: Step = self.steps[position]
        return step

    def _compile_or_defer(self, position: int) -> Step:
        """Unknown instructions are faults only when they are reached."""
        function, ins = self._of[position]
        try:
            return self._compile(function, ins)
        except (InterpreterError, KeyError, ValueError, IndexError) as problem:
            message = f"{ins.opcode} is not understood: {problem}"

            def refuse(*_: object) -> None:
                raise InterpreterError(message)

            return Step(PLAIN, ins.opcode, ins.line, refuse)

    def _compile(self, function: Function, ins: Instruction) -> Step:
        slots = self._layouts[function.name].slots
        step = self._step(function, ins, slots)
        if ins.guard is not None:
            step.guard, step.flip = slots.named[ins.guard], int(ins.negated)
        return step

    def _step(self, function: Function, ins: Instruction, slots: Slots) -> Step:
        words = opcode_words(ins.opcode)
        base = words[0]
        if base in NOTHING or ins.opcode.startswith(NOTHING):
            return Step(PLAIN, ins.opcode, ins.line, lambda r: None)
        if base in ("trap", "brkpt"):
            return Step(PLAIN, ins.opcode, ins.line, _stop)
        if base in ("bra", "brx"):
            return Step(BRANCH, ins.opcode, ins.line, self._branch(function, ins, slots))
        if base in ("ret", "exit"):
            return Step(RETURN, ins.opcode, ins.line, lambda t: None)
        if base == "call":
            return Step(CALL, ins.opcode, ins.line, self._call_step(function, ins, slots))
        if base in ("bar", "barrier") and "warp" not in words:
            return _barrier(ins, slots, words)
        wait = compile_wait(ins, slots)
        if wait:
            return Step(WAIT, ins.opcode, ins.line, wait[0], reduction_slot=wait[1])
        collective = compile_collective(ins, slots)
        if collective:
            return Step(
                COLLECTIVE, ins.opcode, ins.line, collective.run, members=collective.members
            )
        access = compile_bulk(ins, slots) or compile_access(ins, slots, self.textures)
        if base == "mbarrier" or ins.opcode.startswith("cp.async.mbarrier"):
            access = compile_mbarrier(ins, slots)
        if access:
            return Step(ACCESS, ins.opcode, ins.line, access)
        for compiler in (
            compile_compare, _address_conversion, compile_integer, compile_float, compile_convert,
        ):  # fmt: skip
            plain = None
            if not (compiler is compile_compare and ins.opcode == "mov.pred"):
                plain = compiler(ins, slots)
            if plain:
                return Step(PLAIN, ins.opcode, ins.line, plain)
        raise InterpreterError("unknown instruction")

    def _target(self, function: Function, name: str, scopes: tuple[int, ...]) -> int:
        for scope in reversed(scopes):
            if (scope, name) in function.labels:
                return self.bases[function.name] + function.labels[scope, name]
        raise InterpreterError(f"no label {name!r}")

    def _branch(self, function: Function, ins: Instruction, slots: Slots) -> Callable[[Any], int]:
        if ins.opcode.startswith("brx"):
            index = slots.source(ins.operands[0], "u32")
            names = function.tables[ins.operands[1].text]
            targets = [self._target(function, n, ins.scopes) for n in names]

            def choose(t: Any) -> int:
                if t.regs[index] >= len(targets):
                    raise InterpreterError(f"branch index {t.regs[index]} of {len(targets)}")
                return targets[t.regs[index]]

            return choose
        target = self._target(function, ins.operands[0].text, ins.scopes)
        return lambda t: target

    def _call_step(
        self, function: Function, ins: Instruction, slots: Slots
    ) -> Callable[[Any], None]:
        operands = list(ins.operands)
        returns = operands.pop(0).parts if operands[0].kind == "list" else []
        callee = operands.pop(0)
        passed = operands[0].parts if operands and operands[0].kind == "list" else []
        offsets = self._layouts[function.name].param_offsets
        arguments = [offsets[o.text] for o in passed]
        results = [offsets[o.text] for o in returns]
        enter, names = self._call, self.function_names
        pointer = slots.source(callee, "u64") if callee.kind == "reg" else None
        if pointer is None and callee.text not in self.program.functions:
            raise InterpreterError(f"function {callee.text!r} has no body")

        def step(t: Any) -> None:
            name = callee.text
            if pointer is not None:
                name = names[(t.regs[pointer] - FUNCTION_BASE) // 16]
            enter(t, self, name, arguments, results)

        return step


def _stop(r: Lane) -> None:
    raise InterpreterError("the kernel stopped itself")


def _barrier(ins: Instruction, slots: Slots, words: list[str]) -> Step:
    """bar.sync, barrier.sync, bar.arrive, bar.red."""
    operands = list(ins.operands)
    step = Step(BARRIER, ins.opcode, ins.line, lambda t: None)
    if "red" in words:
        step.reduction = next(w for w in words if w in ("popc", "and", "or"))
        step.reduction_slot = slots.dest(operands.pop(0))
        p, flip = slots.predicate(operands.pop())
        step.vote = lambda t: t.regs[p] ^ flip
    elif "arrive" in words:
        step.waits = False
    elif "sync" not in words:
        raise InterpreterError("unknown barrier")
    number = slots.source(operands[0], "u32") if operands else slots.constant(0)
    step.barrier_number = lambda t: int(t.regs[number])
    if len(operands) > 1:
        count = slots.source(operands[1], "u32")
        step.barrier_count = lambda t: int(t.regs[count])
    return step


def _address_conversion(ins: Instruction, slots: Slots) -> Plain | None:
    """cvta and isspacep: the shared and local windows of generic addresses."""
    words = opcode_words(ins.opcode)
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}
    if words[0] == "cvta":
        d, a = slots.dest(ins.operands[0]), slots.source(ins.operands[1], "u64")
        space = words[-2]
        shift = window.get(space, 0) * (-1 if "to" in words else 1)
        offset = _symbol_offset(ins.operands[1], slots)

        def move(r: Lane) -> None:
            r[d] = (r[a] + offset + shift) & 0xFFFFFFFFFFFFFFFF

        return move
    if words[0] == "isspacep":
        p, a = slots.dest(ins.operands[0]), slots.source(ins.operands[1], "u64")
        space = words[1]

        def test(r: Lane) -> None:
            here = r[a] // WINDOW_BYTES * WINDOW_BYTES
            named = {SHARED_WINDOW: "shared", LOCAL_WINDOW: "local", CONSTANT_BASE: "const"}
            r[p] = int(named.get(here, "global") == space)

        return test
    return None


def _symbol_offset(operand: Operand, slots: Slots) -> int:
    return operand.offset if operand.text in slots.frame_symbols else 0
