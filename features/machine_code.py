"""What ptxas makes of PTX: machine instructions of each PTX instruction in its place.

One PTX instruction is rarely one machine instruction. ptxas joins neighbours (a product and the
sum it goes into, three additions' operands, logic of three inputs, a shift and the address it
indexes) and drops what hardware does for free (address spaces, zero extension, constant offsets).
``isa.toml`` holds what an instruction takes by itself; here its users decide what is left of it.

Source: machine code of ptxas 12.9 for sm_75 and sm_80, each machine instruction traced back to
the PTX line it stands for; ``python -m studies machine-code`` compares the two again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import attached
from wattcast.features.counts import Counts
from wattcast.features.dataflow import closure, flow, writers_of
from wattcast.features.errors import checkpoint
from wattcast.features.isa import OpcodeFacts, classify, kind_of
from wattcast.features.ptx.ir import (
    Address,
    Body,
    Immediate,
    Instruction,
    Register,
    Special,
    Symbol,
)
from wattcast.features.wide_loads import joined_loads

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]


class Pipes(NamedTuple):
    """Machine instructions of one PTX instruction by pipe; branches have none."""

    fma: float = 0.0
    fp32: float = 0.0
    alu: float = 0.0
    fp64: float = 0.0
    sfu: float = 0.0
    tensor: float = 0.0
    fp16: float = 0.0


class MachineCode(NamedTuple):
    """Machine instructions by position: ``instructions[n]``, and ``pipes[n, pipe]`` in the order
    of ``Pipes``. They are issued as often as the PTX instruction at ``issued_with[n]`` is
    executed: their own, or the branch that predicates replaced. ``divisions`` have a long way."""

    instructions: Floats
    pipes: Floats
    issued_with: Integers
    divisions: Integers

    def issued(self, counts: Counts) -> tuple[Floats, Floats]:
        """Machine instructions by position, and by position and pipe, of what was executed."""
        times = np.asarray(counts.warp_executions, dtype=np.float64)[self.issued_with]
        instructions, pipes = times * self.instructions, times[:, None] * self.pipes
        long = counts.constant_transactions
        if self.divisions.size:
            instructions[self.divisions] += LONG_DIVISION * long[self.divisions]
            pipes[self.divisions] += np.outer(long[self.divisions], _LONG_DIVISION_PIPES)
        return instructions, pipes


# How the long sequences split; the rest of a sequence goes to the main pipe. A reciprocal seed
# from the special function unit, then Newton steps; integers are converted there and back
# (machine code of CUDA 11 to 13, read with cuobjdump -sass).
_SEED = 1.0
_INTEGER_CONVERSIONS = 3.0
_INTEGER_PRODUCTS = 0.42  # of the rest: IMAD is 9 of 21 in div.s32, 8 of 19 in rem.s32, 6 of 15
_DOUBLE_STEPS = {"div": 8.0, "sqrt": 8.0, "rcp": 5.0, "rsqrt": 5.0}
# What of a sequence is no product, as ptxas 12.9 makes them for sm_80 (nvdisasm):
_TESTS = {"div": 1.0, "sqrt": 2.0, "rcp": 3.0}  # for the rare path of a rounded one in FP32
_SCALING_TESTS = {"rcp": 5.0, "sin": 0.0, "cos": 0.0}  # of an approximation; others 1
_AROUND = 3.0  # BSSY, BRA, BSYNC: over the rare path


@lru_cache(maxsize=65536)
def pipes_of(opcode: str) -> Pipes:
    """Machine instructions per pipe of an opcode by itself. Fused multiply-adds count on the FMA
    pipe; integer multiplication runs there too from compute capability 7.0 on (Volta
    whitepaper)."""
    facts = classify(opcode)
    weight = facts.sass_expansion
    if facts.entry in ("div", "rem", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"):
        return _sequence(facts, weight)
    if facts.pipe in ("fma", "fp32"):
        return Pipes(fma=weight, fp32=weight) if facts.pipe == "fma" else Pipes(alu=weight)
    if facts.pipe == "fp64":
        return Pipes(fp64=min(1.0, weight), alu=max(0.0, weight - 1.0))
    if facts.pipe == "fp16":
        return Pipes(fp16=weight)
    if facts.pipe == "sfu":
        return Pipes(sfu=weight)
    if facts.pipe == "tensor":
        return Pipes(tensor=weight)
    if facts.pipe == "int":
        if facts.entry in ("mul", "mad", "mul24", "mad24"):
            return Pipes(fma=weight)
        return Pipes(alu=weight)
    return Pipes()


def _sequence(facts: OpcodeFacts, weight: float) -> Pipes:
    kind = kind_of(facts.type)
    if kind == "int":
        seeds = min(_INTEGER_CONVERSIONS, weight)
        products = _INTEGER_PRODUCTS * (weight - seeds)
        return Pipes(fma=products, sfu=seeds, alu=weight - seeds - products)
    seed = min(_SEED, weight)
    words = facts.opcode.split(".")
    rounded = any(f".{word}" in _ROUNDED for word in words)
    left = weight - seed
    if rounded or kind == "f64":
        left = max(0.0, left - _AROUND)
    if kind == "f64":
        steps = min(_DOUBLE_STEPS.get(facts.entry, left), left)
        return Pipes(sfu=seed, fp64=steps, alu=left - steps)
    tests = (_TESTS if rounded else _SCALING_TESTS).get(facts.entry, 1.0)
    tests = 0.0 if "ftz" in words and not rounded else min(left, tests)
    return Pipes(sfu=seed, fma=left - tests, fp32=left - tests, alu=tests)


@attached
def machine_code(body: Body) -> MachineCode:
    """Machine instructions of a function; worked out once."""
    return _Fusion(body).code()


FORWARD_JUMP = 0.3
"""Left of plain branches that lead forward: blocks are laid out to fall through (machine code as
above)."""

MEETING = 2.0
"""Further instructions of a branch that lanes may take differently: BSSY before it, BSYNC where
they meet again (ptxas 12.9, sm_75: 195 pairs for the 243 such branches of the fixtures and of
programs whose counters were published)."""

MOST_PREDICATED = 16.0
"""Machine instructions that a branch may skip and ptxas predicates instead of branching. Of 65
branches of the fixture kernels over up to 16 instructions without branches, barriers or calls, 54
are predicated; of 3 over 17 to 20, one (ptxas 12.9, sm_75)."""

_STAYS = frozenset(
    {"bar", "barrier", "call", "ret", "exit", "trap", "brx", "shfl", "vote", "match", "membar",
     "fence", "activemask", "atom", "red", "tex", "wmma", "mma", "div", "rem", "sqrt"}
)  # fmt: skip
"""What is not predicated: it ends or orders, or its long way is a call."""

_FARTHEST = 64
"""PTX instructions that so few machine instructions can come from."""

LONG_DIVISION = 30.0
_LONG_DIVISION_PIPES = Pipes(alu=16.0, sfu=1.0)
"""Machine instructions of a division's long way: 28 where both operands are zero, 35 where one is
(the subroutine of ptxas 12.9 for sm_75, with its call and return)."""

LAUNCH_SHAPE = 0.3
"""Instructions left of a read of ``%ntid`` or ``%nctaid`` (machine code as above)."""

_LOGIC = ("and", "or", "xor", "not")
_ROUNDED = (".rn", ".rz", ".rm", ".rp", ".rna")
_MOST_INPUTS = 3  # of LOP3 and IADD3 (CUDA Binary Utilities, instruction sets from Maxwell on)


_FOLDED = frozenset({"int", "fma", "sfu", "fp64", "fp16"})
_NOT_FOLDED = frozenset({"div", "rem", "sqrt", "rcp", "rsqrt", "fma", "prmt"})
"""What ptxas works out where all operands are numbers, and what it does not (ptxas 12.9 for sm_80
of each instruction with numbers moved into its operands). The front end leaves some: a conversion
to an integer, and the shifts of its result."""

_NARROWED = frozenset({"add", "sub", "mul", "mad", "shl", "cvt", "cvta", "mov", "and", "or"})


@attached
def shared_offsets(body: Body) -> frozenset[str]:
    """Registers of 64 bits from which nothing but addresses of shared memory is computed: ptxas
    computes them in 32 bits. CUDA 12 writes all addresses in 64."""
    wide = {each.name for each in body.registers if each.type in ("b64", "u64", "s64")}
    known = flow(body)
    uses: dict[str, list[Instruction]] = {}
    for one, names in zip(body.instructions, known.reads, strict=True):
        for name in names:
            if name in wide or name.rstrip("0123456789") in wide:
                uses.setdefault(name, []).append(one)

    def stays(name: str, one: Instruction, found: set[str]) -> bool:
        facts = classify(one.opcode)
        if facts.accesses_memory:
            inside = (o.base.name for o in one.operands if type(o) is Address
                      and type(o.base) is Register)  # fmt: skip
            stored = any(type(o) is Register and o.name == name for o in one.operands)
            return facts.space == "shared" and name in inside and not stored
        return facts.entry in _NARROWED and found.issuperset(known.writes[one.position])

    found = set(uses)
    waiting = list(found)
    while waiting:
        checkpoint()
        name = waiting.pop()
        if name in found and not all(stays(name, one, found) for one in uses[name]):
            found.discard(name)
            for writer in writers_of(body).get(name, ()):
                waiting += [other for other in known.reads[writer] if other in found]
    return frozenset(found)


_OF_LANES = ("%tid", "%laneid", "%warpid")


@attached
def varying(body: Body) -> frozenset[str]:
    """Registers whose value the lanes of a warp may have apart: computed from the number of a
    thread, or from what memory or other lanes hold."""
    known = flow(body)
    users: dict[str, list[int]] = {}
    seeds: set[str] = set()
    for one, names in zip(body.instructions, known.reads, strict=True):
        for name in names:
            users.setdefault(name, []).append(one.position)
        facts = classify(one.opcode)
        reads_memory = facts.accesses_memory and facts.space not in ("param", "const")
        of_lanes = (type(o) is Special and o.name.startswith(_OF_LANES) for o in one.operands)
        if reads_memory or facts.entry == "shfl" or any(of_lanes):
            seeds.update(known.writes[one.position])
    return frozenset(
        closure(seeds, lambda name: (to for at in users.get(name, ()) for to in known.writes[at]))
    )


class _Fusion:
    """Which instructions of a body disappear into their users."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._facts = [classify(one.opcode) for one in body.instructions]
        self._gone = np.zeros(len(body.instructions), dtype=np.bool_)
        self._full = np.zeros(len(body.instructions), dtype=np.bool_)  # took another one in
        self._weights: dict[int, float] = {}
        self._dissolved: dict[str, frozenset[str]] = {}  # logic by its result: its inputs
        self._product: set[int] = set()  # integer additions that became multiply-adds
        uses: dict[str, list[int]] = {}
        writers: dict[str, int] = {}
        known = flow(body)
        for position, names in enumerate(known.reads):
            for name in names:
                uses.setdefault(name, []).append(position)
        for names in known.writes:
            for name in names:
                writers[name] = writers.get(name, 0) + 1
        self._labels = {label.name: label.target for label in body.labels}
        jumps = (
            (self._labels.get(getattr(one.operands[0], "name", "")), one.position)
            for one in body.instructions
            if one.base == "bra" and one.operands
        )
        self._rounds = [(to, at) for to, at in jumps if to is not None and to <= at]
        self._uses = uses
        self._writers = writers
        self._narrowed = shared_offsets(body)
        self._symbols = {  # registers that hold the address of a variable
            one.operands[0].name
            for one in body.instructions
            if one.base == "mov"
            and len(one.operands) == 2
            and type(one.operands[0]) is Register
            and type(one.operands[1]) is Symbol
            and writers.get(one.operands[0].name) == 1
        }
        # What computes registers of numbers alone is gone; and where the last operand is a number.
        numbers: set[str] = set()
        self._by_number = self._gone.copy()
        for one, facts in zip(body.instructions, self._facts, strict=True):
            fixed = [
                type(o) is Immediate or (type(o) is Register and o.name in numbers)
                for o in one.operands[1:]
            ]
            self._by_number[one.position] = bool(fixed) and fixed[-1]
            result = self._result(one)
            if result is None or facts.pipe not in _FOLDED or facts.entry in _NOT_FOLDED:
                continue
            if fixed and all(fixed):
                numbers.add(result)
                self._gone[one.position] = facts.entry != "mov"

    def code(self) -> MachineCode:
        body = self._body
        rules: Mapping[str, Callable[[Instruction, OpcodeFacts], None]] = {
            "mul": self._multiply, "shl": self._shift, "shr": self._shift, "add": self._add,
            "sub": self._add, "and": self._logic, "or": self._logic, "xor": self._logic,
            "not": self._logic, "neg": self._sign, "abs": self._sign, "ld": self._load,
            "mov": self._move, "bra": self._branch, "shf": self._rotation,
            "cvt": self._widen, "cvta": self._widen,
        }  # fmt: skip
        for one, facts in zip(body.instructions, self._facts, strict=True):
            checkpoint()
            rule = rules.get(facts.entry)
            # No operands: text that ptxas would refuse.
            if rule is not None and one.operands and not self._gone[one.position]:
                rule(one, facts)
        instructions = np.array([facts.sass_expansion for facts in self._facts])
        alone = [pipes_of(one.opcode) for one in body.instructions]
        pipes = np.array(alone).reshape(-1, len(Pipes._fields))
        for at, weight in self._weights.items():
            before = instructions[at]
            pipes[at] *= weight / before if before else 0.0
            instructions[at] = weight
        for at in self._product:
            pipes[at] = Pipes(fma=instructions[at])
        instructions[self._gone] = 0.0
        pipes[self._gone] = 0.0
        instructions /= joined_loads(body).loads
        with_branch = self._predicated(instructions)
        divisions = [
            one.position
            for one, facts in zip(body.instructions, self._facts, strict=True)
            if facts.entry == "div" and facts.type == "f32"
        ]
        return MachineCode(instructions, pipes, with_branch, np.array(divisions, dtype=np.intp))

    def _predicated(self, instructions: Floats) -> Integers:
        """Whose executions issue each instruction; branches that predicates replace become 0."""
        found = np.arange(len(instructions), dtype=np.intp)
        entered: dict[int, int] = {}  # branches that lead to a position
        ahead: dict[int, int] = {}  # conditional branches that lead a little forward
        for one, facts in zip(self._body.instructions, self._facts, strict=True):
            if facts.entry == "bra" and one.operands:
                target = self._labels.get(getattr(one.operands[0], "name", ""), 0)
                entered[target] = entered.get(target, 0) + 1
                if one.predicate is not None and 0 < target - one.position <= _FARTHEST:
                    ahead[one.position] = target
        # What is done under a branch alone; and under two conditions, of which the first is not
        # waited for.
        stays = [facts.entry in _STAYS for facts in self._facts]
        early = [f.accesses_memory and f.space not in ("param", "const") for f in self._facts]
        replaced: dict[int, int] = {}
        for at in sorted(ahead, reverse=True):  # what lies inside comes first
            checkpoint()
            target, inside = ahead[at], range(at + 1, ahead[at])
            within = [n for n in inside if self._facts[n].entry == "bra"]
            from_within = [replaced[n] for n in within if n in replaced]
            if (
                instructions[at + 1 : target].sum() <= MOST_PREDICATED
                and len(from_within) == len(within)
                and all(entered.get(n, 0) == from_within.count(n) for n in inside)
                and not any(stays[n] or (within and early[n]) for n in inside)
            ):
                replaced[at] = target
                instructions[at] = 0.0
                found[at + 1 : target] = at
        return found

    # --- who uses what ---

    def _result(self, one: Instruction) -> str | None:
        """The register an instruction writes, if nobody else writes it and it always does."""
        first = one.operands[0] if one.operands else None
        if type(first) is not Register or one.predicate is not None:
            return None
        return first.name if self._writers.get(first.name) == 1 else None

    def _users(self, one: Instruction) -> list[int]:
        """Who reads its result; none where that may be another's result too."""
        name = self._result(one)
        return [] if name is None else self._uses.get(name, [])

    def _into(self, one: Instruction, takes: Callable[[int], bool]) -> list[int]:
        """The users if every one of them can take it in."""
        users = self._users(one)
        return users if users and all(not self._full[at] and takes(at) for at in users) else []

    def _absorb(self, one: Instruction, users: list[int]) -> bool:
        for at in users:
            self._full[at] = True
        self._gone[one.position] = bool(users)
        return bool(users)

    def _is(self, at: int, entries: tuple[str, ...], bits: int, kind: str = "int") -> bool:
        facts = self._facts[at]
        same = self._bits(at) == bits
        return facts.entry in entries and same and kind_of(facts.type) == kind

    def _bits(self, at: int) -> int:
        """Of the type of an instruction, 32 where only the address of shared memory is computed."""
        return 32 if self._is_narrowed(self._body.instructions[at]) else self._facts[at].bits

    def _in_address(self, one: Instruction, steps: int = 4) -> bool:
        """Whether an addition, narrowed, goes into the accesses of shared memory themselves: of a
        variable's address or a number, with users that are such accesses."""
        if one.base != "add" or not steps or not self._is_narrowed(one):
            return False
        fixed = self._by_number[one.position] or any(
            type(o) is Register and o.name in self._symbols for o in one.operands[1:]
        )
        users = self._users(one) if fixed else []
        return bool(users) and all(
            self._addresses(at, one) or self._in_address(self._body.instructions[at], steps - 1)
            for at in users
        )

    # --- rules ---

    def _multiply(self, one: Instruction, facts: OpcodeFacts) -> None:
        kind, opcode = kind_of(facts.type), one.opcode
        if kind != "int":
            # Contracted unless rounding is written (PTX ISA 9.0, mul and add: "no rounding
            # modifier"); the second product of a sum stays.
            if any(mode in opcode for mode in _ROUNDED):
                return

            def sums(at: int) -> bool:
                other = self._body.instructions[at].opcode
                return self._facts[at].entry in ("add", "sub") and (
                    self._facts[at].type == facts.type
                    and not any(mode in other for mode in _ROUNDED)
                )

            self._absorb(one, self._into(one, sums))
        elif ".wide" in opcode:
            bits = 32 if self._is_narrowed(one) else 2 * facts.bits

            def multiplies(at: int) -> bool:
                inside = self._in_address(self._body.instructions[at])
                return not inside and self._is(at, ("add",), bits)

            users = self._into(one, multiplies)
            if self._absorb(one, users):
                for at in users:
                    self._weights[at] = 1.0
                    self._product.add(at)
        elif ".hi" not in opcode and facts.bits == 32:
            users = self._into(one, lambda at: self._is(at, ("add",), 32))
            if self._absorb(one, users):
                self._product.update(users)

    def _shift(self, one: Instruction, facts: OpcodeFacts) -> None:
        if len(one.operands) < 3 or not self._by_number[one.position]:
            return
        if facts.entry == "shl":
            bits = self._bits(one.position)
            self._absorb(one, self._into(one, lambda at: self._is(at, ("add",), bits)))

    def _rotation(self, one: Instruction, facts: OpcodeFacts) -> None:
        """A funnel shift by a constant and the addition of its result are one LEA.HI."""
        if self._by_number[one.position] and len(self._users(one)) == 1:
            self._absorb(one, self._into(one, lambda at: self._is(at, ("add",), 32)))

    def _add(self, one: Instruction, facts: OpcodeFacts) -> None:
        if kind_of(facts.type) != "int":
            return
        at = one.position
        if self._in_address(one):
            self._gone[at] = True
            return
        bits = self._bits(at)
        if facts.bits == 64 and at not in self._weights:
            self._weights[at] = bits / 32
        if facts.entry == "add" and self._by_number[at]:
            users = self._users(one)
            if users and all(self._addresses(user, one) for user in users):
                self._gone[at] = True  # the constant goes into the accesses' own offset
                return
        if bits == 32 and not self._full[at] and len(self._users(one)) == 1:
            self._absorb(one, self._into(one, lambda user: self._is(user, ("add", "sub"), 32)))

    def _addresses(self, user: int, one: Instruction) -> bool:
        first = one.operands[0]
        return self._facts[user].accesses_memory and any(
            type(operand) is Address and operand.base == first
            for operand in self._body.instructions[user].operands
        )

    def _logic(self, one: Instruction, facts: OpcodeFacts) -> None:
        """LOP3 computes any function of three inputs: logic of logic is one instruction."""
        if facts.bits < 32:
            return
        if facts.bits == 64:
            self._weights[one.position] = 2.0
        users, name = self._users(one), self._result(one)
        if name is None or len(users) != 1 or not self._is(users[0], _LOGIC, facts.bits):
            return
        mine = self._inputs(one)
        if len(mine | (self._inputs(self._body.instructions[users[0]]) - {name})) <= _MOST_INPUTS:
            self._dissolved[name] = mine
            self._gone[one.position] = True

    def _inputs(self, one: Instruction) -> frozenset[str]:
        """What logic depends on, through the logic that went into it."""
        found: set[str] = set()
        for operand in one.operands[1:]:
            name = operand.name if type(operand) is Register else str(operand)
            found |= self._dissolved.get(name, frozenset((name,)))
        return frozenset(found)

    def _sign(self, one: Instruction, facts: OpcodeFacts) -> None:
        """A sign is part of a floating-point operand, and of an addend."""
        kind = kind_of(facts.type)
        arithmetic = ("add", "sub", "mul", "fma", "mad", "setp") if kind != "int" else ("add",)
        users = self._users(one)
        if users and all(self._is(at, arithmetic, facts.bits, kind) for at in users):
            self._gone[one.position] = facts.entry == "neg" or kind != "int"

    def _load(self, one: Instruction, facts: OpcodeFacts) -> None:
        """Constant memory at an address that the code fixes is an operand of its users."""
        if facts.space == "const":
            address = one.operands[-1]
            if type(address) is Address and type(address.base) is not Register:
                self._gone[one.position] = True

    def _is_narrowed(self, one: Instruction) -> bool:
        first = next(iter(one.operands), None)
        return type(first) is Register and first.name in self._narrowed

    def _widen(self, one: Instruction, facts: OpcodeFacts) -> None:
        """Nothing widens an offset into shared memory, which has 32 bits."""
        if self._is_narrowed(one):
            self._gone[one.position] = True

    def _move(self, one: Instruction, facts: OpcodeFacts) -> None:
        """Special registers are read by an instruction of their own; the launch's shape lies in
        constant memory, which mostly is an operand of its users."""
        source = one.operands[-1]
        if type(source) is Symbol and self._is_narrowed(one):
            self._gone[one.position] = True
        if type(source) is Special:
            shape = source.name.startswith(("%ntid", "%nctaid"))
            self._weights[one.position] = LAUNCH_SHAPE if shape else 1.0

    def _branch(self, one: Instruction, facts: OpcodeFacts) -> None:
        target = self._labels.get(getattr(one.operands[0], "name", ""), 0)
        if target > one.position:
            self._weights[one.position] = 1.0 if one.predicate is not None else FORWARD_JUMP
            # Lanes meet again unless the kernel ends there, or a loop before it (where they meet
            # once, not each round).
            body, at = self._body.instructions, one.position
            ends = target >= len(body) or body[target].base in ("ret", "exit")
            ends = ends or any(first <= at < last < target for first, last in self._rounds)
            if not ends and one.predicate in varying(self._body):
                self._weights[at] += MEETING
