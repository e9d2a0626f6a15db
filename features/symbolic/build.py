"""The launch-independent part: every value of a function as a node, once per function.

Blocks are visited in reverse post-order. Most registers of compiled PTX are written once;
only those written more often are carried along and merged: at joins (``join``), at loop
headers (``phi``) and on leaving a loop (``exit``: the value in the last iteration).
"""

from __future__ import annotations

from wattcast.features.attached import Attached
from wattcast.features.cfg import build_cfg
from wattcast.features.dataflow import flow
from wattcast.features.errors import checkpoint
from wattcast.features.isa import TILES, OpcodeFacts, classify, isa
from wattcast.features.loops import natural_loops
from wattcast.features.ptx import ir
from wattcast.features.symbolic.scheme import (
    Access,
    Ending,
    Phi,
    Scheme,
    reason_of,
    spread_loops,
    translator,
)
from wattcast.features.values import MOST_NODES_PER_INSTRUCTION, Graph, Node
from wattcast.features.wide_loads import joined_loads

MOST_CARRIED = 400_000
"""Registers carried times blocks. Beyond (hostile code; nvcc's has some hundreds), all values
written more than once are unknown, so time stays linear in the text."""

_INTO_WINDOWS = ("cvta.shared", "cvta.local")
"""Opcodes that make generic addresses which are none of global memory."""


class _Builder:
    def __init__(self, module: ir.Module, function: ir.Function) -> None:
        self.module = module
        self.function = function
        body = function.body
        self.body = body
        self.writes = flow(body).writes
        self.cfg = build_cfg(body)
        self.forest = natural_loops(self.cfg)
        count = len(body.instructions)
        self.graph = Graph(MOST_NODES_PER_INSTRUCTION * count + 1000)
        self.parameters = {p.name: index for index, p in enumerate(function.parameters)}
        variables = [*module.variables, *body.variables]
        self.symbols = {v.name: v.space for v in variables}
        self.single: dict[str, tuple[Node, int]] = {}
        self.carried: dict[str, Node] = {}
        self.multiple = self._written_often()
        self.phis: dict[Node, Phi] = {}
        self.loop_phis: dict[int, list[Phi]] = {}
        self.exits: dict[int, dict[Node, None]] = {}
        # For each loop the bit set of itself and the loops in it.
        self.nested = [1 << loop.index for loop in self.forest.loops]
        for loop in sorted(self.forest.loops, key=lambda one: -one.depth):
            if loop.parent >= 0:
                self.nested[loop.parent] |= self.nested[loop.index]
        self.windows = any(o.opcode.startswith(_INTO_WINDOWS) for o in body.instructions)
        self.block = 0
        self.line = 0
        self.written: dict[ir.Operand, Node] = {}
        bits = isa().type_bits
        self.widths = {
            one.name.rstrip("0123456789"): bits.get(one.type, 32) for one in body.registers
        }

    # --- which registers need merging ---

    def _written_often(self) -> set[str]:
        once: set[str] = set()
        often: set[str] = set()
        for one, names in zip(self.body.instructions, self.writes, strict=True):
            for name in names:
                if name in once or one.predicate is not None:
                    often.add(name)
                once.add(name)
        return often

    # --- Source ---

    def value(self, operand: ir.Operand, bits: int) -> Node:
        graph = self.graph
        if type(operand) is ir.Register:
            return self.coerced(self.register(operand.name), bits)
        if type(operand) is ir.Immediate:
            if isinstance(operand.value, int):
                return graph.constant(operand.value, bits)
            return graph.unknown("a floating-point value", self.line, bits)
        if isinstance(operand, ir.Negated):
            return graph.make("xor", 1, (self.value(operand.operand, 1), graph.constant(1, 1)))
        if isinstance(operand, ir.Special):
            return self.coerced(self.special(operand.name), bits)
        if isinstance(operand, ir.Symbol):
            if operand.name == "WARP_SZ":
                return graph.constant(32, bits)
            if operand.name in self.symbols:
                return graph.leaf("symbol", bits, (operand.name, operand.offset))
        return graph.unknown("an operand that is not followed", self.line, bits)

    def coerced(self, node: Node, bits: int) -> Node:
        if node.bits == bits:
            return node
        if node.op == "unknown":
            return node
        return self.graph.make("trunc" if node.bits > bits else "zext", bits, (node,))

    def special(self, name: str) -> Node:
        text = name.removeprefix("%")
        if text.partition(".")[0] in ("tid", "ctaid", "ntid", "nctaid") or text in (
            "laneid", "warpid", "lanemask_eq", "lanemask_lt", "lanemask_le",
            "lanemask_gt", "lanemask_ge",
        ):  # fmt: skip
            return self.graph.leaf("special", 32, text)
        bits = 64 if text in ("clock64", "globaltimer", "gridid") else 32
        return self.graph.unknown(f"%{text} is known only at run time", self.line, bits)

    def parameter(self, name: str, offset: int, bits: int, signed: bool) -> Node | None:
        if name not in self.parameters:
            return None
        node = self.graph.leaf("param", bits, (name, offset))
        if bits < 32:  # loads extend to the register (PTX ISA, ld)
            return self.graph.make("sext" if signed else "zext", 32, (node,))
        return node

    def define(self, operand: ir.Operand, node: Node) -> None:
        self.written[operand] = node

    def register(self, name: str) -> Node:
        """The value a register has here."""
        if name in self.multiple:
            return self.carried.get(name) or self.graph.unknown(
                f"{name} has no value that can be followed here", self.line,
                self.widths.get(name.rstrip("0123456789"), 32),
            )  # fmt: skip
        found = self.single.get(name)
        if found is None:
            return self.graph.unknown(f"{name} is used before it is written", self.line)
        node, block = found
        innermost = self.forest.innermost
        if innermost[block] != innermost[self.block]:
            node = self.left(node, innermost[block], innermost[self.block])
        return node

    def left(self, node: Node, source: int, target: int) -> Node:
        """``node`` of loop ``source`` seen from loop ``target`` (-1: outside all)."""
        loops = self.forest.loops
        floor = loops[target].depth if target >= 0 else 0
        while source >= 0 and node.loops:
            loop = loops[source]
            if loop.depth <= floor and self.nested[source] >> target & 1:
                break
            around = loop.parent
            if not node.loops & self.nested[source]:
                source = around  # nothing in it comes from this loop
                continue
            inner = node
            node = self.graph.make("exit", inner.bits, (inner,), source)
            if node.op == "exit" and node not in self.exits.setdefault(source, {}):
                self.exits[source][node] = None
                own = 1 << source
                # A value that left one loop is evaluated within the loop around it.
                node.loops = node.loops & ~own | (1 << around if around >= 0 else 0)
                node.varies &= ~own
            source = around
        return node

    # --- the walk ---

    def build(self) -> Scheme:
        cfg, forest = self.cfg, self.forest
        blocks = cfg.blocks
        count = len(blocks)
        endings = [Ending("fall", block.successors) for block in blocks]
        accesses: list[list[Access]] = [[] for _ in blocks]
        guards: list[list[tuple[int, Node, bool]]] = [[] for _ in blocks]
        self.headers = {loop.header: loop.index for loop in forest.loops}
        too_many = len(self.multiple) * count > MOST_CARRIED
        redefined = {} if too_many else self._redefined()
        after: list[dict[str, Node] | None] = [None] * count
        pending: dict[int, list[Phi]] = {}
        for index in cfg.reverse_post_order:
            checkpoint()
            block = blocks[index]
            self.block = index
            first = block.start
            self.line = self.body.instructions[first].line if first < block.end else 0
            self.carried = {} if too_many else self._entering(index, after, redefined, pending)
            for one in self.body.instructions[block.start : block.end]:
                self._instruction(one, accesses[index], guards[index])
            if block.end > block.start:
                endings[index] = self._ending(index, self.body.instructions[block.end - 1])
            after[index] = self.carried
        for loop in forest.loops:
            checkpoint()
            for phi in pending.get(loop.index, ()):
                self._close(loop.index, phi, after)
        if not spread_loops(self.graph.nodes, self.phis, endings, forest):
            lost = self.graph.unknown("its loops depend on each other in too many ways", 0, 1)
            for ending in endings:
                ending.condition = lost if ending.condition is not None else None
            accesses = [[] for _ in blocks]
        return Scheme(
            self.function, cfg, forest, self.graph, endings, accesses, guards, self.phis,
            self.loop_phis, self.parameters, self.exits,
        )  # fmt: skip

    def _redefined(self) -> dict[int, set[str]]:
        """Registers written in each loop, its inner loops included."""
        found: dict[int, set[str]] = {}
        for position, names in enumerate(self.writes):
            for name in names:
                if name in self.multiple:
                    for loop in self.forest.around(self.cfg.block_of[position]):
                        found.setdefault(loop, set()).add(name)
        return found

    def _entering(
        self,
        index: int,
        after: list[dict[str, Node] | None],
        redefined: dict[int, set[str]],
        pending: dict[int, list[Phi]],
    ) -> dict[str, Node]:
        block = self.cfg.blocks[index]
        loop = self.headers.get(index, -1)
        latches = {latch for latch, _ in self.forest.loops[loop].back_edges} if loop >= 0 else ()
        forward = [p for p in block.predecessors if p not in latches and p in self.cfg.reachable]
        merged: dict[str, Node] = {}
        if all(after[p] is not None for p in forward):  # else irreducible: nothing is known
            merged = self._merged(index, forward, after)
        if loop >= 0:
            for name in sorted(redefined.get(loop, ())):
                bits = self.widths.get(name.rstrip("0123456789"), 32)
                start = merged.get(name)
                if start is None:
                    start = self.graph.unknown(f"{name} has no value yet", self.line, bits)
                node = self.graph.fresh("phi", start.bits, (), (loop, name), 0)
                node.loops = node.varies = (1 << loop) | start.loops
                phi = Phi(node, name, start)
                self.phis[node] = phi
                self.loop_phis.setdefault(loop, []).append(phi)
                pending.setdefault(loop, []).append(phi)
                merged[name] = node
        return merged

    def _merged(
        self, index: int, forward: list[int], after: list[dict[str, Node] | None]
    ) -> dict[str, Node]:
        innermost = self.forest.innermost
        here = innermost[index]
        if index in self.headers:
            here = self.forest.loops[here].parent
        environments = []
        for p in forward:
            environment = after[p] or {}
            if innermost[p] != here and innermost[p] >= 0:
                source = innermost[p]
                environment = {n: self.left(v, source, here) for n, v in environment.items()}
            environments.append(environment)
        if not environments:
            return {}
        first = environments[0]
        if len(environments) == 1:
            return dict(first)
        merged: dict[str, Node] = {}
        names: dict[str, Node] = {}
        for environment in environments:
            names |= environment
        for name in names:
            values = [e.get(name) for e in environments]
            known = [v for v in values if v is not None]
            if known.count(known[0]) == len(known):  # nodes are equal where they are one
                merged[name] = known[0]
                continue
            bits = known[0].bits
            if any(v.bits != bits for v in known):
                merged[name] = self.graph.unknown(f"{name} merges widths", self.line, bits)
                continue
            # A path that gives the register no value cannot lead to its use.
            pairs = [(p, v) for p, v in zip(forward, values, strict=True) if v is not None]
            args = tuple(v for _, v in pairs)
            node = self.graph.make("join", bits, args, (index, tuple(p for p, _ in pairs)))
            if here >= 0 and node.op == "join":
                node.loops |= 1 << here  # which way was taken is told there
            merged[name] = node
        return merged

    def _instruction(
        self, one: ir.Instruction, accesses: list[Access], guards: list[tuple[int, Node, bool]]
    ) -> None:
        self.line = one.line
        guard = None
        if one.predicate is not None:
            guard = self.coerced(self.register(one.predicate), 1)
            if one.base not in ("bra", "brx", "ret", "exit", "trap"):
                guards.append((one.position, guard, one.negated))
        facts = classify(one.opcode)
        if facts.accesses_memory or facts.category == "unknown":
            self._access(one, facts, accesses)
        names = self.writes[one.position]
        if not names:
            return
        make = translator(one.opcode)
        self.written = {}
        try:
            node = make(self, one) if make is not None else None
        except (IndexError, ValueError):
            # Fewer operands than the opcode has: no such instruction, so nothing is known.
            node = None
        for name in names:
            value = self.written.get(ir.Register(name)) if self.written else node
            if value is None:
                reason = reason_of(one, facts)
                bits = self.widths.get(name.rstrip("0123456789"), 32)
                value = self.graph.unknown(reason, one.line, bits)
            if name not in self.multiple:
                self.single[name] = (value, self.block)
                continue
            if guard is not None:
                old = self.carried.get(name)
                if old is not None and old.bits == value.bits:
                    pair = (old, value) if one.negated else (value, old)
                    value = self.graph.make("select", value.bits, (guard, *pair))
            self.carried[name] = value

    def _access(self, one: ir.Instruction, facts: OpcodeFacts, accesses: list[Access]) -> None:
        if facts.category in ("texture", "surface"):
            accesses.append(Access(one.position, self.graph.constant(0, 64), 0, "tex", 4, facts))
        if facts.space in ("param", "tensor", None) and facts.category != "copy":
            return
        places = [operand for operand in one.operands if isinstance(operand, ir.Address)]
        spaces = [facts.space, facts.source_space] if facts.category == "copy" else [facts.space]
        bits = 64 if self.module.address_size == 64 else 32
        for place, space in zip(places, spaces, strict=False):
            if space is None:
                continue
            if place.base is None:
                address, offset = self.graph.constant(place.offset, bits), 0
            elif isinstance(place.base, ir.Symbol):
                if place.base.name in self.parameters:
                    return
                address, offset = self.value(place.base, bits), place.offset
            else:
                node = self.register(place.base.name)
                address = self.coerced(node, 64) if node.bits < 64 else node
                offset = place.offset
            if address.op == "add" and address.args[1].op == "const":
                offset += address.args[1].value
                address = address.args[0]
            if space == "generic" and self.windows:
                address = self.graph.unknown("it may lie in shared memory", one.line, 64)
            size = one.operands[2] if facts.category == "copy" and len(one.operands) > 2 else None
            moved = int(size.value) if isinstance(size, ir.Immediate) else facts.bytes_per_lane
            if space == "shared":
                moved = max(moved, int(joined_loads(self.body).bytes[one.position]))
            tiles = facts.entry in TILES and len(one.operands) > 2
            stride = self.value(one.operands[2], 32) if tiles else None
            accesses.append(Access(one.position, address, offset, space, moved, facts, stride))

    def _ending(self, index: int, one: ir.Instruction) -> Ending:
        block = self.cfg.blocks[index]
        base = one.base
        if base == "brx":
            chooser = self.graph.unknown("brx.idx chooses from a table", one.line, 1)
            return Ending("switch", block.successors, chooser, position=one.position)
        if one.predicate is None or base not in ("bra", "ret", "exit", "trap"):
            leaves = base in ("ret", "exit", "trap")
            return Ending("fall", () if leaves else block.successors, position=one.position)
        guard = self.coerced(self.register(one.predicate), 1)
        following = index + 1 if index + 1 < len(self.cfg.blocks) else -1
        taken = -1
        if base == "bra":
            others = [s for s in block.successors if s != following]
            taken = others[0] if others else following
            if not block.successors:
                taken = -1
        return Ending("branch", (taken, following), guard, one.negated, one.position)

    # --- loops ---

    def _close(self, loop: int, phi: Phi, after: list[dict[str, Node] | None]) -> None:
        """Find what comes round and whether it goes in equal steps."""
        back = self.forest.loops[loop].back_edges
        innermost = self.forest.innermost
        found = []
        for latch, _ in back:
            environment = after[latch] or {}
            value = environment.get(phi.register)
            if value is not None and innermost[latch] != loop:
                value = self.left(value, innermost[latch], loop)
            found.append(value)
        first = found[0] if found else None
        if first is None or any(value is not first for value in found):
            return
        phi.latch = first
        phi.step = self._step(loop, phi.node, first)

    def _step(self, loop: int, node: Node, latch: Node) -> Node | None:
        """The sum of what is added on the way from ``node`` to ``latch``."""
        graph = self.graph
        total = graph.constant(0, node.bits)
        for _ in range(128):
            if latch is node:
                return total
            if latch.op not in ("add", "sub") or latch.bits != node.bits:
                return None
            left, right = latch.args
            if right.loops >> loop & 1 and latch.op == "add":
                left, right = right, left
            if right.loops >> loop & 1:
                return None
            total = graph.make(latch.op, node.bits, (total, right))
            latch = left
        return None


_schemes: Attached[ir.Function, Scheme] = Attached("scheme")


def scheme(module: ir.Module, function: ir.Function) -> Scheme:
    """The values of a function; worked out once. Raises PtxError where it is not PTX."""
    return _schemes.get(function) or _schemes.set(function, _Builder(module, function).build())
