"""The intermediate representation: what the reader makes of PTX text.

A ``Module`` is scanned once for its functions; the body of a ``Function`` is parsed when
it is first asked for, so only the requested kernel is ever analysed in depth.
Lines and columns are 1-based and point into the text as the user sent it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from wattcast.features.errors import DEFAULT_LIMITS, Diagnostic, KernelError, SizeLimits
from wattcast.features.ptx.demangle import demangle

COLLECT_AFTER = (50_000, 20, 100)
"""Thresholds of the cyclic garbage collector where much PTX is read: it is many small tuples
without cycles, and at Python's default of 700 allocations collecting took a fifth of the time of
new PTX, a seventh of a Triton product's (``python -m benchmarks tuning``)."""

# --- operands -----------------------------------------------------------------


class Register(NamedTuple):
    """A virtual register (``%r1``); ``name`` is unique in its function.

    A register declared in an inner scope that shadows another gets ``@<scope>`` appended.
    """

    name: str


class Special(NamedTuple):
    """A special register: ``%tid.x``, ``%clock64``, ``%laneid``... (without vector suffix use)."""

    name: str


class Immediate(NamedTuple):
    """A literal. ``value`` is exact; ``0f``/``0d`` literals are decoded to floats.

    ``text`` is the literal as written, so the bits of a NaN are not lost.
    """

    value: int | float
    text: str


class Symbol(NamedTuple):
    """A label, variable, parameter or function name; ``offset`` in bytes (``buf+8``)."""

    name: str
    offset: int = 0


class Address(NamedTuple):
    """``[base + offset]``: base a register, a symbol, or ``None`` for an absolute address.

    ``coordinates`` holds the operands of a texture access (``[tex, {%f1, %f2}]``).
    """

    base: Register | Symbol | None
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


class Vector(NamedTuple):
    """``{%f1, %f2}``; an ignored element (``_``) is ``Symbol("_")``."""

    elements: tuple[Operand, ...]


class Group(NamedTuple):
    """A parenthesised list, as in ``call (ret), f, (a, b)``."""

    elements: tuple[Operand, ...]


class Pair(NamedTuple):
    """``%p1|%p2``: the two destinations of setp, shfl and friends."""

    first: Operand
    second: Operand


class Negated(NamedTuple):
    """``!%p1`` as an operand."""

    operand: Operand


class Opaque(NamedTuple):
    """An operand the reader does not know; kept as written."""

    text: str


Operand = (
    Register | Special | Immediate | Symbol | Address | Vector | Group | Pair | Negated | Opaque
)


def parts(operand: Operand) -> Iterator[Operand]:
    """The operand, and the operands that it is made of; what an address is made of is not."""
    yield operand
    inside: tuple[Operand, ...] = ()
    if isinstance(operand, Vector | Group):
        inside = operand.elements
    elif isinstance(operand, Pair):
        inside = operand.first, operand.second
    elif isinstance(operand, Negated):
        inside = (operand.operand,)
    for each in inside:
        yield from parts(each)


def place_of(operand: Operand) -> tuple[str, int] | None:
    """The variable that an address is counted from, and the bytes from there; else ``None``."""
    if isinstance(operand, Address) and isinstance(operand.base, Symbol):
        return operand.base.name, operand.base.offset + operand.offset
    return None


# --- instructions ---------------------------------------------------------------


class Location(NamedTuple):
    """A ``.loc`` directive: source ``file`` (index into ``Module.files``), line, column."""

    file: int
    line: int
    column: int


class Instruction(NamedTuple):
    """One PTX instruction.

    ``opcode`` is the whole dotted name (``ld.global.v4.f32``). ``predicate`` is the guard
    register's name or ``None``; ``negated`` tells ``@!%p1``. ``operands`` are in the order
    written (destination first). ``position`` is its index in ``Body.instructions``.
    """

    position: int
    line: int
    column: int
    opcode: str
    operands: tuple[Operand, ...]
    predicate: str | None
    negated: bool
    location: Location | None

    @property
    def base(self) -> str:
        """The first part of the opcode: ``ld`` of ``ld.global.v4.f32``."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The dotted parts after the first: ``("global", "v4", "f32")``."""
        return tuple(self.opcode.split(".")[1:])


class Label(NamedTuple):
    """A label. ``target`` is the index of the instruction after it (may equal their number).

    ``name`` is unique in its function: one that an inner scope repeats has ``@<scope>``.
    """

    name: str
    line: int
    target: int


class RegisterDeclaration(NamedTuple):
    """``.reg .b32 %r<12>``: ``length`` registers ``%r0..%r11`` (1 for a plain name)."""

    type: str
    name: str
    length: int


class Variable(NamedTuple):
    """A variable; ``space`` is shared, global, const, local, param or tex.

    ``elements`` is 0 for an unsized array (``.extern .shared .b8 s[]``); ``bytes`` is its size.
    ``initializer`` is the text after ``=``, if any.
    """

    name: str
    space: str
    type: str
    elements: int
    bytes: int
    align: int
    external: bool = False
    initializer: str | None = None
    line: int = 0


class Parameter(NamedTuple):
    """A parameter of an entry or function. ``is_pointer``: declared ``.ptr``."""

    name: str
    type: str
    elements: int
    bytes: int
    align: int
    is_pointer: bool = False


@dataclass(frozen=True)
class Body:
    """A function's body in depth.

    ``labels`` are in text order. ``branch_tables`` maps a ``.branchtargets`` or
    ``.calltargets`` label to its names. ``variables`` are those declared inside. ``limits``
    hold for what is made of the body. ``not_unrolled`` are the instructions that a pragma nounroll
    stands before: the first of a loop that ptxas leaves as it is (PTX ISA, nounroll).
    """

    instructions: tuple[Instruction, ...]
    labels: tuple[Label, ...]
    registers: tuple[RegisterDeclaration, ...]
    variables: tuple[Variable, ...]
    branch_tables: Mapping[str, tuple[str, ...]]
    diagnostics: tuple[Diagnostic, ...]
    limits: SizeLimits = DEFAULT_LIMITS
    not_unrolled: frozenset[int] = frozenset()


@dataclass(eq=False)
class Function:
    """A ``.entry`` or ``.func``; compared by identity.

    ``directives`` holds performance directives, e.g. ``{"maxntid": (256, 1, 1)}``.
    ``declaration`` tells a prototype without a body, for which ``body`` is empty.
    """

    name: str
    is_entry: bool
    declaration: bool
    line: int
    column: int
    parameters: tuple[Parameter, ...]
    returns: tuple[Parameter, ...]
    directives: Mapping[str, tuple[int, ...]]
    parse: Callable[[], Body] = field(repr=False)

    @cached_property
    def demangled(self) -> str:
        """The C++ declaration (``void scale<float>(float*, int)``), else the name itself."""
        return demangle(self.name)

    @cached_property
    def body(self) -> Body:
        """The body, parsed on first use. Raises PtxError if it is not PTX."""
        return self.parse()


@dataclass(eq=False)
class Module:
    """One PTX file. ``files`` maps ``.file`` indices to names; ``text`` is the source."""

    text: str = field(repr=False)
    version: tuple[int, int] | None
    target: str | None
    address_size: int
    functions: tuple[Function, ...]
    variables: tuple[Variable, ...]
    files: Mapping[int, str]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def kernels(self) -> tuple[Function, ...]:
        """The entries, in text order."""
        return tuple(f for f in self.functions if f.is_entry and not f.declaration)

    def function(self, name: str) -> Function | None:
        """The function defined under a mangled name, else its declaration, else ``None``."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Function]:
        found: dict[str, Function] = {}
        for one in self.functions:
            known = found.setdefault(one.name, one)
            if known.declaration and not one.declaration:
                found[one.name] = one
        return found

    def kernel(self, name: str | None = None) -> Function:
        """The kernel of a mangled or demangled name; with ``None``, the only one.

        A demangled name may be given with or without its parameter list
        (``scale<float>(float*, int)`` or ``scale<float>`` or ``scale``), if it is unambiguous.
        Raises KernelError: no kernel, several and none named, unknown or ambiguous name.
        """
        kernels = self.kernels
        if not kernels:
            raise KernelError("the PTX has no kernel (.entry)", known=[])
        if name is None:
            if len(kernels) > 1:
                known = _readable(kernels)
                raise KernelError(
                    f"the PTX holds {len(kernels)} kernels; name one (--kernel): {_some(known)}",
                    known=known,
                )
            return kernels[0]
        wanted = name.strip()
        exact = [kernel for kernel in kernels if kernel.name == wanted]
        if exact:
            return exact[0]
        # A C++ name is found in the mangled one, so only a few need to be demangled.
        bare = _bare(wanted)
        likely = [kernel for kernel in kernels if bare in kernel.name]
        for form in (str, _head, _unqualified, _bare):
            found = [k for k in likely if _squeeze(form(k.demangled)) == _squeeze(wanted)]
            if len(found) == 1:
                return found[0]
            if found:
                names = _readable(tuple(found))
                raise KernelError(
                    f"kernel name {excerpt(wanted)!r} fits {_some(names)}", known=names
                )
        known = _readable(kernels)
        raise KernelError(
            f"no kernel {excerpt(wanted)!r}; the PTX holds: {_some(known)}", known=known
        )


MOST_NAMES = 100
"""Kernels that an error lists by name; demangling takes a tenth of a millisecond each."""


def _readable(kernels: tuple[Function, ...]) -> list[str]:
    """Demangled names; mangled where two would read the same."""
    kernels = kernels[:MOST_NAMES]
    names = [kernel.demangled for kernel in kernels]
    twice = Counter(names)
    return [
        name if twice[name] == 1 else kernel.name
        for kernel, name in zip(kernels, names, strict=True)
    ]


def _some(names: list[str], most: int = 8) -> str:
    """They in a line, without their parameters where that is enough to name them."""
    heads = Counter(map(_head, names))
    names = [head if heads[head := _head(name)] == 1 else name for name in names]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


_ARGUMENT = re.compile(
    r"(?<=[<,])(?:\((?:bool|(?:unsigned)?(?:char|short|int|long|longlong))\))?"
    r"(?:(true)|(false)|(n|-)?(\d+)[uUlL]*)(?=[,>])"
)


def _squeeze(name: str) -> str:
    """Without blanks, and template arguments as bare numbers: ``32`` for ``(int)32`` and ``32u``,
    ``1`` for ``true``; sources, profilers and demanglers write them differently."""
    return _ARGUMENT.sub(_bare_number, "".join(name.split()))


def _bare_number(argument: re.Match[str]) -> str:
    yes, no, minus, digits = argument.groups()
    return "1" if yes else "0" if no else ("-" if minus else "") + digits


def _head(demangled: str) -> str:
    """Without the parameter list: ``void f<int>(int*)`` -> ``f<int>``."""
    depth = 0
    for position, char in enumerate(demangled):
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif char == "(" and depth == 0 and position:
            demangled = demangled[:position]
            break
    depth = 0
    for position in range(len(demangled) - 1, -1, -1):
        char = demangled[position]
        if char in ">)":
            depth += 1
        elif char in "<(":
            depth -= 1
        elif char == " " and depth == 0:
            return demangled[position + 1 :]
    return demangled


def _unqualified(demangled: str) -> str:
    """Without parameters and namespaces: ``a::f<b::T>(int*)`` -> ``f<b::T>``."""
    name, bracket, arguments = _head(demangled).partition("<")
    return name.rpartition("::")[2] + bracket + arguments


def _bare(demangled: str) -> str:
    """Without parameters, template arguments and namespaces: ``a::f<int>(int*)`` -> ``f``."""
    head = _head(demangled)
    return head.partition("<")[0].rpartition("::")[2]


def excerpt(text: str, most: int = 60) -> str:
    """One line of at most ``most`` characters, for a message."""
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else words[: most - 3] + "..."


def filled_by_host(module: Module) -> tuple[Variable, ...]:
    """Variables of a module that only the host can fill: constant memory without an initializer,
    and what texture and surface references are bound to."""
    return tuple(
        variable
        for variable in module.variables
        if variable.type in ("texref", "surfref")
        or (variable.space == "const" and not variable.initializer)
    )
