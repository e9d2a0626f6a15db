"""What the builders of one function's handlers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattcast.features.execution.access import Site
from wattcast.features.execution.operands import Operands
from wattcast.features.ptx import ir


@dataclass(slots=True)
class Context:
    """Builds the handlers of one function.

    ``parameters`` maps a kernel's parameter names to their byte offsets (empty for device
    functions); ``roles`` says how loaded registers are used; ``sites`` grows over the program.
    """

    operands: Operands
    parameters: Mapping[str, int]
    roles: Mapping[str, str]
    sites: list[Site]
    precise: bool
    position: int = 0
    instruction: ir.Instruction = field(
        default_factory=lambda: ir.Instruction(0, 0, 0, "", (), None, False, None)
    )

    def site(
        self,
        space: str,
        width: int,
        *,
        loads: bool = False,
        stores: bool = False,
        atomic: bool = False,
        role: str = "int",
    ) -> Site:
        """A new site for the instruction being built."""
        made = Site(
            len(self.sites), self.position, self.instruction.line, self.instruction.opcode,
            space, width, loads=loads, stores=stores, atomic=atomic, role=role,
        )  # fmt: skip
        self.sites.append(made)
        return made


SPACES = ("global", "shared", "local", "const", "param")


def space_of(modifiers: tuple[str, ...]) -> str:
    """The state space an opcode names, ``generic`` if none."""
    for modifier in modifiers:
        head = modifier.partition("::")[0]
        if head in SPACES:
            return head
    return "generic"
