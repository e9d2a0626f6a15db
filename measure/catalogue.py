"""What is measured on a GPU: ``micro`` and ``applications``, both catalogues (workload.py).

The application kernels are those of ``kernels/applications.toml``. What stands there is arithmetic
of a launch's size ``n`` and of the threads ``t`` of its blocks.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from wattcast.features.checked import PositiveInt, Strict, checked, read_toml
from wattcast.features.errors import DataError
from wattcast.features.launch import Dim3
from wattcast.measure import micro as simple
from wattcast.measure import micro_energy as energy
from wattcast.measure.workload import Board, Buffer, Element, Given, Scalar, Workload


@dataclass(frozen=True, slots=True)
class Shape:
    """A launch: blocks, threads, arguments, dynamic shared memory in bytes."""

    grid: Dim3
    block: Dim3
    arguments: tuple[Given, ...]
    dynamic_shared_bytes: int = 0


# --- shapes -----------------------------------------------------------------------------------


def line(items: int, threads: int, dynamic: int = 0) -> Shape:
    """A thread an item."""
    return Shape((-(-items // threads), 1, 1), (threads, 1, 1), (), dynamic)


def loop(blocks: int, threads: int) -> Shape:
    """Blocks that share all items, or have a row each."""
    return Shape((blocks, 1, 1), (threads, 1, 1), ())


def plane(width: int, height: int, threads: int, planes: int = 1, across: int = 32) -> Shape:
    """A thread a place of a plane, in blocks ``across`` wide."""
    down = max(threads // across, 1)
    return Shape((-(-width // across), -(-height // down), planes), (across, down, 1), ())


def grid(blocks_across: int, blocks_down: int, threads: int) -> Shape:
    """So many blocks, each 32 wide."""
    return Shape((blocks_across, blocks_down, 1), (32, threads // 32, 1), ())


_SHAPES: Mapping[str, Callable[..., Shape]] = {
    one.__name__: one for one in (line, loop, plane, grid)
}


# --- kernels/applications.toml ----------------------------------------------------------------

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


def worked_out(text: str, names: Mapping[str, int]) -> Any:
    """The value of arithmetic such as ``n*n//4``; the name of an element type stays itself.

    Raises DataError for other names and operations, and SyntaxError for what is no expression.
    """

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.UnaryOp(op=op, operand=one) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(one))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
        raise DataError(f"applications.toml: {text!r} is no arithmetic of {', '.join(names)}")

    return text if text in get_args(Element) else value(ast.parse(text, mode="eval").body)


_SCALARS = get_args(Scalar.model_fields["element"].annotation)

Launches = tuple[tuple[PositiveInt, PositiveInt], ...]
"""Sizes and threads of a block."""


class Application(Strict):
    """A kernel of a module, and its launches, or their name."""

    module: str
    about: str
    shape: str
    arguments: tuple[str, ...]
    launches: Launches | str


class _Data(Strict):
    given: tuple[str, ...]
    element: Element = "f32"
    fill: str = "varied"
    low: float = 0.0
    high: float = 1.0

    def buffer(self, values: Sequence[Any]) -> Buffer:
        """A buffer of the values that stand behind the name."""
        fields = {
            **self.model_dump(exclude={"given"}),
            **dict(zip(self.given, values, strict=False)),
        }
        return Buffer.model_validate(fields)


class _Applications(Strict):
    data: Mapping[str, _Data]
    launches: Mapping[str, Launches]
    kernels: Mapping[str, Application]


_READ = checked(
    _Applications, read_toml(simple.FOLDER / "applications.toml"), "kernels/applications.toml"
)
APPLICATIONS: Mapping[str, Application] = {
    name: one.model_copy(update={"launches": _READ.launches[one.launches]})
    if isinstance(one.launches, str)
    else one
    for name, one in _READ.kernels.items()
}
"""The application kernels by name."""


def shape_of(one: Application, size: int, threads: int) -> Shape:
    """A launch of an application. Raises KeyError for a shape or an argument that nothing here
    makes, and what ``worked_out`` raises."""
    names = {"n": size, "t": threads}
    kind, *words = one.shape.split()
    given = [worked_out(word, names) for word in words if "=" not in word]
    more = {
        name: worked_out(text, names)
        for name, equals, text in (word.partition("=") for word in words)
        if equals
    }
    made = _SHAPES[kind](*given, **{"threads": threads, **more})
    arguments: list[Given] = []
    for text in one.arguments:
        what, *words = text.split()
        values = [worked_out(word, names) for word in words]
        if what in _SCALARS:
            arguments.append(Scalar.model_validate({"element": what, "value": values[0]}))
        else:
            arguments.append(_READ.data[what].buffer(values))
    return Shape(made.grid, made.block, tuple(arguments), made.dynamic_shared_bytes)


def micro(board: Board) -> Sequence[Workload]:
    """All microbenchmarks for a board, those for time first."""
    make = simple.Maker(board)
    parts = (
        simple.latencies, simple.chases, simple.throughputs, simple.launches, simple.growths,
        energy.streams, energy.events, energy.shared, energy.atomics, energy.matrices,
    )  # fmt: skip
    return [one for part in parts for one in part(make)]


def applications(board: Board) -> Sequence[Workload]:
    """The application kernels: all at their smallest launch, then all at the next...

    Launches are the same on every board, so that recordings compare; those whose data do not
    fit into a quarter of the memory are left out. Stopped early, a campaign has seen every kernel.
    """
    deepest = max(len(one.launches) for one in APPLICATIONS.values())
    made = [
        _application(name, one, at)
        for at in range(deepest)
        for name, one in APPLICATIONS.items()
        if at < len(one.launches)
    ]
    return [one for one in made if one.buffer_bytes <= board.memory_bytes // 4]


def _application(name: str, one: Application, at: int) -> Workload:
    assert not isinstance(one.launches, str)
    size, threads = one.launches[at]
    shape = shape_of(one, size, threads)
    return Workload(
        id=f"{name}.n{size}.t{threads}",
        role="application",
        family=name,
        kernel=name,
        ptx=simple.ptx_text(one.module),
        grid=shape.grid,
        block=shape.block,
        dynamic_shared_bytes=shape.dynamic_shared_bytes,
        arguments=shape.arguments,
        minimum_capability=simple.capability(one.module),
        description=one.about,
    )
