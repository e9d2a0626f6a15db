"""What a source says it passes to its kernels (``features/cuda/passed.py``)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.cuda.passed import MOST_LAUNCHES, passed

KERNEL = "__global__ void k(float *x, int n) { x[0] = n; }\n"


def values(body: str, before: str = "", *headers: str) -> dict[int, int]:
    source = f"{before}\n{KERNEL}int main(int argc, char **argv) {{\n{body}\n}}\n"
    return {at: one.value for at, one in passed(source, headers).get("k", {}).items()}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("1024", 1024),
        ("1 << 20", 1 << 20),
        ("0x10u", 16),
        ("(int)(4 * (3 + 2UL))", 20),
        ("7 / 2 % 2", 1),
        ("0-1", None),
        ("1.5", None),
        ("010", None),
        ("1 / 0", None),
        ("1 << 63", None),
        ("2147483648 * 2147483648 * 16", None),
        ("strlen(argv[1])", None),
        ("argc", None),
        ("true", None),
        ("__import__('os')", None),
        ("a.b", None),
    ],
)
def test_expressions(argument: str, value: int | None) -> None:
    assert values(f"k<<<1, 32>>>(x, {argument});").get(1) == value


def test_names_of_the_function_before_those_of_the_file() -> None:
    before = "#define N 64\nconst int W = N * 2;"
    assert values("k<<<W, 32>>>(x, W);", before) == {1: 128}
    assert values("int W = 3; k<<<W, 32>>>(x, W);", before) == {1: 3}
    assert values("size_t n = W, m = n + 1;\nk<<<1, 32>>>(x, m);", before) == {1: 129}
    assert values("k<<<1, 32>>>(x, M);", "", "#define M 5") == {1: 5}
    assert values("k<float><<<dim3(1, 2), 32>>>(f(x, y), N);", before) == {1: 64}
    assert values("k<<<1, 32>>>(x, N);", "#ifdef A\n#define N 1\n#else\n#define N 2\n#endif") == {}


@pytest.mark.parametrize(
    "body",
    [
        "int n = 4; n = 5; k<<<1, 32>>>(x, n);",
        'int n = 4; scanf("%d", &n); k<<<1, 32>>>(x, n);',
        "int n = 4; if (argc > 1) n = atoi(argv[1]); k<<<1, 32>>>(x, n);",
        "for (int n = 1; n < 8; n <<= 1) k<<<1, 32>>>(x, n);",
        "for (int n = 1; n < 8; ++n) k<<<1, 32>>>(x, n);",
        "s.n = 4; k<<<1, 32>>>(x, n);",
        "int n[2]; n[0] = 4; k<<<1, 32>>>(x, n);",
        "int n = m, m = n; k<<<1, 32>>>(x, n);",
        "int n = 0; in >> m >> n; k<<<1, 32>>>(x, n);",
        "k<<<1, 32>>>(x, 4); k<<<1, 32>>>(x, 5);",
        "// k<<<1, 32>>>(x, 4);",
        "k<<<1, 32>>>(x, 4",
    ],
)
def test_what_is_not_certain_is_left_out(body: str) -> None:
    assert values(body, "#define n_ 1") == {}


WRAPPED = (
    KERNEL
    + """template <class T> long run(T *x, const int n, int more = 1) {
  k<<<1, 32>>>(x, n * 2);
}
"""
)


@pytest.mark.parametrize(
    ("main", "found"),
    [
        ("int main() { int n = 4; run(y, n); run<float>(f(y, 1), 2 + 2, 3); }", {1: 8}),
        ("void own(int m) { run(y, m); } int main() { own(16); }", {1: 32}),
        ("int main() { run(y, 4); run(y, 5); }", {}),
        ("int main(int argc) { run(y, argc); }", {}),
        ("int main() { run(y); }", {}),
        ("void run(int n) { run(y, n); }", {}),
        ("", {}),
    ],
)
def test_parameters_are_what_all_callers_pass(main: str, found: dict[int, int]) -> None:
    told = passed(f"{WRAPPED}{main}\n")["k"]
    assert {at: one.value for at, one in told.items()} == found
    changed = WRAPPED.replace("k<<<", "n += 1; k<<<")
    assert passed(f"{changed}{main}\n") == {"k": {}}


def test_the_line_is_that_of_the_launch() -> None:
    source = f"{KERNEL}int main() {{\n  int n = 4;\n  k<<<1, 32>>>(x, n);\n}}\n"
    assert passed(source)["k"][1] == (4, 4)


def test_names_of_many_names_take_no_time() -> None:
    """Each doubles the one before: 2 to the 79th terms, each name worked out once."""
    names = "".join(f"int a{i} = a{i - 1} + a{i - 1};\n" for i in range(1, 80))
    assert values(f"int a0 = 1;\n{names} k<<<1, 32>>>(x, a5);") == {1: 32}
    assert values(f"int a0 = 1;\n{names} k<<<1, 32>>>(x, a79);") == {}
    many = "k<<<1, 32>>>(x, 4);\n" * (10 * MOST_LAUNCHES)
    assert values(many) == {1: 4}


@given(st.text(alphabet="k<>(){};,=&+-*/#\n \"'0123nx", max_size=300))
def test_any_text_is_read(text: str) -> None:
    for body in (text, f"k<<<1, 2>>>({text});"):
        assert all(
            one.value >= 0
            for one in passed(f"{KERNEL}int main() {{ {body} }}").get("k", {}).values()
        )
