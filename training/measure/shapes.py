"""Launch shapes and arguments that the application kernels are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wattcast.features.launch import Dim3
from wattcast.training.measure.workload import Buffer, Element, Given, Scalar


@dataclass(frozen=True, slots=True)
class Shape:
    """A launch: blocks, threads, arguments, dynamic shared memory in bytes."""

    grid: Dim3
    block: Dim3
    arguments: tuple[Given, ...]
    dynamic_shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Application:
    """A kernel and its launches: ``shape(size, threads)`` for each of ``launches``."""

    kernel: str
    module: str
    about: str
    shape: Callable[[int, int], Shape]
    launches: tuple[tuple[int, int], ...]


def real(elements: int, element: Element = "f32") -> Buffer:
    """Numbers from -1 to 1 whose values make no difference to what is executed."""
    return Buffer(elements=elements, element=element, low=-1.0, high=1.0)


def whole(elements: int) -> Buffer:
    """Integers whose values make no difference to what is executed."""
    return Buffer(elements=elements, element="u32", low=0.0, high=65535.0)


def steering(elements: int, low: float = -1.0, high: float = 1.0) -> Buffer:
    """Numbers that steer branches: always uniform."""
    return Buffer(elements=elements, fill="uniform", low=low, high=high)


def indices(elements: int, below: int) -> Buffer:
    """Integers from 0 to ``below`` less 1, by chance."""
    return Buffer(elements=elements, element="u32", fill="uniform", low=0.0, high=below - 1.0)


def lengths(elements: int, least: int, most: int) -> Buffer:
    """Numbers of entries of rows."""
    return Buffer(elements=elements, element="u32", fill="uniform", low=least, high=most)


def far(elements: int) -> Buffer:
    """Distances longer than any way."""
    return Buffer(elements=elements, element="u32", fill="uniform", low=1e6, high=2e6)


def kept(elements: int, element: Element = "f32") -> Buffer:
    """Results."""
    return Buffer(elements=elements, element=element, fill="zeros")


def unit_range(elements: int) -> Buffer:
    """Numbers from 0 to 1; what is executed follows them (library functions branch)."""
    return steering(elements, 0.0, 1.0)


def s(value: int) -> Scalar:
    """A whole number by value."""
    return Scalar(element="s32", value=value)


def u(value: int) -> Scalar:
    """A whole number without a sign."""
    return Scalar(element="u32", value=value)


def r(value: float) -> Scalar:
    """A real number by value."""
    return Scalar(element="f32", value=value)


def s64(value: float) -> Scalar:
    """A real number of double precision by value."""
    return Scalar(element="f64", value=value)


def line(items: int, threads: int, *arguments: Given, dynamic: int = 0) -> Shape:
    """A thread an item."""
    return Shape((-(-items // threads), 1, 1), (threads, 1, 1), arguments, dynamic)


def loop(blocks: int, threads: int, *arguments: Given) -> Shape:
    """Blocks that share all items, or have a row each."""
    return Shape((blocks, 1, 1), (threads, 1, 1), arguments)


def plane(
    width: int, height: int, threads: int, *arguments: Given, planes: int = 1, across: int = 32
) -> Shape:
    """A thread a place of a plane, in blocks ``across`` wide."""
    down = max(threads // across, 1)
    grid = (-(-width // across), -(-height // down), planes)
    return Shape(grid, (across, down, 1), arguments)


def grid_of(blocks_across: int, blocks_down: int, threads: int, *arguments: Given) -> Shape:
    """So many blocks, each 32 wide."""
    return Shape((blocks_across, blocks_down, 1), (32, threads // 32, 1), arguments)
