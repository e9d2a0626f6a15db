"""Kernel arguments of a request: by position, PTX or C name to position, and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from wattcast.features import errors, launch
from wattcast.features.cuda.passed import Passed
from wattcast.features.cuda.source import closing_of, code_alone, parts_of, word_before
from wattcast.features.dataflow import argument_name, arguments_of
from wattcast.features.ptx.ir import Function, Module, Parameter, excerpt, filled_by_host
from wattcast.predictor.messages import KernelParameter

# Parameter names of the kernels in CUDA source: ``__global__ void scale(float* x, int n)``.
#
# A small scan of the text, no parser: names from macros are not seen. The compiler keeps the
# order of the parameters, so a name found here is a position there.


class KernelNames(NamedTuple):
    """A kernel as the source writes it; a parameter without a name is ``None``."""

    kernel: str
    parameters: tuple[str | None, ...]
    defined: bool


_GLOBAL = re.compile(r"\b__global__\b")
_CALL = re.compile(
    r"__(?:launch_bounds|attribute|cluster_dims|maxnreg|block_size)__|__declspec|alignas|decltype|"
    r"noexcept|requires"
)
"""Words before a kernel's name that take parentheses of their own."""

_QUALIFIER = re.compile(r"const|volatile|typename|(?:__)?restrict(?:__)?|__grid_constant__")
_NO_NAME = re.compile(
    r"void|bool|char|short|int|long|float|double|signed|unsigned|auto|struct|class|enum|union"
)
_TAG = re.compile(r"::|struct|class|enum|union")
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|\S")
_END_OR_OPENING = re.compile(r"[({;}]")
_NEXT = re.compile(r"\s*(\S)")

MOST_KERNELS = 256
_MOST_TEXT = 8192
"""Kernels read of one source and characters of one list: text behind ``#if 0`` may be anything."""

_MOST_PART = 1024
"""Characters of one parameter: its patterns take time with the square of them."""


def kernel_names(source: str) -> tuple[KernelNames, ...]:
    """Every ``__global__`` function of the source, in its order."""
    text = code_alone(source)
    found = (_read(text, match.end()) for match in islice(_GLOBAL.finditer(text), MOST_KERNELS))
    return tuple(kernel for kernel in found if kernel is not None)


def example_instance(source: str, kernel: str) -> str:
    """An instance of a template kernel that its parameters allow: ``a::f<256, float>``."""
    before = _before(source, kernel)
    inside = _TEMPLATE.search(re.split(r"[{};]", before[-_MOST_PART:])[-1])
    parameters = inside and parts_of(inside[1], angles=True)
    kinds = [_EXAMPLE.match(each) for each in parameters or ("int", "class")]
    size = "256" if kinds.count(None) < 2 else "16"  # a block, or a tile's sides
    names = (size if each is None else _KINDS[each.lastgroup or "other"] for each in kinds)
    return f"{_inside(before)}{kernel}<{', '.join(names)}>"


def qualified(source: str, instance: str) -> str:
    """An instance of a template kernel with the namespaces that the kernel is declared in."""
    kernel = instance.partition("<")[0].strip()
    return f"{_inside(_before(source, kernel)) if kernel.isidentifier() else ''}{instance}"


def _before(source: str, kernel: str) -> str:
    """The source up to the declaration of a kernel."""
    return re.split(rf"\b{kernel}\s*\(", code_alone(source), maxsplit=1)[0]


def _inside(before: str) -> str:
    """The namespaces open at the end of a text: ``a::b::``."""
    opened: list[str] = []
    for found in _BRACE.finditer(before):
        if found[0] != "}":
            opened.append(found[1] or "")
        elif opened:
            opened.pop()
    return "".join(f"{name}::" for name in opened if name)


_BRACE = re.compile(r"(?:\bnamespace\s+([\w:]+)\s*)?\{|\}")
_TEMPLATE = re.compile(r"\btemplate\s*<(.*?)>\s*(?:__\w+__|static|inline|void)\b", re.DOTALL)
_EXAMPLE = re.compile(
    r"\s*(?:const\s+)?(?:(?P<flag>bool)\b|(?:typename|class)\s+(?P<place>\w*(?i:index|idx|offset))|"
    r"(?:typename|class)\b)"
)
_KINDS = {"flag": "true", "place": "int", "other": "float"}
"""What an instance may have: a type by which arrays are indexed is no float."""


def _read(text: str, start: int) -> KernelNames | None:
    """The kernel whose declaration goes on at ``start``."""
    end = start + _MOST_TEXT
    while True:
        opening = _END_OR_OPENING.search(text, start, end)
        if opening is None or opening[0] != "(":
            return None
        closing = closing_of(text, opening.start(), _MOST_TEXT)
        if closing is None:
            return None
        word = word_before(_without_template(text[start : opening.start()]))
        if not word or _CALL.fullmatch(word):
            start = closing + 1
            continue
        following = _NEXT.match(text, closing + 1)
        inside = text[opening.end() : closing]
        return KernelNames(word, _parameters(inside), following is not None and following[1] == "{")


def _without_template(before: str) -> str:
    """``void f<Pair<int>>`` without the arguments that end it: ``void f``."""
    stripped = before.rstrip()
    if not stripped.endswith(">"):
        return before
    depth = 0
    for position in range(len(stripped) - 1, -1, -1):
        depth += {">": 1, "<": -1}.get(stripped[position], 0)
        if depth == 0:
            return stripped[:position]
    return before


def _parameters(inside: str) -> tuple[str | None, ...]:
    parts = parts_of(inside, angles=True)
    if parts is None:  # a default value such as (a < b), outside parentheses
        parts = parts_of(inside, angles=False) or []
    parts = [part for part in parts if part.strip()]
    if len(parts) == 1 and parts[0].strip() == "void":
        return ()
    return tuple(_name(part) for part in parts)


def _name(part: str) -> str | None:
    """The declared name of one parameter: ``const Pair<int> *x[4] = 0`` -> ``x``."""
    if len(part) > _MOST_PART:
        return None
    declared = re.split(r"(?<![=!<>])=(?!=)", part, maxsplit=1)[0]
    inner = re.search(r"\(\s*[*&]+\s*(?:const\s+)?([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*\)", declared)
    if inner is not None:  # a pointer to a function or an array
        return inner[1]
    declared = re.sub(
        r"\[[^\]]*\]|\b(?:alignas|__align__|__attribute__)\s*\(+[^()]*\)+", " ", declared
    )
    tokens = [token for token in _TOKEN.findall(declared) if not _QUALIFIER.fullmatch(token)]
    if len(tokens) < 2 or not re.match(r"[A-Za-z_]", tokens[-1]):
        return None
    # One word alone is the type; after :: it still is.
    nameless = _NO_NAME.fullmatch(tokens[-1]) or _TAG.fullmatch(tokens[-2])
    return None if nameless else tokens[-1]


FIELD = "arguments"

_NUMBER = re.compile(r"([usbf])(8|16|32|64)")
_POSITION = re.compile(r"0|[1-9]\d{0,5}")

_MOST_LISTED = 16
_MOST_DESCRIBED = 256
"""Parameters that an error lists in its sentence and in ``parameters``."""


def by_position(
    function: Function,
    given: Mapping[str, launch.Argument],
    kernels: Sequence[KernelNames] = (),
    module: Module | None = None,
) -> dict[str, launch.Argument]:
    """The arguments with positions as names, in order, then what is told of the ``module``'s
    variables that the host fills, by their names in the PTX.

    ``kernels`` are those of the CUDA source, for C names. Raises LaunchError (with the
    parameters) for a name that no parameter or more than one has, for one that is given twice,
    and for a value that does not fit the parameter's type.
    """
    if not given:
        return {}
    names = c_names(function, kernels)
    numbers = arguments_of(function)
    found: dict[tuple[int, int], launch.Argument] = {}
    variables: dict[str, launch.Argument] = {}
    for key, value in given.items():
        hosted = () if module is None else (one.name for one in filled_by_host(module))
        variable = next((name for name in hosted if name == key or _is_mangled(name, key)), None)
        if variable is not None and isinstance(value, launch.PointerHint):
            variables[variable] = value
            continue
        head, plus, inside = key.removesuffix("+0").partition("+")
        position = _position(function, head, names, kernels)
        one = function.parameters[position]
        if plus and one.name + plus + inside not in numbers:
            raise _error(f"no number {excerpt(key)!r} that the kernel reads", function, names)
        if plus or not isinstance(value, launch.PointerHint):
            one = numbers.get(one.name + plus + inside, one)
        place = position, int(inside or 0)
        if place in found:
            told = f"argument {position}{plus}{inside} is given twice, also as {key!r}"
            raise _error(told, function, names)
        if (why := _misfit(value, one)) is not None:
            raise _error(f"argument {key!r} {why}", function, names)
        found[place] = value
    ordered = {argument_name(str(at), inside): found[at, inside] for at, inside in sorted(found)}
    return {**ordered, **variables}


def as_launched(
    function: Function, passed: Mapping[str, Mapping[int, Passed]]
) -> dict[str, Passed]:
    """Whole numbers that the source's own launches pass to integer parameters, by position."""
    from wattcast.features.execution.arguments import integers

    names = (name for name in passed if name == function.name or _is_mangled(function.name, name))
    told = passed.get(next(names, ""), {})
    largest = [
        -1 if _is_array(one) else integers(function).get(one.name, -1)
        for one in function.parameters
    ]
    return {
        str(at): one
        for at, one in sorted(told.items())
        if at < len(largest) and one.value <= largest[at]
    }


def described(function: Function, names: Sequence[str | None]) -> list[KernelParameter]:
    """Every parameter as answers and problems tell it, of a structure by value the numbers read."""
    places = {one.name: (at, names[at]) for at, one in enumerate(function.parameters)}
    found = []
    for one in arguments_of(function).values():
        head, plus, inside = one.name.partition("+")
        at, name = places[head]
        c_name = None if name is None else name + plus + inside
        found.append(
            KernelParameter(position=at, ptx_name=one.name, c_name=c_name, type=_type(one))
        )
    return found


def c_names(function: Function, kernels: Sequence[KernelNames]) -> tuple[str | None, ...]:
    """C names of the parameters; ``None`` where the source does not tell, or tells two."""
    candidates = _candidates(function, kernels)
    columns = zip(*candidates, strict=True) if candidates else [()] * len(function.parameters)
    told = [{name for name in column if name is not None} for column in columns]
    return tuple(said.pop() if len(said) == 1 else None for said in told)


def _candidates(function: Function, kernels: Sequence[KernelNames]) -> list[tuple[str | None, ...]]:
    """Parameter lists in the source that may be this kernel's: same name, same length.
    What is only declared counts where nothing is defined."""
    fitting = [
        kernel
        for kernel in kernels
        if len(kernel.parameters) == len(function.parameters)
        and (function.name == kernel.kernel or _is_mangled(function.name, kernel.kernel))
    ]
    return [k.parameters for k in fitting if k.defined] or [k.parameters for k in fitting]


def _is_mangled(mangled: str, name: str) -> bool:
    """Whether ``name`` was mangled so (Itanium ABI, 5.1.3: a source name is its length and itself);
    ``extern "C"`` leaves it as it is."""
    return mangled.startswith("_Z") and bool(
        re.search(rf"(?<!\d){len(name)}{re.escape(name)}", mangled)
    )


def _position(
    function: Function, key: str, names: Sequence[str | None], kernels: Sequence[KernelNames]
) -> int:
    if _POSITION.fullmatch(key) and int(key) < len(function.parameters):
        return int(key)
    for position, parameter in enumerate(function.parameters):
        if parameter.name == key:
            return position
    found = [position for position, name in enumerate(names) if name == key]
    if len(found) == 1:
        return found[0]
    if any(key in candidate for candidate in _candidates(function, kernels)):
        raise _error(
            f"argument name {excerpt(key)!r} is ambiguous: the source holds several kernels of "
            "this name; use the position",
            function,
            names,
        )
    raise _error(f"no parameter {excerpt(key)!r}", function, names)


def _error(what: str, function: Function, names: Sequence[str | None]) -> errors.LaunchError:
    parameters = described(function, names)
    listed = ", ".join(
        " ".join(
            str(part) for part in (p["position"], p["c_name"], p["ptx_name"]) if part is not None
        )
        + f" ({p['type']})"
        for p in parameters[:_MOST_LISTED]
    )
    rest = len(parameters) - _MOST_LISTED
    more = f" and {rest} more" if rest > 0 else ""
    return errors.LaunchError(
        f"{what}; {excerpt(function.demangled)} takes: {listed or 'no arguments'}{more}",
        field=FIELD,
        parameters=parameters[:_MOST_DESCRIBED],
    )


def _type(parameter: Parameter) -> str:
    return f"{parameter.type}[{parameter.elements}]" if _is_array(parameter) else parameter.type


def _is_array(parameter: Parameter) -> bool:
    number = _NUMBER.fullmatch(parameter.type)
    return number is not None and parameter.bytes != int(number[2]) // 8


def _misfit(value: launch.Argument, parameter: Parameter) -> str | None:
    """What keeps a value from being an argument for the parameter, if anything does."""
    number = _NUMBER.fullmatch(parameter.type)
    if number is None or (_is_array(parameter) and not isinstance(value, launch.PointerHint)):
        return f"is no number but {_type(parameter)}; leave it out"
    kind, bits = number[1], int(number[2])
    if isinstance(value, launch.PointerHint):
        # A structure by value may hold pointers: the hint is for the first.
        fits = kind != "f" and parameter.bytes >= 8
        return None if fits else f"is no pointer but {_type(parameter)}"
    if kind == "f" or (kind == "b" and isinstance(value, float)):
        return None  # an untyped parameter may hold a floating-point number
    if isinstance(value, float) and not value.is_integer():
        return f"is {value:g}, but {parameter.type} takes whole numbers"
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        return f"is {value}, which does not fit {parameter.type}"
    return None
