"""Kernel parameters and buffers of a launch: given, or assumed and said so.

Documented defaults for what the user does not give:

* a pointer (a 64-bit parameter an address is computed from) gets a synthetic buffer, also where
  the address of one is given, which means nothing here;
* an integer compared with an index built from ``tid``/``ctaid`` is the number of threads
  launched along the axes of that index, times the elements that a thread has where the index tells
  them (the most, where several are compared); where a product of integers is, those not given are
  that number's root, so that their product is no more than it;
* an integer that is added to such an index, or subtracted from what it is compared with, is 0, as
  where work begins;
* any other integer is the number of threads launched along x, at most 1024;
* a floating-point number is 1.0.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache

import numpy as np

from wattcast.features.attached import attached
from wattcast.features.dataflow import (
    argument_name,
    arguments_of,
    loaded_argument,
    written,
)
from wattcast.features.errors import Diagnostic, LaunchError
from wattcast.features.execution import spaces
from wattcast.features.execution.program import GlobalVariable, Program
from wattcast.features.execution.roles import registers, usage
from wattcast.features.execution.spaces import (
    GLOBAL_BASE,
    PARAMETER_BASE,
    SPAN,
    DenseRegion,
    GlobalMemory,
    SyntheticRegion,
)
from wattcast.features.execution.values import TYPES, DType
from wattcast.features.integers import fold
from wattcast.features.launch import Argument, Launch, PointerHint
from wattcast.features.loops import deciding
from wattcast.features.ptx import ir

MOST_ASSUMED = 1024
"""Largest default of an integer that is not compared with a thread index."""

LEAST_ADDRESS = 1 << 32
"""A number given for a 64-bit parameter that addresses are computed from is the address of some
device buffer from here on (CUDA's unified addresses lie above), and a stride or offset below."""

_SYMBOL = re.compile(r"(?:generic\()?([A-Za-z_$%][\w$]*)\)?(?:\+(\d+))?")


@dataclass(frozen=True, slots=True)
class Bound:
    """Parameters as the kernel sees them, and the memory behind its pointers."""

    parameters: bytes
    memory: GlobalMemory
    diagnostics: tuple[Diagnostic, ...]


def given(kernel: ir.Function, described: Collection[str], launch: Launch) -> dict[str, Argument]:
    """Arguments by name, of parameters and of ``described`` variables. Raises LaunchError for one
    that the kernel does not have."""
    names = [parameter.name for parameter in kernel.parameters]
    found = launch.by_name(names)
    for key in found:
        if key not in names and key not in described and key not in arguments_of(kernel):
            others = f"; variables: {', '.join(described)}" if described else ""
            raise LaunchError(
                f"no parameter {key!r}; {kernel.demangled} has {len(names)}: "
                f"{', '.join(names) or 'none'}{others}",
                field="arguments",
            )
    for parameter in kernel.parameters:
        hint = found.get(parameter.name)
        if parameter.elements > 1 and isinstance(hint, PointerHint):  # of a structure: its pointers
            names = [argument_name(*one) for one in pointers(kernel) if one[0] == parameter.name]
            found = {**dict.fromkeys(names or [parameter.name], hint), **found}
            if parameter.name not in names and names:
                del found[parameter.name]
    return found


_AXES = {
    f"%{head}.{axis}": (head, at) for head in ("tid", "ctaid") for at, axis in enumerate("xyz")
}


@dataclass(frozen=True, slots=True)
class _Compared:
    """A comparison of a parameter with a thread index: the numbers of thread and block that the
    index is made of, the factors of the product that the parameter is one of, and the registers of
    the index and of what it is compared with."""

    axes: frozenset[str]
    product: tuple[str, ...]
    index: str
    bound: str


@attached
def _comparisons(kernel: ir.Function) -> dict[str, list[_Compared]]:
    """All, by parameter."""
    found: dict[str, list[_Compared]] = {}
    product_of = _factors(kernel)
    for one in kernel.body.instructions:
        if one.base != "setp" or len(one.operands) < 3:
            continue
        sides = [registers((each,)) for each in one.operands[1:3]]
        left, right = (deciding(kernel).of(*side) for side in sides)
        for mine, side, other, index in (
            (left, sides[0], right, sides[1]), (right, sides[1], left, sides[0])
        ):  # fmt: skip
            axes = other.special.intersection(_AXES)
            if not axes or not mine.arguments or not mine.special.isdisjoint(_AXES):
                continue
            product = product_of(side[0], MOST_STEPS)
            for name in mine.arguments:
                factors = product if name in product else (name, *product[1:])
                found.setdefault(name, []).append(_Compared(axes, factors, index[0], side[0]))
    return found


@attached
def guarding(kernel: ir.Function) -> frozenset[str]:
    """Integers that are compared with an index over blocks: how many there are tells of them."""
    blocks = {name for name, (head, _) in _AXES.items() if head == "ctaid"}
    return frozenset(
        name
        for name, compared in _comparisons(kernel).items()
        if name in integers(kernel) and any(one.axes & blocks for one in compared)
    )


@attached
def _beginnings(kernel: ir.Function) -> frozenset[str]:
    """Parameters that are added to a thread index before it is compared, and compared with none,
    and those that are subtracted from all that they are compared as part of."""
    made = written(kernel.body)

    @cache
    def summed(register: str, steps: int) -> frozenset[tuple[str, bool]]:
        """Parameters in the sum that a register is, and whether they are subtracted."""
        if register not in made or not steps:
            return frozenset()
        one = made[register][0]  # what comes after is a step of a loop
        if (argument := loaded_argument(one, register)) is not None:
            return frozenset(((argument, False),))
        first = _SUMMED.get(one.base, len(one.operands))
        found: set[tuple[str, bool]] = set()
        for at, operand in enumerate(one.operands[first:]):
            turned = one.base in ("neg", "not") or (one.base == "sub" and at == 1)
            for name in registers((operand,)):
                found |= {(each, was != turned) for each, was in summed(name, steps - 1)}
        return frozenset(found)

    compared = _comparisons(kernel)
    indices = {one.index for several in compared.values() for one in several}
    added = {name for index in indices for name, turned in summed(index, MOST_STEPS) if not turned}
    taken = {
        name
        for name, several in compared.items()
        if all((name, True) in summed(one.bound, MOST_STEPS) for one in several)
    }
    return frozenset(taken | (added - compared.keys()))


_SUMMED = {"add": 1, "sub": 1, "neg": 1, "not": 1, "mov": 1, "cvt": 1, "mad": 3}
"""What makes a sum, with the first operand that is a part of it."""

MOST_STEPS = 9
"""Instructions from a comparison back to the load of a factor that are followed: a judgement."""


def _factors(kernel: ir.Function) -> Callable[[str, int], tuple[str, ...]]:
    """What tells the parameters of the longest product in the sum that a register is, one that is
    squared twice, from so many instructions before it."""
    made = written(kernel.body)

    @cache
    def product(register: str, steps: int) -> tuple[str, ...]:
        ways = made.get(register, ())
        if len(ways) != 1 or not steps:
            return ()
        (one,) = ways
        if (argument := loaded_argument(one, register)) is not None:
            return (argument,)
        each = [product(name, steps - 1) for name in registers(one.operands[1:])]
        if one.opcode.startswith(_PRODUCTS) and len(each) >= 2:
            each = [each[0] + each[1], *each[2:]]
        return max(each, key=len, default=())

    return product


_PRODUCTS = ("mul.lo", "mul.wide", "mad.lo", "mad.wide")


def _largest(kernel: ir.Function, index: str, launch: Launch) -> int | None:
    """The largest value of an index that is a sum of multiples of thread and block numbers; none of
    one that is anything else."""
    made = written(kernel.body)

    def special(name: str) -> int | None:
        head, _, axis = name.partition(".")
        counts = {"%tid": launch.block, "%ntid": launch.block, "%ctaid": launch.grid,
                  "%nctaid": launch.grid}.get(head)  # fmt: skip
        if counts is None or axis not in ("x", "y", "z"):
            return None
        return counts["xyz".index(axis)] - (head in ("%tid", "%ctaid"))

    @cache
    def of(operand: ir.Operand, steps: int) -> int | None:
        if isinstance(operand, ir.Immediate):
            return operand.value if isinstance(operand.value, int) else None
        if isinstance(operand, ir.Special):
            return special(operand.name)
        ways = made.get(operand.name, []) if isinstance(operand, ir.Register) else []
        if len(ways) != 1 or not steps or ways[0].base not in _SUMS:
            return None
        (one,) = ways
        values = [of(each, steps - 1) for each in one.operands[1:]]
        known = [each for each in values if each is not None]
        falls = one.base != "add" and min(known, default=0) < 0
        high = one.base in ("mul", "mad") and not one.opcode.startswith(_PRODUCTS)
        if falls or high or len(known) < len(values):
            return None
        for operation in _SUMS[one.base]:
            known = [fold(operation, 64, 64, (known[0], known[1])), *known[2:]]
        return known[0]

    return of(ir.Register(index), MOST_STEPS)


_SUMS: dict[str, tuple[str, ...]] = {
    "mov": (), "cvt": (), "add": ("add",), "or": ("or",), "mul": ("mul",), "mad": ("mul", "add"),
    "shl": ("shl",),
}  # fmt: skip
"""What an index is made by, as operations of ``integers``: nothing falls as operands grow."""


def _default_integer(kernel: ir.Function, parameter: str, launch: Launch) -> int:
    counts = {"tid": launch.block, "ctaid": launch.grid}
    extent = {name: counts[head][at] for name, (head, at) in _AXES.items()}
    compared = _comparisons(kernel).get(parameter)
    if parameter in _beginnings(kernel):
        return 0
    if not compared:
        return min(launch.grid[0] * launch.block[0], MOST_ASSUMED)
    most = max(len(one.product) for one in compared)
    told = launch.by_name([each.name for each in kernel.parameters])
    found = []
    for one in compared:
        if len(one.product) == most:
            known = [told.get(name) for name in one.product if name != parameter]
            values = [each for each in known if isinstance(each, int) and each > 0]
            threads = math.prod(extent[name] for name in one.axes)
            elements = max(1, round(((_largest(kernel, one.index, launch) or 0) + 1) / threads))
            rest = threads * elements / math.prod(values)
            # A root that is whole is not to end below by rounding.
            found.append(int(rest ** (1.0 / (len(one.product) - len(values))) + 1e-6))
    return max(1, *found)


def assumed_integer(kernel: ir.Function, parameter: str, launch: Launch) -> int | None:
    """The value that an integer parameter gets where the launch gives none; ``None`` for one that
    is no integer."""
    most = integers(kernel).get(parameter)
    return None if most is None else min(_default_integer(kernel, parameter, launch), most)


@attached
def integers(kernel: ir.Function) -> dict[str, int]:
    """Parameters that are integers, with the largest number that each holds."""
    pointing = {argument_name(*one) for one in pointers(kernel)}
    each = [(p, TYPES.get(p.type)) for p in arguments_of(kernel).values() if p.name not in pointing]
    return {
        parameter.name: (1 << (8 * dtype.itemsize - 1)) - 1
        for parameter, dtype in each
        if dtype is not None and dtype.kind != "f" and dtype.itemsize == parameter.bytes
        and parameter.name not in _used_as_floats(kernel)
    }  # fmt: skip


@attached
def pointers(kernel: ir.Function) -> dict[tuple[str, int], bool]:
    """Parameters (name, byte offset) that hold pointers."""
    names = {p.name for p in kernel.parameters}
    used = usage(kernel.body)
    found: dict[tuple[str, int], bool] = {}
    for one in kernel.body.instructions:
        if not one.opcode.startswith("ld.param") or len(one.operands) < 2:
            continue
        name, place = ir.place_of(one.operands[1]) or ("", 0)
        if name not in names or not one.opcode.endswith("64"):
            continue
        for k, register in enumerate(registers(one.operands[:1])):
            if register in used.pointers:
                found[(name, place + 8 * k)] = True
    for parameter in kernel.parameters:
        if parameter.is_pointer:
            found[(parameter.name, 0)] = True
    return found


def _is_tensor_map(kernel: ir.Function, parameter: ir.Parameter) -> bool:
    """Whether a parameter is as large as a tensor map, in a kernel that copies by such."""
    return parameter.bytes == spaces.BYTES and _copies_tensors(kernel)


@attached
def _copies_tensors(kernel: ir.Function) -> bool:
    copies = ("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
    return any(one.opcode.startswith(copies) for one in kernel.body.instructions)


def _pack(value: float, parameter: ir.Parameter) -> bytes:
    dtype = TYPES.get(parameter.type)
    if dtype is None or parameter.bytes != dtype.itemsize:
        raise LaunchError(
            f"parameter {parameter.name} is {parameter.bytes} bytes of {parameter.type}; "
            "give no value for it",
            field="arguments",
        )
    if dtype.kind == "f":
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[dtype.itemsize], float(value))
    bits = 8 * dtype.itemsize
    if isinstance(value, float) and not value.is_integer():
        # An untyped .b32 or .b64 parameter given a fraction holds a floating-point number.
        return struct.pack("<f" if bits == 32 else "<d", value)[: dtype.itemsize]
    whole = int(value)
    if not -(1 << (bits - 1)) <= whole < 1 << bits:
        raise LaunchError(
            f"argument {parameter.name}={whole} does not fit {parameter.type}", field="arguments"
        )
    return (whole & ((1 << bits) - 1)).to_bytes(dtype.itemsize, "little")


@attached
def _used_as_floats(kernel: ir.Function) -> frozenset[str]:
    return frozenset(
        argument
        for one in kernel.body.instructions
        if one.base == "ld"
        for register in registers(one.operands[:1])
        if (argument := loaded_argument(one, register)) is not None
        and (
            one.opcode.rpartition(".")[2] in ("f32", "f64", "f16")
            or usage(kernel.body).roles.get(register) == "float"
        )
    )


def bind(program: Program, launch: Launch, seed: int) -> Bound:
    """Lay out parameters and memory.

    Raises LaunchError for an argument that no parameter has, or that does not fit.
    """
    diagnostics: list[Diagnostic] = []

    def assume(what: str) -> None:
        diagnostics.append(Diagnostic("argument_assumed", what, program.kernel.line))

    parameters = program.kernel.parameters
    described = program.filled_by_host()
    arguments = given(program.kernel, described, launch)
    size = max([program.parameters[p.name] + p.bytes for p in parameters], default=0)
    packed = bytearray(size)
    regions: list[object] = []
    pointing = {argument_name(*one) for one in pointers(program.kernel)}
    next_base = GLOBAL_BASE
    for parameter in arguments_of(program.kernel).values():
        told = arguments.get(parameter.name)
        head, _, inside = parameter.name.partition("+")
        start = program.parameters[head] + int(inside or 0)
        hint = told if isinstance(told, PointerHint) else None
        pointer = parameter.name in pointing
        if isinstance(told, int | float) and not (
            pointer and told != 0 and (parameter.is_pointer or abs(told) >= LEAST_ADDRESS)
        ):
            packed[start : start + parameter.bytes] = _pack(told, parameter)
            continue
        if pointer or hint is not None or _is_tensor_map(program.kernel, parameter):
            regions.append(
                SyntheticRegion(
                    parameter.name, next_base, hint, launch.threads, seed + len(regions)
                )
            )
            packed[start : start + 8] = next_base.to_bytes(8, "little")
            next_base += SPAN
            if told is None:
                assume(
                    f"pointer {parameter.name} gets a synthetic buffer of pseudo-random data "
                    f"({launch.threads} elements where an index is needed)"
                )
            continue
        if told is not None:
            raise LaunchError(f"{parameter.name} is not a pointer", field="arguments")
        if parameter.type in ("texref", "samplerref", "surfref"):
            continue
        dtype = TYPES.get(parameter.type)
        if dtype is None or dtype.itemsize != parameter.bytes:
            assume(f"{parameter.name} ({parameter.bytes} bytes by value) is assumed to be zero")
            continue
        if dtype.kind == "f" or parameter.name in _used_as_floats(program.kernel):
            value: float = 1.0
            form = {2: "<e", 4: "<f", 8: "<d"}[dtype.itemsize]
            packed[start : start + parameter.bytes] = struct.pack(form, value)
        else:
            value = _default_integer(program.kernel, parameter.name, launch)
            bits = 8 * dtype.itemsize
            value = min(value, (1 << (bits - 1)) - 1)
            packed[start : start + parameter.bytes] = int(value).to_bytes(bits // 8, "little")
        assume(f"{parameter.name} is not given; {value:,.12g} is assumed")
    # Pointers that are read from memory lead here.
    regions.append(SyntheticRegion("(pointers read from memory)", GLOBAL_BASE + 64 * SPAN,
                                   None, launch.threads, seed + 99))  # fmt: skip
    for name, placed in program.globals.items():
        if name in described:
            told = arguments.get(name)
            if told is not None and not isinstance(told, PointerHint):
                raise LaunchError(
                    f"{name} is a variable: tell its elements and values", field="arguments"
                )
            regions.append(_described(placed, told, launch.threads, seed + len(regions)))
            if told is None:
                assume(f"variable {name}, which the host fills, gets pseudo-random data")
            continue
        data = initial_bytes(placed.variable, program.address_of)
        regions.append(DenseRegion(name, placed.address, data))
    if packed:
        regions.append(
            DenseRegion(
                "(parameters)", PARAMETER_BASE, np.frombuffer(bytes(packed), dtype=np.uint8)
            )
        )
    return Bound(bytes(packed), GlobalMemory(regions), tuple(diagnostics))


def _described(
    placed: GlobalVariable, hint: PointerHint | None, threads: int, seed: int
) -> SyntheticRegion:
    """What a texture reference is bound to, or the contents of a constant variable."""
    variable = placed.variable
    texture = variable.space != "const"
    size = variable.bytes
    elements = threads if texture else max(1, size // 4)
    region = SyntheticRegion(variable.name, placed.address, hint, elements, seed)
    if not texture:
        region.size = size
    return region


def initial_bytes(
    variable: ir.Variable, address_of: Callable[[str], int | None] = lambda name: None
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A module variable's contents: its initializer, zero beyond it."""
    data = np.zeros(max(1, variable.bytes), dtype=np.uint8)
    text = variable.initializer
    dtype = TYPES.get(variable.type)
    if not text or dtype is None:
        return data
    values: list[bytes] = []
    for word in text.replace("{", " ").replace("}", " ").replace(";", " ").split(","):
        item = word.strip()
        if not item:
            continue
        values.append(_literal_bytes(item, dtype, address_of))
    raw = np.frombuffer(b"".join(values), dtype=np.uint8)[: data.size]
    data[: raw.size] = raw
    return data


def _literal_bytes(item: str, dtype: DType, address_of: Callable[[str], int | None]) -> bytes:
    """One element of an initializer: a number, or the address of a symbol (``f``, ``f+8``)."""
    size = dtype.itemsize
    lowered = item.lower()
    if lowered.startswith(("0f", "0d")):
        bits = int(item[2:], 16)
        width = 4 if lowered.startswith("0f") else 8
        return bits.to_bytes(width, "little")[:size].ljust(size, b"\0")
    match = _SYMBOL.fullmatch(item)
    if match is not None:
        address = address_of(match[1])
        value = 0 if address is None else address + int(match[2] or 0)
        return (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
    try:
        if dtype.kind == "f":
            return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(item))
        return (int(item.rstrip("uU"), 0) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
    except ValueError:
        return bytes(size)  # an expression
