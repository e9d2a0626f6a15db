"""About how much memory a parsed module and an analysis hold, for caches bounded in bytes.

The figures were measured with ``tracemalloc`` over the fixture kernels (CPython 3.11, 64 bits) and
are held to within a factor 1.5 by ``tests/features/test_held.py``.
"""

from __future__ import annotations

from dataclasses import fields
from sys import getsizeof
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.attached import Attached, attached
from wattcast.features.ptx.ir import Function, Module

if TYPE_CHECKING:  # nothing executes a kernel before it is asked for
    from wattcast.features.analysis import KernelAnalysis
    from wattcast.features.execution import ExecutionResult

TEXT_COPIES = 2
"""The text of a module, and the same without its comments."""

FUNCTION_BYTES = 2400
"""A function whose head alone was read: names, parameters, directives."""

PARSED_BYTES = 8000
"""A body that was parsed and analysed, besides its instructions: registers, blocks, loops."""

INSTRUCTION_BYTES = 780
"""An instruction parsed (340), in the control-flow graph, as a value and as timed."""

HANDLER_BYTES = 1350
"""An instruction compiled to handlers for the executed analysis."""

ANALYSIS_BYTES = 7000
"""An analysis of a launch, besides what it counted."""

COUNTED_BYTES = 225
"""Counts of an instruction that were worked out, and what is told of it."""

EXECUTED_BYTES = 10_000
"""An execution, besides its counts: samples, loops, diagnostics."""


_HANDLERS: Attached[Function, object] = Attached("programs")
"""Programs of a function that was executed (``execution.engine``)."""


def module_bytes(module: Module) -> int:
    """Bytes of a module with everything that is attached to its functions by now."""
    text = TEXT_COPIES * getsizeof(module.text)
    return text + sum(_function_bytes(function) for function in module.functions)


def _function_bytes(function: Function) -> int:
    body = vars(function).get("body")  # asked for as an attribute it would be parsed now
    if body is None:
        return FUNCTION_BYTES
    each = INSTRUCTION_BYTES + HANDLER_BYTES * bool(_HANDLERS.get(function))
    return FUNCTION_BYTES + PARSED_BYTES + each * len(body.instructions)


def analysis_bytes(analysis: KernelAnalysis) -> int:
    """Bytes of an analysis by now, without its module, which its launches share."""
    held = ANALYSIS_BYTES + COUNTED_BYTES * len(analysis.function.body.instructions)
    execution = vars(analysis.runs).get("_execution")  # the cached property, if it was asked for
    if execution is None:
        return held
    return held + EXECUTED_BYTES + _counts_bytes(execution[0])


@attached
def _counts_bytes(execution: ExecutionResult) -> int:
    each = execution.functions.values()
    arrays = (getattr(counts, field.name) for counts in each for field in fields(counts))
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
