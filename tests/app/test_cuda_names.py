"""Parameter names read from CUDA source."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.ptx import read_module
from wattcast.predictor.parts.arguments import c_names, kernel_names

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels"


@pytest.mark.parametrize(
    ("source", "kernel", "parameters"),
    [
        ("__global__ void f(float* x, const int n) {}", "f", ("x", "n")),
        ("__global__ void f() {}", "f", ()),
        ("__global__ void f(void) {}", "f", ()),
        ("void __global__ f(int n) {}", "f", ("n",)),
        ("__global__ void __launch_bounds__(256, 2) f(int n) {}", "f", ("n",)),
        ("__global__ __launch_bounds__(B()) void f(int n) {}", "f", ("n",)),
        ("__global__ void __attribute__((used, cold(1))) f(int n) {}", "f", ("n",)),
        ("template <class T, int N> __global__ void f(T (*x)[N], T* y) {}", "f", ("x", "y")),
        ("template <> __global__ void f<Pair<int, 3>>(int* q) {}", "f", ("q",)),
        ("__global__ void f(const T* __restrict__ x, T*const y) {}", "f", ("x", "y")),
        ("__global__ void f(T x[], float y[4][N + 1]) {}", "f", ("x", "y")),
        ("__global__ void f(Pair<int, 3> p = Pair<int, 3>{1, 2}, int n = g(1, 2)) {}", "f",
         ("p", "n")),
        ("__global__ void f(int a = 1 < 2, int b = 3 > 2) {}", "f", ("a", "b")),
        ("__global__ void f(int, const Foo, ns::Foo, unsigned long, float*) {}", "f", (None,) * 5),
        ("__global__ void f(float (*op)(float, int), struct S s) {}", "f", ("op", "s")),
        ("__global__ void f(const __grid_constant__ Params p) {}", "f", ("p",)),
        ("__global__ void f(int a, // int b\n int /* c, */ d) {}", "f", ("a", "d")),
        ("__global__ void \\\n f(int \\\n a) {}", "f", ("a",)),
        ('const char* s = "__global__ void g(int no) {}";\n__global__ void f(int n) {}', "f",
         ("n",)),
    ],
)  # fmt: skip
def test_names(source: str, kernel: str, parameters: tuple[str | None, ...]) -> None:
    (found,) = kernel_names(source)
    assert (found.kernel, found.parameters, found.defined) == (kernel, parameters, True)


def test_declarations_and_definitions() -> None:
    found = kernel_names("__global__ void f(int, int);\n__global__ void f(int a, int b) { }")
    assert [(kernel.parameters, kernel.defined) for kernel in found] == [
        ((None, None), False),
        (("a", "b"), True),
    ]


@pytest.mark.parametrize("source", ["__global__", "__global__ void f(", "__global__ x; (", "("])
def test_text_that_is_no_kernel_has_no_names(source: str) -> None:
    assert kernel_names(source) == ()


@given(st.text("_global(){}<>,=*&: fxint[]/\\\"'\n;#", max_size=200))
def test_any_text_is_read(text: str) -> None:
    for kernel in kernel_names("__global__ void f(" + text):
        assert all(name is None or name.isidentifier() for name in kernel.parameters)


def test_every_fixture_kernel_has_names() -> None:
    """One name for each parameter in the PTX that the compiler made of the source."""
    named = unnamed = 0
    for path in sorted(FIXTURES.glob("cuda/*.cu")):
        kernels = kernel_names(path.read_text(encoding="utf-8"))
        for ptx in sorted(FIXTURES.glob(f"ptx/{path.stem}.sm_70.ptx")):
            for function in read_module(ptx.read_text(encoding="utf-8")).kernels:
                names = c_names(function, kernels)
                assert len(names) == len(function.parameters)
                named += len([name for name in names if name is not None])
                unnamed += len([name for name in names if name is None])
    assert named > 100
    assert unnamed <= 0.02 * named
