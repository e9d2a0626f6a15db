"""Registers of a function become positions in one list per call; constants get positions too.

So every source operand, register or literal, is read as ``r[slot]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.reference.parse import Function, InterpreterError, Operand, number_bits

SPECIALS = (
    *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%clock", "%clock64",
    "%clock_hi", "%globaltimer", "%globaltimer_lo", "%lanemask_eq", "%lanemask_lt",
    "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size", "%total_smem_size",
)  # fmt: skip

Lane = list[int]  # the register list of one thread in one call
Plain = Callable[[Lane], None]


class Slots:
    """``symbols`` gives the fixed value (address) of a variable's name."""

    SINK = 0  # where ``_`` writes
    CARRY = 1  # the carry flag of add.cc and friends

    def __init__(self, function: Function, symbols: Mapping[str, int]) -> None:
        self.function = function
        self.initial: list[int] = [0, 0]
        self.named: dict[str, int] = {}
        self.constants: dict[int, int] = {}
        self.symbols = symbols
        for name in (*SPECIALS, *function.registers):
            self.named[name] = len(self.initial)
            self.initial.append(0)
        # Variables in the frame: their slots are filled when the function is entered.
        self.frame_symbols: dict[str, int] = {}
        for variable in function.variables + function.parameters + function.returns:
            if variable.space in ("local", "param"):
                self.frame_symbols[variable.name] = len(self.initial)
                self.initial.append(0)

    def constant(self, value: int) -> int:
        if value not in self.constants:
            self.constants[value] = len(self.initial)
            self.initial.append(value)
        return self.constants[value]

    def dest(self, operand: Operand) -> int:
        if operand.kind == "reg":
            return self.named[operand.text]
        if operand.text == "_":
            return self.SINK
        raise InterpreterError(f"cannot write to {operand}")

    def source(self, operand: Operand, kind: str = "b32") -> int:
        """Slot of a register, special register, literal (typed ``kind``) or plain symbol."""
        if operand.kind == "reg":
            return self.named[operand.text]
        if operand.kind == "special":
            if operand.text in self.named:
                return self.named[operand.text]
            if operand.text == "%WARP_SZ":
                return self.constant(32)
            raise InterpreterError(f"unknown special register {operand.text}")
        if operand.kind == "number":
            return self.constant(number_bits(operand.text, kind))
        if operand.kind == "symbol":
            if operand.text == "WARP_SZ":
                return self.constant(32)
            if operand.text in self.frame_symbols and not operand.offset:
                return self.frame_symbols[operand.text]
            if operand.text in self.symbols:
                return self.constant(self.symbols[operand.text] + operand.offset)
        raise InterpreterError(f"unknown operand {operand}")

    def predicate(self, operand: Operand) -> tuple[int, int]:
        """Slot and the value to XOR with it (1 for ``!%p``)."""
        if operand.kind == "not":
            return self.source(operand.parts[0], "pred"), 1
        return self.source(operand, "pred"), 0

    def width(self, operand: Operand, default: int) -> int:
        """Bits of the register an operand names."""
        if operand.kind == "reg":
            return self.function.registers[operand.text]
        return default
