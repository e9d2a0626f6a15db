"""A kernel and the functions it calls, compiled to handlers once per kernel.

Every instruction gets a global number: its function's base plus its position. Functions are
numbered in the order of the text. Straight-line code is compiled to a ``Run``: handlers in
order, then one ``finish`` that says where the threads go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattcast.features.cfg import BRANCHES, RETURNS, build_cfg
from wattcast.features.dataflow import computed_from, flow, written
from wattcast.features.errors import Diagnostic
from wattcast.features.execution import (
    alu,
    atomics,
    barriers,
    bulk,
    control,
    loads,
    matrix,
    values,
    warp,
)
from wattcast.features.execution.access import Site
from wattcast.features.execution.context import (
    CallSite,
    Context,
    Frame,
    Gather,
    Handler,
    Items,
    Linked,
    LoopEdge,
    Operands,
    Run,
    Slots,
    UnsupportedError,
    is_barrier,
)
from wattcast.features.execution.floating import is_long_division
from wattcast.features.execution.roles import that_count, usage
from wattcast.features.execution.spaces import CODE_BASE, SPAN, SYMBOL_BASE, TEXTURE_BASE
from wattcast.features.execution.values import BOOL, F32, U32, U64, Group, as_type, constant, spread
from wattcast.features.execution.warp import is_collective, member_mask
from wattcast.features.isa import classify
from wattcast.features.launch import dim3
from wattcast.features.loops import natural_loops, reachable
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.paths import Path


# From one instruction to its handler.

# Order memory, wait for copies or hint at caches: nothing to do where every access is at once.
_SILENT = frozenset({
    "membar", "fence", "prefetch", "prefetchu", "pragma", "nanosleep", "discard", "applypriority",
    "createpolicy", "griddepcontrol", "setmaxnreg", "brkpt", "pmevent", "istypep", "alloca",
    "stacksave", "stackrestore", "tensormap",
})  # fmt: skip


def decode(context: Context, one: ir.Instruction) -> Handler | None:
    """The handler of an instruction that does not end a run; ``None`` if it does nothing.

    Raises UnsupportedError (or KeyError, IndexError for malformed ones) if it cannot be
    executed.
    """
    return _BUILDERS.get(one.base, _arithmetic)(context, one.modifiers, one.operands)


def _nothing(context: Context, modifiers: tuple[str, ...], items: Items) -> None:
    return None


def _store(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    build = bulk.asynchronous if modifiers[0] in ("async", "bulk") else loads.save
    return build(context, modifiers, items)


def _atomic(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    build = bulk.asynchronous if "async" in modifiers else atomics.build
    return build(context, modifiers, items)


def _copy(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    if "bulk" in modifiers:
        return bulk.build(context, modifiers, items)
    if "mbarrier" in modifiers:
        return None
    return loads.copy_async(context, modifiers, items) if len(items) >= 3 else None


def _arithmetic(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    one = context.instruction
    handler = alu.build(one.base, modifiers, items, context.operands)
    if handler is None:
        raise UnsupportedError("not known")
    return _watched_division(context, items, handler) if has_long_way(one) else handler


def _watched_division(context: Context, items: Items, handler: Handler) -> Handler:
    """Also counts the warps of which a lane takes the long way (``floating.is_long_division``)."""
    site = context.site("none", 0)
    dividend, divisor = (context.operands.source(each, F32) for each in items[1:3])

    def watched(frame: Frame, group: Group) -> None:
        long = is_long_division(as_type(frame[dividend], F32), as_type(frame[divisor], F32))
        group.machine.tallies[site.number].count_long_ways(long, group)
        handler(frame, group)

    return watched


def has_long_way(one: ir.Instruction) -> bool:
    """Whether operands decide how many machine instructions it is: a division rounded to f32."""
    modifiers = one.opcode.split(".")
    return (
        modifiers[0] == "div" and modifiers[-1] == "f32" and not {"approx", "full"} & {*modifiers}
    )


def is_plain(one: ir.Instruction) -> bool:
    """Whether an instruction only computes registers from registers, and counts always alike."""
    base, _, rest = one.opcode.partition(".")
    if base == "wmma":
        return rest.startswith("mma.")
    if base == "tcgen05":  # moves and multiplies what is in tensor memory
        return rest.startswith(("mma", "ld.", "st.", "cp.", "shift", "dealloc", "wait"))
    if base == "clusterlaunchcontrol":  # what it says of a cancelled block is always the same
        return rest.startswith("query_cancel")
    return base not in _BUILDERS or base in _COUNTED_ALIKE


def _arrive(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    if "arrive" not in modifiers or "cluster" in modifiers:
        return None
    number = context.operands.source(items[0], U32)

    def handler(frame: Frame, group: Group) -> None:
        barrier = spread(as_type(frame[number], U32), group.machine.count)[group.index[0]]
        group.machine.barriers.arrive(int(barrier), group)

    return handler


_COUNTED_ALIKE = frozenset({"shfl", "vote", "match", "redux", "mma", "movmatrix", "wgmma"})
"""Instructions on registers of several lanes: what they give decides nothing of their own count."""

_BUILDERS: dict[str, warp.Builder] = {
    **dict.fromkeys((*_SILENT, *RETURNS, *BRANCHES, "call"), _nothing),
    **dict.fromkeys(("bar", "barrier"), _arrive),
    **dict.fromkeys(("atom", "red"), _atomic),
    **dict.fromkeys(loads.TEXTURES, loads.fetch),
    "ld": loads.load, "ldu": loads.load, "st": _store, "cp": _copy, "mbarrier": barriers.build,
    **bulk.BUILDERS, **warp.BUILDERS, **matrix.BUILDERS,
}  # fmt: skip


_ENDS = RETURNS | BRANCHES | {"call"}


@dataclass(slots=True)
class GlobalVariable:
    """A module variable in global or constant memory, with its address."""

    variable: ir.Variable
    address: int


class Program:
    """A compiled kernel."""

    def __init__(self, kernel: ir.Function, module: ir.Module) -> None:
        self.kernel = kernel
        self.module = module
        self.diagnostics: list[Diagnostic] = []
        self.runs: dict[int, Run] = {}
        self.sites: list[Site] = []
        self.call_sites: list[CallSite] = []
        self.functions: list[Linked] = []
        self.loops: list[tuple[int, int]] = []  # (function index, loop index)
        self.globals: dict[str, GlobalVariable] = {}
        self.shared: dict[str, int] = {}
        self.shared_bytes = 0
        self.dynamic: list[str] = []
        self.local_bytes = 0
        self.guarded: dict[int, int] = {}  # global number of a predicated instruction -> row
        self.cluster = dim3("cluster", kernel.directives.get("reqnctapercluster", (1,))[:3])
        self.parameters = _layout(kernel.parameters)
        self.paths: dict[tuple[int, ...], Path | None] = {}
        self._critical: dict[int, list[tuple[int, set[str]]]] = {}
        self._link()
        bodies = [linked.body for linked in self.functions]
        self._decide, self._that_count, self._contents = that_count(bodies, is_plain)
        for linked in self.functions:
            self._compile(linked)

    # --- linking ---

    def _link(self) -> None:
        functions = reachable(self.module, self.kernel)
        base = 0
        for function in self.module.functions:
            if functions.get(function.name) is not function:
                continue
            body = function.body
            cfg = build_cfg(body)
            forest = natural_loops(cfg)
            linked = Linked(
                len(self.functions), function, body, base, Slots(body), cfg, forest, usage(body),
                len(self.loops),
            )  # fmt: skip
            self.functions.append(linked)
            self.loops += [(linked.index, loop.index) for loop in forest.loops]
            base += len(body.instructions) + 1
            self.diagnostics += [*cfg.diagnostics, *forest.diagnostics]
        self.by_name = {linked.function.name: linked for linked in self.functions}
        self._place_variables()

    def _place_variables(self) -> None:
        used = self.used = {
            operand.name
            for linked in self.functions
            for one in linked.body.instructions
            for operand in _symbols(one)
        }
        address = SYMBOL_BASE
        for variable in self.module.variables:
            if variable.type in ("texref", "surfref"):
                place = TEXTURE_BASE + len(self.globals) * SPAN
                self.globals[variable.name] = GlobalVariable(variable, place)
            elif variable.space in ("global", "const"):
                address = -(-address // 256) * 256
                self.globals[variable.name] = GlobalVariable(variable, address)
                address += max(1, variable.bytes)
        shared = [v for v in self.module.variables if v.space == "shared" and v.name in used]
        local = 0
        for linked in self.functions:
            for variable in linked.body.variables:
                if variable.space == "shared":
                    shared.append(variable)
                elif variable.space == "local":
                    local = _align(local, max(16, variable.align))
                    linked.locals[variable.name] = local
                    local += variable.bytes
                elif variable.space in ("global", "const") and variable.name not in self.globals:
                    address = -(-address // 256) * 256
                    self.globals[variable.name] = GlobalVariable(variable, address)
                    address += max(1, variable.bytes)
        self.local_bytes = _align(local, 16)
        place = 0
        for variable in shared:
            if variable.elements == 0 or variable.bytes == 0:
                self.dynamic.append(variable.name)
                continue
            place = _align(place, variable.align)
            self.shared[variable.name] = place
            place += variable.bytes
        place = _align(place, 16)
        for name in self.dynamic:
            self.shared[name] = place
        self.shared_bytes = place

    def _resolve(self, linked: Linked, name: str, slots: Slots) -> int | None:
        if name in linked.locals:
            return slots.local_symbol(linked.locals[name])
        if name in self.shared:
            return slots.constant(constant(self.shared[name], U64))
        if name in self.globals:
            return slots.constant(constant(self.globals[name].address, U64))
        if name in self.by_name:
            value = CODE_BASE + 256 * self.by_name[name].index
            return slots.constant(constant(value, U64))
        if linked.function is self.kernel and name in self.parameters:
            return slots.special(f"!address.{self.parameters[name]}")
        if name == "WARP_SZ":
            return slots.constant(constant(32, U64))
        return None

    def filled_by_host(self) -> tuple[str, ...]:
        """Those of ``ir.filled_by_host`` that the kernel uses."""
        found = (variable.name for variable in ir.filled_by_host(self.module))
        return tuple(name for name in found if name in self.used)

    def address_of(self, name: str) -> int | None:
        """The address of a module variable or function, for initializers."""
        if name in self.globals:
            return self.globals[name].address
        if name in self.by_name:
            return CODE_BASE + 256 * self.by_name[name].index
        return self.shared.get(name)

    def label(self, linked: Linked, branch: ir.Instruction) -> int | None:
        """The position a branch jumps to."""
        target = branch.operands[0]
        return linked.labels.get(target.name) if isinstance(target, ir.Symbol) else None

    def loop_line(self, number: int) -> int:
        """The PTX line of a loop of the program."""
        function, index = self.loops[number]
        return self.functions[function].loops.loops[index].line

    def critical(self, linked: Linked, positions: frozenset[int]) -> frozenset[int]:
        """Slots read outside some positions by what may steer or address anything."""
        steering = self._steering(linked)
        return frozenset(
            linked.slots.register(name)
            for position, names in steering
            if position not in positions
            for name in names
        )

    def _steering(self, linked: Linked) -> list[tuple[int, set[str]]]:
        """Reads of every instruction that addresses and predicates are computed from."""
        kept = self._critical.get(linked.index)
        if kept is None:
            wanted: set[str] = set()
            for one in linked.body.instructions:
                if one.predicate is not None:
                    wanted.add(one.predicate)
                for operand in one.operands:
                    if isinstance(operand, ir.Address) and isinstance(operand.base, ir.Register):
                        wanted.add(operand.base.name)
            wanted = computed_from(wanted, written(linked.body))
            kept = [(at, wanted & {*read}) for at, read in enumerate(flow(linked.body).reads)]
            self._critical[linked.index] = kept
        return kept

    # --- compiling ---

    def _compile(self, linked: Linked) -> None:
        body = linked.body
        slots = linked.slots
        operands = Operands(slots, lambda name, s: self._resolve(linked, name, s))
        context = Context(
            operands,
            self.parameters if linked.function is self.kernel else {},
            linked.usage.roles,
            self.sites,
            body,
        )
        starts = {block.start for block in linked.cfg.blocks}
        count, written_at = len(body.instructions), flow(body).writes
        whole = False  # warps that went through a collective for all lanes, and nowhere else since
        for one in body.instructions:
            whole = whole and one.position not in starts
            if (one.base == "call" or is_barrier(one)) and one.position + 1 < count:
                starts.add(one.position + 1)
            if is_collective(one) and not whole:
                starts.add(one.position)
                whole = one.predicate is None and member_mask(one) is None
        ordered = sorted(s for s in starts if s < count)
        ends = [*ordered[1:], count][: len(ordered)]  # a body may be empty
        for start, end in zip(ordered, ends, strict=True):
            run = Run(len(self.runs), linked.base + start, linked.base + end, linked.index)
            handlers = []
            carried_out = 1
            sites = len(self.sites)
            for one in body.instructions[start:end]:
                context.position = linked.base + one.position
                context.instruction = one
                if one.base in _ENDS or is_barrier(one):
                    continue  # it ends the run
                context.idle = self._is_idle(linked, one)
                names = written_at[one.position]
                context.decides = not self._decide[linked.index].isdisjoint(names)
                if context.idle or one.base in matrix.BUILDERS:
                    # Frames have a place even for what no handler writes.
                    for name in names:
                        slots.register(name)
                handler = self._handler(context, one)
                carried_out += handler is not None
                if handler is not None and handler is not _idle:
                    handlers.append(handler)
                    run.by_position[context.position] = handler
            run.handlers = tuple(handlers)
            run.issue_units = carried_out * values.ISSUE_UNITS
            run.lane_units = carried_out + sum(map(_units, self.sites[sites:]))
            if is_collective(body.instructions[start]):
                run.gather = _gather(context, body.instructions[start])
            last = body.instructions[end - 1]
            run.finish = control.finish(self, linked, context, last, end)
            self.runs[run.start] = run
        # Behind the last instruction: threads that get here return.
        tail = Run(len(self.runs), linked.base + count, linked.base + count, linked.index)
        tail.finish = control.leave
        self.runs[tail.start] = tail

    def _is_idle(self, linked: Linked, one: ir.Instruction) -> bool:
        """Whether nothing that is counted rests on what an instruction computes or stores."""
        if one.opcode.startswith(("ld.param", "st.param")):
            return False
        if one.base == "st" or one.opcode.startswith("cp.async.c"):
            return not self._contents
        plain = one.base in ("ld", "ldu") or is_plain(one)
        names = flow(linked.body).writes[one.position]
        return plain and self._that_count[linked.index].isdisjoint(names)

    def _handler(self, context: Context, one: ir.Instruction) -> Handler | None:
        plain = is_plain(one) and classify(one.opcode).known
        try:
            counts = one.base in ("wgmma", "tcgen05")  # what they read of shared memory
            skipped = context.idle and plain and not counts
            handler = _idle if skipped else decode(context, one)
        except (LookupError, StopIteration, TypeError, ValueError) as error:
            # What nothing rests on, the class of its opcode tells.
            quiet = plain and not context.decides
            handler = _idle if quiet else _unsupported(one, str(error))
        if handler is None or one.predicate is None:
            return handler
        slot = context.operands.slots.register(one.predicate, BOOL)
        return _guarded(handler, slot, one.negated, self._guard_row(context.position))

    def _guard_row(self, position: int) -> int:
        return self.guarded.setdefault(position, len(self.guarded))

    def edge(self, linked: Linked, source: int, target: int) -> LoopEdge | None:
        """What the edge between two positions of a function means for its loops."""
        cfg = linked.cfg
        if target >= len(linked.body.instructions):
            return None
        block = cfg.block_of[target]
        if cfg.blocks[block].start != target:
            return None
        loop = linked.headers.get(block)
        if loop is None:
            return None
        inside = cfg.block_of[source] in loop.blocks
        return LoopEdge(linked.first_loop + loop.index, not inside)


def _idle(frame: Frame, group: values.Group) -> None:
    """An instruction that is counted, and whose result decides nothing."""


def _guarded(handler: Handler, slot: int, negated: bool, row: int) -> Handler:
    def guarded(frame: Frame, group: values.Group) -> None:
        predicate = frame[slot]
        part = group.narrowed(predicate if predicate.dtype is BOOL else predicate != 0, negated)
        if part is not None:
            group.machine.guarded[row] += part.lanes
            handler(frame, part)

    return guarded


def _gather(context: Context, one: ir.Instruction) -> Gather:
    mask = member_mask(one)
    guard = None
    if one.predicate is not None:
        guard = context.operands.slots.register(one.predicate, BOOL)
    slot = None if mask is None else context.operands.source(mask, U32)
    return Gather(slot, guard, one.negated)


def _unsupported(one: ir.Instruction, why: str) -> Handler:
    def handler(frame: Frame, group: values.Group) -> None:
        group.machine.complain(
            "unsupported_instruction",
            f"{one.opcode} is counted but not executed ({why}); its results keep old values",
            one.line,
        )

    return handler


def _symbols(one: ir.Instruction) -> list[ir.Symbol]:
    found = []
    for operand in one.operands:
        if isinstance(operand, ir.Symbol):
            found.append(operand)
        elif isinstance(operand, ir.Address) and isinstance(operand.base, ir.Symbol):
            found.append(operand.base)
    return found


def _align(value: int, to: int) -> int:
    return -(-value // max(1, to)) * max(1, to)


def _layout(parameters: tuple[ir.Parameter, ...]) -> dict[str, int]:
    """Byte offsets of the parameters, each aligned to its own alignment."""
    offsets = {}
    place = 0
    for parameter in parameters:
        place = _align(place, parameter.align)
        offsets[parameter.name] = place
        place += parameter.bytes
    return offsets


def _units(site: Site) -> int:
    return values.ATOMIC_UNITS if site.atomic else values.ACCESS_UNITS
