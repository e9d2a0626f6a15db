"""C++ names of kernels: ``_Z5scaleIfEvPT_i`` -> ``void scale<float>(float*, int)``."""

from __future__ import annotations

from functools import lru_cache

import itanium_demangler

MOST_CHARACTERS = 256


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """The C++ declaration of a mangled name; the name itself if it is none, or too intricate."""
    if not name.startswith("_Z") or len(name) > MOST_CHARACTERS:
        return name
    try:
        tree = itanium_demangler.parse(name)
    except Exception:  # the package raises whatever its recursive descent runs into
        return name
    return name if tree is None else str(tree)
