"""Random memory accesses, atomics and collectives whose results do not depend on an order.

A thread has ``SLOTS`` slots of 16 bytes of its own in global memory, at ``%own + k * %stride``,
and as many in shared memory (kernel only), at ``%shared + k * SHARED_STRIDE``, and a local
array of ``LOCAL_BYTES`` at ``%local``. Tables are read only. Atomics that several threads
reach are commutative, each kind on words of its own, and their results are not used.
"""

from __future__ import annotations

from tests.generated.arithmetic import POOLS, register
from tests.generated.choices import Choices
from tests.generated.writer import Writer

SLOTS = 8
TABLE_BYTES = 1024
LOCAL_BYTES = 64
CONSTANT_BYTES = 128
COUNTER_WORDS = 16
"""64-bit words per kind of shared atomic."""
FULL = "0xffffffff"

# opcode suffix, register letter, bytes, elements
SHAPES = (
    ("u32", "r", 4, 1), ("b32", "r", 4, 1), ("s32", "r", 4, 1), ("u64", "d", 8, 1),
    ("u8", "r", 1, 1), ("s8", "r", 1, 1), ("u16", "r", 2, 1), ("s16", "r", 2, 1),
    ("u8", "h", 1, 1), ("s8", "h", 1, 1), ("u16", "h", 2, 1), ("b16", "h", 2, 1),
    ("s32", "d", 4, 1), ("u32", "d", 4, 1), ("s8", "d", 1, 1),
    ("v2.u32", "r", 8, 2), ("v4.u32", "r", 16, 4), ("v2.u64", "d", 16, 2), ("v2.u16", "h", 4, 2),
    ("v4.u8", "r", 4, 4), ("v2.s8", "r", 2, 2), ("v2.s16", "r", 4, 2), ("v4.u16", "r", 8, 4),
)  # fmt: skip

# kind of atomic, letter, in a fixed order: its words are its own
SHARED_ATOMICS = (
    ("add.u32", "r"), ("min.u32", "r"), ("max.u32", "r"), ("min.s32", "r"), ("max.s32", "r"),
    ("and.b32", "r"), ("or.b32", "r"), ("xor.b32", "r"), ("add.u64", "d"), ("max.s64", "d"),
    ("min.u64", "d"), ("and.b64", "d"), ("or.b64", "d"), ("inc.u32", "r"),
)  # fmt: skip
OWN_ATOMICS = (
    "add.u32", "exch.b32", "cas.b32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32",
    "inc.u32", "dec.u32", "add.s32", "add.u64", "exch.b64", "cas.b64", "max.s64", "min.u64",
)  # fmt: skip
COUNTER_BYTES = len(SHARED_ATOMICS) * COUNTER_WORDS * 8


def _group(choices: Choices, letter: str, count: int, *, load: bool) -> str:
    """One register, or a list of them in braces; those of a load differ."""
    if count == 1:
        return register(choices, letter)
    first = choices.integer(0, POOLS[letter] - 1)
    numbers = [(first + i) % POOLS[letter] for i in range(count)]
    if not load:
        numbers = [choices.integer(0, POOLS[letter] - 1) for _ in range(count)]
    return "{" + ", ".join(f"%{letter}{n}" for n in numbers) + "}"


def _generic(w: Writer, space: str) -> str:
    """Turn the address in ``%a0`` into a generic one, sometimes; the space to write."""
    if not w.choices.chance(20):
        return f".{space}"
    w.emit(f"cvta.{space}.u64 %a0, %a0;")
    return ""


def _own_slot(w: Writer, space: str, size: int) -> int:
    """Put the address of an own slot into ``%a0``; the byte offset within it."""
    c = w.choices
    if space == "local":
        w.emit("mov.u64 %a0, %local;")
        return c.integer(0, LOCAL_BYTES // size - 1) * size
    base, stride = ("%own", "%stride") if space == "global" else ("%shared", "%sstride")
    if c.chance(40):  # the slot is chosen by data
        w.emit(
            f"and.b32 %t0, {register(c, 'r')}, {SLOTS - 1};",
            "cvt.u64.u32 %a1, %t0;",
            f"mad.lo.u64 %a0, %a1, {stride}, {base};",
        )
    else:
        w.emit(f"mad.lo.u64 %a0, {stride}, {c.integer(0, SLOTS - 1)}, {base};")
    return c.integer(0, 16 // size - 1) * size


def own_access(w: Writer, spaces: tuple[str, ...]) -> None:
    """A load or store of the thread's own memory."""
    c = w.choices
    kind, letter, size, count = c.pick(SHAPES)
    space = c.pick(spaces)
    offset = _own_slot(w, space, size)
    at = f"[%a0+{offset}]" if offset or c.chance(20) else "[%a0]"
    where = _generic(w, space)
    if c.chance(50):
        cache = c.pick(("", ".volatile")) if where in (".global", ".shared") else ""
        w.guarded(f"ld{cache}{where}.{kind} {_group(c, letter, count, load=True)}, {at};")
    else:
        kind = kind.replace("s", "u")
        w.guarded(f"st{where}.{kind} {at}, {_group(c, letter, count, load=False)};")


def table_load(w: Writer) -> None:
    """A gather from the read-only table, or from module variables."""
    c = w.choices
    kind, letter, size, count = c.pick(SHAPES)
    which = c.pick(("table", "constant", "variable"))
    limit = TABLE_BYTES if which == "table" else CONSTANT_BYTES
    index = c.pick((register(c, "r"), "%tid.x", "%laneid"))
    w.emit(f"mov.u32 %t1, {index};")
    if c.chance(40):
        w.emit(f"mul.lo.u32 %t1, %t1, {c.integer(0, 9)};")
    w.emit(f"and.b32 %t1, %t1, {limit // size - 1};")
    w.emit(f"mul.wide.u32 %a1, %t1, {size};")
    if which == "table":
        w.emit("add.u64 %a0, %table, %a1;")
        where = c.pick((".global", ".global.nc", ""))
    else:
        name = "constants" if which == "constant" else "variables"
        w.emit(f"mov.u64 %a0, {name};", "add.u64 %a0, %a0, %a1;")
        where = ".const" if which == "constant" else ".global"
    w.guarded(f"ld{where}.{kind} {_group(c, letter, count, load=True)}, [%a0];")


def shared_atomic(w: Writer) -> None:
    """A commutative atomic on words that all threads share; its result is thrown away."""
    c = w.choices
    number = c.integer(0, len(SHARED_ATOMICS) - 1)
    kind, letter = SHARED_ATOMICS[number]
    size = 4 if letter == "r" else 8
    start = number * COUNTER_WORDS * 8
    w.emit(
        f"and.b32 %t0, {register(c, 'r')}, {COUNTER_WORDS - 1};",
        f"mul.wide.u32 %a1, %t0, {size};",
        "add.u64 %a0, %counters, %a1;",
    )
    value = "977" if kind.startswith("inc") else register(c, letter)
    form = c.pick(("red.global", "atom.global", "red", "atom.relaxed.gpu.global"))
    result = f"%n{letter}, " if form.startswith("atom") else ""
    w.guarded(f"{form}.{kind} {result}[%a0+{start}], {value};")


def float_atomic(w: Writer) -> None:
    """Sums of small whole numbers: exact, so in any order the same."""
    c = w.choices
    w.emit(
        f"and.b32 %t0, {register(c, 'r')}, 7;",
        "cvt.rn.f32.u32 %tf, %t0;",
        f"and.b32 %t1, {register(c, 'r')}, 15;",
        "mul.wide.u32 %a1, %t1, 4;",
        "add.u64 %a0, %sums, %a1;",
    )
    w.guarded("red.global.add.f32 [%a0], %tf;")


def own_atomic(w: Writer, spaces: tuple[str, ...]) -> None:
    """Any atomic on a word of the thread's own; the result counts."""
    c = w.choices
    kind = c.pick(OWN_ATOMICS)
    letter = "d" if kind.endswith("64") else "r"
    size = 8 if letter == "d" else 4
    space = c.pick(tuple(s for s in spaces if s != "local"))
    offset = _own_slot(w, space, size)
    where = _generic(w, space)
    operands = [register(c, letter)]
    if kind.startswith("cas"):
        operands.append(register(c, letter))
    w.guarded(f"atom{where}.{kind} {register(c, letter)}, [%a0+{offset}], {', '.join(operands)};")


def warp_atomic(w: Writer) -> None:
    """Lanes of one warp share a word: they act in ascending order, so results count."""
    c = w.choices
    kind = c.pick(("add.u32", "exch.b32", "max.u32", "xor.b32", "inc.u32"))
    value = register(c, "r")
    w.guarded(f"atom.global.{kind} {register(c, 'r')}, [%warpword], {value};")


def _collective(c: Choices, mask: str) -> str:
    r, s, p = register(c, "r"), register(c, "r"), register(c, "p")
    which = c.integer(0, 5)
    if which == 0:
        mode = c.pick(("down", "up", "bfly", "idx"))
        by = c.pick((str(c.integer(0, 33)), register(c, "r")))
        bound = c.pick(("0", "0x1f", "0x101f", "0x1c1f", "0x1800"))
        target = c.pick((r, f"{r}|{p}"))
        return f"shfl.sync.{mode}.b32 {target}, {s}, {by}, {bound}, {mask};"
    if which == 1:
        return f"vote.sync.{c.pick(('all', 'any', 'uni'))}.pred {p}, {register(c, 'p')}, {mask};"
    if which == 2:
        return f"vote.sync.ballot.b32 {r}, {register(c, 'p')}, {mask};"
    if which == 3:
        kind, value = c.pick((("b32", s), ("b64", register(c, "d"))))
        return f"match.any.sync.{kind} {r}, {value}, {mask};"
    if which == 4:
        return f"match.all.sync.b32 {r}|{p}, {s}, {mask};"
    kind = c.pick(("add.u32", "add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"))
    return f"redux.sync.{kind} {r}, {s}, {mask};"


def collective(w: Writer, *, uniform: bool) -> None:
    """Where the warp is together all lanes take part, elsewhere those that are here."""
    c = w.choices
    if not uniform:
        w.emit("activemask.b32 %t0;", _collective(c, "%t0"))
        return
    line = _collective(c, FULL)
    if c.chance(25):
        line = f"@{'!' if c.chance(50) else ''}{register(c, 'p')} {line}"
    w.emit(line)
    if c.chance(20):
        w.emit(f"bar.warp.sync {FULL};")


def exchange(w: Writer) -> None:
    """Through shared memory to another thread of the block; the block must be together."""
    c = w.choices
    slot = c.integer(0, SLOTS - 1)
    size, letter = c.pick(((4, "r"), (8, "d"), (1, "r"), (16, "r")))
    kind = {4: "u32", 8: "u64", 1: "u8", 16: "v4.u32"}[size]
    count = 4 if size == 16 else 1
    w.emit(f"mad.lo.u64 %a0, %sstride, {slot}, %shared;")
    w.guarded(f"st.shared.{kind} [%a0], {_group(c, letter, count, load=False)};")
    w.emit(c.pick(("bar.sync 0;", "barrier.sync 0;", "bar.sync 3;")))
    index = c.pick((register(c, "r"), "%tlinear"))
    w.emit(
        f"add.u32 %t0, {index}, {c.integer(0, 40)};",
        "rem.u32 %t0, %t0, %nlinear;",
        "mul.lo.u32 %t0, %t0, %spitch;",
        "cvt.u64.u32 %a1, %t0;",
        "add.u64 %a0, %sbase, %a1;",
        f"mad.lo.u64 %a0, %sstride, {slot}, %a0;",
    )
    w.guarded(f"ld.shared.{kind} {_group(c, letter, count, load=True)}, [%a0];")
    if c.chance(40):
        p = register(c, "p")
        target = register(c, "r")
        w.emit(
            c.pick(
                (
                    "bar.sync 0;",
                    f"bar.red.popc.u32 {target}, 0, {p};",
                    f"bar.red.or.pred {p}, 0, {register(c, 'p')};",
                    f"bar.red.and.pred {p}, 0, !{register(c, 'p')};",
                )
            )
        )
    else:
        w.emit("bar.sync 0;")


def shared_counter(w: Writer) -> None:
    """A histogram in shared memory, read after a barrier."""
    c = w.choices
    w.emit(
        f"and.b32 %t0, {register(c, 'r')}, 7;",
        "mul.wide.u32 %a1, %t0, 4;",
        "mov.u64 %a0, histogram;",
        "add.u64 %a0, %a0, %a1;",
    )
    w.guarded(f"red.shared.add.u32 [%a0], {register(c, 'r')};")
    w.emit("bar.sync 0;")
    w.guarded(f"ld.shared.u32 {register(c, 'r')}, [%a0];")
    w.emit("bar.sync 0;")
