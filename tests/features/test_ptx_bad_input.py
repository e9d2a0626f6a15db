"""Text that is no PTX: always a PtxError with a place in the text, never anything else."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.ptx_text import HEADER, READER, kernel
from wattcast.features.cfg import build_cfg, dominators, post_dominators
from wattcast.features.dataflow import block_edges
from wattcast.features.errors import KernelError, PtxError, TooComplexError
from wattcast.features.loops import natural_loops
from wattcast.features.ptx import read_module

MANY = 100_000


def analyse(text: str | bytes) -> int:
    """Everything that is made of PTX; the number of instructions."""
    module = read_module(text)
    count = 0
    for function in module.functions:
        body = function.body
        count += len(body.instructions)
        graph = build_cfg(body)
        dominators(graph)
        post_dominators(graph)
        natural_loops(graph)
        for block in graph.blocks:
            block_edges(body, block)
    return count


def refusal(text: str | bytes) -> PtxError | None:
    """The error that a text gives, if any."""
    try:
        analyse(text)
    except PtxError as error:
        return error
    except TooComplexError:
        return None  # which limit, and where: test_hostile_ptx.py
    return None


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "empty"),
        (b"", 1, 1, "empty"),
        ("\ufeff \n\0", 1, 1, "empty"),
        (bytes(range(256)), 1, 1, "binary"),
        (b"\x7fELF\x02\x01\x01" + bytes(60), 1, 1, "binary"),
        (kernel("ret;").replace("ret", "r\0t"), 6, 2, "binary"),
        ("\n <!DOCTYPE html><html>.version 8.0</html>", 2, 2, "HTML"),
        ("<html>\n.version 8.0\n</html>", 1, 1, "HTML"),
        ("import os\n\ndef f():\n    return {}\n", 1, 1, "not PTX"),
        ("__global__ void f(int *x) { x[0] = 1; }", 1, 1, "not PTX"),
        (HEADER + "entry k() { ret; }", 4, 1, "not PTX"),
        (HEADER + ".entry k() { ret; }\n  garbage", 5, 3, "not PTX"),
        (HEADER + ".visible", 4, 9, "directive"),
        (HEADER + ".entry k(.param .u64 a", 4, 9, "not closed"),
        (HEADER + ".entry k(.param .u64 ? a) {}", 4, 10, "does not belong"),
        (HEADER + ".entry k()\n.maxntid 1", 5, 11, "ends inside the header"),
        (HEADER + ".entry k() ret;", 4, 12, "was expected"),
        (HEADER + ".global .u32 x", 4, 1, "no semicolon"),
        (HEADER + ".global .u32 a b;", 4, 1, "declaration needs"),
        (".version eight\n", 1, 9, "version"),
        (kernel("mov.u32 %r1, %r2; {"), 7, 2, "ends inside .entry k that begins in line 4"),
        (kernel("ret; }"), 7, 1, "not PTX"),
        (kernel("\tmov.u32 %r1, %r2;\n\tadd.s32 %r1, %r2, %r3"), 7, 2, "no semicolon"),
        (kernel("\tmov.u32 %r1, %r2\n\tadd.s32 %r1, %r2, %r3;"), 6, 2, "semicolon is missing"),
        (kernel("bar.sync 0;\nret\n@%p1 ret;"), 7, 1, "semicolon is missing"),
        (kernel("bra L\nret;"), 6, 1, "semicolon is missing"),
        (kernel("ld.global.u32 %r1, [%rd1;"), 6, 1, "is missing"),
        (kernel("ld.global.u32 %r1, %rd1];"), 6, 1, "without its opening"),
        (kernel(".reg .b32 %r<4>"), 6, 1, "no semicolon"),
        (kernel(".reg .b32 %r<4>\nadd.s32 %r1, %r2, %r3;"), 6, 1, "semicolon missing"),
        (kernel("ret; /* no end"), 6, 6, "no end"),
        (kernel("= <<<<\nret;"), 6, 1, "is not a PTX statement"),
        (kernel("{" * 2000 + "}" * 2000), 6, 1001, "nested deeper"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(text: str | bytes, line: int, column: int, says: str) -> None:
    with pytest.raises(PtxError, match=says) as caught:
        analyse(text)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_every_truncation_of_a_kernel_is_refused_or_read_in_part() -> None:
    """Text cut inside a kernel names where the kernel began and where the text ends."""
    text = kernel("\tmov.u32 %r1, %tid.x;\n\tst.global.u32 [%rd1], %r1;\n\tret;", "cut")
    opening = text.index("{") + 1
    for end in range(opening, text.rindex("}")):
        with pytest.raises(PtxError, match=r"inside .entry cut that begins in line 4") as caught:
            analyse(text[:end])
        assert caught.value.line == text[:end].rstrip().count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        kernel("{" * MANY),
        kernel("ld.u32 %r1, " + "[" * MANY + "]" * MANY + ";"),
        kernel("mov.u32 " + "{" * MANY + "}" * MANY + ", %r1;"),
        kernel("/*" * MANY),
        kernel('"' * MANY),
        kernel('"\\' * MANY),
        kernel("add.s32 {%r1 " + "\n " * MANY + "x}," + "\n" * MANY + ";"),
        kernel("@" * MANY),
        kernel("@p " * MANY),
        kernel("a:" * MANY),
        kernel(".x\n" * MANY),
        kernel("?x;" * MANY),
        kernel("mov.u32 %r1, " + "9" * MANY + ";"),
        kernel("add.s32 " + "|" * MANY + ";"),
        kernel("add.s32 " + "!" * MANY + ";"),
        kernel(".reg .b32 %r<999999999999999999>; neg.s32 %r7, %r8;"),
        kernel("{ L: bra L; .reg .b32 t; neg.s32 t, t;" * 900 + "}" * 900),
        kernel("{ L: bra L; .reg .b32 t<3>; neg.s32 t1, t2; }" * 2000),
        kernel("".join(f"L{i}: @%p1 bra L{i // 2};\n" for i in range(3000))),
        HEADER + ".visible " * MANY,
        HEADER + ".section .debug {" * MANY,
        HEADER + ".section .debug {}" * MANY,
        HEADER + ".global .u32 a;" * 20_000,
        HEADER + ".global .b8 a[] = " + "{" * MANY + "}" * MANY + ";",
        HEADER + ".global .b8 a[" + "9" * MANY + "];",
        HEADER + ".func _Z" + "I" * MANY + "() {}",
        HEADER + ".entry k(" * MANY,
        HEADER + ".entry k() " + ".maxntid 1 " * 20_000 + "{}",
        "arch = sm_70\n" * MANY,
        "x\n" * MANY + ".version 8.0\n",
    ],
    ids=lambda text: text[len(HEADER) : len(HEADER) + 40].replace("\n", " "),
)
def test_hostile_text_ends(text: str) -> None:
    """Quadratic or recursive reading of any of these would not end in minutes."""
    error = refusal(text)
    assert error is None or (error.line >= 1 and error.column >= 1)


SEEDS = {path.name: path.read_text(encoding="utf-8") for path in sorted(READER.glob("*.*x*"))}
SEEDS["sample.sm_90.debug.ptx"] = SEEDS["sample.sm_90.debug.ptx"][:20_000]
PIECES = (
    "{", "}", ";", ",", "(", ")", "[", "]", '"', "//", "/*", "*/", "\n", "\0", ".", ":", "@", "%",
    ".reg .b32 t;", ".loc 1", "bra ", "L:", ".entry x(", "0f3F80", "\ufeff", "\r", "|", "!", "<",
    ".branchtargets ", ".version 9", "=", "-", "_Z3fooIS_S0_E", "\x00\xff", "é",
)  # fmt: skip


def mutate(text: str, random_: random.Random) -> str:
    """Real PTX after one to four random edits."""
    for _ in range(random_.randint(1, 4)):
        start = random_.randrange(len(text) + 1)
        end = min(len(text), start + int(random_.expovariate(1 / 40)))
        match random_.randrange(7):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:start] + random_.choice(PIECES) + text[start:]
            case 2:
                text = text[:end] + text[start:end] * random_.randint(1, 3) + text[end:]
            case 3:
                text = text[:start] + random_.choice(PIECES) + text[end:]
            case 4:
                flipped = "".join(
                    chr(ord(c) ^ (1 << random_.randrange(7))) for c in text[start:end]
                )
                text = text[:start] + flipped + text[end:]
            case 5:
                other = random_.choice(list(SEEDS.values()))
                at = random_.randrange(len(other))
                text = text[:start] + other[at : at + random_.randint(1, 400)] + text[end:]
            case _:
                text = text[:start]
    return text


def check(text: str | bytes, lines: list[str]) -> None:
    """Only the two errors come out, and every position lies in the text."""
    try:
        module = read_module(text)
        positions = [(one.line, one.column) for one in module.diagnostics]
        for function in module.functions:
            body = function.body
            graph = build_cfg(body)
            forest = natural_loops(graph)
            assert len(dominators(graph)) == len(post_dominators(graph)) == len(forest.innermost)
            for one in body.instructions:
                positions.append((one.line, one.column))
                assert lines[one.line - 1][one.column - 1 :].startswith(("@", one.opcode))
            positions += [(one.line, one.column) for one in (*body.diagnostics, *graph.diagnostics)]
        module.kernel()
    except (PtxError, KernelError) as error:
        positions = [(error.line, error.column)] if isinstance(error, PtxError) else []
    for line, column in positions:
        if line is not None and column is not None:
            assert 1 <= line <= len(lines)
            assert 1 <= column <= len(lines[line - 1]) + 1


@settings(
    max_examples=2500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,  # the same cases in every run
)
@given(st.sampled_from(sorted(SEEDS)), st.integers(0, 2**48))
def test_mutated_ptx(name: str, seed: int) -> None:
    text = mutate(SEEDS[name], random.Random(seed))
    check(text, text.split("\n" if "\n" in text or "\r" not in text else "\r"))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200), st.booleans())
def test_any_text(text: str, in_kernel: bool) -> None:
    text = kernel(text) if in_kernel else text
    check(text, text.split("\n" if "\n" in text or "\r" not in text else "\r"))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    error = refusal(HEADER.encode() + b".entry k() {" + data + b"}")
    assert error is None or (error.line >= 1 and error.column >= 1)
