"""A compiled function and what the builders of its handlers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.execution.access import Site
from wattcast.features.execution.groups import ISSUE_UNITS, Group
from wattcast.features.execution.operands import Frame, Handler, Operands, Slots
from wattcast.features.execution.roles import Usage
from wattcast.features.loops import Loop, LoopForest
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine

FRAME_STEP = 1 << 40
"""Call depth times this is subtracted from an instruction number: the deepest runs first."""

Finish = Callable[["Machine", Frame, Group, int], "int | None"]

_BARRIERS = frozenset({"bar", "barrier"})


def is_barrier(instruction: ir.Instruction) -> bool:
    """Whether threads of a block wait here (not ``bar.warp.sync``); those of a cluster wait for
    their own block, the others are taken to be there."""
    parts = instruction.opcode.split(".")
    return parts[0] in _BARRIERS and not ({"warp", "arrive"} & set(parts))


def is_phase_wait(instruction: ir.Instruction) -> bool:
    """Whether threads wait here for a phase of a memory barrier."""
    return instruction.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait"))


@dataclass(slots=True)
class LoopEdge:
    """What moving along an edge to a loop header means: ``entering`` or coming round again."""

    loop: int
    entering: bool


class Gather(NamedTuple):
    """A run that begins with a collective: slots of its member mask and of its guard."""

    mask: int | None
    guard: int | None
    negated: bool


@dataclass(slots=True, eq=False)
class Run:
    """Straight-line code: instructions ``[start, end)``, global numbers."""

    index: int
    start: int
    end: int
    function: int
    handlers: tuple[Handler, ...] = ()
    by_position: dict[int, Handler] = field(default_factory=dict)
    gather: Gather | None = None
    finish: Finish = None  # type: ignore[assignment]
    issue_units: int = ISSUE_UNITS
    lane_units: int = 1


@dataclass
class Linked:
    """A function in the program. ``base`` is the global number of its first instruction."""

    index: int
    function: ir.Function
    body: ir.Body
    base: int
    slots: Slots
    cfg: ControlFlowGraph
    loops: LoopForest
    usage: Usage
    first_loop: int
    locals: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(init=False)
    headers: dict[int, Loop] = field(init=False)

    def __post_init__(self) -> None:
        self.labels = {label.name: label.target for label in reversed(self.body.labels)}
        self.headers = {loop.header: loop for loop in self.loops.loops}

    def around(self, position: int) -> list[Loop]:
        """The loops around a position (the last for one behind the end), outermost first."""
        position = min(position, len(self.body.instructions) - 1)
        if position < 0:
            return []
        return [self.loops.loops[index] for index in self.loops.around(self.cfg.block_of[position])]


@dataclass(slots=True)
class CallSite:
    """Where a call returns to, and the caller's names for the results."""

    after: int
    results: tuple[ir.Operand, ...]
    caller: int
    edge: LoopEdge | None


@dataclass(slots=True)
class Context:
    """Builds the handlers of one function.

    ``parameters`` maps a kernel's parameter names to their byte offsets (empty for device
    functions); ``roles`` says how loaded registers are used; ``sites`` grows over the program.
    ``idle``: what the instruction being built computes, loads or stores decides no count;
    ``decides``: branches or addresses rest on its results.
    """

    operands: Operands
    parameters: Mapping[str, int]
    roles: Mapping[str, str]
    sites: list[Site]
    body: ir.Body
    idle: bool = False
    decides: bool = False
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
