"""What is measured on a GPU: ``micro`` and ``applications``, both catalogues (workload.py).

The application kernels are those of ``kernels/applications.toml``. What stands there is arithmetic
of a launch's size ``n`` and of the threads ``t`` of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from wattcast.features.checked import PositiveInt, Strict, checked, read_toml
from wattcast.features.launch import Dim3
from wattcast.measure import micro as simple
from wattcast.measure import micro_energy as energy
from wattcast.measure.workload import Board, Buffer, Element, Given, Scalar, Workload
from wattcast.predictor import expressions

# --- shapes -----------------------------------------------------------------------------------

Shape = tuple[Dim3, Dim3]
"""Blocks of the grid, threads of a block."""


def line(items: int, threads: int) -> Shape:
    """A thread an item."""
    return (-(-items // threads), 1, 1), (threads, 1, 1)


def loop(blocks: int, threads: int) -> Shape:
    """Blocks that share all items, or have a row each."""
    return (blocks, 1, 1), (threads, 1, 1)


def plane(width: int, height: int, threads: int, planes: int = 1, across: int = 32) -> Shape:
    """A thread a place of a plane, in blocks ``across`` wide."""
    down = max(threads // across, 1)
    return (-(-width // across), -(-height // down), planes), (across, down, 1)


def grid(blocks_across: int, blocks_down: int, threads: int) -> Shape:
    """So many blocks, each 32 wide."""
    return (blocks_across, blocks_down, 1), (32, threads // 32, 1)


_SHAPES: Mapping[str, Callable[..., Shape]] = {
    one.__name__: one for one in (line, loop, plane, grid)
}


# --- kernels/applications.toml ----------------------------------------------------------------


def worked_out(text: str, names: Mapping[str, int]) -> Any:
    """The value of arithmetic such as ``n*n//4``; the name of an element type stays itself.

    Raises ExpressionError for what is no arithmetic, and KeyError for other names.
    """
    if text in get_args(Element):
        return text
    columns = {name: expressions.column([value]) for name, value in names.items()}
    found = float(expressions.read(text).of(columns, 1)[0])
    return int(found) if found.is_integer() else found


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
        workload_of(name, *one.launches[at])
        for at in range(deepest)
        for name, one in APPLICATIONS.items()
        if at < len(one.launches)
    ]
    return [one for one in made if one.buffer_bytes <= board.memory_bytes // 4]


def workload_of(name: str, size: int, threads: int) -> Workload:
    """A launch of an application kernel. Raises KeyError for a shape or an argument that nothing
    here makes, and what ``worked_out`` raises."""
    one = APPLICATIONS[name]
    names = {"n": size, "t": threads}
    kind, *words = one.shape.split()
    given = [worked_out(word, names) for word in words if "=" not in word]
    more = {key: worked_out(text, names) for key, text in (w.split("=") for w in words if "=" in w)}
    dynamic = more.pop("dynamic", 0)
    blocks, block = _SHAPES[kind](*given, **{"threads": threads, **more})
    arguments: list[Given] = []
    for text in one.arguments:
        what, *words = text.split()
        values = [worked_out(word, names) for word in words]
        if what in _SCALARS:
            arguments.append(Scalar.model_validate({"element": what, "value": values[0]}))
        else:
            arguments.append(_READ.data[what].buffer(values))
    return Workload(
        id=f"{name}.n{size}.t{threads}",
        role="application",
        family=name,
        kernel=name,
        ptx=simple.ptx_text(one.module),
        grid=blocks,
        block=block,
        dynamic_shared_bytes=dynamic,
        arguments=tuple(arguments),
        minimum_capability=simple.capability(one.module),
        description=one.about,
    )
