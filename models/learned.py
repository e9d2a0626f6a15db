"""What a model learned from, as marks by which a kernel is known again.

A kernel has three kinds of marks: the hash of its PTX, its kernel group, and for each feature
schema what of its vector follows from the code and not from the launch. Each is kept as the first
digits of a hash: enough to tell whether a measured kernel was in training, and no row of the
training data can be read from it. A kernel that shares any mark with a model is known to it: two
kernels of one instruction mix count as one, which makes a score worse and never better than it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import StringConstraints

DIGITS = 12
"""Hex digits of a mark: of a million marks two agree by chance once in 500."""

Marks = frozenset[str]
StoredMarks = Annotated[str, StringConstraints(pattern=rf"^([0-9a-f]{{{DIGITS}}}( |$))*$")]
"""Marks in their order, one blank between."""

_MIX = ("comp_inst_kernel", "glob_inst_kernel", "misc_inst_kernel")
_PIPES = (
    "fma_pipe_instructions", "fp32_instructions", "alu_pipe_instructions", "fp64_instructions",
    "sfu_instructions", "branches", "lsu_requests",
)  # fmt: skip
CODE_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"alavani2023": _MIX, "powerquant2026": _MIX, "powerquant2026r": _MIX, "activity1": _PIPES}
)
"""Fields of a schema that tell the code: instructions of a thread by kind, or executed ones of each
pipe (as shares of ``_WHOLE``, so that a larger grid changes nothing). Registers, latencies and
shared memory hang on compiler and board and are left out."""

_WHOLE = "warp_instructions_ptx"
_SHARE_DIGITS, _COUNT_DIGITS = 3, 6
"""Significant digits of shares and counts that are compared."""


def stored(marks: Iterable[str]) -> str:
    """Marks as a card holds them."""
    return " ".join(sorted(set(marks)))


def marks_of(text: str | None) -> Marks | None:
    """The marks of a card; ``None`` where it tells none, so that nothing counts as unseen."""
    return frozenset(text.split()) if text else None


def group_mark(name: str) -> str:
    """Mark of a kernel group, by its name."""
    return _mark("group", name.strip().casefold())


def ptx_mark(sha256: str) -> str:
    """Mark of a PTX text, by its hash."""
    return _mark("ptx", sha256)


def code_marks(
    schema_id: str, names: Sequence[str], vectors: NDArray[np.float64]
) -> list[str | None]:
    """Mark of each vector ``[n, k]`` whose columns are ``names``; ``None`` for a vector that does
    not hold what tells the code, and for all of a schema without such fields."""
    fields = CODE_FIELDS.get(schema_id, ())
    if not fields or not set(fields) <= set(names):
        return [None] * len(vectors)
    columns = vectors[:, [names.index(field) for field in fields]]
    digits = _COUNT_DIGITS
    if fields == _PIPES:
        if _WHOLE not in names:
            return [None] * len(vectors)
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = columns / vectors[:, [names.index(_WHOLE)]]
        digits = _SHARE_DIGITS
    return [
        _mark(schema_id, *(f"{value:.{digits}g}" for value in row))
        if np.isfinite(row).all() and row.any()
        else None
        for row in columns
    ]


def _mark(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:DIGITS]
