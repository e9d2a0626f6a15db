"""What most commands are told of a kernel and its launch: declared once, taken as one argument.

A command decorated by ``with_options`` that has a parameter of a class such as ``LaunchOptions``
gets the options of that class on the command line, where the parameter stands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any, get_type_hints

from wattcast.app.cli.inputs import (
    Analysis,
    Arguments,
    Effort,
    Kernel,
    Loops,
    Registers,
    Seconds,
    Shared,
    StaticShared,
    kernel_request,
    work_request,
)


@dataclass(frozen=True)
class LaunchOptions:
    """Of a launch, beside its code, grid and block."""

    shared: Shared = 0
    kernel: Kernel = None
    loops: Loops = None
    registers: Registers = None
    static_shared: StaticShared = None
    arg: Arguments = None
    analysis: Analysis = "auto"
    analysis_seconds: Seconds = None
    analysis_effort: Effort = None

    def request(self, file: Path, grid: str, block: str) -> dict[str, Any]:
        """The part of a request's body that tells code and launch. Raises as ``kernel_request``."""
        code = (self.shared, self.kernel, self.loops, self.registers, self.static_shared, self.arg)
        return {**kernel_request(file, grid, block, *code), **self._how()}

    def request_or_work(
        self, file: Path | None, work: str | None, grid: str, block: str
    ) -> dict[str, Any]:
        """The same, or measured ``work`` in the place of code; one of them has to be given."""
        if file is not None and work is None:
            return self.request(file, grid, block)
        return {**work_request(file, work, grid, block), **self._how()}

    def _how(self) -> dict[str, Any]:
        return {
            "analysis": self.analysis,
            "analysis_seconds": self.analysis_seconds,
            "analysis_effort": self.analysis_effort,
        }


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as typer takes it: each class of options stands as the options in it."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind
        hints = get_type_hints(kind, include_extras=True)
        parameters += [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(kind)
        ]

    @functools.wraps(command)
    def told(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    told.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    told.__annotations__ = {each.name: each.annotation for each in parameters}
    return told
