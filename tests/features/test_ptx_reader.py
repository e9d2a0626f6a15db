"""Modules: what every producer of PTX prints around the bodies."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.papers.guerreiro.sequence import code_of, token_of
from tests.fixtures.ptx_text import HEADER, READER, fixture, kernel, stored_ptx
from tests.fixtures.tables import rows, table
from tests.needs import needs_data
from wattcast.features.errors import KernelError, PtxError
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module, Parameter, Variable, demangle
from wattcast.features.ptx.lexing import PIECE_CHARACTERS, Source
from wattcast.models.papers.scaling.card import OPCODES, SPACES, TYPES, Token, named, tokens
from wattcast.training.data.datasets import find_data

ALL = sorted(path.name for path in READER.iterdir() if path.suffix in (".ptx", ".txt"))


@pytest.mark.parametrize("name", ALL)
def test_every_function_of_every_producer_is_read(name: str) -> None:
    module = read_module(fixture(name))
    assert module.kernels
    for function in module.functions:
        lines = module.text.split("\n")
        assert function.name in " ".join(lines[function.line - 1 : function.line + 3])
        for instruction in function.body.instructions:
            text = lines[instruction.line - 1][instruction.column - 1 :]
            assert text.startswith(("@", instruction.opcode))
            assert instruction.opcode in text
        if name != "exotic.ptx":
            assert function.body.diagnostics == ()


def test_nvcc_module() -> None:
    module = read_module(fixture("sample.sm_75.ptx"))
    assert (module.version, module.target, module.address_size) == ((9, 0), "sm_75", 64)
    assert module.diagnostics == ()
    assert module.files[1] == "sample.cu"
    assert [kernel.demangled for kernel in module.kernels] == [
        "void scale<float>(float*, float, int)",
        "void scale<double>(double*, double, int)",
        "caller(float*, int)",
        "staged(float4 const*, float*)",
        "matrix(float const*, float*, int)",
        "lib::halves(__half2 const*, __half2*)",
    ]
    staged = module.kernel("staged")
    assert staged.directives == {"maxntid": (128, 1, 1), "minnctapersm": (4,)}
    assert [(v.name, v.space, v.bytes) for v in staged.body.variables] == [
        ("_ZZ6stagedPK6float4PfE1s", "shared", 512)
    ]
    dynamic = next(v for v in module.variables if v.name == "dynamic")
    assert (dynamic.space, dynamic.elements, dynamic.bytes, dynamic.external) == (
        "shared", 0, 0, True
    )  # fmt: skip
    power = module.function("_Z5powerfi")
    assert power is not None
    assert not power.is_entry
    assert [one.name for one in power.returns] == ["func_retval0"]
    printf = module.function("vprintf")
    assert printf is not None
    assert printf.declaration
    assert printf.body.instructions == ()


def test_triton_module() -> None:
    module = read_module(fixture("triton.ptx"))
    only = module.kernel()
    assert only.directives == {"maxntid": (128, 1, 1)}
    assert only.parameters[0] == Parameter("add_kernel_param_0", "u64", 1, 8, 8, is_pointer=True)
    assert not only.parameters[3].is_pointer
    assert module.files == {1: "add.py"}
    assert module.diagnostics == ()
    loads = [one for one in only.body.instructions if one.base == "ld" and one.predicate]
    assert [(one.predicate, one.negated) for one in loads] == [("%p1", False)] * 2
    store = next(one for one in only.body.instructions if one.opcode == "st.global.v4.b32")
    assert (store.predicate, store.negated, store.location) == ("%p1", True, (1, 14, 24))


def test_cuobjdump_prints_several_modules_and_banners() -> None:
    module = read_module(fixture("cuobjdump.txt"))
    assert (module.version, module.target) == ((8, 0), "sm_70")
    assert [one.demangled for one in module.kernels] == ["twice(float*)", "other()"]
    assert len(module.kernel("twice").body.instructions) == 9
    assert [one.code for one in module.diagnostics] == ["duplicate_function"]
    assert module.diagnostics[0].line == 77


def test_cuda_7_module() -> None:
    module = read_module(fixture("cuda7.ptx"))
    assert (module.version, module.target) == ((4, 2), "sm_35")
    weights = next(v for v in module.variables if v.name == "weights")
    assert (weights.elements, weights.bytes, weights.space, weights.type) == (6, 24, "const", "f32")
    assert weights.initializer is not None
    assert weights.initializer.startswith("{{0f3F800000")
    pointers = next(v for v in module.variables if v.name == "pointers")
    assert pointers.initializer == "{generic(tex_data), weights+8}"
    assert module.kernel().directives == {
        "maxntid": (256, 1, 1), "minnctapersm": (2,), "maxnreg": (32,)
    }  # fmt: skip


def test_rare_module_statements() -> None:
    module = read_module(fixture("exotic.ptx"))
    wide = module.kernel("wide")
    assert wide.directives == {
        "reqntid": (128,),
        "reqnctapercluster": (2, 1, 1),
        "explicitcluster": (),
        "maxclusterrank": (8,),
        "pragma": (),
        "new_in_ptx_10": (4,),
    }
    assert [(p.name, p.elements, p.bytes, p.align) for p in wide.parameters] == [
        ("map", 128, 128, 64), ("small", 1, 1, 1)
    ]  # fmt: skip
    found = {variable.name: variable for variable in module.variables}
    assert found["quad"] == Variable("quad", "global", "v4.f32", 1, 16, 16, line=10)
    assert (found["text"].elements, found["text"].bytes) == (4, 4)
    assert found["managed_word"].initializer == "0x2A"
    assert [one.code for one in module.diagnostics] == ["unknown_directive"] * 2
    assert [one.line for one in module.diagnostics] == [12, 19]
    half = module.function("half_of")
    assert half is not None
    assert half.directives == {"noreturn": ()}
    assert [register.name for register in half.body.registers] == ["result", "x"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda text: text, 6),
        (lambda text: text.replace("\n", "\r\n"), 6),
        (lambda text: text.replace("\n", "\r"), 6),
        (lambda text: "\ufeff" + text, 6),
        (lambda text: text + "\0", 6),
        (lambda text: text.encode("utf-8"), 6),
        (lambda text: ("// caf\xe9\n" + text).encode("latin-1"), 7),
        (lambda text: text.encode("utf-16"), 6),
        (lambda text: b"\xef\xbb\xbf" + text.encode() + b"\0\0", 6),
        (lambda text: "\n\nFatbin ptx code:\n====\narch = sm_70\ncompressed\n" + text, 12),
    ],
)
def test_encodings_and_line_ends(change, line: int) -> None:  # type: ignore[no-untyped-def]
    module = read_module(change(kernel("\tadd.s32 %r1, %r2, 3; ret; // end")))
    add, ret = module.kernel().body.instructions
    assert (add.line, add.column) == (line, 2)
    assert (ret.line, ret.column) == (line, 23)


def test_bodies_are_parsed_only_when_asked_for() -> None:
    module = read_module(kernel("ret;", "good") + ".entry bad()\n{\n this is no PTX \n}\n")
    assert len(module.kernel("good").body.instructions) == 1
    with pytest.raises(PtxError):
        _ = module.kernel("bad").body


def test_a_kernel_without_a_module_header_is_read() -> None:
    module = read_module(".entry k() { ret; }")
    assert module.version is None
    assert [one.code for one in module.diagnostics] == ["missing_version"]
    assert len(module.kernel().body.instructions) == 1


# --- Module.kernel ------------------------------------------------------------------
@pytest.fixture(scope="module")
def sample() -> Module:
    return read_module(fixture("sample.sm_75.ptx"))


@pytest.mark.parametrize(
    ("name", "found"),
    rows("names", "kernels"),
)
def test_kernels_by_name(sample: Module, name: str, found: str) -> None:
    assert sample.kernel(name).name == found


@pytest.mark.parametrize(
    "name", ["f<true, 32>", "f<1, 32u>", "f<(bool)1, (unsigned int)32>", "void f<(bool)1, 32U>()"]
)
def test_template_arguments_as_sources_profilers_and_demanglers_write_them(name: str) -> None:
    module = read_module("".join(f".entry _Z1fILb{flag}ELj32EEvv() {{ ret; }}" for flag in (0, 1)))
    assert module.kernel(name).name == "_Z1fILb1ELj32EEvv"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, r"holds 6 kernels; name one \(--kernel\): "),
        ("scale", "fits scale<float>, scale<double>"),
        ("nothing", "no kernel 'nothing'"),
        ("_Z5powerfi", "no kernel"),
        ("", "no kernel"),
    ],
)
def test_kernels_that_cannot_be_told(sample: Module, name: str | None, says: str) -> None:
    with pytest.raises(KernelError, match=says) as caught:
        sample.kernel(name)
    assert caught.value.context["known"]


def test_a_module_without_a_kernel_is_read() -> None:
    module = read_module(HEADER + ".func f() { ret; }")
    assert module.kernels == ()
    with pytest.raises(KernelError, match="no kernel"):
        module.kernel()


def blanked(text: str) -> str:
    """Comments and strings made blank, character by character; ``!``: a comment without an end."""
    out, place = [], 0
    while place < len(text):
        two, end = text[place : place + 2], place + 1
        if two == "//":
            end = text.find("\n", place) % (len(text) + 1)
            out.append(" " * (end - place))
        elif two == "/*":
            closing = text.find("*/", place + 2)
            if closing < 0:
                return "!"
            end = closing + 2
            out.append("".join(c if c == "\n" else " " for c in text[place:end]))
        elif two[0] == '"':
            while end < len(text) and text[end] not in '"\n':
                behind_backslash = text[end] == "\\" and text[end + 1 : end + 2] not in ("", "\n")
                if text[end] == "\\" and not behind_backslash:
                    break
                end += 1 + behind_backslash
            end += text[end : end + 1] == '"'
            found = end - place
            closed = found > 1 and text[end - 1] == '"'
            out.append('"' + " " * (found - 2) + '"' if closed else " " * found)
        else:
            out.append(two[0])
        place = end
    return "".join(out)


@given(st.text(alphabet='/*"\\\n{a ', max_size=40))
def test_comments_and_strings_become_blanks(text: str) -> None:
    wanted = blanked(text)
    if wanted == "!":
        with pytest.raises(PtxError, match="has no end"):
            Source(text)
    else:
        assert Source(text).clean == wanted


def test_text_longer_than_what_is_searched_at_once() -> None:
    plain = ("x" * 99 + "\n") * (PIECE_CHARACTERS // 40)
    text = f"{plain}// a\n{plain}/* b\n */{plain}"
    assert Source(text).clean == text.replace("// a", "    ").replace("/* b\n */", "    \n   ")
    assert read_module(f"lines before\n{plain}\t.version 8.0\n{plain[:0]}").version == (8, 0)


# --- C++ names of kernels


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


# --- PTX tokens: nine digits of what an instruction is and how near its operands were written

KERNEL = stored_ptx("tokens_by_hand")

# By the rules of their parser: %rd1 is the sixth operand back and was a parameter, %f1 was
# forgotten after nine, and an address with an offset is no register.
GOLDEN: list[str] = table("names", "tokens")


def coded(text: str) -> list[Token | None]:
    (kernel,) = read_module(text).kernels
    return list(tokens(kernel.body.instructions))


def test_tokens_of_a_kernel_by_hand() -> None:
    found = [token for token in coded(KERNEL) if token is not None]
    assert [f"{code_of(token)} {token.name}" for token in found] == GOLDEN


def test_guarded_instructions_and_returns_have_none() -> None:
    found = coded(KERNEL)
    assert found.count(None) == 2
    assert found[-1] is None


@given(
    st.builds(
        Token,
        st.integers(0, len(OPCODES) - 1),
        st.integers(0, len(SPACES)),
        st.integers(0, len(TYPES)),
        *[st.integers(0, 9)] * 2,
        st.integers(0, 2),
    )
)
def test_codes_are_read_back(token: Token) -> None:
    assert token_of(code_of(token)) == token
    assert len(code_of(token)) == 9


@pytest.mark.parametrize("code", ["", "12", "0546122000", "05461220x"])
def test_what_is_no_code_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match="nine digits"):
        token_of(code)


@needs_data
def test_every_published_token_is_told_by_its_name() -> None:
    root = find_data()
    assert root is not None
    path = root / "sequences" / "gtx_titan_x_sequences.csv.gz"
    with gzip.open(path, "rt") as file:
        known = {tuple(line.strip().split(",")[-2:]) for line in file.readlines()[1:]}
    assert len({code for code, _ in known}) >= 219
    for code, name in known:
        token = token_of(code)
        told = named(name, token.operands)
        assert (code_of(token), token.name) == (code, name)
        assert told == token._replace(distance=0, producer=0)
