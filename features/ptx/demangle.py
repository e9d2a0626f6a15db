"""C++ names of kernels: ``_Z5scaleIfEvPT_i`` -> ``void scale<float>(float*, int)``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

MOST_CHARACTERS = 4000
"""Longest mangled name that is tried; those of template libraries reach a few thousand."""

MOST_NODES = 4000
"""Size of the written-out syntax tree that is accepted.

A mangled name may refer back to its own parts, so that the tree written out grows
exponentially with the name: it is measured before it is built.
"""


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """The C++ declaration of a mangled name.

    The name itself comes back if it is none, if its tree is too large, or if it has parts that
    the demangler does not know (local names, lambdas, ``decltype`` and other expressions).
    """
    # A mangled name inside another has its own back references, which are not measured.
    if not name.startswith("_Z") or len(name) > MOST_CHARACTERS or "_Z" in name[2:]:
        return name
    import itanium_demangler

    try:
        compact = itanium_demangler._parse_mangled_name(itanium_demangler._Cursor(name))
        if compact is None or _written_out(compact) > MOST_NODES:
            return name
        return str(itanium_demangler.parse(name))
    except Exception:  # the package raises whatever its recursive descent runs into
        return name


def _written_out(root: Any) -> int:
    """Nodes of the tree that a syntax graph with shared parts stands for, roughly.

    A template parameter stands for an argument, which is written out in its place.
    """
    sizes: dict[int, int] = {}
    arguments = 1
    parameters = 0
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        node, ready = waiting.pop()
        if id(node) in sizes:
            continue
        if not isinstance(node, tuple):
            sizes[id(node)] = 1
            continue
        if not ready:
            waiting.append((node, True))
            waiting.extend((child, False) for child in node)
            continue
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in node)
        kind = getattr(node, "kind", None)
        if kind == "tpl_args":
            arguments = max(arguments, sizes[id(node)])
        elif kind == "tpl_param":
            parameters += 1
    total = sizes[id(root)]
    return total * arguments if parameters else total
