"""What a kernel's own directives ask of a launch (PTX ISA 9.0, 11.4 and 11.7).

The driver refuses a launch that does not keep to them, so nothing is predicted for it either.
"""

from __future__ import annotations

from math import prod

from wattcast.features.errors import LaunchError
from wattcast.features.launch import Dim3, Launch
from wattcast.features.ptx.ir import Function, Module


def fixed_block(function: Function) -> Dim3 | None:
    """The block size that ``.reqntid`` fixes, if the kernel has one."""
    wanted = function.directives.get("reqntid")
    return _dim3(wanted) if wanted else None


def check_directives(module: Module, function: Function, launch: Launch) -> None:
    """Raises LaunchError naming directive, line and what it wants.

    ``.reqntid`` fixes the block in every dimension, ``.maxntid`` its most threads in all,
    ``.reqnctapercluster`` what the grid must be a multiple of. ``.maxnctapersm`` and
    ``.minnctapersm`` steer register allocation and refuse no launch by themselves.
    """
    fixed, most = fixed_block(function), function.directives.get("maxntid")
    if fixed is not None and fixed != launch.block:
        raise _refused(
            module, function, "reqntid", fixed, "block",
            f"wants blocks of exactly {_text(fixed)} threads; {_text(launch.block)} are launched",
        )  # fmt: skip
    if most and launch.threads_per_block > prod(most):
        raise _refused(
            module, function, "maxntid", _dim3(most), "block",
            f"wants blocks of at most {prod(most)} threads; {launch.threads_per_block} are "
            "launched",
        )  # fmt: skip
    cluster = function.directives.get("reqnctapercluster")
    if not cluster:
        return
    wanted = _dim3(cluster)
    if any(size % part for size, part in zip(launch.grid, wanted, strict=True)):
        raise _refused(
            module, function, "reqnctapercluster", wanted, "grid",
            f"wants a grid of whole clusters of {_text(wanted)} blocks; {_text(launch.grid)} "
            "blocks are launched",
        )  # fmt: skip
    rank = (function.directives.get("maxclusterrank") or (prod(wanted),))[0]
    if prod(wanted) > rank:
        raise _refused(
            module, function, "maxclusterrank", (rank, 1, 1), "grid",
            f"allows clusters of {rank} blocks; .reqnctapercluster wants {prod(wanted)}",
        )  # fmt: skip


def _dim3(sizes: tuple[int, ...]) -> Dim3:
    x, y, z = (*sizes, 1, 1)[:3]
    return (x, y, z)


def _text(sizes: Dim3) -> str:
    kept = sizes if sizes[2] > 1 else sizes[:2] if sizes[1] > 1 else sizes[:1]
    return " x ".join(f"{size:,}" for size in kept)


def _refused(
    module: Module, function: Function, directive: str, wanted: Dim3, field: str, why: str
) -> LaunchError:
    line = _line(module, function, directive)
    return LaunchError(
        f".{directive} in line {line} {why}",
        field=field,
        directive=f".{directive}",
        line=line,
        wanted=list(wanted),
    )


def _line(module: Module, function: Function, directive: str) -> int:
    """The line of a directive between a kernel's name and its body."""
    for number, text in enumerate(module.text.splitlines()[function.line - 1 :], function.line):
        if f".{directive}" in text.partition("//")[0]:
            return number
        if text.lstrip().startswith("{"):
            break
    return function.line
