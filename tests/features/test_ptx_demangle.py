"""C++ names of kernels."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattcast.features.ptx.ir import demangle


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        ("_Z5scaleIfEvPT_S0_i", "void scale<float>(float*, float, int)"),
        ("_Z4smemPK6float4Pf", "smem(float4 const*, float*)"),
        ("_ZN1a1b1fIiNS_1TEEEvT_PKT0_", "void a::b::f<int, a::T>(int, a::T const*)"),
        ("_Z4tileILi16EEvPf", "void tile<(int)16>(float*)"),
        ("_ZN12_GLOBAL__N_11kEv", "_GLOBAL__N_1::k()"),
    ],
)
def test_names(mangled: str, expected: str) -> None:
    assert demangle(mangled) == expected


@pytest.mark.parametrize(
    "name",
    [
        "vectorAdd",
        "_Z",
        "_Zwrong",
        "",
        "_Z6kernelIZ4mainEUliE_EvT_",  # a lambda of main
        "_Z1f" + "P" * 100_000 + "i",
        "_Z1f" + "P" * 3_000 + "i",  # deeper than the interpreter's stack
        "_Z" + "N" * 2_000,
    ],
)
def test_what_cannot_be_told_stays_as_it_is(name: str) -> None:
    assert demangle(name) == name


def test_back_references_cannot_explode() -> None:
    """Each level names the one before twice: written out, it would have 2**30 parts."""

    def back(index: int) -> str:
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return "S_" if index == 0 else f"S{digits[index - 1]}_"

    for levels in (2, 30):
        name = "_Z1f1xIiiE"
        for level in range(levels):
            # level k: template y applied to (previous, previous); substitutions alternate
            name += (
                f"1{chr(97 + level % 26)}I{back(2 * level + 1)}{back(2 * level + 1)}E"
                if (level < 17)
                else "i"
            )
        assert len(demangle(name)) < 200_000


@settings(deadline=None)
@given(st.text(alphabet="_ZNIEPKRSTL0123456789abcfijvXJDptF", max_size=60))
def test_any_name(tail: str) -> None:
    assert isinstance(demangle("_Z" + tail), str)
