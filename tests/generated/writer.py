"""The text of one function under construction: instructions, labels, guards, registers."""

from __future__ import annotations

from tests.generated.arithmetic import POOLS, REGISTER_TYPES, instructions, predicate
from tests.generated.choices import Choices

SCRATCH = """
.reg .b16 %nh;
.reg .b32 %nr, %t0, %t1, %t2, %t3, %step;
.reg .b64 %nd, %a0, %a1, %a2, %own, %stride, %table, %local, %shared;
.reg .f32 %cf, %tf;
.reg .f64 %cg;
.reg .pred %v, %w;
"""


class Writer:
    """``guards`` is the percentage of plain instructions that get one."""

    def __init__(self, choices: Choices, prefix: str, guards: int) -> None:
        self.choices = choices
        self.prefix = prefix
        self.guards = guards
        self.lines: list[str] = []
        self.counters = 0
        self._labels = 0

    def emit(self, *lines: str) -> None:
        self.lines.extend(lines)

    def guarded(self, line: str) -> None:
        """Emit, sometimes under a predicate."""
        if self.choices.chance(self.guards):
            line = f"@{predicate(self.choices)} {line}"
        self.lines.append(line)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def new_label(self) -> str:
        self._labels += 1
        return f"$L_{self.prefix}_{self._labels}"

    def new_counter(self) -> str:
        """A register of its own, for a loop."""
        self.counters += 1
        return f"%count{self.counters - 1}"

    def straight(self, count: int) -> None:
        """That many random arithmetic instructions."""
        for _ in range(count):
            family = self.choices.pick(("integer", "integer", "conversion", "float"))
            lines = instructions(self.choices, family)
            guard = ""
            if self.choices.chance(self.guards):
                # One for the whole sequence: a carry or scratch register must have been written.
                guard = f"@{predicate(self.choices)} "
            self.emit(*(guard + line for line in lines))

    def registers(self) -> str:
        """Declarations of every register used."""
        pools = [
            f".reg .{REGISTER_TYPES[letter]} %{letter}<{count}>;" for letter, count in POOLS.items()
        ]
        counters = [f".reg .b32 %count<{self.counters}>;"] if self.counters else []
        return "\n".join([*pools, *counters, SCRATCH.strip()])
