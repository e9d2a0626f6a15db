"""Whether a kernel computes the same under another block or grid: shown from its text, or not.

Where a thread's place in the grid, ``g = ctaid * ntid + tid`` along an axis, is all that a kernel
uses of its launch, another block with as many threads along every axis runs the same threads.
Values are followed as polynomials in the special registers and the parameters. With
``tid = g - ctaid * ntid`` put in, a value does not depend on the block if ``ctaid`` and ``ntid``
cancel. Everything stored, every address stored to, every guard and every branch must be such a
value: then each thread of the one launch does what its fellow of the other does. That is
non-interference (Goguen and Meseguer, Security policies and security models, 1982), the block
being what must not flow into results.

What threads of a block share (shared memory, barriers) depends on the block, and so does who meets
in a warp, unless blocks are whole warps along x. What an atomic operation returns and what memory
fences order depends on who comes first. What is not shown is not claimed to be wrong.

Sums that threads add up atomically may be rounded in another order, as in any two runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wattcast.features.attached import Attached
from wattcast.features.cfg import BRANCHES, RETURNS
from wattcast.features.dataflow import flow, written
from wattcast.features.errors import checkpoint
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.places import (
    ATOMS,
    AXES,
    CLEAN,
    LOST,
    MOST_TERMS,
    PLACES,
    Change,
    Value,
    added,
    change,
)
from wattcast.features.ptx import ir

MOST_INSTRUCTIONS = 20_000
"""Instructions of a function that is looked at; longer ones take more than a second."""

MOST_ROUNDS = 12
"""Times that the text is gone over before values must have settled; nested loops take 2 or 3."""

MOST_THREADS = 2**31 - 1
"""Threads along an axis up to which 32-bit places in the grid do not wrap."""


class Doubt(NamedTuple):
    """Why a launch is not shown to compute the same; ``line`` of the PTX, if at one."""

    reason: str
    line: int | None = None


def doubt(module: ir.Module, kernel: ir.Function, base: Launch, other: Launch, *,
          strides: bool = False) -> Doubt | None:  # fmt: skip
    """Why a kernel may compute something else under another launch; ``None``: it is shown that
    each thread of ``base`` does what it did. Of threads that ``other`` has besides, nothing is
    said (``extra_threads``).

    Raises PtxError where the kernel is not PTX.
    """
    found = change(base, other, strides=strides)
    if found is None:
        return None
    for launch in (base, other):
        for blocks, threads in zip(launch.grid, launch.block, strict=True):
            if blocks * threads > MOST_THREADS:
                return Doubt(f"more than {MOST_THREADS} threads along an axis are not followed")
    known = _doubts.get(kernel) or _doubts.set(kernel, {})
    # Most kernels do not ask for whole warps: one answer with them and without.
    for key in ((found.block, found.total), found):
        if key in known:
            return known[key]
    checked = _Check(module, found)
    result = checked.all(kernel)
    known[found if checked.asked else (found.block, found.total)] = result
    return result


_doubts: Attached[ir.Function, dict[object, Doubt | None]] = Attached("doubts")


_LANES = frozenset({"%laneid", *(f"%lanemask_{which}" for which in ("eq", "lt", "le", "gt", "ge"))})
_SAME = frozenset({"%dynamic_smem_size", "%total_smem_size", "WARP_SZ"})

_COLLECTIVE = frozenset(
    {"shfl", "vote", "match", "activemask", "redux", "elect", "mma", "wmma", "movmatrix"}
)
"""Instructions that the threads of a warp do together (PTX ISA 9.0, 9.7.9, 9.7.13, 9.7.15)."""

_BLOCK_WIDE = frozenset(
    {"bar", "barrier", "mbarrier", "cp", "ldmatrix", "stmatrix", "wgmma", "tcgen05", "setmaxnreg",
     "mapa", "getctarank", "clusterlaunchcontrol", "griddepcontrol", "tensormap"}
)  # fmt: skip
"""Instructions that rest on what a block is, or move data in its shared memory."""

_ORDERED = frozenset({"membar", "fence"})
_ORDERS = frozenset({"volatile", "acquire", "release", "acq_rel", "mmio", "sc"})
_LEAVES = RETURNS | BRANCHES | {"call"}
_STORES = frozenset({"st", "red", "atom", "sust", "sured", "multimem", "discard"})
_ACTS = _LEAVES | _STORES | _COLLECTIVE | _BLOCK_WIDE
"""What is seen from outside a thread's registers, or decides where it goes on."""


class _Check:
    """One kernel and the functions that it calls, under one change of the launch."""

    def __init__(self, module: ir.Module, changed: Change) -> None:
        self._module, self._change = module, changed
        self._same_block = not any(changed.block)
        self._shared = {v.name for v in module.variables if v.space == "shared"}
        self._values: dict[str, Value] = {}
        self._why: dict[str, str] = {}
        self._made: dict[str, list[ir.Instruction]] = {}
        self._arguments: frozenset[str] = frozenset()
        self._carry_lost = False
        self.asked = False
        """Whether the answer rests on the blocks being multiples of a warp."""

    def all(self, kernel: ir.Function) -> Doubt | None:
        """The first doubt in a kernel and what it may call."""
        waiting, seen = [kernel], {kernel.name}
        while waiting:
            function = waiting.pop()
            found = self._function(function)
            if found is not None:
                return found
            for callee in self._called(function):
                if isinstance(callee, Doubt):
                    return callee
                if callee.name not in seen:
                    seen.add(callee.name)
                    waiting.append(callee)
        return None

    def _called(self, function: ir.Function) -> Iterator[ir.Function | Doubt]:
        for one in function.body.instructions:
            if one.base != "call":
                continue
            name = next((o.name for o in one.operands if isinstance(o, ir.Symbol)), None)
            callee = self._module.function(name) if name is not None else None
            if callee is not None and not callee.declaration:
                yield callee
            elif callee is not None:
                yield Doubt(f"what {name} does is not known", one.line)
            else:  # by its address: any function that is no kernel
                others = self._module.functions
                yield from (f for f in others if not f.is_entry and not f.declaration)

    # --- one function ---

    def _function(self, function: ir.Function) -> Doubt | None:
        body = function.body
        if len(body.instructions) > MOST_INSTRUCTIONS:
            return Doubt(f"{function.demangled} is too long to be followed", function.line)
        shared = self._shared | {v.name for v in body.variables if v.space == "shared"}
        for one in body.instructions:
            found = None if self._same_block else self._together(one, shared)
            if found is not None:
                return found
            if not classify(one.opcode).known:
                return Doubt(f"what {one.opcode} does is not known (PTX line {one.line})", one.line)
            if one.base in _ORDERED or not _ORDERS.isdisjoint(one.modifiers):
                what = f"{one.opcode} orders what threads do to memory (PTX line {one.line})"
                return Doubt(what, one.line)
        self._values, self._why, self._carry_lost = {}, {}, False
        self._made = written(body)
        named = function.parameters if function.is_entry else ()
        self._arguments = frozenset(parameter.name for parameter in named)
        if not self._settle(body):
            return Doubt("its values are too involved to be followed", function.line)
        return self._effects(body)

    def _together(self, one: ir.Instruction, shared: set[str]) -> Doubt | None:
        """Why a block of other threads may matter to an instruction."""
        named = {o.name for operand in one.operands for o in ir.parts(operand)
                 if isinstance(o, ir.Symbol)}  # fmt: skip
        named |= {place[0] for place in map(ir.place_of, one.operands) if place}
        if "shared" in one.opcode or not shared.isdisjoint(named):
            told = "the threads of a block share memory"
        elif one.opcode.startswith("bar.warp.sync") or one.base in _COLLECTIVE:
            self.asked = True
            if self._change.whole_warps:
                return None
            told = "the threads of a warp work together, and others would be in it"
        elif one.base in _BLOCK_WIDE:
            told = "the threads of a block work together"
        else:
            return None
        return Doubt(f"{told} (PTX line {one.line}, {one.opcode})", one.line)

    def _settle(self, body: ir.Body) -> bool:
        """Work the values of registers out until none changes any more."""
        for _ in range(MOST_ROUNDS):
            checkpoint()
            before = dict(self._values)
            several: dict[str, list[Value]] = {}
            for one in body.instructions:
                names = flow(body).writes[one.position]
                made = self._made_by(one, body) if names else None
                if made is None:
                    continue
                for name in names:
                    if made.polynomial is None and name not in self._why:
                        self._why[name] = self._reason(one, body)
                    if len(self._made[name]) == 1:
                        self._values[name] = made
                    else:
                        several.setdefault(name, []).append(made)
            for name, values in several.items():
                self._values[name] = merged = self._merged(values)
                if merged.polynomial is None and not self._why.get(name):
                    self._why[name] = next(filter(None, map(self._rests, values)), "")
            if self._values == before:
                return True
        return False

    def _reason(self, one: ir.Instruction, body: ir.Body) -> str:
        """What a value that is lost rests on."""
        for name in flow(body).reads[one.position]:
            value = self._register(name)
            if not self._change.clean(value):
                return self._why.get(name) or self._rests(value)
        named = (part.name for operand in one.operands for part in ir.parts(operand)
                 if isinstance(part, ir.Special))  # fmt: skip
        return next(named, "")

    def _merged(self, values: list[Value]) -> Value:
        """One of several values. Which one, branches decide, and those are checked."""
        bare = {self._change.bare(value) for value in values}
        return bare.pop() if len(bare) == 1 else LOST

    # --- instructions ---

    def _made_by(self, one: ir.Instruction, body: ir.Body) -> Value | None:
        """What an instruction writes; ``None``: what it reads has no value yet."""
        sources = flow(body).reads[one.position]
        if any(name not in self._values and name in self._made for name in sources):
            return None
        if one.base in ("atom", "clock") or "clock" in one.opcode:
            return LOST
        if one.predicate is not None and not self._change.clean(self._register(one.predicate)):
            return LOST
        exact = None if "cc" in one.modifiers else self._arithmetic(one)
        if exact is not None:
            return exact
        operands = one.operands[1:]
        parts = [part for operand in operands for part in ir.parts(operand)]
        clean = all(self._change.clean(self._register(name)) for name in sources) and not any(
            isinstance(part, ir.Opaque)
            or (isinstance(part, ir.Special) and not self._change.clean(self._special(part.name)))
            for part in parts
        )
        if one.base in ("addc", "subc", "madc"):
            clean &= not self._carry_lost
        self._carry_lost |= "cc" in one.modifiers and not clean
        return CLEAN if clean else LOST

    def _register(self, name: str) -> Value:
        return self._values.get(name, CLEAN)  # never written: nothing is computed from it

    def _special(self, name: str) -> Value:
        place = PLACES.get(name)
        if place is not None:
            return Value.of((place,))
        if name in _LANES:
            self.asked = True
            return CLEAN if self._change.whole_warps else LOST
        return CLEAN if name in _SAME or (self._same_block and name == "%nwarpid") else LOST

    def _operand(self, operand: ir.Operand) -> Value | None:
        if isinstance(operand, ir.Register):
            return self._register(operand.name)
        if isinstance(operand, ir.Special):
            return self._special(operand.name)
        if isinstance(operand, ir.Immediate):
            whole = isinstance(operand.value, int)
            return Value.of((), int(operand.value)) if whole else CLEAN
        return CLEAN if isinstance(operand, ir.Symbol) else None

    def _arithmetic(self, one: ir.Instruction) -> Value | None:
        """The value of an integer operation that polynomials can follow; ``None`` for others."""
        base, kinds = one.base, one.modifiers
        if base == "ld" and "param" in kinds:
            place = ir.place_of(one.operands[1])
            single = not isinstance(one.operands[0], ir.Vector)
            if place is not None and single and place[0] in self._arguments:
                return Value.of((f"{place[0]}+{place[1]}",))
            return CLEAN
        if base not in _FOLLOWED or not kinds or kinds[-1] not in _INTEGERS:
            return None
        values = [self._operand(operand) for operand in one.operands[1:]]
        if not values or any(value is None for value in values):
            return None
        return _FOLLOWED[base](self, one, [value for value in values if value is not None])

    def _move(self, one: ir.Instruction, values: list[Value]) -> Value | None:
        return values[0] if not isinstance(one.operands[0], ir.Vector) else None

    def _convert(self, one: ir.Instruction, values: list[Value]) -> Value | None:
        kinds = one.modifiers
        if len(kinds) != 2 or not _INTEGERS.issuperset(kinds):
            return None
        wider = int(kinds[0][1:]) > int(kinds[1][1:])
        return self._change.widened(values[0]) if wider else values[0]

    def _added(self, one: ir.Instruction, values: list[Value]) -> Value | None:
        if len(values) != 2 or "sat" in one.modifiers:
            return None
        return self._kept(added(values[0], values[1], -1 if one.base == "sub" else 1), values)

    def _multiplied(self, one: ir.Instruction, values: list[Value]) -> Value | None:
        if "hi" in one.modifiers or len(values) < 2:
            return None
        wide = "wide" in one.modifiers
        factors = [self._change.widened(value) if wide else value for value in values[:2]]
        product = self._change.product(*factors)
        return self._kept(product if len(values) == 2 else added(product, values[2]), values)

    def _kept(self, value: Value, sources: Iterable[Value]) -> Value:
        """A value, which is clean at the least if all is that it is made of."""
        short = value.polynomial is not None and len(value.polynomial) <= MOST_TERMS // 4
        return value if short or not all(map(self._change.clean, sources)) else CLEAN

    def _shifted(self, one: ir.Instruction, values: list[Value]) -> Value | None:
        by = one.operands[2]
        if not isinstance(by, ir.Immediate) or not 0 <= int(by.value) < 32:
            return None
        return self._kept(self._change.product(values[0], Value.of((), 1 << int(by.value))), values)

    def _negated(self, one: ir.Instruction, values: list[Value]) -> Value | None:
        return self._change.product(values[0], Value.of((), -1))

    def _rest(self, one: ir.Instruction, values: list[Value]) -> Value | None:
        """What is left of a division by a power of two: whole blocks of so many leave none."""
        by = one.operands[2]
        if not isinstance(by, ir.Immediate) or not isinstance(by.value, int):
            return None
        size = by.value + (one.base == "and")
        if size < 1 or size & (size - 1) or values[0].polynomial is None or "s32" in one.modifiers:
            return None
        left = self._change.left(dict(values[0].polynomial))
        self.asked |= bool(left)
        for term, factor in left.items():
            whole = factor
            for axis in range(3):
                if f"ntid.{AXES[axis]}" in term and self._change.warps[axis]:
                    whole *= WARP_SIZE
            if whole % size:
                return None
        return CLEAN

    # --- what the launch leaves behind ---

    def _effects(self, body: ir.Body) -> Doubt | None:
        for one in body.instructions:
            if one.base in _ACTS:
                for name in flow(body).reads[one.position]:
                    value = self._register(name)
                    if not self._change.clean(value):
                        return self._told(one, name, value)
                if one.base in ("atom",) and self._read_back(one, body):
                    told = "what an atomic operation returns depends on which thread comes first"
                    return Doubt(f"{told} (PTX line {one.line}, {one.opcode})", one.line)
        return None

    def _read_back(self, one: ir.Instruction, body: ir.Body) -> bool:
        names = set(flow(body).writes[one.position])
        return any(not names.isdisjoint(each) for each in flow(body).reads)

    def _told(self, one: ir.Instruction, name: str, value: Value) -> Doubt:
        """What depends on the block, in words."""
        what = "whether a thread goes on" if one.base in _LEAVES else "what is stored, or where,"
        if one.predicate == name and one.base not in _LEAVES:
            what = "whether a thread stores"
        why = self._rests(value) or self._why.get(name, "")
        where = f"(PTX line {one.line}, {one.opcode})"
        if why.startswith("the block"):
            return Doubt(f"{why} {where}", one.line)
        rests = f" on {why}" if why else " on the block"
        told = f"{what} depends{rests}, not only on the thread's place in the grid"
        return Doubt(f"{told} {where}", one.line)

    def _rests(self, value: Value) -> str:
        """What of the launch a value rests on, in words."""
        left = self._change.left(dict(value.polynomial)) if value.polynomial is not None else {}
        for axis in AXES:
            block, size = f"ctaid.{axis}", f"ntid.{axis}"
            bare = {term: by for term, by in left.items() if block in term and size not in term}
            sized = {term: left.get(tuple(sorted((*term, size))), 0) for term in bare}
            if not bare or len(bare) * 2 != len(left) or not all(sized.values()):
                continue
            fixed = {-by / sized[term] for term, by in bare.items()}
            if len(fixed) == 1 and (number := fixed.pop()) > 1:
                return f"the block size along {axis} is in the code: {number:g}"
        atoms = sorted({f"%{atom}" for term in left for atom in term if atom in ATOMS})
        return ", ".join(atoms)


_INTEGERS = frozenset(f"{kind}{bits}" for kind in "usb" for bits in (32, 64))
_FOLLOWED = {
    "mov": _Check._move,
    "cvta": _Check._move,
    "cvt": _Check._convert,
    "add": _Check._added,
    "sub": _Check._added,
    "mul": _Check._multiplied,
    "mad": _Check._multiplied,
    "shl": _Check._shifted,
    "neg": _Check._negated,
    "and": _Check._rest,
    "rem": _Check._rest,
}


def stores(function: ir.Function) -> list[int]:
    """Positions of the instructions that change memory which others see."""
    return [
        one.position
        for one in function.body.instructions
        if one.base in _STORES | _BLOCK_WIDE
        and classify(one.opcode).space not in ("local", "param")
    ]
