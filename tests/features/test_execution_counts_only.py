"""What decides no count is not carried out, and nothing that is counted changes by that."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from benchmarks.execution import launch_of
from tests.fixtures.kernels.data import FixtureKernel, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.features.execution import ExecutionResult, execute
from wattcast.features.execution.engine import compiled
from wattcast.features.execution.program import Program
from wattcast.features.ptx import read_module


def ran(kernel: FixtureKernel) -> tuple[ExecutionResult, int]:
    """The sampled execution of a kernel's large launch, and how many handlers its program has."""
    module = read_module(ptx_path(kernel.source, targets(kernel.source)[-1]).read_text())
    function = module.kernel(kernel.entry)
    launch = launch_of(kernel.large)
    found = execute(function, module, launch)
    runs = compiled(function, module).runs.values()
    return found, sum(len(run.handlers) for run in runs)


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_counts_are_those_of_a_whole_execution(
    kernel: FixtureKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, handlers = ran(kernel)
    monkeypatch.setattr(Program, "_is_idle", lambda *_: False)
    whole, every = ran(kernel)
    assert handlers <= every
    counts, counts_of_whole = plain(found), plain(whole)
    # Sites of what is not carried out are not charged, nothing else differs.
    assert counts["sampling"].pop("effort") <= counts_of_whole["sampling"].pop("effort")
    assert counts == counts_of_whole


def test_arithmetic_that_decides_nothing_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = next(each for each in KERNELS if "stencil" in each.name)
    _, handlers = ran(kernel)
    monkeypatch.setattr(Program, "_is_idle", lambda *_: False)
    assert handlers < ran(kernel)[1]
