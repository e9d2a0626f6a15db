"""Launches walked as one are told what each is told alone, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.same_answers import body
from tests.features.execution_kernels import BASE, kernel
from tests.features.symbolic_programs import affine_programs
from tests.features.test_symbolic_generated import MANY, SHARED
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.features.errors import LaunchError
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.features.symbolic import SymbolicResult, analyse, analyse_symbolically
from wattcast.features.symbolic import analyse_together as together
from wattcast.predictor.messages import LaunchRequest


def bits(value: Any) -> Any:
    """A result as plain data that is equal only where every bit is."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value):
        return [bits(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, dict):
        return [(key, bits(inner)) for key, inner in value.items()]
    if isinstance(value, tuple):
        return [bits(inner) for inner in value]
    return type(value).__name__, repr(value)


def check(module: Module, name: str, launches: Sequence[Launch]) -> None:
    function = module.kernel(name)
    found = {id(launch): each for launch, each in together(module, function, launches)}
    for launch in launches:
        alone: SymbolicResult = analyse_symbolically(module, function, launch)
        assert bits(found[id(launch)]) == bits(alone), launch


def variants(launch: Launch) -> Iterator[Launch]:
    """Launches that differ from one in what may part them: blocks, threads, sizes given or not."""
    yield launch
    wide, *others = launch.grid
    for more in (1, 2, 2 * wide):
        yield replace(launch, grid=(wide + more, *others))
    for more in (1, 64):
        longer = {n: v + more if type(v) is int else v for n, v in launch.arguments.items()}
        yield replace(launch, arguments=longer)
    yield replace(launch, arguments={})
    narrow, *rest = launch.block
    yield replace(launch, block=(max(1, narrow // 2), *rest))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_fixtures(kernel: Any) -> None:
    asked = [body(kernel, shape) for shape in kernel.shapes[:1]]
    requests = [LaunchRequest.model_validate(each["launch"]) for each in asked]
    launches = [one for request in requests for one in variants(request.launch())]
    check(read_module(asked[0]["ptx"]), kernel.entry, launches)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=affine_programs(),
    launches=st.lists(
        st.tuples(st.integers(1, 90), st.sampled_from([32, 48, 65]), st.integers(0, 140)),
        min_size=2, max_size=6,
    ),
)  # fmt: skip
def test_generated_programs(text: str, launches: list[tuple[int, int, int]]) -> None:
    made = kernel(text, declarations=SHARED).replace(".reg .b32 %r<32>;", MANY)
    asked = [Launch.of(grid, block, 0, {"out": BASE, "n": n}) for grid, block, n in launches]
    check(read_module(made), "k", asked)


def test_launches_that_behave_alike_are_walked_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guarded kernel whose last block is cut, whatever the size."""
    text = kernel("setp.ge.s32 %p1, %r5, %r1;\n@%p1 bra $end;\nst.global.u32 [%rd1], %r5;\n$end:")
    module, walked = read_module(text), analyse._walked
    sizes: list[int] = []

    def counted(module: Module, group: Any, *more: Any) -> Any:
        sizes.append(len(group))
        return walked(module, group, *more)

    monkeypatch.setattr(analyse, "_walked", counted)
    launches = [Launch.of(100 + n, 64, 0, {"out": BASE, "n": 6390 + 64 * n}) for n in range(40)]
    assert len(list(together(module, module.kernel("k"), launches))) == 40
    assert sizes == [40]


def test_one_that_cannot_be_analysed_is_left_out() -> None:
    module = read_module(kernel("st.global.u32 [%rd1], %r5;"))
    launches = [Launch.of(4, 64, 0, {"nothing": 1}), Launch.of(4, 64)]
    found = [launch for launch, _ in together(module, module.kernel("k"), launches)]
    assert found == launches[1:]
    with pytest.raises(LaunchError, match="no parameter"):
        analyse_symbolically(module, module.kernel("k"), launches[0])


def test_an_address_that_is_one_number_has_one_stride() -> None:
    """Nothing was told of it together, where it is an array over lanes, and 0 alone."""
    text = """    add.s32 %r43, %r2, %r2; and.b32 %r42, %r43, 15; mov.u32 %r41, 2;
$a1:
    setp.ge.s32 %p1, %r41, %r42; @%p1 bra $a2;
    mov.u32 %r47, %r2;
$a3:
    shr.u32 %r51, %r41, 1; setp.eq.s32 %p1, %r51, 1; @%p1 bra $a6;
    add.s32 %r55, %r41, %r1; and.b32 %r54, %r55, 127; shl.b32 %r54, %r54, 2;
    st.shared.u32 [%r54], 1;
$a6:
    add.s32 %r47, %r47, 1; setp.lt.s32 %p1, %r47, %r42; @%p1 bra $a3;
    add.s32 %r41, %r41, 1; bra $a1;
$a2:
"""
    made = kernel(text, declarations=SHARED).replace(".reg .b32 %r<32>;", MANY)
    check(read_module(made), "k", [Launch.of(1, 32, 0, {"out": BASE, "n": n}) for n in (0, 1)])
