"""Kernel arguments of a request: by position, PTX or C name to position, and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from wattcast.features.errors import LaunchError
from wattcast.features.launch import Argument, PointerHint
from wattcast.features.ptx.ir import Function, Module, Parameter, excerpt, filled_by_host
from wattcast.predictor.messages import KernelParameter
from wattcast.predictor.parts.cuda_names import KernelNames

FIELD = "arguments"

_NUMBER = re.compile(r"([usbf])(8|16|32|64)")
_POSITION = re.compile(r"0|[1-9]\d{0,5}")

_MOST_LISTED = 16
_MOST_DESCRIBED = 256
"""Parameters that an error lists in its sentence and in ``parameters``."""


def by_position(
    function: Function,
    given: Mapping[str, Argument],
    kernels: Sequence[KernelNames] = (),
    module: Module | None = None,
) -> dict[str, Argument]:
    """The arguments with positions as names, in order, then what is told of the ``module``'s
    variables that the host fills, by their names in the PTX.

    ``kernels`` are those of the CUDA source, for C names. Raises LaunchError (with the
    parameters) for a name that no parameter or more than one has, for one that is given twice,
    and for a value that does not fit the parameter's type.
    """
    if not given:
        return {}
    names = c_names(function, kernels)
    found: dict[int, Argument] = {}
    variables: dict[str, Argument] = {}
    for key, value in given.items():
        variable = None if module is None else _variable(module, key)
        if variable is not None and isinstance(value, PointerHint):
            variables[variable] = value
            continue
        position = _position(function, key, names, kernels)
        if position in found:
            raise _error(f"argument {position} is given twice, also as {key!r}", function, names)
        if (why := _misfit(value, function.parameters[position])) is not None:
            raise _error(f"argument {key!r} {why}", function, names)
        found[position] = value
    return {**{str(position): found[position] for position in sorted(found)}, **variables}


def _variable(module: Module, key: str) -> str | None:
    """The variable of constant memory, or texture reference, that is called ``key`` in C."""
    names = [variable.name for variable in filled_by_host(module)]
    return next((name for name in names if name == key or _is_mangled(name, key)), None)


def described(function: Function, names: Sequence[str | None]) -> list[KernelParameter]:
    """Every parameter as answers and problems tell it."""
    return [
        KernelParameter(
            position=position,
            ptx_name=parameter.name,
            c_name=name,
            type=_type(parameter),
        )
        for position, (parameter, name) in enumerate(zip(function.parameters, names, strict=True))
    ]


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
        if len(kernel.parameters) == len(function.parameters) and _is_named(function, kernel.kernel)
    ]
    return [k.parameters for k in fitting if k.defined] or [k.parameters for k in fitting]


def _is_named(function: Function, name: str) -> bool:
    """Whether a kernel is called ``name`` in C: ``extern "C"``, or mangled (Itanium ABI, 5.1.3:
    a source name is its length and itself)."""
    return function.name == name or _is_mangled(function.name, name)


def _is_mangled(mangled: str, name: str) -> bool:
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


def _error(what: str, function: Function, names: Sequence[str | None]) -> LaunchError:
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
    return LaunchError(
        f"{what}; {excerpt(function.demangled)} takes: {listed or 'no arguments'}{more}",
        field=FIELD,
        parameters=parameters[:_MOST_DESCRIBED],
    )


def _type(parameter: Parameter) -> str:
    return f"{parameter.type}[{parameter.elements}]" if _is_array(parameter) else parameter.type


def _is_array(parameter: Parameter) -> bool:
    number = _NUMBER.fullmatch(parameter.type)
    return number is not None and parameter.bytes != int(number[2]) // 8


def _misfit(value: Argument, parameter: Parameter) -> str | None:
    """What keeps a value from being an argument for the parameter, if anything does."""
    number = _NUMBER.fullmatch(parameter.type)
    if number is None or (_is_array(parameter) and not isinstance(value, PointerHint)):
        return f"is no number but {_type(parameter)}; leave it out"
    kind, bits = number[1], int(number[2])
    if isinstance(value, PointerHint):
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
