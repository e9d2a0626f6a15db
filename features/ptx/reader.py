"""``read_module``: one fast scan of PTX text for its functions and variables.

Bodies are stepped over by matching braces and parsed when first asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import NoReturn

from wattcast.features.errors import DEFAULT_LIMITS, PtxError, SizeLimits, checkpoint
from wattcast.features.ptx import declarations
from wattcast.features.ptx.body import parse_body
from wattcast.features.ptx.declarations import SPACES, DeclarationError
from wattcast.features.ptx.ir import Body, Function, Module, Parameter, Variable, excerpt
from wattcast.features.ptx.lexing import NAME, PIECE_CHARACTERS, Diagnostics, Source, decode
from wattcast.features.ptx.operands import UnreadableError

_SPACE = re.compile(r"\s*+")
_SPACE_OR_SEMICOLON = re.compile(r"[\s;]*+")
_WORD = re.compile(r"\s*+\.([A-Za-z_][A-Za-z0-9_]*+)")
_VERSION = re.compile(r"\s++([0-9]{1,4})\.([0-9]{1,4})")
_TARGET = re.compile(r"\s++([A-Za-z0-9_]++(?:\s*+,\s*+[A-Za-z0-9_]++)*+)")
_INTEGER = re.compile(r"\s++([0-9]{1,9})")
_FILE = re.compile(r'\s++([0-9]{1,9})\s++"([^"]*+)"(?:\s*+,\s*+[0-9]++\s*+,\s*+[0-9]++)?')
_LOC = re.compile(
    r"\s++[0-9]++\s++[0-9]++\s++[0-9]++(?:\s*+,\s*+function_name\s++[A-Za-z0-9_$.]++"
    r"(?:\s*+\+\s*+[0-9]++)?\s*+,\s*+inlined_at\s++[0-9]++\s++[0-9]++\s++[0-9]++)?"
)
_PARENTHESIS = re.compile(r"\s*+\(((?:[^()]|\([^()]*+\))*+)\)")
_OPENING = re.compile(r"\s*+\(")
_FUNCTION_NAME = re.compile(rf"\s*+({NAME})")
_TUNING = re.compile(
    r"\s*+\.([A-Za-z_][A-Za-z0-9_]*+)"
    r'(\s*+"[^"]*+"(?:\s*+,\s*+"[^"]*+")*+\s*+;?|\s*+\((?:[^()]|\([^()]*+\))*+\)|\s*+(?:0[xX][0-9a-fA-F]++|[0-9]++)'
    r"(?:\s*+,\s*+[0-9]++)*+)?"
)
_STOP = re.compile(r"[{;\n]")
_INT = re.compile(r"0[xX][0-9a-fA-F]{1,16}|(?!0[0-9])[0-9]{1,18}")
_LINKAGE = frozenset({"visible", "extern", "weak", "common", "internal"})
_KNOWN_TUNING = frozenset(
    {
        "maxntid", "minnctapersm", "maxnctapersm", "maxnreg", "reqntid", "reqnctapercluster",
        "explicitcluster", "maxclusterrank", "noreturn", "pragma", "attribute", "unified",
        "blocksareclusters", "abi_preserve", "abi_preserve_control",
    }
)  # fmt: skip
# What cuobjdump prints around the PTX of an executable.
_BANNER = re.compile(
    r"(?:Fatbin |=+$|(?:arch|code version|producer|host|compile_size|identifier|cubin|ptxasOptions"
    r"|has debug info|compressed|debuggable|arch variant)\b)"
)
_VERSION_LINE = re.compile(r"^[ \t]*+\.version\b", re.MULTILINE)


def read_module(text: str | bytes, limits: SizeLimits = DEFAULT_LIMITS) -> Module:
    """Find the functions, variables and files of PTX text; bodies are parsed on first use.

    Several modules one after the other (as cuobjdump prints them) are read as one; of
    functions with the same name the first definition is kept. Raises PtxError (line and
    column of the text as sent) if the text is no PTX, TooComplexError where it, or later a body,
    is beyond ``limits``.
    """
    return _Scanner(decode(text), limits).read()


class _Scanner:
    def __init__(self, text: str, limits: SizeLimits) -> None:
        if not text.strip("\ufeff\0 \t\r\n\f\v"):
            raise PtxError("the text is empty", line=1)
        if text.startswith(("\x7fELF", "P\xedU\xba", "\x50\xed\x55\xba")):
            raise PtxError("this is a compiled binary (cubin or fatbin), not PTX text", line=1)
        self._source = Source(text, limits)
        self._limits = limits
        self._clean = self._source.clean
        self._tracker = self._source.tracker()
        self._diagnostics = Diagnostics()
        self._position = 0
        self._version: tuple[int, int] | None = None
        self._target: str | None = None
        self._address_size: int | None = None
        self._known: dict[str, Function] = {}
        self._variables: dict[str, Variable] = {}
        self._files: dict[int, str] = {}
        self._modules = 0

    @cached_property
    def _last_version(self) -> int:
        """Where the last module begins (one may stand behind lines that are none of its own)."""
        end = len(self._clean)
        while end > 0:  # in pieces: other threads run between two searches
            start = self._clean.rfind("\n", 0, max(0, end - PIECE_CHARACTERS)) + 1
            found = [match.start() for match in _VERSION_LINE.finditer(self._clean, start, end)]
            if found:
                return found[-1]
            end = start
        return -1

    def read(self) -> Module:
        clean, length = self._clean, len(self._clean)
        while True:
            space = _SPACE_OR_SEMICOLON.match(clean, self._position)
            self._position = space.end() if space else self._position
            if self._position >= length:
                break
            checkpoint()
            if clean[self._position] == ".":
                self._directive()
            else:
                self._stray()
        if not self._modules and not self._known:
            self._fail("this is not PTX: it has no .version and no function", 0)
        if not self._modules:
            self._diagnostics.add("missing_version", "no .version directive", self._tracker, 0)
        return Module(
            text=self._source.text,
            version=self._version,
            target=self._target,
            # PTX ISA 9.0, 11.1.3: 32 bits where a module does not say.
            address_size=self._address_size or (32 if self._modules else 64),
            functions=tuple(sorted(self._known.values(), key=lambda f: (f.line, f.column))),
            variables=tuple(self._variables.values()),
            files=self._files,
            diagnostics=self._diagnostics.result(),
        )

    # --- statements of the module -----------------------------------------------

    def _directive(self) -> None:
        start = self._position
        clean = self._clean
        position = start
        linkage: list[str] = []
        while True:
            found = _WORD.match(clean, position)
            if found is None:
                self._fail("a directive was expected here", position)
            word, position = found.group(1), found.end()
            if word in _LINKAGE:
                linkage.append(word)
            elif word == "attribute":
                attribute = _PARENTHESIS.match(clean, position)
                position = attribute.end() if attribute else position
            else:
                break
        if word in ("entry", "func"):
            self._function(start, position, word == "entry")
        elif word in SPACES or word in ("samplerref", "surfref", "texref", "align"):
            self._variable(start)
        elif word == "version":
            match = self._expect(_VERSION, position, "a version such as 8.0")
            self._modules += 1
            if self._version is None:
                self._version = int(match.group(1)), int(match.group(2))
        elif word == "target":
            match = self._expect(_TARGET, position, "a target such as sm_80")
            if self._target is None:
                self._target = match.group(1).split(",")[0].strip()
        elif word == "address_size":
            match = self._expect(_INTEGER, position, "32 or 64")
            if self._address_size is None:
                self._address_size = int(match.group(1))
        elif word == "file":
            match = self._expect(_FILE, position, "a number and a file name")
            name = self._source.text[match.start(2) : match.end(2)]
            self._files.setdefault(int(match.group(1)), name)
            self._hold_symbols(self._tracker.at(start)[0])
        elif word == "loc" and (loc := _LOC.match(clean, position)):
            self._position = loc.end()
        elif word in ("pragma", "alias"):
            self._position = self._semicolon(start, word)
        elif word == "section":
            self._position = self._block_or_line(position)
        else:
            self._position = self._block_or_line(position)
            line = excerpt(clean[start : start + 200].partition("\n")[0])
            self._complain("unknown_directive", f"directive {line!r} is not understood", start)

    def _expect(self, pattern: re.Pattern[str], position: int, what: str) -> re.Match[str]:
        match = pattern.match(self._clean, position)
        if match is None:
            self._fail(f"{what} was expected here", position)
        self._position = match.end()
        return match

    def _skip(self, position: int) -> int:
        space = _SPACE.match(self._clean, position)
        return space.end() if space else position

    def _semicolon(self, start: int, word: str) -> int:
        end = self._clean.find(";", start)
        if end < 0:
            self._fail(f"the .{word} that begins here has no semicolon", start)
        return end + 1

    def _block_or_line(self, position: int) -> int:
        """Behind the ``{ }`` that follows, else behind this line or its semicolon."""
        stop = _STOP.search(self._clean, position)
        if stop is None:
            return len(self._clean)
        if stop.group() == ";":
            return stop.end()
        brace = self._skip(stop.start())
        if self._clean[brace : brace + 1] != "{":
            return stop.end()
        return self._closing(brace, "a block '{'", brace) + 1

    def _closing(self, brace: int, what: str, began: int) -> int:
        """The brace that closes the one at ``brace``."""
        find = self._clean.find
        depth, opening, closing = 1, find("{", brace + 1), find("}", brace + 1)
        while closing >= 0:
            checkpoint()
            if 0 <= opening < closing:
                depth, opening = depth + 1, find("{", opening + 1)
                continue
            depth -= 1
            if not depth:
                return closing
            closing = find("}", closing + 1)
        depth += self._clean.count("{", opening) if opening >= 0 else 0
        line, _ = self._tracker.at(began)
        return self._fail(
            f"the text ends inside {what} that begins in line {line}; {depth} '}}' are missing",
            len(self._clean.rstrip()),
        )

    def _stray(self) -> None:
        """A line that is no directive: allowed before a module, as cuobjdump prints it."""
        start = self._position
        newline = self._clean.find("\n", start)
        end = newline if newline >= 0 else len(self._clean)
        line = self._source.text[start : min(end, start + 200)].strip()
        if _BANNER.match(line):
            self._position = end
            return
        before_module = not self._modules and not self._known
        if before_module and line[:1] != "<" and start < self._last_version:
            self._complain("text_before_version", f"skipped: {excerpt(line)!r}", start)
            self._position = end
            return
        if line.startswith("<"):
            self._fail(f"this is HTML or XML, not PTX: {excerpt(line)!r}", start)
        self._fail(f"this is not PTX: a directive was expected, not {excerpt(line)!r}", start)

    # --- functions and variables ---------------------------------------------------

    def _variable(self, start: int) -> None:
        self._position = self._semicolon(start, "declaration")
        line, _ = self._tracker.at(start)
        text = self._clean[start : self._position - 1]
        try:
            found = declarations.variables(text, line)
        except (DeclarationError, UnreadableError) as error:
            lost = "; is a semicolon missing?" if "\n" in text else ""
            self._fail(f"{error} ({excerpt(text)!r}){lost}", start)
        for variable in found:
            known = self._variables.get(variable.name)
            if known is None or known.external:
                self._variables[variable.name] = variable
        self._hold_symbols(line)

    def _hold_symbols(self, line: int) -> None:
        found = len(self._known) + len(self._variables) + len(self._files)
        what = "functions, variables and files in the module"
        self._limits.hold("max_module_symbols", found, what, line)

    def _parameters(self, position: int) -> tuple[tuple[Parameter, ...], int, str]:
        match = _PARENTHESIS.match(self._clean, position)
        if match is None:
            if _OPENING.match(self._clean, position):
                self._fail("a parameter list is not closed", position)
            return (), position, ""
        try:
            return tuple(declarations.parameters(match.group(1))), match.end(), match.group(1)
        except (DeclarationError, UnreadableError) as error:
            self._fail(f"{error} ({excerpt(match.group(1))!r})", match.start(1))

    def _function(self, start: int, position: int, is_entry: bool) -> None:
        clean, kind = self._clean, ".entry" if is_entry else ".func"
        while not is_entry and (early := _TUNING.match(clean, position)):
            position = early.end()  # .func .attribute(...) (ret) name
        returns, position, out = self._parameters(position)
        named = _FUNCTION_NAME.match(clean, position)
        if named is None:
            self._fail(f"a name was expected after {kind}", position)
        name, position = named.group(1), named.end()
        parameters, position, taken = self._parameters(position)
        directives, position = self._tuning(position)
        line, column = self._tracker.at(start)
        began = f"{kind} {name} (line {line})"
        position = self._skip(position)
        opening = clean[position : position + 1]
        parse: Callable[[], Body]
        if opening == "{":
            end = self._closing(position, f"{kind} {name}", start)
            body_line, _ = self._tracker.at(position + 1)
            given = (
                *declarations.register_parameters(out),
                *declarations.register_parameters(taken),
            )
            parse = partial(
                parse_body, self._source, position + 1, end, body_line, began, given, self._files
            )
            self._position = end + 1
        elif opening == ";":
            parse = _no_body
            self._position = position + 1
        elif not opening:
            self._fail(f"the text ends inside the header of {began}", position)
        else:
            self._fail(f"'{{' or ';' was expected in {began}", position)
        self._add(
            Function(
                name=name,
                is_entry=is_entry,
                declaration=opening == ";",
                line=line,
                column=column,
                parameters=parameters,
                returns=returns,
                directives=directives,
                parse=parse,
            ),
            start,
        )

    def _tuning(self, position: int) -> tuple[dict[str, tuple[int, ...]], int]:
        """Performance-tuning directives between the parameters and the body."""
        directives: dict[str, tuple[int, ...]] = {}
        while match := _TUNING.match(self._clean, position):
            word, values = match.group(1), match.group(2) or ""
            if word not in _KNOWN_TUNING:
                self._complain(
                    "unknown_directive", f"directive .{word} is not understood", match.start(1) - 1
                )
            plain = '"' not in values and "(" not in values
            directives[word] = (
                tuple(int(value, 0) for value in _INT.findall(values)) if plain else ()
            )
            position = match.end()
        return directives, position

    def _add(self, function: Function, start: int) -> None:
        known = self._known.get(function.name)
        if known is None or (known.declaration and not function.declaration):
            self._known[function.name] = function
            self._hold_symbols(function.line)
        elif not function.declaration:
            self._complain(
                "duplicate_function",
                f"{function.name} is defined again; the definition in line {known.line} is used",
                start,
            )

    def _complain(self, code: str, detail: str, offset: int) -> None:
        self._diagnostics.add(code, detail, self._tracker, offset)

    def _fail(self, detail: str, offset: int) -> NoReturn:
        self._source.fail(detail, offset)


def _no_body() -> Body:
    return Body((), (), (), (), {}, ())
