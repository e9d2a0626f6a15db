"""A small reader of the PTX that nvcc and NVRTC print. Shares nothing with ``features.ptx``.

Only what compilers emit is understood; anything else raises ``InterpreterError``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field


class InterpreterError(Exception):
    """The interpreter cannot go on: unknown PTX, an access outside every buffer, a deadlock."""


@dataclass
class Operand:
    """``kind`` is reg, special, number, symbol, memory, list, pair, not or texture."""

    kind: str
    text: str = ""
    parts: list[Operand] = field(default_factory=list)
    offset: int = 0


@dataclass
class Instruction:
    """``line`` is 1-based in the PTX; ``index`` counts instructions within the function."""

    index: int
    line: int
    opcode: str
    guard: str | None
    negated: bool
    operands: list[Operand]
    scopes: tuple[int, ...]
    source_line: int


@dataclass
class Variable:
    space: str
    name: str
    align: int
    size: int
    data: bytes
    external: bool
    references: list[tuple[int, str, int]] = field(default_factory=list)  # offset, name, added


@dataclass
class Function:
    """``registers`` maps unique names to widths in bits (1 for predicates)."""

    name: str
    is_entry: bool
    parameters: list[Variable]
    returns: list[Variable]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    tables: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Program:
    functions: dict[str, Function]
    variables: list[Variable]


_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_LINE_DIRECTIVE = re.compile(r"\.(loc|file|version|target|address_size)\b[^\n]*")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_LABEL = re.compile(r"([\w$%.]+)\s*:(?!:)")
_FUNCTION = re.compile(
    r"\.(entry|func)\s*(?:\((?P<returns>[^)]*)\)\s*)?(?P<name>[\w$]+)\s*"
    r"(?:\((?P<parameters>[^)]*)\))?"
)
_VARIABLE = re.compile(
    r"\.(?P<space>global|const|shared|local|param)\b(?P<words>(?:\s*\.\w+|\s+\d+\b)*)\s+"
    r"(?P<name>[\w$%]+)\s*(?P<array>(?:\[\s*\d*\s*\])*)\s*(?:=\s*(?P<data>.*))?$",
    re.DOTALL,
)


def type_bytes(name: str) -> int:
    """Bytes of a fundamental type: 4 for ``f32`` or ``.b32``, 0 for ``pred``."""
    name = name.lstrip(".")
    if name == "pred":
        return 0
    if name in ("f16x2", "bf16x2"):
        return 4
    return _SIZES[re.sub(r"\D+", "", name, count=1)]


def parse_variable(text: str) -> Variable:
    found = _VARIABLE.search(text)
    if found is None:
        raise InterpreterError(f"unknown declaration: {text.strip()!r}")
    words = found["words"].replace(".", " ").split()
    # A pointer parameter's .align speaks of what it points to.
    own_align = "align" in words and "ptr" not in words
    align = int(words[words.index("align") + 1]) if own_align else 0
    kinds = [w for w in words if re.fullmatch(r"[usbf](8|16|32|64|128)", w)]
    size = unit = type_bytes(kinds[-1])
    for count in re.findall(r"\[\s*(\d*)\s*\]", found["array"]):
        size *= int(count or 0)
    data = bytearray(size)
    references = []
    values = (found["data"] or "").strip()
    for i, number in enumerate(split_commas(values.removeprefix("{").removesuffix("}"))):
        if re.match(r"[-\d]", number):
            bits = number_bits(number, kinds[-1])
            data[i * unit : (i + 1) * unit] = bits.to_bytes(unit, "little")
        else:  # the address of a function or variable, possibly generic(name)+offset
            name, added = _base_and_offset(number)
            references.append((i * unit, re.sub(r"^generic\((.*)\)$", r"\1", name), added))
    return Variable(
        found["space"],
        found["name"],
        align or unit,
        size,
        bytes(data),
        ".extern" in text,
        references,
    )


def number_bits(text: str, kind: str) -> int:
    """Bits of a literal used where ``kind`` (``s32``, ``f64``...) is wanted."""
    width = type_bytes(kind) * 8 or 1
    if re.match(r"0[fF][0-9a-fA-F]{8}$", text) or re.match(r"0[dD][0-9a-fA-F]{16}$", text):
        return int(text[2:], 16)
    text = text.rstrip("uU") if not text.lower().startswith("0x") else text.rstrip("U")
    return int(text, 0) & ((1 << width) - 1)


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets of any kind."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [p for p in parts if p]


class _Reader:
    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
        self.text = re.sub(r"//[^\n]*", "", text)
        self.at = 0
        self.newlines = [m.start() for m in re.finditer("\n", self.text)]
        self.program = Program({}, [])
        self.source_line = 0

    def line(self, at: int) -> int:
        return bisect_right(self.newlines, at - 1) + 1

    def skip_space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take_directive(self) -> bool:
        """Consume a directive that ends with its line, or a debug section."""
        found = _LINE_DIRECTIVE.match(self.text, self.at)
        if found:
            location = _LOC.match(found[0])
            if location:
                self.source_line = int(location[2]) if location[1] == "1" else self.source_line
            self.at = found.end()
            return True
        if self.text.startswith(".section", self.at):
            self.at = self.text.index("}", self.at) + 1
            return True
        return False

    def module(self) -> Program:
        while True:
            self.skip_space()
            if self.at >= len(self.text):
                return self.program
            if self.take_directive():
                continue
            end = re.compile(r"[;{]").search(self.text, self.at)
            if end is None:
                raise InterpreterError(f"line {self.line(self.at)}: unfinished statement")
            header = self.text[self.at : end.start()]
            if ".entry" in header or ".func" in header:
                self.at = end.end()
                self.function(header, has_body=end[0] == "{")
                continue
            stop = self.text.index(";", self.at)
            statement = self.text[self.at : stop]
            self.at = stop + 1
            if not statement.strip().startswith((".pragma", ".alias")):
                self.program.variables.append(parse_variable(statement))

    def function(self, header: str, *, has_body: bool) -> None:
        found = _FUNCTION.search(header)
        if found is None:
            raise InterpreterError(f"line {self.line(self.at)}: unknown function header")
        function = Function(
            found["name"],
            found[1] == "entry",
            [parse_variable(p) for p in split_commas(found["parameters"] or "")],
            [parse_variable(p) for p in split_commas(found["returns"] or "")],
        )
        if has_body:
            self.program.functions[function.name] = function
            self.body(function)

    def body(self, function: Function) -> None:
        scopes: list[int] = [0]
        names: list[dict[str, str]] = [{}]
        for variable in function.parameters + function.returns:
            names[0][variable.name] = variable.name
        scope_count = 1
        while scopes:
            self.skip_space()
            if self.take_directive():
                continue
            character = self.text[self.at]
            if character == "{":
                scopes.append(scope_count)
                names.append({})
                scope_count += 1
                self.at += 1
                continue
            if character == "}":
                scopes.pop()
                names.pop()
                self.at += 1
                continue
            if character == ";":
                self.at += 1
                continue
            label = _LABEL.match(self.text, self.at)
            if label:
                self.at = label.end()
                table = re.compile(r"\s*\.(branchtargets|calltargets|callprototype)\b([^;]*);")
                listed = table.match(self.text, self.at)
                if listed:
                    function.tables[label[1]] = split_commas(listed[2])
                    self.at = listed.end()
                else:
                    function.labels[scopes[-1], label[1]] = len(function.instructions)
                continue
            start = self.at
            stop = self.text.index(";", self.at)
            statement = self.text[start:stop].strip()
            self.at = stop + 1
            if statement.startswith("."):
                self.declare(function, statement, scopes[-1], names[-1])
            else:
                line = self.line(start)
                self.instruction(function, statement, line, tuple(scopes), names)

    def declare(self, function: Function, text: str, scope: int, names: dict[str, str]) -> None:
        if text.startswith((".pragma", ".maxntid", ".minnctapersm", ".noreturn")):
            return
        unique = (lambda name: f"{name}#{scope}") if scope else (lambda name: name)
        registers = re.match(r"\.reg\s*\.(\w+)\s+(.*)$", text, re.DOTALL)
        if registers:
            width = type_bytes(registers[1]) * 8 or 1
            for item in split_commas(registers[2]):
                many = re.match(r"([\w%$]+)<(\d+)>$", item)
                wanted = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [item]
                for name in wanted:
                    names[name] = unique(name)
                    function.registers[unique(name)] = width
            return
        variable = parse_variable(text)
        names[variable.name] = variable.name = unique(variable.name)
        function.variables.append(variable)

    def instruction(
        self,
        function: Function,
        text: str,
        line: int,
        scopes: tuple[int, ...],
        names: list[dict[str, str]],
    ) -> None:
        found = re.match(r"(?:@(!?)\s*([\w%$]+)\s+)?([\w.:]+)\s*(.*)$", text, re.DOTALL)
        if found is None:
            raise InterpreterError(f"line {line}: {text!r} is no instruction")
        known: dict[str, str] = {}
        for scope in names:
            known.update(scope)
        guard = known.get(found[2], found[2]) if found[2] else None
        operands = [self.operand(function, part, known) for part in split_commas(found[4])]
        function.instructions.append(
            Instruction(
                len(function.instructions), line, found[3], guard, found[1] == "!", operands,
                scopes, self.source_line,
            )
        )  # fmt: skip

    def operand(self, function: Function, text: str, known: dict[str, str]) -> Operand:
        def inner(part: str) -> Operand:
            return self.operand(function, part, known)

        text = text.strip()
        if text[0] in "{(":
            return Operand("list", parts=[inner(p) for p in split_commas(text[1:-1])])
        if text[0] == "[":
            pieces = split_commas(text[1:-1])
            if len(pieces) > 1:
                return Operand("texture", parts=[inner(p) for p in pieces])
            base, offset = _base_and_offset(pieces[0])
            return Operand("memory", parts=[inner(base)], offset=offset)
        if text[0] == "!":
            return Operand("not", parts=[inner(text[1:])])
        if "|" in text:
            return Operand("pair", parts=[inner(p) for p in text.split("|")])
        name = known.get(text, text)
        if name in function.registers:
            return Operand("reg", name)
        if text[0].isdigit() or (text[0] == "-" and text[1].isdigit()):
            return Operand("number", text)
        if text[0] == "%":
            return Operand("special", text)
        base, offset = _base_and_offset(text)
        return Operand("symbol", known.get(base, base), offset=offset)


def _base_and_offset(text: str) -> tuple[str, int]:
    found = re.match(r"(.*?)\s*([+-])\s*([+-]?\w+)$", text)
    if found is None or not found[1]:
        return text.strip(), 0
    return found[1].strip(), int(found[3], 0) * (-1 if found[2] == "-" else 1)


def parse(text: str) -> Program:
    """Functions with bodies and module-scope variables of ``text``."""
    return _Reader(text).module()
