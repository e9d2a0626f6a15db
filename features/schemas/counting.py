"""Counting instructions the way the published data were counted.

The authors' extractor reads PTX line by line and sorts each line into the first class whose
test it passes; the tests are substrings. Here they are applied to the opcode only: the original
searches the whole line, so a kernel named "divide" changed its own counts.

    order  test                                                  class
    1      empty, directive, comment, brace                      skipped (no instruction here)
    2      a label                                               label
    3      "sync"                                                sync      counted nowhere
    4      "bra"                                                 branch
    5      ``ret;`` and nothing else (no predicate, no .uni)     return
    6      fmadd fadd madd mad add sub fmul mul fdiv div and
           sqrt mov setp fma cvt                                 compute
    7      ld.global, st.global, ld.shared                       memory
           ld.param, st.param                                    parameter counted nowhere
    8      anything else                                         unknown

So ``st.shared``, ``shl``, ``selp``, ``ex2``, ``call`` are unknown, ``cvta`` and ``atom.add``
compute, ``cp.async`` (it contains "sync") is sync. A statement over several lines counts once;
the original would count each line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from wattcast.features.errors import Diagnostic, LaunchError
from wattcast.features.ptx.ir import Body, Instruction, Label, Symbol
from wattcast.features.schemas.formulas import EXTRA_TRIP_CYCLES

ComputeKind = Literal["arithmetic", "mov", "setp", "cvt", "div", "sqrt"]
"""Kinds of compute instruction that the published latencies tell apart."""

Kind = Literal[
    ComputeKind, "sync", "branch", "return", "global_load", "global_store", "shared_load",
    "parameter", "unknown",
]  # fmt: skip

COMPUTE_TESTS: tuple[tuple[str, Kind], ...] = (
    ("fmadd", "arithmetic"), ("fadd", "arithmetic"), ("madd", "arithmetic"), ("mad", "arithmetic"),
    ("add", "arithmetic"), ("sub", "arithmetic"), ("fmul", "arithmetic"), ("mul", "arithmetic"),
    ("fdiv", "div"), ("div", "div"), ("and", "arithmetic"), ("sqrt", "sqrt"),
    ("mov", "mov"), ("setp", "setp"), ("fma", "arithmetic"), ("cvt", "cvt"),
)  # fmt: skip
"""Substrings of compute opcodes in the order tried, and the latency each is charged."""

MEMORY_TESTS: tuple[tuple[str, Kind], ...] = (
    ("ld.global", "global_load"), ("st.global", "global_store"), ("ld.shared", "shared_load"),
    ("ld.param", "parameter"), ("st.param", "parameter"),
)  # fmt: skip

COMPUTE_KINDS: tuple[ComputeKind, ...] = get_args(ComputeKind)

ASSUMED_N_LOOP = 32
"""nLoop where nobody gave one and the kernel has self loops. The authors always asked for it;
32 trips is what LLVM's loop heuristic assumes of an unknown loop (weights 124 : 4)."""


@lru_cache(maxsize=4096)
def opcode_kind(opcode: str) -> Kind:
    """The kind of an opcode, first match wins. ``ret`` is settled by ``instruction_kind``."""
    if "sync" in opcode:
        return "sync"
    if "bra" in opcode:
        return "branch"
    for text, kind in (*COMPUTE_TESTS, *MEMORY_TESTS):
        if text in opcode:
            return kind
    return "unknown"


def instruction_kind(instruction: Instruction) -> Kind:
    """The kind of an instruction. ``ret;`` must be shorter than 5 characters to be a return."""
    if instruction.opcode == "ret" and instruction.predicate is None:
        return "return"
    return opcode_kind(instruction.opcode)


class CountedBlock(NamedTuple):
    """Instructions ``start`` to ``end`` (exclusive) between a label and a branch or return.

    This is the extractor's own notion of a basic block. ``label`` is the block's start label;
    ``self_loop`` tells that its branch targets that label. Loops over several blocks are none.
    """

    start: int
    end: int
    label: Label | None
    self_loop: bool


def counted_blocks(body: Body, kinds: Sequence[Kind]) -> Iterator[CountedBlock]:
    """The blocks of a body by the extractor's rule: begin at a label, end after branch or ret.

    ``kinds`` holds the kind of each instruction.
    """
    label_at = {
        label.target: label for label in body.labels if label.name not in body.branch_tables
    }
    start, label = 0, label_at.get(0)
    for position, kind in enumerate(kinds):
        if position in label_at and position > start:
            yield CountedBlock(start, position, label, False)
            start, label = position, label_at[position]
        if kind in ("branch", "return"):
            operands = body.instructions[position].operands
            targets = [operand.name for operand in operands if isinstance(operand, Symbol)]
            loops = label is not None and label.name in targets
            yield CountedBlock(start, position + 1, label, loops)
            start, label = position + 1, label_at.get(position + 1)
    if start < len(kinds):
        yield CountedBlock(start, len(kinds), label, False)


class SelfLoop(NamedTuple):
    """A block that branches to its own label. Lines are 1-based lines of the PTX.

    ``source_lines`` are the ``.loc`` lines of its instructions, in text order.
    """

    label: str
    line: int
    last_line: int
    source_lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many instructions of each counted class; ``compute`` maps each compute kind."""

    compute: Mapping[ComputeKind, int]
    global_load: int
    global_store: int
    shared_load: int
    unknown: int

    @property
    def compute_total(self) -> int:
        """Compute instructions of every kind."""
        return sum(self.compute.values())


@dataclass(frozen=True, slots=True)
class PtxCounts:
    """Counts of one kernel's text, and of its self-loop blocks (``in_loops``) among them.

    ``last_global`` is the textually last global instruction's kind, ``None`` without one.
    The authors' nLoop is the further executions of every self-loop block: a dynamic count is
    static + n_loop * in_loops, for one wave.
    """

    static: Tally
    in_loops: Tally
    branch: int
    label: int
    returns: int
    sync: int
    parameter: int
    last_global: Literal["global_load", "global_store"] | None
    self_loops: tuple[SelfLoop, ...]

    def dynamic(self, n_loop: float) -> DynamicCounts:
        """Executed instructions of one wave."""
        static, loops = self.static, self.in_loops
        return DynamicCounts(
            compute=static.compute_total + n_loop * loops.compute_total,
            global_load=static.global_load + n_loop * loops.global_load,
            global_store=static.global_store + n_loop * loops.global_store,
            shared_load=static.shared_load + n_loop * loops.shared_load,
            unknown=static.unknown + n_loop * loops.unknown,
        )

    def compute_cycles(self, latency: Mapping[ComputeKind, float], n_loop: float) -> float:
        """Cycles of one wave's compute instructions; ``latency`` maps each kind to cycles.

        Further loop trips cost 9 cycles an instruction, whatever it is.
        """
        first = sum(latency[kind] * number for kind, number in self.static.compute.items())
        return first + n_loop * self.in_loops.compute_total * EXTRA_TRIP_CYCLES


class DynamicCounts(NamedTuple):
    """Executed instructions of one wave, loop trips included."""

    compute: float
    global_load: float
    global_store: float
    shared_load: float
    unknown: float


def count(body: Body) -> PtxCounts:
    """Count a kernel body by the published rules; the extractor's own blocks, not the CFG's."""
    kinds = [instruction_kind(instruction) for instruction in body.instructions]
    loops = [block for block in counted_blocks(body, kinds) if block.self_loop]
    last_global: Literal["global_load", "global_store"] | None = None
    for kind in reversed(kinds):
        if kind == "global_load" or kind == "global_store":
            last_global = kind
            break
    return PtxCounts(
        static=_tally(kinds),
        in_loops=_tally([kind for block in loops for kind in kinds[block.start : block.end]]),
        branch=kinds.count("branch"),
        label=sum(label.name not in body.branch_tables for label in body.labels),
        returns=kinds.count("return"),
        sync=kinds.count("sync"),
        parameter=kinds.count("parameter"),
        last_global=last_global,
        self_loops=tuple(_self_loop(body, block) for block in loops),
    )


def _tally(kinds: Sequence[Kind]) -> Tally:
    return Tally(
        compute={kind: kinds.count(kind) for kind in COMPUTE_KINDS},
        global_load=kinds.count("global_load"),
        global_store=kinds.count("global_store"),
        shared_load=kinds.count("shared_load"),
        unknown=kinds.count("unknown"),
    )


def _self_loop(body: Body, block: CountedBlock) -> SelfLoop:
    inside = body.instructions[block.start : block.end]
    source = [i.location.line for i in inside if i.location is not None]
    return SelfLoop(
        label=block.label.name if block.label else "",
        line=block.label.line if block.label else inside[0].line,
        last_line=inside[-1].line,
        source_lines=tuple(dict.fromkeys(source)),
    )


def find_n_loop(
    counts: PtxCounts, loops: Mapping[str, float] | None = None
) -> tuple[float, tuple[Diagnostic, ...]]:
    """The one nLoop of a kernel from the trip counts a user gave.

    ``loops`` is keyed by label, by source line (of ``.loc``, else a line of the PTX) or
    ``default``. Each self loop takes the entry of its label or line, else ``default``, else
    the largest entry of all, else ``ASSUMED_N_LOOP``. If they differ, the largest serves for
    all, with warning ``trip_counts_merged``; what was not given for a loop comes with warning
    ``trip_count_assumed``. Without self loops the number enters nothing: 0, no warning.
    Raises LaunchError for a count that is negative or no finite number.
    """
    given = {str(key): float(value) for key, value in (loops or {}).items()}
    for key, value in given.items():
        if not 0 <= value < float("inf"):
            raise LaunchError(
                f"loops[{key!r}] is {value:g}; a loop count must be a finite number >= 0",
                field="loops",
            )
    chosen: list[float] = []
    diagnostics: list[Diagnostic] = []
    for loop in counts.self_loops:
        lines = loop.source_lines or range(loop.line, loop.last_line + 1)
        keys = (loop.label, *map(str, lines), "default")
        named = [given[key] for key in keys if key in given]
        if named:
            value = named[0]
        else:
            value = max(given.values(), default=float(ASSUMED_N_LOOP))
            whose = "the largest one given, " if given else ""
            diagnostics.append(
                Diagnostic(
                    "trip_count_assumed",
                    f"no trip count for the loop at {loop.label}; {whose}{value:g} is assumed",
                    line=loop.line,
                )
            )
        chosen.append(value)
    if len(set(chosen)) > 1:
        numbers = ", ".join(f"{value:g}" for value in sorted(set(chosen)))
        diagnostics.append(
            Diagnostic(
                "trip_counts_merged",
                "published feature schemas hold one trip count for all self loops; "
                f"the largest of {numbers} was used",
            )
        )
    return max(chosen, default=0.0), tuple(diagnostics)
