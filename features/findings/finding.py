"""What a finding is, and the activity of a launch in which it is mended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from wattcast.features.activity import Activity
from wattcast.features.activity.counts import LATENCY_PER_INSTRUCTION, LATENCY_PER_LOAD
from wattcast.features.activity.extras import Extras
from wattcast.features.activity.instructions import InstructionEvents
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.machine_code import Pipes, machine_code, pipes_of
from wattcast.features.ptx.ir import Body, Function, Instruction, Module

Code = Literal[
    "uncoalesced_access", "bank_conflicts", "local_memory", "fp64_between_fp32",
    "division_in_loop", "invariant_in_loop", "divergent_branch", "shallow_pipeline", "small_tile",
    "wide_sums", "reread_tiles", "narrow_accesses", "constant_division", "shared_reduction",
    "register_spills", "register_tiling", "thread_per_row", "global_atomics",
    "tensor_cores", "half_storage", "persistent_blocks", "warp_aggregation",
]  # fmt: skip

PIPE_FIELDS: Mapping[str, str] = {
    "fma": "fma_pipe_instructions", "fp32": "fp32_instructions", "alu": "alu_pipe_instructions",
    "fp64": "fp64_instructions", "sfu": "sfu_instructions", "fp16": "fp16_instructions",
    "tensor": "tensor_instructions",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """One instruction that a finding is about."""

    function: str
    position: int
    line: int
    source_line: int | None
    opcode: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the code that costs more than it need.

    ``detail`` says what was found, in the numbers of this launch, ``remedy`` what mends it.
    ``mended`` is the activity of a launch without it: what changes is counted, not guessed,
    unless ``remedy`` says so. ``extras``: those of the mended launch, where they differ.
    ``ptx``: the module with the change made (``rewriting``); it is analysed in the place of both.
    ``grid``: blocks of the changed launch, where it has others.
    ``at_least``: part of what is saved is not counted. ``form`` tells apart the snippets of a code.
    """

    code: Code
    places: tuple[Place, ...]
    detail: str
    remedy: str
    mended: Activity | None = None
    extras: Extras | None = None
    ptx: str | None = None
    grid: int | None = None
    at_least: bool = False
    form: str = ""


@dataclass(frozen=True)
class Evidence:
    """A launch as findings look at it: its analysis, and events by function and position."""

    analysis: KernelAnalysis
    events: Mapping[str, InstructionEvents]

    @property
    def activity(self) -> Activity:
        """Of the launch as it is."""
        return self.analysis.activity

    def functions(self) -> Iterable[tuple[Function, InstructionEvents]]:
        """Every function that runs, with its events."""
        for name, events in self.events.items():
            function = self.analysis.module.function(name)
            if function is not None:
                yield function, events


def place(function: Function, one: Instruction) -> Place:
    """Where an instruction stands."""
    source = one.location.line if one.location else None
    return Place(function.name, one.position, one.line, source, one.opcode)


def inside_of(analysis: KernelAnalysis, blocks: Iterable[int]) -> list[Instruction]:
    """The instructions of some blocks (a loop's), in text order."""
    cfg = analysis.cfg
    return [one for block in sorted(blocks) for one in cfg.instructions(cfg.blocks[block])]


@dataclass
class Difference:
    """What mending changes in the quantities of a launch; negative is less."""

    fields: dict[str, float] = field(default_factory=dict)
    machine: float = 0.0
    loads: float = 0.0

    def add(self, name: str, amount: float) -> None:
        """Add ``amount`` to a quantity of ``Activity``."""
        self.fields[name] = self.fields.get(name, 0.0) + amount

    def more(self, opcode: str, times: float) -> None:
        """``times`` more warp executions of an opcode."""
        self._instructions(classify(opcode).sass_expansion, pipes_of(opcode), times)

    def fewer(self, body: Body, one: Instruction, times: float) -> None:
        """``times`` fewer warp executions of an instruction, in the place it has."""
        code = machine_code(body)
        at = one.position
        self._instructions(float(code.instructions[at]), Pipes(*code.pipes[at]), -times)

    def _instructions(self, machine: float, pipes: Pipes, times: float) -> None:
        self.machine += times * machine
        self.add("warp_instructions_ptx", times)
        self._pipes(pipes, times)

    def _pipes(self, pipes: Pipes, times: float) -> None:
        for pipe, name in PIPE_FIELDS.items():
            if amount := getattr(pipes, pipe):
                self.add(name, times * amount)

    def applied(self, activity: Activity) -> Activity:
        """The activity with the difference, and what follows from instructions and loads."""
        warps = activity.blocks * -(-activity.threads_per_block // WARP_SIZE)
        per_warp, loads = self.machine / warps, self.loads / warps
        waiting = LATENCY_PER_INSTRUCTION * per_warp + LATENCY_PER_LOAD * loads
        more = {
            **self.fields,
            "warp_instructions_sass": self.machine,
            "instructions_per_warp": per_warp,
            "load_requests_per_warp": loads,
            "latency_cycles": activity.waves * waiting,
        }
        values = activity.values()
        return replace(
            activity, **{name: max(0.0, values[name] + amount) for name, amount in more.items()}
        )


# The PTX of a kernel with a change made, so that it is analysed and predicted like any other.
#
# A change is made line by line. It counts what the changed source would: the same instructions in
# the same places as often. Where a source would also compute its results otherwise (another order
# of a sum), the text here need not.

_PREFIX = "%wc"
_GUARD = re.compile(r"^@!?%[\w$.]+\s+")


class NotRewritableError(Exception):
    """The text does not have one instruction a line, or says what no rule here follows."""


class Rewriting:
    """Changes to the text of one function of a module."""

    def __init__(self, module: Module, function: Function) -> None:
        self._first = function.body.instructions[0].line
        self._lines = module.text.splitlines()
        self._before: dict[int, list[str]] = {}
        self._after: dict[int, list[str]] = {}
        self._instead: dict[int, list[str]] = {}
        self._declared: list[str] = []

    def text_of(self, one: Instruction) -> str:
        """The instruction as it stands, without its guard. Raises NotRewritableError."""
        line = self._lines[one.line - 1].partition("//")[0].strip()
        if line.count(";") != 1 or not line.endswith(";") or line.startswith("{"):
            raise NotRewritableError(f"line {one.line}: not one instruction")
        return _GUARD.sub("", line)

    def guard_of(self, one: Instruction) -> str:
        """Its guard with a blank after it, or nothing."""
        self.text_of(one)
        found = _GUARD.match(self._lines[one.line - 1].strip())
        return "" if found is None else found[0]

    def new(self, kind: str) -> str:
        """A register of its own, of a type (``b32``)."""
        name = f"{_PREFIX}{len(self._declared)}"
        self._declared.append(f".reg .{kind} {name};")
        return name

    def declare(self, line: str) -> None:
        """A variable of the kernel."""
        self._declared.append(line)

    def replace(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines in the place of an instruction; its guard stays with each."""
        guard = self.guard_of(one)
        self._instead[one.line] = [guard + line for line in lines]

    def swap(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines in the place of an instruction and its guard."""
        self.text_of(one)
        self._instead[one.line] = list(lines)

    def before(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines before an instruction, behind its label."""
        self.before_line(one.line, lines)

    def before_line(self, number: int, lines: Iterable[str]) -> None:
        """Put lines before a line of the text (a label's)."""
        self._before.setdefault(number, []).extend(lines)

    def after(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines after an instruction."""
        self.text_of(one)
        self._after.setdefault(one.line, []).extend(lines)

    def text(self) -> str:
        """The whole module with the changes made."""
        out: list[str] = []
        for number, line in enumerate(self._lines, 1):
            if number == self._first:
                out += self._declared
            out += self._before.get(number, ())
            out += self._instead.get(number, (line,))
            out += self._after.get(number, ())
        return "\n".join(out) + "\n"


def operands_of(text: str) -> list[str]:
    """Operands of one instruction's text as written: ``add.s32 %r1, %r2, 3;`` -> three."""
    inside = " ".join(text.strip().rstrip(";").split()).partition(" ")[2]
    found, depth, start = [], 0, 0
    for at, char in enumerate(inside):
        depth += char in "[{("
        depth -= char in "]})"
        if char == "," and not depth:
            found.append(inside[start:at].strip())
            start = at + 1
    return [*found, inside[start:].strip()]
