"""What is measured on a GPU: ``micro`` and ``applications``, both catalogues (workload.py).

The application kernels are those of ``kernels/applications.toml``. What stands there is arithmetic
of a launch's size ``n`` and of the threads ``t`` of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from wattcast.features.checked import PositiveFloat, PositiveInt, Strict, checked, read_toml
from wattcast.features.launch import Dim3
from wattcast.measure import micro as simple
from wattcast.measure.micro import EVENTS, FOLDER, SLOTS, Maker
from wattcast.measure.workload import Board, Buffer, Element, Given, Kind, Scalar, Workload
from wattcast.predictor import expressions

# Microbenchmarks whose power is asked for: memory bandwidth, and mixes of events.

MOST_STREAMED = 2**31
"""Largest stream over device memory, bytes."""


def _power_of_two(most: int) -> int:
    return 1 << (max(most, 2**16).bit_length() - 1)


def _footprint(make: Maker, level: str) -> int:
    """Bytes a stream walks through: far more than the L2, or a quarter of it at most."""
    board = make.board
    if level == "dram":
        return _power_of_two(min(16 * board.l2_bytes, board.memory_bytes // 4, MOST_STREAMED))
    return _power_of_two(board.l2_bytes // 4)


Event = tuple[str, Element, PositiveFloat]
"""Kernel, element of its operands, rough cycles."""


class _Energy(Strict):
    streams: Mapping[str, tuple[str, str, PositiveInt]]
    events: Mapping[str, Event]
    matrices: Mapping[str, Event]
    chains: Mapping[str, tuple[str, tuple[str, ...], PositiveInt, PositiveInt, str]]
    busy: Mapping[str, tuple[Kind, str, tuple[str, ...], PositiveInt, str]]


_ENERGY = checked(_Energy, read_toml(FOLDER / "energy.toml"), "kernels/energy.toml")


def streams(make: Maker) -> Iterator[Workload]:
    """Streams of 16 bytes a thread; those named by FMAs add arithmetic to each load."""
    for name, (kernel, level, moved) in _ENERGY.streams.items():
        blocks, threads = shape = make.shape(make.full_warps)
        whole = 16 * blocks * threads
        if level == "l1":
            kernel = f"read_{make.through_l1}"
            footprint, first, step = 16 * SLOTS, 0, 0
            turns = make.turns(4 * 16 * blocks // make.board.sm_count * threads / 64)
        else:
            footprint, first, step = _footprint(make, level), 16 * threads, whole
            # Device memory: once through, so that the next launch finds its start gone from the L2,
            # and no wrap makes a stream look as if it stayed near its start.
            turns = make.turns(4 * whole / make.board.sm_count / 24)
            if level == "dram":
                turns = max(1, footprint // (4 * whole))
        kind: Kind = "bandwidth" if name.startswith("bandwidth") else "energy"
        yield make.make(
            name, kernel, simple.stream(footprint, first, step, low=-1.0), shape, turns,
            f"{kernel} over {footprint} bytes in {level}",
            kind=kind, target=level if kind == "bandwidth" else name.removeprefix("energy."),
            each=4 * moved, warps=make.full_warps, results="f32",
        )  # fmt: skip


_SPARSE = (("w1", 1, 1), ("w4", 4, 1), ("half", 0, 2))
"""FMA on part of the board: name, warps an SM (0: all that fit), one of so many SMs busy."""


def _operands(element: Element) -> Buffer:
    elements = 16 * SLOTS * (2 if element == "f16" else 1)
    if element == "u32":
        return Buffer(elements=elements, element=element, low=0.0, high=65535.0)
    return Buffer(elements=elements, element=element, low=-1.0, high=1.0)


def events(make: Maker) -> Iterator[Workload]:
    """One kind of event as often as the board can, and FMA on part of it."""
    plans = [(*one, make.full_warps, 1) for one in _ENERGY.events.items()]
    for part, warps, share in _SPARSE:
        fma = _ENERGY.events["fma.f32"]
        plans.append((f"fma.f32.{part}", fma, warps or make.full_warps, share))
    for name, (kernel, element, cycles), warps, share in plans:
        blocks, threads = make.shape(warps)
        yield make.make(
            f"energy.{name}", kernel, (_operands(element),), (max(1, blocks // share), threads),
            make.turns(EVENTS * max(cycles * warps, 1)),
            f"{kernel}, {warps} warps on one of {share} SMs", kind="energy", target=name,
            warps=warps, results="u32" if element == "f16" else element,
        )  # fmt: skip


def chains(make: Maker) -> Iterator[Workload]:
    """Chains of one warp that are no arithmetic: bank conflicts, barriers, atomics."""
    for target, (kernel, given, operations, cycles, said) in _ENERGY.chains.items():
        arguments = tuple(_argument(text, {}) for text in given)
        results: Element = "f32" if target == "cvt.f32" else "u32"
        yield make.latency(target, kernel, arguments, operations, cycles, said, results=results)


def busy(make: Maker) -> Iterator[Workload]:
    """Shared memory at full rate, with bank conflicts, and written; atomics of all warps."""
    warps = make.full_warps
    for name, (kind, kernel, given, cycles, said) in _ENERGY.busy.items():
        yield make.make(
            f"{kind}.{name}", kernel, tuple(_argument(text, {}) for text in given),
            make.shape(warps), make.turns(warps * cycles), said, kind=kind,
            target="shared" if kind == "bandwidth" else name, warps=warps,
            each=4 * EVENTS if name.startswith("shared") else 0,
            results=None if kernel == "red_global" else "u32",
        )  # fmt: skip


_WARPS = 16
"""Warps an SM of matrix kernels: four a scheduler, and registers for their fragments."""


def matrices(make: Maker) -> Iterator[Workload]:
    """Matrix units: one chain in one warp, several in many; power of each type."""
    for kernel, (target, element, cycles) in _ENERGY.matrices.items():
        name, _, parallel = kernel.rpartition("_i")
        chains = int(parallel)
        sums: Element = "f64" if name == "mma_f64" else "u32" if name == "mma_s8" else "f32"
        kept = 32 if name.startswith("wmma") else 8 if name == "mma_f64" else 16
        operands = {"f16": 16384, "u8": 32768, "f32": 8192, "f64": 2048}[element]
        low, high = (0.0, 255.0) if element == "u8" else (-1.0, 1.0)
        given = (Buffer(elements=operands, element=element, low=low, high=high),)
        full: Kind = "throughput" if chains < 4 else "energy"
        plans: list[tuple[Kind, int]] = [(full, _WARPS)]
        if chains == 1:
            plans.append(("latency", 0))
        for kind, warps in plans:
            label = f".i{chains}.w{warps}" if kind == "throughput" else ""
            yield make.make(
                f"{kind}.{target}{label}", kernel, given, make.shape(warps),
                make.turns(16 * max(cycles * (warps or 1), 32.0 / chains)),
                f"{chains} chains of {target}, {warps or 1} warps an SM",
                kind=kind, target=target, each=0 if kind == "energy" else 16, parallelism=chains,
                warps=warps or 1, results=sums, results_of_thread=kept,
            )  # fmt: skip


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
        simple.latencies, chains, simple.chases, simple.throughputs, simple.launches,
        simple.growths, streams, events, busy, matrices,
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
    return Workload(
        id=f"{name}.n{size}.t{threads}",
        role="application",
        family=name,
        kernel=name,
        ptx=simple.ptx_text(one.module),
        grid=blocks,
        block=block,
        dynamic_shared_bytes=dynamic,
        arguments=tuple(_argument(text, names) for text in one.arguments),
        minimum_capability=simple.capability(one.module),
        description=one.about,
    )


def _argument(text: str, names: Mapping[str, int]) -> Given:
    """A scalar (``u32 n``) or a buffer (``kept n``) of a kernel."""
    what, *words = text.split()
    values = [worked_out(word, names) for word in words]
    if what in _SCALARS:
        return Scalar.model_validate({"element": what, "value": values[0]})
    return _READ.data[what].buffer(values)
