"""A function's body: text between its braces -> ``Body``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from sys import intern
from types import MappingProxyType
from typing import NoReturn

from wattcast.features.errors import PtxError, checkpoint
from wattcast.features.ptx import declarations, ir
from wattcast.features.ptx.declarations import DeclarationError
from wattcast.features.ptx.lexing import NAME, Diagnostics, Source
from wattcast.features.ptx.operands import Names, Scopes, UnreadableError

MOST_OPCODE_CHARACTERS = 256
"""Longest opcode that is read; the longest of PTX ISA 9.0 (tensor copies) has some 150."""

MOST_SCOPES = 1000
"""Depth of nested blocks that is read; compilers print one or two."""

# The common case in one match. All quantifiers are possessive: nothing is tried twice.
_STATEMENT = re.compile(
    r"\s*+(?:(@\s*+(!?)\s*+([A-Za-z0-9_$%]++))\s*+)?"
    r"([A-Za-z_][A-Za-z0-9_]*+(?:(?:\.|::)[A-Za-z0-9_]++)*+)(?!\s*+:)[^\S\n]*+([^;]*+);"
)
_LOC = re.compile(
    r"\s*+\.loc\s++([0-9]{1,9})\s++([0-9]{1,9})\s++([0-9]{1,9})"
    r"(?:\s*+,\s*+function_name\s++[A-Za-z0-9_$.]++(?:\s*+\+\s*+[0-9]++)?"
    r"\s*+,\s*+inlined_at\s++([0-9]{1,9})\s++([0-9]{1,9})\s++([0-9]{1,9}))?(?:\s*+;)?"
)
_TOOLKIT = re.compile(r"(?:cuda[^/]*|nvidia/[^/]+)(?:/targets/[^/]+)?/include/")
"""Where CUDA's own headers lie: in an installed toolkit, or NVIDIA's wheels."""
_PATH_CHARACTERS = 300
"""Of the end of a path that are looked at: more than any of theirs has below its toolkit."""
_LABEL = re.compile(rf"({NAME})\s*+:(?!:)")
_DIRECTIVE = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*+)")
_SPACE = re.compile(r"\s*+")
_NAMES_LISTED = re.compile(NAME)
_LINE_OR_STATEMENT = re.compile(r"[;\n]")
_VARIABLE_SPACES = declarations.SPACES - {"reg"}
_TABLES = frozenset({"pragma", "callprototype", "branchtargets", "calltargets"})
_NO_OPERANDS: tuple[ir.Operand, ...] = ()
# These never have an operand: anything after them is a statement that lost its semicolon.
_ALONE = frozenset({"ret", "ret.uni", "exit", "trap", "brkpt"})


def parse_body(
    source: Source,
    start: int,
    end: int,
    line: int,
    began: str,
    given: tuple[ir.RegisterDeclaration, ...] = (),
    files: Mapping[int, str] = MappingProxyType({}),
) -> ir.Body:
    """Parse what stands between ``start``, behind the opening brace, and the closing one.

    ``line`` is the line of ``start``; ``began`` names the function in messages; ``given``
    are registers that its header declares. What is inlined from CUDA's own headers among ``files``
    stands where it is called. Raises PtxError, and TooComplexError beyond the limits of ``source``.
    """
    parser = _BodyParser(source, start, end, line, began, files)
    try:
        for register in given:
            parser.declare(register)
        return parser.parse()
    finally:
        vars(parser).clear()  # it and its scopes refer to each other: nothing waits for a collector


class _BodyParser:
    """Parses one body; used once."""

    def __init__(
        self,
        source: Source,
        start: int,
        end: int,
        line: int,
        began: str,
        files: Mapping[int, str],
    ) -> None:
        self._source = source
        self._start, self._end, self._line = start, end, line
        self._began = began
        self._files = files
        self._callers: dict[ir.Location, ir.Location] = {}
        self._tracker = source.tracker(start, line)
        self._diagnostics = Diagnostics()
        self._offset = start
        self._scopes = Scopes(self._complain)
        self._names: Names = self._scopes.names
        self._instructions: list[ir.Instruction] = []
        self._not_unrolled: set[int] = set()
        self._registers: list[ir.RegisterDeclaration] = []
        self._variables: list[ir.Variable] = []
        self._last_label: tuple[int, int] = (-1, -1)  # its number, and the offset behind it

    def declare(self, register: ir.RegisterDeclaration) -> None:
        """A register of the present block."""
        self._registers.append(self._scopes.declare(register))
        self._names = self._scopes.names

    def parse(self) -> ir.Body:
        """Parse all of it. Raises PtxError."""
        clean, end, newline = self._source.clean, self._end, "\n"
        match_statement, count, rfind = _STATEMENT.match, clean.count, clean.rfind
        instructions = self._instructions
        append, new = instructions.append, tuple.__new__
        position, counted, line = self._start, self._start, self._line
        line_start = self._source.text.rfind(self._source.newline, 0, position) + 1
        location: ir.Location | None = None
        names, lookup = self._names, self._names.__getitem__
        most_characters = self._source.limits.max_statement_characters
        turns = 0
        while True:
            turns += 1
            if not turns & 255:
                checkpoint()
                self._hold("max_kernel_instructions", len(instructions), "instructions", position)
            match = match_statement(clean, position, end)
            if match is None:
                loc = _LOC.match(clean, position, end)
                if loc is not None:
                    location = self._located(loc.groups()[:3], loc.groups()[3:])
                    position = loc.end()
                    continue
                position = self._other(position)
                if position < 0:
                    break
                names, lookup = self._names, self._names.__getitem__
                continue
            guard, bang, predicate, opcode, rest = match.groups()
            at = match.start(1) if guard else match.start(4)
            if breaks := count(newline, counted, at):
                line += breaks
                line_start = rfind(newline, counted, at) + 1
            counted = at
            if len(rest) > most_characters:
                self._hold("max_statement_characters", len(rest), "characters in one statement", at)
            if len(opcode) > MOST_OPCODE_CHARACTERS:
                self._fail(f"{ir.excerpt(opcode)!r} is not an opcode: it is too long", at)
            if rest and not rest.isspace():
                try:
                    pieces = rest.split(", ") if ", " in rest else rest.split(",")
                    operands = tuple(map(lookup, pieces))
                except KeyError:
                    self._offset = at
                    operands = self._operands(rest, opcode)
                if opcode in _ALONE:
                    self._fail(f"{opcode!r} has no operands; is a semicolon missing?", at)
            else:
                operands = _NO_OPERANDS
            if predicate is not None:
                register = names.get(predicate)
                if type(register) is not ir.Register:
                    register = names.name(predicate)
                predicate = register.name if isinstance(register, ir.Register) else predicate
            append(
                new(
                    ir.Instruction,
                    (
                        len(instructions),
                        line,
                        at - line_start + 1,
                        intern(opcode),
                        operands,
                        predicate,
                        bang == "!",
                        location,
                    ),
                )
            )
            position = match.end()
        return self._result()

    def _result(self) -> ir.Body:
        if self._scopes.depth:
            self._fail("a block '{' inside the body is not closed", self._end)
        self._hold("max_kernel_instructions", len(self._instructions), "instructions", self._end)
        instructions, labels, tables = self._scopes.finish(self._instructions)
        return ir.Body(
            instructions=tuple(instructions),
            labels=tuple(labels),
            registers=tuple(self._registers),
            variables=tuple(self._variables),
            branch_tables=tables,
            diagnostics=self._diagnostics.result(),
            limits=self._source.limits,
            not_unrolled=frozenset(self._not_unrolled),
        )

    def _hold(self, name: str, found: int, what: str, position: int) -> None:
        if found > getattr(self._source.limits, name):
            line, _ = self._tracker.at(position)
            self._source.limits.hold(name, found, f"{what} in {self._began}", line)

    def _operands(self, rest: str, opcode: str) -> tuple[ir.Operand, ...]:
        try:
            return self._names.read(rest)
        except UnreadableError as error:
            self._fail(f"{error} ({ir.excerpt(f'{opcode} {rest}')!r})", self._offset)

    def _other(self, position: int) -> int:
        """Anything but an instruction; where to go on, or -1 at the end of the body."""
        clean, end = self._source.clean, self._end
        space = _SPACE.match(clean, position, end)
        position = space.end() if space else position
        if position >= end:
            return -1
        self._offset = position
        char = clean[position]
        if char == ".":
            return self._directive(position)
        if char == "{":
            if self._scopes.depth >= MOST_SCOPES:
                self._fail(f"blocks are nested deeper than {MOST_SCOPES}", position)
            self._scopes.enter(len(self._instructions))
            self._names = self._scopes.names
            return position + 1
        if char == "}":
            if not self._scopes.depth:
                self._fail("'}' without its '{'", position)
            self._scopes.leave(len(self._instructions))
            self._names = self._scopes.names
            return position + 1
        if char == ";":
            return position + 1
        label = _LABEL.match(clean, position, end)
        if label is not None:
            line, _ = self._tracker.at(position)
            number = self._scopes.label(label.group(1), line, len(self._instructions))
            self._hold("max_kernel_labels", number, "labels", position)
            self._last_label = (number, label.end())
            return label.end()
        return self._unparsed(position)

    def _unparsed(self, position: int) -> int:
        """Neither instruction, directive nor label: skipped if one line holds all of it."""
        clean, end = self._source.clean, self._end
        semicolon = clean.find(";", position, end)
        newline = clean.find("\n", position, semicolon if semicolon >= 0 else end)
        what = ir.excerpt(clean[position : position + 200].partition("\n")[0])
        if semicolon < 0:
            self._fail(f"the statement {what!r} has no semicolon", position)
        if newline >= 0 or "{" in clean[position:semicolon]:
            self._fail(f"{what!r} is not a PTX statement", position)
        self._complain("unparsed_statement", f"statement {what!r} is not understood")
        return semicolon + 1

    def _located(self, here: Sequence[str], called: Sequence[str | None]) -> ir.Location:
        """The place that a ``.loc`` tells; of a header of CUDA's, where the code calls it."""
        location = ir.Location(*map(int, here))
        if called[0] is None:
            return location
        if location not in self._callers:
            name = self._files.get(location.file, "")[-_PATH_CHARACTERS:]
            if not _TOOLKIT.search(name):
                return location
        caller = ir.Location(*(int(one) for one in called if one))
        self._callers[location] = self._callers.get(caller, caller)
        return self._callers[location]

    def _directive(self, position: int) -> int:
        clean, end = self._source.clean, self._end
        found = _DIRECTIVE.match(clean, position, end)
        word = found.group(1) if found else ""
        if word == "loc":
            # One that _LOC does not know: only its place in the source is lost.
            self._complain("unknown_directive", "this .loc is not understood")
            return self._line_end(position)
        known = word in _TABLES or word == "reg" or word in _VARIABLE_SPACES
        if not known:
            # To the end of the line or statement, whichever comes first: lines may be long.
            stop = _LINE_OR_STATEMENT.search(clean, position, end)
            shown = ir.excerpt(clean[position : position + 200].partition("\n")[0])
            self._complain("unknown_directive", f"directive {shown!r} is not understood")
            if stop is None:
                return end
            return stop.end() if stop.group() == ";" else stop.start()
        semicolon = clean.find(";", position, end)
        if word in ("pragma", "callprototype"):
            if semicolon < 0:
                self._fail(f".{word} has no semicolon", position)
            if word == "callprototype":
                self._table_label(position)
            elif "nounroll" in self._source.text[position:semicolon]:
                self._not_unrolled.add(len(self._instructions))
            return semicolon + 1
        if word in ("branchtargets", "calltargets"):
            if semicolon < 0:
                self._fail(f".{word} has no semicolon", position)
            label = self._table_label(position)
            self._hold(
                "max_kernel_edges", clean.count(",", position, semicolon), "targets", position
            )
            listed = _NAMES_LISTED.findall(clean, position + 1 + len(word), semicolon)
            if label is not None:
                self._scopes.table(label, tuple(listed))
            return semicolon + 1
        if semicolon < 0:
            self._fail(f"the .{word} declaration has no semicolon", position)
        text = clean[position:semicolon]
        try:
            if word == "reg":
                number = len(self._registers) + text.count(",")
                self._hold("max_kernel_instructions", number, "declarations", position)
                for register in declarations.registers(text):
                    self.declare(register)
            else:
                line, _ = self._tracker.at(position)
                number = len(self._variables)
                self._hold("max_kernel_instructions", number, "declarations", position)
                self._variables.extend(declarations.variables(text, line))
        except (DeclarationError, UnreadableError) as error:
            lost = "; is a semicolon missing?" if "\n" in text else ""
            self._fail(f"{error} ({ir.excerpt(text)!r}){lost}", position)
        return semicolon + 1

    def _line_end(self, position: int) -> int:
        newline = self._source.clean.find("\n", position, self._end)
        return newline if newline >= 0 else self._end

    def _table_label(self, position: int) -> str | None:
        """Take back the label before a table: it names the table, not an instruction."""
        number, after = self._last_label
        if number < 0 or self._source.clean[after:position].strip():
            self._complain("unknown_directive", "a table of targets without a label")
            return None
        self._last_label = (-1, -1)
        return self._scopes.take_back_label()

    def _complain(self, code: str, detail: str) -> None:
        self._diagnostics.add(code, detail, self._tracker, self._offset)

    def _fail(self, detail: str, offset: int) -> NoReturn:
        line, column = self._tracker.at(offset)
        raise PtxError(f"{detail}; in {self._began}", line=line, column=column)
